"""Figures, verdict and headspace of a pipeline."""

import itertools
import threading
import time
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import penstock
from kit import planes, slow


class Figures(unittest.TestCase):
    def test_there_are_no_figures_before_the_first_iteration(self) -> None:
        with self.assertRaisesRegex(penstock.PenstockError, "iterate"):
            planes(8).stats()

    def test_figures_are_available_during_a_run_and_after_it(self) -> None:
        pipeline = planes(400, step_ms=2)
        batches = iter(pipeline)
        next(batches)
        stats = pipeline.stats()
        self.assertEqual((stats["name"], stats["state"], stats["expected"]), ("planes", "running", 400))
        self.assertEqual(sum(1 for _ in batches), 99)
        stats = pipeline.stats()
        self.assertEqual((stats["state"], stats["error"]), ("completed", None))
        self.assertEqual([stage["name"] for stage in stats["stages"]], ["sleep", "plane", "aggregate", "collate"])
        self.assertEqual((stats["ledger"]["total"]["made"], stats["ledger"]["total"]["delivered"]), (400, 400))
        self.assertEqual(stats["queues"][-1]["num_items"], 100)

    def test_another_thread_can_read_figures_while_the_run_ends(self) -> None:
        pipeline = planes(8)
        seen: list[str] = []

        def look(is_over: threading.Event) -> None:
            while not is_over.is_set():
                seen.append(pipeline.stats()["state"])

        next(iter(pipeline))
        for _ in range(20):
            is_over = threading.Event()
            with ThreadPoolExecutor(1) as other:
                looking = other.submit(look, is_over)
                try:
                    for _ in pipeline:
                        pass
                finally:
                    is_over.set()
                looking.result()
        self.assertLessEqual(set(seen), {"running", "draining", "completed", "stopped"})

    def test_the_sink_queue_reports_the_wait_of_the_loop(self) -> None:
        # On a busy machine a thread may wait longer than the queue measures, so the test makes several attempts.
        for _ in range(3):
            pipeline = planes(40, step_ms=5)
            batches = iter(pipeline)
            waited, begin = 0.0, time.monotonic()
            while next(batches, None) is not None:
                waited += time.monotonic() - begin
                time.sleep(0.002)
                begin = time.monotonic()
            sink = pipeline.stats()["queues"][-1]
            metered = sink["num_items"] * sink["ave_get_time_s"]
            self.assertLessEqual(metered, waited + 0.001)
            if metered > 0.9 * waited:
                return
        self.fail(f"{metered} s of {waited} s")

    def test_the_verdict_names_a_slow_loader(self) -> None:
        pipeline = planes(160, step_ms=4)
        for _ in pipeline:
            pass
        self.assertIn("Data loading is the bottleneck: stage `1:sleep`", pipeline.verdict())

    def test_the_verdict_names_a_slow_loop(self) -> None:
        pipeline = planes(200)
        for _ in pipeline:
            time.sleep(0.02)
        self.assertIn("data loading is not", pipeline.verdict())


class Headspace(unittest.TestCase):
    def test_a_loader_that_keeps_up_is_enough(self) -> None:
        pipeline = planes(40_000, batch=1, epoch=3)
        # The threshold is a difference of 2 %, which a busy machine can cause, so the test makes several attempts.
        for _ in range(8):
            found = penstock.headspace(pipeline, lambda batch: time.sleep(0.1), seconds=1.2)
            self.assertGreater(found.feeds, 2)
            self.assertEqual(str(found), found.sentence)
            self.assertEqual(pipeline.epoch, 3, "a measurement is not a training")
            if found.is_enough and abs(found.real_rate - 10) < 1.5:
                return
        self.fail(str(found))

    def test_a_loader_that_does_not_keep_up_is_not(self) -> None:
        # The loader needs 10 ms per batch, the loop 1 ms. The result is compared with the rate that the test measures right
        # afterwards. On a busy machine, times vary by half and more from moment to moment; counting samples instead of batches
        # would be off by a factor of four.
        for _ in range(4):
            found = penstock.headspace(planes(40_000, step_ms=2.5), lambda batch: time.sleep(0.001), seconds=1.5)
            self.assertLess(found.loader_rate, 110)
            begin = time.monotonic()
            rate = sum(1 for _ in planes(400, step_ms=2.5)) / (time.monotonic() - begin)
            is_reported = not found.is_enough and found.to_gain > 2 and found.feeds < 0.4
            if is_reported and 0.4 < found.loader_rate / rate < 2.5:
                return
        self.fail(f"{found} of {found.loader_rate} instead of {rate} batches/s")

    def test_a_loop_that_may_hold_two_batches_cannot_be_measured(self) -> None:
        with self.assertRaisesRegex(penstock.PenstockError, "`max_held` is 2; .* 3 or more"):
            penstock.headspace(planes(8, max_held=2), print)

    def test_a_measurement_may_take_longer_than_one_pass(self) -> None:
        pipeline = planes(8)
        steps = []

        def step(batch: penstock.Batch) -> None:
            steps.append(batch.epoch)
            time.sleep(0.005)

        found = penstock.headspace(pipeline, step, seconds=0.4)
        self.assertLess(found.real_rate, 210)
        # A pass has only two batches, so the measurements repeat it.
        self.assertGreater(len(steps), 4)
        self.assertEqual(pipeline.epoch, 0)

    def test_a_measurement_holds_at_most_max_held_batches(self) -> None:
        found = penstock.headspace(planes(40_000, max_held=3), lambda batch: time.sleep(0.002), seconds=0.3)
        self.assertGreater(found.consumer_rate, 0)

    def test_a_loader_without_batches_in_time_raises(self) -> None:
        with self.assertRaisesRegex(penstock.PenstockError, "delivered no batches"):
            penstock.headspace(planes(0), print, seconds=0.1)

    def test_a_failure_of_the_loader_alone_raises(self) -> None:
        document = {
            "name": "failing",
            "source": {"range": {"count": 40_000}},
            "stages": [{"sleep": {"mean_ms": 0.1, "fail_rate": 0.5}}, {"aggregate": {"size": 1}}, {"collate": {}}],
            # Only the measurement of the loader alone reaches this limit: it processes more samples than that of the loop.
            "max_failures": {"count": 150},
        }
        with self.assertRaisesRegex(penstock.RunFailed, "150"):
            penstock.headspace(penstock.Pipeline(document), lambda batch: time.sleep(0.1), seconds=1.5)

    def test_contradicting_rates_are_measured_again_and_then_raise(self) -> None:
        def slow(kept: list[penstock.Batch]) -> Iterator[penstock.Batch]:
            """Simulates a machine that is busy while the loop alone is measured: delivers these batches slowly."""
            tries.append(len(kept))
            for batch in itertools.cycle(kept):
                time.sleep(0.3)
                yield batch

        tries: list[int] = []
        with mock.patch("penstock._headspace.cycle", slow):
            with self.assertRaisesRegex(penstock.PenstockError, "contradict each other: .* by the consumer alone.*`seconds`"):
                penstock.headspace(planes(40_000), lambda batch: None, seconds=1.2)
        self.assertEqual(len(tries), 3)

    def test_an_exception_of_the_step_is_raised(self) -> None:
        pipeline = slow(step_ms=1)
        with self.assertRaises(ZeroDivisionError):
            penstock.headspace(pipeline, lambda batch: 1 / 0, seconds=0.2)
        self.assertEqual(pipeline.stats()["state"], "stopped")


if __name__ == "__main__":
    unittest.main()
