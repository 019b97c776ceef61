"""Trains a small network on photos, and reports whether loading is the limit.

    python examples/train/train.py --photos demo/photos

Labels are made up from the photos' numbers, so that there is something to learn by heart: the loss falls, and means nothing.
On a machine with an NVIDIA GPU the batches arrive in its memory and the network runs there; else all of it is on the CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import penstock

try:
    import torch
    from torch import nn
except ImportError:
    sys.exit("train.py needs PyTorch, which is not a dependency of `penstock`: pip install torch")

HERE = Path(__file__).parent


@dataclass
class Spent:
    """Times of one epoch, in seconds."""

    steps: int = 0
    images: int = 0
    #: Time spent waiting for the first batch, since a run starts with empty queues.
    beginning: float = 0.0
    #: Total time spent waiting for all other batches.
    waiting: float = 0.0
    stepping: float = 0.0
    loss: float = 0.0

    def __str__(self) -> str:
        whole = self.beginning + self.waiting + self.stepping
        wait = self.waiting / max(self.steps - 1, 1)
        return (
            f"{self.steps} steps of {1000 * self.stepping / self.steps:.1f} ms; in next() {1000 * self.beginning:.1f} ms for the first batch, "
            f"{1000 * wait:.2f} ms for each other; {self.images / whole:.0f} images/s; loss {self.loss / self.steps:.3f}"
        )


def main() -> None:
    arguments = parsed()
    pipeline = penstock.Pipeline(
        HERE / "photos.json",
        stores={"photos": arguments.photos},
        settings={
            "/stages/1/wasm/params/ops/0/Resize/size": arguments.size,
            "/stages/1/wasm/params/ops/1/CenterCrop/size": arguments.size,
            "/stages/2/aggregate/size": arguments.batch,
        },
        threads=arguments.threads,
        epoch=arguments.epoch,
    )
    print(f"{len(pipeline)} batches of {arguments.batch} photos an epoch")
    network = small_network(arguments.classes)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)

    def step(batch: penstock.Batch) -> float:
        images = torch.from_dlpack(batch["image"])  # float32, [batch, 3, size, size]
        network.to(images.device)
        labels = torch.tensor([number(key) % arguments.classes for key in batch.samples], device=images.device)
        loss = nn.functional.cross_entropy(network(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        # Waits for the GPU, so that the whole time of the step is measured here.
        return loss.item()

    for _ in range(arguments.epochs):
        epoch, spent = pipeline.epoch, Spent()
        for batch, waited in timed(pipeline):
            begin = time.perf_counter()
            spent.loss += step(batch)
            spent.stepping += time.perf_counter() - begin
            if spent.steps == 0:
                spent.beginning = waited
            else:
                spent.waiting += waited
            spent.steps += 1
            spent.images += batch.size
        if spent.steps == 0:
            sys.exit(f"fewer than {arguments.batch} photos in {arguments.photos}: create some with `make photos`")
        print(f"epoch {epoch}: {spent}\n  {pipeline.verdict().sentence}")
    if arguments.headspace:
        print(penstock.headspace(pipeline, step, seconds=arguments.headspace))


def timed(pipeline: penstock.Pipeline) -> Iterator[tuple[penstock.Batch, float]]:
    """Yields the batches of one iteration, each with the time waited for it, in seconds."""
    begin = time.perf_counter()
    for batch in pipeline:
        yield batch, time.perf_counter() - begin
        # The memory of a dropped batch is reused for a later batch.
        del batch
        begin = time.perf_counter()


def small_network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def number(key: str) -> int:
    """Number in the name of a photo: 17 for `000/000017.jpg`."""
    return int(Path(key).stem)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a small network on photos, and reports whether loading is the limit.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--photos", type=Path, default=Path("demo/photos"), help="folder of JPEGs with numbers for names, as `make photos` creates")
    parser.add_argument("--epochs", type=int, default=3, help="passes over the photos")
    parser.add_argument("--epoch", type=int, default=0, help="number of the first epoch, to continue an earlier training")
    parser.add_argument("--batch", type=int, default=32, help="photos in a batch")
    parser.add_argument("--size", type=int, default=64, help="height and width of the network's input, in pixels")
    parser.add_argument("--classes", type=int, default=10, help="number of labels")
    parser.add_argument("--threads", type=int, help="worker threads of the pipeline (default: one per core)")
    parser.add_argument("--headspace", type=float, metavar="SECONDS", help="measure the gain of faster loading at the end, in three runs of this length")
    return parser.parse_args()


if __name__ == "__main__":
    main()
