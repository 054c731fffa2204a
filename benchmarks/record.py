"""Where benchmark results go: JSON beside the machine, the versions, the date and the command."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    model = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("dpmix", "numpy", "scipy", "scikit-learn")},
    }


def write_results(name: str, results: dict[str, Any]) -> Path:
    """Write benchmarks/results/<name>.json and say so."""
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{name}.json"
    command = " ".join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    record = {
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "results": results,
    }
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"written to {os.path.relpath(path)}")
    return path
