"""Pictures: BMP, PNG, GIF, WebP and JPEG in their less usual forms, places of the orientation, and the limits of `std/image`.

Reference: `ImageOps.exif_transpose(Image.open(file))` of Pillow 13, converted to red, green and blue pixel by pixel: transparency is
ignored, and of 16 bits the upper 8 are kept. Masks of BMP that Pillow refuses are compared with scaled values. A file that Pillow
cannot read must fail with a reason.
"""

from __future__ import annotations

import io
import random
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from bitmaps import bmp
from jpegs import jpeg, jpeg_head, large_jpeg, scan_head
from kit import Variant, main
from orientations import orientation
from pictures import Picture, photo, pixels, reference
from png_webp_gif import chunk, extended, gif, lzw, png, riff, webp
from stages import counted, deliver


def stated_size(rng: random.Random) -> Picture:
    """A small file that states a very large size."""
    end = rng.choice(["png", "png", "png", "bmp", "gif", "webp", "jpg"])
    width, height = rng.choice([(30000, 30000), (65535, 65535), (60000, 20000), (20000, 60000)])
    if end == "png":
        width, height = rng.choice([(width, height), (1 << 20, 1 << 20), (2**31 - 1, 2**31 - 1), (2**31 - 1, 1)])
        bits, color = rng.choice([(1, 0), (8, 0), (16, 6), (8, 2), (8, 3)])
        data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, rng.randrange(2))) + (chunk(b"PLTE", bytes(6)) if color == 3 else b"")
        data += chunk(b"IDAT", zlib.compress(bytes(rng.choice([100, 10_000_000])))) + chunk(b"IEND", b"")
    elif end == "bmp":
        bits = rng.choice([1, 8, 24, 32])
        palette = bytes(4 << bits) if bits <= 8 else b""
        data = b"BM" + struct.pack("<IHHI", 0, 0, 0, 54 + len(palette)) + struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 0, 0, 0, 0, 0, 0) + palette + bytes(1000)
    elif end == "gif":
        data = b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6) + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + lzw([0, 1, 0, 1] * 100, 2) + b";"
    elif end == "webp":
        width, height = 16384, rng.choice([16384, 9000])
        out = io.BytesIO()
        Image.new("RGB", (4, 4), "red").save(out, "WEBP", lossless=True)
        frame = b"".join(number.to_bytes(3, "little") for number in (0, 0, 3, 3, 40)) + b"\0" + out.getvalue()[12:]
        data = riff(extended([(b"ANIM", bytes(6)), (b"ANMF", frame)], width, height, 2))
    else:
        data = jpeg_head(65500, rng.choice([65500, 30000]), [(1, 1)], [1], 8, 0, b"", rng.choice([0xC0, 0xC2])) + scan_head([1]) + bytes(100) + b"\xff\xd9"
    return Picture(f"limits: {end} that states a large size", data, end, f"{end} of {width}x{height}, {len(data)} bytes", says="too large")


KINDS: dict[str, Callable[[random.Random], Picture]] = {"bmp": bmp, "orientation": orientation, "png": png, "webp": webp, "gif": gif, "jpeg": jpeg, "sizes": stated_size}


def make(variant: Variant) -> None:
    rng = variant.rng
    kind = rng.choices([*KINDS, "large", "limit"], [6, 8, 3, 3, 3, 5, 2, 0.4, 1])[0]
    variant.tags.append(kind)
    if kind == "large":
        large(variant)
    elif kind == "limit":
        limit(variant)
    else:
        pictures = [KINDS[kind](rng) for _ in range(8)]
        params: dict[str, Any] = {"layout": "hwc"}
        if kind == "orientation" and rng.random() < 0.1:
            params["apply_exif_orientation"] = False
            for picture in pictures:
                picture.right = reference(picture.data, upright=False)
        elif kind not in ("gif", "sizes") and rng.random() < 0.25:
            params["ops"] = [draw_op(rng, pictures)]
        check(variant, pictures, params)


