"""Runs of a server, drained from here."""

import random
import signal
import time
import unittest

import numpy
import penstock
from kit import Server, content, finished, folder, module, photo_document, photo_pipeline, photos, plane_document, plane_stage, program, until

# One consumer after another, each killed in the middle of whatever it does. Forked from a process that has no threads, so
# that a life begins at once.
LIVES = """
import os, random, signal, sys, time, zlib
import numpy, penstock

url, run, folder, lives = *sys.argv[1:4], int(sys.argv[4])
random.seed(int(sys.argv[5]))

def drain(life):
    log = os.open(f"{folder}/{life:03}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    stream = penstock.connect(url).stream(run)
    while True:
        batch = next(stream, None)
        if batch is None:
            os.write(log, b"end\\n")
            os._exit(0)
        told = zlib.crc32(numpy.from_dlpack(batch["plane"]).tobytes(), hash(tuple(batch.indexes)) & 0xffffffff)
        os.write(log, f"got {stream.number} {int(stream.redelivered)} {told}\\n".encode())
        del batch
        time.sleep(0.001)
        # From here on the batch may be acknowledged.
        os.write(log, f"asks {stream.number}\\n".encode())

for life in range(lives + 1):
    child = os.fork()
    if child == 0:
        try:
            drain(life)
        except BaseException as error:
            print(f"life {life}: {error!r}", flush=True)
            os._exit(1)
    if life < lives:
        time.sleep(random.uniform(0, 0.06))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""

FORKED = """
import os, sys
import numpy, penstock
from kit import content

stream = penstock.connect(sys.argv[1]).stream(sys.argv[2])
first = next(stream)
batch = next(stream)
plane = numpy.from_dlpack(batch["plane"])
child = os.fork()
if child == 0:
    for name, enter in {"next": lambda: next(stream), "acknowledge": lambda: stream._client.acknowledge(1)}.items():
        try:
            enter()
            print(name, "did not fail")
        except penstock.ForkError:
            print(name, "told")
    # It lets go of everything, which is none of the parent's business.
    del first, batch, plane
    stream.close()
    sys.exit(3)
