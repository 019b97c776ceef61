"""One process of a training with Orbax: `python restored.py FOLDER ADDRESS RANK WORLD`, started by a test.

Takes three batches, saves the state of the pipeline beside an array after the second one, and writes the numbers in the first two into
`FOLDER/rank-N.json`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy
import orbax.checkpoint as ocp
import penstock.orbax
from trainings import pipeline

if __name__ == "__main__":
    folder, address, rank, world = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    jax.distributed.initialize(address, world, rank)
    numbers = pipeline("failing", folder, rank=rank, world=world, uneven="keep")
    given = []
    with ocp.CheckpointManager(folder / "checkpoints") as manager:
        for step, batch in enumerate(numbers, 1):
            given.append(numpy.from_dlpack(batch["number"]).tolist())
            if step == 2:
                arrays = ocp.args.StandardSave({"weight": numpy.arange(4.0)})
                manager.save(step, args=ocp.args.Composite(arrays=arrays, data=penstock.orbax.Save(numbers, pending=rank)))
            if step == 3:
                break
    (folder / f"rank-{rank}.json").write_text(json.dumps(given[: 2 - rank]))
