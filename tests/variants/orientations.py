"""Orientation: EXIF and XMP in all places of JPEG, PNG, WebP and GIF, some of which Pillow does not see."""

from __future__ import annotations

import io
import random
import re
import struct
import zlib
from typing import Any

from PIL import Image

from jpegs import segment
from pictures import Picture, noise, reference
from png_webp_gif import chunk, chunks_of, extended, riff


def orientation(rng: random.Random) -> Picture:
    image = Image.fromarray(noise(rng, rng.randint(2, 30), rng.randint(2, 30)))
    end = rng.choice(["jpg", "jpg", "jpg", "png", "png", "webp", "webp", "gif"])
    data, recipe = {"jpg": turned_jpeg, "png": turned_png, "webp": turned_webp, "gif": turned_gif}[end](rng, image)
    picture = Picture(f"orientation: {end}", data, end, f"{image.size[0]}x{image.size[1]}, {recipe}", reference(data))
    if picture.right is None:
        # Pillow fails in the metadata, or in the file.
        picture.right, picture.may_fail = reference(data, upright=False), True
        picture.what += ", metadata at which Pillow fails"
    return picture


def tiff(rng: random.Random, orientation: int | None) -> tuple[bytes, str]:
    """EXIF metadata with an orientation, or without one."""
    order = rng.choice("<>")
    start = rng.choice([8, 8, 8, 10, 26])
    kind = rng.choice([3, 3, 3, 3, 3, 3, 4, 1, 2, 5, 8, 9, 11, 13, 16, 7])
    count = 1 if rng.random() < 0.9 else 2
    entries: list[tuple[int, int, int, bytes]] = []
    if rng.random() < 0.5:
        entries.append((0x10F, 2, 12, b"Some maker\0\0"))
    if rng.random() < 0.3:
        entries.append((0x11A, 5, 1, struct.pack(f"{order}II", 72, 1)))
        entries.append((0x128, 3, 1, struct.pack(f"{order}H", 2)))
    said = f"TIFF {order}, directory at {start}"
    if orientation is not None:
        form = {1: "B", 2: "c", 3: "H", 4: "I", 5: "II", 7: "B", 8: "h", 9: "i", 11: "f", 13: "I", 16: "Q"}[kind]
        one = struct.pack(order + form, *([str(orientation).encode()] if kind == 2 else [orientation, 1] if kind == 5 else [orientation]))
        entries.append((0x112, kind, count, one * count))
        said += f", type {kind}, count {count}"
        if rng.random() < 0.06:
            entries.append((0x112, 3, 1, struct.pack(f"{order}H", rng.randint(1, 8))))
            said += ", twice"
    if rng.random() < 0.9:
        entries.sort(key=lambda entry: entry[0])
    heads, tail = b"", b""
    after = start + 2 + 12 * len(entries) + 4
    for tag, type_, number, value in entries:
        if len(value) > 4:
            heads += struct.pack(f"{order}HHII", tag, type_, number, after + len(tail))
            tail += value
        else:
            heads += struct.pack(f"{order}HHI", tag, type_, number) + value.ljust(4, b"\0")
    second = 0
    if rng.random() < 0.2:
        second = after + len(tail)
        tail += struct.pack(f"{order}HHHIHHI", 1, 0x112, 3, 1, rng.randint(1, 8), 0, 0)
    magic = struct.pack(f"{order}H", 42)
    if rng.random() < 0.04:
        magic, said = magic[::-1], said + ", magic in the other order"
    data = (b"II" if order == "<" else b"MM") + magic + struct.pack(f"{order}I", start) + bytes(start - 8) + struct.pack(f"{order}H", len(entries)) + heads + struct.pack(f"{order}I", second) + tail
    if rng.random() < 0.04:
        data, said = data[: rng.randint(4, len(data) - 1)], said + ", cut"
    return data, said


