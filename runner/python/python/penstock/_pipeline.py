"""A pipeline as an iterable of batches."""

from __future__ import annotations

import enum
import json
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from penstock import _penstock
from penstock._document import bytes_of, json_of
from penstock._penstock import Batch, InvalidPipeline, PenstockError
from penstock._whole import whole_number

# Where a launcher tells a process its rank and how many there are; the first pair that is there counts.
_RANKS = (
    ("PENSTOCK_SHARD", "PENSTOCK_SHARDS"),
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)

# Where it tells which of its machine's processes this one is, from 0.
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")


class _CacheDir(enum.Enum):
    USUAL = enum.auto()


class Pipeline:
    """A checked pipeline. Each iteration is a run of it, over the next pass of its source.

    document: the path of a JSON document, or the document as a dict.
    stores:   what its stores stand for: a folder, a `*.json` file that describes a data set in S3, or `s3://bucket/prefix`.
    modules:  what its modules stand for: the path of a `.wasm` file, or its bytes.
    settings: changes of the document by JSON pointer, as `--set` on the command line: `{"/stages/3/aggregate/size": 64}`.
    threads:  worker threads; else the document's, else as many as there are cores.
    rank, world: which share of the source this process reads. Without them the document's own `shard` counts, and else what a
              launcher says: PENSTOCK_SHARD/PENSTOCK_SHARDS, RANK/WORLD_SIZE (torchrun), SLURM_PROCID/SLURM_NTASKS (srun).
    device:   where the document's `transfer` stages lead, in place of what it says: `cuda:1`, `host` or `auto`. `auto` is the GPU of
              the number that a launcher says, LOCAL_RANK (torchrun) or SLURM_LOCALID (srun), where there is that one; else
              the first GPU, and the host where there is none.
    epoch:    the first pass over the source, to resume a training.
    max_held: batches that the training loop may hold at a time, arrays made of them included; at least 2, since a loop still has
              one while it asks for the next.
    cache_dir: where compiled modules are kept; by default where the command line keeps them. `None` compiles anew.

    Raises InvalidPipeline with everything that is wrong with the document by itself, or else with it, the stores and the modules
    together. The document's `consumer` is not used: the loop is the consumer.
    """

    def __init__(
        self,
        document: str | os.PathLike[str] | Mapping[str, Any],
        *,
        stores: Mapping[str, str | os.PathLike[str]] | None = None,
        modules: Mapping[str, str | os.PathLike[str] | bytes] | None = None,
        settings: Mapping[str, Any] | None = None,
        threads: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        device: str | None = None,
        epoch: int = 0,
        max_held: int = 16,
        cache_dir: str | os.PathLike[str] | _CacheDir | None = _CacheDir.USUAL,
    ) -> None:
        if (rank is None) != (world is None):
            raise InvalidPipeline("`rank` and `world` belong together: give both, or none")
        shard = None if rank is None or world is None else (whole_number("rank", rank, 0), whole_number("world", world, 1))
        if modules and not sys.executable:
            raise PenstockError(
                "modules are compiled by a Python interpreter of their own, and `sys.executable` does not say which: set it to one's path"
            )
        changes = dict(settings or {})
        if threads is not None:
            changes["/threads"] = whole_number("threads", threads, 1)
        self._max_held = whole_number("max_held", max_held, 2)
        self._loader = _penstock.Loader(
            bytes_of(document),
            settings=[(pointer, json_of(f"the setting `{pointer}`", value)) for pointer, value in changes.items()],
            stores=[(name, os.fspath(what)) for name, what in (stores or {}).items()],
            modules=list((modules or {}).items()),
            shard=shard,
            launched=_launched() if shard is None else None,
            device=device,
            local_rank=_local_rank(),
            max_held=self._max_held,
            cache_dir=_cache(cache_dir),
            interpreter=sys.executable or "",
            library=_penstock.__file__,
        )
        #: The pass over the source that the next iteration begins with.
        self.epoch = whole_number("epoch", epoch, 0)
        self._run: _penstock.Running | None = None

    @property
    def name(self) -> str:
        """What the document calls it."""
        return self._loader.name

    @property
    def max_held(self) -> int:
        """Batches that the training loop may hold at a time."""
        return self._max_held

    @property
    def rank(self) -> int:
        """Which of the `world` shares of the source this process reads, from 0."""
        return self._loader.shard[0]

    @property
    def world(self) -> int:
        """How many shares the source has; 1 when this process reads all of it."""
        return self._loader.shard[1]

    def __iter__(self) -> Iterator[Batch]:
        """Starts a run, and gives its batches. Leaving the loop early ends the run. One loop at a time: a second one at the same time
        needs a `Pipeline` of its own.
        """
        batches = self._batches(self._start())
        # A generator that has not begun would not end its run.
        next(batches)
        return batches

    def _batches(self, run: _penstock.Running) -> Iterator[Any]:
        """Nothing at first, and then the batches of a run."""
        try:
            yield None
            while (batch := run.next()) is not None:
                if self._loader.epochs is None:
                    self.epoch = batch.epoch + 1
                yield batch
                # The loop has the only reference: what it drops is free for the next one.
                del batch
        finally:
            run.close()

    def __len__(self) -> int:
        """How many batches an iteration gives when no sample fails, is dropped, or becomes several."""
        batches = self._loader.batches()
        if batches is None:
            raise TypeError("the source is read again and again (`epochs` is null): there is no last batch")
        return batches

    def __bool__(self) -> bool:
        """Whether there is one: it is there without batches, too."""
        return True

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the run that goes on, if one does. PenstockError tells when it did not end in time."""
        if self._run is not None:
            self._run.close()

    def stats(self) -> dict[str, Any]:
        """The figures of the run that goes on, or of the last one: as `snapshot.json`, of which `penstock run` tells the shape."""
        if self._run is None:
            raise PenstockError("there are no figures yet: iterate over the pipeline first")
        return dict(json.loads(self._run.snapshot()))

    def verdict(self) -> str:
        """What limits the run that goes on, or limited the last one, in a sentence."""
        verdict = self.stats()["verdict"]
        return "" if verdict is None else str(verdict["sentence"])

    def _start(self, *, drained: bool = True, endless: bool = False) -> _penstock.Running:
        run = self._loader.start(whole_number("epoch", self.epoch, 0), drained=drained, endless=endless)
        self.epoch += self._loader.epochs or 0
        self._run = run
        return run

    def __repr__(self) -> str:
        return f"<penstock.Pipeline {self.name!r}, rank {self.rank} of {self.world}>"


def _cache(folder: str | os.PathLike[str] | _CacheDir | None) -> str | None:
    if folder is None:
        return None
    if not isinstance(folder, _CacheDir):
        return os.fspath(folder)
    if named := os.environ.get("PENSTOCK_CACHE_DIR"):
        return named
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    usual = os.path.join(base, "penstock")
    try:
        os.makedirs(usual, exist_ok=True)
    except OSError:
        return None
    return usual


def _launched() -> tuple[int, int] | None:
    """The rank of this process and how many there are, as its launcher says."""
    for rank, world in _RANKS:
        if (found := _environment(rank)) is not None and (of := _environment(world)) is not None:
            if found.isdecimal() and of.isdecimal():
                return whole_number(rank, int(found), 0), whole_number(world, int(of), 1)
            raise InvalidPipeline(f"the environment says {rank}={found} and {world}={of}; wanted are two whole numbers")
    return None


def _local_rank() -> int | None:
    """Which of its machine's processes this one is, as its launcher says."""
    for name in _LOCAL_RANKS:
        if (found := _environment(name)) is not None:
            if found.isdecimal():
                return whole_number(name, int(found), 0)
            raise InvalidPipeline(f"the environment says {name}={found}; wanted is a whole number")
    return None


def _environment(name: str) -> str | None:
    """What the environment says. Slurm's numbers are of a task that `srun` started: a batch script has some, and is no task."""
    if name.startswith("SLURM_") and "SLURM_STEP_ID" not in os.environ:
        return None
    return os.environ.get(name)
