"""The samples that a reference gives for a data set, and their comparison with those that Penstock delivers."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kit import Outcome, Sample, Variant, field_types, same_number

# Largest and smallest whole number of 64 bits.
MOST, LEAST = 2**63 - 1, -(2**63)


@dataclass
class Json:
    """A text whose JSON has this value."""

    value: Any


@dataclass
class AnyOf:
    """One of several values."""

    values: list[Any]


@dataclass
class Expected:
    """What a run has to deliver."""

    # Fields of each sample by the value of its field `id`; `None` is an absent field.
    values: dict[int, dict[str, Any]] = field(default_factory=dict)
    # Types of fields: `int`, `float`, `number` (either), `bool`, `text`, `blob`, `list`.
    types: dict[str, str] = field(default_factory=dict)
    # Reasons for which the run has to be refused or to fail, each with words that the message has to contain.
    refuse: dict[str, list[str]] = field(default_factory=dict)
    # Reasons for which the run may be refused.
    may: list[str] = field(default_factory=list)
    # Fields whose values are not compared, since no value is right.
    unknown: set[str] = field(default_factory=set)
    # Samples that have to be dropped, and those that have to fail.
    dropped: set[int] = field(default_factory=set)
    failing: set[int] = field(default_factory=set)
    # Set if the samples come in the order of `values`.
    ordered: bool = False

    def forbid(self, reason: str, *words: str) -> None:
        self.refuse.setdefault(reason, list(words))


def exact_float(number: int) -> bool:
    """True if float64 holds a whole number exactly."""
    try:
        return int(float(number)) == number
    except OverflowError:
        return False


def sample_id(sample: Sample) -> int | None:
    """Value of the field `id`, a whole number or a text with one."""
    value = sample.fields.get("id")
    try:
        return int(value.decode()) if isinstance(value, bytes) else int(value)
    except (TypeError, ValueError, OverflowError):
        return None


def compare(variant: Variant, outcome: Outcome, expected: Expected) -> None:
    """Adds what differs between a run and what is expected."""
    if outcome.code == -9:
        return
    if outcome.is_setting_unknown:
        variant.differ("a setting is unknown", "the settings of the manual", outcome.errors)
        return
    values_differ(variant, outcome, expected)
    if outcome.code != 0:
        variant.tags.append("refused")
        if expected.refuse:
            if not expected.may and not any(all(word in outcome.words for word in words) for words in expected.refuse.values()):
                reason, words = next(iter(expected.refuse.items()))
                variant.differ(f"message of a refusal: {reason}", f"the words {words}", outcome.errors)
        elif not expected.may:
            variant.differ("refused what is right", f"{len(expected.values)} samples", outcome.errors)
        return
    variant.tags.append("delivered")
    for reason in expected.refuse:
        variant.differ(f"not refused: {reason}", "an end with exit code 1", described(outcome))
    if expected.refuse:
        return
    snapshot_differs(variant, outcome, expected)
    ids = [sample_id(sample) for sample in outcome.samples]
    wanted = [number for number in expected.values if number not in expected.dropped | expected.failing]
    if sorted(ids, key=str) != sorted(wanted, key=str):
        missing = [number for number in wanted if number not in ids]
        more = [number for number in ids if number not in wanted or ids.count(number) > 1]
        variant.differ("other samples", f"{len(wanted)} samples: {wanted[:20]}", f"missing {missing[:20]}, besides {more[:20]}; {described(outcome)}")
    elif expected.ordered and ids != wanted:
        variant.differ("order", wanted[:30], ids[:30])
    if outcome.count("dropped") != len(expected.dropped):
        variant.differ("number of dropped samples", len(expected.dropped), outcome.count("dropped"))
    if outcome.failed != len(expected.failing):
        variant.differ("number of failed samples", len(expected.failing), f"{outcome.failed}; {described(outcome)}")


def snapshot_differs(variant: Variant, outcome: Outcome, expected: Expected) -> None:
    """Compares the types of the data set in the snapshot with those that are right."""
    fields = field_types(outcome.snapshot)
    names = {"int": ("int64", "bool"), "float": ("float64",), "text": ("text",), "blob": ("bytes",), "bool": ("bool",)}
    for name, word in expected.types.items():
        if name in expected.unknown or word == "number" or not outcome.samples:
            continue
        entry = fields.get(name)
        if entry is None:
            variant.differ("a field is not in the snapshot", f"`{name}`: {word}", list(fields))
            return
        is_list = bool(entry.get("dimensions"))
        if is_list != (word == "list") or word in names and entry.get("type") not in names[word]:
            variant.differ("type in the snapshot", f"`{name}`: {word}", entry)
            return


def described(outcome: Outcome) -> str:
    """What came out of a run, in short."""
    dtypes: dict[str, set[str]] = {}
    for sample in outcome.samples:
        for name, value in sample.fields.items():
            dtypes.setdefault(name, set()).add("bytes" if isinstance(value, bytes) else f"{value.dtype}")
    fields = {name: sorted(kinds) for name, kinds in dtypes.items()}
    first = {name: repr(value)[:40] for name, value in outcome.samples[0].fields.items()} if outcome.samples else {}
    return f"{len(outcome.samples)} delivered, {outcome.failed} failed, {outcome.count('dropped')} dropped, fields {fields}, first {first}"


def values_differ(variant: Variant, outcome: Outcome, expected: Expected) -> None:
    """Compares each delivered value, and the types of fields over all batches."""
    dtypes: dict[str, set[str]] = {}
    seen = set()

    def differ(what: str, *rest: Any) -> None:
        if what not in seen:
            seen.add(what)
            variant.differ(what, *rest)

    for sample in outcome.samples:
        number = sample_id(sample)
        if number is None or number not in expected.values:
            differ("a sample that is not in the data", "an id of the data", {name: repr(value)[:60] for name, value in sample.fields.items()})
            continue
        if number in expected.dropped | expected.failing:
            continue
        wanted = expected.values[number]
        for name, value in sample.fields.items():
            if not isinstance(value, bytes) and getattr(value, "ndim", 0) == 0:
                dtypes.setdefault(name, set()).add(str(value.dtype))
            else:
                dtypes.setdefault(name, set()).add("bytes" if isinstance(value, bytes) else f"{value.ndim} dims of {value.dtype}")
            if name in expected.unknown or name == "id":
                continue
            if name not in wanted or wanted[name] is None:
                differ("a field that should be absent", f"no `{name}` in sample {number}", value)
            elif not same(wanted[name], value, expected.types.get(name)):
                differ(f"wrong value ({expected.types.get(name)})", f"`{name}` of {number} is {wanted[name]!r}", f"{value!r}")
        if outcome.code == 0 and not expected.refuse:
            lacking = [name for name, value in wanted.items() if value is not None and name not in sample.fields and name not in expected.unknown]
            if lacking:
                differ("a field is missing", f"`{lacking[0]}` of {number} is {wanted[lacking[0]]!r}", list(sample.fields))
    for name, kinds in dtypes.items():
        if len(kinds) > 1:
            variant.differ("type of a field changes between batches", f"one type of `{name}`", sorted(kinds))
            continue
        kind, wanted_type = next(iter(kinds)), expected.types.get(name)
        right = {
            "int": kind in ("int64", "bool"), "float": kind == "float64", "number": kind in ("int64", "float64", "bool"),
            "text": kind == "bytes", "blob": kind == "bytes", "list": "dims" in kind,
            "bool": kind == "bool",
        }.get(wanted_type, True)
        if not right and name not in expected.unknown:
            variant.differ(f"type of a field ({wanted_type})", f"`{name}` is {wanted_type}", kind)


def same(expected: Any, found: Any, kind: str | None) -> bool:
    """True if a delivered value is the expected one."""
    if isinstance(expected, AnyOf):
        return any(same(value, found, kind) for value in expected.values)
    if isinstance(expected, Json):
        try:
            return isinstance(found, bytes) and same_json(expected.value, json.loads(found))
        except ValueError:
            return False
    if isinstance(expected, str):
        return isinstance(found, bytes) and found == expected.encode("utf-8", "surrogatepass")
    if isinstance(expected, (bytes, bytearray)):
        return isinstance(found, bytes) and found == bytes(expected)
    if isinstance(expected, (list, np.ndarray)):
        if isinstance(found, bytes):
            return False
        wanted = np.asarray(expected, dtype=found.dtype if len(expected) == 0 else None)
        return wanted.shape == found.shape and bool(np.array_equal(wanted, found, equal_nan=found.dtype.kind == "f"))
    if isinstance(found, bytes) or getattr(found, "ndim", 0):
        return False
    if isinstance(expected, bool):
        expected = int(expected)
    return same_number(expected, found)


def same_json(expected: Any, found: Any) -> bool:
    """True if two JSON values are equal; a whole float equals its whole number."""
    if isinstance(expected, float) and isinstance(found, (int, float)) and math.isnan(expected):
        return math.isnan(found)
    return expected == found
