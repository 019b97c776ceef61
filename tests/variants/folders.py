"""Random trees of folders, and the keys and classes that they have."""

from __future__ import annotations

import os
import random
from pathlib import Path

# Names of hidden folders.
HIDDEN = [".ipynb_checkpoints", "__MACOSX", ".git", ".cache", "..data"]


def is_hidden(name: str) -> bool:
    """True for a folder that a source leaves out."""
    return name.startswith(".") or name == "__MACOSX"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def inside(root: Path, real: str) -> bool:
    """True if a resolved path lies in a resolved folder."""
    base = os.path.realpath(root)
    return real == base or real.startswith(base + "/")


def walk(root: Path, roots: list[Path], hidden: bool = False) -> tuple[dict[str, str], dict[str, str]]:
    """Keys below a folder with their real paths, and links that are not followed with the reason.

    It is `os.walk(followlinks=True)`, restricted to targets in one of `roots`, in which a folder that is its own ancestor ends a circle.
    """
    keys: dict[str, str] = {}
    links: dict[str, str] = {}

    def enter(folder: str, prefix: str, above: tuple[str, ...]) -> None:
        for name in sorted(os.listdir(folder)):
            path, key = os.path.join(folder, name), prefix + name
            real = os.path.realpath(path)
            if os.path.islink(path):
                if not os.path.exists(path):
                    links[key] = "broken"
                    continue
                if not any(inside(base, real) for base in roots):
                    links[key] = "outside"
                    continue
            if os.path.isdir(path):
                if not hidden and is_hidden(name):
                    continue
                if real in above:
                    links[key] = "circle"
                    continue
                enter(path, key + "/", (*above, real))
            elif os.path.isfile(path):
                keys[key] = real

    enter(str(root), "", (os.path.realpath(root),))
    return keys, links


def random_names(rng: random.Random, count: int) -> list[str]:
    """Names of classes and folders."""
    pool = ["a", "b", "c", "dog", "cat", "Zebra", "zebra", "10", "9", "ü", "a b", "a-b", "a.b", "x.jpg", "éclair", "_", "A", "n01440764", "😀"]
    return rng.sample(pool, count)
