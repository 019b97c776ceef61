"""Support for the tests: built programs, real photos, documents, and access to the contents of memory and files."""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import penstock
from stage import DTYPES, Elements, constant_stage

# Maximum time that a test waits for an expected event, in seconds.
PATIENCE = 30.0

# Cache of compiled modules, so that every module is compiled once in a run of the tests.
_CACHE = tempfile.mkdtemp(prefix="penstock-python-cache-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
# A forked child that ends before its parent must not delete the cache.
os.register_at_fork(after_in_child=lambda: atexit.unregister(shutil.rmtree))
os.environ["PENSTOCK_CACHE_DIR"] = _CACHE


def wanted(name: str) -> Path:
    """Returns the path in an environment variable that the tests require."""
    if name not in os.environ:
        sys.exit(f"{name} is not set: run `make test-python`")
    return Path(os.environ[name])


def module(name: str) -> Path:
    """Path of a built module, by the name of its crate."""
    return wanted("MODULES") / f"{name.replace('-', '_')}.wasm"


@functools.cache
def photos(count: int = 48) -> Path:
    """Folder of `count` photos, created once per test run."""
    folder = Path(_CACHE) / f"photos-{count}"
    subprocess.run([wanted("MAKE_DATA"), "photos", folder, f"--count={count}"], check=True, stdout=subprocess.DEVNULL)
    return folder


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder that is deleted at the end of the `with` block."""
    path = tempfile.mkdtemp(prefix="penstock-python-")
    try:
        yield Path(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def image_ops(size: int) -> list[dict[str, Any]]:
    """Ops of `std/image` that make float32, [3, size, size], of a photo."""
    return [
        {"Resize": {"size": size}},
        {"CenterCrop": {"size": size}},
        {"ToDtype": {"dtype": "float32", "scale": True}},
        {"Normalize": {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}},
    ]


def photo_document(size: int = 32, batch: int = 8, **source: Any) -> dict[str, Any]:
    """Document that reads photos in a fixed order, decodes and normalises them, and collates them into batches."""
    return {
        "name": "photos",
        "seed": 7,
        "threads": 2,
        "source": {"list": {"store": "photos", "suffix": ".jpg", "shuffle": True, **source}},
        "stages": [
            {"fetch": {"concurrency": 4, "order": "input"}},
            {"wasm": {"module": "std/image", "params": {"ops": image_ops(size)}, "concurrency": 2, "order": "input"}},
            {"aggregate": {"size": batch}},
            {"collate": {}},
        ],
    }


def photo_pipeline(document: Mapping[str, Any] | None = None, **options: Any) -> penstock.Pipeline:
    return penstock.Pipeline(
        photo_document() if document is None else document,
        stores={"photos": photos()},
        **options,
    )


# An array of 256 x 256 numbers: 0, 1, 2 and so on.
_PLANE = Elements("float32", (256, 256), struct.pack("<65536f", *range(65536)))


@functools.cache
def plane_stage() -> bytes:
    """A module that adds an array of 256 KiB to every sample, at negligible cost."""
    return constant_stage("plane", {"plane": _PLANE})


def plane_document(count: int, batch: int = 4, step_ms: float = 0, **source: Any) -> dict[str, Any]:
    """Document of `count` samples, each with a 256 x 256 array `plane`; `step_ms` is the time per sample."""
    nap = [{"sleep": {"mean_ms": step_ms, "on": "async"}}] if step_ms else []
    return {
        "name": "planes",
        "source": {"range": {"count": count, **source}},
        "stages": [*nap, {"wasm": {"module": "plane"}}, {"aggregate": {"size": batch}}, {"collate": {}}],
    }


def planes(count: int, batch: int = 4, step_ms: float = 0, *, source: Mapping[str, Any] | None = None, **options: Any) -> penstock.Pipeline:
    document = plane_document(count, batch, step_ms, **(source or {}))
    return penstock.Pipeline(document, modules={"plane": plane_stage()}, **options)


def slow(count: int = 1000, step_ms: float = 60_000, **options: Any) -> penstock.Pipeline:
    """A pipeline whose first batch takes longer than a test may take."""
    return penstock.Pipeline(
        {
            "name": "slow",
            "source": {"range": {"count": count}},
            "stages": [{"sleep": {"mean_ms": step_ms, "on": "async"}}, {"aggregate": {"size": 1}}, {"collate": {}}],
        },
        **options,
    )


def order_of(pipeline: penstock.Pipeline) -> list[int]:
    """Positions, in the unshuffled source, of the samples of one iteration."""
    return [index for batch in pipeline for index in batch.indexes]


def every_type() -> dict[str, Elements]:
    """One array per element type; the bytes within an array are distinct."""
    size = {"bool": 1, "uint8": 1, "int8": 1, "float64": 8, "int64": 8, "int32": 4, "float32": 4}
    fields = {}
    for place, dtype in enumerate(DTYPES):
        content = bytes((7 * place + number) % 256 for number in range(6 * size.get(dtype, 2)))
        fields[dtype] = Elements(dtype, (2, 3), bytes(byte % 2 for byte in content) if dtype == "bool" else content)
    return fields


# --- Contents of memory


class _RawTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _RawVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _RawTensor),
    ]


@dataclass(frozen=True)
class Seen:
    """DLPack description of an exported array."""

    address: int | None
    device: tuple[int, int]
    #: Element type as in DLPack: code, bits and lanes.
    kind: tuple[int, int, int]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    flags: int
    data: bytes


def look(array: penstock.Array, version: tuple[int, int] | None = (1, 0)) -> Seen:
    """Reads the capsule of an array without consuming it."""
    capsule = array.__dlpack__(max_version=version)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    if version is None:
        flags, tensor = 0, _RawTensor.from_address(get(capsule, b"dltensor"))
    else:
        versioned = _RawVersioned.from_address(get(capsule, b"dltensor_versioned"))
        assert (versioned.major, versioned.minor) <= version, "a version that the consumer does not support"
        flags, tensor = versioned.flags, versioned.tensor
    assert tensor.byte_offset == 0
    return Seen(
        tensor.data,
        (tensor.device_type, tensor.device_id),
        (tensor.code, tensor.bits, tensor.lanes),
        tuple(tensor.shape[: tensor.ndim]),
        tuple(tensor.strides[: tensor.ndim]),
        flags,
        ctypes.string_at(tensor.data, array.nbytes) if tensor.data else b"",
    )


@dataclass(frozen=True)
class Content:
    """Complete content of a batch."""

    keys: list[str]
    epochs: list[int]
    indexes: list[int]
    #: Type, shape and bytes of each tensor field; texts or blobs of each other field.
    fields: dict[str, Any]


def content(batch: penstock.Batch) -> Content:
    """Copies the content of a batch."""
    fields: dict[str, Any] = {}
    for name, value in batch.items():
        fields[name] = (value.dtype, list(value.shape), look(value).data) if isinstance(value, penstock.Array) else list(value)
    return Content(list(batch.samples), [batch.epoch] * batch.size, list(batch.indexes), fields)


# --- Contents of files

_FILE_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32", "I64": "int64",
    "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
}  # fmt: skip


def read_file(path: Path) -> Content:
    """Reads a batch written by the consumer `files`, without a library for the format."""
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]
    told = json.loads(header.pop("__metadata__")["penstock"])

    def of(name: str) -> tuple[str, list[int], bytes]:
        begin, end = header[name]["data_offsets"]
        return _FILE_DTYPES[header[name]["dtype"]], header[name]["shape"], data[begin:end]

    fields: dict[str, Any] = {}
    for name, kind in told["fields"].items():
        tensor = of(name)
        if kind == "tensor":
            fields[name] = tensor
            continue
        bounds = struct.unpack(f"<{len(told['keys']) + 1}q", of(f"{name}.offsets")[2])
        parts = [tensor[2][begin:end] for begin, end in zip(bounds, bounds[1:])]
        fields[name] = [part.decode() for part in parts] if kind == "text" else parts
    return Content(told["keys"], told["epochs"], told["indexes"], fields)


def files(
    document: Mapping[str, Any], stores: Mapping[str, Path], modules: Mapping[str, Path], command: Sequence[str | Path] = ()
) -> list[Content]:
    """Contents of the batches of a document, in order, as the consumer `files` writes them."""
    with folder() as made:
        (made / "out").mkdir()
        written = {**document, "consumer": {"files": {"store": "out"}}}
        (made / "document.json").write_text(json.dumps(written))
        named = [f"--store={name}={path}" for name, path in {**stores, "out": made / "out"}.items()]
        named += [f"--module={name}={path}" for name, path in modules.items()]
        run = [*(command or [wanted("PENSTOCK")]), "run", made / "document.json", "--quiet", f"--cache-dir={_CACHE}", *named]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL, timeout=PATIENCE, env=clean())
        return [read_file(path) for path in sorted((made / "out").glob("*.safetensors"))]


# --- Processes


@functools.cache
def fake_driver() -> Path:
    """Folder with a fake CUDA driver that reports devices, created once."""
    made = Path(_CACHE) / "driver"
    made.mkdir()
    source = Path(__file__).parents[2] / "runner/device/tests/fake/libcuda.c"
    subprocess.run(["cc", "-shared", "-fPIC", "-pthread", source, "-o", made / "libcuda.so.1"], check=True)
    return made


def clean(**more: str) -> dict[str, str]:
    """The environment without the variables of Penstock and of launchers, except for the cache of compiled modules."""
    foreign = re.compile("PENSTOCK_|RANK$|LOCAL_RANK$|WORLD_SIZE$|SLURM_")
    return {name: value for name, value in os.environ.items() if not foreign.match(name)} | {"PENSTOCK_CACHE_DIR": _CACHE} | more


# Names of threads that live as long as the process, such as NumPy's, or as long as a pipeline.
_LASTING = ("python", "penstock-io", "sandbox-ticker", "timer")


def run_threads() -> list[str]:
    """Names of the threads that belong to runs."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        if task.name == str(os.getpid()):
            continue
        try:
            found.append((task / "comm").read_text().strip())
        except OSError:
            continue
    return sorted(name for name in found if name not in _LASTING)


def resident() -> int:
    """Resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def until(is_so: Callable[[], bool], what: str, patience: float = PATIENCE) -> None:
    """Waits until a condition holds."""
    end = time.monotonic() + patience
    while not is_so():
        assert time.monotonic() < end, f"{what}: not within {patience} s"
        time.sleep(0.01)


# A test that a shell runs in the background ignores Ctrl-C, and its child processes would inherit that.
_ENABLE_CTRL_C = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def program(text: str, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Starts a Python program, given as text, that can import the modules in this file's folder."""
    environment = clean(PYTHONPATH=str(Path(__file__).parent), **options.pop("variables", {}))
    return subprocess.Popen(
        [sys.executable, "-c", _ENABLE_CTRL_C + text, *arguments],
        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def finished(child: subprocess.Popen[str], patience: float = PATIENCE) -> tuple[int, str, str]:
    """Waits for a program and returns its exit code, output and errors."""
    try:
        output, errors = child.communicate(timeout=patience)
    except subprocess.TimeoutExpired:
        child.kill()
        output, errors = child.communicate()
        raise AssertionError(f"the program did not end within {patience} s: {output}{errors}") from None
    return child.returncode, output, errors


class Server:
    """A running `penstock serve` with its own data folder."""

    def __init__(self, *arguments: str, token: str | None = None, makes_token: bool = False, command: Sequence[str | Path] = ()) -> None:
        self._data = tempfile.mkdtemp(prefix="penstock-python-serve-")
        self.token = token
        #: State folder in which a server with its own token announces itself to programs of its user.
        self.state = f"{self._data}/state"
        given = {"XDG_STATE_HOME": self.state} if makes_token else {} if token is None else {"PENSTOCK_TOKEN": token}
        free = [] if given else ["--no-token"]
        self._child = subprocess.Popen(
            [*(command or [wanted("PENSTOCK")]), "serve", "--listen=127.0.0.1:0", f"--data-dir={self._data}/data", *free, *arguments],
            env=clean(**given), stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        found = re.search(r"http://[\d.:]+", line)
        assert found is not None, f"the server printed `{line}` instead of its address"
        self.url = found.group()

    def push(self, wasm: bytes) -> None:
        """Uploads a module."""
        headers = {"content-type": "application/wasm"}
        if self.token is not None:
            headers["authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(f"{self.url}/api/v1/modules", wasm, headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            assert answer.status in (200, 201), answer.status

    def kill(self) -> None:
        """Kills the server, to simulate a failure of the machine."""
        self._child.kill()
        self._child.wait()

    def close(self, by: signal.Signals = signal.SIGINT) -> int:
        """Stops the server and returns the exit code."""
        self._child.send_signal(by)
        try:
            self._child.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        assert self._child.stdout is not None
        self._child.stdout.close()
        shutil.rmtree(self._data, ignore_errors=True)
        return self._child.returncode
