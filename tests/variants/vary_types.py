"""Types: mixed numbers, texts, truth values and large numbers in NDJSON, CSV, Parquet, TFRecord and MDS, in several files.

References: Python's `json` and `csv`, pyarrow (`concat_tables` with `promote_options="permissive"`), the package `tfrecord`,
and the rows that were written for MDS.
"""

from __future__ import annotations

import csv
import datetime
import decimal
import io
import json
import re
import subprocess
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tfrecord

import forms
from expect import LEAST, MOST, Expected, Json, compare, exact_float
from kit import Variant, collated, main

TEXTS = ["", "a", "1", "2.5", "true", "null", "ünï", "line\nend", 'quo"te', "a,b", " space ", "😀", "x" * 300, "{}", "NaN"]
SMALL_INTS = ["0", "1", "-1", "7", "42", "1000000"]
LARGE_INTS = ["9007199254740991", "9007199254740992", "-9007199254740992", "9223372036854775807", "-9223372036854775808", "4611686018427387904"]
ODD_INTS = ["9007199254740993", "9223372036854775807", "-9007199254740993"]
BEYOND = ["9223372036854775808", "18446744073709551615", "18446744073709551616", "-9223372036854775809", "1" + "0" * 25]
FLOATS = ["0.5", "1.0", "-2.25", "1e3", "1E-3", "-0.0", "5e-324", "1.7976931348623157e308", "0.30000000000000004", "2.5e+10", "100.0"]

# Values of a member, by the profile of the member: lists of spellings, of which one is drawn for each record.
PROFILES = {
    "ints": SMALL_INTS, "large ints": SMALL_INTS + LARGE_INTS, "floats": FLOATS, "mixed": SMALL_INTS + FLOATS,
    "mixed, exact": SMALL_INTS + FLOATS + LARGE_INTS[:3], "mixed, odd": SMALL_INTS + FLOATS + ODD_INTS, "beyond": SMALL_INTS + BEYOND,
    "beyond, floats": FLOATS + BEYOND, "bools": ["true", "false"], "bools and ints": ["true", "false", "0", "1", "5"],
    "bools and floats": ["true", "0.5", "2"], "texts": [json.dumps(text) for text in TEXTS], "texts, plain": [json.dumps(text, ensure_ascii=False) for text in TEXTS],
    "text and ints": ['"2"', "1", "3"], "text and floats": ['"x"', "1.5"], "text and bools": ['"true"', "true"],
    "json": ["[]", "[1, 2]", "{}", '{"a": [1.5, null]}', "[[1], [2]]"], "json and texts": ["[1]", '"x"', "{}"], "json and ints": ["[1]", "1", "2"],
    "nulls": ["null"], "ints, nulls": SMALL_INTS + ["null"] * 2, "floats, nulls": FLOATS + ["null"] * 2, "texts, nulls": ['"a"', "null"],
    "mixed, nulls": SMALL_INTS + FLOATS + ["null"] * 3,
}
WEIGHTS = [6, 4, 5, 8, 4, 3, 2, 1, 3, 2, 1, 4, 2, 2, 1, 1, 2, 1, 1, 1, 3, 3, 2, 2]


def json_kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int" if LEAST <= value <= MOST else "beyond"
    if isinstance(value, float):
        return "float"
    return "text" if isinstance(value, str) else "json"


def judge_member(expected: Expected, name: str, values: dict[int, Any], declared: str | None, masked: bool) -> None:
    """Adds what is right for one member of JSON records, by the rules of the manual."""
    present = {number: value for number, value in values.items() if value is not None}
    kinds = {json_kind(value) for value in present.values()}
    if not kinds:
        fill(expected, name, values, {}, None, masked)
        return
    numbers, texts = kinds & {"bool", "int", "beyond", "float"}, kinds & {"text", "json"}
    kind: str | None = "number"
    if declared is None and numbers and texts:
        expected.forbid("a text beside a number", name)
        expected.unknown.add(name)
    elif declared is None and texts:
        kind = "text"
        if len(kinds) == 2:
            expected.may.append("lists beside texts")
    elif declared is None:
        if kinds == {"bool"} or kinds == {"int"}:
            kind = "int"
        elif kinds <= {"int", "float"}:
            kind = "float"
            if any(isinstance(value, int) and not exact_float(value) for value in present.values()):
                expected.forbid("a whole number beside floats that float64 does not hold", name)
                expected.unknown.add(name)
        else:
            expected.may.append("truth values beside numbers, or numbers beyond int64")
    else:
        kind = judge_declared(expected, name, present, declared)
    fill(expected, name, values, present, kind, masked)


