"""Labels: random trees of classes with empty, hidden, linked and nested folders and files of other endings.

Reference: `find_classes` and `make_dataset` of torchvision's `ImageFolder` with `allow_empty=True`, on the tree without hidden
folders. Their code is repeated below; `--torchvision WHEEL` compares it with that of a wheel on each tree.
"""

from __future__ import annotations

import argparse
import os
import shutil
import types
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import folders
from expect import described
from kit import Variant, collated, main

ENDINGS = [".jpg", ".JPG", ".jpeg", ".png", ".txt", "", ".jpg.txt", ".db"]


def find_classes(directory: str) -> list[str]:
    """Classes of a folder, as torchvision finds them."""
    return sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())


def make_dataset(directory: str, classes: Sequence[str], is_valid: Callable[[str], bool]) -> list[tuple[str, int]]:
    """Files of the classes with their numbers, as torchvision finds them with `allow_empty=True`."""
    instances = []
    for number, name in enumerate(classes):
        for root, _, names in sorted(os.walk(os.path.join(directory, name), followlinks=True)):
            instances += [(os.path.join(root, file), number) for file in sorted(names) if is_valid(os.path.join(root, file))]
    return instances


def load_torchvision(wheel: str) -> Any:
    """The module `torchvision.datasets.folder` of a wheel, without PyTorch."""
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read("torchvision/datasets/folder.py").decode()
    text = text.replace("from PIL import Image", "Image = None").replace("from .vision import VisionDataset", "VisionDataset = object").replace("Image.Image", "object")
    module = types.ModuleType("folder")
    exec(compile("from __future__ import annotations\n" + text, "folder.py", "exec"), module.__dict__)
    return module


def mixture(variant: Variant) -> None:
    """A mixture of one source for each class, as weighted sampling needs it: all parts share one table of classes."""
    rng = variant.rng
    root = variant.folder("d")
    names = folders.random_names(rng, rng.randint(2, 5))
    names = [name for name in names if not any(other != name and name.startswith(other) for other in names)]
    wanted = {}
    for number, name in enumerate(sorted(names)):
        for file in range(rng.randint(1, 3)):
            folders.write(root / "train" / name / f"{file}.jpg", "x")
            wanted[f"train/{name}/{file}.jpg"] = number
    parts = {f"part-{number}": {"source": {"list": {"store": "d", "prefix": f"train/{name}", "label": "folder"}}, "weight": rng.randint(1, 3)}
             for number, name in enumerate(rng.sample(names, len(names)))}
    variant.note(f"mixture of the classes {sorted(names)}: {wanted}")
    outcome = variant.run(collated({"mix": {"sources": parts, "stop": "all"}}, rng.choice([1, 5])), {"d": root})
    variant.tags.append("mixture")
    found = {sample.key: int(sample.fields["label"]) for sample in outcome.samples}
    if outcome.code != 0:
        variant.differ("mixture: refused what is right", f"{len(wanted)} samples", outcome.errors)
    elif found != wanted:
        variant.differ("mixture: other labels", sorted(wanted.items()), sorted(found.items()))


