"""Measures the rate at which photos become batches on two nodes of a Ray cluster on this machine, with one CPU each, and the memory for that.

    python tests/benches/python/ray_cluster.py --photos demo/photos

Candidates: Penstock in two workers of Ray Train, in two processes without Ray, and as a source of Ray Data; and Ray Data with `read_images` and
`map_batches`, in two workers of Ray Train and drained by the driver. All decode the same JPEGs, resize them to 224 x 224 (bilinear, the whole picture), and make normalised
float32, channels first, in batches of 32, which are discarded. Each measurement is a separate process with a cluster of its own, in turns: a
first pass that is not counted, then passes that are. Memory is measured in separate processes, because watching it takes a part of the time: it
is the largest sum over all processes, those of Ray included, with shared pages divided among them.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy
from turns import Measured, measured

SIZE, BATCH, WORKERS = 224, 32, 2
MEAN, DEVIATION = numpy.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], numpy.float32)
FACTOR, SHIFT = (1 / (255 * DEVIATION)).reshape(3, 1, 1), (-MEAN / DEVIATION).reshape(3, 1, 1)

# Memory of the object store of each node, in bytes.
STORE = 400 << 20

DOCUMENT: dict[str, Any] = {
    "name": "photos",
    "source": {"list": {"store": "photos", "suffix": ".jpg", "shuffle": True}},
    "stages": [
        {"fetch": {"concurrency": 4}},
        {
            "wasm": {
                "module": "std/image",
                "params": {
                    "ops": [
                        {"Resize": {"size": [SIZE, SIZE]}},
                        {"ToDtype": {"dtype": "float32", "scale": True}},
                        {"Normalize": {"mean": MEAN.tolist(), "std": DEVIATION.tolist()}},
                    ]
                },
                "concurrency": 2,
            }
        },
        {"aggregate": {"size": BATCH}},
        {"collate": {}},
    ],
}


def main() -> None:
    arguments = parsed()
    if arguments.one:
        with Watch(arguments.memory) as watch:
            result = CANDIDATES[arguments.one](arguments.photos, 1 if arguments.memory else arguments.passes)
        print(json.dumps(vars(result) | {"check": watch.peak_mib}))
        return
    found, missing = measured(list(CANDIDATES), arguments.turns)
    sys.argv.append("--memory")
    watched, unwatched = measured(list(found), 1)
    if missing := missing | unwatched:
        sys.exit("\n".join(f"{name}: {why}" for name, why in missing.items()))
    rates = {name: [turn.samples / turn.wall_s for turn in turns] for name, turns in found.items()}
    print(f"{WORKERS} nodes with 1 CPU each, batches of {BATCH}, {SIZE} x {SIZE}; medians of {arguments.turns}\n")
    print(f"{'':32} {'images/s':>10} {'peak MiB':>10}")
    for name, (turn,) in watched.items():
        print(f"{name:32} {median(rates[name]):10.0f} {turn.check:10.0f}")
    missed = False
    for other, must in (("Penstock, two processes", 0.95), ("Ray Data in Ray Train", 2.0), ("Ray Data", 2.0)):
        # The machine is faster at some times than at others: what is compared was measured in the same turn.
        ratio = median(own / its for own, its in zip(rates["Penstock in Ray Train"], rates[other]))
        missed |= ratio < must
        print(f"\nPenstock in Ray Train against {other}: {ratio:.2f}x; must {must}x: {'MISSED' if ratio < must else 'holds'}")
    sys.exit(missed)


def descendants(pid: int) -> Iterator[int]:
    """A process and all processes that it has started."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in children.read_text().split():
                yield from descendants(int(child))
        except OSError:
            continue


def memory_mib() -> float:
    """Memory of this process and of all processes that it has started, in MiB."""
    total = 0
    for pid in descendants(os.getpid()):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


class Watch:
    """Watches the memory while a `with` block runs, if that is wanted."""

    def __init__(self, is_wanted: bool) -> None:
        self.peak_mib, self._is_wanted, self._ended = 0.0, is_wanted, threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def _run(self) -> None:
        while self._is_wanted and not self._ended.wait(0.3):
            self.peak_mib = max(self.peak_mib, memory_mib())

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


@contextmanager
def cluster(cpus: int = 1) -> Iterator[None]:
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as home, os.fdopen(os.dup(1), "w") as output:
        # Workers compete with other processes as those without Ray do.
        os.environ |= {"RAY_TMPDIR": home, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
        import ray
        from ray.cluster_utils import Cluster

        # Ray writes to the standard output, which is for the result.
        os.dup2(2, 1)
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 100 << 20, "include_dashboard": False})
        try:
            for _ in range(WORKERS):
                started.add_node(num_cpus=cpus, object_store_memory=STORE)
            ray.init(address=started.address, log_to_driver=False)
            yield
        finally:
            ray.shutdown()
            started.shutdown()
            os.dup2(output.fileno(), 1)


