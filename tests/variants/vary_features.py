"""Features: TFRecord files whose features have none, one or several values, or are absent, plain and compressed, in order and by an index.

Reference: the protocol buffers of the package `tfrecord`, read by its own iterator. A feature has one form in all samples: a number if
each sample has exactly one, otherwise an array, and none of them is lost.
"""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from tfrecord import example_pb2
from tfrecord.reader import tfrecord_iterator

import blobs
import compressed
import forms
from compressed import Packed
from expect import LEAST, MOST, AnyOf, Expected, compare
from kit import Variant, collated, main

# Numbers of values that the samples of a feature have; -1 is absent, -2 a feature without a kind.
COUNTS = {
    "one": [1], "none or one": [0, 1], "one or several": [1, 2, 3], "any": [0, 1, 2, 4], "none": [0], "several": [2, 3], "two": [2], "one or absent": [1, 1, -1],
    "any or absent": [0, 1, 3, -1], "one, kind unknown": [1, 1, -2], "rarely two": [1] * 12 + [2], "rarely none": [1] * 12 + [0], "absent": [-1], "many": [1, 200],
}
KINDS = ["int", "int", "float", "float", "bytes", "bytes", "text"]


def draw_value(rng: Any, kind: str) -> Any:
    if kind == "int":
        return rng.choice([0, 1, -1, 7, 2**40, MOST, LEAST])
    if kind == "float":
        return float(np.float32(rng.choice([0.0, 0.5, -1.25, rng.random(), float("inf"), float("nan"), 1e-40])))
    if kind == "text":
        return rng.choice(["", "a", "\u00fc", "two\nlines", "x" * 300]).encode()
    return rng.choice([b"", b"\xff\xd8\xff", b"\0", bytes(range(256))])


def spelled_example(rng: Any, features: dict[str, tuple[str, list[Any]] | None]) -> bytes:
    """An example in one of the spellings that protocol buffers permit; `None` is a feature without a kind."""
    entries = b""
    names = list(features)
    if rng.random() < 0.3:
        rng.shuffle(names)
    for name in names:
        value = features[name]
        if value is None:
            body = b""
        else:
            kind, values = value
            word = "bytes" if kind == "text" else kind
            packed = rng.random() < 0.8
            if word != "bytes" and len(values) > 1 and rng.random() < 0.15:
                # Several runs of values in one list belong together.
                number, list_field = {"float": (2, lambda part: struct.pack(f"<{len(part)}f", *part)), "int": (3, lambda part: b"".join(forms.varint(item) for item in part))}[word]
                cut = rng.randint(1, len(values) - 1)
                body = forms.message(number, forms.message(1, list_field(values[:cut])) + forms.message(1, list_field(values[cut:])))
            else:
                body = forms.feature(word, values, packed)
        entries += forms.message(1, forms.message(1, name.encode()) + forms.message(2, body))
    return forms.message(1, entries)


def spelled(value: tuple[str, list[Any]] | None) -> str:
    """Values of a feature in short."""
    if value is None:
        return "absent"
    parts = [repr(item) if not isinstance(item, bytes) or len(item) < 8 else f"{len(item)} bytes" for item in value[1]]
    return f"[{', '.join(parts)}]" if len(parts) < 5 else f"{len(parts)} values"


def by_package(path: Path) -> list[dict[str, tuple[str, list[Any]] | None]]:
    """Features of each record as the package reads them."""
    records = []
    for view in tfrecord_iterator(str(path)):
        example = example_pb2.Example()
        example.ParseFromString(bytes(view))
        features: dict[str, tuple[str, list[Any]] | None] = {}
        for name, feature in example.features.feature.items():
            word = feature.WhichOneof("kind")
            features[name] = None if word is None else ({"int64_list": "int", "float_list": "float", "bytes_list": "bytes"}[word], list(getattr(feature, word).value))
        records.append(features)
    return records


