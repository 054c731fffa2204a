"""Time the commands from an FCS file to the report, stage by stage, with their memory.

    python benchmarks/end_to_end.py            # about 5 minutes
    python benchmarks/end_to_end.py --quick    # a small sample and few sweeps, to build/: a check

The commands are what a user runs, with the config that the first of them writes:

    dpmix init sample.fcs --output run.yaml
    dpmix mcmc run.yaml
    dpmix gate run.h5 --output gated

The first sample is also run with `dpmix bem` instead of `dpmix mcmc`. Samples are simulated (a ten-colour
cytometer); if the folder ../shared exists, a real file is added, which is not part of this project. A stage
starts where the function that does it is called (stages.py). Memory is the resident memory of the process,
read every 20 ms: the stage's, and what the stages before it still hold. The page is
docs/benchmarks/end-to-end.md, from benchmarks/results/end_to_end.json.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from plots import COLOURS, panels, significant
from record import DPMIX, ROOT, arguments, read_results, write_results

from dpmix.config.load import load_config
from dpmix.config.schema import Config
from dpmix.runs.reader import open_run

REAL = ROOT.parent / "shared" / "data" / "fcs" / "100715.fcs"
SIZES = (50_000, 100_000, 1_000_000)
QUICK_SIZES = (3_000,)
QUICK_SETTINGS = ("mcmc.burn_in=10", "mcmc.draws=10", "model.components=16")
EVERY = 0.02  # seconds
STAGES = Path(__file__).with_name("stages.py")

Stage = dict[str, Any]


def measured(folder: Path, *arguments: str, python: str = sys.executable) -> list[Stage]:
    """Stages of one command, in order: seconds, processor seconds, most memory."""
    marks = folder / "marks.json"
    process = subprocess.Popen([python, str(STAGES), str(marks), *arguments], cwd=folder)
    memory: list[tuple[float, float]] = []
    while process.poll() is None:
        if (resident := resident_mb(process.pid)) is not None:
            memory.append((time.monotonic(), resident))
        time.sleep(EVERY)
    if process.returncode:
        raise SystemExit(f"dpmix {' '.join(arguments)}: ended with status {process.returncode}")
    stages: dict[str, Stage] = {}
    moments = json.loads(marks.read_text())
    for (name, began, before), (_, ended, after) in pairwise(moments):
        stage = stages.setdefault(name, {"stage": name, "seconds": 0.0, "processor": 0.0, "mb": 0.0})
        stage["seconds"] += ended - began
        stage["processor"] += after - before
        stage["mb"] = max([stage["mb"], *(mb for moment, mb in memory if began <= moment <= ended)])
    return [{"command": arguments[0], **one, **rounded(one)} for one in stages.values()]


def rounded(stage: Stage) -> Stage:
    """Numbers with the digits that mean something."""
    return {
        "seconds": round(stage["seconds"], 2),
        "processor": round(stage["processor"], 2),
        "mb": round(stage["mb"]),
    }


def resident_mb(pid: int) -> float | None:
    """Resident memory of a process, None once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return None
    sizes = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return float(sizes[0]) * 1024 / 1e6 if sizes else None


def from_file_to_report(
    folder: Path,
    file: Path,
    settings: tuple[str, ...],
    method: str = "mcmc",
    python: str = sys.executable,
) -> dict[str, Any]:
    """All commands on one file, by the dpmix of a Python."""
    given = [option for setting in settings for option in ("--set", setting)]
    stages: list[Stage] = []
    for words in (
        ("init", str(file), "--output", "run.yaml"),
        (method, "run.yaml", "--quiet", "--overwrite", *given),
        ("gate", "run.h5", "--output", "gated", "--quiet", "--overwrite"),
    ):
        stages += measured(folder, *words, python=python)
    config, run = load_config(folder / "run.yaml", settings), open_run(folder / "run.h5")
    (folder / "run.yaml").unlink()
    return {
        "events": int(run.attributes["n_events"]),
        "channels": len(run.channels),
        "file_mb": round(file.stat().st_size / 1e6, 1),
        "components": config.model.components,
        "run": _extent(config, method),
        "report_mb": round((folder / "gated" / "report.html").stat().st_size / 1e6, 2),
        "stages": stages,
    }


def _extent(config: Config, method: str) -> str:
    """How long a run is, for a reader."""
    if method == "bem":
        return f"{config.bem.starts} starts of Bayesian EM"
    mcmc = config.mcmc
    return f"{mcmc.chains} chains, at most {mcmc.burn_in} + {mcmc.draws} sweeps"


def measure(sizes: tuple[int, ...], settings: tuple[str, ...], real: bool) -> dict[str, Any]:
    """Simulated samples of these sizes, and the real file."""
    results: dict[str, Any] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            subprocess.run([*DPMIX, "simulate", folder / "sample.fcs", "--events", str(size)], check=True)
            file = folder / "sample.fcs"
            results[f"simulated, {size:,}"] = tell(from_file_to_report(folder, file, settings))
            if size == sizes[0]:
                name = f"simulated, {size:,}, Bayesian EM"
                results[name] = tell(from_file_to_report(folder, file, settings, "bem"))
    if real and REAL.exists():
        with tempfile.TemporaryDirectory() as temporary:
            results[REAL.name] = tell(from_file_to_report(Path(temporary), REAL, settings))
    else:
        why = "../shared is missing: it is not part of this project" if real else "a quick run"
        results[REAL.name] = {"reason": why}
    return results


