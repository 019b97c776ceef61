"""Agreement of the ranks on the step behind which their loops end, through a key-value store.

A rank comes to a step once its loop asks for it and its batch is there: it sets a key. The step is handed out when the keys of all ranks are
set, so no rank is in a step that another one does not take. A rank that has no more batches, fails or leaves its loop sets the key `stop`
instead, once for all ranks: no rank gets that step. Ranks of one machine come to the steps behind the first one on a board, memory that they
share, without a request to the store.

    STEP/RANK   the rank has come to the step
    STEP        all ranks have come to it: written by rank 0 for the others, if there are many
    stop        the first rank that has not come to a step, and why
    seen/RANK   the rank has read `stop`
    board/WHERE name of the memory that the ranks of this machine share
    facts       state of the first rank at its begin, with which the others compare theirs
    begun/RANK  the rank has begun the loop, and the process in which it runs
    leader/RANK the process that comes to the steps for a rank, if several ones read its share
    verdict     number of ranks that had one more batch when the first one had none

Each part of a rank is a generator of requests to the store, so that tests run them without threads.
"""

from __future__ import annotations

import json
from collections.abc import Generator, MutableSequence
from typing import Any, Literal, NamedTuple

# Maximum number of ranks that each wait for the keys of all others; of more ranks, rank 0 waits for them.
_FLAT = 16

# Maximum length of the message of a failure, in characters.
_MAX_MESSAGE = 2000

# Unit in which the ranks with one more batch are counted; above any number of ranks.
_MORE = 1 << 32

# A call of a method of the store, with its arguments.
Request = tuple[Any, ...]
Requests = Generator[Request, Any, None]

Reason = Literal["over", "left", "failed", "lost", "late"]


class Stop(NamedTuple):
    """Reason why no rank gets a step and the ones behind it."""

    step: int
    rank: int
    reason: Reason
    #: What has failed; empty for ends without a failure.
    message: str = ""


