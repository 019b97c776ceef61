"""Tokens of servers that this user runs on this machine."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import urllib.parse
from pathlib import Path


def announced_token(url: str) -> str | None:
    """Returns the token of this user's server at `url`, if there is one. A server keeps a file that is named after its address
    and contains the path of its token file, and holds a lock on that file: a file without a lock was left by a killed server, and another
    user's program may answer at that address.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        # Raises ValueError for a host name, which may resolve to another machine: only a numeric address gets the token.
        address = ipaddress.ip_address(parts.hostname or "")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        host = f"[{address}]" if address.version == 6 else str(address)
        with open(_folder() / f"{host}:{port}", "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None
            except BlockingIOError:
                token = Path(os.fsdecode(file.read()))
        return token.read_text().strip()
    except (OSError, ValueError, RuntimeError):
        return None


def _folder() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "penstock" / "servers"
