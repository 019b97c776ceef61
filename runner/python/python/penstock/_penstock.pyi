"""The native part. People call `penstock`; what stands behind an underscore there is called from here alone."""

from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any, final

import numpy
from numpy.typing import DTypeLike
from typing_extensions import CapsuleType

__all__ = [
    "Array",
    "Batch",
    "BatchesHeld",
    "ForkError",
    "InvalidPipeline",
    "Loader",
    "PenstockError",
    "RunFailed",
    "Running",
    "StreamClient",
    "StreamError",
    "__version__",
    "compile_module",
    "headspace_of",
    "main",
]

__version__: str

class PenstockError(Exception):
    """Anything that Penstock cannot do."""

class InvalidPipeline(PenstockError):
    """The document, a store or a module cannot be used; the message tells all that is wrong, and where."""

class RunFailed(PenstockError):
    """A run ended early; the message says why."""

class BatchesHeld(PenstockError):
    """The training loop keeps so many batches that there is no memory for the next one."""

class ForkError(PenstockError):
    """This process was forked from one whose threads run pipelines; its own threads do not. Use `spawn`."""

class StreamError(PenstockError):
    """The stream of a server's run cannot be read; the message says why."""

@final
class Batch:
    """Samples whose fields are stacked: a mapping from field to `Array`, list of texts or list of bytes. Where the `collate` has
    `"ragged": "list"`, a tensor field with at least one dimension is a list of `Array`, one a sample, which stays in host memory behind
    `transfer`. With `"pad"` it is one `Array`, and the field `NAME.shape` has the shapes of the samples.
    """

    def __getitem__(self, name: str, /) -> Any:
        """An `Array`, or a list of `Array`, `str` or `bytes`; the pipeline determines the type. KeyError names the fields of the batch."""

    def get(self, name: str, default: Any = None) -> Any: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __len__(self) -> int:
        """How many fields there are."""

    def __iter__(self) -> Iterator[str]: ...
    def keys(self) -> list[str]:
        """The names of the fields."""

    def values(self) -> list[Any]: ...
    def items(self) -> list[tuple[str, Any]]: ...
    def to(self, device: Any, *, non_blocking: bool = False) -> dict[str, Any]:
        """The fields as PyTorch's tensors on a device, lists of `Array` as lists of tensors, and texts and bytes as lists."""

    @property
    def size(self) -> int:
        """How many samples it holds: the first dimension of every field."""

    @property
    def samples(self) -> list[str]:
        """What names each sample: an object's key, a record's key, an index."""

    @property
    def epoch(self) -> int:
        """The pass over the source that they are of, from 0: batches never hold samples of two."""

    @property
    def indexes(self) -> list[int]:
        """Where each sample stands in the unshuffled source, from 0."""

@final
class Array:
    """An array in the memory of this process or of a GPU. Any library that speaks DLPack takes it as it is, without a copy:
    `torch.from_dlpack(array)`, `numpy.from_dlpack(array)`, `jax.dlpack.from_dlpack(array)`, `cupy.from_dlpack(array)`.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Its dimensions, slowest first."""

    @property
    def dtype(self) -> str:
        """The type of its elements, as NumPy and PyTorch name it."""

    @property
    def device(self) -> str:
        """`cpu` or `cuda:N`."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Hands the memory over. `stream` is the consumer's on a GPU, which then waits for the copy: a stream that is named by its
        handle has to outlive the array. `max_version` is the version of DLPack that the consumer takes.
        """

    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> numpy.ndarray[Any, numpy.dtype[Any]]:
        """For `numpy.asarray`."""

    def __getitem__(self, index: Any, /) -> Any:
        """What NumPy has at an index, without a copy where it makes none."""

    def __iter__(self) -> Iterator[Any]:
        """Over the first dimension, as NumPy does."""

    def __len__(self) -> int:
        """The first dimension."""

@final
class Loader:
    """A pipeline that was checked. `device` is where all transfers lead; `local_rank` the GPU that is theirs when they may choose. Runs that
    keep dead letters are given a folder for them.
    """

    def __new__(
        cls,
        document: bytes,
        *,
        settings: Sequence[tuple[str, str]],
        stores: Sequence[tuple[str, str]],
        modules: Sequence[tuple[str, str | PathLike[str] | bytes]],
        device: str | None,
        local_rank: int | None,
        max_held: int,
        keeps_letters: bool,
        cache_dir: str | None,
        interpreter: str,
        library: str,
    ) -> Loader: ...
    @property
    def name(self) -> str:
        """What the pipeline is called."""

    @property
    def document(self) -> str:
        """The document as JSON: as given, without defaults, with settings and `device` applied."""

    @property
    def shard(self) -> tuple[int, int, bool] | None:
        """The document's share of the source: rank, number of ranks, and whether the last uneven round is kept."""

    @property
    def epochs(self) -> int | None:
        """Passes over the source that one run makes; `None` when they never end."""

    def explain(self, shard: tuple[int, int, bool] | None) -> str:
        """The pipeline in words, as it runs over a share of the source."""

    def start(
        self,
        first_epoch: int,
        shard: tuple[int, int, bool] | None = None,
        *,
        out: str | PathLike[str] | None = None,
        drained: bool = True,
        endless: bool = False,
    ) -> Running:
        """Starts a run over a share of the source, from the pass `first_epoch` on; one run at a time. It makes as many passes as the
        document says, or never ends with `endless`. `drained = false` drops batches as they arrive. `out` is the folder in which the
        run's own folder is made.
        """

    def batches(self, shard: tuple[int, int, bool] | None) -> int | None:
        """How many batches one run over a share of the source gives when no sample fails or is dropped; `None` when it never ends."""

@final
class Running:
    """A run of a pipeline, drained by the training loop."""

    def next(self) -> Batch | None:
        """The next batch; `None` when there are no more. Waits without Python's lock, and answers Ctrl-C."""

    def snapshot(self) -> str:
        """Its figures, as JSON."""

    def close(self) -> None:
        """Ends it where it is, and waits until it is over; fails if that takes too long."""

@final
class StreamClient:
    """A connection to a run of a server on the same machine."""

    def __new__(cls, socket: str, secret: str, max_held: int) -> StreamClient: ...
    def next(self) -> tuple[int, bool, Batch] | None:
        """Says that the last batch is done with, so that it is never given to anybody again, and gives the next one with its
        number and whether an earlier consumer was given it; `None` when there are no more. Waits without Python's lock, and
        answers Ctrl-C, which costs no batch.
        """

    @property
    def is_closed(self) -> bool:
        """Whether the server has closed the connection, or is gone."""

    @property
    def is_whole(self) -> bool | None:
        """Whether all batches of the run were acknowledged; `None` as long as the stream goes on."""

    @property
    def ahead(self) -> int:
        """Batches that may be out and not acknowledged."""

def headspace_of(real: float, loader: float, consumer: float, snapshot: str) -> tuple[str, str | None]:
    """What follows from three rates, in batches per second, and the reason why they cannot be, if they cannot. The sink queue's figures
    come from a snapshot. As JSON.
    """

def compile_module() -> int:
    """What the child does that compiles a module: answers the one question on standard input. Gives the exit code."""

def main(arguments: Sequence[str], interpreter: str, library: str) -> int:
    """Executes a command line of `penstock`, whose first argument is the command's name. Gives the exit code. The process is the command's
    own: it changes limits and signals, and may end it.
    """
