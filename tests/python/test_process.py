"""Interaction of the package with its process: signals, the GIL, forks, spawned workers, the end."""

import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import penstock
from kit import clean, finished, folder, order_of, planes, program, slow, until

FORKED = """
import os, sys
import numpy, penstock
from kit import planes

pipeline = planes(400, rank=0, world=1)
batches = iter(pipeline)
kept = next(batches)
plane = numpy.from_dlpack(kept["plane"])
child = os.fork()
if child == 0:
    entries = {
        "next": lambda: next(batches),
        "iter": lambda: next(iter(pipeline)),
        "len": lambda: len(pipeline),
        "stats": pipeline.stats,
        "verdict": pipeline.verdict,
        "close": pipeline.close,
        "Pipeline": lambda: planes(8),
        "headspace": lambda: penstock.headspace(pipeline, print, seconds=0.1),
    }
    for name, enter in entries.items():
        try:
            enter()
            print(name, "did not fail")
        except penstock.ForkError as error:
            print(name, "raised" if "spawn" in str(error) else error)
    print("array", float(plane[0, 255, 255]), float(numpy.from_dlpack(kept["plane"])[0, 0, 1]))
    del kept, plane
    # The child ends without closing its other objects, as any program may.
    sys.exit(3)
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status))
print("parent", 1 + sum(1 for _ in batches), pipeline.stats()["state"])
"""

INTERRUPTED = """
import time
from kit import slow

pipeline = slow()
batches = iter(pipeline)
print("waits", flush=True)
try:
    next(batches)
except KeyboardInterrupt:
    interrupted = time.monotonic()
    batches.close()
    print("interrupted", pipeline.stats()["state"], time.monotonic() - interrupted, flush=True)
"""

# A fake interpreter that never finishes compiling, as long as its output is read.
NO_COMPILER = """#!/bin/sh
while echo waits >&2; do sleep 0.05; done
"""

COMPILES = """
import sys
from kit import planes

sys.executable = sys.argv[1]
print("waits", flush=True)
planes(8, cache_dir=None)
"""

COUNTS = """
import sys
import penstock

document = {"name": "keys", "source": {"list": {"store": "bucket"}}, "stages": [{"aggregate": {"size": 4}}, {"collate": {}}]}
pipeline = penstock.Pipeline(document, stores={"bucket": sys.argv[1]})
print("waits", flush=True)
len(pipeline)
"""

LEFT = """
import threading
from kit import planes, slow

batches = iter(planes(100_000))
kept = next(batches)
waits = iter(slow())
threading.Thread(target=next, args=(waits,), daemon=True).start()
print(kept.size)
"""


def spawned(rank: int) -> list[int]:
    return order_of(planes(8, rank=rank, world=2))


class WithoutRay(unittest.TestCase):
    def test_the_error_names_what_to_install(self) -> None:
        with self.assertRaises(ImportError) as raised:
            import penstock.ray  # noqa: F401
        self.assertIn("pip install 'penstock[ray]'", str(raised.exception))


