"""Measures loaders that set themselves on the same photos: the rate once it stays, the time until then, and the memory.

    python tests/benches/python/settling.py --photos demo/photos

Candidates: Penstock, tuned from a concurrency and queues of one; Penstock with the same settings untuned; tf.data, whose AUTOTUNE sets its parallel
calls and its prefetch; and Ray Data, which scales by itself. All decode the same JPEGs, resize the whole picture to 224 x 224 (bilinear, with
antialiasing), and make batches of 16 of uint8, which are discarded, on the same number of threads. Each measurement is a separate process, in turns; memory is
measured in separate processes, because watching it takes a part of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

from ray_cluster import Watch
from turns import Measured, measured

SIZE, BATCH, THREADS = 224, 16, 2
#: Share of the last rate within which an earlier one counts as settled, and length in seconds of the windows that are compared.
NEAR, WINDOW = 0.9, 5
STORE = 400 << 20
PASSES = 100

#: Numbers of images in the batches of a loader.
Images = Generator[int, None, None]

ONES = {"/stages/0/fetch/concurrency": 1, "/stages/0/fetch/queue": 1, "/stages/1/wasm/concurrency": 1, "/stages/1/wasm/queue": 1}


def document() -> dict[str, Any]:
    return {
        "name": "settling",
        "seed": 7,
        "threads": THREADS,
        "source": {"list": {"store": "photos", "suffix": ".jpg", "shuffle": True, "epochs": None}},
        "stages": [{"fetch": {}}, {"wasm": {"module": "std/image", "params": {"ops": [{"Resize": {"size": [SIZE, SIZE]}}]}}}, {"aggregate": {"size": BATCH}}, {"collate": {}}],
    }


def penstock(photos: Path, tune: Any) -> Images:
    import penstock

    for batch in penstock.Pipeline(document(), stores={"photos": photos}, settings=ONES, tune=tune):
        yield batch.size


def tf_data(photos: Path) -> Images:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(THREADS)
    tf.config.threading.set_intra_op_parallelism_threads(1)

    def decoded(path: Any) -> Any:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.cast(tf.round(tf.image.resize(image, [SIZE, SIZE], antialias=True)), tf.uint8)

    paths = sorted(str(path) for path in photos.rglob("*.jpg"))
    data = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths), seed=7).repeat()
    # Like the stages of the pipeline, whose results are in the order of completion.
    data = data.map(decoded, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    options = tf.data.Options()
    options.threading.private_threadpool_size = THREADS
    for batch in data.with_options(options):
        yield int(batch.shape[0])


def ray_data(photos: Path) -> Images:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    import ray
    import ray.data

    ray.init(num_cpus=THREADS, object_store_memory=STORE, include_dashboard=False, log_to_driver=False)
    try:
        # More passes than a measurement takes, without a break between two.
        data = ray.data.read_images([str(photos)] * PASSES, size=(SIZE, SIZE), mode="RGB")
        for batch in data.iter_batches(batch_size=BATCH, batch_format="numpy"):
            yield len(batch["image"])
    finally:
        ray.shutdown()


CANDIDATES: dict[str, Callable[[Path], Images]] = {
    "Penstock, tuned": lambda photos: penstock(photos, "apply"),
    "Penstock, untuned": lambda photos: penstock(photos, "off"),
    "tf.data AUTOTUNE": tf_data,
    "Ray Data": ray_data,
}


def run(images: Images, seconds: int) -> tuple[float, float]:
    """Images per second in the last third of the time, and the time in seconds from which on the rate was near it."""
    rates, begin = [0] * seconds, time.monotonic()
    for count in images:
        second = int(time.monotonic() - begin)
        if second >= seconds:
            break
        rates[second] += count
    last = statistics.mean(rates[-(seconds // 3) :])
    windows = [statistics.mean(rates[start : start + WINDOW]) for start in range(seconds - WINDOW + 1)]
    settled = next((start for start in range(len(windows)) if all(abs(rate / last - 1) <= 1 - NEAR for rate in windows[start:])), seconds)
    return last, settled


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, required=True, help="folder with JPEGs")
    parser.add_argument("--seconds", type=int, default=60, help="duration of each measurement")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each candidate")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--one", choices=list(CANDIDATES), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        with os.fdopen(os.dup(1), "w") as output:
            # Ray writes to the standard output, which is for the result.
            os.dup2(2, 1)
            with Watch(args.memory) as watch, closing(CANDIDATES[args.one](args.photos.absolute())) as images:
                last, settled = run(images, args.seconds)
            print(json.dumps(vars(Measured(round(last * args.seconds), args.seconds, 0, [settled, watch.peak_mib]))), file=output)
        return
    found, missing = measured(list(CANDIDATES), args.turns)
    sys.argv.append("--memory")
    watched, unwatched = measured([name for name in found if name not in missing], 1)
    print(f"{SIZE} x {SIZE}, batches of {BATCH}, {THREADS} threads; medians of {args.turns} turns of {args.seconds} s\n")
    print(f"{'':20} {'images/s':>10} {'settled after s':>16} {'peak MiB':>10}")
    rates = {name: statistics.median(turn.samples / turn.wall_s for turn in turns) for name, turns in found.items() if name not in missing}
    for name, rate in rates.items():
        settled = statistics.median(turn.check[0] for turn in found[name])
        settled = "never" if settled >= args.seconds else f"{settled:.0f}"
        memory = f"{watched[name][0].check[1]:10.0f}" if watched.get(name) else f"{'unknown':>10}"
        print(f"{name:20} {rate:10.0f} {settled:>16} {memory}")
    for name, why in (missing | unwatched).items():
        print(f"{name:20} not measured: {why[:200]}")
    own = rates.get("Penstock, tuned", 0.0)
    holds = own >= max(rates.values())
    print(f"\nPenstock, tuned, against the best of all: {own / max(rates.values()):.2f}x; must 1x: {'holds' if holds else 'MISSED'}")
    sys.exit(not holds or bool(missing))


if __name__ == "__main__":
    main()
