"""Measures the rate at which photos become batches, on two threads: Penstock, a thread pool with Pillow, and Grain's threads with Pillow.

    python tests/benches/python/photos.py --photos demo/photos
    python tests/benches/python/photos.py --photos demo/photos --training --must 1.5
    python tests/benches/python/photos.py --photos demo/large --draft --only penstock "threads + Pillow" --must 1.5 --aim 2.5

Each candidate reads the same JPEGs from a folder, decodes them, resizes them to 224 x 224 (bilinear, the whole picture), converts them to
normalised float32, channels first, and stacks 32 of them; the loop discards the batches. With `--draft`, all candidates decode large photos at
1/2, 1/4 or 1/8 of their size. With `--training`, they crop and flip at random instead, as ImageNet's usual training does, and the candidates are those
of TRAINING: torchvision's transforms on Pillow's images and on its own tensors, in threads, in the workers of PyTorch's DataLoader and in Grain, and SPDL
with FFmpeg's filters. Each measurement is a separate process, in turns: a
first pass that is not counted, in which modules are compiled, then passes that are. CPU time is that of the whole process in these passes,
including the children it has waited for, from `getrusage`.
"""

from __future__ import annotations

import argparse
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy
from turns import Measured, measured, tell, timed

SIZE, BATCH, THREADS = 224, 32, 2
# Number of photos that a pool processes or keeps ready at a time.
AHEAD = 2 * BATCH

# (pixel / 255 - mean) / deviation, as one product and one sum, with the figures of ImageNet.
MEAN, DEVIATION = numpy.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], numpy.float32)
FACTOR, SHIFT = (1 / (255 * DEVIATION)).reshape(3, 1, 1), (-MEAN / DEVIATION).reshape(3, 1, 1)


def main() -> None:
    arguments = parsed()
    if arguments.one:
        print(json.dumps(vars(one(arguments))))
        return
    found, missing = measured(arguments.only, arguments.turns)
    job = "random crops" if arguments.training else "draft on" if arguments.draft else "draft off"
    print(f"{THREADS} threads, batches of {BATCH}, {SIZE} x {SIZE}, {job}; medians of {arguments.turns}\n")
    tell(found, missing, "images", "{:.4f}".format, arguments.must, arguments.aim)
    print("\n`speed` and `CPU`: relative to Penstock. `check`: mean of all numbers, to check that all candidates compute the same")


def one(arguments: argparse.Namespace) -> Measured:
    """Makes one measurement in this process."""
    return timed(PEERS[arguments.one](arguments), arguments.passes, seen, len)


def seen(batches: Iterable[numpy.ndarray]) -> tuple[int, float]:
    """Number of images, and mean of their numbers."""
    images, total = 0, 0.0
    for batch in batches:
        assert batch.shape[1:] == (3, SIZE, SIZE) and batch.dtype == numpy.float32, (batch.shape, batch.dtype)
        images += len(batch)
        total += float(batch.mean()) * len(batch)
    return images, total / images


def penstock(arguments: argparse.Namespace) -> Iterator[Iterator[numpy.ndarray]]:
    import penstock

    view = [{"RandomResizedCrop": {"size": SIZE}}, {"RandomHorizontalFlip": {}}] if arguments.training else [{"Resize": {"size": [SIZE, SIZE]}}]
    ops = [
        *view,
        {"ToDtype": {"dtype": "float32", "scale": True}},
        {"Normalize": {"mean": MEAN.tolist(), "std": DEVIATION.tolist()}},
    ]
    params = {"ops": ops, "draft": arguments.draft}
    document: dict[str, Any] = {
        "name": "photos",
        "threads": THREADS,
        "source": {"list": {"store": "photos", "suffix": ".jpg", "shuffle": True}},
        "stages": [
            {"fetch": {"concurrency": 4}},
            {"wasm": {"module": "std/image", "params": params, "concurrency": THREADS}},
            {"aggregate": {"size": BATCH}},
            {"collate": {}},
        ],
    }
    pipeline = penstock.Pipeline(document, stores={"photos": arguments.photos})
    while True:
        yield (numpy.from_dlpack(batch["image"]) for batch in pipeline)


def photo(path: Path, draft: bool) -> numpy.ndarray:
    """Decodes a photo with Pillow: float32, [3, 224, 224]."""
    from PIL import Image

    with Image.open(path) as image:
        if draft:
            image.draft("RGB", (SIZE, SIZE))
        pixels = numpy.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    return pixels.transpose(2, 0, 1) * FACTOR + SHIFT


def transforms() -> Callable[[Any], Any]:
    """ImageNet's usual transforms for training, by torchvision."""
    import torch
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    return v2.Compose(
        [v2.RandomResizedCrop(SIZE), v2.RandomHorizontalFlip(), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN.tolist(), DEVIATION.tolist())]
    )


@cache
def on_pillow() -> Callable[[Path], numpy.ndarray]:
    from PIL import Image

    transform = transforms()

    def crop(path: Path) -> numpy.ndarray:
        with Image.open(path) as image:
            return transform(image.convert("RGB")).numpy()

    return crop


@cache
def on_tensors() -> Callable[[Path], numpy.ndarray]:
    from torchvision import io

    transform = transforms()
    return lambda path: transform(io.decode_jpeg(io.read_file(str(path)), io.ImageReadMode.RGB)).numpy()


def pillow_crop(path: Path) -> numpy.ndarray:
    return on_pillow()(path)


def tensor_crop(path: Path) -> numpy.ndarray:
    return on_tensors()(path)


