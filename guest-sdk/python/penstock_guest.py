"""SDK of Penstock stages in Python: `@stage` turns a function or a class in `stage.py` into a module of the runner.

The same file serves three purposes. A native Python imports it in tests; `python penstock_guest.py NAME` prints the manifest of
`stage.py` as JSON; and componentize-py builds it as the entry of the WebAssembly component, where it imports `stage.py` at build time.
"""

import json
import linecache
import os
import random
import sys
import time

IN_GUEST = sys.platform == "wasi"
CODES = {"boolean": "?", "uint8": "B", "int8": "b", "int16": "h", "uint16": "H", "int32": "i", "int64": "q", "float32": "f", "float64": "d"}
DTYPES = ["boolean", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]
# Maximum length of a printed line in characters; a longer one is logged in parts.
LINE = 4096
FRAMES = 6

assets = {}  # assets of native tests: name -> bytes
counters = {}  # counters of native tests: name -> sum
_stage = None


class Unavailable(OSError):
    """Raised where a stage asks for a thing that the sandbox does not have: files, clocks, the system's random numbers."""


class Held:
    """Result of a stateful stage that holds the sample back until a later call or `finish`."""


class Tensor:
    """An array: `data` has the elements in little-endian order, rows first."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), bytes(data)

    @classmethod
    def of(cls, dtype, shape, values):
        import array  # a built-in module
        return cls(dtype, shape, array.array("B" if dtype == "boolean" else CODES[dtype], values).tobytes())

    def values(self):
        """Elements in the order of `data`, without a copy; not available for float16 and bfloat16."""
        return memoryview(self.data).cast(CODES[self.dtype])

    def __repr__(self):
        return f"Tensor({self.dtype!r}, {self.shape})"

    def __eq__(self, other):
        return isinstance(other, Tensor) and vars(self) == vars(other)


class Item(dict):
    """One sample: a dict of its fields, which are bytes, str, int, float or `Tensor`. All randomness starts at `seed`."""

    def __init__(self, key, fields=(), seed=0):
        super().__init__(fields)
        self.key, self.seed = key, seed
        self._random = None

    @property
    def random(self):
        """A `random.Random` with the seed of this sample."""
        if self._random is None:
            self._random = random.Random(self.seed)
        return self._random

    def child(self, index):
        """An item without fields for the `index`-th part of this item, with a distinct key and seed."""
        mask = (1 << 64) - 1
        mixed = ((self.seed ^ (index + 1) * 0x9E3779B97F4A7C15 & mask) + 0x9E3779B97F4A7C15) & mask
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & mask
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & mask
        return Item(f"{self.key}#{index}", seed=mixed ^ mixed >> 31)


def stage(made=None, *, mode="sample", wants=None, makes=(), removes=(), fan_out=False, counters=(), params=None):
    """Declares the stage of the module: a function `(item, params)`, or a class with `__init__(params)` and `process(item)`.

    `process` returns the item, None to drop it, or a list of items (`fan_out=True`). In mode `batch` it takes a list of items and
    returns a list with a result for each. In mode `stateful` it is a class whose `process` may return `Held` and whose `finish()`
    returns the items held. `params` maps each name to a JSON Schema; a param without `default` must be written.
    """

    def declare(made):
        global _stage
        schema = None
        if params:
            required = [name for name, rule in params.items() if "default" not in rule]
            schema = {"type": "object", "properties": params, "required": required, "additionalProperties": False}
        if _stage is not None:
            raise TypeError("a module has one stage, but `@stage` is used twice")
        doc = " ".join((made.__doc__ or "").split())
        _stage = made, params or {}, {
            "doc": doc, "mode": mode, "wants": None if wants is None else list(wants), "makes": list(makes),
            "removes": list(removes), "fan_out": fan_out, "counters": list(counters), "params": schema,
        }
        code = getattr(made if not isinstance(made, type) else made.process, "__code__")
        linecache.getlines(code.co_filename)  # read now, because tracebacks show lines and a guest has no files
        return made

    return declare if made is None else declare(made)


def log(message, level="info"):
    """Writes a line to the run's log: `debug`, `info`, `warn` or `error`."""
    if IN_GUEST:
        host.log(host.Level[level.upper()], str(message))
    else:
        print(f"{level}: {message}", file=sys.stderr)


def count(name, delta=1):
    """Adds to a counter that `@stage(counters=[...])` declares."""
    if IN_GUEST:
        host.count(name, float(delta))
    else:
        counters[name] = counters.get(name, 0) + delta