def judge_declared(expected: Expected, name: str, present: dict[int, Any], declared: str) -> str | None:
    """Adds what is right for a member whose type the document names."""
    kinds = {json_kind(value) for value in present.values()}
    fits = {"float": {"int", "float"}, "int": {"int"}, "text": {"text"}, "bool": {"bool"}}[declared]
    if declared == "float" and any(isinstance(value, int) and not exact_float(value) for value in present.values()):
        expected.forbid("a whole number that float64 does not hold", name)
        expected.unknown.add(name)
    elif kinds <= fits:
        pass
    elif declared in ("int", "bool") and any(isinstance(value, float) and not value.is_integer() for value in present.values()):
        expected.forbid(f"a broken number in a member of type {declared}", name)
        expected.unknown.add(name)
    else:
        expected.may.append(f"values of other kinds in a member of type {declared}")
        if declared == "text" or kinds & {"text", "json"}:
            expected.unknown.add(name)
    return {"float": "float", "int": "int", "bool": "int", "text": "text"}[declared]


def fill(expected: Expected, name: str, values: dict[int, Any], present: dict[int, Any], kind: str | None, masked: bool) -> None:
    """Adds the values of a field, with absent ones as the policy `mask` or `fail` says."""
    if kind and name not in expected.unknown:
        expected.types[name] = kind
    optional = bool(present) and len(present) < len(values)
    if optional and not masked:
        expected.forbid("absent in a part of the data", name, "missing")
    zero: Any = {"text": "", "float": 0.0, "int": 0, "number": 0}.get(kind or "", 0)
    for number, value in values.items():
        fields = expected.values.setdefault(number, {})
        if value is None:
            fields[name] = zero if optional and masked else None
        else:
            fields[name] = Json(value) if isinstance(value, (list, dict)) else value
        if masked:
            fields[f"{name}.present"] = value is not None
            expected.types[f"{name}.present"] = "bool"
    if masked and not present:
        expected.may.append("a field without any value is masked")
        expected.unknown |= {name, f"{name}.present"}


def records(variant: Variant) -> None:
    rng = variant.rng
    files = rng.choice([1, 1, 2, 3])
    names = ["a", "b", "c"][: rng.randint(1, 3)]
    profile = {name: rng.choices(list(PROFILES), WEIGHTS)[0] for name in names}
    late = rng.random() < 0.03
    members: dict[str, dict[int, Any]] = {name: {} for name in names}
    folder = variant.folder("d")
    number = 0
    lacking = {name: rng.choice([0, 0, 0, 0.2]) for name in names}
    for place in range(files):
        lines = []
        # Other files of a set often have other types.
        here = {name: rng.choices(list(PROFILES), WEIGHTS)[0] if rng.random() < 0.1 else profile[name] for name in names}
        rows = rng.choice([1, 2, 5, 12])
        if late and place == 0:
            here = {name: "ints" for name in names}
            rows = 10_050
        for _ in range(rows):
            parts = [f'"id": {number}']
            for name in names:
                spelled = None if rng.random() < lacking[name] and not late else rng.choice(PROFILES[here[name]])
                members[name][number] = None if spelled is None else json.loads(spelled)
                if spelled is not None:
                    parts.append(f'"{name}":{rng.choice(["", " "])}{spelled}')
            if rng.random() < 0.5:
                rng.shuffle(parts)
            lines.append("{" + ", ".join(parts) + "}")
            number += 1
        if late:
            variant.note("the first file has 10,050 lines of whole numbers")
        else:
            variant.note(f"part-{place}.ndjson: " + " ".join(lines)[:700])
        end = rng.choice(["\n", "\r\n"])
        (folder / f"part-{place}.ndjson").write_text(end.join(lines) + rng.choice(["", end, end + end]), newline="")
    declared = {name: rng.choice(["int", "float", "text", "bool"]) for name in names if rng.random() < 0.12}
    masked = [name for name in names if rng.random() < 0.5]
    shuffle = rng.random() < 0.4
    expected = Expected(ordered=not shuffle)
    for name in names:
        judge_member(expected, name, members[name], declared.get(name), name in masked)
    if late and not shuffle:
        expected.may.append("values behind the first 10,000 records may contradict what was learnt")
    source = {"store": "d", "shuffle": shuffle, **({"prefix": "part-"} if files > 1 or rng.random() < 0.5 else {"key": "part-0.ndjson"})}
    add(source, types=declared, missing={name: "mask" for name in masked})
    size = 4000 if late else rng.choice([1, 3, 50])
    compare(variant, variant.run(collated({"records": source}, size), {"d": folder}), expected)


