"""Compile the kernels of all numbers of channels that the other stages use, on all cores.

    python benchmarks/gpu_build.py --output PATH     a stage of gpu.py

Without it, the stages would compile kernels one after another. Cached kernels are not compiled again.
"""

from __future__ import annotations

import time

from gpu_device import CHANNELS, TINY_CHANNELS, Output, arguments

from dpmix.engines import cuda
from dpmix.kernels import build

OF_TESTS = (1, 2, 3, 5, 14, 16, 17, 33, 64)
"""Numbers of channels of tests/engines/test_cuda_*.py, as far as they matter for the time."""


def main() -> None:
    asked = arguments(__doc__)
    output = Output(asked.output)
    channels = TINY_CHANNELS if asked.rehearsal else sorted({*CHANNELS, *OF_TESTS})
    began = time.perf_counter()
    files = build.build(channels, [cuda.devices()[0].architecture])
    output.add("seconds", time.perf_counter() - began)
    output.add("files", len(files))
    output.add("bytes", sum(path.stat().st_size for path in files))


if __name__ == "__main__":
    main()
