"""Client of a server on the same machine, whose runs this process drains."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from penstock import _penstock
from penstock._document import AnyDocument, bytes_of
from penstock._penstock import Batch, InvalidPipeline, PenstockError, RunFailed, StreamError, announced_token
from penstock._whole import whole_number

# Maximum time for an answer of the server, and for a run to end after its stream, in seconds.
_PATIENCE = 30.0

# Interval of requests for the state of a run that has not begun or not ended, in seconds.
_LOOK = 0.05

# Default address of `penstock serve`.
_USUAL = "http://127.0.0.1:7700"

# Maximum length of a server's answer in an error message, in bytes.
_SHOWN = 100


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, which would send the token to another server."""

    def redirect_request(self, *_: Any) -> None:
        return None


# Uses no proxy: a proxy would resolve `127.0.0.1` to its own machine.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects).open


def connect(url: str | None = None, *, token: str | None = None) -> Server:
    """Connects to the server at `url`, else at PENSTOCK_SERVER, else at the default address. The token is `token`, else PENSTOCK_TOKEN,
    else the token of a server that the same user runs at that address, else none.
    """
    url = url if url is not None else os.environ.get("PENSTOCK_SERVER", _USUAL)
    token = token if token is not None else os.environ.get("PENSTOCK_TOKEN")
    return Server(url, token if token is not None else announced_token(url))


