"""Runs one of the checks of `check.sh`: prints its measurements and its result. Exits with 1 if the check fails."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[1] / "examples/train/photos.json"
TRANSFER = "/stages/4/transfer/device"
SIZE = 224

# Minimum rate through the ring, relative to the driver's rate from pinned memory, for copies of at least this many megabytes.
LEAST_OF_PINNED, FROM_MEGABYTES = 0.95, 4
# Maximum time of a step during loading, relative to a step without loading; and maximum share of time in next() with which the
# time is checked.
MOST_OF_STEP, MOST_WAITING = 1.02, 0.02


class Skip(Exception):
    """Raised if this machine lacks something that a check requires."""


def main() -> int:
    arguments = parsed()
    try:
        passed = CHECKS[arguments.check](arguments)
    except Skip as reason:
        print(f"SKIPPED: {reason}")
        return 0
    print("ok" if passed else "figures mean nothing" if arguments.fake else "NOT ENOUGH")
    return 0 if passed or arguments.fake else 1


def rates(arguments: argparse.Namespace) -> bool:
    """Checks that copies through the ring are about as fast as copies from pinned memory."""
    report = json.loads(arguments.rates.read_text())
    print(f"{report['device']} ({report['uuid']}), GB/s")
    print(f"{'MB':>5} {'pinned':>8} {'ordinary':>8} {'ours':>8} {'of pinned':>9}")
    for size in report["sizes"]:
        gigabytes = [size[f"{name}_bytes_per_s"] / 1e9 for name in ("pinned", "ordinary", "ours")]
        print(f"{size['megabytes']:>5} " + " ".join(f"{rate:>8.2f}" for rate in gigabytes) + f" {size['ours_of_pinned']:>9.3f}")
        assert size["ours_staged_bytes"] == 0, "the batch must be in pinned memory"
    large = [size["ours_of_pinned"] for size in report["sizes"] if size["megabytes"] >= FROM_MEGABYTES]
    return min(large) >= LEAST_OF_PINNED


def integrity(arguments: argparse.Namespace) -> bool:
    """Checks that the same bytes arrive on the device as on the host."""
    torch = needed("torch", arguments)
    on_host = {tuple(batch.samples): torch.from_dlpack(batch["image"]).clone() for batch in pipeline(arguments, "host")}
    count = 0
    for batch in pipeline(arguments, "cuda:0"):
        images = torch.from_dlpack(batch["image"])
        assert images.is_cuda, images.device
        assert torch.equal(images.cpu(), on_host[tuple(batch.samples)]), f"batch {count} has other content on the device"
        count += 1
    print(f"{count} batches are equal")
    return count > 0


def recycle(arguments: argparse.Namespace) -> bool:
    """Checks that a dropped batch is not overwritten until the kernels that read it are done."""
    torch = needed("torch", arguments)
    expected = {tuple(batch.samples): torch.from_dlpack(batch["image"]).double().sum().item() for batch in pipeline(arguments, "host")}
    side = torch.cuda.Stream()
    sums = []
    with torch.cuda.stream(side):
        for batch in pipeline(arguments, "cuda:0"):
            images = torch.from_dlpack(batch["image"])
            # About 20 ms, in which the loader uses its whole ring.
            torch.cuda._sleep(30_000_000)
            sums.append((tuple(batch.samples), images.double().sum()))
            del images, batch
    torch.cuda.synchronize()
    wrong = sum(abs(found.item() - expected[samples]) > 1e-6 * abs(expected[samples]) + 1e-3 for samples, found in sums)
    print(f"{wrong} of {len(sums)} sums are wrong")
    return bool(sums) and wrong == 0


def step(arguments: argparse.Namespace) -> bool:
    """Checks that loading during a training step does not make the step longer."""
    torch = needed("torch", arguments)
    weight = torch.randn(8192, 8192, device="cuda", dtype=torch.float16)

    def one(images: Any) -> float:
        begin = time.perf_counter()
        value = images.mean()
        for _ in range(arguments.multiplications):
            torch.mm(weight, weight)
        value.item()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    alone = [one(torch.ones(32, 3, SIZE, SIZE, device="cuda")) for _ in range(50)][10:]
    steps, waits, loader = [], [], pipeline(arguments, "cuda:0", epochs=None)
    begin = time.perf_counter()
    for batch in loader:
        waits.append(time.perf_counter() - begin)
        steps.append(one(torch.from_dlpack(batch["image"])))
        del batch
        if len(steps) == 200:
            break
        begin = time.perf_counter()
    waiting = sum(waits[20:]) / (sum(waits[20:]) + sum(steps[20:]))
    ratio = statistics.median(steps[20:]) / statistics.median(alone)
    print(f"a step of {1e3 * statistics.median(alone):.2f} ms takes {ratio:.3f} times as long with loading; {waiting:.1%} of the time in next()")
    print(loader.verdict())
    if waiting > MOST_WAITING:
        raise Skip("loading is too slow on this machine to measure its effect: use more cores, or a longer step with --multiplications")
    return ratio <= MOST_OF_STEP


def readiness(arguments: argparse.Namespace) -> bool:
    """Checks that slow copies lower the readiness of the queue after the transfer, but not of the queue before it."""
    needed("penstock", arguments)
    if arguments.fake and "FAKE_CUDA_DELAY_US" not in os.environ:
        return is_detected(*(over_the_fake(delay_ms) for delay_ms in (0, 2 * arguments.step_ms)))
    if arguments.fake:
        print(json.dumps(queues(arguments)))
        return True
    torch = needed("torch", arguments)
    free = queues(arguments)
    with Competitor(torch):
        slowed = queues(arguments)
    return is_detected(free, slowed)


def over_the_fake(delay_ms: int) -> dict[str, Any]:
    """Returns the figures of a process with the fake driver, in which every copy takes `delay_ms`."""
    environment = {**os.environ, "FAKE_CUDA_DELAY_US": str(1000 * delay_ms)}
    own = subprocess.run([sys.executable, *sys.argv], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(own.stdout.splitlines()[0]))


def is_detected(free: dict[str, Any], slowed: dict[str, Any]) -> bool:
    for name, figures in (("unchanged", free), ("slowed", slowed)):
        print(f"{name:>9}: readiness before the transfer {figures['before']:.2f}, after it {figures['behind']:.2f}; {figures['verdict']}")
    return slowed["behind"] < free["behind"] - 0.2 and slowed["behind"] < slowed["before"] - 0.2


def queues(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the readiness of the queues before and after the transfer, measured while a loop takes a batch per step."""
    loader = pipeline(arguments, "cuda:0", epochs=None)
    for count, batch in enumerate(loader):
        del batch
        time.sleep(arguments.step_ms / 1e3)
        if count == 40:
            break
    stats = loader.stats()
    before, behind = (queue["readiness"] or 0.0 for queue in stats["queues"][-3:-1])
    return {"before": before, "behind": behind, "verdict": loader.verdict().sentence, "transfers": stats["transfers"]}


