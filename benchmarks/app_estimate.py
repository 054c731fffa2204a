"""Measure how well the page of dpmix app estimates the time of a run before its start.

    python benchmarks/app_estimate.py [--quick]

The events are a simulated blood sample in ten channels; the runs have the defaults of `dpmix mcmc` and
`dpmix bem`. The number of sweeps, which mcmc.until decides, is made the same for estimate and run: the
fewest, 150. Of Bayesian EM it is the most, 860 steps; with a tolerance of nearly 0 no start ends early. The
estimate is made before and after the run, because other work on the machine changes its speed meanwhile.
Reading the files is not part of the estimate, and its time is left out of the run's. Takes five minutes of
two cores; `--quick` takes a minute.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from record import arguments, read_results, said, write_results

from dpmix.app.jobs import PROGRAM
from dpmix.app.workspace import Workspace
from dpmix.runs.reader import open_run

EVENTS = (50_000, 300_000)
RUNS = {"mcmc": ("mcmc.until=null", "mcmc.burn_in=100", "mcmc.draws=50"), "bem": ("bem.tolerance=1e-300",)}


def dpmix(folder: Path, *given: str) -> None:
    """Run a command of dpmix."""
    subprocess.run([sys.executable, "-c", PROGRAM, *given], cwd=folder, check=True)


def measure(folder: Path, method: str) -> dict[str, float]:
    """Return the estimates before and after a run, and its seconds without reading files."""

    def estimated() -> float:
        least, most = Workspace(folder).estimate(["sample.fcs"], method == "bem")["seconds"]
        return float(most if method == "bem" else least)

    before = estimated()
    settings = [part for one in RUNS[method] for part in ("--set", one)]
    dpmix(folder, method, "run.yaml", "--quiet", "--output", f"{method}.h5", *settings)
    spent = open_run(folder / f"{method}.h5").profile
    run = sum(seconds for span, seconds in spent.items() if span != "other")
    found = {"before": before, "run": run, "after": estimated()}
    return {name: float(f"{seconds:.3g}") for name, seconds in found.items()}


def page() -> str:
    """Return the table of docs/benchmarks/app.md."""
    units = {"mcmc": "`dpmix mcmc`, 150 sweeps", "bem": "`dpmix bem`, 860 steps"}
    lines = ["| events | run | estimated before | took | estimated after |", "|---" * 5 + "|"]
    ratios = []
    for events, methods in read_results("app_estimate")["results"].items():
        for method, own in methods.items():
            seconds = " | ".join(f"{own[name]:.0f} s" for name in ("before", "run", "after"))
            lines.append(f"| {events} | {units[method]} | {seconds} |")
            ratios += [own[name] / own["run"] for name in ("before", "after")]
    ends = f"The estimates are {min(ratios):.1f} to {max(ratios):.1f} times the time of the run. "
    return "\n".join([*lines, "", ends + said("app_estimate", packages=("dpmix", "numpy", "scipy"))])


def main() -> None:
    given = arguments(__doc__).parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for n_events in (5_000,) if given.quick else EVENTS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            dpmix(folder, "simulate", "sample.fcs", "--events", str(n_events))
            dpmix(folder, "init", "sample.fcs", "--output", "run.yaml")
            results[f"{n_events:,}"] = {method: measure(folder, method) for method in RUNS}
        print(f"{n_events:,}", results[f"{n_events:,}"], flush=True)
    write_results("app_estimate", results, quick=given.quick)


if __name__ == "__main__":
    main()
