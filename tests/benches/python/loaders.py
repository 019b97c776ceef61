"""Data loaders that `resume.py` interrupts and resumes. Each delivers the numbers below `Share.count`, shuffled, in batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy

BATCH, SEED, THREADS = 64, 7, 2
# Divides by 1, 2 and 3 ranks.
GLOBAL_BATCH = 192
# With workers, one of so many samples takes so many seconds, so that batches complete out of order.
SLOW, SLOW_S = 1000, 0.002
# Concurrent samples in Penstock's case with workers.
CONCURRENCY = 256


@dataclass(frozen=True)
class Share:
    """Samples that a process reads, and the conditions."""

    count: int
    rank: int
    world: int
    #: True if several ranks save or resume, even if this one is alone.
    is_ranked: bool
    #: Drops every third sample.
    is_filtered: bool
    #: Number of worker processes or threads; 0 for the process of the loop alone.
    workers: int
    #: Folder of the data sets `lines`, `parquet`, `mds` and `tar`.
    data: Path
    #: Folder of the built example stages.
    modules: Path


class Loader(NamedTuple):
    """A constructed loader."""

    #: Starts an iteration over batches of numbers.
    batches: Callable[[], Iterator[Any]]
    #: Returns the state behind the last batch.
    state: Callable[[], Any]
    #: Loads the states that all ranks have saved.
    load: Callable[[Sequence[Any]], object]


def is_kept(number: int) -> bool:
    return number % 3 != 0


def worked(number: int) -> int:
    if number % SLOW == 0:
        time.sleep(SLOW_S)
    return number


def own(share: Share, states: Sequence[Any]) -> Any:
    """State for a rank of a loader that does not merge the states of ranks."""
    return states[share.rank % len(states)]


def of_torch(share: Share, loader: Any, numbers: Callable[[Any], Any]) -> Loader:
    """Loader with the methods `state_dict` and `load_state_dict`."""
    return Loader(lambda: map(numbers, loader), loader.state_dict, lambda states: loader.load_state_dict(own(share, states)))


def of_iterator(share: Share, batches: Any) -> Loader:
    """Loader of an iterator of Grain."""
    return Loader(lambda: batches, batches.get_state, lambda states: batches.set_state(own(share, states)))


def penstock(share: Share, source: dict[str, Any] | None = None, **stores: Path) -> Loader:
    import penstock

    stages: list[dict[str, Any]] = [{"aggregate": {"size": BATCH}}, {"collate": {}}]
    modules = {}
    if share.is_filtered:
        # Drops samples whose text is empty.
        source = {"records": {"store": "lines", "key": "numbers.ndjson", "shuffle": True}}
        stores["lines"] = share.data / "lines"
        modules["text-filter"] = share.modules / "text_filter.wasm"
        stages.insert(0, {"wasm": {"module": "text-filter", "order": "input"}})
    if share.workers:
        stages.insert(0, {"sleep": {"mean_ms": 1, "jitter": 1, "concurrency": CONCURRENCY, "order": "completion"}})
    document = {
        "name": "resume",
        "seed": SEED,
        "threads": THREADS,
        "source": source or {"range": {"count": share.count, "shuffle": True}},
        "stages": stages,
    }
    pipeline = penstock.Pipeline(document, stores=stores, modules=modules, rank=share.rank, world=share.world, uneven="keep")

    def load(states: Sequence[Any]) -> None:
        pipeline.load_state_dict(states[share.rank] if len(states) == share.world else penstock.merge_states(states))

    return Loader(lambda: (numpy.array(batch.samples).astype(numpy.int64) for batch in pipeline), pipeline.state_dict, load)


def penstock_tar(share: Share) -> Loader:
    return penstock(share, {"tar": {"store": "shards", "index": "train.index", "shuffle": True}}, shards=share.data / "tar")


def collated(numbers: Iterable[int]) -> Any:
    """Batch without the samples that the filter drops: data sets of torch with random access have no filter of their own."""
    import torch

    return torch.tensor([number for number in numbers if is_kept(number)])


class Range:
    """Data set with random access."""

    def __init__(self, share: Share) -> None:
        self._share = share

    def __len__(self) -> int:
        return self._share.count

    def __getitem__(self, number: int) -> int:
        return worked(number) if self._share.workers else number


def torchdata(share: Share) -> Loader:
    import torch
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    numbers: Any = Range(share)
    order: dict[str, Any] = {"shuffle": True, "generator": torch.Generator().manual_seed(SEED)}
    if share.is_ranked:
        order = {"sampler": StatefulDistributedSampler(numbers, share.world, share.rank, shuffle=True, seed=SEED)}
    loader: Any = StatefulDataLoader(
        numbers, BATCH, **order, num_workers=share.workers, in_order=not share.workers, collate_fn=collated if share.is_filtered else None
    )
    return of_torch(share, loader, lambda batch: batch.numpy())


def shuffled_range(share: Share) -> Any:
    import grain

    numbers = grain.MapDataset.range(share.count).shuffle(SEED)
    if share.is_filtered:
        numbers = numbers.filter(is_kept)
    return numbers.map(worked) if share.workers else numbers


def grain(share: Share) -> Loader:
    import grain

    numbers = shuffled_range(share)[share.rank :: share.world]
    if share.is_filtered:
        # There are no batches with random access after a filter. Threads for single numbers take 20 times as long.
        batches = numbers.to_iter_dataset(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)).batch(BATCH)
    else:
        batches = numbers.batch(BATCH).to_iter_dataset(grain.ReadOptions(num_threads=THREADS))
    if share.workers:
        batches = batches.mp_prefetch(grain.MultiprocessingOptions(share.workers))
    return of_iterator(share, iter(batches))


def grain_elastic(share: Share) -> Loader:
    import grain
    from grain.experimental import ElasticIterator

    workers = grain.MultiprocessingOptions(share.workers) if share.workers else None
    part, read = grain.sharding.ShardOptions(share.rank, share.world), grain.ReadOptions(num_threads=THREADS)
    batches = ElasticIterator(shuffled_range(share), GLOBAL_BATCH, part, read_options=read, multiprocessing_options=workers)
    return of_iterator(share, iter(batches))


def mosaic(share: Share) -> Loader:
    from streaming import StreamingDataLoader, StreamingDataset

    class Numbers(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: int) -> int:
            number = int(super().__getitem__(at)["number"])
            return worked(number) if share.workers else number

    numbers = Numbers(local=str(share.data / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=BATCH)
    loader = StreamingDataLoader(
        numbers, batch_size=BATCH, num_workers=share.workers, in_order=not share.workers, collate_fn=collated if share.is_filtered else None
    )
    return of_torch(share, loader, lambda batch: batch.numpy())


def data_sets(share: Share, **shuffle: int) -> Loader:
    import datasets
    from datasets.distributed import split_dataset_by_node

    files = sorted(map(str, (share.data / "parquet").glob("*.parquet")))
    rows = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, cache_dir=str(share.data / "huggingface"))
    rows = rows.shuffle(SEED, **shuffle)
    if share.is_filtered:
        rows = rows.filter(is_kept, input_columns="number")
    if share.workers:
        rows = rows.map(worked_row)
    if share.world > 1:
        rows = split_dataset_by_node(rows, share.rank, share.world)
    batches: Any = rows.batch(BATCH)
    if share.workers:
        from torchdata.stateful_dataloader import StatefulDataLoader

        batches = StatefulDataLoader(batches, batch_size=None, num_workers=share.workers, in_order=False)
    return of_torch(share, batches, lambda batch: numpy.asarray(batch["number"]))


def data_sets_shards(share: Share) -> Loader:
    """`datasets` without its shuffle buffer, whose content is no part of a state: only the order of the files is shuffled."""
    return data_sets(share, buffer_size=1, max_buffer_input_shards=1)


def worked_row(row: dict[str, int]) -> dict[str, int]:
    return {"number": worked(row["number"])}
