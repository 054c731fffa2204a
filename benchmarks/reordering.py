"""Test whether moving the events into the order of their labels pays.

    python benchmarks/reordering.py

The CPU engine keeps an order of places within each chunk and does not move events. Here, the events of each
chunk are moved into the order of their last labels beforehand, which is the best case for reordering. The
pruned sweep is timed together with the engine's own and the dense one. Moving the events once is timed too.
"""

from __future__ import annotations

import time

import numpy as np
from mixtures import Kind, sample
from record import write_results

from dpmix.engines.cpu import CpuEngine
from dpmix.kernels.layout import CHUNK
from dpmix.model.streams import Key

N, D, K, ROUNDS = 1_000_000, 14, 256, 8
KINDS: tuple[Kind, ...] = ("sep", "mix", "dp")


def measure(kind: Kind) -> dict[str, float]:
    """Milliseconds of a sweep on all cores, minima over rounds in which the contenders take turns."""
    data = sample(N, D, K, kind)
    before, now = data.before.mixture(), data.now.mixture()
    engine = CpuEngine(data.events)
    engine.draw_labels(before, Key(1, 0, 1))
    labels = engine.labels()
    order = np.concatenate(
        [start + np.argsort(labels[start : start + CHUNK], kind="stable") for start in range(0, N, CHUNK)]
    )
    began = time.perf_counter()
    moved = data.events[order]
    times = {"moving the events": time.perf_counter() - began}
    contenders = {
        "pruned, events where they are": engine,
        "pruned, events in the order of their labels": CpuEngine(moved),
        "dense": CpuEngine(data.events, pruning=False),
    }
    for turn in range(ROUNDS):
        for name, contender in contenders.items():
            contender.draw_labels(before, Key(1, 0, 2 * turn))
            began = time.perf_counter()
            contender.draw_labels(now, Key(1, 0, 2 * turn + 1))
            times[name] = min(times.get(name, np.inf), time.perf_counter() - began)
    return {name: round(1e3 * seconds, 1) for name, seconds in times.items()}


def main() -> None:
    results = {kind: measure(kind) for kind in KINDS}
    for kind, times in results.items():
        print(kind, ", ".join(f"{name}: {ms} ms" for name, ms in times.items()))
    write_results("reordering", {f"N={N:,} D={D} K={K}": results})


if __name__ == "__main__":
    main()
