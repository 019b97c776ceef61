"""Books: random small tables and shards with nulls, mixed numbers, missing members and damage, on 1 to 4 ranks, with a stop.

In every form, in order and shuffled: each sample is delivered right, or counted as failed, dropped or left out with a reason; the sum is
all samples; and the types of the data set are the same on all ranks, before and behind the stop.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import forms
from expect import Expected, described, exact_float, same, sample_id
from kit import Outcome, Sample, Variant, collated, main, read_batches, short
from vary_nulls import FITS, judge_field

FORMS = ["records", "csv", "parquet", "mds", "tfrecord", "tar"]
ENDS = {"records": "ndjson", "csv": "csv", "parquet": "parquet", "mds": "mds", "tfrecord": "tfrecord", "tar": "tar"}
TEXTS = ["", "a", "ü", "1", "x y", "true", '"', "a,b"]


@dataclass
class Part:
    """One file of a data set."""

    name: str
    rows: list[dict[str, Any]]
    damage: str = ""
    # Samples that may be lost, and those that no reader can miss.
    lost: set[int] = field(default_factory=set)
    unseen: set[int] = field(default_factory=set)


def draw_rows(rng: random.Random, form: str) -> tuple[list[list[dict[str, Any]]], dict[str, str]]:
    """Rows of each file, without the members that are absent, and the types of their fields."""
    kinds = {"x": rng.choice(["float", "int", "mixed"]), "n": "int", "t": "text"}
    if form == "tar":
        kinds = {"cls": "int", "txt": "text"}
    elif form in ("csv", "tfrecord") and kinds["x"] == "mixed":
        kinds["x"] = "float"
    for name in list(kinds):
        if len(kinds) > 1 and rng.random() < 0.25:
            del kinds[name]
    gaps = {name: rng.choice([0, 0, 0.1, 0.5]) for name in kinds}
    files, number = [], 0
    for place in range(rng.choice([1, 1, 2, 3])):
        rows = []
        # In Parquet and MDS a column is absent as a whole; in Parquet there are nulls, too.
        without = [name for name in kinds if form in ("parquet", "mds") and place and rng.random() < 0.08]
        whole = rng.random() < 0.5
        for _ in range(rng.choice([1, 2, 3, 5, 9])):
            row: dict[str, Any] = {"id": number}
            number += 1
            for name, kind in kinds.items():
                if name in without or (rng.random() < gaps[name] and form != "mds" and not (form == "csv" and kind == "text")):
                    continue
                row[name] = draw(rng, kind, whole, form)
            rows.append(row)
        files.append(rows)
    return files, kinds


def draw(rng: random.Random, kind: str, whole: bool, form: str) -> Any:
    if kind == "int":
        return rng.choice([0, 1, -1, 2**53 + 1, rng.randint(-99, 99)])
    if kind == "text":
        return rng.choice(TEXTS)
    if kind == "mixed":
        # In Parquet and MDS all values of a file have one type.
        is_whole = whole if form in ("parquet", "mds") else rng.random() < 0.5
        return rng.randint(-9, 9) if is_whole else rng.choice([0.5, -2.25, 1.0])
    return rng.choice([0.0, 0.5, -2.25, 1e10])


def write(rng: random.Random, form: str, folder: Path, files: list[list[dict[str, Any]]], kinds: dict[str, str]) -> list[Part]:
    """Writes the files."""
    if form == "mds":
        encodings = {"int": "int", "float": "float64", "text": "str"}
        shards = []
        for rows in files:
            columns = {"id": "int"}
            for name in rows[0]:
                if name != "id":
                    columns[name] = encodings[kinds[name]] if kinds[name] != "mixed" else "int" if isinstance(rows[0][name], int) else "float64"
            shards.append((columns, rows))
        return [Part(path.name, rows) for path, rows in zip(forms.write_mds(folder, shards), files)]
    parts = []
    for place, rows in enumerate(files):
        name = f"s-{place}.{ENDS[form]}"
        path = folder / name
        if form == "records":
            path.write_text("".join(json_line(rng, row, kinds) + "\n" for row in rows))
        elif form == "csv":
            lines = [["id", *kinds]] + [[str(row["id"]), *[str(row.get(name, "")) for name in kinds]] for row in rows]
            path.write_text("".join(",".join(forms.csv_cell(cell) for cell in line) + "\n" for line in lines))
        elif form == "tfrecord":
            path.write_bytes(forms.tfrecord_bytes([forms.example({name: feature(kinds.get(name, "int"), value) for name, value in row.items()}) for row in rows]))
        elif form == "tar":
            path.write_bytes(forms.tar_bytes([(f"k{row['id']:05}", {name: str(value).encode() for name, value in row.items()}) for row in rows]))
        else:
            columns = {"id": pa.array([row["id"] for row in rows], pa.int64())}
            for column, kind in kinds.items():
                values = [row.get(column) for row in rows]
                if place and rng.random() < 0.5 and all(value is None for value in values):
                    continue
                if kind == "mixed":
                    kind = "int" if any(isinstance(value, int) for value in values) else "float"
                columns[column] = pa.array(values, {"int": pa.int64(), "float": pa.float64(), "text": pa.string()}[kind])
            pq.write_table(pa.table(columns), path, row_group_size=rng.choice([1, 3, 100]), use_dictionary=rng.random() < 0.5)
        parts.append(Part(name, rows))
    return parts


def json_line(rng: random.Random, row: dict[str, Any], kinds: dict[str, str]) -> str:
    """A line of NDJSON, in which an absent member is null or not there."""
    full = {"id": row["id"]}
    for name in kinds:
        if name in row:
            full[name] = row[name]
        elif rng.random() < 0.5:
            full[name] = None
    return json.dumps(full, ensure_ascii=rng.random() < 0.5)


def feature(kind: str, value: Any) -> tuple[str, list[Any]]:
    if kind == "text":
        return "bytes", [value.encode()]
    return ("float", [value]) if kind == "float" else ("int", [value])


def spoil(rng: random.Random, form: str, folder: Path, part: Part) -> None:
    """Damages a file so that no remaining sample has another value."""
    path = folder / part.name
    data = path.read_bytes()
    ids = [row["id"] for row in part.rows]
    kinds = ["cut", "empty", "missing"] + (["bad record"] * 2 if form in ("records", "csv") else []) + (["flip"] * 2 if form in ("tfrecord", "tar") else [])
    kind = rng.choice(kinds)
    part.damage = kind
    part.lost = set(ids)
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "missing":
        path.unlink()
        part.unseen = set(ids)
    elif kind == "flip":
        # A header of a member, or any byte under a checksum.
        place = rng.randrange(len(data))
        if form == "tar":
            place = rng.choice([place for place in range(0, len(data), 512) if data[place:place + 1] == b"k"]) + rng.randrange(0, 100)
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1:])
        part.damage = f"flip at {place}"
    elif form in ("records", "csv"):
        lines = data.split(b"\n")[:-1]
        first = 1 if form == "csv" else 0
        number = rng.randrange(len(ids))
        if kind == "cut":
            # Within the first value of a record, or between two.
            rest = rng.choice([b"", lines[first + number][:1]])
            path.write_bytes(b"\n".join(lines[:first + number]) + (b"\n" if first + number else b"") + rest)
            part.lost = set(ids[number:])
            # A cut between two records cannot be seen, and neither can the records behind it.
            part.unseen = set(ids[number:]) if rest == b"" else set(ids[number + 1:])
        else:
            lines[first + number] = b'{"id": ' if form == "records" else b"x"
            path.write_bytes(b"\n".join(lines) + b"\n")
            part.lost = {ids[number]}
    elif kind == "cut":
        size = rng.randrange(1, len(data))
        path.write_bytes(data[:size])
        part.damage = f"cut to {size} of {len(data)}"
        if form == "tfrecord":
            ends, place = [], 0
            for row in part.rows:
                place += 16 + int.from_bytes(data[place:place + 8], "little")
                ends.append(place)
            part.lost = {number for number, end in zip(ids, ends) if end > size}
            part.unseen = part.lost if size in ends else {number for number in part.lost if number != min(part.lost)}


def make(variant: Variant) -> None:
    rng = variant.rng
    form = rng.choice(FORMS)
    variant.tags.append(form)
    folder = variant.folder("d")
    files, kinds = draw_rows(rng, form)
    parts = write(rng, form, folder, files, kinds)
    indexed = form in ("tar", "tfrecord") and rng.random() < 0.5
    if indexed:
        made = subprocess.run([str(variant.options.penstock), "index", "create", f"--{form}", "--store", f"d={folder}", "--upload", "all.index"], capture_output=True)
        if made.returncode:
            variant.differ("index of sound shards fails", 0, made.stderr.decode("utf-8", "replace"))
            return
    if rng.random() < 0.3:
        spoil(rng, form, folder, rng.choice(parts))
    damaged = [part for part in parts if part.damage]
    world = rng.choice([1, 1, 2, 3, 4])
    stop = rng.random() < variant.options.stops
    shuffle = rng.random() < 0.5 and (indexed or form not in ("tar", "tfrecord"))
    by_name = form in ("records", "csv", "parquet", "tar", "tfrecord") and not indexed and rng.random() < 0.5
    expected, policies = judge(rng, parts, kinds, form in ("parquet", "csv"))
    source: dict[str, Any] = {"store": "d", "shuffle": shuffle}
    if policies:
        source["missing"] = policies
    if form == "csv":
        source["types"] = {"id": "int", **{name: kind for name, kind in kinds.items() if kind != "text"}}
    if form == "tfrecord":
        source["texts"] = [name for name, kind in kinds.items() if kind == "text"]
    if indexed:
        source["index"] = "all.index"
    elif by_name:
        source["shards"] = f"s-{{0..{len(parts) - 1}}}.{ENDS[form]}"
    elif form != "mds":
        source["prefix"] = "s-"
    if damaged and rng.random() < 0.7 or rng.random() < 0.1:
        source["on_damage"] = "skip"
    for part in parts:
        variant.note(f"{form} {part.name}, {part.damage or 'sound'}: {part.rows}"[:900])
    variant.note(f"world {world}, stop {stop}")
    size = rng.choice([1, 3])
    outcomes = []
    for rank in range(world):
        if world > 1:
            source["shard"] = {"rank": rank, "world": world, "uneven": "keep"}
        outcomes += run_rank(variant, {form: dict(source)}, folder, size, rank, stop)
        if outcomes[-1].is_setting_unknown:
            variant.differ("a setting is unknown", "the settings of the manual", outcomes[-1].errors)
            return
    check(variant, outcomes, parts, expected, source, by_name, indexed or form == "mds", form)


def judge(rng: random.Random, parts: list[Part], kinds: dict[str, str], in_footers: bool) -> tuple[Expected, dict[str, Any]]:
    """What is right, and policies that mostly let absent values pass."""
    rows = [row for part in parts for row in part.rows]
    expected = Expected(values={row["id"]: {} for row in rows})
    policies: dict[str, Any] = {}
    columns = {name: {row["id"]: row.get(name) for row in rows} for name in kinds}
    chosen: dict[str, str | None] = {}
    types: dict[str, str] = {}
    for name, kind in kinds.items():
        if kind == "mixed":
            found = {type(value) for value in columns[name].values() if value is not None}
            kind = "int" if found == {int} else "float"
        types[name] = kind
        has_gaps = any(value is None for value in columns[name].values())
        chosen[name] = rng.choices([None, "mask", "drop", "nan" if kind == "float" else "fits", "fits"], [1 if has_gaps else 6, 4, 3, 2, 2])[0]
        if chosen[name] == "drop" and all(value is None for value in columns[name].values()):
            chosen[name] = None
        if chosen[name] == "fits":
            policies[name] = {"value": rng.choice(FITS[kind])}
        elif chosen[name]:
            policies[name] = chosen[name]
        if chosen[name] == "drop":
            expected.dropped |= {number for number, value in columns[name].items() if value is None}
    for name in kinds:
        judge_field(expected, name, columns[name], types[name], chosen[name], policies.get(name), in_footers)
        if types[name] == "float" and not all(exact_float(value) for value in columns[name].values() if isinstance(value, int)):
            expected.may.append("a whole number that float64 does not hold")
    return expected, policies


def run_rank(variant: Variant, source: dict[str, Any], folder: Path, size: int, rank: int, stop: bool) -> list[Outcome]:
    """Runs one rank, with or without a stop. The last outcome has all samples."""
    name = f"rank-{rank}"
    document = collated(source, size, max_failures=None)
    if not stop:
        return [variant.run(document, {"d": folder}, out=name)]
    document["stages"].insert(0, {"sleep": {"mean_ms": 4}})
    state = str(variant.place / f"state-{rank}.json")
    first = variant.run(document, {"d": folder}, "--state", state, "--for", f"{variant.rng.choice([0.01, 0.02, 0.04])}s", out=name)
    if first.code != 0 or not Path(state).exists():
        return [first]
    document["stages"][0]["sleep"]["mean_ms"] = 0.01
    if first.count("made") and first.count("left"):
        variant.tags.append("stopped on the way")
    second = variant.run(document, {"d": folder}, "--state", state, "--resume", state, out=name)
    if second.code == 2 and "sleep" in second.errors:
        variant.differ("a resume with other times is refused", 0, second.errors)
    return [first, second]


def check(variant: Variant, outcomes: list[Outcome], parts: list[Part], expected: Expected, source: dict[str, Any], by_name: bool, knows_names: bool, form: str) -> None:
    """Checks all ranks together."""
    if any(outcome.code == -9 for outcome in outcomes):
        return
    damaged = [part for part in parts if part.damage]
    samples: list[Sample] = []
    for rank in range(99):
        folder = variant.place / f"rank-{rank}" / "b"
        if not (variant.place / f"rank-{rank}").exists():
            break
        samples += read_batches(folder)
    check_values(variant, samples, expected, bool(damaged))
    # A run that is stopped before its source is open knows no types.
    types = {json.dumps(outcome.snapshot["fields"], sort_keys=True) for outcome in outcomes if outcome.code == 0 and outcome.snapshot.get("fields")}
    if len(types) > 1:
        variant.differ("types differ between ranks or behind a stop", "the same `fields`", sorted(types))
    failed = [outcome for outcome in outcomes if outcome.code != 0]
    words = "\n".join(outcome.words for outcome in outcomes)
    if failed:
        variant.tags.append("refused")
        reasons = list(expected.refuse) + expected.may + [part.damage for part in damaged]
        if form in ("tar", "tfrecord") and source.get("on_damage") == "skip" and "index" not in source and "shard" in source:
            # Ranks could find different samples at a position.
            reasons.append("skip without an index on several ranks")
        if not reasons:
            variant.differ(f"{form}: refused what is right", "exit code 0", failed[0].errors)
        elif damaged and source.get("on_damage") == "skip" and not expected.refuse and not expected.may and len(parts) > 1:
            world = (source.get("shard") or {}).get("world", 1)
            if not (world > 1 and "index" not in source) and not (form == "tar" and "missing" in words) and not refuses_policy(words) and not all_fail(failed, damaged):
                variant.differ(f"{form}: ends, although damage is skipped", "exit code 0", failed[0].errors)
        return
    variant.tags.append("delivered")
    if expected.refuse and not damaged:
        variant.differ(f"not refused: {next(iter(expected.refuse))}", "an end with exit code 1", described(outcomes[-1]))
        return
    ids = [sample_id(sample) for sample in samples]
    doubled = sorted({number for number in ids if ids.count(number) > 1}, key=str)
    if doubled:
        variant.differ(f"{form}: a sample comes twice", "each sample once", doubled)
    missing = [number for number in expected.values if number not in ids]
    losses = {number for part in damaged for number in part.lost}
    unseen = {number for part in damaged for number in part.unseen if not (knows_names or by_name and part.damage == "missing")}
    counted_failed = sum(outcome.failed for outcome in outcomes)
    counted_dropped = sum(outcome.count("dropped") for outcome in outcomes)
    of_sound = [number for number in missing if number not in losses | expected.dropped]
    if of_sound:
        variant.differ(f"{form}: sound samples are missing", sorted(expected.values), f"missing {of_sound}, failed {counted_failed}; {words}")
    named = any(part.name in words for part in damaged)
    unexplained = [number for number in missing if number in losses and number not in unseen | expected.dropped]
    if unexplained and not named and len(unexplained) > counted_failed:
        variant.differ(f"{form}: lost without a word", unexplained, f"failed {counted_failed}; {words}")
    if unexplained and source.get("on_damage") != "skip" and "bad record" not in damaged[0].damage:
        variant.differ(f"{form}: damage passes under `fail`", "exit code 1", described(outcomes[-1]))
    lost = [outcome.lost_samples for outcome in outcomes]
    if damaged and form == "mds" and None not in lost and len(ids) + counted_failed + counted_dropped + max(lost) != len(expected.values):
        variant.differ(f"{form}: the sum is not all", len(expected.values), f"{len(ids)} delivered, {counted_failed} failed, {counted_dropped} dropped, {lost} left out")
    if not damaged:
        if len(ids) + counted_failed + counted_dropped != len(expected.values):
            variant.differ(f"{form}: the sum is not all", len(expected.values), f"{len(ids)} delivered, {counted_failed} failed, {counted_dropped} dropped")
        if counted_dropped != len(expected.dropped):
            variant.differ(f"{form}: number of dropped samples", len(expected.dropped), counted_dropped)
        if counted_failed:
            variant.differ(f"{form}: sound samples fail", 0, words)
    elif len(set(ids)) + counted_failed + counted_dropped > len(expected.values):
        variant.differ(f"{form}: more samples than were written", len(expected.values), f"{len(ids)} delivered, {counted_failed} failed, {counted_dropped} dropped")


def refuses_policy(words: str) -> bool:
    """True if a policy of `missing` does not fit what damage has left of the data."""
    return "the data set does not have" in words or "cannot fill the field" in words


def all_fail(failed: list[Outcome], damaged: list[Part]) -> bool:
    """True if each run that ended had no other samples in an epoch than damaged ones, which ends it."""
    counts = [re.search(r"all (\d+) samples of epoch", outcome.errors) for outcome in failed]
    most = sum(len(part.lost) for part in damaged)
    return all(count and int(count[1]) <= most for count in counts)


def check_values(variant: Variant, samples: list[Sample], expected: Expected, has_damage: bool) -> None:
    """Compares each value, and the types over all batches of all ranks."""
    dtypes: dict[str, set[str]] = {}
    for sample in samples:
        number = sample_id(sample)
        if number not in expected.values:
            variant.differ("a sample that is not in the data", "an id of the data", short(sample.fields))
            return
        if number in expected.dropped:
            if not has_damage:
                variant.differ("a sample that should be dropped", f"{number} dropped", short(sample.fields))
                return
            continue
        for name, value in sample.fields.items():
            dtypes.setdefault(name, set()).add("bytes" if isinstance(value, bytes) else str(value.dtype))
            wanted = expected.values[number].get(name)
            if name in expected.unknown or name == "id":
                continue
            if wanted is None or not same(wanted, value, expected.types.get(name)):
                variant.differ("wrong value", f"`{name}` of {number} is {wanted!r}", repr(value))
                return
    for name, kinds in dtypes.items():
        if len(kinds) > 1:
            variant.differ("type of a field changes between batches or ranks", f"one type of `{name}`", sorted(kinds))


if __name__ == "__main__":
    main("books", make, 10_000, lambda parser: parser.add_argument("--stops", type=float, default=0.25, help="share of cases with a stop (0.25)"))
