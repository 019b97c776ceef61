"""Measures the rate at which samples come out of the files in which data sets are kept: Penstock, and the libraries of these formats.

    python tests/benches/python/formats.py tar --penstock target/release/penstock
    python tests/benches/python/formats.py shuffled --penstock target/release/penstock
    python tests/benches/python/formats.py parquet --penstock target/release/penstock
    python tests/benches/python/formats.py s3 --penstock target/release/penstock --s3-server target/release/s3-server
    python tests/benches/python/formats.py first --penstock target/release/penstock

`tar` and `shuffled` read shards of small photos with a label, `parquet` the same photos with a label and three columns of numbers, from a warm page
cache. All candidates deliver the bytes of the photos to Python, and the numbers: Penstock in batches of 64, others in samples, or in batches where
that is faster. `penstock run` discards them in its own process. A process makes a first pass that is not counted, in which the
samples are compared by their number, bytes, checksums and numbers, then passes that are. `s3` measures bytes per second from a server that begins
each response after 20 ms and sends 250 MB/s, as a link of 2 Gbit/s does, against plain requests for the same ranges, as many at a time. `first` measures
the time to the first sample of 1,000,000 in shards with an index.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy
import sets
from served import CONNECTIONS, blocks, data_set, served
from turns import Measured, cpu, measured, middle, tell, timed

THREADS, BATCH = 2, 64
SAMPLES, SHARDS, FILES = 20_000, 20, 4
# Samples and shards of the set that the server has, of larger photos.
REMOTE, REMOTE_SHARDS = 16_000, 8
MANY, MANY_SHARDS = 1_000_000, 10
# Number of samples that are shuffled in memory: as many as Penstock's window of shards has.
WINDOW = 8
BUFFER = WINDOW * SAMPLES // SHARDS
COLUMNS = ["label", "width", "height", "score"]

#: Contents of photos, and numbers, of a sample or of a batch.
Item = tuple[Sequence[bytes], Sequence[Any]]
#: Passes over all samples.
Passes = Iterator[Iterable[Item]]


def main() -> None:
    arguments = parsed()
    if arguments.one:
        print(json.dumps(vars(JOBS[arguments.job][arguments.one](arguments))))
        return
    prepare(arguments)
    must = MUST[arguments.job]
    if arguments.job == "s3":
        limit = [f"--rate={arguments.rate * 10**6}"] if arguments.rate else []
        with served(arguments.s3_server, folder(arguments), f"--latency={arguments.latency}", *limit) as endpoint:
            with bucket(endpoint) as store:
                make_index(arguments, store)
            sys.argv.append(f"--endpoint={endpoint}")
            found, missing = measured(arguments.only, arguments.turns)
        print(f"shards from a server: {arguments.latency}, {arguments.rate or 'any'} MB/s; {THREADS} threads; medians of {arguments.turns}\n")
        tell(found, missing, "MB", str, must, must)
    elif arguments.job == "first":
        found, missing = measured(arguments.only, arguments.turns)
        tell_first(found, missing, MUST["first"])
    else:
        found, missing = measured(arguments.only, arguments.turns)
        print(f"{arguments.job}: {SAMPLES:,} samples, {THREADS} threads; medians of {arguments.turns}\n")
        tell(found, missing, "samples", str, must, must)
        if len({json.dumps(turn.check) for turns in found.values() for turn in turns if turn.check}) > 1:
            sys.exit("the candidates deliver different samples")


def folder(arguments: argparse.Namespace) -> Path:
    """Folder of the files that a job reads."""
    names = {"tar": "tar", "shuffled": "tar", "parquet": "parquet", "s3": "remote", "first": "many"}
    path: Path = arguments.data / names[arguments.job]
    return path


def prepare(arguments: argparse.Namespace) -> None:
    """Makes the files of a job, and reads them, so that they are in the page cache."""
    photos = arguments.photos
    make = {
        "tar": partial(sets.tar, photos, SAMPLES, SHARDS),
        "parquet": partial(sets.parquet, photos, SAMPLES, FILES),
        "remote": partial(sets.tar, arguments.larger, REMOTE, REMOTE_SHARDS),
        "many": partial(sets.tiny, MANY, MANY_SHARDS),
    }
    path = folder(arguments)
    sets.made(path, make[path.name])
    if path.name in ("tar", "many") and not (path / "train.index").exists():
        make_index(arguments, path)
    for file in path.iterdir():
        with file.open("rb") as opened:
            while opened.read(1 << 20):
                pass


def make_index(arguments: argparse.Namespace, store: Path) -> None:
    subprocess.run([arguments.penstock, "index", "create", "--tar", f"--store=shards={store}", "--upload=train.index"], check=True)


def seen(items: Iterable[Item]) -> tuple[int, list[float]]:
    """Number of samples, and what all candidates have in common: number, bytes, sum of checksums, sum of numbers."""
    samples, size, checksums, total = 0, 0, 0, 0.0
    for contents, numbers in items:
        assert all(type(content) is bytes for content in contents)
        samples += len(contents)
        size += sum(map(len, contents))
        checksums += sum(map(crc32, contents))
        total += sum(float(numpy.sum(column)) for column in numbers)
    return samples, [samples, size, checksums, total]


def passes(candidate: Callable[[argparse.Namespace], Passes], arguments: argparse.Namespace) -> Measured:
    return timed(candidate(arguments), arguments.passes, seen, lambda item: len(item[0]))


def document(arguments: argparse.Namespace) -> dict[str, Any]:
    sources: dict[str, Any] = {
        "tar": {"tar": {"store": "shards", "prefix": "train-", "fields": {"bytes": "jpg", "label": "cls"}}},
        "shuffled": {"tar": {"store": "shards", "index": "train.index", "fields": {"bytes": "jpg", "label": "cls"}, "shuffle": True, "window": WINDOW}},
        "parquet": {"parquet": {"store": "shards", "prefix": "train-", "columns": COLUMNS, "fields": {"bytes": "image"}}},
        "first": {"tar": {"store": "shards", "index": "train.index", "fields": {"bytes": "jpg", "label": "cls"}, "shuffle": True}},
    }
    sources["s3"] = sources["tar"]
    return {"name": arguments.job, "threads": THREADS, "source": sources[arguments.job], "stages": [{"aggregate": {"size": BATCH}}, {"collate": {}}]}


def penstock(arguments: argparse.Namespace) -> Passes:
    import penstock

    names = COLUMNS if arguments.job == "parquet" else COLUMNS[:1]
    pipeline = penstock.Pipeline(document(arguments), stores={"shards": folder(arguments)})
    while True:
        yield ((batch["bytes"], [numpy.from_dlpack(batch[name]) for name in names]) for batch in pipeline)


def penstock_run(arguments: argparse.Namespace, samples: int, store: Path | None = None, **options: Any) -> tuple[float, float]:
    """Runs the command with these options of the source, which deliver this number of samples; returns time and CPU time of the run, in seconds."""
    written = document(arguments)
    for source in written["source"].values():
        source.update(options)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(written, file)
        file.flush()
        used = cpu()
        command = [arguments.penstock, "run", file.name, f"--store=shards={store or folder(arguments)}", "--quiet", "--json"]
        snapshot = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    delivered = snapshot["ledger"]["stages"][-1]["out"]
    assert delivered == samples, (delivered, samples)
    return snapshot["elapsed_s"], cpu() - used


def discarded(arguments: argparse.Namespace) -> Measured:
    samples = arguments.passes * SAMPLES
    return Measured(samples, *penstock_run(arguments, samples, epochs=arguments.passes), None)


def web_dataset(arguments: argparse.Namespace) -> Any:
    """Samples by `webdataset`: the content of a photo, and its label."""
    import webdataset

    shards = sorted(map(str, folder(arguments).glob("*.tar")))
    is_shuffled = arguments.job == "shuffled"
    samples = webdataset.WebDataset(shards, shardshuffle=SHARDS if is_shuffled else False)
    if is_shuffled:
        samples = samples.shuffle(BUFFER)
    return samples.to_tuple("jpg", "cls").map_tuple(lambda photo: photo, int)


def web(arguments: argparse.Namespace) -> Passes:
    samples = web_dataset(arguments)
    while True:
        yield (((photo,), (label,)) for photo, label in samples)


def web_loader(arguments: argparse.Namespace) -> Passes:
    import webdataset

    batches = web_dataset(arguments).batched(BATCH, collation_fn=listed)
    loader = webdataset.WebLoader(batches, batch_size=None, num_workers=THREADS, persistent_workers=True)
    while True:
        yield ((photos, (labels,)) for photos, labels in loader)


def listed(samples: Sequence[tuple[bytes, int]]) -> tuple[list[bytes], list[int]]:
    return [photo for photo, _ in samples], [label for _, label in samples]


def streamed(arguments: argparse.Namespace) -> Any:
    import datasets

    files = sorted(map(str, folder(arguments).glob("*.parquet")))
    return datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, cache_dir=str(arguments.data / "huggingface"))


def of_row(row: dict[str, Any]) -> Item:
    return (row["image"]["bytes"],), [row[name] for name in COLUMNS]


def data_sets(arguments: argparse.Namespace) -> Passes:
    return (map(of_row, rows) for rows in repeat(streamed(arguments)))


def data_sets_batched(arguments: argparse.Namespace) -> Passes:
    def of_batch(batch: dict[str, Any]) -> Item:
        return [image["bytes"] for image in batch["image"]], [batch[name] for name in COLUMNS]

    return (map(of_batch, rows.iter(BATCH)) for rows in repeat(streamed(arguments)))


def data_sets_loader(arguments: argparse.Namespace) -> Passes:
    from torch.utils.data import DataLoader

    loader = DataLoader(streamed(arguments), BATCH, num_workers=THREADS, collate_fn=list, persistent_workers=True)
    while True:
        yield (item for batch in loader for item in map(of_row, batch))


def arrow_rows(arguments: argparse.Namespace) -> Passes:
    import pyarrow.dataset

    data = pyarrow.dataset.dataset(folder(arguments), format="parquet")
    while True:
        yield (of_row(row) for batch in data.to_batches() for row in batch.to_pylist())


def arrow_columns(arguments: argparse.Namespace) -> Passes:
    import pyarrow.parquet

    def samples() -> Iterator[Item]:
        for path in sorted(folder(arguments).glob("*.parquet")):
            for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1024, columns=["image.bytes", *COLUMNS]):
                photos = batch["image"].field("bytes").to_pylist()
                for photo, *numbers in zip(photos, *(batch[name].to_pylist() for name in COLUMNS)):
                    yield (photo,), numbers

    while True:
        yield samples()


def from_bucket(arguments: argparse.Namespace, **options: Any) -> Measured:
    """Rate of a run over the shards of the server, in MB."""
    with bucket(arguments.endpoint) as store:
        elapsed, used = penstock_run(arguments, REMOTE, store, **options)
    return Measured(sum(size for _, size in shards(arguments)) / 1e6, elapsed, used, None)


@contextmanager
def bucket(endpoint: str) -> Iterator[Path]:
    """Path of a description of the bucket, within the `with` block."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(data_set(endpoint), file)
        file.flush()
        yield Path(file.name)


