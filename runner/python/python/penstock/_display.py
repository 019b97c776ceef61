"""Views of a pipeline for notebooks and terminals: its parts, the figures of its run, the verdict, and a chart of readiness."""

from __future__ import annotations

import importlib
import json
import logging
import re
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from html import escape
from typing import Any, TypeVar

from penstock._penstock import PenstockError

T = TypeVar("T")

_LOGGER = logging.getLogger("penstock")

# Widths of the chart's columns (names, bars, percentages) and height of a row, in pixels.
_NAMES, _BARS, _FIGURES, _ROW = 230, 320, 60, 22
# Maximum length of a name in the chart, in characters.
_LONGEST = 28
# Contrast of 3:1 or more with both white and black.
_COLOR = "#1a959e"
# States of a run that has ended.
_OVER = ("completed", "failed", "stopped")
# Samples that are not delivered: names in the ledger, with the words for users.
_LOST = {"dropped": "dropped", "skipped": "skipped", "dead_lettered": "dead letters"}
# Members of a document that the view shows elsewhere, or that a training loop does not use.
_NOT_OPTIONS = ("name", "source", "stages", "sink", "consumer")
# Return to the start of the line, and erase the rest of a longer previous line.
_LINE_START, _LINE_REST = "\r", "\x1b[K"


def watch(loader: Iterable[T], *, every_s: float = 1.0) -> Iterator[T]:
    """Iterates over a pipeline, or over a `penstock.torch.DataLoader`, with a live view of the run.

    In a notebook the view holds progress, figures, the verdict and the readiness of each queue. In a terminal it is one line on standard error;
    without a terminal that line is written once, at the end. The last view stays, also after `break`, an exception or Ctrl-C.
    every_s: seconds between two updates.
    """
    pipeline: Any = getattr(loader, "pipeline", loader)
    if not hasattr(pipeline, "stats"):
        raise PenstockError(f"`watch` takes a Pipeline or a penstock.torch.DataLoader, not `{type(loader).__name__}`")
    if not every_s > 0:
        raise PenstockError(f"`every_s` is {every_s!r}; expected a number of seconds above 0")
    return _watched(loader, pipeline, every_s)


def _watched(loader: Iterable[T], pipeline: Any, every_s: float) -> Iterator[T]:
    # Until the run starts, the figures are those of the previous run.
    before = pipeline._run
    show = _screen()

    def refresh(is_last: bool) -> bool:
        """Shows the figures. An error is logged, since a view that fails must not end the loop or replace its exception."""
        try:
            if pipeline._run is not before:
                show(RunView(pipeline.stats()), is_last)
        except Exception:
            _LOGGER.warning("the view of the run was not updated", exc_info=True)
            return False
        return True

    def refresh_until_done() -> None:
        while not done.wait(every_s) and refresh(False):
            pass

    done = threading.Event()
    updates = threading.Thread(target=refresh_until_done, name="penstock-watch", daemon=True)
    updates.start()
    try:
        yield from loader
    finally:
        done.set()
        updates.join()
        refresh(True)


def _screen() -> Callable[[RunView, bool], None]:
    """Returns a function that replaces the view on the screen; its second argument is true for the last view."""
    # IPython is optional: a process that runs a notebook kernel has imported it already.
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is None:
        return _show_line
    display = importlib.import_module("IPython.display").display
    handle = display(_Starting(), display_id=True)
    return lambda view, is_last: handle.update(view)


def _show_line(view: RunView, is_last: bool) -> None:
    # `sys.stderr` is `None` in a process that was started with a closed standard error.
    if sys.stderr is None:
        return
    terminal = sys.stderr.isatty()
    if not terminal and not is_last:
        return
    text = repr(view)
    if not is_last:
        # Only a line that does not wrap can be overwritten.
        text = text[: max(shutil.get_terminal_size().columns - 1, 1)]
    sys.stderr.write(f"{_LINE_START}{text}{_LINE_REST}" if terminal else text)
    sys.stderr.write("\n" if is_last else "")
    sys.stderr.flush()


