"""Loops that end together on all ranks: the agreement of `_ends`, in threads, through the store of `torch.distributed`."""

from __future__ import annotations

import atexit
import functools
import json
import logging
import mmap
import os
import socket
import sys
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

from penstock._ends import Loop, Reason, Requests, Stop
from penstock._penstock import InvalidPipeline, PenstockError, merge_states

_LOGGER = logging.getLogger("penstock")

# Time between two looks at the ranks for which a loop waits, and for which an ended one waits, in seconds.
_LOOK_S = 1.0
_SHORT_LOOK_S = 0.05

# Time for which a loop looks at shared memory without a pause, the part of the time waited so far that a pause takes afterwards, and the
# longest pause, in seconds.
_SPIN_S = 0.0002
_PAUSE = 1 / 16
_MAX_PAUSE_S = 0.005

# Time after which a warning names the ranks for which a loop waits, in seconds.
_WARN_S = 5.0

# Maximum time that the loop before needs to end, in seconds.
_JOIN_S = 5.0

# Maximum time of a request, since a loop may take longer than any collective operation: more milliseconds would not fit into 31 bits.
_LONG = timedelta(days=24)

# Remedies, for messages.
WAYS = (
    'pass `rank=0, world=1` for a loop of one rank, `group=` for a loop of the ranks of one process group, or `ends="alone"` for ranks that do '
    "not wait for each other"
)


class Group:
    """A process group of `torch.distributed`, and the connections of this process to its store."""

    def __init__(self, store: Any, size: int, below: Callable[[str, Any], Any]) -> None:
        #: Number of processes.
        self.size = size
        #: Time after which the operations of the group fail, in seconds.
        self.timeout_s = store.timeout.total_seconds()
        #: False for versions of PyTorch whose stores cannot be cloned.
        self.has_connections = hasattr(store, "clone")
        #: Last loop of this process, by the name of its pipeline and its number of ranks.
        self.last: dict[str, Agreement] = {}
        self._store = below("penstock", store)
        #: Makes a store whose keys begin with a prefix.
        self._below = below
        self._idle: list[Any] = []
        self._numbers: dict[str, int] = {}

    def client(self, prefix: str) -> Client:
        """A connection to the store for one thread."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._store.clone()
            connection.set_timeout(_LONG)
        return Client(self._idle, connection, self._below(prefix, connection))

    def number(self, loops: str) -> int:
        """Counts a further loop of this name and number of ranks, and returns its number."""
        self._numbers[loops] = self._numbers.get(loops, -1) + 1
        return self._numbers[loops]


class Client:
    """A connection to the store, whose keys begin with a prefix."""

    def __init__(self, idle: list[Any], connection: Any, store: Any) -> None:
        self._idle, self._connection, self._store = idle, connection, store

    def ask(self, request: tuple[Any, ...]) -> Any:
        """Answer of the store to a request."""
        try:
            return getattr(self._store, request[0])(*request[1:])
        except Exception as error:
            raise PenstockError(f"the store of the process group, usually in the process of rank 0, does not answer: {error}") from None

    def close(self) -> None:
        """Keeps the connection for another client."""
        self._idle.append(self._connection)


# Groups of which this process has run loops, and the loops that still exist.
_GROUPS: weakref.WeakKeyDictionary[Any, Group] = weakref.WeakKeyDictionary()
_LOOPS: weakref.WeakSet[Agreement] = weakref.WeakSet()


def group_of(group: Any) -> Group | None:
    """`group`, or else the default group of `torch.distributed`; `None` if it is not initialised."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    group = distributed.group.WORLD if group is None else group
    if not isinstance(group, distributed.ProcessGroup):
        raise InvalidPipeline(f"`group` is of type `{type(group).__name__}`; expected a process group of `torch.distributed`")
    if group not in _GROUPS:
        store = distributed.distributed_c10d._world.pg_map[group][1]
        _GROUPS[group] = Group(store, group.size(), distributed.PrefixStore)
    return _GROUPS[group]