class Signals(unittest.TestCase):
    def test_ctrl_c_ends_a_wait_within_a_second(self) -> None:
        child = program(INTERRUPTED)
        assert child.stdout is not None
        self.assertEqual(child.stdout.readline(), "waits\n")
        time.sleep(0.3)
        begin = time.monotonic()
        child.send_signal(signal.SIGINT)
        told = child.stdout.readline()
        self.assertLess(time.monotonic() - begin, 1)
        self.assertRegex(told, "^interrupted stopped")
        self.assertEqual(finished(child)[0], 0)

    def test_an_uncaught_ctrl_c_ends_the_program(self) -> None:
        child = program("from kit import slow\nprint('waits', flush=True)\nfor batch in slow(): pass")
        assert child.stdout is not None
        self.assertEqual(child.stdout.readline(), "waits\n")
        time.sleep(0.3)
        begin = time.monotonic()
        child.send_signal(signal.SIGINT)
        code, _, errors = finished(child)
        self.assertLess(time.monotonic() - begin, 1.5)
        self.assertEqual(code, -signal.SIGINT)
        self.assertIn("KeyboardInterrupt", errors)

    def test_ctrl_c_ends_the_preparation_of_a_loop(self) -> None:
        with folder() as here, socket.create_server(("127.0.0.1", 0)) as silent:
            compiler, bucket = here / "compiler", here / "bucket.json"
            compiler.write_text(NO_COMPILER)
            compiler.chmod(0o755)
            key = {"aws_access_key_id": "id", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
            bucket.write_text(json.dumps({"bucket_name": "bucket", "endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}", **key}))
            for text, argument in ((COMPILES, compiler), (COUNTS, bucket)):
                child = program(text, str(argument))
                assert child.stdout is not None
                with self.subTest(argument.name):
                    self.assertEqual(child.stdout.readline(), "waits\n")
                    time.sleep(0.3)
                    child.send_signal(signal.SIGINT)
                    code, _, errors = finished(child)
                    self.assertEqual(code, -signal.SIGINT, errors)


class Lock(unittest.TestCase):
    def test_other_threads_run_while_the_loop_waits(self) -> None:
        counts = 0
        is_over = False

        def spin() -> None:
            nonlocal counts
            while not is_over:
                counts += 1

        spinner = threading.Thread(target=spin)
        spinner.start()
        time.sleep(0.3)
        before, begin = counts, time.monotonic()
        time.sleep(0.5)
        alone = (counts - before) / (time.monotonic() - begin)
        pipeline = slow()
        threading.Timer(0.7, pipeline.close).start()
        before, begin = counts, time.monotonic()
        self.assertEqual(list(pipeline), [])
        beside = (counts - before) / (time.monotonic() - begin)
        is_over = True
        spinner.join()
        self.assertGreater(beside, 0.3 * alone, f"{beside:.0f} counts a second of {alone:.0f}")


class Forks(unittest.TestCase):
    def test_every_call_in_a_forked_child_raises_and_the_parent_continues(self) -> None:
        code, output, errors = finished(program(FORKED))
        told = dict(line.split(" ", 1) for line in output.splitlines())
        entries = ("next", "iter", "len", "stats", "verdict", "close", "Pipeline", "headspace")
        self.assertEqual({name: told.get(name) for name in entries}, dict.fromkeys(entries, "raised"), errors)
        self.assertEqual((told["array"], told["child"]), ("65535.0 1.0", "3"), errors)
        self.assertEqual((told["parent"], code), ("100 completed", 0), errors)

    def test_a_fork_before_the_first_pipeline_is_allowed(self) -> None:
        forked = "import os\nimport penstock\nfrom kit import planes\nchild = os.fork()\nos.write(1, b'%d\\n' % len(list(planes(8))))\nif child: os.wait()"
        self.assertEqual(finished(program(forked)), (0, "2\n2\n", ""))

    def test_spawned_workers_have_separate_pipelines(self) -> None:
        list(planes(8))
        with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as workers:
            self.assertEqual(list(workers.map(spawned, range(2))), [[0, 2, 4, 6], [1, 3, 5, 7]])


class Programs(unittest.TestCase):
    def test_a_program_may_end_while_runs_are_active(self) -> None:
        begin = time.monotonic()
        self.assertEqual(finished(program(LEFT)), (0, "4\n", ""))
        self.assertLess(time.monotonic() - begin, 8)

    def test_modules_are_compiled_in_a_separate_process(self) -> None:
        seen: set[str] = set()
        is_over = threading.Event()

        def watch() -> None:
            while not is_over.is_set():
                for task in Path("/proc/self/task").iterdir():
                    try:
                        children = (task / "children").read_text().split()
                        seen.update(Path(f"/proc/{child}/cmdline").read_text() for child in children)
                    except OSError:
                        continue
                time.sleep(0.001)

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            planes(8, cache_dir=None)
        finally:
            is_over.set()
            watcher.join()
        self.assertTrue(any("compile_module" in line for line in seen), seen)
        until(lambda: not any("compile_module" in line for line in children()), "the child has ended")

    def test_warnings_go_to_pythons_logging(self) -> None:
        with folder() as cache:
            planes(8, cache_dir=cache)
            largest = max((path for path in cache.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
            largest.write_bytes(b"damaged")
            with self.assertLogs("penstock", "WARNING") as logged:
                self.assertEqual(len(list(planes(8, cache_dir=cache))), 2)
        self.assertIn("cannot use a cached module, compiling it again", "\n".join(logged.output))

    def test_without_numpy_it_is_imported_and_iterated(self) -> None:
        code = "import sys\nsys.modules['numpy'] = None\nfrom kit import planes\nprint(sum(batch['plane'].nbytes for batch in planes(8)))"
        self.assertEqual(finished(program(code)), (0, f"{8 << 18}\n", ""))

    def test_the_version_is_the_programs(self) -> None:
        told = subprocess.run([os.environ["PENSTOCK"], "--version"], check=True, capture_output=True, text=True, env=clean())
        self.assertEqual(told.stdout.split()[1], penstock.__version__)


def children() -> list[str]:
    found = []
    for task in Path("/proc/self/task").iterdir():
        # A thread, or a child, may end after it was listed.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found.extend(Path(f"/proc/{child}/cmdline").read_text() for child in (task / "children").read_text().split())
    return found


if __name__ == "__main__":
    sys.exit(unittest.main())