class _Starting:
    def __repr__(self) -> str:
        return "starting"

    def _repr_html_(self) -> str:
        return "<p>starting</p>"


class RunView:
    """Figures of a run at one moment, from `Pipeline.stats()`."""

    def __init__(self, stats: Mapping[str, Any]) -> None:
        self._stats = stats

    def __repr__(self) -> str:
        return f"{_state(self._stats)}: {_figures(self._stats)}. {_sentence(self._stats)}".rstrip()

    def _repr_html_(self) -> str:
        return _block(
            f"<div><strong>{escape(_state(self._stats))}</strong></div>",
            _progress_bar(self._stats),
            _run_html(self._stats),
        )


def pipeline_html(document: Mapping[str, Any], stats: Mapping[str, Any] | None) -> str:
    """A pipeline as HTML: its parts, and the figures of its run if there is one. `document` has the settings applied."""
    title = str(document.get("name", "pipeline")) if stats is None else _state(stats)
    options = _options({name: value for name, value in document.items() if name not in _NOT_OPTIONS})
    return _block(
        f"<div><strong>{escape(title)}</strong></div>",
        f"<p>{escape(options)}</p>" if options else "",
        _parts_table(document, stats),
        "" if stats is None else _run_html(stats),
    )


def _block(*parts: str) -> str:
    return f'<div class="penstock" style="max-width: 60em">{"".join(parts)}</div>'


def _run_html(stats: Mapping[str, Any]) -> str:
    """Figures, verdict with advice, and the chart, as HTML."""
    # During a run, changing advice would move the chart up and down.
    advised = (stats["verdict"] or {}).get("advice", ()) if stats["state"] in _OVER else ()
    advice = "".join(f"<li>{_words(one['text'])}{_settings_html(one['set'])}</li>" for one in advised)
    return "".join(
        (
            f"<p>{escape(_figures(stats))}</p>",
            f"<p><strong>{_words(_sentence(stats))}</strong></p>" if _sentence(stats) else "",
            f"<ul>{advice}</ul>" if advice else "",
            readiness_chart(stats["queues"]),
        )
    )


def _settings_html(settings: Iterable[Mapping[str, Any]]) -> str:
    """Advised settings as an argument of `Pipeline`, in HTML."""
    changes = {one["pointer"]: one["value"] for one in settings}
    return f" <code>settings={escape(repr(changes))}</code>" if changes else ""


# --- Text


def _state(stats: Mapping[str, Any]) -> str:
    error = f" ({stats['error']})" if stats["error"] else ""
    return f"{stats['name']} {stats['state']}, {stats['elapsed_s']:.1f} s{error}"


def _figures(stats: Mapping[str, Any]) -> str:
    total = stats["ledger"]["total"]
    told = [f"{total['delivered']:,} samples in {stats['queues'][-1]['num_items']:,} batches"]
    share = _progress(stats)
    if share is not None and share < 1:
        told.insert(0, _percent(share))
    told += [f"{total[name]:,} {words}" for name, words in _LOST.items() if total[name]]
    if stats["samples_per_s"] is not None:
        told.append(f"{_rate(stats['samples_per_s'])} samples/s")
    busiest = max(stats["stages"], key=_busy, default=None)
    if busiest is not None and _busy(busiest) > 0:
        told.append(f"busiest stage {busiest['id']} ({_percent(_busy(busiest))} of its slots)")
    return ", ".join(told)


def _progress(stats: Mapping[str, Any]) -> float | None:
    """Samples that have left the pipeline, as a share of all that the source and fan-out stages make; `None` if the source does not know
    its size.
    """
    if not stats["expected"]:
        return None
    ledger = stats["ledger"]
    total = ledger["total"]
    unread = stats["expected"] - ledger["stages"][0]["made"]
    everything = total["made"] + unread
    return (total["made"] - total["left"] - total["discarded"]) / everything if everything else None


def _busy(stage: Mapping[str, Any]) -> float:
    return (stage["task"]["shares"] or {}).get("busy") or 0.0


def _sentence(stats: Mapping[str, Any]) -> str:
    return str((stats["verdict"] or {}).get("sentence", ""))


