"""Takes the batches of a server's run on the same machine, through shared memory.

    python examples/train/stream.py            # submits photos.json and drains it
    python examples/train/stream.py RUN        # drains a run whose consumer is `stream`

Killed at any moment and started again with the run's id, it goes on with the first batch that it has not acknowledged.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy
import penstock


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes the batches of a server's run on the same machine, through shared memory.")
    parser.add_argument("run", nargs="?", help="id of a run whose consumer is `stream`; by default, a run of photos.json is submitted")
    parser.add_argument("--server", help="address of `penstock serve` (default: PENSTOCK_SERVER, or http://127.0.0.1:7700)")
    arguments = parser.parse_args()

    server = penstock.connect(arguments.server)
    run = arguments.run or server.submit(json.loads((Path(__file__).parent / "photos.json").read_text()))
    print(f"run {run}", flush=True)
    begin, images, total = time.perf_counter(), 0, 0.0
    with server.stream(run) as stream:
        for batch in stream:
            if stream.redelivered:
                print(f"batch {stream.number} was delivered before, but not acknowledged")
            total += float(numpy.from_dlpack(batch["image"]).sum())
            images += batch.size
    print(f"{images} images in {time.perf_counter() - begin:.2f} s, the sum of their pixels is {total:.6g}")


if __name__ == "__main__":
    main()
