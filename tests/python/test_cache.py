"""Objects of a bucket are kept on this machine: `store_cache`."""

import json
import subprocess
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import penstock
from kit import folder, photo_document, photos, wanted

COUNT = 48


@contextmanager
def bucket(root: Path) -> Iterator[dict[str, str]]:
    """Description of a bucket with the files of a folder."""
    server = wanted("PENSTOCK").with_name("s3-server")
    with subprocess.Popen([server, "--root", root], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout
            keys = {"aws_access_key_id": "penstock-test", "aws_secret_access_key": "penstock-test-secret"}
            yield {"bucket_name": "data", "endpoint_url": child.stdout.readline().strip(), "region_name": "us-east-1", **keys}
        finally:
            child.kill()


class Cache(unittest.TestCase):
    def loop(self, pipeline: penstock.Pipeline) -> tuple[int, int]:
        """Look-ups of one loop that the cache answered, and others."""
        self.assertEqual(sum(batch.size for batch in pipeline), COUNT)
        figures = pipeline.stats()["caches"]["photos"]
        return figures["hits"], figures["misses"]

    def test_later_loops_and_processes_read_from_the_cache(self) -> None:
        with bucket(photos(COUNT)) as place, folder() as here:
            (here / "bucket.json").write_text(json.dumps(place))
            stores = {"photos": here / "bucket.json"}
            pipeline = penstock.Pipeline(photo_document(), stores=stores, store_cache=here / "cache")
            self.assertEqual([self.loop(pipeline) for _ in range(3)], [(0, COUNT), (COUNT, 0), (COUNT, 0)])
            again = penstock.Pipeline(photo_document(), stores=stores, store_cache=f"{here / 'cache'}:0.5")
            self.assertEqual(self.loop(again), (COUNT, 0))
            plain = penstock.Pipeline(photo_document(), stores=stores)
            self.assertEqual(sum(batch.size for batch in plain), COUNT)
            self.assertNotIn("caches", plain.stats())

    def test_a_folder_that_cannot_be_one_is_a_fault(self) -> None:
        for given, told in ((5, "`store_cache` is of type `int`"), ("/x:0", "`store_cache`: the size is invalid"), (":5", "the folder is missing")):
            with self.subTest(given), self.assertRaises(penstock.InvalidPipeline) as raised:
                penstock.Pipeline(photo_document(), stores={"photos": photos(COUNT)}, store_cache=given)
            self.assertIn(told, str(raised.exception))


if __name__ == "__main__":
    unittest.main()