def xmp(rng: random.Random, orientation: int | None) -> str:
    """XMP with an orientation in one of many forms, some of which Pillow does not see."""
    value = rng.choice([str(orientation)] * 6 + [f"{orientation}0", f" {orientation}", ""]) if orientation is not None else None
    if value is None:
        body = '<rdf:Description xmp:Rating="6"/>'
    else:
        body = rng.choice([
            f'<rdf:Description tiff:Orientation="{value}"/>', f'<rdf:Description tiff:Orientation="{value}"/>',
            f"<rdf:Description><tiff:Orientation>{value}</tiff:Orientation></rdf:Description>",
            f"<rdf:Description tiff:Orientation='{value}'/>", f'<rdf:Description exif:Orientation="{value}"/>',
            f'<rdf:Description tiff:Orientation = "{value}"/>', f"<rdf:Description><tiff:Orientation> {value}</tiff:Orientation></rdf:Description>",
            f'<rdf:Description tiff:Orientation=""/><rdf:Description tiff:Orientation="{value}"/>',
            f'<rdf:Description tiff:Orientation="{value}"/><rdf:Description tiff:Orientation="1"/>',
        ])
    return f'{rng.choice(["", "<?xpacket begin=?>"])}<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF>{body}</rdf:RDF></x:xmpmeta>'


def draw_orientation(rng: random.Random) -> int | None:
    return rng.choice([1, 2, 3, 4, 5, 6, 7, 8, 2, 3, 4, 5, 6, 7, 8, 0, 9, None])


def turned_jpeg(rng: random.Random, image: Image.Image) -> tuple[bytes, str]:
    out = io.BytesIO()
    image = image.convert(rng.choice(["RGB", "RGB", "RGB", "L", "CMYK"]))
    settings: dict[str, Any] = {"dpi": (72, 72)} if rng.random() < 0.3 else {}
    image.save(out, "JPEG", quality=rng.choice([60, 95]), subsampling=rng.choice([0, 1, 2]), progressive=rng.random() < 0.3, **settings)
    data = out.getvalue()
    said, segments = [], []
    for _ in range(rng.choice([1, 1, 1, 2])):
        orientation = draw_orientation(rng)
        exif, what = tiff(rng, orientation)
        text = xmp(rng, orientation).encode()
        place = rng.choice(["exif", "exif", "exif", "double", "triple", "split", "xmp", "xmp", "xmp", "other name", "app2", "extended", "comment", "bare"])
        if place in ("exif", "double", "triple"):
            segments.append(segment(0xE1, b"Exif\0\0" * {"exif": 1, "double": 2, "triple": 3}[place] + exif))
        elif place == "split":
            cut = rng.randint(1, len(exif) - 1)
            segments += [segment(0xE1, b"Exif\0\0" + exif[:cut]), segment(0xE1, b"Exif\0\0" + exif[cut:])]
            what += f", cut at {cut}"
        elif place == "xmp":
            segments.append(segment(0xE1, b"http://ns.adobe.com/xap/1.0/\0" + text))
            what = text.decode()
        elif place == "other name":
            segments.append(segment(0xE1, rng.choice([b"Exif\0\xff", b"exif\0\0", b"EXIF\0\0"]) + exif))
        elif place == "app2":
            segments.append(segment(0xE2, b"Exif\0\0" + exif))
        elif place == "extended":
            segments.append(segment(0xE1, b"http://ns.adobe.com/xmp/extension/\0" + bytes(40) + text))
        elif place == "comment":
            segments.append(segment(0xFE, text))
        else:
            segments.append(segment(0xE1, exif))
        said.append(f"{place} {orientation}: {what}")
    where = rng.choice(["start", "start", "start", "after JFIF", "before the scan", "end", "filled"])
    added = b"".join(segments)
    if where == "start":
        data = data[:2] + added + data[2:]
    elif where == "filled":
        data = data[:2] + b"\xff" * rng.randint(1, 3) + added + data[2:]
    elif where == "after JFIF":
        at = 4 + int.from_bytes(data[4:6], "big")
        data = data[:at] + added + data[at:]
    elif where == "before the scan":
        at = 2
        while data[at + 1] != 0xDA:
            at += 2 + int.from_bytes(data[at + 2:at + 4], "big")
        data = data[:at] + added + data[at:]
    else:
        data += added
    return data, f"{'; '.join(said)}; at: {where}"


