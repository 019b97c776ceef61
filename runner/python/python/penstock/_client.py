"""Runs of a server on the same machine, drained from here."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from penstock import _penstock
from penstock._penstock import Batch, InvalidPipeline, PenstockError, RunFailed, StreamError
from penstock._whole import whole_number

# How long a server may take to answer, in seconds.
_PATIENCE = 30.0

# How often it is asked whether a run has begun, in seconds.
_LOOK = 0.05

# Where `penstock serve` listens unless it is told otherwise.
_USUAL = "http://127.0.0.1:7700"

# A proxy would look for the server on a machine of its own.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open


def connect(url: str | None = None, *, token: str | None = None) -> Server:
    """The server at `url`, else at PENSTOCK_SERVER, else where it listens by default. Its token comes from `token`, else from
    PENSTOCK_TOKEN, else there is none.
    """
    return Server(
        url if url is not None else os.environ.get("PENSTOCK_SERVER", _USUAL),
        token if token is not None else os.environ.get("PENSTOCK_TOKEN"),
    )


class Server:
    """A Penstock server: `penstock serve`."""

    def __init__(self, url: str, token: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise PenstockError(f"`{url}` is no address of a server; wanted is one like {_USUAL}")
        self._url = url.rstrip("/")
        self._token = token

    def submit(self, document: Mapping[str, Any]) -> str:
        """Submits a run of a pipeline, whose consumer is best `{"stream": {}}`, and gives its id."""
        return str(self._ask("POST", "/runs", document)["id"])

    def run(self, run: str) -> dict[str, Any]:
        """A run with all its figures."""
        return dict(self._ask("GET", f"/runs/{urllib.parse.quote(run, safe='')}"))

    def stream(self, run: str, *, max_held: int = 16) -> Stream:
        """The batches of a run whose consumer is `stream`. One process at a time takes them. Waits as long as the run waits its turn.
        `max_held` is how many batches the loop may hold at a time, arrays made of them included.
        """
        most = whole_number("max_held", max_held, 2)
        while self.run(run)["state"] == "queued":
            time.sleep(_LOOK)
        try:
            address = self._ask("GET", f"/runs/{urllib.parse.quote(run, safe='')}/stream")
        except PenstockError:
            _check(self.run(run))
            raise
        return Stream(_penstock.StreamClient(address["socket"], address["secret"], most), self, run)

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self._url}/api/v1{path}", data, headers, method=method)
        try:
            with _open(request, timeout=_PATIENCE) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            raise _refused(error) from None
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise PenstockError(f"the server at {self._url} does not answer: {reason}") from None
        except (ValueError, http.client.HTTPException):
            raise PenstockError(f"what answers at {self._url} is no Penstock server") from None


class Stream:
    """Batches of a server's run, an iterator. A batch is acknowledged when the one after it is asked for: then nobody is given it
    again. What was not acknowledged when this process ends, or calls `close`, goes to the next one that connects.
    """

    def __init__(self, client: _penstock.StreamClient, server: Server, run: str) -> None:
        self._client: _penstock.StreamClient | None = client
        self._server = server
        self._run = run
        self._is_out = False
        #: Number of the last batch in the run, from 0; -1 before the first.
        self.number = -1
        #: Whether an earlier process was given the last batch, and may have used it.
        self.redelivered = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Batch:
        if self._client is None:
            raise StreamError("the stream was closed")
        if self._is_out:
            self._is_out = False
            self._client.acknowledge(self.number)
        taken = self._client.next()
        if taken is None:
            if not self._client.is_whole:
                self._end_early()
            raise StopIteration
        self._is_out = True
        self.number, self.redelivered, batch = taken
        return batch

    def _end_early(self) -> None:
        """Raises what the run failed of. Who stopped it knows that its batches are not all there are."""
        run = self._server.run(self._run)
        while run["state"] in ("running", "draining"):
            # The stream ends a moment before the run does.
            time.sleep(_LOOK)
            run = self._server.run(self._run)
        _check(run)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leaves: batches that were not acknowledged go to the next process that connects."""
        self._client = None


def _check(run: Mapping[str, Any]) -> None:
    """Raises what a run has failed of, if it has."""
    if run["state"] == "failed":
        raise RunFailed(run["error"])


def _refused(error: urllib.error.HTTPError) -> PenstockError:
    """What the server says of its refusal."""
    try:
        problem = json.load(error)
    except ValueError:
        return PenstockError(f"the server answered {error.code}")
    lines = [problem.get("detail") or problem.get("title") or f"the server answered {error.code}"]
    lines += [f"  {fault.get('pointer') or 'the document'}: {fault.get('detail', '')}" for fault in problem.get("errors", [])]
    kind = InvalidPipeline if error.code in (400, 422) else PenstockError
    return kind("\n".join(lines))