_, status = os.waitpid(child, 0)
print("child", os.waitstatus_to_exitcode(status))
del first
rest = [stream.number for _ in stream]
print("rest", rest == list(range(2, 50)), bool((plane == numpy.arange(65536, dtype="float32").reshape(256, 256)).all()))
"""


def streamed(document: dict, **stream: object) -> dict:
    return {**document, "consumer": {"stream": stream}}


class Streams(unittest.TestCase):
    @classmethod
    def setUpClass(cls) -> None:
        cls.server = Server("--store", f"photos={photos()}", *(f"--module={module(name)}" for name in ("decode-resize", "normalize")))
        cls.addClassCleanup(cls.server.close)
        cls.server.push(plane_stage())
        cls.connected = penstock.connect(cls.server.url)

    def submit(self, document: dict, **stream: object) -> str:
        return self.connected.submit(streamed(document, **stream))

    def state(self, run: str) -> str:
        return self.connected.run(run)["state"]

    def test_a_stream_gives_the_bytes_of_a_pipeline_here(self) -> None:
        run = self.submit(photo_document())
        expected = [content(batch) for batch in photo_pipeline()]
        stream = self.connected.stream(run)
        found = []
        for batch in stream:
            self.assertEqual((stream.number, stream.redelivered), (len(found), False))
            found.append(content(batch))
        self.assertEqual(found, expected)
        until(lambda: self.state(run) == "completed", "the run completes")

    def test_arrays_are_not_copied_and_writing_to_them_changes_nobody_elses(self) -> None:
        run = self.submit(plane_document(400), ahead=2)
        with self.connected.stream(run) as stream:
            for batch in stream:
                one, other = numpy.from_dlpack(batch["plane"]), numpy.from_dlpack(batch["plane"])
                self.assertEqual(one.ctypes.data, other.ctypes.data)
                self.assertTrue(one.flags.writeable)
                self.assertEqual(one.sum(), 4 * 65536 * 65535 / 2, "memory that was written to comes back as it should be")
                one[:] = -1

    def test_arrays_outlive_the_stream_the_run_and_what_comes_after(self) -> None:
        run = self.submit(plane_document(200))
        with self.connected.stream(run) as stream:
            kept = [numpy.from_dlpack(batch["plane"]) for _, batch in zip(range(3), stream)]
            for _ in stream:
                pass
        until(lambda: self.state(run) == "completed", "the run completes")
        del stream
        wanted = numpy.arange(65536, dtype="float32").reshape(256, 256)
        self.assertTrue(all((plane == wanted).all() for plane in kept))

    def test_one_process_at_a_time_takes_batches(self) -> None:
        run = self.submit(plane_document(40))
        first = self.connected.stream(run)
        self.assertEqual(next(first).indexes, [0, 1, 2, 3])
        with self.assertRaisesRegex(penstock.StreamError, "another"):
            self.connected.stream(run)
        self.assertEqual((next(first).indexes, first.number), ([4, 5, 6, 7], 1))
        first.close()
        with self.assertRaisesRegex(penstock.StreamError, "closed"):
            next(first)
        with self.connected.stream(run) as other:
            self.assertEqual((next(other).indexes, other.number, other.redelivered), ([4, 5, 6, 7], 1, True))
            self.assertEqual([other.number for _ in other], list(range(2, 10)))

    def test_a_loop_that_was_left_goes_on_where_it_was(self) -> None:
        run = self.submit(plane_document(40), ahead=1)
        stream = self.connected.stream(run)
        numbers = []
        while stream.number < 9:
            for _ in stream:
                numbers.append(stream.number)
                break
        self.assertEqual((numbers, list(stream)), (list(range(10)), []))

    def test_batches_that_are_kept_bound_the_servers_memory(self) -> None:
        run = self.submit(plane_document(400))
        with self.connected.stream(run, max_held=3) as stream, self.assertRaisesRegex(penstock.BatchesHeld, "^3 batches .*`max_held`"):
            list(stream)
        with self.assertRaisesRegex(penstock.InvalidPipeline, "`max_held` is 1;"):
            self.connected.stream(run, max_held=1)

    def failing(self, rate: float) -> str:
        document = plane_document(10_000)
        document["stages"].insert(0, {"sleep": {"mean_ms": 0.1, "fail_rate": rate}})
        document["max_failures"] = {"count": 20}
        return self.submit(document)

    def test_a_run_that_fails_is_told_after_the_batches_that_it_made(self) -> None:
        stream = self.connected.stream(self.failing(0.1))
        with self.assertRaisesRegex(penstock.RunFailed, "20"):
            for _ in stream:
                pass
        self.assertGreater(stream.number, 10)

    def test_a_run_that_has_failed_is_told(self) -> None:
        run = self.failing(1)
        until(lambda: self.state(run) == "failed", "the run fails")
        with self.assertRaisesRegex(penstock.RunFailed, "20"):
            self.connected.stream(run)

    def test_a_run_that_is_stopped_ends(self) -> None:
        run = self.submit(plane_document(400))
        stream = self.connected.stream(run)
        next(stream)
        self.connected._ask("POST", f"/runs/{run}/stop")
        self.assertLess(len([batch for batch in stream]), 99)
        self.assertEqual(self.state(run), "stopped")

    def test_runs_that_have_no_stream_are_told(self) -> None:
        other = self.connected.submit({**plane_document(4), "consumer": {"discard": {}}})
        with self.assertRaisesRegex(penstock.PenstockError, "stream"):
            self.connected.stream(other)
        with self.assertRaisesRegex(penstock.PenstockError, "no/such"):
            self.connected.stream("no/such")
        with self.assertRaises(penstock.InvalidPipeline) as raised:
            self.connected.submit({**plane_document(4), "colour": "red"})
        self.assertIn("/colour", str(raised.exception))

    def test_ctrl_c_ends_a_wait(self) -> None:
        run = self.submit(plane_document(10, step_ms=60_000))
        waits = "import sys, penstock\nstream = penstock.connect(sys.argv[1]).stream(sys.argv[2])\nprint('waits', flush=True)\nnext(stream)"
        child = program(waits, self.server.url, run)
        assert child.stdout is not None
        self.assertEqual(child.stdout.readline(), "waits\n")
        time.sleep(0.2)
        begin = time.monotonic()
        child.send_signal(signal.SIGINT)
        self.assertEqual(finished(child)[0], -signal.SIGINT)
        self.assertLess(time.monotonic() - begin, 1.5)
        self.connected._ask("POST", f"/runs/{run}/stop")

    def test_a_forked_child_leaves_the_parents_stream_alone(self) -> None:
        run = self.submit(plane_document(200))
        code, output, errors = finished(program(FORKED, self.server.url, run))
        self.assertEqual((output, code), ("next told\nacknowledge told\nchild 3\nrest True True\n", 0), errors)

    def test_killed_consumers_lose_nothing_and_repeat_nothing_that_was_acknowledged(self) -> None:
        count, lives, seed = 1500, 50, random.randrange(2**32)
        run = self.submit(plane_document(count, batch=1), ahead=4)
        with folder() as logs:
            arguments = (self.server.url, run, str(logs), str(lives), str(seed))
            code, output, errors = finished(program(LIVES, *arguments), 60)
            self.assertEqual((code, output.split()), (0, lives * [str(-signal.SIGKILL)] + ["0"]), f"seed {seed}: {errors}")
            told = [(logs / f"{life:03}").read_text().split("\n")[:-1] if (logs / f"{life:03}").exists() else [] for life in range(lives + 1)]
        self.assertEqual(told[-1].pop(), "end")
        first, perhaps, contents, redelivered = 0, None, {}, 0
        for life, lines in enumerate(told):
            with self.subTest(life=life, seed=seed):
                for line in lines:
                    word, number, *rest = line.split()
                    number = int(number)
                    if word == "asks":
                        # Either is right: it was killed before the acknowledgement was said, or after that.
                        perhaps = number
                        continue
                    self.assertIn(number, (first, first + 1) if perhaps == first else (first,), f"batch {first} is due")
                    # What was asked for after the acknowledgement came: that one is certain.
                    first, perhaps = number, None
                    redelivered += int(rest[0])
                    is_again = number in contents
                    self.assertLessEqual(is_again, int(rest[0]), "a batch that comes again is marked")
                    self.assertEqual(contents.setdefault(number, rest[1]), rest[1], "a batch that comes again is the same")
        self.assertEqual(sorted(contents), list(range(count)))
        self.assertEqual(len(set(contents.values())), count, "the contents tell batches apart")
        self.assertGreater(redelivered, 5, f"seed {seed}: the kills hit something")
        until(lambda: self.state(run) == "completed", "the run completes")


class Tokens(unittest.TestCase):
    def test_without_the_servers_token_there_is_nothing(self) -> None:
        server = Server(token="a-token-that-is-long-enough-0123456789abcdef")
        self.addCleanup(server.close)
        server.push(plane_stage())
        run = penstock.connect(server.url, token=server.token).submit(streamed(plane_document(8)))
        for token in (None, "wrong"):
            with self.subTest(token), self.assertRaisesRegex(penstock.PenstockError, "token"):
                penstock.connect(server.url, token=token).stream(run)
        address = penstock.connect(server.url, token=server.token)._ask("GET", f"/runs/{run}/stream")
        with self.assertRaisesRegex(penstock.StreamError, "secret"):
            penstock._penstock.StreamClient(address["socket"], "0" * 64, 2)
        self.assertEqual(len(list(penstock.connect(server.url, token=server.token).stream(run))), 2)


class Servers(unittest.TestCase):
    def test_a_server_that_is_not_there_is_told(self) -> None:
        with self.assertRaisesRegex(penstock.PenstockError, "http://127.0.0.1:9 does not answer.*refused"):
            penstock.connect("http://127.0.0.1:9").run("x")
        with self.assertRaisesRegex(penstock.PenstockError, "no address"):
            penstock.connect("127.0.0.1:7700").run("x")

    def test_a_server_that_dies_is_told(self) -> None:
        server = Server()
        self.addCleanup(server.close)
        server.push(plane_stage())
        connected = penstock.connect(server.url)
        stream = connected.stream(connected.submit(streamed(plane_document(400))))
        plane = numpy.from_dlpack(next(stream)["plane"])
        server.kill()
        with self.assertRaisesRegex(penstock.StreamError, "closed the connection"):
            list(stream)
        self.assertEqual(plane[3, 255, 255], 65535)


if __name__ == "__main__":
    unittest.main()
