"""Links: relative, absolute, chained, circular and broken links to files and folders, inside and outside of the root.

Reference: `os.walk(followlinks=True)`, restricted to targets whose real paths lie inside the root (or a root of `--store-links`), in
which a folder that is its own ancestor ends a circle.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import folders
from expect import described
from kit import Outcome, Variant, collated, main


def make_tree(rng: random.Random, root: Path, most: int = 5) -> list[str]:
    """Folders with files, and their paths below the root; the first is the root itself."""
    made = [""]
    for _ in range(rng.randint(1, most)):
        parent = rng.choice(made)
        path = os.path.join(parent, rng.choice(["a", "b", "c", "ü", "x.d", ".h", "__MACOSX"]))
        (root / path).mkdir(parents=True, exist_ok=True)
        if path not in made:
            made.append(path)
    for number in range(rng.randint(1, 8)):
        folders.write(root / rng.choice(made) / f"{number}.txt", f"{root.name} {number}")
    return made


def make(variant: Variant) -> None:
    rng = variant.rng
    if rng.random() < 0.08:
        hugging_face(variant)
        return
    root, outside, further = variant.folder("root"), variant.folder("outside"), variant.folder("further")
    places = make_tree(rng, root)
    make_tree(rng, outside, 2)
    make_tree(rng, further, 2)
    links = []
    for number in range(rng.randint(1, 6)):
        place = root / rng.choice(places) / f"l{number}"
        goal = draw_goal(rng, root, outside, further, links)
        if rng.random() < 0.4 and not str(goal).startswith("!"):
            text = str(goal)
        else:
            text = os.path.relpath(goal, place.parent)
        place.symlink_to(text)
        links.append(place)
        variant.note(f"link {place.relative_to(variant.place)} -> {text.replace(str(variant.place), 'PLACE')}")
    odd = rng.choice(["", "", "", "pipe", "newline", "not UTF-8"])
    if odd == "pipe":
        os.mkfifo(root / "pipe")
    elif odd == "newline":
        (root / "new\nline.txt").write_text("n")
    elif odd == "not UTF-8":
        with open(os.path.join(os.fsencode(root), b"caf\xe9.txt"), "w") as file:
            file.write("e")
    files_only = rng.random() < 0.15
    roots = [root]
    flags = []
    if rng.random() < 0.2 and not files_only:
        roots.append(further)
        flags = ["--store-links", f"d={further}"]
        variant.tags.append("further root")
    hidden = rng.random() < 0.3
    keys, odd_links = folders.walk(root, roots, hidden)
    keys = {key: real for key, real in keys.items() if key.isprintable() and "\udce9" not in key}
    source: dict[str, Any] = {"store": "d"}
    if hidden:
        source["hidden"] = True
    if files_only:
        # The rule of before: links to files inside the root, and no links to folders.
        source["links"] = "files"
        keys = {key: real for key, real in keys.items() if not any((root / parent).is_symlink() for parent in parents(key)) and is_relative(root / key, root)}
    variant.note(f"odd {odd!r}, links not followed {odd_links}, wanted {sorted(keys)}")
    document = collated({"list": source}, 1, stages=[{"fetch": {"concurrency": 1}}])
    outcome = variant.run(document, {"d": root}, *flags)
    check(variant, outcome, keys, odd_links, odd, files_only)


def is_relative(path: Path, root: Path) -> bool:
    """True if a link, with all links behind it, stays below the root by relative steps."""
    for _ in range(40):
        if not path.is_symlink():
            return True
        goal = os.readlink(path)
        path = Path(os.path.normpath(path.parent / goal))
        if goal.startswith("/") or not path.is_relative_to(root):
            return False
    return False


def parents(key: str) -> list[str]:
    parts = key.split("/")
    return ["/".join(parts[:number]) for number in range(1, len(parts))]


def draw_goal(rng: random.Random, root: Path, outside: Path, further: Path, links: list[Path]) -> Path:
    """Target of a link."""
    kind = rng.choices(["file", "folder", "above", "link", "outside file", "outside folder", "further", "missing", "self", "through"], [4, 4, 2, 2, 1, 1, 2, 1, 1, 1])[0]
    below = [path for path in sorted(root.rglob("*")) if not path.is_symlink()]
    files, dirs = [path for path in below if path.is_file()], [path for path in below if path.is_dir()]
    if kind == "folder" and dirs:
        return rng.choice(dirs)
    if kind == "above":
        return rng.choice([root, *[path.parent for path in below]])
    if kind == "link" and links:
        return rng.choice(links)
    if kind == "outside file":
        return rng.choice([path for path in sorted(outside.rglob("*")) if path.is_file()])
    if kind == "outside folder":
        return rng.choice([outside, root.parent])
    if kind == "further":
        return rng.choice([further, *sorted(further.rglob("*"))])
    if kind == "missing":
        return root / "nothing"
    if kind == "self":
        return root / "l0"
    if kind == "through":
        # A way through the outside that ends inside.
        back = outside / f"back{len(links)}"
        back.symlink_to(rng.choice(files))
        return back
    return rng.choice(files)


def check(variant: Variant, outcome: Outcome, keys: dict[str, str], odd_links: dict[str, str], odd: str, files_only: bool) -> None:
    if outcome.is_setting_unknown:
        variant.differ("a setting is unknown", "the settings of the manual", outcome.errors)
        return
    if outcome.code != 0:
        variant.tags.append("refused")
        if any(not goes_around(key, variant) for key in keys):
            variant.differ("refused what is right", f"{len(keys)} samples", outcome.errors)
        return
    variant.tags.append("delivered")
    # A name with a line end may be a key, or be counted.
    found = [sample.key for sample in outcome.samples if "\n" not in sample.key]
    unusual = len(outcome.samples) - len(found)
    # A link that ends inside by a way through the outside is followed, or left out with a warning.
    around = {key for key in keys if goes_around(key, variant)} if outcome.warnings and not files_only else set()
    keys = {key: real for key, real in keys.items() if key in found or key not in around}
    if len(outcome.samples) == 0 and not keys:
        return
    if sorted(found) != sorted(keys):
        more = sorted(set(found) - set(keys))
        variant.differ("links to files only: other keys" if files_only else "other keys", sorted(set(keys) - set(found)), f"besides {more}; {described(outcome)}")
    elif found != sorted(keys, key=lambda key: key.encode()):
        variant.differ("order", sorted(keys), found)
    for sample in outcome.samples:
        real = keys.get(sample.key)
        if real and sample.fields.get("bytes") != Path(real).read_bytes():
            variant.differ("other bytes", Path(real).read_bytes(), sample.fields.get("bytes"))
    said = str(outcome.left_out)
    outside = [key for key, why in odd_links.items() if why == "outside"]
    broken = [key for key, why in odd_links.items() if why == "broken"]
    if outside and not files_only:
        if not outcome.left_out:
            variant.differ("links to the outside are not in `left_out`", outside, said)
        elif not outcome.warnings:
            variant.differ("links to the outside are not warned of", outside, str(outcome.warnings))
        elif "link" not in str(outcome.warnings):
            variant.differ("the warning of links does not name them", outside, str(outcome.warnings))
    if broken and not outcome.left_out:
        variant.differ("broken links are not in `left_out`", broken, said)
    if odd in ("pipe", "newline", "not UTF-8") and not outcome.left_out and not unusual:
        variant.differ(f"left out without a word: {odd}", "a count in `left_out`", said)
    doubles = len(keys) - len(set(keys.values()))
    if doubles and not files_only and not outcome.warnings:
        variant.differ("files under two keys are not warned of", doubles, str(outcome.warnings))


def goes_around(key: str, variant: Variant) -> bool:
    """True if a part of a key is a link whose way to its target leads through the outside."""
    root = variant.place / "root"
    for path in [root / parent for parent in [*parents(key), key]]:
        for _ in range(40):
            if not path.is_symlink():
                break
            path = Path(os.path.normpath(os.path.join(os.path.realpath(path.parent), os.readlink(path))))
            if not path.is_relative_to(root):
                return True
    return False


def hugging_face(variant: Variant) -> None:
    """The cache of Hugging Face: files of a snapshot are links to blobs of the same repository."""
    rng = variant.rng
    repository = variant.place / "hub" / "datasets--o--name"
    other = variant.place / "hub" / "datasets--o--other"
    snapshot = repository / "snapshots" / "0123abcd"
    keys = {}
    for number in range(rng.randint(1, 5)):
        folder = rng.choice(["", "data/", "data/deep/"])
        blob = repository / "blobs" / f"{number:064x}"
        folders.write(blob, f"blob {number}")
        link = snapshot / f"{folder}{number}.txt"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(blob, link.parent))
        keys[f"{folder}{number}.txt"] = str(blob)
    links = {}
    if rng.random() < 0.5:
        # Blobs of another repository, and files that are no blobs, are not read.
        goal = rng.choice([other / "blobs" / ("f" * 64), repository / "refs" / "main", variant.place / "secret.txt"])
        folders.write(goal, "secret")
        (snapshot / "odd.txt").symlink_to(os.path.relpath(goal, snapshot))
        links["odd.txt"] = "outside"
    variant.tags.append("hugging face")
    variant.note(f"cache of Hugging Face with {sorted(keys)} and {links}")
    outcome = variant.run(collated({"list": {"store": "d"}}, 1, stages=[{"fetch": {"concurrency": 1}}]), {"d": snapshot})
    check(variant, outcome, keys, links, "", False)


if __name__ == "__main__":
    main("links", make)
