"""The CUDA devices of this machine: which there are, which a config asks for, and what is missing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from dpmix.engines.cuda.messages import import_failure
from dpmix.errors import DpmixError
from dpmix.kernels import build
from dpmix.kernels.layout import CHUNK
from dpmix.system.cores import usable_cores

log = logging.getLogger("dpmix")

EVENTS_PER_DEVICE = 16 * CHUNK
"""Fewest events of each device where all may be used. The host's work in a pass grows by some 0.17 ms of
processor time with each device, and a pass with D = 14 and K = 256 over this many events keeps a GPU busy for
1.4 ms or more (docs/benchmarks/gpu.md). No machine with several GPUs has measured this."""


class DeviceInfo(NamedTuple):
    """A device as described by the driver; memory in bytes."""

    number: int
    name: str
    memory: int
    compute_capability: str

    @property
    def architecture(self) -> str:
        """The architecture in nvcc's terms, such as ``sm_90``."""
        return "sm_" + self.compute_capability.replace(".", "")


def available() -> tuple[bool, str]:
    """Return whether this machine can run the engine, and its devices, or the reason and the remedy."""
    try:
        found = devices()
        build.require(device.architecture for device in found)
    except DpmixError as error:
        return False, str(error)
    return True, describe(found)


def devices() -> list[DeviceInfo]:
    """List the CUDA devices of this machine.

    Raises
    ------
    DpmixError
        PyCUDA, the driver or a device is missing.
    """
    try:
        import pycuda  # noqa: F401
    except ImportError:
        raise DpmixError("PyCUDA is not installed: pip install 'dpmix-cytometry[cuda]'") from None
    try:
        import pycuda.driver as driver
    except ImportError as error:
        raise DpmixError(import_failure(error)) from None
    try:
        driver.init()
        found = [described(number, driver.Device(number)) for number in range(driver.Device.count())]
    except driver.Error as error:
        raise DpmixError(f"no CUDA device ({error}): see that nvidia-smi lists one") from None
    if not found:
        raise DpmixError("no CUDA device: see what nvidia-smi lists, and CUDA_VISIBLE_DEVICES")
    return found


def described(number: int, device: Any) -> DeviceInfo:
    """Return the properties of a PyCUDA device."""
    major, minor = device.compute_capability()
    return DeviceInfo(number, device.name(), device.total_memory(), f"{major}.{minor}")


def describe(found: Sequence[DeviceInfo]) -> str:
    """Return names and numbers of devices in one line."""
    return ", ".join(f"{device.name} ({device.number})" for device in found)


def chosen(wanted: Literal["all"] | Sequence[int], n_events: int | None = None) -> list[DeviceInfo]:
    """Return the devices that the config asks for.

    Parameters
    ----------
    wanted : "all" or list of int
        Numbers of the devices.
    n_events : int, optional
        The events that the devices share. Of "all", only one for each `EVENTS_PER_DEVICE` events is used.

    Raises
    ------
    ValueError
        The numbers are not different numbers.
    DpmixError
        A device does not exist, or `devices` fails.
    """
    found = devices()
    if wanted == "all":
        paying = len(found) if n_events is None else max(1, n_events // EVENTS_PER_DEVICE)
        if paying < len(found):
            log.info(
                "CUDA: %d of %d GPUs for %s events, one for each %s: more would take longer; engine.devices "
                "may name them",
                *(paying, len(found), f"{n_events:,}", f"{EVENTS_PER_DEVICE:,}"),
            )
        return found[:paying]
    if not wanted or len(set(wanted)) < len(wanted):
        raise ValueError(f"devices: got {list(wanted)}, need 'all' or different numbers of devices")
    for number in wanted:
        if not 0 <= number < len(found):
            raise DpmixError(f"engine.devices: got {number}, this machine has {describe(found)}")
    return [found[int(number)] for number in wanted]


def warn_of_few_cores(n_devices: int) -> bool:
    """Return whether there are fewer cores than devices, and warn of it.

    A thread that spins while it waits for its device needs a core of its own.
    """
    n_cores = usable_cores()
    if n_devices <= n_cores:
        return False
    log.warning(
        "%d GPUs and %d processor cores: each GPU's thread sleeps while it waits, which delays passes; give "
        "the run as many cores as GPUs",
        n_devices,
        n_cores,
    )
    return True