class Competitor:
    """Keeps the bus busy with additional copies."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._copy)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _copy(self) -> None:
        host = self._torch.empty(1 << 28, dtype=self._torch.uint8, pin_memory=True)
        device = self._torch.empty(1 << 28, dtype=self._torch.uint8, device="cuda")
        stream = self._torch.cuda.Stream()
        while not self._stop.is_set():
            with self._torch.cuda.stream(stream):
                for _ in range(16):
                    device.copy_(host, non_blocking=True)
            stream.synchronize()


def pipeline(arguments: argparse.Namespace, device: str, epochs: int | None = 1) -> Any:
    penstock = needed("penstock", arguments)
    if not arguments.photos.is_dir():
        raise Skip(f"no photos in {arguments.photos}: run `make photos`")
    document = json.loads(DOCUMENT.read_text())
    document["source"]["list"]["epochs"] = epochs
    resize, crop, *_ = document["stages"][1]["wasm"]["params"]["ops"]
    resize["Resize"]["size"] = crop["CenterCrop"]["size"] = SIZE
    return penstock.Pipeline(
        document,
        stores={"photos": arguments.photos},
        # In input order, so that a batch on the host and one on the device contain the same photos.
        settings={TRANSFER: device, **ORDER},
    )


ORDER = {"/stages/0/fetch/order": "input", "/stages/1/wasm/order": "input"}


def needed(name: str, arguments: argparse.Namespace) -> Any:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise Skip(f"the module `{name}` is not installed for {sys.executable}") from error
    if name == "torch" and (arguments.fake or not module.cuda.is_available()):
        raise Skip("PyTorch finds no GPU")
    return module


CHECKS = {"rates": rates, "integrity": integrity, "recycle": recycle, "step": step, "readiness": readiness}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("rates", type=Path, nargs="?", help="what `copy_rates` printed; for `rates`")
    parser.add_argument("--photos", type=Path, default=Path("demo/photos"))
    parser.add_argument("--modules", type=Path, default=Path("target/wasm32-unknown-unknown/guest"))
    parser.add_argument("--multiplications", type=int, default=24, help="multiplications of 8192 x 8192 matrices in a step")
    parser.add_argument("--step-ms", type=int, default=40, help="time of a step of the readiness check; longer than loading a batch takes")
    parser.add_argument("--fake", action="store_true", help="use the substitute for the driver: measurements do not decide the result")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
