"""Pipelines in Ray Train and Ray Data.

    import penstock.ray

    def train(config):
        pipeline = penstock.ray.pipeline("photos.json", stores={"photos": "/data/photos"})
        for step, batch in enumerate(pipeline):
            ...
            if step % 100 == 99:
                penstock.ray.report(pipeline, {"loss": loss}, folder)      # the model is in `folder`

    scaling = ray.train.ScalingConfig(num_workers=(1, 8), resources_per_worker={"CPU": 4})
    TorchTrainer(train, scaling_config=scaling).fit()

Each worker of Ray Train runs a pipeline on the CPUs that Ray has assigned to it; batches never pass Ray's object store. A training that
continues from a checkpoint, with any number of workers, gets each sample that the checkpoint has not got. `read` makes a data set of Ray Data.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

try:
    import pyarrow
    import pyarrow.fs
    import ray
    import ray.data
    import ray.data.extensions
    import ray.train
except ImportError as error:
    raise ImportError("`penstock.ray` needs Ray Train and Ray Data: pip install 'penstock[ray]'") from error

from penstock._document import AnyDocument, bytes_of
from penstock._penstock import Array, Batch, InvalidPipeline
from penstock._pipeline import Pipeline, merge_states

__all__ = ["DataConfig", "LazyPipeline", "PenstockDatasource", "Reports", "pipeline", "read", "report"]

_LOGGER = logging.getLogger("penstock")

# Minimum size of the range of a read task, in batches: the queues of a pipeline are empty at its begin and at its end.
_BATCHES = 4


def pipeline(
    document: AnyDocument,
    *,
    state: Mapping[str, Any] | Literal["checkpoint"] | None = "checkpoint",
    threads: int | None = None,
    **options: Any,
) -> Pipeline:
    """Creates the pipeline of a worker of Ray Train, with its rank and the number of workers. Call it in the training function.

    state:   the state from which the pipeline continues. By default that of the checkpoint from which Ray Train restarts the worker, if it
             has one: `report` writes it. `None` begins anew, as for a validation.
    threads: by default the CPUs that Ray has assigned to the worker; if it has assigned none, its share of the machine's cores.
    options: other options of `penstock.Pipeline`.
    """
    context = ray.train.get_context()
    world = context.get_world_size()
    if threads is None:
        assigned = int(ray.get_runtime_context().get_assigned_resources().get("CPU", 0))
        threads = assigned or max(len(os.sched_getaffinity(0)) // context.get_local_world_size(), 1)
    made = Pipeline(document, rank=context.get_world_rank(), world=world, threads=threads, **options)
    if state == "checkpoint":
        checkpoint = ray.train.get_checkpoint()
        state = None if checkpoint is None else _state(checkpoint, context.get_world_rank(), world)
    if state is not None:
        made.load_state_dict(state)
    return made


def report(
    pipeline: Pipeline, metrics: Mapping[str, Any], folder: str | os.PathLike[str] | None = None, **options: Any
) -> None:
    """Reports to Ray Train, as `ray.train.report` does: all workers have to call it equally often. The metrics get a member `penstock` with
    the figures of the pipeline, for `Reports`.

    folder:  part of a checkpoint, to which the state of the pipeline is added. Each worker passes a separate folder; that of rank 0 usually
             has the model. Without a folder, there is no checkpoint.
    options: other options of `ray.train.report`.
    """
    checkpoint = None
    if folder is not None:
        Path(folder, _name(pipeline.rank)).write_text(json.dumps(pipeline.state_dict()))
        checkpoint = ray.train.Checkpoint.from_directory(os.fspath(folder))
    ray.train.report({**metrics, "penstock": _figures(pipeline)}, checkpoint=checkpoint, **options)


class LazyPipeline:
    """A pipeline as a data set of a trainer: `datasets={"train": penstock.ray.LazyPipeline("photos.json", stores=...)}` together with
    `dataset_config=penstock.ray.DataConfig()`. In a worker `ray.train.get_dataset_shard("train")` returns it; it creates the worker's
    pipeline when it is first used, with the same options as `pipeline`.
    """

    def __init__(self, document: AnyDocument, **options: Any) -> None:
        self._document = json.loads(bytes_of(document))
        self._options = options

    @functools.cached_property
    def pipeline(self) -> Pipeline:
        """Pipeline of this worker."""
        return pipeline(self._document, **self._options)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.pipeline)

    def __len__(self) -> int:
        return len(self.pipeline)

    def __reduce__(self) -> tuple[Any, ...]:
        return functools.partial(LazyPipeline, self._document, **self._options), ()


class DataConfig(ray.train.DataConfig):
    """Data configuration of a trainer that passes each `LazyPipeline` to all workers, and splits other data sets as Ray does."""

    def configure(self, datasets: dict[str, Any], world_size: int, *args: Any, **options: Any) -> list[dict[str, Any]]:
        lazy = {name: one for name, one in datasets.items() if isinstance(one, LazyPipeline)}
        others = {name: one for name, one in datasets.items() if name not in lazy}
        return [{**shards, **lazy} for shards in super().configure(others, world_size, *args, **options)]


class Reports(ray.train.UserCallback):
    """Callback of `ray.train.RunConfig` that keeps the figures of all ranks in a folder on the machine of the driver, as of the last
    `report`: `penstock compare FOLDER/rank-*` reads them. It also writes their comparison to `comparison.json`, and logs a warning that
    names the straggler, whenever another rank becomes it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder).absolute()
        self._named: int | None = None

    def after_report(self, run_context: Any, metrics: Sequence[Mapping[str, Any]], checkpoint: ray.train.Checkpoint | None) -> None:
        try:
            self._keep([one["penstock"] for one in metrics if "penstock" in one])
        except OSError as error:
            # Ray would end the training.
            _LOGGER.warning("the figures of the ranks cannot be kept: %s", error)

    def _keep(self, ranks: Sequence[Mapping[str, Any]]) -> None:
        folders = [self._folder / f"rank-{number}" for number in range(len(ranks))]
        for old in set(self._folder.glob("rank-*")) - set(folders):
            shutil.rmtree(old)
        for folder, figures in zip(folders, ranks):
            folder.mkdir(parents=True, exist_ok=True)
            # Figures have no times of single ops, which only predictions need.
            for name, content in {"spec": figures["document"], "snapshot": figures["snapshot"], "times": {}}.items():
                (folder / f"{name}.json").write_text(json.dumps(content))
        if len(ranks) > 1:
            self._compare(folders)

    def _compare(self, folders: Sequence[Path]) -> None:
        command = [sys.executable, "-m", "penstock", "compare", "--json", *map(str, folders)]
        compared = subprocess.run(command, capture_output=True, text=True)
        if compared.returncode:
            _LOGGER.warning("the ranks cannot be compared: %s", compared.stderr.strip())
            return
        (self._folder / "comparison.json").write_text(compared.stdout)
        comparison = json.loads(compared.stdout)
        slowest = comparison["ranks"][0]["rank"] if "straggler" in comparison["sentence"] else None
        if slowest not in (None, self._named):
            _LOGGER.warning("%s", comparison["sentence"])
        self._named = slowest


