"""One process of a training whose ranks have different numbers of batches: `python loops.py CASE FOLDER`, started by torchrun or by a test.

Every process adds up a number with the other ranks in each step, so that a step that another rank does not take would never end, and writes
what it got, or the error that was raised instead, into `FOLDER/rank-N.json`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import penstock
import torch
import torch.distributed
from penstock._together import Board
from photos import modules

COUNT, BATCH = 600, 4

# Maximum time of a process group, in seconds: longer than any wait in a passing test.
TIMEOUT_S = 60


def write_texts(folder: Path) -> None:
    """Writes texts of which a filter drops an uneven part."""
    lines = []
    for number in range(COUNT):
        words = "word " * (1 + number * 7919 % 23) if number % 5 else "short"
        lines.append(json.dumps({"key": f"{number:04}", "number": number, "text": words.strip()}) + "\n")
    (folder / "texts.ndjson").write_text("".join(lines))
    (folder / "documents.ndjson").write_text("".join(re.sub(r'"number": \d+, ', "", line) for line in lines))
    model = {"type": "WordLevel", "vocab": {"word": 0, "short": 1, "?": 2}, "unk_token": "?"}
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0", "pre_tokenizer": {"type": "Whitespace"}, "model": model}))


def document(kind: str) -> dict[str, Any]:
    stages: list[dict[str, Any]] = {
        "ordered": [],
        "filter": [{"wasm": {"module": "text-filter", "params": {"min_chars": 20}}}],
        "pack": [
            {"wasm": {"module": "std/text", "assets": {"tokenizer": {"store": "here", "key": "tokenizer.json"}}}},
            {"wasm": {"module": "std/pack", "params": {"length": 32}}},
        ],
        "failures": [{"sleep": {"mean_ms": 0.1, "fail_rate": 0.2}}],
    }[kind]
    return {
        "name": kind,
        "source": {"records": {"store": "here", "key": "documents.ndjson" if kind == "pack" else "texts.ndjson", "shuffle": True}},
        "seed": 3,
        "threads": 1,
        "stages": [*stages, {"aggregate": {"size": BATCH}}, {"collate": {}}],
        "max_failures": None,
    }


def pipeline(kind: str, folder: Path, **options: Any) -> penstock.Pipeline:
    filters = {"text-filter": modules() / "text_filter.wasm"} if kind == "filter" else None
    return penstock.Pipeline(document(kind), stores={"here": folder}, modules=filters, **options)


class Records(logging.Handler):
    """Messages of the package."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(f"{record.levelname}: {record.getMessage()}")


def step(group: Any = None) -> None:
    """A step of a training: a collective operation of all ranks."""
    torch.distributed.all_reduce(torch.ones(1), group=group)


def numbers(loader: penstock.Pipeline) -> list[list[int]]:
    """Trains an epoch, and returns the numbers of each step."""
    given = []
    for batch in loader:
        step()
        given.append(torch.from_dlpack(batch["number"]).tolist())
    return given


def epochs(kind: str, folder: Path, rank: int) -> Any:
    """Trains three epochs."""
    batches = pipeline(kind, folder)
    given = []
    for _ in range(3):
        count = 0
        for _ in batches:
            step()
            count += 1
        given.append({"steps": count, "total": batches.stats()["ledger"]["total"]})
    return given


def left(folder: Path, rank: int, leave: Callable[[], bool]) -> Any:
    """Rank 1 calls `leave` behind the fifth step, and leaves its loop if that returns false."""
    count = 0
    try:
        for _ in pipeline("filter", folder):
            step()
            count += 1
            if rank == 1 and count == 5 and not leave():
                break
    except penstock.PenstockError as error:
        return {"steps": count, "error": str(error), "at": time.time()}
    return {"steps": count, "at": time.time()}


def apart(folder: Path, rank: int, train: Callable[[Path, int], Any]) -> Any:
    """Trains as ranks of several machines do, which share no memory."""
    with mock.patch("penstock._together.Board", side_effect=OSError("on another machine") if rank % 2 else None, wraps=Board):
        return train(folder, rank)


def fail() -> bool:
    raise ValueError("an error in the loop")


def excepted(folder: Path, rank: int) -> Any:
    try:
        return left(folder, rank, fail)
    except ValueError as error:
        return {"steps": 5, "error": str(error), "at": time.time()}


def killed(folder: Path, rank: int) -> Any:
    def die() -> bool:
        (folder / "killed").write_text(str(time.time()))
        os.kill(os.getpid(), signal.SIGKILL)
        return True

    return left(folder, rank, die)


