"""One process of a real training: `python cells.py LAUNCHER LOADER MODE FOLDER`, started by a test or by the launcher itself.

Every process writes the samples that it got into a file in `FOLDER`, or the error that was raised instead.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import penstock
import torch
import torch.distributed
from penstock.torch import DataLoader, IterableDataset

COUNT = 23


def pipeline(folder: str, mode: str, **options: Any) -> penstock.Pipeline:
    document = {
        "name": "numbers",
        "threads": 1,
        "source": {"records": {"store": "here", "key": "numbers.ndjson", "shuffle": mode == "train"}},
        "stages": [{"aggregate": {"size": 3}}, {"collate": {}}],
    }
    return penstock.Pipeline(document, stores={"here": folder}, uneven="drop" if mode == "train" else "keep", **options)


class Own(torch.utils.data.IterableDataset[dict[str, Any]]):
    """A data set as written by users who do not use the data set class of the package."""

    def __init__(self, loader: penstock.Pipeline) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        for batch in self.loader:
            yield {"number": torch.from_dlpack(batch["number"]).clone()}


def loader(kind: str, folder: str, mode: str) -> Iterable[Any]:
    """Returns a loader under test by name: an object that users may pass to a framework."""
    spawned = {"batch_size": None, "num_workers": 2, "multiprocessing_context": "spawn"}
    match kind:
        case "pipeline":
            return pipeline(folder, mode)
        case "loader":
            return DataLoader(pipeline(folder, mode))
        case "dataset":
            return torch.utils.data.DataLoader(IterableDataset(pipeline(folder, mode)), batch_size=None)
        case "own":
            return torch.utils.data.DataLoader(Own(pipeline(folder, mode)), batch_size=None)
        case "workers":
            return torch.utils.data.DataLoader(IterableDataset(pipeline(folder, mode)), **spawned)
        case "sharing-workers":
            return torch.utils.data.DataLoader(IterableDataset(pipeline(folder, mode, workers="share")), **spawned)
        case "forked-workers":
            data = IterableDataset(pipeline(folder, mode, workers="share"))
            return torch.utils.data.DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork")
    raise ValueError(kind)


def numbers(batches: Iterable[Any]) -> list[int]:
    return [number for batch in batches for number in torch.from_dlpack(batch["number"]).tolist()]


def write(folder: str, rank: int, given: list[Any] | str) -> None:
    Path(folder, f"rank-{rank}.json").write_text(json.dumps(given))


def record(folder: str, rank: int, epochs: Any) -> None:
    """Writes the samples of two epochs, or the error that was raised instead."""
    try:
        given: list[Any] | str = [epochs() for _ in range(2)]
    except Exception as error:
        given = f"{type(error).__name__}: {error}"
    write(folder, rank, given)


def spawned(rank: int, world: int, kind: str, mode: str, folder: str) -> None:
    torch.distributed.init_process_group("gloo", rank=rank, world_size=world, init_method=f"file://{folder}/group")
    batches = loader(kind, folder, mode)
    record(folder, rank, lambda: numbers(batches))
    torch.distributed.destroy_process_group()


def torchrun(kind: str, mode: str, folder: str) -> None:
    # Initialises no process group, as in many scripts: the loader reads the environment variables of torchrun.
    batches = loader(kind, folder, mode)
    record(folder, int(os.environ["RANK"]), lambda: numbers(batches))


def accelerated(kind: str, mode: str, folder: str) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    batches = accelerator.prepare(loader(kind, folder, mode))
    record(folder, accelerator.process_index, lambda: numbers(batches))
    accelerator.end_training()


def lightning(kind: str, mode: str, folder: str, world: int) -> None:
    import lightning.pytorch as pl

    class Model(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.given: list[int] = []
            self.epochs: list[list[int]] = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            numbers = torch.from_dlpack(batch["number"])
            self.given.extend(numbers.tolist())
            return self.layer(numbers.float().unsqueeze(1)).mean()

        def validation_step(self, batch: Any, _: int) -> None:
            self.given.extend(torch.from_dlpack(batch["number"]).tolist())

        def on_train_epoch_end(self) -> None:
            self.epochs.append(self.given)
            self.given = []

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    model = Model()
    trainer = pl.Trainer(
        accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_epochs=2, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
    )  # fmt: skip
    batches = loader(kind, folder, mode)
    if mode == "train":
        trainer.fit(model, batches)
        write(folder, trainer.global_rank, model.epochs)
        return
    for _ in range(2):
        trainer.validate(model, batches, verbose=False)
        model.epochs.append(model.given)
        model.given = []
    write(folder, trainer.global_rank, model.epochs)


if __name__ == "__main__":
    launcher, kind, mode, folder, world = sys.argv[1:]
    match launcher:
        case "alone":
            batches = loader(kind, folder, mode)
            record(folder, 0, lambda: numbers(batches))
        case "spawn":
            torch.multiprocessing.spawn(spawned, (int(world), kind, mode, folder), nprocs=int(world))
        case "torchrun":
            torchrun(kind, mode, folder)
        case "accelerate":
            accelerated(kind, mode, folder)
        case "lightning":
            lightning(kind, mode, folder, int(world))
