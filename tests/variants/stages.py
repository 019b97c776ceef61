"""One stage over a folder of files: the run, the field that the stage makes, the messages of failures, and the counters."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from kit import Outcome, Variant, collated


def deliver(variant: Variant, files: dict[str, bytes], stage: dict[str, Any], field: str) -> tuple[Outcome, dict[str, np.ndarray], dict[str, str]]:
    """Passes files through one stage: the run, the field by the name of the file, and the messages of those that failed."""
    folder = variant.folder("d")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    kept = variant.place / "kept"
    document = collated({"list": {"store": "d"}}, 1, stages=[{"fetch": {}}, {"wasm": stage}], max_failures=None)
    outcome = variant.run(document, {"d": folder}, "--out", str(kept))
    arrays = {sample.key: sample.fields[field] for sample in outcome.samples}
    messages = {}
    if (kept / "errors.ndjson").exists():
        for line in (kept / "errors.ndjson").read_text().splitlines():
            entry = json.loads(line)
            messages[entry["key"]] = entry["message"] if entry["class"] == "data" else f"{entry['class']}: {entry['message']}"
    return outcome, arrays, messages


def counted(outcome: Outcome, name: str) -> int:
    """Sum of a counter over the stages of a run; 0 if no stage has it."""
    return int(sum(counters.get(name, 0) for counters in (outcome.snapshot.get("counters") or {}).values()))
