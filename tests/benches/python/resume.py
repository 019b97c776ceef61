"""Measures the resume of data loaders in mid-epoch: Penstock, torchdata, Grain, MosaicML Streaming and `datasets`.

    python tests/benches/python/resume.py peers
    python tests/benches/python/resume.py range
    python tests/benches/python/resume.py tar --penstock target/release/penstock

Each candidate reads shuffled numbers in batches of 64. A process saves the state after 90 % of them, and continues as the uninterrupted run. Another
process loads the state and reads the rest. The samples before the state and those of the second process are compared with the data set. A cell is
`exact`, has the number of samples that are missing and of those that come again, or refers to the error of the candidate.

    fresh      time from a loader to its first batch, without a state
    resumed    the same with a state; the time includes its loading
    process    the same from the start of the process, imports included
    state      size of the state as JSON, or pickled if JSON cannot hold it
    order      order of the samples after the state, compared with the uninterrupted run
    exact      one process saves, one resumes
    filter     every third sample is dropped
    2 workers  two worker processes or threads, batches in the order of completion: `in_order=False`, or `order: completion`; Grain keeps the order
    2 to 3     two ranks save, three resume; rank R gets the state of rank R modulo 2 if the loader does not merge the states of ranks
    2 to 1     two ranks save, one resumes

`range` and `tar` measure Penstock with larger sets: the share of rank 0 of 1,000 in a range of `--count` samples, so that
its state is at 90 % of all of them after 90 % of the share, and 1,000,000 samples in tar shards with an index.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import pickle
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import sets
from formats import make_index
from loaders import BATCH, Loader, Share, data_sets, data_sets_shards, grain, grain_elastic, is_kept, mosaic, penstock, penstock_tar, torchdata

STOP = 0.9
# Whole batches for 1, 2 and 3 ranks, before and after the stop, and with the filter, so that no loader pads or drops the last samples.
MULTIPLE = 60 * BATCH
# Ranks in the job `range`.
RANKS = 1000
FILES, MDS_BYTES, TAR_SHARDS = 12, 1 << 20, 10


@dataclass(frozen=True)
class Case:
    """Conditions of an interruption and a resume."""

    saved_by: int = 1
    resumed_by: int = 1
    is_filtered: bool = False
    workers: int = 0


@dataclass
class Outcome:
    """Results of a candidate in a case."""

    #: Error of the candidate; if there is one, nothing else is known.
    error: str = ""
    missing: int = 0
    double: int = 0
    is_in_order: bool = False
    state_bytes: int = 0
    #: Times in seconds, one of each turn: without a state, with it, and with it from the start of the process.
    fresh: list[float] = field(default_factory=list)
    resumed: list[float] = field(default_factory=list)
    process: list[float] = field(default_factory=list)


class Failed(Exception):
    """A process of a candidate has failed."""


def main() -> None:
    arguments = parsed()
    if arguments.one:
        child(arguments)
        return
    prepare(arguments)
    found = {name: outcomes(arguments, name) for name in arguments.only}
    tell(arguments, found)


def prepare(arguments: argparse.Namespace) -> None:
    """Makes the data sets of a job."""
    count = arguments.count
    if arguments.job == "tar":
        path = sets.made(arguments.data / "tar", partial(sets.tiny, count, TAR_SHARDS))
        if not (path / "train.index").exists():
            make_index(arguments, path)
    elif arguments.job == "peers":
        sets.made(arguments.data / "lines", partial(sets.numbers_lines, count))
        for name, make in [("parquet", partial(sets.numbers_parquet, count, FILES)), ("mds", partial(sets.numbers_mds, count, MDS_BYTES))]:
            try:
                sets.made(arguments.data / name, make)
            except ModuleNotFoundError as error:
                print(f"no data set `{name}`: {error}", file=sys.stderr)


def outcomes(arguments: argparse.Namespace, name: str) -> dict[str, Outcome]:
    """Results of a candidate by case. The first case is the condition of the others."""
    found: dict[str, Outcome] = {}
    for case in arguments.cases:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found[case] = outcome(arguments, name, case, Path(folder))
            except Failed as error:
                found[case] = Outcome(str(error))
        print(f"{name}, {case}: {found[case]}", file=sys.stderr)
        if found["exact"].error:
            break
    return found


def outcome(arguments: argparse.Namespace, name: str, case: str, folder: Path) -> Outcome:
    ranks = partial(processes, arguments, name, case, folder)
    saved = ranks("save", CASES[case].saved_by)
    found = Outcome(state_bytes=sum(one["state_bytes"] for one in saved))
    for turn in range(arguments.turns if case == "exact" else 1):
        if case == "exact":
            found.fresh.append(ranks("fresh", 1)[0]["first_s"])
        resumed = ranks("resume", CASES[case].resumed_by)
        found.resumed.append(resumed[0]["first_s"])
        found.process.append(resumed[0]["process_s"])
    before = numbers(folder, "before-*")
    whole, rest = numbers(folder, "save-*"), numbers(folder, "resume-*")
    expected = numpy.concatenate([before, whole])
    if arguments.job != "range":
        expected = numpy.arange(arguments.count)
        expected = expected[is_kept(expected)] if CASES[case].is_filtered else expected
    got, times = numpy.unique(numpy.concatenate([before, rest]), return_counts=True)
    found.missing = len(numpy.setdiff1d(expected, got))
    found.double = int((times - 1).sum()) + len(numpy.setdiff1d(got, expected))
    found.is_in_order = numpy.array_equal(whole, rest)
    return found


def numbers(folder: Path, pattern: str) -> Any:
    return numpy.concatenate([numpy.load(path) for path in sorted(folder.glob(f"{pattern}.npy"))])


def processes(arguments: argparse.Namespace, name: str, case: str, folder: Path, phase: str, world: int) -> list[dict[str, Any]]:
    """Runs a phase in one process of each rank; returns what they have found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    started = []
    for rank in range(world):
        variables = {**launcher, "RANK": rank, "LOCAL_RANK": rank} if world > 1 else {}
        options = [f"--one={name}", f"--case={case}", f"--phase={phase}", f"--rank={rank}", f"--folder={folder}", f"--begun={time.perf_counter()}"]
        environment = {**os.environ, **{key: str(value) for key, value in variables.items()}}
        command = [sys.executable, *sys.argv, *options]
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    try:
        wait(started, time.monotonic() + arguments.timeout)
        failed = next((rank for rank, process in enumerate(started) if process.returncode), None)
    finally:
        for process in started:
            process.kill()
            process.wait()
    found = [folder / f"{phase}-{rank}.json" for rank in range(world)]
    if failed is not None:
        said = json.loads(found[failed].read_text()) if found[failed].exists() else {}
        raise Failed(said.get("error", f"a process ended with code {started[failed].returncode}"))
    return [json.loads(path.read_text()) for path in found]


