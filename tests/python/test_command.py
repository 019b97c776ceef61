"""The command in the wheel behaves like the binary."""

import json
import os
import re
import signal
import subprocess
import sys
import unittest
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from kit import PATIENCE, Server, clean, files, folder, module, photo_document, photos, until, wanted

COMMANDS: dict[str, list[str | Path]] = {
    "penstock": [Path(sys.executable).with_name("penstock")],
    "python -m penstock": [sys.executable, "-m", "penstock"],
}

ENDLESS = {
    "name": "endless",
    "source": {"range": {"count": 8, "epochs": None}},
    "stages": [{"sleep": {"mean_ms": 1, "on": "async"}}],
}


def output_of(command: Sequence[str | Path], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command line."""
    ended = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE, env=clean())
    return ended.returncode, ended.stdout, ended.stderr


class Commands(unittest.TestCase):
    def test_help_output_and_exit_codes_are_those_of_the_binary(self) -> None:
        lines = ("--version", "", "--help", "run --help", "nonsense", "test-stage", "schema", "check /none.json", "runs --server http://127.0.0.1:9")
        for line in lines:
            by_binary = output_of([wanted("PENSTOCK")], *line.split())
            for name, command in COMMANDS.items():
                with self.subTest(f"{name} {line}"):
                    self.assertEqual(output_of(command, *line.split()), by_binary)

    def test_check_compiles_the_modules_of_a_document(self) -> None:
        for name, command in COMMANDS.items():
            with self.subTest(name), folder() as made:
                (made / "document.json").write_text(json.dumps(photo_document()))
                code, output, errors = output_of(command, "check", made / "document.json", f"--cache-dir={made}", f"--store=photos={photos()}")
                self.assertEqual((code, errors), (0, ""))
                self.assertIn("can run: [0:src] -> ", output)
                self.assertTrue(list((made / "compiled").iterdir()))

    def test_a_run_writes_the_same_batches_as_the_binary(self) -> None:
        document, stores = photo_document(), {"photos": photos()}
        by_binary = files(document, stores, {})
        self.assertEqual(len(by_binary), 6)
        for name, command in COMMANDS.items():
            with self.subTest(name):
                self.assertEqual(files(document, stores, {}, command), by_binary)

    def test_a_server_serves_its_pages_compiles_modules_and_stops_on_a_signal(self) -> None:
        for name, command in COMMANDS.items():
            for by in (signal.SIGINT, signal.SIGTERM):
                with self.subTest(name, by=by):
                    server = Server(command=command)
                    try:
                        self.assertEqual(get(f"{server.url}/health"), ("text/plain; charset=utf-8", "ok\n"))
                        kind, page = get(f"{server.url}/")
                        self.assertRegex(kind, "^text/html")
                        scripts = re.findall(r"/assets/[^\"]+\.js", page)
                        self.assertTrue(scripts, page)
                        self.assertRegex(get(server.url + scripts[0])[0], "javascript")
                        server.push(module("image").read_bytes())
                    finally:
                        code = server.close(by)
                    self.assertEqual(code, 0)


class Ends(unittest.TestCase):
    def test_ctrl_c_stops_a_run_which_still_reports(self) -> None:
        for name, command in COMMANDS.items():
            with self.subTest(name), folder() as made:
                child = self.started(command, made)
                child.send_signal(signal.SIGINT)
                output, errors = child.communicate(timeout=PATIENCE)
                self.assertEqual((child.returncode, errors), (130, ""))
                self.assertEqual(json.loads(output)["state"], "stopped")

    def test_a_closed_pipe_ends_the_command_without_an_error_message(self) -> None:
        reads, writes = os.pipe()
        os.close(reads)
        self.addCleanup(os.close, writes)
        for name, command in {"binary": [wanted("PENSTOCK")], **COMMANDS}.items():
            with self.subTest(name):
                ended = subprocess.run([*command, "schema"], stdout=writes, stderr=subprocess.PIPE, timeout=PATIENCE, env=clean())
                self.assertEqual((ended.returncode, ended.stderr), (1, b""))

    def test_no_file_takes_the_place_of_a_closed_stream(self) -> None:
        for name, command in COMMANDS.items():
            with self.subTest(name), folder() as made:
                closed: list[str | Path] = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
                child = self.started(closed, made)
                self.assertEqual([os.readlink(f"/proc/{child.pid}/fd/{number}") for number in range(3)], ["/dev/null"] * 3)

    def started(self, command: Sequence[str | Path], made: Path) -> subprocess.Popen[str]:
        """Starts an endless run and waits until it has begun."""
        (made / "document.json").write_text(json.dumps(ENDLESS))
        # A test that a shell runs in the background ignores Ctrl-C.
        line = ["env", "--default-signal=INT", *command, "run", made / "document.json", "--quiet", "--json", f"--out={made}/out"]
        child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean())
        self.addCleanup(child.communicate)
        self.addCleanup(child.kill)
        # This file is created after the handler for Ctrl-C is installed.
        until((made / "out/spec.json").exists, "the run begins")
        return child


def get(url: str) -> tuple[str, str]:
    """Requests an address; returns the content type and the text."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return answer.headers["content-type"], answer.read().decode()


if __name__ == "__main__":
    unittest.main()
