"""Writes the labels of a folder of photos with a folder for each class, numbered as torchvision's ImageFolder does.

    python examples/train/class_labels.py FOLDER        # writes FOLDER/labels.ndjson, which a `records` source reads

Each line is a sample: `{"key": "cat/1.jpg", "label": 0}`. Folders within the folder of a class belong to that class.
"""

import argparse
import json
from pathlib import Path

# decode-resize reads JPEG.
SUFFIXES = (".jpg", ".jpeg")


def write_labels(folder: Path) -> int:
    """Writes the file and gives the number of samples."""
    classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
    photos = [
        {"key": path.relative_to(folder).as_posix(), "label": label}
        for label, name in enumerate(classes)
        for path in sorted((folder / name).rglob("*"))
        if path.suffix.lower() in SUFFIXES
    ]
    (folder / "labels.ndjson").write_text("".join(json.dumps(photo) + "\n" for photo in photos))
    return len(photos)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the labels of a folder of photos with a folder for each class.")
    parser.add_argument("folder", type=Path, help="photos as CLASS/NAME.jpg")
    folder = parser.parse_args().folder
    print(f"{write_labels(folder)} photos in {folder / 'labels.ndjson'}")


if __name__ == "__main__":
    main()
