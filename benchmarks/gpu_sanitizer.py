"""Run every kernel under compute-sanitizer.

    Stages of gpu.py.

memcheck finds wrong addresses, racecheck races in shared memory, synccheck wrong barriers, and initcheck
reads of device memory that nothing has written. The tools run at the same time, each on one small pass of
each kind.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from gpu_output import Output, parser

from dpmix.kernels.build import find_nvcc

TOOLS = ("memcheck", "racecheck", "synccheck")
FOUND = 86  # exit code for errors found
SKIPPED = 3
SIZES = {False: ("66000", "14", "40", "mix", "others"), True: ("600", "5", "20", "mix", "others")}


def find_sanitizer() -> Path | None:
    """Return compute-sanitizer from PATH, or from next to nvcc."""
    on_path = shutil.which("compute-sanitizer")
    of_toolkit = find_nvcc().resolve().parent
    candidates = [Path(on_path)] if on_path else []
    candidates += [folder / "compute-sanitizer" for folder in (of_toolkit, Path("/usr/local/cuda/bin"))]
    return next((path for path in candidates if os.access(path, os.X_OK)), None)


def examine(sanitizer: Path, tool: str, size: tuple[str, ...], seconds: float) -> dict[str, object]:
    """Run a tool; return whether it found nothing, its summary and its first finding."""
    program = [sys.executable, str(Path(__file__).with_name("gpu_passes.py")), *size]
    command = [str(sanitizer), "--tool", tool, "--error-exitcode", str(FOUND), *program]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds)
        text, code = done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as error:
        text, code = (error.stdout or b"").decode(errors="replace"), None
    print(f"---- {tool}\n{text}", flush=True)
    summary = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", text)
    said = summary[-1] if summary else "no time left" if code is None else f"no summary; exit code {code}"
    lines = [line for line in text.splitlines() if line.startswith("=========")]
    first = next((line for line in lines if "SANITIZER" not in line and "SUMMARY" not in line), "")
    return {"clean": code == 0, "summary": said, "first": first}


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--tools", nargs="+", default=TOOLS)
    asked = options.parse_args()
    output = Output(asked)
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print("compute-sanitizer is not here")
        sys.exit(SKIPPED)
    size, seconds = SIZES[asked.rehearsal], output.left()
    with ThreadPoolExecutor(len(asked.tools)) as pool:
        running = {tool: pool.submit(examine, sanitizer, tool, size, seconds) for tool in asked.tools}
        for tool, examined in running.items():
            output.add(tool, examined.result())
    bad = [f"{tool}: {found['summary']}" for tool, found in output.results.items() if not found["clean"]]
    if bad:
        sys.exit("; ".join(bad))


if __name__ == "__main__":
    main()