def make(variant: Variant) -> None:
    rng = variant.rng
    names = ["a", "b"][: rng.randint(1, 2)]
    kinds = {name: rng.choice(KINDS) for name in names}
    counts = {name: rng.choice(list(COUNTS)) for name in names}
    for name in names:
        variant.tags.append(f"{'bytes' if kinds[name] == 'text' else kinds[name]}: {counts[name]}")
    folder = variant.folder("d")
    plain = variant.folder("plain")
    files: list[tuple[str, Packed]] = []
    one = rng.choice(["plain", "plain", "plain", "gzip", "gzip", "zstd", "bzip2", "xz"])
    raw: dict[str, dict[int, tuple[str, list[Any]] | None]] = {name: {} for name in names}
    keys: dict[int, str] = {}
    number = 0
    for place in range(rng.choice([1, 1, 2])):
        out = []
        for _ in range(rng.choice([1, 3, 8, 20])):
            features: dict[str, tuple[str, list[Any]] | None] = {"id": ("int", [number])}
            for name in names:
                count = rng.choice(COUNTS[counts[name]])
                if count >= 0:
                    features[name] = kinds[name], [draw_value(rng, kinds[name]) for _ in range(count)]
                elif count == -2:
                    features[name] = None
            out.append(spelled_example(rng, features))
            keys[number] = f"t-{place}.tfrecord"
            number += 1
        data = forms.tfrecord_bytes(out)
        (plain / f"t-{place}.tfrecord").write_bytes(data)
        records = by_package(plain / f"t-{place}.tfrecord")
        if len(records) != len(out):
            raise AssertionError("the reference reads another number of records")
        for record in records:
            row = record["id"][1][0]
            for name in names:
                # A feature without a kind says nothing of its values: it is absent.
                raw[name][row] = record.get(name)
        packed = compressed.pack(rng, one, data)
        if one != "plain" and rng.random() < 0.1:
            compressed.spoil(rng, packed)
        file = f"t-{place}.tfrecord" + (compressed.ENDS[one] if rng.random() < 0.5 else "")
        (folder / file).write_bytes(packed.data)
        files.append((file, packed))
        variant.note(f"{file}: {one} {packed.form} {packed.damage}: " + "; ".join(f"{name}: {', '.join(spelled(value) for value in raw[name].values())}" for name in names)[:900])
    options: dict[str, Any] = {}
    texts = [name for name in names if kinds[name] == "text" and rng.random() < 0.8]
    scalars = [name for name in names if name not in texts and rng.random() < 0.15]
    lists = [name for name in names if name not in scalars and rng.random() < (0.6 if kinds[name] in ("bytes", "text") else 0.25)]
    masked = [name for name in names if rng.random() < 0.6]
    policies: dict[str, Any] = {}
    for option, chosen in (("texts", texts), ("scalars", scalars), ("lists", lists)):
        if chosen:
            options[option] = chosen
    expected = Expected(values={row: {} for row in range(number)})
    for name in names:
        if name in masked:
            policies[name] = "mask"
        if name in lists and kinds[name] in ("bytes", "text"):
            blobs.judge_feature(expected, name, raw[name], name in texts, policies, name in masked)
        else:
            judge(expected, name, raw[name], name in texts, name in scalars, name in lists, name in masked)
    if policies:
        options["missing"] = policies
    if any("several values" in reason for reason in expected.refuse):
        # The run ends while the forms are learnt, so that those of the samples before may be others.
        expected.unknown |= set(names)
        expected.types.clear()
    for _, packed in files:
        if packed.damage:
            expected.refuse = {"damage of a compressed file": []}
        elif one in compressed.REFUSED:
            expected.refuse = {one: [compressed.REFUSED[one][0]]}
    by_index = rng.random() < 0.4
    source: dict[str, Any] = {"store": "d", **options}
    ends = {file.removeprefix(f"t-{place}") for place, (file, _) in enumerate(files)}
    if by_index:
        code, words = create_index(variant, folder, ends)
        if code:
            judge_index(variant, words, one, files)
            return
        source |= {"index": "t.index", "shuffle": rng.random() < 0.6}
        if rng.random() < 0.4:
            # An index is good for a copy of its folder.
            way = rng.choice(["cp -a", "cp -r"])
            subprocess.run([*way.split(), str(folder), str(variant.place / "copy")], check=True)
            folder = variant.place / "copy"
            variant.note(f"copied by {way}")
            variant.tags.append("copied")
    elif ends == {".tfrecord"} and rng.random() < 0.5:
        source["prefix"] = "t-"
    elif len(ends) == 1:
        source["shards"] = files[0][0] if len(files) == 1 else f"t-{{0..{len(files) - 1}}}{next(iter(ends))}"
    else:
        return
    expected.ordered = not source.get("shuffle")
    pad = len(files[0][1].data) < 100_000 and rng.random() < 0.3
    outcome = variant.run(collated({"tfrecord": source}, rng.choice([2, 4]) if pad else 1, collate={"ragged": "pad"} if pad else {}), {"d": folder})
    if pad:
        blobs.without_padding(outcome)
        if outcome.code == 1 and "16 times" in outcome.errors:
            variant.tags.append("too much padding")
            return
    compare(variant, outcome, expected)


