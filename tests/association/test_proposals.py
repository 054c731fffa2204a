"""Points of the integrals have the densities that they say, and adapt to posteriors with two modes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy import stats

from dpmix.association.proposals import ENOUGH, LEAST_SHARE, TAILS, WIDEN, Proposals

Array = np.ndarray
MEANS, SDS = np.array([[-3.0, 0.0], [3.0, 1.0]]), np.full((2, 2), 0.2)
SHARES = np.array([[0.3, 0.7], [1.0, 0.0]])  # of the kinds in two responses


def target(points: Array) -> Array:
    """Return the log density of two responses, a mixture of two narrow normals each, [2, N]."""
    each = np.stack([stats.multivariate_normal(m, 0.04).logpdf(points) for m in MEANS], axis=-1)
    return np.asarray(np.logaddexp.reduce(each + np.log(np.maximum(SHARES, 1e-300))[:, None], axis=-1))


def adapted(rounds: int) -> Proposals:
    made = Proposals.around(np.zeros((2, 2)), np.ones(2), 2)
    for seed in range(rounds):
        points, logs = made.draw(seed, 128)
        kinds = np.stack([points[..., 0] < 0.0, points[..., 0] >= 0.0], axis=-1).astype(np.float64)
        made = made.adapted(points, target(points) - logs, kinds, MEANS, SDS)
    return made


def test_the_log_density_is_that_of_the_points() -> None:
    """Up to the constant of the t distribution, which all points share."""
    made = adapted(2)
    points, logs = made.draw(7, 64)
    for q in range(2):
        forms = [
            stats.multivariate_t(c, (WIDEN * r) @ (WIDEN * r).T, df=TAILS)
            for c, r in zip(made.centres[q], made.roots[q], strict=True)
        ]
        plain = np.logaddexp.reduce(
            [np.log(s) + f.logpdf(points[q]) for s, f in zip(made.shares[q], forms, strict=True)]
        )
        np.testing.assert_allclose(np.diff(logs[q]), np.diff(plain), atol=1e-8)


def shares_of_mass(made: Proposals) -> Array:
    """Return the shares of the mass of the targets at the first kind, by importance sampling."""
    points, logs = made.draw(9, 512)
    weights = np.exp(target(points) - logs)
    return np.asarray((weights * (points[..., 0] < 0.0)).sum(axis=1) / weights.sum(axis=1))


def test_two_modes_are_found_and_weighed() -> None:
    made = adapted(6)
    points, logs = made.draw(9, 512)
    weights = np.exp(target(points) - logs)
    assert ((weights.sum(axis=1) ** 2 / (weights**2).sum(axis=1)) > 4.0 * ENOUGH).all()
    np.testing.assert_allclose(shares_of_mass(made), [0.3, 1.0], atol=0.03)
    # A kind that a response is not of keeps a share, in case it seemed so by chance.
    assert made.shares[1, 1] > 0.9 * LEAST_SHARE / (1.0 + 2.0 * LEAST_SHARE)


def test_points_of_one_kind_alone_fail() -> None:
    made = adapted(6)
    first = np.tile([1.0 - 1e-9, 1e-9], (2, 1))
    assert abs(shares_of_mass(replace(made, shares=first))[0] - 0.3) > 0.2
