"""Writers of tar archives in all their forms, byte by byte and by `tarfile`."""

from __future__ import annotations

import io
import random
import re
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


@dataclass
class Entry:
    """One member of an archive."""

    name: bytes
    data: bytes = b""
    kind: bytes = b"0"
    link: bytes = b""
    # Size in the header, if it is not that of the data.
    size: int | None = None


def block(data: bytes) -> bytes:
    return data + bytes(-len(data) % 512)


def octal(rng: random.Random, value: int, width: int) -> bytes:
    """A number of a header in one of the spellings that are in use."""
    form = rng.choice(["zeros", "zeros", "zeros", "spaces", "space at the end", "base 256"])
    if form == "base 256" and width >= 12:
        return b"\x80" + value.to_bytes(width - 1, "big")
    if form == "spaces" and len(b"%o" % value) <= width - 2:
        return b"%*o " % (width - 2, value) + b"\0"
    if form == "space at the end":
        return b"%0*o " % (width - 1, value)
    return b"%0*o\0" % (width - 1, value)


def header(rng: random.Random, form: str, name: bytes, size: int, kind: bytes, link: bytes = b"", prefix: bytes = b"") -> bytes:
    """One header of 512 bytes."""
    head = bytearray(512)
    head[0:len(name)] = name
    head[100:108] = octal(rng, 0o644, 8)
    head[108:116] = octal(rng, 1000, 8)
    head[116:124] = octal(rng, 1000, 8)
    head[124:136] = octal(rng, size, 12)
    head[136:148] = octal(rng, 1_700_000_000, 12)
    head[156:157] = kind
    head[157:157 + len(link)] = link
    if form == "gnu":
        head[257:265] = b"ustar  \0"
    elif form in ("ustar", "pax"):
        head[257:265] = b"ustar\x0000"
        head[265:270] = b"owner"
        head[345:345 + len(prefix)] = prefix
    head[148:156] = b" " * 8
    total = sum(head)
    head[148:156] = rng.choice([b"%06o\0 ", b"%07o\0", b"%06o \0"]) % total
    return bytes(head)


def pax_record(name: bytes, value: bytes) -> bytes:
    size = len(name) + len(value) + 3
    total = size + len(str(size))
    while size + len(str(total)) != total:
        total = size + len(str(total))
    return b"%d %s=%s\n" % (total, name, value)


def splits(name: bytes) -> list[tuple[bytes, bytes]]:
    """Pairs of prefix and name in which a header of ustar holds a long name."""
    places = [place for place, byte in enumerate(name) if byte == ord("/")]
    return [(name[:place], name[place + 1:]) for place in places if 0 < place <= 155 and 0 < len(name) - place - 1 <= 100]


def member(rng: random.Random, form: str, entry: Entry) -> bytes:
    """One member with the headers before its own that its name needs."""
    size = len(entry.data) if entry.size is None else entry.size
    name, before = entry.name, b""
    kind = entry.kind
    if kind == b"0" and (form == "v7" or rng.random() < 0.1) and not name[:100].endswith(b"/"):
        kind = b"\0"
    records = []
    prefix = b""
    if form == "ustar" and len(name) > 100:
        prefix, name = rng.choice(splits(name))
    elif form == "ustar" and rng.random() < 0.2 and splits(name):
        # A short name may be split, too.
        prefix, name = rng.choice(splits(name))
    elif form == "gnu" and (len(name) > 100 or rng.random() < 0.1):
        text = name + b"\0"
        before = header(rng, form, b"././@LongLink", len(text), b"L") + block(text)
        name = name[:100] if rng.random() < 0.8 else name[:99]
    elif form == "pax":
        is_ascii = all(byte < 128 for byte in name)
        if len(name) > 100 or not is_ascii or rng.random() < 0.1:
            try:
                name.decode()
            except UnicodeDecodeError:
                records.append((b"hdrcharset", b"BINARY"))
            records.append((b"path", name))
        if rng.random() < 0.3:
            records.append((b"mtime", b"1700000000.123456789"))
        if rng.random() < 0.1:
            records.append((b"comment", b"size=3\n12 path=wrong\n"))
        if rng.random() < 0.1:
            records.append((b"SCHILY.xattr.user.x", b"\0\xff\n="))
        if rng.random() < 0.15:
            records.append((b"size", b"%d" % size))
            if rng.random() < 0.5 and entry.kind == b"0":
                # The size of the record holds, not that of the header.
                size = 0
        if records:
            text = b"".join(pax_record(*record) for record in records)
            before = header(rng, form, rng.choice([b"PaxHeaders.7/x", b"././@PaxHeader"]), len(text), b"x") + block(text)
            name = name[:100]
    named = form == "gnu" and before or any(record[0] == b"path" for record in records)
    if named and rng.random() < 0.1:
        # Of several names, `tarfile` takes the first.
        text = b"another/name.txt\0"
        before += header(rng, "gnu", b"././@LongLink", len(text), b"L") + block(text)
    return before + header(rng, form, name, size, kind, entry.link, prefix) + block(entry.data)


def raw_tar(rng: random.Random, form: str, entries: Sequence[Entry]) -> bytes:
    """An archive that is written here, byte by byte."""
    out = bytearray()
    if form == "pax" and rng.random() < 0.3:
        # As `git archive` writes.
        text = pax_record(b"comment", b"c0ffee" * 6)
        out += header(rng, form, b"pax_global_header", len(text), b"g") + block(text)
    for entry in entries:
        out += member(rng, form, entry)
    out += bytes(1024)
    if rng.random() < 0.5:
        out += bytes(-len(out) % 10240)
    return bytes(out)


def library_tar(form: str, entries: Sequence[Entry]) -> bytes:
    """An archive that `tarfile` writes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[form], encoding="utf-8", errors="surrogateescape") as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name.decode("utf-8", "surrogateescape"))
            info.type = entry.kind
            info.linkname = entry.link.decode()
            info.size = len(entry.data) if entry.size is None else entry.size
            archive.addfile(info, io.BytesIO(entry.data) if entry.data else None)
    return out.getvalue()


def steady_tar(form: str, entries: Sequence[Entry], times: int = 1_700_000_000) -> bytes:
    """An archive that is the same whenever it is written."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=FORMATS[form]) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name.decode())
            info.size, info.mtime = len(entry.data), times
            archive.addfile(info, io.BytesIO(entry.data))
    return out.getvalue()


def fits_form(form: str, entry: Entry) -> bool:
    """True if a form can hold the name of an entry, for `tarfile`, too."""
    if form == "v7":
        return len(entry.name) < 100
    if form == "ustar":
        # `tarfile` leaves at most 155 bytes before the slash that it finds first from the end.
        return len(entry.name) <= 100 or any(True for prefix, _ in splits(entry.name) if prefix == entry.name[:156].rpartition(b"/")[0]) and len(entry.name) <= 256
    return True


def spelled(name: bytes) -> str:
    """A name whose repeated letters are counted, such as `a{99}/x.jpg`."""
    text = repr(name)[2:-1]
    return re.sub(r"((?:\\x..){1,2}|.)\1{7,}", lambda found: f"{found[1]}{{{len(found[0]) // len(found[1])}}}", text)
