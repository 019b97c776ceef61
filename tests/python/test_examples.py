"""The examples and the package's README work as shown."""

import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

import penstock
from kit import PATIENCE, Server, clean, finished, folder, module, photos, program, wanted

ROOT = Path(__file__).parents[2]
TRAIN = ROOT / "examples/train"
MODULES = ("decode-resize", "normalize")


class Examples(unittest.TestCase):
    def test_the_document_of_the_training_loops_can_run(self) -> None:
        named = [f"--store=photos={photos()}", *(f"--module={name}={module(name)}" for name in MODULES)]
        command: list[str | Path] = [wanted("PENSTOCK"), "check", TRAIN / "photos.json", *named]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=clean())
        self.assertEqual(checked.returncode, 0, checked.stderr)

    def test_the_loop_over_a_stream_takes_all_batches(self) -> None:
        server = Server(f"--store=photos={photos()}", *(f"--module={module(name)}" for name in MODULES))
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
            for name in ("notes.txt", "a.png", "b.PNG", "list"):
                (here / "class-0" / name).write_text("not a photo")
            command: list[str | Path] = [sys.executable, TRAIN / "class_labels.py", here]
            written = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=PATIENCE).stdout
            pipeline = penstock.Pipeline(
                TRAIN / "imagefolder.json", stores={"photos": here}, modules={name: module(name) for name in MODULES}, device="host"
            )
            (batch,) = pipeline
            labels = dict(zip(batch.samples, batch["label"]))
            self.assertEqual(
                written.splitlines(),
                [f"4 photos in {here}/labels.ndjson", "4 files omitted, since they are not JPEG: .png 2, no suffix 1, .txt 1"],
            )
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

    def test_documents_named_in_its_python_exist(self) -> None:
        python = "".join(re.findall("```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL))
        named = re.findall(r'"([^"]*\.json)"', python)
        self.assertGreater(len(named), 1)
        self.assertEqual([name for name in named if not (ROOT / name).exists()], [])

    def test_its_document_in_python_can_run(self) -> None:
        found = re.search(r"`(penstock\.list\(.*?\.batch\(\d+\))`", (ROOT / "README.md").read_text())
        assert found is not None, "the README writes a document in Python"
        document = eval(found.group(1), {"penstock": penstock})
        self.assertEqual(len(document.pipeline(stores={"photos": photos()}, modules={"decode-resize": module("decode-resize")})), 2)

    def output(self, example: int, rest: str) -> tuple[str, list[str]]:
        """Runs an example of the package's README, followed by `rest`, among the files that it names. Returns the example and its output lines."""
        python = re.findall("```python\n(.*?)```", (ROOT / "runner/python/README.md").read_text(), re.DOTALL)[example]
        with folder() as here:
            shutil.copytree(photos(), here / "photos")
            shutil.copy(TRAIN / "photos.json", here)
            for name in MODULES:
                shutil.copy(module(name), here)
            # Replacement for PyTorch.
            (here / "torch.py").write_text("from numpy import from_dlpack\n")
            code, output, errors = finished(program(f"{python}\n{rest}", cwd=here))
        self.assertEqual(code, 0, errors)
        return python, output.splitlines()

    def test_the_packages_first_example_gives_the_shown_output(self) -> None:
        python, lines = self.output(0, "print(images.dtype, list(images.shape), pipeline.epoch)")
        self.assertEqual(lines[-1], "float32 [32, 3, 64, 64] 3")
        self.assertIn("# float32, [32, 3, 64, 64]", python)

    def test_the_packages_document_in_python_is_that_of_the_first_example(self) -> None:
        _, lines = self.output(1, "print(document.stream() == penstock.Document.read('photos.json'), len(pipeline))")
        self.assertIn("    penstock.list('photos', suffix='.jpg', shuffle=True)", lines)
        # There are 48 photos, and the incomplete last batch is dropped.
        self.assertEqual(lines[-1], "True 1")


if __name__ == "__main__":
    unittest.main()