def wait(started: list[subprocess.Popen[bytes]], until: float) -> None:
    """Waits until all processes have ended, or one has failed, since others may wait for it forever."""
    while any(process.poll() is None for process in started) and not any(process.returncode for process in started):
        if time.monotonic() > until:
            raise Failed("does not end in time")
        time.sleep(0.05)


def child(arguments: argparse.Namespace) -> None:
    """Runs a phase of a rank in this process, and writes what it finds into the folder."""
    try:
        found = run_phase(arguments)
    except Exception as error:
        lines = str(error).strip().splitlines() or [str(traceback.extract_tb(error.__traceback__)[-1].line)]
        # The error of a worker process contains its traceback.
        found = {"error": lines[-1] if "Traceback" in str(error) else f"{type(error).__name__}: {' '.join(lines)}"}
    (arguments.folder / f"{arguments.phase}-{arguments.rank}.json").write_text(json.dumps(found))
    sys.exit("error" in found)


def run_phase(arguments: argparse.Namespace) -> dict[str, Any]:
    case, folder, phase, rank = CASES[arguments.case], arguments.folder, arguments.phase, arguments.rank
    world = RANKS if arguments.job == "range" else case.resumed_by if phase == "resume" else case.saved_by
    share = Share(arguments.count, rank, world, case.saved_by > 1, case.is_filtered, case.workers, arguments.data, arguments.modules)
    states = [read(path) for path in sorted(folder.glob("*.state"))]
    loader = LOADERS[arguments.job][arguments.one](share)

    begin = time.perf_counter()
    if phase == "resume":
        # The only rank of the job `range` that has a state.
        loader.load(states * world if arguments.job == "range" else states)
    batches = loader.batches()
    taken = [next(batches, numpy.array([], int))]
    now = time.perf_counter()
    found = {"first_s": now - begin, "process_s": now - arguments.begun}

    if phase == "save":
        left = STOP * share.count * (2 / 3 if case.is_filtered else 1) / world - len(taken[0])
        while left > 0:
            taken.append(next(batches))
            left -= len(taken[-1])
        state = written(loader.state())
        (folder / f"{rank}.state").write_bytes(state)
        numpy.save(folder / f"before-{rank}.npy", numpy.concatenate(taken))
        found["state_bytes"] = len(state)
        taken = [numpy.array([], int)]
    if phase != "fresh":
        numpy.save(folder / f"{phase}-{rank}.npy", numpy.concatenate([*taken, *batches]))
    return found


def written(state: Any) -> bytes:
    """State as JSON, or pickled if it does not come back from JSON."""
    try:
        text = json.dumps(state)
        if json.loads(text) == state:
            return text.encode()
    except TypeError:
        pass
    return pickle.dumps(state)


def read(path: Path) -> Any:
    content = path.read_bytes()
    return json.loads(content) if content.startswith(b"{") else pickle.loads(content)


