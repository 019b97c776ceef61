"""States of runs that no run has written, planted in the history of a server that has ended."""

from __future__ import annotations

import copy
import json
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from client import Client

# Samples of the sources of the runs whose states are replaced.
FEW, MANY = 1_000, 10_000_000
# Time for which each of these runs goes on before it is stopped, and maximum time until it has started, in seconds.
RUN_S, START_S = 0.5, 30.0

State = dict[str, Any]


def document(count: int) -> dict[str, Any]:
    sleep = {"sleep": {"mean_ms": 5, "concurrency": 4}}
    return {"name": "planted", "threads": 1, "buffer_mib": 8, "source": {"range": {"count": count, "epochs": 2}}, "stages": [sleep]}


def _forms() -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Name of a form of damage, number of samples in the source, and values by their places in the state."""
    last32, last64 = 2**32 - 1, 2**64 - 1
    epochs = "ranks/0/epochs"

    def begun(**more: Any) -> list[State]:
        return [{"epoch": 0, "frontier": 0, **more}]

    yield "first_epoch", FEW, {"first_epoch": last32}
    yield "last epoch", FEW, {epochs: [{"epoch": last32, "frontier": 0}]}
    yield "ended", FEW, {epochs: begun(frontier=2, ended=last64)}
    yield "ended beyond", FEW, {epochs: begun(ended=1 << 40), "count": None}
    yield "frontier", FEW, {epochs: begun(frontier=FEW + 1)}
    yield "frontier, not counted", FEW, {epochs: begun(frontier=1 << 40), "count": None}
    yield "world", FEW, {"world": last32}
    yield "world of 2^32", FEW, {"world": 2**32}
    yield "world without ranks", FEW, {"world": last32, "ranks": {}}
    yield "sums", FEW, {"ranks/0/settled/made": last64}
    yield "300,000 ranges", MANY, {epochs: begun(settled=[[2 * number + 1, 1] for number in range(300_000)])}
    yield "70,000 ranges", MANY, {epochs: begun(settled=[[2 * number + 1, 1] for number in range(70_000)])}
    children = {str(2 * number): ["1"] for number in range(60_000)}
    yield "60,000 samples with children", MANY, {epochs: begun(children=children)}
    yield "100,000 epochs", FEW, {epochs: [{"epoch": number, "frontier": 1} for number in range(100_000)]}
    yield "100,000 strides", MANY, {"rests": {"0": [[5 * number, 2, 2] for number in range(100_000)]}}


FORMS = list(_forms())
# Forms that a run of a stranger can have: valid, and below 1 MiB.
LARGE = ("70,000 ranges", "60,000 samples with children")


def submit(client: Client) -> list[str]:
    """Makes one run that can be resumed for each form; returns their ids."""
    made = []
    for _, count, _ in FORMS:
        run = client.submit(document(count), what="planted")
        assert run is not None, f"the server refused a run that is to be resumed: {client.counts}"
        begun = time.monotonic()
        while client.ask("GET", f"/runs/{run}", what="look").json().get("state") != "running":
            assert time.monotonic() - begun < START_S, "a run of an idle server did not start"
            time.sleep(0.05)
        time.sleep(RUN_S)
        client.stop(run)
        made.append(run)
    return made


def plant(history: Path, runs: list[str]) -> None:
    """Replaces the states of the runs."""
    with closing(sqlite3.connect(history)) as connection:
        for run, (_, _, changes) in zip(runs, FORMS, strict=True):
            (text,) = connection.execute("SELECT state FROM resume_states WHERE run = ?", [run]).fetchone()
            state = copy.deepcopy(json.loads(text))
            for place, value in changes.items():
                *parents, name = place.split("/")
                part = state
                for parent in parents:
                    part = part[parent]
                part[name] = value
            connection.execute("UPDATE resume_states SET state = ? WHERE run = ?", [json.dumps(state), run])
        connection.commit()
