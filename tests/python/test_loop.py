"""Iteration over a pipeline: start, progress and end."""

import json
import os
import pickle
import sys
import threading
import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest import mock

import numpy
import penstock
from kit import (
    clean, content, fake_driver, finished, folder, module, order_of, photo_document, photo_pipeline, plane_document, plane_stage, planes, program, run_threads, slow,
    until,
)  # fmt: skip

# Program that prints the devices on which the batches of a pipeline arrive. Its argument is the device to request.
ARRIVES = """
import sys
import penstock
from kit import plane_document, plane_stage

document = plane_document(8)
document["stages"].append({"transfer": {}})
device = sys.argv[1] if len(sys.argv) > 1 else None
print({batch["plane"].device for batch in penstock.Pipeline(document, modules={"plane": plane_stage()}, device=device)})
"""


class Iterations(unittest.TestCase):
    def test_every_sample_comes_once(self) -> None:
        self.assertEqual(sorted(order_of(photo_pipeline())), list(range(48)))

    def test_len_is_the_number_of_batches(self) -> None:
        for batch, document in ((8, photo_document(batch=8)), (7, photo_document(batch=7)), (7, photo_document(batch=7, limit=20))):
            for drop_last in (False, True):
                document["stages"][2] = {"aggregate": {"size": batch, "drop_last": drop_last}}
                pipeline = photo_pipeline(document)
                with self.subTest(document["source"], drop_last=drop_last):
                    self.assertEqual(len(pipeline), sum(1 for _ in pipeline))

    def test_len_counts_passes_and_shares(self) -> None:
        for source in ({"epochs": 3}, {"shard": {"rank": 1, "world": 5}}, {"shard": {"rank": 1, "world": 5, "uneven": "keep"}}):
            pipeline = planes(42, source=source)
            with self.subTest(source):
                self.assertEqual(len(pipeline), sum(1 for _ in pipeline))

    def test_fields_and_what_is_left_out_come_from_the_source(self) -> None:
        with folder() as data:
            for name in ("cat/0.txt", "dog/0.txt"):
                (data / name).parent.mkdir()
                (data / name).write_text("x")
            stages = [{"fetch": {}}, {"aggregate": {"size": 2}}, {"collate": {}}]
            document = {"source": {"list": {"store": "d", "label": "folder"}}, "stages": stages}
            pipeline = penstock.Pipeline(document, stores={"d": data})
            self.assertIsInstance(pipeline.fields, dict)
            for name, field in pipeline.fields.items():
                self.assertIsInstance(field, penstock.Field, name)
            with self.assertRaisesRegex(penstock.PenstockError, "iterate over the pipeline first"):
                len(pipeline.left_out)
            self.assertEqual(sum(batch.size for batch in pipeline), 2)
            self.assertEqual((pipeline.left_out, pipeline.warnings), ({}, []))
            self.assertEqual(pipeline.fields.get("label", penstock.Field("int64", 0, False)), penstock.Field("int64", 0, False))

    def test_records_are_counted_once(self) -> None:
        with folder() as here:
            lines = ["\n"] + [json.dumps({"key": str(number), "number": number}) + "\n" for number in range(43)]
            (here / "numbers.ndjson").write_text("".join(lines))
            for source in ({}, {"epochs": 3}, {"shuffle": True}, {"limit": 20}, {"shard": {"rank": 1, "world": 5, "uneven": "keep"}}):
                document = {
                    "source": {"records": {"store": "here", "key": "numbers.ndjson", **source}},
                    "stages": [{"aggregate": {"size": 4}}, {"collate": {}}],
                }
                pipeline = penstock.Pipeline(document, stores={"here": here})
                with self.subTest(source):
                    self.assertEqual(len(pipeline), sum(1 for _ in pipeline))
            (here / "numbers.ndjson").write_text("")
            self.assertEqual(len(pipeline), 3, "the number is not counted again")

    def test_a_fan_out_has_no_length(self) -> None:
        silent = plane_stage().replace(b'"fan_out": false', b'"fan_out":  null')
        document = {
            "source": {"records": {"store": "here", "key": "texts.ndjson"}},
            "stages": [{"wasm": {"module": "m", "name": "m"}}, {"aggregate": {"size": 4}}, {"collate": {}}],
        }
        with folder() as here:
            (here / "texts.ndjson").write_text('{"key": "a", "text": "b"}\n' * 8)
            pipelines = [
                penstock.Pipeline(document, modules={"m": bytes_}, stores={"here": here})
                for bytes_ in (plane_stage(), silent, module("text-filter"))
            ]
            self.assertEqual(len(pipelines[0]), 2)
            # If the number of batches cannot be known, the lines of the source are not counted, so the file may be missing.
            (here / "texts.ndjson").unlink()
            for pipeline, expected in zip(pipelines[1:], ("`1:m` does not state.*`fan_out`", "`1:m` may make several samples"), strict=True):
                with self.assertRaisesRegex(TypeError, expected):
                    len(pipeline)

    def test_an_endless_run_has_no_length(self) -> None:
        endless = planes(8, source={"epochs": None})
        with self.assertRaisesRegex(TypeError, "no last batch"):
            len(endless)
        epochs = [batch.epoch for _, batch in zip(range(6), endless)]
        self.assertEqual(epochs, [0, 0, 1, 1, 2, 2])

    def test_each_iteration_is_the_next_pass_in_another_order(self) -> None:
        pipeline = photo_pipeline()
        orders = []
        for epoch in range(3):
            self.assertEqual(pipeline.epoch, epoch)
            orders.append([])
            for batch in pipeline:
                self.assertEqual(batch.epoch, epoch)
                orders[-1] += batch.indexes
        self.assertEqual([sorted(order) for order in orders], [list(range(48))] * 3)
        self.assertEqual(len(set(map(tuple, orders))), 3)
        self.assertEqual(order_of(photo_pipeline(epoch=2)), orders[2], "a resumed training gets the same order")
        pipeline.epoch = 1
        self.assertEqual(order_of(pipeline), orders[1])

    def test_a_run_of_several_passes_advances_the_epoch_by_as_many(self) -> None:
        pipeline = planes(8, source={"epochs": 3, "shuffle": True}, epoch=4)
        self.assertEqual([batch.epoch for batch in pipeline], [4, 4, 5, 5, 6, 6])
        self.assertEqual([batch.epoch for batch in pipeline], [7, 7, 8, 8, 9, 9])

    def test_an_endless_run_continues_with_the_next_pass(self) -> None:
        endless = planes(8, source={"epochs": None})
        for epoch in (0, 1, 2):
            with self.subTest(epoch):
                self.assertEqual([batch.epoch for _, batch in zip(range(2), endless)], [epoch, epoch])

    def test_two_pipelines_at_once(self) -> None:
        alone = [content(batch) for batch in photo_pipeline()]
        first, other = iter(photo_pipeline()), iter(photo_pipeline())
        pairs = [(content(one), content(two)) for one, two in zip(first, other, strict=True)]
        self.assertEqual(pairs, [(batch, batch) for batch in alone])

    def test_a_second_loop_at_the_same_time_raises_with_a_remedy(self) -> None:
        pipeline = planes(40)
        batches = iter(pipeline)
        self.assertEqual(next(batches).indexes, [0, 1, 2, 3])
        with self.assertRaisesRegex(penstock.PenstockError, "is still active.*second `Pipeline`"):
            next(iter(pipeline))
        self.assertEqual((next(batches).indexes, pipeline.epoch), ([4, 5, 6, 7], 1), "the first loop is not affected")
        batches.close()
        self.assertEqual([batch.epoch for batch in pipeline], [1] * 10)

    def test_a_run_begins_with_its_first_batch_and_ends_when_its_iterator_is_dropped(self) -> None:
        pipeline = planes(1000)
        # Progress bars may create an iterator that they do not use.
        unused, batches = iter(pipeline), iter(pipeline)
        self.assertEqual(pipeline.epoch, 0)
        next(batches)
        self.assertEqual((pipeline.epoch, pipeline.stats()["state"]), (1, "running"))
        del batches
        self.assertEqual(pipeline.stats()["state"], "stopped")
        self.assertEqual(sum(1 for _ in unused), 250)

    def test_a_pipeline_without_batches_or_length_is_true(self) -> None:
        self.assertTrue(planes(0))
        self.assertTrue(planes(8, source={"epochs": None}))

    def test_threads_share_the_batches_of_a_run(self) -> None:
        for count, max_held in ((2, 16), (5, 2)):
            run = planes(200, batch=2, max_held=max_held)._start()
            seen: list[int] = []

            def take() -> None:
                while (batch := run.next()) is not None:
                    seen.extend(batch.indexes)
                    del batch

            takers = [threading.Thread(target=take) for _ in range(count)]
            for taker in takers:
                taker.start()
            for taker in takers:
                taker.join(30)
            with self.subTest(threads=count, max_held=max_held):
                self.assertEqual(sorted(seen), list(range(200)))

    def test_two_threads_iterate_over_separate_pipelines(self) -> None:
        orders: list[list[int]] = []
        takers = [threading.Thread(target=lambda: orders.append(order_of(photo_pipeline()))) for _ in range(2)]
        for taker in takers:
            taker.start()
        for taker in takers:
            taker.join(30)
        self.assertEqual([sorted(one) for one in orders], [list(range(48))] * 2)


