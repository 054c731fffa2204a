"""The device, for the stages of gpu.py."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dpmix.engines.cuda import engine as cuda
from dpmix.errors import DpmixError
from dpmix.kernels.build import find_nvcc, release

CHANNELS = (14, 30, 64, 8)
"""Channels of the samples that are timed, the most valuable first."""

TINY_CHANNELS = (5,)  # the fewest with pruned draws
PACKAGES = ("dpmix-cytometry", "numpy", "pycuda", "torch", "scikit-learn")
CORES = {(7, 5): 64, (8, 0): 64}
"""float32 units of a multiprocessor by compute capability; 128 where not listed."""


@contextmanager
def context() -> Iterator[Any]:
    """Make a context on the first device, current in this thread."""
    import pycuda.driver as driver

    driver.init()
    made = driver.Device(0).make_context()
    try:
        yield driver
    finally:
        made.pop()
        made.detach()


def nominal_rate() -> float:
    """Return float32 multiply-adds per second at the nominal clock of the first device."""
    import pycuda.driver as driver

    device = driver.Device(0)
    units = device.multiprocessor_count * CORES.get(device.compute_capability(), 128)
    return float(units * device.clock_rate * 1e3)


def about() -> dict[str, Any]:
    """Return the first device, the driver, the compiler and the versions of packages."""
    import pycuda.driver as driver

    info = cuda.devices()[0]
    device = driver.Device(0)
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return {
        "device": info.name,
        "memory": info.memory,
        "compute_capability": info.compute_capability,
        "multiprocessors": device.multiprocessor_count,
        "nominal_clock_hz": device.clock_rate * 1e3,
        "driver_supports": driver.get_driver_version(),
        "driver": smi("driver_version"),
        "clocks": smi("clocks.sm,clocks.max.sm,clocks.mem,power.limit"),
        "nvcc": release(find_nvcc()),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": versions,
    }


def smi(fields: str) -> str:
    """Return fields of nvidia-smi for the first device; "" where it is not there."""
    command = ["nvidia-smi", "--id=0", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    try:
        print(json.dumps(about()))
    except DpmixError as error:
        raise SystemExit(str(error)) from None
