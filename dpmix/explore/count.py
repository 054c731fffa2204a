"""How many events are probably wanted, and the threshold of the posterior mean that finds them.

An event is wanted if its signal is above `HALF`. The number follows from draws of the whole signal given the
judgements: a draw of the prior by random features (Rahimi and Recht 2007, NIPS), corrected by the judgements
(Matheron's rule; Wilson et al. 2020, ICML, equation 13).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from dpmix.explore.covariance import JudgementCovariance
from dpmix.explore.posterior import EventPosterior, Judged
from dpmix.model.mixture import Array, Floats, Ints

Bools = npt.NDArray[np.bool_]

HALF = 0.5
"""Between unwanted, 0, and wanted, 1."""

FEATURES = 1_024
DRAWS = 200
MOST = 20_000
"""Events at which the signal is drawn."""

REMOTE = 4.0
"""An event whose mean is more posterior standard deviations below `HALF` is not wanted: 3 in 100,000 are."""

LEAST_THRESHOLD = 0.3
"""Below it, the expected F1 counts on events about which little is known; thresholds are at most `HALF`."""

TIE = 0.01
"""Thresholds whose expected F1 is this close count as equal. The lowest also finds cells of other files."""


@dataclass(frozen=True)
class Found:
    """The events that are found, and the number of those that are wanted.

    Attributes
    ----------
    threshold : float
        Events whose posterior mean is at least this are found: the threshold with the highest expected F1.
    n_found : int
    number, low, high : float
        Median number of wanted events among those judged or found, its 5% quantile, and the 95% quantile with
        those that may be missed.
    precision, recall : float
        Among what was judged, each event by the mean given the other judgements; NaN where no such event is
        above the threshold, or none is wanted.
    checks, hits : int
        Judged checks above the threshold by the mean given the other judgements, and those that were wanted.
    """

    threshold: float
    n_found: int
    number: float
    low: float
    high: float
    precision: float
    recall: float
    checks: int
    hits: int


def threshold_of(posterior: EventPosterior) -> float | None:
    """Return the lowest threshold of the mean with nearly the highest expected F1.

    None if no judgement is above `HALF`. An event is wanted with the probability that its signal is above
    `HALF`.
    """
    if not (posterior.judged.values > HALF).any():
        return None
    near = _near(posterior)
    order = near[np.argsort(-posterior.mean[near], kind="stable")]
    wanted = ndtr(_scores(posterior, order)).cumsum()
    f1 = 2.0 * wanted / (np.arange(1, len(order) + 1) + wanted[-1])
    best = float(posterior.mean[order[np.flatnonzero(f1 >= (1.0 - TIE) * f1.max())[-1]]])
    return min(max(best, LEAST_THRESHOLD), HALF)


def find(posterior: EventPosterior, events: Floats, rows: Ints, checks: Bools, seed: int) -> Found | None:
    """Return the events that are found and the number of those wanted.

    None if no judgement is above `HALF`. The number has two parts: judged events, by draws of the signal, and
    unjudged events above the threshold, times the share of wanted ones among checks, which were random ones
    of these. Its lower end leaves out events below the threshold. The upper end has them, by draws of the
    signal times a factor, and takes all judgements as right. Where little is known, the signal's prior
    expects more wanted events than a rare population has. The factor, with a gamma posterior, compares the
    wanted ones among judged events that were below the threshold with the number expected.

    Parameters
    ----------
    posterior : EventPosterior
    events : float32 [N, D]
    rows : int64 [n]
        Judged events.
    checks : bool [n]
        Judged events that were random ones of those found.
    seed : int
        Seed of the draws.
    """
    threshold = threshold_of(posterior)
    if threshold is None:
        return None
    judged, random = posterior.judged, np.random.default_rng([seed, len(rows)])
    # Each judged event by the others: given its own judgement, it would nearly always be on its side.
    above, wanted = judged.left_out()[0] >= threshold, judged.values > HALF
    checked, hits = int((above & checks).sum()), int((above & checks & wanted).sum())
    is_found = posterior.mean >= np.float32(threshold)
    open_found = is_found.copy()
    open_found[rows] = False
    near = _near(posterior)
    below = np.setdiff1d(near[~is_found[near]], rows)
    sure = _numbers(judged, events, rows, random)
    unsure = _numbers(judged, events, below, random) * _surprises(judged, threshold, random)
    checked_share = open_found.sum() * random.beta(0.5 + hits, 0.5 + checked - hits, DRAWS)
    most = np.maximum(sure, float(wanted.sum())) + checked_share + unsure
    low, number = np.quantile(sure + checked_share, (0.05, 0.5), method="weibull").tolist()
    high = min(float(np.quantile(most, 0.95, method="weibull")), float(len(events)))
    both = int((above & wanted).sum())
    return Found(
        threshold=threshold,
        n_found=int(is_found.sum()),
        number=number,
        low=low,
        high=high,
        precision=both / int(above.sum()) if above.any() else float("nan"),
        recall=both / int(wanted.sum()),
        checks=checked,
        hits=hits,
    )


def _surprises(judged: Judged, threshold: float, random: np.random.Generator) -> Array:
    """Return draws of the factor by which wanted events below the threshold exceed what the model expects.

    Expected by the posterior given the other judgements, wanted by that given all. Given the factor, the
    number is Poisson.

    Returns
    -------
    float64 [DRAWS]
    """
    before, after = judged.left_out(), judged.smoothed()
    below = before[0] < threshold
    expected, wanted = (
        float(ndtr((means[below] - HALF) / np.sqrt(np.maximum(variances[below], 1e-12))).sum())
        for means, variances in (before, after)
    )
    return random.gamma(0.5 + wanted, 1.0 / (0.5 + expected), DRAWS)


def _scores(posterior: EventPosterior, rows: Ints) -> Array:
    """Return how many posterior standard deviations the mean is above `HALF`, float64 [M]."""
    sd = np.sqrt(np.maximum(posterior.variance[rows], np.float32(1e-12)))
    scores: Array = ((posterior.mean[rows] - np.float32(HALF)) / sd).astype(np.float64)
    return scores


def _near(posterior: EventPosterior) -> Ints:
    """Return the events that may be wanted."""
    near = np.flatnonzero(posterior.mean + np.float32(REMOTE) * posterior.sd > np.float32(HALF))
    return near if len(near) else np.array([int(posterior.mean.argmax())])


def _numbers(judged: Judged, events: Floats, rows: Ints, random: np.random.Generator) -> Array:
    """Return draws of the number of wanted ones among events, float64 [DRAWS]."""
    if not len(rows):
        return np.zeros(DRAWS)
    taken = random.choice(rows, MOST, replace=False) if len(rows) > MOST else rows
    drawn = draw_signals(judged, np.asarray(events[taken], np.float64), DRAWS, random)
    numbers: Array = (drawn > HALF).sum(axis=0) * (len(rows) / len(taken))
    return numbers


def draw_signals(judged: Judged, events: Array, n_draws: int, random: np.random.Generator) -> Array:
    """Return draws of the posterior signal at events, float64 [M, n_draws].

    The features make the prior of a draw approximately Gaussian with the covariance; the correction by the
    judgements is exact. Features of events are float32: NumPy's cosine takes a tenth of the time, and the
    rounding, about 1e-6 and more only for the few highest frequencies of the laplacian, is far below the
    standard deviation of a draw.
    """
    covariance = judged.covariance
    frequencies, phases = _features(covariance, events.shape[1], random)
    weights = random.standard_normal((FEATURES, n_draws)) * np.sqrt(2.0 * covariance.variance / FEATURES)
    noise = np.sqrt(covariance.noise) * random.standard_normal((len(judged.values), n_draws))
    at_points = np.cos(judged.points @ frequencies + phases) @ weights
    # Matheron's rule: a draw of the prior plus the posterior mean of what it misses at the judgements is a
    # draw of the posterior.
    corrections = judged.inverse @ (judged.values[:, None] - at_points - noise)
    angles = events.astype(np.float32) @ frequencies.astype(np.float32)
    angles += phases.astype(np.float32)
    drawn: Array = (np.cos(angles, out=angles) @ weights.astype(np.float32)).astype(np.float64)
    drawn += covariance.between(events, judged.points) @ (judged.inverse.T @ corrections)
    return drawn


def _features(
    covariance: JudgementCovariance, n_channels: int, random: np.random.Generator
) -> tuple[Array, Array]:
    """Return frequencies, float64 [D, FEATURES], from the covariance's spectrum, and phases [FEATURES]."""
    shape = (n_channels, FEATURES)
    laplacian = covariance.shape == "laplacian"
    frequencies = random.standard_cauchy(shape) if laplacian else random.standard_normal(shape)
    return frequencies / covariance.ranges[:, None], random.uniform(0.0, 2.0 * np.pi, FEATURES)
