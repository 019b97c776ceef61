"""Contents of batches, and location and lifetime of their arrays."""

import gc
import json
import time
import unittest
from collections.abc import Mapping

import numpy
import penstock
from kit import Content, content, every_type, files, folder, look, photo_document, photo_pipeline, photos, planes, resident
from stage import Elements, constant_stage

# Code and number of bits of each element type in the DLPack format.
KINDS = {
    "bool": (6, 8), "uint8": (1, 8), "int8": (0, 8), "int16": (0, 16), "uint16": (1, 16), "int32": (0, 32), "int64": (0, 64),
    "float16": (2, 16), "bfloat16": (4, 16), "float32": (2, 32), "float64": (2, 64),
}  # fmt: skip


def typed_document(count: int = 3) -> dict:
    return {
        "name": "types",
        "source": {"range": {"count": count}},
        "stages": [{"wasm": {"module": "types"}}, {"aggregate": {"size": 2}}, {"collate": {}}],
    }


def typed(count: int = 3) -> penstock.Pipeline:
    return penstock.Pipeline(typed_document(count), modules={"types": constant_stage("types", every_type())})


class SameAsFiles(unittest.TestCase):
    maxDiff = 2000

    def check(self, expected: list[Content], pipeline: penstock.Pipeline) -> None:
        found = [content(batch) for batch in pipeline]
        self.assertEqual(len(found), len(expected))
        for one, other in zip(found, expected, strict=True):
            self.assertEqual(one, other)

    def test_photos(self) -> None:
        expected = files(photo_document(), {"photos": photos()}, {})
        self.assertEqual([batch.fields["image"][:2] for batch in expected], [("float32", [8, 3, 32, 32])] * 6)
        self.check(expected, photo_pipeline())

    def test_texts_numbers_and_blobs(self) -> None:
        lines = [
            {"key": f"photo {place}", "text": "grün " * place, "count": place - 2, "share": place / 3, "is_good": place % 2 == 0}
            for place in range(7)
        ]
        with folder() as store:
            (store / "lines.ndjson").write_text("\n".join(map(json.dumps, lines)))
            for place, line in enumerate(lines):
                (store / line["key"]).write_bytes(bytes(range(place)))
            document = {
                "name": "records",
                "source": {"records": {"store": "here", "key": "lines.ndjson"}},
                "stages": [{"fetch": {"store": "here"}}, {"aggregate": {"size": 4}}, {"collate": {}}],
            }
            expected = files(document, {"here": store}, {})
            self.check(expected, penstock.Pipeline(document, stores={"here": store}))
            first = next(iter(penstock.Pipeline(document, stores={"here": store})))
            self.assertEqual(first["text"], [line["text"] for line in lines[:4]])
            self.assertEqual(first["bytes"], [bytes(range(place)) for place in range(4)])
            self.assertEqual(numpy.from_dlpack(first["count"]).tolist(), [-2, -1, 0, 1])
            self.assertEqual(numpy.from_dlpack(first["share"]).tolist(), [line["share"] for line in lines[:4]])
            self.assertEqual(numpy.from_dlpack(first["is_good"]).tolist(), [1, 0, 1, 0])

    def test_every_type_of_element(self) -> None:
        with folder() as made:
            (made / "types.wasm").write_bytes(constant_stage("types", every_type()))
            expected = files(typed_document(), {}, {"types": made / "types.wasm"})
        self.assertEqual(list(expected[0].fields), list(every_type()))
        self.check(expected, typed())


