"""Writes the tar fixtures of the tests with webdataset 1.0, and what webdataset itself reads from them.

  pip install webdataset==1.0.2
  make.py
"""

import gzip
import io
import json
import tarfile
from pathlib import Path

import webdataset as wds

HERE = Path(__file__).parent


def samples(shard):
    for number in range(4):
        key = f"{'a' if number % 2 else 'b/c.d'}/{shard}{number:03}"
        yield {
            "__key__": key,
            "jpg": bytes([number, shard]) * (30 * number),
            "cls": 10 * shard + number,
            "txt": f"text {number} ä",
            "json": {"shard": shard, "list": [1, 2.5, None]},
            "seg.png": b"\x89PNG" + bytes(number),
        }


def main():
    for shard in range(3):
        with wds.TarWriter(str(HERE / f"shard-{shard:02}.tar")) as sink:
            for sample in samples(shard):
                sink.write(sample)
    # What TarWriter does not write: long names, compressed fields, folders, files that belong to no sample, upper case.
    with tarfile.open(HERE / "odd.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        def add(name, content):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))

        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        add("folder/" + "x" * 150 + ".JPG", b"long")
        add("README", b"no sample")
        add("z.json.gz", gzip.compress(b'{"a": 1}', mtime=0))
        add("z.txt", b"plain")
    with tarfile.open(HERE / "pax.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in [("ü/" + "y" * 120 + ".txt", b"pax"), ("ü/" + "y" * 120 + ".cls", b"7")]:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    expected = {}
    for name in ["shard-00", "shard-01", "shard-02", "odd", "pax"]:
        rows = []
        for sample in wds.WebDataset(str(HERE / f"{name}.tar"), shardshuffle=False, empty_check=False):
            fields = {name: list(value) for name, value in sample.items() if not name.startswith("__")}
            rows.append({"key": sample["__key__"], "fields": fields})
        expected[name] = rows
    (HERE / "expected.json").write_text(json.dumps(expected, separators=(",", ":"), ensure_ascii=False) + "\n")


main()
