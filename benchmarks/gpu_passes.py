"""Do one pass of each kind: a program for compute-sanitizer and ncu.

    python benchmarks/gpu_passes.py EVENTS CHANNELS COMPONENTS KIND

KIND is one of mixtures.py. The program prints the number of occupied components after the passes.
"""

from __future__ import annotations

import sys

import numpy as np
from gpu_floors import SCREEN
from gpu_kernels import halved, split_of
from mixtures import sample

from dpmix.engines.cuda.engine import CudaEngine
from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess
from dpmix.kernels.layout import CHUNK
from dpmix.model.streams import Key


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
    print((counts > 0).sum(), "occupied components")


if __name__ == "__main__":
    main()
