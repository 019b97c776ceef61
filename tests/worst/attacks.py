"""The attacks of one client with the role `run`. Each runs in a process of its own until the time is over.

Together they hold fewer connections than the 512 that a server takes from its own machine, for which it has no other limit.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import attack_answers
import attack_requests
import attack_runs
from scene import Counts, Scene

# The attacker's own processes leave the cores to the server.
NICE = 10

ATTACKS: dict[str, Callable[[Scene], Counts]] = {
    "7 states": attack_runs.large_states,
    "7 resumes": attack_runs.resumes,
    "8 repeated values": attack_runs.repeated_values,
    "9 secrets and keys": attack_requests.secrets,
    "10 hostile states": attack_runs.hostile_states,
    "11 uploads": attack_requests.uploads,
    "12 slow bodies": attack_requests.slow_bodies,
    "12 large bodies": attack_requests.large_bodies,
    "12 slow registry": attack_requests.slow_registry,
    "13 silent streams": attack_answers.silent_streams,
    "13 answers": attack_answers.answers,
    "13 floods of logs": attack_answers.floods,
    "damaged files": attack_runs.damaged_files,
}


def perform(name: str, scene: Scene, results: Any) -> None:
    """Runs an attack in this process, and hands its counts over."""
    os.nice(NICE)
    try:
        results.put((name, ATTACKS[name](scene), None))
    except Exception as error:  # An attack that ends early is a fault of this program, which the report tells.
        results.put((name, Counts(), repr(error)))
