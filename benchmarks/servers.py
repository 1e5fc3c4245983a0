"""Owns the servers' lives: start one, know when it is ready, end it and everything it started. Sends no load."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from benchmarks.models import facts

from benchmarks import processes

ROOT = Path(__file__).parent.parent
FOLDER = Path(__file__).parent
PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
THREADS = 2
READY_S = 120.0
STOP_S = 15.0


class ServerFailed(Exception):
    """It did not start; the end of its log says why."""


@dataclass(frozen=True)
class Profile:
    """What both servers are started with."""

    model: Path
    num_slots: int = 16
    slot_tokens: int = 4096
    llama_cache_mib: int | None = None
    """llama.cpp's prompt cache in host memory; None is as it ships."""

    @property
    def num_tokens(self) -> int:
        """KV capacity."""
        return self.num_slots * self.slot_tokens


@dataclass(frozen=True)
class Server:
    """One that is ready."""

    name: str
    model: str
    port: int
    pid: int
    fields: dict[str, Any] = field(default_factory=dict)
    """What each of its requests carries beside the common fields, so that answers have their full length."""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def pids(self) -> list[int]:
        return processes.tree(self.pid)

    def pids_by_role(self) -> dict[str, int]:
        """midstream's processes."""
        roles = {"gateway": self.pid}
        for pid in self.pids[1:]:
            words = processes.command_line(pid)
            if "midstream.cli.compose" in words:
                roles[words[words.index("midstream.cli.compose") + 1]] = pid
        return roles

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            return str(answer.read().decode())


@contextmanager
def midstream(
    profile: Profile, *arguments: str, launcher: str | None = None, environment: dict[str, str] | None = None
) -> Iterator[Server]:
    """`launcher` is a script of this folder that stands in for the `midstream` command."""
    command = [sys.executable, launcher] if launcher else [str(Path(sys.executable).parent / "midstream")]
    command += ["serve", "--model", str(profile.model), "--host", "127.0.0.1", "--port", "0"]
    command += ["--max-model-len", str(profile.slot_tokens), "--num-threads", str(THREADS)]
    command += ["--kv-cache-bytes", str(profile.num_tokens * facts(profile.model).kv_bytes_per_token)]
    with _process([*command, *arguments], environment) as (process, log):
        port = int(_wait_for(r"midstream is ready on http://[^:]+:(\d+)", process, log))
        yield Server("midstream", profile.model.stem, port, process.pid, {"ignore_eos": True})


@contextmanager
def llama_cpp(profile: Profile) -> Iterator[Server]:
    command = [str(PEERS_PYTHON), "peers/llama_server.py", str(profile.model)]
    command += [str(profile.num_slots), str(profile.slot_tokens), str(THREADS)]
    if profile.llama_cache_mib is not None:
        command.append(str(profile.llama_cache_mib))
    with _process(command) as (process, log):
        ready = json.loads(_wait_for(r'^(\{"address".*\})$', process, log))
        port = int(ready["address"].rpartition(":")[2])
        yield Server("llama.cpp", profile.model.stem, port, process.pid, {"ignore_eos": True}, ready)


@contextmanager
def transformers_serve(profile: Profile) -> Iterator[Server]:
    """`transformers serve --continuous-batching` on the same weights, as float32."""
    folder = _folder_of(profile.model)
    port = _free_port()
    command = [str(PEERS_PYTHON.parent / "transformers"), "serve", str(folder), "--continuous-batching"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    # Unbounded, it takes nine tenths of the machine's memory for KV.
    command += ["--cb-block-size", "32", "--cb-num-blocks", "512"]
    with _process(command) as (process, log):
        _wait_for(r"(Uvicorn running)", process, log)
        # It refuses `ignore_eos`: an end token that does not exist does the same.
        yield Server(
            "transformers",
            str(folder),
            port,
            process.pid,
            {"generation_config": json.dumps({"eos_token_id": -1, "do_sample": False})},
        )


START: dict[str, Callable[[Profile], Any]] = {
    "midstream": midstream,
    "llama.cpp": llama_cpp,
    "transformers": transformers_serve,
}


def _folder_of(model: Path) -> Path:
    """The Hugging Face folder made from the file, once."""
    folder = ROOT / "build" / "bench" / f"{model.stem}-hf"
    if not (folder / "tokenizer.json").exists():
        command = [str(PEERS_PYTHON), "peers/hf_folder.py", str(model), str(folder)]
        made = subprocess.run(command, cwd=FOLDER, env=_environment(), capture_output=True, timeout=180, check=False)
        if made.returncode != 0:
            raise ServerFailed(f"the folder could not be made: {made.stderr.decode()[-400:]}")
    return folder


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _environment() -> dict[str, str]:
    quiet = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(THREADS), "PYTHONUNBUFFERED": "1"}
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH",)} | quiet


@contextmanager
def _process(
    command: list[str], environment: dict[str, str] | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes]]]:
    """A process group of its own, ended with all below it however the block ends."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            cwd=FOLDER,
            env=_environment() | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process, log
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    below = processes.tree(process.pid)
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    for pid in below[1:]:  # what outlived it; midstream's engine is in a group of its own
        _kill_child(pid)


def _kill_child(pid: int) -> None:
    """A child may take a moment to see that its parent has gone."""
    deadline_s = time.monotonic() + 2.0
    while processes.command_line(pid) != [""] and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if processes.command_line(pid) != [""]:
        os.kill(pid, signal.SIGKILL)


def _wait_for(pattern: str, process: subprocess.Popen[bytes], log: IO[bytes]) -> str:
    """The first group of `pattern`, once the log has it. Raises ServerFailed."""
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        text = os.pread(log.fileno(), 1 << 20, 0).decode(errors="replace")
        if match := re.search(pattern, text, re.MULTILINE):
            return match.group(1)
        if process.poll() is not None:
            raise ServerFailed(f"exit code {process.returncode}: {text[-400:]}")
        time.sleep(0.1)
    raise ServerFailed(f"not ready after {READY_S:.0f} s: {text[-400:]}")
