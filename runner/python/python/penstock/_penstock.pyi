"""Types of the native part. Use `penstock`; names with an underscore are private to the package."""

from collections.abc import Callable, Iterator, Mapping, Sequence
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
    "announced_token",
    "compile_module",
    "headspace_of",
    "main",
    "verdict_in_words",
]

__version__: str

class PenstockError(Exception):
    """Base class of all errors of Penstock."""

class InvalidPipeline(PenstockError):
    """The document, a store or a module is invalid; the message lists all faults with their places."""

class RunFailed(PenstockError):
    """A run ended early; the message states the reason."""

class BatchesHeld(PenstockError):
    """The training loop holds the maximum number of batches, so that the next one cannot be delivered."""

class ForkError(PenstockError):
    """This process was forked from one that runs pipelines, whose threads do not exist after a fork. Use `spawn`."""

class StreamError(PenstockError):
    """The stream of a server's run cannot be read; the message states the reason."""

@final
class Batch:
    """Samples whose fields are stacked: a mapping from field to `Array`, list of texts or list of bytes. If the `collate` has
    `"ragged": "list"`, a tensor field with at least one dimension is a list of `Array`, one per sample, which stays in host memory behind
    `transfer`. With `"pad"` it is one `Array`, and the field `NAME.shape` has the shapes of the samples.
    """

    def __getitem__(self, name: str, /) -> Any:
        """An `Array`, or a list of `Array`, `str` or `bytes`; the pipeline determines the type. A KeyError lists the fields of the batch."""

    def get(self, name: str, default: Any = None) -> Any: ...
    def __contains__(self, name: object, /) -> bool: ...
    def __len__(self) -> int:
        """Number of fields."""

    def __iter__(self) -> Iterator[str]: ...
    def keys(self) -> list[str]:
        """Names of the fields."""

    def values(self) -> list[Any]: ...
    def items(self) -> list[tuple[str, Any]]: ...
    def to(self, device: Any, *, non_blocking: bool = False) -> dict[str, Any]:
        """Fields as PyTorch tensors on a device, lists of `Array` as lists of tensors, and texts and bytes as lists."""

    @property
    def size(self) -> int:
        """Number of samples: the first dimension of every field."""

    @property
    def samples(self) -> list[str]:
        """Name of each sample: an object's key, a record's key, or an index."""

    @property
    def epoch(self) -> int:
        """Pass over the source, from 0: a batch never contains samples of two passes."""

    @property
    def indexes(self) -> list[int]:
        """Position of each sample in the unshuffled source, from 0."""

@final
class Array:
    """An array in the memory of this process or of a GPU. Any library that supports DLPack reads it without a copy:
    `torch.from_dlpack(array)`, `numpy.from_dlpack(array)`, `jax.dlpack.from_dlpack(array)`, `cupy.from_dlpack(array)`.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions, slowest first."""

    @property
    def dtype(self) -> str:
        """Element type, by its name in NumPy and PyTorch."""

    @property
    def device(self) -> str:
        """Device of the array: `cpu` or `cuda:N`."""

    @property
    def nbytes(self) -> int:
        """Size of the elements, in bytes."""

    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> CapsuleType:
        """Exports the memory. On a GPU, `stream` is the consumer's stream, which waits for the copy: a stream given by its handle must
        outlive the array. `max_version` is the version of DLPack that the consumer supports.
        """

    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> numpy.ndarray[Any, numpy.dtype[Any]]:
        """Converts the array for `numpy.asarray`."""

    def __getitem__(self, index: Any, /) -> Any:
        """Indexes like NumPy, without a copy where NumPy makes none."""

    def __iter__(self) -> Iterator[Any]:
        """Iterates over the first dimension, like NumPy."""

    def __len__(self) -> int:
        """Size of the first dimension."""

