"""Failing samples, batches of tensors of different shapes, and their effect on a training loop."""

from __future__ import annotations

import io
import struct
import tarfile
import unittest
import wave
from pathlib import Path
from typing import Any

import numpy
import penstock
from kit import Server, folder, module
from penstock._pipeline import _log_failures, _log_warnings


def clips(where: Path, lengths: list[int]) -> None:
    """Writes WAV files with these numbers of frames, one channel each, named in order."""
    for number, frames in enumerate(lengths):
        with wave.open(str(where / f"{number}.wav"), "wb") as clip:
            clip.setnchannels(1)
            clip.setsampwidth(2)
            clip.setframerate(16_000)
            clip.writeframes(b"\x00\x40" * frames)


def clip_document(ragged: str | None = None, **consumer: Any) -> dict[str, Any]:
    """Document that converts clips, in a fixed order, to `codes`: uint8, [frames, channels]."""
    collate = {} if ragged is None else {"ragged": ragged}
    stages = [{"fetch": {"order": "input"}}, {"wasm": {"module": "mu-law", "order": "input"}}, {"aggregate": {"size": 4}}, {"collate": collate}]
    return {"name": "clips", "source": {"list": {"store": "clips"}}, "stages": stages, **consumer}


def bitmap() -> bytes:
    """A BMP file of 8 x 8 grey pixels."""
    pixels = b"\x80" * (8 * 8 * 3)
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54 + len(pixels), 0, 0, 54, 40, 8, 8, 1, 24, 0, len(pixels), 0, 0, 0, 0) + pixels


def saved(array: list[Any]) -> bytes:
    """A file of NumPy."""
    file = io.BytesIO()
    numpy.save(file, numpy.array(array, dtype=numpy.float32))
    return file.getvalue()


class Ragged(unittest.TestCase):
    def setUp(self) -> None:
        self.clips = self.enterContext(folder())
        clips(self.clips, [5, 3, 3, 2])

    def batches(self, ragged: str | None) -> list[penstock.Batch]:
        pipeline = penstock.Pipeline(clip_document(ragged), stores={"clips": self.clips}, modules={"mu-law": module("mu-law")})
        return list(pipeline)

    def test_different_shapes_fail_the_run_by_default(self) -> None:
        with self.assertRaisesRegex(penstock.RunFailed, r"field `codes` has shape \[3, 1\], the batch has \[5, 1\].*`ragged`.*`pad`, `list` or `skip`"):
            self.batches(None)

    def test_padding_gives_one_array_and_the_shapes(self) -> None:
        [batch] = self.batches("pad")
        codes, shapes = numpy.from_dlpack(batch["codes"]), numpy.from_dlpack(batch["codes.shape"])
        self.assertEqual((codes.shape, shapes.tolist()), ((4, 5, 1), [[5, 1], [3, 1], [3, 1], [2, 1]]))
        lengths = [int((one != 0).sum()) for one in codes]
        self.assertEqual(lengths, [5, 3, 3, 2], "zeros behind the frames")

    def test_a_list_gives_an_array_for_each_sample(self) -> None:
        [batch] = self.batches("list")
        self.assertEqual([array.shape for array in batch["codes"]], [(5, 1), (3, 1), (3, 1), (2, 1)])
        self.assertTrue(all((numpy.from_dlpack(array) > 128).all() for array in batch["codes"]))
        self.assertIn("codes: 4 tensors of different shapes", repr(batch))

    def test_skipping_keeps_the_usual_shape(self) -> None:
        [batch] = self.batches("skip")
        self.assertEqual((batch["codes"].shape, batch.samples), ((2, 3, 1), ["1.wav", "2.wav"]))

    def test_lists_reach_another_process(self) -> None:
        server = Server(f"--module={module('mu-law')}", f"--store=clips={self.clips}")
        self.addCleanup(server.close)
        connected = penstock.connect(server.url)
        run = connected.submit(clip_document("list", consumer={"stream": {}}), tags=["nightly", "lr=0.1"])
        self.assertEqual(connected.run(run)["tags"], ["nightly", "lr=0.1"])
        for wrong in ("nightly", ["a,b"]):
            with self.assertRaises(ValueError):
                connected.submit({}, tags=wrong)
        with connected.stream(run) as stream:
            [batch] = list(stream)
        self.assertEqual([array.shape for array in batch["codes"]], [(5, 1), (3, 1), (3, 1), (2, 1)])


