"""Record the native code that passed `make native`.

`make native` takes minutes. When it passes, it writes a digest of the native code and its tests to passed.txt
in this folder, which is committed. CI runs it again only if the digest has changed since.

``python tests/native/passed.py`` exits with 0 if the digest is the one recorded, else with 1;
``python tests/native/passed.py record`` records it.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PASSED = Path(__file__).with_name("passed.txt")
INPUTS = (
    "CMakeLists.txt",
    "kernels/*.*",
    "kernels/cpu/*.*",
    "tests/native/*.py",
    "tests/native/*.cpp",
    "tests/cuda_on_cpu/*.*",
    "tests/engines/engine_contract.py",
    "tests/engines/test_cpu_*.py",
    "tests/engines/test_cuda_commands.py",
    "tests/engines/test_cuda_compile.py",
    "tests/engines/test_cuda_sanitizers.py",
    "tests/engines/test_exact.py",
    "tests/explore/test_posterior.py",
    "tests/populations/test_averages.py",
)


def digest() -> str:
    """Return a digest of the names and contents of the files."""
    total = hashlib.sha256()
    for path in sorted({path for pattern in INPUTS for path in ROOT.glob(pattern)}):
        total.update(f"{path.relative_to(ROOT).as_posix()}\n".encode() + path.read_bytes())
    return total.hexdigest()


if __name__ == "__main__":
    if sys.argv[1:] == ["record"]:
        PASSED.write_text(f"{digest()}\n")
    else:
        sys.exit(not PASSED.exists() or PASSED.read_text().strip() != digest())
