"""Attacks by runs: large and hostile states, files that unfold, damaged files, and pictures that are far larger than their files."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace

import files
import states
from client import WASM, Client
from scene import REST_S, Act, Counts, Document, Scene, at_once, play, records

# Number of requests at once that resume a run, and the time of such a burst and of the pause behind it, in seconds.
RESUMES, BURST_S = 40, 15.0


def _routed(name: str, key: str, field: str, split: list[Document], queue: int) -> Document:
    """A run of which each second sample waits in a long queue, so that its state has a gap, or a part of a fan-out, for each."""
    slow = {"sleep": {"mean_ms": 1_000, "concurrency": 1}}
    route = {"route": {"by": {"field": field}, "paths": {"a": [], "b": [slow]}, "queue": queue}}
    return {
        "name": name, "threads": 1, "buffer_mib": 48, "max_failures": None,
        "source": records(key, epochs=None), "stages": [*split, route],
    }  # fmt: skip


def large_states(scene: Scene) -> Counts:
    """Runs of fan-outs and gaps with a route and a long queue: states of nearly 1 MiB, and of more; stopped and resumed."""
    filter_ = {"wasm": {"module": "text-filter", "params": {"paragraphs": True}, "memory_mib": 16, "queue": 1_000}}
    upload = scene.client().ask("POST", "/modules", scene.module("text_filter"), kind=WASM, what="upload of its own")
    assert upload.status in (200, 201), upload

    def act(name: str, key: str, field: str, split: list[Document], queues: tuple[int, ...]) -> Act:
        turns = itertools.cycle(queues)

        def act(scene: Scene, client: Client) -> None:
            run = play(scene, client, _routed(name, key, field, split, next(turns)), 6)
            for _ in range(3):
                if run is None or scene.is_over():
                    return
                answer = client.ask("POST", f"/runs/{run}/resume", {}, what="resume")
                run = answer.json().get("id") if answer.status == 201 else None
                if run is not None:
                    scene.rest(4)
                    client.stop(run)

        return act

    fan_outs = act("fan-outs", "parts.ndjson", "text", [filter_], (25_000, 1_000_000))
    gaps = act("gaps", "kinds.ndjson", "kind", [], (70_000, 1_000_000))
    return at_once(scene, [fan_outs, gaps])


def resumes(scene: Scene) -> Counts:
    """Runs with states of nearly 1 MiB, resumed many times at once until no more may wait; then all are stopped."""
    large = [run for run, (form, _, _) in zip(scene.planted, states.FORMS, strict=True) if form in states.LARGE]
    turns, counts = itertools.cycle(large), Counts()
    while not scene.is_over():
        burst = replace(scene, until=min(scene.until, time.monotonic() + BURST_S))
        held: list[str] = []

        def resume(scene: Scene, client: Client, held: list[str] = held) -> None:
            answer = client.ask("POST", f"/runs/{next(turns)}/resume", {}, what="resume of a large state")
            held += [answer.json()["id"]] if answer.status == 201 else []

        counts += at_once(burst, [resume] * RESUMES)
        client = scene.client()
        for run in held:
            client.stop(run)
        counts += client.counts
        scene.rest(BURST_S)
    return counts


def repeated_values(scene: Scene) -> Counts:
    """Files with one value that repeats, in each format, with long queues and large batches."""
    sources: list[Document] = [
        {"parquet": {"store": "hostile", "shards": f"repeated-{rows}.parquet", "shuffle": shuffle}}
        for rows in files.ROWS
        for shuffle in (False, True)
    ]
    sources += [
        records("repeated.ndjson.gz"),
        {"tar": {"store": "hostile", "shards": "repeated.tar"}},
        {"tfrecord": {"store": "hostile", "shards": "repeated.tfrecord.gz"}},
    ]
    batches = [{"aggregate": {"size": 16}}, {"collate": {}}]
    waiting = [{"sleep": {"mean_ms": 50, "concurrency": 64, "queue": 100_000}}]
    turns = itertools.cycle(itertools.product((64, 400), ([], batches, waiting), sources))
    lock = threading.Lock()

    def act(scene: Scene, client: Client) -> None:
        with lock:
            buffer, stages, source = next(turns)
        consumer = {"simulate": {"step_ms": 200}}
        play(scene, client, {"name": "repeated", "threads": 1, "buffer_mib": buffer, "source": source, "stages": stages, "consumer": consumer}, 5)

    return at_once(scene, [act, act])


def hostile_states(scene: Scene) -> Counts:
    """Resumes the runs whose states were replaced."""
    turns = itertools.cycle(zip(scene.planted, states.FORMS, strict=True))

    def act(scene: Scene, client: Client) -> None:
        run, (form, _, _) = next(turns)
        for force in ("false", "true"):
            answer = client.ask("POST", f"/runs/{run}/resume?force={force}", {}, what=f"resume: {form}")
            if answer.status == 201:
                scene.rest(2)
                client.stop(answer.json()["id"])
        scene.rest(0.1)

    return at_once(scene, [act])


def damaged_files(scene: Scene) -> Counts:
    """Damaged files of each format, one after another, and pictures that are far larger than their files."""
    names = [(kind, number) for kind, count in files.DAMAGED.items() for number in range(count)]
    turns, bombs = itertools.cycle(names), itertools.count()
    lock = threading.Lock()

    def source(kind: str, number: int) -> Document:
        found = {"on_damage": "skip" if number % 2 else "fail", "epochs": 2, "shuffle": number % 3 == 0 and kind in ("parquet", "mds")}
        place = {"prefix": f"damaged-mds/{number:03}"} if kind == "mds" else {"shards": f"damaged-{kind}/{number:03}.{kind}"}
        return {kind: {"store": "hostile", **place, **found}}

    def act(scene: Scene, client: Client) -> None:
        with lock:
            kind, number = next(turns)
            is_bomb = next(bombs) % 40 == 0
        document: Document = {"name": "damaged", "threads": 1, "buffer_mib": 16, "max_failures": None, "source": source(kind, number)}
        if is_bomb:
            decode = {"wasm": {"module": "std/image", "memory_mib": 128, "concurrency": 2}}
            listed = {"list": {"store": "hostile", "prefix": "bombs/", "epochs": 5}}
            document |= {"source": listed, "stages": [{"fetch": {"concurrency": 3}}, decode]}
        run = client.submit(document, what=f"submit: {'bombs' if is_bomb else kind}")
        if run is None:
            return scene.rest(REST_S)
        begun = time.monotonic()
        state = "queued"
        while state in ("queued", "running", "draining") and time.monotonic() - begun < 8 and not scene.is_over():
            scene.rest(0.1)
            state = client.ask("GET", f"/runs/{run}", what="look").json().get("state", state)
        client.counts[f"end of a damaged run: {state}", 0] += 1
        if state in ("queued", "running", "draining"):
            client.stop(run)

    return at_once(scene, [act, act])
