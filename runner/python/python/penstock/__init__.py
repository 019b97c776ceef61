"""Data loading for ML training: a pipeline is an iterable of batches.

    import penstock, torch

    pipeline = penstock.Pipeline("photos.json", stores={"photos": "./photos"})
    for epoch in range(3):
        for batch in pipeline:
            images = torch.from_dlpack(batch["image"])
    print(pipeline.verdict())

Stages run as WebAssembly modules on Penstock's threads, without the GIL; batches are passed without a copy.
"""

from collections.abc import Mapping

from penstock._client import Server, Stream, connect
from penstock._display import watch
from penstock._headspace import Headspace, headspace
from penstock._penstock import (
    Array,
    Batch,
    BatchesHeld,
    ForkError,
    InvalidPipeline,
    PenstockError,
    RunFailed,
    StreamError,
    __version__,
)
# `Document`, and the functions that start one with a source. `__all__` omits the functions, so that `import *` does not replace
# Python's `list` and `range`.
from penstock._parts import *
from penstock._pipeline import Field, Pipeline, merge_states
from penstock._verdict import Advice, Change, Verdict, metrics

__all__ = [
    "Advice",
    "Array",
    "Batch",
    "BatchesHeld",
    "Change",
    "Document",
    "Field",
    "ForkError",
    "Headspace",
    "InvalidPipeline",
    "PenstockError",
    "Pipeline",
    "RunFailed",
    "Server",
    "Stream",
    "StreamError",
    "Verdict",
    "connect",
    "headspace",
    "merge_states",
    "metrics",
    "watch",
    "__version__",
]

Mapping.register(Batch)
