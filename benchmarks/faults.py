"""Run every fault of tests/faults/test_faults.py on this machine, and print its outcome as a table.

The table goes into docs/explanation/validation.md.

    python benchmarks/faults.py [--kills N]     # some minutes; exits with 1 if a fault lost anything
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from record import machine, plain_arguments

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "explanation" / "validation.md"
MARKS = ("<!-- faults -->", "<!-- end of faults -->")


class Outcomes:
    """Records of the tests (a plugin of pytest)."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        recorded = dict(report.user_properties)
        if report.when == "call" and "fault" in recorded:
            outcome = str(recorded["outcome"]) if report.passed else f"**{report.outcome}**"
            self.rows.append((str(recorded["fault"]), outcome))
        elif not report.passed:  # skipped, or failed before it could say which fault it is of
            self.rows.append((f"`{report.nodeid.split('::')[-1]}`", f"**{report.outcome}**"))


def main() -> None:
    parser = plain_arguments(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    kills = parser.parse_args().kills
    os.environ["DPMIX_FAULT_KILLS"] = str(kills)
    outcomes = Outcomes()
    status = pytest.main([str(ROOT / "tests" / "faults" / "test_faults.py"), "-q"], [outcomes])
    on = machine()
    lines = [
        "| fault | outcome |",
        "| --- | --- |",
        *(f"| {fault} | {outcome} |" for fault, outcome in outcomes.rows),
        "",
        f"`python benchmarks/faults.py --kills {kills}` on {on['processor']}, {on['cores']} cores, "
        f"{datetime.now(UTC):%Y-%m-%d}.",
    ]
    text = PAGE.read_text()
    before, after = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    PAGE.write_text(f"{text[:before]}\n{chr(10).join(lines)}\n{text[after:]}")
    sys.exit(int(status))


if __name__ == "__main__":
    main()
