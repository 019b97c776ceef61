"""Learns the mean colour of photos on a Ray cluster, with as many workers as there is room for, and loses nothing when a node is lost.

    python examples/ray/train.py --photos demo/photos --storage demo/ray
    python examples/ray/train.py --photos /data/photos --storage s3://bucket/runs --address ray-head:6379 --workers 1 8

The mean stands for a model: its sums are in the checkpoint, so each photo counts once even if workers are lost. With PyTorch, use
`ray.train.torch.TorchTrainer`, and put the weights into the same folder.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy
import penstock.ray
import ray
import ray.train
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

HERE = Path(__file__).parent


def main() -> None:
    arguments = parsed()
    ray.init(address=arguments.address)
    trainer = DataParallelTrainer(
        train,
        train_loop_config={"every": arguments.every, "step_s": arguments.step_ms / 1000},
        datasets={"train": penstock.ray.LazyPipeline(HERE / "photos.json", stores={"photos": arguments.photos})},
        dataset_config=penstock.ray.DataConfig(),
        # Looks every 10 s for nodes that have joined.
        scaling_config=ray.train.ScalingConfig(
            num_workers=tuple(arguments.workers), resources_per_worker={"CPU": arguments.cpus}, elastic_resize_monitor_interval_s=10
        ),
        run_config=ray.train.RunConfig(
            name=f"mean-colour-{time.time_ns()}",
            storage_path=arguments.storage,
            failure_config=ray.train.FailureConfig(max_failures=3),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
            callbacks=[penstock.ray.Reports(arguments.reports)] if arguments.reports else None,
        ),
    )
    checkpoint = trainer.fit().checkpoint
    assert checkpoint is not None, "the last report has a checkpoint"
    photos, colour = summed(checkpoint)
    print(f"{photos} photos, mean colour {', '.join(f'{level:.4f}' for level in colour / photos)}")


def train(config: dict[str, Any]) -> None:
    """Function of each worker."""
    context = ray.train.get_context()
    photos, colour = 0, numpy.zeros(3)
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None and context.get_world_rank() == 0:
        # The sums of all earlier workers.
        photos, colour = summed(checkpoint)
    # Continues behind the samples that are in the checkpoint.
    pipeline = ray.train.get_dataset_shard("train").pipeline

    def save() -> None:
        with tempfile.TemporaryDirectory() as folder:
            part = {"photos": photos, "colour": colour.tolist()}
            Path(folder, f"sums-{context.get_world_rank()}.json").write_text(json.dumps(part))
            penstock.ray.report(pipeline, {"photos": photos}, folder)

    for step, batch in enumerate(pipeline, 1):
        # float32, [16, 3, 64, 64]
        images = numpy.from_dlpack(batch["image"])
        photos += len(images)
        colour += images.mean(axis=(2, 3), dtype=float).sum(axis=0)
        time.sleep(config["step_s"])
        if step % config["every"] == 0:
            save()
    save()


def summed(checkpoint: ray.train.Checkpoint) -> tuple[int, numpy.ndarray]:
    """Number of photos in a checkpoint, and the sum of their mean colours."""
    with checkpoint.as_directory() as folder:
        parts = [json.loads(path.read_text()) for path in Path(folder).glob("sums-*.json")]
    return sum(part["photos"] for part in parts), numpy.sum([part["colour"] for part in parts], axis=0)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=absolute, required=True, help="folder with JPEGs, or s3://bucket/prefix, that all nodes can read")
    parser.add_argument("--storage", type=absolute, required=True, help="folder or bucket for checkpoints that all nodes can write")
    parser.add_argument("--address", help="address of the cluster; by default RAY_ADDRESS, else this machine alone")
    parser.add_argument("--workers", type=int, nargs=2, default=(1, 2), metavar=("LEAST", "MOST"), help="number of workers")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of a worker, which are the threads of its pipeline")
    parser.add_argument("--every", type=int, default=20, help="steps from one checkpoint to the next")
    parser.add_argument("--step-ms", type=float, default=0, help="time of a step beside that for the mean")
    parser.add_argument("--reports", help="folder on this machine for the figures of all ranks, as `penstock compare` reads them")
    return parser.parse_args()


def absolute(place: str) -> str:
    """The place as workers find it, who run in another folder."""
    return place if "://" in place else str(Path(place).absolute())


if __name__ == "__main__":
    main()
