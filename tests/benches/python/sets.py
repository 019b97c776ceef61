"""Data sets of `formats.py`: photos in tar shards and in Parquet files, and a large set of tiny samples. Each is made once."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import rmtree

# Number of rows in a row group, as `datasets` writes images.
ROWS = 100
CLASSES = 1000


def made(folder: Path, make: Callable[[Path], None]) -> Path:
    """Makes a folder, unless it is complete."""
    if not folder.exists():
        begun = folder.with_name(f"{folder.name}.part")
        rmtree(begun, ignore_errors=True)
        begun.mkdir(parents=True)
        make(begun)
        begun.rename(folder)
    return folder


def parts(samples: int, count: int) -> Iterator[tuple[int, range]]:
    """Divides samples into parts: the number of each part, and the numbers of its samples."""
    size = samples // count
    return ((part, range(part * size, (part + 1) * size)) for part in range(count))


def contents(photos: Path) -> Callable[[int], bytes]:
    """Returns a function that returns the photo of a sample."""
    read = [path.read_bytes() for path in sorted(photos.rglob("*.jpg"))]
    assert read, f"no photos in {photos}: `make bench-formats` makes some"
    return lambda number: read[number % len(read)]


def tar(photos: Path, samples: int, shards: int, folder: Path) -> None:
    """Shards in WebDataset's convention, with the files `jpg` and `cls`. Each photo is in several samples."""
    photo = contents(photos)
    for part, numbers in parts(samples, shards):
        with tarfile.open(folder / f"train-{part:03}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for number in numbers:
                for name, content in ((f"{number:07}.jpg", photo(number)), (f"{number:07}.cls", b"%d" % (number % CLASSES))):
                    header = tarfile.TarInfo(name)
                    header.size = len(content)
                    archive.addfile(header, io.BytesIO(content))


def parquet(photos: Path, samples: int, files: int, folder: Path) -> None:
    """Files as `datasets` writes them: an image with bytes and path, a label, and columns of numbers."""
    import pyarrow
    import pyarrow.parquet

    photo = contents(photos)
    image = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    for part, numbers in parts(samples, files):
        table = pyarrow.table(
            {
                "image": pyarrow.array([{"bytes": photo(number), "path": f"{number:07}.jpg"} for number in numbers], image),
                "label": pyarrow.array([number % CLASSES for number in numbers], pyarrow.int64()),
                "width": pyarrow.array([200 + number % 7 for number in numbers], pyarrow.int32()),
                "height": pyarrow.array([150 + number % 5 for number in numbers], pyarrow.int32()),
                "score": pyarrow.array([number / 8 for number in numbers], pyarrow.float64()),
            }
        )
        pyarrow.parquet.write_table(table, folder / f"train-{part:05}-of-{files:05}.parquet", row_group_size=ROWS, compression="snappy")


def tiny(samples: int, shards: int, folder: Path) -> None:
    """Shards of tiny samples, with the files `jpg` and `cls`."""
    of_sample = [file("jpg", b"\xff\xd8\xff\xd9"), file("cls", b"7")]
    for part, numbers in parts(samples, shards):
        with (folder / f"train-{part:03}.tar").open("wb", buffering=1 << 20) as archive:
            for number in numbers:
                archive.writelines(content(number) for content in of_sample)
            archive.write(bytes(1024))


def file(field: str, content: bytes) -> Callable[[int], bytes]:
    """Returns a function that returns a file of a sample as an archive contains it. Only name and checksum differ between samples."""
    header = tarfile.TarInfo(f"0000000.{field}")
    header.size = len(content)
    header = header.tobuf(tarfile.USTAR_FORMAT)
    name, mode, rest = header[7:100], header[100:148], header[154:] + content.ljust(512, b"\0")
    others = int(header[148:154], 8) - 7 * ord("0")

    def of(number: int) -> bytes:
        key = b"%07d" % number
        return b"".join((key, name, mode, b"%06o" % (others + sum(key)), rest))

    return of


def numbers_lines(count: int, folder: Path) -> None:
    """Lines of NDJSON with the numbers below `count` as keys. The text of every third one is empty."""
    with (folder / "numbers.ndjson").open("w") as file:
        file.writelines(f'{{"key":"{number}","text":"{"" if number % 3 == 0 else "x"}"}}\n' for number in range(count))


def numbers_parquet(count: int, files: int, folder: Path) -> None:
    """The numbers below `count` in the column `number`."""
    import pyarrow
    import pyarrow.parquet

    for part, numbers in parts(count, files):
        table = pyarrow.table({"number": pyarrow.array(numbers, pyarrow.int64())})
        pyarrow.parquet.write_table(table, folder / f"train-{part:05}-of-{files:05}.parquet", row_group_size=10_000)


def numbers_mds(count: int, shard_bytes: int, folder: Path) -> None:
    """Shards of MosaicML Streaming with the numbers below `count` in the column `number`."""
    from streaming import MDSWriter

    with MDSWriter(out=str(folder), columns={"number": "int64"}, size_limit=shard_bytes) as writer:
        for number in range(count):
            writer.write({"number": number})
