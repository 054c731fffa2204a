"""Time the steps of docs/tutorial.md, from an empty home to a gated sample.

Runs every shell command of the page, unchanged, up to the first `dpmix gate`, in its own folder; `sudo`
commands are left out. Downloads are included.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import record

PAGE = record.ROOT / "docs" / "tutorial.md"
STEPS = ("Install", "A sample", "A config", "Draws", "Populations")


def commands(step: str) -> list[str]:
    """The shell commands under a heading of the page."""
    section = re.split(r"^## ", PAGE.read_text().partition(f"\n## {step}\n")[2], flags=re.MULTILINE)[0]
    blocks = re.findall(r"^```sh\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if not line.startswith("sudo ")]


def follow() -> dict[str, dict[str, Any]]:
    """Seconds of every step, and what its commands print."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "empty"
        folder.mkdir()
        path = f"{home}/dpmix/bin{os.pathsep}{os.environ['PATH']}"
        for step in STEPS:
            lines = commands(step)
            began = time.perf_counter()
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
                cwd=record.ROOT if step == "Install" else folder,
                env={**os.environ, "HOME": home, "PATH": path},
                check=True,
                stdout=subprocess.PIPE,
                text=True,
            )
            found[step] = {
                "commands": lines,
                "seconds": time.perf_counter() - began,
                "prints": done.stdout.splitlines() if step != "Install" else [],
            }
            print(f"{step}: {found[step]['seconds']:.1f} s", flush=True)
    return found


def table() -> str:
    """The steps and their times, Markdown."""
    steps = record.read_results("walk")["results"]
    rows = [
        f"| [{name}](../tutorial.md#{name.lower().replace(' ', '-')}) | {step['seconds']:.0f} s |"
        for name, step in steps.items()
    ]
    total = sum(step["seconds"] for step in steps.values())
    return "\n".join(["| step | time |", "| --- | --- |", *rows, f"| total | {total / 60:.1f} minutes |", ""])


def said() -> str:
    """Machine and date of the measurement, Markdown. Versions belong to another environment."""
    made = record.read_results("walk")
    return (
        f"`{made['command']}` on {record.in_words(made['machine'])}, {made['date'][:10]}: "
        "[walk.json](../../benchmarks/results/walk.json). Times include downloads but not the `sudo` command."
    )


if __name__ == "__main__":
    record.write_results("walk", follow())