def draw_op(rng: random.Random, pictures: Sequence[Picture]) -> dict[str, Any]:
    """An op, which is applied to what is right, too."""
    height, width = rng.randint(1, 12), rng.randint(1, 12)
    op = rng.choice(["CenterCrop", "CenterCrop", "RandomHorizontalFlip", "RandomVerticalFlip", "Resize"])
    for picture in pictures:
        if picture.right is None:
            continue
        if op == "CenterCrop":
            picture.right = cropped(picture.right, height, width)
        elif op == "Resize":
            picture.right, picture.tolerance = np.asarray(Image.fromarray(picture.right).resize((width, height), Image.Resampling.BILINEAR)), 1
        else:
            picture.right = picture.right[:, ::-1] if op == "RandomHorizontalFlip" else picture.right[::-1]
    return {op: {"size": [height, width]} if op in ("CenterCrop", "Resize") else {"p": 1.0}}


def cropped(image: np.ndarray, height: int, width: int) -> np.ndarray:
    """The middle of an image, as torchvision crops it: a smaller one is padded with 0."""
    have = image.shape[:2]
    lack = [max(0, height - have[0]), max(0, width - have[1])]
    image = np.pad(image, ((lack[0] // 2, (lack[0] + 1) // 2), (lack[1] // 2, (lack[1] + 1) // 2), (0, 0)))
    top, left = round((image.shape[0] - height) / 2), round((image.shape[1] - width) / 2)
    return image[top:top + height, left:left + width]


def check(variant: Variant, pictures: Sequence[Picture], params: dict[str, Any], **settings: Any) -> None:
    """Passes pictures through the stage, and compares each."""
    named = {f"{number:02}.{picture.end}": picture for number, picture in enumerate(pictures)}
    stage = {"module": "std/image", "params": params, **settings}
    outcome, arrays, messages = deliver(variant, {name: picture.data for name, picture in named.items()}, stage, "image")
    if outcome.code == 2 or not arrays and not messages:
        variant.differ("no sample at all", "an outcome of each file", outcome.errors)
        return
    drafted, may = counted(outcome, "drafted"), sum(picture.drafted is not None for picture in pictures)
    if drafted > may:
        variant.differ("limits: the counter `drafted`", f"at most {may} files", drafted)
    for name, picture in named.items():
        known = len(variant.differences)
        if drafted:
            picture.mean = picture.drafted if picture.drafted is not None else picture.mean
        judge(variant, name, picture, arrays.get(name), messages.get(name))
        if len(variant.differences) > known:
            variant.note(f"{name}: {picture.what}: {picture.recipe}")


def judge(variant: Variant, name: str, picture: Picture, found: np.ndarray | None, message: str | None) -> None:
    """Compares one result with what is right."""
    said = f"{name}, {picture.recipe}"
    if found is None and message is None:
        variant.differ(f"{picture.what}: lost without a message", said, "neither a sample nor a failure")
    elif found is None:
        if message.startswith("bug: ") and "memory_mib" not in message:
            variant.differ(f"{picture.what}: the stage itself fails", said, message)
        elif picture.right is not None and not picture.may_fail:
            variant.differ(f"{picture.what}: fails", f"{picture.right.shape} of {said}", message)
        elif picture.right is None and not re.search(picture.says, message, re.I):
            variant.differ(f"{picture.what}: message", f"/{picture.says}/ for {said}", message)
    elif picture.right is None:
        if not picture.may_fail:
            variant.differ(f"{picture.what}: passes, although Pillow fails", f"a failure of {said}", found.shape)
    elif found.shape != picture.right.shape:
        variant.differ(f"{picture.what}: shape", f"{picture.right.shape} of {said}", found.shape)
    else:
        distance = np.abs(found.astype(int) - picture.right.astype(int))
        if picture.mean is not None:
            if distance.mean() > picture.mean:
                variant.differ(f"{picture.what}: mean of differences", f"at most {picture.mean} of {said}", distance.mean())
        elif distance.max(initial=0) > picture.tolerance:
            size = "by 1" if distance.max() == 1 else "by 2 to 8" if distance.max() <= 8 else "by more"
            count = f"{(distance > 0).any(axis=2).sum()} of {distance[:, :, 0].size}"
            variant.differ(f"{picture.what}: pixels {size}", f"those of Pillow for {said}", f"{count} pixels differ, the most by {distance.max()}")


def limit(variant: Variant) -> None:
    """Images at the limit of pixels: whole ones, parts of JPEGs, JPEGs at a fraction of their size, and the limit of `max_pixels` itself."""
    act = variant.rng.choice(["whole", "whole", "crop", "crop", "draft", "resize", "resize", "param"])
    variant.tags.append(f"limit: {act}")
    {"whole": limit_whole, "crop": limit_crop, "draft": limit_draft, "resize": limit_resize, "param": limit_param}[act](variant)


def limited(image: Image.Image, end: str, most: int, pixels_read: int, **settings: Any) -> Picture:
    """A file that passes if no more than `most` of its pixels are read."""
    out = io.BytesIO()
    image.save(out, {"jpg": "JPEG"}.get(end, end.upper()), **settings)
    recipe = f"{image.size[0]}x{image.size[1]}, {settings}, {pixels_read} pixels of at most {most}"
    return Picture(f"limits: {end} at the limit", out.getvalue(), end, recipe, reference(out.getvalue()) if pixels_read <= most else None, says="max_pixels")


def limit_whole(variant: Variant) -> None:
    rng = variant.rng
    most = rng.choice([100, 1000, 4096])
    pictures = []
    for extra in (0, 0, 1, 1, -1):
        width = rng.choice([10, 20, 50])
        height = -(-most // width) + extra
        image = Image.new("RGB", (width, height), (rng.randrange(256), 0, 99))
        pictures.append(limited(image, rng.choice(["png", "jpg", "webp", "gif", "bmp"]), most, width * height))
    check(variant, pictures, {"layout": "hwc", "max_pixels": most})


def limit_crop(variant: Variant) -> None:
    """Crops, which limit the pixels that are read of JPEGs alone."""
    rng = variant.rng
    side, extra = rng.choice([10, 24, 33]), rng.choice([-1, 0, 0, 100])
    most = side * side + extra
    pictures = []
    for _ in range(4):
        image = photo(rng, rng.randint(side, 90), rng.randint(side, 90))
        end = rng.choice(["jpg", "jpg", "jpg", "png"])
        settings = {"progressive": rng.random() < 0.3, "subsampling": rng.choice([0, 2])} if end == "jpg" else {}
        picture = limited(image, end, most, side * side if end == "jpg" else image.size[0] * image.size[1], **settings)
        picture.what += ", cropped"
        if picture.right is not None:
            picture.right = cropped(picture.right, side, side)
        pictures.append(picture)
    check(variant, pictures, {"layout": "hwc", "max_pixels": most, "ops": [{"CenterCrop": {"size": side}}]})


def limit_draft(variant: Variant) -> None:
    """JPEGs that `draft` decodes at 1/2, 1/4 or 1/8 of their size."""
    rng = variant.rng
    scale, side = rng.choice([2, 4, 8]), rng.choice([8, 16, 40])
    most = side * side + rng.choice([-1, 0, 7])
    picture = limited(photo(rng, scale * side, scale * side), "jpg", most, side * side, subsampling=rng.choice([0, 2]))
    picture.what += f", 1/{scale}"
    if picture.right is not None:
        image = Image.open(io.BytesIO(picture.data))
        image.draft("RGB", (side, side))
        picture.right, picture.mean = pixels(image.resize((side, side), Image.Resampling.BILINEAR)), 8.0
    check(variant, [picture], {"layout": "hwc", "max_pixels": most, "draft": True, "ops": [{"Resize": {"size": [side, side]}}]})


def limit_resize(variant: Variant) -> None:
    """JPEGs that are resized with less and more than two thirds of the limit."""
    rng = variant.rng
    width, height = rng.randint(20, 90), rng.randint(20, 90)
    most = int(width * height * rng.choice([1, 1.2, 1.49, 1.51, 2])) + 1
    picture = limited(photo(rng, width, height), "jpg", most, width * height, subsampling=rng.choice([0, 1, 2]))
    size = (rng.randint(4, 20), rng.randint(4, 20))
    picture.what += ", resized"
    picture.right, picture.tolerance = np.asarray(Image.fromarray(picture.right).resize(size, Image.Resampling.BILINEAR)), 1
    if 3 * width * height > 2 * most:
        picture.drafted = 8.0
    check(variant, [picture], {"layout": "hwc", "max_pixels": most, "ops": [{"Resize": {"size": [size[1], size[0]]}}]})


def limit_param(variant: Variant) -> None:
    """Values of `max_pixels` at its own limits."""
    most, fits = variant.rng.choice([(400_000_000, True), (400_000_001, False), (1, True), (0, False), (-1, False), (1.5, False), (2**63, False)])
    picture = limited(Image.new("RGB", (1, 1), "red"), "png", 1, 1)
    outcome, arrays, _ = deliver(variant, {"0.png": picture.data}, {"module": "std/image", "params": {"max_pixels": most}, "memory_mib": 2048}, "image")
    if fits and not arrays:
        variant.differ("limits: a value of `max_pixels` is refused", f"a sample with {most}", outcome.errors)
    elif not fits and outcome.code != 2:
        variant.differ("limits: a value of `max_pixels` passes", f"a refused document with {most}", outcome.code)


def large(variant: Variant) -> None:
    """A JPEG of up to 108 megapixels that is cropped or made smaller, whole or with `draft`."""
    rng = variant.rng
    width, height = rng.choice([(9504, 6336), (12000, 9000), (6336, 9504), (11648, 8736)])
    gray = rng.random() < 0.3
    sampling = rng.choice([(1, 1), (2, 1), (2, 2), (2, 2)])
    data = large_jpeg(rng.randrange(1000), width, height, sampling, gray)
    params: dict[str, Any] = {"layout": "hwc"}
    settings: dict[str, Any] = {}
    act = rng.choice(["crop", "resize", "draft", "draft"])
    if act == "resize" or rng.random() < 0.3:
        settings["memory_mib"] = rng.choice([512, 1024, 2048])
        if settings["memory_mib"] == 512:
            params["max_pixels"] = 120_000_000
    image = Image.open(io.BytesIO(data))
    picture = Picture(f"limits: large JPEG, {act}", data, "jpg", f"{width}x{height}, sampling {sampling}, {'gray, ' if gray else ''}{len(data)} bytes")
    if act == "crop":
        side = rng.choice([224, 1000])
        params["ops"] = [{"CenterCrop": {"size": side}}]
        top, left = round((height - side) / 2), round((width - side) / 2)
        picture.right = pixels(image.crop((left, top, left + side, top + side)))
    else:
        side = rng.choice([64, 224, 256])
        params["ops"] = [{"Resize": {"size": [side, side]}}]
        if act == "draft":
            params["draft"] = True
            image.draft("RGB", (side, side))
            picture.mean = 8.0
        else:
            picture.tolerance = 1
            # Bytes of a pixel of all colours, beside the planes of their samplings.
            each = 3 + (1 if gray else 1 + 2 / (sampling[0] * sampling[1]))
            if len(data) + each * width * height > 0.6 * settings["memory_mib"] * 2**20:
                picture.drafted = 3.0
        picture.right = pixels(image.convert("RGB").resize((side, side), Image.Resampling.BILINEAR))
    check(variant, [picture], params, deadline_ms=60000, **settings)


if __name__ == "__main__":
    main("images", make)
