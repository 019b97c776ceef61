"""Shards of known samples, damage to them, and a strict reading of what is left.

A sample is a whole number and its payload. In each form the payload is a text of ASCII or bytes, so that a flipped byte can be traced.
"""

from __future__ import annotations

import csv
import io
import json
import random
import struct
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import forms

FORMS = ["tar", "tfrecord", "parquet", "mds", "records", "csv"]
ENDS = {"tar": "tar", "tfrecord": "tfrecord", "parquet": "parquet", "mds": "mds", "records": "ndjson", "csv": "csv"}


@dataclass
class Shard:
    """One shard before and after its damage."""

    name: str
    samples: dict[int, bytes]
    data: bytes
    # Kind of the damage; empty without any.
    damage: str = ""
    # Samples that a strict reader finds in what is left, and the fault that it ends with.
    read: list[tuple[int, bytes]] = field(default_factory=list)
    fault: str = ""
    # Samples that a strict reader finds whole before the first fault.
    before: list[tuple[int, bytes]] = field(default_factory=list)
    # Lines or rows that are faults of their own, behind which reading goes on.
    bad_records: int = 0
    # Set if a record has other names or types of values, which is no fault of its own.
    odd: bool = False
    # Set if a shard ends where it may, but without its end mark.
    lacks_end: bool = False


def payload(rng: random.Random, number: int) -> bytes:
    return f"{number}:".encode() + bytes(rng.choice(b"abcdefgh ,\"xyz") for _ in range(rng.choice([0, 3, 20, 200])))


def make(rng: random.Random, form: str, folder: Path, shards: int, most: int = 6, first: int = 0) -> list[Shard]:
    """Writes sound shards."""
    made, number = [], first
    rows: list[dict[int, bytes]] = []
    for _ in range(shards):
        samples = {}
        for _ in range(rng.randint(1, most)):
            samples[number] = payload(rng, number)
            number += 1
        rows.append(samples)
    if form == "mds":
        columns = {"id": "int", "payload": "bytes"}
        paths = forms.write_mds(folder, [(columns, [{"id": key, "payload": data} for key, data in samples.items()]) for samples in rows])
        return [Shard(path.name, samples, path.read_bytes()) for path, samples in zip(paths, rows)]
    for place, samples in enumerate(rows):
        name = f"s-{place}.{ENDS[form]}"
        data = encode(rng, form, samples)
        (folder / name).write_bytes(data)
        made.append(Shard(name, samples, data))
    return made


def encode(rng: random.Random, form: str, samples: dict[int, bytes]) -> bytes:
    """Bytes of one shard."""
    if form == "tar":
        return forms.tar_bytes([(f"k{number:05}", {"id": str(number).encode(), "payload": data}) for number, data in samples.items()],
                               rng.choice([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT]))
    if form == "tfrecord":
        return forms.tfrecord_bytes([forms.example({"id": ("int", [number]), "payload": ("bytes", [data])}) for number, data in samples.items()])
    if form == "records":
        return "".join(json.dumps({"id": number, "payload": data.decode()}) + "\n" for number, data in samples.items()).encode()
    if form == "csv":
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["id", "payload"])
        writer.writerows([number, data.decode()] for number, data in samples.items())
        return out.getvalue().encode()
    out = io.BytesIO()
    table = pa.table({"id": pa.array(samples, pa.int64()), "payload": pa.array(list(samples.values()), pa.binary())})
    pq.write_table(table, out, row_group_size=rng.choice([1, 2, 100]), compression=rng.choice(["none", "snappy", "zstd"]), use_dictionary=rng.random() < 0.5,
                   write_page_checksum=rng.random() < 0.5, store_schema=False)
    return out.getvalue()


