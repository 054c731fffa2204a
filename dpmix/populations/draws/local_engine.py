"""Engines of this machine for other events than a run's: one process finds populations and gates."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dpmix.config.compare import resets
from dpmix.config.engine import EngineConfig
from dpmix.config.load import parse_config
from dpmix.config.schema import Config
from dpmix.engines.base import Engine
from dpmix.engines.choose import choose_backend, make_engine
from dpmix.errors import ConfigError
from dpmix.model.mixture import Floats
from dpmix.populations.tree.modes import MakeEngine
from dpmix.runs.reader import Run

log = logging.getLogger("dpmix")


def engine_maker(run: Run, engine: EngineConfig | None = None) -> MakeEngine:
    """Return a function that makes the engine of a run for other events.

    A run of a cluster takes an engine of this machine.

    Parameters
    ----------
    run : Run
    engine : EngineConfig, optional
        Settings that replace the run's, but for engine.weight_floor. Default: the run's settings.
    """
    own = parse_config(run.config_text, str(run.path)).engine
    config = (engine or own).model_copy(update={"weight_floor": own.weight_floor})
    if config.backend == "cluster":
        config = EngineConfig(weight_floor=own.weight_floor)
    backend = choose_backend(config).backend

    def make(values: Floats) -> Engine:
        return make_engine(backend, config, values)

    return make


def local_config(run: Run, engine: Sequence[str]) -> Config:
    """Return the config of a run for this machine, with settings of the engine.

    Raises
    ------
    ConfigError
        The settings ask for a cluster.
    """
    config = parse_config(run.config_text, str(run.path))
    if config.engine.backend == "cluster" and not resets(engine):
        log.info("the run was made on a cluster; this machine gates it")
        engine = ["engine.backend=auto", *engine]
    config = parse_config(run.config_text, str(run.path), [*resets(engine), *engine])
    if config.engine.backend == "cluster":
        raise ConfigError(["engine.backend: a cluster cannot gate; use auto, cpu or cuda"])
    return config
