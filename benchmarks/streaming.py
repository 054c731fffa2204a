"""Measure the cost of keeping events, and the CPU engine's data of each event, in files instead of memory.

    python benchmarks/streaming.py [--folder FOLDER] [--rounds ROUNDS] [--events N]

Three engines make the same pruned sweeps in turn: one with everything in memory; one with files in FOLDER
(default: the system's folder for temporary files) that are in the system's cache; and one whose events are
dropped from the cache before each sweep and so come from the disk. The script also reports how fast a
program that does nothing else reads the disk. Seconds are minima and medians over the rounds. The limit is
15% more time if the disk is fast enough.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from mixtures import sample
from record import write_results

from dpmix.engines.cpu import CpuEngine
from dpmix.model.mixture import Mixture
from dpmix.model.streams import Key

D = 14
COMPONENTS = (64, 256)
BLOCK = 8 << 20
WARM, COLD = "streaming", "streaming, cache dropped"


def drop(file: Path) -> None:
    """Have the system forget the pages of a file."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def seconds_to_read(file: Path) -> float:
    """Return the seconds to read a file that is in no cache."""
    drop(file)
    began = time.perf_counter()
    with file.open("rb", buffering=0) as opened:
        while opened.read(BLOCK):
            pass
    return time.perf_counter() - began


def measure(n_events: int, n_components: int, rounds: int, folder: Path) -> dict[str, object]:
    """Seconds of sweeps, and of reading the file."""
    data = sample(n_events, D, n_components, "mix")
    mixtures: tuple[Mixture, Mixture] = data.before.mixture(), data.now.mixture()
    file = folder / "events.npy"
    np.save(file, data.events)
    engines = {"resident": CpuEngine(data.events)} | {
        name: CpuEngine(np.load(file, mmap_mode="r"), scratch=folder) for name in (WARM, COLD)
    }
    times: dict[str, list[float]] = {name: [] for name in engines}

    def sweep(name: str, iteration: int) -> float:
        if name == COLD:
            drop(file)
        began = time.perf_counter()
        stats = engines[name].draw_labels(mixtures[iteration % 2], Key(1, 0, iteration))
        times[name].append(time.perf_counter() - began)
        return stats.log_likelihood

    for iteration in range(rounds + 2):
        drawn = {sweep(name, iteration) for name in list(engines)[:: 1 - 2 * (iteration % 2)]}
        assert len(drawn) == 1
    for name in times:
        del times[name][:2]  # dense, and with pages that were never touched
    reading = min(seconds_to_read(file) for _ in range(3))
    size = file.stat().st_size
    file.unlink()
    best = {name: min(of_name) for name, of_name in times.items()}

    def more(name: str) -> dict[str, float]:
        ratios = np.divide(times[name], times["resident"])
        return {
            f"{name} / resident, of minima": round(best[name] / best["resident"], 3),
            f"{name} / resident, median of rounds": round(float(np.median(ratios)), 3),
        }

    return {
        "seconds": {name: round(seconds, 3) for name, seconds in best.items()},
        "medians": {name: round(float(np.median(of_name)), 3) for name, of_name in times.items()},
        **more(WARM),
        **more(COLD),
        "disk, MB/s": round(size / reading / 1e6),
        "needed of the disk, MB/s": round(size / best["resident"] / 1e6),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--events", type=int, default=5_000_000)
    asked = parser.parse_args()
    results = {}
    for n_components in COMPONENTS:
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            name = f"N={asked.events:,} D={D} K={n_components}"
            results[name] = measure(asked.events, n_components, asked.rounds, Path(folder))
        print(name, results[name], flush=True)
    write_results("streaming", results)


if __name__ == "__main__":
    main()