def asset(name):
    """Bytes of an asset that the pipeline names for this stage. Each call copies them: call it in `__init__`."""
    if not IN_GUEST:
        return assets[name]
    try:
        return host.asset(name)
    except Err as error:
        raise KeyError(error.value) from None


def instance(params=None):
    """The declared stage, set up with these params as the runner does: a function from an item, or a list of items, to results."""
    made, rules, manifest = _stage
    settings = {name: rule["default"] for name, rule in rules.items() if "default" in rule} | (params or {})
    if isinstance(made, type):
        return made(settings)
    if manifest["mode"] == "stateful":
        raise TypeError("a stage of mode `stateful` is a class with `process` and `finish`")
    return type("Function", (), {"process": staticmethod(lambda given: made(given, settings))})()


def manifest(name, version="0.1.0"):
    if _stage is None:
        raise TypeError("stage.py has no function or class with `@stage`")
    return {"name": name, "version": version} | _stage[2]


def _reason(error):
    """An exception with its traceback in one line, innermost frame first."""
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames, at = [], error.__traceback__
    while at:
        code = at.tb_frame.f_code
        if code.co_filename != __file__:
            line = linecache.getline(code.co_filename, at.tb_lineno).strip()
            place = f"{os.path.basename(code.co_filename)}:{at.tb_lineno} in {code.co_name}"
            frames.append(f"{place}: {line}" if line else place)
        at = at.tb_next
    frames.reverse()
    shown = frames if len(frames) <= FRAMES else [*frames[: FRAMES - 1], f"{len(frames) - FRAMES} more", frames[-1]]
    return "\n  at ".join([text, *shown])


class _Output:
    """A text stream whose lines go to the run's log."""

    encoding, errors = "utf-8", "replace"

    def __init__(self, level):
        self.level, self.begun = level, ""

    def write(self, text):
        self.begun += text
        while (end := self.begun.find("\n")) >= 0 or len(self.begun) > LINE:
            end = min(end, LINE) if end >= 0 else LINE
            log(self.begun[:end], self.level)
            self.begun = self.begun[end + self.begun.startswith("\n", end) :]
        return len(text)

    def end(self):
        if self.begun:
            self.write("\n")

    def flush(self):
        pass

    def writable(self):
        return True

    def isatty(self):
        return False


