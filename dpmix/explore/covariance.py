"""The covariance of what a person wants: how similar two events are, and the noise of a judgement.

n judged events, D channels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import cdist, pdist

from dpmix.model.mixture import Array, Floats

Shape = Literal["gaussian", "laplacian"]
SHAPES: tuple[Shape, ...] = ("gaussian", "laplacian")

VARIANCE = 0.1
NOISE = 0.02
"""Variances of the signal and of a judgement before they are learned; wanted is 1, unwanted 0."""

SAMPLE = 1_000
"""Events whose distances give the first ranges."""

DECAY = 2.5
"""Two events at the median distance have the correlation exp(-2.5) at first: most pairs are of two
populations, and events of one population are several times closer."""


@dataclass(frozen=True)
class JudgementCovariance:
    """A covariance of the signal f at events x, and of a judgement f(x) + noise.

    cov(f(x), f(x')) = variance * exp(-sum_c |d_c|) (laplacian) or variance * exp(-sum_c d_c^2 / 2) (gaussian)
    with d_c = (x_c - x'_c) / ranges_c.

    Attributes
    ----------
    shape : "gaussian" or "laplacian"
    ranges : float64 [D]
        Standardised scale.
    variance, noise : float
        Variances of the signal and of the noise of a judgement.
    """

    shape: Shape
    ranges: Array
    variance: float = VARIANCE
    noise: float = NOISE

    @property
    def scales(self) -> Array:
        """Factors of channels, float64 [D]: correlations are exp(-|d|_1) or exp(-|d|^2) of the products."""
        factor = 1.0 if self.shape == "laplacian" else np.sqrt(0.5)
        return np.asarray(factor / self.ranges)

    def between(self, one: npt.ArrayLike, other: npt.ArrayLike) -> Array:
        """Return the covariances of the signal at two sets of events, float64 [M, D] and [n, D]: [M, n]."""
        metric = "cityblock" if self.shape == "laplacian" else "sqeuclidean"
        distances = cdist(np.asarray(one) * self.scales, np.asarray(other) * self.scales, metric)
        covariances: Array = self.variance * np.exp(-distances)
        return covariances

    def logs(self) -> Array:
        """Return the logarithms of variance, noise and ranges, float64 [D + 2]."""
        logs: Array = np.log(np.concatenate([[self.variance, self.noise], self.ranges]))
        return logs

    def moved(self, logs: Array) -> JudgementCovariance:
        """Return the covariance with other parameters, given by their logarithms."""
        variance, noise, *ranges = np.exp(logs).tolist()
        return replace(self, variance=variance, noise=noise, ranges=np.array(ranges))


def first_covariance(events: Floats, seed: int, shape: Shape) -> JudgementCovariance:
    """Return the covariance before any judgement, with one range for all channels, from distances of events.

    Parameters
    ----------
    events : float32 [N, D]
        Standardised scale; N at least 2, not all equal.
    seed : int
        Seed of the sample of events.
    shape : "gaussian" or "laplacian"
    """
    rows = np.random.default_rng(seed).choice(len(events), min(len(events), SAMPLE), replace=False)
    sample = np.asarray(events[np.sort(rows)], np.float64)
    if shape == "laplacian":
        length = float(np.median(pdist(sample, "cityblock"))) / DECAY
    else:
        length = float(np.sqrt(np.median(pdist(sample, "sqeuclidean")) / (2.0 * DECAY)))
    return JudgementCovariance(shape, np.full(events.shape[1], max(length, 1e-3)))
