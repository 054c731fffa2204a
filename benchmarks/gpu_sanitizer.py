"""Run every kernel under compute-sanitizer.

    python benchmarks/gpu_sanitizer.py --output PATH     a stage of gpu.py

memcheck finds wrong addresses, racecheck finds races in shared memory, and initcheck finds reads
of device memory that nothing has written.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from gpu_device import Output, arguments

from dpmix.kernels.build import find_nvcc

TOOLS = ("memcheck", "racecheck", "initcheck")
FOUND = 86  # exit code for errors found
SKIPPED = 3
SIZES = {False: ("66000", "14", "40", "mix"), True: ("600", "2", "8", "mix")}


def find_sanitizer() -> Path | None:
    """Return compute-sanitizer from PATH, or from next to nvcc."""
    on_path = shutil.which("compute-sanitizer")
    of_toolkit = find_nvcc().resolve().parent
    candidates = [Path(on_path)] if on_path else []
    candidates += [folder / "compute-sanitizer" for folder in (of_toolkit, Path("/usr/local/cuda/bin"))]
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def main() -> None:
    asked = arguments(__doc__)
    output = Output(asked.output)
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print("compute-sanitizer is not here")
        sys.exit(SKIPPED)
    bad = []
    program = [sys.executable, str(Path(__file__).with_name("gpu_passes.py")), *SIZES[asked.rehearsal]]
    for tool in TOOLS:
        command = [str(sanitizer), "--tool", tool, "--error-exitcode", str(FOUND), *program]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(done.stdout, flush=True)
        summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", done.stdout)
        said = summary[-1] if summary else f"no summary; exit code {done.returncode}"
        lines = [line for line in done.stdout.splitlines() if line.startswith("=========")]
        first = next((line for line in lines if "SANITIZER" not in line and "SUMMARY" not in line), "")
        output.add(tool, {"clean": done.returncode == 0, "summary": said, "first": first})
        if done.returncode != 0:
            bad.append(f"{tool}: {said}")
    if bad:
        sys.exit("; ".join(bad))


if __name__ == "__main__":
    main()
