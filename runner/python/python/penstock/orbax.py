"""Adapter for Orbax, which keeps the state of a pipeline beside the arrays of a training.

    import orbax.checkpoint as ocp
    import penstock.orbax

    manager.save(step, args=ocp.args.Composite(arrays=ocp.args.StandardSave(arrays), data=penstock.orbax.Save(pipeline)))

    manager.restore(step, args=ocp.args.Composite(arrays=ocp.args.StandardRestore(), data=penstock.orbax.Restore(pipeline)))

Each process writes one file, `rank-N.json`, and any number of processes can restore the files of all.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import orbax.checkpoint as ocp
from etils import epath
from penstock._penstock import InvalidPipeline
from penstock._pipeline import Pipeline, merge_distinct

__all__ = ["PipelineCheckpointHandler", "Restore", "Save"]


class PipelineCheckpointHandler(ocp.CheckpointHandler):
    """Writes the state of a pipeline before `save` returns, also in an asynchronous checkpoint."""

    def save(self, directory: epath.Path, args: Save) -> None:
        state = args.pipeline.state_dict(pending=args.pending)
        (directory / f"rank-{args.pipeline.rank}.json").write_text(json.dumps(state))

    def restore(self, directory: epath.Path, args: Restore) -> Pipeline:
        files = sorted(directory.glob("rank-*.json"))
        if not files:
            raise InvalidPipeline(f"`{directory}` has no state of a pipeline, `rank-N.json`")
        state = merge_distinct(json.loads(file.read_text()) for file in files)
        args.pipeline.load_state_dict(state, force=args.force)
        return args.pipeline


@ocp.args.register_with_handler(PipelineCheckpointHandler, for_save=True)
@dataclasses.dataclass
class Save(ocp.args.CheckpointArgs):
    """Saves the state of a pipeline.

    pending: number of the last batches that the training loop has not got, such as those of a prefetch to a device.
    """

    pipeline: Pipeline
    pending: int = 0


@ocp.args.register_with_handler(PipelineCheckpointHandler, for_restore=True)
@dataclasses.dataclass
class Restore(ocp.args.CheckpointArgs):
    """Restores a pipeline, whose next iteration continues behind the last batch. The result is the pipeline.

    force: continue although the document, a module or the data differs.
    """

    pipeline: Pipeline
    force: bool = False
