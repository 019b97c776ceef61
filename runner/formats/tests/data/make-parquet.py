"""Writes the Parquet fixtures of the tests with pyarrow and `datasets`, and what pyarrow itself reads from them.

  pip install pyarrow==26.0.1 datasets==5.2.0 pillow numpy
  make-parquet.py
"""

import datetime
import decimal
import json
import random
import struct
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

HERE = Path(__file__).parent / "parquet"
RANDOM = random.Random(7)
written = []


def write(name, table, **options):
    pq.write_table(table, HERE / f"{name}.parquet", **{"row_group_size": 5, **options})
    written.append(name)


def optional(values):
    return [None if number % 4 == 2 else value for number, value in enumerate(values)]


def types():
    count = 12

    def ints(bits, signed):
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        # The numbers of fields are signed.
        high = min(high, 2**63 - 1)
        return [low, high] + [RANDOM.randint(low, high) for _ in range(count - 2)]

    columns = {"bool": pa.array(optional([number % 3 == 0 for number in range(count)]), pa.bool_())}
    for bits in (8, 16, 32, 64):
        columns[f"int{bits}"] = pa.array(optional(ints(bits, True)), pa.from_numpy_dtype(f"int{bits}"))
        columns[f"uint{bits}"] = pa.array(ints(bits, False), pa.from_numpy_dtype(f"uint{bits}"))
    reals = [0.0, -0.0, float("inf"), 1e-7] + [RANDOM.uniform(-100, 100) for _ in range(count - 4)]
    columns["half"] = pa.array(np.array(reals, "float16"))
    columns["float"] = pa.array(optional(reals), pa.float32())
    columns["double"] = pa.array(reals, pa.float64())
    columns["text"] = pa.array(optional([f"text {number} ä" if number else "" for number in range(count)]), pa.string())
    columns["large"] = pa.array([f"{number}" * number for number in range(count)], pa.large_string())
    columns["words"] = pa.array(["one", "two", "one"] * 4).dictionary_encode()
    columns["blob"] = pa.array(optional([bytes(range(number)) for number in range(count)]), pa.binary())
    columns["fixed"] = pa.array([bytes([number] * 5) for number in range(count)], pa.binary(5))
    columns["date"] = pa.array([datetime.date(2026, 1, 1 + number) for number in range(count)], pa.date32())
    times = [datetime.datetime(2026, 1, 1, number, 1, 2, 3) for number in range(count)]
    columns["micros"] = pa.array(optional(times), pa.timestamp("us"))
    columns["nanos"] = pa.array(times, pa.timestamp("ns"))
    columns["decimal"] = pa.array(optional([decimal.Decimal(number * 7 - 30) / 8 for number in range(count)]), pa.decimal128(12, 3))
    return pa.table(columns)


def lists():
    count = 11
    floats = [[RANDOM.random() for _ in range(number % 4)] for number in range(count)]
    return pa.table(
        {
            "floats": pa.array(optional(floats), pa.list_(pa.float32())),
            "triple": pa.array([[number, -number, 3] for number in range(count)], pa.list_(pa.int16(), 3)),
            "matrix": pa.array([[[n, n + 1]] * (n % 3) for n in range(count)], pa.list_(pa.list_(pa.int64()))),
            "cube": pa.array(
                optional([np.full((2, 2, 3), n, "uint8").tolist() for n in range(count)]),
                pa.list_(pa.list_(pa.list_(pa.uint8(), 3), 2), 2),
            ),
            "bools": pa.array([[True, False, n % 2 == 0] for n in range(count)], pa.list_(pa.bool_())),
            "halves": pa.array([np.array([n / 8, 2], "float16") for n in range(count)], pa.list_(pa.float16())),
            "texts": pa.array([["a", 'q"', "ü"][: n % 4] for n in range(count)], pa.list_(pa.string())),
            "unsigned": pa.array([[n, 2**32 - 1] for n in range(count)], pa.large_list(pa.uint32())),
        }
    )


