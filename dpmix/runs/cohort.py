"""The hierarchical model in a run: which samples share a shift, what supports it, and its initial values."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpmix.config.schema import Config
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.events import Events
from dpmix.kernels.layout import CHUNK
from dpmix.model import cohort, cohort_bem
from dpmix.model.mixture import Array, Ints, State
from dpmix.model.prior import Prior
from dpmix.runs.layout import COHORT


def require_supported(kind: str, config: Config) -> None:
    """Raise `ConfigError` where a run of the hierarchical model needs what it does not have yet."""
    if config.model.samples == "pooled":
        return
    problems = []
    if kind == "mcmc" and config.mcmc.init == "bem":
        problems.append("mcmc.init: the hierarchical model has no start by bem; use --set mcmc.init=kmeans")
    if kind == "mcmc" and config.mcmc.split_merge:
        problems.append(
            "mcmc.split_merge: the hierarchical model has no split-merge moves; use --set mcmc.split_merge=0"
        )
    if problems:
        raise ConfigError(problems)


def shift_groups(config: Config, events: Events) -> Ints | None:
    """Return the shift of each sample, int64 [S] from 0, or -1 without shifts; None for a pooled model.

    Raises
    ------
    ConfigError
        There are fewer than two samples or shifts, or the column does not exist.
    """
    model, n_samples = config.model, len(events.samples)
    if model.samples == "pooled":
        return None
    if n_samples < 2:
        raise ConfigError(["model.samples: hierarchical needs at least two samples, the data have one"])
    if model.shifts == "none":
        return np.full(n_samples, -1, np.int64)
    if model.shifts == "sample":
        return np.arange(n_samples, dtype=np.int64)
    columns = events.sample_columns
    if model.shifts not in columns:
        found = ", ".join(columns) or "no column"
        raise ConfigError(
            [f"model.shifts: {model.shifts} is not none, sample or a column of data.samples (found: {found})"]
        )
    groups: Ints = np.unique(list(columns[model.shifts]), return_inverse=True)[1].astype(np.int64)
    if groups.max() == 0:
        raise ConfigError(
            [f"model.shifts: all samples have the same {model.shifts}; use none, sample or another column"]
        )
    return groups


def sample_sizes(events: Events) -> Array:
    """Return the number of events of each sample, each counted with its weight, float64 [S]."""
    sizes = np.diff(events.sample_starts).astype(np.float64)
    if events.weights is not None:
        sizes *= events.weights.values
    return sizes


def sample_shares(events: Events) -> Array:
    """Return the share of each sample in all events, each counted with its weight, float64 [S]."""
    sizes = sample_sizes(events)
    shares: Array = sizes / sizes.sum()
    return shares


def memory_bytes(n_samples: int, n_components: int, dim: int, chains: int) -> int:
    """Return the bytes that samples add to a run: statistics, weights of chains, scratch of their engines."""
    statistics = 8 * n_samples * n_components * (3 * dim + 4)
    scratch = 8 * n_samples * (CHUNK + n_components * (dim + 2) ** 2)
    return statistics + scratch + 2 * chains * 8 * n_samples * (n_components + dim)


def with_samples(state: State, events: Events, groups: Ints | None, prior: Prior) -> State:
    """Return an initial state with all samples alike; the state itself for a pooled model."""
    if groups is None:
        return state
    return replace(state, cohort=cohort.start(state.log_base_weights, sample_shares(events), groups, prior))


def with_factors(state: State, events: Events, groups: Ints | None, prior: Prior, zeta: float) -> State:
    """Return an initial state of Bayesian EM with all samples alike; the state itself for a pooled model."""
    if groups is None:
        return state
    return cohort_bem.start(with_samples(state, events, groups, prior), zeta * sample_sizes(events))


def names(groups: Ints | None) -> tuple[str, ...]:
    """Return the draws of the run file that the model adds."""
    if groups is None:
        return ()
    return COHORT if groups.max() >= 0 else COHORT[:3]


def check_fits(state: State, groups: Ints | None) -> None:
    """Raise `DataError` where a state to resume from has other samples or shifts than the run."""
    own = state.cohort
    fits = own is None if groups is None else own is not None and np.array_equal(own.groups, groups)
    if not fits:
        raise DataError("checkpoint: its samples or shifts differ from the run's; restart with --overwrite")
