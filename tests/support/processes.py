"""Owns a real `midstream serve` with its children, as a user starts it: on loopback, on a free port."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2

_READY = re.compile(r"midstream is ready on (http://\S+)")
_STARTED = re.compile(r"(tool_host_started|engine_ready).*pid=(\d+)")


class ServerProcess:
    """A running server; `log` is what it has written to stderr so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.log: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.base_url = self._wait_until_ready()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def engine_pid(self) -> int:
        return self._last_pid("engine_ready")

    @property
    def tool_host_pid(self) -> int:
        return self._last_pid("tool_host_started")

    @property
    def num_fds(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def metric(self, name: str) -> float:
        """The sum of a metric's samples over its labels."""
        text = httpx2.get(f"{self.base_url}/metrics", timeout=10).text
        lines = [line for line in text.splitlines() if re.match(rf"midstream:{name}(\{{| )", line)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def kill_engine(self) -> None:
        os.kill(self.engine_pid, signal.SIGKILL)

    def kill_tool_host(self) -> None:
        os.kill(self.tool_host_pid, signal.SIGKILL)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.log.append(line)
            self._lines.put(line)
        self._lines.put(None)

    def _wait_until_ready(self) -> str:
        while (line := self._lines.get(timeout=60)) is not None:
            match = _READY.search(line)
            if match:
                return match[1]
        raise AssertionError("the server ended before it was ready:\n" + "".join(self.log))

    def _last_pid(self, event: str) -> int:
        matches = [match for line in self.log if (match := _STARTED.search(line)) and match[1] == event]
        return int(matches[-1][2])


@contextmanager
def server_process(*options: str) -> Iterator[ServerProcess]:
    """Run `midstream serve --port 0 …` until the block is left; SIGTERM ends it."""
    command = [sys.executable, "-m", "midstream.cli.main", "serve", "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield ServerProcess(process)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        finally:
            assert process.stderr is not None
            process.stderr.close()
