"""Make data and mixtures for timing a sweep, similar to a state in the middle of a run.

N events, D channels, K components. Five kinds, in standardised units:

- ``sep``: K components well apart (standard deviations about 0.05 to 0.25);
- ``mix``: 30% of the components lie next to another one, as in a fit (0.1 to 0.6);
- ``dp``: the events come from K / 5 components with stick weights, the other components are empty draws from
  the prior;
- ``ovl``: broad components that all overlap (0.5 to 1): nothing can be skipped;
- ``half``: as ``mix``, with half of the events in one component.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Mixture, mixture_from

Kind = Literal["sep", "mix", "dp", "ovl", "half"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SCALES: dict[Kind, tuple[float, float]] = {
    "sep": (0.05, 0.25),
    "mix": (0.1, 0.6),
    "ovl": (0.5, 1.0),
    "dp": (0.1, 0.6),
    "half": (0.1, 0.6),
}
SPREADS: dict[Kind, float] = {"sep": 0.97, "mix": 0.85, "ovl": 0.5, "dp": 0.85, "half": 0.85}


@dataclass(frozen=True)
class Parameters:
    """weights float64 [K], means [K, D], covariances [K, D, D]."""

    weights: Array
    means: Array
    covariances: Array

    def mixture(self) -> Mixture:
        """The same as an engine takes it."""
        return mixture_from(np.log(self.weights), self.means, self.covariances)


@dataclass(frozen=True)
class Sample:
    """Events float32 [N, D] and two states of a chain: `before` gives the last labels, `now` is swept."""

    events: npt.NDArray[np.float32]
    before: Parameters
    now: Parameters


def sample(n_events: int, dim: int, n_components: int, kind: Kind, seed: int = 0) -> Sample:
    """Draw events, and two mixtures about the truth as a posterior would have them."""
    rng = np.random.default_rng(seed)
    n_live = max(8, n_components // 5) if kind == "dp" else n_components
    truth = _truth(rng, n_live, dim, kind)
    labels = rng.choice(n_live, size=n_events, p=truth.weights)
    roots = np.linalg.cholesky(truth.covariances)
    events = np.empty((n_events, dim), np.float32)
    for j in range(n_live):
        held = np.flatnonzero(labels == j)
        events[held] = truth.means[j] + rng.normal(size=(len(held), dim)) @ roots[j].T
    counts = np.maximum(np.bincount(labels, minlength=n_live), dim + 2)
    before, now = (
        _posterior_draw(np.random.default_rng(seed + 1 + i), truth, roots, counts, n_components - n_live)
        for i in range(2)
    )
    return Sample(events, before, now)


def _truth(rng: np.random.Generator, n_live: int, dim: int, kind: Kind) -> Parameters:
    means = rng.normal(size=(n_live, dim)) * SPREADS[kind]
    low, high = np.log(SCALES[kind])
    widths = np.exp(rng.uniform(low, high, (n_live, 1)))
    scales = np.clip(widths * np.exp(rng.uniform(np.log(0.6), np.log(1.6), (n_live, dim))), 0.05, 1.0)
    if kind in ("mix", "dp", "half"):
        for j in np.flatnonzero(rng.uniform(size=n_live) < 0.3):
            twin = rng.integers(n_live)
            if twin != j:
                means[j] = means[twin] + rng.normal(size=dim) * scales[twin]
                scales[j] = scales[twin] * np.exp(rng.normal(size=dim) * 0.2)
    scales = np.clip(scales, 0.05, 1.0)
    factors = rng.normal(size=(n_live, dim, dim + 10))
    products = factors @ factors.transpose(0, 2, 1)
    roots = np.sqrt(np.einsum("kii->ki", products))
    correlations = products / roots[:, :, None] / roots[:, None, :]
    if kind == "dp":
        sticks = rng.beta(1, n_live / 5, size=n_live)
        weights = sticks * np.cumprod(np.concatenate(([1.0], 1.0 - sticks[:-1]))) + 1e-4
        weights /= weights.sum()
    else:
        weights = rng.dirichlet(np.full(n_live, 2.0))
    if kind == "half":
        weights[0] = weights[1:].sum()
        weights /= weights.sum()
    return Parameters(weights, means, correlations * scales[:, :, None] * scales[:, None, :])


def _posterior_draw(
    rng: np.random.Generator, truth: Parameters, roots: Array, counts: npt.NDArray[np.int64], n_empty: int
) -> Parameters:
    n_live, dim = truth.means.shape
    errors = np.einsum("kij,kj->ki", roots, rng.normal(size=(n_live, dim))) / np.sqrt(counts)[:, None]
    means = truth.means + errors
    covariances = truth.covariances * (1.0 + rng.normal(size=n_live) / np.sqrt(counts))[:, None, None]
    weights = truth.weights
    if n_empty:
        factors = rng.normal(size=(n_empty, dim, dim + 4))
        empty = 0.3 / (dim + 4) * factors @ factors.transpose(0, 2, 1) + 0.01 * np.eye(dim)
        means = np.concatenate((means, rng.normal(size=(n_empty, dim))))
        covariances = np.concatenate((covariances, empty))
        weights = np.concatenate((weights, np.full(n_empty, 1e-7)))
        order = np.argsort(-weights, kind="stable")
        means, covariances, weights = means[order], covariances[order], weights[order] / weights.sum()
    return Parameters(weights, means, covariances)