class Server:
    """A Penstock server: `penstock serve`."""

    def __init__(self, url: str, token: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise PenstockError(f"`{url}` is not an address of a server; expected one like {_USUAL}")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise PenstockError("the token contains invalid characters, such as a line break at its end")
        self._url = url.rstrip("/")
        self._token = token

    def submit(self, document: AnyDocument, *, tags: Sequence[str] = ()) -> str:
        """Submits a run of a document (a path, a dict or a `Document`) and returns its id. To read its batches, use the consumer `{"stream": {}}`.

        `tags` label the run: at most 16, of at most 64 characters each, without commas.
        """
        if isinstance(tags, str) or any("," in tag for tag in tags):
            raise ValueError(f"tags are a list of texts without commas, found {tags!r}")
        query = urllib.parse.urlencode({"tags": ",".join(tags)}) if tags else ""
        return str(self._request("POST", f"/runs?{query}" if query else "/runs", bytes_of(document), wanted=("id",))["id"])

    def run(self, run: str) -> dict[str, Any]:
        """Details of a run with all its figures."""
        return self._request("GET", f"/runs/{urllib.parse.quote(run, safe='')}", wanted=("state",))

    def stream(self, run: str, *, max_held: int = 16) -> Stream:
        """Iterates over the batches of a run whose consumer is `stream`; one process at a time reads them. Waits while the run is queued.
        `max_held` is the number of batches that the loop may hold at a time, including arrays made from them.
        """
        most = whole_number("max_held", max_held, 2)
        while self.run(run)["state"] == "queued":
            time.sleep(_LOOK)
        try:
            address = self._request("GET", f"/runs/{urllib.parse.quote(run, safe='')}/stream", wanted=("socket", "secret"))
        except PenstockError:
            _check(self.run(run))
            raise
        return Stream(_penstock.StreamClient(address["socket"], address["secret"], most), self, run)

    def _request(self, method: str, path: str, body: bytes | None = None, *, wanted: tuple[str, ...] = ()) -> dict[str, Any]:
        """Sends a request and returns the answer: an object in which the `wanted` members are texts."""
        headers = {"Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            request = urllib.request.Request(f"{self._url}/api/v1{path}", body, headers, method=method)
            with _open(request, timeout=_PATIENCE) as answer:
                told = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise self._error_of(error) from None
        except OSError as error:
            raise self._no_answer(error) from None
        except (ValueError, http.client.InvalidURL) as error:
            raise PenstockError(f"`{self._url}` is not an address of a server: {error}") from None
        except http.client.HTTPException as error:
            raise PenstockError(f"the program at {self._url} is not a Penstock server, or ended the connection: {error!r}") from None
        found = _object(told)
        if found is None or not all(isinstance(found.get(name), str) for name in wanted):
            raise PenstockError(f"the program at {self._url} is not a Penstock server: it sent `{_shown(told)}`")
        return found

    def _no_answer(self, error: OSError) -> PenstockError:
        return PenstockError(f"the server at {self._url} does not answer: {getattr(error, 'reason', error)}")

    def _error_of(self, error: urllib.error.HTTPError) -> PenstockError:
        """Converts an error answer of the server to an exception."""
        if 300 <= error.code < 400:
            where = error.headers.get("Location", "nowhere")
            return PenstockError(
                f"the program at {self._url} redirects to {where}, but the token is not sent to another address: connect to that address directly"
            )
        try:
            told = error.read()
        except OSError as silent:
            return self._no_answer(silent)
        except http.client.HTTPException:
            told = b""
        problem = _object(told)
        if problem is None:
            return PenstockError(f"the server at {self._url} answered {error.code} and `{_shown(told)}`")
        lines = [str(problem.get("detail") or problem.get("title") or f"the server answered {error.code}")]
        faults = problem.get("errors")
        for fault in faults if isinstance(faults, list) else []:
            if isinstance(fault, dict):
                lines.append(f"  {fault.get('pointer') or 'the document'}: {fault.get('detail', '')}")
        kind = InvalidPipeline if error.code in (400, 422) else PenstockError
        return kind("\n".join(lines))


class Stream:
    """Iterator over the batches of a server's run. Requesting the next batch acknowledges the previous one, which is then never
    delivered again. When this process ends or calls `close`, batches that are not acknowledged go to the next process that connects.
    Threads that share a stream take turns: a request acknowledges the previous batch even if another thread received it.
    """

    def __init__(self, client: _penstock.StreamClient, server: Server, run: str) -> None:
        self._client: _penstock.StreamClient | None = client
        self._server = server
        self._run = run
        # One thread at a time, since a request acknowledges the last delivered batch.
        self._lock = threading.Lock()
        #: Number of the last batch in the run, from 0; -1 before the first.
        self.number = -1
        #: Set if the last batch was also delivered to an earlier process, which may have used it.
        self.redelivered = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Batch:
        with self._lock:
            client = self._client
            if client is None:
                raise StreamError("the stream was closed")
            try:
                taken = client.next()
            except StreamError as error:
                if client.is_closed:
                    self._closed(error)
                raise
            if taken is None:
                if not client.is_whole:
                    self._end_early()
                raise StopIteration
            self.number, self.redelivered, batch = taken
            return batch

    def _closed(self, error: StreamError) -> None:
        """Raises the failure of the run, or ends the iteration if the run did not fail: a slow loop may lose the connection before the
        end. Raises `error` if the server does not answer.
        """
        try:
            self._end_early()
        except RunFailed:
            raise
        except PenstockError:
            raise error from None
        raise StopIteration

    def _end_early(self) -> None:
        """Raises RunFailed if the run failed. A stopped run raises nothing, although batches are missing."""
        end = time.monotonic() + _PATIENCE
        run = self._server.run(self._run)
        while run["state"] in ("running", "draining"):
            if time.monotonic() >= end:
                raise PenstockError(f"the stream of the run has ended, and the run is still {run['state']} after {_PATIENCE:.0f} s")
            # The stream ends shortly before the run.
            time.sleep(_LOOK)
            run = self._server.run(self._run)
        _check(run)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnects: batches that are not acknowledged go to the next process that connects."""
        self._client = None


def _check(run: Mapping[str, Any]) -> None:
    """Raises RunFailed if the run failed or was interrupted."""
    if run["state"] in ("failed", "interrupted"):
        raise RunFailed(run.get("error") or "the server ended before the run")


def _object(told: bytes) -> dict[str, Any] | None:
    """Parses a JSON object; `None` for anything else."""
    try:
        found = json.loads(told)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _shown(told: bytes) -> str:
    """Returns the beginning of an answer, in one line."""
    text = " ".join(told[:_SHOWN].decode(errors="replace").split())
    return text if len(told) <= _SHOWN else f"{text} ..."
