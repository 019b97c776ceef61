"""Documents written in Python equal those in JSON, and cover every part of the schema."""

import importlib.util
import inspect
import json
import pickle
import random
import subprocess
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import penstock
from kit import PATIENCE, clean, content, folder, image_ops, order_of, photo_document, photo_pipeline, photos, plane_document, plane_stage, wanted
from penstock._document import json_of

ROOT = Path(__file__).parents[2]
PARTS = ROOT / "runner/python/python/penstock/_parts.py"

# Settings shared by all stages that have tasks.
TASKS: dict[str, Any] = {
    "name": "mine", "queue": 7, "concurrency": 3, "order": "input", "on_error": "dead_letter", "max_failures": {"rate": 0.5},
}  # fmt: skip
LISTING: dict[str, Any] = {"hidden": True, "links": "files"}
DAMAGE: dict[str, Any] = {"missing": {"label": "drop"}, "on_damage": "skip"}
VISITS: dict[str, Any] = {"shuffle": True, "shard": {"rank": 1, "world": 2, "uneven": "keep"}, "epochs": 3, "limit": 40}

# Members of a source that runs only without others: of `key` or `index`, `shards` and `prefix`, it has one.
EXCLUDING = {
    "key": {"shards", "prefix", "suffix"},
    "index": {"shards", "prefix"},
    "shards": {"prefix"},
    "decode": {"fields", "texts", "scalars", "lists", "sample_key"},
}
OBJECTS: dict[str, Any] = {"key": "a", "shards": "a-{0..9}", "prefix": "a/", "suffix": ".txt", "sample_key": "id"}
TABLE: dict[str, Any] = {"delimiter": ";", "quote": "'", "encoding": "latin-1"}

# Every argument of each kind of part, each with a value other than its default.
SOURCES: dict[str, dict[str, Any]] = {
    "list": {
        "store": "data",
        "prefix": "a/",
        "suffix": ".jpg",
        "label": "folder",
        "classes": ["cat", "dog"],
        "missing": {"label": "drop"},
        **LISTING,
        "labels": {"key": "labels.csv", "match": "stem", "missing": "skip"},
        **VISITS,
    },
    "index": {"store": "data", "index": "index.json", **VISITS},
    "range": {"count": 50, **VISITS},
    "records": {"store": "data", **OBJECTS, "types": {"age": "int"}, **LISTING, **DAMAGE, **VISITS},
    "csv": {"store": "data", **OBJECTS, **TABLE, "types": {"age": "int"}, **LISTING, **DAMAGE, **VISITS},
    "tsv": {"store": "data", **OBJECTS, **TABLE, "quote": None, "types": {"age": "int"}, **LISTING, **DAMAGE, **VISITS},
    "tar": {
        "store": "data",
        "shards": "a-{0..9}.tar",
        "prefix": "a/",
        "index": "a.index",
        "fields": {"bytes": "jpg"},
        **LISTING,
        **DAMAGE,
        "window": 4,
        **VISITS,
    },
    "parquet": {
        "store": "data",
        "shards": "a-{0..9}.parquet",
        "prefix": "a/",
        "columns": ["label"],
        "fields": {"bytes": "image"},
        "sample_key": "id",
        "where": [{"column": "width", "op": ">=", "value": 256}],
        **LISTING,
        **DAMAGE,
        "window": 4,
        **VISITS,
    },
    "tfrecord": {
        "store": "data",
        "shards": "a-{0..9}",
        "prefix": "a/",
        "index": "a.index",
        "decode": "bytes",
        "fields": {"bytes": "image/encoded"},
        "texts": ["caption"],
        "scalars": ["id"],
        "lists": ["box"],
        **LISTING,
        **DAMAGE,
        "sample_key": "id",
        "window": 4,
        **VISITS,
    },
    "mds": {"store": "data", "prefix": "a", "fields": {"bytes": "image"}, "sample_key": "id", "window": 4, **DAMAGE, **VISITS},
    "mix": {
        "sources": {"a": {"source": {"range": {"count": 5}}, "weight": 2}},
        "stop": {"samples": 5},
        "pick": "random",
        "shard": VISITS["shard"],
        "epochs": 3,
        "limit": 7,
    },
}
STAGES: dict[str, dict[str, Any]] = {
    "fetch": {"store": "data", "object": "path", **TASKS},
    "wasm": {
        "module": "std/image", "params": {"ops": [{"Resize": {"size": [8, 8]}}]}, "deadline_ms": 70, "memory_mib": 20, "output_mib": 64,
        "assets": {"a": {"store": "data", "key": "k"}}, **TASKS,
    },
    "sleep": {"mean_ms": 1.5, "jitter": 0.5, "shape": "exponential", "on": "thread", "fail_rate": 0.25, **TASKS},
    "aggregate": {"size": 4, "drop_last": True, "name": "mine", "queue": 7},
    "disaggregate": {"name": "mine", "queue": 7},
    "collate": {"ragged": "skip", "shape": {"codes": [3, 1]}, "mismatch": "skip", **TASKS},
    "transfer": {"device": "host", **TASKS},
    "route": {
        "by": {"field": "kind"}, "paths": {"a": [{"sleep": {"mean_ms": 1}}]}, "else_": [], "name": "mine", "queue": 7, "order": "input",
        "on_error": "dead_letter", "max_failures": {"rate": 0.5},
    },
}  # fmt: skip
SINKS: dict[str, dict[str, Any]] = {"sink": {"queue": 5}}
CONSUMERS: dict[str, dict[str, Any]] = {
    "discard": {},
    "simulate": {"step_ms": 2, "jitter": 0.5},
    "files": {"store": "data", "prefix": "out"},
    "stream": {"ahead": 2, "wait_s": 7.5},
}
DOCUMENT: dict[str, dict[str, Any]] = {
    "set": {"name": "all", "seed": 5, "deterministic": True, "threads": 2, "tune": "suggest", "interval_s": 0.5, "buffer_mib": 64, "max_failures": {"count": 9}},
}


