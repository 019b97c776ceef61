"""A pipeline as an iterable of batches."""

from __future__ import annotations

import enum
import json
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from penstock import _penstock
from penstock._display import pipeline_html
from penstock._document import AnyDocument, bytes_of, json_of
from penstock._penstock import Batch, InvalidPipeline, PenstockError
from penstock._ranks import WORKERS, Rank, Share, checked_rank, local_rank, rank_of_process, rank_of_torch, rank_of_worker, refuse_second_sharding
from penstock._together import Agreement, Group, group_of
from penstock._verdict import Advice, Verdict, verdict_of
from penstock._whole import whole_number

_LOGGER = logging.getLogger("penstock")


# Share of the samples of a rank that are discarded at its end without a warning.
_MUCH = 0.01

# Remedies for ranks with different numbers of batches that do not end together.
_AGREE = "initialise `torch.distributed` of a current PyTorch with all ranks before the first iteration"
_ALONE = 'pass `ends="alone"` and let each rank take the same number of batches'

_CURE = (
    ". Fewer are discarded if all ranks have equally many batches: let no sample fail (`\"on_error\": \"fail\"` shows the first), filter and pack the data "
    "before the training, or choose another `seed`"
)


class _CacheDir(enum.Enum):
    USUAL = enum.auto()


class Field(NamedTuple):
    """A field of the samples of a source, with the type of its values in all samples."""

    #: `bytes`, `text`, or the element type as NumPy names it, such as `int64`; `None` if each value states its own.
    type: str | None
    #: Number of dimensions of a value, 0 for a single one; `None` if values may differ in it.
    dimensions: int | None
    #: True if some samples lack the field, false if none does; `None` if this is not known.
    optional: bool | None


