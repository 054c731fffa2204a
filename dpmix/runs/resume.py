"""The config of a run, from what a user gives, and the earlier run that it resumes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np

from dpmix.config.compare import RESUMABLE, differences, resets
from dpmix.config.load import load_config, parse_config
from dpmix.config.schema import Config
from dpmix.config.section import Section
from dpmix.config.write import to_yaml
from dpmix.config.yaml_text import flow
from dpmix.errors import ConfigError
from dpmix.runs.reader import Run, open_run

Kind = Literal["mcmc", "bem"]
ConfigLike = Config | Mapping[str, Any] | str | os.PathLike[str]


@dataclass(frozen=True)
class Chosen:
    """A run that is about to start or to resume, as `choose` returns it.

    Attributes
    ----------
    config : Config
    base : Path
        Folder that relative data paths of the config start from.
    earlier : Run or None
        Run to resume.
    adds_draws : bool
        The config asks for more draws than the earlier run made.
    """

    config: Config
    base: Path
    earlier: Run | None = None
    adds_draws: bool = False

    @property
    def output(self) -> Path:
        """The run file."""
        return Path(self.config.output.path)

    @property
    def finished(self) -> Run | None:
        """The earlier run, where nothing is left to resume."""
        done = self.earlier is not None and self.earlier.complete and not self.adds_draws
        return self.earlier if done else None


def choose(kind: Kind, source: ConfigLike, settings: Sequence[str] = (), resume: bool = False) -> Chosen:
    """Return the config of a run, with the earlier run if it resumes one.

    Parameters
    ----------
    kind : str
        "mcmc" or "bem".
    source : Config, mapping or path
        A config, its sections as a mapping, a YAML file, or a run file, for the config in it.
    settings : sequence of str
        ``key=value``, as in `dpmix.config.load.load_config`.
    resume : bool
        Resume the run in the run file of the config.

    Raises
    ------
    ConfigError
        The config is wrong, there is no such run, or the config differs from the run's in a key that changes
        its draws.
    DataError
        The run file cannot be read.
    """
    if isinstance(source, Config | Mapping):
        name, base, config = "config", Path(), _config_of(source, settings)
    elif not h5py.is_hdf5(path := Path(source)):
        name, base, config = str(path), path.parent, load_config(path, settings)
    elif resume:
        return _resumed_in_place(kind, path, settings)
    else:
        earlier = open_run(path)
        return Chosen(_config_in(earlier, settings), earlier.base)
    if not resume:
        return Chosen(config, base)
    return _resumed(kind, config, base, name, _earlier(kind, Path(config.output.path)))


def _config_of(source: Config | Mapping[str, Any], settings: Sequence[str]) -> Config:
    """Return the config of a source with settings, read as YAML so that errors have the same words."""
    if isinstance(source, Config):
        return parse_config(to_yaml(source), "config", settings) if settings else source
    return parse_config(flow(plain(source)), "config", settings)


def plain(value: Any) -> Any:
    """Return a value in the types that YAML has."""
    if isinstance(value, Section):
        return value.model_dump()
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _resumed_in_place(kind: Kind, path: Path, settings: Sequence[str]) -> Chosen:
    """Resume the run in a run file by its own config, with settings."""
    earlier = _earlier(kind, path)
    config = _config_in(earlier, settings)
    if Path(config.output.path) != path:
        raise ConfigError(
            [f"--output: got {config.output.path}, but {path} is continued in place; leave it out"]
        )
    return _resumed(kind, config, earlier.base, str(path), earlier)


def _config_in(earlier: Run, settings: Sequence[str]) -> Config:
    """Return the config in a run file, with settings; unless they name another output, it is that file."""
    # The settings may name another backend, to which keys of the earlier backend do not apply.
    own = [f"output.path={flow(str(earlier.path))}", *resets(settings)]
    return earlier.parsed_config([*own, *settings])


def _resumed(kind: Kind, config: Config, base: Path, name: str, earlier: Run) -> Chosen:
    """Return the run of a config, which must draw what the earlier run does."""
    started = earlier.parsed_config()
    # Fewer draws would cut what is drawn; dpmix never discards draws.
    larger = kind == "mcmc" and config.mcmc.draws > earlier.draws
    allowed = RESUMABLE | ({"mcmc.draws"} if larger else set())
    if config.mcmc.until is None:
        allowed |= {"mcmc.until"}
    changed = [key for key in differences(config, started) if key not in allowed]
    if changed:
        raise ConfigError(
            [
                f"{name}: {key}: not what {earlier.path} was started with; continue it unchanged with "
                f"dpmix {earlier.kind} {earlier.path} --resume, or restart with --overwrite"
                for key in changed
            ]
        )
    adds_draws = larger or (lifts(config, earlier) and earlier.committed < earlier.draws)
    return Chosen(config, base, earlier, adds_draws)


def lifts(config: Config, earlier: Run) -> bool:
    """Return whether a resumed run goes beyond mcmc.until: it is set to null, or more draws are asked for."""
    if not earlier.is_monitored:
        return False
    more = earlier.stopped is not None and config.mcmc.draws > earlier.draws
    return more or config.mcmc.until is None


def _earlier(kind: Kind, path: Path) -> Run:
    """Return the run to resume: a file of the same kind of run."""
    if not path.exists():
        raise ConfigError([f"{path}: no such run file to resume; leave --resume out to start it"])
    earlier = open_run(path)
    if earlier.kind != kind:
        raise ConfigError(
            [f"{path}: made by dpmix {earlier.kind}; continue with dpmix {earlier.kind} --resume"]
        )
    return earlier
