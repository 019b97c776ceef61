"""Writes the mean colour of each photo to Parquet files by Ray Data, which reads the photos through a pipeline.

    python examples/ray/export.py --photos demo/photos --out demo/colours
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy
import penstock.ray
import ray

HERE = Path(__file__).parent


def main() -> None:
    arguments = parsed()
    ray.init(address=arguments.address)
    photos = penstock.ray.read(
        HERE / "photos.json", stores={"photos": arguments.photos}, threads=arguments.threads, override_num_blocks=arguments.tasks
    )
    photos.map_batches(colours, batch_format="numpy").write_parquet(arguments.out)
    written = ray.data.read_parquet(arguments.out)
    print(f"{written.count()} photos in {arguments.out}")


def colours(batch: dict[str, numpy.ndarray]) -> dict[str, numpy.ndarray]:
    """Mean colours of photos, which are float32, [photos, 3, 64, 64]. A model would be applied in the same way."""
    return {"photo": batch["__key__"], **dict(zip(("red", "green", "blue"), batch["image"].mean(axis=(2, 3)).T))}


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=absolute, required=True, help="folder with JPEGs, or s3://bucket/prefix, that all nodes can read")
    parser.add_argument("--out", type=absolute, required=True, help="folder or bucket for the files that all nodes can write")
    parser.add_argument("--address", help="address of the cluster; by default RAY_ADDRESS, else this machine alone")
    parser.add_argument("--threads", type=int, default=1, help="threads of a read task")
    parser.add_argument("--tasks", type=int, default=8, help="number of read tasks")
    return parser.parse_args()


def absolute(place: str) -> str:
    """The place as tasks find it, which may run in another folder."""
    return place if "://" in place else str(Path(place).absolute())


if __name__ == "__main__":
    main()