def tell(arguments: argparse.Namespace, found: dict[str, dict[str, Outcome]]) -> None:
    notes: list[str] = []

    def cell(one: Outcome) -> str:
        if one.error:
            if one.error not in notes:
                notes.append(one.error)
            return f"error [{notes.index(one.error) + 1}]"
        return "exact" if one.missing == one.double == 0 else f"-{one.missing:,} +{one.double:,}"

    known = {name: cases for name, cases in found.items() if not cases["exact"].error}
    print(f"{arguments.job}: {arguments.count:,} samples, batches of {BATCH}, stopped at {STOP:.0%}; medians of {arguments.turns}\n")
    print(f"{'':28} {'fresh ms':>10} {'resumed ms':>11} {'process ms':>11} {'state bytes':>12}")
    for name, cases in known.items():
        one = cases["exact"]
        fresh, resumed, process = (1000 * statistics.median(times) for times in (one.fresh, one.resumed, one.process))
        print(f"{name:28} {fresh:10.1f} {resumed:11.1f} {process:11.0f} {one.state_bytes:12,}")
    for name, cases in found.items():
        if name not in known:
            print(f"{name:28} not measured: {cases['exact'].error}")
    print(f"\n{'':28} {'order':>6} " + " ".join(f"{case:>17}" for case in arguments.cases))
    for name, cases in known.items():
        print(f"{name:28} {'same' if cases['exact'].is_in_order else 'other':>6} " + " ".join(f"{cell(one):>17}" for one in cases.values()))
    print("\n`-M +D`: M samples are missing, D come again")
    for number, note in enumerate(notes, 1):
        print(f"[{number}] {note[:300]}")
    first = known.get("penstock")
    if first:
        most_ms, must_ms = 1000 * statistics.median(first["exact"].resumed), MUST_MS[arguments.job]
        is_exact = all(cell(one) == "exact" for one in first.values())
        print(f"\nPenstock must be exact in each case: {'holds' if is_exact else 'MISSED'}")
        print(f"First batch after {most_ms:.1f} ms; must {must_ms} ms: {'holds' if most_ms <= must_ms else 'MISSED'}")


CASES = {
    "exact": Case(),
    "filter": Case(is_filtered=True),
    "2 workers": Case(workers=2),
    "2 to 3": Case(saved_by=2, resumed_by=3),
    "2 to 1": Case(saved_by=2),
}
#: Candidates of each job.
LOADERS: dict[str, dict[str, Callable[[Share], Loader]]] = {
    "peers": {
        "penstock": penstock,
        "torchdata": torchdata,
        "grain": grain,
        "grain, ElasticIterator": grain_elastic,
        "MosaicML Streaming": mosaic,
        "datasets": data_sets,
        "datasets, files shuffled": data_sets_shards,
    },
    "range": {"penstock": penstock},
    "tar": {"penstock": penstock_tar},
}
MUST_MS = {"peers": 10, "range": 10, "tar": 300}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=LOADERS)
    parser.add_argument("--count", type=int, help="number of samples (peers: 960,000; range: 1,000,000,000; tar: 1,000,000)")
    parser.add_argument("--penstock", type=Path, default=Path("target/release/penstock"), help="the built program (target/release/penstock)")
    guests = Path("target/wasm32-unknown-unknown/guest")
    parser.add_argument("--modules", type=Path, default=guests, help=f"folder of the built example stages ({guests})")
    parser.add_argument("--data", type=Path, default=Path("demo/resume"), help="folder for the data sets (demo/resume)")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each time (3)")
    parser.add_argument("--timeout", type=float, default=1800, help="time in which the processes of a phase must end, in seconds (1800)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="candidates to measure (those of the job)")
    parser.add_argument("--cases", nargs="*", choices=list(CASES)[1:], help="cases to measure beside `exact` (all)")
    parser.add_argument("--one", help="run one phase of this candidate in this process")
    parser.add_argument("--case", choices=CASES, help="case of the phase")
    parser.add_argument("--phase", choices=["fresh", "save", "resume"], help="phase to run")
    parser.add_argument("--rank", type=int, help="rank of the process")
    parser.add_argument("--folder", type=Path, help="folder of the states and findings")
    parser.add_argument("--begun", type=float, help="time at which the process was started")
    arguments = parser.parse_args()
    arguments.cases = ["exact", *(list(CASES)[1:] if arguments.cases is None else arguments.cases)] if arguments.job == "peers" else ["exact"]
    arguments.only = arguments.only or list(LOADERS[arguments.job])
    arguments.count = arguments.count or {"peers": 250 * MULTIPLE, "range": 10**9, "tar": 10**6}[arguments.job]
    if arguments.job == "peers" and arguments.count % MULTIPLE:
        parser.error(f"`--count` is {arguments.count}; expected a multiple of {MULTIPLE}, which needs no padding with 1, 2 and 3 ranks")
    arguments.data = arguments.data / f"{arguments.count}"
    return arguments


if __name__ == "__main__":
    main()