def ffmpeg_crop(path: Path) -> numpy.ndarray:
    """A random part by FFmpeg's filters, in SPDL."""
    import spdl.io
    import torch
    from torchvision.transforms import RandomResizedCrop

    packets = spdl.io.demux_image(str(path))
    size = torch.empty(1, packets.codec.height, packets.codec.width)
    top, left, height, width = RandomResizedCrop.get_params(size, [0.08, 1.0], [3 / 4, 4 / 3])
    flip = "hflip," if torch.rand(1) < 0.5 else ""
    filters = f"crop={width}:{height}:{left}:{top},scale={SIZE}:{SIZE}:flags=bilinear,{flip}format=rgb24"
    pixels = spdl.io.to_numpy(spdl.io.convert_frames(spdl.io.decode_packets(packets, filter_desc=filters)))
    return pixels.transpose(2, 0, 1) * FACTOR + SHIFT


def spdl(arguments: argparse.Namespace) -> Iterator[Iterator[numpy.ndarray]]:
    from spdl.pipeline import PipelineBuilder

    while True:
        builder = PipelineBuilder().add_source(shuffled(arguments.photos)).pipe(ffmpeg_crop, concurrency=THREADS)
        pipeline = builder.aggregate(BATCH).pipe(numpy.stack).add_sink(4).build(num_threads=THREADS)
        with pipeline.auto_stop():
            yield pipeline.get_iterator()


def data_loader(work: Callable[[Path], numpy.ndarray], arguments: argparse.Namespace) -> Iterator[Iterator[numpy.ndarray]]:
    from torch.utils.data import DataLoader

    paths = Photos(shuffled(arguments.photos), work)
    loader = DataLoader(paths, BATCH, shuffle=True, num_workers=THREADS, persistent_workers=True)
    while True:
        yield (batch.numpy() for batch in loader)


@dataclass
class Photos:
    """Photos as a data set of PyTorch."""

    paths: list[Path]
    work: Callable[[Path], numpy.ndarray]

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, place: int) -> numpy.ndarray:
        return self.work(self.paths[place])


def pool(work: Callable[[Path], numpy.ndarray], arguments: argparse.Namespace) -> Iterator[Iterator[numpy.ndarray]]:
    def batches() -> Iterator[numpy.ndarray]:
        paths = shuffled(arguments.photos)
        with ThreadPoolExecutor(THREADS) as threads:
            waiting = deque(threads.submit(work, path) for path in paths[:AHEAD])
            rest = iter(paths[AHEAD:])
            while waiting:
                images: list[numpy.ndarray] = []
                while waiting and len(images) < BATCH:
                    images.append(waiting.popleft().result())
                    waiting.extend(threads.submit(work, path) for path in islice(rest, 1))
                yield numpy.stack(images)

    while True:
        yield batches()


def grain(work: Callable[[Path], numpy.ndarray], arguments: argparse.Namespace) -> Iterator[Iterator[numpy.ndarray]]:
    import grain

    while True:
        photos = grain.MapDataset.source(shuffled(arguments.photos)).map(work)
        yield iter(photos.to_iter_dataset(grain.ReadOptions(num_threads=THREADS, prefetch_buffer_size=AHEAD)).batch(BATCH))


def shuffled(folder: Path) -> list[Path]:
    paths = sorted(folder.rglob("*.jpg"))
    numpy.random.default_rng().shuffle(paths)
    return paths


def plain(arguments: argparse.Namespace) -> Callable[[Path], numpy.ndarray]:
    return partial(photo, draft=arguments.draft)


PEERS: dict[str, Callable[[argparse.Namespace], Iterator[Iterator[numpy.ndarray]]]] = {
    "penstock": penstock,
    "threads + Pillow": lambda arguments: pool(plain(arguments), arguments),
    "grain threads + Pillow": lambda arguments: grain(plain(arguments), arguments),
    "threads + torchvision on Pillow": partial(pool, pillow_crop),
    "threads + torchvision on tensors": partial(pool, tensor_crop),
    "DataLoader + torchvision on Pillow": partial(data_loader, pillow_crop),
    "DataLoader + torchvision on tensors": partial(data_loader, tensor_crop),
    "grain threads + torchvision on Pillow": partial(grain, pillow_crop),
    "SPDL + FFmpeg's filters": spdl,
}
PLAIN = list(PEERS)[:3]
TRAINING = ["penstock", *list(PEERS)[3:]]


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=Path, default=Path("demo/photos"), help="folder of JPEGs (demo/photos, as `make photos` makes)")
    parser.add_argument("--turns", type=int, default=3, help="measurements of each candidate (3)")
    parser.add_argument("--passes", type=int, default=2, help="passes over the photos that one measurement counts (2)")
    parser.add_argument("--training", action="store_true", help="crop and flip at random")
    parser.add_argument("--draft", action="store_true", help="decode large photos at a fraction of their size, in all candidates")
    parser.add_argument("--only", nargs="+", choices=PEERS, help="candidates to measure (those of the job)")
    parser.add_argument("--must", type=float, default=1.8, help="required speed against the best other candidate (1.8)")
    parser.add_argument("--aim", type=float, default=2.2, help="desired speed against the best other candidate (2.2)")
    parser.add_argument("--one", choices=PEERS, help="measure only this candidate in this process, and print JSON")
    arguments = parser.parse_args()
    arguments.only = arguments.only or (TRAINING if arguments.training else PLAIN)
    return arguments


if __name__ == "__main__":
    main()