class _NoLateImport:
    """Finder that refuses modules which were not imported when the module was built."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        raise ModuleNotFoundError(f"`{name}` is imported too late: import it at the top of stage.py, since a stage has no files", name=name)


def _refusal(what, name):
    def refuse(*_, **__):
        raise Unavailable(f"a stage has no {what} (`{name}`)")

    return refuse


def _close():
    """Replaces all functions that would reach the stubs of WASI, which end the guest without a reason."""
    import builtins, datetime, importlib.machinery as machinery, io, posix, types  # noqa: E401

    sys.stdout, sys.stderr = _Output("info"), _Output("warn")
    pure = {"fspath", "strerror", "_path_normpath", "_path_splitroot", "_path_splitroot_ex", "WIFEXITED", "WEXITSTATUS", "getpid"}
    for name, made in list(vars(posix).items()):
        if isinstance(made, types.BuiltinFunctionType) and name not in pure and not name.startswith("__"):
            what = "random numbers of the system; use item.random" if name in ("urandom", "getrandom") else "files and processes"
            refuse = _refusal(what, f"os.{name}")
            setattr(posix, name, refuse)
            if getattr(os, name, None) is made:
                setattr(os, name, refuse)
    random._urandom = os.urandom
    for module, names in ((builtins, ["open", "input"]), (io, ["open", "open_code", "FileIO"])):
        for name in names:
            setattr(module, name, _refusal("files", name))
    calm = types.SimpleNamespace(**vars(time) | {"time_ns": lambda: 0, "time": lambda: 0.0})
    for name in [name for name in vars(time) if name.removesuffix("_ns") in (
        "time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime", "clock_getres", "get_clock_info", "sleep"
    )]:
        setattr(time, name, _refusal("clock", f"time.{name}"))
    for name in ("gmtime", "localtime", "ctime", "strftime", "asctime"):
        whole, at = getattr(time, name), 1 if name == "strftime" else 0
        refuse = _refusal("clock", f"time.{name}")
        setattr(time, name, lambda *given, whole=whole, at=at, refuse=refuse: (whole if len(given) > at and given[at] is not None else refuse)(*given))
    if "logging" in sys.modules:
        sys.modules["logging"].time = calm  # log records have a time; the run's log has its own
    linecache.checkcache = lambda *_: None
    linecache.updatecache = lambda *_: []
    linecache.lazycache = lambda *_: False
    sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not machinery.PathFinder] + [_NoLateImport]
    sys.path_hooks.clear()


if IN_GUEST:
    import datetime as _datetime

    from componentize_py_types import Err
    from wit_world.imports import host
    from wit_world.imports import types as wit

    class _Datetime(_datetime.datetime):
        now = classmethod(_refusal("clock", "datetime.now"))
        utcnow = classmethod(_refusal("clock", "datetime.utcnow"))
        today = classmethod(_refusal("clock", "datetime.today"))

    class _Date(_datetime.date):
        today = classmethod(_refusal("clock", "date.today"))

    # Here, since `from datetime import datetime` in stage.py keeps what it finds.
    _Datetime.__name__, _Date.__name__ = "datetime", "date"
    _datetime.datetime, _datetime.date = _Datetime, _Date

    def _inwards(item):
        fields = {}
        for field in item.fields:
            value = field.value.value
            if isinstance(field.value, wit.Value_Tensor):
                value = Tensor(DTYPES[value.dtype.value], value.shape, value.data)
            fields[field.name] = value
        return Item(item.key, fields, item.seed)

    def _value(name, value):
        if isinstance(value, (bytes, bytearray, memoryview)):
            return wit.Value_Blob(bytes(value))
        if isinstance(value, str):
            return wit.Value_Text(value)
        if isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 63:
                raise OverflowError(f"field `{name}` is {value}, which does not fit into 64 bits")
            return wit.Value_Int(int(value))
        if isinstance(value, float):
            return wit.Value_Real(float(value))
        if isinstance(value, Tensor):
            return wit.Value_Tensor(wit.Tensor(wit.Dtype(DTYPES.index(value.dtype)), value.shape, value.data))
        raise TypeError(f"field `{name}` is of type {type(value).__name__}; a field is bytes, str, int, float or a Tensor")

    def _outwards(item):
        if not isinstance(item, Item):
            raise TypeError(f"the stage returned {type(item).__name__} {item!r:.40}; return the item, None, or a list of items")
        return wit.Item(item.key, item.seed, [wit.Field(name, _value(name, value)) for name, value in item.items()])

    def _outcome(result):
        if result is None:
            return wit.Outcome_Drop()
        if isinstance(result, BaseException):
            return wit.Outcome_Failed(_reason(result))
        if result is Held:
            return wit.Outcome_Held()
        if isinstance(result, list):
            return wit.Outcome_Many([_outwards(item) for item in result])
        return wit.Outcome_Keep(_outwards(result))

    class Transform:
        # componentize-py makes an object for each call.
        stage, mode = None, "sample"

        def init(self, params_json):
            try:
                _close()
                random.seed(0)
                Transform.mode = _stage[2]["mode"]
                Transform.stage = instance(json.loads(params_json))
            except BaseException as error:
                raise Err(_reason(error)) from None
            finally:
                _end_of_call()

        def process(self, items):
            try:
                if self.mode != "batch":
                    return [self.one(item) for item in items]
                given = [_inwards(item) for item in items]
                random.seed(given[0].seed if given else 0)
                results = self.stage.process(given)
                if not isinstance(results, list) or len(results) != len(given):
                    raise TypeError(f"the stage must return a list of {len(given)} results, one for each item")
                return [_outcome(result) for result in results]
            except BaseException as error:
                return [wit.Outcome_Failed(_reason(error)) for _ in items]
            finally:
                _end_of_call()

        def one(self, given):
            try:
                item = _inwards(given)
                random.seed(item.seed)
                return _outcome(self.stage.process(item))
            except BaseException as error:  # SystemExit is a failed sample too, not the end of the guest
                return wit.Outcome_Failed(_reason(error))

        def finish(self):
            try:
                return [_outwards(item) for item in self.stage.finish()]
            except BaseException as error:
                log(f"panic: {_reason(error)}", "error")
                raise
            finally:
                _end_of_call()

    def _end_of_call():
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, _Output):
                stream.end()

    sys.modules.setdefault("penstock_guest", sys.modules[__name__])
    import stage as _  # noqa: F401, E402

elif __name__ == "__main__":
    import penstock_guest  # the module that stage.py imports, which is not this `__main__`
    import stage as _  # noqa: F401

    print(json.dumps(penstock_guest.manifest(*sys.argv[1:])))
