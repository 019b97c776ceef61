"""Writes the TFRecord fixtures of the tests with the package tfrecord, and what tfrecord itself reads from them.

  pip install tfrecord==1.14.6 protobuf==7.36.2 crc32c==2.8
  make_tfrecord.py
"""

import gzip
import json
import struct
from pathlib import Path

import tfrecord

HERE = Path(__file__).parent / "tfrecord"
FILES = ["train.tfrecord-00000-of-00002", "train.tfrecord-00001-of-00002"]


def example(file, number):
    example = {
        "image/encoded": (bytes([number, file]) * (20 * number + 1), "byte"),
        "image/class/label": (10 * file + number, "int"),
        "id": (f"id-{file}-{number} ä".encode(), "byte"),
        "bbox": ([0.25 * number, 1e-30, -3.5, 65504.0], "float"),
        "score": (number / 7, "float"),
        "tokens": ([-1, 0, 127, 128, 2**62, -(2**63)][: number + 2], "int"),
        "wide": (list(range(-40, 40)), "int"),
    }
    if number % 2:
        example["rare"] = (-number, "int")
    return example


def elements(values):
    if isinstance(values, bytes):
        return ["bytes", list(values)]
    return [values.dtype.name, values.tolist()]


def main():
    HERE.mkdir(exist_ok=True)
    for file, name in enumerate(FILES):
        writer = tfrecord.TFRecordWriter(str(HERE / name))
        for number in range(5 - 2 * file):
            writer.write(example(file, number))
        writer.close()
    # A record of another type, an empty record, and one of raw bytes, framed by the same functions.
    with open(HERE / "raw.tfrecord", "wb") as raw:
        for record in [b"no example", b"", bytes(range(256))]:
            length = struct.pack("<Q", len(record))
            raw.write(length + tfrecord.TFRecordWriter.masked_crc(length))
            raw.write(record + tfrecord.TFRecordWriter.masked_crc(record))
    writer = tfrecord.TFRecordWriter(str(HERE / "sequence.tfrecord"))
    writer.write({"length": (2, "int")}, {"frames": ([[1, 2], [3]], "int")})
    writer.close()
    (HERE / "gzip.tfrecord.gz").write_bytes(gzip.compress((HERE / FILES[0]).read_bytes(), mtime=0))

    expected = {}
    for name in FILES + ["gzip.tfrecord.gz"]:
        compression = "gzip" if name.endswith(".gz") else None
        loader = tfrecord.tfrecord_loader(str(HERE / name), None, compression_type=compression)
        expected[name] = [
            {feature: elements(values) for feature, values in sorted(sample.items())} for sample in loader
        ]
    iterator = tfrecord.reader.tfrecord_iterator(str(HERE / "raw.tfrecord"))
    expected["raw.tfrecord"] = [{"bytes": elements(bytes(record))} for record in iterator]
    (HERE / "expected.json").write_text(json.dumps(expected, separators=(",", ":")) + "\n")


main()
