"""Checkpoints of real frameworks on the CPU: a training that continues from one gets what it had not got before, each sample once."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import jax.numpy
import numpy
import orbax.checkpoint as ocp
import penstock
import penstock.orbax
import torch.utils.data
from penstock.torch import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from trainings import COUNT, EPOCHS, Given, pipeline, write_numbers

HERE = Path(__file__).parent
# Maximum time of all trainings of a test, in seconds.
PATIENCE = 600


@contextmanager
def numbers() -> Iterator[Path]:
    """Folder of the samples."""
    with tempfile.TemporaryDirectory() as folder:
        write_numbers(Path(folder))
        yield Path(folder)


def flat(batches: Given) -> Counter[int]:
    return Counter(number for batch in batches for number in batch)


def values(batches: Any) -> Given:
    return [numpy.from_dlpack(batch["number"]).tolist() for batch in batches]


class Trainings(unittest.TestCase):
    """Trainings of `trainings.py`."""

    def continues(self, library: str, kind: str, world: int = 1) -> None:
        with self.subTest(library=library, kind=kind, world=world), numbers() as folder:
            torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"] if world > 1 else []
            command = [sys.executable, *torchrun, str(HERE / "trainings.py"), library, kind, str(folder)]
            finished = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
            self.assertEqual(finished.returncode, 0, f"{finished.stdout}\n{finished.stderr}")
            ranks = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(world)]
            if kind == "ordered":
                self.assertEqual(sum((flat(rank["whole"]) for rank in ranks), Counter()), Counter(dict.fromkeys(range(COUNT), EPOCHS)))
            for rank in ranks:
                whole, before = rank["whole"], rank["before"]
                self.assertGreater(len(rank["resumed"]), len(before) - 1)
                for step, rest in rank["resumed"]:
                    given = before[:step] + rest
                    if kind == "failing":
                        self.assertEqual(flat(given), flat(whole), step)
                    else:
                        self.assertEqual(given, whole, step)
            if library == "accelerate" and world > 1:
                self.ranks_of_another_number_continue(folder, [rank["before"][:2] for rank in ranks])

    def ranks_of_another_number_continue(self, folder: Path, before: list[Given]) -> None:
        """Checks the checkpoint behind the second step, which is in the first epoch."""
        state = torch.load(folder / "step=2/dl_state_dict.bin")
        for world in (1, 3):
            given = [batch for rank in before for batch in rank]
            for rank in range(world):
                loader = DataLoader(pipeline("ordered", folder, rank=rank, world=world))
                loader.load_state_dict(state)
                given += values(loader)
            self.assertEqual(sorted(flat(given).elements()), list(range(COUNT)), world)

    def test_lightning(self) -> None:
        self.continues("lightning", "ordered")
        self.continues("lightning", "filtered")
        self.continues("lightning", "failing")
        self.continues("lightning", "ordered", 2)

    def test_accelerate(self) -> None:
        self.continues("accelerate", "ordered")
        self.continues("accelerate", "filtered")
        self.continues("accelerate", "failing")
        self.continues("accelerate", "ordered", 2)


class Torch(unittest.TestCase):
    def test_a_data_set_continues(self) -> None:
        for library in (torch.utils.data.DataLoader, StatefulDataLoader):
            with self.subTest(library.__name__), numbers() as folder:

                def loader(library: Any = library, folder: Path = folder) -> Any:
                    return library(IterableDataset(pipeline("filtered", folder)), batch_size=None)

                first = loader()
                whole = values(first) + values(first)
                for stop in range(len(whole) // 2):
                    interrupted, resumed = loader(), loader()
                    stateful = (interrupted, resumed) if library is StatefulDataLoader else (interrupted.dataset, resumed.dataset)
                    given = values(islice(interrupted, stop))
                    stateful[1].load_state_dict(json.loads(json.dumps(stateful[0].state_dict())))
                    self.assertEqual(given + values(resumed) + values(resumed), whole, stop)

    def test_workers_of_a_stateful_loader_continue(self) -> None:
        with numbers() as folder:

            def loader() -> Any:
                data = IterableDataset(pipeline("failing", folder, workers="share", uneven="keep"))
                return StatefulDataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="spawn")

            whole = values(loader())
            for stop in (1, len(whole) - 1):
                interrupted, resumed = loader(), loader()
                given = values(islice(interrupted, stop))
                resumed.load_state_dict(interrupted.state_dict())
                self.assertEqual(flat(given + values(resumed)), flat(whole), stop)

    def test_a_data_set_that_workers_read_has_no_state(self) -> None:
        with numbers() as folder:
            data = IterableDataset(pipeline("ordered", folder, workers="share"))
            iterator = iter(torch.utils.data.DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="spawn"))
            next(iterator)
            with self.assertRaisesRegex(penstock.PenstockError, "num_workers=0.*StatefulDataLoader"):
                data.state_dict()
            del iterator
            self.assertEqual(len(values(data)), len(data))
            data.state_dict()


class Orbax(unittest.TestCase):
    def test_a_pipeline_continues_beside_arrays(self) -> None:
        with numbers() as folder:
            passes = pipeline("ordered", folder)
            whole = values(passes) + values(passes)
            interrupted = pipeline("ordered", folder)
            given: Given = []
            with ocp.CheckpointManager(folder / "checkpoints") as manager:
                for step, batch in enumerate(interrupted, 1):
                    given += values([batch])
                    arrays = ocp.args.StandardSave({"weight": jax.numpy.full(4, step)})
                    manager.save(step, args=ocp.args.Composite(arrays=arrays, data=penstock.orbax.Save(interrupted)))
                    if step == 5:
                        break
            with ocp.CheckpointManager(folder / "checkpoints") as manager:
                self.assertEqual(manager.all_steps(), [1, 2, 3, 4, 5])
                for step in manager.all_steps():
                    resumed = pipeline("ordered", folder)
                    arguments = ocp.args.Composite(arrays=ocp.args.StandardRestore(), data=penstock.orbax.Restore(resumed))
                    restored = manager.restore(step, args=arguments)
                    self.assertIs(restored["data"], resumed)
                    self.assertEqual(restored["arrays"]["weight"].tolist(), [step] * 4)
                    self.assertEqual(given[:step] + values(resumed) + values(resumed), whole, step)
            files = [file.name for file in (folder / "checkpoints/3/data").glob("*.json")]
            self.assertEqual(files, ["rank-0.json"])

    def test_any_number_of_processes_restores_the_files_of_all(self) -> None:
        with numbers() as folder:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                address = f"127.0.0.1:{free.getsockname()[1]}"
            command = [sys.executable, str(HERE / "restored.py"), str(folder), address]
            children = [subprocess.Popen([*command, str(rank), "2"], stderr=subprocess.PIPE, text=True) for rank in range(2)]
            errors = [child.communicate(timeout=PATIENCE)[1] for child in children]
            self.assertEqual([child.returncode for child in children], [0, 0], errors)
            before: Given = [batch for rank in range(2) for batch in json.loads((folder / f"rank-{rank}.json").read_text())]
            for world in (1, 2, 3):
                rest: Given = []
                for rank in range(world):
                    resumed = pipeline("failing", folder, rank=rank, world=world, uneven="keep")
                    with ocp.CheckpointManager(folder / "checkpoints") as manager:
                        manager.restore(2, args=ocp.args.Composite(data=penstock.orbax.Restore(resumed)))
                    rest += values(resumed)
                self.assertEqual(flat(before + rest), flat(values(pipeline("failing", folder))), world)


if __name__ == "__main__":
    unittest.main()
