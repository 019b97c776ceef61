"""Measures settings that `penstock tune` finds from ones everywhere beside the best of an exhaustive search over the same settings.

    python tests/benches/python/tuned.py --penstock target/release/penstock --s3-server target/release/s3-server --photos demo/photos

The pipeline decodes photos, read from a folder, and from an S3 server that answers after 20 ms. The search measures each combination of concurrency and
queues once, and the best ones again, in turns with the tuned document; a rate is the median of its turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MUST, TUNE_S = 0.95, 60
#: Turns of the best combinations and of the tuned document.
TURNS, BEST = 5, 3
LATENCY_MS = 20

Settings = Mapping[str, int]


def document(threads: int) -> dict[str, Any]:
    ops = [{"Resize": {"size": 224}}, {"CenterCrop": {"size": 224}}]
    return {
        "name": "tuned",
        "seed": 7,
        "threads": threads,
        "source": {"list": {"store": "photos", "suffix": ".jpg", "shuffle": True, "epochs": None}},
        "stages": [{"fetch": {}}, {"wasm": {"module": "std/image", "params": {"ops": ops}}}, {"aggregate": {"size": 16}}, {"collate": {}}],
        "consumer": {"discard": {}},
    }


def grid(threads: int, reads: list[int]) -> list[Settings]:
    """Combinations of the settings that matter: reads, decoders, and the queues."""
    wanted = itertools.product(reads, range(1, threads + 2), [1, 2, 8])
    return [{"/stages/0/fetch/concurrency": reads, "/stages/1/wasm/concurrency": decoders, "/stages/0/fetch/queue": queue, "/stages/1/wasm/queue": queue} for reads, decoders, queue in wanted]


class Program:
    def __init__(self, path: Path, store: str) -> None:
        self._path, self._store = path, store

    def call(self, command: str, file: Path, *arguments: str) -> dict[str, Any]:
        call = [str(self._path), command, str(file), "--store", f"photos={self._store}", "--json", "--quiet", *arguments]
        ran = subprocess.run(call, capture_output=True, text=True, timeout=300)
        if ran.returncode != 0:
            sys.exit(f"{' '.join(call)}: {ran.stderr}")
        return json.loads(ran.stdout)

    def rate(self, file: Path, settings: Settings, seconds: float) -> float:
        """Batches per second without the warm-up."""
        flags = [flag for pointer, value in settings.items() for flag in ("--set", f"{pointer}={value}")]
        return self.call("run", file, "--for", f"{round(seconds * 1000)}ms", *flags)["verdict"]["rate"]


@contextmanager
def s3(server: Path, photos: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, subprocess.Popen([server, "--root", photos, "--latency", f"{LATENCY_MS}ms"], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout
            endpoint = child.stdout.readline().strip()
            keys = {"aws_access_key_id": "penstock-test", "aws_secret_access_key": "penstock-test-secret"}
            store = {"bucket_name": "data", "endpoint_url": endpoint, "region_name": "us-east-1", **keys}
            path = Path(folder) / "photos.json"
            path.write_text(json.dumps(store))
            path.chmod(0o600)
            yield str(path)
        finally:
            child.kill()


def compare(name: str, program: Program, threads: int, reads: list[int]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        file, tuned = Path(folder) / "photos.json", Path(folder) / "tuned.json"
        file.write_text(json.dumps(document(threads)))
        found = program.call("tune", file, "--for", f"{TUNE_S}s", "-o", str(tuned))
        changes = [change for change in found["changes"] if change["outcome"] == "kept"]
        settled = max((change["until_s"] or change["at_s"] for change in changes), default=0.0)
        tried = [(program.rate(file, settings, 2.5), settings) for settings in grid(threads, reads)]
        tried.sort(key=lambda pair: -pair[0])
        cases: list[tuple[Path, Settings]] = [(tuned, {}), *((file, settings) for _, settings in tried[:BEST])]
        rates: list[list[float]] = [[] for _ in cases]
        for _ in range(TURNS):
            for place in random.sample(range(len(cases)), len(cases)):
                rates[place].append(program.rate(*cases[place], 5))
        tuned_rate, *others = map(statistics.median, rates)
        best = max(others)
        holds = tuned_rate >= MUST * best
        settings = cases[1 + others.index(best)][1]
        print(f"{name}: {tuned_rate:.1f} batches/s, {tuned_rate / best:.3f} of the best of {len(tried)} combinations (must be {MUST}): {'holds' if holds else 'MISSED'}")
        print(f"    {best:.1f}/s with {json.dumps(settings)}; from {found['rate_before']:.1f}/s, last change kept at {settled:.1f} s, predicted best {found['predicted_best']:.1f}/s")
        for change in found["changes"]:
            print(f"    {change['at_s']:5.1f} s {change['pointer']} {change['from']} -> {change['to']}: {change['outcome']}")
        return holds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--penstock", type=Path, required=True)
    parser.add_argument("--s3-server", type=Path, required=True)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    held = [compare("folder", Program(args.penstock, str(args.photos)), args.threads, [1, 2, 4, 8])]
    with s3(args.s3_server, args.photos) as store:
        held.append(compare(f"S3 at {LATENCY_MS} ms", Program(args.penstock, store), args.threads, [1, 4, 8, 16, 32]))
    sys.exit(not all(held))


if __name__ == "__main__":
    main()
