"""Attacks by answers: event streams that never read, many large answers at once, and floods of log lines."""

from __future__ import annotations

import itertools
import socket
import struct

from client import WASM, Client
from scene import REST_S, Counts, Document, Scene, at_once

# Event streams, and answers at once.
STREAMS, ANSWERS = 256, 75


def watched_run() -> Document:
    """A run of as many stages as a document may have."""
    stages = [{"sleep": {"mean_ms": 20, "name": f"s{number}"}} for number in range(256)]
    return {"name": "watched", "threads": 1, "buffer_mib": 8, "source": {"range": {"count": 10_000_000}}, "stages": stages}


def watch(scene: Scene, client: Client) -> str | None:
    """Submits the run of many stages, and tries again until it is accepted."""
    while not scene.is_over():
        run = client.submit(watched_run(), what="submit")
        if run is not None:
            return run
        scene.rest(REST_S)
    return None


def silent_streams(scene: Scene) -> Counts:
    """Event streams that never read. One that the server closes is opened again."""
    client = scene.client()
    run = watch(scene, client)
    streams: list[socket.socket] = []
    while not scene.is_over():
        while len(streams) < STREAMS and not scene.is_over():
            stream = client.open("GET", f"/events?runs={run}")
            if stream is None:
                break
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stream.settimeout(10)
            if client.status(stream, what="event stream") == 200:
                streams.append(stream)
            else:
                stream.close()
                scene.rest(REST_S)
                break
        scene.rest(5)
        open_ = [stream for stream in streams if _is_open(stream)]
        client.counts["event stream that the server has closed", 0] += len(streams) - len(open_)
        streams = open_
    return client.counts


def _is_open(stream: socket.socket) -> bool:
    """True unless the other side has reset the connection; a stream that never reads does not see its orderly end."""
    if stream.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
        # The state of the connection is the first byte of `tcp_info`; 1 is established.
        if struct.unpack("B", stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1))[0] == 1:
            return True
    stream.close()
    return False


def answers(scene: Scene) -> Counts:
    """Figures of the run of many stages, 75 answers at once, read late or not at all."""
    client = scene.client()
    run = watch(scene, client)
    paths = [
        f"/runs/{run}/figures", f"/runs/{run}/figures?from_s=0", f"/runs/{run}/series?points=2000", f"/runs/{run}/windows?every_s=0.25",
        f"/runs/{run}/timeline", f"/runs/{run}", "/runs?limit=200", "/runs?q=e&limit=200", f"/runs/{run}/spec",
    ]  # fmt: skip
    turns = itertools.cycle(paths)
    while not scene.is_over():
        held = [(path, stream) for path in itertools.islice(turns, ANSWERS) if (stream := client.open("GET", path))]
        scene.rest(4)
        for number, (path, stream) in enumerate(held):
            stream.settimeout(30)
            client.status(stream, what=f"answer: {path.replace(str(run), 'RUN').split('?')[0]}")
            if number % 2:
                stream.settimeout(1)
                try:
                    while stream.recv(1 << 20):
                        pass
                except OSError:
                    pass
            stream.close()
    return client.counts


def floods(scene: Scene) -> Counts:
    """A module that logs without end, and queries of what it has logged."""
    client = scene.client()
    client.ask("POST", "/modules", scene.module("guest_misbehaving"), kind=WASM, what="upload of its own")

    def act(scene: Scene, client: Client) -> None:
        flood = {"wasm": {"module": "misbehaving", "params": {"how": "log-flood"}, "memory_mib": 16}}
        document = {"name": "flood", "threads": 1, "buffer_mib": 8, "source": {"range": {"count": 100_000_000}}, "stages": [flood]}
        run = client.submit(document, what="submit")
        for _ in range(20):
            if run is None or scene.is_over():
                break
            client.ask("GET", f"/runs/{run}/logs?q=9&limit=200", what="logs")
            client.ask("GET", f"/runs/{run}/errors?q=9&limit=200", what="errors")
            scene.rest(1)
        if run is None:
            scene.rest(REST_S)
        else:
            client.stop(run)

    return at_once(scene, [act]) + client.counts
