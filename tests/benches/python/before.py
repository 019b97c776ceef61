"""Measures whole runs of Penstock beside those of an earlier build: the rate of each form of data, and the time to the first sample of records.

    python tests/benches/python/before.py --penstock target/release/penstock --before old/penstock

Both programs run the same documents over the same files, in a random order within each turn. A rate is told by the medians of CPU time and wall-clock time of
the processes, and by the mean of the ratios of a turn with its standard error: on a machine that others use, single ratios differ by 15 %. The
program `--before` takes part twice, and what differs between its two halves is noise. The time to the first sample of 1,000,000 lines
ends when its file is there.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import sets

sys.path.append(str(Path(__file__).parents[2] / "variants"))
import forms

THREADS, BATCH = 2, 64
LINES, FILES = 1_000_000, 10
RATE_MUST, LATER_MUST_MS, SHUFFLED_MUST = 1.02, 30, 3.0


class Form(NamedTuple):
    """A form of data: its folder and how that is made, the source, and the stages before the batches."""

    folder: str
    make: Callable[[Path], None]
    source: dict[str, Any]
    stages: Sequence[dict[str, Any]] = ()


def lines(folder: Path) -> None:
    """Records with a whole and a broken number, a text and a label."""
    for part, numbers in sets.parts(LINES, FILES):
        with (folder / f"part-{part:02}.ndjson").open("w") as file:
            file.writelines(json.dumps({"id": number, "x": number / 7, "text": "word " * (2 + number % 11), "label": number % 10}) + "\n" for number in numbers)


def rows(folder: Path) -> None:
    with (folder / "part-0.csv").open("w") as file:
        file.write("id,x,text,label\n")
        file.writelines(f"{number},{number / 7},{'word ' * (2 + number % 11)},{number % 10}\n" for number in range(LINES // 2))


def examples(folder: Path) -> None:
    noise = numpy.random.default_rng(1)
    for part, numbers in sets.parts(LINES // 10, 4):
        records = [forms.example({"id": ("int", [number]), "x": ("float", [number / 7]), "image": ("bytes", [noise.bytes(300)])}) for number in numbers]
        (folder / f"part-{part}.tfrecord").write_bytes(forms.tfrecord_bytes(records))


def all_forms(photos: Path) -> dict[str, Form]:
    shards = ("tar", partial(sets.tar, photos, 20_000, 20))
    image = {"name": "decode", "module": "std/image", "params": {"ops": [{"Resize": {"size": 224}}, {"CenterCrop": {"size": 224}}]}}
    return {
        "lines": Form("lines", lines, {"records": {"prefix": "part-"}}),
        "rows": Form("rows", rows, {"csv": {"shards": "part-0.csv", "types": {"id": "int", "x": "float", "label": "int"}}}),
        "tar": Form(*shards, {"tar": {"prefix": "train-", "epochs": 10}}),
        "tar, shuffled": Form(*shards, {"tar": {"index": "train.index", "shuffle": True, "epochs": 10}}),
        "parquet": Form("parquet", partial(sets.parquet, photos, 20_000, 4), {"parquet": {"prefix": "train-", "epochs": 10}}),
        "tfrecord": Form("tfrecord", examples, {"tfrecord": {"prefix": "part-", "epochs": 4}}),
        "photos": Form("photos", partial(shutil.copytree, photos, dirs_exist_ok=True), {"list": {"suffix": ".jpg", "limit": 500}}, [{"fetch": {}}, {"wasm": image}]),
    }


def document(form: Form, **more: Any) -> dict[str, Any]:
    source = {kind: {"store": "data", **options, **more} for kind, options in form.source.items()}
    return {"name": "before", "seed": 1, "threads": THREADS, "source": source, "stages": [*form.stages, {"aggregate": {"size": BATCH}}, {"collate": {}}]}


def used(program: Path, written: dict[str, Any], data: Path) -> tuple[float, float]:
    """CPU time and wall-clock time of a whole run, in seconds."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(written, file)
        file.flush()
        begin = time.perf_counter()
        run = subprocess.Popen([program, "run", file.name, f"--store=data={data}", "--quiet"], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(run.pid, 0)
        wall = time.perf_counter() - begin
    run.returncode = os.waitstatus_to_exitcode(status)
    assert run.returncode == 0, (program, run.returncode)
    return usage.ru_utime + usage.ru_stime, wall


def first(program: Path, form: Form, data: Path, shuffle: bool) -> float:
    """Time from the start of a process until the file of its first sample is there, in seconds."""
    written = {**document(form, shuffle=shuffle), "stages": [{"aggregate": {"size": 1}}, {"collate": {}}], "consumer": {"files": {"store": "out"}}}
    with tempfile.TemporaryDirectory() as folder:
        out, path = Path(folder, "out"), Path(folder, "document.json")
        out.mkdir()
        path.write_text(json.dumps(written))
        begin = time.perf_counter()
        with subprocess.Popen([program, "run", path, f"--store=data={data}", f"--store=out={out}", "--quiet"], stdout=subprocess.DEVNULL) as run:
            while not (out / "batch-00000000.safetensors").exists():
                assert run.poll() is None, (program, run.returncode)
                time.sleep(0.0005)
            passed = time.perf_counter() - begin
            run.kill()
    return passed


def in_turns(measure: Callable[[str], Any], names: Sequence[str], turns: int) -> dict[str, list[Any]]:
    """Results of each program, in turns, after one that is not counted."""
    found: dict[str, list[Any]] = {name: [] for name in names}
    for turn in range(turns + 1):
        for name in random.sample(names, len(names)):
            result = measure(name)
            if turn > 0:
                found[name].append(result)
    return found


def ratio(found: list[float], before: list[float]) -> str:
    """Mean of the ratios with its standard error, and ratio of the medians."""
    logs = [math.log(one / other) for one, other in zip(found, before)]
    mean, error = math.exp(statistics.mean(logs)), statistics.stdev(logs) / math.sqrt(len(logs))
    return f"{mean:.3f} +- {error:.3f} ({statistics.median(found) / statistics.median(before):.3f})"


def main() -> None:
    arguments = parsed()
    chosen = all_forms(arguments.photos)
    data = {name: sets.made(arguments.data / form.folder, form.make) for name, form in chosen.items()}
    subprocess.run([arguments.before, "index", "create", "--tar", f"--store=data={data['tar']}", "--upload=train.index"], check=True, stderr=subprocess.DEVNULL)
    programs = {"now": arguments.penstock, "before": arguments.before, "before again": arguments.before}
    print(f"{'':16} {'CPU s':>7} {'of the CPU time before: mean (medians)':>40} {'the same of the wall-clock time':>34}  noise, CPU")
    for name in arguments.only or chosen:
        written = document(chosen[name])
        found = in_turns(lambda program: used(programs[program], written, data[name]), list(programs), arguments.turns)
        cpu, wall = ({program: [result[kind] for result in results] for program, results in found.items()} for kind in (0, 1))
        whole = statistics.median(cpu["now"]) / statistics.median(cpu["before"] + cpu["before again"])
        print(f"{name:16} {statistics.median(cpu['before']):7.2f} {ratio(cpu['now'], cpu['before']):>40} {ratio(wall['now'], wall['before']):>34}"
              f"  {ratio(cpu['before again'], cpu['before'])}; must {RATE_MUST}: {'holds' if whole <= RATE_MUST else 'MISSED'}", flush=True)  # fmt: skip
    for shuffle in (False, True):
        found = in_turns(lambda program: first(programs[program], chosen["lines"], data["lines"], shuffle), ["now", "before"], arguments.turns)
        now, before = (1000 * statistics.median(found[name]) for name in ("now", "before"))
        holds = now <= SHUFFLED_MUST * before if shuffle else now - before <= LATER_MUST_MS
        must = f"{SHUFFLED_MUST}x" if shuffle else f"{LATER_MUST_MS} ms later"
        print(f"first of {LINES:,} lines, {'shuffled' if shuffle else 'in order'}: {now:.0f} ms, before {before:.0f} ms; must {must} at most: {'holds' if holds else 'MISSED'}")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", type=Path, default=Path("target/release/penstock"), help="the built program (target/release/penstock)")
    parser.add_argument("--before", type=Path, required=True, help="the same program of an earlier commit")
    parser.add_argument("--photos", type=Path, default=Path("demo/small"), help="folder of JPEGs (demo/small, as `make bench-formats` makes)")
    parser.add_argument("--data", type=Path, default=Path("demo/before"), help="folder for the data sets (demo/before)")
    parser.add_argument("--turns", type=int, default=20, help="measurements of each program, at least 2 (20)")
    parser.add_argument("--only", nargs="+", help="forms to measure (all)")
    arguments = parser.parse_args()
    if arguments.turns < 2:
        parser.error("--turns: a standard error needs at least 2")
    return arguments


if __name__ == "__main__":
    main()