class PenstockDatasource(ray.data.Datasource):
    """A pipeline as a source of Ray Data, for `ray.data.read_datasource`; `read` is the short form. Each row is a sample, with its key as
    `__key__`. Arrays are tensors of Ray Data, or numbers.

    A read task makes a range of samples, each once, and the same ones in the same order when it is tried again. For that, all stages keep
    the order of the samples, and `drop_last` and `epochs` of the document do not apply: no batch is discarded, and the source is read once.
    Options are those of `penstock.Pipeline`; `epoch` chooses the order of a shuffle. Pass `threads` to Ray, too: `num_cpus=threads`.
    """

    def __init__(self, document: AnyDocument, *, threads: int = 1, settings: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__()
        options |= {"threads": threads, "rank": 0, "world": 1}
        # Reports faults of the document here, not in a task.
        checked = Pipeline(document, settings=settings, **options)
        written = json.loads(checked._loader.document)
        (source,) = written["source"].values()
        source["epochs"] = 1
        self._least = 1
        for stage in written["stages"]:
            ((kind, members),) = stage.items()
            if kind == "aggregate":
                members["drop_last"] = False
                self._least = _BATCHES * members["size"]
            elif kind != "disaggregate":
                members["order"] = "input"
            if kind == "transfer":
                members["device"] = "host"
        options.pop("device", None)
        self._name = checked.name
        self._make = functools.partial(Pipeline, written, **options)
        self._counting = functools.partial(Pipeline, {**written, "stages": [{"aggregate": {"size": 1}}, {"collate": {}}]}, **options)

    def get_name(self) -> str:
        return f"Penstock({self._name})"

    def estimate_inmemory_data_size(self) -> int | None:
        return None

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: ray.data.DataContext | None = None
    ) -> list[ray.data.ReadTask]:
        # A filter or a failure may leave fewer rows than positions, so their number is not promised.
        metadata = ray.data.block.BlockMetadata(num_rows=None, size_bytes=None, input_files=None, exec_stats=None)
        return [
            ray.data.ReadTask(functools.partial(_read, self._make, first, behind), metadata, per_task_row_limit=per_task_row_limit)
            for first, behind in self._ranges(parallelism)
        ]

    def _ranges(self, parallelism: int) -> list[tuple[int, list[tuple[int, int]]]]:
        """Divides the positions of the source into ranges, each given by its first position, and the first position and number of those
        behind it; a single one if their number is not known.
        """
        try:
            count = len(self._counting())
        except TypeError:
            return [(0, [])]
        tasks = max(min(parallelism, count // self._least), 1)
        bounds = [count * task // tasks for task in range(tasks + 1)]
        return [(first, [(end, count - end)] if end < count else []) for first, end in zip(bounds, bounds[1:])]


def read(
    document: AnyDocument, *, threads: int = 1, override_num_blocks: int | None = None, concurrency: int | None = None, **options: Any
) -> ray.data.Dataset:
    """Reads the samples of a pipeline as a data set of Ray Data: `ray.data.read_datasource` of a `PenstockDatasource`, whose tasks have a
    CPU for each thread.
    """
    source = PenstockDatasource(document, threads=threads, **options)
    return ray.data.read_datasource(source, num_cpus=threads, override_num_blocks=override_num_blocks, concurrency=concurrency)


def _name(rank: int | str) -> str:
    """Name of the file with the state of a rank in a checkpoint."""
    return f"penstock-{rank}.json"


def _state(checkpoint: ray.train.Checkpoint, rank: int, world: int) -> dict[str, Any] | None:
    """State of the pipeline in a checkpoint; `None` if it has none. Reads nothing but the states."""
    store = checkpoint.filesystem
    assert store is not None, "Ray fills it in"
    files = store.get_file_info(pyarrow.fs.FileSelector(checkpoint.path))
    names = [one.path for one in files if one.base_name.startswith("penstock-") and one.extension == "json"]
    if len(names) == world:
        names = [name for name in names if name.endswith(f"/{_name(rank)}")] or names
    states = []
    for name in names:
        with store.open_input_stream(name) as file:
            states.append(json.loads(file.read()))
    return merge_states(states) if states else None


def _figures(pipeline: Pipeline) -> dict[str, Any]:
    """Document and figures of a rank."""
    document = json.loads(pipeline._loader.document)
    (source,) = document["source"].values()
    source["shard"] = {"rank": pipeline.rank, "world": pipeline.world}
    return {"document": document, "snapshot": pipeline.stats()}


def _read(make: functools.partial[Pipeline], first: int, behind: list[tuple[int, int]]) -> Iterator[pyarrow.Table]:
    """Rows of the samples at the positions from `first`, except those `behind` the range."""
    pipeline = make()
    state = pipeline.state_dict()
    state["ranks"] = {"0": {**state["ranks"]["0"], "epochs": [{"epoch": pipeline.epoch, "frontier": first, "settled": behind}]}}
    pipeline.load_state_dict(state)
    for batch in pipeline:
        columns = {name: _column(name, value) for name, value in batch.items()}
        yield pyarrow.table({"__key__": pyarrow.array(batch.samples), **columns})


def _column(name: str, value: Array | Sequence[Any]) -> pyarrow.Array:
    """Column of a field, copied, since the memory of the batch is reused."""
    import numpy

    if isinstance(value, Array) or (len(value) and isinstance(value[0], Array)):
        try:
            copied = numpy.array(value) if isinstance(value, Array) else [numpy.array(one) for one in value]
        except (RuntimeError, TypeError, ValueError) as error:
            raise InvalidPipeline(f"the field `{name}` cannot be a column of Ray Data: {error}; convert it in a stage") from None
        return ray.data.extensions.ArrowTensorArray.from_numpy(copied, column_name=name)
    return pyarrow.array(value)
