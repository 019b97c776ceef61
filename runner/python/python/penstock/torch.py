"""Adapters for PyTorch, Lightning and Accelerate, which expect a data set or a data loader.

    import penstock.torch

    loader = penstock.torch.DataLoader(penstock.Pipeline("photos.json", stores={"photos": "./photos"}))
    for batch in loader:                      # {"image": tensor, "label": tensor, "name": list of texts}
        step(batch["image"], batch["label"])

    trainer.fit(model, loader)                                        # Lightning
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)    # Accelerate

The pipeline shards by rank, and no library shards it again. Tensors in host memory share the memory of their batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.utils.data
from penstock._penstock import Array, Batch
from penstock._pipeline import Pipeline

__all__ = ["DataLoader", "IterableDataset", "tensors"]


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

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return map(tensors, self.pipeline)

    def __len__(self) -> int:
        """Number of batches: the `len` of the pipeline."""
        return len(self.pipeline)

    def set_epoch(self, epoch: int) -> None:
        """Sets the pass over the source with which the next iteration begins; by default, the pass after the previous iteration."""
        self.pipeline.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """State of the pipeline behind the last batch, without worker processes."""
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

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        super().__init__(IterableDataset(pipeline), batch_size=None)

    def set_epoch(self, epoch: int) -> None:
        """Sets the pass over the source with which the next iteration begins; by default, the pass after the previous iteration."""
        self.pipeline.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """State of the pipeline behind the last batch, for a checkpoint."""
        return self.pipeline.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration continue from `state`."""
        self.pipeline.load_state_dict(state)
