"""Support for the generated variants: runs of the command, the samples in its files, and the list of differences.

A variant is a function of a random generator and an empty folder. It makes a small data set, runs Penstock over it, and
returns what differs from a reference. Each variant has a generator of its own, whose seed is the program's seed, its name and
the number of the variant, so that `--only NUMBER` repeats one.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

# Maximum time of one run, in seconds; a run that takes longer hangs.
PATIENCE_S = 60.0

# Load of the machine above which no further variant starts.
BUSY = 6.0

DTYPES = {
    "BOOL": np.bool_, "U8": np.uint8, "I8": np.int8, "U16": np.uint16, "I16": np.int16, "U32": np.uint32, "I32": np.int32,
    "U64": np.uint64, "I64": np.int64, "F16": np.float16, "F32": np.float32, "F64": np.float64,
}


@dataclass
class Sample:
    """One delivered sample."""

    key: str
    index: int
    # Text and blob fields are bytes, all others arrays.
    fields: dict[str, Any]


@dataclass
class Outcome:
    """What one run of the command left."""

    code: int
    snapshot: dict[str, Any]
    errors: str
    samples: list[Sample] = field(default_factory=list)
    command: str = ""

    @property
    def total(self) -> dict[str, Any]:
        """The whole run in the ledger."""
        return (self.snapshot.get("ledger") or {}).get("total") or {}

    def count(self, name: str) -> int:
        """A count of the ledger; 0 without one."""
        return int(self.total.get(name) or 0)

    @property
    def failed(self) -> int:
        """Samples that failed and were counted."""
        return self.count("skipped") + self.count("dead_lettered")

    @property
    def left_out(self) -> dict[str, list[dict[str, Any]]]:
        """What sources did not take, by the name of the source."""
        return self.snapshot.get("left_out") or {}

    @property
    def warnings(self) -> list[Any]:
        return self.snapshot.get("warnings") or []

    @property
    def lost_samples(self) -> int | None:
        """Samples in damaged parts; `None` if their number is not known."""
        parts = [part for source in (self.left_out or {}).values() for part in source if part.get("reason") == "damage"]
        return None if any("samples" not in part for part in parts) else sum(part["samples"] for part in parts)

    @property
    def words(self) -> str:
        """All that the run said about losses and faults."""
        parts = [self.errors]
        for name in ("left_out", "warnings", "failures", "error", "errors", "fault"):
            if self.snapshot.get(name):
                parts.append(json.dumps(self.snapshot[name], ensure_ascii=False))
        return "\n".join(parts)

    @property
    def is_setting_unknown(self) -> bool:
        """True if the document has a setting that the command does not know."""
        return self.code == 2 and any(word in self.errors for word in ("unknown field", "found a list, expected a text", "found an object, expected a text", "unexpected argument"))


@dataclass
class Difference:
    """A place in which Penstock and the reference disagree."""

    # Class of the difference, by which the table counts.
    what: str
    expected: str
    found: str


@dataclass
class Report:
    """Result of one variant."""

    number: int
    recipe: str
    differences: list[Difference]
    # Words that classify the variant in the summary, e.g. `delivered` or `refused`.
    tags: tuple[str, ...] = ()


class Variant:
    """One variant in the making: its random numbers, its folder and what was found."""

    def __init__(self, number: int, rng: random.Random, place: Path, options: argparse.Namespace):
        self.number = number
        self.rng = rng
        self.place = place
        self.options = options
        self.recipe: list[str] = []
        self.differences: list[Difference] = []
        self.tags: list[str] = []
        self._runs = 0

    def note(self, text: str) -> None:
        """Adds a line to the recipe."""
        self.recipe.append(text)

    def differ(self, what: str, expected: Any, found: Any) -> None:
        self.differences.append(Difference(what, short(expected), short(found)))

    def folder(self, name: str) -> Path:
        path = self.place / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def run(self, document: Mapping[str, Any], stores: Mapping[str, Path], *flags: str, out: str | None = None, binary: Path | None = None,
            quiet: bool = True) -> Outcome:
        """Runs a document. If its consumer is `files`, its samples are read from the store `out`."""
        self._runs += 1
        if self.options.old:
            document, flags = without_new(document), tuple(flag for flag in flags if "links" not in flag and not flag.startswith("d="))
        name = out or f"out-{self._runs}"
        path = self.place / f"document-{self._runs}.json"
        path.write_text(json.dumps(document, ensure_ascii=False))
        arguments = [str(binary or self.options.penstock), "run", str(path)]
        for store, folder in stores.items():
            arguments += ["--store", f"{store}={folder}"]
        keeps = "files" in (document.get("consumer") or {})
        if keeps:
            arguments += ["--store", f"out={self.folder(name)}"]
        arguments += ["--json", *flags]
        outcome = command(arguments)
        if keeps:
            outcome.samples = read_batches(self.place / name / "b")
        said = json.dumps(document, ensure_ascii=False)
        self.note(f"run {said} {' '.join(flags)} -> {outcome.code}: {short(outcome.errors.strip(), 300)}")
        if "panicked" in outcome.errors:
            self.differ("panic", "no panic", outcome.errors)
        if outcome.code == -9:
            self.differ("hang", f"an end within {PATIENCE_S:.0f} s", "none")
        if outcome.code in (0, 1) and outcome.snapshot and (outcome.snapshot.get("ledger") or {}).get("balanced") is False:
            self.differ("ledger does not balance", "balanced", outcome.snapshot["ledger"])
        if keeps and outcome.code == 0 and outcome.snapshot and outcome.count("delivered") != len(outcome.samples) and "--resume" not in flags:
            self.differ("files and ledger differ", outcome.count("delivered"), len(outcome.samples))
        return outcome


# Settings of sources that versions before the rules on missing and damaged data do not know.
NEW = ["missing", "on_damage", "scalars", "lists", "links", "classes", "hidden", "delimiter", "quote", "encoding", "explode"]


def without_new(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document without the settings that old versions do not know."""
    (form, source), = document["source"].items()
    if form == "mix":
        return dict(document)
    old = {name: value for name, value in source.items() if name not in NEW and not (form == "records" and name == "types")}
    if not isinstance(old.get("suffix", ""), str):
        del old["suffix"]
    return {**document, "source": {form: old}}


