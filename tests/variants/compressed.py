"""Compressed files as other programs write them: members and frames that are joined, headers with names, and names that do not fit."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import struct
import zlib
from dataclasses import dataclass

import zstandard

# Compressions that are read, and those that are refused by name, with the words of which a refusal has one.
READ = ["gzip", "zstd"]
REFUSED = {"bzip2": ["bzip2", "bz2"], "xz": ["xz"]}

# Usual ends of the names of compressed files, behind that of the file itself.
ENDS = {"plain": "", "gzip": ".gz", "zstd": ".zst", "bzip2": ".bz2", "xz": ".xz"}


@dataclass
class Packed:
    """A file as it is written."""

    # Name of the compression, `plain` without any.
    kind: str
    # Form within the compression, such as `joined`.
    form: str
    data: bytes
    # Set if the data is damaged.
    damage: str = ""


def parts_of(rng: random.Random, data: bytes) -> list[bytes]:
    """Two to five parts of a text of bytes, some of which may be empty."""
    places = sorted(rng.randint(0, len(data)) for _ in range(rng.randint(1, 4)))
    return [data[first:last] for first, last in zip([0, *places], [*places, len(data)])]


def gzip_member(data: bytes, level: int = 6, name: bytes = b"", comment: bytes = b"", extra: bytes = b"", check: bool = False) -> bytes:
    """One member of gzip with the optional parts of its header."""
    flags = (4 if extra else 0) | (8 if name else 0) | (16 if comment else 0) | (2 if check else 0)
    head = b"\x1f\x8b\x08" + bytes([flags]) + struct.pack("<I", 1_700_000_000) + b"\x00\x03"
    if extra:
        head += struct.pack("<H", len(extra)) + extra
    head += (name + b"\0" if name else b"") + (comment + b"\0" if comment else b"")
    if check:
        head += struct.pack("<H", zlib.crc32(head) & 0xFFFF)
    squeezer = zlib.compressobj(level, zlib.DEFLATED, -15)
    return head + squeezer.compress(data) + squeezer.flush() + struct.pack("<II", zlib.crc32(data), len(data) & 0xFFFFFFFF)


def pack_gzip(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    form = rng.choice(["one member", "one member", "joined", "joined", "header", "stored", "blocks"])
    if form == "one member":
        return form, gzip.compress(data, rng.choice([1, 6, 9]), mtime=0)
    if form == "joined":
        # One byte of the first member tells nothing of the whole.
        return form, b"".join(gzip_member(part, rng.choice([1, 9])) for part in parts_of(rng, data))
    if form == "header":
        optional = {"name": b"train.tar", "comment": b"a comment", "extra": b"XX\x02\x00ab", "check": True}
        return form, gzip_member(data, **{name: value for name, value in optional.items() if rng.random() < 0.6})
    if form == "stored":
        return form, gzip_member(data, 0)
    # As `bgzip` writes: many members with their sizes in the header, and an empty one at the end.
    blocks = []
    for place in range(0, len(data), 500):
        member = gzip_member(data[place:place + 500], extra=b"BC\x02\x00\x00\x00")
        blocks.append(member[:16] + struct.pack("<H", len(member) - 1) + member[18:])
    empty = gzip_member(b"", extra=b"BC\x02\x00\x1b\x00")
    return form, b"".join(blocks) + empty


def pack_zstd(rng: random.Random, data: bytes) -> tuple[str, bytes]:
    form = rng.choice(["one frame", "one frame", "frames", "frames", "stream", "skippable frame", "checksum"])
    if form == "one frame":
        return form, zstandard.ZstdCompressor(level=rng.choice([1, 3, 19])).compress(data)
    if form == "frames":
        return form, b"".join(zstandard.ZstdCompressor().compress(part) for part in parts_of(rng, data))
    if form == "stream":
        # Without the size of its content, as `zstd` writes standard input.
        out = io.BytesIO()
        with zstandard.ZstdCompressor(write_content_size=False).stream_writer(out, closefd=False) as stream:
            for part in parts_of(rng, data):
                stream.write(part)
                if rng.random() < 0.5:
                    stream.flush(zstandard.FLUSH_BLOCK)
        return form, out.getvalue()
    if form == "skippable frame":
        # As `pzstd` and the seekable format write.
        note = rng.choice([b"", b"a note"])
        skipped = struct.pack("<II", 0x184D2A50 + rng.randint(0, 15), len(note)) + note
        frame = zstandard.ZstdCompressor().compress(data)
        return form, rng.choice([skipped + frame, frame + skipped])
    return form, zstandard.ZstdCompressor(write_checksum=True).compress(data)


def pack(rng: random.Random, kind: str, data: bytes) -> Packed:
    """A file in a compression, in one of its forms."""
    if kind == "plain":
        return Packed(kind, "", data)
    if kind == "gzip":
        return Packed(kind, *pack_gzip(rng, data))
    if kind == "zstd":
        return Packed(kind, *pack_zstd(rng, data))
    if kind == "bzip2":
        return Packed(kind, "one stream", bz2.compress(data))
    return Packed(kind, "one stream", lzma.compress(data))


def unpack(packed: Packed) -> bytes:
    """The content, by the modules of Python."""
    if packed.kind == "gzip":
        return gzip.decompress(packed.data)
    if packed.kind == "zstd":
        return zstandard.ZstdDecompressor().stream_reader(io.BytesIO(packed.data), read_across_frames=True).read()
    return {"plain": bytes, "bzip2": bz2.decompress, "xz": lzma.decompress}[packed.kind](packed.data)


def spoil(rng: random.Random, packed: Packed) -> None:
    """Cuts a compressed file, or changes a checksum of it."""
    data = bytearray(packed.data)
    if packed.kind == "gzip" and rng.random() < 0.5:
        # The checksum of the last member.
        data[-8] ^= 1
        packed.damage = "a wrong checksum"
    else:
        size = rng.randrange(len(data) // 2, len(data))
        del data[size:]
        packed.damage = f"cut to {size} of {len(packed.data)} bytes"
    packed.data = bytes(data)


def draw_kind(rng: random.Random) -> str:
    """A compression: mostly one that is read."""
    return rng.choices(["plain", "gzip", "zstd", "bzip2", "xz"], [2, 5, 4, 1, 1])[0]


def is_named(kind: str, words: str) -> bool:
    """True if a message names a refused compression."""
    return any(word in words.lower() for word in REFUSED[kind])
