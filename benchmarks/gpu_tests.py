"""Run the tests of the CUDA engine on the device.

    python benchmarks/gpu_tests.py --output PATH     a stage of gpu.py

These are the tests of `make test-gpu` that need no emulated device. A test that fails does not stop the
others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from pathlib import Path

from gpu_device import Output, arguments

ROOT = Path(__file__).resolve().parent.parent
OF_THE_EMULATION = ("compile", "emulator", "sanitizers")
FEW = "what_was_compiled or it_says_what_it_runs_on or events_are_padded or closed_engine"


def main() -> None:
    asked = arguments(__doc__)
    output = Output(asked.output)
    files = [
        str(path)
        for path in sorted(ROOT.glob("tests/engines/test_cuda_*.py"))
        if path.stem.removeprefix("test_cuda_") not in OF_THE_EMULATION
    ]
    few = ["-k", FEW] if asked.rehearsal else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        environment = os.environ | {"DPMIX_TEST_GPU": "1"}
        subprocess.run([*command, "-m", "not slow", *few, *files], cwd=ROOT, env=environment)
        if not report.exists():
            sys.exit("pytest wrote no report")
        cases = list(ET.parse(report).getroot().iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    output.add("passed", len(cases) - len(bad) - len(skipped))
    output.add("skipped", len(skipped))
    output.add("failed", [f"{case.get('classname')}::{case.get('name')}" for case in bad])
    if bad or not cases:
        sys.exit(f"{len(bad)} of {len(cases)} tests failed")


if __name__ == "__main__":
    main()
