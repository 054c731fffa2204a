"""Run the tests of the CUDA engine on the device, several at a time.

    A stage of gpu.py.

These are the tests of `make test-gpu` that need no emulated device, the contract of the engine first. A
test that fails does not stop the others, and what is known when the time is over is kept.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from gpu_output import Output, parser

ROOT = Path(__file__).resolve().parent.parent
OF_THE_EMULATION = ("compile", "emulator", "sanitizers")
FIRST = ("test_cuda_engine.py", "test_cuda_pruned.py", "test_cuda_passes.py", "test_cuda_cohort.py")
FEW = "what_was_compiled or it_says_what_it_runs_on or events_are_padded or closed_engine"
ENDED = re.compile(r"(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (\S*::.*)")


def main() -> None:
    asked = parser(__doc__).parse_args()
    output, counts, failed = Output(asked), Counter[str](), list[str]()
    paths = [
        path
        for path in ROOT.glob("tests/engines/test_cuda_*.py")
        if path.stem.removeprefix("test_cuda_") not in OF_THE_EMULATION
    ]
    paths.sort(key=lambda path: (FIRST.index(path.name) if path.name in FIRST else len(FIRST), path.name))
    few, processes = (["-k", FEW], 1) if asked.rehearsal else ([], 6)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-m", "not slow", *few]
    command += ["--numprocesses", str(processes), "--dist", "load", *map(str, paths)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=os.environ | {"DPMIX_TEST_GPU": "1"}, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if found := ENDED.search(line):
            counts[found.group(1)] += 1
            if found.group(1) in ("FAILED", "ERROR") and found.group(2) not in failed:
                failed.append(found.group(2).strip())
            output.add("tests", {"passed": counts["PASSED"], "skipped": counts["SKIPPED"], "failed": failed})
        if not output.left():
            process.kill()
    if process.wait() < 0:
        output.add("left_out", "the tests that had not ended")
    if failed or not counts["PASSED"]:
        sys.exit(f"{len(failed)} of {sum(counts.values())} tests failed")


if __name__ == "__main__":
    main()
