"""Cell types by labelled events: each part next to a wrong one that fails."""

from __future__ import annotations

import numpy as np
import pytest

from dpmix.model.mixture import Mixture
from dpmix.populations.types.examples import (
    DISPERSION,
    FEWEST,
    MOST,
    UNSEEN,
    choose_labelled,
    dispersion,
    divide,
    fit_powers,
    log_experts,
    pool,
    unseen,
)

Array = np.ndarray


def mixture(means: Array) -> Mixture:
    """Components of covariance I and equal weights."""
    k, dim = means.shape
    return Mixture(
        log_weights=np.full(k, -np.log(k)),
        means=means,
        whiteners=np.tile(np.eye(dim), (k, 1, 1)),
        log_norms=np.full(k, -0.5 * dim * np.log(2 * np.pi)),
    )


def memberships(values: Array, means: Array) -> Array:
    logs = -0.5 * ((values[:, None] - means) ** 2).sum(axis=2)
    found = np.exp(logs - logs.max(axis=1, keepdims=True))
    return (found / found.sum(axis=1, keepdims=True)).astype(np.float32)


def test_a_component_without_labels_is_unseen_if_labels_were_to_be_expected() -> None:
    u = unseen(np.array([0.0, 0.0, 50.0, 45.0]), np.array([50.0, 0.01, 50.0, 90.0]), 100.0)
    assert u[0] > 0.99
    assert u[1] == pytest.approx(UNSEEN, abs=0.01)  # nothing was to be expected: the prior
    assert u[2] < 1e-6
    assert u[3] < 1e-6


def test_files_that_differ_make_missing_labels_less_surprising() -> None:
    found, expected = np.array([0.0]), np.array([8.0])
    assert unseen(found, expected, 0.5)[0] < 0.55
    assert unseen(found, expected, 100.0)[0] > 0.98  # the wrong rule: files that do not differ


def test_dispersion_is_found_again() -> None:
    random = np.random.default_rng(1)
    sizes = random.uniform(50.0, 500.0, 60)
    factors = random.gamma(2.0, 0.5, (12, 60))
    assert dispersion(random.poisson(sizes * factors).astype(float)) == pytest.approx(2.0, rel=0.4)
    assert dispersion(random.poisson(np.tile(sizes, (12, 1))).astype(float)) > 30.0
    assert dispersion(sizes[None]) == DISPERSION[1]


def test_a_component_is_divided_by_its_labelled_events() -> None:
    random = np.random.default_rng(2)
    means = np.array([[0.0, 0.0], [20.0, 0.0]])
    values = np.vstack([random.normal((x, 0.0), 0.5, (400, 2)) for x in (-1.2, 1.2, 20.0)]).astype(np.float32)
    labels = np.repeat([0, 1, 1], 400)
    own = memberships(values, means)
    found = divide(mixture(means), own, values, labels, np.array([0, 1]), 1.0, 3)
    assert list(found.parts) == [0]
    shares = found.probabilities(own, values)
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares.argmax(axis=1) == labels).mean() > 0.98
    assert shares[:, 2].max() < 0.01  # no event of no type was labelled
    whole = own @ found.shares  # the wrong rule: shares of components only
    assert (whole.argmax(axis=1) == labels).mean() < 0.85


def test_a_component_without_labels_takes_the_shares_of_its_population() -> None:
    means = np.array([[0.0, 0.0], [4.0, 0.0], [30.0, 0.0], [33.0, 0.0]])
    values = np.repeat(means[[0, 2]], [30, 60], axis=0).astype(np.float32)
    labels = np.repeat([0, 1], [30, 60])
    own = memberships(values, means)
    found = divide(mixture(means), own, values, labels, np.array([0, 0, 1, 1]), 1.0, 3)
    assert found.shares[1].argmax() == 0
    assert found.shares[3].argmax() == 1
    alone = divide(
        mixture(means), own, values, labels, np.arange(4), 1.0, 3
    )  # the wrong rule: no populations
    assert alone.shares[1].argmax() == 1


def test_powers_follow_what_the_labels_say() -> None:
    random = np.random.default_rng(3)
    labels = random.integers(0, 3, 2_000)
    classes = np.arange(3)
    sharp = np.where(np.eye(3)[labels] > 0, 0.4, 0.3)  # right, and not sure enough
    useless = random.dirichlet(np.ones(3), 2_000)
    logs = [log_experts(one, classes) for one in (np.stack([sharp, sharp]), useless[None])]
    powers = fit_powers(logs, labels)
    assert powers[0] > 2.0
    assert powers[1] < 0.02
    n = np.arange(len(labels))
    equal = pool(logs, np.array([0.5, 0.5]))[..., n, labels]  # the wrong rule: experts count alike
    assert -np.log(pool(logs, powers)[..., n, labels]).mean() < 0.5 * -np.log(equal).mean()


def test_a_class_without_labels_gets_nothing() -> None:
    logs = log_experts(np.full((5, 4), 0.25), np.array([0, 2]))
    np.testing.assert_allclose(
        pool([logs], np.array([1.0])), np.tile([0.5, 0.0, 0.5, 0.0], (5, 1)), atol=1e-12
    )


def test_rare_types_stay_among_the_events_that_are_used() -> None:
    labels = np.zeros(3 * MOST, np.int64)
    labels[: 2 * FEWEST] = 1
    labels[2 * FEWEST : 2 * FEWEST + 5] = -1
    found = choose_labelled(labels, 2, np.random.default_rng(4))
    assert len(found) <= MOST + 2 * FEWEST
    assert (labels[found] == 1).sum() >= FEWEST
    assert (labels[found] >= 0).all()
