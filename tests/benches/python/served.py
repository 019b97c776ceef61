"""The S3 server of the tests, and plain requests to it: the rate of which a reader can reach at most."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import subprocess
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import local
from urllib.parse import quote, urlencode

KEY, SECRET, BUCKET = "penstock-test", "penstock-test-secret", "data"
# What Penstock has in flight when it reads an object in order.
CONNECTIONS = 32
BLOCK = 1 << 20


@contextmanager
def served(program: Path, folder: Path, *options: str) -> Iterator[str]:
    """Serves a folder in the `with` block; returns the address."""
    with subprocess.Popen([program, f"--root={folder}", *options], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            assert address, "the server did not start"
            yield address
        finally:
            server.kill()


def data_set(endpoint: str) -> dict[str, str]:
    """Description of the bucket, for `--store`."""
    return {"bucket_name": BUCKET, "endpoint_url": endpoint, "aws_access_key_id": KEY, "aws_secret_access_key": SECRET}


def blocks(endpoint: str, objects: Iterable[tuple[str, int]]) -> int:
    """Reads objects, of these names and sizes, in ranges of `BLOCK` bytes, `CONNECTIONS` at a time; returns the number of bytes."""
    host, own = endpoint.removeprefix("http://"), local()

    def read(part: tuple[str, int]) -> int:
        if not hasattr(own, "connection"):
            own.connection, own.buffer = http.client.HTTPConnection(host), bytearray(BLOCK)
        target, start = part
        own.connection.request("GET", target, headers={"Range": f"bytes={start}-{start + BLOCK - 1}"})
        response = own.connection.getresponse()
        assert response.status == 206, response.read()
        return fill(response, memoryview(own.buffer))

    signed = [(presigned(host, name), size) for name, size in objects]
    parts = [(target, start) for target, size in signed for start in range(0, size, BLOCK)]
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        return sum(threads.map(read, parts))


def fill(response: http.client.HTTPResponse, buffer: memoryview) -> int:
    """Reads a whole response; returns its number of bytes."""
    filled = 0
    while read := response.readinto(buffer[filled:]):
        filled += read
    return filled


def presigned(host: str, name: str) -> str:
    """Target of requests for an object, signed for an hour (AWS Signature Version 4, in the query)."""
    now = time.gmtime()
    day, moment = time.strftime("%Y%m%d", now), time.strftime("%Y%m%dT%H%M%SZ", now)
    scope = f"{day}/us-east-1/s3/aws4_request"
    query = urlencode(
        {"X-Amz-Algorithm": "AWS4-HMAC-SHA256", "X-Amz-Credential": f"{KEY}/{scope}", "X-Amz-Date": moment,
         "X-Amz-Expires": 3600, "X-Amz-SignedHeaders": "host"}, quote_via=quote, safe="")  # fmt: skip
    request = f"GET\n/{BUCKET}/{name}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
    text = f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
    key = f"AWS4{SECRET}".encode()
    for part in (day, "us-east-1", "s3", "aws4_request", text):
        key = hmac.digest(key, part.encode(), "sha256")
    return f"/{BUCKET}/{name}?{query}&X-Amz-Signature={key.hex()}"
