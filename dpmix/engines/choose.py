"""Choose the engine of a run, and make it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.config.engine import EngineConfig
from dpmix.engines import cpu
from dpmix.engines.base import Engine
from dpmix.engines.cohort import CohortEngine
from dpmix.engines.cuda import engine as cuda
from dpmix.engines.cuda.cohort import CudaCohortEngine
from dpmix.engines.cuda.engine import CudaOptions
from dpmix.errors import ConfigError
from dpmix.model.mixture import Ints
from dpmix.model.sample_weights import SampleWeights

log = logging.getLogger("dpmix")


class EngineChoice(NamedTuple):
    """A backend and the reason for its choice."""

    backend: str
    why: str


def choose_backend(
    config: EngineConfig, began: str | None = None, option: str = "--set engine.backend="
) -> EngineChoice:
    """Return the backend of a run, and warn about options that it ignores.

    Parameters
    ----------
    config : EngineConfig
        ``backend: auto`` takes CUDA if it is available, otherwise the CPU. A resumed run takes the backend
        that it started on.
    began : str, optional
        The backend that a resumed run started on.
    option : str
        Command-line option for another backend, for the error message.

    Raises
    ------
    ConfigError
        The requested backend, or the one that the run started on, is not available.
    DpmixError
        A requested device does not exist.
    """
    choice = _chosen(config, began, option)
    if choice.backend == "cuda":
        cuda.chosen(config.devices)
    for name in config.unused(choice.backend):
        log.warning("engine.%s: ignored by the %s engine", name, choice.backend)
    return choice


def make_engine(
    backend: str,
    config: EngineConfig,
    events: npt.NDArray[np.float32],
    scratch: Path | None = None,
    weights: SampleWeights | None = None,
    starts: Ints | None = None,
) -> Engine:
    """Return the engine of an available backend.

    Parameters
    ----------
    backend : str
    config : EngineConfig
    events : float32 [N, D]
        For the cluster, an `np.memmap` of an NPY file that its workers can read.
    scratch : Path, optional
        Folder for the CPU engine's values of every event; default: memory.
    weights : SampleWeights, optional
        Weights of the events. Default: every event has weight 1.
    starts : int64 [S + 1], optional
        Starts of the samples, for an engine of the hierarchical model.

    Raises
    ------
    DpmixError
        A device does not exist or cannot be used, or a cluster or its workers cannot be used.
    """
    if backend == "cluster":
        from dpmix.engines.cluster.engine import ClusterEngine  # Dask is slow to import

        return ClusterEngine(events, config, weights, starts)
    if backend == "cuda":
        options: CudaOptions = {
            "devices": config.devices,
            "pruning": config.pruning,
            "weight_floor": config.weight_floor,
            "chunks_in_flight": config.chunks_in_flight,
            "weights": weights,
        }
        if starts is not None:
            return CudaCohortEngine(events, starts, **options)
        return cuda.CudaEngine(events, **options)
    if starts is not None:
        return CohortEngine(
            events,
            starts,
            threads=config.threads,
            pruning=config.pruning,
            weight_floor=config.weight_floor,
            scratch=scratch,
            weights=weights,
        )
    return cpu.CpuEngine(
        events,
        threads=config.threads,
        pruning=config.pruning,
        weight_floor=config.weight_floor,
        chunks_in_flight=config.chunks_in_flight,
        scratch=scratch,
        weights=weights,
    )


UNFUSED = "v2"  # of x86-64: rounds a multiplication and an addition apart; all others round once


def warn_of_other_arithmetic(began: Mapping[str, object], now: Mapping[str, object]) -> None:
    """Warn if a resumed run uses another rounding than at its start, given `Engine.info` of both."""
    before, after = (str(info.get("engine", info["backend"])) for info in (began, now))
    if before != after:
        log.warning(
            "engine: %s, but the run started on %s: its draws are as good, but not bit for bit the same "
            "as in an uninterrupted run: a label may differ if its uniform lies within rounding of a step",
            after,
            before,
        )
    sets = [str(info["isa"]) for info in (began, now) if "isa" in info]
    if len(sets) == 2 and len({name == UNFUSED for name in sets}) == 2:
        log.warning(
            "engine: the instructions %s round differently from %s, on which the run started: its draws are "
            "as good, but not bit for bit the same as in an uninterrupted run",
            sets[1],
            sets[0],
        )
    if "parameters" in now and began.get("parameters") != now["parameters"]:
        log.warning(
            "the run started with a version of dpmix that rounds parameters differently: its draws "
            "are as good, but not bit for bit the same as in an uninterrupted run"
        )


def available(backend: str, config: EngineConfig) -> tuple[bool, str]:
    """Return whether a backend can be used here, and its hardware, or the reason and the remedy."""
    if backend == "cluster":
        try:
            from dpmix.engines.cluster import connect
        except ImportError as error:
            return False, f"{error}: pip install 'dpmix-cytometry[cluster]'"
        return connect.available(config)
    return cpu.available() if backend == "cpu" else cuda.available()


def _chosen(config: EngineConfig, began: str | None, option: str) -> EngineChoice:
    if config.backend == "auto" and began is None:
        found, why = available("cuda", config)
        if not found:  # the reason is for those who expect a GPU
            return EngineChoice("cpu", "auto: no usable GPU; dpmix devices says why")
        return EngineChoice("cuda", f"auto: {why}")
    if config.backend == "auto" and began is not None:
        choice, asked = (
            EngineChoice(began, "auto: the run started on it"),
            f"the run started on {began}, which is",
        )
    else:
        choice, asked = EngineChoice(config.backend, "as the config says"), f"{config.backend} is"
    found, why = available(choice.backend, config)
    if not found:
        other = "cuda" if choice.backend == "cpu" else "cpu"
        raise ConfigError([f"engine.backend: {asked} not available here: {why}; or use {option}{other}"])
    return choice
