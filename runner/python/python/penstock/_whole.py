"""Checks numbers in arguments."""

from __future__ import annotations

from operator import index

from penstock._penstock import InvalidPipeline

# Largest whole number accepted as an argument.
_MOST = 2**32 - 1


def whole_number(name: str, value: int, least: int) -> int:
    """Checks a whole number of at least `least`; accepts NumPy integers, too."""
    try:
        number = index(value)
    except TypeError:
        number = -1
    if not least <= number <= _MOST:
        raise InvalidPipeline(f"`{name}` is {value!r}; expected a whole number from {least} to {_MOST}")
    return number