def member(name: str) -> str:
    """Member of the document for an argument; `else` for `else_`."""
    return name.removesuffix("_")


def checked(document: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """Runs `penstock check` on a document."""
    with folder() as here:
        (here / "document.json").write_text(json.dumps(document))
        command: list[str | Path] = [wanted("PENSTOCK"), "check", here / "document.json", f"--store=data={here}"]
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=clean())


def in_context(kind: str, stage: Callable[[penstock.Document], penstock.Document]) -> tuple[penstock.Document, int]:
    """Document with a stage of this kind, and the position of the stage."""
    # `fetch` and `route` need a field, which records may have.
    begun = penstock.records("data", key="lines.ndjson") if kind in ("fetch", "route") else penstock.list("data")
    if kind == "wasm":
        begun = begun.fetch()
    if kind in ("disaggregate", "collate"):
        begun = begun.aggregate(2)
    return stage(begun), len(begun.to_dict().get("stages", []))


def every_part() -> list[tuple[str, dict[str, Any], penstock.Document]]:
    """Pointer, arguments and an example document of each kind of part."""
    parts = [(f"/source/{kind}", given, getattr(penstock, kind)(**given)) for kind, given in SOURCES.items()]
    for kind, given in STAGES.items():
        document, place = in_context(kind, lambda begun: getattr(begun, kind)(**given))
        parts.append((f"/stages/{place}/{kind}", given, document))
    begun = penstock.list("data").batch(2)
    parts += [(f"/{kind}", given, getattr(begun, kind)(**given)) for kind, given in SINKS.items()]
    parts += [(f"/consumer/{kind}", given, getattr(begun, kind)(**given)) for kind, given in CONSUMERS.items()]
    parts += [("", given, begun.set(**given)) for given in DOCUMENT.values()]
    return parts


