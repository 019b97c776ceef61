"""Writes the labels of a folder of photos with a folder for each class, numbered as torchvision's ImageFolder does.

    python examples/train/class_labels.py FOLDER        # writes FOLDER/labels.ndjson, which a `records` source reads

Each line is a sample: `{"key": "cat/1.jpg", "label": 0}`. Folders within the folder of a class belong to that class.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

# Formats that the module std/image reads.
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp")


def write_labels(folder: Path) -> tuple[int, Counter[str]]:
    """Writes the labels. Returns the number of samples, and the number of omitted files by suffix."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    photos = []
    left_out: Counter[str] = Counter()
    for label, name in enumerate(classes):
        for path in sorted((folder / name).rglob("*")):
            if path.is_dir():
                continue
            if path.suffix.lower() in SUFFIXES:
                photos.append({"key": path.relative_to(folder).as_posix(), "label": label})
            else:
                left_out[path.suffix.lower() or "no suffix"] += 1
    (folder / "labels.ndjson").write_text("".join(json.dumps(photo) + "\n" for photo in photos))
    return len(photos), left_out


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the labels of a folder of photos with a folder for each class.")
    parser.add_argument("folder", type=Path, help="photos as CLASS/NAME.jpg")
    folder = parser.parse_args().folder
    photos, left_out = write_labels(folder)
    print(f"{photos} photos in {folder / 'labels.ndjson'}")
    if left_out:
        suffixes = ", ".join(f"{suffix} {count}" for suffix, count in left_out.most_common())
        print(f"{left_out.total()} files omitted, since their suffix is not that of an image: {suffixes}")


if __name__ == "__main__":
    main()
