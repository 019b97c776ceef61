"""Files that take far more memory than they have bytes, and damaged ones."""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import struct
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

MIB = 1 << 20
# Number of lines of the texts whose parts go down different paths, and of the records of two kinds.
LINES = 400_000
# Rows of the Parquet files whose rows all have one value of 1 MB.
ROWS = (1_500, 5_000, 20_000)
# Number of damaged files of each format.
DAMAGED = {"parquet": 250, "tfrecord": 40, "tar": 40, "mds": 40}


def make(folder: Path, samples: Path) -> None:
    """Makes all files in an empty folder. `samples` has sound files of each format."""
    folder.mkdir()
    (folder / "parts.ndjson").write_text('{"text":"a\\n\\nb"}\n' * LINES)
    (folder / "kinds.ndjson").write_text('{"kind":"a"}\n{"kind":"b"}\n' * (LINES // 2))
    for rows in ROWS:
        (folder / f"repeated-{rows}.parquet").write_bytes(repeated_text(rows, 1_000_000))
    line = gzip.compress(json.dumps({"text": "x" * MIB}).encode() + b"\n")
    (folder / "repeated.ndjson.gz").write_bytes(line * 2_000)
    (folder / "repeated.tar").write_bytes(repeated_blobs(1_500))
    (folder / "repeated.tfrecord.gz").write_bytes(gzip.compress(repeated_numbers(100_000)) * 1_000)
    (folder / "bombs").mkdir()
    for number, side in enumerate((9_000, 20_000, 60_000)):
        (folder / "bombs" / f"{number}.png").write_bytes(picture(side))
    damage(folder, samples)


# --- Parquet



def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _struct(*fields: tuple[int, str, object]) -> bytes:
    """A struct in Thrift's compact protocol; each field has its number, its kind and its value."""
    kinds = {"i32": 5, "i64": 6, "text": 8, "list": 9, "struct": 12}
    written, last = b"", 0
    for number, kind, value in fields:
        written += bytes([number - last << 4 | kinds[kind]]) + _value(kind, value)
        last = number
    return written + b"\0"


def _value(kind: str, value: object) -> bytes:
    if isinstance(value, int):
        return _varint(value << 1)
    if isinstance(value, list):
        # Structs, which are all that lists have here.
        return b"\xfc" + _varint(len(value)) + b"".join(value)
    assert isinstance(value, bytes)
    return value if kind == "struct" else _varint(len(value)) + value


def repeated_text(rows: int, length: int) -> bytes:
    """A file whose rows are all one text of this length, which the file has once, and compressed."""

    def page(kind: int, size: int, place: int, numbers: Sequence[int], content: bytes) -> bytes:
        part = _struct(*((number, "i32", value) for number, value in enumerate(numbers, 1)))
        return _struct((1, "i32", kind), (2, "i32", size), (3, "i32", len(content)), (place, "struct", part)) + content

    text = struct.pack("<I", length) + b"x" * length
    # Indexes of one bit: a run of zeros.
    indexes = b"\x01" + _varint(2 * rows) + b"\0"
    pages = page(2, len(text), 7, (1, 0), gzip.compress(text)) + page(0, len(indexes), 5, (rows, 8, 3, 3), gzip.compress(indexes))
    size = len(text) + 100
    numbers = _struct(
        (1, "i32", 6), (2, "list", []), (3, "list", []), (4, "i32", 2), (5, "i64", rows), (6, "i64", size), (7, "i64", len(pages)), (9, "i64", 4)
    )  # fmt: skip
    group = _struct((1, "list", [_struct((2, "i64", 4), (3, "struct", numbers))]), (2, "i64", size), (3, "i64", rows))
    root = _struct((3, "i32", 0), (4, "text", b"root"), (5, "i32", 1))
    column = _struct((1, "i32", 6), (3, "i32", 0), (4, "text", b"a"), (6, "i32", 0))
    footer = _struct((1, "i32", 1), (2, "list", [root, column]), (3, "i64", rows), (4, "list", [group]))
    return b"PAR1" + pages + footer + struct.pack("<I", len(footer)) + b"PAR1"


# --- Other formats


def repeated_blobs(count: int) -> bytes:
    """A tar shard of files that are 1 MiB each once they are decompressed."""
    written, content = io.BytesIO(), gzip.compress(bytes(MIB))
    with tarfile.open(fileobj=written, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(count):
            member = tarfile.TarInfo(f"{number:06}.blob.gz")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return written.getvalue()


def _crc32c(content: bytes) -> int:
    """Checksum of a TFRecord file, masked as there."""
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ 0x82F63B78 * (byte & 1)
        table.append(byte)
    total = 0xFFFFFFFF
    for byte in content:
        total = table[(total ^ byte) & 0xFF] ^ total >> 8
    total ^= 0xFFFFFFFF
    return ((total >> 15 | total << 17) + 0xA282EAD8) & 0xFFFFFFFF


def repeated_numbers(count: int) -> bytes:
    """A record of a TFRecord file: numbers that take one byte in the file, and eight in a sample."""

    def part(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2]) + _varint(len(content)) + content

    feature = part(1, b"x") + part(2, part(3, part(1, b"\x01" * count)))
    example = part(1, part(1, feature))
    length = struct.pack("<Q", len(example))
    return length + struct.pack("<I", _crc32c(length)) + example + struct.pack("<I", _crc32c(example))


def picture(side: int) -> bytes:
    """A black picture in PNG of this width and height."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(1)
    row = bytes(1 + (side + 7) // 8)
    rows = b"".join(packer.compress(row * 100) for _ in range(side // 100)) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


# --- Damaged files


def _damaged(content: bytes, chance: random.Random) -> bytes:
    """Content with some other bytes, and sometimes without its end."""
    changed = bytearray(content)
    for _ in range(chance.randrange(1, 6)):
        changed[chance.randrange(len(changed))] = chance.choice((0, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(changed[: chance.randrange(len(changed))] if chance.random() < 0.2 else changed)


def damage(folder: Path, samples: Path) -> None:
    """Makes `damaged-FORMAT/NUMBER` from the sound files of each format."""
    chance = random.Random(41)
    sound: dict[str, list[Path]] = {
        "parquet": sorted((samples / "parquet").glob("*.parquet")),
        "tfrecord": sorted((samples / "tfrecord").glob("*.tfrecord*")),
        "tar": sorted(samples.glob("*.tar")),
    }
    for kind, files in sound.items():
        for number in range(DAMAGED[kind]):
            content = files[number % len(files)].read_bytes()
            path = folder / f"damaged-{kind}" / f"{number:03}.{kind}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(_damaged(content, chance))
    sets = sorted(path.parent for path in (samples / "mds").glob("*/index.json"))
    for number in range(DAMAGED["mds"]):
        path = folder / f"damaged-mds/{number:03}"
        shutil.copytree(sets[number % len(sets)], path)
        for file in path.iterdir():
            if file.is_file() and file.stat().st_size and chance.random() < 0.5:
                file.write_bytes(_damaged(file.read_bytes(), chance))