class Numbers(unittest.TestCase):
    def test_numbers_and_arrays_of_numpy_are_numbers_and_lists(self) -> None:
        document = penstock.range(numpy.int64(50), limit=numpy.uint8(40)).sleep(mean_ms=numpy.float32(0.5), fail_rate=numpy.float64(0))
        document = document.wasm("std/image", params={"ops": [{"Resize": {"size": numpy.array([8, 16])}}], "draft": numpy.bool_(True)})
        same = penstock.range(50, limit=40).sleep(mean_ms=0.5, fail_rate=0.0)
        same = same.wasm("std/image", params={"ops": [{"Resize": {"size": [8, 16]}}], "draft": True})
        self.assertEqual(document, same)
        self.assertEqual(penstock.Document.read({"source": {"range": {"count": numpy.int32(3)}}}).to_dict()["source"]["range"]["count"], 3)
        for value in (numpy.array([1, 2])[0], numpy.arange(3)[2:]):
            self.assertEqual(json.loads(json_of("it", {"value": value})), {"value": value.tolist()})

    def test_values_that_json_does_not_have_are_refused(self) -> None:
        for value in (numpy.float32("nan"), numpy.datetime64("2026-01-01"), numpy.complex64(1), object(), numpy.longdouble(1)):
            with self.assertRaisesRegex(penstock.InvalidPipeline, "cannot be written as JSON"):
                json_of("it", {"value": value})

    def test_numbers_of_numpy_in_settings(self) -> None:
        stages = [{"aggregate": {"size": 8}}, {"collate": {}}]
        settings = {"/stages/0/aggregate/size": numpy.int64(5)}
        pipeline = penstock.Pipeline({"source": {"range": {"count": 20}}, "stages": stages}, settings=settings)
        self.assertEqual([batch.size for batch in pipeline], [5, 5, 5, 5])


class Generated(unittest.TestCase):
    def test_the_parts_are_those_of_the_schema(self) -> None:
        schema = subprocess.run([wanted("PENSTOCK"), "schema"], check=True, capture_output=True, text=True, timeout=PATIENCE, env=clean())
        spec = importlib.util.spec_from_file_location("generate", ROOT / "runner/python/generate.py")
        assert spec is not None and spec.loader is not None
        generate = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(generate)
        self.assertEqual(PARTS.read_text(), generate.generated(json.loads(schema.stdout)), "run `make builders`")

    def test_the_tables_of_this_file_have_all_parts_with_all_arguments(self) -> None:
        whole = SOURCES | STAGES | SINKS | CONSUMERS | DOCUMENT
        own = {"batch", "pipeline", "read", "to_dict"}
        methods = {name for name in dir(penstock.Document) if not name.startswith("_")} - own
        self.assertEqual(methods, set(whole) - set(SOURCES))
        for kind, given in whole.items():
            declared = inspect.signature(getattr(penstock if kind in SOURCES else penstock.Document, kind)).parameters
            self.assertEqual(set(given), set(declared) - {"self"}, kind)
            for name, value in given.items():
                self.assertNotEqual(value, declared[name].default, f"{kind}: {name}")


class Parts(unittest.TestCase):
    def test_each_part_with_all_its_arguments_can_run(self) -> None:
        for pointer, given, document in every_part():
            with self.subTest(pointer):
                found: Any = document.to_dict()
                for step in filter(None, pointer.split("/")):
                    found = found[int(step) if step.isdecimal() else step]
                expected = {member(name): value for name, value in given.items()}
                self.assertEqual(found, {**found, **expected} if pointer == "" else expected)
                if pointer != "/source/index":
                    whole = document.to_dict()
                    for members in (whole["source"] or {}).values():
                        for name in {name for member in members for name in EXCLUDING.get(member, ())}:
                            members.pop(name, None)
                    result = checked(whole)
                    self.assertEqual(result.returncode, 0, result.stderr)

    def test_arguments_of_wrong_types_are_reported_by_pointer(self) -> None:
        for pointer, given, document in every_part():
            with self.subTest(pointer):
                spoiled: Any = document.to_dict()
                *steps, last = ["", *filter(None, pointer.split("/"))]
                part = spoiled
                for step in filter(None, [*steps, last]):
                    part = part[int(step) if step.isdecimal() else step]
                for name in given:
                    part[member(name)] = [[]]
                result = checked(spoiled)
                for name in given:
                    self.assertIn(f"{pointer}/{member(name)}", result.stderr)