class Loop:
    """Part of one rank in the agreement on one loop. Each generator is run by one thread; the fields change only between requests.

    raises:  all ranks have to know whether one of them has a further batch when the first one has none.
    follows: another process reads the share of the same rank, and comes to the steps for both.
    """

    def __init__(self, rank: int, world: int, *, raises: bool = False, follows: bool = False) -> None:
        self.rank = rank
        self.world = world
        self.raises = raises
        self.follows = follows
        #: Number of steps that this rank has come to.
        self.came = 0
        #: Number of steps that all ranks have come to.
        self.complete = 0
        #: The end of the loop, once this rank has read it.
        self.stop: Stop | None = None
        #: Number of ranks that have a further batch, once all have reported; -1 if the process of one has ended before.
        self.more: int | None = None
        #: Set once this rank has reported whether it has a further batch.
        self._has_reported = False
        #: Set once this rank asks for no further step.
        self._has_left = False
        #: For each rank that shares memory with this one, one more than the number of steps that it has come to; 0 for the others.
        self.board: MutableSequence[int] | None = None
        self._machine = ""
        #: True once all ranks are known to share the memory; the keys of further steps are not set.
        self.is_shared = False
        #: Number of steps whose keys are removed.
        self._cleared = 0

    @property
    def is_given(self) -> bool:
        """True if the loop gets the step that it came to."""
        return self.complete >= self.came

    @property
    def is_refused(self) -> bool:
        """True if no rank gets the step that this one came to."""
        return self.stop is not None and self.came > self.stop.step

    def begin(self, process: str) -> Requests:
        """Tells the others that the loop has begun, in this process."""
        if not self.follows:
            yield "set", f"begun/{self.rank}", process

    def name_board(self, machine: str, own: str) -> Requests:
        """Returns the name of the memory that the ranks of a machine share, which is `own` if this is the first one."""
        self._machine = machine
        return (yield "compare_set", f"board/{machine}", "", own)

    def attach(self, board: MutableSequence[int]) -> None:
        """Shares memory with other ranks from now on, before the first step."""
        board[self.rank] = 1
        self.board = board

    def compare(self, state: str) -> Requests:
        """Returns the state of the first rank, which is `state` if this is the first one."""
        return (yield "compare_set", "facts", "", state)

    def lead(self, own: str) -> Requests:
        """Lets the first process that reads the share of this rank come to the steps, and the others follow."""
        self.follows = (yield "compare_set", f"leader/{self.rank}", "", own) != own.encode()

    def come(self) -> Requests:
        """Comes to the next step."""
        step = self.came
        self.come_on_board()
        if not self.follows and not self.is_shared:
            yield "set", f"{step}/{self.rank}", ""

    def come_on_board(self) -> None:
        """Comes to the next step of ranks that share memory."""
        self.came += 1
        if self.board is not None:
            self.board[self.rank] = self.came + 1

    def poll_board(self) -> None:
        """Polls the board: whether all ranks have come to the step of this one."""
        if self.is_shared and not self.is_refused and self._lowest() > self.came:
            self.complete = self.came

    def ranks_behind(self, step: int) -> Requests:
        """Returns the ranks that have not come to a step."""
        if self.is_shared:
            assert self.board is not None
            return [rank for rank, number in enumerate(self.board) if number < step + 2]
        ranks = []
        for rank in range(self.world):
            if not (yield "check", [f"{step}/{rank}"]):
                ranks.append(rank)
        return ranks

    def end(self, reason: Reason, message: str = "", *, rank: int | None = None) -> Requests:
        """Ends the loops of all ranks, because a rank, by default this one, does not come to the next step."""
        # The step that this rank waits for is not taken.
        step = self.came if self.is_given else self.came - 1
        stop = Stop(step, self.rank if rank is None else rank, reason, message[:_MAX_MESSAGE])
        self._has_left |= rank is None and reason != "over"
        if self.stop is None:
            yield "compare_set", "stop", "", json.dumps(stop)
        if self._has_left:
            yield from self.report(has_more=False)

    def steps(self) -> Requests:
        """Waits for the other ranks at each step."""
        step = 0
        while True:
            yield "wait", [f"{step}"] if self.world > _FLAT else self._keys(step)
            if self.follows and self.stop is None and (yield "check", ["stop"]):
                # No rank waits for a follower to read it.
                return
            if self.stop is not None and step >= self.stop.step:
                return
            self.complete = step + 1
            step += 1
            # All ranks that share memory do so before they come to the first step.
            self.is_shared = self._lowest() > 0
            if self.is_shared:
                return

    def stops(self) -> Requests:
        """Waits for the end of the loop."""
        stop = Stop(*json.loads((yield "get", "stop")))
        self.stop = stop
        if self.follows:
            return
        if self._has_left:
            yield from self.report(has_more=False)
        # `steps` of another rank may end only once that rank knows which step it does not get.
        yield "set", f"seen/{self.rank}", ""
        yield "wait", [f"seen/{rank}" for rank in range(self.world)]
        for step in range(self.came, self._keys_end(stop)):
            yield "set", f"{step}/{self.rank}", ""

    def end_lost(self, rank: int) -> Requests:
        """Does what `stops` would do for a rank whose process has ended; to be repeated while this rank polls the others."""
        if self.stop is None:
            yield from self.end("lost", rank=rank)
            return
        if self.raises and self.stop.reason == "over":
            yield "compare_set", "verdict", "", "-1"
        yield "set", f"seen/{rank}", ""
        if (yield "check", [f"seen/{rank}" for rank in range(self.world)]):
            for step in range(self.stop.step, self._keys_end(self.stop)):
                yield "set", f"{step}/{rank}", ""

    def relay(self) -> Requests:
        """Tells the others of each step that all ranks have come to."""
        step = 0
        while self.stop is None or step <= self.stop.step:
            yield "wait", self._keys(step)
            yield "set", f"{step}", ""
            step += 1
            if self._lowest() > 0:
                return

    @property
    def relays(self) -> bool:
        """True if this rank has to run `relay`."""
        return self.rank == 0 and self.world > _FLAT and not self.follows

    def report(self, *, has_more: bool) -> Requests:
        """Reports whether this rank has a further batch when the first one has none, once."""
        if not self.raises or self.follows or self._has_reported or self.stop is None or self.stop.reason != "over":
            return
        self._has_reported = True
        counted = yield "add", "verdict/ranks", _MORE + 1 if has_more else 1
        if counted % _MORE == self.world:
            yield "compare_set", "verdict", "", str(counted // _MORE)

    def receive_verdict(self) -> Requests:
        """Waits until all ranks have reported whether they have a further batch."""
        self.more = int((yield "get", "verdict"))

    def clear(self) -> Requests:
        """Removes the keys of steps that all ranks got: those before the last one that all have come to."""
        yield from self._clear(min(self.complete - 1, 1) if self.is_shared else self.complete - 1)

    def forget(self) -> Requests:
        """Removes what is left in the store of a loop that all ranks have ended."""
        if self.stop is None or self.follows:
            return
        yield from self._clear(self._keys_end(self.stop))
        for key in ("seen", "begun", "leader"):
            yield "delete_key", f"{key}/{self.rank}"
        for key in ("stop", "facts", "verdict", "verdict/ranks") if self.rank == 0 else ():
            yield "delete_key", key
        if self._machine:
            yield "delete_key", f"board/{self._machine}"

    def _lowest(self) -> int:
        """Lowest number on the board; 0 unless all ranks share the memory."""
        return 0 if self.board is None else min(self.board)

    def _keys_end(self, stop: Stop) -> int:
        """Number of the steps that have keys at the end of a loop: `steps` waits for one step more than those that all ranks got."""
        return 1 if stop.step > 0 and self._lowest() > 0 else stop.step + 2

    def _clear(self, end: int) -> Requests:
        while self._cleared < end:
            step, self._cleared = self._cleared, self._cleared + 1
            if not self.follows:
                yield "delete_key", f"{step}/{self.rank}"
            if self.relays:
                yield "delete_key", f"{step}"

    def _keys(self, step: int) -> list[str]:
        return [f"{step}/{rank}" for rank in range(self.world)]