@final
class Loader:
    """A checked pipeline. `device` is the target of all transfers; `local_rank` is the GPU for transfers with `auto`. With
    `keeps_letters`, each run gets a folder for dead letters.
    """

    def __new__(
        cls,
        document: bytes,
        *,
        settings: Sequence[tuple[str, str]],
        stores: Sequence[tuple[str, str]],
        links: Mapping[str, Sequence[str]],
        store_cache: str | None,
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
        """Name of the pipeline."""

    @property
    def document(self) -> str:
        """Document as JSON: as given, without defaults, with settings and `device` applied."""

    @property
    def shard(self) -> tuple[int, int, bool] | None:
        """The document's share of the source: rank, number of ranks, and true if the last entries are kept when their number is not a
        multiple of the number of ranks.
        """

    @property
    def epochs(self) -> int | None:
        """Number of passes over the source in one run; `None` for endless runs."""

    def is_even(self, shard: tuple[int, int, bool] | None) -> bool:
        """True if the number of batches of a share is the same for all ranks, whatever the samples contain."""

    def explain(self, shard: tuple[int, int, bool] | None) -> str:
        """Description of the pipeline for a share of the source."""

    def check_state(self, state: str, force: bool) -> None:
        """Checks that `state` is a state of this pipeline, or any state with `force`."""

    def fresh_state(self, first_epoch: int, shard: tuple[int, int, bool] | None) -> str:
        """State of a run that begins with the pass `first_epoch`, as JSON."""

    def start(
        self,
        first_epoch: int,
        shard: tuple[int, int, bool] | None = None,
        *,
        out: str | PathLike[str] | None = None,
        drained: bool = True,
        endless: bool = False,
        state: str | None = None,
        force: bool = False,
    ) -> Running:
        """Starts a run over a share of the source, beginning with the pass `first_epoch`; one run at a time. It makes as many passes as in
        the document, or never ends with `endless`. `drained = false` drops batches as they arrive. The run's own folder is created in
        `out`. A `state` continues an earlier run; `force` ignores that another pipeline has written it.
        """

    def batches(
        self, first_epoch: int, shard: tuple[int, int, bool] | None, *, state: str | None = None, force: bool = False
    ) -> int | None:
        """Number of batches in one run over a share of the source if no sample fails or is dropped; `None` for endless runs. With a `state`,
        of the run that continues from it; `force` ignores that another pipeline has written it.
        """

    def fields(self) -> str | None:
        """Fields of the source's samples, as JSON, read from the source; `None` if the source does not know them."""

@final
class Running:
    """A run of a pipeline, drained by the training loop."""

    def next(self, is_needless: Callable[[], bool] | None = None) -> Batch | None:
        """Next batch; `None` after the last, or once `is_needless` returns true while the loop waits for it. Waits without the GIL, and
        handles Ctrl-C.
        """

    def claim(self) -> bool:
        """Takes the next batch from the queue if it is there: true if `next` will return a batch without waiting, even if the run fails
        meanwhile.
        """

    @property
    def first_epoch(self) -> int:
        """Number of the first pass of the run."""

    @property
    def has_ended(self) -> bool:
        """True once the run has ended."""

    @property
    def is_closed(self) -> bool:
        """True once the loop has closed the run."""

    def state(self, pending: int) -> str:
        """State behind all returned batches except the last `pending` ones, as JSON."""

    def snapshot(self) -> str:
        """Figures of the run, as JSON."""

    def gain(self, changed: Loader) -> tuple[float | None, str | None]:
        """Ratio of the rate predicted for `changed`, the pipeline of this run with other settings, to that predicted for the run itself; or
        the reason why it is not known.
        """

    def setting(self, pointer: str) -> str | None:
        """Value at a JSON pointer in the document of the run, with defaults, as JSON; `None` if there is none."""

    def take_back(self) -> None:
        """Takes back the last batch that was returned, which the loop has not got: its samples are not settled."""

    def end_together(self) -> int:
        """Ends the run because another rank has no more batches: what is left is discarded, and counts as settled. Returns the number of
        samples discarded. Fails like `next` if the run failed.
        """

    def loses_samples(self) -> bool:
        """True if samples have failed or were left out on purpose so far."""

    def close(self) -> None:
        """Stops the run early and waits for its end; fails if that takes too long."""

@final
class StreamClient:
    """A connection to a run of a server on the same machine."""

    def __new__(cls, socket: str, secret: str, max_held: int) -> StreamClient: ...
    def next(self) -> tuple[int, bool, Batch] | None:
        """Acknowledges the last batch, so that it is never delivered again, and returns the next one with its number and true if it was
        delivered to an earlier consumer; `None` after the last. Waits without the GIL, and handles Ctrl-C, which loses no batch.
        """

    @property
    def is_closed(self) -> bool:
        """True once the server has closed the connection or ended."""

    @property
    def is_whole(self) -> bool | None:
        """True if all batches of the run were acknowledged; `None` before the end of the stream."""

    @property
    def ahead(self) -> int:
        """Maximum number of batches delivered and not acknowledged."""

def headspace_of(real: float, loader: float, consumer: float, snapshot: str) -> tuple[str, str | None]:
    """Computes the headspace from three rates in batches per second, as JSON, and describes the contradiction between them, if there is
    one. The figures of the sink queue come from a snapshot.
    """

def merge_states(states: Sequence[str]) -> str:
    """Merges the states of several ranks, each as JSON."""

def verdict_in_words(verdict: str) -> str:
    """Sentence, evidence and advice of a verdict, which is given as JSON, as in the report of a run."""

def announced_token(url: str) -> str | None:
    """Token of the server that this user runs at `url`, if there is one."""

def compile_module() -> int:
    """Compiles one module, read from standard input, in a child process. Returns the exit code."""

def main(arguments: Sequence[str], interpreter: str, library: str) -> int:
    """Executes a command line of `penstock`, whose first argument is the command's name, and returns the exit code. Requires a separate
    process: it changes limits and signals, and may end the process.
    """
