"""States: runs that are stopped, and resumed after their data has changed or not.

A resume with other keys, classes, records or damage has to be refused; with the same data, each sample comes once.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import damaged
import folders
from expect import described
from kit import Variant, collated, main, read_batches
from vary_damage import create_index, pairs


def make(variant: Variant) -> None:
    rng = variant.rng
    form = rng.choice(["list", "list", *damaged.FORMS])
    variant.tags.append(form)
    folder = variant.folder("d")
    source: dict[str, Any] = {"store": "d", "shuffle": rng.random() < 0.5}
    if form == "list":
        names = folders.random_names(rng, 3)
        for name in names:
            for number in range(rng.randint(2, 5)):
                folders.write(folder / "train" / name / f"{number}.jpg", f"{name} {number}")
        source |= {"prefix": "train/", "label": "folder", "suffix": ".jpg"}
        changes = ["add a file", "remove a file", "rename a file", "rename a class", "add an empty class", "add a class", "none", "none", "add a file of another ending"]
        total = sum(path.is_file() for path in folder.rglob("*.jpg"))
        shards = []
    else:
        shards = damaged.make(rng, form, folder, 2, 12)
        total = sum(len(shard.samples) for shard in shards)
        changes = ["swap two records", "swap two records", "remove a record", "add a record", "none", "none", "copy"]
        indexed = form in ("tar", "tfrecord") and source["shuffle"]
        if indexed and not create_index(variant, form, folder):
            return
        if indexed:
            source["index"] = "all.index"
        elif form != "mds":
            source["prefix"] = "s-"
        if form == "csv":
            source["types"] = {"id": "int"}
        if rng.random() < 0.4:
            source["on_damage"] = "skip"
            changes += ["damage", "damage"]
    document = collated({form: source}, rng.choice([1, 2]), stages=[{"sleep": {"mean_ms": 5}}], max_failures=None)
    state = str(variant.place / "state.json")
    first = variant.run(document, {"d": folder}, "--state", state, "--for", f"{rng.choice([0.02, 0.03])}s", out="out")
    if first.is_setting_unknown:
        variant.differ("a setting is unknown", "the settings of the manual", first.errors)
        return
    if first.code != 0:
        variant.differ(f"{form}: refused what is right", 0, first.errors)
        return
    if not first.count("left") or first.count("delivered") >= total:
        variant.tags.append("not stopped on the way")
        return
    change = rng.choice(changes)
    variant.note(f"change: {change}")
    if not apply(variant, change, form, folder, shards):
        return
    variant.tags.append(f"change: {change}")
    document["stages"][0]["sleep"]["mean_ms"] = 0.01
    second = variant.run(document, {"d": folder}, "--state", state, "--resume", state, out="out")
    if second.code == 0 and change in ("none", "copy", "add a file of another ending"):
        samples = read_batches(variant.place / "out" / "b")
        keys = [sample.key for sample in samples]
        if len(keys) != total or len(set(keys)) != total:
            variant.differ(f"{form}: a resume loses or repeats samples", total, f"{len(keys)}, {len(set(keys))} different")
        if shards and set(pairs(samples)) != {pair for shard in shards for pair in shard.samples.items()}:
            variant.differ(f"{form}: a resume changes samples", total, len(keys))
    elif second.code == 0:
        variant.differ(f"{form}: not noticed: {change}{', shuffled' if source['shuffle'] else ''}", "a refusal of the state", described(second))
    elif change in ("none", "add a file of another ending"):
        variant.differ(f"{form}: a state of the same data is refused ({change})", 0, second.errors)


def apply(variant: Variant, change: str, form: str, folder: Path, shards: list[damaged.Shard]) -> bool:
    """Changes the data; false if this is not possible."""
    rng = variant.rng
    files = sorted(path for path in folder.rglob("*.jpg") if path.is_file())
    if change == "add a file":
        folders.write(rng.choice(files).parent / rng.choice(["0a.jpg", "zz.jpg"]), "new")
    elif change == "add a file of another ending":
        folders.write(rng.choice(files).parent / "new.txt", "new")
    elif change == "remove a file":
        rng.choice(files).unlink()
    elif change == "rename a file":
        file = rng.choice(files)
        file.rename(file.with_name("x" + file.name))
    elif change == "rename a class":
        old = rng.choice(files).parent
        old.rename(old.with_name("mmm" + old.name))
    elif change == "add an empty class":
        (folder / "train" / rng.choice(["000", "zzzz"])).mkdir()
    elif change == "add a class":
        folders.write(folder / "train" / rng.choice(["000", "zzzz"]) / "1.jpg", "new")
    elif change == "copy":
        # The same bytes and times under other inodes.
        copy = folder.with_name("copy")
        shutil.copytree(folder, copy)
        shutil.rmtree(folder)
        copy.rename(folder)
        return form not in ("tar", "tfrecord")
    elif change == "damage":
        damaged.spoil(rng, form, folder, rng.choice(shards), ("cut", "empty"))
        return True
    elif change != "none":
        return change_records(variant, change, form, folder, rng.choice(shards))
    return True


def change_records(variant: Variant, change: str, form: str, folder: Path, shard: damaged.Shard) -> bool:
    """Writes one shard anew, with other records."""
    rng = variant.rng
    items = list(shard.samples.items())
    if change == "swap two records" and len(items) > 1:
        first, second = rng.sample(range(len(items)), 2)
        items[first], items[second] = items[second], items[first]
    elif change == "remove a record" and len(items) > 1:
        del items[rng.randrange(len(items))]
    elif change == "add a record":
        items.append((99_999, b"new"))
    else:
        return False
    path = folder / shard.name
    was = path.stat()
    if form == "mds":
        index = json.loads((folder / "index.json").read_text())
        entry, data = damaged.forms.mds_shard(shard.name, {"id": "int", "payload": "bytes"}, [{"id": key, "payload": value} for key, value in items])
        index["shards"] = [entry if old["raw_data"]["basename"] == shard.name else old for old in index["shards"]]
        (folder / "index.json").write_text(json.dumps(index))
        path.write_bytes(data)
    else:
        path.write_bytes(damaged.encode(rng, form, dict(items)))
    if form in ("records", "csv") and rng.random() < 0.5:
        # Lines are digested, so that the time of the file does not matter.
        os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))
        variant.note("the time of the file is kept")
    return True


if __name__ == "__main__":
    main("states", make, 300)
