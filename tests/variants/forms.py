"""Writers of small data sets in the forms that Penstock reads, byte by byte, so that a test knows the place of each byte."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import crc32c
import numpy as np

# Encodings of MDS with a fixed number of bytes, as formats of `struct`.
FIXED = {
    "int": "<q", "int8": "<b", "int16": "<h", "int32": "<i", "int64": "<q", "uint8": "<B", "uint16": "<H", "uint32": "<I",
    "uint64": "<Q", "float16": "<e", "float32": "<f", "float64": "<d",
}


def tar_bytes(samples: Sequence[tuple[str, Mapping[str, bytes]]], form: int = tarfile.USTAR_FORMAT) -> bytes:
    """A tar shard with a file `KEY.NAME` for each field of each sample."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as shard:
        for key, fields in samples:
            for name, data in fields.items():
                member = tarfile.TarInfo(f"{key}.{name}")
                member.size = len(data)
                shard.addfile(member, io.BytesIO(data))
    return out.getvalue()


def varint(number: int) -> bytes:
    """A number in the variable length of protocol buffers; negative ones in two's complement of 64 bits."""
    number &= (1 << 64) - 1
    out = bytearray()
    while True:
        low, number = number & 0x7F, number >> 7
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


def message(number: int, data: bytes) -> bytes:
    """A field of bytes in a protocol buffer."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def feature(kind: str, values: Sequence[Any], packed: bool = True) -> bytes:
    """A `tf.train.Feature` of the kind `bytes`, `float` or `int`."""
    if kind == "bytes":
        return message(1, b"".join(message(1, value) for value in values))
    if kind == "float":
        if packed:
            data = b"".join(struct.pack("<f", value) for value in values)
            return message(2, message(1, data) if values else b"")
        return message(2, b"".join(varint(1 << 3 | 5) + struct.pack("<f", value) for value in values))
    if packed:
        data = b"".join(varint(value) for value in values)
        return message(3, message(1, data) if values else b"")
    return message(3, b"".join(varint(1 << 3) + varint(value) for value in values))


def example(features: Mapping[str, tuple[str, Sequence[Any]]], packed: bool = True) -> bytes:
    """A `tf.train.Example` of features by name, each with its kind and its values."""
    entries = b""
    for name, (kind, values) in features.items():
        entries += message(1, message(1, name.encode()) + message(2, feature(kind, values, packed)))
    return message(1, entries)


def masked_crc(data: bytes) -> int:
    """The checksum of TFRecord files."""
    crc = crc32c.crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def tfrecord_bytes(records: Sequence[bytes]) -> bytes:
    """A TFRecord file."""
    out = bytearray()
    for record in records:
        length = struct.pack("<Q", len(record))
        out += length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record))
    return bytes(out)


def mds_value(encoding: str, value: Any) -> bytes:
    """A value in an encoding of MDS."""
    if encoding in FIXED:
        return struct.pack(FIXED[encoding], value)
    if encoding == "str":
        return value.encode()
    if encoding == "bytes":
        return value
    if encoding == "json":
        return json.dumps(value).encode()
    if encoding in ("str_int", "str_float"):
        return str(value).encode()
    if encoding.startswith("ndarray"):
        raise ValueError("arrays are not written here")
    raise ValueError(encoding)


def mds_shard(name: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], bytes]:
    """The entry of a shard in `index.json`, and the bytes of the shard."""
    names = sorted(columns)
    sizes = [struct.calcsize(FIXED[columns[column]]) if columns[column] in FIXED else None for column in names]
    config = {
        "column_encodings": [columns[column] for column in names], "column_names": names, "column_sizes": sizes,
        "compression": None, "format": "mds", "hashes": [], "size_limit": 67108864, "version": 2,
    }
    text = json.dumps({key: config[key] for key in sorted(config) if key != "version"}, sort_keys=True).encode()
    samples = []
    for row in rows:
        data = [mds_value(columns[column], row[column]) for column in names]
        head = [len(value) for value, size in zip(data, sizes) if size is None]
        samples.append(struct.pack(f"<{len(head)}I", *head) + b"".join(data))
    offsets = np.array([0] + [len(sample) for sample in samples]).cumsum().astype(np.uint32) + 4 + 4 * (len(samples) + 1) + len(text)
    shard = struct.pack("<I", len(samples)) + offsets.astype("<u4").tobytes() + text + b"".join(samples)
    entry = {**config, "raw_data": {"basename": name, "bytes": len(shard), "hashes": {}}, "samples": len(rows), "zip_data": None}
    return entry, shard


def write_mds(folder: Path, shards: Sequence[tuple[Mapping[str, str], Sequence[Mapping[str, Any]]]]) -> list[Path]:
    """Writes shards, each with its columns and rows, and their `index.json`."""
    entries, paths = [], []
    for number, (columns, rows) in enumerate(shards):
        name = f"shard.{number:05}.mds"
        entry, data = mds_shard(name, columns, rows)
        (folder / name).write_bytes(data)
        entries.append(entry)
        paths.append(folder / name)
    (folder / "index.json").write_text(json.dumps({"shards": entries, "version": 2}))
    return paths


def csv_cell(text: str, quoted: bool = False) -> str:
    """A value of a table in the dialect of Python's `csv`."""
    if quoted or any(character in text for character in ',"\n\r'):
        return '"' + text.replace('"', '""') + '"'
    return text