def structs():
    count = 8
    inner = pa.struct({"a": pa.int32(), "b": pa.struct({"c": pa.string(), "d": pa.list_(pa.float64())})})
    rows = [{"a": n, "b": None if n == 3 else {"c": f"c{n}", "d": [0.5] * n}} for n in range(count)]
    points = pa.list_(pa.struct({"x": pa.int8(), "name": pa.string()}))
    return pa.table(
        {
            "s": pa.array(optional(rows), inner),
            "points": pa.array([[{"x": n, "name": f"p{k}"} for k in range(n)] for n in range(count)], points),
            "map": pa.array([[("k", n), ("l", 2 * n)] for n in range(count)], pa.map_(pa.string(), pa.int64())),
        }
    )


def images():
    pictures = [Image.new("RGB", (4 + n, 3), (n * 20, 10, 10)) for n in range(7)]
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=["cat", "dog"]),
            "box": datasets.Array2D(shape=(2, 2), dtype="float32"),
            "words": datasets.List(datasets.Value("string")),
        }
    )
    columns = {
        "image": pictures,
        "label": [n % 2 for n in range(7)],
        "box": [[[n, 0], [1, n]] for n in range(7)],
        "words": [["w"] * n for n in range(7)],
    }
    data = datasets.Dataset.from_dict(columns, features=features)
    data.to_parquet(str(HERE / "images.parquet"), batch_size=3)
    written.append("images")


def table():
    return pa.table(
        {
            "number": pa.array(range(40), pa.int64()),
            "text": [f"value {number % 7}" * 3 for number in range(40)],
            "list": pa.array([[number] * (number % 3) for number in range(40)], pa.list_(pa.int32())),
        }
    )


