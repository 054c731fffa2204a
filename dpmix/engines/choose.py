"""Choose the engine that a run uses, and make it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.config.engine import EngineConfig
from dpmix.engines import cpu, cuda
from dpmix.engines.base import Engine
from dpmix.errors import ConfigError

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
    for name in config.unused(choice.backend):
        log.warning("engine.%s: of no use to the %s engine", name, choice.backend)
    return choice


def make_engine(
    backend: str, config: EngineConfig, events: npt.NDArray[np.float32], scratch: Path | None = None
) -> Engine:
    """The engine of an available backend.

    Parameters
    ----------
    backend : str
    config : EngineConfig
    events : float32 [N, D]
        For the cluster, an `np.memmap` of an NPY file that its workers see.
    scratch : Path, optional
        Folder where the CPU engine keeps what it has of every event, where it is not to be in memory.

    Raises
    ------
    DpmixError
        A device is not there or cannot be used; a cluster cannot be reached, or its workers not used.
    """
    if backend == "cluster":
        from dpmix.engines.cluster import ClusterEngine  # Dask takes a while to import

        return ClusterEngine(events, config)
    if backend == "cpu":
        return cpu.CpuEngine(
            events,
            threads=config.threads,
            pruning=config.pruning,
            weight_floor=config.weight_floor,
            chunks_in_flight=config.chunks_in_flight,
            scratch=scratch,
        )
    return cuda.CudaEngine(
        events,
        devices=config.devices,
        weight_floor=config.weight_floor,
        chunks_in_flight=config.chunks_in_flight,
    )


def warn_of_other_arithmetic(began: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Log that a run goes on with other rounding than it began with, told by `Engine.info` of both."""
    before, after = (str(info.get("engine", info["backend"])) for info in (began, now))
    if before != after:
        log.warning(
            "engine: %s, but the run began on %s: its draws are as good, but not bit for bit those of an "
            "uninterrupted run, as a label may differ where its random number lies within rounding of a step",
            after,
            before,
        )


def available(backend: str, config: EngineConfig) -> tuple[bool, str]:
    """Whether a backend can be used here, and with what, or why not and what to do."""
    if backend == "cluster":
        try:
            from dpmix.engines import cluster_connect
        except ImportError as error:
            return False, f"{error}: pip install 'dpmix[cluster]'"
        return cluster_connect.available(config)
    return cpu.available() if backend == "cpu" else cuda.available()


def _chosen(config: EngineConfig, began: str | None, option: str) -> Choice:
    if config.backend == "auto" and began is None:
        found, why = available("cuda", config)
        return Choice("cuda" if found else "cpu", f"auto: {why}")
    if config.backend == "auto" and began is not None:
        choice, asked = Choice(began, "auto: the run began on it"), f"the run began on {began}, which is"
    else:
        choice, asked = Choice(config.backend, "as the config says"), f"{config.backend} is"
    found, why = available(choice.backend, config)
    if not found:
        other = "cuda" if choice.backend == "cpu" else "cpu"
        raise ConfigError([f"engine.backend: {asked} not available here: {why}; or take {option}{other}"])
    return choice
