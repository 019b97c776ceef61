"""What there is to gain by loading faster."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from penstock import _penstock
from penstock._penstock import Batch, PenstockError, RunFailed
from penstock._pipeline import Pipeline

# Most batches that the loop gets again and again when it works alone.
_KEPT = 8
# Batches that the loop holds besides: the one it works on while the next one is asked for.
_AT_WORK = 2
# Measurements that are made until one does not contradict itself.
_ATTEMPTS = 3
# Share of each measurement at its begin that is left out: queues fill, and libraries warm up.
_WARM_UP = 0.25


@dataclass(frozen=True)
class Headspace:
    """Rates in batches per second, and what follows from them."""

    #: Of the loop fed by the loader.
    real_rate: float
    #: Of the loader with nobody to wait for.
    loader_rate: float
    #: Of the loop with batches that are there already.
    consumer_rate: float
    #: How much faster all would be if loading took no time: 0.25 is 25 %.
    to_gain: float
    #: How many such loops the loader could feed.
    feeds: float
    #: Whether there is nothing worth gaining.
    is_enough: bool
    #: All of it in one sentence.
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def headspace(pipeline: Pipeline, step: Callable[[Batch], Any], *, seconds: float = 10.0) -> Headspace:
    """Measures three things, each for so many seconds: `step` on the batches of the pipeline, the pipeline without `step`, and
    `step` on batches that are there already. A `step` that starts work on a GPU has to wait for its end. The pipeline's next
    iteration begins with the epoch with which it would have begun. What contradicts itself is measured again, and raises PenstockError if it
    still does. Its `max_held` is at least 3: `step` alone gets the same batches again
    and again, which are held meanwhile.
    """
    if pipeline.max_held <= _AT_WORK:
        raise PenstockError(f"`max_held` is {pipeline.max_held}; to measure the loop alone takes a pipeline with {_AT_WORK + 1} or more")
    for _ in range(_ATTEMPTS):
        found, contradiction = _penstock.headspace_of(*_measured(pipeline, step, seconds))
        if contradiction is None:
            told = json.loads(found)
            return Headspace(**{name: told[name] for name in Headspace.__dataclass_fields__})
    raise PenstockError(f"{contradiction}; measure for more `seconds`")


def _measured(pipeline: Pipeline, step: Callable[[Batch], Any], seconds: float) -> tuple[float, float, float, str]:
    """The rates of both together, of the loader and of the loop, and the figures of the run of both."""
    kept: list[Batch] = []
    epoch = pipeline.epoch
    try:
        real, snapshot = _real(pipeline, step, seconds, kept)
        loader = _loader(pipeline, seconds)
    finally:
        pipeline.epoch = epoch
    return real, loader, _rate(step, cycle(kept), seconds), snapshot


def _real(pipeline: Pipeline, step: Callable[[Batch], Any], seconds: float, kept: list[Batch]) -> tuple[float, str]:
    run = pipeline._start(endless=True)
    most = min(_KEPT, pipeline.max_held - _AT_WORK)

    def batches() -> Iterator[Batch]:
        while (batch := run.next()) is not None:
            if len(kept) < most:
                kept.append(batch)
            yield batch
            del batch

    try:
        rate = _rate(step, batches(), seconds)
        return rate, run.snapshot()
    finally:
        run.close()


def _loader(pipeline: Pipeline, seconds: float) -> float:
    """Batches per second that the loader gives when nothing holds it up."""

    def taken(run: _penstock.Running) -> tuple[float, int]:
        snapshot = json.loads(run.snapshot())
        if snapshot["state"] == "failed":
            raise RunFailed(snapshot["error"])
        return snapshot["elapsed_s"], snapshot["queues"][-1]["num_items"]

    run = pipeline._start(drained=False, endless=True)
    try:
        time.sleep(seconds * _WARM_UP)
        since, before = taken(run)
        time.sleep(seconds * (1 - _WARM_UP))
        until, after = taken(run)
    finally:
        run.close()
    if after == before:
        raise PenstockError(f"the loader gave no batch within {seconds * (1 - _WARM_UP)} s; measure longer")
    return (after - before) / (until - since)


def _rate(step: Callable[[Batch], Any], batches: Iterable[Batch], seconds: float) -> float:
    """Batches per second that `step` takes, the warm-up left out."""
    begin = now = time.perf_counter()
    since, count = begin, 0
    for batch in batches:
        step(batch)
        now = time.perf_counter()
        if now - begin < seconds * _WARM_UP:
            since, count = now, 0
            continue
        count += 1
        if now - begin >= seconds:
            break
    if count == 0:
        raise PenstockError("the pipeline gave no batches after the first quarter of the time: it has none, or measure longer")
    return count / (now - since)
