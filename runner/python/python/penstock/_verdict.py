"""The verdict on a run with its advice, and the figures of a run for trackers."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock import _penstock

# Names of the figures of queues, stages and the machine that are in `metrics`.
_QUEUE = ("readiness", "starved", "items_per_s", "ave_put_time_s", "ave_get_time_s")
_TASK = ("tasks_per_s", "ave_time_s", "p99_time_s", "failed_samples")
_MACHINE = ("process_cores", "busy_cores", "process_rss_bytes")


@dataclass(frozen=True)
class Change:
    """A new value of one setting of the document."""

    #: Place of the setting as a JSON pointer, such as `/stages/1/wasm/concurrency`.
    pointer: str
    #: Value in the run that was judged; the default if the document has none.
    from_: Any
    #: Advised value.
    to: Any


@dataclass(frozen=True)
class Advice:
    """A suggestion to improve a pipeline. `Pipeline.apply` follows it."""

    #: Action and expected effect, in words.
    text: str
    #: `rate` for a higher rate, `saving` for the same rate with fewer resources.
    goal: str
    #: Settings to change together; empty if no setting achieves the effect.
    changes: tuple[Change, ...]
    #: Predicted rate with these changes relative to that of the run: 1.25 is 25 % faster. `None` unless it was predicted, and if it differs
    #: from 1 by no more than twice the error of the prediction for the run itself.
    gain: float | None = None
    #: Reason why a prediction gave no gain.
    no_gain: str | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Verdict:
    """Limit of a run, with evidence and advice. `str` returns the text with which the report of `penstock run` begins."""

    #: Kind of the limit: `consumer`, `stage`, `storage`, `source`, `threads`, `permits`, `variance`, `failures`, `nothing_waits` or `too_little`.
    kind: str
    #: Id of the stage or source that is the limit; `consumer` for the loop itself, or `threads`. `None` if nothing is, or if it is not known.
    limit: str | None
    #: Summary in one sentence.
    sentence: str
    #: Figures that support the verdict, one per line.
    evidence: tuple[str, ...]
    #: Settings that would remove the limit, most effective first; then possible savings.
    advice: tuple[Advice, ...]
    _words: str = field(repr=False)

    def __str__(self) -> str:
        return self._words


def verdict_of(run: _penstock.Running, changed: Callable[[Mapping[str, Any]], _penstock.Loader] | None) -> Verdict:
    """Verdict on a run. With `changed`, which makes its pipeline with other settings, the gain of advice is predicted."""
    stats = json.loads(run.snapshot())
    told = stats["verdict"]

    def change(setting: Mapping[str, Any]) -> Change:
        pointer = setting["pointer"]
        # The default of `threads` depends on the machine, so that no document has it.
        from_ = stats["threads"] if pointer == "/threads" else json.loads(run.setting(pointer) or "null")
        return Change(pointer, from_, setting["value"])

    def advice(one: Mapping[str, Any]) -> Advice:
        changes = tuple(map(change, one["set"]))
        gain, reason = None, None
        if changed is not None and changes:
            try:
                gain, reason = run.gain(changed({each.pointer: each.to for each in changes}))
            except _penstock.InvalidPipeline as error:
                reason = str(error)
        return Advice(one["text"], one["goal"], changes, gain, reason)

    kind = told["kind"]
    limit = kind if kind in ("consumer", "threads") else told["stage"]
    words = _penstock.verdict_in_words(json.dumps(told))
    return Verdict(kind, limit, told["sentence"], tuple(told["evidence"]), tuple(map(advice, told["advice"])), words)


def metrics(loader: Any) -> dict[str, float]:
    """Figures of the active run of a pipeline, or of the last one, as numbers by name, for any tracker of experiments. Names begin with
    `penstock/` and end with their unit; shares of time are 0.0 to 1.0 and have none. A figure that was not measured is missing.

    loader: a `Pipeline`, or a `penstock.torch.DataLoader`.
    """
    stats = getattr(loader, "pipeline", loader).stats()
    found = {name: stats[name] for name in ("elapsed_s", "samples_per_s", "consumer_waited")}

    def add(part: str, figures: Mapping[str, Any] | None, names: Container[str] | None = None) -> None:
        for name, value in (figures or {}).items():
            if names is None or name in names:
                found[f"{part}/{name}"] = value

    add("samples", stats["ledger"]["total"])
    for queue in stats["queues"]:
        figures = {"items_per_s" if name == "qps" else name: value for name, value in queue.items()}
        add(f"queue/{queue['id'].removesuffix('_queue')}", figures, _QUEUE)
    for stage in stats["stages"]:
        add(f"stage/{stage['id']}", stage["task"], _TASK)
        add(f"stage/{stage['id']}", stage["task"]["shares"])
    for stage, counters in stats["counters"].items():
        add(f"counter/{stage}", counters)
    add("machine", stats["machine"], _MACHINE)
    return {f"penstock/{name}": value for name, value in found.items() if value is not None}