class Arrays(unittest.TestCase):
    def test_every_type_is_exported_by_the_rules_of_the_format(self) -> None:
        batch = next(iter(typed()))
        for name, elements in every_type().items():
            with self.subTest(name):
                array = batch[name]
                self.assertEqual((array.dtype, array.shape, array.device, len(array)), (name, (2, 2, 3), "cpu", 2))
                for version in ((1, 0), (1, 3), None):
                    seen = look(array, version)
                    self.assertEqual(seen.kind, (*KINDS[name], 1))
                    self.assertEqual((seen.device, seen.shape, seen.strides, seen.flags), ((1, 0), (2, 2, 3), (6, 3, 1), 0))
                    self.assertEqual(seen.data, 2 * elements.data)
                    self.assertEqual(array.nbytes, len(seen.data))

    def test_numpy_reads_every_type_that_it_supports(self) -> None:
        batch = next(iter(typed()))
        for name, elements in every_type().items():
            if name == "bfloat16":
                continue
            with self.subTest(name):
                taken = numpy.from_dlpack(batch[name])
                self.assertEqual((taken.dtype.name, taken.shape), (name, (2, 2, 3)))
                self.assertEqual(taken.tobytes(), 2 * elements.data)

    def test_arrays_are_not_copied_and_can_be_written_to(self) -> None:
        batch = next(iter(planes(4)))
        one, other = numpy.from_dlpack(batch["plane"]), numpy.from_dlpack(batch["plane"])
        self.assertEqual(one.ctypes.data, other.ctypes.data)
        self.assertEqual(one.ctypes.data, look(batch["plane"]).address)
        self.assertEqual(one.ctypes.data % 4096, 0, "large arrays begin with a page")
        self.assertTrue(one.flags.writeable and one.flags.c_contiguous and one.flags.aligned)
        one[1, 2, 3] = -5
        self.assertEqual(other[1, 2, 3], -5)
        self.assertEqual(numpy.asarray(batch["plane"]).ctypes.data, one.ctypes.data)

    def test_asarray_follows_its_dtype_and_copy_arguments(self) -> None:
        batch = next(iter(planes(4)))
        plane = numpy.from_dlpack(batch["plane"])
        self.assertEqual(numpy.asarray(batch["plane"], dtype="float64").dtype.name, "float64")
        self.assertNotEqual(numpy.array(batch["plane"], copy=True).ctypes.data, plane.ctypes.data)
        self.assertEqual(numpy.array(batch["plane"], copy=False).ctypes.data, plane.ctypes.data)
        with self.assertRaises(ValueError):
            numpy.array(batch["plane"], dtype="float64", copy=False)

    def test_arrays_are_indexed_and_iterated_without_a_copy(self) -> None:
        batch = next(iter(planes(4)))
        plane = batch["plane"]
        self.assertEqual((plane[1, 0, 3], plane[-1].shape, plane[:2, 5].shape), (3.0, (256, 256), (2, 256)))
        self.assertEqual([float(row[0, 1]) for row in plane], [1.0] * 4)
        plane[2][0, 0] = 8.5
        self.assertEqual(plane[2, 0, 0], 8.5)
        with self.assertRaises(IndexError):
            plane[4]

    def test_unsupported_dlpack_options_raise(self) -> None:
        array = next(iter(planes(4)))["plane"]
        self.assertEqual(array.__dlpack_device__(), (1, 0))
        for options in ({"copy": True}, {"dl_device": (2, 0)}, {"stream": 7}):
            with self.subTest(options), self.assertRaises(BufferError):
                array.__dlpack__(**options)
        array.__dlpack__(copy=False, dl_device=(1, 0), stream=-1)

    def test_arrays_outlive_the_batch_the_run_and_the_pipeline(self) -> None:
        pipeline = planes(40)
        kept = [numpy.from_dlpack(batch["plane"]) for _, batch in zip(range(3), pipeline)]
        array = next(iter(pipeline))["plane"]
        addresses = {plane.ctypes.data for plane in [*kept, numpy.from_dlpack(array)]}
        self.assertEqual(len(addresses), 4, "memory in use is not reused for other batches")
        pipeline.close()
        del pipeline
        gc.collect()
        wanted = numpy.arange(65536, dtype="float32").reshape(256, 256)
        for plane in [*kept, numpy.from_dlpack(array)]:
            self.assertTrue((plane == wanted).all())

    def test_released_memory_is_reused(self) -> None:
        addresses = {look(batch["plane"]).address for batch in planes(400)}
        self.assertLess(len(addresses), 20, "of 100 batches")

    def test_a_dropped_capsule_holds_no_batch(self) -> None:
        for batch in planes(40, max_held=2):
            batch["plane"].__dlpack__(max_version=(1, 0))
            batch["plane"].__dlpack__()

    def test_a_held_capsule_holds_its_memory(self) -> None:
        batches = iter(planes(40, max_held=8))
        batch = next(batches)
        address, capsule = look(batch["plane"]).address, batch["plane"].__dlpack__(max_version=(1, 0))
        del batch
        self.assertNotIn(address, [look(batch["plane"]).address for batch in batches])
        del capsule

    def test_a_thousand_batches_take_no_more_memory_than_a_hundred(self) -> None:
        pipeline = planes(8 * 1000, batch=8, threads=2)
        total, marks = 0.0, []

        def passed() -> list[int]:
            return [queue["num_items"] for queue in pipeline.stats()["queues"]]

        for place, batch in enumerate(pipeline):
            plane = numpy.from_dlpack(batch["plane"])
            self.assertEqual(plane.nbytes, 2 << 20)
            total += float(plane[7, 255, 255])
            if place == 99:
                # The loop pauses until all queues are full: the pipeline then holds the maximum number of batches.
                before: list[int] = []
                while (now := passed()) != before:
                    before = now
                    time.sleep(0.5)
            if place >= 100:
                marks.append(resident())
        self.assertEqual((len(marks), total), (900, 1000 * 65535.0))
        early, late = max(marks[:100]), max(marks[-100:])
        # If every batch leaked, the difference would be 1,600 MiB.
        self.assertLess(late - early, 12 << 20, f"{early} bytes became {late}: six batches have 12 MiB")


