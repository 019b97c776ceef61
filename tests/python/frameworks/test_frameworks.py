"""Real frameworks on the CPU: each sample comes once per epoch over all ranks, or an exception explains the fix."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import cells
import tqdm.auto
from cells import COUNT

CELLS = str(Path(__file__).with_name("cells.py"))
WORLDS = (1, 2, 7)
# Maximum time of a training of a few steps, in seconds; seven processes have to import a framework.
PATIENCE = 600


def run(launcher: str, loader: str, mode: str, world: int) -> list[list[list[int]] | str]:
    """Samples that each rank got in two epochs, or the error that was raised."""
    with tempfile.TemporaryDirectory() as folder:
        lines = "".join(json.dumps({"key": str(number), "number": number}) + "\n" for number in range(COUNT))
        Path(folder, "numbers.ndjson").write_text(lines)
        started = [sys.executable]
        if launcher in ("torchrun", "accelerate"):
            started += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
        finished = subprocess.run(
            [*started, CELLS, launcher, loader, mode, folder, str(world)], capture_output=True, text=True, timeout=PATIENCE
        )
        files = [Path(folder, f"rank-{rank}.json") for rank in range(world)]
        if not all(file.exists() for file in files):
            raise AssertionError(f"{launcher}, {loader}, {mode}, {world}: {finished.stdout}\n{finished.stderr}")
        return [json.loads(file.read_text()) for file in files]


class Frameworks(unittest.TestCase):
    maxDiff = None

    def each_once(self, launcher: str, loader: str, modes: tuple[str, ...] = ("train", "validate"), worlds: tuple[int, ...] = WORLDS) -> None:
        for mode in modes:
            for world in worlds:
                with self.subTest(launcher=launcher, loader=loader, mode=mode, world=world):
                    ranks = run(launcher, loader, mode, world)
                    for epoch in range(2):
                        given = [rank[epoch] for rank in ranks]
                        everything = sorted(number for numbers in given for number in numbers)
                        if mode == "validate":
                            self.assertEqual(everything, list(range(COUNT)))
                        else:
                            # Ranks run in lock step: each gets the same number of samples, no sample comes twice, and only a
                            # remainder is left out.
                            self.assertEqual([len(numbers) for numbers in given], [COUNT // world] * world)
                            self.assertEqual(len(set(everything)), COUNT - COUNT % world)

    def each_raises(self, launcher: str, loader: str, world: int, told: str) -> None:
        with self.subTest(launcher=launcher, loader=loader, world=world):
            # One rank raises the error; the others may only report that this rank has ended.
            ranks = run(launcher, loader, "train", world)
            self.assertTrue(all(isinstance(rank, str) for rank in ranks), ranks)
            self.assertRegex("\n".join(map(str, ranks)), told)

    def test_alone(self) -> None:
        for loader in ("pipeline", "loader", "dataset", "own", "sharing-workers"):
            modes = ("validate",) if loader == "sharing-workers" else ("train", "validate")
            self.each_once("alone", loader, modes, (1,))

    def test_workers_that_would_read_each_sample_twice_are_refused(self) -> None:
        self.each_raises("alone", "workers", 1, "InvalidPipeline.*worker . of 2 of a DataLoader.*num_workers=0")
        self.each_raises("alone", "forked-workers", 1, "ForkError.*spawn")

    def test_torchrun(self) -> None:
        self.each_once("torchrun", "pipeline")
        self.each_once("torchrun", "loader", worlds=(2,))
        self.each_once("torchrun", "sharing-workers", ("validate",), (2,))

    def test_spawn_with_a_process_group(self) -> None:
        self.each_once("spawn", "pipeline")
        self.each_once("spawn", "loader", worlds=(2,))
        self.each_once("spawn", "sharing-workers", ("validate",), (2,))

    def test_lightning(self) -> None:
        self.each_once("lightning", "loader")
        self.each_once("lightning", "pipeline", worlds=(2,))
        self.each_once("lightning", "dataset", worlds=(2,))

    def test_accelerate(self) -> None:
        self.each_once("accelerate", "loader")
        self.each_once("accelerate", "pipeline", worlds=(2,))
        self.each_raises("accelerate", "own", 2, "InvalidPipeline: Accelerate shards.*penstock.torch.DataLoader")
        self.each_raises("accelerate", "dataset", 2, "InvalidPipeline: Accelerate shards.*penstock.torch.DataLoader")

    def test_a_loader_gives_tensors_that_share_memory_and_starts_at_the_set_epoch(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            lines = "".join(json.dumps({"key": str(number), "number": number, "name": f"n{number}"}) + "\n" for number in range(COUNT))
            Path(folder, "numbers.ndjson").write_text(lines)
            batches = cells.loader("loader", folder, "train")
            self.assertEqual(len(batches), 8)
            orders = []
            for _ in range(2):
                batches.set_epoch(3)
                orders.append([(batch["number"].tolist(), batch["name"]) for batch in batches])
            self.assertEqual(*orders)
            first = next(iter(cells.pipeline(folder, "validate")))
            held = first.to("cpu")
            held["number"][0] = 99
            self.assertEqual((first["number"][0], held["name"], first.to("meta")["number"].device.type), (99, ["n0", "n1", "n2"], "meta"))
            bar = io.StringIO()
            again = tqdm.auto.tqdm(cells.pipeline(folder, "validate"), file=bar)
            self.assertEqual([sum(batch.size for batch in again) for _ in range(2)], [COUNT, COUNT])
            self.assertRegex(bar.getvalue(), r"100%.* 8/8 ")


if __name__ == "__main__":
    unittest.main()
