"""A Ray cluster of several nodes on this machine, and trainings on it."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Logs and sockets of the clusters, and the address of the last one, which is not that of a cluster of the user. Paths of sockets are short.
# Workers import this file, too.
if "RAY_TMPDIR" not in os.environ:
    os.environ["RAY_TMPDIR"] = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    atexit.register(shutil.rmtree, os.environ["RAY_TMPDIR"], ignore_errors=True)

# Read when Ray is imported, and by the processes of the cluster. Ray looks for workers that died, and for reports, every half second.
os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    # Ray plans with the nodes of up to 20 seconds ago: it tries in vain to start workers on a dead node, for this time.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "5",
    # By default, workers give way to all other processes of a busy machine.
    "RAY_worker_niceness": "0",
}

import penstock.ray
import ray
import ray.train
import ray.train.collective
from ray.cluster_utils import Cluster
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

# Maximum time for a change of the number of workers, in seconds.
PATIENCE = 600

# Memory of the object store of each node, in bytes.
STORE = 150 << 20


@contextmanager
def nodes(count: int) -> Iterator[tuple[Cluster, list[Any]]]:
    """A cluster of `count` nodes with a CPU each and a head without one, to which this process is connected."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False})
    try:
        workers = [cluster.add_node(num_cpus=1, object_store_memory=STORE) for _ in range(count)]
        ray.init(address=cluster.address, log_to_driver=False)
        yield cluster, workers
    finally:
        ray.shutdown()
        cluster.shutdown()


class Training:
    """A training that runs in the background. Its workers write what they do into `folder`."""

    def __init__(self, loop: Callable[[dict[str, Any]], None], folder: Path, workers: int | tuple[int, int], **options: Any) -> None:
        self.folder = folder
        scaling = {"resources_per_worker": {"CPU": 1}, "elastic_resize_monitor_interval_s": 1}
        self._trainer = DataParallelTrainer(
            loop,
            train_loop_config={"folder": str(folder), **options.pop("config", {})},
            scaling_config=ray.train.ScalingConfig(num_workers=workers, **scaling | options.pop("scaling", {})),
            run_config=ray.train.RunConfig(
                name="run",
                storage_path=str(folder),
                failure_config=ray.train.FailureConfig(max_failures=2),
                checkpoint_config=ray.train.CheckpointConfig(num_to_keep=2),
                **options.pop("run", {}),
            ),
            **options,
        )
        self._result: Any = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._trainer.fit()
        except Exception as error:
            self._result = error

    def told(self) -> list[dict[str, Any]]:
        """Reports of the workers so far, in the order of time."""
        lines = [line for path in self.folder.glob("*.ndjson") for line in path.read_text().splitlines()]
        return sorted(map(json.loads, lines), key=lambda one: one["at"])

    def until(self, what: str, is_so: Callable[[list[dict[str, Any]]], bool]) -> None:
        """Waits for workers to report something."""
        end = time.monotonic() + PATIENCE
        while not is_so(self.told()):
            assert self._thread.is_alive(), f"{what}: the training has ended with {self._result!r}"
            assert time.monotonic() < end, f"{what}: not within {PATIENCE} s"
            time.sleep(0.1)

    def result(self) -> ray.train.Result:
        """Waits for the end of the training."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), f"the training has not ended within {PATIENCE} s"
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def stop(self) -> ray.train.Result:
        """Ends the training after the next checkpoint."""
        (self.folder / "stop").touch()
        return self.result()


def tell(config: dict[str, Any], **told: Any) -> None:
    """Reports from a worker."""
    context = ray.train.get_context()
    line = {"at": time.time(), "pid": os.getpid(), "rank": context.get_world_rank(), "world": context.get_world_size(), **told}
    with Path(config["folder"], f"{os.getpid()}.ndjson").open("a") as file:
        file.write(json.dumps(line) + "\n")


def collect(config: dict[str, Any]) -> None:
    """A training whose model is the list of all samples that it got, with their epochs. It ends once a file `stop` exists."""
    seen: list[tuple[int, str]] = []
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None and ray.train.get_context().get_world_rank() == 0:
        with checkpoint.as_directory() as folder:
            seen = [tuple(one) for path in Path(folder).glob("seen-*.json") for one in json.loads(path.read_text())]
    began = time.monotonic()
    pipeline = penstock.ray.pipeline(config["document"])
    for step, batch in enumerate(pipeline, 1):
        if step == 1:
            tell(config, event="first", after_s=time.monotonic() - began, restored=len(seen))
        seen += [(batch.epoch, key) for key in batch.samples]
        time.sleep(config["step_s"])
        if step % 4 == 0:
            save(pipeline, seen)
            tell(config, event="saved", step=step)
            if ray.train.collective.broadcast_from_rank_zero(Path(config["folder"], "stop").exists()):
                return


def save(pipeline: penstock.Pipeline, seen: list[tuple[int, str]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, f"seen-{pipeline.rank}.json").write_text(json.dumps(seen))
        penstock.ray.report(pipeline, {"seen": len(seen)}, folder)


def collected(checkpoint: ray.train.Checkpoint) -> Counter[tuple[int, str]]:
    """Samples in a checkpoint of `collect`, by the number of times that the training got them."""
    with checkpoint.as_directory() as folder:
        return Counter(tuple(one) for path in Path(folder).glob("seen-*.json") for one in json.loads(path.read_text()))
