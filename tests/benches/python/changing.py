"""Measures what Penstock's tuner does when the conditions of a run change at half time.

    python tests/benches/python/changing.py --photos demo/photos

The pipeline decodes photos, from a concurrency and queues of one. In one case the consumer is slow first and fast then, in one fast first and slow then,
and in one another process takes a core in the second half. While the consumer is the limit, nothing must change; with a fast one the rate must come to
that with the settings of a run that was tuned with a fast consumer only; and the use of the cores by another process may not be answered with more
concurrency.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from settling import ONES, document

import penstock

#: Time that a slow consumer takes for a batch, in seconds.
SLOW_S = 0.25
#: Seconds in which a change that was begun before half time ends, and the tuner sees what has changed: two windows of two seconds, and a part of one.
GRACE_S = 5
NEAR = 0.95


class Loop:
    """A tuned run, and its rates in batches per second for each second."""

    def __init__(self, photos: Path, seconds: int, step: Callable[[float], float], settings: dict[str, int], tune: Any) -> None:
        self.rates = [0] * seconds
        pipeline = penstock.Pipeline(document(), stores={"photos": photos}, settings=settings, tune=tune)
        begin = time.monotonic()
        for _ in pipeline:
            passed = time.monotonic() - begin
            if passed >= seconds:
                break
            self.rates[int(passed)] += 1
            time.sleep(step(passed))
        self.changes: list[dict[str, Any]] = pipeline.stats().get("changes", [])

    def rate(self, start: int, end: int) -> float:
        return statistics.mean(self.rates[start:end])

    def begun(self, start: float, end: float) -> list[dict[str, Any]]:
        return [change for change in self.changes if start <= change["at_s"] < end]

    def settings(self) -> dict[str, int]:
        """The settings that hold at the end."""
        kept = {change["pointer"]: change["to"] for change in self.changes if change["outcome"] == "kept"}
        return ONES | kept


def told(name: str, holds: bool, text: str, loop: Loop) -> bool:
    print(f"{name}: {text}: {'holds' if holds else 'MISSED'}")
    for change in loop.changes:
        print(f"    {change['at_s']:5.1f} s {change['pointer']} {change['from']} -> {change['to']}: {change['outcome']}")
    return holds


def slow_then_fast(photos: Path, half: int) -> bool:
    loop = Loop(photos, 2 * half, lambda passed: SLOW_S if passed < half else 0.0, ONES, "apply")
    last = half // 3
    reached = loop.rate(2 * half - last, 2 * half)
    settings = Loop(photos, half, lambda _: 0.0, ONES, "apply").settings()
    possible = Loop(photos, half, lambda _: 0.0, settings, "off").rate(half - last, half)
    untuned = Loop(photos, half, lambda _: 0.0, ONES, "off").rate(half - last, half)
    before = loop.begun(0, half)
    holds = not before and reached >= NEAR * possible and possible > untuned
    text = f"{len(before)} changes before half time, then {reached:.1f} of {possible:.1f} batches/s ({untuned:.1f} untuned)"
    return told("consumer slow, then fast", holds, text, loop)


def fast_then_slow(photos: Path, half: int) -> bool:
    loop = Loop(photos, 2 * half, lambda passed: 0.0 if passed < half else SLOW_S, ONES, "apply")
    late = loop.begun(half + GRACE_S, 2 * half)
    return told("consumer fast, then slow", not late and bool(loop.changes), f"{len(late)} changes from {GRACE_S} s after half time", loop)


def neighbour(photos: Path, half: int) -> bool:
    busy: list[subprocess.Popen[bytes]] = []

    def step(passed: float) -> float:
        if passed >= half and not busy:
            busy.append(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
        return 0.0

    try:
        loop = Loop(photos, 2 * half, step, ONES, "apply")
    finally:
        for process in busy:
            process.kill()
            process.wait()
    late = [change for change in loop.begun(half + GRACE_S, 2 * half) if "/wasm/concurrency" in change["pointer"] and change["to"] > change["from"]]
    alone, beside = loop.rate(half - half // 3, half), loop.rate(2 * half - half // 3, 2 * half)
    return told("a neighbour takes a core", not late, f"{len(late)} times more concurrency; {alone:.1f} batches/s alone, {beside:.1f} beside it", loop)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder with JPEGs")
    parser.add_argument("--half", type=int, default=60, help="time before, and after, the change, in seconds")
    args = parser.parse_args()
    photos = args.photos.absolute()
    sys.exit(not all([case(photos, args.half) for case in (slow_then_fast, fast_then_slow, neighbour)]))


if __name__ == "__main__":
    main()
