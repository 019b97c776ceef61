"""Lists of blobs: the fields `NAME` and `NAME.offsets` that a feature of several elements, and a column of lists of images, become."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from expect import Expected, Json, compare
from kit import Outcome, Sample, Variant, collated

# Name of the option that makes one sample of each element, if the document has one.
EXPLODE = "explode"

# Name under which the consumer `files` keeps a field `NAME.offsets`.
PARTS = ".parts"


def two_fields(name: str, items: Sequence[bytes]) -> dict[str, Any]:
    """All bytes in sequence, and the places of the elements in them."""
    offsets = [0]
    for item in items:
        offsets.append(offsets[-1] + len(item))
    return {name: b"".join(items), f"{name}{PARTS}": offsets}


def judge_feature(expected: Expected, name: str, raw: Mapping[int, Any], is_text: bool, policies: dict[str, Any], masked: bool) -> None:
    """Adds what is right for a feature of bytes that `lists` names."""
    some = any(value is not None for value in raw.values())
    optional = some and any(value is None for value in raw.values())
    if masked:
        policies[name] = "mask"
        if not is_text:
            policies[f"{name}.offsets"] = {"value": [0]}
    elif optional:
        expected.forbid("absent in a part of the data", name, "missing")
    if not some:
        expected.may.append("a feature of an option that has no value anywhere")
    for row, value in raw.items():
        fields = expected.values[row]
        if value is None and not (optional and masked):
            fields[name] = None
        elif is_text:
            fields[name] = Json([item.decode() for item in value[1]]) if value is not None else ""
        else:
            fields |= two_fields(name, value[1] if value is not None else [])
        if masked:
            fields[f"{name}.present"] = value is not None
    if not some:
        expected.unknown |= {name, f"{name}{PARTS}", f"{name}.present"}


def without_padding(outcome: Outcome) -> None:
    """Cuts padded arrays to the shapes that stand beside them."""
    for sample in outcome.samples:
        for field in list(sample.fields):
            shape = next((name for name in (f"{field}.shape", f"{field.removesuffix(PARTS)}.offsets.shape") if name in sample.fields), None)
            if shape and getattr(sample.fields[field], "ndim", 0):
                sample.fields[field] = sample.fields[field][tuple(slice(int(size)) for size in sample.fields[shape])]
        for field in [name for name in sample.fields if name.endswith(".shape")]:
            del sample.fields[field]


def knows_explode(penstock: Path) -> bool:
    """True if the schema of the document has the option."""
    schema = subprocess.run([str(penstock), "schema"], capture_output=True, check=True).stdout
    return f'"{EXPLODE}"' in schema.decode()


def read_lists(variant: Variant, form: str, place: dict[str, Any], folder: Path, name: str, rows: Mapping[int, list[bytes] | None],
               others: Mapping[int, dict[str, Any]] | None = None, types: Mapping[str, str] | None = None) -> None:
    """Reads a column of lists whole, or with one sample for each element."""
    rng = variant.rng
    explode = rng.random() < 0.4 and knows_explode(variant.options.penstock)
    shuffle = rng.random() < 0.4
    source: dict[str, Any] = {"store": "d", "shuffle": shuffle, **place}
    policy = None
    if any(items is None for items in rows.values()):
        policy = rng.choice(["mask", "drop", "none"])
        source["missing"] = {"mask": {name: "mask", f"{name}.offsets": {"value": [0]}}, "drop": {name: "drop"}, "none": {}}[policy]
    if explode:
        source[EXPLODE] = name
    pad = not explode and rng.random() < 0.3
    outcome = variant.run(collated({form: source}, rng.choice([2, 5]) if pad else 1, collate={"ragged": "pad"} if pad else {}), {"d": folder})
    if outcome.code == -9:
        return
    if explode:
        exploded(variant, outcome, name, rows, not shuffle)
        return
    if pad:
        without_padding(outcome)
        if outcome.code == 1 and "16 times" in outcome.errors:
            variant.tags.append("too much padding")
            return
    expected = Expected(values={row: dict((others or {}).get(row, {})) for row in rows}, types=dict(types or {}), ordered=not shuffle)
    some = any(items is not None for items in rows.values())
    if policy == "none" and some:
        expected.forbid("absent in a part of the data", name, "missing")
    if not some:
        expected.may.append("a column of nulls alone")
        expected.unknown |= {name, f"{name}{PARTS}", f"{name}.present"}
    for row, items in rows.items():
        if items is None and policy == "drop":
            expected.dropped.add(row)
        expected.values[row] |= {name: None} if items is None and policy != "mask" else two_fields(name, items or [])
        if policy == "mask":
            expected.values[row][f"{name}.present"] = items is not None
    compare(variant, outcome, expected)


def exploded(variant: Variant, outcome: Outcome, name: str, rows: Mapping[int, list[bytes] | None], ordered: bool) -> None:
    """Checks that each element is one sample."""
    wanted = [(row, item) for row, items in rows.items() for item in items or []]
    found = [(number(sample), sample.fields.get(name)) for sample in outcome.samples]
    if outcome.code != 0:
        if wanted:
            variant.differ("explode: refused", f"{len(wanted)} samples", outcome.words)
    elif ordered and found != wanted or not ordered and sorted(found, key=repr) != sorted(wanted, key=repr):
        variant.differ("explode: other samples", [(row, len(item)) for row, item in wanted], [(row, len(item or b"")) for row, item in found])


def number(sample: Sample) -> int | None:
    value = sample.fields.get("id")
    return None if value is None else int(value)
