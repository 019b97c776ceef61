"""Trains on a folder of photos with a folder for each class.

    torchrun --nproc-per-node=2 examples/train/imagefolder_after.py FOLDER
"""

import argparse
import os
from pathlib import Path

import penstock
import torch
from torch import Tensor, distributed, nn

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains on a folder of photos with a folder for each class.")
    parser.add_argument("folder", help="photos as CLASS/NAME.jpg")
    parser.add_argument("--epochs", type=int, default=2, help="passes over the photos")
    parser.add_argument("--batch", type=int, default=32, help="photos in a batch of one process")
    arguments = parser.parse_args()

    # Uses GPUs only if this machine has one for each process: with NCCL, two processes cannot share a GPU.
    cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    distributed.init_process_group("nccl" if cuda else "gloo")

    loader = penstock.Pipeline(
        HERE / "imagefolder.json",
        stores={"photos": arguments.folder},
        settings={"/stages/2/aggregate/size": arguments.batch},
        device=str(device) if cuda else "host",
    )
    classes = sum(entry.is_dir() for entry in os.scandir(arguments.folder))

    network = nn.parallel.DistributedDataParallel(small_network(classes).to(device))
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    for epoch in range(arguments.epochs):
        losses = []
        for batch in loader:
            images, labels = torch.from_dlpack(batch["image"]), torch.from_dlpack(batch["label"])
            losses.append(step(network, optimizer, images, labels))
        print(f"rank {distributed.get_rank()}, epoch {epoch}: {len(losses)} steps, loss {sum(losses) / len(losses):.3f}", flush=True)
    distributed.destroy_process_group()


def small_network(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def step(network: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    loss = nn.functional.cross_entropy(network(images), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()


if __name__ == "__main__":
    main()