def make(variant: Variant) -> None:
    rng = variant.rng
    if rng.random() < 0.08:
        mixture(variant)
        return
    root = variant.folder("d")
    prefix = rng.choice(["", "train/", "deep/train/"])
    top = root / prefix
    top.mkdir(parents=True, exist_ok=True)
    number = 0

    def files(folder: Path, most: int) -> None:
        nonlocal number
        for _ in range(rng.randint(0, most)):
            number += 1
            name = rng.choice([f"{number}", f".{number}", f"{number} ü"]) + rng.choice(ENDINGS[:5] if rng.random() < 0.8 else ENDINGS)
            folders.write(folder / name, f"{number}")

    names = folders.random_names(rng, rng.randint(1, 6))
    for name in names:
        (top / name).mkdir()
        shape = rng.random()
        if shape < 0.15:
            continue
        if shape < 0.3:
            folders.write(top / name / "other.txt", "x")
            continue
        files(top / name, 4)
        if rng.random() < 0.3:
            files(top / name / rng.choice(["more", "x/y", "a"]), 3)
        if rng.random() < 0.2:
            files(top / name / rng.choice(folders.HIDDEN), 3)
    hidden = [name for name in folders.HIDDEN if rng.random() < 0.25]
    for name in hidden:
        (top / name).mkdir()
        files(top / name, 3)
        if rng.random() < 0.3:
            files(top / name / "in", 2)
    if rng.random() < 0.4:
        files(top, 3)
    linked = []
    if rng.random() < 0.4:
        # Links inside the root: a class, a folder in a class, a file.
        pool = root / "pool"
        files(pool / "p", 3)
        folders.write(pool / "p" / "one.jpg", "one")
        kind = rng.choice(["class", "folder", "file", "absolute"])
        place = {"class": top / "linked", "folder": top / names[0] / "link", "file": top / names[0] / "link.jpg", "absolute": top / "zz"}[kind]
        goal = (pool / "p").resolve() if kind != "file" else (pool / "p" / "one.jpg").resolve()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(goal if kind == "absolute" else os.path.relpath(goal, place.parent.resolve()))
        linked.append(kind)
    refused = ""
    if rng.random() < 0.05:
        folders.write(variant.place / "outside" / "one.jpg", "one")
        (top / "out").symlink_to(rng.choice([variant.place / "outside", os.path.relpath(variant.place / "outside", top)]))
        refused = "a class that is a link to the outside"
    suffix: Any = rng.choice([None, ".jpg", [".jpg"], [".jpg", ".jpeg", ".png"], [".JPG"], {"of": "std/image"}, ".txt"])
    take_hidden = rng.random() < 0.2
    endings = tuple(suffix) if isinstance(suffix, list) else ()
    if isinstance(suffix, dict):
        # Files that `std/image` reads by its manual.
        endings = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")

    def is_valid(path: str) -> bool:
        if suffix is None:
            return True
        return path.endswith(suffix) if isinstance(suffix, str) else path.lower().endswith(tuple(ending.lower() for ending in endings))

    # The reference works on a copy without hidden folders.
    copy = variant.place / "copy"
    shutil.copytree(root, copy, symlinks=False)
    if not take_hidden:
        for folder, inner, _ in os.walk(copy, topdown=False):
            relative = Path(folder).relative_to(copy).as_posix() + "/"
            for name in inner:
                if folders.is_hidden(name) and (relative + name).removeprefix("./").startswith(prefix):
                    shutil.rmtree(os.path.join(folder, name))
    base = str(copy / prefix) if prefix else str(copy)
    classes = find_classes(base)
    if prefix == "":
        # Folders beside the classes are classes, too.
        assert set(names) <= set(classes)
    wanted = {os.path.relpath(path, copy): label for path, label in make_dataset(base, classes, is_valid)}
    wheel = getattr(variant.options, "torchvision", None)
    if wheel and classes:
        real = load_torchvision(wheel)
        found, numbers = real.find_classes(base)
        theirs = {os.path.relpath(path, copy): label for path, label in real.make_dataset(base, numbers, is_valid_file=is_valid, allow_empty=True)}
        assert found == classes and theirs == wanted, "torchvision itself gives other classes"
    tree = sorted(os.path.relpath(os.path.join(folder, name), root) for folder, inner, inner_files in os.walk(root, followlinks=True) for name in inner_files + [f"{name}/" for name in inner])
    variant.note(f"tree {tree}, links {linked}, {refused} prefix {prefix!r}, suffix {suffix!r}, hidden {take_hidden}")
    variant.note(f"torchvision: classes {classes}, {wanted}")
    source: dict[str, Any] = {"store": "d", "prefix": prefix, "label": "folder"}
    if suffix is not None:
        source["suffix"] = suffix
    if take_hidden:
        source["hidden"] = True
    if rng.random() < 0.15 and classes:
        source["classes"] = [*classes, "more"] if rng.random() < 0.5 else classes
        if rng.random() < 0.3 and not refused:
            source["classes"] = classes[1:] or ["other"]
            refused = "a class that is not in `classes`"
        variant.tags.append("classes")
    source["shuffle"] = rng.random() < 0.3
    outcome = variant.run(collated({"list": source}, rng.choice([1, 5, 100])), {"d": root})
    if outcome.is_setting_unknown:
        variant.differ("a setting is unknown", "the settings of the manual", outcome.errors)
        return
    if outcome.code != 0:
        variant.tags.append("refused")
        if wanted and not refused:
            variant.differ("refused what is right", f"{len(wanted)} samples", outcome.errors)
        return
    variant.tags.append("delivered")
    if refused:
        variant.differ(f"not refused: {refused}", "an end with exit code 1", described(outcome))
        return
    found = {sample.key: int(sample.fields["label"]) for sample in outcome.samples}
    if len(found) != len(outcome.samples):
        variant.differ("a key comes twice", len(found), len(outcome.samples))
    if set(found) != set(wanted):
        variant.differ("other keys", sorted(set(wanted) - set(found)), f"besides {sorted(set(found) - set(wanted))}; {described(outcome)}")
    elif found != wanted:
        variant.differ("other labels", sorted(wanted.items()), sorted(found.items()))
    labels = next(iter((outcome.snapshot.get("labels") or {}).values()), {})
    if labels.get("classes") is not None and source.get("classes", classes) != labels["classes"]:
        variant.differ("other classes in the snapshot", source.get("classes", classes), labels["classes"])
    report_of_losses(variant, outcome, root, prefix, is_valid, take_hidden, wanted)


def report_of_losses(variant: Variant, outcome: Any, root: Path, prefix: str, is_valid: Callable[[str], bool], take_hidden: bool, wanted: dict[str, int]) -> None:
    """What is not taken stands in `left_out`, and hidden folders with matching files are warned of."""
    everything = [os.path.relpath(os.path.join(folder, name), root) for folder, _, names in os.walk(root, followlinks=True) for name in names]
    in_hidden = [key for key in everything if key.startswith(prefix) and any(folders.is_hidden(part) for part in key[len(prefix):].split("/")[:-1])]
    others = [key for key in everything if key.startswith(prefix) and not is_valid(key) and key not in in_hidden]
    said = str(outcome.left_out) + str(outcome.warnings)
    if others and not outcome.left_out:
        variant.differ("keys of other endings are not in `left_out`", others[:5], said)
    matching = [key for key in in_hidden if is_valid(key)]
    if matching and not take_hidden:
        if not outcome.left_out:
            variant.differ("hidden folders are not in `left_out`", matching[:5], said)
        elif not outcome.warnings:
            variant.differ("hidden folders with matching files are not warned of", matching[:5], said)


if __name__ == "__main__":
    def more(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--torchvision", help="wheel of torchvision, whose code is compared with the repeated one")

    main("labels", make, more=more)
