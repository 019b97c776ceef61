"""Pipelines in Ray Train on several nodes: each sample comes once while nodes are lost and join, within the resources of the workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock.ray
import ray
import ray.train
from cluster import Training, collect, collected, nodes, tell

COUNT = 512


def document(step_ms: float = 1, count: int = COUNT, epochs: int | None = None) -> dict[str, Any]:
    """Document of numbered samples."""
    return {
        "name": "numbers",
        "source": {"range": {"count": count, "shuffle": True, "epochs": epochs}},
        "stages": [{"sleep": {"mean_ms": step_ms, "on": "thread"}}, {"aggregate": {"size": 4}}, {"collate": {}}],
    }


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="penstock-ray-") as path:
        yield Path(path)


def descendants(pid: int) -> set[int]:
    """A process and all processes that it has started."""
    found = {pid}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        found |= {one for child in children.read_text().split() for one in descendants(int(child))}
    return found


def left_behind() -> set[str]:
    """Sockets and shared memory of Penstock on this machine."""
    sockets = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines() if "penstock" in line}
    return sockets | {str(path) for path in Path("/dev/shm").glob("*penstock*")}


class Elastic(unittest.TestCase):
    def test_a_lost_and_a_new_node_lose_no_sample_and_repeat_none(self) -> None:
        before = left_behind()
        with folder() as here, nodes(2) as (cluster, workers):
            training = Training(collect, here, (1, 2), config={"document": document(), "step_s": 0.05})
            training.until("two workers have saved", lambda told: sum(one["event"] == "saved" for one in told) >= 4)
            victims = {one["rank"]: one["pid"] for one in training.told()}
            processes = {process for pid in victims.values() for process in descendants(pid)}

            cluster.remove_node(workers[1], allow_graceful=False)
            training.until("one worker continues", lambda told: any(one["world"] == 1 and one["event"] == "saved" for one in told))
            self.assertEqual([pid for pid in processes if Path(f"/proc/{pid}").exists()], [], "processes of the lost workers")

            cluster.add_node(num_cpus=1)
            training.until("two workers continue", lambda told: told[-1]["world"] == 2 and told[-1]["event"] == "saved")
            result = training.stop()
            told = training.told()

            firsts = [one for one in told if one["event"] == "first"]
            self.assertEqual([one["world"] for one in firsts], [2, 2, 1, 2, 2])
            # A loader without any work would have its first batch at once.
            for one in firsts:
                self.assertLess(one["after_s"], 2, one)
            # Each later group continues with what a checkpoint has.
            self.assertTrue(all(one["restored"] > 0 for one in firsts[2:] if one["rank"] == 0), firsts)

            seen = collected(result.checkpoint)
            self.assertEqual({count for count in seen.values()}, {1})
            last = max(epoch for epoch, _ in seen)
            for epoch in range(last):
                self.assertEqual({key for one, key in seen if one == epoch}, {str(number) for number in range(COUNT)}, epoch)
        self.assertEqual(left_behind() - before, set())


class OneGroup(unittest.TestCase):
    """Trainings without a change of the number of workers, on one cluster."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.enterClassContext(nodes(3))

    def test_the_straggler_is_named_by_figures_in_one_place(self) -> None:
        def loop(config: dict[str, Any]) -> None:
            slow = ray.train.get_context().get_world_rank() == 1
            pipeline = penstock.ray.pipeline(config["document"], settings={"/stages/0/sleep/mean_ms": 40 if slow else 4})
            for batch in pipeline:
                pass
            penstock.ray.report(pipeline, {"batches": len(pipeline)})

        with folder() as here:
            config = {"document": document(count=90, epochs=1)}
            Training(loop, here, 3, config=config, run={"callbacks": [penstock.ray.Reports(here / "reports")]}).result()
            ranks = [here / f"reports/rank-{rank}" for rank in range(3)]
            command = [sys.executable, "-m", "penstock", "compare", *map(str, ranks)]
            compared = subprocess.run(command, capture_output=True, text=True)
            self.assertIn("Rank 1 is the straggler", compared.stdout, compared.stderr)
            self.assertIn("Rank 1 is the straggler", json.loads((here / "reports/comparison.json").read_text())["sentence"])

    def test_workers_have_their_share_of_samples_threads_and_memory(self) -> None:
        def loop(config: dict[str, Any]) -> None:
            pipeline = ray.train.get_dataset_shard("train").pipeline
            began, cpu = time.monotonic(), time.process_time()
            batches = sum(1 for _ in pipeline)
            cores = (time.process_time() - cpu) / (time.monotonic() - began)
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            # A pipeline that was not made for Ray finds its rank, too.
            keys = [key for batch in penstock.Pipeline(config["document"]) for key in batch.samples]
            tell(config, threads=pipeline.stats()["threads"], cores=cores, resident=resident, batches=batches, keys=keys)

        memory = 512 << 20
        busy = document(count=600, epochs=1)
        busy["stages"][0] = {"sleep": {"mean_ms": 2, "on": "thread", "concurrency": 8}}
        with folder() as here:
            training = Training(
                loop,
                here,
                3,
                config={"document": document(count=60, epochs=1)},
                scaling={"resources_per_worker": {"CPU": 1, "memory": memory}},
                datasets={"train": penstock.ray.LazyPipeline(busy)},
                dataset_config=penstock.ray.DataConfig(),
            )
            training.result()
            told = training.told()
        self.assertEqual(sorted(one["rank"] for one in told), [0, 1, 2])
        for one in told:
            self.assertEqual((one["threads"], one["batches"]), (1, 50))
            self.assertLessEqual(one["cores"], 1.1)
            self.assertLess(one["resident"], memory)
        self.assertEqual(sorted(int(key) for one in told for key in one["keys"]), list(range(60)))


if __name__ == "__main__":
    unittest.main()
