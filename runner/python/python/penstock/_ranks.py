"""Finds the share of the source that a process reads."""

from __future__ import annotations

import os
import sys
from types import FrameType
from typing import Any

from penstock._penstock import InvalidPipeline
from penstock._whole import whole_number

# Rank of a process, and the number of ranks.
Rank = tuple[int, int]

# Rank, number of ranks, and true if the last entries are kept when their number is not a multiple of the number of ranks.
Share = tuple[int, int, bool]

# Values of `workers`: behaviour of the workers of a DataLoader that reads a pipeline.
WORKERS = ("raise", "share", "all")

# Variables in which a launcher passes a process its rank and the number of ranks; the first pair that is set is used.
_RANKS = (
    ("PENSTOCK_SHARD", "PENSTOCK_SHARDS"),
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)

# Variables in which a launcher passes the number of the process on its machine, from 0.
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID")


def rank_of_process(written: Rank | None) -> Rank | None:
    """Rank of this process: from `torch.distributed` if it is initialised, else from Ray Train in one of its workers, else from the
    launcher, else from the document. Raises InvalidPipeline if the document contradicts the others.
    """
    if (told := rank_of_torch()) is not None:
        teller = "`torch.distributed`"
    elif (context := _context_of_ray()) is not None:
        told, teller = (context.get_world_rank(), context.get_world_size()), "Ray Train"
    elif (told := _launched()) is not None:
        teller = "the launcher's environment"
    else:
        return written
    if written not in (None, told):
        raise InvalidPipeline(
            f"the document has rank {written[0]} of {written[1]}, but {teller} has rank {told[0]} of {told[1]}: remove `shard` from the "
            "document, or set `rank=` and `world=`"
        )
    return told


def rank_of_torch() -> Rank | None:
    """Rank in `torch.distributed`, if it is initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def rank_of_worker(rank: Rank | None, workers: str) -> Rank | None:
    """Rank for a worker process of a DataLoader, derived from `rank`, the rank of the training process; `rank` itself in any other process.
    Raises InvalidPipeline in one of several workers unless `workers` selects their behaviour.
    """
    data = sys.modules.get("torch.utils.data")
    worker = None if data is None else data.get_worker_info()
    if worker is None or worker.num_workers == 1 or workers == "all":
        return rank
    if workers == "raise":
        raise InvalidPipeline(
            f"worker {worker.id} of {worker.num_workers} of a DataLoader reads this pipeline, and each of them would read all of it: use "
            "`num_workers=0`, since the pipeline has its own threads, or set `workers=\"share\"`"
        )
    number, world = rank or (0, 1)
    return number * worker.num_workers + worker.id, world * worker.num_workers


def refuse_second_sharding(rank: Rank | None) -> None:
    """Raises InvalidPipeline if Accelerate would split the share of this rank among the ranks again."""
    if "accelerate.data_loader" not in sys.modules or rank is None or rank[1] == 1:
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") == "accelerate.data_loader":
            raise InvalidPipeline(
                f"Accelerate shards the samples of rank {rank[0]} of {rank[1]} again, so that samples are lost: pass "
                "`penstock.torch.DataLoader(pipeline)` to `prepare`"
            )
        frame = frame.f_back


def checked_rank(name: str, rank: int, world_name: str, world: int) -> Rank:
    """Checks a rank and the number of ranks."""
    rank, world = whole_number(name, rank, 0), whole_number(world_name, world, 1)
    if rank >= world:
        raise InvalidPipeline(f"rank {rank} is not below world {world}; ranks count from 0")
    return rank, world


def local_rank() -> int | None:
    """Number of this process on its machine, from the launcher's environment, else from Ray Train."""
    for name in _LOCAL_RANKS:
        if (found := _environment(name)) is not None:
            if found.isdecimal():
                return whole_number(name, int(found), 0)
            raise InvalidPipeline(f"the environment has {name}={found}; expected a whole number")
    context = _context_of_ray()
    return None if context is None else int(context.get_local_rank())


def _context_of_ray() -> Any:
    """Context of this worker of Ray Train; `None` in any other process."""
    train = sys.modules.get("ray.train")
    try:
        return None if train is None else train.get_context()
    except (AttributeError, RuntimeError):
        return None


def _launched() -> Rank | None:
    for rank, world in _RANKS:
        found, of = _environment(rank), _environment(world)
        if of is None or (found is None and of == "1"):
            continue
        if found is None:
            raise InvalidPipeline(
                f"the environment has {world}={of}, but not {rank}, the rank of this process: initialise `torch.distributed` before "
                "the first iteration, or set `rank=` and `world=`"
            )
        if found.isdecimal() and of.isdecimal():
            return checked_rank(rank, int(found), world, int(of))
        raise InvalidPipeline(f"the environment has {rank}={found} and {world}={of}; expected two whole numbers")
    return None


def _environment(name: str) -> str | None:
    """Reads a variable. Slurm's variables count only in a task started by `srun`: a batch script also has them, but is not a task."""
    if name.startswith("SLURM_") and "SLURM_STEP_ID" not in os.environ:
        return None
    return os.environ.get(name)
