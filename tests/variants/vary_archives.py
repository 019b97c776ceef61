"""Archives: tar in all its forms, with names of every length and encoding, sparse files, compression, and indexes whose data was copied or has changed.

References: `tarfile` for the members, and the grouping of webdataset for the samples. Each sample comes once, with its own files and
nothing of another, in order and by an index; a form that is not read is refused by its name. A copied folder keeps its index, and with
an index of other data a run is refused, or delivers what the shards hold now.
"""

from __future__ import annotations

import collections
import gzip
import io
import os
import random
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import webdataset.tariterators
import zstandard

import compressed
from compressed import Packed
from expect import described
from kit import Outcome, Sample, Variant, collated, main
from tars import Entry, fits_form, library_tar, raw_tar, spelled, steady_tar

WHOLE = ("cls", "cls2", "id", "index", "inx")
TEXTS = ("txt", "text", "transcript", "json", "jsn")

# Names of the files of a sample.
SETS = [["jpg", "cls"], ["bin"], ["jpg", "json", "txt"], ["seg.png", "jpg"], ["id", "bin"], ["JPG", "cls"], ["Seg.PNG", "txt"], ["npy", "txt.gz"], ["bin.zst", "cls"]]

KEYS = ["0001", "a/0002", "a/b/0003", "./0004", "./a/0005", "dir.with.dots/0006", "a b/c d", "\u00fc", "\u65e5\u672c/\u8a9e", "\U0001f600", 'quo"te', "back\\slash", "a,b;c",
        "e\u0301", "\u00e9", "A", "-", "x=y", "../up", "a//b", "a/./c", "0" * 30, "tab\there", "Case", "case"]

# Names that are not UTF-8, most of which are equal when each wrong byte is replaced.
RAW = [b"caf\\xe8", b"caf\\x5cxe8", b"caf\xe8", b"caf\xe9", b"caf\xff", b"d/\xe8", b"d/\xe9", b"\x80", b"\x81", b"\xc3",
       b"\xed\xa0\x80", b"\xed\xb0\x80", b"\xf0\x9f\x98", b"caf\xef\xbf\xbd"]

# Names of files that are not UTF-8, one of which is spelled as the sign for a wrong byte.
RAW_SETS = [["\udce8", "\udce9"], ["caf\udce8", "caf\udcff", "caf\ufffd"], ["\udcff.png", "cls"]]

LENGTHS = [98, 99, 100, 101, 102, 154, 155, 156, 157, 200, 254, 255, 256, 257, 258, 300]


@dataclass
class Shard:
    """One shard and the samples that the references find in it."""

    name: str
    packed: Packed
    samples: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    # Reasons for which the shard may be refused.
    may: list[str] = field(default_factory=list)


def long_key(rng: random.Random, length: int, end: int) -> bytes:
    """A key of a path that has a length with the end of its first file, mostly with folders."""
    size = length - end
    letters = rng.choice(["a", "b", "\u00fc"]).encode()
    text = (letters * size)[:size]
    try:
        text.decode()
    except UnicodeDecodeError:
        text = b"c" * size
    text = bytearray(text)
    if letters == "\u00fc".encode():
        return b"n/" + bytes(text[:size - 2]) if size % 2 == 0 else b"n" + bytes(text[:size - 1])
    cuts = set()
    if rng.random() < 0.9 and size > 3:
        cuts = {rng.randint(1, size - 2) for _ in range(rng.choice([1, 2, 5]))}
    if rng.random() < 0.5 and size > 101:
        # The first 100 bytes end with a slash.
        cuts.add(99)
    for place in cuts:
        text[place] = ord("/")
    return bytes(text)


def draw_samples(rng: random.Random, first: int, names: Sequence[str], profile: str) -> list[tuple[bytes, dict[str, bytes]]]:
    """Samples with keys of one profile, and contents that are unique."""
    samples = []
    pool: list[bytes] = []
    if profile == "raw":
        pool = rng.sample(RAW, len(RAW))
    elif profile == "usual":
        pool = [key.encode() for key in rng.sample(KEYS, len(KEYS))]
    last = b""
    for number in range(first, first + rng.choice([1, 2, 4, 7])):
        if profile == "long":
            key = long_key(rng, rng.choice(LENGTHS), len(names[0]) + 1)[:-3] + b"%03d" % number
        else:
            key = pool.pop()
        if key == last:
            continue
        last = key
        here = list(names)
        if len(here) > 1 and rng.random() < 0.1 and names not in RAW_SETS:
            here.remove(rng.choice(here))
        samples.append((key, {name: content(rng, name, number) for name in here}))
    return samples


