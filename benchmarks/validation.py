"""Run wrong samplers on all statistical tests, and simulation-based calibration at length.

    python benchmarks/validation.py controls    # some 5 minutes; a table in docs/explanation/validation.md
    python benchmarks/validation.py sbc         # some 10 minutes; exits with 1 if the ranks are not uniform

The tests come from tests/: short_tests.py at the size at which they are run on the wrong samplers of
wrong_samplers.py, and `comparisons.calibration`.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from pathlib import Path

from record import plain_arguments, write_results
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests" / room) for room in ("statistics", "engines", "model", "runs")]

from comparisons import FAMILY, calibration, family_wise, worst  # noqa: E402
from short_tests import SHORT, p_value  # noqa: E402
from whole_chain import FIXED, LEARNED, Schedule  # noqa: E402
from wrong_samplers import WRONG  # noqa: E402

PAGE = ROOT / "docs" / "explanation" / "validation.md"
MARKS = ("<!-- wrong samplers -->", "<!-- end of wrong samplers -->")
RIGHT = "**the sampler as it is**"

LONG = {
    "alpha learned": (FIXED, 320, Schedule(burn_in=50, draws=31, thin=6)),
    # a learned nu has an autocorrelation time of some 60 sweeps, measured
    "all learned": (LEARNED, 128, Schedule(burn_in=600, draws=7, thin=120)),
}


def p_values_of(slip: str) -> dict[str, float]:
    """Return the p-value of every test on one wrong sampler, or on the right one."""

    def run(name: str) -> float:
        with WRONG[slip]() if slip in WRONG else nullcontext(), threadpool_limits(1, "blas"):
            return p_value(name)

    return {name: run(name) for name in SHORT}


def controls() -> None:
    """Every test on every wrong sampler, and on the right one."""
    found: dict[str, dict[str, float]] = {}
    with ProcessPoolExecutor() as pool:
        slips = [RIGHT, *WRONG]
        for slip, p_values in zip(slips, pool.map(p_values_of, slips), strict=True):
            found[slip] = p_values
            print(slip, p_values, flush=True)
    write_results("validation", {"p_values": found, "caught_below": FAMILY})
    write_table(found)
    missed = [slip for slip in WRONG if min(found[slip].values()) >= FAMILY]
    if missed or min(found[RIGHT].values()) < FAMILY:
        sys.exit(f"not caught: {', '.join(missed) or 'none'}; the right sampler: {found[RIGHT]}")


def write_table(found: dict[str, dict[str, float]]) -> None:
    """Between the marks of the page."""
    rows = [f"| sampler | {' | '.join(SHORT)} |", "| --- " * (len(SHORT) + 1) + "|"]
    rows += [f"| {slip} | {' | '.join(map(cell, own.values()))} |" for slip, own in found.items()]
    text = PAGE.read_text()
    before, after = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    PAGE.write_text(text[:before] + "\n" + "\n".join(rows) + "\n" + text[after:])


def cell(p_value: float) -> str:
    """A p-value, bold where it catches."""
    shown = f"{p_value:.2g}" if p_value >= FAMILY else "< 1e-12" if p_value < 1e-12 else f"{p_value:.0e}"
    return f"**{shown}**" if p_value < FAMILY else shown


def sbc() -> None:
    """Ranks of truths among posterior draws, at length."""
    least = 1.0
    for title, (case, replicates, schedule) in LONG.items():
        with threadpool_limits(1, "blas"):
            p_values = calibration(case, replicates, schedule)
        together = family_wise(p_values)
        least = min(least, together)
        print(f"\n{title}: {replicates} data sets, {schedule}\n\n| quantity | p-value |\n| --- | --- |")
        for name, value in p_values.items():
            print(f"| {name} | {value:.2g} |")
        print(f"\nall together (Bonferroni): {together:.2g}; least: {worst(p_values)}", flush=True)
    if least < FAMILY:
        sys.exit("the ranks of the truths are not uniform: the posterior is wrong, or chains are too short")


def main() -> None:
    parser = plain_arguments(__doc__)
    parser.add_argument("what", choices=["controls", "sbc"])
    {"controls": controls, "sbc": sbc}[parser.parse_args().what]()


if __name__ == "__main__":
    main()
