"""The device, the output of a stage, and the samples, which the stages of gpu.py share."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mixtures import KINDS

from dpmix.engines import cuda
from dpmix.errors import DpmixError
from dpmix.kernels.build import find_nvcc, release

CHANNELS = (8, 14, 30, 64)
TINY_CHANNELS = (2, 5)
PACKAGES = ("dpmix", "numpy", "pycuda", "torch", "scikit-learn")
CORES = {(7, 5): 64, (8, 0): 64}
"""float32 units of a multiprocessor by compute capability; 128 where not listed."""


class Output:
    """The results of a stage so far, written to a file after every addition."""

    def __init__(self, path: Path) -> None:
        self._path, self.results = path, {}

    def add(self, key: str, value: object) -> None:
        """Set results[key]."""
        self.results[key] = value
        self._path.write_text(json.dumps(self.results))

    def append(self, key: str, row: dict[str, Any]) -> None:
        """Append a row to results[key], and print it."""
        self.add(key, [*self.results.get(key, []), row])
        print(*(f"{name} {value}" for name, value in row.items()), sep=", ", flush=True)


def arguments(doc: str | None) -> argparse.Namespace:
    """Parse the options of a stage: `output` and `rehearsal`."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON to write")
    parser.add_argument("--rehearsal", action="store_true", help="tiny sizes; the times mean nothing then")
    return parser.parse_args()


def shapes(rehearsal: bool) -> list[tuple[int, int, int, str]]:
    """Return events, channels, components and kind of the samples on which kernels are timed."""
    if rehearsal:
        return [(600, dim, 20, kind) for dim in TINY_CHANNELS for kind in KINDS if kind != "sep"]
    return [(1_000_000, dim, 256, kind) for dim in CHANNELS for kind in KINDS if kind != "sep"]


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