class Ends(unittest.TestCase):
    def ends(self) -> None:
        try:
            until(lambda: run_threads() == [], "the threads of the run end", 5)
        except AssertionError:
            self.fail(f"these threads are still running: {run_threads()}")

    def is_over(self, pipeline: penstock.Pipeline, state: str) -> None:
        self.assertEqual(pipeline.stats()["state"], state)
        self.assertTrue(pipeline.stats()["ledger"]["balanced"])
        self.ends()

    def test_the_end_of_the_data(self) -> None:
        pipeline = planes(8)
        self.assertEqual(len(list(pipeline)), 2)
        self.is_over(pipeline, "completed")

    def test_an_early_break(self) -> None:
        pipeline = planes(1000)
        for batch in pipeline:
            plane = numpy.from_dlpack(batch["plane"])
            break
        self.is_over(pipeline, "stopped")
        self.assertEqual(plane[0, 0, 5], 5)
        self.assertEqual(len([batch for _, batch in zip(range(3), pipeline)]), 3, "a new iteration is a new run")

    def test_an_exception_in_the_loop(self) -> None:
        pipeline = planes(1000)
        with self.assertRaises(ZeroDivisionError):
            for _ in pipeline:
                1 / 0
        self.is_over(pipeline, "stopped")

    def test_close_ends_the_iteration(self) -> None:
        pipeline = planes(1000)
        batches = iter(pipeline)
        next(batches)
        pipeline.close()
        self.is_over(pipeline, "stopped")
        self.assertEqual(list(batches), [])
        pipeline.close()

    def test_close_from_another_thread_ends_a_wait(self) -> None:
        pipeline = slow()
        threading.Timer(0.3, pipeline.close).start()
        begin = time.monotonic()
        self.assertEqual(list(pipeline), [])
        self.assertLess(time.monotonic() - begin, 3)
        self.is_over(pipeline, "stopped")

    def test_a_context_manager_closes(self) -> None:
        with planes(1000) as pipeline:
            batches = iter(pipeline)
            next(batches)
        self.is_over(pipeline, "stopped")

    def test_close_before_any_iteration_does_nothing(self) -> None:
        planes(8).close()

    def test_a_run_ends_when_its_iterator_is_dropped(self) -> None:
        batches = iter(planes(1000))
        next(batches)
        self.assertNotEqual(run_threads(), [])
        del batches
        self.ends()

    def test_a_dropped_run_releases_the_pipeline(self) -> None:
        loader = planes(1000)._loader
        run = loader.start(0)
        run.next()
        del run
        self.ends()
        loader.start(1).close()

    def test_a_failing_run_raises_its_error_after_its_batches(self) -> None:
        document = {
            "name": "failing",
            "source": {"range": {"count": 100}},
            "stages": [{"sleep": {"mean_ms": 0.1, "fail_rate": 1, "on_error": "fail"}}, {"aggregate": {"size": 1}}, {"collate": {}}],
        }
        pipeline = penstock.Pipeline(document)
        with self.assertRaisesRegex(penstock.RunFailed, "1:sleep"):
            list(pipeline)
        self.is_over(pipeline, "failed")

    def test_too_many_failures_raise_after_the_finished_batches(self) -> None:
        document = photo_document(batch=1)
        document["stages"].insert(1, {"sleep": {"mean_ms": 0.1, "fail_rate": 0.5, "order": "input"}})
        document["max_failures"] = {"count": 5}
        pipeline = photo_pipeline(document)
        taken = 0
        with self.assertRaisesRegex(penstock.RunFailed, "5"):
            for _ in pipeline:
                taken += 1
        self.assertGreater(taken, 0)
        self.is_over(pipeline, "failed")


