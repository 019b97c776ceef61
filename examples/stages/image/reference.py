"""Compares this stage with torchvision 0.29 and Pillow.

  reference.py fixtures             writes tests/data: small images, and what Pillow and torchvision make of them
  reference.py compare IMAGE...     prints a table: each op, on all these images
  reference.py draws                prints a table: distributions of random numbers

Needs torchvision 0.29 and scipy. `compare` and `draws` call the example `apply`, whose path is in APPLY
(cargo build -p image --example apply --profile guest).
"""

import io
import json
import math
import os
import struct
import subprocess
import sys
import tempfile
import warnings
import zlib
from pathlib import Path

import numpy as np
import torch
import torchvision.transforms.v2 as T
import torchvision.transforms.v2.functional as F
from PIL import Image, ImageOps
from torchvision.transforms.v2.functional import _geometry as G

DATA = Path(__file__).parent / "tests" / "data"
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def interpolation(word):
    return T.InterpolationMode(word)


def fixed(low):
    return [low, low]


def cases():
    """Ops without a choice: name, ops of the document, the same in torchvision, whether it works on images of Pillow."""
    for word in ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]:
        yield f"Resize {word}", [{"Resize": {"size": 31, "interpolation": word}}], T.Resize(31, interpolation(word)), True
    for word in ["bilinear", "bicubic"]:
        op = T.Resize(31, interpolation(word), antialias=False)
        yield f"Resize {word} not antialiased", [{"Resize": {"size": 31, "interpolation": word, "antialias": False}}], op, False
    yield "Resize up", [{"Resize": {"size": [90, 101]}}], T.Resize([90, 101]), True
    yield "Resize max_size", [{"Resize": {"size": 31, "max_size": 35}}], T.Resize(31, max_size=35), True
    yield "Resize longer side", [{"Resize": {"max_size": 40}}], T.Resize(None, max_size=40), True
    both = [{"Resize": {"size": 36}}, {"CenterCrop": {"size": 31}}]
    yield "Resize and CenterCrop", both, T.Compose([T.Resize(36), T.CenterCrop(31)]), True
    yield "CenterCrop", [{"CenterCrop": {"size": [33, 20]}}], T.CenterCrop([33, 20]), False
    yield "CenterCrop of a smaller image", [{"CenterCrop": {"size": [70, 20]}}], T.CenterCrop([70, 20]), False
    yield "RandomHorizontalFlip", [{"RandomHorizontalFlip": {"p": 1}}], F.horizontal_flip, False
    yield "RandomVerticalFlip", [{"RandomVerticalFlip": {"p": 1}}], F.vertical_flip, False
    for mode in ["constant", "edge", "reflect", "symmetric"]:
        padding, name = [3, 4, 5, 6], f"Pad {mode}"
        yield name, [{"Pad": {"padding": padding, "fill": 7, "padding_mode": mode}}], T.Pad(padding, 7, mode), False
    yield "Pad colour", [{"Pad": {"padding": 9, "fill": [1, 20, 255]}}], T.Pad(9, [1, 20, 255]), False
    for angle, word, expand in [(17.3, "nearest", False), (-45, "bilinear", True), (90, "nearest", True), (211, "bilinear", False)]:
        params = {"degrees": fixed(angle), "interpolation": word, "expand": expand, "fill": [10, 20, 30]}
        rotate = lambda image, a=angle, w=word, e=expand: F.rotate(image, a, interpolation(w), e, fill=[10, 20, 30])
        yield f"RandomRotation {angle} {word}", [{"RandomRotation": params}], rotate, False
    around = lambda image: F.rotate(image, 30, center=[5, 9], fill=[0.0])
    yield "RandomRotation center", [{"RandomRotation": {"degrees": fixed(30), "center": [5, 9]}}], around, False
    for name, value in [("brightness", 1.7), ("contrast", 0.4), ("saturation", 1.8), ("hue", -0.3), ("hue", 0.05)]:
        adjust = getattr(F, f"adjust_{name}")
        change = lambda image, adjust=adjust, value=value: adjust(image, value)
        yield f"ColorJitter {name} {value}", [{"ColorJitter": {name: fixed(value)}}], change, False
    for channels in (1, 3):
        yield f"Grayscale {channels}", [{"Grayscale": {"num_output_channels": channels}}], T.Grayscale(channels), False
    for kernel, sigma in [(3, 0.5), ([7, 5], 2.0)]:
        op = T.GaussianBlur(kernel, (sigma, sigma))
        yield f"GaussianBlur {kernel}", [{"GaussianBlur": {"kernel_size": kernel, "sigma": fixed(sigma)}}], op, False
    # Pillow resizes the rows of this one first.
    yield "Resize of the rows", [{"Resize": {"size": [8, 55], "interpolation": "lanczos"}}], T.Resize([8, 55], interpolation("lanczos")), True


