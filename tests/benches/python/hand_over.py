"""Measures the time to hand a ready batch to the training loop: Penstock in this process, Penstock through a server's shared memory,
and PyTorch's DataLoader with two workers, in turns on one machine.

    python tests/benches/python/hand_over.py --penstock target/release/penstock

A batch is float32, [32, 3, 224, 224], 19.3 MB, always of the same numbers. The loop sleeps until several batches wait in the queue, and then takes
them one right after the other; the column `ready` is the share of the run in which one was ready. (A processor that has slept takes up
to a tenth of a millisecond to wake another one; without the bursts, every figure would include that.) Measured times:

    hand-over   from the call of `next` to a NumPy array, without reading it.
    and read    the same in separate rounds, followed by a read of one number of every page of 4 KiB, which maps newly shared
                memory.

In a stream the call also acknowledges the batch before. PyTorch's workers create their tensor once and send it repeatedly, so that no
worker writes memory: what remains is the transfer through a pipe, and the mapping of the memory. The creation of batches is never measured.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import penstock

sys.path.insert(0, str(Path(__file__).parents[3] / "tests/python"))
from kit import Server  # noqa: E402
from stage import Elements, constant_stage  # noqa: E402

PAGE = 4096
# Number of bursts at the start of each turn that fill queues and warm up caches, and are not measured.
WARM_UP = 2


#: An iterator of batches, a function that returns the array of a batch, and a function that ends the iteration and returns the
#: share of time in which a batch was ready.
Opened = tuple[Iterator[Any], Callable[[Any], numpy.ndarray], Callable[[], float | None]]


@dataclass
class Way:
    """A loader of batches under test, and its measurements in seconds."""

    name: str
    open: Callable[[], Opened]
    taken: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)

    def turn(self, batches: int, burst: int, pause: float) -> int:
        """Takes `batches` batches without reading them, and as many that it reads; returns the size of a batch in bytes."""
        source, array_of, end = self.open()
        nbytes = 0
        for place in range(WARM_UP + 2 * -(-batches // burst)):
            time.sleep(pause)
            reads = place % 2 == 1
            for _ in range(burst):
                begin = time.perf_counter()
                batch = next(source)
                array = array_of(batch)
                if reads:
                    array.reshape(-1)[:: PAGE // array.itemsize].sum()
                passed = time.perf_counter() - begin
                nbytes = array.nbytes
                if place >= WARM_UP:
                    (self.read if reads else self.taken).append(passed)
                del batch, array
        share = end()
        if share is not None:
            self.ready.append(share)
        return nbytes


def main() -> None:
    arguments = parsed()
    shape = (3, arguments.size, arguments.size)
    document = {
        "name": "hand-over",
        "threads": 2,
        "source": {"range": {"count": 2**40}},
        "stages": [{"wasm": {"module": "image", "concurrency": 2}}, {"aggregate": {"size": arguments.batch}}, {"collate": {}}],
        "sink": {"queue": arguments.burst},
    }
    image = constant_stage("image", {"image": Elements("float32", shape, bytes(4 * shape[0] * shape[1] * shape[2]))})
    ways = [Way("Penstock, in process", partial(in_process, document, image))]
    server = None
    if arguments.penstock:
        server = Server("--threads=2", command=[arguments.penstock])
        server.push(image)
        ways.append(Way("Penstock, stream", partial(streamed, server.url, document, arguments.burst)))
    if arguments.torch:
        ways.append(Way("torch DataLoader, 2 workers", partial(workers, (arguments.batch, *shape), arguments.burst)))
    try:
        for _ in range(arguments.turns):
            for way in ways:
                nbytes = way.turn(arguments.batches, arguments.burst, arguments.pause_ms / 1000)
    finally:
        if server is not None:
            server.close()
    tell(ways, nbytes)


def in_process(document: dict[str, Any], image: bytes) -> Opened:
    pipeline = penstock.Pipeline(document, modules={"image": image})
    batches = iter(pipeline)

    def end() -> float | None:
        share: float | None = pipeline.stats()["queues"][-1]["readiness"]
        pipeline.close()
        return share

    return batches, lambda batch: numpy.from_dlpack(batch["image"]), end


def streamed(url: str, document: dict[str, Any], ahead: int) -> Opened:
    server = penstock.connect(url)
    run = server.submit({**document, "consumer": {"stream": {"ahead": ahead}}})
    stream = server.stream(run)

    def end() -> float | None:
        share: float | None = server.run(run)["snapshot"]["queues"][-1]["readiness"]
        stream.close()
        server._request("POST", f"/runs/{run}/stop")
        return share

    return stream, lambda batch: numpy.from_dlpack(batch["image"]), end


def workers(shape: tuple[int, ...], ahead: int) -> Opened:
    import torch

    class Same(torch.utils.data.IterableDataset):
        """A data set that yields the same tensor again and again; each worker creates the tensor once."""

        def __iter__(self) -> Iterator[torch.Tensor]:
            tensor = torch.zeros(shape)
            while True:
                yield tensor

    loader = torch.utils.data.DataLoader(Same(), batch_size=None, num_workers=2, prefetch_factor=max(1, ahead // 2))
    return iter(loader), lambda tensor: tensor.numpy(), lambda: None


def tell(ways: list[Way], nbytes: int) -> None:
    print(f"{len(ways[0].taken)} batches of {nbytes / 1e6:.1f} MB each way; medians, and 90th percentiles in brackets\n")
    print(f"{'':28} {'ready':>6} {'hand-over ms':>18} {'and read ms':>18} {'GB/s read':>9} {'times as long':>14}")
    last = statistics.median(ways[-1].taken)
    for way in ways:
        ready = f"{statistics.mean(way.ready):.1%}" if way.ready else "-"
        middle = statistics.median(way.read)
        print(f"{way.name:28} {ready:>6} {told(way.taken):>18} {told(way.read):>18} {nbytes / middle / 1e9:9.1f} {statistics.median(way.taken) / last:14.4f}")
    print(f"\n`times as long`: hand-over, compared with {ways[-1].name}")


def told(times: list[float]) -> str:
    return f"{1000 * statistics.median(times):.3f} ({1000 * statistics.quantiles(times, n=10)[-1]:.3f})"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--penstock", type=Path, metavar="PATH", help="the built program, to also measure a stream of its server")
    parser.add_argument("--no-torch", dest="torch", action="store_false", help="leave PyTorch out")
    parser.add_argument("--batches", type=int, default=50, help="batches of one turn, of each kind (50)")
    parser.add_argument("--turns", type=int, default=3, help="number of turns of each way (3)")
    parser.add_argument("--pause-ms", type=float, default=500, help="sleep before each burst, in which its batches are prepared (500)")
    parser.add_argument("--burst", type=int, default=8, help="batches that are taken one right after the other (8)")
    parser.add_argument("--batch", type=int, default=32, help="samples in a batch (32)")
    parser.add_argument("--size", type=int, default=224, help="height and width of a sample (224)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