class Pipeline:
    """A checked pipeline. Each iteration is a run of it, over the next pass of its source.

    document: path of a JSON document, the document as a dict, or a `Document`.
    stores:   location of each store in the document: a folder, a `*.json` file that describes a data set in S3, or `s3://bucket/prefix`.
    links:    further folders into which links in the folder of a store may lead, by store: `{"photos": ["/pool"]}`. Other links that lead
              out of the folder are left out, with a warning.
    store_cache: folder in which objects of stores in S3 are kept between runs, as `"/cache"`, or `"/cache:50"` with at most 50 GiB; without a
              size, a quarter of the free space. All processes that name the folder share it.
    modules:  content of each module in the document: the path of a `.wasm` file, or its bytes.
    settings: changes to the document by JSON pointer, like `--set` on the command line: `{"/stages/3/aggregate/size": 64}`.
    threads:  number of worker threads; by default the number in the document, else the number of cores.
    tune:     `apply` changes concurrency and queues while the loop runs, as long as that raises its rate. Stages with `"order": "input"` make the
              same batches, in the same order, as without. `suggest` only records what would help. By default the document's `tune`, else
              `off`. The changes are in `stats()["changes"]`; the next loop begins with them, and so does one that continues from a state.
    rank, world: share of the source that this process reads. Without them, the share is determined at the first `iter` or `len`: from
              `torch.distributed` if it is initialised, else from Ray Train in one of its workers, else from the launcher's variables,
              PENSTOCK_SHARD/PENSTOCK_SHARDS, RANK/WORLD_SIZE (torchrun) or SLURM_PROCID/SLURM_NTASKS (srun), else from the document's
              `shard`. A document that contradicts the others raises InvalidPipeline.
    uneven:   handling of the last samples when `world` does not divide their number, instead of the document's setting: `drop`, so that all
              ranks get the same number, for training, or `keep`, so that none is left out, for validation.
    ends:     end of the loop where ranks have different numbers of batches, since samples fail, are left out or are packed: `together`, behind
              the last step that all ranks have; `raise` there, on all ranks, if one of them has more; or `alone`, where each rank gets all of its
              batches. The first two need `torch.distributed`; `together` is the default where it is initialised, unless the numbers are
              known to be equal or `uneven` is `keep`.
    group:    process group of `torch.distributed` whose ranks end together; by default all its processes.
    workers:  behaviour in several worker processes of a torch DataLoader: `raise`, the default, since each worker would read every
              sample; `share` the samples of their rank; or read `all` of them, if you share them by `rank` and `world`.
    device:   target of the `transfer` stages, instead of the targets in the document: `cuda:1`, `host` or `auto`. `auto` is the GPU with
              the number from the launcher, LOCAL_RANK (torchrun) or SLURM_LOCALID (srun), or from Ray Train, if it exists; else the first
              GPU, or the host if there is none.
    epoch:    first pass over the source, to resume a training.
    max_held: number of batches that the training loop may hold at a time, including arrays made from them; at least 2, since a loop
              still holds one while it requests the next.
    out:      folder for the output of runs, as written by `penstock run --out`: each iteration writes `epoch-N` below it, where N is its
              first pass, or `epoch-N/rank-R` with several ranks. No run is overwritten: the second run over the same pass goes to
              `epoch-N-2`, or `epoch-N/rank-R-2`. `penstock replay` and `penstock compare` read these folders. A document with
              `dead_letter` raises InvalidPipeline without it, since the failed samples would be lost.
    cache_dir: folder for compiled modules; by default that of the command line. `None` disables the cache.

    A pipeline can be pickled, for another process to run it; a rank found before is kept.

    Raises InvalidPipeline with all faults of the document itself, or else with all faults of the document, the stores and the modules
    together. The document's `consumer` is not used: the loop is the consumer.
    """

    def __init__(
        self,
        document: AnyDocument,
        *,
        stores: Mapping[str, str | os.PathLike[str]] | None = None,
        links: Mapping[str, Sequence[str | os.PathLike[str]]] | None = None,
        store_cache: str | os.PathLike[str] | None = None,
        modules: Mapping[str, str | os.PathLike[str] | bytes] | None = None,
        settings: Mapping[str, Any] | None = None,
        threads: int | None = None,
        tune: Literal["off", "suggest", "apply"] | None = None,
        rank: int | None = None,
        world: int | None = None,
        uneven: Literal["drop", "keep"] | None = None,
        ends: Literal["together", "raise", "alone"] | None = None,
        group: Any = None,
        workers: Literal["raise", "share", "all"] = "raise",
        device: str | None = None,
        epoch: int = 0,
        max_held: int = 16,
        out: str | os.PathLike[str] | None = None,
        cache_dir: str | os.PathLike[str] | _CacheDir | None = _CacheDir.USUAL,
    ) -> None:
        if (rank is None) != (world is None):
            raise InvalidPipeline("`rank` and `world` belong together: set both, or neither")
        given = None if rank is None or world is None else checked_rank("rank", rank, "world", world)
        if uneven not in (None, "drop", "keep"):
            raise InvalidPipeline(f"`uneven` is {uneven!r}; expected `drop` or `keep`")
        if ends not in (None, "together", "raise", "alone"):
            raise InvalidPipeline(f"`ends` is {ends!r}; expected `together`, `raise` or `alone`")
        if workers not in WORKERS:
            raise InvalidPipeline(f"`workers` is {workers!r}; expected `raise`, `share` or `all`")
        if modules and not sys.executable:
            raise PenstockError(
                "modules are compiled in a separate Python interpreter, and `sys.executable` is empty: set it to the path of an interpreter"
            )
        changes = dict(settings or {})
        if tune not in (None, "off", "suggest", "apply"):
            raise InvalidPipeline(f"`tune` is {tune!r}; expected `off`, `suggest` or `apply`")
        if tune is not None:
            changes["/tune"] = tune
        if threads is not None:
            changes["/threads"] = whole_number("threads", threads, 1)
        self._max_held = whole_number("max_held", max_held, 2)
        written = bytes_of(document)
        self._options: dict[str, Any] = {
            "stores": stores,
            "links": links,
            "store_cache": store_cache,
            "modules": modules,
            "uneven": uneven,
            "ends": ends,
            "workers": workers,
            "device": device,
            "max_held": max_held,
            "out": out,
            "cache_dir": cache_dir,
        }
        self._loader = self._made(written, changes)
        self._options |= {"document": json.loads(written), "settings": changes}
        self._lengths: dict[Share | None, int | None] = {}
        #: Pass over the source with which the next iteration begins.
        self.epoch = whole_number("epoch", epoch, 0)
        self._run: _penstock.Running | None = None
        self._rank: Rank | None = given
        self._ends = ends
        self._group = group
        self._fields: dict[str, Field] | None = None
        #: State from which the next iteration continues, as JSON, and true if it may belong to another pipeline.
        self._state: tuple[str, bool] | None = None

    def _made(self, document: bytes, settings: Mapping[str, Any]) -> _penstock.Loader:
        """Checks the pipeline with these settings."""
        options = self._options
        return _penstock.Loader(
            document,
            settings=[(pointer, json_of(f"the setting `{pointer}`", value)) for pointer, value in settings.items()],
            stores=[(name, os.fspath(what)) for name, what in _named("stores", options["stores"], "./photos")],
            links=_links(options["links"]),
            store_cache=_store_cache(options["store_cache"]),
            modules=_named("modules", options["modules"], "my_stage.wasm"),
            device=options["device"],
            local_rank=local_rank(),
            max_held=self._max_held,
            keeps_letters=options["out"] is not None,
            cache_dir=_cache(options["cache_dir"]),
            interpreter=sys.executable or "",
            library=_penstock.__file__,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        rank = self._rank or rank_of_torch()
        number, world = rank or (None, None)
        return _rebuilt, ({**self._options, "rank": number, "world": world, "epoch": self.epoch}, self._state)

    @property
    def name(self) -> str:
        """Name of the pipeline in the document."""
        return self._loader.name

    @property
    def max_held(self) -> int:
        """Number of batches that the training loop may hold at a time."""
        return self._max_held

    @property
    def rank(self) -> int:
        """Number of the share of the source that this process reads, from 0; below `world`."""
        return (self._found_rank() or (0, 1))[0]

    @property
    def world(self) -> int:
        """Number of shares of the source; 1 when this process reads all of it."""
        return (self._found_rank() or (0, 1))[1]

    def __iter__(self) -> Iterator[Batch]:
        """Iterates over the batches of a run, which starts with the request for the first batch. Leaving the loop early ends the run. A
        pipeline has one run at a time: for a second one at the same time, create another `Pipeline`.
        """
        return self._iterate()

    def _iterate(self, *, continues: bool = False) -> Iterator[Batch]:
        """Iterates over the batches of a run. If a state was loaded that was taken behind the last batch, it is a run over the next pass, or
        empty if it `continues`.
        """
        # Fails here rather than at the first batch.
        self._ending_group(self._share())
        return self._batches(continues)

    def _batches(self, continues: bool) -> Iterator[Batch]:
        is_resumed = self._state is not None
        if (yield from self._run_through(continues)) == 0 and is_resumed and not continues:
            yield from self._run_through()

    def _run_through(self, continues: bool = False) -> Generator[Batch, None, int | None]:
        """Iterates over the batches of one run, and returns their number if it has completed."""
        state = self._state
        run = self._start(out=self._options["out"])
        try:
            if state is not None and run.first_epoch != json.loads(state[0])["first_epoch"]:
                # Nothing was left to this rank, so the run is one over the next pass. Other ranks may have a rest.
                if (agreement := self._agreement()) is not None:
                    with agreement:
                        agreement.over()
                if continues:
                    self.epoch = run.first_epoch
                    return 0
            agreement = self._agreement()
            count = yield from (self._alone(run) if agreement is None else self._together(run, agreement))
        finally:
            try:
                run.close()
            finally:
                snapshot = json.loads(run.snapshot())
                _log_warnings(self.name, snapshot)
                _log_failures(self.name, snapshot)
        return count if snapshot["state"] == "completed" else None

    def _alone(self, run: _penstock.Running) -> Generator[Batch, None, int]:
        """Iterates over the batches of a run, and returns their number."""
        warning = self._uneven_warning()
        count = 0
        while True:
            batch = self._next(run)
            # Looked at ever more rarely, since the loop waits for the look.
            if warning and (batch is None or count & (count - 1) == 0) and run.loses_samples():
                _LOGGER.warning("%s: %s", self.name, warning)
                warning = None
            if batch is None:
                return count
            count += 1
            yield batch
            # Leaves the only reference to the loop, so that the memory of a released batch is free for the next one.
            del batch

    def _together(self, run: _penstock.Running, agreement: Agreement) -> Generator[Batch, None, int]:
        """Iterates over the batches of a run up to the last step that all ranks have, and returns their number."""
        with agreement:
            while True:
                # The ranks come to a step before they make its batch, so that none waits while another one makes it.
                comes_early = agreement.steps > 0 and run.claim()
                if comes_early:
                    agreement.come()
                batch = self._next(run, agreement.is_needless)
                if batch is None and (run.has_ended or run.is_closed):
                    break
                is_given = False
                try:
                    if agreement.steps == 0:
                        agreement.compare(run.state(0 if batch is None else 1))
                    if not comes_early:
                        agreement.come()
                    is_given = agreement.gets_step()
                finally:
                    if not is_given and batch is not None:
                        run.take_back()
                if not is_given:
                    del batch
                    self._cut(run, agreement)
                    return agreement.steps
                yield batch
                del batch
            if run.is_closed:
                agreement.leave("left", "the pipeline was closed")
                return agreement.steps
            if agreement.steps == 0:
                agreement.compare(run.state(0))
            agreement.over()
            return agreement.steps

    def _next(self, run: _penstock.Running, is_needless: Callable[[], bool] | None = None) -> Batch | None:
        batch = run.next(is_needless)
        if batch is not None and self._loader.epochs is None:
            self.epoch = batch.epoch + 1
        return batch

    def _cut(self, run: _penstock.Running, agreement: Agreement) -> None:
        """Discards what is left of a run, and logs how much that is."""
        cut = run.end_together()
        snapshot = json.loads(run.snapshot())
        made = snapshot["ledger"]["total"]["made"]
        is_much = cut > made * _MUCH
        _LOGGER.log(
            logging.WARNING if is_much else logging.INFO,
            "%s: all ranks end after %d batches, since rank %s has no more: %d of %d samples of this rank (%.1f %%) are discarded%s%s",
            self.name, agreement.steps, agreement.ended_by, cut, made, 100 * cut / max(made, 1),
            "" if snapshot["expected"] is not None else ", and all that its source has not made yet",
            _CURE if is_much else "",
        )  # fmt: skip

    def __len__(self) -> int:
        """Number of batches of an iteration in which no sample fails or is dropped. Behind `load_state_dict`, those that are left to this
        rank.

        Raises TypeError if it is not known: for endless runs, stages that hold samples, and modules that may make several samples from
        one, or whose manifest lacks `fan_out`.
        """
        batches: int | None = 0
        if self._state is not None:
            state, force = self._state
            batches = self._loader.batches(0, self._share(), state=state, force=force)
        # Of a state that leaves nothing, the iteration is the next pass.
        return self._whole_length() if batches == 0 else _finite(batches)

    def _whole_length(self) -> int:
        """The same without the state that is loaded."""
        share = self._share()
        if share not in self._lengths:
            self._lengths[share] = self._loader.batches(0, share)
        return _finite(self._lengths[share])

    def __bool__(self) -> bool:
        """True for every pipeline, even one without batches."""
        return True

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the active run, if there is one. Raises PenstockError if it does not end in time."""
        if self._run is not None:
            self._run.close()

    def state_dict(self, pending: int = 0) -> dict[str, Any]:
        """State of the active iteration, or of the last one, for a checkpoint: `load_state_dict` continues behind the last batch. It fits
        into JSON. Positions of samples that were dropped or failed are not visited again; batches on their way are, so that nothing is
        lost or repeated.

        pending: number of the last batches that the training loop has not got, if something between it and the pipeline holds them.
        """
        pending = whole_number("pending", pending, 0)
        if self._state is not None:
            text = self._state[0]
        elif self._run is not None:
            text = self._run.state(pending)
        else:
            text = self._loader.fresh_state(whole_number("epoch", self.epoch, 0), self._share())
        return dict(json.loads(text))

    def load_state_dict(self, state: Mapping[str, Any], *, force: bool = False) -> None:
        """Makes the next iteration continue from `state`, a result of `state_dict` or `merge_states`. Behind the last batch, it begins the next
        pass. With the same number of ranks, each rank continues its own sequence; any other number needs the merged states of all ranks, and
        the rest is dealt anew.

        force: continue although the document, a module or the data differs.

        Raises InvalidPipeline if the state belongs to another pipeline; the error says what differs.
        """
        text = json.dumps(dict(state))
        self._loader.check_state(text, force)
        self._state = text, force

    def get_state(self) -> bytes:
        """`state_dict` as bytes, as Grain's iterators have it."""
        return json.dumps(self.state_dict()).encode()

    def set_state(self, state: bytes) -> None:
        """`load_state_dict` of the bytes from `get_state`."""
        self.load_state_dict(json.loads(state))

    @property
    def fields(self) -> dict[str, Field]:
        """Fields of the samples of the source with their types, by name; empty if the source does not know them. Unless a run has found
        them, the first samples of the source are read.
        """
        if self._fields is None:
            found = None if self._run is None else self.stats().get("fields")
            if found is None and (text := self._loader.fields()) is not None:
                found = json.loads(text)
            if found is None:
                return {}
            self._fields = {field["name"]: Field(field["type"], field["dimensions"], field["optional"]) for field in found["fields"]}
        return dict(self._fields)

    @property
    def left_out(self) -> dict[str, list[dict[str, Any]]]:
        """Things that the source did not take in the active run, or in the last one, by the id of the source; in a mixture, by the name of the
        source in it. Each entry has a `reason`, a `count` and the `first` of them.
        """
        return dict(self.stats().get("left_out", {}))

    @property
    def warnings(self) -> list[str]:
        """Warnings about the data of the active run, or of the last one."""
        return list(self.stats().get("warnings", []))

    def explain(self) -> str:
        """Describes the pipeline, for `print`: each part with its settings, and the queues between them. Numbers of items per epoch are
        known for the source `range`, and are exact as long as no sample fails, is dropped, or becomes several.
        """
        stores = [f"store `{name}`: {os.fspath(what)}" for name, what in (self._options["stores"] or {}).items()]
        loop = f"consumer: the training loop, which may hold {self.max_held} batches at a time"
        return "\n".join([self._loader.explain(self._share()), *stores, loop])

    def stats(self) -> dict[str, Any]:
        """Figures of the active run, or of the last one, in the form of `snapshot.json` of `penstock run`."""
        return dict(json.loads(self._last_run().snapshot()))

    def verdict(self, *, predict: bool = False) -> Verdict:
        """Verdict on the active run, or on the last one, with evidence and advice. `print` shows the text with which the report of
        `penstock run` begins.

        With `predict`, each piece of advice that changes settings has the gain that a prediction gives it; this takes up to a second each.
        """
        return verdict_of(self._last_run(), self._changed if predict else None)

    def apply(self, *advice: Advice) -> None:
        """Changes the settings of this pipeline as advised: `pipeline.apply(pipeline.verdict().advice[0])`. The next iteration uses them,
        and goes on with the pass or the state that it would have begun with.

        Raises PenstockError while an iteration is active, and for advice that changes no setting; InvalidPipeline if the changed pipeline
        is invalid, and then nothing is changed.
        """
        if self._run is not None and not self._run.has_ended:
            raise PenstockError(
                "a loop over this pipeline is still active, and advice changes the next one: end it (leave it, or `close()` the pipeline) before "
                "`apply`"
            )
        for one in advice:
            if not one.changes:
                raise PenstockError(f"the advice changes no setting of the document: {one.text}")
        changes = {change.pointer: change.to for one in advice for change in one.changes}
        self._loader = self._changed(changes)
        self._options["settings"] = {**self._options["settings"], **changes}
        self._lengths = {}

    def _changed(self, changes: Mapping[str, Any]) -> _penstock.Loader:
        """Checks the pipeline with other settings."""
        return self._made(bytes_of(self._options["document"]), {**self._options["settings"], **changes})

    def _last_run(self) -> _penstock.Running:
        if self._run is None:
            raise PenstockError("there are no figures yet: iterate over the pipeline first")
        return self._run

    def _start(self, *, out: str | os.PathLike[str] | None = None, drained: bool = True, endless: bool = False) -> _penstock.Running:
        refuse_second_sharding(self._found_rank())
        state, force = self._state or (None, False)
        run = self._loader.start(
            whole_number("epoch", self.epoch, 0), self._share(), out=out, drained=drained, endless=endless, state=state, force=force
        )
        self.epoch = run.first_epoch + (self._loader.epochs or 0)
        self._run, self._state = run, None
        return run

    def _ending_group(self, share: Share | None) -> Group | None:
        """Group whose ranks end together; `None` for a loop alone. Raises InvalidPipeline if they are to end together and cannot."""
        _, world, keeps = share or (0, 1, False)
        if world == 1 or self._ends == "alone":
            return None
        group = group_of(self._group)
        if group is not None and group.size >= world and group.has_connections:
            is_usual = self._ends is None and (keeps or self._loader.is_even(share))
            return None if is_usual else group
        if self._ends is None:
            return None
        if group is None:
            found = "`torch.distributed` is not initialised"
        elif not group.has_connections:
            found = "the stores of this version of PyTorch cannot be cloned"
        else:
            found = f"the process group has {group.size} processes"
        raise InvalidPipeline(
            f"`ends` is `{self._ends}`, and {found}, so that {world} ranks cannot agree on the last step: {_AGREE}, or {_ALONE}"
        )

    def _agreement(self) -> Agreement | None:
        """Agreement of a loop with the other ranks; `None` for a loop alone."""
        share = self._share()
        group = self._ending_group(share)
        if group is None or share is None:
            return None
        return Agreement(group, self.name, share[0], share[1], raises=self._ends == "raise")

    def _uneven_warning(self) -> str | None:
        """Warning for a loop alone, once a sample is lost; `None` if the loop was chosen, or if ranks need not take equally many batches."""
        share = self._share()
        if share is None or share[2] or self._ends is not None or self.world == 1 or self._loader.is_even(share):
            return None
        return (
            "a sample failed or was left out, so that ranks may have different numbers of batches, and a collective operation may wait forever: "
            f"{_AGREE}, so that they end together, or {_ALONE}"
        )

    def _found_rank(self) -> Rank | None:
        """Rank of this process, found on first use."""
        if self._rank is None:
            written = self._loader.shard
            self._rank = rank_of_process(written and written[:2])
        return self._rank

    def _share(self) -> Share | None:
        """Share of the source that a run reads."""
        rank = rank_of_worker(self._found_rank(), self._options["workers"])
        if rank is None:
            return None
        written, uneven = self._loader.shard, self._options["uneven"]
        keeps = uneven == "keep" if uneven else written is not None and written[2]
        return *rank, keeps

    def __repr__(self) -> str:
        rank = "" if self._rank is None else f", rank {self._rank[0]} of {self._rank[1]}"
        return f"<penstock.Pipeline {self.name!r}{rank}>"

    def _repr_html_(self) -> str:
        """Parts of the pipeline, for a notebook; after a first run also figures, the verdict and a chart of readiness."""
        stats = None if self._run is None else self.stats()
        return pipeline_html(json.loads(self._loader.document), stats)


def _finite(batches: int | None) -> int:
    if batches is None:
        raise TypeError("the source is read endlessly (`epochs` is null), so there is no last batch")
    return batches


def _log_warnings(pipeline: str, snapshot: dict[str, Any]) -> None:
    for warning in snapshot.get("warnings", []):
        _LOGGER.warning("%s: %s", pipeline, warning)


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


def _rebuilt(options: dict[str, Any], state: tuple[str, bool] | None) -> Pipeline:
    """Rebuilds a pipeline in the process that unpickles it."""
    pipeline = Pipeline(**options)
    pipeline._state = state
    return pipeline


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the states of all ranks of a pipeline into one, from which any number of ranks can continue.

    Raises InvalidPipeline for states of different pipelines or runs, and for two states of one rank.
    """
    return dict(json.loads(_penstock.merge_states([json.dumps(state) for state in states])))


def merge_distinct(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merges the states of all ranks, of which equal ones count once: a rank that has loaded the state of all returns it until its next
    iteration begins.
    """
    distinct: list[Mapping[str, Any]] = []
    for state in states:
        if state not in distinct:
            distinct.append(state)
    return merge_states(distinct)


def _named(what: str, given: Mapping[str, Any] | None, example: str) -> list[tuple[str, Any]]:
    """Checks a dict of stores or modules and returns its items."""
    if not isinstance(given, Mapping | None):
        wanted = json.dumps({Path(example).stem: example})
        raise InvalidPipeline(f"`{what}` is of type `{type(given).__name__}`; expected a dict by name, such as {wanted}")
    for name, value in (given or {}).items():
        if not isinstance(name, str) or not isinstance(value, str | os.PathLike | bytes):
            raise InvalidPipeline(f"`{what}` has {name!r}: {value!r}; expected a text as name and a path as value")
    return list((given or {}).items())


def _links(given: Mapping[str, Sequence[str | os.PathLike[str]]] | None) -> dict[str, list[str]]:
    """Checks a dict of lists of folders."""
    if not isinstance(given, Mapping | None):
        raise InvalidPipeline(f"`links` is of type `{type(given).__name__}`; expected a dict by store, such as {{'photos': ['/pool']}}")
    for name, folders in (given or {}).items():
        is_list = isinstance(folders, Sequence) and not isinstance(folders, str | bytes)
        if not isinstance(name, str) or not is_list or not all(isinstance(folder, str | os.PathLike) for folder in folders):
            raise InvalidPipeline(f"`links` has {name!r}: {folders!r}; expected a store's name, and a list of paths")
    return {name: [os.fspath(folder) for folder in folders] for name, folders in (given or {}).items()}


def _store_cache(given: str | os.PathLike[str] | None) -> str | None:
    """Checks the folder of a cache, which may have a size."""
    if not isinstance(given, str | os.PathLike | None):
        raise InvalidPipeline(f"`store_cache` is of type `{type(given).__name__}`; expected a folder, such as '/cache' or '/cache:50'")
    return None if given is None else os.fspath(given)


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
