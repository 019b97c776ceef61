"""Pipelines as sources of Ray Data: each sample is a row once, and a task that is tried again makes the same rows."""

from __future__ import annotations

import struct
import subprocess
import sys
import tarfile
import unittest
from pathlib import Path
from typing import Any

import penstock.ray
import pyarrow.parquet
from cluster import PATIENCE, nodes
from kit import clean, folder, photos
from stage import Elements, constant_stage

EXAMPLES = Path(__file__).parents[3] / "examples/ray"


def document(**source: Any) -> dict[str, Any]:
    """A pipeline whose batches come in any order, over several passes, without the last samples."""
    return {
        "name": "numbers",
        "source": {"range": {"count": 100, "shuffle": True, "epochs": 2, **source}},
        "stages": [
            {"sleep": {"mean_ms": 1, "jitter": 1, "concurrency": 8}},
            {"wasm": {"module": "fields", "concurrency": 2}},
            {"aggregate": {"size": 6, "drop_last": True}},
            {"collate": {}},
        ],
    }


def tables(source: penstock.ray.PenstockDatasource, tasks: int) -> list[list[Any]]:
    return [list(task()) for task in source.get_read_tasks(tasks)]


class Tasks(unittest.TestCase):
    def test_tasks_make_each_sample_once_and_the_same_again(self) -> None:
        plain = {**document(), "stages": [{"aggregate": {"size": 6}}, {"collate": {}}]}
        order = [key for batch in penstock.Pipeline(plain, settings={"/source/range/epochs": 1}, epoch=3) for key in batch.samples]
        source = penstock.ray.PenstockDatasource(plain, epoch=3)
        for tasks, made in ((1, 1), (3, 3), (50, 4)):
            rows = [[key for table in task for key in table["__key__"].to_pylist()] for task in tables(source, tasks)]
            self.assertEqual([key for task in rows for key in task], order)
            self.assertEqual(len(rows), made)

    def test_rows_do_not_depend_on_the_order_in_which_stages_end(self) -> None:
        stages = [document()["stages"][0], *document()["stages"][2:]]
        source = penstock.ray.PenstockDatasource({**document(), "stages": stages})
        first = tables(source, 3)
        self.assertEqual(sum(table.num_rows for task in first for table in task), 100)
        self.assertEqual(first, tables(source, 3))

    def test_the_number_of_samples_need_not_be_known(self) -> None:
        with folder() as here:
            with tarfile.open(here / "a.tar", "w") as tar:
                tar.add(__file__, "x.py")
                tar.add(__file__, "y.py")
            written = {"source": {"tar": {"store": "here", "shards": "a.tar"}}, "stages": [{"aggregate": {"size": 1}}, {"collate": {}}]}
            (rows,) = tables(penstock.ray.PenstockDatasource(written, stores={"here": here}), 8)
        self.assertEqual([table["__key__"].to_pylist() for table in rows], [["x"], ["y"]])
        self.assertEqual(rows[0]["py"].to_pylist(), [Path(__file__).read_bytes()])

    def test_arrays_are_tensors_and_numbers(self) -> None:
        image, label = Elements("float32", (2, 3), struct.pack("<6f", *range(6))), Elements("int64", (), struct.pack("<q", 7))
        rows = self.rows(image=image, label=label)
        self.assertEqual(rows["image"].to_pylist()[99].tolist(), [[0, 1, 2], [3, 4, 5]])
        self.assertEqual(rows["image"].type.shape, (2, 3))
        self.assertEqual((str(rows["label"].type), rows["label"].to_pylist()), ("int64", [7] * 100))
        with self.assertRaises(penstock.InvalidPipeline) as raised:
            self.rows(odd=Elements("bfloat16", (1,), bytes(2)))
        self.assertIn("the field `odd` cannot be a column of Ray Data", str(raised.exception))

    def rows(self, **fields: Elements) -> pyarrow.Table:
        """Rows whose samples have these fields. Arrays stay in host memory."""
        written = {**document(), "stages": [*document()["stages"], {"transfer": {"device": "auto"}}]}
        source = penstock.ray.PenstockDatasource(written, modules={"fields": constant_stage("fields", fields)})
        return pyarrow.concat_tables(tables(source, 1)[0])

    def test_a_fault_is_reported_before_any_task(self) -> None:
        with self.assertRaises(penstock.InvalidPipeline):
            penstock.ray.PenstockDatasource(document(), modules={})


class Examples(unittest.TestCase):
    """The examples, on a cluster of two nodes."""

    def test_the_examples_get_each_photo_once(self) -> None:
        with nodes(2) as (cluster, _), folder() as here:
            self.run_example("export.py", "--address", cluster.address, "--photos", photos(), "--out", here / "colours", "--tasks", "2")
            written = pyarrow.parquet.read_table(here / "colours")
            keys = sorted(str(path.relative_to(photos())) for path in photos().rglob("*.jpg"))
            self.assertEqual(sorted(written["photo"].to_pylist()), keys)
            mean = [sum(written[name].to_pylist()) / len(keys) for name in ("red", "green", "blue")]

            options = ["--storage", here / "storage", "--every", "1", "--reports", here / "reports"]
            trained = self.run_example("train.py", "--address", cluster.address, "--photos", photos(), *options)
            self.assertIn(f"{len(keys)} photos, mean colour {', '.join(f'{level:.4f}' for level in mean)}", trained)
            command = [sys.executable, "-m", "penstock", "compare", here / "reports/rank-0", here / "reports/rank-1"]
            compared = subprocess.run(command, capture_output=True, text=True)
            self.assertRegex(compared.stdout, "No rank is slower|is the straggler", compared.stderr)

    def run_example(self, name: str, *arguments: Any) -> str:
        command = [sys.executable, EXAMPLES / name, *map(str, arguments)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=clean())
        self.assertEqual(ended.returncode, 0, ended.stdout + ended.stderr)
        return ended.stdout


if __name__ == "__main__":
    unittest.main()
