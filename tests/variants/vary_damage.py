"""Damage: shards that are cut, flipped, overwritten, empty or missing, with `on_damage` `fail` and `skip`, in order and shuffled.

References: a strict reading by `tarfile`, `csv`, `json`, pyarrow, and by the checksums of TFRecord and the table of places of MDS. Each
delivered sample is one that was written, or one that the reference reads from the damaged bytes, too (no checksum covers it). Each
sample that was written is delivered, failed, or lies in a shard that the run names.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import damaged
from damaged import Shard
from expect import described
from kit import Outcome, Sample, Variant, collated, main


def make(variant: Variant) -> None:
    rng = variant.rng
    form = rng.choice(damaged.FORMS)
    variant.tags.append(form)
    folder = variant.folder("d")
    shards = damaged.make(rng, form, folder, rng.choice([1, 2, 3, 3]), rng.choice([2, 6, 15]))
    indexed = form in ("tar", "tfrecord") and rng.random() < 0.4
    if indexed and not create_index(variant, form, folder):
        return
    times = {shard.name: os.stat(folder / shard.name) for shard in shards}
    if rng.random() < 0.95:
        for shard in rng.sample(shards, rng.choice([1, 1, 1, min(2, len(shards))])):
            damaged.spoil(rng, form, folder, shard)
            if indexed and rng.random() < 0.5 and (folder / shard.name).exists():
                was = times[shard.name]
                os.utime(folder / shard.name, ns=(was.st_atime_ns, was.st_mtime_ns))
                shard.damage += ", time kept"
    damaged.read(form, folder, shards)
    for shard in shards:
        variant.note(f"{form} {shard.name}: ids {list(shard.samples)}, {shard.damage or 'sound'}, fault {shard.fault!r}, whole before {[row[0] for row in shard.before]}")
    by_name = not indexed and form != "mds" and (any(shard.fault == "missing" for shard in shards) or rng.random() < 0.3)
    may_shuffle = indexed or form not in ("tar", "tfrecord")
    outcomes = {}
    for mode, shuffle in [("skip", False), ("skip", True), ("fail", may_shuffle and rng.random() < 0.5)]:
        if shuffle and not may_shuffle:
            continue
        source: dict[str, Any] = {"store": "d", "shuffle": shuffle}
        if form == "csv":
            source["types"] = {"id": "int"}
        if indexed:
            source["index"] = "all.index"
        elif by_name:
            source["shards"] = f"s-{{0..{len(shards) - 1}}}.{damaged.ENDS[form]}"
        elif form != "mds":
            source["prefix"] = "s-"
        if form == "tfrecord":
            source["fields"] = {"id": "id", "payload": "payload"}
        if mode == "skip" or rng.random() < 0.5:
            source["on_damage"] = mode
        flags = ["--out", str(variant.place / f"kept-{shuffle}")] if mode == "skip" and form in ("records", "csv") else []
        outcome = variant.run(collated({form: source}, 1 if rng.random() < 0.7 else 4, max_failures=None), {"d": folder}, *flags)
        if outcome.is_setting_unknown:
            variant.differ("a setting is unknown", "the settings of the manual", outcome.errors)
            continue
        label = f"{form}, {mode}, {'shuffled' if shuffle else 'in order'}{', index' if indexed else ''}"
        check(variant, outcome, shards, form, mode, label, by_name or indexed or form == "mds", indexed)
        if mode == "skip":
            outcomes[shuffle] = outcome
            if flags and outcome.code == 0:
                check_kept(variant, outcome, Path(flags[1]), label)
    if len(outcomes) == 2 and all(outcome.code == 0 for outcome in outcomes.values()):
        sets = [sorted(pairs(outcome.samples)) for outcome in outcomes.values()]
        if sets[0] != sets[1]:
            variant.differ(f"{form}: in order and shuffled deliver other samples", [pair[0] for pair in sets[0]], [pair[0] for pair in sets[1]])


def create_index(variant: Variant, form: str, folder: Path) -> bool:
    """Makes an index of sound shards."""
    command = [str(variant.options.penstock), "index", "create", f"--{form}", "--store", f"d={folder}", "--upload", "all.index"]
    made = subprocess.run(command, capture_output=True)
    if made.returncode:
        variant.differ("index of sound shards fails", 0, made.stderr.decode("utf-8", "replace"))
    return made.returncode == 0


def pairs(samples: Sequence[Sample]) -> list[tuple[int, bytes]]:
    """Numbers and payloads of samples; -1 and `?` stand for other values."""
    found = []
    for sample in samples:
        number, data = sample.fields.get("id"), sample.fields.get("payload")
        found.append((int(number) if number is not None and not isinstance(number, bytes) else -1, data if isinstance(data, bytes) else b"?"))
    return found


def check(variant: Variant, outcome: Outcome, shards: list[Shard], form: str, mode: str, label: str, sees_missing: bool, indexed: bool) -> None:
    """Checks one run."""
    if outcome.code == -9:
        return
    written = {pair for shard in shards for pair in shard.samples.items()}
    allowed = written | {pair for shard in shards for pair in shard.read}
    delivered = pairs(outcome.samples)
    partial = form == "tar" and any(shard.lacks_end or shard.fault for shard in shards)
    for number, data in delivered:
        if (number, data) not in allowed:
            if partial and (number == -1 or data == b"?"):
                variant.differ(f"{label}: a sample without one of its files", "a whole sample", (number, data))
            else:
                variant.differ(f"{label}: a wrong sample", "a sample of the data", (number, data))
            break
    if len(set(delivered)) != len(delivered) and not any(len(set(shard.read)) != len(shard.read) for shard in shards) and not any(shard.damage for shard in shards):
        variant.differ(f"{label}: a sample comes twice", len(set(delivered)), len(delivered))
    faulty = [shard for shard in shards if shard.fault and (sees_missing or shard.fault != "missing")]
    words = outcome.words
    if mode == "fail":
        if outcome.code == 0:
            variant.tags.append("fail: passed")
            # An index lets headers and lengths go unread.
            for shard in faulty:
                if not set(shard.samples.items()) <= set(delivered):
                    variant.differ(f"{label}: damage passes", f"an end with exit code 1 for {shard.name}: {shard.fault}", described(outcome))
            unsaid = [shard for shard in shards if shard.lacks_end and shard.name not in words]
            if unsaid and not indexed:
                variant.differ(f"{label}: a shard without its end mark passes without a word", unsaid[0].damage, words)
            lost(variant, outcome, shards, delivered, label)
        else:
            variant.tags.append("fail: refused")
            if not any(shard.damage for shard in shards):
                variant.differ(f"{label}: sound data is refused", 0, outcome.errors)
            elif not any(shard.name in words for shard in shards if shard.damage) and not any(shard.odd for shard in shards):
                variant.differ(f"{label}: the message does not name the shard", [shard.name for shard in shards if shard.damage], words)
        return
    if outcome.code != 0:
        variant.tags.append("skip: refused")
        if any(shard.odd for shard in shards):
            # Another name or type of a value contradicts the data set.
            return
        whole = [pair for shard in shards for pair in (shard.before if shard.damage else list(shard.samples.items()))]
        if whole and not (partial and "missing" in words):
            variant.differ(f"{label}: ends, although samples are left", f"{len(whole)} samples", outcome.errors)
        return
    variant.tags.append("skip: delivered")
    for shard in shards:
        whole = set(shard.before) & written if shard.damage else set(shard.samples.items())
        lacking = sorted(pair[0] for pair in whole - set(delivered))
        if lacking:
            what = "whole samples before the damage are missing" if shard.damage else "samples of a sound shard are missing"
            variant.differ(f"{label}: {what}", f"{lacking} of {shard.name}, {shard.damage or 'sound'}", f"{described(outcome)}; {words}")
            break
    lost(variant, outcome, shards, delivered, label)


def lost(variant: Variant, outcome: Outcome, shards: list[Shard], delivered: list[tuple[int, bytes]], label: str) -> None:
    """Each sample that was written is delivered, failed, or lies in a shard that the run names, or no reader can know of it."""
    words = outcome.words + str(outcome.left_out)
    unknown = 0
    first = ""
    for shard in shards:
        missing = [pair for pair in shard.samples.items() if pair not in delivered]
        if not missing or shard.name in words:
            continue
        if not shard.fault and shard.damage:
            # The reference reads the shard without a fault, and finds the same.
            continue
        if shard.fault == "missing" and "prefix" in variant.recipe[-1]:
            continue
        unknown += len(missing)
        first = first or f"{[pair[0] for pair in missing][:10]} of {shard.name}: {shard.fault}"
    if unknown > outcome.failed:
        variant.differ(f"{label}: lost without a word", f"{first} in left_out or failures", f"{described(outcome)}; {words}")


def check_kept(variant: Variant, outcome: Outcome, folder: Path, label: str) -> None:
    """Bad lines and rows are kept as dead letters."""
    path = folder / "dead_letters.ndjson"
    kept = len(path.read_text(encoding="utf-8", errors="replace").splitlines()) if path.exists() else 0
    if outcome.failed and kept != outcome.failed:
        variant.differ(f"{label}: dead letters", outcome.failed, kept)


if __name__ == "__main__":
    main("damage", make)
