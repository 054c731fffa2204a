"""Explain errors of PyCUDA and the driver: what is wrong and what to do, in one line."""

from __future__ import annotations

from dpmix.errors import DpmixError
from dpmix.kernels import build

REBUILD = "build PyCUDA again: pip install --force-reinstall --no-cache-dir --no-binary pycuda pycuda"
STICKY = ("illegal memory access", "misaligned address", "illegal instruction", "launch failure", "assert")
"""Errors of a kernel, which end the context of its device."""

REFUSED = ("kernel image", "toolchain")
"""In errors of a driver that cannot use compiled kernels."""


def import_failure(error: ImportError) -> str:
    """Explain that PyCUDA's driver module cannot be imported."""
    if "libcuda.so" in str(error) and "undefined symbol" not in str(error):
        return f"no NVIDIA driver ({error}): install the driver of the GPU"
    if "undefined symbol: cu" in str(error):
        return (
            f"PyCUDA was built for a newer CUDA than the driver's ({error}): update the driver, or {REBUILD}"
        )
    return f"PyCUDA was built for another CUDA or NumPy ({error}): {REBUILD}"


def load_failure(error: Exception, driver_version: int) -> str:
    """Explain that the driver refused a compiled kernel.

    Parameters
    ----------
    error : Exception
    driver_version : int
        The CUDA version that the driver supports, 1000 major + 10 minor.
    """
    said = str(error).strip(" -")  # PyCUDA appends an empty log
    if not any(text in said for text in REFUSED):
        return failure(error)
    supported = f"{driver_version // 1000}.{driver_version % 1000 // 10}"
    try:
        toolkit = build.release(build.find_nvcc())
    except DpmixError:
        toolkit = ""
    if toolkit and as_numbers(toolkit) > as_numbers(supported):
        what = f"nvcc of CUDA {toolkit} is newer than the driver, which supports CUDA {supported}"
        return f"{said}: {what}: update the driver, or install a CUDA toolkit up to {supported}"
    remedy = "update the driver, or build them again with a toolkit for it: dpmix devices --build"
    return f"{said}: the kernels do not suit the driver, which supports CUDA {supported}: {remedy}"


def failure(error: Exception) -> str:
    """Explain the failure of a device in a pass."""
    said = str(error).strip(" -")
    if any(text in said for text in STICKY):
        return f"{said}: a kernel or the GPU is at fault; the system log (dmesg) has its Xid error"
    return said


def as_numbers(version: str) -> tuple[int, ...]:
    """Return a version as numbers, which compare as versions do."""
    return tuple(int(part) for part in version.split("."))