def validated(folder: Path, number: int, **options: Any) -> Any:
    """Rank 0 validates behind each epoch."""
    training, validation = pipeline("filter", folder), pipeline("failures", folder, **options)
    given: list[int | str] = []
    try:
        for _ in range(2):
            given.append(sum(1 for _ in training))
            if number == 0:
                given.append(sum(1 for _ in validation))
    except penstock.PenstockError as error:
        given.append(str(error))
    return given


def turns(folder: Path, rank: int) -> Any:
    """Two pipelines whose loops run in turns."""
    one, two = pipeline("filter", folder), pipeline("failures", folder)
    given = []
    for _ in range(2):
        counts = [0, 0]
        for place, _ in ((place, batch) for pair in zip(one, two) for place, batch in enumerate(pair)):
            step()
            counts[place] += 1
        given.append(counts)
    return given


def mesh(folder: Path, rank: int, *, grouped: bool) -> Any:
    """Four processes of which each two read the same share."""
    from torch.distributed.device_mesh import init_device_mesh

    both = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    group = both.get_group("data") if grouped else None
    loader = pipeline("filter", folder, rank=both.get_local_rank("data"), world=2, group=group)
    return [numbers(loader), numbers(loader)]


def raised(folder: Path, rank: int) -> Any:
    count = 0
    try:
        for _ in pipeline("filter", folder, ends="raise"):
            step()
            count += 1
    except penstock.PenstockError as error:
        return {"steps": count, "error": str(error)}
    return {"steps": count}


def differing(folder: Path, rank: int) -> Any:
    loader = pipeline("filter", folder, settings={"/seed": rank})
    try:
        return sum(1 for _ in loader)
    except penstock.PenstockError as error:
        return f"{type(error).__name__}: {error}"


def begun(folder: Path, rank: int) -> Any:
    """Trains seven steps and takes the state."""
    loader = pipeline("filter", folder)
    numbers = []
    for batch in loader:
        step()
        numbers.append(torch.from_dlpack(batch["number"]).tolist())
        if len(numbers) == 7:
            (folder / f"state-{rank}.json").write_text(json.dumps(loader.state_dict()))
            break
    return numbers


def resumed(folder: Path, rank: int) -> Any:
    """Trains the rest of the epoch and the next one with another number of ranks."""
    loader = pipeline("filter", folder)
    loader.load_state_dict(penstock.merge_states([json.loads(file.read_text()) for file in sorted(folder.glob("state-*.json"))]))
    return [numbers(loader), numbers(loader)]


CASES: dict[str, Callable[[Path, int], Any]] = {
    **{kind: lambda folder, rank, kind=kind: epochs(kind, folder, rank) for kind in ("ordered", "filter", "pack", "failures")},
    "break": lambda folder, rank: left(folder, rank, lambda: False),
    "exception": excepted,
    "filter-apart": lambda folder, rank: apart(folder, rank, CASES["filter"]),
    "break-apart": lambda folder, rank: apart(folder, rank, CASES["break"]),
    "killed": killed,
    "validated": lambda folder, rank: validated(folder, rank, rank=0, world=1),
    "validated-alone": validated,
    "turns": turns,
    "mesh": lambda folder, rank: mesh(folder, rank, grouped=True),
    "mesh-without-group": lambda folder, rank: mesh(folder, rank, grouped=False),
    "raise": raised,
    "differing": differing,
    "begun": begun,
    "resumed": resumed,
}


def main() -> None:
    case, folder = sys.argv[1], Path(sys.argv[2])
    rank = int(os.environ["RANK"])
    records = Records()
    logging.getLogger("penstock").addHandler(records)
    logging.getLogger("penstock").setLevel(logging.INFO)
    timeout = timedelta(seconds=8 if case == "validated-alone" else TIMEOUT_S)
    torch.distributed.init_process_group("gloo", timeout=timeout)
    given = CASES[case](folder, rank)
    (folder / f"rank-{rank}.json").write_text(json.dumps({"given": given, "messages": records.messages}))
    if (folder / "others").exists():
        # The store is in the process of rank 0, which ends last.
        (folder / "others" / str(rank)).touch()
        while rank == 0 and len(list((folder / "others").iterdir())) < int(os.environ["WORLD_SIZE"]) - (case == "killed"):
            time.sleep(0.05)


if __name__ == "__main__":
    main()
