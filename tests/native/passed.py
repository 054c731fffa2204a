"""Record the native code in which `make sanitize` and `make cross` found no fault.

They take five minutes of a processor. When one passes, it writes a digest of the native code and of its tests
to passed.json in this folder, which is committed. CI runs it again only if the digest has changed since.

``python tests/native/passed.py sanitize`` exits with 0 if the digest is the one recorded, else with 1.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PASSED = Path(__file__).with_name("passed.json")
NATIVE = "CMakeLists.txt", "kernels/*.cpp", "kernels/*.hpp", "kernels/*.cuh", "kernels/cpu/*pp"
# Tests that the sanitizers run.
TESTS = (
    "tests/native/sanitized.py",
    "tests/native/*.cpp",
    "tests/conftest.py",
    "tests/engines/engine_contract.py",
    "tests/engines/test_cpu_engine.py",
    "tests/engines/test_cuda_commands.py",
    "tests/engines/test_exact.py",
    "tests/explore/test_posterior.py",
    "tests/populations/test_averages.py",
)
INPUTS = {"sanitize": (*NATIVE, *TESTS), "cross": (*NATIVE, "tests/native/cross.py")}


def digest(patterns: Iterable[str]) -> str:
    """Return a digest of the names and contents of the files that match."""
    total = hashlib.sha256()
    for path in sorted({path for pattern in patterns for path in ROOT.glob(pattern)}):
        total.update(f"{path.relative_to(ROOT).as_posix()}\n".encode() + path.read_bytes())
    return total.hexdigest()


def read() -> dict[str, str]:
    """Return the digests of the last time that each check passed."""
    return json.loads(PASSED.read_text()) if PASSED.exists() else {}


def record(check: str) -> None:
    """Write down that a check has passed."""
    found = {**read(), check: digest(INPUTS[check])}
    PASSED.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(read().get(sys.argv[1]) != digest(INPUTS[sys.argv[1]]))
