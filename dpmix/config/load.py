"""Read a config from YAML, with overrides from the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dpmix.config import yaml_text
from dpmix.config.problems import problems, shown
from dpmix.config.schema import Config, schema
from dpmix.errors import ConfigError
from dpmix.system.paths import encoding_of


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file.

    Parameters
    ----------
    path : str or Path
        A YAML file. Paths of data in it are relative to its folder.
    overrides : sequence of str
        ``key=value`` with a dotted key and a YAML value, for example ``model.components=64``; the last one
        wins.

    Returns
    -------
    Config

    Raises
    ------
    ConfigError
        The file or an override is wrong; one line per problem.
    """
    try:
        text = Path(path).read_text(encoding=encoding_of(Path(path)))
    except FileNotFoundError as error:
        raise ConfigError(
            [f"{path}: cannot be read: {error.strerror}; dpmix init FILE --output {path} writes a config"]
        ) from None
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError(
            [f"{path}: not a text file; it must be a config in YAML, as dpmix init FILE writes it"]
        ) from None
    return parse_config(text, str(path), overrides)


def parse_config(text: str, name: str, overrides: Sequence[str] = ()) -> Config:
    """Read a config from text.

    Parameters
    ----------
    text : str
        YAML.
    name : str
        Name of the text in error messages, for example its file.
    overrides : sequence of str
        As in `load_config`.

    Returns
    -------
    Config

    Raises
    ------
    ConfigError
        The text or an override is wrong; one line per problem.
    """
    raw = yaml_text.parse(text, name)
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        sections = ", ".join(Config.model_fields)
        raise ConfigError([f"{name}: found {shown(raw)}; it must be a mapping with the keys {sections}"])
    found: list[str] = []
    options: dict[tuple[str | int, ...], str] = {}
    for override in overrides:
        try:
            options[_set(raw, override)] = f"--set {override}"
        except ConfigError as error:
            found += error.problems
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        found += problems(error, raw, schema(), name, options)
    if found:
        raise ConfigError([" ".join(line.splitlines()) for line in found])
    return config


def _set(raw: dict[Any, Any], override: str) -> tuple[str, ...]:
    """Set one ``key=value`` in the parsed YAML `raw`, in place, and return the path of the key."""
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise ConfigError([f"--set {override}: must be key=value, for example model.components=64"])
    value = yaml_text.parse(text, f"--set {override}")
    section = raw
    for part in path[:-1]:
        if section.get(part) is None:
            section[part] = {}
        section = section[part]
        if not isinstance(section, dict):
            raise ConfigError([f"--set {override}: {part} is not a section; it has a value and no keys"])
    section[path[-1]] = value
    return path
