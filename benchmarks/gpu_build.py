"""Compile the kernels of all numbers of channels that are timed, on all cores.

A stage of gpu.py. Kernels of the kit's cache, or compiled before, are not compiled again.
"""

from __future__ import annotations

import time

from gpu_device import CHANNELS, TINY_CHANNELS
from gpu_output import Output, parser

from dpmix.engines.cuda import engine as cuda
from dpmix.kernels import build


def main() -> None:
    asked = parser(__doc__).parse_args()
    output, architecture = Output(asked), cuda.devices()[0].architecture
    there = build.built(architecture)
    for dim in output.while_time_is_left(TINY_CHANNELS if asked.rehearsal else CHANNELS):
        began = time.perf_counter()
        files = build.build([dim], [architecture])
        how = "of the cache" if dim in there else "compiled here"
        seconds = round(time.perf_counter() - began, 2)
        output.append("kernels", {"n_channels": dim, "files": len(files), "how": how, "seconds": seconds})


if __name__ == "__main__":
    main()
