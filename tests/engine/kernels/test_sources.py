"""What differs between instruction sets stays in `simd_avx2.h` and `simd_neon.h`, chosen in `simd.h`."""

import re

from midstream.engine.kernels.cpu.compile import SOURCES

INTRINSIC = re.compile(
    r"\b_mm\w*|\b__m\d+\w*|\b_cvt\w+"  # x86
    r"|\bv[a-z]\w*_[fsu]\d+\b|\b(float|u?int)\d+x\d+_t\b"  # ARM
    r"|immintrin\.h|arm_neon\.h|\basm\b|\b__builtin_(ia32|aarch64)\w*"
)
CHOICE = re.compile(r"__(AVX|SSE|FMA|F16C|ARM_|x86_64|aarch64)\w*|MIDSTREAM_VNNI")


def files_with(pattern: re.Pattern[str]) -> set[str]:
    sources = [*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]
    return {path.name for path in sources if pattern.search(path.read_text(encoding="utf-8"))}


def test_intrinsics_are_named_in_one_file_an_instruction_set() -> None:
    assert files_with(INTRINSIC) == {"simd_avx2.h", "simd_neon.h"}


def test_nothing_else_asks_which_instruction_set_there_is() -> None:
    assert files_with(CHOICE) == {"simd.h", "simd_avx2.h", "simd_neon.h"}
