"""Owns what the figures were taken on: the machine and the versions. Names no host and no path."""

import importlib.metadata
import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from benchmarks.servers import PEERS_PYTHON, ROOT

_FLAGS = ("avx", "f16c", "fma", "avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "asimddp")
_OURS = ("torch", "numpy", "gguf", "uvloop")
_PEERS = ("xllamacpp", "transformers", "torch")


def machine() -> dict[str, Any]:
    """Taken before anything starts."""
    cpu = _text("/proc/cpuinfo")
    model = re.search(r"^model name\s*:\s*(.+)$", cpu, re.MULTILINE)
    words = set(cpu.split())
    memory = re.search(r"^MemTotal:\s+(\d+)", _text("/proc/meminfo"), re.MULTILINE)
    return {
        "CPU": model.group(1) if model else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "flags": [flag for flag in _FLAGS if flag in words],
        "memory, GiB": round(int(memory.group(1)) / 2**20, 1) if memory else None,
        "load before the start (1, 5, 15 minutes)": [round(load, 2) for load in os.getloadavg()],
        "kernel": platform.release(),
    }


def versions() -> dict[str, str]:
    ours = {"midstream": _commit(), "Python": platform.python_version()}
    ours |= {name: importlib.metadata.version(name) for name in _OURS}
    code = f"import importlib.metadata as m, json; print(json.dumps({{n: m.version(n) for n in {_PEERS!r}}}))"
    peers = json.loads(_output([str(PEERS_PYTHON), "-c", code]) or "{}")
    compiler = _output(["c++", "--version"]).partition("\n")[0]
    return ours | {f"peers: {name}": version for name, version in peers.items()} | {"compiler": compiler or "none"}


def _commit() -> str:
    version = importlib.metadata.version("midstream")
    commit = _output(["git", "describe", "--always", "--dirty"]).strip()
    return f"{version} ({commit})" if commit else version


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
