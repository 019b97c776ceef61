"""The server under attack: its process, tokens, stores, memory and end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

# Budget of runs, and those of documents and of answers, which cannot be set: 1 GiB in all.
THREADS, MEMORY_MIB = 16, 512
DOCUMENTS_MIB, ANSWERS_MIB = 256, 256
# Maximum time for the start and the end of the server, and for a command, in seconds.
PATIENCE_S = 60.0
# Time between two looks at the memory, in seconds.
LOOK_S = 0.1
# Words that the log of a sound server lacks.
DEFECTS = re.compile("panicked at|defect of Penstock|memory allocation of|damaged history")


class Server:
    """A server over a data directory in `folder`, whose store `hostile` is the folder of this name."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program, self.folder = program, folder
        self.data, self.log = folder / "data", folder / "log"
        store = {"folder": {"root": str(folder / "hostile")}}
        budget = {"threads": THREADS, "memory_mib": MEMORY_MIB}
        self._config = folder / "penstock.json"
        self._config.write_text(json.dumps({"stores": {"hostile": store}, "budget": budget}))
        self._process: subprocess.Popen[str] | None = None
        self.address = ("", 0)

    def environment(self) -> dict[str, str]:
        foreign = {name for name in os.environ if name.startswith("PENSTOCK_")}
        own = {"XDG_STATE_HOME": str(self.folder / "state"), "PENSTOCK_CACHE_DIR": str(self.folder / "cache"), "PENSTOCK_LOG": "warn"}
        return {name: value for name, value in os.environ.items() if name not in foreign} | own

    def token(self, name: str, role: str) -> str:
        """Creates a named token."""
        command = [self.program, "token", "add", name, "--role", role, "--data-dir", self.data]
        made = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=self.environment(), timeout=PATIENCE_S)
        return made.stdout.strip()

    def start(self) -> None:
        command = [self.program, "serve", "--listen=127.0.0.1:0", "--config", self._config, "--data-dir", self.data]
        with self.log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment())
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"://([\d.]+):(\d+)", line)
        assert found, f"the server printed `{line}` instead of its address"
        self.address = (found[1], int(found[2]))

    @property
    def process(self) -> int:
        assert self._process is not None
        return self._process.pid

    def cpu_s(self) -> float:
        """CPU time of the server and of its compilers that have ended, in seconds."""
        figures = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, figures[11:15])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> tuple[float, int | None]:
        """Ends the server with SIGTERM; returns the time that it takes, in seconds, and its exit code, `None` if it had to be killed."""
        assert self._process is not None
        start = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        return time.monotonic() - start, code

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def defects(self) -> list[str]:
        """Lines of the log that tell of defects."""
        return [line for line in self.log.read_text(errors="replace").splitlines() if DEFECTS.search(line)]


class Memory:
    """Memory of a process, looked at from the `with` block's begin to its end, in MiB."""

    def __init__(self, process: int) -> None:
        self._process, self._is_over = process, threading.Event()
        self._thread = threading.Thread(target=self._watch)
        #: Largest resident memory of all, its parts at that moment, and the peak that the kernel has seen since the process began.
        self.most, self.parts, self.peak = 0.0, {}, 0.0

    def _watch(self) -> None:
        while not self._is_over.wait(LOOK_S):
            try:
                status = Path(f"/proc/{self._process}/status").read_text()
            except OSError:
                return
            figures = {name: int(kib) / 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", status, re.MULTILINE)}
            if "VmRSS" not in figures:
                return
            self.peak = figures["VmHWM"]
            if figures["VmRSS"] > self.most:
                self.most = figures["VmRSS"]
                self.parts = {name: figures[name] for name in ("RssAnon", "RssFile", "RssShmem")}

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
