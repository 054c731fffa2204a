"""Follow files of many instruments from `dpmix info` to `dpmix gate`, with the config of `dpmix init`.

    python benchmarks/files.py            # about 10 minutes
    python benchmarks/files.py --quick    # three written files, to build/: a check of the script

The commands are what a user runs:

    dpmix info FILE
    dpmix init FILE --output run.yaml --all
    dpmix mcmc run.yaml --set mcmc.burn_in=10 --set mcmc.draws=10
    dpmix gate run.h5 --output gated

Written files follow the conventions of instruments (tests/inputs/instrument_files.py). If the folder
../shared exists, real files are added, which are not part of this project. A file either passes all commands,
or ends in one line; any other end stops this script. The page is docs/benchmarks/files.md, from
benchmarks/results/files.json.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from record import DPMIX, ROOT, arguments, read_results, write_results

from dpmix.config.load import load_config
from dpmix.runs.reader import open_run

sys.path.insert(0, str(ROOT / "tests" / "inputs"))
from instrument_files import WRITTEN, write

SHARED = ROOT.parent / "shared" / "data"
REAL = ("fcs_odd/*.fcs", "fcs_odd/*.lmd", "fcs_odd/*.lmd::2", "fcs/*.fcs", "labelled/*.fcs")
SHORT = ["--set", "mcmc.burn_in=10", "--set", "mcmc.draws=10", "--set", "engine.threads=2"]

Row = dict[str, Any]


def dpmix(folder: Path, *arguments: str) -> str:
    """Run a command and return its error, "" if it succeeds."""
    done = subprocess.run([*DPMIX, *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    if done.returncode not in (1, 2) or len(lines) != 1 or not lines[0].startswith("dpmix: "):
        raise SystemExit(f"dpmix {' '.join(arguments)}: ended with status {done.returncode}:\n{done.stderr}")
    return lines[0].removeprefix("dpmix: ").replace(f"{folder}/", "").replace(f"{SHARED}/", "")


def followed(name: str, file: str) -> Row:
    """Return what becomes of a file: the first error, or its config and the gating."""
    row: Row = {"name": name, "error": "", "command": ""}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        commands = (
            ("info", file),
            ("init", file, "--output", "run.yaml", "--all"),
            ("mcmc", "run.yaml", "--quiet", *SHORT),
            ("gate", "run.h5", "--output", "gated", "--quiet"),
        )
        for command in commands:
            row |= {"error": dpmix(folder, *command), "command": command[0]}
            if row["error"]:
                return row
        data, run = load_config(folder / "run.yaml").data, open_run(folder / "run.h5")
        populations = (folder / "gated" / "populations.csv").read_text().splitlines()
        return row | {
            "events": int(run.attributes["n_events"]),
            "channels": list(run.channels),
            "compensation": data.compensation,
            "transforms": [_transform(transform) for transform in run.scaling["transforms"]],
            "populations": len(populations) - 1,
        }


def _transform(settings: dict[str, Any]) -> str:
    """Return a transform with its parameters, in short."""
    if settings["method"] == "logicle":
        return f"logicle {settings['t']:.0f}, {settings['w']:.2f}, {settings['m']:.2f}"
    return " ".join([settings["method"], *(f"{x:g}" for x in settings.values() if isinstance(x, float))])


def real_files() -> Iterator[tuple[str, str]]:
    """Yield the names of real files in the folder of shared data, with their paths."""
    for pattern in REAL:
        place, separator, part = pattern.partition("::")
        for path in sorted(SHARED.glob(place)):
            yield path.name + separator + part, str(path) + separator + part


def measured(quick: bool) -> list[Row]:
    """Follow all files."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        names = [*WRITTEN][:3] if quick else [*WRITTEN]
        written = [(f"{name}, written", str(write(Path(folder), name))) for name in names]
        for name, file in [*([] if quick else real_files()), *written]:
            rows.append(followed(name, file))
            print(name, rows[-1].get("channels") or rows[-1]["error"], flush=True)
    return rows


def table() -> str:
    """Return the files that pass all commands, for the page."""
    head = "| file | events | channels that `init` takes | transforms | compensation |"
    lines = [head, "| --- | ---: | --- | --- | --- |"]
    for row in read_results("files")["results"]["files"]:
        if not row["error"]:
            cells = [
                f"`{row['name']}`" if ", written" not in row["name"] else row["name"],
                f"{row['events']:,}",
                ", ".join(row["channels"]),
                _ranges(row["transforms"]),
                row["compensation"],
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _ranges(transforms: list[str]) -> str:
    """Return the transforms of a file in short: the methods, and the ranges of the parameters of logicle."""
    logicle = [t.removeprefix("logicle ").split(", ") for t in transforms if t.startswith("logicle")]
    others = sorted({t for t in transforms if not t.startswith("logicle")})
    if not logicle:
        return ", ".join(others)
    parts = []
    for name, values in zip("twm", zip(*logicle, strict=True), strict=True):
        low, high = min(map(float, values)), max(map(float, values))
        parts.append(f"{name} {low:,.9g}" if low == high else f"{name} {low:,.9g} to {high:,.9g}")
    return ", ".join([f"logicle: {', '.join(parts)}", *others])


def refused() -> str:
    """Return the files that end in a line, for the page."""
    lines = ["| file | command | line |", "| --- | --- | --- |"]
    for row in read_results("files")["results"]["files"]:
        if row["error"]:
            lines.append(f"| {row['name']} | `{row['command']}` | `{row['error'].replace('|', '/')}` |")
    return "\n".join(lines)


def main() -> None:
    """Follow the files and write the results."""
    quick = arguments(__doc__).parse_args().quick
    write_results("files", {"files": measured(quick)}, quick=quick)


if __name__ == "__main__":
    main()