def command(arguments: Sequence[str]) -> Outcome:
    """Runs a command that prints a snapshot."""
    environment = {**os.environ, "PENSTOCK_LOG": "warn", "NO_COLOR": "1"}
    for name in ("RANK", "WORLD_SIZE", "PENSTOCK_CONFIG"):
        environment.pop(name, None)
    try:
        process = subprocess.run(arguments, capture_output=True, timeout=PATIENCE_S, env=environment)
    except subprocess.TimeoutExpired as expired:
        return Outcome(-9, {}, (expired.stderr or b"").decode("utf-8", "replace"), command=" ".join(arguments))
    text = process.stdout.decode("utf-8", "replace")
    try:
        snapshot = json.loads(text) if text.strip() else {}
    except json.JSONDecodeError:
        snapshot = {}
    if not isinstance(snapshot, dict):
        snapshot = {}
    return Outcome(process.returncode, snapshot, process.stderr.decode("utf-8", "replace"), command=" ".join(arguments))


def read_batches(folder: Path) -> list[Sample]:
    """Samples in the safetensors files of a folder, in the order of the batches."""
    samples = []
    for path in sorted(folder.glob("batch-*.safetensors")):
        samples += read_batch(path)
    return samples


def read_batch(path: Path) -> list[Sample]:
    """Samples in one safetensors file."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    body = memoryview(data)[8 + length:]
    metadata = json.loads(header.pop("__metadata__")["penstock"])
    keys, indexes = batch_names(metadata)
    arrays = {}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        dtype = DTYPES.get(entry["dtype"])
        if dtype is None:
            raise ValueError(f"{path.name} has a tensor of {entry['dtype']}")
        arrays[name] = np.frombuffer(body[first:last], dtype).reshape(entry["shape"]).copy()
    size = len(keys)
    samples = [Sample(key, index, {}) for key, index in zip(keys, indexes)]
    for name, array in arrays.items():
        if name.endswith(".offsets") and name[: -len(".offsets")] in arrays:
            continue
        offsets = arrays.get(f"{name}.offsets")
        for number in range(size):
            if offsets is not None:
                samples[number].fields[name] = array[int(offsets[number]):int(offsets[number + 1])].tobytes()
            else:
                samples[number].fields[name] = array[number]
    return samples


def batch_names(metadata: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Keys and positions in the metadata of a batch."""
    keys = metadata.get("samples") or metadata.get("keys") or []
    indexes = metadata.get("indexes") or metadata.get("positions") or list(range(len(keys)))
    return list(keys), [int(index) if not isinstance(index, dict) else int(index.get("index", 0)) for index in indexes]


def short(value: Any, most: int = 400) -> str:
    """A value as text of limited length."""
    text = value if isinstance(value, str) else repr(value)
    text = text.replace("\n", " | ")
    return text if len(text) <= most else text[:most] + "..."


def same_number(expected: float | int, found: Any) -> bool:
    """True if a scalar array has exactly this value; NaN equals NaN."""
    found = found.item() if hasattr(found, "item") else found
    if isinstance(found, (bytes, str)):
        return False
    if isinstance(expected, float) and math.isnan(expected):
        return isinstance(found, float) and math.isnan(found)
    return found == expected