def turned_png(rng: random.Random, image: Image.Image) -> tuple[bytes, str]:
    out = io.BytesIO()
    image.save(out, "PNG")
    data = out.getvalue()
    said, chunks = [], []
    for _ in range(rng.choice([1, 1, 1, 2])):
        orientation = draw_orientation(rng)
        exif, what = tiff(rng, orientation)
        text = xmp(rng, orientation).encode()
        profile = b"\nexif\n" + f"{len(exif) + 6:8}".encode() + b"\n" + re.sub(b"(.{72})", rb"\1\n", (b"Exif\0\0" + exif).hex().encode()) + b"\n"
        place = rng.choice(["eXIf", "eXIf", "eXIf", "prefixed", "profile", "packed profile", "APP1", "xmp", "packed xmp", "xmp as text", "xmp as packed text", "text exif"])
        if place == "eXIf":
            chunks.append(chunk(b"eXIf", exif))
        elif place == "prefixed":
            chunks.append(chunk(b"eXIf", b"Exif\0\0" + exif))
        elif place == "profile":
            chunks.append(chunk(b"tEXt", b"Raw profile type exif\0" + profile))
        elif place == "packed profile":
            chunks.append(chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(profile)))
        elif place == "APP1":
            chunks.append(chunk(b"zTXt", b"Raw profile type APP1\0\0" + zlib.compress(profile)))
        elif place in ("xmp", "packed xmp"):
            is_packed = place == "packed xmp"
            chunks.append(chunk(b"iTXt", b"XML:com.adobe.xmp\0" + bytes([is_packed]) + b"\0\0\0" + (zlib.compress(text) if is_packed else text)))
            what = text.decode()
        elif place == "xmp as text":
            chunks.append(chunk(b"tEXt", b"XML:com.adobe.xmp\0" + text))
            what = text.decode()
        elif place == "xmp as packed text":
            chunks.append(chunk(b"zTXt", b"XML:com.adobe.xmp\0\0" + zlib.compress(text)))
            what = text.decode()
        else:
            chunks.append(chunk(b"tEXt", b"exif\0" + exif))
        said.append(f"{place} {orientation}: {what}")
    where = rng.choice(["before", "before", "after"])
    at = 33 if where == "before" else len(data) - 12
    return data[:at] + b"".join(chunks) + data[at:], f"{'; '.join(said)}; {where} the pixels"


def turned_webp(rng: random.Random, image: Image.Image) -> tuple[bytes, str]:
    out = io.BytesIO()
    image.save(out, "WEBP", lossless=True)
    chunks, flags, said = chunks_of(out.getvalue()), 0, []
    for _ in range(rng.choice([1, 1, 1, 2])):
        orientation = draw_orientation(rng)
        exif, what = tiff(rng, orientation)
        place = rng.choice(["EXIF", "EXIF", "EXIF", "prefixed", "XMP", "XMP"])
        flagged = rng.random() < 0.85
        if place == "XMP":
            what = xmp(rng, orientation)
            added, flag = (b"XMP ", what.encode()), 4
        else:
            added, flag = (b"EXIF", (b"Exif\0\0" if place == "prefixed" else b"") + exif), 8
        flags |= flag if flagged else 0
        chunks = [added, *chunks] if rng.random() < 0.1 else [*chunks, added]
        said.append(f"{place} {orientation}{'' if flagged else ' without its flag'}: {what}")
    return riff(extended(chunks, *image.size, flags)), "; ".join(said) + f"; chunks {[name.decode() for name, _ in chunks]}"


def turned_gif(rng: random.Random, image: Image.Image) -> tuple[bytes, str]:
    out = io.BytesIO()
    image.quantize(16).save(out, "GIF")
    data = out.getvalue()
    orientation = draw_orientation(rng)
    exif, what = tiff(rng, orientation)
    text = xmp(rng, orientation).encode()
    place = rng.choice(["XMP", "EXIF", "comment"])
    if place == "XMP":
        extension = b"!\xff\x0bXMP DataXMP" + text.replace(b"\xff", b"") + b"\1" + bytes(range(255, -1, -1)) + b"\0"
    else:
        content = exif if place == "EXIF" else text
        blocks = b"".join(bytes([len(content[at:at + 255])]) + content[at:at + 255] for at in range(0, len(content), 255))
        extension = (b"!\xff\x0bEXIF    1.0" if place == "EXIF" else b"!\xfe") + blocks + b"\0"
    at = data.index(b",", 13 + (3 << (data[10] & 7) + 1 if data[10] & 128 else 0))
    return data[:at] + extension + data[at:], f"{place} {orientation}: {what}"
