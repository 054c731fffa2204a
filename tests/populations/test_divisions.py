"""Components that lie in several populations are divided."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.special import logsumexp
from scipy.stats import norm
from test_find import Normals, cpu, memberships, normals, terms_of, write_run

from dpmix.populations.cohort import OwnTerms
from dpmix.populations.convergence import chain_weights, mixing, proportion_mixing
from dpmix.populations.divisions import WHOLE, Division, divide, in_several
from dpmix.populations.find import Populations, find_populations
from dpmix.runs.reader import Run

Array = np.ndarray

BRIDGE = 0.2  # weight of the component in both populations
N_DRAWS = 40


def bridged(place: float, rng: np.random.Generator) -> Normals:
    """Return a draw: two populations at 0 and 5, and a broad component between them, at a place near 2.5.

    The weights of the populations below and above 2.5 do not depend on the place.
    """
    more = BRIDGE * (norm.cdf((2.5 - place) / 1.5) - 0.5)
    mixture = normals(
        (0.45 - more, (0.0, 0.0), 0.8), (0.35 + more, (5.0, 0.0), 0.8), (BRIDGE, (place, 0.0), 1.5)
    )
    concentration = 2_000 * mixture.weights
    return Normals(rng.dirichlet(concentration), mixture.means, mixture.covariances).shuffled(rng)


def run_of(path: Path) -> Run:
    """Write a run of four chains: the bridge is nearer to one population in two, to the other in two."""
    rng = np.random.default_rng(4)
    places = (2.3, 2.35, 2.65, 2.7)
    return write_run(path, [[bridged(place, rng) for _ in range(N_DRAWS)] for place in places])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("bridged") / "run.h5")


@pytest.fixture(scope="module")
def found(run: Run) -> Populations:
    return find_populations(run, cpu, n_draws=40)


@pytest.mark.parametrize("n_draws", [40, 4 * N_DRAWS])
def test_divided_weights_agree_and_chains_with_other_arrangements_are_seen(run: Run, n_draws: int) -> None:
    monitored = chain_weights(find_populations(run, cpu, n_draws=n_draws), cpu)
    assert mixing(monitored.divided)[0].max() < 1.07
    assert proportion_mixing(monitored)[0].max() > 1.3


def test_the_bridge_is_divided_in_every_draw_by_draws_of_all_chains(found: Populations) -> None:
    assert found.n_populations == 2
    assert all(len(one.components) == 1 for one in found.divisions)
    assert {one.guide for one in found.divisions} == set(range(len(found.pooled)))
    assert len({int(found.draws[t, 0]) for t in found.pooled}) == 4
    np.testing.assert_allclose(found.weights.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_allclose(found.weights.mean(axis=0), [0.55, 0.45], atol=0.03)


def test_events_of_a_divided_component_have_the_memberships_of_the_guide(found: Populations) -> None:
    events = np.random.default_rng(6).normal(2.5, 2.0, (300, 2)).astype(np.float32)
    numbers = [np.eye(2)[own] for own in found.components]
    of_components = []
    for draw in found.draws:
        terms = terms_of(found.run, draw, events.astype(float))
        of_components.append(np.exp(terms - logsumexp(terms, axis=1, keepdims=True)))
    for t, (shares, _) in enumerate(memberships(found, events)):
        ((bridge,), _, guide) = found.divisions[t]
        by = int(found.pooled[guide])
        whole = np.delete(of_components[t], bridge, axis=1) @ np.delete(numbers[t], bridge, axis=0)
        divided = of_components[t][:, [bridge]] * (of_components[by] @ numbers[by])
        np.testing.assert_allclose(shares, whole + divided, atol=1e-5)
        if by != t:
            constant = (
                of_components[t][:, [bridge]] * found.divisions[t].shares
            )  # wrong: wherever the event is
            assert np.abs(shares - whole - constant).max() > 0.1


def test_memberships_in_one_draw_are_those_of_all_draws(found: Populations) -> None:
    events = np.random.default_rng(1).normal(2.5, 2.0, (200, 2)).astype(np.float32)
    engine = cpu(events)
    for t, (shares, log_density) in enumerate(found.memberships(engine, 0, len(events))):
        alone, of_draw = found.memberships_in(t, engine, 0, len(events))
        np.testing.assert_allclose(alone, shares, atol=1e-6)
        np.testing.assert_allclose(of_draw, log_density, rtol=1e-6)


def test_a_sample_with_the_weights_of_the_run_has_its_memberships(found: Populations) -> None:
    events = np.random.default_rng(2).normal(2.5, 2.0, (200, 2)).astype(np.float32)
    logs = np.array([found.mixture(*draw).log_weights for draw in found.draws])
    own = OwnTerms(logs, np.zeros((len(logs), 2)))
    engine = cpu(events)
    given = zip(found.memberships(engine, 0, 200, own), found.memberships(engine, 0, 200), strict=True)
    for (shares, _), (of_run, _) in given:
        np.testing.assert_allclose(shares, of_run, atol=1e-6)


def test_which_components_are_divided() -> None:
    counts = np.array([[99, 1], [97, 3], [0, 0], [30, 70]])
    assert WHOLE - 0.01 == 0.97
    np.testing.assert_array_equal(in_several(counts), [1, 3])


def test_shares_are_those_of_the_events_of_the_component(found: Populations) -> None:
    """By points of the mean density, in float64."""
    points = found.points.astype(float)
    unit = [np.eye(2)[own] for own in found.components]
    logs = [terms_of(found.run, draw, points) for draw in found.draws]
    of_components = [np.exp(own - logsumexp(own, axis=1, keepdims=True)) for own in logs]
    for t, ((bridge,), shares, guide) in enumerate(found.divisions):
        by = int(found.pooled[guide])
        wanted = of_components[t][:, bridge] @ (of_components[by] @ unit[by])
        np.testing.assert_allclose(shares, wanted / wanted.sum(), atol=0.03)  # here by a tenth of the points
        assert shares.sum() == pytest.approx(1.0)


def test_a_population_that_no_point_shows_has_some_weight(found: Populations) -> None:
    """A weight of 0 would leave an event that belongs to it alone without a population."""
    points = np.array([[0.0, 0.0], [1.0, 0.0]], np.float32)
    guide = found.mixture(*found.draws[0])
    (one,) = divide(cpu(points), [lambda: guide], [np.arange(3)], [guide], np.zeros((1, 3), int), 2)
    np.testing.assert_allclose(one.shares, [1.0, 1e-5], rtol=1e-4)


def test_sums_of_divided_and_whole_components() -> None:
    division = Division(np.array([1, 3]), np.array([0.6, 0.4]), 0)
    sums = division.sums(np.array([0.4, 0.2, 0.1, 0.3]), np.array([0, 0, 1, 1]))
    np.testing.assert_allclose(sums, [0.4 + 0.3, 0.1 + 0.2])


def test_without_divided_components_sums_are_those_of_whole_ones() -> None:
    none = Division(np.empty(0, np.int64), np.zeros(3), 0)
    np.testing.assert_allclose(none.sums(np.array([0.5, 0.2, 0.3]), np.array([2, 0, 2])), [0.2, 0.0, 0.8])