def content(rng: random.Random, name: str, number: int) -> bytes:
    """Content of a file that fits its name."""
    base = name.lower().removesuffix(".gz").removesuffix(".zst")
    if base in WHOLE:
        return rng.choice([b"%d", b"%d\n", b" %d"]) % number
    data = b"%d:%s:" % (number, base.encode("utf-8", "surrogateescape")) + b"x" * rng.choice([0, 1, 500, 504, 505, 512, 1500])
    if base == "json":
        data = b'{"n": %d, "pad": "%s"}' % (number, data)
    if name.endswith(".gz"):
        return gzip.compress(data)
    if name.endswith(".zst"):
        return zstandard.ZstdCompressor().compress(data)
    return data


def others(rng: random.Random, near: bytes) -> list[Entry]:
    """Members that are no files of samples."""
    return [rng.choice([
        Entry(b"folder/", kind=b"5"),
        Entry(b"folder.with.dot/", kind=b"5"),
        Entry(b"folder/", kind=b"5", size=4096),
        Entry(b"link.jpg", kind=b"2", link=b"0001.jpg"),
        Entry(b"hard.jpg", kind=b"1", link=b"0001.jpg"),
        Entry(b"pipe.jpg", kind=b"6"),
        Entry(b"device.jpg", kind=b"3"),
        Entry(near + b".link", kind=b"2", link=b"x"),
        # A list of the files of a folder, and a label of a volume, as GNU tar writes them.
        Entry(b"folder/", b"Y0001.jpg\0\0", kind=b"D"),
        Entry(b"label.jpg", kind=b"V"),
    ])]


def entries_of(rng: random.Random, samples: Sequence[tuple[bytes, Mapping[str, bytes]]], with_others: bool) -> list[Entry]:
    entries = []
    for key, files in samples:
        if with_others and rng.random() < 0.5:
            entries += others(rng, key)
        for name, data in files.items():
            # A contiguous file is a file.
            entries.append(Entry(key + b"." + name.encode("utf-8", "surrogateescape"), data, b"7" if with_others and rng.random() < 0.05 else b"0"))
    return entries


def plain_value(name: str, data: bytes) -> tuple[str, Any]:
    """A field by the rules of the manual: its name, and its value as a whole number, or as bytes."""
    if name.endswith(".gz"):
        name, data = name.removesuffix(".gz"), gzip.decompress(data)
    elif name.endswith(".zst"):
        name, data = name.removesuffix(".zst"), zstandard.ZstdDecompressor().decompress(data)
    return name, int(data) if name in WHOLE else data