def _rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}".replace("%", " %")


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1000 * seconds:.3g} ms"


def _words(text: str) -> str:
    """Converts text to HTML, with names in backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


# --- The table of parts


def _parts_table(document: Mapping[str, Any], stats: Mapping[str, Any] | None) -> str:
    parts = [next(iter(part.items())) for part in (document["source"], *document.get("stages", ()))]
    parts.append(("sink", document.get("sink") or {}))
    rows = [[str(place), kind, _options(options)] for place, (kind, options) in enumerate(parts)]
    head = ["Part", "Kind", "Settings"]
    if stats is not None:
        head += ["Busy", "Mean time", "Queue", "Readiness"]
        tasks = [None, *(stage["task"] for stage in stats["stages"]), None]
        for row, task, queue in zip(rows, tasks, stats["queues"]):
            row[0] = _part_of(queue)
            row += ["", ""] if task is None else [_percent((task["shares"] or {}).get("busy")), _milliseconds(task["ave_time_s"])]
            row += [str(queue["capacity"]), _percent(queue["readiness"])]
    return f"<table><thead>{_row('th', head)}</thead><tbody>{''.join(_row('td', row) for row in rows)}</tbody></table>"


def _row(tag: str, texts: Iterable[str]) -> str:
    """Row of a table: three columns of text, then figures."""
    name, text, figure = ("text-align: left; white-space: nowrap", "text-align: left", "text-align: right; white-space: nowrap")
    styles = (name, name, text, *[figure] * 4)
    cells = (f'<{tag} style="{style}">{escape(text)}</{tag}>' for style, text in zip(styles, texts))
    return f"<tr>{''.join(cells)}</tr>"


def _options(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}" for name, value in options.items())


# --- Bars


def readiness_chart(queues: Iterable[Mapping[str, Any]]) -> str:
    """Readiness of each queue as a bar, as an SVG whose text has the color of the page."""
    rows = [(_part_of(queue), queue["readiness"], queue["starved"]) for queue in queues]
    told = ", ".join(f"{name} {_percent(readiness)}" for name, readiness, _ in rows)
    bars = "".join(
        _bar(
            _ROW * (place + 1),
            name,
            readiness,
            f"{name}: its queue holds an item {_percent(readiness)} of the time; the reader of the queue waits {_percent(starved)} of the time",
        )
        for place, (name, readiness, starved) in enumerate(rows)
    )
    heading = '<text x="0" y="15" font-weight="bold">Readiness: share of time in which the queue at a part’s exit holds an item</text>'
    return _svg(f"Readiness of the queue at the exit of each part: {told}", _ROW * (len(rows) + 1), heading + bars)


def _part_of(queue: Mapping[str, Any]) -> str:
    """Id of the part in front of a queue."""
    return str(queue["id"]).removesuffix("_queue")


def _progress_bar(stats: Mapping[str, Any]) -> str:
    share = _progress(stats)
    if share is None:
        return ""
    return _svg(f"Progress: {_percent(share)}", _ROW, _bar(0, "progress", share, f"{_percent(share)} of all samples"))


def _svg(label: str, height: int, content: str) -> str:
    width = _NAMES + _BARS + _FIGURES
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(label)}" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="13" fill="currentColor" '
        f'style="display: block; max-width: 100%; height: auto"><title>{escape(label)}</title>{content}</svg>'
    )


def _bar(top: int, name: str, share: float | None, title: str) -> str:
    shown = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    filled = 0.0 if share is None else _BARS * min(max(share, 0.0), 1.0)
    return (
        f"<g><title>{escape(title)}</title>"
        f'<text x="0" y="{top + 15}">{escape(shown)}</text>'
        f'<rect x="{_NAMES}" y="{top + 5}" width="{_BARS}" height="12" rx="2" fill="currentColor" fill-opacity="0.12"/>'
        f'<rect x="{_NAMES}" y="{top + 5}" width="{filled:.1f}" height="12" rx="2" fill="{_COLOR}"/>'
        f'<text x="{_NAMES + _BARS + _FIGURES}" y="{top + 15}" text-anchor="end">{_percent(share)}</text></g>'
    )
