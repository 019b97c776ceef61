"""Nulls: absent values in NDJSON, CSV, Parquet, TFRecord and tar with each policy of `missing`, and nulls in lists.

References: pandas (which cells are missing), pyarrow (`to_pylist`), and Python's `json`.
"""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import forms
from expect import Expected, Json, compare
from kit import Variant, collated, main

TEXTS = ["", "a", "ü", "null", "0"]

# Values of a field by its kind, and values of a document that fit and do not fit it.
KINDS: dict[str, list[Any]] = {"int": [0, 1, -5, 2**40], "float": [0.0, 0.5, -2.25, 1e10], "text": TEXTS, "bool": [True, False]}
FITS: dict[str, list[Any]] = {"int": [-1, 0, 100], "float": [-1.5, 0.25, 3], "text": ["", "none", "ü"], "bool": [True, False], "list": [[], [1, 2]], "blob": []}
UNFIT: dict[str, list[Any]] = {"int": ["x", 0.5], "float": ["x", [1.5]], "text": [5, 0.5], "bool": ["x", 0.5], "list": ["x"], "blob": [5]}
ZEROS: dict[str, Any] = {"int": 0, "float": 0.0, "text": "", "bool": 0, "list": [], "blob": b""}


def draw_policy(rng: Any, kind: str) -> Any:
    """A policy of `missing`, or none."""
    return rng.choices([None, "fail", "mask", "drop", "nan", "fits", "unfit"], [3, 1, 4, 4, 2 + 2 * (kind == "float"), 4 * bool(FITS[kind]), 1])[0]


def judge(expected: Expected, values: dict[str, dict[int, Any]], kinds: dict[str, str], rng: Any, in_footers: bool = False) -> dict[str, Any]:
    """Adds what is right for fields with gaps, and returns the policies of the document. `None` is an absent value."""
    policies: dict[str, Any] = {}
    chosen = {name: draw_policy(rng, kinds[name]) for name in values}
    for name, column in values.items():
        # To drop what lacks a field that no sample has is to drop all, or nothing.
        if chosen[name] == "drop" and all(value is None for value in column.values()):
            chosen[name] = None
    for name, policy in chosen.items():
        if policy == "fits":
            policies[name] = {"value": rng.choice(FITS[kinds[name]])}
        elif policy == "unfit":
            policies[name] = {"value": rng.choice(UNFIT[kinds[name]])}
        elif policy is not None:
            policies[name] = policy
    for name, column in values.items():
        if chosen[name] == "drop":
            has_any = any(value is not None for value in column.values())
            expected.dropped |= {row for row, value in column.items() if value is None and has_any}
    for name, column in values.items():
        judge_field(expected, name, column, kinds[name], chosen[name], policies.get(name), in_footers)
    if len(expected.dropped) == len(expected.values) and expected.dropped:
        expected.may.append("all samples are dropped")
    return policies


def judge_field(expected: Expected, name: str, column: dict[int, Any], kind: str, chosen: str | None, policy: Any, in_footers: bool = False) -> None:
    """Adds what is right for one field. Footers, or `types` of the document, tell its type, even if it never has a value."""
    absent = {row for row, value in column.items() if value is None}
    present = len(absent) < len(column)
    expected.types[name] = {"bool": "int"}.get(kind, kind)
    replaced: Any = None
    if not present:
        if chosen is not None:
            expected.may.append("a policy for a field without any value")
            expected.unknown |= {name, f"{name}.present"}
        elif in_footers:
            expected.may.append("a column without any value")
        del expected.types[name]
    elif chosen in (None, "fail"):
        if absent - expected.dropped:
            expected.forbid("absent in a part of the data", name, "missing")
        elif absent:
            expected.may.append("the samples that lack a field are dropped")
    elif chosen == "mask":
        replaced = ZEROS[kind]
        expected.types[f"{name}.present"] = "bool"
    elif chosen == "nan":
        if kind == "float":
            replaced = float("nan")
        else:
            expected.may.append("NaN for a field that holds none")
            if absent:
                expected.unknown.add(name)
    elif chosen == "fits":
        replaced = policy["value"]
    elif chosen == "unfit":
        expected.may.append("a value of another type")
        if absent - expected.dropped and not (kind in ("int", "bool") and policy["value"] == 0.5):
            expected.forbid("a value in place of a missing one has another type", name)
        expected.unknown.add(name)
    for row, value in column.items():
        fields = expected.values[row]
        fields[name] = replaced if value is None else value
        if chosen == "mask" and present:
            fields[f"{name}.present"] = value is not None