class Held(unittest.TestCase):
    def test_holding_too_many_batches_raises_with_their_number(self) -> None:
        begin = time.monotonic()
        with self.assertRaisesRegex(penstock.BatchesHeld, "^3 batches .*`max_held`.*copy"):
            list(planes(100, max_held=3))
        self.assertLess(time.monotonic() - begin, 10)

    def test_a_batch_that_arrives_while_too_many_are_held_is_returned_by_the_next_call(self) -> None:
        run = planes(20, max_held=2)._start()
        kept = [run.next(), run.next()]
        with self.assertRaises(penstock.BatchesHeld):
            run.next()
        kept.clear()
        rest = []
        while (batch := run.next()) is not None:
            rest += batch.indexes
            del batch
        self.assertEqual(rest, list(range(8, 20)))

    def test_batches_that_arrive_in_several_threads_while_too_many_are_held_are_not_lost(self) -> None:
        run = planes(40, max_held=2)._start()
        kept = [run.next(), run.next()]
        told: list[Exception] = []

        def ask() -> None:
            try:
                run.next()
            except penstock.BatchesHeld as error:
                told.append(error)

        askers = [threading.Thread(target=ask) for _ in range(3)]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join(30)
        self.assertEqual(len(told), 3)
        kept.clear()
        rest = []
        while (batch := run.next()) is not None:
            rest += batch.indexes
            del batch
        self.assertEqual(sorted(rest), list(range(8, 40)))

    def test_max_held_batches_can_be_kept(self) -> None:
        self.assertEqual(len(list(planes(12, max_held=3))), 3, "no further batch needs memory")

    def test_a_batch_dropped_by_another_thread_in_time_lets_the_loop_continue(self) -> None:
        kept = []
        batches = iter(planes(100, max_held=3))
        kept += [numpy.from_dlpack(next(batches)["plane"]) for _ in range(3)]
        begin = time.monotonic()
        threading.Timer(0.5, kept.clear).start()
        self.assertEqual(next(batches).size, 4)
        self.assertGreater(time.monotonic() - begin, 0.4)

    def test_arrays_count_as_their_batch(self) -> None:
        batches = iter(planes(100, max_held=2))
        for _ in range(20):
            batch = next(batches)
            several = [batch["plane"], numpy.from_dlpack(batch["plane"]), batch["plane"].__dlpack__()]
            del batch, several

    def test_two_are_enough_for_a_loop(self) -> None:
        self.assertEqual(sum(batch.size for batch in planes(100, max_held=2)), 100)


