"""Columns: Parquet in all encodings, versions of pages and compressions, lists of images, and MDS with all encodings and compressions.

References: pyarrow, which reads each file again, and the writer and decoders of mosaicml-streaming. Each value is that of the reference,
and what is not read is refused by the name of the column.
"""

from __future__ import annotations

import datetime
import decimal
import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

import blobs
import mosaic
from expect import LEAST, MOST, Expected, Json, compare
from kit import Variant, collated, main

TEXTS = ["", "a", "ab", "abc", "abd", "b", "\u00fc", "\u65e5\u672c", "x" * 300, "prefix/one", "prefix/two", "prefix/two/three", "null", "line\nend"]

# Types of columns with the encodings that Parquet has for them; `dictionary` stands for RLE_DICTIONARY.
TYPES = {
    "bool": ["PLAIN", "RLE"], "int8": "int", "int16": "int", "int32": "int", "int64": "int", "uint8": "int", "uint16": "int", "uint32": "int", "uint64": "int",
    "float16": "float", "float32": "float", "float64": "float", "string": "bytes", "large_string": "bytes", "binary": "bytes", "large_binary": "bytes", "string_view": "bytes",
    "fixed": ["PLAIN", "dictionary", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"],
    "decimal int32": ["PLAIN", "dictionary", "DELTA_BINARY_PACKED"], "decimal int64": ["PLAIN", "dictionary", "DELTA_BINARY_PACKED"],
    "decimal fixed": ["PLAIN", "dictionary", "DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"], "date32": "int", "time32 ms": "int", "time64 us": "int", "timestamp ms": "int",
    "timestamp us": "int", "timestamp ns": "int", "list int32": "int", "list float32": "float", "list int64": "int", "list string": "bytes", "dictionary": ["dictionary"],
}
SHARED = {
    "int": ["PLAIN", "dictionary", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"], "float": ["PLAIN", "dictionary", "BYTE_STREAM_SPLIT"],
    "bytes": ["PLAIN", "dictionary", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY", "DELTA_BYTE_ARRAY"],
}

COMPRESSIONS = ["none", "snappy", "gzip", "brotli", "brotli", "zstd", "lz4"]


def arrow_type(kind: str) -> pa.DataType:
    """The type of pyarrow with a short name."""
    word, _, rest = kind.partition(" ")
    if word == "list":
        return pa.list_(arrow_type(rest))
    if word == "decimal":
        return pa.decimal128({"int32": 9, "int64": 18, "fixed": 30}[rest], 2)
    if word in ("time32", "time64", "timestamp"):
        return getattr(pa, word)(rest)
    if word == "fixed":
        return pa.binary(5)
    return pa.string() if word == "dictionary" else getattr(pa, "bool_" if word == "bool" else word)()


def draw_cell(rng: Any, kind: str, profile: str) -> Any:
    """A value of a column. `profile` is `near` for values that delta encodings make small."""
    word, _, rest = kind.partition(" ")
    if word == "list":
        return [draw_cell(rng, rest, profile) for _ in range(rng.choice([0, 1, 2, 5]))]
    if word == "bool":
        return rng.random() < 0.5
    if word.startswith(("int", "uint")):
        bits = int(word.lstrip("uint"))
        least, most = (0, 2 ** min(bits, 63) - 1) if word.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        return rng.choice([0, 1, 2, 3]) if profile == "near" else rng.choice([0, 1, least, most, rng.randint(least, most)])
    if word in ("float16", "float32", "float64"):
        return float(np.dtype(word).type(rng.choice([0.0, -0.0, 1.0, -0.5, 0.25, 100.5, float("inf"), float("nan"), rng.random()])))
    if word in ("string", "large_string", "string_view", "dictionary"):
        return rng.choice(TEXTS)
    if word in ("binary", "large_binary"):
        return rng.choice([b"", b"\xff\xd8", b"a", b"ab", b"abc", b"\0\0", bytes(range(256)), bytes(rng.randrange(256) for _ in range(40))])
    if word == "fixed":
        return rng.choice([b"aaaaa", b"aaaab", b"\0\0\0\0\0", b"\xff\xfe\xfd\xfc\xfb"])
    if word == "decimal":
        return decimal.Decimal(rng.randint(-10**8, 10**8)).scaleb(-2)
    if word == "date32":
        return datetime.date(1970, 1, 1) + datetime.timedelta(days=rng.randint(-9999, 30000))
    if word == "timestamp":
        return rng.randint(-(10**9), 10**12) * (1 if rest == "ms" else 1000) if rest != "ns" else rng.randint(0, 10**15) * 1000
    return rng.randint(0, 80_000_000)


def value_of(kind: str, value: Any) -> Any:
    """A value that pyarrow read, as the manual says that a field has it."""
    if value is None:
        return None
    if kind.startswith("list string"):
        return Json(value)
    if kind.startswith("list"):
        return value
    if isinstance(value, decimal.Decimal):
        return float(value)
    return value


def physical(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Dates and times as whole numbers, dictionaries as texts."""
    kind = column.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return column.cast(pa.int32())
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return column.cast(pa.int64())
    return column.cast(pa.string()) if pa.types.is_dictionary(kind) else column


def word_of(kind: str) -> str:
    word = kind.partition(" ")[0]
    if kind == "list string":
        return "text"
    if word == "list":
        return "list"
    if word in ("string", "large_string", "string_view", "dictionary"):
        return "text"
    if word in ("binary", "large_binary", "fixed"):
        return "blob"
    return "float" if word.startswith(("float", "decimal")) else "int"


def make(variant: Variant) -> None:
    form = variant.rng.choice([parquet, parquet, parquet, images, images, mds, mds, mds, damaged_mds])
    variant.tags.append(form.__name__)
    form(variant)


def draw_column(rng: Any, kind: str, count: int) -> pa.Array:
    profile = rng.choice(["near", "any"])
    nulls = rng.choice([0, 0, 0.2, 0.9])
    values = [None if rng.random() < nulls else draw_cell(rng, kind, profile) for _ in range(count)]
    if profile == "near" and kind in ("int64", "int32", "timestamp us"):
        start = rng.randint(0, 1000)
        values = [None if value is None else start + number * 3 + rng.choice([0, 1]) for number, value in enumerate(values)]
    return pa.array(values, arrow_type(kind))


def parquet(variant: Variant) -> None:
    """Columns of all types in all encodings."""
    rng = variant.rng
    kinds = {name: rng.choice(list(TYPES)) for name in ["a", "b", "c"][: rng.randint(1, 3)]}
    files = rng.choice([1, 1, 2])
    # Versions differ in the units of timestamps.
    version = rng.choice(["1.0", "2.4", "2.6"])
    folder = variant.folder("d")
    expected = Expected()
    number = 0
    parts: dict[str, dict[int, Any]] = {name: {} for name in kinds}
    for place in range(files):
        count = rng.choice([1, 3, 20, 130, 300])
        columns: dict[str, Any] = {"id": pa.array(range(number, number + count), pa.int64())}
        number += count
        encodings: dict[str, str] = {}
        dictionaries: list[str] = []
        for name, kind in kinds.items():
            columns[name] = draw_column(rng, kind, count)
            fits = TYPES[kind] if isinstance(TYPES[kind], list) else SHARED[TYPES[kind]]
            encoding = rng.choice(fits)
            leaf = f"{name}.list.element" if kind.startswith("list") else name
            if encoding == "dictionary":
                dictionaries.append(leaf)
            else:
                encodings[leaf] = encoding
        encodings["id"] = rng.choice(["PLAIN", "DELTA_BINARY_PACKED"])
        options = {
            "compression": rng.choice(COMPRESSIONS), "data_page_version": rng.choice(["1.0", "2.0"]), "row_group_size": rng.choice([1, 7, 64, 1000] if count < 100 else [64, 1000]),
            "use_dictionary": dictionaries or False, "column_encoding": encodings, "data_page_size": rng.choice([64, 1024, 2**20]), "version": version,
            "store_schema": rng.random() < 0.7, "write_page_checksum": rng.random() < 0.3, "write_statistics": rng.random() < 0.7,
            "store_decimal_as_integer": any("decimal int" in kind for kind in kinds.values()),
        }
        if options["compression"] in ("gzip", "brotli", "zstd"):
            options["compression_level"] = rng.choice([1, 5, 9])
        path = folder / f"q-{place}.parquet"
        table = pa.table(columns)
        pq.write_table(table, path, **options)
        try:
            read = pq.ParquetFile(path).read()
        except pa.ArrowInvalid:
            # Some pages of nulls alone are written so that pyarrow does not read them.
            variant.tags.append("not read by pyarrow")
            return
        variant.note(f"q-{place}.parquet: {count} rows, {kinds}, {encodings}, {dictionaries}, {options['compression']}, pages of version {options['data_page_version']}, "
                     f"{options['row_group_size']} rows in a group, pages of {options['data_page_size']} bytes, version {version}: {str(table.slice(0, 3).to_pydict())[:300]}")
        variant.tags += [options["compression"], *set(encodings.values()) - {"PLAIN"}]
        for name, kind in kinds.items():
            for row, value in zip(read["id"].to_pylist(), physical(read[name]).to_pylist()):
                parts[name][row] = value_of(kind, value)
    masked: dict[str, Any] = {}
    for name, kind in kinds.items():
        judge(expected, name, kind, parts[name], masked, rng)
    shuffle = rng.random() < 0.4
    expected.ordered = not shuffle
    source: dict[str, Any] = {"store": "d", "shuffle": shuffle, "prefix": "q-"}
    if masked:
        source["missing"] = masked
    lists = any(kind.startswith("list ") and kind != "list string" for kind in kinds.values())
    outcome = variant.run(collated({"parquet": source}, 1 if lists else rng.choice([1, 7, 50])), {"d": folder})
    compare(variant, outcome, expected)


def judge(expected: Expected, name: str, kind: str, values: dict[int, Any], masked: dict[str, Any], rng: Any) -> None:
    """Adds what is right for a column whose types the file states."""
    word = word_of(kind)
    expected.types[name] = word
    for row, value in values.items():
        items = value if isinstance(value, list) else [value]
        if any(isinstance(item, int) and not isinstance(item, bool) and not LEAST <= item <= MOST for item in items):
            expected.forbid("a number beyond int64", name)
            expected.unknown |= {name, f"{name}.present"}
    some = any(value is not None for value in values.values())
    absent = any(value is None for value in values.values())
    policy = "mask" if absent and rng.random() < 0.85 else None
    if policy:
        masked[name] = policy
        expected.types[f"{name}.present"] = "bool"
    elif absent and some:
        expected.forbid("absent in a part of the data", name, "missing")
    elif absent:
        expected.types.pop(name)
        expected.may.append("a column of nulls alone")
    zero: Any = {"text": "", "blob": b"", "list": [], "float": 0.0}.get(word, 0)
    if kind == "list string":
        # An empty text, which is no JSON.
        zero = ""
    for row, value in values.items():
        fields = expected.values.setdefault(row, {})
        fields[name] = zero if value is None and policy else value
        if policy:
            fields[f"{name}.present"] = value is not None


def jpeg(rng: Any) -> Image.Image:
    return Image.new("RGB", (rng.choice([1, 8, 20]), rng.choice([1, 8, 16])), tuple(rng.randrange(256) for _ in range(3)))


def draw_image(rng: Any) -> bytes:
    return mosaic.mds_encode("jpeg", jpeg(rng)) if rng.random() < 0.5 else bytes(rng.randrange(256) for _ in range(rng.choice([0, 1, 50])))


def images(variant: Variant) -> None:
    """Lists of images with none, one or several elements: as lists of structs of `datasets`, and as lists of bytes."""
    rng = variant.rng
    kind = rng.choice(["struct", "struct", "binary", "large_binary", "large list"])
    name = rng.choice(["images", "image"])
    counts = rng.choice([[0, 1, 3], [1], [3], [0], [1, 3], [0, 1, 3, None]])
    folder = variant.folder("d")
    expected_rows: dict[int, list[bytes] | None] = {}
    number = 0
    for place in range(rng.choice([1, 1, 2])):
        rows: list[list[bytes] | None] = []
        for _ in range(rng.choice([1, 3, 10])):
            count = rng.choice(counts)
            rows.append(None if count is None else [draw_image(rng) for _ in range(count)])
        if kind == "struct":
            inner = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
            column = pa.array([None if row is None else [{"bytes": item, "path": rng.choice([None, "x.jpg"])} for item in row] for row in rows], pa.list_(inner))
        elif kind == "large list":
            column = pa.array(rows, pa.large_list(pa.binary()))
        else:
            column = pa.array(rows, pa.list_(getattr(pa, kind)()))
        table = pa.table({"id": pa.array(range(number, number + len(rows)), pa.int64()), name: column})
        features = {"id": {"dtype": "int64", "_type": "Value"}, name: [{"_type": "Image"}]}
        if kind == "struct" and rng.random() < 0.5:
            table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        path = folder / f"q-{place}.parquet"
        pq.write_table(table, path, compression=rng.choice(COMPRESSIONS), data_page_version=rng.choice(["1.0", "2.0"]), row_group_size=rng.choice([1, 3, 100]),
                       use_dictionary=rng.random() < 0.5, store_schema=rng.random() < 0.7)
        read = pq.ParquetFile(path).read()
        for row, items in zip(read["id"].to_pylist(), read[name].to_pylist()):
            expected_rows[row] = None if items is None else [item["bytes"] if isinstance(item, dict) else item for item in items]
        number += len(rows)
    variant.note(f"column {name}: {kind}, elements {[None if items is None else [len(item) for item in items] for items in expected_rows.values()]}"[:700])
    variant.tags.append(f"images: {kind}")
    blobs.read_lists(variant, "parquet", {"prefix": "q-"}, folder, name, expected_rows)


def draw_mds(rng: Any, encoding: str) -> Any:
    """A value for the writer of mosaicml-streaming."""
    word, _, rest = encoding.partition(":")
    if word == "ndarray":
        dtype, _, shape = rest.partition(":")
        dtype = dtype or rng.choice(["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"])
        sizes = [int(size) for size in shape.split(",")] if shape else [rng.choice([1, 2, 3, 300]) for _ in range(rng.choice([1, 1, 2, 3]))]
        if int(np.prod(sizes)) > 5000:
            sizes = sizes[:1]
        return np.array([rng.choice([0, 1, 2, 100]) for _ in range(int(np.prod(sizes)))], dtype).reshape(sizes)
    if encoding == "bytes":
        return rng.choice([b"", b"\0\xff", b"xyz" * 100])
    if encoding == "str":
        return rng.choice(TEXTS)
    if encoding == "json":
        return rng.choice([{"a": [1, 2.5, None]}, [1, "x"], 5, "text", None, True])
    if encoding == "str_decimal":
        return decimal.Decimal(rng.choice(["0", "-1.50", "1E+5", "12345678901234567890.5"]))
    if encoding in ("str_int", "int", "int64"):
        return rng.choice([0, -5, MOST, LEAST])
    if encoding in ("float16", "float32", "float64", "str_float"):
        return float(np.dtype("float64" if encoding == "str_float" else encoding).type(rng.choice([0.0, 1.0, -0.5, 1000.25, 1e-5])))
    if encoding.startswith(("int", "uint")):
        bits = int(encoding.lstrip("uint"))
        return rng.randint(0, 2 ** min(bits, 63) - 1) if encoding.startswith("u") else rng.randint(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if encoding in ("jpeg", "png", "pil"):
        return jpeg(rng)
    if encoding.startswith("list["):
        return [jpeg(rng) for _ in range(rng.choice([0, 1, 3]))]
    if encoding in ("jpeg_array", "jpegarray"):
        return [mosaic.mds_encode("jpeg", jpeg(rng)) for _ in range(rng.choice([0, 1, 3]))]
    return {"pickled": 1}


# Encodings of MDS: single values, arrays, lists of images, and those that are refused.
PLAIN = ["bytes", "str", "int", "json", "str_int", "str_float", "str_decimal", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
         "float32", "float64", "jpeg", "png"]
ARRAYS = ["ndarray", "ndarray:float32", "ndarray:int64:2,3", "ndarray:uint8:4", "ndarray:float16", "ndarray:uint32", "ndarray:uint64:2"]
LISTS = ["list[jpeg]", "list[png]", "jpeg_array", "jpegarray"]
UNREAD = ["pkl", "pil", "list[pil]"]


def mds_value(encoding: str, value: Any) -> Any:
    """A field of an encoding as the manual says."""
    if encoding == "json":
        return Json(value)
    if encoding == "str_decimal":
        return str(value)
    if encoding in ("jpeg", "png"):
        return mosaic.mds_encode(encoding, value)
    return value


def list_items(encoding: str, value: Sequence[Any]) -> list[bytes]:
    """The encoded images of a list."""
    if encoding.startswith("list["):
        return [mosaic.mds_encode(encoding[5:-1], item) for item in value]
    return [bytes(item) for item in value]


def mds_word(encoding: str) -> str:
    if encoding in ("str", "json", "str_decimal"):
        return "text"
    if encoding in ("bytes", "jpeg", "png"):
        return "blob"
    if encoding.startswith("ndarray"):
        return "list"
    return "float" if "float" in encoding else "int"


def write_mds(variant: Variant, columns: dict[str, str], rows: list[dict[str, Any]], compression: str | None) -> Path:
    """A data set that the package writes."""
    rng = variant.rng
    folder = variant.place / "d"
    hashes = sorted(rng.sample(["sha1", "sha256", "md5", "xxh64", "blake2b"], rng.choice([0, 0, 1, 2])))
    limit = rng.choice([2000, 20_000, 1 << 26])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writer = mosaic.MDSWriter(out=str(folder), columns=columns, compression=compression, hashes=hashes, size_limit=limit)
        for row in rows:
            writer.write(row)
        writer.finish()
    first = [{name: short_value(value) for name, value in row.items()} for row in rows[:2]]
    variant.note(f"MDS, {compression}, hashes {hashes}, shards of {limit} bytes at most, {len(rows)} samples: {columns}; {str(first)[:500]}")
    return folder


def short_value(value: Any) -> Any:
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, (bytes, str)) and len(value) > 20 else value


def draw_compression(rng: Any) -> str | None:
    word = rng.choice([None, "br", "br", "bz2", "bz2", "gz", "snappy", "snappy", "zstd", "zstd"])
    if word is None or word == "snappy" or rng.random() < 0.5:
        return word
    return f"{word}:{rng.choice([1, 5, 9])}"


def mds(variant: Variant) -> None:
    """Columns of all encodings in all compressions."""
    rng = variant.rng
    kind = rng.choices(["plain", "arrays", "lists", "unread"], [5, 2, 3, 1])[0]
    variant.tags.append(f"mds {kind}")
    compression = draw_compression(rng)
    variant.tags.append(f"mds {(compression or 'none').partition(':')[0]}")
    columns = {name: rng.choice(PLAIN + (ARRAYS * 2 if kind == "arrays" else [])) for name in ["a", "b", "c"][: rng.randint(1, 3)]}
    if kind in ("lists", "unread"):
        columns["images"] = rng.choice(LISTS if kind == "lists" else UNREAD)
    rows = [{"id": number, **{name: draw_mds(rng, encoding) for name, encoding in columns.items()}} for number in range(rng.choice([1, 4, 30]))]
    folder = write_mds(variant, {"id": "int", **columns}, rows, compression)
    expected = Expected(values={row["id"]: {} for row in rows})
    chosen = None
    if kind == "unread" and rng.random() < 0.5:
        chosen = {name: name for name in ["id", *columns] if name != "images"}
    for name, encoding in columns.items():
        if name == "images":
            continue
        if not encoding.startswith("ndarray"):
            expected.types[name] = mds_word(encoding)
        if encoding.startswith("ndarray") and any(row[name].dtype.name in ("uint32", "uint64") for row in rows):
            expected.forbid("an array of uint32 or uint64", name)
        if encoding.startswith("ndarray") and len({row[name].dtype for row in rows} | {row[name].ndim for row in rows}) > 2:
            expected.may.append("arrays of different types")
        for row in rows:
            expected.values[row["id"]][name] = mds_value(encoding, row[name])
    if kind == "unread" and not chosen:
        expected.forbid(f"the encoding {columns['images']}", columns["images"])
    if kind == "lists":
        others = {row["id"]: expected.values[row["id"]] for row in rows}
        blobs.read_lists(variant, "mds", {}, folder, "images", {row["id"]: list_items(columns["images"], row["images"]) for row in rows}, others, expected.types)
        return
    shuffle = rng.random() < 0.5
    expected.ordered = not shuffle
    source: dict[str, Any] = {"store": "d", "shuffle": shuffle}
    if chosen:
        source["fields"] = chosen
    outcome = variant.run(collated({"mds": source}, 1 if kind == "arrays" else rng.choice([1, 4])), {"d": folder})
    compare(variant, outcome, expected)


def damaged_mds(variant: Variant) -> None:
    """A compressed shard that is cut or changed, or is compressed otherwise than its index says, is refused."""
    rng = variant.rng
    compression = rng.choice(["br", "bz2", "gz", "snappy", "zstd"])
    rows = [{"id": number, "a": bytes(rng.randrange(256) for _ in range(rng.choice([10, 200])))} for number in range(20)]
    folder = write_mds(variant, {"id": "int", "a": "bytes"}, rows, compression)
    paths = sorted(path for path in folder.iterdir() if path.name != "index.json")
    path = rng.choice(paths)
    data = path.read_bytes()
    change = rng.choice(["cut", "cut", "flipped", "plain", "another shard", "empty", "longer"])
    if change == "cut":
        data = data[: rng.randrange(1, len(data))]
    elif change == "flipped":
        spot = rng.randrange(len(data))
        data = data[:spot] + bytes([data[spot] ^ 1 << rng.randrange(8)]) + data[spot + 1:]
    elif change == "plain":
        from streaming.base.compression import decompress

        data = decompress(compression, data)
    elif change == "another shard":
        if len(paths) == 1:
            return
        data = next(other for other in paths if other != path).read_bytes()
    elif change == "empty":
        data = b""
    else:
        data += b"more"
    path.write_bytes(data)
    variant.note(f"{path.name}: {change}")
    variant.tags.append(f"damaged {compression}: {change}")
    skip = rng.random() < 0.4
    source = {"store": "d", "shuffle": rng.random() < 0.5, **({"on_damage": "skip"} if skip else {})}
    outcome = variant.run(collated({"mds": source}, 1, max_failures=None), {"d": folder})
    wanted = {row["id"]: row["a"] for row in rows}
    # A single bit of a form without a checksum may give other bytes: nothing tells then. A value of a wrong length or place does.
    wrong = [int(sample.fields["id"]) for sample in outcome.samples if wanted.get(int(sample.fields["id"])) != sample.fields["a"]]
    told = outcome.code != 0 or bool(outcome.left_out) or outcome.failed
    if not told and len(outcome.samples) != len(rows):
        variant.differ(f"damaged {compression}, {change}: samples are lost without a word", len(rows), f"{len(outcome.samples)}; {outcome.words}")
    elif not told and wrong and change != "flipped":
        variant.differ(f"damaged {compression}, {change}: wrong samples", "a refusal", wrong)
    elif not told and change in ("cut", "empty"):
        variant.differ(f"damaged {compression}, {change}: passes", "a refusal", f"{len(outcome.samples)} samples")
    variant.tags.append("damage: told" if told else "damage: not told")


if __name__ == "__main__":
    main("columns", make)
