"""What holds the events and turns a mixture into sufficient statistics."""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.config import EngineConfig
from dpmix.engines import cpu, cuda
from dpmix.engines.base import Deal, Engine, Key
from dpmix.errors import ConfigError

__all__ = ["Choice", "Deal", "Engine", "Key", "choose_backend", "make_engine"]

log = logging.getLogger("dpmix")


class Choice(NamedTuple):
    """A backend, and why it was taken."""

    backend: str
    why: str


def choose_backend(
    config: EngineConfig, began: str | None = None, option: str = "--set engine.backend="
) -> Choice:
    """The backend that a run takes; what is out of the ordinary about it is logged.

    Parameters
    ----------
    config : EngineConfig
        ``backend: auto`` takes CUDA where it is available, else the CPU; but a run that goes on takes the
        backend that it began with.
    began : str, optional
        That backend.
    option : str
        How a user names another backend, for the message that this one is not available.

    Raises
    ------
    ConfigError
        The backend that was asked for, or that the run began with, is not available.
    DpmixError
        There is no device of a number that was asked for.
    """
    choice = _chosen(config, began, option)
    if choice.backend == "cuda":
        cuda.chosen(config.devices)
    if began not in (None, choice.backend):
        log.warning(
            "engine: %s, but the run began on %s: its draws are as good, but not bit for bit those of an "
            "uninterrupted run, as a label may differ where its random number lies within rounding of a step",
            choice.backend,
            began,
        )
    for name in config.unused(choice.backend):
        log.warning("engine.%s: of no use to the %s engine", name, choice.backend)
    return choice


def make_engine(backend: str, config: EngineConfig, events: npt.NDArray[np.float32]) -> Engine:
    """The engine of an available backend, holding the events float32 [N, D].

    Raises
    ------
    DpmixError
        A device is not there or cannot be used.
    """
    if backend == "cpu":
        return cpu.CpuEngine(
            events,
            threads=config.threads,
            pruning=config.pruning,
            weight_floor=config.weight_floor,
            chunks_in_flight=config.chunks_in_flight,
        )
    return cuda.CudaEngine(
        events,
        devices=config.devices,
        weight_floor=config.weight_floor,
        chunks_in_flight=config.chunks_in_flight,
    )


def available(backend: str) -> tuple[bool, str]:
    """Whether a backend can be used here, and with what, or why not and what to do."""
    return cpu.available() if backend == "cpu" else cuda.available()


def _chosen(config: EngineConfig, began: str | None, option: str) -> Choice:
    if config.backend == "auto" and began is None:
        found, why = available("cuda")
        return Choice("cuda" if found else "cpu", f"auto: {why}")
    if config.backend == "auto" and began is not None:
        choice, asked = Choice(began, "auto: the run began on it"), f"the run began on {began}, which is"
    else:
        choice, asked = Choice(config.backend, "as the config says"), f"{config.backend} is"
    found, why = available(choice.backend)
    if not found:
        other = "cpu" if choice.backend == "cuda" else "cuda"
        raise ConfigError([f"engine.backend: {asked} not available here: {why}; or take {option}{other}"])
    return choice
