"""Attacks by requests: codes, sessions and keys, modules, and bodies that are slow or large."""

from __future__ import annotations

import hashlib
import itertools
import json
import socket
import subprocess
import threading
import time

import victim
from client import JSON, WASM, Client, numbered
from scene import REST_S, Act, Counts, Scene, at_once

# Connections on which documents and modules arrive slowly.
DOCUMENTS, MODULES = 60, 20


def secrets(scene: Scene) -> Counts:
    """Codes, sessions and wrong tokens in numbers, and the keys of the victim's requests."""

    def codes(scene: Scene, client: Client) -> None:
        client.ask("POST", "/session/code", {}, what="code")
        client.ask("POST", "/session", {"token": scene.token}, what="session")

    def wrong(scene: Scene, client: Client) -> None:
        client.ask("POST", "/session", {"code": "0" * 43}, what="wrong code")
        client.ask("GET", "/runs", headers={"authorization": "Bearer wrong-wrong-wrong-wrong"}, what="wrong token")

    numbers = itertools.count(1)

    def keys(scene: Scene, client: Client) -> None:
        quick = {"name": "guessed", "threads": 1, "buffer_mib": 1, "source": {"range": {"count": 1}}}
        run = client.submit(quick, what="submit with the victim's key", headers={"idempotency-key": victim.key(next(numbers))})
        if run is None:
            scene.rest(REST_S)

    return at_once(scene, [codes, wrong, keys])


def uploads(scene: Scene) -> Counts:
    """Modules under the victim's name, large ones of its own that take long to compile, and very many versions of a small one."""
    foreign, large, small = scene.module("image"), scene.module("text"), scene.module("guest_batch")
    numbers = itertools.count(1 << 32)

    def upload(module: bytes, what: str) -> Act:
        def act(scene: Scene, client: Client) -> None:
            if client.ask("POST", "/modules", numbered(module, next(numbers)), kind=WASM, what=what).status != 201:
                scene.rest(REST_S)

        return act

    def versions(scene: Scene, client: Client) -> None:
        answer = client.ask("GET", "/modules/batch?limit=200", what="versions of a module")
        client.ask("GET", "/modules/batch", what="versions of a module")
        cursor = answer.json().get("next")
        if cursor:
            client.ask("GET", f"/modules/batch?limit=200&cursor={cursor}", what="versions of a module")
        scene.rest(REST_S)

    def inspect(scene: Scene, client: Client) -> None:
        client.ask("POST", "/modules/inspect", numbered(large, next(numbers)), kind=WASM, what="inspect")
        scene.rest(REST_S)

    own = "upload of its own"
    acts = [upload(foreign, "upload under the victim's name"), upload(large, own), upload(large, own), upload(small, own), versions, inspect]
    return at_once(scene, acts)


def slow_bodies(scene: Scene) -> Counts:
    """Documents and modules that arrive byte by byte, on many connections."""
    client = scene.client()
    kinds = [("/runs", JSON, 100_000, "slow document")] * DOCUMENTS + [("/modules", WASM, 30_000_000, "slow module")] * MODULES
    held: dict[int, socket.socket] = {}
    while not scene.is_over():
        for number, (path, kind, size, what) in enumerate(kinds):
            stream = held.get(number) or client.open("POST", path, {"content-type": kind, "content-length": size})
            if stream is None:
                continue
            held[number] = stream
            try:
                stream.settimeout(0)
                stream.send(b"{")
                if stream.recv(1, socket.MSG_PEEK) is not None:
                    raise ConnectionError
            except BlockingIOError:
                continue
            except OSError:
                stream.settimeout(5)
                client.status(stream, what=what)
                stream.close()
                del held[number]
        scene.rest(1)
    return client.counts


def large_bodies(scene: Scene) -> Counts:
    """Bodies beyond the limit that are sent whole, and reports that take much memory once they are parsed."""
    whole = b"x" * (24 << 20)
    values = b'{"x":[' + b"0," * 200_000 + b'0],"y":"' + b"y" * (10 << 20) + b'"}'

    def oversized(scene: Scene, client: Client) -> None:
        for path in ("/runs", "/benchmarks"):
            client.ask("POST", path, whole, what="body of 24 MiB")
        scene.rest(REST_S)

    def reports(scene: Scene, client: Client) -> None:
        client.ask("POST", "/benchmarks", values, what="report of many values")

    return at_once(scene, [oversized, reports, reports, reports])


def slow_registry(scene: Scene) -> Counts:
    """A registry that sends one byte a second: `pull` ends by itself."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(1)
    host = f"127.0.0.1:{listener.getsockname()[1]}"
    module = {"mediaType": WASM, "digest": f"sha256:{'0' * 64}", "size": 1_000_000}
    config = {"mediaType": "application/vnd.wasm.config.v0+json", "digest": f"sha256:{'0' * 64}", "size": 2}
    kind = "application/vnd.oci.image.manifest.v1+json"
    manifest = json.dumps({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": [module]}).encode()

    def answer(stream: socket.socket) -> None:
        with stream:
            try:
                stream.settimeout(5)
                target = stream.recv(1 << 16).split(b" ")[1]
                is_manifest = b"/manifests/" in target
                length, told = (len(manifest), kind) if is_manifest else (module["size"], "application/octet-stream")
                digest = f"docker-content-digest: sha256:{hashlib.sha256(manifest).hexdigest()}\r\n" if is_manifest else ""
                stream.sendall(f"HTTP/1.1 200 OK\r\ncontent-type: {told}\r\n{digest}content-length: {length}\r\nconnection: close\r\n\r\n".encode())
                if is_manifest:
                    stream.sendall(manifest)
                while not (is_manifest or scene.is_over()):
                    stream.sendall(b"\0")
                    scene.rest(1)
            except (OSError, IndexError):
                return

    def serve() -> None:
        while not scene.is_over():
            try:
                stream, _ = listener.accept()
            except OSError:
                continue
            threading.Thread(target=answer, args=[stream]).start()

    serving = threading.Thread(target=serve)
    serving.start()
    counts = Counts()
    begin = time.monotonic()
    command = [scene.program, "pull", f"oci://{host}/team/slow:v1", "--registry", host, "--output", scene.folder / "slow.wasm"]
    pull = subprocess.Popen(command, env=scene.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        _, told = pull.communicate(timeout=max(1.0, scene.until - begin))
        counts[f"pull, after {time.monotonic() - begin:.0f} s: {told.strip().splitlines()[-1][:100]}", pull.returncode] += 1
    except subprocess.TimeoutExpired:
        pull.kill()
        pull.wait()
        counts[f"pull, still waiting after {time.monotonic() - begin:.0f} s", 0] += 1
    serving.join()
    listener.close()
    return counts