def steps_of_rand_augment():
    """Steps that only RandAugment makes, with the same in torchvision."""
    for factor in (0.3, 1.8):
        yield {"Sharpness": factor}, lambda image, factor=factor: F.adjust_sharpness(image, factor)
    yield {"Posterize": 3}, lambda image: F.posterize(image, 3)
    yield {"Solarize": 100.0}, lambda image: F.solarize(image, 100.0)
    yield "AutoContrast", F.autocontrast
    yield "Equalize", F.equalize


def reference(op, image, on_pillow):
    if on_pillow:
        return F.pil_to_tensor(op(image))
    return op(F.pil_to_tensor(image))


def picture(width, height, seed):
    """Smooth colours with edges and grain, as in a photo."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin(x / across + seed) * np.cos(y / down) for across, down in [(7, 11), (13, 5), (17, 23)]]
    image = 128 + 110 * np.stack(waves, 2) + random.normal(0, 4, (height, width, 3))
    image[height // 3 : height // 2, width // 4 : width // 2] = [250, 20, 30]
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


def png16(image, kind):
    """A PNG of 16 bits, which Pillow cannot write in colour."""
    values = np.asarray(image).astype(np.uint16) * 257
    values = values[..., :1] if kind == 0 else values
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in values)
    chunk = lambda name, data: struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    header = struct.pack(">IIBBBBB", image.width, image.height, 16, kind, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def saved(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def scans(planes, samplings, adobe=None, **options):
    """A JPEG of any samplings, across and down, whose scans have one component each: they are taken from JPEGs in grey."""
    across, down = np.max(samplings, axis=0)
    height, width = planes[0].shape
    parts = []
    for plane, (own_across, own_down) in zip(planes, samplings):
        size = -(-width * own_across // across), -(-height * own_down // down)
        parts.append(saved(Image.fromarray(plane).resize(size, Image.Resampling.BOX), "JPEG", quality=85, **options))
    frame = parts[0].index(b"\xff\xc2" if options.get("progressive") else b"\xff\xc0")
    head = b"" if adobe is None else b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + bytes([adobe])
    head += parts[0][parts[0].index(b"\xff\xdb") : frame + 2]
    components = b"".join(bytes([number, own_across << 4 | own_down, 0]) for number, (own_across, own_down) in enumerate(samplings, 1))
    head += (8 + 3 * len(planes)).to_bytes(2) + b"\x08" + height.to_bytes(2) + width.to_bytes(2) + bytes([len(planes)]) + components
    start = b"\xff\xda\0\x08\x01"
    bodies = [part[frame + 13 : -2].replace(start + b"\x01", start + bytes([number])) for number, part in enumerate(parts, 1)]
    return b"\xff\xd8" + head + b"".join(bodies) + b"\xff\xd9"


def first_scans(jpeg, count):
    """A progressive JPEG without its later scans."""
    parts = jpeg.split(b"\xff\xda")
    last = parts[count]
    # The data ends at the next marker, which starts the codes of the next scan.
    return b"\xff\xda".join([*parts[:count], last[: last.index(b"\xff\xc4")]]) + b"\xff\xd9"


def jpegs():
    """Small JPEGs of unusual kinds."""
    image = picture(39, 29, 3)
    planes = list(np.asarray(image.convert("YCbCr")).transpose(2, 0, 1))
    # Colours far outside the range of red, green and blue.
    extreme = [planes[0], *(np.where(plane < 128, 0, 255).astype(np.uint8) for plane in planes[1:])]
    black = np.asarray(picture(39, 29, 4).convert("L"))
    for name, samplings in [
        ("411", [(4, 1), (1, 1), (1, 1)]),
        ("410", [(4, 2), (1, 1), (1, 1)]),
        ("441", [(1, 4), (1, 1), (1, 1)]),
        ("mixed", [(2, 2), (1, 2), (2, 1)]),
        ("chroma-larger", [(1, 1), (2, 2), (2, 1)]),
    ]:
        yield f"scans-{name}.jpg", scans(extreme, samplings)
    yield "scans-progressive.jpg", scans(extreme, [(3, 2), (1, 2), (1, 1)], progressive=True)
    yield "ycck.jpg", scans([*planes, black], [(1, 1)] * 4, 2)
    yield "ycck-mixed.jpg", scans([*planes, black], [(2, 2), (1, 1), (2, 1), (1, 2)], 2)
    yield "rgb.jpg", saved(image, "JPEG", quality=85, keep_rgb=True)
    yield "rgb-adobe.jpg", scans(planes, [(1, 1)] * 3, 0)
    for number, name in [(1, "422"), (2, "420")]:
        yield f"narrow-{name}.jpg", saved(picture(4, 29, 5), "JPEG", quality=85, subsampling=number)
    progressive = saved(image, "JPEG", quality=85, progressive=True)
    yield "means.jpg", first_scans(progressive, 1)
    yield "incomplete.jpg", first_scans(progressive, 4)
    # Without the codes, which are those of the standard.
    motion = saved(image, "JPEG", quality=85)
    while (at := motion.find(b"\xff\xc4")) > 0:
        motion = motion[:at] + motion[at + 2 + int.from_bytes(motion[at + 2 : at + 4]) :]
    yield "motion.jpg", motion


def bmp(image, bits, header=40, compression=0, masks=(), colours=b"", down=False, runs=None):
    """A BMP that Pillow cannot write. Pixels of 16 and 32 bits have their colours at the places of the masks."""
    pixels = np.asarray(image).astype(np.uint32)
    if pixels.ndim == 3:
        lowest = [(mask & -mask).bit_length() - 1 for mask in masks]
        scale = [(mask >> low) / 255 for mask, low in zip(masks, lowest)]
        pixels = sum((pixels[..., at] * scale[at]).round().astype(np.uint32) << lowest[at] for at in range(3))
    pixels = pixels if down else pixels[::-1]
    if runs:
        rows = b"".join(runs(row.tolist()) + b"\0\0" for row in pixels) + b"\0\1"
    elif bits < 8:
        rows = b"".join(int("".join(f"{index:0{bits}b}" for index in row).ljust(-(-len(row) * bits // 32) * 32, "0"), 2).to_bytes(-(-len(row) * bits // 32) * 4) for row in pixels)
    else:
        rows = b"".join((data := row.astype(f"<u{bits // 8}").tobytes()) + bytes(-len(data) % 4) for row in pixels)
    height = -image.height if down else image.height
    if header == 12:
        info = struct.pack("<IHHHH", 12, image.width, height, 1, bits)
    else:
        info = struct.pack("<IiiHHIIiiII", header, image.width, height, 1, bits, compression, len(rows), 2835, 2835, 0, 0)
        written = struct.pack(f"<{len(masks)}I", *masks) if compression == 3 else b""
        info += written if header == 40 else written.ljust(header - 40, b"\0")
    start = 14 + len(info) + len(colours)
    return b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start) + info + colours + rows


def run_lengths(row, nibbles=False):
    """A row in pieces: runs of equal pixels, and pixels one by one."""
    made = b""
    for at in range(0, len(row), 7):
        part = row[at : at + 7]
        if len(part) > 2 and at % 2:
            packed = bytes(part) if not nibbles else bytes.fromhex("".join(f"{index:x}" for index in part).ljust(-(-len(part) // 2) * 2, "0"))
            made += bytes([0, len(part)]) + packed + bytes(len(packed) % 2)
        else:
            made += b"".join(bytes([1, index << 4 if nibbles else index]) for index in part)
    return made


def bmps():
    """Small BMPs of unusual kinds."""
    image = picture(37, 23, 6)
    yield "short-555.bmp", bmp(image, 16, masks=[0x7C00, 0x3E0, 0x1F])
    yield "short-565.bmp", bmp(image, 16, 124, 3, [0xF800, 0x7E0, 0x1F], down=True)
    yield "short-565-40.bmp", bmp(image, 16, 40, 3, [0xF800, 0x7E0, 0x1F])
    yield "masks-32.bmp", bmp(image, 32, 56, 3, [0xFF000000, 0xFF0000, 0xFF00, 0xFF])
    for bits, header, down in [(4, 12, False), (8, 108, True)]:
        indexed = image.convert("P", palette=Image.Palette.ADAPTIVE, colors=1 << bits)
        table = np.zeros((1 << bits, 3 if header == 12 else 4), np.uint8)
        stored = np.array(indexed.getpalette()[: 3 << bits], np.uint8).reshape(-1, 3)[:, ::-1]
        table[: len(stored), :3] = stored
        if header == 12:
            yield "old-4.bmp", bmp(indexed, bits, header, colours=table.tobytes())
            table = np.pad(table, [(0, 0), (0, 1)])
        pack = lambda row, bits=bits: run_lengths(row, bits == 4)
        yield f"runs-{bits}.bmp", bmp(indexed, bits, 40, 2 if bits == 4 else 1, colours=table.tobytes(), down=down, runs=pack)


def gif_of_part(screen, transparent):
    """A GIF with a background of its own whose one frame, with 13 x 11 pixels at 4, 3, does not fill the screen, or exceeds it."""
    options = {} if transparent is None else {"transparency": transparent}
    indexed = picture(13, 11, 7).convert("P", palette=Image.Palette.ADAPTIVE, colors=16)
    saved_whole = bytearray(saved(indexed, "GIF", background=9, **options))
    saved_whole[6:10] = struct.pack("<HH", *screen)
    frame = saved_whole.index(b"," + struct.pack("<HHHH", 0, 0, 13, 11))
    saved_whole[frame + 1 : frame + 5] = struct.pack("<HH", 4, 3)
    return bytes(saved_whole)


def gif_beyond_its_palette(step):
    """A GIF with indices up to 3 whose palette has two greys, `step` apart."""
    indexed = Image.new("P", (9, 7))
    indexed.putdata([index % 4 for index in range(63)])
    indexed.putpalette([value for index in range(4) for value in [index * step] * 3])
    whole = bytearray(saved(indexed, "GIF"))
    assert whole[10] & 7 == 1, "a palette of four colours"
    whole[10] &= ~7
    del whole[19:25]
    return bytes(whole)


def files():
    """Small files of all kinds."""
    image = picture(61, 47, 1)
    mask = Image.fromarray((np.indices((47, 61)).sum(0) * 3 % 256).astype(np.uint8))
    exif = Image.Exif()
    for number, sampling in enumerate(["444", "422", "420"]):
        yield f"baseline-{sampling}.jpg", saved(image, "JPEG", quality=85, subsampling=number)
        yield f"progressive-{sampling}.jpg", saved(image, "JPEG", quality=85, subsampling=number, progressive=True)
    for number in range(2, 9):
        exif[0x112] = number
        progressive = number in (5, 6)
        yield f"orientation-{number}.jpg", saved(image, "JPEG", quality=85, exif=exif, progressive=progressive)
    yield "grey.jpg", saved(image.convert("L"), "JPEG", quality=85)
    yield "cmyk.jpg", saved(image.convert("CMYK"), "JPEG", quality=85)
    yield "restart.jpg", saved(image, "JPEG", quality=85, restart_marker_blocks=2)
    yield from jpegs()
    rgba = image.copy()
    rgba.putalpha(mask)
    yield "colour.png", saved(image, "PNG")
    yield "transparent.png", saved(rgba, "PNG")
    yield "grey.png", saved(image.convert("L"), "PNG")
    yield "grey-transparent.png", saved(image.convert("LA"), "PNG")
    yield "bits.png", saved(image.convert("1"), "PNG")
    palette = image.convert("P", palette=Image.Palette.ADAPTIVE, colors=40)
    yield "palette.png", saved(palette, "PNG")
    yield "palette-transparent.png", saved(palette, "PNG", transparency=3)
    yield "colour-16.png", png16(image, 2)
    yield "grey-16.png", png16(image, 0)
    exif[0x112] = 6
    yield "orientation.png", saved(image, "PNG", exif=exif)
    yield "lossy.webp", saved(image, "WEBP", quality=80)
    yield "lossless.webp", saved(image, "WEBP", lossless=True)
    yield "transparent.webp", saved(rgba, "WEBP", quality=80)
    yield "orientation.webp", saved(image, "WEBP", quality=80, exif=exif)
    # A first frame without transparency that asks to be blended with the empty screen.
    animated = bytearray(saved(image, "WEBP", save_all=True, append_images=[picture(61, 47, 3)], lossless=True))
    animated[animated.index(b"ANMF") + 23] &= ~2
    yield "animated.webp", bytes(animated)
    yield "still.gif", saved(image, "GIF")
    # A code of one colour spans many rows, which are interlaced.
    yield "one-colour.gif", saved(Image.new("RGB", (57, 32), (200, 30, 60)), "GIF")
    for name, step in [("greys.gif", 1), ("other-greys.gif", 2)]:
        yield name, gif_beyond_its_palette(step)
    for name, screen, transparent in [("part.gif", (24, 20), None), ("part-transparent.gif", (24, 20), 5), ("larger.gif", (9, 8), None)]:
        yield name, gif_of_part(screen, transparent)
    yield "animated.gif", saved(image, "GIF", save_all=True, append_images=[picture(61, 47, 2)])
    yield "colour.bmp", saved(image, "BMP")
    yield "palette.bmp", saved(palette, "BMP")
    yield "bits.bmp", saved(image.convert("1"), "BMP")
    yield from bmps()


def opened(file):
    """The image as Pillow shows it. Of 16 bits of grey the upper 8 are kept; Pillow cuts all values above 255 to 255."""
    image = Image.open(file)
    image.load()
    if image.mode == "I;16":
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return ImageOps.exif_transpose(image).convert("RGB")


def write_fixtures():
    for folder in ("files", "decoded", "ops"):
        (DATA / folder).mkdir(parents=True, exist_ok=True)
    for name, content in files():
        (DATA / "files" / name).write_bytes(content)
        opened(io.BytesIO(content)).save(DATA / "decoded" / f"{name}.png", optimize=True)
    image, table = opened(DATA / "files" / "colour.png"), []

    def add(entry, result):
        name = f"{len(table):02}.png"
        Image.fromarray(result.numpy().transpose(1, 2, 0).squeeze()).save(DATA / "ops" / name, optimize=True)
        table.append({**entry, "result": name})

    for name, ops, op, on_pillow in cases():
        add({"name": name, "ops": ops}, reference(op, image, on_pillow))
    for step, op in steps_of_rand_augment():
        add({"name": str(step), "step": step}, op(F.pil_to_tensor(image)))
    (DATA / "ops.json").write_text("[\n" + ",\n".join(json.dumps(entry) for entry in table) + "\n]\n")


def apply(ops, files, seed=0, **params):
    """Steps and result of each file, or the error."""
    command = [os.environ["APPLY"], json.dumps({"ops": ops, **params}), str(seed), *map(str, files)]
    out = io.BytesIO(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    for file in files:
        head = json.loads(out.readline())
        if "error" in head:
            yield [], f"{file}: {head['error']}"
            continue
        dtype = np.dtype(head["dtype"])
        data = out.read(int(np.prod(head["shape"])) * dtype.itemsize)
        yield head["steps"], np.frombuffer(data, dtype).reshape(head["shape"])


def row(name, pairs, scale=1.0):
    """One row of the table: largest and mean difference in grey levels, over pairs of results."""
    greatest, means, above, faults = 0.0, [], 0, []
    for made, expected in pairs:
        if isinstance(made, str) or made.shape != expected.shape:
            faults.append(made if isinstance(made, str) else f"{made.shape} instead of {expected.shape}")
            continue
        difference = np.abs(made.astype(float) - expected.astype(float)) * scale
        greatest = max(greatest, difference.max(initial=0.0))
        means.append(difference.mean())
        above = max(above, (difference > 2.001).mean())
    print(
        f"{name:40} images {len(means):4}  max {greatest:7.3f}  mean {np.mean(means):.4f}"
        f"  worst image {max(means):.3f}  share above 2 {above:.5f}",
        *faults,
        flush=True,
    )


def run_step(step, image):
    """A step by the functions of torchvision, on a tensor."""
    (name, value), = step.items() if isinstance(step, dict) else [(step, None)]
    word = lambda name: {"NearestExact": "nearest-exact"}.get(name, name.lower())
    if name == "Crop":
        return F.crop(image, value["top"], value["left"], value["height"], value["width"])
    if name == "Resize":
        size = [value["size"]["height"], value["size"]["width"]]
        image = F.to_pil_image(image)
        return F.pil_to_tensor(F.resize(image, size, interpolation(word(value["interpolation"]))))
    if name == "Pad":
        return F.pad(image, value["padding"], value["fill"], value["mode"].lower())
    if name == "Affine":
        size, (height, width) = value["size"], image.shape[-2:]
        theta = torch.tensor(value["matrix"], dtype=torch.float32).reshape(1, 2, 3)
        grid = G._affine_grid(theta, width, height, size["width"], size["height"])
        return G._apply_grid_transform(image, grid, word(value["interpolation"]), value["fill"])
    if name == "GaussianBlur":
        return F.gaussian_blur(image, value["kernel"], value["sigma"])
    if name == "Erase":
        part = value["part"]
        filling = torch.tensor(value["filling"]["Values"])[:, None, None]
        return F.erase(image, part["top"], part["left"], part["height"], part["width"], filling)
    if name == "ToFloat":
        return F.to_dtype(image, torch.float32, value["scale"])
    if name == "Normalize":
        return F.normalize(image, value["mean"], value["std"])
    functions = {
        "FlipHorizontal": F.horizontal_flip,
        "FlipVertical": F.vertical_flip,
        "QuarterTurns": lambda image: torch.rot90(image, value, (-2, -1)),
        "Brightness": lambda image: F.adjust_brightness(image, value),
        "Contrast": lambda image: F.adjust_contrast(image, value),
        "Saturation": lambda image: F.adjust_saturation(image, value),
        "Hue": lambda image: F.adjust_hue(image, value),
        "Grayscale": lambda image: F.rgb_to_grayscale(image, value["channels"]),
        "Sharpness": lambda image: F.adjust_sharpness(image, value),
        "Posterize": lambda image: F.posterize(image, value),
        "Solarize": lambda image: F.solarize(image, value),
        "AutoContrast": F.autocontrast,
        "Equalize": F.equalize,
    }
    return functions[name](image)


RANDOM = {
    "RandomResizedCrop": [{"RandomResizedCrop": {"size": 96}}],
    "RandomCrop": [{"RandomCrop": {"size": [70, 60], "padding": 8, "pad_if_needed": True, "padding_mode": "edge"}}],
    "RandomRotation": [{"RandomRotation": {"degrees": 40, "interpolation": "bilinear", "fill": [9, 8, 7]}}],
    "ColorJitter": [{"ColorJitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}}],
    "GaussianBlur": [{"GaussianBlur": {"kernel_size": 5}}],
    "RandomErasing": [{"RandomErasing": {"p": 1, "value": [5, 6, 7]}}],
    "RandAugment": [{"RandAugment": {"num_ops": 3, "interpolation": "bilinear"}}],
    "RandAugment nearest": [{"RandAugment": {"num_ops": 3, "magnitude": 20, "fill": [1, 2, 3]}}],
}
TRAINING = [
    {"RandomResizedCrop": {"size": 176}},
    {"RandomHorizontalFlip": {}},
    {"ToDtype": {"dtype": "float32", "scale": True}},
    {"Normalize": {"mean": MEAN, "std": STD}},
    {"RandomErasing": {"p": 0.5, "value": [1.0, 2.0, 3.0]}},
]
VALIDATION = [{"Resize": {"size": 232}}, {"CenterCrop": {"size": 224}}, *TRAINING[2:4]]


def run_steps(steps, image):
    for step in steps:
        image = run_step(step, image)
    return image.numpy()


def compare(paths):
    images = {path: opened(path) for path in paths}
    groups = {}
    for path in paths:
        groups.setdefault(Path(path).name.split("-", 1)[-1], []).append(path)
    for name, group in groups.items():
        made = [made for _, made in apply([], group, layout="hwc")]
        row(f"decode {name}", zip(made, [np.asarray(images[path]) for path in group]))
    print("\nFrom the file to the result, in grey levels")
    for name, ops in [("training", TRAINING), ("validation", VALIDATION)]:
        pairs = [(made, run_steps(steps, F.pil_to_tensor(image))) for (steps, made), image in zip(apply(ops, paths, 3), images.values())]
        row(name, pairs, 255 * 0.225)
    # Ops on the same pixels: files that every decoder reads alike.
    with tempfile.TemporaryDirectory() as folder:
        plain = [f"{folder}/{number:04}.bmp" for number in range(len(paths))]
        for path, image in zip(plain, images.values()):
            image.save(path)
        print("\nOps without a choice, on the same pixels")
        for name, ops, op, on_pillow in cases():
            made = [made for _, made in apply(ops, plain)]
            row(name, zip(made, [reference(op, image, on_pillow).numpy() for image in images.values()]))
        print("\nRandom ops, with the numbers that the stage drew")
        for name, ops in RANDOM.items():
            made = list(apply(ops, plain, 11))
            row(name, [(made, run_steps(steps, F.pil_to_tensor(image))) for (steps, made), image in zip(made, images.values())])


def draws(count=4000, width=500, height=375):
    """Compares distributions by the test of Kolmogorov and Smirnov."""
    from scipy.stats import ks_2samp

    def made(ops):
        command = [os.environ["APPLY"], json.dumps({"ops": ops}), str(count), f"{width}x{height}"]
        return [json.loads(line) for line in subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.splitlines()]

    def of(steps, name):
        return [step[name] for step in steps if isinstance(step, dict) and name in step]

    def test(name, ours, theirs):
        found = ks_2samp(ours, theirs)
        print(f"{name:36} {len(ours):5} and {len(theirs):5}  D {found.statistic:.4f}  p {found.pvalue:.3f}", flush=True)

    torch.manual_seed(1)
    image = torch.zeros(3, height, width, dtype=torch.uint8)
    whole = {"left": 0, "top": 0, "width": width, "height": height}
    for name, ops, op in [
        ("RandomResizedCrop", [{"RandomResizedCrop": {"size": 224}}], T.RandomResizedCrop(224)),
        ("RandomCrop", [{"RandomCrop": {"size": 224}}], T.RandomCrop(224)),
    ]:
        ours = [(of(steps, "Crop") or [whole])[0] for steps in made(ops)]
        theirs = [op.make_params([image]) for _ in range(count)]
        for key in ("left", "top", "width", "height"):
            test(f"{name} {key}", [each[key] for each in ours], [each[key] for each in theirs])
    test("RandomHorizontalFlip", [len(steps) for steps in made([{"RandomHorizontalFlip": {"p": 0.3}}])],
         [float(torch.rand(1) < 0.3) for _ in range(count)])
    rotations = made([{"RandomRotation": {"degrees": 40}}])
    op = T.RandomRotation(40)
    test("RandomRotation angle", [np.degrees(np.arctan2(of(s, "Affine")[0]["matrix"][1], of(s, "Affine")[0]["matrix"][0])) for s in rotations],
         [-op.make_params([image])["angle"] for _ in range(count)])
    jitter = {"brightness": 0.4, "contrast": 0.3, "saturation": 0.2, "hue": 0.1}
    ours, op = made([{"ColorJitter": jitter}]), T.ColorJitter(**jitter)
    theirs = [op.make_params([image]) for _ in range(count)]
    names = ["Brightness", "Contrast", "Saturation", "Hue"]
    for name in names:
        test(f"ColorJitter {name}", [of(steps, name)[0] for steps in ours], [each[f"{name.lower()}_factor"] for each in theirs])
    order = lambda steps: sum(names.index(next(iter(step))) * 4**at for at, step in enumerate(steps))
    test("ColorJitter order", [order(steps) for steps in ours],
         [sum(int(number) * 4**at for at, number in enumerate(each["fn_idx"])) for each in theirs])
    op = T.GaussianBlur(5)
    test("GaussianBlur sigma", [of(s, "GaussianBlur")[0]["sigma"][0] for s in made([{"GaussianBlur": {"kernel_size": 5}}])],
         [op.make_params([image])["sigma"][0] for _ in range(count)])
    op = T.RandomErasing(p=1)
    ours = [of(steps, "Erase")[0]["part"] for steps in made([{"RandomErasing": {"p": 1}}]) if steps]
    theirs = [each for each in (op.make_params([image]) for _ in range(count)) if each["v"] is not None]
    for key, other in [("left", "j"), ("top", "i"), ("width", "w"), ("height", "h")]:
        test(f"RandomErasing {key}", [each[key] for each in ours], [each[other] for each in theirs])

    # RandAugment: which op, and the values, of which there are few.
    labels = {}

    def label(step):
        return labels.setdefault(json.dumps(step), len(labels))

    def matrix(*arguments):
        return [round(number, 6) for number in G._get_inverse_affine_matrix(*arguments)]

    at = lambda last: last * 9 / 30
    shear = math.degrees(math.atan(at(0.3)))
    corner, middle = [-width / 2, -height / 2], [0.0, 0.0]
    across, down = int(at(150 / 331 * width)), int(at(150 / 331 * height))
    expected = [[]]
    for sign in (1, -1):
        expected += [
            [["Affine", matrix(corner, 0.0, [0, 0], 1.0, [sign * shear, 0.0])]],
            [["Affine", matrix(corner, 0.0, [0, 0], 1.0, [0.0, sign * shear])]],
            [["Affine", matrix(middle, 0.0, [sign * across, 0], 1.0, [0.0, 0.0])]],
            [["Affine", matrix(middle, 0.0, [0, sign * down], 1.0, [0.0, 0.0])]],
            [["Affine", matrix(middle, -sign * at(30.0), [0, 0], 1.0, [0.0, 0.0])]],
            *([[name, round(1 + sign * at(0.9), 5)]] for name in ("Brightness", "Saturation", "Contrast", "Sharpness")),
        ]
    expected += [[["Posterize", int(np.round(8 - 9 / (30 / 4)))]], [["Solarize", round(255 * (1 - 9 / 30), 4)]], ["AutoContrast"], ["Equalize"]]
    weights = [2.0 if steps in ([],) or len(steps) == 1 and (isinstance(steps[0], str) or steps[0][0] in ("Posterize", "Solarize")) else 1.0 for steps in expected]
    for steps in expected:
        label(steps)

    def plain(step):
        if isinstance(step, str):
            return step
        (name, value), = step.items()
        if name == "Affine":
            return [name, [round(number, 6) + 0.0 for number in value["matrix"]]]
        return [name, round(value, 5 if name != "Solarize" else 4)]

    found = [0] * len(expected)
    for steps in made([{"RandAugment": {"num_ops": 1}}]):
        steps = [plain(step) for step in steps]
        near = lambda a, b: a == b or (len(a) == 1 == len(b) and not isinstance(a[0], str) and not isinstance(b[0], str)
                                       and a[0][0] == b[0][0] and np.allclose(a[0][1], b[0][1], atol=1e-4))
        places = [place for place, other in enumerate(expected) if near(steps, other)]
        if len(places) != 1:
            print("RandAugment: unexpected", steps, places)
            continue
        found[places[0]] += 1
    from scipy.stats import chisquare

    share = np.array(weights) / sum(weights)
    result = chisquare(found, share * sum(found))
    print(f"{'RandAugment ops and signs':36} {sum(found):5} draws, chi-squared {result.statistic:.1f} of {len(found) - 1}  p {result.pvalue:.3f}")


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    match sys.argv[1:]:
        case ["fixtures"]:
            write_fixtures()
        case ["compare", *paths]:
            compare(paths)
        case ["draws"]:
            draws()
        case _:
            sys.exit(__doc__)
