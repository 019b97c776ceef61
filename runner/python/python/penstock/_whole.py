"""Numbers that people give."""

from __future__ import annotations

from operator import index

from penstock._penstock import InvalidPipeline

# Most that any of them may be.
_MOST = 2**32 - 1


def whole_number(name: str, value: int, least: int) -> int:
    """A whole number that may be as small as `least`; NumPy's do as well."""
    try:
        number = index(value)
    except TypeError:
        number = -1
    if not least <= number <= _MOST:
        raise InvalidPipeline(f"`{name}` is {value!r}; wanted is a whole number from {least} to {_MOST}")
    return number
