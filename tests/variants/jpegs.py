"""JPEG: files as Pillow writes them, and drawn ones with any sampling, ids of components, restarts and scans."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from pictures import Picture, cut, noise, photo, reference


def jpeg(rng: random.Random) -> Picture:
    if rng.random() < 0.5:
        return drawn_jpeg(rng)
    width, height = rng.randint(1, 60), rng.randint(1, 60)
    mode = rng.choice(["RGB", "RGB", "RGB", "L", "CMYK"])
    settings: dict[str, Any] = {"quality": rng.choice([1, 30, 75, 100]), "progressive": rng.random() < 0.4, "optimize": rng.random() < 0.5}
    if mode == "RGB":
        settings |= {"subsampling": rng.choice([0, 1, 2])} if rng.random() < 0.8 else {"keep_rgb": True}
    if rng.random() < 0.3:
        settings |= rng.choice([{"restart_marker_rows": 1}, {"restart_marker_blocks": rng.randint(1, 5)}])
    image = photo(rng, width, height, mode) if rng.random() < 0.6 or mode == "CMYK" else Image.fromarray(noise(rng, width, height)).convert(mode)
    out = io.BytesIO()
    image.save(out, "JPEG", **settings)
    what = f"jpeg: {mode}{', kept' if 'keep_rgb' in settings else ''}{', progressive' if settings['progressive'] else ''}"
    data = out.getvalue()
    if rng.random() < 0.03:
        return cut("jpg", data, rng.randint(4, len(data) - 1), f"{width}x{height}, {mode}, {settings}")
    return Picture(what, data, "jpg", f"{width}x{height}, {mode}, {settings}", reference(data))


@dataclass
class Bits:
    """Writer of the bits of a scan."""

    value: int = 0
    count: int = 0

    def put(self, value: int, count: int) -> None:
        self.value, self.count = self.value << count | value & (1 << count) - 1, self.count + count

    def end(self) -> bytes:
        """The bytes, padded with ones, with a zero after each 0xFF."""
        fill = -self.count % 8
        self.put((1 << fill) - 1, fill)
        data = self.value.to_bytes(self.count // 8, "big")
        self.value = self.count = 0
        return data.replace(b"\xff", b"\xff\0")


def segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content


# Codes of 4 bits for the sizes of differences, and of 8 bits for all pairs of zeros and sizes.
STEPS = list(range(12))
PAIRS = [0, 0xF0] + [zeros << 4 | size for zeros in range(16) for size in range(1, 11)]
TABLES = segment(0xC4, bytes([0x00]) + bytes([0, 0, 0, 12] + [0] * 12) + bytes(STEPS)) + segment(0xC4, bytes([0x10]) + bytes([0] * 7 + [162] + [0] * 8) + bytes(PAIRS))
CODES = {pair: code for code, pair in enumerate(PAIRS)}


def put_number(bits: Bits, value: int, size: int) -> None:
    bits.put(value if value >= 0 else value + (1 << size) - 1, size)


def put_block(rng: random.Random, bits: Bits, before: int, quantum: int, sparse: bool = False) -> int:
    """Writes a random block; the mean of its pixels, in steps."""
    mean = rng.randint(-700 // quantum, 700 // quantum)
    size = abs(mean - before).bit_length()
    bits.put(size, 4)
    put_number(bits, mean - before, size)
    at = 0
    for place in sorted(rng.sample(range(1, 64), rng.choice([0, 1] if sparse else [0, 1, 3, 6]))):
        zeros = place - at - 1
        while zeros > 15:
            bits.put(CODES[0xF0], 8)
            zeros -= 16
        value = rng.choice([-1, 1]) * rng.randint(1, max(1, 100 // quantum))
        bits.put(CODES[zeros << 4 | abs(value).bit_length()], 8)
        put_number(bits, value, abs(value).bit_length())
        at = place
    if at < 63:
        bits.put(CODES[0], 8)
    return mean


def jpeg_head(width: int, height: int, samplings: Sequence[tuple[int, int]], ids: Sequence[int], quantum: int, restart: int, marks: bytes, frame: int = 0xC0) -> bytes:
    """All of a JPEG before its scan."""
    head = b"\xff\xd8" + marks + segment(0xDB, b"\0" + bytes([quantum]) * 64) + TABLES
    head += segment(frame, struct.pack(">BHHB", 8, height, width, len(ids)) + b"".join(bytes([number, across << 4 | down, 0]) for number, (across, down) in zip(ids, samplings)))
    return head + (segment(0xDD, restart.to_bytes(2, "big")) if restart else b"")


def scan_head(ids: Sequence[int]) -> bytes:
    return segment(0xDA, bytes([len(ids)]) + b"".join(bytes([number, 0]) for number in ids) + bytes([0, 63, 0]))


def drawn_jpeg(rng: random.Random) -> Picture:
    """A baseline JPEG of random blocks, with any sampling, ids of components, restarts and scans."""
    width, height = rng.randint(1, 40), rng.randint(1, 40)
    count = rng.choice([1, 3, 3, 3, 3, 4])
    samplings = rng.choice([
        [(1, 1)] * count, [(2, 1)] + [(1, 1)] * (count - 1), [(2, 2)] + [(1, 1)] * (count - 1), [(1, 2)] + [(1, 1)] * (count - 1),
        [(4, 1)] + [(1, 1)] * (count - 1), [(4, 2)] + [(1, 1)] * (count - 1), [(1, 4)] + [(1, 1)] * (count - 1), [(2, 2)] + [(2, 1)] * (count - 1),
        [(2, 2), (1, 2), (2, 1), (1, 1)][:count], [(1, 1), (2, 2), (1, 1), (1, 1)][:count], [(2, 2)] + [(1, 2)] * (count - 1),
    ])
    if sum(across * down for across, down in samplings) > 10:
        samplings = [(1, 1)] * count
    ids = rng.choice([[1, 2, 3, 4], [1, 2, 3, 4], [0, 1, 2, 3], [82, 71, 66, 65], [10, 20, 30, 40]])[:count]
    marks = rng.choice([b"", segment(0xE0, b"JFIF\0\1\1\0\0\1\0\1\0\0"), segment(0xEE, b"Adobe\0\x64\0\0\0\0" + bytes([rng.choice({1: [0], 3: [0, 1], 4: [0, 2]}[count])]))])
    quantum = rng.choice([1, 2, 5, 16])
    most = [max(axis) for axis in zip(*samplings)]
    together = rng.random() < 0.75
    restart = rng.choice([0, 0, rng.randint(1, 7)])
    data = jpeg_head(width, height, samplings, ids, quantum, restart, marks)
    bits = Bits()
    for members in [list(range(count))] if together else [[number] for number in range(count)]:
        data += scan_head([ids[number] for number in members])
        if len(members) == 1:
            across, down = samplings[members[0]]
            size = [-(-width * across // most[0]), -(-height * down // most[1])]
            units, shape = -(-size[0] // 8) * -(-size[1] // 8), [1]
        else:
            units = -(-width // (8 * most[0])) * -(-height // (8 * most[1]))
            shape = [samplings[number][0] * samplings[number][1] for number in members]
        before = [0] * len(members)
        for unit in range(units):
            if restart and unit and unit % restart == 0:
                data += bits.end() + bytes([0xFF, 0xD0 + (unit // restart - 1) % 8])
                before = [0] * len(members)
            for number, blocks in enumerate(shape):
                for _ in range(blocks):
                    before[number] = put_block(rng, bits, before[number], quantum)
        data += bits.end()
    data += b"\xff\xd9"
    recipe = f"{width}x{height}, samplings {samplings}, ids {ids}, {'one scan' if together else 'a scan each'}, restart {restart}, marks {marks[2:9]!r}, quantum {quantum}"
    right = reference(data)
    usual = samplings[1:] == [(1, 1)] * (count - 1) and samplings[0] in ((1, 1), (2, 1), (2, 2), (1, 2))
    return Picture(f"jpeg: {count} drawn, {'usual' if usual else 'other'} sampling", data, "jpg", recipe, right, may_fail=right is None)


def large_jpeg(seed: int, width: int, height: int, sampling: tuple[int, int], gray: bool) -> bytes:
    """A JPEG of many megapixels, made of few different rows of blocks."""
    rng = random.Random(seed)
    samplings = [(1, 1)] if gray else [sampling, (1, 1), (1, 1)]
    across, down = (8, 8) if gray else (8 * sampling[0], 8 * sampling[1])
    units = -(-width // across)
    rows = []
    for _ in range(5):
        bits, before = Bits(), [0] * len(samplings)
        for _ in range(units):
            for number, (wide, high) in enumerate(samplings):
                for _ in range(wide * high):
                    before[number] = put_block(rng, bits, before[number], 8, sparse=True)
        rows.append(bits.end())
    data = bytearray(jpeg_head(width, height, samplings, [1, 2, 3][: len(samplings)], 8, units, b"") + scan_head([1, 2, 3][: len(samplings)]))
    for number in range(-(-height // down)):
        data += (bytes([0xFF, 0xD0 + (number - 1) % 8]) if number else b"") + rng.choice(rows)
    return bytes(data + b"\xff\xd9")
