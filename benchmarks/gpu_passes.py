"""Do one pass of each kind: a program for compute-sanitizer and ncu.

    python benchmarks/gpu_passes.py EVENTS CHANNELS COMPONENTS KIND [others]

KIND is one of mixtures.py. With `others`, it also launches the kernels of the hierarchical model, of the
paper and of `dpmix drift`, on little data. It prints the number of occupied components after the passes.
"""

from __future__ import annotations

import sys

import numpy as np
from gpu_device import context
from gpu_floors import SCREEN
from gpu_kernels import alike, halved, split_of, time_local, time_paper, time_vecchia
from mixtures import Sample, sample

from dpmix.engines.cuda.cohort import CudaCohortEngine
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess
from dpmix.kernels.layout import CHUNK
from dpmix.model.streams import Key

POINTS, PREDICTIONS = 2_000, 100  # of a recording


def main() -> None:
    n_events, dim, n_components = map(int, sys.argv[1:4])
    data = sample(n_events, dim, n_components, sys.argv[4])  # type: ignore[arg-type]
    split, now = split_of(n_components), data.now.mixture()
    engine = CudaEngine(data.events, devices=[0], chunks_in_flight=-(-n_events // CHUNK))
    try:
        engine.draw_labels(data.before.mixture(), Key(1, 0, 0))
        counts = engine.draw_labels(now, Key(1, 0, 1)).counts
        engine.divide(split, halved(data.now, split), Key(1, 0, 1))
        engine.expect_labels(now)
        engine.memberships(now, np.arange(n_components) % min(20, n_components), 0, n_events)
    finally:
        engine.close()
    process = CudaGaussianProcess(data.events, [0])
    try:
        points, scales = data.events[:n_components], np.full(dim, 0.5, np.float32)
        rows = 0.1 * np.tri(n_components, dtype=np.float32)[-min(SCREEN, n_components) :]
        for laplacian in (False, True):
            posterior = np.ones((2, n_events), np.float32)
            process.update(points, scales, laplacian, rows, np.ones(len(rows), np.float32), *posterior)
    finally:
        process.close()
    if sys.argv[5:] == ["others"]:
        do_others(data)
    print((counts > 0).sum(), "occupied components")


def do_others(data: Sample) -> None:
    """Launch the kernels that no pass above launches; the times are not used."""
    starts, mixture = alike(data)
    engine = CudaCohortEngine(data.events, starts, devices=[0])
    try:
        engine.draw_labels(mixture, Key(1, 0, 0))
    finally:
        engine.close()
    with context() as driver:
        time_paper(driver, data, 1)
        time_vecchia(driver, POINTS, data.events.shape[1], 1)
        time_local(driver, PREDICTIONS, data.events.shape[1], 1)


if __name__ == "__main__":
    main()
