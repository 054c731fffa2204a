"""Parameters of the estimator and of `gate_anndata`: keys of the config, by their last names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

import numpy as np

from dpmix.config.schema import Config
from dpmix.errors import ConfigError
from dpmix.runs.resume import choose
from dpmix.system.cores import usable_cores

CONFIG_KEYS = {
    "components": "model.components",
    "prior": "model.prior",
    "learn": "model.learn",
    "coarseness": "model.coarseness",
    "full_events": "model.full_events",
    "chains": "mcmc.chains",
    "burn_in": "mcmc.burn_in",
    "draws": "mcmc.draws",
    "thin": "mcmc.thin",
    "init": "mcmc.init",
    "until": "mcmc.until",
    "starts": "bem.starts",
    "max_steps": "bem.max_steps",
    "tolerance": "bem.tolerance",
    "channels": "data.channels",
    "transforms": "data.transform",
    "standardize": "data.standardize",
    "atoms": "data.atoms",
    "backend": "engine.backend",
}
"""Config key of each parameter with the same meaning."""
NULLABLE = ("coarseness", "until")  # None is null in the config, not its default


class EstimatorParameters(TypedDict, total=False):
    """Parameters with the meanings and defaults of `dpmix.DPMixture`."""

    method: Literal["mcmc", "bem"]
    components: int
    prior: Mapping[str, Any] | None
    learn: Sequence[str]
    coarseness: float | Literal["auto"] | None
    full_events: float
    chains: int
    burn_in: int
    draws: int
    thin: int
    init: str
    until: Mapping[str, float] | Literal["default"] | None
    starts: int
    max_steps: int
    tolerance: float
    channels: Sequence[str] | None
    transforms: Mapping[str, Any] | None
    standardize: bool
    atoms: Literal["report", "dither", "tail"]
    backend: Literal["auto", "cpu", "cuda", "cluster"]
    random_state: int | np.random.RandomState | None
    n_jobs: int | None
    settings: Mapping[str, Any] | None


def make_config(parameters: Mapping[str, Any], files: Sequence[str], output: Path) -> Config:
    """Return the config of a run.

    Parameters
    ----------
    parameters : mapping
        As in `Parameters`; others are ignored. None is the default of the config, or null for `NULLABLE`.
    files : sequence of str
        Data files.
    output : Path
        The run file.

    Raises
    ------
    ConfigError
        A parameter is wrong. The error names its config key.
    """
    settings = _other_keys(parameters.get("settings"))
    named = {key: parameters.get(name) for name, key in CONFIG_KEYS.items()} | {
        "engine.threads": threads_of(parameters.get("n_jobs")),
        "seed": seed_of(parameters.get("random_state", 1)),
        "data.files": list(files),
        "output.path": str(output),
    }
    values = {key: value for key, value in named.items() if value is not None}
    values |= {CONFIG_KEYS[name]: None for name in NULLABLE if parameters.get(name, 0) is None}
    if parameters.get("until") == "default":
        del values["mcmc.until"]
    if whole := [key for key in settings if any(own.startswith(f"{key}.") for own in named)]:
        raise ConfigError(
            [f"settings: {key} has keys set by parameters; give the others as {key}.KEY" for key in whole]
        )
    if twice := [key for key in settings if key in named or any(key.startswith(f"{own}.") for own in values)]:
        raise ConfigError([f"settings: {key} is set by a parameter; use that one" for key in sorted(twice)])
    return choose("mcmc", nested({**values, **settings})).config


def _other_keys(settings: object) -> dict[str, Any]:
    """Return the parameter `settings` as a new dict; `ConfigError` if it is no mapping."""
    if settings is not None and not isinstance(settings, Mapping):
        raise ConfigError(
            [f'settings is {settings!r}; it must be a mapping, as {{"mcmc.label_swaps": False}}']
        )
    return {str(key): value for key, value in (settings or {}).items()}


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted keys as sections inside one another."""
    sections: dict[str, Any] = {}
    for key, value in settings.items():
        *path, name = key.split(".")
        section = sections
        for part in path:
            section = section.setdefault(part, {})
        section[name] = value
    return sections


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """Return the seed of a run: the number itself, or one drawn from the generator (None: NumPy's own).

    Raises
    ------
    ValueError
        It is something else, such as a numpy.random.Generator, which scikit-learn does not accept either.
    """
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    if not isinstance(random_state, np.random.RandomState | None):
        raise ValueError(f"random_state is {random_state!r}; it must be an integer, a RandomState or None")
    generator: Any = np.random if random_state is None else random_state
    return int(generator.randint(2**31 - 1))


def threads_of(n_jobs: object) -> object:
    """Return the number of threads: n_jobs, or of the processors all but -1 - n_jobs (None: all).

    Anything but an integer is returned as it is: the config says what is wrong with it.
    """
    if n_jobs is None or n_jobs == -1:
        return None
    if not isinstance(n_jobs, int | np.integer) or n_jobs >= 0:
        return n_jobs
    return max(usable_cores() + 1 + int(n_jobs), 1)