def passes_of(images: Callable[[], int], passes: int, begin: Callable[[], Any]) -> dict[str, Any]:
    """A pass, then, when all ranks have made theirs, the passes that are measured. `images` makes a pass and returns the number of images."""
    images()
    begin()
    began = time.time()
    counted = sum(images() for _ in range(passes))
    return {"began": began, "ended": time.time(), "images": counted}


def together(parts: list[dict[str, Any]]) -> Measured:
    wall = max(part["ended"] for part in parts) - min(part["began"] for part in parts)
    return Measured(sum(part["images"] for part in parts), wall, 0, None)


def trained(images: Callable[[], Callable[[], int]], passes: int, **options: Any) -> Measured:
    """Measures workers of Ray Train. `images` is called in each worker."""

    def loop(config: dict[str, Any]) -> None:
        import ray.train.collective

        part = passes_of(images(), passes, ray.train.collective.barrier)
        Path(config["folder"], str(ray.train.get_context().get_world_rank())).write_text(json.dumps(part))

    import ray.train
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    with tempfile.TemporaryDirectory() as folder:
        DataParallelTrainer(
            loop,
            train_loop_config={"folder": folder},
            scaling_config=ray.train.ScalingConfig(num_workers=WORKERS, resources_per_worker={"CPU": 1}),
            run_config=ray.train.RunConfig(storage_path=folder, name="run"),
            **options,
        ).fit()
        return together([json.loads(Path(folder, str(rank)).read_text()) for rank in range(WORKERS)])


def in_ray_train(photos: Path, passes: int) -> Measured:
    def images() -> Callable[[], int]:
        import penstock.ray

        pipeline = penstock.ray.pipeline(DOCUMENT, stores={"photos": str(photos)})
        return lambda: sum(batch.size for batch in pipeline)

    with cluster():
        return trained(images, passes)


def two_processes(photos: Path, passes: int) -> Measured:
    spawn = multiprocessing.get_context("spawn")
    barrier = spawn.Barrier(WORKERS)
    results: Any = spawn.Queue()
    ranks = [spawn.Process(target=process, args=(rank, photos, passes, barrier, results)) for rank in range(WORKERS)]
    for rank in ranks:
        rank.start()
    parts = [results.get() for _ in ranks]
    for rank in ranks:
        rank.join()
    return together(parts)


def process(rank: int, photos: Path, passes: int, barrier: Any, results: Any) -> None:
    import penstock

    pipeline = penstock.Pipeline(DOCUMENT, stores={"photos": photos}, threads=1, rank=rank, world=WORKERS)
    results.put(passes_of(lambda: sum(batch.size for batch in pipeline), passes, barrier.wait))


def images_of(data: Any) -> int:
    """Drains a data set of Ray Data, or a shard of it, and returns the number of images."""
    total = 0
    for batch in data.iter_batches(batch_size=BATCH, batch_format="numpy"):
        assert batch["image"].shape[1:] == (3, SIZE, SIZE) and batch["image"].dtype == numpy.float32, batch["image"].shape
        total += len(batch["image"])
    return total


def drained(data: Any, passes: int) -> Measured:
    """Measures a data set of Ray Data that this process drains."""
    return together([passes_of(lambda: images_of(data), passes, lambda: None)])


def plain(photos: Path) -> Any:
    """Photos as Ray Data alone reads them."""
    import ray.data

    return ray.data.read_images(str(photos), size=(SIZE, SIZE), mode="RGB").map_batches(normalised, batch_format="numpy")


def read_images(photos: Path, passes: int) -> Measured:
    with cluster():
        return drained(plain(photos), passes)


def read_images_in_train(photos: Path, passes: int) -> Measured:
    def images() -> Callable[[], int]:
        import ray.train

        shard = ray.train.get_dataset_shard("train")
        return lambda: images_of(shard)

    # A worker takes a CPU of Ray from its node, but no time of the machine: it waits for batches.
    with cluster(cpus=2):
        return trained(images, passes, datasets={"train": plain(photos)})


def normalised(batch: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
    return {"image": batch["image"].transpose(0, 3, 1, 2) * FACTOR + SHIFT}


def as_source(photos: Path, passes: int) -> Measured:
    with cluster():
        import penstock.ray

        return drained(penstock.ray.read(DOCUMENT, stores={"photos": str(photos)}), passes)


CANDIDATES: dict[str, Callable[[Path, int], Measured]] = {
    "Penstock in Ray Train": in_ray_train,
    "Penstock, two processes": two_processes,
    "Penstock as a source of Ray Data": as_source,
    "Ray Data in Ray Train": read_images_in_train,
    "Ray Data": read_images,
}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder with JPEGs")
    parser.add_argument("--passes", type=int, default=6, help="passes that are measured")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each candidate")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=list(CANDIDATES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.photos = arguments.photos.absolute()
    return arguments


if __name__ == "__main__":
    main()
