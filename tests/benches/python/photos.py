"""Measures the rate at which photos become batches, on two threads: Penstock, a thread pool with Pillow, and Grain's threads with Pillow.

    python tests/benches/python/photos.py --photos demo/photos
    python tests/benches/python/photos.py --photos demo/large --draft --only penstock "threads + Pillow" --must 1.5 --aim 2.5

Each candidate reads the same JPEGs from a folder, decodes them, resizes them to 224 x 224 (bilinear, the whole picture), converts them to
normalised float32, channels first, and stacks 32 of them; the loop discards the batches. With `--draft`, all candidates decode large photos at
1/2, 1/4 or 1/8 of their size. Each measurement is a separate process, in turns: a
first pass that is not counted, in which modules are compiled, then passes that are. CPU time is that of the whole process in these passes,
including the children it has waited for, from `getrusage`.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy

SIZE, BATCH, THREADS = 224, 32, 2
# Number of photos that a pool processes or keeps ready at a time.
AHEAD = 2 * BATCH

# (pixel / 255 - mean) / deviation, as one product and one sum, with the figures of ImageNet.
MEAN, DEVIATION = numpy.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], numpy.float32)
FACTOR, SHIFT = (1 / (255 * DEVIATION)).reshape(3, 1, 1), (-MEAN / DEVIATION).reshape(3, 1, 1)


@dataclass(frozen=True)
class Measured:
    """Results of one process."""

    images: int
    wall_s: float
    cpu_s: float
    #: Mean of all elements of all batches of a pass.
    mean: float


def main() -> None:
    arguments = parsed()
    if arguments.one:
        print(json.dumps(vars(one(arguments))))
        return
    found: dict[str, list[Measured]] = {name: [] for name in arguments.only}
    for _ in range(arguments.turns):
        for name in found:
            command = [sys.executable, __file__, *sys.argv[1:], f"--one={name}"]
            found[name].append(Measured(**json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)))
    draft = "on" if arguments.draft else "off"
    print(f"{THREADS} threads, batches of {BATCH}, {SIZE} x {SIZE}, draft {draft}; medians of {arguments.turns}\n")
    print(f"{'':24} {'images/s':>9} {'CPU s / 1,000':>14} {'speed':>7} {'CPU':>7} {'mean':>9}")
    rows = {name: (middle(turns, lambda turn: turn.images / turn.wall_s), middle(turns, lambda turn: 1000 * turn.cpu_s / turn.images))
            for name, turns in found.items()}  # fmt: skip
    speed, cpu = rows["penstock"]
    for name, (own_speed, own_cpu) in rows.items():
        mean = found[name][0].mean
        print(f"{name:24} {own_speed:9.0f} {own_cpu:14.2f} {own_speed / speed:7.2f} {own_cpu / cpu:7.2f} {mean:9.4f}")
    best = max(own_speed for name, (own_speed, _) in rows.items() if name != "penstock")
    verdict = "aim reached" if speed / best >= arguments.aim else "holds" if speed / best >= arguments.must else "MISSED"
    print(f"\nPenstock against the best other: {speed / best:.2f}x; must {arguments.must}x, aim {arguments.aim}x: {verdict}")
    print("\n`speed` and `CPU`: relative to Penstock. `mean`: mean of all numbers, to check that all candidates compute the same")


def middle(turns: list[Measured], figure: Callable[[Measured], float]) -> float:
    return statistics.median(map(figure, turns))


def one(arguments: argparse.Namespace) -> Measured:
    """Makes one measurement in this process."""
    passes = PEERS[arguments.one](arguments)
    images, total = 0, 0.0
    for batch in next(passes):
        assert batch.shape[1:] == (3, SIZE, SIZE) and batch.dtype == numpy.float32, (batch.shape, batch.dtype)
        images += len(batch)
        total += float(batch.mean()) * len(batch)
    begin, used = time.perf_counter(), cpu()
    for batches in islice(passes, arguments.passes):
        assert sum(len(batch) for batch in batches) == images, "every pass returns every photo"
    return Measured(arguments.passes * images, time.perf_counter() - begin, cpu() - used, total / images)


def cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def penstock(arguments: argparse.Namespace) -> Iterator[Iterator[numpy.ndarray]]:
    import penstock

    ops = [
        {"Resize": {"size": [SIZE, SIZE]}},
        {"ToDtype": {"dtype": "float32", "scale": True}},
        {"Normalize": {"mean": MEAN.tolist(), "std": DEVIATION.tolist()}},
    ]
    params = {"ops": ops, "draft": arguments.draft}
    document: dict[str, Any] = {
        "name": "photos",
        "threads": THREADS,
        "source": {"list": {"store": "photos", "suffix": ".jpg", "shuffle": True}},
        "stages": [
            {"fetch": {"concurrency": 4}},
            {"wasm": {"module": "std/image", "params": params, "concurrency": THREADS}},
            {"aggregate": {"size": BATCH}},
            {"collate": {}},
        ],
    }
    pipeline = penstock.Pipeline(document, stores={"photos": arguments.photos})
    while True:
        yield (numpy.from_dlpack(batch["image"]) for batch in pipeline)


def photo(path: Path, draft: bool) -> numpy.ndarray:
    """Decodes a photo with Pillow: float32, [3, 224, 224]."""
    from PIL import Image

    with Image.open(path) as image:
        if draft:
            image.draft("RGB", (SIZE, SIZE))
        pixels = numpy.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    return pixels.transpose(2, 0, 1) * FACTOR + SHIFT


def pool(arguments: argparse.Namespace) -> Iterator[Iterator[numpy.ndarray]]:
    def batches() -> Iterator[numpy.ndarray]:
        paths = shuffled(arguments.photos)
        with ThreadPoolExecutor(THREADS) as threads:
            waiting = deque(threads.submit(photo, path, arguments.draft) for path in paths[:AHEAD])
            rest = iter(paths[AHEAD:])
            while waiting:
                images: list[numpy.ndarray] = []
                while waiting and len(images) < BATCH:
                    images.append(waiting.popleft().result())
                    waiting.extend(threads.submit(photo, path, arguments.draft) for path in islice(rest, 1))
                yield numpy.stack(images)

    while True:
        yield batches()


def grain(arguments: argparse.Namespace) -> Iterator[Iterator[numpy.ndarray]]:
    import grain

    while True:
        photos = grain.MapDataset.source(shuffled(arguments.photos)).map(partial(photo, draft=arguments.draft))
        yield iter(photos.to_iter_dataset(grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=AHEAD)).batch(BATCH))


def shuffled(folder: Path) -> list[Path]:
    paths = sorted(folder.rglob("*.jpg"))
    numpy.random.default_rng().shuffle(paths)
    return paths


PEERS = {"penstock": penstock, "threads + Pillow": pool, "grain threads + Pillow": grain}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path("demo/photos"), help="folder of JPEGs (demo/photos, as `make photos` makes)")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each candidate (3)")
    parser.add_argument("--passes", type=int, default=2, help="passes over the photos that one measurement counts (2)")
    parser.add_argument("--draft", action="store_true", help="decode large photos at a fraction of their size, in all candidates")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), help="candidates to measure (all)")
    parser.add_argument("--must", type=float, default=1.8, help="required speed against the best other candidate (1.8)")
    parser.add_argument("--aim", type=float, default=2.2, help="desired speed against the best other candidate (2.2)")
    parser.add_argument("--one", choices=PEERS, help="measure only this candidate in this process, and print JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
