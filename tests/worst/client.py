"""Requests of one token to a server, counted by operation and status."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Maximum time that a client waits for a response, in seconds.
PATIENCE_S = 60.0

JSON, WASM = "application/json", "application/wasm"


@dataclass(frozen=True)
class Answer:
    """Response of the server."""

    #: 0 if the server has closed the connection, or has not responded in time.
    status: int
    content: bytes
    took_s: float

    def json(self) -> Any:
        try:
            return json.loads(self.content)
        except ValueError:
            return {}


class Client:
    """Holder of a token. Each request has a connection of its own."""

    def __init__(self, address: tuple[str, int], token: str) -> None:
        self.address, self.token = address, token
        #: Number of responses by operation and status.
        self.counts: Counter[tuple[str, int]] = Counter()

    def ask(
        self, method: str, path: str, content: Any = None, *,
        what: str, kind: str = JSON, headers: Mapping[str, str] | None = None, patience_s: float = PATIENCE_S,
    ) -> Answer:  # fmt: skip
        """Sends a request, counts the response as one to `what`, and returns it."""
        body = content if isinstance(content, bytes | None) else json.dumps(content).encode()
        sent = {"authorization": f"Bearer {self.token}", "connection": "close", **(headers or {})}
        if body is not None:
            sent["content-type"] = kind
        start = time.monotonic()
        connection = http.client.HTTPConnection(*self.address, timeout=patience_s)
        try:
            connection.request(method, path if path == "/health" else f"/api/v1{path}", body, sent)
            response = connection.getresponse()
            status, told = response.status, response.read()
        except (OSError, http.client.HTTPException):
            status, told = 0, b""
        finally:
            connection.close()
        self.counts[what, status] += 1
        return Answer(status, told, time.monotonic() - start)

    def submit(self, document: Any, *, what: str, **more: Any) -> str | None:
        """Submits a document; returns the id of the run, if the server has accepted it."""
        return self.ask("POST", "/runs", document, what=what, **more).json().get("id")

    def stop(self, run: str, *, what: str = "stop") -> Answer:
        return self.ask("POST", f"/runs/{run}/stop", {}, what=what)

    def open(self, method: str, path: str, headers: Mapping[str, str | int] | None = None) -> socket.socket | None:
        """Opens a connection and sends the head of a request, and nothing else. `None` if the server takes no connection."""
        lines = {"host": self.address[0], "authorization": f"Bearer {self.token}", **(headers or {})}
        head = f"{method} /api/v1{path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items()) + "\r\n"
        try:
            stream = socket.create_connection(self.address, timeout=PATIENCE_S)
        except OSError:
            return None
        try:
            stream.sendall(head.encode())
        except OSError:
            stream.close()
            return None
        return stream

    def status(self, stream: socket.socket, *, what: str) -> int:
        """Reads the status of a response, and counts it; 0 if there is none within the time limit of the connection."""
        try:
            head = stream.recv(12)
            while 0 < len(head) < 12 and (more := stream.recv(12 - len(head))):
                head += more
            status = int(head[9:12])
        except (OSError, ValueError):
            status = 0
        self.counts[what, status] += 1
        return status


def numbered(module: bytes, number: int) -> bytes:
    """A module of other bytes that does the same: a custom section has the number."""
    return module + b"\0\x12\x01n" + f"{number:016x}".encode()
