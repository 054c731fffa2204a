"""Time a cohort from its files to what differs: 24 simulated files of 100,000 events, by dpmix commands.

    python benchmarks/cohort_end_to_end.py [--quick]    seven minutes

Makes the cohort of docs/how-to/compare-samples.md, with more donors and events: the treatment makes B cells
three times as frequent. Then it runs the page's commands, with one model of all events and with the
hierarchical model. The limit of each is ten minutes on two cores.
"""

from __future__ import annotations

import csv
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from record import DPMIX, arguments, read_results, said, write_results

import dpmix

DONORS, EVENTS, QUICK_EVENTS = 24, 100_000, 2_000
LIMIT_SECONDS = 600.0
CONFIG = """\
data: {{samples: samples.csv}}
model: {{samples: {samples}}}
mcmc: {{burn_in: {burn_in}, draws: {draws}}}
output: {{path: {name}.h5}}
"""
COMMANDS = (
    ("sample", ["mcmc", "{name}.yaml", "--quiet"]),
    ("gate", ["gate", "{name}.h5", "--output", "{name}", "--quiet"]),
    (
        "associate",
        [
            "associate",
            "{name}",
            "--design",
            "samples.csv",
            "--formula",
            "~ group",
            "--contrast",
            "treated - control",
        ],
    ),
)


def simulate(folder: Path, n_events: int) -> None:
    """Write the files and samples.csv."""
    random = np.random.default_rng(1)
    rows = ["file,sample,group"]
    for donor in range(1, DONORS + 1):
        made = dpmix.simulate(4 * n_events, seed=donor)
        share = random.lognormal(0.0, 0.3, size=len(made.populations))
        group = "treated" if donor > DONORS // 2 else "control"
        if group == "treated":
            share[made.populations.index("B")] *= 3.0
        chance = share[made.labels] / share[made.labels].sum()
        kept = np.sort(random.choice(len(made.labels), n_events, replace=False, p=chance))
        own = replace(made, events=made.events[kept], labels=made.labels[kept])
        own.write(folder / f"D{donor}.fcs")
        rows.append(f"D{donor}.fcs,D{donor},{group}")
    (folder / "samples.csv").write_text("\n".join(rows) + "\n")


def measure(folder: Path, samples: str, quick: bool) -> dict[str, object]:
    """Run the commands with `model.samples`; return the seconds of each, and the populations found."""
    burn_in, draws = (20, 20) if quick else (300, 100)
    config = CONFIG.format(samples=samples, burn_in=burn_in, draws=draws, name=samples)
    (folder / f"{samples}.yaml").write_text(config)
    seconds = {}
    for step, command in COMMANDS:
        began = time.perf_counter()
        named = [part.format(name=samples) for part in command]
        subprocess.run([*DPMIX, *named], cwd=folder, check=True)
        seconds[step] = time.perf_counter() - began
        print(f"{samples}, {step}: {seconds[step]:.0f} s", flush=True)
    with (folder / samples / "associate" / "associations.csv").open(encoding="utf-8") as file:
        found = [row["phenotype"] for row in csv.DictReader(file) if row["found"] == "yes"]
    whole = sum(seconds.values())
    print(f"found to differ: {', '.join(found) or 'none'}")
    print(f"{whole:.0f} s; limit {LIMIT_SECONDS:.0f} s: {'met' if whole <= LIMIT_SECONDS else 'MISSED'}")
    return {"samples": samples, "seconds": seconds, "found": found}


def table() -> str:
    """Markdown of the committed times."""
    steps = [step for step, _ in COMMANDS]
    lines = [
        f"| `model.samples` | {' | '.join(steps)} | together |",
        "| :--- |" + " ---: |" * (len(steps) + 1),
    ]
    for row in read_results("cohort_end_to_end")["results"]:
        times = [row["seconds"][step] for step in steps]
        cells = " | ".join(f"{seconds:.0f}" for seconds in [*times, sum(times)])
        lines.append(f"| `{row['samples']}` | {cells} |")
    return "\n".join([*lines, "", said("cohort_end_to_end", "../../benchmarks/results", ("dpmix",))]) + "\n"


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    with tempfile.TemporaryDirectory() as name:
        simulate(Path(name), QUICK_EVENTS if quick else EVENTS)
        results = [measure(Path(name), samples, quick) for samples in ("pooled", "hierarchical")]
    if not quick:
        write_results("cohort_end_to_end", results)


if __name__ == "__main__":
    main()
