"""What holds the events and turns a mixture into sufficient statistics."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from dpmix.config import EngineConfig
from dpmix.engines.base import Engine, Key
from dpmix.engines.cpu import CpuEngine

__all__ = ["Engine", "Key", "choose_engine"]

log = logging.getLogger("dpmix")


def choose_engine(config: EngineConfig, events: npt.NDArray[np.float32]) -> Engine:
    """The engine that the config asks for, holding the events float32 [N, D]; the choice is logged.

    ``backend: auto`` takes the fastest engine that this machine offers: at present there is the CPU's.
    """
    engine = CpuEngine(
        events,
        threads=config.threads,
        pruning=config.pruning,
        weight_floor=config.weight_floor,
        chunks_in_flight=config.chunks_in_flight,
    )
    what = ", ".join(f"{name} {value}" for name, value in engine.info.items())
    log.info("engine: %s", what)
    return engine