def add(source: dict[str, Any], **settings: Any) -> None:
    """Adds settings that are not empty: a binary that does not know them can still run the others."""
    source.update({name: value for name, value in settings.items() if value})


CELLS = {
    "int": SMALL_INTS * 3 + LARGE_INTS, "int with .0": SMALL_INTS + ["3.0", "0.0", "-4.0"], "int with gaps": SMALL_INTS + ["", ""],
    "int, bad": SMALL_INTS * 4 + ["2.5", "x"], "int, beyond": SMALL_INTS * 3 + BEYOND[:2], "float": FLOATS + SMALL_INTS,
    "float with gaps": FLOATS + [""] * 3, "float, bad": FLOATS * 3 + ["abc"], "float, odd": FLOATS + ODD_INTS[:1],
    "bool": ["true", "false", "True", "FALSE", "1", "0"], "bool, bad": ["true", "false"] * 4 + ["yes", "2"], "bool with gaps": ["true", "0", ""],
    "text": TEXTS, "text, numbers": ["1", "2.5", "", "007", "1e5"],
}


def cell(kind: str, text: str) -> tuple[str, Any]:
    """Reference for a cell: `ok` with a value, `bad`, or `odd` for a whole number that float64 rounds."""
    if kind == "text":
        return "ok", text
    if text == "":
        return "ok", None
    if kind == "bool":
        value = {"true": 1, "1": 1, "false": 0, "0": 0}.get(text.lower())
        return ("bad", None) if value is None else ("ok", value)
    if kind == "int":
        if re.fullmatch(r"-?\d+(\.0+)?", text):
            value = int(text.split(".")[0])
            return ("ok", value) if LEAST <= value <= MOST else ("bad", None)
        return ("bad", None)
    try:
        value = float(text)
    except ValueError:
        return "bad", None
    if re.fullmatch(r"-?\d+", text) and not exact_float(int(text)):
        return "odd", None
    return "ok", value


def tables(variant: Variant) -> None:
    rng = variant.rng
    files = rng.choice([1, 1, 2, 3])
    delimiter = rng.choice([",", ",", "\t"])
    columns = {}
    for name in ["a", "b", "c"][: rng.randint(1, 3)]:
        columns[name] = rng.choice(list(CELLS))
    types = {name: profile.split(",")[0].split(" ")[0] for name, profile in columns.items()}
    expected = Expected()
    folder = variant.folder("d")
    number = 0
    values: dict[str, dict[int, Any]] = {name: {} for name in columns}
    named: set[str] = set()
    for place in range(files):
        here = ["id", *columns]
        if rng.random() < 0.3:
            rng.shuffle(here)
        if len(here) > 2 and rng.random() < 0.15:
            here.remove(rng.choice(list(columns)))
            expected.may.append("files with different columns")
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter, lineterminator=rng.choice(["\n", "\r\n"]), quoting=rng.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
        writer.writerow(here)
        rows = []
        for _ in range(rng.choice([1, 2, 5, 12])):
            row = {"id": str(number), **{name: rng.choice(CELLS[profile]) for name, profile in columns.items()}}
            number += 1
            rows.append([row[name] for name in here])
            writer.writerow(rows[-1])
        named |= set(here)
        text = rng.choice(["", "", "", "\ufeff"]) + out.getvalue()
        if rng.random() < 0.2:
            text = text.rstrip("\r\n")
        name = f"part-{place}." + ("csv" if delimiter == "," else "tsv")
        (folder / name).write_text(text, newline="")
        variant.note(f"{name}: {text[:500]!r}")
        # The reference reads the file again.
        read = list(csv.DictReader(io.StringIO(text.lstrip("\ufeff"), newline=""), delimiter=delimiter))
        for row in read:
            for column in columns:
                if column not in here:
                    values[column][int(row["id"])] = None
                    continue
                status, value = cell(types[column], row[column])
                if status == "odd":
                    expected.forbid("a whole number that float64 does not hold, in a column of type float", column)
                    expected.unknown |= {column, f"{column}.present"}
                if status == "bad":
                    expected.forbid(f"a cell that is no {types[column]}", column)
                    expected.unknown |= {column, f"{column}.present"}
                values[column][int(row["id"])] = value
    masked = [name for name in columns if rng.random() < 0.6]
    for name in columns:
        if name not in named:
            if name in masked:
                expected.may.append("a column of `missing` that no file has")
            continue
        present = {row: value for row, value in values[name].items() if value is not None}
        fill(expected, name, values[name], present, {"int": "int", "bool": "int", "float": "float", "text": "text"}[types[name]], name in masked)
    shuffle = rng.random() < 0.4
    expected.ordered = not shuffle
    source = {"store": "d", "shuffle": shuffle, "types": {"id": "int", **{name: kind for name, kind in types.items() if kind != "text" or rng.random() < 0.5}},
              **({"prefix": "part-"} if files > 1 else {"key": f"part-0.{'csv' if delimiter == ',' else 'tsv'}"})}
    add(source, missing={name: "mask" for name in masked})
    compare(variant, variant.run(collated({"csv" if delimiter == "," else "tsv": source}, rng.choice([1, 3, 50])), {"d": folder}), expected)