def reference(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    """Samples of a shard, by webdataset."""
    files = webdataset.tariterators.tar_file_iterator(io.BytesIO(data))
    groups = webdataset.tariterators.group_by_keys({**file, "__url__": "s"} for file in files)
    samples = []
    for group in groups:
        fields = dict(plain_value(name, value) for name, value in group.items() if not name.startswith("__"))
        # Penstock leaves out a `./` at the start, which names the same file.
        samples.append((as_text(group["__key__"]).removeprefix("./"), {as_text(name): value for name, value in fields.items()}))
    return samples


def as_text(name: str) -> str:
    """A name in which each byte that is not UTF-8 is `\\xHH`, and a `\\` before such a text is `\\x5c`."""
    escaped = re.sub(r"\\(?=x[0-9a-fA-F]{2})", lambda _: r"\x5c", name)
    return escaped.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def sparse_tar(variant: Variant, number: int, first: int) -> bytes | None:
    """An archive with files that have holes, by GNU tar; `None` without the command."""
    rng = variant.rng
    if not shutil.which("tar"):
        return None
    place = variant.folder(f"files-{number}")
    names = []
    for sample in range(first, first + rng.choice([1, 2, 3])):
        path = place / f"{sample:04}.bin"
        if rng.random() < 0.8:
            with path.open("wb") as file:
                end = 0
                # Many parts need headers of their own in the older forms.
                for part in range(rng.choice([0, 1, 2, 3, 4, 5, 6, 30])):
                    end += rng.choice([1, 2, 5]) * 4096
                    file.seek(end)
                    data = b"%d/%d:" % (sample, part) + b"y" * rng.choice([0, 10, 700, 4096])
                    file.write(data)
                    end += len(data)
                file.truncate(end + rng.choice([0, 1, 511, 8192, 100_000]) + 1)
        else:
            path.write_bytes(b"%d:whole" % sample)
        names.append(path.name)
        if rng.random() < 0.7:
            (place / f"{sample:04}.cls").write_text(str(sample))
            names.append(f"{sample:04}.cls")
    form = rng.choice([["--format=pax", "--sparse-version=0.0"], ["--format=pax", "--sparse-version=0.1"], ["--format=pax", "--sparse-version=1.0"], ["--format=gnu"],
                       ["--format=oldgnu"]])
    archive = variant.place / f"sparse-{number}.tar"
    command = ["tar", *form, "-S", *rng.choice([[], ["--hole-detection=raw"], ["--hole-detection=seek"]]), "-cf", str(archive), *names]
    subprocess.run(command, cwd=place, check=True)
    variant.note(" ".join(command[:-len(names)]) + " " + " ".join(f"{name} ({(place / name).stat().st_size} bytes)" for name in names))
    variant.tags.append(" ".join(form[-1:]).removeprefix("--"))
    return archive.read_bytes()


def write_shard(variant: Variant, number: int, first: int, names: Sequence[str], kind: str) -> Shard | None:
    """One shard with its samples."""
    rng = variant.rng
    if kind == "sparse":
        data = sparse_tar(variant, number, first)
        if data is None:
            return None
    else:
        samples = draw_samples(rng, first, names, kind if kind in ("long", "raw") else "usual")
        entries = entries_of(rng, samples, rng.random() < 0.5)
        fits = [form for form in ("v7", "ustar", "gnu", "pax") if all(fits_form(form, entry) for entry in entries)]
        form = rng.choice(fits)
        library = form != "v7" and rng.random() < 0.4
        data = library_tar(form, entries) if library else raw_tar(rng, form, entries)
        members = ", ".join(f"{spelled(entry.name)} {entry.kind.decode()} {entry.size or len(entry.data)}" for entry in entries)
        variant.note(f"shard {number}: {form}{' by tarfile' if library else ''}: {members}")
        variant.tags.append(form)
    shard = Shard(f"s-{number}.tar", Packed("plain", "", data))
    shard.samples = reference(data)
    if kind != "sparse" and len(shard.samples) != len(samples):
        raise AssertionError(f"the reference finds {len(shard.samples)} of {len(samples)} samples")
    return shard


def compress_shard(variant: Variant, shard: Shard, kind: str) -> None:
    rng = variant.rng
    shard.packed = compressed.pack(rng, kind, shard.packed.data)
    end = compressed.ENDS[kind]
    if rng.random() < 0.25:
        # A name of another compression, or of none.
        end = rng.choice(list(compressed.ENDS.values()))
    if end == ".gz" and rng.random() < 0.3:
        shard.name = shard.name.removesuffix(".tar") + ".tgz"
    else:
        shard.name += end
    if kind != "plain" and rng.random() < 0.12:
        compressed.spoil(rng, shard.packed)
    variant.note(f"{shard.name}: {kind}, {shard.packed.form}, {len(shard.packed.data)} bytes{', ' + shard.packed.damage if shard.packed.damage else ''}")


def make(variant: Variant) -> None:
    rng = variant.rng
    kind = rng.choice(["usual", "usual", "long", "long", "raw", "sparse", "compressed", "compressed", "index", "index", "index", "repeated", "joined"])
    variant.tags.append(kind)
    if kind == "index":
        return make_index_variant(variant)
    if kind == "repeated":
        return make_repeated(variant)
    if kind == "joined":
        return make_joined(variant)
    names = rng.choice(RAW_SETS if kind == "raw" and rng.random() < 0.2 else SETS)
    shards: list[Shard] = []
    first = 0
    profile = kind if kind != "compressed" else rng.choice(["usual", "usual", "long"])
    for number in range(rng.choice([1, 1, 2])):
        shard = write_shard(variant, number, first, names, profile)
        if shard is None:
            return
        first += 100
        shards.append(shard)
    if kind == "compressed":
        one = compressed.draw_kind(rng)
        for shard in shards:
            compress_shard(variant, shard, one if rng.random() < 0.7 else compressed.draw_kind(rng))
    folder = variant.folder("d")
    for shard in shards:
        (folder / shard.name).write_bytes(shard.packed.data)
    read_in_order(variant, folder, shards, kind)
    if kind != "compressed" or rng.random() < 0.3:
        read_by_index(variant, folder, shards, kind, rng.random() < 0.5)


def fields_of(shards: Sequence[Shard]) -> dict[str, str]:
    """`mask` for each field that only some samples have."""
    samples = [fields for shard in shards for _, fields in shard.samples]
    names = {name for fields in samples for name in fields}
    return {name: "mask" for name in sorted(names) if any(name not in fields for fields in samples)}


def source_of(variant: Variant, shards: Sequence[Shard], by_name: bool) -> dict[str, Any]:
    """Settings that name all shards."""
    rng = variant.rng
    source: dict[str, Any] = {"store": "d"}
    if all(shard.name.endswith((".tar", ".tar.gz", ".tgz", ".tar.zst")) for shard in shards) and not by_name and rng.random() < 0.5:
        source["prefix"] = "s-"
    elif len(shards) == 1:
        source["shards"] = shards[0].name
    else:
        ends = [shard.name.removeprefix(f"s-{number}") for number, shard in enumerate(shards)]
        source["shards"] = f"s-{{0..{len(shards) - 1}}}{ends[0]}" if len(set(ends)) == 1 else [shard.name for shard in shards]
    missing = fields_of(shards)
    if missing:
        source["missing"] = missing
    return source


def read_in_order(variant: Variant, folder: Path, shards: list[Shard], kind: str, by_name: bool = False) -> None:
    source = source_of(variant, shards, by_name)
    if isinstance(source.get("shards"), list):
        # Names that one pattern does not hold are read one by one.
        for shard in shards:
            read_in_order(variant, folder, [shard], kind, True)
        return
    # One sample in each batch keeps the keys of all apart.
    outcome = variant.run(collated({"tar": source}, variant.rng.choice([1, 1, 3])), {"d": folder})
    compare(variant, outcome, shards, f"{kind}, in order", True, bool(source.get("missing")))


def read_by_index(variant: Variant, folder: Path, shards: list[Shard], kind: str, shuffle: bool) -> None:
    suffixes = {shard.name.removeprefix(f"s-{number}") for number, shard in enumerate(shards)}
    flags = [] if suffixes == {".tar"} else ["--suffix", next(iter(suffixes))]
    if len(suffixes) > 1:
        return
    code, words = create_index(variant, folder, *flags)
    if code == 0:
        source: dict[str, Any] = {"store": "d", "index": "train.index", "shuffle": shuffle}
        missing = fields_of(shards)
        if missing:
            source["missing"] = missing
        outcome = variant.run(collated({"tar": source}, variant.rng.choice([1, 1, 3])), {"d": folder})
        compare(variant, outcome, shards, f"{kind}, index{', shuffled' if shuffle else ''}", not shuffle, bool(missing), True)
    else:
        compare(variant, Outcome(code, {}, words), shards, f"{kind}, making an index", True, False, True)


def create_index(variant: Variant, folder: Path, *flags: str) -> tuple[int, str]:
    """Makes an index in the folder: its exit code and message."""
    command = [str(variant.options.penstock), "index", "create", "--tar", "--store", f"d={folder}", "--upload", "train.index", *flags]
    made = subprocess.run(command, capture_output=True)
    words = made.stderr.decode("utf-8", "replace")
    variant.note(f"index create {' '.join(flags)} -> {made.returncode}: {words[:200].strip()}")
    return made.returncode, words


def found_fields(sample: Sample, masked: bool) -> dict[str, Any]:
    """Fields that a sample really has."""
    fields = {}
    for name, value in sample.fields.items():
        if masked and name.endswith(".present") and name.removesuffix(".present") in sample.fields:
            continue
        present = sample.fields.get(f"{name}.present")
        if masked and present is not None and not bool(present):
            continue
        fields[name] = value if isinstance(value, bytes) else int(value) if getattr(value, "ndim", 1) == 0 else np.asarray(value).tolist()
    return fields


def frozen(fields: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Fields that can be compared and counted."""
    return tuple(sorted((name, value if isinstance(value, (bytes, int)) else repr(value)) for name, value in fields.items()))


def brief(fields: Any) -> str:
    return ", ".join(f"{name}={value[:24]!r} ({len(value)})" if isinstance(value, bytes) else f"{name}={value}" for name, value in fields)


def compare(variant: Variant, outcome: Outcome, shards: Sequence[Shard], label: str, ordered: bool, masked: bool, indexed: bool = False) -> None:
    """Compares what came with the samples of the references."""
    if outcome.code == -9:
        return
    if outcome.is_setting_unknown:
        variant.differ("a setting is unknown", "the settings of the manual", outcome.errors)
        return
    wanted = [(key, frozen(fields)) for shard in shards for key, fields in shard.samples]
    found = [(sample.key, frozen(found_fields(sample, masked))) for sample in outcome.samples]
    refused = [shard for shard in shards if shard.packed.kind in compressed.REFUSED]
    damaged = [shard for shard in shards if shard.packed.damage]
    packed = [shard for shard in shards if shard.packed.kind != "plain"]
    words = outcome.words
    if outcome.code != 0:
        variant.tags.append("refused")
        if refused:
            if not any(compressed.is_named(shard.packed.kind, words) for shard in refused):
                variant.differ(f"{label}: a refused compression is not named", [shard.packed.kind for shard in refused], words)
        elif damaged or any(shard.may for shard in shards):
            pass
        elif packed and indexed:
            if not any(shard.packed.kind in words.lower() for shard in packed):
                variant.differ(f"{label}: a compression without an index is not named", [shard.packed.kind for shard in packed], words)
        elif "sparse" in label and "sparse" in words.lower():
            variant.tags.append("sparse files refused by name")
        else:
            variant.differ(f"{label}: refused what is right", f"{len(wanted)} samples", words)
        return
    variant.tags.append("delivered")
    for reason, these in (("a compression that is not read", refused), ("damage", damaged)):
        if these:
            variant.differ(f"{label}: {reason} passes", f"an end with exit code 1 for {these[0].name}: {these[0].packed.kind} {these[0].packed.damage}", described(outcome))
            return
    wrong = collections.Counter(fields for _, fields in found) - collections.Counter(fields for _, fields in wanted)
    lacking = collections.Counter(fields for _, fields in wanted) - collections.Counter(fields for _, fields in found)
    if wrong:
        variant.differ(f"{label}: a wrong sample", f"{len(wanted)} samples, such as {brief(next(iter(lacking), ()))}", f"{len(found)} samples, such as {brief(next(iter(wrong)))}")
    elif lacking:
        variant.differ(f"{label}: a sample is lost", brief(next(iter(lacking))), f"{len(found)} of {len(wanted)} samples; {described(outcome)}; {words}")
    elif ordered and [fields for _, fields in found] != [fields for _, fields in wanted]:
        variant.differ(f"{label}: order", [key for key, _ in wanted], [key for key, _ in found])
    else:
        compare_keys(variant, label, wanted, found)


def compare_keys(variant: Variant, label: str, wanted: list[tuple[str, Any]], found: list[tuple[str, Any]]) -> None:
    """Compares the key of each sample whose fields tell which it is."""
    keys: dict[Any, list[str]] = {}
    for key, fields in wanted:
        keys.setdefault(fields, []).append(key)
    for name, fields in found:
        if name not in keys[fields]:
            variant.differ(f"{label}: another key", keys[fields], name)
            return


def make_repeated(variant: Variant) -> None:
    """One key twice: neighbours with the same file are a fault or stay apart, others are two samples."""
    rng = variant.rng
    names = rng.choice([["jpg", "cls"], ["bin"], ["txt", "json"]])
    key = rng.choice([b"0001", b"a/b", "\u00fc".encode()])
    between = rng.random() < 0.6
    entries = entries_of(rng, [(key, {name: content(rng, name, 1) for name in names})], False)
    if between:
        entries += entries_of(rng, [(b"between", {name: content(rng, name, 2) for name in names})], False)
    elif rng.random() < 0.5:
        # The same name in other letters is the same field.
        names = [name.upper() for name in names]
    entries += entries_of(rng, [(key, {name: content(rng, name, 3) for name in names})], False)
    data = raw_tar(rng, rng.choice(["ustar", "gnu", "pax"]), entries)
    variant.note("entries: " + ", ".join(f"{entry.name!r} {entry.data[:8]!r}" for entry in entries))
    shard = Shard("s-0.tar", Packed("plain", "", data))
    folder = variant.folder("d")
    (folder / shard.name).write_bytes(data)
    if between:
        shard.samples = reference(data)
        read_in_order(variant, folder, [shard], "repeated, apart")
        read_by_index(variant, folder, [shard], "repeated, apart", rng.random() < 0.5)
        return
    # webdataset raises an error. Two whole samples are right, too; one that lacks or mixes files is not.
    apart = [frozen(dict(plain_value(name.lower(), content_of(entries, name, number)) for name in names)) for number in (1, 3)]
    outcome = variant.run(collated({"tar": {"store": "d", "shards": shard.name}}), {"d": folder})
    found = [frozen(found_fields(sample, False)) for sample in outcome.samples]
    variant.tags.append("repeated: refused" if outcome.code or outcome.failed else "repeated: delivered")
    if outcome.code == 0 and not outcome.failed and found != apart:
        variant.differ("repeated, neighbours: files are lost or mixed", "a fault, or two samples", f"{len(found)} samples: {[brief(fields) for fields in found]}")


def make_joined(variant: Variant) -> None:
    """Two archives in one file: what stands behind the first end mark is not read, and warned of."""
    rng = variant.rng
    names = rng.choice([["jpg", "cls"], ["bin"]])
    parts = [raw_tar(rng, rng.choice(["ustar", "gnu", "pax"]), entries_of(rng, draw_samples(rng, number, names, "usual"), False)) for number in (0, 100)]
    data = parts[0] + parts[1]
    try:
        joined = parts[0].rstrip(b"\0")
        joined += bytes(-len(joined) % 512) + parts[1]
        further, samples = reference(joined), reference(data)
    except ValueError:
        # One key stands at the end of the first and at the start of the second.
        return
    if rng.random() < 0.4:
        # Without its end mark, the first archive goes on in the second.
        data, samples = joined, further
    shard = Shard("s-0.tar", compressed.pack(rng, rng.choice(["plain", "plain", "gzip", "zstd"]), data), samples)
    variant.note(f"two archives, {len(parts[0])} and {len(parts[1])} bytes, {len(data)} together, {shard.packed.kind}; {len(samples)} samples before the end mark")
    folder = variant.folder("d")
    (folder / shard.name).write_bytes(shard.packed.data)
    source: dict[str, Any] = {"store": "d", "shards": shard.name}
    missing = fields_of([shard])
    if missing:
        source["missing"] = missing
    outcome = variant.run(collated({"tar": source}), {"d": folder})
    compare(variant, outcome, [shard], "joined, in order", True, bool(missing))
    if outcome.code == 0 and len(data) == len(parts[0]) + len(parts[1]) and shard.name not in outcome.words:
        variant.differ("joined: data behind an end mark pass without a word", f"a warning that names {shard.name}", outcome.words or "no words")


def content_of(entries: Sequence[Entry], name: str, number: int) -> bytes:
    """Content of a file of the first or the last sample."""
    fitting = [entry for entry in entries if entry.name.lower().endswith(b"." + name.lower().encode())]
    return (fitting[0] if number == 1 else fitting[-1]).data


def make_index_variant(variant: Variant) -> None:
    """An index whose folder was copied, or whose shards have changed."""
    rng = variant.rng
    names = rng.choice([["jpg", "cls"], ["bin"], ["txt", "json"]])
    form = rng.choice(["ustar", "gnu", "pax", "pax"])
    folder = variant.folder("one")
    written: list[list[Entry]] = []
    for number in range(rng.choice([1, 2, 2, 3])):
        start = rng.choice([b"k", b"long/" * 30]) if form != "ustar" else b"k"
        count = rng.choice([2, 3, 6, 40])
        samples = [(b"%s%03d" % (start, place), {name: content(rng, name, place) for name in names}) for place in range(number * 100, number * 100 + count)]
        written.append(entries_of(rng, samples, False))
        (folder / f"s-{number}.tar").write_bytes(steady_tar(form, written[-1]))
    code, words = create_index(variant, folder)
    if code:
        variant.differ("index: sound shards are refused", 0, words)
        return
    if rng.random() < 0.5:
        way = rng.choice(["cp -a", "cp -r", "rsync", "touch", "moved", "written anew"])
        other = copied(rng, folder, way, variant.place / "two")
        variant.note(f"copied by {way}")
        variant.tags.append(way)
        shards = [Shard(f"s-{number}.tar", Packed("plain", "", (other / f"s-{number}.tar").read_bytes())) for number in range(len(written))]
        for shard in shards:
            shard.samples = reference(shard.packed.data)
        shuffle = rng.random() < 0.5
        outcome = variant.run(collated({"tar": {"store": "d", "index": "train.index", "shuffle": shuffle}}, rng.choice([1, 4])), {"d": other})
        compare(variant, outcome, shards, f"index, {way}", not shuffle, False)
        return
    changed(variant, folder, form, written, names)


def copied(rng: random.Random, folder: Path, way: str, other: Path) -> Path:
    """A true copy of a folder, with the times and places that a way of copying leaves."""
    if way in ("cp -a", "cp -r"):
        subprocess.run([*way.split(), str(folder), str(other)], check=True)
        return other
    if way == "moved":
        folder.rename(other)
        return other
    if way == "touch":
        for path in folder.iterdir():
            os.utime(path, (1_600_000_000 + rng.randint(0, 10**8), 1_600_000_000 + rng.randint(0, 10**8)))
        return folder
    if way == "written anew":
        for path in folder.glob("*.tar"):
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
        return folder
    other.mkdir()
    for path in sorted(folder.iterdir()):
        shutil.copyfile(path, other / path.name)
        # Whole seconds, as file systems without finer times keep them.
        seconds = int(path.stat().st_mtime)
        os.utime(other / path.name, (seconds, seconds))
    return other


CHANGES = ["swapped members", "another size", "a member more", "a member less", "another order of the same sizes", "another name of the same length", "other contents",
           "other times in headers", "shards swapped", "another form", "zeros before", "a shard of another set", "cut", "missing"]


def samples_of(entries: Sequence[Entry], count: int) -> list[tuple[tuple[str, Any], ...]]:
    """Fields of samples that have `count` files each."""
    groups = [entries[first:first + count] for first in range(0, len(entries), count)]
    return [frozen(dict(plain_value(entry.name.rpartition(b".")[2].decode(), entry.data) for entry in group)) for group in groups]


def changed(variant: Variant, folder: Path, form: str, written: list[list[Entry]], names: Sequence[str]) -> None:
    """Changes a shard behind its index. The run is refused, or each sample is one that the shards hold now."""
    rng = variant.rng
    change = rng.choice(CHANGES)
    kept = rng.random() < 0.3
    place = rng.randrange(len(written))
    path = folder / f"s-{place}.tar"
    was = path.stat()
    entries = [Entry(entry.name, entry.data) for entry in written[place]]
    data = None
    if change == "swapped members":
        first, last = 0, len(entries) - len(names)
        entries[first], entries[last] = entries[last], entries[first]
    elif change == "another size":
        entries[0].data += b"more" if not entries[0].data.strip().isdigit() else b"\n"
    elif change == "a member more":
        entries = entries_of(rng, [(b"aaa", {name: content(rng, name, 99) for name in names})], False) + entries
    elif change == "a member less":
        del entries[:len(names)]
    elif change == "another order of the same sizes":
        # Contents of equal sizes change places: the headers stay as they are.
        for entry in entries:
            other = next((other for other in entries if other is not entry and len(other.data) == len(entry.data) and other.data != entry.data), None)
            if other:
                entry.data, other.data = other.data, entry.data
                break
    elif change == "another name of the same length":
        entries[0].name = b"X" + entries[0].name[1:]
        for entry in entries[1:len(names)]:
            entry.name = b"X" + entry.name[1:]
    elif change == "other contents":
        for entry in entries:
            entry.data = entry.data.replace(b"x", b"z").replace(b"1", b"2")
    elif change == "another form":
        # A header of ustar does not hold the long names of the others.
        form = rng.choice([word for word in ("gnu", "pax") if word != form])
    elif change == "shards swapped" and len(written) > 1:
        other = folder / f"s-{(place + 1) % len(written)}.tar"
        data = other.read_bytes()
        other.write_bytes(path.read_bytes())
    elif change == "zeros before":
        data = bytes(512) + path.read_bytes()
    elif change == "a shard of another set":
        entries = entries_of(rng, [(b"other%02d" % number, {name: content(rng, name, 500 + number) for name in names}) for number in range(3)], False)
    elif change == "cut":
        data = path.read_bytes()
        data = data[:rng.randrange(1, len(data) - 1024)]
    times = 1_700_000_001 if change == "other times in headers" else 1_700_000_000
    if change == "missing":
        path.unlink()
    else:
        path.write_bytes(steady_tar(form, entries, times) if data is None else data)
        if kept:
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
            variant.note("the time of the file is kept")
    variant.note(f"change of s-{place}.tar: {change}")
    variant.tags.append(f"change: {change}")
    now: list[tuple[tuple[str, Any], ...]] = []
    for number in range(len(written)):
        file = folder / f"s-{number}.tar"
        if file.exists():
            try:
                now += [frozen(fields) for _, fields in reference(file.read_bytes())]
            except (tarfile.TarError, EOFError):
                now += samples_of(entries, len(names))
    skip = rng.random() < 0.25
    shuffle = rng.random() < 0.5
    source: dict[str, Any] = {"store": "d", "index": "train.index", "shuffle": shuffle}
    if skip:
        source["on_damage"] = "skip"
    outcome = variant.run(collated({"tar": source}, rng.choice([1, 4]), max_failures=None), {"d": folder})
    if outcome.code == -9:
        return
    label = f"stale index, {change}{', time and inode kept' if kept else ''}{', skip' if skip else ''}"
    found = [frozen(found_fields(sample, False)) for sample in outcome.samples]
    before = [fields for group in written for fields in samples_of(group, len(names))]
    wrong = [fields for fields in found if fields not in now]
    if wrong and not (outcome.code != 0 and all(fields in before for fields in wrong)):
        variant.differ(f"{label}: a wrong sample", "a sample that the shards hold now", brief(wrong[0]))
    elif outcome.code == 0 and not skip and collections.Counter(found) != collections.Counter(now):
        variant.differ(f"{label}: passes with other samples", f"{len(now)} samples, or a refusal", described(outcome))
    elif outcome.code == 0 and skip and len(found) < len(now) and not outcome.words.strip() and not outcome.failed:
        variant.differ(f"{label}: samples are lost without a word", len(now), described(outcome))
    elif outcome.code != 0 and not skip and change not in ("missing",) and "changed" not in outcome.words:
        variant.differ(f"{label}: the message does not say that the shard has changed", "has changed since `train.index` was made: make it again", outcome.words)
    elif outcome.code != 0 and not skip and change not in ("missing",) and "train.index" not in outcome.words:
        variant.differ("stale index: the message does not name the index", "has changed since `train.index` was made: make it again", outcome.words)
    variant.tags.append("refused" if outcome.code else "delivered")


if __name__ == "__main__":
    main("archives", make)