def field_types(snapshot: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of the data set in a snapshot, by name; empty if it has none."""
    fields = (snapshot.get("fields") or {}).get("fields") or []
    return {entry["name"]: entry for entry in fields}


def collated(source: Mapping[str, Any], size: int = 1, **members: Any) -> dict[str, Any]:
    """A document that writes each batch of `size` samples to a file."""
    collate = members.pop("collate", {})
    stages = members.pop("stages", [])
    return {
        "source": source,
        "stages": [*stages, {"aggregate": {"size": size}}, {"collate": collate}],
        "consumer": {"files": {"store": "out", "prefix": "b"}},
        "threads": 1,
        **members,
    }


def main(kind: str, make: Callable[[Variant], None], count: int = 500, more: Callable[[argparse.ArgumentParser], None] | None = None) -> None:
    """Runs variants, prints a table of the differences, and exits with 1 if there are any."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=count, help=f"variants ({count})")
    parser.add_argument("--seed", default="0", help="seed of all variants")
    parser.add_argument("--penstock", type=Path, default=os.environ.get("PENSTOCK"), help="the command; the variable PENSTOCK by default")
    parser.add_argument("--old", action="store_true", help="leaves out the settings that old versions do not know, to see what they do")
    parser.add_argument("--jobs", type=int, default=2, help="variants at a time")
    parser.add_argument("--only", type=int, help="runs this variant only, and prints its recipe")
    parser.add_argument("--keep", type=Path, help="keeps the data of variants with differences in this folder")
    parser.add_argument("--shown", type=int, default=3, help="differences of one class that are printed whole")
    if more:
        more(parser)
    options = parser.parse_args()
    if options.penstock is None:
        sys.exit("PENSTOCK is not set: give --penstock")
    options.penstock = Path(options.penstock).resolve()
    numbers = range(options.count) if options.only is None else [options.only]
    started = time.monotonic()
    reports: list[Report] = []
    lock = threading.Lock()
    # A program that is stopped still reports what it has seen.
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())

    def one(number: int) -> None:
        if stopped.is_set():
            return
        while options.only is None and os.getloadavg()[0] > BUSY:
            time.sleep(1)
        report = run_variant(kind, make, number, options)
        with lock:
            reports.append(report)
            done = len(reports)
            if done % max(1, len(numbers) // 10) == 0:
                bad = sum(bool(report.differences) for report in reports)
                print(f"{kind}: {done} of {len(numbers)}, {bad} differ, {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(one, numbers))
    reports.sort(key=lambda report: report.number)
    print_reports(kind, reports, options, time.monotonic() - started)
    sys.exit(any(report.differences for report in reports))


def run_variant(kind: str, make: Callable[[Variant], None], number: int, options: argparse.Namespace) -> Report:
    """Makes and checks one variant in a folder of its own."""
    place = Path(tempfile.mkdtemp(prefix=f"penstock-{kind}-{number}-"))
    variant = Variant(number, random.Random(f"{options.seed}:{kind}:{number}"), place, options)
    try:
        make(variant)
    except Exception:
        variant.differ("the test itself failed", "no exception", traceback.format_exc()[-380:])
    if variant.differences and options.keep:
        kept = options.keep / f"{kind}-{number}"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(place, kept, symlinks=True, ignore_dangling_symlinks=True, ignore=_pipes)
    shutil.rmtree(place, ignore_errors=True)
    return Report(number, "\n".join(variant.recipe), variant.differences, tuple(variant.tags))


def _pipes(folder: str, names: list[str]) -> list[str]:
    """Names of a folder that are neither files, folders nor links: a copy of a pipe would wait for ever."""
    paths = [(name, os.path.join(folder, name)) for name in names]
    return [name for name, path in paths if not (os.path.islink(path) or os.path.isfile(path) or os.path.isdir(path))]


def print_reports(kind: str, reports: Sequence[Report], options: argparse.Namespace, elapsed_s: float) -> None:
    """Prints each class of differences with its first cases, a table of the classes, and a line of summary."""
    if options.only is not None:
        for report in reports:
            print(report.recipe)
    classes: dict[str, list[tuple[Report, Difference]]] = collections.defaultdict(list)
    for report in reports:
        seen = set()
        for difference in report.differences:
            if difference.what not in seen:
                seen.add(difference.what)
                classes[difference.what].append((report, difference))
    for what, cases in sorted(classes.items(), key=lambda item: -len(item[1])):
        print(f"\n## {what}: {len(cases)}")
        for report, difference in cases[:options.shown]:
            print(f"- variant {report.number}: expected {difference.expected}; found {difference.found}")
            if options.only is None:
                print("    " + short(report.recipe.replace("\n", "\n    "), 1500).replace(" |     ", "\n    "))
    tags = collections.Counter(tag for report in reports for tag in report.tags)
    print(f"\n| {kind}: difference | variants | numbers |\n|---|---|---|")
    for what, cases in sorted(classes.items(), key=lambda item: -len(item[1])):
        numbers = ", ".join(str(report.number) for report, _ in cases[:8])
        print(f"| {what} | {len(cases)} | {numbers}{', ...' if len(cases) > 8 else ''} |")
    bad = sum(bool(report.differences) for report in reports)
    words = ", ".join(f"{count} {tag}" for tag, count in sorted(tags.items()))
    print(f"\n{kind}: {len(reports)} variants, {bad} with differences, {elapsed_s:.0f} s, seed {options.seed}; {words}", flush=True)
