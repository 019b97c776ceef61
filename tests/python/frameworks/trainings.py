"""Trainings that fail and continue: `python trainings.py LIBRARY KIND FOLDER`, started by a test or by torchrun.

Every process writes the numbers in its batches into `FOLDER/rank-N.json`: those of a whole training, those of a training that writes a
checkpoint behind each step and fails in its second epoch, and those of trainings that continue from each checkpoint.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
import torch
from penstock.torch import DataLoader
from photos import modules

COUNT, BATCH, EPOCHS = 22, 4, 2

# Numbers in each batch of a training.
Given = list[list[int]]

# Trains from a checkpoint, if one is given. With a step, writes a checkpoint behind each step and fails after this one.
Train = Callable[[Path | None, int | None], Given]


class Interruption(Exception):
    pass


def write_numbers(folder: Path) -> None:
    """Writes the samples; the texts of some have one character."""
    texts = ["a", "bb", "cc", "dd", "ee"]
    lines = [json.dumps({"key": str(number), "number": number, "text": texts[number % 5]}) + "\n" for number in range(COUNT)]
    (folder / "numbers.ndjson").write_text("".join(lines))


def pipeline(kind: str, folder: Path, **options: Any) -> penstock.Pipeline:
    """A pipeline whose number of batches is known; or one that drops samples, so that it is not known; or one in which samples fail and
    the order varies.
    """
    stages: list[dict[str, Any]] = {
        "ordered": [],
        "filtered": [{"wasm": {"module": "text-filter", "params": {"min_chars": 2}, "order": "input"}}],
        "failing": [{"sleep": {"mean_ms": 1, "jitter": 1, "concurrency": 4, "order": "completion", "fail_rate": 0.2}}],
    }[kind]
    document = {
        "source": {"records": {"store": "here", "key": "numbers.ndjson", "shuffle": True}},
        "seed": 7,
        "threads": 2,
        "stages": [*stages, {"aggregate": {"size": BATCH}}, {"collate": {}}],
        "max_failures": None,
    }
    filters = {"text-filter": modules() / "text_filter.wasm"} if kind == "filtered" else None
    return penstock.Pipeline(document, stores={"here": folder}, modules=filters, **options)


def epoch_ends(kind: str, folder: Path) -> list[int]:
    """Numbers of steps at the end of each epoch."""
    numbers = pipeline(kind, folder)
    return list(itertools.accumulate(sum(1 for _ in numbers) for _ in range(EPOCHS)))


def lightning(kind: str, folder: Path) -> Train:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

    world = int(os.environ.get("WORLD_SIZE", 1))

    class Model(pl.LightningModule):
        def __init__(self, fails_after: int | None) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.fails_after = fails_after
            self.given: Given = []

        def training_step(self, batch: Any, _: int) -> torch.Tensor:
            if len(self.given) == self.fails_after:
                raise Interruption
            self.given.append(batch["number"].tolist())
            return self.layer(batch["number"].float().unsqueeze(1)).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.0)

    def train(checkpoint: Path | None, fails_after: int | None) -> Given:
        model = Model(fails_after)
        checkpoints = [
            ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1),
            ModelCheckpoint(folder, "end", every_n_epochs=1, save_on_train_epoch_end=True),
            OnExceptionCheckpoint(folder, "failed"),
        ]
        trainer = pl.Trainer(
            accelerator="cpu", devices=world, strategy="ddp" if world > 1 else "auto", max_epochs=EPOCHS, logger=False,
            callbacks=[] if fails_after is None else checkpoints, enable_checkpointing=fails_after is not None, enable_progress_bar=False,
            enable_model_summary=False, default_root_dir=folder,
        )  # fmt: skip
        try:
            trainer.fit(model, DataLoader(pipeline(kind, folder)), ckpt_path=checkpoint)
        except Interruption:
            pass
        return model.given

    return train


class Progress:
    """Number of steps, which Accelerate keeps."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def accelerate(kind: str, folder: Path) -> Train:
    from accelerate import Accelerator

    last = epoch_ends(kind, folder)[-1]

    def train(checkpoint: Path | None, fails_after: int | None) -> Given:
        accelerator = Accelerator(cpu=True)
        layer = torch.nn.Linear(1, 1)
        model, optimizer, loader = accelerator.prepare(layer, torch.optim.SGD(layer.parameters(), lr=0.0), DataLoader(pipeline(kind, folder)))
        progress = Progress()
        accelerator.register_for_checkpointing(progress)
        if checkpoint is not None:
            accelerator.load_state(str(checkpoint))
        given: Given = []
        while progress.step < last:
            for batch in loader:
                if len(given) == fails_after:
                    return given
                given.append(batch["number"].tolist())
                accelerator.backward(model(batch["number"].float().unsqueeze(1)).mean())
                optimizer.step()
                progress.step += 1
                if fails_after is not None:
                    accelerator.save_state(str(folder / f"step={progress.step}"))
        return given

    return train


if __name__ == "__main__":
    library, kind, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    train = {"lightning": lightning, "accelerate": accelerate}[library](kind, folder)
    rank = os.environ.get("RANK", "0")
    whole = train(None, None)
    # Each rank fails in the middle of the second epoch.
    before = train(None, len(whole) * 3 // 4)
    end = ".ckpt" if library == "lightning" else ""
    checkpoints = {f"step={step}{end}": step for step in range(1, len(before) + 1)}
    if library == "lightning":
        checkpoints |= {"end.ckpt": epoch_ends(kind, folder)[0], "failed.ckpt": len(before)}
    resumed = [(step, train(folder / name, None)) for name, step in checkpoints.items()]
    (folder / f"rank-{rank}.json").write_text(json.dumps({"whole": whole, "before": before, "resumed": resumed}))
