"""Runs of a server on the same machine, drained from here."""

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
from penstock._announced import announced_token
from penstock._document import AnyDocument, bytes_of
from penstock._penstock import Batch, InvalidPipeline, PenstockError, RunFailed, StreamError
from penstock._whole import whole_number

# How long a server may take to answer, and a run to end after its stream, in seconds.
_PATIENCE = 30.0

# How often it is asked whether a run has begun, or has ended, in seconds.
_LOOK = 0.05

# Where `penstock serve` listens unless it is told otherwise.
_USUAL = "http://127.0.0.1:7700"

# Most characters of an answer that a message repeats.
_SHOWN = 100


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The token is for the server that was named, and for no other."""

    def redirect_request(self, *_: Any) -> None:
        return None


# A proxy would look for the server on a machine of its own.
_open = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects).open


def connect(url: str | None = None, *, token: str | None = None) -> Server:
    """The server at `url`, else at PENSTOCK_SERVER, else where it listens by default. Its token comes from `token`, else from
    PENSTOCK_TOKEN, else from the file of a server that this user runs at that address, else there is none.
    """
    url = url if url is not None else os.environ.get("PENSTOCK_SERVER", _USUAL)
    token = token if token is not None else os.environ.get("PENSTOCK_TOKEN")
    return Server(url, token if token is not None else announced_token(url))


class Server:
    """A Penstock server: `penstock serve`."""

    def __init__(self, url: str, token: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise PenstockError(f"`{url}` is no address of a server; wanted is one like {_USUAL}")
        if token is not None and not (token.isascii() and token.isprintable()):
            raise PenstockError("the token has characters that no token has; a line break at its end is one")
        self._url = url.rstrip("/")
        self._token = token

    def submit(self, document: AnyDocument, *, tags: Sequence[str] = ()) -> str:
        """Submits a run of a pipeline, the path of a document, a dict or a `Document`, whose consumer is best `{"stream": {}}`, and gives its id.
        `tags` help to find the run: 16 at most, of at most 64 characters each, without commas.
        """
        if isinstance(tags, str) or any("," in tag for tag in tags):
            raise ValueError(f"tags are a list of texts without commas, found {tags!r}")
        query = urllib.parse.urlencode({"tags": ",".join(tags)}) if tags else ""
        return str(self._ask("POST", f"/runs?{query}" if query else "/runs", bytes_of(document), wanted=("id",))["id"])

    def run(self, run: str) -> dict[str, Any]:
        """A run with all its figures."""
        return self._ask("GET", f"/runs/{urllib.parse.quote(run, safe='')}", wanted=("state",))

    def stream(self, run: str, *, max_held: int = 16) -> Stream:
        """The batches of a run whose consumer is `stream`. One process at a time takes them. Waits as long as the run waits its turn.
        `max_held` is how many batches the loop may hold at a time, arrays made of them included.
        """
        most = whole_number("max_held", max_held, 2)
        while self.run(run)["state"] == "queued":
            time.sleep(_LOOK)
        try:
            address = self._ask("GET", f"/runs/{urllib.parse.quote(run, safe='')}/stream", wanted=("socket", "secret"))
        except PenstockError:
            _check(self.run(run))
            raise
        return Stream(_penstock.StreamClient(address["socket"], address["secret"], most), self, run)

    def _ask(self, method: str, path: str, body: bytes | None = None, *, wanted: tuple[str, ...] = ()) -> dict[str, Any]:
        """What the server answers: an object, in which the members that are wanted are texts."""
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
                raise self._refused(error) from None
        except OSError as error:
            raise self._silent(error) from None
        except (ValueError, http.client.InvalidURL) as error:
            raise PenstockError(f"`{self._url}` is no address of a server: {error}") from None
        except http.client.HTTPException as error:
            raise PenstockError(f"what answers at {self._url} is no Penstock server, or breaks off: {error!r}") from None
        found = _object(told)
        if found is None or not all(isinstance(found.get(name), str) for name in wanted):
            raise PenstockError(f"what answers at {self._url} is no Penstock server: it sent `{_shown(told)}`")
        return found

    def _silent(self, error: OSError) -> PenstockError:
        return PenstockError(f"the server at {self._url} does not answer: {getattr(error, 'reason', error)}")

    def _refused(self, error: urllib.error.HTTPError) -> PenstockError:
        """What the server says of its refusal."""
        if 300 <= error.code < 400:
            where = error.headers.get("Location", "nowhere")
            return PenstockError(f"what answers at {self._url} leads on to {where}, and a token is not sent after it: give the server's own address")
        try:
            told = error.read()
        except OSError as silent:
            return self._silent(silent)
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
    """Batches of a server's run, an iterator. A batch is acknowledged when the one after it is asked for: then nobody is given it
    again. What was not acknowledged when this process ends, or calls `close`, goes to the next one that connects. Threads
    that share it ask one after another, and each acknowledges the batch before, whoever got that.
    """

    def __init__(self, client: _penstock.StreamClient, server: Server, run: str) -> None:
        self._client: _penstock.StreamClient | None = client
        self._server = server
        self._run = run
        # One thread at a time: what is acknowledged is the last batch that was given.
        self._asking = threading.Lock()
        #: Number of the last batch in the run, from 0; -1 before the first.
        self.number = -1
        #: Whether an earlier process was given the last batch, and may have used it.
        self.redelivered = False

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Batch:
        with self._asking:
            return self._next()

    def _next(self) -> Batch:
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
        """Ends the loop as the run has ended, where its server can still be asked: a loop that takes batches slowly may not hear it."""
        try:
            self._end_early()
        except RunFailed:
            raise
        except PenstockError:
            raise error from None
        raise StopIteration

    def _end_early(self) -> None:
        """Raises what the run failed of. Who stopped it knows that its batches are not all there are."""
        end = time.monotonic() + _PATIENCE
        run = self._server.run(self._run)
        while run["state"] in ("running", "draining"):
            if time.monotonic() >= end:
                raise PenstockError(f"the stream of the run has ended, and the run is still {run['state']} after {_PATIENCE:.0f} s")
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
    """Raises what a run has failed of, if it has; one that its server did not live to end has failed, too."""
    if run["state"] in ("failed", "interrupted"):
        raise RunFailed(run.get("error") or "the server that ran it ended before the run did")


def _object(told: bytes) -> dict[str, Any] | None:
    """The JSON object that these bytes are, if they are one."""
    try:
        found = json.loads(told)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _shown(told: bytes) -> str:
    """The beginning of an answer, in one line."""
    text = " ".join(told[:_SHOWN].decode(errors="replace").split())
    return text if len(told) <= _SHOWN else f"{text} ..."
