"""PNG, WebP and GIF: all colours and filters, the forms of animations, parts of a screen, and interlaced rows."""

from __future__ import annotations

import io
import random
import re
import struct
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from pictures import Picture, cut, noise, photo, reference


# PNG


def png(rng: random.Random) -> Picture:
    width, height = rng.randint(1, 20), rng.randint(1, 12)
    color, bits = rng.choice([(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (3, 1), (3, 2), (3, 4), (3, 8), (4, 8), (4, 16), (6, 8), (6, 16)])
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    interlaced = rng.random() < 0.4
    before = b""
    most = 1 << min(bits, 8)
    if color == 3:
        most = rng.randint(1, most)
        before += chunk(b"PLTE", noise(rng, most, 1).tobytes())
    if color in (0, 2, 3) and rng.random() < 0.4:
        content = noise(rng, rng.randint(1, most), 1, 1).tobytes() if color == 3 else struct.pack(f">{channels}H", *(rng.randrange(1 << bits) for _ in range(channels)))
        before += chunk(b"tRNS", content)
    values = noise(rng, width, height, channels * (2 if bits == 16 else 1), most)
    gamma = struct.pack(">I", rng.choice([45455, 100000, 22727]))
    ignored = [chunk(b"gAMA", gamma), chunk(b"sRGB", b"\0"), chunk(b"pHYs", struct.pack(">IIB", 1, 2, 0)), chunk(b"tIME", bytes(7)), chunk(b"teSt", b"private")]
    before = b"".join(rng.sample(ignored, rng.choice([0, 0, 1, 2]))) + before
    if rng.random() < 0.08:
        before = chunk(b"acTL", struct.pack(">II", 1, 0)) + (chunk(b"fcTL", struct.pack(">IIIIIHHBB", 0, width, height, 0, 0, 1, 1, 0, 0)) if rng.random() < 0.5 else b"") + before
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)] if interlaced else [(0, 0, 1, 1)]
    raw = b"".join(filtered(rng, values[y::down, x::right], bits, channels) for x, y, right, down in passes)
    stream = zlib.compress(raw, rng.choice([0, 1, 9]))
    cuts = sorted(rng.randint(0, len(stream)) for _ in range(rng.choice([0, 0, 1, 3])))
    parts = [stream[first:last] for first, last in zip([0, *cuts], [*cuts, len(stream)])]
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, interlaced)) + before
    data += b"".join(chunk(b"IDAT", part) for part in parts) + chunk(b"IEND", b"")
    recipe = f"{width}x{height}, color {color}, {bits} bits, {'interlaced' if interlaced else 'in order'}"
    recipe += f", chunks {re.findall(b'PLTE|tRNS|gAMA|sRGB|acTL|fcTL', before)}, IDAT {[len(part) for part in parts]}"
    if rng.random() < 0.03:
        return cut("png", data, data.index(b"IDAT") + 4 + rng.randint(0, len(stream)), recipe)
    return Picture(f"png: color {color}, {bits} bits{', interlaced' if interlaced else ''}", data, "png", recipe, reference(data))