def spoil(rng: random.Random, form: str, folder: Path, shard: Shard, kinds: Sequence[str] = ("cut", "cut", "flip", "flip", "flips", "empty", "missing", "zeros", "noise")) -> None:
    """Damages a shard in its folder."""
    shard.damage = rng.choice(kinds)
    path = folder / shard.name
    data = bytearray(shard.data)
    if shard.damage == "missing":
        path.unlink()
        shard.fault = "missing"
        return
    if shard.damage == "cut":
        size = rng.randrange(1, len(data)) if rng.random() < 0.7 or form != "tar" else 512 * rng.randrange(1, len(data) // 512)
        del data[size:]
        shard.damage = f"cut to {size} of {len(shard.data)} bytes"
    elif shard.damage == "empty":
        data.clear()
    elif shard.damage in ("flip", "flips"):
        places = sorted(rng.randrange(len(data)) for _ in range(1 if shard.damage == "flip" else rng.randint(2, 6)))
        for place in places:
            data[place] ^= rng.choice([1, 2, 0x20, 0x80, 0xFF])
        shard.damage = f"flipped at {places} of {len(data)}"
    else:
        first = rng.randrange(len(data))
        size = min(rng.choice([1, 16, 600]), len(data) - first)
        data[first:first + size] = bytes(size) if shard.damage == "zeros" else bytes(rng.randrange(256) for _ in range(size))
        shard.damage = f"{shard.damage} at {first} to {first + size} of {len(data)}"
    if bytes(data) == shard.data:
        shard.damage = ""
    else:
        path.write_bytes(data)


def read(form: str, folder: Path, shards: Sequence[Shard]) -> None:
    """Reads all shards strictly."""
    for shard in shards:
        path = folder / shard.name
        if not path.exists():
            shard.fault = "missing"
            continue
        data = path.read_bytes()
        if not data:
            shard.fault = "0 bytes"
            continue
        {"tar": read_tar, "tfrecord": read_tfrecord, "parquet": read_parquet, "mds": read_mds, "records": read_records, "csv": read_csv}[form](shard, data)


def number_of(text: Any) -> int:
    """A whole number as it is written in these shards."""
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise ValueError("beyond int64")
    return value


def read_tar(shard: Shard, data: bytes) -> None:
    """Members as `tarfile` reads headers; a wrong header or a cut member is a fault."""
    place, groups = 0, {}
    ended = False
    while place < len(data):
        block = data[place:place + 512]
        if len(block) == 512 and not any(block):
            ended = True
            break
        try:
            member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            shard.fault = f"header at {place}: {error}"
            break
        content = data[place + 512:place + 512 + member.size]
        if len(content) < member.size or member.size < 0:
            shard.fault = f"member at {place} is cut"
            break
        place += 512 + (member.size + 511) // 512 * 512
        if member.isfile():
            key, _, name = member.name.partition(".")
            groups.setdefault(key, {})[name.lower()] = content
        if place > len(data):
            shard.fault = "the end of a member is cut"
    shard.lacks_end = not ended and not shard.fault
    groups = list(groups.values())
    for fields in groups:
        try:
            shard.read.append((number_of(fields["id"].decode()), fields["payload"]))
        except (KeyError, ValueError):
            shard.fault = shard.fault or "a sample lacks a file or has no number"
    # The last group may go on behind the fault.
    whole = groups[:-1] if shard.fault or shard.lacks_end else groups
    for fields in whole:
        try:
            shard.before.append((number_of(fields["id"].decode()), fields["payload"]))
        except (KeyError, ValueError):
            break


def read_tfrecord(shard: Shard, data: bytes) -> None:
    """Records with right checksums up to the first fault."""
    place = 0
    while place < len(data):
        head = data[place:place + 12]
        if len(head) < 12 or struct.unpack("<I", head[8:])[0] != forms.masked_crc(head[:8]):
            shard.fault = f"length at {place}"
            break
        (size,) = struct.unpack("<Q", head[:8])
        record, crc = data[place + 12:place + 12 + size], data[place + 12 + size:place + 16 + size]
        if len(crc) < 4 or struct.unpack("<I", crc)[0] != forms.masked_crc(record):
            shard.fault = f"record at {place}"
            break
        place += 16 + size
        # Checksums hold, so this is a record as it was written.
        shard.read.append(next(item for item in shard.samples.items() if forms.example({"id": ("int", [item[0]]), "payload": ("bytes", [item[1]])}) == record))
    shard.before = list(shard.read)


def read_parquet(shard: Shard, data: bytes) -> None:
    """Row groups that pyarrow reads; a fault of one leaves the others."""
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        groups = file.num_row_groups
    except Exception as error:
        shard.fault = f"{type(error).__name__}: {error}"[:120]
        return
    for checked in (True, False):
        for number in range(groups):
            try:
                table = pq.ParquetFile(io.BytesIO(data), page_checksum_verification=checked).read_row_group(number, columns=["id", "payload"])
                rows = [(key, value) for key, value in zip(table["id"].to_pylist(), table["payload"].to_pylist())]
                if checked:
                    shard.before += [row for row in rows if shard.samples.get(row[0]) == row[1]] if not shard.fault else []
                shard.read += rows
            except Exception as error:
                shard.fault = shard.fault or f"{type(error).__name__}: {error}"[:120]


def read_mds(shard: Shard, data: bytes) -> None:
    """Samples by the table of places at the start of the shard."""
    if len(data) != len(shard.data):
        shard.fault = f"{len(data)} bytes instead of {len(shard.data)}"
    if len(data) < 4:
        return
    (count,) = struct.unpack_from("<I", data)
    if count != len(shard.samples):
        shard.fault = shard.fault or "another number of samples"
        count = len(shard.samples)
    if len(data) < 4 + 4 * (count + 1):
        shard.fault = shard.fault or "the table of places is cut"
        return
    places = struct.unpack_from(f"<{count + 1}I", data, 4)
    for first, last in zip(places, places[1:]):
        sample = data[first:last]
        if last < first or last > len(data) or len(sample) < 12:
            shard.fault = shard.fault or "a place of a sample"
            continue
        (size,) = struct.unpack_from("<I", sample)
        if len(sample) != 12 + size:
            shard.fault = shard.fault or "the size of a sample"
            continue
        shard.read.append((struct.unpack_from("<q", sample, 4)[0], sample[12:]))
    if not shard.fault:
        shard.before = list(shard.read)


def read_records(shard: Shard, data: bytes) -> None:
    """Lines that Python's `json` reads; each other line is a fault of its own."""
    for line in data.split(b"\n"):
        if not line.strip(b" \t\r"):
            continue
        try:
            record = json.loads(line.decode("utf-8"), parse_constant=lambda name: 1 / 0)
            if not isinstance(record, dict):
                raise ValueError("no object")
            number, text = record.get("id"), record.get("payload")
            shard.odd |= not isinstance(number, int) or isinstance(number, bool) or not isinstance(text, str)
            shard.read.append((number_of(number) if isinstance(number, int) else -1, text.encode("utf-8", "surrogatepass") if isinstance(text, str) else b"?"))
        except (ValueError, ArithmeticError, RecursionError) as error:
            shard.bad_records += 1
            shard.fault = shard.fault or f"line: {error}"[:100]
    shard.before = [row for row in shard.read if shard.samples.get(row[0]) == row[1]] if not shard.fault or shard.bad_records else []


def read_csv(shard: Shard, data: bytes) -> None:
    """Rows that Python's `csv` reads; each other row is a fault of its own."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = data.decode("utf-8", "surrogateescape")
        shard.fault = "not UTF-8"
    try:
        rows = list(csv.reader(io.StringIO(text, newline="")))
    except csv.Error as error:
        shard.fault = f"csv: {error}"
        rows = list(csv.reader(io.StringIO(text.replace("\0", " "), newline="")))
    if not rows:
        shard.fault = shard.fault or "no header"
        return
    names = rows[0]
    shard.odd = sorted(names) != ["id", "payload"]
    for row in rows[1:]:
        if not row:
            continue
        cells = dict(zip(names, row))
        try:
            if len(row) != len(names):
                raise ValueError("another number of values")
            value = cells.get("payload")
            shard.read.append((number_of(cells["id"]) if "id" in cells else -1, b"?" if value is None else value.encode("utf-8", "surrogateescape")))
        except ValueError as error:
            shard.bad_records += 1
            shard.fault = shard.fault or f"row: {error}"
    whole = shard.read
    try:
        list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        if "end of data" in str(error):
            shard.fault = shard.fault or "a quote without its end"
            whole = shard.read[:-1]
    if not shard.fault.startswith(("not UTF-8", "csv")):
        # Each other row is a fault of its own.
        shard.before = [row for row in whole if shard.samples.get(row[0]) == row[1]]