def column_values(rng: Any, kind: str, count: int) -> pa.Array:
    """A column of a type of pyarrow, by a short name."""
    ints = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
    if kind in ints:
        bits = ints[kind]
        return pa.array([rng.choice([0, 1, -1, rng.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)]) for _ in range(count)], getattr(pa, kind)())
    if kind.startswith("uint") and "," not in kind:
        bits = min(int(kind[4:]), 63)
        return pa.array([rng.randint(0, 2**bits - 1) for _ in range(count)], getattr(pa, kind)())
    if kind == "int64, small":
        return pa.array([rng.randint(-1000, 1000) for _ in range(count)], pa.int64())
    if kind == "uint64, beyond":
        return pa.array([rng.choice([1, 2**63, 2**64 - 1]) for _ in range(count)], pa.uint64())
    if kind in ("float32", "float64"):
        return pa.array([rng.choice([0.0, 1.0, -0.5, rng.random(), float("nan"), float("inf")]) for _ in range(count)], getattr(pa, kind)())
    if kind == "float16":
        return pa.array(np.array([rng.choice([0.0, 1.0, -0.5, 0.25]) for _ in range(count)], np.float16))
    if kind == "bool":
        return pa.array([rng.random() < 0.5 for _ in range(count)], pa.bool_())
    if kind in ("string", "large_string"):
        return pa.array([rng.choice(TEXTS) for _ in range(count)], getattr(pa, kind)())
    if kind == "dictionary":
        return pa.array([rng.choice(["a", "b", "ü"]) for _ in range(count)]).dictionary_encode()
    if kind in ("binary", "large_binary"):
        return pa.array([rng.choice([b"", b"x", bytes(range(256))]) for _ in range(count)], getattr(pa, kind)())
    if kind.startswith("decimal"):
        scale = int(kind[7:])
        return pa.array([decimal.Decimal(rng.randint(-9999, 9999)).scaleb(-scale) for _ in range(count)], pa.decimal128(12, scale))
    if kind == "date32":
        return pa.array([datetime.date(2000, 1, 1) + datetime.timedelta(days=rng.randint(0, 9999)) for _ in range(count)], pa.date32())
    if kind.startswith("timestamp"):
        return pa.array([rng.randint(0, 10**9) for _ in range(count)], pa.timestamp(kind.split(" ")[1]))
    if kind.startswith("time "):
        unit = kind.split(" ")[1]
        return pa.array([rng.randint(0, 80_000) for _ in range(count)], pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit))
    if kind.startswith("list "):
        inner = getattr(pa, kind.split(" ")[1])()
        return pa.array([[rng.randint(0, 9) for _ in range(rng.randint(0, 4))] for _ in range(count)], pa.list_(inner))
    raise ValueError(kind)


