"""How long gating takes and how much memory: 1,000,000 events x 14 channels, 100 draws, K = 128.

    python benchmarks/gate.py [FOLDER]      # keeps events and run there, and takes them from there

The run that is gated is short, as only the number of its draws matters here. Time and peak memory are
measured for the command ``dpmix gate`` as a process, with reading, tables, figures and report.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
import yaml
from mixtures import sample
from record import DPMIX, plain_arguments, write_results

N, D, K, DRAWS = 1_000_000, 14, 128, 100
POPULATIONS = 24  # normals that the events come from, some next to each other
BARS = {"seconds": 180.0, "memory_gb": 1.5, "report_mb": 10.0}


def main() -> None:
    parser = plain_arguments(__doc__)
    parser.add_argument("folder", type=Path, nargs="?")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "run.h5").exists():
            np.save(folder / "events.npy", sample(N, D, POPULATIONS, "mix").events)
            config = {
                "data": {"files": ["events.npy"]},
                "model": {"components": K},
                "mcmc": {"burn_in": 100, "draws": DRAWS, "until": None},
                "output": {"path": str(folder / "run.h5")},
            }
            (folder / "run.yaml").write_text(yaml.safe_dump(config))
            subprocess.run([*DPMIX, "mcmc", folder / "run.yaml", "--quiet"], check=True)
        gated = folder / "gated"
        began = time.perf_counter()
        process = subprocess.Popen([*DPMIX, "gate", folder / "run.h5", "--output", gated, "--overwrite"])
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        if status:
            raise SystemExit(f"dpmix gate ended with status {status}")
        report = (gated / "report.html").stat().st_size
    found = {
        "seconds": round(seconds, 1),
        "memory_gb": round(usage.ru_maxrss / 1e6, 2),
        "report_mb": round(report / 1e6, 2),
    }
    for name, value in found.items():
        print(f"{name}: {value}, at most {BARS[name]}: {'met' if value <= BARS[name] else 'MISSED'}")
    write_results("gate", {"events": N, "channels": D, "components": K, "draws": DRAWS, **found})


if __name__ == "__main__":
    main()
