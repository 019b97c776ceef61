"""A pipeline as an iterable of batches."""

from __future__ import annotations

import enum
import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from penstock import _penstock
from penstock._display import pipeline_html
from penstock._document import AnyDocument, bytes_of, json_of
from penstock._penstock import Batch, InvalidPipeline, PenstockError
from penstock._ranks import WORKERS, Rank, Share, checked_rank, local_rank, rank_of_process, rank_of_torch, rank_of_worker, refuse_second_sharding
from penstock._whole import whole_number

_LOGGER = logging.getLogger("penstock")


class _CacheDir(enum.Enum):
    USUAL = enum.auto()


class Pipeline:
    """A checked pipeline. Each iteration is a run of it, over the next pass of its source.

    document: the path of a JSON document, the document as a dict, or a `Document`.
    stores:   what its stores stand for: a folder, a `*.json` file that describes a data set in S3, or `s3://bucket/prefix`.
    modules:  what its modules stand for: the path of a `.wasm` file, or its bytes.
    settings: changes of the document by JSON pointer, as `--set` on the command line: `{"/stages/3/aggregate/size": 64}`.
    threads:  worker threads; else the document's, else as many as there are cores.
    rank, world: which share of the source this process reads. Without them they are found at the first `iter` or `len`: from
              `torch.distributed` if it is initialised, else from the launcher's variables, PENSTOCK_SHARD/PENSTOCK_SHARDS,
              RANK/WORLD_SIZE (torchrun) or SLURM_PROCID/SLURM_NTASKS (srun), else from the document's `shard`. A document that
              contradicts the others raises InvalidPipeline.
    uneven:   what becomes of the last samples when `world` does not divide their number, in place of what the document says: `drop`,
              so that all ranks get equally many, for training, or `keep`, so that none is left out, for validation.
    workers:  what the worker processes of a torch DataLoader do when there are several: `raise`, by default, since each would give
              every sample; `share` the samples of their rank; or read `all` of them, where you share them by `rank` and `world`.
    device:   where the document's `transfer` stages lead, in place of what it says: `cuda:1`, `host` or `auto`. `auto` is the GPU of
              the number that a launcher says, LOCAL_RANK (torchrun) or SLURM_LOCALID (srun), where there is that one; else
              the first GPU, and the host where there is none.
    epoch:    the first pass over the source, to resume a training.
    max_held: batches that the training loop may hold at a time, arrays made of them included; at least 2, since a loop still has
              one while it asks for the next.
    out:      a folder for what runs leave, as `penstock run --out` writes it: each iteration writes `epoch-N` below it, N being its first
              pass, or `epoch-N/rank-R` where there are several ranks. No run is overwritten: the second run over the same pass goes to
              `epoch-N-2`, or `epoch-N/rank-R-2`. `penstock replay` and `penstock compare` take these folders. A document with
              `dead_letter` raises InvalidPipeline without it, since the failed samples would be kept nowhere.
    cache_dir: where compiled modules are kept; by default where the command line keeps them. `None` compiles anew.

    A pipeline can be pickled, for another process to run it; a rank that is known by then goes with it.

    Raises InvalidPipeline with everything that is wrong with the document by itself, or else with it, the stores and the modules
    together. The document's `consumer` is not used: the loop is the consumer.
    """

    def __init__(
        self,
        document: AnyDocument,
        *,
        stores: Mapping[str, str | os.PathLike[str]] | None = None,
        modules: Mapping[str, str | os.PathLike[str] | bytes] | None = None,
        settings: Mapping[str, Any] | None = None,
        threads: int | None = None,
        rank: int | None = None,
        world: int | None = None,
        uneven: Literal["drop", "keep"] | None = None,
        workers: Literal["raise", "share", "all"] = "raise",
        device: str | None = None,
        epoch: int = 0,
        max_held: int = 16,
        out: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | _CacheDir | None = _CacheDir.USUAL,
    ) -> None:
        if (rank is None) != (world is None):
            raise InvalidPipeline("`rank` and `world` belong together: give both, or none")
        given = None if rank is None or world is None else checked_rank("rank", rank, "world", world)
        if uneven not in (None, "drop", "keep"):
            raise InvalidPipeline(f"`uneven` is {uneven!r}; wanted is `drop` or `keep`")
        if workers not in WORKERS:
            raise InvalidPipeline(f"`workers` is {workers!r}; wanted is `raise`, `share` or `all`")
        if modules and not sys.executable:
            raise PenstockError(
                "modules are compiled by a Python interpreter of their own, and `sys.executable` does not say which: set it to one's path"
            )
        changes = dict(settings or {})
        if threads is not None:
            changes["/threads"] = whole_number("threads", threads, 1)
        self._max_held = whole_number("max_held", max_held, 2)
        written = bytes_of(document)
        self._loader = _penstock.Loader(
            written,
            settings=[(pointer, json_of(f"the setting `{pointer}`", value)) for pointer, value in changes.items()],
            stores=[(name, os.fspath(what)) for name, what in _named("stores", stores, "./photos")],
            modules=_named("modules", modules, "decode_resize.wasm"),
            device=device,
            local_rank=local_rank(),
            max_held=self._max_held,
            keeps_letters=out is not None,
            cache_dir=_cache(cache_dir),
            interpreter=sys.executable or "",
            library=_penstock.__file__,
        )
        #: The pass over the source that the next iteration begins with.
        self.epoch = whole_number("epoch", epoch, 0)
        self._run: _penstock.Running | None = None
        self._rank: Rank | None = given
        self._out = out
        self._uneven = uneven
        self._workers = workers
        self._lengths: dict[Share | None, int | None] = {}
        self._options = {
            "document": json.loads(written),
            "stores": stores,
            "modules": modules,
            "settings": settings,
            "threads": threads,
            "uneven": uneven,
            "workers": workers,
            "device": device,
            "max_held": max_held,
            "out": out,
            "cache_dir": cache_dir,
        }

    def __reduce__(self) -> tuple[Any, ...]:
        rank = self._rank or rank_of_torch()
        number, world = rank or (None, None)
        return _rebuilt, ({**self._options, "rank": number, "world": world, "epoch": self.epoch},)

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
        return (self._found_rank() or (0, 1))[0]

    @property
    def world(self) -> int:
        """How many shares the source has; 1 when this process reads all of it."""
        return (self._found_rank() or (0, 1))[1]

    def __iter__(self) -> Iterator[Batch]:
        """The batches of a run, which starts when the first of them is asked for. Leaving the loop early ends the run. One run at a
        time: a second one at the same time needs a `Pipeline` of its own.
        """
        self._share()
        return self._batches()

    def _batches(self) -> Iterator[Batch]:
        run = self._start(out=self._out)
        try:
            while (batch := run.next()) is not None:
                if self._loader.epochs is None:
                    self.epoch = batch.epoch + 1
                yield batch
                # The loop has the only reference: what it drops is free for the next one.
                del batch
        finally:
            try:
                run.close()
            finally:
                _log_failures(self.name, json.loads(run.snapshot()))

    def __len__(self) -> int:
        """Number of batches of an iteration in which no sample fails or is dropped.

        TypeError where that is not known: epochs without end, stages that hold samples, and modules that may make several samples of one, or do
        not say in their manifest (`fan_out`).
        """
        share = self._share()
        if share not in self._lengths:
            self._lengths[share] = self._loader.batches(share)
        batches = self._lengths[share]
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

    def explain(self) -> str:
        """The pipeline in words, for `print`: each part with its settings, and the queues between them. Numbers of items of an epoch are
        known for the source `range`, and hold as long as no sample fails, is dropped, or becomes several.
        """
        stores = [f"store `{name}`: {os.fspath(what)}" for name, what in (self._options["stores"] or {}).items()]
        loop = f"consumer: the training loop, which may hold {self.max_held} batches at a time"
        return "\n".join([self._loader.explain(self._share()), *stores, loop])

    def stats(self) -> dict[str, Any]:
        """The figures of the run that goes on, or of the last one: as `snapshot.json`, of which `penstock run` tells the shape."""
        if self._run is None:
            raise PenstockError("there are no figures yet: iterate over the pipeline first")
        return dict(json.loads(self._run.snapshot()))

    def verdict(self) -> str:
        """What limits the run that goes on, or limited the last one, in a sentence."""
        verdict = self.stats()["verdict"]
        return "" if verdict is None else str(verdict["sentence"])

    def _start(self, *, out: str | os.PathLike[str] | None = None, drained: bool = True, endless: bool = False) -> _penstock.Running:
        refuse_second_sharding(self._found_rank())
        run = self._loader.start(whole_number("epoch", self.epoch, 0), self._share(), out=out, drained=drained, endless=endless)
        self.epoch += self._loader.epochs or 0
        self._run = run
        return run

    def _found_rank(self) -> Rank | None:
        """The rank of this process, found when it is asked for first."""
        if self._rank is None:
            written = self._loader.shard
            self._rank = rank_of_process(written and written[:2])
        return self._rank

    def _share(self) -> Share | None:
        """The share of the source that a run reads."""
        rank = rank_of_worker(self._found_rank(), self._workers)
        if rank is None:
            return None
        written = self._loader.shard
        keeps = self._uneven == "keep" if self._uneven else written is not None and written[2]
        return *rank, keeps

    def __repr__(self) -> str:
        rank = "" if self._rank is None else f", rank {self._rank[0]} of {self._rank[1]}"
        return f"<penstock.Pipeline {self.name!r}{rank}>"

    def _repr_html_(self) -> str:
        """Parts of the pipeline, for a notebook; after a first run also figures, the verdict and a chart of readiness."""
        stats = None if self._run is None else self.stats()
        return pipeline_html(json.loads(self._loader.document), stats)