class Documents(unittest.TestCase):
    def round_trip(self, document: dict[str, Any]) -> str:
        """Checks that a document read from JSON, and one made by running its `repr`, equal the document."""
        read = penstock.Document.read(document)
        self.assertEqual(read.to_dict(), document)
        self.assertEqual(eval(repr(read), {"penstock": penstock}), read, repr(read))
        return repr(read)

    def test_the_examples_are_equal_in_python(self) -> None:
        found = [path for path in sorted((ROOT / "examples").rglob("*.json")) if "source" in json.loads(path.read_text())]
        self.assertGreater(len(found), 20)
        for path in found:
            with self.subTest(path.name):
                self.assertEqual(penstock.Document.read(path), penstock.Document.read(str(path)))
                text = self.round_trip(json.loads(path.read_text()))
                # The document of a benchmark has members that a pipeline does not have.
                self.assertEqual("Document.read" in text, path.parent.name == "benchmarks", text)

    def test_any_parts_with_any_arguments_are_equal_in_python(self) -> None:
        chance = random.Random(15)

        def some(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
            kind = chance.choice([*parts])
            return {kind: {member(name): value for name, value in parts[kind].items() if chance.random() < 0.5 or name in NEEDED}}

        for _ in range(300):
            document: dict[str, Any] = {"source": some(SOURCES), **some(DOCUMENT)["set"]}
            if chance.random() < 0.9:
                document["stages"] = [some(STAGES) for _ in range(chance.randrange(6))]
            if chance.random() < 0.5:
                document |= some(SINKS)
            if chance.random() < 0.5:
                document["consumer"] = some(CONSUMERS)
            self.assertNotIn("Document.read", self.round_trip(document))

    def test_documents_that_no_part_can_write_are_kept_unchanged(self) -> None:
        documents: tuple[dict[str, Any], ...] = (
            {},
            {"source": {"list": {}}},
            {"source": {"range": {"count": 1}, "list": {"store": "x"}}},
            {"source": {"range": {"count": 1}}, "colour": "red"},
            {"source": {"range": {"count": 1}}, "stages": [{"blend": {}}]},
            {"source": {"range": {"count": 1}}, "stages": "none"},
            {"source": {"range": {"count": 1}}, "sink": None, "consumer": 3},
        )
        for document in documents:
            with self.subTest(document):
                self.assertTrue(self.round_trip(document).startswith("penstock.Document.read("))

    def test_invalid_documents_are_rejected(self) -> None:
        with folder() as here:
            (here / "broken.json").write_text('{"name": ')
            self.assertRaisesRegex(penstock.InvalidPipeline, "not JSON", penstock.Document.read, here / "broken.json")
            for number in ("NaN", "1e999"):
                (here / "number.json").write_text(f'{{"interval_s": {number}}}')
                self.assertRaisesRegex(penstock.InvalidPipeline, "cannot be written as JSON", penstock.Document.read, here / "number.json")
            (here / "list.json").write_text("[]")
            self.assertRaisesRegex(penstock.InvalidPipeline, "`list`; expected an object", penstock.Document.read, here / "list.json")
            self.assertRaisesRegex(penstock.InvalidPipeline, "cannot read", penstock.Document.read, here / "missing.json")
        self.assertRaisesRegex(penstock.InvalidPipeline, "of type `int`", penstock.Document.read, 3)

    def test_a_document_never_changes(self) -> None:
        params = {"size": 8}
        begun = penstock.range(4).wasm("plane", params=params)
        small, large = begun.batch(2), begun.batch(4)
        params["size"] = 9
        begun.to_dict()["stages"].clear()
        self.assertEqual(begun.to_dict()["stages"], [{"wasm": {"module": "plane", "params": {"size": 8}}}])
        self.assertEqual([part.to_dict()["stages"][1] for part in (small, large)], [{"aggregate": {"size": 2}}, {"aggregate": {"size": 4}}])
        self.assertNotEqual(small, large)
        self.assertEqual(small, begun.aggregate(2).collate())
        self.assertEqual(pickle.loads(pickle.dumps(small)), small)
        self.assertNotEqual(small, small.to_dict())

    def test_a_part_that_occurs_once_replaces_an_earlier_one(self) -> None:
        document = penstock.range(4).sink(queue=2).simulate(5).set(name="a", seed=1)
        self.assertEqual(document.sink(queue=3).stream().set(name="b").to_dict(), {
            "source": {"range": {"count": 4}}, "sink": {"queue": 3}, "consumer": {"stream": {}}, "name": "b", "seed": 1,
        })  # fmt: skip

    def test_batch_drops_the_last_incomplete_one_on_request(self) -> None:
        stages = penstock.range(4).batch(3, drop_last=True).to_dict()["stages"]
        self.assertEqual(stages, [{"aggregate": {"size": 3, "drop_last": True}}, {"collate": {}}])

    def test_unknown_and_missing_arguments_raise(self) -> None:
        document: Any = penstock.range(4)
        for call, why in (
            (lambda: document.fetch(concurency=8), "fetch.* unexpected keyword argument 'concurency'"),
            (lambda: document.fetch(8), "fetch.* positional argument"),
            (lambda: document.wasm(), "wasm.* missing 1 required positional argument: 'module'"),
            (lambda: penstock.tar(), "tar.* missing 1 required positional argument: 'store'"),  # type: ignore[call-arg]
        ):
            self.assertRaisesRegex(TypeError, why, call)
        with self.assertRaisesRegex(penstock.InvalidPipeline, "an argument of `wasm` cannot be written as JSON: .*PosixPath"):
            document.wasm(Path("plane.wasm"))
        with self.assertRaisesRegex(penstock.InvalidPipeline, "an argument of `set` cannot be written as JSON: .*float"):
            document.set(interval_s=float("nan"))


# Arguments without a default.
NEEDED = {"store", "count", "key", "sources", "module", "size", "mean_ms", "step_ms", "by", "paths"}


class Pipelines(unittest.TestCase):
    def test_a_document_in_python_gives_the_batches_of_the_dict(self) -> None:
        document = (
            penstock.list("photos", suffix=".jpg", shuffle=True)
            .set(name="photos", seed=7, threads=2)
            .fetch(concurrency=4, order="input")
            .wasm("std/image", params={"ops": image_ops(32)}, concurrency=2, order="input")
            .batch(8)
        )
        self.assertEqual(document.to_dict(), photo_document())
        stores = {"photos": photos()}
        pipeline = document.pipeline(stores=stores, max_held=4)
        self.assertEqual(pipeline.max_held, 4)
        wanted_batches = [content(batch) for batch in photo_pipeline()]
        self.assertEqual([content(batch) for batch in pipeline], wanted_batches)
        again = pickle.loads(pickle.dumps(penstock.Pipeline(document, stores=stores)))
        self.assertEqual([content(batch) for batch in again], wanted_batches)

    def test_a_deterministic_document_gives_the_same_batches_in_each_run(self) -> None:
        document = penstock.range(64).set(deterministic=True).sleep(mean_ms=2, shape="exponential", concurrency=8).batch(4)
        pipeline = document.pipeline()
        self.assertEqual(order_of(pipeline), list(range(64)))
        self.assertIn("in input order", pipeline.explain())
        mixed = penstock.range(64).set(deterministic=True).sleep(mean_ms=2, order="completion").batch(4)
        with self.assertRaisesRegex(penstock.InvalidPipeline, '/stages/0/sleep/order: found `completion`, .*"deterministic": true'):
            mixed.pipeline()

    def test_faults_are_reported_by_pointer(self) -> None:
        document = penstock.range(8).wasm("plane", order="random").batch(0)  # type: ignore[arg-type]
        with self.assertRaises(penstock.InvalidPipeline) as raised:
            document.pipeline(modules={"plane": plane_stage()})
        for pointer in ("/stages/0/wasm/order", "/stages/1/aggregate/size"):
            self.assertIn(pointer, str(raised.exception))

    def test_a_pipeline_explains_itself(self) -> None:
        document = penstock.Document.read(plane_document(80, epochs=2)).set(name="planes", threads=3)
        pipeline = document.pipeline(
            modules={"plane": plane_stage()}, rank=1, world=2, uneven="keep", settings={"/stages/1/aggregate/size": 8}, max_held=5
        )
        text = pipeline.explain()
        for part in ("planes: ", "3 worker threads", "rank 1 of 2, keeps", "2 epochs", "`plane`", "batches of 8 samples; 5 an epoch", "5 batches"):
            self.assertIn(part, text)
        self.assertLess(text.index("0:src"), text.index("1:plane"))
        self.assertLess(text.index("1:plane"), text.index("2:aggregate"))
        self.assertEqual(text, pipeline.explain())
        text = photo_pipeline().explain()
        for part in ("ending with `.jpg`", "in another order each epoch", "4 tasks at a time outside the worker threads", "`image`", str(photos())):
            self.assertIn(part, text)


if __name__ == "__main__":
    unittest.main()