def rows():
    count = 200
    return pa.table(
        {
            "id": pa.array(range(count), pa.int32()),
            "value": pa.array([None if n % 10 == 3 else RANDOM.randint(0, 20) for n in range(count)], pa.int64()),
            "score": pa.array([float("nan") if n % 50 == 7 else RANDOM.random() for n in range(count)], pa.float64()),
            "kind": pa.array([["a", "b", "zz"][n * 3 // count] for n in range(count)], pa.string()),
        }
    )


def encodings():
    """Columns, each with the encoding of its pages."""
    count = 40
    words = [f"https://example.org/{number % 5}/{'abc' * (number % 4)}/{number}" for number in range(count)]
    ints = [RANDOM.randint(-1000, 1000) for _ in range(count)]
    reals = [RANDOM.uniform(-9, 9) for _ in range(count)]
    return {
        "text": (pa.array(optional(sorted(words))), "DELTA_BYTE_ARRAY"),
        "large": (pa.array(words, pa.large_string()), "DELTA_BYTE_ARRAY"),
        "blob": (pa.array(optional([word.encode() for word in words]), pa.binary()), "DELTA_BYTE_ARRAY"),
        "fixed": (pa.array(optional([word[-9:].encode() for word in words]), pa.binary(9)), "DELTA_BYTE_ARRAY"),
        "decimal": (pa.array([decimal.Decimal(n) / 8 for n in ints], pa.decimal128(20, 3)), "DELTA_BYTE_ARRAY"),
        "price": (pa.array([decimal.Decimal(n) / 8 for n in ints], pa.decimal128(20, 3)), "BYTE_STREAM_SPLIT"),
        "texts": (pa.array([words[n : n + n % 4] for n in range(count)], pa.list_(pa.string())), "DELTA_BYTE_ARRAY"),
        "lengths": (pa.array(optional(words)), "DELTA_LENGTH_BYTE_ARRAY"),
        "int32": (pa.array(optional(ints), pa.int32()), "DELTA_BINARY_PACKED"),
        "int64": (pa.array(ints, pa.int64()), "DELTA_BINARY_PACKED"),
        "split32": (pa.array(ints, pa.int32()), "BYTE_STREAM_SPLIT"),
        "split64": (pa.array(optional(ints), pa.int64()), "BYTE_STREAM_SPLIT"),
        "half": (pa.array(np.array(reals, "float16")), "BYTE_STREAM_SPLIT"),
        "float": (pa.array(optional(reals), pa.float32()), "BYTE_STREAM_SPLIT"),
        "double": (pa.array(reals, pa.float64()), "BYTE_STREAM_SPLIT"),
        "bool": (pa.array(optional([number % 3 == 0 for number in range(count)])), "RLE"),
        "plain": (pa.array(optional(words)), "PLAIN"),
    }


def write_encodings(name, **options):
    columns = encodings()
    of_column = {f"{name}.list.element" if name == "texts" else name: encoding for name, (_, encoding) in columns.items()}
    table = pa.table({name: column for name, (column, _) in columns.items()})
    write(name, table, column_encoding=of_column, use_dictionary=False, row_group_size=25, data_page_size=300, write_batch_size=8, **options)


def image_lists():
    """Lists of 1, 3 and no blobs, and none."""
    blobs = [[b"one"], [b"first", b"", b"third" * 20], [], None, [bytes(range(256))]]
    files = [blobs and [{"bytes": blob, "path": f"{n}.png" if n else None} for n, blob in enumerate(blobs)] for blobs in blobs]
    file = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    return pa.table(
        {
            "images": pa.array(files, pa.list_(file)),
            "blobs": pa.array(blobs, pa.list_(pa.binary())),
            "large": pa.array(blobs, pa.large_list(pa.large_binary())),
            "pairs": pa.array([[b"ab", b"cd"], [b"ef", b"gh"], [b"", b"i"], [b"", b""], [b"j", b""]], pa.list_(pa.binary(), 2)),
            "ids": pa.array([[bytes([n] * 4)] * n for n in range(5)], pa.list_(pa.binary(4))),
        }
    )


def flat(name, kind, value):
    """Fields of a value, as pyarrow reads it."""
    if value is None:
        return {}
    if isinstance(value, list) and not pa.types.is_map(kind):
        parts = [part["bytes"] if isinstance(part, dict) and list(part) == ["bytes", "path"] else part for part in value]
        inner = kind.value_type
        names = [field.name for field in inner] if pa.types.is_struct(inner) else []
        if names == ["bytes", "path"] or any(is_of(inner) for is_of in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)):
            starts = np.cumsum([0, *map(len, parts)], dtype="int64")
            offsets = {"tensor": ["int64", [len(starts)], starts.tobytes().hex()]}
            return {name: {"blob": b"".join(parts).hex()}, f"{name}.offsets": offsets}
    if pa.types.is_struct(kind):
        if [field.name for field in kind] == ["bytes", "path"]:
            return {name: {"blob": value["bytes"].hex()}}
        fields = [flat(f"{name}.{field.name}", field.type, value[field.name]) for field in kind]
        return {key: field for group in fields for key, field in group.items()}
    if pa.types.is_map(kind):
        members = {"key": (kind.key_type, [k for k, _ in value]), "value": (kind.item_type, [v for _, v in value])}
        return {f"{name}.{key}": listed(kind, values)[1] for key, (kind, values) in members.items()}
    if isinstance(value, list):
        inner = kind.value_type
        if pa.types.is_struct(inner):
            return {
                f"{name}.{field.name}": listed(field.type, [item[field.name] for item in value])[1] for field in inner
            }
        return {name: listed(inner, value)[1]}
    if isinstance(value, str):
        return {name: {"text": value}}
    if isinstance(value, bytes):
        return {name: {"blob": value.hex()}}
    if isinstance(value, (float, decimal.Decimal, np.floating)):
        return {name: {"real": struct.pack("<d", float(value)).hex()}}
    return {name: {"int": int(value)}}


def listed(kind, value):
    depth = 1
    while isinstance(kind, (pa.ListType, pa.FixedSizeListType, pa.LargeListType)):
        kind, depth = kind.value_type, depth + 1
    if pa.types.is_string(kind):
        return kind, {"text": json.dumps(value, ensure_ascii=False, separators=(",", ":"))}
    dtype = "int64" if pa.types.is_uint32(kind) else kind.to_pandas_dtype()
    array = np.array(value, dtype)
    # NumPy does not know the depth of empty lists.
    array = array.reshape(array.shape + (0,) * (depth - array.ndim))
    return kind, {"tensor": [array.dtype.name, list(array.shape), array.tobytes().hex()]}


def plain(column):
    """A column without types for which Python has classes of their own."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks])
    if pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    if pa.types.is_date(column.type):
        return column.cast(pa.int32())
    return column


def expected(name):
    data = pq.read_table(HERE / f"{name}.parquet")
    found = [{} for _ in range(data.num_rows)]
    for name in data.column_names:
        column = plain(data[name])
        for row, value in zip(found, column.to_pylist()):
            row.update(flat(name, column.type, value))
    return found


def main():
    HERE.mkdir(exist_ok=True)
    write("types", types())
    write("lists", lists())
    write("structs", structs())
    images()
    for codec in ["none", "snappy", "gzip", "zstd", "lz4", "brotli"]:
        write(f"codec-{codec}", table(), compression=codec, row_group_size=16)
        write(f"v2-{codec}", table(), compression=codec, row_group_size=16, data_page_version="2.0")
    delta = {"number": "DELTA_BINARY_PACKED", "text": "DELTA_LENGTH_BYTE_ARRAY", "list.list.element": "BYTE_STREAM_SPLIT"}
    write("encodings", table(), column_encoding=delta, use_dictionary=False, write_page_checksum=True)
    delta = {**delta, "list.list.element": "DELTA_BINARY_PACKED"}
    write("encodings-v2", table(), column_encoding=delta, use_dictionary=False, data_page_version="2.0")
    write("pages", table(), data_page_size=40, row_group_size=40, write_batch_size=4)
    write("rows", rows(), row_group_size=50)
    write("int96", pa.table({"time": pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5)] * 3, pa.timestamp("ns"))}), use_deprecated_int96_timestamps=True)
    pq.write_table(table(), HERE / "no-dictionary.parquet", use_dictionary=False, row_group_size=16, write_statistics=False)
    written.append("no-dictionary")
    write_encodings("deltas", compression="brotli", write_page_checksum=True)
    write_encodings("deltas-v2", compression="none", data_page_version="2.0")
    # A dictionary of some pages, and other pages behind them.
    rest = pa.table({"text": [f"value {number} " * 4 for number in range(40)], "number": pa.array(range(40), pa.int64())})
    write("fallback", rest, dictionary_pagesize_limit=200, data_page_size=100, write_batch_size=4, row_group_size=40)
    write("image-lists", image_lists(), row_group_size=3)
    found = {name: expected(name) for name in written}
    (HERE / "expected.json").write_text(json.dumps(found, separators=(",", ":"), ensure_ascii=False) + "\n")
    # Files that are refused.
    paths = pa.array([{"bytes": None, "path": "a.png"}], pa.struct({"bytes": pa.binary(), "path": pa.string()}))
    odd = {
        "image": paths,
        "ragged": pa.array([[[1], [2, 3]]], pa.list_(pa.list_(pa.int32()))),
        "hole": pa.array([[1.0, None]], pa.list_(pa.float32())),
        "blobs": pa.array([[b"a", None]], pa.list_(pa.binary())),
        "nested": pa.array([[[b"a", b"b"]]], pa.list_(pa.list_(pa.binary()))),
        "files": pa.array([[{"bytes": b"a", "path": "a"}, {"bytes": None, "path": "b"}]], pa.list_(paths.type)),
        "absent": pa.array([[{"bytes": b"a", "path": "a"}, None]], pa.list_(paths.type)),
        "unsigned": pa.array([2**64 - 1], pa.uint64()),
        "good": pa.array([1]),
    }
    pq.write_table(pa.table(odd), HERE / "refused-values.parquet")


main()
