"""The engine of a run that the page starts: settings as in a config, checked, and as options of a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpmix.config.engine import EngineConfig
from dpmix.config.load import parse_config
from dpmix.config.yaml_text import flow
from dpmix.errors import ConfigError

KEYS = ("backend", "threads", "devices")
"""Backends that the page offers. Workers of a cluster would read and write outside its folder."""


def options(given: Mapping[str, Any]) -> list[str]:
    """Return the options of `dpmix mcmc` and `dpmix bem` for settings of the engine."""
    return [word for key, value in given.items() for word in ("--set", f"engine.{key}={flow(value)}")]


def checked(given: Mapping[str, Any]) -> EngineConfig:
    """Return the settings of the engine, as in a config.

    Raises
    ------
    ConfigError
        A setting is wrong, or none that the page offers.
    """
    if unknown := set(given) - set(KEYS):
        raise ConfigError([f"engine: the page has no {sorted(unknown)[0]}; it has {', '.join(KEYS)}"])
    if given.get("backend") == "cluster":
        raise ConfigError(["engine.backend: start runs on a cluster by dpmix mcmc"])
    return parse_config("data: {files: [events.fcs]}", "engine", options(given)[1::2]).engine
