"""BMP: headers of all lengths, 1 to 32 bits, short palettes, run lengths and masks."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import numpy as np

from pictures import Picture, cut, noise, reference

MASKS_16 = [(0x7C00, 0x3E0, 0x1F, 0), (0xF800, 0x7E0, 0x1F, 0), (0x7C00, 0x3E0, 0x1F, 0x8000), (0xF800, 0x7E0, 0x1F, 0)]
ODD_16 = [(0xF00, 0xF0, 0xF, 0), (0xF00, 0xF0, 0xF, 0xF000), (0x1F, 0x7E0, 0xF800, 0), (0xE0, 0x1C, 0x3, 0), (0x3E, 0x7C0, 0xF800, 1)]
MASKS_32 = [
    (0xFF0000, 0xFF00, 0xFF, 0), (0xFF000000, 0xFF0000, 0xFF00, 0), (0xFF000000, 0xFF00, 0xFF, 0), (0xFF000000, 0xFF0000, 0xFF00, 0xFF),
    (0xFF, 0xFF00, 0xFF0000, 0xFF000000), (0xFF0000, 0xFF00, 0xFF, 0xFF000000), (0xFF000000, 0xFF00, 0xFF, 0xFF0000), (0, 0, 0, 0),
]
ODD_32 = [(0x3FF00000, 0xFFC00, 0x3FF, 0), (0x3FF, 0xFFC00, 0x3FF00000, 0xC0000000), (0xFF, 0xFF00, 0xFF0000, 0), (0xF0, 0xF00, 0xF000, 0)]


def bmp(rng: random.Random) -> Picture:
    width, height = rng.randint(1, 17), rng.randint(1, 9)
    bits = rng.choice([1, 4, 8, 16, 16, 16, 24, 32, 32])
    header = rng.choice([12, 40, 40, 52, 56, 64, 108, 124])
    top_down = header != 12 and rng.random() < 0.3
    compression, masks = 0, None
    odd = False
    if bits in (16, 32) and header not in (12, 64) and rng.random() < 0.7:
        compression = 3
        odd = rng.random() < 0.25
        masks = rng.choice({16: (MASKS_16, ODD_16), 32: (MASKS_32, ODD_32)}[bits][odd])
    elif bits in (4, 8) and header != 12 and not top_down and rng.random() < 0.4:
        compression = {8: 1, 4: 2}[bits]
    colors = 0
    palette = b""
    what = f"bmp: {bits} bits"
    if bits <= 8:
        entries = 1 << bits if header == 12 or rng.random() < 0.5 else rng.randint(1, 1 << bits)
        colors = entries if entries < 1 << bits else rng.choice([0, entries])
        shades = noise(rng, entries, 1)[0]
        grey = rng.random() < 0.2
        if grey:
            # An identity of grey, which readers may take for none.
            shades = np.repeat(np.arange(entries)[:, None] * (255 if bits == 1 else 1), 3, axis=1).astype(np.uint8)
        palette = b"".join(bytes(shade) + (b"" if header == 12 else bytes([rng.choice([0, 255])])) for shade in shades)
        beyond = entries < 1 << bits and rng.random() < 0.1
        indexes = noise(rng, width, height, 1, 1 << bits if beyond else entries)[:, :, 0]
        if beyond:
            what += ", indexes beyond the palette"
        elif entries < 1 << bits:
            what += ", short palette"
        ends_early = compression and rng.random() < 0.1
        body = run_lengths(rng, indexes, bits, rng.randint(1, height) if ends_early else height) if compression else b"".join(packed(row, bits) for row in indexes[:: 1 if top_down else -1])
        if compression:
            what += ", run lengths" + (" that end early" if ends_early else "")
    else:
        rows = noise(rng, width * bits // 8, height, 1)[:, :, 0]
        body = b"".join(row.tobytes() + bytes(rng.randrange(256) for _ in range(-len(row) % 4)) for row in rows[:: 1 if top_down else -1])
    if masks:
        what += f", masks {'odd' if odd else 'usual'}"
    info = struct.pack("<IHHHH", 12, width, height, 1, bits) if header == 12 else bmp_header(rng, header, width, -height if top_down else height, bits, compression, len(body), colors, masks)
    gap = bytes(2 * rng.randint(1, 40)) if rng.random() < 0.2 else b""
    before = info + (struct.pack("<III", *masks[:3]) if masks and header == 40 else b"") + palette + gap
    if compression in (1, 2) and len(before) % 2:
        before += b"\0"
    offset = 14 + len(before)
    data = b"BM" + struct.pack("<IHHI", rng.choice([0, offset + len(body)]), 0, 0, offset) + before + body
    recipe = f"{bits} bits, header {header}, {width}x{height}, compression {compression}, {'top-down, ' if top_down else ''}masks {masks and [hex(mask) for mask in masks]}"
    recipe += f", colors {colors}, palette {len(palette)}, gap {len(gap)}"
    if rng.random() < 0.03:
        return cut("bmp", data, rng.randint(14, len(data) - 1), recipe)
    picture = Picture(what, data, "bmp", recipe, reference(data))
    if bits == 4 and grey and not beyond:
        # Pillow takes these for 8 bits a pixel.
        picture.what += ", palette of greys"
        picture.right = shades[:, ::-1][indexes]
    elif bits <= 8 and ends_early and not beyond:
        # Pillow refuses run lengths that end early; the rest has the first colour.
        picture.right = shades[:, ::-1][indexes]
    elif bits <= 8 and compression and picture.right is None and not beyond:
        picture.right, picture.may_fail = shades[:, ::-1][indexes], True
    if bits <= 8 and beyond and picture.right is None:
        picture.may_fail = True
    if masks and (odd or picture.right is None):
        # Pillow refuses these masks: they may fail, or have the values scaled.
        picture.what = picture.what.replace("usual", "odd")
        words = np.ascontiguousarray(rows).view("<u2" if bits == 16 else "<u4").astype(np.uint64)
        planes = [(words & mask) // (mask & -mask) * 255 / (mask // (mask & -mask)) for mask in masks[:3] if mask]
        picture.right, picture.tolerance, picture.may_fail = np.stack(planes, axis=2).round().astype(np.uint8), 1, True
    return picture


def bmp_header(rng: random.Random, size: int, width: int, height: int, bits: int, compression: int, length: int, colors: int, masks: Sequence[int] | None) -> bytes:
    """A header of 40 bytes or more."""
    head = struct.pack("<IiiHHIIiiII", size, width, height, 1, bits, compression, rng.choice([length, 0]) if not compression else length, 2835, 2835, colors, 0)
    if size > 40 and size != 64:
        head += struct.pack("<IIII", *(masks or (0, 0, 0, 0)))
    if size >= 108:
        head += rng.choice([b"BGRs", b" niW", bytes(4)])
    return (head + bytes(size))[:size]


def packed(indexes: np.ndarray, bits: int) -> bytes:
    """A row of indexes with the first in the upper bits, padded to 4 bytes."""
    row = np.unpackbits(indexes.astype(np.uint8)[:, None], axis=1)[:, 8 - bits:].reshape(-1)
    data = np.packbits(row).tobytes()
    return data + bytes(-len(data) % 4)


def run_lengths(rng: random.Random, indexes: np.ndarray, bits: int, height: int) -> bytes:
    """Some rows from the bottom up as runs, literals and jumps; `indexes` is changed to 0 where jumps pass pixels, and above the rows."""
    out = bytearray()
    width = indexes.shape[1]
    indexes[: len(indexes) - height] = 0

    def pair(values: Sequence[int]) -> bytes:
        values = [int(value) for value in values]
        if bits == 8:
            return bytes(values)
        return bytes(first << 4 | second for first, second in zip(values[::2], [*values[1::2], 0]))

    for number, row in enumerate(indexes[::-1][:height]):
        if rng.random() < 0.5:
            row[:] = np.repeat(row[:: 4], 4)[:width]
        at = 0
        while at < width:
            left = width - at
            act = rng.random()
            if act < 0.1 and left > 1:
                jump = rng.randint(1, left - 1)
                row[at:at + jump] = 0
                out += bytes([0, 2, jump, 0])
                at += jump
            elif act < 0.5 and left >= 3:
                count = rng.randint(3, left)
                literal = pair(row[at:at + count])
                out += bytes([0, count]) + literal + bytes(len(literal) % 2)
                at += count
            else:
                count = 1
                first = row[at]
                second = row[at + 1] if bits == 4 and left > 1 else first
                while count < left and row[at + count] == (second if count % 2 else first):
                    count += 1
                out += bytes([count, int(first) << 4 | int(second) if bits == 4 else int(first)])
                at += count
        out += b"\0\0" if number < height - 1 else rng.choice([b"\0\1", b"\0\0\0\1"])
    return bytes(out)