class Process(NamedTuple):
    """A process of a machine."""

    #: Id of the boot of the machine and the namespace of its process ids, or else its host name.
    machine: str
    number: int
    #: Time of the start, by which it is told apart from an earlier process with the same id.
    start: str

    @classmethod
    def this(cls) -> Process:
        try:
            machine = f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
        except OSError:
            machine = socket.gethostname()
        return cls(machine, os.getpid(), _state_of(os.getpid())[1])

    def has_ended(self) -> bool:
        """True if the process, one of this machine, does not run any more."""
        state, start = _state_of(self.number)
        return state in "ZX" or start != self.start


def _state_of(number: int) -> tuple[str, str]:
    """State of a process, `X` if there is none, and time of its start; empty where that is not known."""
    try:
        # The name of the program, in brackets, may have spaces.
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except OSError:
        if Path("/proc/self/stat").exists():
            return "X", ""
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return "X", ""
    except PermissionError:
        pass
    return "R", ""


class Board:
    """Memory that processes of this machine share, with a number of 64 bits for each rank."""

    def __init__(self, name: str, ranks: int) -> None:
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()
        self._path = Path(folder) / f"penstock-{name}"
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            # Fails where there is no room, while a write to the mapping would end the process.
            os.posix_fallocate(descriptor, 0, 8 * ranks)
            self.numbers = memoryview(mmap.mmap(descriptor, 8 * ranks)).cast("q")
        finally:
            os.close(descriptor)

    def unlink(self) -> None:
        """Removes the name of the memory: no further process shares it, and it is freed with the last one that does."""
        self._path.unlink(missing_ok=True)


