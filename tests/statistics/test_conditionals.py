"""Compare labels near and far, each kind of label swap, and densities with SciPy in float64.

The conditionals of parameters, sticks and alpha are in test_gibbs.py, of hyperparameters in
test_hyperparameters.py.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import numpy as np
import pytest
from comparisons import FAMILY, family_wise, worst
from exact_cases import frequencies, log_label_prior
from scipy import stats as st
from scipy.special import logsumexp
from whole_chain import FIXED, Array, Floats, Ints, MakeEngine, cpu_engine

from dpmix.model import gibbs, label_swaps
from dpmix.model.mixture import Mixture, log_norms, log_weights, mixture_of
from dpmix.model.streams import Key, Stream

# Labels


def along_a_line(distance: float) -> tuple[Array, Array, Array, Floats]:
    """Return weights, means and covariances of four normals, and an event at this distance from all.

    The distance is in standard deviations. Far away, the label is random only if all covariances are equal.
    """
    covariance = np.array([[1.0, 0.5, 0.2], [0.5, 2.0, -0.3], [0.2, -0.3, 0.6]])
    root = np.linalg.cholesky(covariance)
    across = np.array([[0.0, 0.0, 0.0], [0.0, 0.7, 0.3], [0.0, -0.5, 0.4], [0.0, 0.2, -0.8]])
    event = root @ np.array([distance, 0.1, 0.1])
    scales = np.array([1.0, 1.3, 0.8, 1.1]) if distance < 100.0 else np.ones(4)
    covariances = scales[:, None, None] * covariance
    return np.array([0.2, 0.1, 0.4, 0.3]), across @ root.T, covariances, event.astype(np.float32)


def label_frequencies(make_engine: MakeEngine, distance: float, seed: int = 1) -> float:
    """Return the p-value of 20,000 labels of one event, by chi-square from their exact probabilities."""
    weights, means, covariances, event = along_a_line(distance)
    rounded = means.astype(np.float32).astype(float)  # as engines hold them
    each = [
        st.multivariate_normal(mean, covariance).logpdf(event.astype(float))
        for mean, covariance in zip(rounded, covariances, strict=True)
    ]
    log_joint = np.log(weights) + each
    exact = np.exp(log_joint - logsumexp(log_joint))
    assert exact.min() > 0.01
    whiteners = np.linalg.inv(np.linalg.cholesky(covariances))
    mixture = Mixture(np.log(weights), means, whiteners, log_norms(whiteners))
    counts = make_engine(np.tile(event, (20_000, 1))).draw_labels(mixture, Key(seed, 0, 1)).counts
    return float(st.chisquare(counts, 20_000 * exact).pvalue)


DISTANCES = (0.5, 4.0, 1000.0)


@pytest.mark.parametrize("distance", DISTANCES)
def test_labels_near_and_far_have_their_probabilities(distance: float) -> None:
    assert label_frequencies(cpu_engine, distance) > FAMILY


def test_the_log_likelihood_is_that_of_the_mixture() -> None:
    state = gibbs.draw_prior(FIXED.prior, 4, 2.0, Stream(2, 0, 0))
    events = np.random.default_rng(3).normal(size=(200, 2)).astype(np.float32)
    each = [
        log_weight + st.multivariate_normal(mean, covariance).logpdf(events.astype(float))
        for log_weight, mean, covariance in zip(
            state.log_weights, state.means, state.covariances, strict=True
        )
    ]
    expected = logsumexp(each, axis=0)
    engine = cpu_engine(events)
    stats = engine.draw_labels(mixture_of(state), Key(1, 0, 1))
    assert stats.log_likelihood == pytest.approx(expected.sum(), rel=1e-6)
    _, log_densities = engine.memberships(mixture_of(state), np.zeros(4, int), 0, 200)
    assert log_densities == pytest.approx(expected, abs=1e-5)


# Label swaps, each kind alone: given counts and sticks, the order of components is discrete

COUNTS = [3.0, 1.0, 0.0, 2.0]
ALPHA = 1.3
STICKS = np.array([0.3, 0.6, 0.45])


def number(arrangements: Array) -> Ints:
    return np.asarray(arrangements @ 4.0 ** np.arange(4)).astype(int)


def arrangements(move: Callable[[Ints], label_swaps.Exchange], count: int) -> Ints:
    """Return the arrangement of the counts after each of `count` rounds of one kind of move."""
    order, visited = np.arange(4), []
    for _ in range(count):
        order = order[move(order).order]
        visited.append(np.array(COUNTS)[order])
    return number(np.array(visited))


def swap_moves(count: int = 6000, seed: int = 1) -> dict[str, float]:
    """Return p-values of the orders visited by each kind of move, given their exact probabilities."""
    rng = np.random.default_rng(seed)
    rows = np.array(list(permutations(range(4))))
    counts = np.array(COUNTS)[rows]
    log_sticks, log1m_sticks = np.log(STICKS), np.log1p(-STICKS)
    weights = log_weights(log_sticks, log1m_sticks)

    # the second move exchanges sticks, too: a component keeps its stick, and the last keeps its place
    inner = rows[rows[:, 3] == 3]
    moved_weights = np.array([log_weights(log_sticks[r[:3]], log1m_sticks[r[:3]]) for r in inner])

    held = np.array(COUNTS)

    moves: dict[str, tuple[Callable[[Ints], label_swaps.Exchange], Array, Array]] = {
        "first swap": (
            lambda order: label_swaps.exchange_any(held[order], weights, rng),
            counts,
            counts @ weights,
        ),
        "second swap": (
            lambda order: label_swaps.exchange_with_sticks(held[order], log1m_sticks[order[:3]], rng),
            counts[rows[:, 3] == 3],
            (counts[rows[:, 3] == 3] * moved_weights).sum(axis=1),
        ),
        "third swap": (
            lambda order: label_swaps.exchange_collapsed(held[order], ALPHA, rng),
            counts,
            log_label_prior(counts, np.array([ALPHA]))[0],
        ),
    }
    return {
        name: frequencies(
            arrangements(move, count), number(exact), np.exp(log_exact - logsumexp(log_exact)), 100
        )
        for name, (move, exact, log_exact) in moves.items()
    }


def test_each_label_swap_visits_orders_as_often_as_they_are_probable() -> None:
    p_values = swap_moves()
    assert family_wise(p_values) > FAMILY, worst(p_values)
