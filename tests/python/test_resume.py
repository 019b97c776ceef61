"""States of pipelines: a training that was interrupted continues behind its last batch."""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import time
import unittest
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Any

import numpy
import penstock
from kit import PATIENCE, folder

COUNT = 50

# Number of kills of trainings.
KILLS = int(os.environ.get("PENSTOCK_TEST_KILLS", 10))

# Number of batches between two checkpoints of a training.
EACH = 3


def document(size: int = 4, **source: Any) -> dict[str, Any]:
    """A pipeline some of whose samples fail, and whose batches come in any order."""
    return {
        "source": {"range": {"count": COUNT, "shuffle": True, **source}},
        "seed": 7,
        "stages": [
            {"sleep": {"mean_ms": 1, "jitter": 1, "concurrency": 4, "order": "completion", "fail_rate": 0.1}},
            {"aggregate": {"size": size}},
            {"collate": {}},
        ],
        "max_failures": None,
    }


def keys(batches: Iterable[penstock.Batch]) -> Counter[str]:
    return Counter(key for batch in batches for key in batch.samples)


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """The state as a checkpoint gives it back."""
    return dict(json.loads(json.dumps(state)))


def train(checkpoint: str) -> None:
    """Trains over two passes, from the checkpoint if there is one. A checkpoint has the keys so far, the state behind them, and true behind
    the last batch.
    """
    pipeline = penstock.Pipeline(document(epochs=2))
    seen: list[str] = []
    if os.path.exists(checkpoint):
        with open(checkpoint) as file:
            seen, state, is_over = json.load(file)
        if is_over:
            return
        pipeline.load_state_dict(state)

    def save(is_over: bool) -> None:
        with open(f"{checkpoint}.new", "w") as file:
            json.dump([seen, pipeline.state_dict(), is_over], file)
        os.replace(f"{checkpoint}.new", checkpoint)

    for number, batch in enumerate(pipeline, 1):
        seen += batch.samples
        if number % EACH == 0:
            save(is_over=False)
    save(is_over=True)


class Lengths(unittest.TestCase):
    def document(self, size: int, drop_last: bool = False, **source: Any) -> dict[str, Any]:
        stages = [{"aggregate": {"size": size, "drop_last": drop_last}}, {"collate": {}}]
        return {"source": {"range": {"count": COUNT, **source}}, "stages": stages}

    def test_len_tells_what_a_state_leaves(self) -> None:
        for document in (self.document(2), self.document(4), self.document(4, True), self.document(3, shuffle=True, epochs=3)):
            whole = len(penstock.Pipeline(document))
            for stop in (1, 5, whole):
                pipeline = penstock.Pipeline(document)
                loop = iter(pipeline)
                for _ in range(stop):
                    next(loop)
                state = stored(pipeline.state_dict())
                loop.close()  # type: ignore[attr-defined]
                rest = penstock.Pipeline(document)
                rest.load_state_dict(state)
                expected = len(rest)
                self.assertEqual(expected, sum(1 for _ in rest), (document, stop))
                self.assertEqual(len(rest), whole, "the next iteration is a whole one")

    def test_len_tells_what_a_state_leaves_to_another_number_of_ranks(self) -> None:
        states = []
        for rank in range(2):
            pipeline = penstock.Pipeline(self.document(4), rank=rank, world=2, uneven="keep")
            for number, _ in enumerate(pipeline, 1):
                states.append(stored(pipeline.state_dict()))
                if number == 2:
                    break
        merged = penstock.merge_states([states[1], states[3]])
        for world in (1, 2, 3):
            for rank in range(world):
                rest = penstock.Pipeline(self.document(4), rank=rank, world=world, uneven="keep")
                rest.load_state_dict(merged)
                self.assertEqual(len(rest), sum(1 for _ in rest), (rank, world))


