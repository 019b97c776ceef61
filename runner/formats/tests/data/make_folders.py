"""Writes the classes and samples that torchvision's ImageFolder finds in a tree of files.

  pip install torchvision==0.29.2
  make_folders.py
"""

import json
import tempfile
from pathlib import Path

from torchvision.datasets import ImageFolder

HERE = Path(__file__).parent
KEYS = [
    "Zebra/1.jpg", "ant/2.jpg", "ant/deep/er/1.jpg", "ant-eater/1.jpg", "ant.eater/1.jpg", "ant_/1.jpg", "bee/10.jpg", "bee/9.jpg",
    "readme.jpg", "ähre/1.jpg", "犬/1.jpg",
]  # fmt: skip


def main():
    with tempfile.TemporaryDirectory() as root:
        for key in KEYS:
            path = Path(root) / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        found = ImageFolder(root)
        samples = {str(Path(path).relative_to(root)): label for path, label in found.samples}
    expected = {"keys": KEYS, "classes": found.classes, "samples": samples}
    (HERE / "folders.json").write_text(json.dumps(expected, ensure_ascii=False, indent=1) + "\n")


main()
