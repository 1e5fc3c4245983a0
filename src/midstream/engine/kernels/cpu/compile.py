"""Owns the way from the kernels' sources to a loaded library: built once, kept by content. Computes nothing.

The library's name is a hash of sources, compiler, flags and CPU, so that a change of any of them builds anew, and
two processes that start at once at worst both build the same file: each writes its own and renames it.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import structlog

from midstream.folders import cache_folder

log = structlog.get_logger()

SOURCES = Path(__file__).parent
MAIN = "library.cpp"
_FLAGS = ("-O3", "-std=c++17", "-shared", "-fPIC", "-pthread")
_COMPILERS = ("g++", "c++", "clang++")
_TIMEOUT_S = 300
_NEEDED_CPU_FLAGS = {"x86_64": frozenset({"avx2", "fma", "f16c"}), "aarch64": frozenset({"asimd"})}


@dataclass(frozen=True)
class Unavailable:
    """Why there are no kernels here, in one line for whoever starts the server."""

    reason: str


def load_library(march: str = "native") -> "ctypes.CDLL | Unavailable":
    """The compiled kernels; the first call on a machine builds them, in seconds.

    `march` is the instruction set, as the compiler names it: all that this CPU has, or less.
    """
    obstacle = cpu_obstacle()
    if obstacle is not None:
        return Unavailable(obstacle)
    compiler = find_compiler()
    if compiler is None:
        return Unavailable(
            "there is no C++ compiler; install one (Debian: apt install g++) for several times the speed"
        )
    command = [compiler, *_FLAGS, _march_option(march), str(SOURCES / MAIN)]
    target = cache_folder() / f"kernels-{_key(command)}.so"
    if not target.exists():
        failure = _build(command, target)
        if failure is not None:
            return failure
    try:
        return ctypes.CDLL(str(target))
    except OSError as error:
        return Unavailable(f"the built kernels cannot be loaded: {error}")


def instruction_set(library: ctypes.CDLL) -> str:
    """What a library's byte products are made of, in its own words."""
    library.ms_instruction_set.restype = ctypes.c_char_p
    name: bytes = library.ms_instruction_set()
    return name.decode()


def cpu_obstacle() -> str | None:
    """Why the kernels cannot run on this CPU; None where they can."""
    needed = _NEEDED_CPU_FLAGS.get(platform.machine())
    if needed is None:
        return f"there are no kernels for {platform.machine()}"
    missing = needed - cpu_flags()
    return f"this CPU lacks what the kernels need ({', '.join(sorted(missing))})" if missing else None


def cpu_flags() -> frozenset[str]:
    """The CPU's features by Linux's names; empty where they cannot be read."""
    try:
        return flags_in(Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    except OSError:
        return frozenset()


def flags_in(cpuinfo: str) -> frozenset[str]:
    """The first core's features; x86 calls them flags, ARM Features."""
    lines = (line.partition(":") for line in cpuinfo.splitlines())
    found = next((flags for name, _, flags in lines if name.strip() in ("flags", "Features")), "")
    return frozenset(found.split())


def find_compiler() -> str | None:
    """The C++ compiler's path: $CXX, or the first of the usual ones that is installed."""
    wanted = os.environ.get("CXX")
    return next((path for name in ([wanted] if wanted else _COMPILERS) if (path := shutil.which(name))), None)


def _march_option(march: str) -> str:
    """On ARM the compilers agree on `native` as a CPU, not as an architecture."""
    return "-mcpu=native" if march == "native" and platform.machine() == "aarch64" else f"-march={march}"


def _key(command: list[str]) -> str:
    digest = hashlib.sha256()
    for path in [*sorted(SOURCES.glob("*.h")), SOURCES / MAIN]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    version = subprocess.run([command[0], "--version"], capture_output=True, timeout=_TIMEOUT_S, check=False).stdout
    digest.update(version + " ".join([*command[1:-1], *sorted(cpu_flags())]).encode())
    return digest.hexdigest()[:24]


def _build(command: list[str], target: Path) -> Unavailable | None:
    compiler = command[0]
    start_s = time.monotonic()
    log.info("kernels_building", compiler=compiler)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            output = Path(folder) / target.name
            done = subprocess.run(
                [*command, "-o", str(output)], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
            if done.returncode != 0:
                first = next((line for line in done.stderr.splitlines() if "error" in line), "no message")
                return Unavailable(f"{compiler} could not build the kernels: {first[:200]}")
            output.replace(target)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Unavailable(f"the kernels could not be built: {error}")
    log.info("kernels_built", took_s=round(time.monotonic() - start_s, 1))
    return None