def filtered(rng: random.Random, values: np.ndarray, bits: int, channels: int) -> bytes:
    """Rows of a PNG, each with a random filter."""
    if 0 in values.shape:
        return b""
    out = b""
    step = max(1, channels * bits // 8)
    above = None
    for row in values:
        flat = row.reshape(-1)
        line = flat.astype(int) if bits >= 8 else np.packbits(np.unpackbits(flat[:, None], axis=1)[:, 8 - bits:].reshape(-1)).astype(int)
        above = np.zeros_like(line) if above is None else above
        left = np.concatenate([np.zeros(step, int), line])[: len(line)]
        corner = np.concatenate([np.zeros(step, int), above])[: len(line)]
        guess = left + above - corner
        far = [abs(guess - left), abs(guess - above), abs(guess - corner)]
        paeth = np.where((far[0] <= far[1]) & (far[0] <= far[2]), left, np.where(far[1] <= far[2], above, corner))
        number = rng.randrange(5)
        out += bytes([number]) + ((line - [0, left, above, (left + above) // 2, paeth][number]) % 256).astype(np.uint8).tobytes()
        above = line
    return out


def chunk(name: bytes, content: bytes) -> bytes:
    """A chunk of a PNG."""
    return len(content).to_bytes(4, "big") + name + content + zlib.crc32(name + content).to_bytes(4, "big")


# WebP


def webp(rng: random.Random) -> Picture:
    width, height = rng.randint(1, 50), rng.randint(1, 40)
    form = rng.choice(["lossy", "lossy", "lossless", "lossless", "lossy with alpha", "lossless with alpha", "animated", "placed"])
    mode = "RGBA" if "alpha" in form or rng.random() < 0.2 and form == "animated" else "RGB"
    image = photo(rng, width, height, mode)
    out = io.BytesIO()
    lossless = "lossless" in form or form in ("animated", "placed") and rng.random() < 0.5
    settings: dict[str, Any] = {"lossless": lossless, "quality": rng.choice([5, 50, 80, 100]), "method": rng.choice([0, 2, 4, 6])}
    if mode == "RGBA":
        settings |= {"exact": rng.random() < 0.5, "alpha_quality": rng.choice([20, 100])}
    if form == "animated":
        settings |= {"save_all": True, "append_images": [photo(rng, width, height, mode) for _ in range(rng.randint(1, 2))], "duration": 40}
    image.save(out, "WEBP", **settings)
    data = out.getvalue()
    if form == "placed":
        # The first frame of an animation, on a larger canvas.
        left, top = 2 * rng.randint(0, 4), 2 * rng.randint(0, 4)
        size = (width + left + rng.randint(0, 5), height + top + rng.randint(0, 5))
        frame = b"".join(number.to_bytes(3, "little") for number in (left // 2, top // 2, width - 1, height - 1, 40)) + bytes([rng.randrange(4)])
        frame += riff([part for part in chunks_of(data) if part[0] in (b"ALPH", b"VP8 ", b"VP8L")])[12:]
        data = riff(extended([(b"ANIM", bytes([rng.randrange(256), rng.randrange(256), rng.randrange(256), rng.choice([0, 255]), 0, 0])), (b"ANMF", frame)], *size, 2))
    what = f"webp: {form}{'' if form in ('lossy', 'lossless') or 'alpha' in form else ', lossless' if lossless else ', lossy'}"
    recipe = f"{width}x{height}, {mode}, {form}, { {name: value for name, value in settings.items() if name != 'append_images'} }"
    if "," not in what and rng.random() < 0.04:
        return cut("webp", data, rng.randint(20, len(data) - 1), recipe)
    return Picture(what, data, "webp", recipe, reference(data))


def riff(chunks: Sequence[tuple[bytes, bytes]]) -> bytes:
    """A WebP file of chunks."""
    body = b"WEBP" + b"".join(name + len(content).to_bytes(4, "little") + content + bytes(len(content) % 2) for name, content in chunks)
    return b"RIFF" + len(body).to_bytes(4, "little") + body


def chunks_of(data: bytes) -> list[tuple[bytes, bytes]]:
    """Chunks of a WebP file."""
    found, at = [], 12
    while at + 8 <= len(data):
        size = int.from_bytes(data[at + 4:at + 8], "little")
        found.append((data[at:at + 4], data[at + 8:at + 8 + size]))
        at += 8 + size + size % 2
    return found


def extended(chunks: list[tuple[bytes, bytes]], width: int, height: int, flags: int) -> list[tuple[bytes, bytes]]:
    """Chunks of a WebP file that begin with `VP8X`, with more flags."""
    if chunks[0][0] == b"VP8X":
        return [(b"VP8X", bytes([chunks[0][1][0] | flags]) + chunks[0][1][1:]), *chunks[1:]]
    return [(b"VP8X", bytes([flags, 0, 0, 0]) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")), *chunks]


# GIF


def gif(rng: random.Random) -> Picture:
    width, height = rng.randint(1, 30), rng.randint(1, 20)
    left, top = rng.choice([(0, 0), (0, 0), (rng.randint(0, 6), rng.randint(0, 6))])
    screen = (width + left, height + top)
    act = rng.random()
    is_larger, is_smaller = act < 0.15, 0.15 <= act < 0.2
    if is_larger:
        screen = (screen[0] + rng.randint(0, 5), screen[1] + rng.randint(0, 5))
    elif is_smaller:
        screen = (max(1, screen[0] - rng.randint(1, 5)), max(1, screen[1] - rng.randint(0, 5)))
    bits = rng.randint(1, 8)
    tables = rng.choice(["global", "global", "global", "local", "both", "none"])
    interlaced = rng.random() < 0.4
    clear = rng.random() < 0.4
    what = "no palette" if tables == "none" else "smaller screen" if is_smaller else "part of the screen" if (width, height) != screen else "whole screen"
    what = f"gif: {what}{', transparency' if clear else ''}"
    table = noise(rng, 1 << bits, 1).tobytes()
    other = noise(rng, 1 << bits, 1).tobytes()
    data = rng.choice([b"GIF89a", b"GIF89a", b"GIF87a"]) + struct.pack("<HHBBB", *screen, (128 if tables in ("global", "both") else 0) | bits - 1 | 0x70, rng.randrange(1 << bits), 0)
    data += table if tables in ("global", "both") else b""
    if rng.random() < 0.2:
        data += b"!\xfe\x05hello\0"
    frames = rng.choice([1, 1, 1, 2])
    for number in range(frames):
        if clear or rng.random() < 0.2:
            data += b"!\xf9\x04" + struct.pack("<BHB", rng.randrange(4) << 2 | clear, 4, rng.randrange(1 << bits)) + b"\0"
        # Long runs make codes that span several rows.
        indexes = noise(rng, width, height, 1, rng.choice([1, 2, 1 << bits, 1 << bits]))[:, :, 0]
        rows = [*range(0, height, 8), *range(4, height, 8), *range(2, height, 4), *range(1, height, 2)] if interlaced else range(height)
        data += b"," + struct.pack("<HHHHB", left, top, width, height, (128 if tables in ("local", "both") else 0) | 64 * interlaced | bits - 1)
        data += (other if tables in ("local", "both") else b"") + lzw(np.concatenate([indexes[row] for row in rows]).tolist(), max(2, bits))
    data += b";"
    recipe = f"{width}x{height} at {left},{top} on {screen}, {bits} bits, {tables} palette, interlaced {interlaced}, transparency {clear}, {frames} frames"
    if frames == 1 and rng.random() < 0.04:
        return cut("gif", data, rng.randint(20, len(data) - 1), recipe)
    return Picture(what, data, "gif", recipe, reference(data), may_fail=tables == "none")


def lzw(values: Sequence[int], bits: int) -> bytes:
    """Codes of an image in blocks, with the whole table and its clearing."""
    clear = 1 << bits
    codes: dict[tuple[int, ...], int] = {}
    buffer = size = 0
    out = bytearray()

    def put(code: int, width: int) -> None:
        nonlocal buffer, size
        buffer |= code << size
        size += width
        while size >= 8:
            out.append(buffer & 255)
            buffer, size = buffer >> 8, size - 8

    width = bits + 1
    put(clear, width)
    following = clear + 2
    run: tuple[int, ...] = ()
    for value in values:
        longer = (*run, value)
        if len(longer) == 1 or longer in codes:
            run = longer
            continue
        put(codes[run] if len(run) > 1 else run[0], width)
        if following < 4096:
            codes[longer] = following
            if following == 1 << width and width < 12:
                width += 1
            following += 1
        else:
            put(clear, width)
            codes, width, following = {}, bits + 1, clear + 2
        run = (value,)
    put(codes[run] if len(run) > 1 else run[0], width)
    if following == 1 << width and width < 12:
        width += 1
    put(clear + 1, width)
    put(0, 7)
    blocks = b"".join(bytes([len(out[at:at + 255])]) + out[at:at + 255] for at in range(0, len(out), 255))
    return bytes([bits]) + blocks + b"\0"
