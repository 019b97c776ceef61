#!/usr/bin/env python3
"""Measures what one client can do to another: submits, stops, uploads and memory of a server while a token with the role `run` does its worst.

The victim uses the server alone for a while first, so that the speed of the machine is known. Fails if a bound is exceeded; the bounds are for an
optimised program on a machine without other load.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import queue
import shutil
import sys
import tempfile
import time
from pathlib import Path

import attacks
import files
import states
from client import Client
from scene import Counts, Scene
from server import ANSWERS_MIB, DOCUMENTS_MIB, MEMORY_MIB, Memory, Server
from victim import Times, Victim

# Bounds of the medians, in seconds; of memory beyond the budgets, in MiB; and of the end of the server, in seconds.
MEDIANS_S = {"submit": 1.0, "stop": 1.0, "upload": 5.0}
BEYOND_MIB = 64
END_S = 8.0
# Time that the attacks may take beyond their end, in seconds.
GRACE_S = 90.0


def told(value: float) -> str:
    return "-" if math.isnan(value) else "refused" if math.isinf(value) else f"{value:.3f} s"


def table(alone: dict[str, Times], beside: dict[str, Times]) -> list[str]:
    """Prints the times of all operations; returns those that exceed their bounds."""
    exceeded = []
    print(f"\n{'':8}{'alone: median':>14}{'worst':>10}{'beside: median':>16}{'95 %':>10}{'worst':>10}{'number':>8}{'refused':>9}   bound of the median")
    for what, times in beside.items():
        before, bound = alone[what], MEDIANS_S.get(what)
        numbers = f"{told(times.median):>16}{told(times.at(0.95)):>10}{told(times.worst):>10}{len(times.values):>8}{times.failed:>9}"
        print(f"{what:8}{told(before.median):>14}{told(before.worst):>10}{numbers}   {'' if bound is None else f'{bound:.0f} s'}")
        if bound is not None and not times.median <= bound:
            exceeded.append(f"{what}: the median is {told(times.median)}, may be {bound:.0f} s")
    return exceeded


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--penstock", type=Path, required=True, help="the program")
    parser.add_argument("--modules", type=Path, required=True, help="folder of built modules")
    parser.add_argument("--time", type=float, default=600, help="time of the attack, in seconds")
    parser.add_argument("--alone", type=float, default=60, help="time of the victim alone, in seconds")
    parser.add_argument("--only", nargs="*", choices=list(attacks.ATTACKS), default=list(attacks.ATTACKS), help="attacks to run")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="penstock-worst-"))
    files.make(folder / "hostile", Path(__file__).parents[2] / "runner/formats/tests/data")
    server = Server(options.penstock.resolve(), folder)
    try:
        return measure(server, options)
    finally:
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def measure(server: Server, options: argparse.Namespace) -> int:
    tokens = {name: server.token(name, "run") for name in ("attacker", "victim")}
    server.start()
    planted = states.submit(Client(server.address, tokens["attacker"]))
    server.end()
    states.plant(server.data / "penstock.sqlite", planted)

    server.start()
    victim = Victim(Client(server.address, tokens["victim"]), options.modules / "image.wasm")
    with Memory(server.process) as memory:
        alone = victim.measure(options.alone)
        before = memory.peak
        print(f"alone for {options.alone:.0f} s; now {len(options.only)} attacks for {options.time:.0f} s", flush=True)
        until = time.monotonic() + options.time
        scene = Scene(
            server.address, tokens["attacker"], until, planted, options.modules, server.program, server.environment(), server.folder
        )  # fmt: skip
        results: multiprocessing.Queue[tuple[str, Counts, str | None]] = multiprocessing.Queue()
        processes = [multiprocessing.Process(target=attacks.perform, args=(name, scene, results), daemon=True) for name in options.only]
        for process in processes:
            process.start()
        cpu_s = server.cpu_s()
        beside = victim.measure(options.time)
        cpu_s = server.cpu_s() - cpu_s
        # The attackers still hold their connections.
        took_s, code = server.end()
    faults = table(alone, beside)
    faults += report(processes, results)

    budgets, most = f"{MEMORY_MIB} of runs, {DOCUMENTS_MIB} of documents, {ANSWERS_MIB} of answers", MEMORY_MIB + DOCUMENTS_MIB + ANSWERS_MIB + BEYOND_MIB
    parts = ", ".join(f"{name} {mib:.0f}" for name, mib in memory.parts.items())
    print(f"\nmemory: peak {memory.peak:.0f} MiB ({parts}), {before:.0f} alone; bound {most}: the budgets ({budgets}) + {BEYOND_MIB}")
    print(f"CPU time of the server and its compilers: {cpu_s / options.time:.2f} cores")
    print(f"end: exit code {code} after {took_s:.1f} s, with all clients connected; bound {END_S:.0f} s")
    print(f"victim: {dict(sorted(victim.client.counts.items()))}")
    if memory.peak > most:
        faults.append(f"the server takes {memory.peak:.0f} MiB, may take {most}")
    if code != 0 or took_s > END_S:
        faults.append(f"the server ended with {code} after {took_s:.1f} s")
    faults += [f"an answer to another client: {wrong}" for wrong in victim.wrong]
    faults += [f"in the log: {line}" for line in server.defects()]
    for fault in faults:
        print(f"FAILED: {fault}")
    return 1 if faults else 0


def report(processes: list[multiprocessing.Process], results: multiprocessing.Queue) -> list[str]:
    """Prints what the attacks have counted, once they have ended; returns the faults of those that did not work."""
    faults, latest = [], time.monotonic() + GRACE_S
    for _ in processes:
        try:
            name, counts, error = results.get(timeout=max(0.1, latest - time.monotonic()))
        except queue.Empty:
            faults.append("an attack did not end in time")
            continue
        of_attack: dict[str, list[str]] = {}
        for (what, status), count in sorted(counts.items()):
            of_attack.setdefault(what, []).append(f"{status}: {count}" if status else str(count))
        print(f"\n{name}")
        for what, numbers in of_attack.items():
            print(f"  {what:40} {', '.join(numbers)}")
        if error is not None:
            faults.append(f"the attack `{name}` did not work: {error}")
    for process in processes:
        process.join(max(0.1, latest - time.monotonic()))
        if process.is_alive():
            process.kill()
    return faults


if __name__ == "__main__":
    sys.exit(main())