def records(variant: Variant) -> None:
    rng = variant.rng
    count = rng.choice([1, 2, 5, 12, 40])
    kinds = {name: rng.choice(list(KINDS)) for name in ["a", "b", "c"][: rng.randint(1, 3)]}
    gaps = {name: rng.choice([0, 0.1, 0.4, 1]) for name in kinds}
    values: dict[str, dict[int, Any]] = {name: {} for name in kinds}
    lines = []
    for row in range(count):
        record: dict[str, Any] = {"id": row}
        for name, kind in kinds.items():
            value = None if rng.random() < gaps[name] else rng.choice(KINDS[kind])
            values[name][row] = value
            if value is not None or rng.random() < 0.5:
                record[name] = value
        if rng.random() < 0.1:
            record["list"] = [1, None, 2.5]
        lines.append(record)
    folder = variant.folder("d")
    parts = 1 if count < 2 else rng.choice([1, 2])
    for part in range(parts):
        mine = lines[part * count // parts:(part + 1) * count // parts]
        (folder / f"p-{part}.ndjson").write_text("".join(json.dumps(line) + "\n" for line in mine))
    variant.note(f"NDJSON in {parts} files: {lines}"[:900])
    expected = Expected(values={row: {} for row in range(count)})
    policies = judge(expected, values, kinds, rng)
    lists = [line["id"] for line in lines if "list" in line]
    if lists:
        policies["list"] = "mask"
        expected.types |= {"list": "text", "list.present": "bool"}
        for row, fields in expected.values.items():
            fields |= {"list": Json([1, None, 2.5]) if row in lists else "", "list.present": row in lists}
    finish(variant, "records", {"prefix": "p-"}, policies, expected, rng.choice([1, 4, 100]))


def tables(variant: Variant) -> None:
    rng = variant.rng
    count = rng.choice([1, 2, 5, 12, 40])
    kinds = {name: rng.choice(["int", "float", "bool", "text"]) for name in ["a", "b", "c"][: rng.randint(1, 3)]}
    gaps = {name: rng.choice([0, 0.1, 0.4, 1]) for name in kinds}
    rows = [["id", *kinds]]
    for row in range(count):
        rows.append([str(row), *["" if rng.random() < gaps[name] else str(rng.choice(KINDS[kind])) for name, kind in kinds.items()]])
    text = "\n".join(",".join(forms.csv_cell(value) for value in row) for row in rows) + "\n"
    (variant.folder("d") / "t.csv").write_text(text)
    variant.note(f"CSV: {text[:900]!r}")
    # pandas says which cells are missing; a text is never missing, it is empty.
    frame = pd.read_csv(io.StringIO(text), dtype=str, keep_default_na=False, na_values={name: [""] for name, kind in kinds.items() if kind != "text"}, skip_blank_lines=False)
    assert len(frame) == count
    read = {"int": int, "float": float, "bool": lambda value: value == "True", "text": str}
    values = {name: {row: None if pd.isna(value) else read[kinds[name]](value) for row, value in enumerate(frame[name])} for name in kinds}
    expected = Expected(values={row: {} for row in range(count)})
    policies = judge(expected, values, kinds, rng, in_footers=True)
    finish(variant, "csv", {"key": "t.csv", "types": {"id": "int", **kinds}}, policies, expected, rng.choice([1, 4, 100]))


def parquet(variant: Variant) -> None:
    rng = variant.rng
    files = rng.choice([1, 2, 3])
    names = ["a", "b", "c"][: rng.randint(1, 3)]
    kinds = {name: rng.choice(["int", "float", "text", "bool", "list", "blob", "list of floats", "struct"]) for name in names}
    types = {"int": pa.int64(), "float": pa.float64(), "text": pa.string(), "bool": pa.bool_(), "list": pa.list_(pa.int64()), "blob": pa.binary(),
             "list of floats": pa.list_(pa.float32()), "struct": pa.struct([("x", pa.int32()), ("y", pa.string())])}
    gaps = {name: rng.choice([0, 0.1, 0.4, 1]) for name in names}
    inner = {name: rng.choice([0, 0, 0.2]) for name in names}
    folder = variant.folder("d")
    number = 0
    tables = []
    for place in range(files):
        count = rng.choice([1, 3, 8, 20])
        columns = {"id": pa.array(range(number, number + count), pa.int64())}
        number += count
        for name, kind in kinds.items():
            column = []
            for _ in range(count):
                column.append(None if rng.random() < gaps[name] else draw(rng, kind, inner[name]))
            columns[name] = pa.array(column, types[kind])
        table = pa.table(columns)
        pq.write_table(table, folder / f"q-{place}.parquet", row_group_size=rng.choice([1, 2, 100]), write_statistics=rng.random() < 0.8,
                       use_dictionary=rng.random() < 0.5, data_page_version=rng.choice(["1.0", "2.0"]))
        tables.append(table)
        variant.note(f"q-{place}.parquet: {table.slice(0, 8).to_pydict()}"[:500])
    everything = pa.concat_tables(tables)
    values: dict[str, dict[int, Any]] = {}
    flat: dict[str, str] = {}
    expected = Expected(values={row: {} for row in range(number)})
    broken: dict[str, set[int]] = {}
    for name, kind in kinds.items():
        column = everything[name].to_pylist()
        if kind == "struct":
            for member, member_kind in (("x", "int"), ("y", "text")):
                flat[f"{name}.{member}"] = member_kind
                values[f"{name}.{member}"] = {row: None if value is None else value[member] for row, value in enumerate(column)}
            continue
        flat[name] = "list" if kind.startswith("list") else kind
        values[name] = dict(enumerate(column))
        if kind.startswith("list"):
            broken[name] = {row for row, value in enumerate(column) if value is not None and None in value}
    policies = judge(expected, values, flat, rng, in_footers=True)
    for name, rows in broken.items():
        if kinds[name] == "list of floats" and policies.get(name) == "nan":
            expected.may = [reason for reason in expected.may if "NaN" not in reason]
            absent = [row for row, value in values[name].items() if value is None]
            if absent:
                expected.may.append("NaN for a list that is absent")
            else:
                expected.unknown.discard(name)
            for row in rows:
                expected.values[row][name] = np.array([np.nan if value is None else value for value in values[name][row]], np.float32)
        else:
            # A sample of which another value is missing under `drop` may be dropped or fail.
            if rows & expected.dropped:
                expected.may.append("a sample that fails and is dropped")
            expected.failing |= rows
        for row, value in values[name].items():
            if isinstance(expected.values[row][name], list) and None not in expected.values[row][name]:
                expected.values[row][name] = np.array(expected.values[row][name], np.int64 if kinds[name] == "list" else np.float32)
    if expected.failing and not set(expected.values) - expected.failing - expected.dropped:
        expected.may.append("all samples fail")
    if expected.failing & expected.dropped:
        expected.dropped -= expected.failing
    has_lists = any(kind.startswith("list") for kind in kinds.values())
    finish(variant, "parquet", {"prefix": "q-"}, policies, expected, 1 if has_lists else rng.choice([1, 4, 100]))


def draw(rng: Any, kind: str, gaps: float) -> Any:
    if kind in KINDS:
        return rng.choice(KINDS[kind])
    if kind == "blob":
        return rng.choice([b"", b"\x00\xff"])
    if kind == "struct":
        return {"x": None if rng.random() < gaps else rng.randint(0, 9), "y": None if rng.random() < gaps else rng.choice(TEXTS)}
    size = rng.randint(0, 4)
    return [None if rng.random() < gaps else (rng.randint(0, 9) if kind == "list" else rng.choice([0.5, 1.0, -2.0])) for _ in range(size)]


def features(variant: Variant) -> None:
    rng = variant.rng
    count = rng.choice([1, 3, 10, 30])
    kinds = {name: rng.choice(["int", "float", "text", "blob"]) for name in ["a", "b"][: rng.randint(1, 2)]}
    gaps = {name: rng.choice([0, 0.1, 0.4, 1]) for name in kinds}
    values: dict[str, dict[int, Any]] = {name: {} for name in kinds}
    out = []
    for row in range(count):
        example: dict[str, tuple[str, list[Any]]] = {"id": ("int", [row])}
        for name, kind in kinds.items():
            value = None if rng.random() < gaps[name] else draw(rng, kind, 0)
            values[name][row] = value
            if value is not None:
                word = {"text": "bytes", "blob": "bytes"}.get(kind, kind)
                example[name] = (word, [value.encode() if isinstance(value, str) else value])
        out.append(forms.example(example))
    (variant.folder("d") / "t.tfrecord").write_bytes(forms.tfrecord_bytes(out))
    variant.note(f"TFRecord: {kinds} {values}"[:900])
    expected = Expected(values={row: {} for row in range(count)})
    policies = judge(expected, values, kinds, rng)
    texts = [name for name, kind in kinds.items() if kind == "text"]
    finish(variant, "tfrecord", {"prefix": "t", **({"texts": texts} if texts else {})}, policies, expected, rng.choice([1, 4, 100]), may_shuffle=False)


def shards(variant: Variant) -> None:
    rng = variant.rng
    count = rng.choice([1, 3, 10, 30])
    kinds = {name: kind for name, kind in {"cls": "int", "txt": "text", "bin": "blob"}.items() if rng.random() < 0.7}
    gaps = {name: rng.choice([0, 0.1, 0.4]) for name in kinds}
    values: dict[str, dict[int, Any]] = {name: {} for name in kinds}
    samples = []
    for row in range(count):
        sample = {"id": str(row).encode()}
        for name, kind in kinds.items():
            value = None if rng.random() < gaps[name] else draw(rng, kind, 0)
            values[name][row] = value
            if value is not None:
                sample[name] = str(value).encode() if isinstance(value, (int, str)) else value
        samples.append((f"s{row:04}", sample))
    (variant.folder("d") / "s-0.tar").write_bytes(forms.tar_bytes(samples))
    variant.note(f"tar: {values}"[:900])
    expected = Expected(values={row: {} for row in range(count)})
    policies = judge(expected, values, kinds, rng)
    finish(variant, "tar", {"shards": "s-0.tar"}, policies, expected, rng.choice([1, 4, 100]), may_shuffle=False)


def finish(variant: Variant, form: str, source: dict[str, Any], policies: dict[str, Any], expected: Expected, size: int, may_shuffle: bool = True) -> None:
    """Runs the document, and compares."""
    shuffle = may_shuffle and variant.rng.random() < 0.4
    source = {"store": "d", **source, "shuffle": shuffle}
    if policies:
        source["missing"] = policies
    expected.ordered = not shuffle
    outcome = variant.run(collated({form: source}, size, max_failures=None), {"d": variant.folder("d")})
    compare(variant, outcome, expected)


def make(variant: Variant) -> None:
    form = variant.rng.choice([records, tables, parquet, parquet, features, shards])
    variant.tags.append(form.__name__)
    form(variant)


if __name__ == "__main__":
    main("nulls", make)
