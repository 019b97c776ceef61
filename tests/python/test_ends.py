"""The agreement of ranks on the step behind which their loops end, with a store in memory, random delays and losses of ranks."""

from __future__ import annotations

import logging
import random
import sys
import threading
import unittest
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import penstock
from kit import until
from penstock._ends import Loop

CASES = 10_000


class Store:
    """A key-value store as that of `torch.distributed`."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.requests = 0

    def is_ready(self, request: tuple[Any, ...]) -> bool:
        """False if the store answers only once another key is set."""
        match request:
            case "wait", keys:
                return all(key in self.values for key in keys)
            case "get", key:
                return key in self.values
        return True

    def answer(self, request: tuple[Any, ...]) -> Any:
        # A rank that knows of the end does not tell it again: these requests depend on chance, and no step has one.
        self.requests += request[0] != "compare_set"
        match request:
            case "set", key, value:
                self.values[key] = value
            case "get", key:
                return self.values[key]
            case "wait", _:
                pass
            case "check", keys:
                return all(key in self.values for key in keys)
            case "add", key, amount:
                self.values[key] = self.values.get(key, 0) + amount
                return self.values[key]
            case "compare_set", key, old, new:
                if self.values.get(key, "") == old:
                    self.values[key] = new
                return self.values.get(key, old)
            case "delete_key", key:
                return self.values.pop(key, None) is not None
            case _:
                raise AssertionError(request)


class Rank:
    """A rank whose loop gets up to `batches` batches, leaves after `leaves` steps, fails after `fails`, and is killed at its request `dies`."""

    def __init__(
        self, number: int, world: int, batches: int, leaves: int | None, fails: int | None, dies: int | None, *, raises: bool = False,
        board: list[int] | None = None,
    ) -> None:
        self.loop = Loop(number, world, raises=raises)
        if board is not None:
            self.loop.attach(board)
        self.batches, self.leaves, self.fails, self.dies = batches, leaves, fails, dies
        self.given = 0
        self.outcome: str | None = None
        self.is_dead = False
        self.threads = [self.body(), self.loop.steps(), self.loop.stops()]
        if self.loop.relays:
            self.threads.append(self.loop.relay())
        #: Next request of each thread; `None` behind the last one.
        self.waiting: list[tuple[Any, ...] | None] = [next(thread, None) for thread in self.threads]

    def is_told(self) -> bool:
        """True if the loop can go on that has waited for news of the others."""
        self.loop.poll_board()
        return self.loop.is_given or self.loop.is_refused or (self.given == self.batches and self.loop.stop is not None)

    def body(self) -> Iterator[tuple[Any, ...]]:
        """The loop of the user."""
        while self.outcome is None:
            if self.given == self.leaves:
                self.outcome = "left"
                yield from self.loop.end("left")
            elif self.given == self.fails:
                self.outcome = "failed"
                yield from self.loop.end("failed", "no such file")
            elif self.given == self.batches:
                yield from self.loop.end("over")
                while self.loop.stop is None:
                    yield "idle",
                if self.loop.raises and self.loop.stop.reason == "over":
                    yield from self.loop.report(has_more=False)
                    yield from self.loop.receive_verdict()
                self.outcome = "raised" if self.loop.more or self.loop.stop.reason not in ("over", "left") else "over"
            else:
                yield from self.loop.come()
                while not (self.loop.is_given or self.loop.is_refused):
                    yield "idle",
                if self.loop.is_given:
                    self.given += 1
                else:
                    yield from self.loop.report(has_more=True)
                    self.outcome = "cut" if self.loop.stop.reason == "over" and not self.loop.raises else "raised"


def run_all(requests: Any, store: Store) -> Any:
    """Sends requests one after the other, and returns what they lead to."""
    answer = None
    try:
        while True:
            answer = store.answer(requests.send(answer))
    except StopIteration as end:
        return end.value


def play(world: int, ranks: list[Rank], chance: random.Random) -> Store:
    """Runs the requests of all ranks in a random order until nothing can move."""
    store = Store()
    lag = [chance.choice((1, 1, 1, 20)) for _ in range(world)]
    while True:
        movable = [
            (rank, place)
            for rank in ranks
            if not rank.is_dead
            for place, request in enumerate(rank.waiting)
            if request is not None and request[0] != "idle" and store.is_ready(request)
        ]
        idle = [
            (rank, 0)
            for rank in ranks
            if not rank.is_dead and rank.waiting[0] is not None and rank.waiting[0][0] == "idle"
            and rank.is_told()
        ]  # fmt: skip
        if not movable and not idle:
            # What a rank sees that has waited for a while: a process that has ended.
            found = next(
                (
                    (rank, dead)
                    for rank in ranks
                    for dead in ranks
                    if dead.is_dead and not rank.is_dead and any(request is not None for request in rank.waiting)
                    and (rank.loop.stop is not None or dead.loop.rank in run_all(rank.loop.ranks_behind(rank.loop.came - 1), store))
                ),
                None,
            )  # fmt: skip
            before = dict(store.values)
            if found is not None:
                run_all(found[0].loop.end_lost(found[1].loop.rank), store)
            if found is None or store.values == before:
                return store
            continue
        tidy = chance.choice(ranks)
        if not tidy.is_dead and chance.random() < 0.1:
            run_all(tidy.loop.clear(), store)
        choices = movable + idle
        rank, place = chance.choices(choices, [1 / lag[rank.loop.rank] for rank, _ in choices])[0]
        if rank.dies is not None:
            rank.dies -= 1
            if rank.dies < 0:
                rank.is_dead = True
                continue
        request = rank.waiting[place]
        answer = None if request[0] == "idle" else store.answer(request)
        try:
            rank.waiting[place] = rank.threads[place].send(answer)
        except StopIteration:
            rank.waiting[place] = None


class Ends(unittest.TestCase):
    def test_ranks_get_equal_steps_and_nobody_waits_without_a_reason(self) -> None:
        seen = set()
        for case in range(CASES):
            chance = random.Random(case)
            world = chance.randint(1, 16)
            kind = chance.choice(("even", "uneven", "leaves", "leaves at once", "fails", "dies"))
            most = chance.randint(0, 6)
            counts = [most if kind in ("even", "leaves", "leaves at once", "fails") else max(most - chance.randint(0, 2), 0) for _ in range(world)]
            odd, place, raises = chance.randrange(world), chance.randint(0, most), chance.random() < 0.3
            # Ranks of several machines do not share their memory.
            machines = chance.choice((1, 1, 2))
            boards = [[0] * world for _ in range(machines)]
            ranks = [
                Rank(
                    number, world, counts[number],
                    place if kind == "leaves at once" or (kind == "leaves" and number == odd) else None,
                    place if kind == "fails" and number == odd else None,
                    chance.randint(0, 60) if kind == "dies" and number == odd else None,
                    raises=raises,
                    board=boards[number % machines] if case % 2 else None,
                )
                for number in range(world)
            ]  # fmt: skip
            store = play(world, ranks, chance)
            told = f"case {case}: {kind}, world {world}, batches {counts}, rank {odd} at {place}: {[(rank.given, rank.outcome) for rank in ranks]}"
            alive = [rank for rank in ranks if not rank.is_dead]
            self.assertTrue(all(rank.outcome is not None for rank in alive), told)
            self.assertEqual(len({rank.given for rank in alive}), min(len(alive), 1), told)
            for rank in alive:
                # Every other rank has come to the steps that this one got.
                self.assertTrue(all(other.loop.came >= rank.given for other in ranks), told)
            if kind in ("even", "uneven"):
                self.assertEqual({rank.given for rank in ranks}, {min(counts)}, told)
                more = "raised" if raises else "cut"
                less = "raised" if raises and max(counts) > min(counts) else "over"
                self.assertTrue(all(rank.outcome == (more if rank.batches > min(counts) else less) for rank in ranks), told)
            if kind == "leaves at once":
                self.assertEqual({rank.outcome for rank in ranks}, {"left"}, told)
            if kind in ("leaves", "fails") and place < most:
                self.assertEqual({rank.outcome for rank in ranks if rank.loop.rank != odd} - {"raised"}, set(), told)
                self.assertTrue(all(rank.given == place for rank in ranks), told)
            # All threads have ended, and the next loop leaves no key of this one.
            self.assertTrue(all(request is None for rank in alive for request in rank.waiting), f"{told} {[rank.waiting for rank in ranks]}")
            if len(alive) == world:
                for rank in ranks:
                    run_all(rank.loop.forget(), store)
                self.assertEqual(store.values, {}, told)
            seen.add((kind, len({rank.outcome for rank in alive}) > 1))
        differing = {kind for kind, differs in seen if differs}
        self.assertEqual(differing, {"uneven", "leaves", "fails", "dies"})
        self.assertEqual({kind for kind, _ in seen}, differing | {"even", "leaves at once"})

    def test_a_step_of_64_ranks_costs_three_requests_each(self) -> None:
        # To come, to wait, and to remove the key; and the same of rank 0, which tells the others of all keys.
        for is_shared, expected in ((False, 3 * 64 + 3), (True, 0)):
            requests = []
            for steps in (4, 24):
                board = [0] * 64 if is_shared else None
                ranks = [Rank(number, 64, steps, None, None, None, board=board) for number in range(64)]
                requests.append(play(64, ranks, random.Random(steps)).requests)
                for rank in ranks:
                    run_all(rank.loop.forget(), store := Store())
                    requests[-1] += store.requests
            self.assertEqual((requests[1] - requests[0]) / 20, expected)


class SharedStore:
    """A store in memory with the methods of those of `torch.distributed`, for threads that stand for ranks."""

    def __init__(self, store: Store, news: threading.Condition, prefix: str = "") -> None:
        self._store, self._news, self._prefix = store, news, prefix
        self.timeout = timedelta(seconds=60)

    def clone(self) -> SharedStore:
        return SharedStore(self._store, self._news, self._prefix)

    def set_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(keys: Any, *arguments: Any) -> Any:
            under = [self._prefix + key for key in keys] if isinstance(keys, list) else self._prefix + keys
            with self._news:
                self._news.wait_for(lambda: self._store.is_ready((name, under)))
                answer = self._store.answer((name, under, *arguments))
                self._news.notify_all()
            return answer.encode() if isinstance(answer, str) else answer

        return ask

    @staticmethod
    def below(prefix: str, store: SharedStore) -> SharedStore:
        return SharedStore(store._store, store._news, f"{store._prefix}{prefix}/")


class GroupOfThreads:
    """A process group whose processes are threads."""

    def __init__(self, world: int) -> None:
        self.world = world

    def size(self) -> int:
        return self.world


def texts(world: int, rank: int, group: Any, **options: Any) -> penstock.Pipeline:
    """A pipeline of which some samples fail, others in each epoch."""
    document = {
        "name": "texts",
        "source": {"range": {"count": 40 * world, "shuffle": True}},
        "stages": [{"sleep": {"mean_ms": 0, "fail_rate": 0.3}}, {"aggregate": {"size": 2}}, {"collate": {}}],
        "max_failures": None,
        "threads": 1,
    }
    return penstock.Pipeline(document, rank=rank, world=world, group=group, **options)


class Threads(unittest.TestCase):
    """Pipelines in threads that stand for ranks; `make test-frameworks` has processes and the store of PyTorch."""

    def ranks(self, world: int, run: Callable[[int, Any], Any]) -> list[Any]:
        """Results of a function of each rank and its group."""
        store = SharedStore(Store(), threading.Condition())
        groups = [GroupOfThreads(world) for _ in range(world)]
        distributed = SimpleNamespace(
            is_available=lambda: True, is_initialized=lambda: True, group=SimpleNamespace(WORLD=None), ProcessGroup=GroupOfThreads,
            PrefixStore=SharedStore.below, distributed_c10d=SimpleNamespace(_world=SimpleNamespace(pg_map={group: ("", store) for group in groups})),
        )  # fmt: skip
        modules: Mapping[str, Any] = {"torch": SimpleNamespace(distributed=distributed), "torch.distributed": distributed}
        with mock.patch.dict(sys.modules, modules), ThreadPoolExecutor(world) as threads:
            results = list(threads.map(run, range(world), groups))
        self.left = store._store.values
        return results

    def test_loops_end_together_epoch_after_epoch(self) -> None:
        for world in (2, 20):
            with self.subTest(world=world):

                def train(rank: int, group: Any) -> list[tuple[int, int, bool]]:
                    pipeline = texts(world, rank, group)
                    epochs = []
                    for epoch in range(3):
                        count = sum(1 for _ in pipeline)
                        ledger = pipeline.stats()["ledger"]
                        epochs.append((count, ledger["total"]["discarded"], ledger["balanced"]))
                        assert ledger["total"]["made"] == 40
                        assert (pipeline.epoch, pipeline.state_dict()["ranks"][str(rank)]["epochs"][0]["epoch"]) == (epoch + 1, epoch)
                    return epochs

                given = self.ranks(world, train)
                for epoch in range(3):
                    self.assertEqual(len({rank[epoch][0] for rank in given}), 1)
                    self.assertTrue(all(rank[epoch][2] for rank in given))
                self.assertGreater(sum(discarded for rank in given for _, discarded, _ in rank), 0)
                # A thread of the last loop removes the keys of those before.
                until(lambda: len({key.split("/")[3] for key in list(self.left)}) == 1, "only the last loop has keys")

    def test_more_batches_raise_on_all_ranks_if_that_is_wished(self) -> None:
        def train(rank: int, group: Any) -> str:
            try:
                for _ in texts(2, rank, group, ends="raise"):
                    pass
            except penstock.PenstockError as error:
                return str(error)
            return ""

        told = self.ranks(2, train)
        self.assertEqual(sum("this rank has only" in one and "and 1 rank more" in one for one in told), 1, told)
        self.assertEqual(sum("has only" in one and "and this rank has more" in one for one in told), 1, told)

    def test_a_loop_that_is_left_ends_the_others_and_their_last_batch_is_not_lost(self) -> None:
        def train(rank: int, group: Any) -> tuple[int, str, int]:
            pipeline = texts(2, rank, group)
            count, told = 0, ""
            try:
                for _ in pipeline:
                    count += 1
                    if rank == 1 and count == 3:
                        break
            except penstock.PenstockError as error:
                told = str(error)
            return count, told, pipeline.state_dict()["ranks"][str(rank)]["settled"]["delivered"]

        other, leaving = self.ranks(2, train)
        self.assertEqual(leaving, (3, "", 6))
        self.assertEqual((other[0], other[2]), (3, 6))
        self.assertRegex(other[1], "rank 1 has left its loop after 3 steps, and this rank asks for a further one")

    def test_an_error_of_one_rank_is_told_to_all(self) -> None:
        def train(rank: int, group: Any) -> str:
            settings = {"/max_failures": {"count": 1}} if rank == 1 else {}
            with self.assertRaises(penstock.PenstockError) as raised:
                for _ in texts(2, rank, group, settings=settings):
                    pass
            return str(raised.exception)

        other, failing = self.ranks(2, train)
        self.assertIn("failed", failing)
        self.assertRegex(other, r"rank 1 has failed after \d+ steps?: ")
        self.assertTrue(other.endswith(failing), (other, failing))

    def test_an_error_ends_a_loop_whose_batch_takes_an_hour(self) -> None:
        def train(rank: int, group: Any) -> str:
            settings = {"/stages/0/sleep/mean_ms": 3_600_000} if rank == 0 else {"/max_failures": {"count": 1}}
            with self.assertRaises(penstock.PenstockError) as raised:
                list(texts(2, rank, group, settings={**settings, "/stages/1/aggregate": {"size": 40, "drop_last": True}}))
            return str(raised.exception)

        waiting, failing = self.ranks(2, train)
        self.assertRegex(waiting, "rank 1 has failed after 0 steps: ")
        self.assertTrue(waiting.endswith(failing), (waiting, failing))

    def test_ranks_without_a_group_are_refused_or_warned_of(self) -> None:
        for ends in ("together", "raise"):
            with self.assertRaisesRegex(penstock.InvalidPipeline, f"`ends` is `{ends}`, and `torch.distributed` is not initialised"):
                iter(texts(2, 0, None, ends=ends))
        with self.assertLogs("penstock", logging.WARNING) as logs:
            list(texts(2, 0, None))
        self.assertEqual(sum("may wait forever" in line for line in logs.output), 1, logs.output)
        for options in ({"ends": "alone"}, {"uneven": "keep"}):
            with self.assertLogs("penstock", logging.WARNING) as logs:
                list(texts(2, 0, None, **options))
            self.assertFalse(any("may wait forever" in line for line in logs.output), logs.output)


if __name__ == "__main__":
    unittest.main()