class Failing(unittest.TestCase):
    def pipeline(self, count: int, fail_rate: float, **document: Any) -> penstock.Pipeline:
        stages = [{"sleep": {"mean_ms": 0, "fail_rate": fail_rate}}, {"aggregate": {"size": 10}}, {"collate": {}}]
        return penstock.Pipeline({"name": "unlucky", "source": {"range": {"count": count}}, "stages": stages, **document})

    def delivered(self, pipeline: penstock.Pipeline) -> int:
        return sum(batch.size for batch in pipeline)

    def test_an_epoch_in_which_every_sample_fails_raises(self) -> None:
        for limit in ({}, {"max_failures": None}, {"max_failures": {"count": 1000}}):
            with self.assertRaisesRegex(penstock.RunFailed, "all 20 samples of epoch 0 failed, the first in stage `1:sleep`"):
                list(self.pipeline(20, 1, **limit))

    def test_an_endless_run_in_which_every_sample_fails_raises(self) -> None:
        stages = [{"sleep": {"mean_ms": 0, "fail_rate": 1}}, {"aggregate": {"size": 10}}, {"collate": {}}]
        endless = penstock.Pipeline({"source": {"range": {"count": 20, "epochs": None}}, "stages": stages})
        with self.assertRaisesRegex(penstock.RunFailed, "all 20 samples of epoch 0 failed"):
            next(iter(endless))

    def test_by_default_more_than_five_per_cent_of_a_thousand_samples_may_not_fail(self) -> None:
        with self.assertRaisesRegex(penstock.RunFailed, "more than 5 %.*`max_failures`"):
            self.delivered(self.pipeline(5000, 0.2))
        self.assertIn(self.delivered(self.pipeline(5000, 0.2, max_failures=None)), range(3700, 4300))
        self.assertIn(self.delivered(self.pipeline(20, 0.2, seed=1)), range(11, 21), "fewer than 10 samples may fail")
        with self.assertRaisesRegex(penstock.RunFailed, "more than 5 %.*`max_failures`"):
            self.delivered(self.pipeline(900, 0.2))

    def test_each_class_of_failures_is_logged_once_with_its_number(self) -> None:
        with self.assertLogs("penstock", "WARNING") as logs:
            lost = 400 - self.delivered(self.pipeline(400, 0.2, seed=1, max_failures=None))
        [line] = [record.getMessage() for record in logs.records]
        self.assertRegex(line, rf"^unlucky: {lost} samples failed in stage `1:sleep` \(\w+\), most often: failed on purpose")
        with self.assertNoLogs("penstock", "WARNING"):
            self.delivered(self.pipeline(400, 0))

    def test_warnings_about_the_data_are_logged_when_the_loop_ends(self) -> None:
        ops = [{"RandomHorizontalFlip": {}}, {"Resize": {"size": [8, 8]}}]
        stages = [{"wasm": {"module": "std/image", "params": {"ops": ops}}}, {"aggregate": {"size": 10}}, {"collate": {}}]
        source = {"tar": {"store": "d", "shards": "s-0.tar", "fields": {"bytes": "bmp", "boxes": "npy"}}}
        with folder() as where:
            with tarfile.open(where / "s-0.tar", "w") as shard:
                for name, data in (("0.bmp", bitmap()), ("0.npy", saved([[0, 0, 1, 1]]))):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    shard.addfile(member, io.BytesIO(data))
            pipeline = penstock.Pipeline({"name": "flipped", "source": source, "stages": stages}, stores={"d": where})
            with self.assertLogs("penstock", "WARNING") as logs:
                self.assertEqual(sum(batch.size for batch in pipeline), 1)
        said = [record.getMessage() for record in logs.records if "`boxes`" in record.getMessage()]
        self.assertEqual(said, [f"flipped: {warning}" for warning in pipeline.warnings if "`boxes`" in warning])
        self.assertRegex(said[0], "`RandomHorizontalFlip` of `std/image` change `image` alone")
        self.assertEqual(pipeline.left_out, {})

    def test_each_warning_is_a_line_of_the_log(self) -> None:
        with self.assertLogs("penstock", "WARNING") as logs:
            _log_warnings("photos", {"warnings": ["one", "two"]})
        self.assertEqual([record.getMessage() for record in logs.records], ["photos: one", "photos: two"])
        with self.assertNoLogs("penstock", "WARNING"):
            _log_warnings("photos", {})

    def test_failures_that_are_not_listed_are_logged_with_their_number(self) -> None:
        group = {"stage": "1:decode", "class": "input", "message": "no JPEG", "count": 2, "first_keys": ["a.jpg", "b.jpg"]}
        with self.assertLogs("penstock", "WARNING") as logs:
            _log_failures("photos", {"failures": [group], "failures_not_listed": 7})
        self.assertEqual(
            [record.getMessage() for record in logs.records],
            [
                "photos: 2 samples failed in stage `1:decode` (input), most often: no JPEG (a.jpg, b.jpg)",
                "photos: 7 more samples failed for other reasons, which are not listed",
            ],
        )


if __name__ == "__main__":
    unittest.main()
