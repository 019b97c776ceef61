"""Documents written in Python, and documents and values as JSON."""

from __future__ import annotations

import functools
import inspect
import json
import keyword
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar, cast

from penstock._penstock import InvalidPipeline

if TYPE_CHECKING:
    from penstock._pipeline import Pipeline

Declared = TypeVar("Declared", bound=Callable[..., Any])

# Maximum length of a `repr` on one line, in characters.
_LINE = 100


class Written:
    """An immutable document: each call returns a new one."""

    def __init__(self) -> None:
        self._members: dict[str, Any] = {}

    @classmethod
    def read(cls, document: AnyDocument) -> Self:
        """Reads a document from a path or a dict and keeps all of its members. `Pipeline` checks them."""
        try:
            found = json.loads(bytes_of(document))
        except (ValueError, RecursionError) as error:
            raise InvalidPipeline(f"the document is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise InvalidPipeline(f"the document is a JSON value of type `{type(found).__name__}`; expected an object")
        # Python reads numbers that JSON does not have: NaN, and 1e999 as infinity.
        json_of("the document", found)
        return cls()._with(found)

    def to_dict(self) -> dict[str, Any]:
        """The document as a dict, for `json.dump`."""
        return dict(json.loads(json.dumps(self._members)))

    def batch(self, size: int, *, drop_last: bool = False) -> Self:
        """Collects samples into batches and stacks their fields: `aggregate`, then `collate`.

        size: Number of samples in a batch.
        drop_last: Drops an epoch's last batch if it is not full.
        """
        aggregate = {"size": size, "drop_last": True} if drop_last else {"size": size}
        return self._with_part("stages", "aggregate", aggregate)._with_part("stages", "collate", {})

    def pipeline(
        self,
        *,
        stores: Mapping[str, str | os.PathLike[str]] | None = None,
        modules: Mapping[str, str | os.PathLike[str] | bytes] | None = None,
        **options: Any,
    ) -> Pipeline:
        """Checks this document and returns its pipeline. `options` are the keyword arguments of `Pipeline`."""
        from penstock._pipeline import Pipeline

        return Pipeline(self, stores=stores, modules=modules, **options)

    def _with(self, members: dict[str, Any]) -> Self:
        made = type(self)()
        made._members = self._members | members
        return made

    def _with_part(self, place: str, kind: str, given: Mapping[str, Any]) -> Self:
        """Returns a copy with one more part: appends a stage, replaces any other part."""
        members = json.loads(json_of(f"an argument of `{kind}`", given))
        if place == "stages":
            members = {place: [*self._members.get(place, []), {kind: members}]}
        elif place:
            members = {place: members if place == kind else {kind: members}}
        return self._with(members)

    def _parts(self) -> Iterator[tuple[str, str, dict[str, Any]]]:
        """Place, kind and members of each part, in the order of the calls that write them."""
        members = dict(self._members)
        source, stages = members.pop("source"), members.pop("stages", [])
        ends = [(place, members.pop(place)) for place in ("sink", "consumer") if place in members]
        for place, part in [("source", source), ("", {"set": members}), *(("stages", stage) for stage in stages), *ends]:
            if place == "sink":
                part = {place: part}
            ((kind, given),) = part.items()
            if place or given:
                yield place, kind, given

    def __eq__(self, other: object) -> bool:
        # A document without stages may omit `stages` or have an empty list.
        return isinstance(other, Written) and {"stages": [], **self._members} == {"stages": [], **other._members}

    def __repr__(self) -> str:
        """Python code that makes an equal document."""
        made, calls = type(self)(), []
        try:
            for place, kind, given in self._parts():
                named = {f"{name}_" if keyword.iskeyword(name) else name: value for name, value in given.items()}
                calls.append(f"{kind}({_arguments(_DECLARED[place, kind], named)})")
                made = made._with_part(place, kind, given)
        except (AttributeError, KeyError, TypeError, ValueError):
            calls.clear()
        if not calls or made != self:
            # Some members of the document are no parameters of these functions.
            return f"penstock.Document.read({self._members!r})"
        calls[0] = f"penstock.{calls[0]}"
        line = ".".join(calls)
        return line if len(line) <= _LINE else "(\n    " + "\n    .".join(calls) + "\n)"


# Types of arguments accepted as a document.
AnyDocument: TypeAlias = str | os.PathLike[str] | Mapping[str, Any] | Written

# Signatures of the functions that add parts, by place and kind.
_DECLARED: dict[tuple[str, str], inspect.Signature] = {}


def part(place: str) -> Callable[[Declared], Declared]:
    """Decorates a function that adds a part to the document that it returns. The name of the function is the kind of the part. Only the
    arguments of the call become members, so that no default is written into the document.
    """

    def decorated(declared: Declared) -> Declared:
        signature = inspect.signature(declared)
        kind = declared.__name__
        without_self = [parameter for name, parameter in signature.parameters.items() if name != "self"]
        _DECLARED[place, kind] = signature.replace(parameters=without_self)

        @functools.wraps(declared)
        def called(*arguments: Any, **named: Any) -> Written:
            # Raises TypeError for arguments that the function does not take.
            begun: Written = declared(*arguments, **named)
            given = signature.bind(*arguments, **named).arguments
            given.pop("self", None)
            # A member that is a word of Python, like `else`, is the parameter `else_`.
            members = {name[:-1] if keyword.iskeyword(name[:-1]) else name: value for name, value in given.items()}
            return begun._with_part(place, kind, members)

        return cast(Declared, called)

    return decorated


def _arguments(signature: inspect.Signature, given: dict[str, Any]) -> str:
    """Arguments of a call, as Python code. Raises TypeError for arguments that the function does not take."""
    signature.bind(**given)
    needed = [name for name, parameter in signature.parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    named = [f"{name}={value!r}" for name, value in given.items() if name not in needed]
    return ", ".join([*(repr(given[name]) for name in needed), *named])


def bytes_of(document: AnyDocument) -> bytes:
    """Converts a document to JSON: the content of a path, or a dict or `Document`."""
    if isinstance(document, Written):
        document = document._members
    if isinstance(document, Mapping):
        return json_of("the document", document).encode()
    try:
        path = Path(document)
    except TypeError:
        found = f"the document is of type `{type(document).__name__}`"
        raise InvalidPipeline(f"{found}; expected the path of a JSON document, or the document as a dict") from None
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidPipeline(f"cannot read `{path}`: {error.strerror}") from error


def json_of(what: str, value: Any) -> str:
    """Converts a value to JSON, which has no NaN or infinity. Numbers and arrays of NumPy become numbers and lists."""
    try:
        return json.dumps(value, allow_nan=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise InvalidPipeline(f"{what} cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    """Value of Python for a number or an array of NumPy, which the package does not import."""
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        plain = value.tolist()
        if type(plain) is not type(value):
            return plain
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
