"""Writes the files beside this one. Needs pyarrow 26."""

import struct
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

HERE = Path(__file__).parent
ROWS = list(range(10))


def table(name: str, **columns: Any) -> None:
    parquet.write_table(pyarrow.table(columns), HERE / f"{name}.parquet", store_schema=False)


def checksum(data: bytes) -> bytes:
    """Masked CRC-32C of TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def message(field: int, content: bytes) -> bytes:
    """A field of Protocol Buffers with fewer than 128 bytes."""
    return bytes([field << 3 | 2, len(content)]) + content


def example(labels: list[int], xmin: list[float]) -> bytes:
    """A `tf.train.Example` with the features `label` (ints) and `xmin` (floats)."""
    lists = {b"label": message(3, message(1, bytes(labels))), b"xmin": message(2, message(1, struct.pack(f"<{len(xmin)}f", *xmin)))}
    return message(1, b"".join(message(1, message(1, name) + message(2, values)) for name, values in lists.items()))


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + checksum(length) + data + checksum(data)


table("texts", text=["a", "b"])
table("whole", id=ROWS, score=ROWS)
table("broken", id=ROWS, score=[float(row) for row in ROWS])
table("more", id=ROWS, score=ROWS, lang=["en"] * 10)
table("nulls", x=ROWS, label=pyarrow.array([row % 5 if row % 5 in (0, 2) else None for row in ROWS], pyarrow.int64()))
objects = b"".join(record(example(list(range(count)), [0.5] * count)) for count in (3, 1, 0, 2))
(HERE / "objects.tfrecord").write_bytes(objects)
