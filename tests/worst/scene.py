"""Facts that all attacks know, and the repetition of their acts."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client import Client

# Time after a refusal, in seconds.
REST_S = 0.5

#: Number of responses by operation and status.
Counts = Counter[tuple[str, int]]
Document = dict[str, Any]


@dataclass
class Scene:
    """Facts that all attacks know."""

    address: tuple[str, int]
    token: str
    #: Time of `time.monotonic` at which the attacks end.
    until: float
    #: Runs whose states were replaced.
    planted: list[str]
    modules: Path
    #: Command, its environment, and a folder for what it writes.
    program: Path
    environment: dict[str, str]
    folder: Path

    def is_over(self) -> bool:
        return time.monotonic() >= self.until

    def rest(self, time_s: float) -> None:
        """Sleeps, but not beyond the end."""
        time.sleep(max(0.0, min(time_s, self.until - time.monotonic())))

    def client(self) -> Client:
        return Client(self.address, self.token)

    def module(self, name: str) -> bytes:
        return (self.modules / f"{name}.wasm").read_bytes()


Act = Callable[[Scene, Client], None]


def at_once(scene: Scene, acts: Iterable[Act]) -> Counts:
    """Repeats each act in a thread until the time is over; returns the responses of all."""

    def repeat(act: Act, client: Client) -> None:
        while not scene.is_over():
            act(scene, client)

    clients = [(act, scene.client()) for act in acts]
    threads = [threading.Thread(target=repeat, args=pair) for pair in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum((client.counts for _, client in clients), Counter())


def play(scene: Scene, client: Client, document: Document, time_s: float) -> str | None:
    """Submits a run, and stops it after this time; returns its id."""
    run = client.submit(document, what="submit")
    if run is None:
        scene.rest(REST_S)
        return None
    scene.rest(time_s)
    client.stop(run)
    return run


def records(key: str, **more: Any) -> Document:
    """A source of the lines of a file."""
    return {"records": {"store": "hostile", "key": key, **more}}
