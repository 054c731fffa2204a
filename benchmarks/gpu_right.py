"""Compare the CUDA engine with the CPU engine: labels, sums and memberships.

    A stage of gpu.py, on 70,000 events in D = 14 channels with K = 256 components. It fails where they
    differ by more than rounding explains.

A label may differ only where its uniform lies within rounding of a step of the cumulative sum. Sums then
differ by the events of these labels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
from gpu_kernels import halved, split_of
from gpu_output import Output, parser
from mixtures import sample

from dpmix.engines.base import Engine
from dpmix.engines.cpu import CpuEngine
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.model.mixture import Stats
from dpmix.model.streams import Key

SIZE = 70_000, 14, 256
TINY = 700, 5, 20
LABELS = 1e-4  # of the events may have another label
SUMS = 1e-3  # relative difference of sums, more than a few labels make
MEMBERSHIPS = 1e-4


def main() -> None:
    asked = parser(__doc__).parse_args()
    output = Output(asked)
    n, dim, k = TINY if asked.rehearsal else SIZE
    data = sample(n, dim, k, "mix")
    now, split = data.now.mixture(), split_of(k)
    populations = np.arange(k) % min(20, k)
    passes: dict[str, Callable[[Engine], Stats]] = {
        "dense draw": lambda engine: engine.draw_labels(data.before.mixture(), Key(1, 0, 0)),
        "pruned draw": lambda engine: engine.draw_labels(now, Key(1, 0, 1)),
        "division": lambda engine: engine.divide(split, halved(data.now, split), Key(1, 0, 1))[0],
        "E step": lambda engine: engine.expect_labels(now),
    }
    cpu, cuda, wrong = CpuEngine(data.events), CudaEngine(data.events, devices=[0]), []
    try:
        for name, run in passes.items():
            want, got = run(cpu), run(cuda)
            differing = int((cpu.labels() != cuda.labels()).sum()) if name.endswith("draw") else 0
            sums = max(relative(getattr(want, part), getattr(got, part)) for part in ("sums", "scatters"))
            likelihood = relative(np.array(want.log_likelihood), np.array(got.log_likelihood))
            row = {"what": name, "n_events": n, "n_channels": dim, "n_components": k}
            row |= {"labels_differing": differing, "sums": sums, "log_likelihood": likelihood}
            output.append("checks", row)
            # Written so that NaN is wrong.
            if not (differing <= LABELS * n + 1 and sums < SUMS and likelihood < SUMS):
                wrong.append(name)
        pairs = zip(*(engine.memberships(now, populations, 0, n) for engine in (cpu, cuda)), strict=True)
        shares, densities = (float(np.abs(one - other).max()) for one, other in pairs)
        row = {"what": "memberships", "n_events": n, "n_channels": dim, "n_components": k}
        output.append("checks", row | {"memberships": shares, "log_densities": densities})
        if not (shares < MEMBERSHIPS and densities < 1e-2):
            wrong.append("memberships")
    finally:
        cpu.close()
        cuda.close()
    if wrong:
        sys.exit(f"different results from the CPU engine: {', '.join(wrong)}")


def relative(want: np.ndarray, got: np.ndarray) -> float:
    """Return the largest difference, relative to the largest value; absolute if all values are 0."""
    return float(np.abs(want - got).max() / (np.abs(want).max() or 1.0))


if __name__ == "__main__":
    main()
