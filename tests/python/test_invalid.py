"""All faults of a pipeline are reported at once, with their places and corrections."""

import os
import sys
import unittest
from pathlib import Path
from unittest import mock

import numpy
import penstock
from kit import folder, module, photo_document, photos, plane_document, plane_stage, planes
from stage import Elements, constant_stage


def without(key: str) -> dict:
    document = plane_document(8)
    del document[key]
    return document


class Invalid(unittest.TestCase):
    def refused(self, *fragments: str, document: object = None, **options: object) -> str:
        options.setdefault("modules", {"plane": plane_stage()})
        with self.assertRaises(penstock.InvalidPipeline) as raised:
            penstock.Pipeline(plane_document(8) if document is None else document, **options)
        self.assertIsInstance(raised.exception, penstock.PenstockError)
        for fragment in fragments:
            self.assertIn(fragment, str(raised.exception))
        return str(raised.exception)

    def test_documents_that_cannot_be_read(self) -> None:
        with folder() as here:
            self.refused("cannot read", "missing.json", "No such file", document=here / "missing.json")
            self.refused("cannot read", "directory", document=here)
            (here / "broken.json").write_text('{"name": "x", ')
            self.refused("1 fault", "JSON", document=str(here / "broken.json"))
            (here / "array.json").write_text("[]")
            self.refused("object", document=here / "array.json")
            (here / "latin.json").write_bytes('{"name": "grün"}'.encode("latin-1"))
            self.refused("not JSON", document=here / "latin.json")

    def test_dicts_that_are_not_json(self) -> None:
        self.refused("the document cannot be written as JSON", "Path", document={**plane_document(8), "name": Path("x")})
        self.refused("the document cannot be written as JSON", document={**plane_document(8), "seed": float("nan")})
        self.refused("the setting `/name` cannot be written as JSON", settings={"/name": {1, 2}})
        self.refused("the setting `/interval_s` cannot be written as JSON", settings={"/interval_s": float("inf")})

    def test_documents_of_wrong_types(self) -> None:
        for document in (5, [plane_document(8)], b"{}"):
            with self.subTest(document):
                self.refused(f"the document is of type `{type(document).__name__}`", "path", document=document)

    def test_all_faults_come_at_once_with_their_places(self) -> None:
        document = plane_document(8)
        document["colour"] = "red"
        document["threads"] = 0
        document["stages"][1] = {"aggregate": {"size": 0}}
        document["stages"].append({"blend": {}})
        told = self.refused("/colour", "/threads", "/stages/1/aggregate/size", "/stages/3/blend", document=document)
        self.assertIn("4 faults", told)

    def test_members_that_are_missing(self) -> None:
        self.refused("the field `source` is missing", document=without("source"))

    def test_pipelines_that_make_no_collated_batches(self) -> None:
        document = plane_document(8)
        del document["stages"][1:]
        self.refused("`aggregate`", "`collate`", document=document)
        self.refused("collate", document={**document, "stages": [{"collate": {}}]})
        told = self.refused("/stages", "delivers batches", "add a `collate`", document={**document, "stages": [{"aggregate": {"size": 4}}]})
        self.assertNotIn("`aggregate`", told, "the document has one")

    def test_faults_of_arguments_and_of_the_document_are_reported_together(self) -> None:
        document = photo_document()
        document["stages"].pop()
        document["stages"][1]["wasm"]["module"] = "decode"
        document["stages"][2:2] = [{"wasm": {"module": "scale"}}]
        document["stages"].insert(0, {"fetch": {"store": "others"}})
        told = self.refused(
            "5 faults",
            "the store `photos`",
            "the module `decode`",
            "the module `scale` cannot be read",
            "/stages/0/fetch/store: there is no store `others`",
            "add a `collate`",
            document=document,
            stores={"photos": "missing.json"},
            modules={"decode": b"", "scale": "missing.wasm"},
        )
        self.assertNotIn("there is no module", told, "the fault of the argument is reported instead")

    def test_modules_that_are_missing_or_cannot_be_read(self) -> None:
        self.refused("/stages/0/wasm/module", "`plane`", modules={})
        self.refused("the module `plane` cannot be read", "No such file", modules={"plane": "missing.wasm"})

    def test_modules_that_are_not_stages(self) -> None:
        for wasm, why in (
            (b"", "module `plane`"),
            (b"\0asm\x01\0\0\0", "without WIT types"),
            (module("image").read_bytes()[:5000], "module `plane`"),
            (Path("/proc/self/exe").read_bytes()[:5000], "module `plane`"),
        ):
            with self.subTest(wasm[:10]):
                self.refused("plane", why, modules={"plane": wasm})

    def test_modules_need_an_interpreter_for_compilation(self) -> None:
        with mock.patch("sys.executable", None), self.assertRaisesRegex(penstock.PenstockError, "`sys.executable`"):
            penstock.Pipeline(plane_document(8), modules={"plane": plane_stage()})

    def test_the_interpreter_that_compiles_finds_its_libraries(self) -> None:
        with folder() as here:
            picky = here / "python"
            picky.write_text(f'#!/bin/sh\n[ "$LD_LIBRARY_PATH" = "{here}" ] && exec "{sys.executable}" "$@"\n')
            picky.chmod(0o755)
            with mock.patch("sys.executable", str(picky)), mock.patch.dict(os.environ, {"LD_LIBRARY_PATH": str(here)}):
                penstock.Pipeline(plane_document(8), modules={"plane": plane_stage()}, cache_dir=None)

    def test_the_compiling_child_reports_what_is_wrong(self) -> None:
        good = constant_stage("plane", {"plane": Elements("uint8", (1,), b"\0")})
        # A number of 8 bytes with an alignment of 32: only the validation of the code finds it.
        broken = good.replace(b"\x37\x03\x10", b"\x37\x05\x10", 1)
        self.assertNotEqual(good, broken)
        told = self.refused("the module `plane`", modules={"plane": broken}, cache_dir=None)
        self.assertNotIn("Traceback", told)
        penstock.Pipeline(plane_document(8), modules={"plane": good}, cache_dir=None)

    def test_params_that_a_module_refuses_when_it_starts(self) -> None:
        ops = [{"Normalize": {"mean": [0.5], "std": [0.5]}}, {"ToDtype": {"dtype": "float32", "scale": True}}]
        stages = [{"fetch": {}}, {"wasm": {"module": "std/image", "params": {"ops": ops}}}, {"aggregate": {"size": 2}}, {"collate": {}}]
        with self.assertRaisesRegex(penstock.InvalidPipeline, r"/stages/1/wasm/params: the module `std/image` cannot start: .*`ops\[0\]`: `Normalize`"):
            penstock.Pipeline({"source": {"list": {"store": "d"}}, "stages": stages}, stores={"d": "."})

    def test_params_that_a_module_does_not_take(self) -> None:
        document = photo_document()
        document["stages"][1]["wasm"]["params"]["draft"] = "maybe"
        self.refused("/stages/1/wasm/params/draft", document=document, stores={"photos": photos()})

    def test_stores_that_are_missing_or_wrong(self) -> None:
        self.refused("/source/list/store", "`photos`", document=photo_document())
        for what, why in (("https://example.org", "s3://"), (__file__, "not a folder"), ("missing.json", "cannot be read")):
            with self.subTest(what):
                self.refused("the store `photos`", why, document=photo_document(), stores={"photos": what})
        self.refused("the store `a b`", "letters", document=photo_document(), stores={"a b": photos()})
        self.refused("photos", "/no/such/folder", document=photo_document(), stores={"photos": "/no/such/folder"})

    def test_settings_without_a_target(self) -> None:
        self.refused("/stages/9", "elements 0 to 2", settings={"/stages/9/aggregate/size": 4})
        self.refused("/stages/1/aggregate/size", settings={"/stages/1/aggregate/size": "many"})
        self.refused("/a=b", settings={"/a=b/c": 1})
        self.assertEqual(len(planes(8, settings={"/stages/1/aggregate/size": 2})), 4)

    def test_settings_keep_their_types(self) -> None:
        self.assertEqual(planes(8, settings={"/name": "7"}).name, "7")
        self.refused("/seed", settings={"/seed": "7"})

    def test_stores_and_modules_of_wrong_types(self) -> None:
        self.refused("`stores` is of type `list`;", '{"photos": "./photos"}', stores=["photos"])
        self.refused("`stores` has 'here': 3;", "a path", stores={"here": 3})
        for modules in ("m.wasm", {1: "m.wasm"}):
            with self.assertRaisesRegex(penstock.InvalidPipeline, "`modules` "):
                penstock.Pipeline(plane_document(8), modules=modules)

    def test_settings_create_missing_params(self) -> None:
        with self.assertRaisesRegex(penstock.InvalidPipeline, "takes no parameters"):
            planes(8, settings={"/stages/0/wasm/params/size": 3})

    def test_numbers_out_of_range(self) -> None:
        self.refused("`threads` is 0;", "from 1", threads=0)
        self.refused("`threads` is 2.5;", threads=2.5)
        self.refused("/threads", "5000", threads=5000)
        self.assertEqual(len(list(planes(8, threads=numpy.int64(2)))), 2)
        self.refused("`max_held` is 1;", "from 2", max_held=1)
        self.refused("`epoch` is -1;", epoch=-1)
        self.refused("`tune` is 'on';", "`apply`", tune="on")
        self.refused("`epoch` is 1.5;", epoch=1.5)
        pipeline = planes(8)
        pipeline.epoch = 2**40
        with self.assertRaisesRegex(penstock.InvalidPipeline, "`epoch`"):
            next(iter(pipeline))

    def test_invalid_devices(self) -> None:
        document = plane_document(8)
        document["stages"].append({"transfer": {"device": "host"}})
        self.refused("/stages/3/transfer/device: found `cuda:999`, but", "`host`", document=document, device="cuda:999")
        self.refused("`device` is `gpu`;", "`cuda:N`", document=document, device="gpu")
        self.refused("`device` is `host`, but", "transfer", device="host")
        with mock.patch.dict(os.environ, {"LOCAL_RANK": "first"}):
            self.refused("LOCAL_RANK=first", "whole number", document=document)

    def test_invalid_ranks(self) -> None:
        self.refused("rank 4 is not below world 4", rank=4, world=4)
        self.refused("`world` is 0;", rank=0, world=0)
        self.refused("`rank` is -1;", rank=-1, world=2)
        self.refused("belong together", rank=1)
        self.refused("belong together", world=1)
        for found, of in (("one", "2"), ("-1", "2"), ("", "2")):
            with mock.patch.dict(os.environ, {"RANK": found, "WORLD_SIZE": of}):
                self.assertRaisesRegex(penstock.InvalidPipeline, f"RANK={found}.*whole numbers", iter, planes(8))
        with mock.patch.dict(os.environ, {"RANK": "2", "WORLD_SIZE": "2"}):
            self.assertRaisesRegex(penstock.InvalidPipeline, "rank 2 is not below world 2", iter, planes(8))
        self.refused("`uneven` is 'pad';", "`keep`", uneven="pad")
        self.refused("`ends` is 'never';", "`together`", ends="never")
        self.refused("`workers` is 2;", "`share`", workers=2)


if __name__ == "__main__":
    unittest.main()