class Ranks(unittest.TestCase):
    ENVIRONMENT = (("PENSTOCK_SHARD", "PENSTOCK_SHARDS"), ("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"))

    def setUp(self) -> None:
        patch = mock.patch.dict(os.environ, clean(), clear=True)
        patch.start()
        self.addCleanup(patch.stop)

    def test_ranks_share_the_source(self) -> None:
        whole = order_of(planes(24, source={"shuffle": True}))
        shares = [order_of(planes(24, source={"shuffle": True}, rank=rank, world=3)) for rank in range(3)]
        self.assertEqual([list(together) for together in zip(*shares, strict=True)], [whole[at : at + 3] for at in range(0, 24, 3)])

    def test_the_variables_of_each_launcher_are_read(self) -> None:
        for rank, world in self.ENVIRONMENT:
            with self.subTest(rank), mock.patch.dict(os.environ, {rank: "1", world: "3", "SLURM_STEP_ID": "0"}):
                self.assertEqual(order_of(planes(9)), [1, 4, 7])

    def test_a_batch_script_of_slurm_is_not_a_task(self) -> None:
        with mock.patch.dict(os.environ, {"SLURM_PROCID": "0", "SLURM_NTASKS": "3", "SLURM_LOCALID": "0"}):
            self.assertEqual(order_of(planes(3)), [0, 1, 2])

    def test_a_pipeline_reports_its_rank(self) -> None:
        alone, one = planes(9), planes(9, rank=1, world=3)
        self.assertEqual([(pipeline.rank, pipeline.world) for pipeline in (alone, one)], [(0, 1), (1, 3)])
        self.assertEqual([repr(alone), repr(one)], ["<penstock.Pipeline 'planes'>", "<penstock.Pipeline 'planes', rank 1 of 3>"])

    def test_the_rank_is_found_on_first_use_and_kept(self) -> None:
        launched = planes(12)
        with mock.patch.dict(os.environ, {"RANK": "2", "WORLD_SIZE": "4"}):
            self.assertEqual(len(launched), 1)
        self.assertEqual((launched.rank, launched.world, order_of(launched)), (2, 4, [2, 6, 10]))

    def test_torch_comes_before_the_launcher(self) -> None:
        with mock.patch.dict(os.environ, {"RANK": "2", "WORLD_SIZE": "4"}), torch_with_rank(rank=1, world=3):
            self.assertEqual(order_of(planes(9, ends="alone")), [1, 4, 7])

    def test_a_world_without_a_rank_raises(self) -> None:
        for rank, world in self.ENVIRONMENT:
            with self.subTest(world), mock.patch.dict(os.environ, {world: "3", "SLURM_STEP_ID": "0"}):
                pipeline = planes(9, ends="alone")
                for use in (iter, len):
                    with self.assertRaisesRegex(penstock.InvalidPipeline, f"{world}=3, but not {rank}.*torch.distributed"):
                        use(pipeline)
                with torch_with_rank(rank=1, world=3):
                    self.assertEqual(order_of(pipeline), [1, 4, 7])
        with mock.patch.dict(os.environ, {"WORLD_SIZE": "1"}):
            self.assertEqual(order_of(planes(3)), [0, 1, 2])

    def test_a_document_that_contradicts_the_launcher_raises(self) -> None:
        shard = {"rank": 0, "world": 2}
        with mock.patch.dict(os.environ, {"RANK": "1", "WORLD_SIZE": "2"}):
            with self.assertRaisesRegex(penstock.InvalidPipeline, "document has rank 0 of 2, but the launcher's environment has rank 1 of 2"):
                iter(planes(9, source={"shard": shard}))
            with self.assertRaisesRegex(penstock.InvalidPipeline, "but `torch.distributed` has rank 0 of 3"), torch_with_rank(rank=0, world=3):
                iter(planes(9, source={"shard": shard}))
            self.assertEqual(order_of(planes(8, source={"shard": {"rank": 1, "world": 2}})), [1, 3, 5, 7])
        self.assertEqual(order_of(planes(8, source={"shard": shard})), [0, 2, 4, 6])

    def test_a_pickled_pipeline_is_the_same_one(self) -> None:
        pipeline = planes(9, source={"shuffle": True}, uneven="keep", epoch=3)
        with mock.patch.dict(os.environ, {"RANK": "1", "WORLD_SIZE": "2"}):
            self.assertEqual(len(pipeline), 1)
        copy = pickle.loads(pickle.dumps(pipeline))
        self.assertEqual((copy.rank, copy.world, copy.epoch), (1, 2, 3))
        self.assertEqual(order_of(copy), order_of(pipeline))
        with torch_with_rank(rank=2, world=3):
            pickled = pickle.dumps(planes(9, ends="alone"))
        self.assertEqual(order_of(pickle.loads(pickled)), [2, 5, 8])
        # If the rank is not known yet, the process that unpickles the pipeline determines it.
        pickled = pickle.dumps(planes(9, ends="alone"))
        with torch_with_rank(rank=2, world=3):
            self.assertEqual(order_of(pickle.loads(pickled)), [2, 5, 8])

    def test_workers_of_a_data_loader_read_no_sample_twice(self) -> None:
        with torch_worker(1, 2), self.assertRaisesRegex(penstock.InvalidPipeline, "worker 1 of 2 of a DataLoader.*num_workers=0"):
            iter(planes(9, rank=0, world=1))
        shares = []
        for worker in range(2):
            with torch_worker(worker, 2):
                shares.append(order_of(planes(9, rank=1, world=2, workers="share", uneven="keep")))
        self.assertEqual(shares, [[2, 6], [3, 7]])
        with torch_worker(1, 2):
            self.assertEqual(order_of(planes(3, workers="all")), [0, 1, 2])
        with torch_worker(0, 1):
            self.assertEqual(order_of(planes(3)), [0, 1, 2])

    def test_no_sample_is_lost_over_uneven_ranks(self) -> None:
        shares = [order_of(planes(16, rank=rank, world=7, uneven="keep")) for rank in range(7)]
        self.assertEqual(sorted(sum(shares, [])), list(range(16)))
        dropped = planes(9, rank=0, world=2, uneven="drop", source={"shard": {"rank": 0, "world": 2, "uneven": "keep"}})
        self.assertEqual(order_of(dropped), [0, 2, 4, 6])

    def test_the_first_complete_pair_of_variables_counts(self) -> None:
        with mock.patch.dict(os.environ, {"PENSTOCK_SHARD": "2", "RANK": "1", "WORLD_SIZE": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "3"}):
            self.assertEqual(order_of(planes(9)), [1, 4, 7])

    def test_an_argument_takes_precedence_over_environment_and_document(self) -> None:
        with mock.patch.dict(os.environ, {"RANK": "1", "WORLD_SIZE": "3"}):
            self.assertEqual(order_of(planes(9, rank=0, world=2, source={"shard": {"rank": 1, "world": 2}})), [0, 2, 4, 6])

    def test_a_rank_argument_keeps_the_documents_uneven(self) -> None:
        shard = {"rank": 0, "world": 2, "uneven": "keep"}
        self.assertEqual(order_of(planes(9, rank=0, world=2, source={"shard": shard})), [0, 2, 4, 6, 8])


