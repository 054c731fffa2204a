"""Compare what may help where chains disagree about populations.

    python benchmarks/remedies.py                 # 18 runs, 15 minutes on two free cores
    python benchmarks/remedies.py --sets hipc     # the results of the other sets stay

A run of the first sample of each set (gating.py), with the default config and seed 1, is compared with runs
that change one thing: four times the draws, four times the burn-in, both without the early end by mcmc.until;
another seed; a standard deviation of one measurement of 0.2 (data.resolution; standardised events); 48
components instead of 128. Each run is gated, and the verdict of `dpmix gate` is counted: populations, those
about which the chains differ, and the events in them. Sets are in ../shared, which is not part of this
project.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from clusterings import Ints
from gating import samples, tools
from in_process import gate_run
from record import DPMIX, FOLDER, QUICK_FOLDER, read_results, said, write_results

from dpmix.runs.reader import open_run

SETS = ("flowsom_68983", "hipc", "dlbcl")
REMEDIES = {
    "as it is": (),
    "4 times the draws": ("mcmc.draws=1000", "mcmc.until=null"),
    "4 times the burn-in": ("mcmc.burn_in=2000", "mcmc.until=null"),
    "another seed": ("seed=2",),
    "resolution 0.2": ("data.resolution=0.2",),
    "48 components": ("model.components=48",),
}


def run_of(name: str, remedy: str, folder: Path) -> Path:
    """Make the run of a set with a remedy, unless it is there."""
    own = folder / f"{name} {remedy}".replace(" ", "-")
    path = own / "run.h5"
    if path.exists():
        return path
    own.mkdir(parents=True, exist_ok=True)
    _, events, _ = next(samples(name, 1))
    np.save(own / "events.npy", events)
    config = {"data": {"files": [str((own / "events.npy").resolve())]}, "seed": 1}
    (own / "run.yaml").write_text(yaml.safe_dump(config))
    words = [word for setting in REMEDIES[remedy] for word in ("--set", setting)]
    partial = own / "partial.h5"
    command = [*DPMIX, "mcmc", own / "run.yaml", "--output", partial, "--overwrite", "--quiet", *words]
    subprocess.run(command, check=True)
    return partial.rename(path)


def measured(run: Path, gates: Ints) -> dict[str, Any]:
    """Return the verdict of `dpmix gate` on a run, in numbers and words, and the mean F1 with the gates."""
    _, gating_score = tools()
    found = gate_run(run)
    verdict = found.verdict
    return {
        "mean_f1": round(float(gating_score.score(gates, found.population + 1)["mean_f1"]), 3),
        "populations": len(verdict.r_hat),
        "differ": len(verdict.apart),
        "share": round(float(verdict.shares[verdict.apart].sum()), 4),
        "worst": round(min(float(np.nanmax(verdict.r_hat, initial=1.0)), 99.0), 2),
        "fit": verdict.fit,
        "verdict": str(verdict),
        "interim": str(open_run(run).verdict),
    }


def page() -> str:
    """Markdown: a table of earlier measurements."""
    found = read_results("remedies")["results"]
    heads = (f"{name}: differ | events | largest R-hat | mean F1" for name in found)
    lines = [f"| | {' | '.join(heads)} |", "|---" * (1 + 4 * len(found)) + "|"]
    for remedy in REMEDIES:
        cells = (
            f"{one['differ']} of {one['populations']} | {one['share']:.1%} | {one['worst']:.2f} | "
            f"{one['mean_f1']:.2f}"
            for one in (rows[remedy] for rows in found.values())
        )
        lines.append(f"| {remedy} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", said("remedies"), ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--sets", default=",".join(SETS), help="sets to measure (default: %(default)s)")
    asked = parser.parse_args()
    folder = QUICK_FOLDER.parent / "remedies"
    found = read_results("remedies")["results"] if (FOLDER / "remedies.json").exists() else {}
    for name in asked.sets.split(","):
        found[name], (_, _, gates) = {}, next(samples(name, 1))
        for remedy in REMEDIES:
            found[name][remedy] = measured(run_of(name, remedy, folder), gates)
            print(name, remedy, found[name][remedy], flush=True)
    write_results("remedies", found)
    print(page())


if __name__ == "__main__":
    main()
