"""Owns `midstream doctor`: what this machine has, and what that means for speed.

Changes nothing, but that the kernels are built if they are not built yet.
"""

import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from midstream.engine.kernels.cpu.compile import (
    Unavailable,
    cpu_flags,
    cpu_obstacle,
    find_compiler,
    instruction_set,
    load_library,
)
from midstream.engine.kernels.cpu.self_check import check_kernels
from midstream.errors import ModelFileError
from midstream.modelfile.resolve import ALIASES, resolve

_TELLING_FLAGS = (
    *("avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "bf16", "sve"),
)


@dataclass(frozen=True)
class Finding:
    topic: str
    is_good: bool
    """False: something is missing or slower than it could be; `text` says what to do."""
    text: str


def examine() -> list[Finding]:
    """Everything that decides how fast a model runs here. Builds the kernels if they are not built yet."""
    return [_cpu(), _compiler(), _kernels(), _gpu(), *_models()]


def as_lines(findings: list[Finding]) -> str:
    width = max(len(finding.topic) for finding in findings)
    return "\n".join(f"{'ok  ' if f.is_good else 'look'}  {f.topic:<{width}}  {f.text}" for f in findings)


def as_records(findings: list[Finding]) -> list[dict[str, object]]:
    return [asdict(finding) for finding in findings]


def _cpu() -> Finding:
    flags = cpu_flags()
    has = [flag for flag in _TELLING_FLAGS if flag in flags]
    obstacle = cpu_obstacle()
    text = f"{_cpu_name()}, {len(os.sched_getaffinity(0))} cores; {' '.join(has) if obstacle is None else obstacle}"
    return Finding("cpu", obstacle is None, text)


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())  # ARM has no names, only numbers


def _compiler() -> Finding:
    compiler = find_compiler()
    if compiler is None:
        return Finding("compiler", False, "none; install one (Debian: apt install g++): the kernels are built with it")
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, timeout=30, check=False)
    return Finding("compiler", True, f"{compiler}: {done.stdout.partition(chr(10))[0]}")


def _kernels() -> Finding:
    library = load_library()
    if isinstance(library, Unavailable):
        return Finding("kernels", False, f"{library.reason}; models run on torch, several times as slow")
    fault = check_kernels(library)
    if fault is not None:
        return Finding("kernels", False, f"built, but {fault}; serve with --no-kernels and report it")
    path = instruction_set(library)
    return Finding("kernels", True, f"built and checked, {path} path; decoding runs at about the memory's speed")


def _gpu() -> Finding:
    from midstream.engine.gpu.self_check import check_gpu, gpu_name

    name = gpu_name()
    if name is None:
        return Finding("gpu", True, "none; models run on the CPU")
    fault = check_gpu()
    return Finding("gpu", fault is None, f"{name}: {fault or 'checked; serve with --device cuda'}")


def _models() -> list[Finding]:
    findings = []
    for alias in ALIASES:
        try:
            files = resolve(alias)
        except ModelFileError as error:
            findings.append(Finding(f"model {alias}", False, error.message))
        else:
            findings.append(Finding(f"model {alias}", True, f"{files.path.stat().st_size / 1e6:.0f} MB, checked"))
    return findings
