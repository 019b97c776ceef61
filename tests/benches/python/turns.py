"""Measures the candidates of a benchmark in turns, each measurement in a separate process."""

from __future__ import annotations

import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from json import loads
from multiprocessing import active_children
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Measured:
    """Results of one process."""

    samples: int
    wall_s: float
    #: CPU time of the process and of its children.
    cpu_s: float
    #: Figures of a pass, to check that all candidates deliver the same; `None` if they are not known.
    check: Any


def measured(names: Sequence[str], turns: int) -> tuple[dict[str, list[Measured]], dict[str, str]]:
    """Calls this script again with `--one=NAME` for each candidate, in turns. Returns the results, and the errors of candidates that failed."""
    found: dict[str, list[Measured]] = {name: [] for name in names}
    missing: dict[str, str] = {}
    for _ in range(turns):
        for name in names:
            if name in missing:
                continue
            ended = subprocess.run([sys.executable, *sys.argv, f"--one={name}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if ended.returncode == 0:
                found[name].append(Measured(**loads(ended.stdout)))
            else:
                missing[name] = ended.stderr.strip().rpartition("\n")[2]
    return found, missing


def timed(passes: Iterator[Iterable[Item]], count: int, look: Callable[[Iterable[Item]], tuple[int, Any]], size: Callable[[Item], int]) -> Measured:
    """Measures `count` passes over the samples, after a first one that is not measured. `look` returns the number of samples in it, and what to check."""
    samples, check = look(next(passes))
    begin, used = time.perf_counter(), cpu()
    for items in islice(passes, count):
        assert sum(map(size, items)) == samples, "every pass returns every sample"
    return Measured(count * samples, time.perf_counter() - begin, cpu() - used, check)


def cpu() -> float:
    """CPU time so far of this process and of its children, in seconds. Of those that still run, workers of `multiprocessing` are counted."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used) + sum(used_by(child.pid) for child in active_children())


def used_by(process: int | None) -> float:
    """CPU time so far of a running process, in seconds."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def middle(turns: list[Measured], figure: Callable[[Measured], float]) -> float:
    return statistics.median(map(figure, turns))


def tell(found: dict[str, list[Measured]], missing: dict[str, str], unit: str, shown: Callable[[Any], str], must: float, aim: float) -> None:
    """Prints a table, and the verdict on the first candidate against the best of those that do not begin with its name. `shown` prints what is
    checked.
    """
    first = next(iter(found))
    print(f"{'':38} {unit + '/s':>10} {'CPU s / 1,000':>14} {'speed':>7} {'CPU':>7}  check")
    rows = {name: (middle(turns, lambda turn: turn.samples / turn.wall_s), middle(turns, lambda turn: 1000 * turn.cpu_s / turn.samples))
            for name, turns in found.items() if name not in missing}  # fmt: skip
    speed, cpu = rows.get(first, (math.nan, math.nan))
    for name, (own_speed, own_cpu) in rows.items():
        print(f"{name:38} {own_speed:10.0f} {own_cpu:14.3f} {own_speed / speed:7.2f} {own_cpu / cpu:7.2f}  {shown(found[name][0].check)}")
    for name, why in missing.items():
        print(f"{name:38} not measured: {why[:200]}")
    others = [own_speed for name, (own_speed, _) in rows.items() if not name.startswith(first)]
    if others:
        ratio = speed / max(others)
        verdict = "aim reached" if ratio >= aim else "holds" if ratio >= must else "MISSED"
        print(f"\nPenstock against the best other: {ratio:.2f}x; must {must}x, aim {aim}x: {verdict}")
