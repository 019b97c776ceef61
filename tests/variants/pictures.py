"""Pictures: files with their right pixels, the reference that reads them, and makers of pixels."""

from __future__ import annotations

import io
import random
import warnings
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

Image.MAX_IMAGE_PIXELS = None
warnings.simplefilter("ignore")


@dataclass
class Picture:
    """One file, and its right pixels."""

    # Class of the file in the table.
    what: str
    data: bytes
    # Extension of the file.
    end: str
    recipe: str
    # u8, [height, width, 3]; `None` if the file must fail.
    right: np.ndarray | None = None
    tolerance: int = 0
    # True if the file may fail, such as forms that Pillow reads, but the manual leaves out.
    may_fail: bool = False
    # Pattern of the message of a file that must fail.
    says: str = "."
    # Largest mean difference, for decoding that is inexact.
    mean: float | None = None
    # The same if the counter `drafted` has this file; `None` if its colours must not be resized at the resolution of the file.
    drafted: float | None = None


def pixels(image: Image.Image) -> np.ndarray:
    """Red, green and blue of an image, by the rules of the stage's manual; u8, [height, width, 3]."""
    if image.mode.startswith("I;16"):
        return np.repeat((np.asarray(image) >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
    return np.asarray(image.convert("RGB"))


def reference(data: bytes, upright: bool = True) -> np.ndarray | None:
    """Pixels that Pillow reads; `None` if it cannot."""
    try:
        image = Image.open(io.BytesIO(data))
        return pixels(ImageOps.exif_transpose(image) if upright else image)
    except Exception:
        return None


def noise(rng: random.Random, width: int, height: int, channels: int = 3, most: int = 256) -> np.ndarray:
    """Random pixels; u8, [height, width, channels]."""
    return np.random.default_rng(rng.getrandbits(64)).integers(0, most, (height, width, channels), dtype=np.uint8)


def photo(rng: random.Random, width: int, height: int, mode: str = "RGB") -> Image.Image:
    """A smooth image with some noise."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    small = noise(rng, 4, 3, channels)
    planes = [np.asarray(Image.fromarray(small[:, :, channel]).resize((width, height), Image.Resampling.BICUBIC)) for channel in range(channels)]
    mixed = np.clip(np.stack(planes, axis=2).astype(int) + noise(rng, width, height, channels, 24) - 12, 0, 255).astype(np.uint8)
    return Image.merge(mode, [Image.fromarray(mixed[:, :, channel]) for channel in range(channels)])


def cut(end: str, data: bytes, at: int, recipe: str) -> Picture:
    """A file that ends too early. If it lacks no pixels, it may pass or fail."""
    right = reference(data[:at])
    is_sure = right is None and (end == "bmp" or len(data) - at > 12)
    return Picture(f"{end}: cut", data[:at], end, f"{recipe}, cut at {at} of {len(data)}", None if is_sure else reference(data), may_fail=not is_sure)