@contextmanager
def torch_with_rank(rank: int, world: int) -> Iterator[None]:
    """Simulates an initialised process group of PyTorch; the tests of `make test-frameworks` use a real one."""
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: rank, get_world_size=lambda: world)
    with mock.patch.dict(sys.modules, {"torch.distributed": group}):
        yield


@contextmanager
def torch_worker(worker: int, of: int) -> Iterator[None]:
    """Simulates a worker process of PyTorch's DataLoader."""
    data = SimpleNamespace(get_worker_info=lambda: SimpleNamespace(id=worker, num_workers=of))
    with mock.patch.dict(sys.modules, {"torch.utils.data": data}):
        yield


class Devices(unittest.TestCase):
    def arrives(self, *arguments: str, **variables: str) -> str:
        code, output, errors = finished(program(ARRIVES, *arguments, variables=variables))
        self.assertEqual(code, 0, errors)
        return output.strip()

    def test_a_device_argument_takes_precedence_over_the_document(self) -> None:
        document = plane_document(8)
        document["stages"].append({"transfer": {"device": "cuda:999"}})
        pipeline = penstock.Pipeline(document, modules={"plane": plane_stage()}, device="host")
        self.assertEqual({batch["plane"].device for batch in pipeline}, {"cpu"})

    def test_without_a_gpu_the_rank_on_a_machine_changes_nothing(self) -> None:
        self.assertEqual(self.arrives(LOCAL_RANK="1", CUDA_VISIBLE_DEVICES=""), "{'cpu'}")

    def test_each_rank_of_a_machine_takes_its_own_gpu_if_there_are_enough(self) -> None:
        driver = {"LD_LIBRARY_PATH": str(fake_driver()), "FAKE_CUDA_DEVICES": "2"}
        self.assertEqual(self.arrives(**driver), "{'cuda:0'}")
        self.assertEqual(self.arrives(LOCAL_RANK="1", **driver), "{'cuda:1'}")
        self.assertEqual(self.arrives(SLURM_LOCALID="1", SLURM_STEP_ID="0", **driver), "{'cuda:1'}")
        self.assertEqual(self.arrives(LOCAL_RANK="2", **driver), "{'cuda:0'}", "the launcher shows each rank only its own GPU")
        self.assertEqual(self.arrives("cuda:0", LOCAL_RANK="1", **driver), "{'cuda:0'}")


if __name__ == "__main__":
    unittest.main()
