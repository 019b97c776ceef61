"""Examples, and Python of the manuals: documents are there, code runs and prints what its comments say."""

import os
import re
import shutil
import subprocess
import sys
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from kit import PATIENCE, Server, clean, finished, folder, photos, program, wanted

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples/train"


class Examples(unittest.TestCase):
    def test_the_document_of_the_training_loops_can_run(self) -> None:
        command: list[str | Path] = [wanted("PENSTOCK"), "check", TRAIN / "photos.json", f"--store=photos={photos()}"]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=clean())
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_the_loop_over_a_stream_takes_all_batches(self) -> None:
        server = Server(f"--store=photos={photos()}")
        self.addCleanup(server.close)
        command: list[str | Path] = [sys.executable, TRAIN / "stream.py", "--server", server.url]
        drained = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=clean())
        self.assertEqual((drained.returncode, drained.stderr), (0, ""))
        self.assertRegex(drained.stdout, r"^run \S+\n32 images in ")

    def test_the_document_of_the_migration_can_run_on_class_folders(self) -> None:
        with folder() as here:
            for place, photo in enumerate(sorted(photos().rglob("*.jpg"))[:4]):
                (here / f"class-{place % 2}").mkdir(exist_ok=True)
                shutil.copy(photo, here / f"class-{place % 2}" / f"{place}.jpg")
            for name in ("notes.txt", "a.tif", "b.TIF", "list"):
                (here / "class-0" / name).write_text("not a photo")
            pipeline = penstock.Pipeline(TRAIN / "imagefolder.json", stores={"photos": here}, device="host")
            (batch,) = pipeline
            labels = dict(zip(batch.samples, batch["label"]))
            (left_out,) = pipeline.left_out["0:src"]
            self.assertEqual((left_out["reason"], left_out["count"]), ("suffix", 4))
        self.assertEqual(labels, {"class-0/0.jpg": 0, "class-1/1.jpg": 1, "class-0/2.jpg": 0, "class-1/3.jpg": 1})


class Readme(unittest.TestCase):
    def test_the_diff_of_the_migration_is_that_of_the_files(self) -> None:
        names = ["imagefolder_before.py", "imagefolder_after.py"]
        labels = [f"--label={name}" for name in names]
        found = subprocess.run(["diff", "-u", *labels, *names], cwd=TRAIN, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(found.returncode, 1, found.stderr)
        shown = re.search("```diff\n(.*?)```", (TRAIN / "README.md").read_text(), re.DOTALL)
        assert shown is not None, "the README shows the diff"
        self.assertEqual(shown.group(1), found.stdout)

    def test_its_loop_runs_over_its_document(self) -> None:
        (document,) = blocks("README.md", "json pipeline.json")
        (loop,) = blocks("README.md", "python")
        with self.prepared() as here:
            (here / "pipeline.json").write_text(document)
            lines = self.output(here, loop, "print(images.dtype, list(images.shape), pipeline.epoch)")
        # The second of two batches has the last 16 of 48 photos.
        self.assertEqual(lines[-1], "uint8 [16, 3, 224, 224] 3")
        self.assertIn("# uint8, [32, 3, 224, 224]", loop)

    def test_the_packages_examples_run_in_order(self) -> None:
        first, document, shares, resumed, continued, judged, measured, streamed = blocks("runner/python/README.md", "python")
        (commands,) = blocks("runner/python/README.md", "sh not-run: run by tests/python/test_examples.py")
        for needed in ("PyTorch and Lightning", "Ray", "Orbax"):
            for other in blocks("runner/python/README.md", f"python not-run: needs {needed}"):
                compile(other, "README.md", "exec")
        server = Server(f"--store=photos={photos()}")
        self.addCleanup(server.close)
        script = [
            first,
            "print('first', images.dtype, list(images.shape), pipeline.epoch)",
            document,
            "print('document', document.stream() == penstock.Document.read('photos.json'), len(pipeline))",
            shares,
            resumed,
            "print('resumed', pipeline.epoch)",
            continued,
            "print('continued', rest)",
            judged,
            "print('judged', figures['penstock/samples/delivered'])",
            measured,
            streamed.replace("http://127.0.0.1:7700", server.url),
            "print('streamed', batch.size)",
        ]
        with self.prepared() as here:
            lines = self.output(here, *script)
            (here / "bin").mkdir()
            (here / "bin/penstock").symlink_to(wanted("PENSTOCK").absolute())
            path = f"{here}/bin:{os.environ['PATH']}"
            command = ["bash", "-euo", "pipefail", "-c", commands]
            ran = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=PATIENCE, env=clean(PATH=path))
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("first float32 [32, 3, 64, 64] 3", lines)
        self.assertIn("# float32, [32, 3, 64, 64]", first)
        self.assertIn("    penstock.list('photos', suffix='.jpg', shuffle=True)", lines)
        # 48 photos in batches of 32: the incomplete last batch is dropped, so the length is 1.
        self.assertIn("document True 1", lines)
        self.assertIn("[10, 10, 10, 9, 9]", lines)
        self.assertIn("resumed 7", lines)
        # 48 photos, of which the first batch had eight.
        self.assertIn("continued 40", lines)
        # The loop that was left after one batch of eight.
        self.assertIn("judged 8", lines)
        self.assertEqual(lines[-1], "streamed 32")

    @contextmanager
    def prepared(self) -> Iterator[Path]:
        """A folder with the files that the examples use."""
        with folder() as here:
            shutil.copytree(photos(), here / "photos")
            shutil.copy(TRAIN / "photos.json", here)
            # A module that replaces PyTorch.
            (here / "torch.py").write_text("from numpy import from_dlpack\n")
            yield here

    def output(self, here: Path, *parts: str) -> list[str]:
        """Runs these parts as one program; returns the lines that it prints."""
        code, output, errors = finished(program("\n".join(parts), cwd=here), patience=4 * PATIENCE)
        self.assertEqual(code, 0, errors)
        return output.splitlines()


def blocks(manual: str, info: str) -> list[str]:
    """Code blocks of a manual with `info` after the opening fence."""
    found = re.findall(f"^```{re.escape(info)}\n(.*?)^```$", (ROOT / manual).read_text(), re.DOTALL | re.MULTILINE)
    assert found, f"{manual} has no block `{info}`"
    return found


if __name__ == "__main__":
    unittest.main()