class Fields(unittest.TestCase):
    def test_a_batch_is_a_mapping(self) -> None:
        batch = next(iter(photo_pipeline()))
        self.assertEqual((list(batch), batch.keys(), len(batch), batch.size), (["image"], ["image"], 1, 8))
        self.assertIn("image", batch)
        self.assertNotIn("label", batch)
        self.assertNotIn(5, batch)
        self.assertIsInstance(batch, Mapping)
        self.assertEqual([name for name, _ in batch.items()], ["image"])
        self.assertEqual([value.shape for value in batch.values()], [(8, 3, 32, 32)])
        self.assertIsNone(batch.get("label"))
        self.assertEqual(batch.get("label", 5), 5)
        with self.assertRaisesRegex(KeyError, "`label`: the fields of this batch are `image`"):
            batch["label"]
        self.assertEqual({**batch}.keys(), {"image"})

    def test_a_batch_names_its_samples(self) -> None:
        seen = {}
        for batch in photo_pipeline():
            self.assertEqual(batch.epoch, 0)
            seen.update(zip(batch.indexes, batch.samples, strict=True))
        names = sorted(path.relative_to(photos()).as_posix() for path in photos().rglob("*.jpg"))
        self.assertEqual([seen[index] for index in range(48)], names)

    def test_batches_and_arrays_can_be_printed(self) -> None:
        batch = next(iter(typed()))
        self.assertIn("<penstock.Batch of 2 samples: bool: bool [2, 2, 3]", repr(batch))
        self.assertEqual(repr(batch["int16"]), "<penstock.Array int16 [2, 2, 3] on cpu>")

    def test_empty_arrays_are_exported(self) -> None:
        empty = constant_stage("types", {"none": Elements("float32", (0, 3), b""), "one": Elements("uint8", (), b"\x07")})
        batch = next(iter(penstock.Pipeline(typed_document(), modules={"types": empty})))
        self.assertEqual(numpy.from_dlpack(batch["none"]).shape, (2, 0, 3))
        self.assertEqual(numpy.from_dlpack(batch["one"]).tolist(), [7, 7])


if __name__ == "__main__":
    unittest.main()