def create_index(variant: Variant, folder: Path, ends: set[str]) -> tuple[int, str]:
    command = [str(variant.options.penstock), "index", "create", "--tfrecord", "--store", f"d={folder}", "--upload", "t.index"]
    if ends != {".tfrecord"}:
        command += ["--suffix", sorted(ends)[0]]
    if len(ends) > 1:
        command[-2:] = ["--prefix", "t-", "--suffix", ""]
    made = subprocess.run(command, capture_output=True)
    words = made.stderr.decode("utf-8", "replace")
    variant.note(f"index create {' '.join(command[7:])} -> {made.returncode}: {words[:200].strip()}")
    return made.returncode, words


def judge_index(variant: Variant, words: str, one: str, files: list[tuple[str, Packed]]) -> None:
    """Checks the refusal of an index: only plain files have places of records."""
    if one == "plain":
        variant.differ("an index of sound files is refused", 0, words)
    elif not any(packed.damage for _, packed in files) and not any(word in words.lower() for word in compressed.REFUSED.get(one, [one, "decompress it"])):
        variant.differ("an index of compressed files: the compression is not named", one, words)
    variant.tags.append("no index of compressed files")


def judge(expected: Expected, name: str, raw: dict[int, tuple[str, list[Any]] | None], is_text: bool, scalar: bool, is_list: bool, masked: bool) -> None:
    """Adds what is right for a feature, by the rules of the manual."""
    present = {row: value for row, value in raw.items() if value is not None}
    kind = next(iter({value[0] for value in present.values()}), None)
    sizes = {len(value[1]) for value in present.values()}
    if kind == "bytes":
        judge_bytes(expected, name, raw, is_text, scalar, masked)
        return
    if scalar and any(size > 1 for size in sizes):
        expected.forbid("several values in a feature of `scalars`", name)
        expected.unknown |= {name, f"{name}.present"}
    several = is_list or (not scalar and bool(sizes) and sizes != {1})
    dtype = np.int64 if kind == "int" else np.float32
    values: dict[int, Any] = {}
    for row, value in raw.items():
        if value is None:
            values[row] = None
        elif several:
            values[row] = np.array(value[1], dtype)
        else:
            values[row] = value[1][0] if len(value[1]) == 1 else None
    if not present or (scalar and sizes <= {0}):
        expected.may.append("a feature of an option that has no value anywhere")
    zero: Any = np.array([], dtype) if several else 0 if kind == "int" else 0.0
    fill(expected, name, values, zero, masked, "list" if several else kind)


def judge_bytes(expected: Expected, name: str, raw: dict[int, tuple[str, list[Any]] | None], is_text: bool, scalar: bool, masked: bool) -> None:
    """Adds what is right for a feature of bytes: one element each, or lists in the form of `blobs`."""
    sizes = {len(value[1]) for value in raw.values() if value is not None}
    if not sizes or scalar and sizes <= {0}:
        expected.may.append("a feature of an option that has no value anywhere")
    if any(size > 1 for size in sizes):
        expected.forbid("several values in a feature of bytes that `lists` does not name", name)
        expected.unknown |= {name, f"{name}.present"}
        return
    values = {row: None if value is None or not value[1] else value[1][0].decode() if is_text else value[1][0] for row, value in raw.items()}
    fill(expected, name, values, "" if is_text else b"", masked, "text" if is_text else "blob")


def fill(expected: Expected, name: str, values: dict[int, Any], zero: Any, masked: bool, word: str | None) -> None:
    """Adds the values of a field, with absent ones as the policy says."""
    some = any(value is not None for value in values.values())
    optional = some and any(value is None for value in values.values())
    if some and word and name not in expected.unknown:
        expected.types[name] = word
    if optional and not masked:
        expected.forbid("absent in a part of the data", name, "missing")
    for row, value in values.items():
        fields = expected.values.setdefault(row, {})
        fields[name] = zero if value is None and optional and masked else value
        if masked:
            empty = isinstance(value, np.ndarray) and not value.size
            fields[f"{name}.present"] = AnyOf([True, False]) if empty else value is not None
            expected.types[f"{name}.present"] = "bool"
    if masked and not some:
        expected.may.append("a field without any value is masked")
        expected.unknown |= {name, f"{name}.present"}


if __name__ == "__main__":
    main("features", make)
