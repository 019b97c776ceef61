"""Documents and values, as they are handed on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from penstock._penstock import InvalidPipeline


def bytes_of(document: str | os.PathLike[str] | Mapping[str, Any]) -> bytes:
    """A document as JSON: what lies at a path, or what a dict is as JSON."""
    if isinstance(document, Mapping):
        return json_of("the document", document).encode()
    try:
        path = Path(document)
    except TypeError:
        found = f"the document is of type `{type(document).__name__}`"
        raise InvalidPipeline(f"{found}; wanted is the path of a JSON document, or the document as a dict") from None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidPipeline(f"cannot read `{path}`: {error.strerror}") from error


def json_of(what: str, value: Any) -> str:
    """A value as JSON, which knows no numbers that are none."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidPipeline(f"{what} cannot be written as JSON: {error}") from error