def plain(arguments: argparse.Namespace) -> Measured:
    """Rate of plain requests for ranges."""
    begin, used = time.perf_counter(), cpu()
    size = blocks(arguments.endpoint, shards(arguments))
    return Measured(size / 1e6, time.perf_counter() - begin, cpu() - used, None)


def shards(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """Names and sizes of the shards."""
    return [(path.name, path.stat().st_size) for path in sorted(folder(arguments).glob("*.tar"))]


def first_of_run(arguments: argparse.Namespace) -> Measured:
    """Time of a command that reads one sample, and, as `check`, that of its run."""
    begin = time.perf_counter()
    elapsed, used = penstock_run(arguments, 1, limit=1)
    return Measured(1, time.perf_counter() - begin, used, elapsed)


FIRST = """
import json, sys, time, penstock
pipeline = penstock.Pipeline(json.loads(sys.argv[1]), stores={"shards": sys.argv[2]})
begin = time.perf_counter()
batch = next(iter(pipeline))
now = time.perf_counter()
print(json.dumps([now, now - begin, batch.size]))
"""


def first_of_package(arguments: argparse.Namespace) -> Measured:
    """Time of a new Python until its loop has one sample, and, as `check`, the time from the loop's begin. Processes have the same clock."""
    written = {**document(arguments), "stages": [{"aggregate": {"size": 1}}, {"collate": {}}]}
    begin, used = time.perf_counter(), cpu()
    command = [sys.executable, "-c", FIRST, json.dumps(written), folder(arguments)]
    now, passed, size = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    assert size == 1
    return Measured(1, now - begin, cpu() - used, passed)


def tell_first(found: dict[str, list[Measured]], missing: dict[str, str], most_s: float) -> None:
    print(f"{'':38} {'ms':>8} {'of it, run':>11}")
    rows = {name: (middle(turns, lambda turn: turn.wall_s), middle(turns, lambda turn: turn.check)) for name, turns in found.items() if name not in missing}
    for name, (whole, run) in rows.items():
        print(f"{name:38} {1000 * whole:8.0f} {1000 * run:11.0f}")
    for name, why in missing.items():
        print(f"{name:38} not measured: {why[:200]}")
    longest = max(whole for whole, _ in rows.values())
    print(f"\nFirst of {MANY:,} samples: {longest:.2f} s at most; must {most_s} s: {'holds' if longest <= most_s else 'MISSED'}")


#: Candidates of each job; the first one is held against the others.
JOBS: dict[str, dict[str, Callable[[argparse.Namespace], Measured]]] = {
    job: {name: partial(passes, candidate) for name, candidate in peers.items()} | others
    for job, peers, others in [
        ("tar", {"penstock": penstock, "webdataset": web, "webdataset in DataLoader, 2 workers": web_loader}, {"penstock run": discarded}),
        ("shuffled", {"penstock": penstock, "webdataset": web, "webdataset in DataLoader, 2 workers": web_loader}, {"penstock run": discarded}),
        (
            "parquet",
            {
                "penstock": penstock,
                "datasets, streaming": data_sets,
                "datasets, streaming, batches": data_sets_batched,
                "datasets in DataLoader, 2 workers": data_sets_loader,
                "pyarrow.dataset, rows": arrow_rows,
                "pyarrow's ParquetFile, columns": arrow_columns,
            },
            {"penstock run": discarded},
        ),
        ("s3", {}, {"penstock run": from_bucket, "penstock run, with an index": partial(from_bucket, prefix=None, index="train.index"), f"requests, {CONNECTIONS} at a time": plain}),
        ("first", {}, {"penstock run": first_of_run, "penstock in Python": first_of_package}),
    ]
}
MUST = {"tar": 2.0, "shuffled": 2.0, "parquet": 2.0, "s3": 0.9, "first": 0.5}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--penstock", type=Path, default=Path("target/release/penstock"), help="the built program (target/release/penstock)")
    parser.add_argument("--s3-server", type=Path, default=Path("target/release/s3-server"), help="the built server (target/release/s3-server)")
    parser.add_argument("--photos", type=Path, default=Path("demo/small"), help="folder of JPEGs (demo/small, as `make bench-formats` makes)")
    parser.add_argument("--larger", type=Path, default=Path("demo/photos"), help="folder of larger JPEGs, for `s3` (demo/photos)")
    parser.add_argument("--data", type=Path, default=Path("demo/formats"), help="folder for the data sets (demo/formats)")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each candidate (3)")
    parser.add_argument("--passes", type=int, default=2, help="passes over the samples that one measurement counts (2)")
    parser.add_argument("--latency", default="20ms", help="time until a response of the server begins (20ms)")
    parser.add_argument("--rate", type=int, default=250, help="MB/s of the server, of all responses together; 0 for no limit (250)")
    parser.add_argument("--only", nargs="+", help="candidates to measure (those of the job)")
    parser.add_argument("--one", help="measure only this candidate in this process, and print JSON")
    parser.add_argument("--endpoint", help="address of the server that is measured")
    arguments = parser.parse_args()
    arguments.only = arguments.only or list(JOBS[arguments.job])
    return arguments


if __name__ == "__main__":
    main()
