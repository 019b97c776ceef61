"""Measures what it costs that the loops of two ranks end together: the time and the CPU time of a step, beside loops alone.

    python tests/benches/python/ends.py

Two processes train in turns with `ends="alone"` and `ends="together"`, the latter with and without memory that they share, as ranks of one and
of several machines. A step is 20 ms of sleep and a collective operation, as in a training whose ranks exchange gradients; batches are always
ready. The cost is the difference of the medians over all steps; of it, the loop's thread spends the time shown last in the agreement.
Loops alone that wait for each other at two counters in shared memory show what the plainest agreement costs on this machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from typing import Any
from unittest import mock

import penstock
import penstock._together
import torch
import torch.distributed
import torch.multiprocessing

WORLD = 2

WAYS = ("alone", "together", "apart", "counters")


class Timed(penstock._together.Agreement):
    """An agreement that adds up the time that the loop's thread spends in it."""

    spent_s = 0.0

    def come(self) -> None:
        begin = time.perf_counter()
        super().come()
        Timed.spent_s += time.perf_counter() - begin

    def gets_step(self) -> bool:
        begin = time.perf_counter()
        gets = super().gets_step()
        Timed.spent_s += time.perf_counter() - begin
        return gets


def turn(way: str, steps: int, step_s: float, counters: Any) -> tuple[list[float], list[float], list[float]]:
    """Time of each step, CPU time of the loop's thread, and its time in the agreement, in seconds."""
    if way == "apart":
        with mock.patch("penstock._together.Board", side_effect=OSError("on another machine")):
            return turn("together", steps, step_s, counters)
    document = {
        "name": "steps",
        "source": {"range": {"count": WORLD * steps}},
        "stages": [{"sleep": {"mean_ms": 0, "fail_rate": 1e-9}}, {"aggregate": {"size": 1}}, {"collate": {}}],
        "threads": 1,
    }
    rank = torch.distributed.get_rank()
    pipeline = penstock.Pipeline(document, rank=rank, world=WORLD, ends="together" if way == "together" else "alone")
    times, cpu, agreeing = [], [], []
    one = torch.ones(1)
    begin, begin_cpu, begin_spent = time.perf_counter(), time.thread_time(), Timed.spent_s
    with mock.patch("penstock._pipeline.Agreement", Timed):
        for _ in pipeline:
            if way == "counters":
                counters[rank] += 1
                while min(counters) < counters[rank]:
                    time.sleep(0)
            time.sleep(step_s)
            torch.distributed.all_reduce(one)
            end, end_cpu, end_spent = time.perf_counter(), time.thread_time(), Timed.spent_s
            times.append(end - begin)
            cpu.append(end_cpu - begin_cpu)
            agreeing.append(end_spent - begin_spent)
            begin, begin_cpu, begin_spent = end, end_cpu, end_spent
    # The first steps fill the queues.
    return times[5:], cpu[5:], agreeing[5:]


def train(rank: int, port: int, rounds: int, steps: int, step_s: float, must_ms: float | None, counters: Any) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", rank=rank, world_size=WORLD, init_method=f"tcp://127.0.0.1:{port}")
    found: dict[str, tuple[list[float], ...]] = {way: ([], [], []) for way in WAYS}
    for _ in range(rounds):
        for way, figures in found.items():
            for known, more in zip(figures, turn(way, steps, step_s, counters)):
                known += more
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    if rank:
        return
    medians = {way: [1e3 * statistics.median(figures) for figures in all_figures] for way, all_figures in found.items()}
    alone, alone_cpu, _ = medians["alone"]
    print(f"{'':10} {'step':>10} {'more':>18} {'CPU of the loop':>18} {'more':>10} {'in the agreement':>18}")
    for way, (step, cpu, agreeing) in medians.items():
        more = f"{step - alone:+8.3f} ms {step / alone - 1:+5.1%}"
        print(f"{way:10} {step:7.3f} ms {more} {cpu:15.3f} ms {cpu - alone_cpu:+7.3f} ms {agreeing:15.3f} ms")
    cost, agreeing = medians["together"][0] - alone, medians["together"][2]
    if must_ms is not None and max(cost, agreeing) > must_ms:
        sys.exit(f"a step of ranks on one machine is {cost:.3f} ms longer, and {agreeing:.3f} ms of it agreement: at most {must_ms:g} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-ms", type=float, default=20)
    parser.add_argument("--port", type=int, default=29877)
    parser.add_argument("--must", type=float, help="maximum cost in ms")
    given: Any = parser.parse_args()
    counters = multiprocessing.get_context("spawn").Array("q", WORLD, lock=False)
    arguments = (given.port, given.rounds, given.steps, given.step_ms / 1e3, given.must, counters)
    torch.multiprocessing.spawn(train, arguments, nprocs=WORLD)


if __name__ == "__main__":
    main()
