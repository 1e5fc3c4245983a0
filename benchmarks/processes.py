"""Owns what the kernel knows of processes: CPU time, memory, system calls. Ends none, reads no contents."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def tree(pid: int) -> list[int]:
    """`pid` and everything below it."""
    found = [pid]
    for parent in found:
        for children in (_PROC / str(parent) / "task").glob("*/children"):
            found += [int(child) for child in _read(children).split()]
    return found


def command_line(pid: int) -> list[str]:
    return _read(_PROC / str(pid) / "cmdline").split("\0")


def cpu_s(pids: Iterable[int]) -> float:
    """CPU time used so far, all living threads; to the nanosecond where the kernel keeps it."""
    return sum(_cpu_s(pid) for pid in pids)


def _cpu_s(pid: int) -> float:
    exact = [_read(file).split() for file in (_PROC / str(pid) / "task").glob("*/schedstat")]
    if exact and all(exact):
        return sum(int(fields[0]) for fields in exact) / 1e9
    fields = _read(_PROC / str(pid) / "stat").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S if fields else 0.0


def pss_bytes(pids: Iterable[int]) -> int:
    """Resident memory, shared pages divided among those who share them."""
    return sum(_kib(_read(_PROC / str(pid) / "smaps_rollup"), "Pss") * 1024 for pid in pids)


def _kib(text: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match.group(1)) if match else 0


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the process or thread has just ended
        return ""


def machine_cpu_s() -> tuple[float, float]:
    """(CPU time of everything on the machine, time that its host gave to others) since it started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, _read(_PROC / "stat").split()[1:9])
    return (user + nice + system + irq + softirq) / _TICKS_PER_S, steal / _TICKS_PER_S


def own_cpu_s() -> float:
    """CPU time of this process and of every child that has ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


# --- system calls ---


@dataclass
class SyscallCount:
    """`value` is set when the counting has ended."""

    counter: str
    value: int = 0


def syscall_counter() -> str | None:
    """perf where it may count, because it slows nothing down; else strace; else None."""
    if shutil.which("perf") and _try([*_PERF, "--", "true"]):
        return "perf"
    if shutil.which("strace") and _try(["strace", "-f", "-c", "true"]):
        return "strace"
    return None


_PERF = ["perf", "stat", "-x,", "-e", "raw_syscalls:sys_enter"]


@contextmanager
def count_syscalls(counter: str, pids: list[int]) -> Iterator[SyscallCount]:
    """Count the system calls of all threads of `pids` within the block."""
    count = SyscallCount(counter)
    with tempfile.NamedTemporaryFile("r") as file:
        targets = (
            [*_PERF, "-o", file.name, "-p", ",".join(map(str, pids))]
            if counter == "perf"
            else ["strace", "-f", "-c", "-o", file.name, *(f"-p{pid}" for pid in pids)]
        )
        process = subprocess.Popen(targets, stderr=subprocess.DEVNULL)
        try:
            time.sleep(1.0)  # it attaches
            yield count
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
        count.value = parse_syscalls(counter, file.read())


def parse_syscalls(counter: str, text: str) -> int:
    """The total of perf's or strace's summary. Raises ValueError when there is none."""
    if counter == "perf":
        match = re.search(r"^(\d+),,raw_syscalls:sys_enter", text, re.MULTILINE)
    else:  # by its columns: two of them may be blank
        match = re.search(r"^100\.00.{25} *(\d+) .* total$", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"{counter} counted nothing: {text[-300:]!r}")
    return int(match.group(1))


def _try(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0


# --- a neighbour ---


@contextmanager
def busy_core() -> Iterator[None]:
    """A process that never rests, on one core for good."""
    core = max(os.sched_getaffinity(0))
    # It ends by itself when this process is killed.
    busy = f"while os.getppid() == {os.getpid()}: sum(range(100000))"
    code = f"import os\nos.sched_setaffinity(0, {{{core}}})\n{busy}"
    process = subprocess.Popen([sys.executable, "-c", code])
    try:
        time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()