class Kills(unittest.TestCase):
    def test_a_killed_training_gets_each_sample_once_relative_to_its_checkpoints(self) -> None:
        whole = keys(penstock.Pipeline(document(epochs=2)))
        chance = random.Random(11)
        kills = resumed = trainings = 0
        while kills < KILLS:
            with folder() as here:
                checkpoint = here / "checkpoint.json"
                trainings += 1
                while True:
                    first = checkpoint.read_bytes() if checkpoint.exists() else None
                    resumed += first is not None
                    child = subprocess.Popen([sys.executable, __file__, "train", checkpoint])
                    # Mostly waits for a new checkpoint: the interpreter takes longer to start than the batches take.
                    end = time.monotonic() + (PATIENCE if chance.random() > 0.1 else 0)
                    while child.poll() is None and time.monotonic() < end:
                        if checkpoint.exists() and checkpoint.read_bytes() != first:
                            break
                        time.sleep(0.001)
                    time.sleep(chance.random() * 0.02)
                    child.kill()
                    if child.wait() == 0:
                        break
                    self.assertEqual(child.returncode, -signal.SIGKILL)
                    kills += 1
                seen, _, _ = json.loads(checkpoint.read_bytes())
                self.assertEqual(Counter(seen), whole)
        print(f"{kills} kills of {trainings} trainings, of which {resumed} starts continued", file=sys.stderr)
        self.assertGreater(resumed, 0)


