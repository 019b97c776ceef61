"""Measures the possible gain from faster loading."""

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

# Maximum number of batches that the loop gets repeatedly when it is measured alone.
_KEPT = 8
# Number of further batches that the loop holds: the current one and the one that it requests.
_AT_WORK = 2
# Maximum number of measurements, repeated while their results contradict each other.
_ATTEMPTS = 3
# Share at the start of each measurement that is left out: queues fill, and libraries warm up.
_WARM_UP = 0.25


@dataclass(frozen=True)
class Headspace:
    """Rates in batches per second, and the possible gain from faster loading."""

    #: Rate of the loop fed by the loader.
    real_rate: float
    #: Rate of the loader when it never waits for the loop.
    loader_rate: float
    #: Rate of the loop with batches in memory.
    consumer_rate: float
    #: Possible speed-up if loading took no time: 0.25 is 25 %.
    to_gain: float
    #: Number of loops of this speed that the loader could feed.
    feeds: float
    #: Set if the possible gain is too small to be worth optimising.
    is_enough: bool
    #: Result in one sentence.
    sentence: str

    def __str__(self) -> str:
        return self.sentence


def headspace(pipeline: Pipeline, step: Callable[[Batch], Any], *, seconds: float = 10.0) -> Headspace:
    """Measures three rates, each for the given time: `step` on the batches of the pipeline, the pipeline without `step`, and `step` on
    batches in memory. A `step` that starts work on a GPU must wait for the end of that work. The next iteration of the pipeline begins
    with the same epoch as without this measurement. Contradictory results are measured again; PenstockError is raised if they persist. The
    pipeline's `max_held` must be at least 3: `step` alone gets the same batches repeatedly, which are held meanwhile.
    """
    if pipeline.max_held <= _AT_WORK:
        raise PenstockError(f"`max_held` is {pipeline.max_held}; measuring the loop alone needs a `max_held` of {_AT_WORK + 1} or more")
    for _ in range(_ATTEMPTS):
        kept: list[Batch] = []
        epoch = pipeline.epoch
        try:
            real, snapshot = _real(pipeline, step, seconds, kept)
            loader = _loader(pipeline, seconds)
        finally:
            pipeline.epoch = epoch
        consumer = _rate(step, cycle(kept), seconds)
        found, contradiction = _penstock.headspace_of(real, loader, consumer, snapshot)
        if contradiction is None:
            told = json.loads(found)
            return Headspace(**{name: told[name] for name in Headspace.__dataclass_fields__})
    raise PenstockError(f"{contradiction}; measure for more `seconds`")


def _real(pipeline: Pipeline, step: Callable[[Batch], Any], seconds: float, kept: list[Batch]) -> tuple[float, str]:
    """Batches per second of loader and loop together, and the snapshot of their run. Keeps batches for the loop alone."""
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
    """Batches per second that the loader delivers when it never waits for the loop."""

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
        raise PenstockError(f"the loader delivered no batch within {seconds * (1 - _WARM_UP)} s; measure longer")
    return (after - before) / (until - since)


def _rate(step: Callable[[Batch], Any], batches: Iterable[Batch], seconds: float) -> float:
    """Batches per second that `step` takes, without the warm-up."""
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
        raise PenstockError(
            "the pipeline delivered no batches after the first quarter of the time: raise `seconds`, or check that the pipeline has batches"
        )
    return count / (now - since)