# Columns whose files are likely to be unified, and a few others.
FAMILIES = [
    ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"], ["int64, small", "float64", "float32", "int32"], ["float16", "float32", "float64"],
    ["int64", "float64"], ["uint64", "int64"], ["uint64, beyond"], ["bool"], ["bool", "int64, small"], ["string", "large_string", "dictionary"],
    ["binary", "large_binary"], ["string", "binary"], ["decimal2", "decimal4"], ["decimal2", "float64"], ["date32"], ["timestamp s", "timestamp ms"],
    ["timestamp us", "timestamp ns"], ["time s", "time ms", "time us"], ["date32", "timestamp ms"], ["list int64", "list int32"],
    ["list float32", "list float64"], ["list int64", "int64"], ["int64", "string"], ["float64", "string"], ["timestamp ms", "int64, small"],
    ["list int64", "list float64"], ["date32", "int32"],
]


def plain(value: Any, kind: pa.DataType) -> Any:
    """A value of pyarrow as the manual says that a field has it."""
    if value is None:
        return None
    if isinstance(value, decimal.Decimal):
        return float(value)
    return value


def physical(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates, times and dictionaries as whole numbers and texts."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.cast(pa.string())
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return column.cast(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return column.cast(pa.int64())
    return column


def type_word(kind: pa.DataType) -> str | None:
    if pa.types.is_list(kind):
        return "list"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_temporal(kind):
        return "int"
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return "float"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "blob"
    return "text"


def parquet(variant: Variant) -> None:
    rng = variant.rng
    files = rng.choice([1, 2, 2, 3])
    family = {name: rng.choice(FAMILIES) for name in ["a", "b"][: rng.randint(1, 2)]}
    differ = rng.random() < 0.6
    usual = {name: rng.choice(kinds) for name, kinds in family.items()}
    folder = variant.folder("d")
    parts, number = [], 0
    lists = any("list" in kind for kinds in family.values() for kind in kinds)
    for place in range(files):
        count = rng.choice([1, 3, 8])
        columns = {"id": pa.array(range(number, number + count), pa.int64())}
        number += count
        for name, kinds in family.items():
            if differ and place and rng.random() < 0.15:
                continue
            columns[name] = column_values(rng, rng.choice(kinds) if differ else usual[name], count)
        if rng.random() < 0.3:
            columns = dict(rng.sample(list(columns.items()), len(columns)))
        table = pa.table(columns)
        pq.write_table(table, folder / f"q-{place}.parquet", compression=rng.choice(["none", "snappy", "gzip", "zstd"]), use_dictionary=rng.random() < 0.5,
                       row_group_size=rng.choice([1, 2, 100]), data_page_version=rng.choice(["1.0", "2.0"]), store_schema=rng.random() < 0.7)
        # Parquet has no unit of seconds: the reference is what the file holds.
        parts.append(pq.ParquetFile(folder / f"q-{place}.parquet").read())
        variant.note(f"q-{place}.parquet: {str(table.schema.remove_metadata())} {short_rows(table)}")
    expected = Expected()
    judge_parquet(expected, parts, list(family))
    masked = [name for name in family if any(name not in part.column_names for part in parts) and rng.random() < 0.7]
    for name in family:
        absent = [part for part in parts if name not in part.column_names]
        if absent and name not in masked:
            expected.forbid("a column that only some files have", name)
        if name in masked:
            for part in parts:
                for row in part["id"].to_pylist():
                    fields = expected.values[row]
                    fields[f"{name}.present"] = name in part.column_names
                    if name not in part.column_names:
                        fields[name] = {"text": "", "blob": b"", "list": []}.get(expected.types.get(name, ""), 0)
            expected.may.append("a column that only some files have")
    for name in masked:
        expected.types[f"{name}.present"] = "bool"
    shuffle = rng.random() < 0.5
    expected.ordered = not shuffle
    source = {"store": "d", "prefix": "q-", "shuffle": shuffle}
    if rng.random() < 0.2:
        source["window"] = 2
        source["shuffle"] = True
        expected.ordered = False
    add(source, missing={name: "mask" for name in masked})
    compare(variant, variant.run(collated({"parquet": source}, 1 if lists else rng.choice([1, 4, 50])), {"d": folder}), expected)


def short_rows(table: pa.Table) -> str:
    return str(table.slice(0, 3).to_pydict())[:300]


def judge_parquet(expected: Expected, parts: list[pa.Table], names: list[str]) -> None:
    """Adds what pyarrow gives for files of one set."""
    for part in parts:
        for row in part["id"].to_pylist():
            expected.values.setdefault(row, {})
    for name in names:
        having = [part for part in parts if name in part.column_names]
        kinds = {str(part.schema.field(name).type) for part in having}
        stored = {word for part in having for word in [type_word(part.schema.field(name).type)]}
        if len(kinds) > 1:
            expected.may.append("files whose types differ")
        if not having:
            continue
        if len(having) < len(parts):
            expected.may.append("files whose columns differ")
        try:
            united = pa.concat_tables([part.select(["id", name]) for part in having], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            if len(stored) > 1 and stored != {"int", "float"}:
                expected.forbid("types that pyarrow does not unify", name)
                expected.unknown.add(name)
                continue
            if not stored <= {"int", "float"}:
                expected.unknown.add(name)
                continue
            # Numbers that pyarrow does not unify may still be delivered with their values, if these have one meaning.
            meanings = {str(part.schema.field(name).type) if pa.types.is_temporal(part.schema.field(name).type) else "number" for part in having}
            if len(meanings) > 1:
                expected.forbid("dates, times or numbers of different meaning", name)
                expected.unknown.add(name)
                continue
            for part in having:
                for row, value in zip(part["id"].to_pylist(), physical(part[name]).to_pylist()):
                    expected.values[row][name] = plain(value, part.schema.field(name).type)
            del error
            continue
        kind = united.schema.field(name).type
        # The values as written: what a cast to the common type changes is no longer right.
        for part in having:
            own = part.schema.field(name).type
            column = physical(part[name].cast(kind)) if pa.types.is_temporal(own) else physical(part[name])
            for row, value in zip(part["id"].to_pylist(), column.to_pylist()):
                value = plain(value, own)
                if isinstance(value, int) and not isinstance(value, bool) and not LEAST <= value <= MOST:
                    expected.forbid("a number beyond int64", name)
                    expected.unknown.add(name)
                if pa.types.is_floating(kind) and isinstance(value, int) and not exact_float(value):
                    expected.forbid("a whole number beside floats that float64 does not hold", name)
                    expected.unknown.add(name)
                expected.values[row][name] = value
        expected.types[name] = type_word(kind) or ""
        if {"text", "blob"} == stored:
            expected.types[name] = "blob"
            for part in having:
                for row, value in zip(part["id"].to_pylist(), part[name].to_pylist()):
                    expected.values[row][name] = value.encode() if isinstance(value, str) else value


def records_of_features(variant: Variant) -> None:
    rng = variant.rng
    files = rng.choice([1, 2])
    names = ["a", "b"][: rng.randint(1, 2)]
    profile = {name: rng.choice(["one int", "one int", "one float", "ints", "floats", "counts", "counts", "bytes", "texts", "int or float", "int or bytes", "absent", "gaps"]) for name in names}
    folder = variant.folder("d")
    number = 0
    raw: dict[str, dict[int, tuple[str, list[Any]] | None]] = {name: {} for name in names}
    for place in range(files):
        out = []
        for _ in range(rng.choice([1, 3, 8])):
            features: dict[str, tuple[str, list[Any]]] = {"id": ("int", [number])}
            for name in names:
                value = draw_feature(rng, profile[name])
                raw[name][number] = value
                if value is not None:
                    features[name] = value
            out.append(forms.example(features, packed=rng.random() < 0.8))
            variant.note(f"t-{place} {features}"[:200])
            number += 1
        (folder / f"t-{place}.tfrecord").write_bytes(forms.tfrecord_bytes(out))
        # The package must read what was written here; else the data is at fault.
        read = list(tfrecord.tfrecord_loader(str(folder / f"t-{place}.tfrecord"), None))
        assert len(read) == len(out)
    options: dict[str, Any] = {}
    texts = [name for name in names if profile[name] == "texts"]
    scalars = [name for name in names if profile[name] in ("one int", "one float", "counts", "ints") and rng.random() < 0.25]
    lists = [name for name in names if profile[name] in ("one int", "one float", "counts", "ints", "gaps") and name not in scalars and rng.random() < 0.3]
    masked = [name for name in names if rng.random() < 0.5]
    add(options, texts=texts, scalars=scalars, lists=lists, missing={name: "mask" for name in masked})
    expected = Expected(values={row: {} for row in range(number)})
    for name in names:
        judge_feature(expected, name, raw[name], name in texts, name in scalars, name in lists, name in masked)
    shuffle = rng.random() < 0.4
    source = {"store": "d", **options}
    if shuffle or rng.random() < 0.2:
        made = subprocess.run([str(variant.options.penstock), "index", "create", "--tfrecord", "--store", f"d={folder}", "--upload", "t.index"], capture_output=True)
        if made.returncode:
            if not expected.refuse and not expected.may:
                variant.differ("index of sound data fails", 0, made.stderr.decode())
            return
        source |= {"index": "t.index", "shuffle": shuffle}
    else:
        source |= {"prefix": "t-"}
    expected.ordered = not shuffle
    compare(variant, variant.run(collated({"tfrecord": source}, 1), {"d": folder}), expected)


def draw_feature(rng: Any, profile: str) -> tuple[str, list[Any]] | None:
    some_int = lambda: rng.choice([0, 1, -1, 2**40, MOST, LEAST])
    some_float = lambda: float(np.float32(rng.choice([0.0, 0.5, -1.25, rng.random()])))
    if profile == "one int":
        return "int", [some_int()]
    if profile == "one float":
        return "float", [some_float()]
    if profile == "ints":
        return "int", [some_int() for _ in range(rng.randint(2, 4))]
    if profile == "floats":
        return "float", [some_float() for _ in range(rng.randint(0, 4))]
    if profile == "counts":
        return "int", [some_int() for _ in range(rng.choice([0, 1, 1, 1, 2]))]
    if profile == "bytes":
        return "bytes", [rng.choice([b"", b"\xff\x00", b"x"])]
    if profile == "texts":
        return "bytes", [rng.choice(TEXTS).encode()]
    if profile == "int or float":
        return rng.choice([("int", [rng.randint(0, 9)]), ("float", [some_float()])])
    if profile == "int or bytes":
        return rng.choice([("int", [1]), ("bytes", [b"x"])])
    if profile == "absent":
        return None
    return None if rng.random() < 0.3 else ("int", [some_int()])


def judge_feature(expected: Expected, name: str, raw: dict[int, Any], is_text: bool, scalar: bool, is_list: bool, masked: bool) -> None:
    """Adds what is right for a feature, by the rules of the manual."""
    present = {row: value for row, value in raw.items() if value is not None}
    kinds = {value[0] for value in present.values()}
    counts = {len(value[1]) for value in present.values()}
    if {"bytes", "int"} <= kinds or {"bytes", "float"} <= kinds:
        expected.forbid("a text or blob beside a number", name)
        expected.unknown.add(name)
    elif kinds == {"int", "float"}:
        expected.may.append("whole and broken numbers in one feature")
    values: dict[int, Any] = {}
    # A feature without an element: in one of `lists` it may be an empty list or be absent.
    several = is_list or (not scalar and counts != {1} and "bytes" not in kinds)
    for row, value in raw.items():
        if value is None:
            values[row] = None
        elif value[0] == "bytes":
            values[row] = value[1][0].decode() if is_text else value[1][0]
        elif several:
            values[row] = np.array(value[1], np.int64 if value[0] == "int" else np.float32)
        else:
            values[row] = value[1][0] if len(value[1]) == 1 else None
    if scalar and any(len(value[1]) > 1 for value in present.values()):
        expected.forbid("several values in a feature of `scalars`", name)
        expected.unknown.add(name)
    kind = "list" if several else "text" if is_text else "blob" if kinds == {"bytes"} else {"int": "int", "float": "float"}.get(next(iter(kinds), ""), None)
    if len(kinds) != 1:
        kind = None
    if scalar and 0 in counts and counts <= {0}:
        expected.may.append("a feature of `scalars` that never has a value")
    here = {row: value for row, value in values.items() if value is not None}
    fill(expected, name, values, here, kind, masked)
    if several and masked:
        for row, value in values.items():
            if value is None:
                expected.values[row][name] = np.array([], np.int64)


def mds(variant: Variant) -> None:
    rng = variant.rng
    families = [["int", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"], ["uint64"], ["float16", "float32", "float64"], ["str"], ["bytes"], ["json"],
                ["str_int"], ["str_float"], ["int64", "float64"], ["int64", "str"], ["str", "bytes"], ["str", "json"], ["int64", "str_int"], ["float64", "str_float"]]
    columns = {name: rng.choice(families) for name in ["a", "b", "c"][: rng.randint(1, 3)]}
    usual = {name: rng.choice(kinds) for name, kinds in columns.items()}
    differ = rng.random() < 0.5
    shards, number = [], 0
    expected = Expected()
    masked = [name for name in columns if rng.random() < 0.4]
    lacking = set()
    used: dict[str, set[str]] = {name: set() for name in columns}
    for place in range(rng.choice([1, 2, 3])):
        here = {"id": "int"}
        for name, kinds in columns.items():
            if differ and place and rng.random() < 0.15:
                lacking.add(name)
                continue
            here[name] = rng.choice(kinds) if differ else usual[name]
            used[name].add(here[name])
        rows = []
        for _ in range(rng.choice([1, 3, 6])):
            row = {"id": number, **{name: draw_mds(rng, here[name]) for name in here if name != "id"}}
            expected.values[number] = {name: Json(row[name]) if here.get(name) == "json" else row.get(name) for name in columns}
            for name in masked:
                expected.values[number][f"{name}.present"] = name in here
            rows.append(row)
            number += 1
        shards.append((here, rows))
        variant.note(f"shard {place}: {here} {rows}"[:500])
    for name in columns:
        words = {mds_word(encoding) for encoding in used[name]}
        if len(words) > 1 and words != {"int", "float"}:
            if words != {"text", "blob"}:
                expected.forbid("types of shards that differ", name)
            else:
                expected.may.append("texts beside blobs")
            expected.unknown.add(name)
        elif words == {"int", "float"}:
            expected.may.append("types of shards that differ")
            whole = [row.get(name) for _, rows in shards for row in rows if isinstance(row.get(name), int)]
            if not all(exact_float(value) for value in whole):
                expected.forbid("a whole number beside floats that float64 does not hold", name)
                expected.unknown.add(name)
        elif len(used[name]) > 1:
            expected.may.append("encodings of shards that differ")
        if len(words) == 1:
            expected.types[name] = next(iter(words))
        if any(not LEAST <= row[name] <= MOST for _, rows in shards for row in rows if isinstance(row.get(name), int)):
            expected.forbid("a number beyond int64", name)
            expected.unknown.add(name)
        if name in lacking:
            expected.may.append("columns of shards that differ")
            if name not in masked:
                expected.forbid("a column that only some shards have", name)
            zero = {"text": "", "blob": b""}.get(next(iter(words)), 0)
            for fields in expected.values.values():
                fields[name] = zero if fields[name] is None else fields[name]
    folder = variant.folder("d")
    forms.write_mds(folder, shards)
    source = {"store": "d", "shuffle": rng.random() < 0.5}
    expected.ordered = not source["shuffle"]
    add(source, missing={name: "mask" for name in masked})
    compare(variant, variant.run(collated({"mds": source}, rng.choice([1, 4, 50])), {"d": folder}), expected)


def mds_word(encoding: str) -> str:
    if encoding in ("str", "json"):
        return "text"
    if encoding == "bytes":
        return "blob"
    return "float" if "float" in encoding else "int"


def draw_mds(rng: Any, encoding: str) -> Any:
    if encoding in ("str",):
        return rng.choice(TEXTS)
    if encoding == "bytes":
        return rng.choice([b"", b"\x00\xff", b"xyz"])
    if encoding == "json":
        return rng.choice([{"a": [1, 2]}, [1, "x"], 5, "text", None])
    if encoding == "str_int":
        return rng.choice([0, -5, MOST, 10**12])
    if encoding == "uint64":
        return rng.choice([0, 1, 2**40] * 4 + [2**63])
    if "float" in encoding:
        return float(np.dtype("float64" if encoding == "str_float" else encoding).type(rng.choice([0.0, 1.0, -0.5, 0.25, 1000.0])))
    bits = 64 if encoding == "int" else int(encoding.lstrip("uint"))
    if encoding.startswith("uint"):
        return rng.randint(0, 2**bits - 1)
    return rng.choice([0, 1, -1, rng.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)])


def make(variant: Variant) -> None:
    form = variant.rng.choice([records, records, tables, parquet, parquet, records_of_features, mds])
    variant.tags.append(form.__name__)
    form(variant)


if __name__ == "__main__":
    main("types", make)
