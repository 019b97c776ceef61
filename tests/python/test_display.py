"""Views of a pipeline in notebooks and terminals."""

import contextlib
import io
import re
import signal
import sys
import threading
import types
import unittest
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterator
from html import escape
from typing import Any
from unittest import mock

import penstock
from kit import plane_document, plane_stage, planes, run_threads, slow, until
from penstock._display import RunView, _progress, pipeline_html, readiness_chart


def html_of(view: Any) -> str:
    html = view._repr_html_()
    assert isinstance(html, str)
    return html


def tree(html: str) -> xml.Element:
    """Parses HTML, which must be well-formed XML."""
    return xml.fromstring(html)


def svgs(html: str) -> list[xml.Element]:
    return list(tree(html).iter("{http://www.w3.org/2000/svg}svg"))


def cells(html: str) -> list[list[str]]:
    return [[cell.text or "" for cell in row] for row in tree(html).iter("tr")]


class Terminal(io.StringIO):
    """Replacement for standard error that behaves like a terminal."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def notebook(on_update: Callable[[Any], None] = lambda view: None) -> Iterator[list[Any]]:
    """Simulates IPython with a kernel. Returns the displayed views, in order."""
    shown: list[Any] = []

    def update(view: Any) -> None:
        shown.append(view)
        on_update(view)

    def display(view: Any, *, display_id: bool) -> Any:
        assert display_id, "without an id there is no update"
        shown.append(view)
        return types.SimpleNamespace(update=update)

    ipython, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    vars(ipython).update(get_ipython=lambda: types.SimpleNamespace(kernel=object()), display=module)
    vars(module).update(display=display)
    with mock.patch.dict(sys.modules, {"IPython": ipython, "IPython.display": module}):
        yield shown


class Parts(unittest.TestCase):
    def test_before_a_run_the_parts_are_shown_with_their_settings(self) -> None:
        pipeline = planes(40, step_ms=1, settings={"/stages/2/aggregate/size": 5, "/sink": {"queue": 7}})
        html = html_of(pipeline)
        self.assertEqual(
            cells(html),
            [
                ["Part", "Kind", "Settings"],
                ["0", "range", "count 40"],
                ["1", "sleep", "mean_ms 1, on async"],
                ["2", "wasm", "module plane"],
                ["3", "aggregate", "size 5"],
                ["4", "collate", ""],
                ["5", "sink", "queue 7"],
            ],
        )
        self.assertEqual(svgs(html), [])

    def test_the_parts_are_shown_with_the_requested_device_and_threads(self) -> None:
        document = plane_document(8)
        document["stages"].append({"transfer": {}})
        changed = penstock.Pipeline(document, modules={"plane": plane_stage()}, threads=2, device="host", settings={"/seed": 5})
        html = html_of(changed)
        self.assertEqual(cells(html)[5], ["4", "transfer", "device host"])
        self.assertEqual([text.text for text in tree(html).iter("p")], ["seed 5, threads 2"])

    def test_after_a_run_parts_have_figures(self) -> None:
        pipeline = planes(40, step_ms=1)
        self.assertEqual(sum(1 for _ in pipeline), 10)
        stats, html = pipeline.stats(), html_of(pipeline)
        rows = cells(html)[1:]
        self.assertEqual([row[0] for row in rows], ["0:src", "1:sleep", "2:plane", "3:aggregate", "4:collate", "5:sink"])
        self.assertEqual([row[5] for row in rows], [str(queue["capacity"]) for queue in stats["queues"]])
        self.assertEqual([row[6] for row in rows], [f"{100 * queue['readiness']:.1f} %" for queue in stats["queues"]])
        self.assertIn("planes completed", html)
        self.assertIn("40 samples in 10 batches", html)
        self.assertIn("busiest stage 1:sleep", html)
        # An aggregate only moves samples, so its time is not measured.
        self.assertEqual(rows[3][4], "–")

    def test_the_verdict_is_that_of_the_run_and_comes_with_advice(self) -> None:
        pipeline = planes(160, step_ms=4)
        for _ in pipeline:
            pass
        html = html_of(pipeline)
        self.assertIn(re.sub("`([^`]+)`", r"<code>\1</code>", escape(pipeline.verdict().sentence)), html)
        advice = pipeline.stats()["verdict"]["advice"]
        self.assertGreater(len(advice), 0)
        self.assertEqual(len(list(tree(html).iter("li"))), len(advice))

    def test_the_chart_has_a_bar_for_each_queue(self) -> None:
        pipeline = planes(40, step_ms=1)
        for _ in pipeline:
            pass
        (chart,) = svgs(html_of(pipeline))
        bars = [group.findall("{*}rect") for group in chart.findall("{*}g")]
        widths = [float(filled.get("width", "")) / float(track.get("width", "")) for track, filled in bars]
        queues = pipeline.stats()["queues"]
        self.assertEqual(len(widths), len(queues))
        for width, queue in zip(widths, queues):
            self.assertAlmostEqual(width, queue["readiness"], places=3)
        self.assertEqual((chart.get("role"), chart.findtext("{*}title")), ("img", chart.get("aria-label")))
        self.assertIn("1:sleep", chart.get("aria-label", ""))
        # This colour is readable on light and dark pages.
        self.assertEqual(chart.get("fill"), "currentColor")

    def test_a_queue_that_was_not_measured_has_a_dash(self) -> None:
        chart = xml.fromstring(readiness_chart([{"id": "0:src_queue", "readiness": None, "starved": None}]))
        texts = [text.text for text in chart.findall("{*}g/{*}text")]
        self.assertEqual(texts, ["0:src", "–"])

    def test_long_names_keep_to_their_column(self) -> None:
        name = "1:" + "decode" * 10
        chart = xml.fromstring(readiness_chart([{"id": f"{name}_queue", "readiness": 0.5, "starved": 0.0}]))
        shown = chart.findtext("{*}g/{*}text") or ""
        self.assertEqual((len(shown), shown[-1]), (28, "…"))
        self.assertIn(f"{name}: ", chart.findtext("{*}g/{*}title") or "")

    def test_text_of_a_document_is_escaped(self) -> None:
        stage = {"sleep": {"mean_ms": 1, "fail_rate": 1.0}}
        source = {"records": {"store": "here", "key": "<script>alert(1)</script>.ndjson"}}
        html = pipeline_html({"source": source, "stages": [stage]}, None)
        self.assertEqual(cells(html)[1][2], "store here, key <script>alert(1)</script>.ndjson")
        self.assertNotIn("<script", html)
        failed = {**self.stats(), "state": "failed", "error": "store has no object `<b>`"}
        self.assertIn("&lt;b&gt;", html_of(RunView(failed)))
        self.assertNotIn("<b>", html_of(RunView(failed)))

    def test_progress_is_the_share_of_samples_that_have_left(self) -> None:
        # Columns: expected by the source, made by the source, made by all stages, left in the pipeline, discarded; progress.
        table = [
            (10, 0, 0, 0, 0, 0.0),
            (10, 8, 8, 3, 0, 0.5),
            (10, 10, 10, 0, 0, 1.0),
            (10, 10, 10, 0, 5, 0.5),
            # Each sample becomes three.
            (10, 5, 15, 5, 0, 0.5),
            (10, 10, 30, 15, 0, 0.5),
            (10, 10, 30, 0, 0, 1.0),
            (None, 10, 10, 0, 0, None),
            (0, 0, 0, 0, 0, None),
        ]
        for expected, by_source, made, left, discarded, progress in table:
            with self.subTest(expected=expected, by_source=by_source, made=made, left=left, discarded=discarded):
                ledger = {"total": {"made": made, "left": left, "discarded": discarded}, "stages": [{"made": by_source}]}
                self.assertEqual(_progress({"expected": expected, "ledger": ledger}), progress)

    def test_samples_that_are_not_delivered_are_counted(self) -> None:
        stats = self.stats()
        stats["ledger"]["total"].update(delivered=1200, skipped=3, dropped=0)
        told = repr(RunView(stats))
        self.assertIn("1,200 samples", told)
        self.assertIn("3 skipped", told)
        self.assertNotIn("dropped", told)

    @staticmethod
    def stats() -> dict[str, Any]:
        pipeline = planes(8)
        for _ in pipeline:
            pass
        return pipeline.stats()


class Watch(unittest.TestCase):
    def test_a_notebook_has_one_view_that_is_updated(self) -> None:
        pipeline = planes(400)
        with notebook() as shown:
            batches = 0
            for batches, _ in enumerate(penstock.watch(pipeline, every_s=0.01), 1):
                if batches == 10:
                    before = len(shown)
                    until(lambda: len(shown) > before + 1, "an update while the loop works on a batch")
                    live = shown[-1]
            self.assertEqual(batches, 100)
        self.assertEqual((repr(shown[0]), html_of(shown[0])), ("starting", "<p>starting</p>"))
        self.assertIn("planes running", repr(live))
        self.assertEqual(len(svgs(html_of(live))), 2, "progress and readiness")
        last = html_of(shown[-1])
        self.assertIn("planes completed", last)
        self.assertIn("400 samples in 100 batches", last)
        self.assertIn(pipeline.verdict().sentence.split("`")[0], last)
        self.assertEqual(run_threads(), [])

    def test_ctrl_c_ends_the_run_and_keeps_the_last_view(self) -> None:
        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, signal.default_int_handler))

        interrupted = threading.Event()

        def interrupt(view: Any) -> None:
            # The first batch takes a minute, so the run is still in progress.
            if "running" in repr(view) and not interrupted.is_set():
                interrupted.set()
                signal.raise_signal(signal.SIGINT)

        pipeline = slow()
        with notebook(interrupt) as shown, self.assertRaises(KeyboardInterrupt):
            for _ in penstock.watch(pipeline, every_s=0.05):
                self.fail("a batch")
        self.assertEqual(pipeline.stats()["state"], "stopped")
        self.assertIn("slow stopped", html_of(shown[-1]))

    def test_a_loop_that_is_left_ends_the_run(self) -> None:
        pipeline = planes(4000)
        with notebook() as shown:
            for _ in penstock.watch(pipeline):
                break
        self.assertEqual(pipeline.stats()["state"], "stopped")
        self.assertIn("planes stopped", repr(shown[-1]))

    def test_a_failed_run_shows_its_error(self) -> None:
        document = {
            "name": "failing",
            "source": {"range": {"count": 400}},
            "stages": [{"sleep": {"mean_ms": 0.1, "fail_rate": 1.0, "on_error": "fail"}}, {"aggregate": {"size": 1}}, {"collate": {}}],
        }
        pipeline = penstock.Pipeline(document)
        with notebook() as shown, self.assertRaises(penstock.RunFailed):
            for _ in penstock.watch(pipeline):
                pass
        self.assertIn(escape(pipeline.stats()["error"]), html_of(shown[-1]))
        self.assertIn("failing failed", html_of(shown[-1]))

    def test_a_second_loop_does_not_show_the_figures_of_the_first(self) -> None:
        pipeline = planes(4000)
        for _ in pipeline:
            break
        with notebook() as shown:
            self.assertEqual(sum(1 for _ in penstock.watch(pipeline, every_s=0.001)), 1000)
        self.assertEqual([view for view in shown if "stopped" in repr(view)], [])
        self.assertIn("planes completed", repr(shown[-1]))

    def test_a_terminal_has_a_line_that_is_overwritten(self) -> None:
        with mock.patch("sys.stderr", Terminal()) as terminal, mock.patch.dict("os.environ", {"COLUMNS": "40"}):
            for number, _ in enumerate(penstock.watch(planes(80), every_s=0.01)):
                if number == 10:
                    until(lambda: "\r" in terminal.getvalue(), "an update")
        *live, last = terminal.getvalue().removeprefix("\r").split("\r")
        self.assertGreater(len(live), 0)
        for line in live:
            self.assertLessEqual(len(line.removesuffix("\x1b[K")), 39)
        self.assertRegex(last, r"^planes completed, .*: 80 samples in 20 batches, .*\n$")
        self.assertEqual(terminal.getvalue().count("\n"), 1)

    def test_a_log_has_the_last_line_only(self) -> None:
        with mock.patch("sys.stderr", io.StringIO()) as log:
            for _ in penstock.watch(planes(80), every_s=0.001):
                pass
        self.assertRegex(log.getvalue(), r"^planes completed, .*\n$")
        self.assertNotIn("\r", log.getvalue())

    def test_a_process_without_standard_error_has_no_view(self) -> None:
        with mock.patch("sys.stderr", None), self.assertNoLogs("penstock", "WARNING"):
            self.assertEqual(sum(1 for _ in penstock.watch(planes(80), every_s=0.001)), 20)

    def test_a_failing_view_is_logged_and_the_loop_continues(self) -> None:
        def fail(view: Any) -> None:
            raise BrokenPipeError("the notebook is gone")

        with notebook(fail), self.assertLogs("penstock", "WARNING") as logs:
            self.assertEqual(sum(1 for _ in penstock.watch(planes(80))), 20)
        self.assertIn("the notebook is gone", "".join(logs.output))
        with notebook(fail), self.assertLogs("penstock", "WARNING"), self.assertRaises(KeyError):
            for _ in penstock.watch(planes(80)):
                raise KeyError("of the loop")
        sleep = {"mean_ms": 0, "fail_rate": 1.0, "on_error": "fail"}
        document = {"source": {"range": {"count": 400}}, "stages": [{"sleep": sleep}, {"aggregate": {"size": 1}}, {"collate": {}}]}
        with notebook(fail), self.assertLogs("penstock", "WARNING"), self.assertRaises(penstock.RunFailed):
            for _ in penstock.watch(penstock.Pipeline(document)):
                pass

    def test_watch_holds_no_batch(self) -> None:
        with mock.patch("sys.stderr", io.StringIO()):
            self.assertEqual(sum(1 for _ in penstock.watch(planes(80, max_held=2))), 20)

    def test_watch_accepts_a_loader_over_a_pipeline_and_rejects_other_iterables(self) -> None:
        class Loader:
            pipeline = planes(8)

            def __iter__(self) -> Iterator[int]:
                return (batch.size for batch in self.pipeline)

        with mock.patch("sys.stderr", io.StringIO()) as log:
            self.assertEqual(list(penstock.watch(Loader())), [4, 4])
        self.assertIn("8 samples in 2 batches", log.getvalue())
        with self.assertRaisesRegex(penstock.PenstockError, "not `list`"):
            penstock.watch([1, 2])
        with self.assertRaisesRegex(penstock.PenstockError, "`every_s` is 0"):
            penstock.watch(planes(8), every_s=0)


if __name__ == "__main__":
    unittest.main()
