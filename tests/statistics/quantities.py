"""Quantities of a trace, which statistical tests compare.

T draws, M points, N events, D channels, K components.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from scipy.special import logsumexp
from whole_chain import Case, Trace

from dpmix.model.mixture import LOG_2PI, Array


def log_det(matrices: Array) -> Array:
    return np.asarray(np.linalg.slogdet(matrices)[1])


def squared_distances(trace: Trace, points: Array) -> Array:
    """Return |L_j (x - mu_j)|^2, [T, M, K], of points [T, M, D]."""
    away = points[:, :, None] - trace.means[:, None]
    solved = np.linalg.solve(trace.covariances[:, None], away[..., None])[..., 0]
    return np.asarray((away * solved).sum(axis=-1))


def log_densities(trace: Trace, points: Array) -> Array:
    """Return log densities of the mixture, [T, M], at points [T, M, D]."""
    each = -0.5 * (squared_distances(trace, points) + log_det(trace.covariances)[:, None])
    each += trace.log_weights[:, None] - 0.5 * points.shape[-1] * LOG_2PI
    return np.asarray(logsumexp(each, axis=2))


def of_label(trace: Trace, values: Array) -> Array:
    """Return the values [T, N] at the labels, from values [T, N, K]."""
    return np.take_along_axis(values, trace.labels[..., None], axis=2)[..., 0]


def held(trace: Trace) -> Array:
    """Return the number of events of each component, [T, K]."""
    return np.asarray((trace.labels[..., None] == np.arange(trace.means.shape[1])).sum(axis=1))


def at_largest(trace: Trace, values: Array) -> Array:
    return np.asarray(values[np.arange(len(values)), trace.log_weights.argmax(axis=1)])


Quantities = Mapping[str, Callable[[Trace], Array]]

INVARIANT: Quantities = {
    "alpha": lambda t: t.alpha,
    "largest weight": lambda t: t.log_weights.max(axis=1),
    "second weight": lambda t: np.sort(t.log_weights, axis=1)[:, -2],
    "occupied": lambda t: (held(t) > 0).sum(axis=1),
    "log likelihood": lambda t: log_densities(t, t.events).sum(axis=1),
    "log det of the pooled covariance": lambda t: log_det(
        np.einsum("tk,tkij->tij", np.exp(t.log_weights), t.covariances)
    ),
    "log density at a point": lambda t: log_densities(t, np.ones_like(t.events[:, :1]))[:, 0],
    "mean of the mixture": lambda t: np.einsum("tk,tk->t", np.exp(t.log_weights), t.means[..., 0]),
}
"""Quantities that do not depend on the numbering of the components."""

OF_PLACES: Quantities = {
    "first weight": lambda t: t.log_weights[:, 0],
    "last weight": lambda t: t.log_weights[:, -1],
    "first mean": lambda t: t.means[:, 0, 0],
    "last mean": lambda t: t.means[:, -1, 1],
    "mean of the largest": lambda t: at_largest(t, t.means[..., 1]),
    "log det of the first": lambda t: log_det(t.covariances[:, 0]),
    "log det of the last": lambda t: log_det(t.covariances[:, -1]),
    "log det of the largest": lambda t: log_det(at_largest(t, t.covariances)),
    "correlation": lambda t: (
        t.covariances[:, 1, 0, 1] / np.sqrt(t.covariances[:, 1, 0, 0] * t.covariances[:, 1, 1, 1])
    ),
    "first mean from m": lambda t: squared_distances(t, t.m[:, None])[:, 0, 0] / t.gamma,
    "last mean from m": lambda t: squared_distances(t, t.m[:, None])[:, 0, -1] / t.gamma,
    "first covariance over phi": lambda t: t.covariances[:, 0, 0, 0] / t.phi[:, 0, 0],
    "last covariance over phi": lambda t: t.covariances[:, -1, 1, 1] / t.phi[:, 1, 1],
}

OF_EVENTS: Quantities = {
    "events of the first": lambda t: held(t)[:, 0],
    "events of the last": lambda t: held(t)[:, -1],
    "events of the fullest": lambda t: held(t).max(axis=1),
    "events from their means": lambda t: of_label(t, squared_distances(t, t.events)).sum(axis=1),
    "mean of the events": lambda t: t.events[..., 0].mean(axis=1),
    "variance of the events": lambda t: t.events[..., 1].var(axis=1),
    "covariance of the events": lambda t: (
        (t.events[..., 0] * t.events[..., 1]).mean(axis=1)
        - t.events[..., 0].mean(axis=1) * t.events[..., 1].mean(axis=1)
    ),
}

OF_HYPERPARAMETERS: Mapping[str, Quantities] = {
    "m": {"m": lambda t: t.m[:, 0], "other m": lambda t: t.m[:, 1]},
    "gamma": {"gamma": lambda t: t.gamma},
    "nu": {"nu": lambda t: t.nu},
    "phi": {
        "phi": lambda t: t.phi[:, 0, 0],
        "covariance phi": lambda t: t.phi[:, 0, 1],
        "log det of phi": lambda t: log_det(t.phi),
    },
}


def quantities(case: Case, *groups: Quantities) -> dict[str, Callable[[Trace], Array]]:
    """Return the quantities of the groups, and the quantities of the hyperparameters that the case learns."""
    chosen = [*groups, *(own for name, own in OF_HYPERPARAMETERS.items() if name in case.prior.learned)]
    return {name: value for group in chosen for name, value in group.items()}
