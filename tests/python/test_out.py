"""Runs of a training loop write the same output as `penstock run --out`, including dead letters."""

import gc
import json
import pickle
import shutil
import subprocess
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import penstock
from kit import PATIENCE, clean, folder, order_of, photo_document, photos, planes, wanted



def letters_document(**source: Any) -> dict[str, Any]:
    """Document that decodes photos and writes unreadable ones to the dead letters."""
    document = photo_document(**source)
    document["stages"][1]["wasm"]["on_error"] = "dead_letter"
    return document


def with_broken_photo(made: Path) -> Path:
    """Folder of photos, with one file that is not a photo."""
    shutil.copytree(photos(), made / "photos")
    (made / "photos/broken.jpg").write_bytes(b"no photo")
    return made / "photos"


def pipeline_over(store: Path, document: Mapping[str, Any], **options: Any) -> penstock.Pipeline:
    return penstock.Pipeline(document, stores={"photos": store}, **options)


def letters(run: Path) -> list[str]:
    """Keys of the dead letters of a run."""
    return [json.loads(line)["key"] for line in (run / "dead_letters.ndjson").read_text().splitlines()]


def output_of(*arguments: str | Path) -> str:
    """Standard output of a command that succeeds."""
    ended = subprocess.run([wanted("PENSTOCK"), *arguments], capture_output=True, text=True, timeout=PATIENCE, env=clean())
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


class Out(unittest.TestCase):
    def test_dead_letters_without_a_folder_raise(self) -> None:
        with self.assertRaises(penstock.InvalidPipeline) as raised:
            pipeline_over(photos(), letters_document())
        self.assertIn("/stages/1/wasm/on_error: `dead_letter` keeps failed samples in the run's output folder, and there is none", str(raised.exception))
        self.assertIn("set one with `out=FOLDER`, or use `skip`", str(raised.exception))

    def test_every_epoch_is_a_run_whose_letters_can_be_replayed(self) -> None:
        with folder() as made:
            store, out = with_broken_photo(made), made / "out"
            pipeline = pipeline_over(store, letters_document(), out=out)
            for epoch in range(2):
                self.assertEqual(len(order_of(pipeline)), 48)
                run = out / f"epoch-{epoch}"
                self.assertEqual(json.loads((run / "snapshot.json").read_text()), pipeline.stats())
                self.assertEqual(letters(run), ["broken.jpg"])
            self.assertEqual(sorted(path.name for path in out.iterdir()), ["epoch-0", "epoch-1"])
            replay = ("replay", out / "epoch-1", f"--store=photos={store}", "--json")
            (stage,) = json.loads(output_of(*replay))["stages"]
            self.assertEqual((stage["letters"], stage["still_failing"], stage["mended"]), (1, 1, 0))
            self.assertIn("The documents are the same.", output_of("compare", out / "epoch-0", out / "epoch-1"))

    def test_no_run_is_overwritten(self) -> None:
        with folder() as made:
            for _ in range(3):
                pipeline = planes(8, out=made)
                self.assertEqual(len(list(pipeline)), 2)
                written = sorted(path.name for path in made.iterdir())
            self.assertEqual(written, ["epoch-0", "epoch-0-2", "epoch-0-3"])

    def test_ranks_have_separate_folders_that_can_be_compared(self) -> None:
        with folder() as made:
            seen = []
            for rank in range(2):
                pipeline = planes(16, out=made, rank=rank, world=2, epoch=5)
                seen += order_of(pickle.loads(pickle.dumps(pipeline)))
            self.assertEqual(sorted(seen), list(range(16)))
            ranks = [made / f"epoch-5/rank-{rank}" for rank in range(2)]
            compared = json.loads(output_of("compare", "--json", *ranks))
            self.assertEqual(sorted(rank["rank"] for rank in compared["ranks"]), [0, 1])

    def test_a_loop_that_is_left_early_has_written_its_run(self) -> None:
        with folder() as made:
            pipeline = planes(400, out=made)
            for _ in pipeline:
                break
            pipeline.close()
            self.assertEqual(json.loads((made / "epoch-0/snapshot.json").read_text())["state"], "stopped")

    def test_a_headspace_measurement_writes_no_output(self) -> None:
        with folder() as made:
            sizes: list[int] = []
            try:
                penstock.headspace(planes(4, out=made), lambda batch: sizes.append(batch.size), seconds=0.2)
            except penstock.PenstockError as error:
                # The rates of such a short measurement may contradict each other.
                self.assertIn("contradict each other", str(error))
            self.assertEqual(set(sizes), {4})
            self.assertEqual(list(made.iterdir()), [])

    def test_output_that_cannot_be_written_raises(self) -> None:
        with folder() as made:
            (made / "file").write_text("")
            with self.assertRaisesRegex(penstock.PenstockError, "`.*/file` is a file, and the run needs a folder"):
                list(planes(8, out=made / "file"))
            batches = iter(planes(8, out=made / "out"))
            next(batches)
            shutil.rmtree(made / "out")
            not_whole = "the run's output is incomplete: cannot write `.*times.json`: "
            with self.assertLogs("penstock", "ERROR"), self.assertRaisesRegex(penstock.PenstockError, not_whole):
                list(batches)

    def test_a_failing_run_raises_its_error_even_if_its_output_is_incomplete(self) -> None:
        stages = [{"sleep": {"mean_ms": 2, "fail_rate": 0.2}}, {"aggregate": {"size": 1}}, {"collate": {}}]
        document = {"source": {"range": {"count": 40_000}}, "stages": stages, "max_failures": {"count": 100}}
        with folder() as made:
            batches = iter(penstock.Pipeline(document, out=made / "out"))
            next(batches)
            shutil.rmtree(made / "out")
            with self.assertLogs("penstock", "ERROR") as logs, self.assertRaisesRegex(penstock.RunFailed, "100"):
                for _ in batches:
                    pass
        self.assertIn("the run's output is incomplete", "".join(logs.output))

    def test_incomplete_output_is_only_logged_when_the_loop_is_left_early(self) -> None:
        with folder() as made, mock.patch("sys.unraisablehook") as ignored:
            with self.assertLogs("penstock", "ERROR") as logs:
                for _ in planes(400, out=made / "out"):
                    shutil.rmtree(made / "out")
                    break
                gc.collect()
            with self.assertLogs("penstock", "ERROR"), self.assertRaises(ZeroDivisionError):
                with planes(400, out=made / "out") as pipeline:
                    for _ in pipeline:
                        shutil.rmtree(made / "out")
                        1 / 0
            ignored.assert_not_called()
        self.assertIn("the run's output is incomplete", "".join(logs.output))


if __name__ == "__main__":
    unittest.main()
