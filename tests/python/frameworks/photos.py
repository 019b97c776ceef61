"""Photos of a single color that identifies the file, and the stages that read them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[3]


def modules() -> Path:
    """Folder of the built stages."""
    if "MODULES" not in os.environ:
        sys.exit("MODULES is not set: run `make test-frameworks`")
    return Path(os.environ["MODULES"])


def gray(place: int) -> int:
    """Gray level of the photo at a position, 0 to 255: a multiple of eight, so that small errors of a decoder do not matter."""
    return 8 * (place % 32)


def colored(folder: Path, names: Sequence[str]) -> None:
    """Writes photos whose gray level identifies their position in `names`."""
    for place, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (96, 80), (gray(place),) * 3).save(path, quality=95)
