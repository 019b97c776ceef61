"""Adapters for PyTorch, Lightning and Accelerate, which expect a data set or a data loader.

    import penstock.torch

    loader = penstock.torch.DataLoader(penstock.Pipeline("photos.json", stores={"photos": "./photos"}))
    for batch in loader:                      # {"image": tensor, "label": tensor, "name": list of texts}
        step(batch["image"], batch["label"])

    trainer.fit(model, loader)                                        # Lightning
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)    # Accelerate

The pipeline shards by rank, and no library shards it again. Tensors in host memory share the memory of their batch. Checkpoints of both
libraries contain the state of the loader, and continue in mid-epoch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from multiprocessing.context import get_spawning_popen
from types import FrameType
from typing import Any

import torch
import torch.distributed
import torch.utils.data
from penstock._penstock import Array, Batch, PenstockError
from penstock._pipeline import Pipeline, merge_distinct

__all__ = ["DataLoader", "IterableDataset", "tensors"]

# Modules of Lightning with the loop that trains.
_FIT_LOOPS = ("lightning.pytorch.loops.fit_loop", "pytorch_lightning.loops.fit_loop")


def tensors(batch: Batch | Mapping[str, Any], device: torch.device | str | int | None = None, *, non_blocking: bool = False) -> dict[str, Any]:
    """Fields of a batch: arrays as tensors, on a device if one is given, and texts and bytes as lists. With `"ragged": "list"` in the
    `collate`, an array with at least one dimension is a list of tensors, one per sample, which stay in host memory behind `transfer` unless
    a device is given here.
    """

    def converted(value: Any) -> Any:
        if isinstance(value, list):
            return [converted(one) for one in value] if value and isinstance(value[0], Array) else value
        if not isinstance(value, Array):
            return value
        tensor = torch.from_dlpack(value)
        return tensor if device is None else tensor.to(device, non_blocking=non_blocking)

    return {name: converted(value) for name, value in batch.items()}


class IterableDataset(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Batches of a pipeline, as dicts of tensors and lists. Pass it to a DataLoader with `batch_size=None`; start its workers with
    `multiprocessing_context="spawn"`; the workers share the samples if the pipeline has `workers="share"`.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        super().__init__()
        self.pipeline = pipeline
        # True if the next iteration is the rest of an interrupted one, also if nothing is left.
        self._continues = False
        self._is_read_by_workers = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._is_read_by_workers = False
        # A worker that had reached its end must not begin the next pass while the others continue.
        continues = self._continues or torch.utils.data.get_worker_info() is not None
        self._continues = False
        return map(tensors, self.pipeline._iterate(continues=continues))

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:
            self._is_read_by_workers = True
        return {**self.__dict__, "_is_read_by_workers": False}

    def __len__(self) -> int:
        """Number of batches: the `len` of the pipeline."""
        return len(self.pipeline)

    def set_epoch(self, epoch: int) -> None:
        """Sets the pass over the source with which the next iteration begins; by default, the pass after the previous iteration."""
        self.pipeline.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """State behind the last batch, for a checkpoint. In worker processes, each has its own, which torchdata's `StatefulDataLoader`
        collects. Raises PenstockError outside of the workers that read the data set.
        """
        if self._is_read_by_workers:
            raise PenstockError(
                "worker processes of a DataLoader read this data set, and their states are not known here: use `num_workers=0`, or "
                "torchdata's `StatefulDataLoader`"
            )
        return self.pipeline.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue from `state`."""
        self.pipeline.load_state_dict(state)


class DataLoader(torch.utils.data.DataLoader[dict[str, Any]]):
    """A data loader over a pipeline. It has no worker processes, since the pipeline has threads, and no batch size, since the document
    sets it.
    """

    # Marks the loader as prepared: Accelerate would shard any other loader again.
    _is_accelerate_prepared = True

    # Makes Accelerate's `save_state` and `load_state` include the loader.
    use_stateful_dataloader = True

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._batches = IterableDataset(pipeline)
        super().__init__(self._batches, batch_size=None)

    def __iter__(self) -> Any:
        if (loop := _fit_loop(self)) is not None:
            # Lightning loads states in mid-epoch only: behind the end of an epoch, the loader would repeat the first pass.
            loaders = [one for one in loop._combined_loader.flattened if hasattr(one, "load_state_dict")]
            states = loop._combined_loader_states_to_load
            for index, (loader, state) in enumerate(zip(loaders, states)):
                if loader is self and state is not None:
                    self.load_state_dict(state)
                    states[index] = None
            # Without a known `len`, or with samples that fail, Lightning asks for a batch behind the last one before it ends an epoch.
            self._batches._continues = loop.restarting and not loop.epoch_loop.batch_progress.is_last_batch
        return super().__iter__()

    def __len__(self) -> int:
        """Number of batches: the `len` of the pipeline. In Lightning, which counts on from the batches before a checkpoint, that of a whole pass."""
        return len(self.pipeline) if _fit_loop(self) is None else self.pipeline._whole_length()

    def set_epoch(self, epoch: int) -> None:
        """Sets the pass over the source with which the next iteration begins; by default, the pass after the previous iteration."""
        self.pipeline.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """State behind the last batch that the training loop has processed, for a checkpoint. If `torch.distributed` is initialised, it
        contains the states of all ranks, each of which has to call this function; any number of ranks can load it. The state of one rank
        is `pipeline.state_dict()`.
        """
        loop = _fit_loop(self)
        state = self.pipeline.state_dict(pending=0 if loop is None else _unprocessed(loop))
        if self.pipeline.world == 1 or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return state
        states: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(states, state)
        return merge_distinct(states)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue from `state`."""
        self.pipeline.load_state_dict(state)


def _fit_loop(loader: DataLoader) -> Any:
    """Loop of Lightning that trains on `loader` and has called this function; `None` without one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__") in _FIT_LOOPS:
            loop = frame.f_locals.get("self")
            combined = getattr(loop, "_combined_loader", None)
            if combined is not None and any(one is loader for one in combined.flattened):
                return loop
        frame = frame.f_back
    return None


def _unprocessed(loop: Any) -> int:
    """Number of batches that Lightning has fetched and not processed. It fetches one ahead if the `len` of the loader is not known."""
    progress = loop.epoch_loop.batch_progress.current
    ahead = getattr(loop._data_fetcher, "batches", ())
    return len(ahead) + int(progress.ready - progress.processed)