class States(unittest.TestCase):
    def test_a_second_process_gets_what_the_first_one_did_not(self) -> None:
        whole = keys(penstock.Pipeline(document()))
        for stop in (0, 1, 5, COUNT):
            with self.subTest(stop=stop), penstock.Pipeline(document()) as first:
                seen = keys(islice(first, stop))
                second = pickle.loads(pickle.dumps(penstock.Pipeline(document())))
                second.load_state_dict(stored(first.state_dict()))
                if stop < COUNT:
                    self.assertEqual(seen + keys(second), whole)
                    self.assertEqual(second.epoch, 1)
                else:
                    # Nothing is left of the first pass.
                    self.assertEqual({batch.epoch for batch in second}, {1})

    def test_a_state_behind_the_last_batch_begins_the_next_pass(self) -> None:
        count = sum(1 for _ in penstock.Pipeline(document()))
        # The state may be taken before or after the pipeline knows that this batch is the last one.
        for _ in range(20):
            with penstock.Pipeline(document()) as first:
                self.assertEqual(sum(1 for _ in islice(first, count)), count)
                second = penstock.Pipeline(document())
                second.load_state_dict(first.state_dict())
            self.assertEqual([{batch.epoch for batch in second} for _ in range(2)], [{1}, {2}])

    def test_batches_that_the_loop_has_not_got_come_again(self) -> None:
        with penstock.Pipeline(document()) as first:
            batches = list(islice(first, 6))
            state = first.state_dict(pending=2)
        second = penstock.Pipeline(document())
        second.set_state(json.dumps(state).encode())
        self.assertEqual(keys(batches[:4]) + keys(second), keys(penstock.Pipeline(document())))

    def test_ordered_batches_are_the_same(self) -> None:
        ordered = document()
        ordered["stages"][0]["sleep"]["order"] = "input"
        whole = [batch.samples for batch in penstock.Pipeline(ordered, settings={"/source/range/epochs": 2})]
        for stop in range(0, len(whole), 3):
            with penstock.Pipeline(ordered, settings={"/source/range/epochs": 2}) as first:
                seen = [batch.samples for batch in islice(first, stop)]
                second = penstock.Pipeline(ordered, settings={"/source/range/epochs": 2})
                second.load_state_dict(first.state_dict())
                self.assertEqual(seen + [batch.samples for batch in second], whole)

    def test_packing_goes_on_in_the_middle_of_a_row(self) -> None:
        with folder() as here:
            for number in range(60):
                numpy.save(here / f"{number:02}.npy", numpy.arange(number * 1000, number * 1000 + number * 37 % 41))
            packing = {
                "source": {"list": {"store": "documents", "suffix": ".npy", "shuffle": True}},
                "stages": [
                    {"fetch": {"order": "input"}},
                    {"wasm": {"module": "std/table", "params": {"ops": [{"Npy": {"field": "bytes", "to": "input_ids"}}]}, "order": "input"}},
                    {"wasm": {"module": "std/pack", "params": {"length": 16}}},
                    {"aggregate": {"size": 3}},
                    {"collate": {}},
                ],
            }

            def pipeline(**options: Any) -> penstock.Pipeline:
                return penstock.Pipeline(packing, stores={"documents": here}, **options)

            def rows(batches: Iterable[penstock.Batch]) -> list[Any]:
                return [row for batch in batches for row in numpy.from_dlpack(batch["input_ids"]).tolist()]

            whole = rows(pipeline())
            self.assertEqual(sum(len([token for token in row if token]) for row in whole), sum(number * 37 % 41 for number in range(60)))
            state: dict[str, Any] | None = None
            seen: list[Any] = []
            for stop in (1, 3, 0, 7, 2, 100):
                with pipeline() as part:
                    if state:
                        part.load_state_dict(state)
                    seen += rows(islice(part, stop))
                    state = stored(part.state_dict())
                    self.assertLess(len(json.dumps(state)), 4000)
            self.assertEqual(seen, whole)
            with pipeline() as first:
                next(iter(first))
                other = pipeline(rank=0, world=2)
                with self.assertRaisesRegex(penstock.InvalidPipeline, "the stateful stage of rank 0"):
                    other.load_state_dict(first.state_dict())
                    next(iter(other))

    def test_an_index_with_other_keys_is_refused(self) -> None:
        with folder() as here:
            for names in ("abcdef", "abcdeg"):
                (here / "index.json").write_text(json.dumps(list(names)))
                listed = {"source": {"index": {"store": "data", "index": "index.json"}}, "stages": [{"aggregate": {"size": 2}}, {"collate": {}}]}
                made = penstock.Pipeline(listed, stores={"data": here})
                if names == "abcdef":
                    with made:
                        next(iter(made))
                        state = made.state_dict()
                else:
                    made.load_state_dict(state)
                    with self.assertRaisesRegex(penstock.PenstockError, "has other files, keys, sizes or bytes"):
                        next(iter(made))

    def test_ranks_of_another_number_share_what_is_left(self) -> None:
        whole = keys(penstock.Pipeline(document()))
        for world, later in ((3, 2), (2, 5), (4, 1)):
            seen: Counter[str] = Counter()
            states = []
            for rank in range(world):
                with penstock.Pipeline(document(), rank=rank, world=world, uneven="keep") as first:
                    seen += keys(islice(first, 1 + rank % 2))
                    states.append(stored(first.state_dict()))
            merged = penstock.merge_states(states)
            for rank in range(later):
                second = penstock.Pipeline(document(), rank=rank, world=later, uneven="keep")
                second.load_state_dict(merged)
                seen += keys(second)
            with self.subTest(world=world, later=later):
                self.assertEqual(seen, whole)

    def test_a_state_of_another_pipeline_is_refused_with_what_differs(self) -> None:
        with penstock.Pipeline(document()) as first:
            next(iter(first))
            state = first.state_dict()
        for other, differs in ((document(size=8), "`/stages/1/aggregate` differs"), (document(limit=20), "`/source` differs")):
            pipeline = penstock.Pipeline(other)
            with self.assertRaises(penstock.InvalidPipeline) as raised:
                pipeline.load_state_dict(state)
            self.assertIn(differs, str(raised.exception))
            self.assertIn("force=True", str(raised.exception))
            pipeline.load_state_dict(state, force=True)
            self.assertTrue(keys(pipeline))
        with self.assertRaises(penstock.InvalidPipeline):
            penstock.Pipeline(document()).load_state_dict({"epoch": 3})
        with self.assertRaises(penstock.InvalidPipeline):
            penstock.merge_states([state, state])

    def test_a_state_without_a_run_begins_at_the_beginning(self) -> None:
        first = penstock.Pipeline(document(), epoch=3)
        second = penstock.Pipeline(document())
        second.load_state_dict(first.state_dict())
        self.assertEqual(first.state_dict(), second.state_dict())
        self.assertEqual({batch.epoch for batch in second}, {3})


if __name__ == "__main__":
    train(sys.argv[2])
