"""Ranks with different numbers of batches end together, with a collective operation of all ranks in each step."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import loops

LOOPS = str(Path(loops.__file__))

# Maximum time of a training of a few steps, in seconds; seven processes have to import PyTorch.
PATIENCE_S = 300

# Maximum time after which ranks know of the end of another one, in seconds.
SOON_S = 5


@contextmanager
def texts() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        loops.write_texts(Path(folder))
        yield Path(folder)


def results(folder: Path, world: int, said: str) -> list[Any]:
    """Result of each rank; `None` for one that has written none."""
    files = [folder / f"rank-{rank}.json" for rank in range(world)]
    found = [json.loads(file.read_text()) if file.exists() else None for file in files]
    for file in files:
        file.unlink(missing_ok=True)
    assert any(found), said
    return found


def torchrun(case: str, folder: Path, world: int) -> list[Any]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}", LOOPS, case, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return results(folder, world, ended.stderr)


def processes(case: str, folder: Path, world: int = 2) -> list[Any]:
    """The same without a launcher that ends all processes when one has ended."""
    (folder / "others").mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    started = [
        subprocess.Popen([sys.executable, LOOPS, case, str(folder)], env={**shared, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    said = "".join(one.communicate(timeout=PATIENCE_S)[1] for one in started)
    return results(folder, world, said)


class Loops(unittest.TestCase):
    maxDiff = None

    def test_all_ranks_get_equally_many_steps_and_count_what_is_cut(self) -> None:
        for world in (2, 7):
            for kind in ("filter", "pack", "failures", *(["filter-apart"] if world == 2 else [])):
                with self.subTest(world=world, kind=kind), texts() as folder:
                    ranks = torchrun(kind, folder, world)
                    counted = [[epoch["steps"] for epoch in rank["given"]] for rank in ranks]
                    self.assertEqual(len(counted[0]), 3)
                    self.assertEqual(counted, counted[:1] * world)
                    self.assertGreater(min(counted[0]), 1)
                    dealt = loops.COUNT // world
                    for rank in ranks:
                        for epoch in rank["given"]:
                            total = epoch["total"]
                            outcomes = ("delivered", "dropped", "skipped", "dead_lettered", "discarded")
                            self.assertEqual((total["left"], total["made"]), (0, sum(total[outcome] for outcome in outcomes)))
                            if kind != "pack":
                                self.assertEqual(total["made"], dealt)
                        cuts = [line for line in rank["messages"] if "all ranks end after" in line]
                        for line in cuts:
                            cut = re.search(r"(\d+) of \d+ samples of this rank \((.*?) %\) are discarded", line)
                            assert cut is not None, line
                            self.assertEqual(line.startswith("WARNING"), float(cut[2]) > 1, line)
                        if kind != "pack":
                            self.assertEqual(sum(int(re.search(r"(\d+) of", line)[1]) for line in cuts), sum(epoch["total"]["discarded"] for epoch in rank["given"]))
                    # The ranks had different numbers of batches, so that there was something to agree on.
                    self.assertTrue(any("all ranks end after" in line for rank in ranks for line in rank["messages"]))

    def test_a_rank_that_leaves_its_loop_ends_those_of_the_others(self) -> None:
        for case in ("break", "break-apart", "exception"):
            with self.subTest(case=case), texts() as folder:
                other, leaving = (rank["given"] for rank in processes(case, folder))
                self.assertEqual((other["steps"], leaving["steps"]), (5, 5))
                self.assertRegex(other["error"], "rank 1 has left its loop after 5 steps")
                self.assertLess(other["at"] - leaving["at"], SOON_S)

    def test_a_rank_that_is_killed_ends_the_loops_of_the_others(self) -> None:
        with texts() as folder:
            other, killed = processes("killed", folder)
            self.assertIsNone(killed)
            self.assertEqual(other["given"]["steps"], 5)
            self.assertRegex(other["given"]["error"], "the process of rank 1 has ended after 5 steps")
            self.assertLess(other["given"]["at"] - float((folder / "killed").read_text()), SOON_S)

    def test_a_loop_of_one_rank_is_told_apart_or_named(self) -> None:
        with texts() as folder:
            validating, other = (rank["given"] for rank in torchrun("validated", folder, 2))
            self.assertEqual(validating[::2], other)
        with texts() as folder:
            validating, other = processes("validated-alone", folder)
            warnings = [line for line in validating["messages"] if "rank 1 has not begun this loop" in line]
            self.assertEqual(len(warnings), 1)
            self.assertIn("`rank=0, world=1`", warnings[0])
            self.assertRegex(validating["given"][-1], "rank 1 has not come to step 1 within 8 s, the timeout of the process group")

    def test_two_pipelines_agree_in_turns(self) -> None:
        with texts() as folder:
            one, other = (rank["given"] for rank in torchrun("turns", folder, 2))
            self.assertEqual(one, other)
            self.assertEqual(len(one), 2)

    def test_processes_of_a_mesh_that_read_the_same_share_end_together(self) -> None:
        for case in ("mesh", "mesh-without-group"):
            with self.subTest(case=case), texts() as folder:
                ranks = [rank["given"] for rank in torchrun(case, folder, 4)]
                self.assertEqual(len({len(epoch) for rank in ranks for epoch in rank[:1]}), 1)
                self.assertEqual((ranks[0], ranks[2]), (ranks[1], ranks[3]))
                self.assertNotEqual(ranks[0], ranks[2])

    def test_all_ranks_raise_if_one_has_more_and_that_is_not_permitted(self) -> None:
        with texts() as folder:
            ranks = [rank["given"] for rank in torchrun("raise", folder, 2)]
            self.assertEqual(ranks[0]["steps"], ranks[1]["steps"])
            self.assertEqual(sum("this rank has only" in rank["error"] for rank in ranks), 1)
            self.assertEqual(sum("and this rank has more" in rank["error"] for rank in ranks), 1)

    def test_ranks_that_do_not_read_the_same_raise(self) -> None:
        with texts() as folder:
            ranks = [rank["given"] for rank in processes("differing", folder)]
            self.assertEqual(sum(rank.startswith("InvalidPipeline") for rank in ranks), 1)
            self.assertTrue(all("`/seed` differs" in rank for rank in ranks), ranks)

    def test_an_epoch_resumes_with_other_ranks(self) -> None:
        with texts() as folder:
            begun = [rank["given"] for rank in torchrun("begun", folder, 2)]
            self.assertEqual([len(steps) for steps in begun], [7, 7])
            for state in folder.glob("state-*.json"):
                self.assertEqual(json.loads(state.read_text())["first_epoch"], 0)
            resumed = [rank["given"] for rank in torchrun("resumed", folder, 3)]
            for epoch in range(2):
                self.assertEqual(len({len(rank[epoch]) for rank in resumed}), 1)
            rest = [number for rank in [*begun, *(rank[0] for rank in resumed)] for step in rank for number in step]
            # No number comes twice, and at most the rest of a batch of each rank is cut beyond what is equal.
            self.assertEqual(len(rest), len(set(rest)))
            whole = [rank[1] for rank in resumed]
            self.assertGreater(len(whole[0]), len(resumed[0][0]))


if __name__ == "__main__":
    unittest.main()
