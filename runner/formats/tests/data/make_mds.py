"""Writes the MDS fixtures of the tests with mosaicml-streaming, and what mosaicml-streaming itself reads from them.

  pip install mosaicml-streaming==0.13.0
  make_mds.py
"""

import json
import shutil
import tempfile
from decimal import Decimal
from pathlib import Path

import numpy as np
from PIL import Image
from streaming import MDSWriter
from streaming.base.compression import decompress
from streaming.base.format import reader_from_json
from streaming.base.format.mds.encodings import mds_encode

HERE = Path(__file__).parent / "mds"
COLUMNS = {
    "id": "str",
    "image": "bytes",
    "photo": "jpeg",
    "drawing": "png",
    "label": "int",
    "meta": "json",
    "tiny": "int8",
    "small": "int16",
    "medium": "int32",
    "large": "int64",
    "utiny": "uint8",
    "usmall": "uint16",
    "umedium": "uint32",
    "ularge": "uint64",
    "half": "float16",
    "single": "float32",
    "double": "float64",
    "digits": "str_int",
    "fraction": "str_float",
    "price": "str_decimal",
    "any": "ndarray",
    "typed": "ndarray:int16",
    "fixed": "ndarray:float32:2,3",
}
PLAIN = {"id": "str", "label": "int", "image": "bytes"}


LISTS = {"id": "str", "photos": "list[jpeg]", "drawings": "list[png]", "frames": "jpeg_array", "more": "jpegarray"}


def sample(number):
    image = Image.new("RGB", (3 + number, 2), (10 * number, 0, 255))
    return {
        "id": f"sample {number} ä",
        "image": bytes([number]) * (100 * number),
        "photo": image,
        "drawing": image,
        "label": -number,
        "meta": {"number": number, "list": [1.5, None, "ß"]},
        "tiny": -number,
        "small": -300 * number,
        "medium": -70000 * number,
        "large": -(2**40) * number,
        "utiny": 250 + number,
        "usmall": 60000 + number,
        "umedium": 2**32 - 1 - number,
        "ularge": 2**62 + number,
        "half": -number / 3,
        "single": number / 3,
        "double": number / 3,
        "digits": -(10**15) * number,
        "fraction": number / 7,
        "price": Decimal(f"{number}.10"),
        "any": np.arange(6, dtype=["uint8", "int64", "float16", "float64"][number % 4]).reshape(3, 2),
        "typed": np.full((300, number + 1), -number, dtype=np.int16),
        "fixed": np.arange(6, dtype=np.float32).reshape(2, 3) / (number + 1),
    }


def lists(number):
    """Lists of 1, 3 and no images; the library reads no array without one."""
    photos = [Image.new("RGB", (2 + n, 2), (100 * n, 0, 255)) for n in range([1, 3, 0][number])]
    return {
        "id": f"list {number}",
        "photos": photos,
        "drawings": photos[:1] * (2 * number),
        "frames": [mds_encode("jpeg", Image.new("RGB", (4, 2 + n))) for n in range(3 - number)],
        "more": [mds_encode("jpeg", Image.new("RGB", (4, 2 + number)))],
    }


def write(name, columns, samples, **settings):
    shutil.rmtree(HERE / name, ignore_errors=True)
    with MDSWriter(out=str(HERE / name), columns=columns, **settings) as out:
        for row in samples:
            out.write({column: row[column] for column in columns})


def value(encoding, found):
    if encoding in ("jpeg", "png"):
        return {"blob": list(found.fp.getvalue())}
    if encoding in LISTS.values() and isinstance(found, list):
        return [image.fp.getvalue() for image in found]
    if encoding == "json":
        return {"json": found}
    if encoding.startswith("ndarray"):
        return {"tensor": [found.dtype.name, list(found.shape), list(found.tobytes())]}
    if isinstance(found, bytes):
        return {"blob": list(found)}
    if isinstance(found, (str, Decimal)):
        return {"text": str(found)}
    if isinstance(found, (float, np.floating)):
        return {"real": float(found)}
    return {"int": int(found)}


def read(name):
    """What the library reads, of whole shards: it reads compressed ones only from a copy."""
    rows = []
    with tempfile.TemporaryDirectory() as copy:
        for shard in json.loads((HERE / name / "index.json").read_text())["shards"]:
            raw, packed = shard["raw_data"]["basename"], shard["zip_data"]
            source = (HERE / name / (packed or shard["raw_data"])["basename"]).read_bytes()
            (Path(copy) / raw).write_bytes(decompress(shard["compression"], source))
            reader = reader_from_json(copy, "", shard)
            encodings = dict(zip(shard["column_names"], shard["column_encodings"]))
            for number in range(shard["samples"]):
                row = reader[number]
                fields = {}
                for column in row:
                    found = value(encodings[column], row[column])
                    if isinstance(found, list):
                        fields[column] = {"blob": list(b"".join(found))}
                        starts = np.cumsum([0, *map(len, found)], dtype="int64")
                        column, found = f"{column}.offsets", {"tensor": ["int64", [len(starts)], list(starts.tobytes())]}
                    fields[column] = found
                rows.append({"key": f"{name}/{raw}#{number}", "fields": fields})
    return rows


def main():
    HERE.mkdir(exist_ok=True)
    write("all", COLUMNS, map(sample, range(4)))
    write("plain", PLAIN, map(sample, range(12)), size_limit=1500)
    write("zstd", PLAIN, map(sample, range(12)), size_limit=2500, compression="zstd:7", hashes=["sha1", "xxh64"])
    write("gz", PLAIN, map(sample, range(6)), size_limit=1500, compression="gz", hashes=["sha256"])
    write("br", PLAIN, map(sample, range(6)), size_limit=1500, compression="br:11", hashes=["sha1"])
    write("bz2", PLAIN, map(sample, range(6)), size_limit=1500, compression="bz2:9")
    write("snappy", PLAIN, map(sample, range(6)), size_limit=1500, compression="snappy")
    write("lists", LISTS, map(lists, range(3)))
    write("pickled", {"id": "str", "object": "pkl"}, [{"id": "a", "object": {1, 2}}])
    expected = {name: read(name) for name in ["all", "plain", "zstd", "gz", "br", "bz2", "snappy", "lists"]}
    (HERE / "expected.json").write_text(json.dumps(expected, separators=(",", ":"), ensure_ascii=False) + "\n")


main()