def tell(found: dict[str, Any]) -> dict[str, Any]:
    for stage in found["stages"]:
        print(found["events"], stage, flush=True)
    return found


# ---------------------------------------------------------------------------------------- showing


def table() -> str:
    """Markdown: seconds and peak memory of every stage for every sample, and of the commands as a whole."""
    results = read_results("end_to_end")["results"]
    samples = {name: one for name, one in results.items() if "stages" in one}
    lines = [
        f"| command | stage | {' | '.join(samples)} |",
        "| --- | --- |" + " ---: |" * len(samples),
    ]
    found = {name: {(s["command"], s["stage"]): s for s in one["stages"]} for name, one in samples.items()}
    places = list(dict.fromkeys(place for stages in found.values() for place in stages))
    for command in ("init", "mcmc", "bem", "gate"):
        own = [place for place in places if place[0] == command]
        for place in own if len(own) > 1 else []:
            cells = [_cell(stages.get(place)) for stages in found.values()]
            lines.append(f"| {command} | {place[1]} | {' | '.join(cells)} |")
        if not own:
            continue
        cells = [
            _cell(whole(one, command)) if any(at[0] == command for at in found[name]) else ""
            for name, one in samples.items()
        ]
        lines.append(f"| **{command}** | **in all** | {' | '.join(cells)} |")
    cells = [_cell(whole(one)) for one in samples.values()]
    lines.append(f"| **all** | **file to report** | {' | '.join(cells)} |")
    missing = [f"{name}: not measured, {one['reason']}." for name, one in results.items() if "reason" in one]
    return "\n".join([*lines, "", *missing]).rstrip() + "\n"


def samples() -> str:
    """Markdown: what was run."""
    lines = [
        "| sample | events | channels | file, MB | K | run | report, MB |",
        "| --- | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    for name, one in read_results("end_to_end")["results"].items():
        if "stages" in one:
            cells = [f"{one[key]:,}" for key in ("events", "channels", "file_mb", "components")]
            lines.append(f"| {name} | {' | '.join(cells)} | {one['run']} | {one['report_mb']} |")
    return "\n".join(lines) + "\n"


def whole(found: dict[str, Any], command: str | None = None) -> Stage:
    """The stages of a command, or of all, as one."""
    stages = [stage for stage in found["stages"] if command in (None, stage["command"])]
    return {
        "seconds": sum(stage["seconds"] for stage in stages),
        "processor": sum(stage["processor"] for stage in stages),
        "mb": max((stage["mb"] for stage in stages), default=0),
    }


def _cell(stage: Stage | None) -> str:
    if stage is None or (not stage["seconds"] and not stage["mb"]):
        return ""
    memory = f", {stage['mb']:,} MB" if stage["mb"] else ""  # none where it was too short to be looked at
    return f"{significant(stage['seconds'], 2)} s ({significant(stage['processor'], 2)} s){memory}"


def draw(results: dict[str, Any], *, quick: bool) -> None:
    """A bar for each sample, of the stages with the largest shares; the others together."""
    samples = {name: one for name, one in results.items() if "stages" in one}
    names = list(dict.fromkeys(stage["stage"] for one in samples.values() for stage in one["stages"]))
    shares = {name: max(share(one, name) for one in samples.values()) for name in names}
    largest = sorted(names, key=lambda name: -shares[name])[: len(COLOURS) - 1]
    shown = [name for name in names if name in largest]
    with panels("end-to-end", 1, 1, height=1.8 + 0.55 * len(samples), quick=quick) as axes:
        ax = axes[0, 0]
        for row, one in enumerate(samples.values()):
            left = 0.0
            for number, name in enumerate([*shown, "other"]):
                width = share(one, name) if name in shown else 1.0 - left
                ax.barh(
                    row,
                    width,
                    left=left,
                    height=0.62,
                    color=COLOURS[number],
                    label=name if row == 0 else "",
                )
                left += width
        labels = [f"{name}\n{whole(one)['seconds']:,.0f} s" for name, one in samples.items()]
        ax.set_yticks(range(len(samples)), labels)
        ax.invert_yaxis()
        ax.set_xlim(0.0, 1.0)
        ax.set_xticks([0.0, 0.25, 0.5, 0.75, 1.0], ["0", "25%", "50%", "75%", "100%"])
        ax.set_xlabel("of the time from file to report")
        ax.figure.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)


def share(found: dict[str, Any], name: str) -> float:
    """Return the share of all seconds in the stages of a name, of any command."""
    seconds = sum(stage["seconds"] for stage in found["stages"] if stage["stage"] == name)
    return float(seconds / whole(found)["seconds"])


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    results = measure(QUICK_SIZES, QUICK_SETTINGS, False) if quick else measure(SIZES, (), True)
    write_results("end_to_end", results, quick=quick)
    draw(results, quick=quick)


if __name__ == "__main__":
    main()
