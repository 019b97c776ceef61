"""The client that is measured: submits and stops runs, uploads modules, and asks whether the server is well."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from client import WASM, Client, numbered

# Time between two rounds, between two uploads, and the maximum time until a run starts, in seconds.
ROUND_S, UPLOAD_S, START_S = 3.0, 12.0, 10.0
LOOK_S = 0.05
# Name of the module of the victim.
MODULE = "image"


def key(number: int) -> str:
    """Idempotency key of the submission with this number; the attacker guesses it."""
    return f"nightly-{number}"


def document(name: str) -> dict[str, object]:
    """A small run that does not end by itself."""
    sleep = {"sleep": {"mean_ms": 5}}
    return {"name": name, "threads": 1, "buffer_mib": 16, "source": {"range": {"count": 1_000_000}}, "stages": [sleep]}


@dataclass
class Times:
    """Times of one operation in seconds; infinite if the server has refused it or not responded."""

    values: list[float] = field(default_factory=list)

    def at(self, share: float) -> float:
        ordered = sorted(self.values)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else math.nan

    @property
    def median(self) -> float:
        return self.at(0.5)

    @property
    def worst(self) -> float:
        return self.at(1.0)

    @property
    def failed(self) -> int:
        return sum(map(math.isinf, self.values))


def every(pause_s: float, time_s: float, act: Callable[[], None]) -> None:
    """Acts for this time, and begins as often as possible, but not before the pause since the last begin is over."""
    start = time.monotonic()
    while (begin := time.monotonic()) - start < time_s:
        act()
        time.sleep(max(0.0, min(begin + pause_s, start + time_s) - time.monotonic()))


class Victim:
    """A token with the role `run`, which owns the module `image`."""

    def __init__(self, client: Client, module: Path) -> None:
        self.client, self._module = client, module.read_bytes()
        self._number = self._uploads = 0
        #: Answers that belong to another client, or that no answer may be.
        self.wrong: list[str] = []

    def measure(self, time_s: float) -> dict[str, Times]:
        """Uses the server for this time; returns the times of each operation."""
        times = {what: Times() for what in ("submit", "stop", "upload", "health", "start")}

        def health_and_run() -> None:
            health = self.client.ask("GET", "/health", what="health")
            times["health"].values.append(health.took_s if health.status == 200 else math.inf)
            self._run(times)

        uploads = threading.Thread(target=every, args=(UPLOAD_S, time_s, lambda: times["upload"].values.append(self._upload())))
        uploads.start()
        every(ROUND_S, time_s, health_and_run)
        uploads.join()
        return times

    def _upload(self) -> float:
        self._uploads += 1
        answer = self.client.ask("POST", "/modules", numbered(self._module, self._uploads), kind=WASM, what="upload")
        return answer.took_s if answer.status == 201 else math.inf

    def _run(self, times: dict[str, Times]) -> None:
        """Submits a run, waits for its start, and stops it."""
        self._number += 1
        name = f"victim-{self._number}"
        headers = {"idempotency-key": key(self._number)}
        answer = self.client.ask("POST", "/runs", document(name), headers=headers, what="submit")
        times["submit"].values.append(answer.took_s if answer.status == 201 else math.inf)
        run = answer.json()
        if answer.status == 200 or answer.status == 201 and run.get("name") != name:
            self.wrong.append(f"{name}: found {answer.status} and the run {run.get('name')}")
        if answer.status not in (200, 201):
            return
        begun = time.monotonic()
        while (state := self.client.ask("GET", f"/runs/{run['id']}", what="look").json().get("state")) in ("queued", None):
            if time.monotonic() - begun > START_S:
                break
            time.sleep(LOOK_S)
        times["start"].values.append(math.inf if state == "queued" else time.monotonic() - begun)
        stopped = self.client.stop(run["id"])
        times["stop"].values.append(stopped.took_s if stopped.status == 200 else math.inf)
        if stopped.status == 200 and stopped.json().get("name") != name:
            self.wrong.append(f"{name}: stopped {stopped.json().get('name')}")