def _log_failures(pipeline: str, snapshot: dict[str, Any]) -> None:
    """Logs each class of failures of a stage once, with the number of samples and the most frequent message, and then the number of
    failures that the snapshot does not list.
    """
    classes: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for group in snapshot["failures"]:
        classes.setdefault((group["stage"], group["class"]), []).append(group)
    for (stage, kind), same in classes.items():
        samples = sum(group["count"] for group in same)
        most = same[0]
        keys = ", ".join(most["first_keys"])
        _LOGGER.warning(
            "%s: %d samples failed in stage `%s` (%s), most often: %s (%s%s)",
            pipeline, samples, stage, kind, most["message"], keys, ", ..." if samples > len(most["first_keys"]) else "",
        )
    if unlisted := snapshot["failures_not_listed"]:
        _LOGGER.warning("%s: %d more samples failed for other reasons, which are not listed", pipeline, unlisted)


def _rebuilt(options: dict[str, Any]) -> Pipeline:
    """A pipeline in the process that has unpickled it."""
    return Pipeline(**options)


def _named(what: str, given: Mapping[str, Any] | None, example: str) -> list[tuple[str, Any]]:
    """What names stand for."""
    if not isinstance(given, Mapping | None):
        wanted = json.dumps({Path(example).stem: example})
        raise InvalidPipeline(f"`{what}` is of type `{type(given).__name__}`; wanted is a dict of what each name stands for, such as {wanted}")
    for name, value in (given or {}).items():
        if not isinstance(name, str) or not isinstance(value, str | os.PathLike | bytes):
            raise InvalidPipeline(f"`{what}` has {name!r}: {value!r}; wanted is a text for a name, and a path for what it stands for")
    return list((given or {}).items())


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
