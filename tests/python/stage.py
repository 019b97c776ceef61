"""Builds stage modules byte by byte: their `process` returns the same arrays for every sample, so that tests get any type and size of
element without a compiler. The layout is that of `guest-sdk/c/penstock.h`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_INTERFACE = "penstock:stage/transform@0.1.0"
_TYPES = Path(__file__).parents[2] / "guest-sdk/c/component-type.bin"

# Element types in the order of the contract.
DTYPES = ("bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64")

_PAGE = 65536
_I32, _I64 = 0x7F, 0x7E
_TENSOR = 4


@dataclass(frozen=True)
class Elements:
    """An array that a stage adds to every sample."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def constant_stage(name: str, fields: Mapping[str, Elements]) -> bytes:
    """Builds a module that keeps every sample and replaces its fields by `fields`."""
    memory = _Memory()
    heads = b""
    for field, elements in fields.items():
        text, shape = memory.put(field.encode()), memory.put(struct.pack(f"<{len(elements.shape)}I", *elements.shape))
        tensor = struct.pack("<B3x4I", DTYPES.index(elements.dtype), shape, len(elements.shape), memory.put(elements.data), len(elements.data))
        heads += struct.pack("<2IB7x", text, len(field.encode()), _TENSOR) + tensor.ljust(24, b"\0")
    # An outcome: `keep`, the key and seed of the sample, which `process` fills in, and its fields.
    outcome = memory.put(struct.pack("<B7x8x8x2I", 0, memory.put(heads), len(fields)))
    answer = memory.put(struct.pack("<2I", outcome, 1))
    nothing = memory.put(bytes(16))
    heap = memory.size
    pages = heap // _PAGE + 4
    manifest = {"name": name, "version": "0.1.0", "mode": "sample", "wants": [], "makes": list(fields), "fan_out": False}

    kinds = [_kind([_I32] * 4, [_I32]), _kind([_I32] * 2, [_I32]), _kind([], [_I32]), _kind([_I32], [])]
    codes = [
        # cabi_realloc: returns the next free bytes of the heap, aligned to 8.
        _code(b"\x23\x00\x20\x03\x6a" + _const(7) + b"\x6a" + _const(-8) + b"\x71\x24\x00" + b"\x23\x00\x20\x03\x6b" + _const(-8) + b"\x71"),
        # init: returns success.
        _code(_const(nothing)),
        # process: copies the key (pointer and length) and the seed of the only sample into the outcome.
        _code(_const(outcome) + b"\x20\x00\x29\x03\x00\x37\x03\x08" + _const(outcome) + b"\x20\x00\x29\x03\x08\x37\x03\x10" + _const(answer)),
        # finish: returns no samples.
        _code(_const(nothing)),
        # Called after each of the functions above: empties the heap.
        _code(_const(heap) + b"\x24\x00"),
    ]
    after = f"cabi_post_{_INTERFACE}#"
    exports = [
        _name("memory") + b"\x02\x00",
        *(
            _name(called) + b"\x00" + bytes([function])
            for called, function in (
                ("cabi_realloc", 0),
                (f"{_INTERFACE}#init", 1),
                (f"{_INTERFACE}#process", 2),
                (f"{_INTERFACE}#finish", 3),
                (f"{after}init", 4),
                (f"{after}process", 4),
                (f"{after}finish", 4),
            )
        ),
    ]
    return b"".join(
        (
            b"\0asm\x01\0\0\0",
            _section(1, kinds),
            _section(3, [b"\x00", b"\x01", b"\x01", b"\x02", b"\x03"]),
            _section(5, [b"\x00" + _unsigned(pages)]),
            _section(6, [bytes([_I32, 1]) + _const(heap) + b"\x0b"]),
            _section(7, exports),
            _section(10, codes),
            _section(11, [b"\x00" + _const(_Memory.BASE) + b"\x0b" + _bytes(memory.content)]),
            _custom("component-type:penstock", _TYPES.read_bytes()),
            _custom("penstock.manifest", json.dumps(manifest).encode()),
        )
    )


class _Memory:
    """Builds the initial content of a module's memory."""

    BASE = 1024

    def __init__(self) -> None:
        self.content = b""

    @property
    def size(self) -> int:
        return self.BASE + len(self.content)

    def put(self, data: bytes) -> int:
        """Adds data, aligned to 8, and returns its address."""
        address = self.size
        self.content += data.ljust(-(-len(data) // 8) * 8, b"\0")
        return address


def _unsigned(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _signed(number: int) -> bytes:
    encoded = bytearray()
    while not -64 <= number < 64:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number & 0x7F])


def _const(number: int) -> bytes:
    return b"\x41" + _signed(number)


def _bytes(content: bytes) -> bytes:
    return _unsigned(len(content)) + content


def _name(text: str) -> bytes:
    return _bytes(text.encode())


def _kind(parameters: list[int], results: list[int]) -> bytes:
    return b"\x60" + _bytes(bytes(parameters)) + _bytes(bytes(results))


def _code(instructions: bytes) -> bytes:
    return _bytes(b"\x00" + instructions + b"\x0b")


def _section(number: int, entries: list[bytes]) -> bytes:
    return bytes([number]) + _bytes(_unsigned(len(entries)) + b"".join(entries))


def _custom(name: str, content: bytes) -> bytes:
    return b"\x00" + _bytes(_name(name) + content)
