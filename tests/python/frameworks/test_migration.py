"""The examples before and after a migration from torchvision: both see the same samples with the same labels."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from photos import ROOT, colored, gray

TRAIN = ROOT / "examples/train"
RECORDED = str(Path(__file__).with_name("recorded.py"))
CLASSES = ("ant", "bee", "cat")
# Photos of each class, one of them in a subfolder.
EACH = [*(f"{number}.jpg" for number in range(7)), "more/7.JPG"]
NAMES = [f"{name}/{photo}" for name in CLASSES for photo in EACH]
WORLD, EPOCHS = 2, 2
# Maximum time of a training, in seconds.
PATIENCE = 300


def run(*command: str | Path) -> str:
    finished = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=PATIENCE)
    assert finished.returncode == 0, f"{finished.stdout}\n{finished.stderr}"
    return finished.stdout


class Migration(unittest.TestCase):
    def test_each_photo_comes_once_per_epoch_with_the_label_of_its_folder(self) -> None:
        # Labels by the gray level that identifies the file.
        labels = {gray(place): CLASSES.index(name.split("/")[0]) for place, name in enumerate(NAMES)}
        with tempfile.TemporaryDirectory() as folder:
            photos = Path(folder, "photos")
            colored(photos, NAMES)
            for script in ("imagefolder_before.py", "imagefolder_after.py"):
                with self.subTest(script):
                    out = Path(folder, script)
                    out.mkdir()
                    torchrun = ("-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD}")
                    told = run(*torchrun, RECORDED, TRAIN / script, out, photos, f"--epochs={EPOCHS}", "--batch=5")
                    ranks = [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(WORLD)]
                    share = len(NAMES) // WORLD
                    self.assertEqual([len(given) for given in ranks], [EPOCHS * share] * WORLD)
                    orders = []
                    for epoch in range(EPOCHS):
                        given = [photo for rank in ranks for photo in rank[epoch * share :][:share]]
                        seen = [(8 * round(level / 8), label) for level, label in given]
                        self.assertEqual(sorted(seen), sorted(labels.items()))
                        orders.append(seen)
                    self.assertNotEqual(*orders)
                    # The 12 photos of a rank make three batches, the last of two photos.
                    for rank in range(WORLD):
                        self.assertIn(f"rank {rank}, epoch 1: 3 steps, loss ", told)


if __name__ == "__main__":
    unittest.main()