class Agreement:
    """Agreement of this process with the other ranks on the steps of one loop. As a context manager, it tells them if the loop is left early.

    raises: all ranks raise behind the last common step if one of them has a further batch.
    """

    def __init__(self, group: Group, name: str, rank: int, world: int, *, raises: bool) -> None:
        loops = f"{name}/{world}"
        prefix = f"{loops}/{group.number(loops)}"
        self._name = name
        self._group, self._prefix = group, prefix
        self._loop = Loop(rank, world, raises=raises)
        self._board: Board | None = None
        #: Guards the fields, and wakes the threads that wait for a change.
        self._news = threading.Condition()
        self._error: PenstockError | None = None
        #: Time since which the loop waits for the others.
        self._waits_since: float | None = None
        self._is_closed = threading.Event()
        self._process = os.getpid()
        self._client = group.client(prefix)
        self._timeout_s = group.timeout_s
        process = Process.this()
        if group.size > world:
            self._run(self._loop.lead(uuid.uuid4().hex))
        else:
            self._share_memory(process.machine)
        self._run(self._loop.begin(json.dumps(process)))
        self._before, group.last[loops] = group.last.get(loops), self
        parts = [self._loop.steps(), self._loop.stops(), *([self._loop.relay()] if self._loop.relays else [])]
        self._threads = [self._start(functools.partial(self._run, part)) for part in parts]
        self._watcher = self._start(self._watch)
        _LOOPS.add(self)

    def __enter__(self) -> Agreement:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            if kind is not None:
                is_failure = isinstance(error, PenstockError)
                self.leave("failed" if is_failure else "left", str(error) if is_failure else "" if kind is GeneratorExit else kind.__name__)
        except PenstockError as untold:
            _LOGGER.warning("%s: the other ranks do not hear that this one leaves its loop: %s", self._name, untold)
        finally:
            self.close()

    @property
    def steps(self) -> int:
        """Number of steps that the loop got."""
        return self._loop.came if self._loop.is_given else self._loop.came - 1

    @property
    def ended_by(self) -> int | None:
        """Rank that was the first without a further batch."""
        return None if self._loop.stop is None else self._loop.stop.rank

    def is_needless(self) -> bool:
        """True if a batch that is not there yet would not be given to the loop, whatever it has."""
        stop = self._loop.stop
        return stop is not None and self._loop.came >= stop.step and not (self._loop.raises and stop.reason == "over")

    def compare(self, state: str) -> None:
        """Raises InvalidPipeline unless this rank reads the same pipeline and the same data as the first one that has called this method."""
        if self._before is not None:
            self._before.join()
        mine = json.dumps({**json.loads(state), "ranks": {}})
        theirs = self._run(self._loop.compare(mine)).decode()
        if theirs != mine:
            try:
                merge_states([theirs, mine])
            except InvalidPipeline as error:
                what = str(error).rpartition(": ")[2]
                raise InvalidPipeline(f"rank {self._loop.rank} does not read what another rank of the loop reads: {what}") from None

    def come(self) -> None:
        """Comes to the next step."""
        if self._loop.is_shared:
            self._loop.come_on_board()
        else:
            self._run(self._loop.come())

    def gets_step(self) -> bool:
        """Waits for the others at the step that this rank has come to. Returns false if one of them has no further batch, so that no rank gets
        the step. Raises PenstockError if one has failed or has left its loop.
        """
        if self._loop.is_shared:
            self._look()
        else:
            self._wait(lambda: self._loop.is_given or self._loop.is_refused)
        if self._loop.is_given:
            return True
        stop = self._loop.stop
        assert stop is not None
        if stop.reason != "over":
            raise PenstockError(self._told(stop))
        if self._loop.raises:
            self._run(self._loop.report(has_more=True))
            only = _counted(stop.step, "batch")
            raise PenstockError(f'rank {stop.rank} has only {only}, and this rank has more, which `ends="raise"` does not permit')
        self.join()
        return False

    def over(self) -> None:
        """Tells the others that this rank has no further batch. Raises PenstockError if one of them has failed, or, where all must have equally
        many, has a further one.
        """
        self._run(self._loop.end("over"))
        self._wait(lambda: self._loop.stop is not None)
        stop = self._loop.stop
        assert stop is not None
        if stop.reason not in ("over", "left"):
            raise PenstockError(self._told(stop))
        if self._loop.raises and stop.reason == "over":
            self._run(self._loop.report(has_more=False))
            self._start(functools.partial(self._run, self._loop.receive_verdict()))
            self._wait(lambda: self._loop.more is not None)
            only = _counted(stop.step, "batch")
            match self._loop.more:
                case 0:
                    pass
                case -1:
                    raise PenstockError(f"the process of a rank has ended after {only}")
                case int(more):
                    others = _counted(more, "rank")
                    raise PenstockError(f'this rank has only {only}, and {others} more, which `ends="raise"` does not permit')
        self.join()

    def leave(self, reason: Reason, message: str) -> None:
        """Tells the others that this rank comes to no further step. Has no effect once the loop is closed or broken, or in a forked process."""
        if self._error is None and self._process == os.getpid() and not self._is_closed.is_set():
            self._run(self._loop.end(reason, message))

    def close(self) -> None:
        """Lets the watcher end, without waiting for that."""
        self._is_closed.set()
        if self._board is not None:
            self._board.unlink()

    def _share_memory(self, machine: str) -> None:
        """Shares memory with the ranks of this machine, if that is possible."""
        name = self._run(self._loop.name_board(machine, uuid.uuid4().hex)).decode()
        try:
            self._board = Board(name, self._loop.world)
        except (OSError, AttributeError) as error:
            _LOGGER.debug("%s: the ranks share no memory, and agree through the store alone: %s", self._name, error)
        else:
            self._loop.attach(self._board.numbers)

    def _told(self, stop: Stop) -> str:
        """Reason why the loop gets no further step."""
        steps = f"after {_counted(stop.step, 'step')}"
        why = f" ({stop.message})" if stop.message else ""
        match stop.reason:
            case "left":
                return (
                    f"rank {stop.rank} has left its loop {steps}{why}, and this rank asks for a further one: leave it at the same step on all ranks"
                )
            case "failed":
                return f"rank {stop.rank} has failed {steps}: {stop.message}"
            case "lost":
                return f"the process of rank {stop.rank} has ended {steps}"
        return f"rank {stop.rank} has not come to step {stop.step + 1} within {self._timeout_s:g} s, the timeout of the process group: {WAYS}"

    def _wait(self, is_so: Callable[[], bool]) -> None:
        """Blocks the loop's thread until `is_so` holds. Raises the error of another thread."""
        with self._news:
            self._waits_since = time.monotonic()
            try:
                self._news.wait_for(lambda: is_so() or self._error is not None)
            finally:
                self._waits_since = None
            if not is_so():
                assert self._error is not None
                raise self._error

    def _look(self) -> None:
        """Polls the shared memory on the loop's thread until all ranks have come to its step, or the loop has ended."""
        self._waits_since = since = time.monotonic()
        try:
            while True:
                self._loop.poll_board()
                if self._loop.is_given or self._loop.is_refused:
                    return
                if self._error is not None:
                    raise self._error
                waited = time.monotonic() - since
                time.sleep(0 if waited < _SPIN_S else min(waited * _PAUSE, _MAX_PAUSE_S))
        finally:
            self._waits_since = None

    def _run(self, requests: Requests, client: Client | None = None) -> Any:
        """Sends requests, from the loop's thread unless the connection of another one is given, and returns what they lead to."""
        answer = None
        while True:
            with self._news:
                try:
                    request = requests.send(answer)
                except StopIteration as end:
                    return end.value
                finally:
                    self._news.notify_all()
            answer = (client or self._client).ask(request)

    def _start(self, work: Callable[[Client], Any]) -> threading.Thread:
        """Starts a thread with a connection of its own to the store. An error in it ends the loop."""
        client = self._group.client(self._prefix)

        def run() -> None:
            try:
                work(client)
                client.close()
            except PenstockError as error:
                with self._news:
                    self._error = error
                    self._news.notify_all()

        thread = threading.Thread(target=run, name="penstock-ends", daemon=True)
        thread.start()
        return thread

    def join(self, *, watcher: bool = False) -> bool:
        """Waits until all ranks know of the end of this loop, after which the process with the store may end; false if that takes too long."""
        end = time.monotonic() + _JOIN_S
        threads = [*self._threads, *([self._watcher] if watcher else [])]
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in threads)

    def _watch(self, client: Client) -> None:
        """Checks the processes of the ranks for which this one waits, and removes the keys of the loop before once all ranks are in this one."""
        peers: dict[int, Process] = {}
        has_warned = False
        closed_for = 0.0
        while closed_for < _JOIN_S:
            if self._is_closed.wait(_LOOK_S):
                time.sleep(_SHORT_LOOK_S)
                closed_for += _SHORT_LOOK_S
            if self._before is not None and self._loop.complete > 0:
                if self._before.join():
                    before = self._group.client(self._before._prefix)
                    self._run(self._before._loop.forget(), before)
                    before.close()
                self._before = None
            if self._loop.complete > 0 and self._board is not None:
                self._board.unlink()
            self._run(self._loop.clear(), client)
            if not any(thread.is_alive() for thread in self._threads):
                return
            with self._news:
                since, step, is_stopped = self._waits_since, self._loop.came - 1, self._loop.stop is not None
            waited = 0 if since is None else time.monotonic() - since
            if waited < _LOOK_S and not is_stopped:
                continue
            for rank in range(self._loop.world):
                if rank not in peers and client.ask(("check", [f"begun/{rank}"])):
                    peers[rank] = Process(*json.loads(client.ask(("get", f"begun/{rank}"))))
            here = Process.this().machine
            ended = [rank for rank, process in peers.items() if process.machine == here and process.has_ended()]
            if is_stopped:
                for rank in ended:
                    self._run(self._loop.end_lost(rank), client)
                continue
            late = self._run(self._loop.ranks_behind(step), client)
            if lost := [rank for rank in late if rank in ended]:
                self._run(self._loop.end_lost(lost[0]), client)
            elif late and waited > self._timeout_s:
                self._run(self._loop.end("late", rank=late[0]), client)
            elif late and waited > _WARN_S and not has_warned:
                has_warned = True
                if absent := [rank for rank in late if rank not in peers]:
                    _LOGGER.warning(
                        "%s: %s not begun this loop, and the others wait: begin it on all ranks, or %s", self._name, _have(absent), WAYS
                    )
                else:
                    _LOGGER.warning("%s: %s not come to step %d yet, and the others wait", self._name, _have(late), step + 1)


def _counted(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


def _have(ranks: Sequence[int]) -> str:
    """Subject of a sentence on ranks, with its verb."""
    if len(ranks) == 1:
        return f"rank {ranks[0]} has"
    shown = ", ".join(map(str, ranks[:8]))
    return f"ranks {shown}{', ...' if len(ranks) > 8 else ''} have"


def _leave_all() -> None:
    """Tells the other ranks that this process ends, if it is in loops. A thread must not wait for the store when the interpreter ends."""
    loops = list(_LOOPS)
    for loop in loops:
        try:
            loop.leave("left", "its process has ended")
        except PenstockError:
            pass
        loop.close()
    for loop in loops:
        loop.join(watcher=True)


atexit.register(_leave_all)
