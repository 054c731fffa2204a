"""The tree of populations of a mixture."""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.stats import multivariate_normal, norm

from dpmix.engines.cpu import CpuEngine
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.populations.tree import modes as tree_modes
from dpmix.populations.tree import tree as trees
from dpmix.populations.tree.merging import Merging
from dpmix.populations.tree.modes import (
    Density,
    MakeEngine,
    Saddle,
    find_modes,
    find_saddles,
    nearest_components,
)
from dpmix.populations.tree.tree import LEVEL, Tree, find_peaks, valley_tolerance
from dpmix.populations.tree.valleys import MEASURABLE, VALLEY, Separation

Array = NDArray[np.float64]
MANY = 10_000_000  # events: no variation by chance


def normals(means: Array, sds: float | Array = 1.0) -> tuple[Array, Array]:
    means = np.asarray(means, float)
    return means, np.eye(means.shape[1]) * np.square(np.broadcast_to(sds, len(means)))[:, None, None]


def random_mixture(n_components: int, dim: int, seed: int) -> tuple[Array, Array, Array]:
    random = np.random.default_rng(seed)
    roots = random.normal(size=(n_components, dim, dim)) / np.sqrt(dim) + np.eye(dim)
    return (
        random.dirichlet(np.ones(n_components)),
        2.5 * random.normal(size=(n_components, dim)),
        roots @ np.swapaxes(roots, 1, 2),
    )


def tree_of(
    weights: Array,
    means: Array,
    covariances: Array,
    n_events: int,
    make_engine: MakeEngine,
    n_draws: int = 1,
    turn: Array | None = None,
) -> Tree:
    """Return the tree of a mixture with events drawn from it, before the channels are mixed linearly."""
    random = np.random.default_rng(11)
    counts = random.multinomial(min(n_events, 40_000), weights / weights.sum())
    roots = np.linalg.cholesky(covariances)
    parts = [m + random.normal(size=(n, len(m))) @ r.T for n, m, r in zip(counts, means, roots, strict=True)]
    events, turn = np.concatenate(parts), np.eye(means.shape[1]) if turn is None else turn
    mixture = weights, means @ turn.T, turn @ covariances @ turn.T
    peaks = find_peaks(*mixture, n_events, make_engine, n_draws)
    heavy = np.flatnonzero(weights)
    nearest = nearest_components(*(part[heavy] for part in mixture), events @ turn.T)
    separation = Separation(peaks.moments, (events @ turn.T).astype(np.float32), peaks.modes[heavy][nearest])
    return peaks.tree(separation)[0]


def log_density(mixture: tuple[Array, Array, Array], points: Array) -> Array:
    """Return the log density of a mixture with scipy."""
    terms = [np.log(w) + multivariate_normal(m, c).logpdf(points) for w, m, c in zip(*mixture, strict=True)]
    return np.logaddexp.reduce(np.array(terms), axis=0)


@pytest.mark.parametrize(("gap", "count"), [(1.9, 1), (2.5, 1), (2.75, 1), (3.0, 2), (5.0, 2)])
def test_two_equal_normals_are_two_populations_from_the_level_on(gap: float, count: int) -> None:
    tree = tree_of(np.full(2, 0.5), *normals([[0.0, 0.0], [gap, 0.0]]), MANY, CpuEngine)
    assert tree.cut(LEVEL).max() + 1 == count
    if len(tree.levels) and tree.levels[0] > 0:
        expected = gap if gap > MEASURABLE else gap / VALLEY
        assert tree.levels[0] == pytest.approx(expected, abs=0.12)  # the kernel fills valleys a little


def test_the_level_does_not_change_with_a_linear_map_of_the_channels() -> None:
    weights, means, covariances = random_mixture(6, 4, seed=3)
    means = 3 * means
    tree = tree_of(weights, means, covariances, MANY, CpuEngine)
    turn = np.random.default_rng(1).normal(size=(4, 4))
    turned = tree_of(weights, means, covariances, MANY, CpuEngine, turn=turn)
    np.testing.assert_allclose(turned.levels, tree.levels, rtol=1e-3)
    np.testing.assert_array_equal(turned.cut(LEVEL), tree.cut(LEVEL))
    assert len(np.unique(tree.levels)) > 1


def test_modes_are_where_the_density_has_its_peaks() -> None:
    mixture = random_mixture(8, 3, seed=5)
    tree = tree_of(*mixture, MANY, CpuEngine)
    np.testing.assert_allclose(log_density(mixture, tree.points), tree.heights, rtol=5e-6)
    for point in tree.points:
        peak = minimize(lambda x: -np.sum(log_density(mixture, np.array([x, x]))) / 2, point, tol=1e-12)
        np.testing.assert_allclose(peak.x, point, atol=5e-3)
    assert (np.diff(tree.heights) <= 0).all()
    for mean, mode in zip(mixture[1], tree.modes, strict=True):
        assert log_density(mixture, np.array([mean, mean]))[0] <= tree.heights[mode] + 1e-4


def test_the_saddle_of_two_normals_is_the_lowest_point_between_them() -> None:
    weights, sds, gap = np.array([0.3, 0.7]), np.array([1.0, 1.5]), 6.0
    means, covariances = normals([[0.0], [gap]], sds)
    density = Density(weights, means, covariances, CpuEngine)
    own, points, heights = find_modes(density)
    (saddle,) = find_saddles(density, own, points, heights, 100, lambda events: 0.0)
    x = np.linspace(points.min(), points.max(), 20_001)
    lowest = np.log(weights @ norm.pdf(x, means, sds[:, None])).min()
    assert heights.min() - saddle.prominence == pytest.approx(lowest, abs=0.02)
    lesser = own[np.argmin([heights[m] for m in own])]
    assert saddle.child == lesser
    assert saddle.events == pytest.approx(100 * weights[own == lesser].sum())


def path_minima(mixture: tuple[Array, Array, Array], modes: Array, own: Array) -> Array:
    """Return the best of the lowest log densities of all paths between two modes, [L, L]; all points."""
    _, means, covariances = mixture
    precisions, best = np.linalg.inv(covariances), np.full((len(modes), len(modes)), -np.inf)
    shares = np.linspace(0.0, 1.0, 53)
    for i, j in itertools.combinations(range(len(means)), 2):
        pulls = [(1 - a) * precisions[i] @ means[i] + a * precisions[j] @ means[j] for a in shares]
        totals = [(1 - a) * precisions[i] + a * precisions[j] for a in shares]
        ridge = np.array([np.linalg.solve(*both) for both in zip(totals, pulls, strict=True)])
        u, v = sorted((own[i], own[j]))
        best[u, v] = max(best[u, v], log_density(mixture, ridge).min())
    for u, v in itertools.combinations(range(len(modes)), 2):
        line = modes[u] + np.linspace(0.0, 1.0, 53)[:, None] * (modes[v] - modes[u])
        best[u, v] = max(best[u, v], log_density(mixture, line).min())
    return best


@pytest.mark.parametrize(("n_components", "dim", "seed"), [(14, 3, 1), (20, 5, 2), (25, 2, 3), (12, 8, 4)])
def test_saddles_are_the_best_of_all_paths(
    n_components: int, dim: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_modes, "ROUND", 4)  # several rounds
    mixture = random_mixture(n_components, dim, seed)
    density = Density(*mixture, CpuEngine)
    own, points, heights = find_modes(density)
    saddles = find_saddles(density, own, points, heights, 100, lambda events: 0.0)
    lowest = np.minimum(path_minima(mixture, points, own), np.minimum.outer(heights, heights))
    tree = minimum_spanning_tree(np.triu(heights.max() + 1.0 - lowest, 1))  # costs above 0
    expected = np.sort(heights.max() + 1.0 - tree.data)[::-1]
    branch = np.arange(len(heights))
    found = []
    for saddle in saddles:
        lesser, greater = branch[saddle.child], branch[saddle.parent]
        found.append(heights[lesser] - saddle.prominence)
        branch[branch == lesser] = greater
    assert len(heights) > 4
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("seed", range(8))
def test_valleys_are_the_same_if_shallow_ones_are_not_measured(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_modes, "ROUND", 2)
    density = Density(*random_mixture(40, 2, seed), CpuEngine)
    own, points, heights = find_modes(density)

    def valleys(measured_from: float) -> tuple[list[Saddle], list[int]]:
        """Return the saddles of valleys deeper than 0.2 nats, and the first mode in the place of each."""
        saddles = find_saddles(density, own, points, heights, 100, lambda events: measured_from)
        merging = Merging(np.arange(len(heights)))
        for saddle in saddles:
            if saddle.prominence < 0.2:
                merging.join(saddle.child, saddle.parent, 0.0)
        places = [int(np.argmax(merging.members(mode))) for mode in range(len(heights))]
        return [saddle for saddle in saddles if saddle.prominence >= 0.2], places

    all_measured, expected = valleys(0.0)
    found, places = valleys(0.2)
    assert places == expected
    assert len(set(places)) < len(places)  # there are modes without a valley
    assert found == all_measured


@pytest.mark.parametrize(("dim", "seed"), [(2, 9), (3, 6), (5, 8)])
def test_points_that_meet_climb_to_the_same_modes_as_alone(
    dim: int, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    density = Density(*random_mixture(60, dim, seed), CpuEngine)
    together, points, _ = find_modes(density)
    monkeypatch.setattr(tree_modes, "CLIMB_TOGETHER", tree_modes.CLIMB_STEPS + 1)
    alone, expected, _ = find_modes(density)
    assert together.tolist() == alone.tolist()
    np.testing.assert_allclose(points, expected, atol=tree_modes.SAME_MODE / 2.0)


def test_a_chain_of_normals_is_one_population() -> None:
    means, covariances = normals([[1.5 * k, 0.0] for k in range(8)])
    tree = tree_of(np.full(8, 1 / 8), means, covariances, MANY, CpuEngine)
    assert tree.cut(LEVEL).max() == 0


def test_a_population_needs_enough_events() -> None:
    means, covariances = normals([[0.0] * 4, [4.7] + [0.0] * 3])
    weights = np.array([0.99, 0.01])
    assert tree_of(weights, means, covariances, 1_000_000, CpuEngine).cut(LEVEL).tolist() == [0, 1]
    assert tree_of(weights, means, covariances, 1_200, CpuEngine).cut(LEVEL).tolist() == [0, 0]


@pytest.mark.parametrize(
    ("n_measured", "gap_of_events", "count"),
    [(2_000, 4.0, 2), (500, 4.0, 1), (2_000, 2.5, 1)],
    ids=["valley", "too-few-events", "no-valley"],
)
def test_events_decide_where_the_density_hardly_shows_a_peak(
    n_measured: int, gap_of_events: float, count: int
) -> None:
    """The small peak of the density rises by 1.3 standard deviations of chance, less than CHANCE."""
    weights, (means, covariances) = np.array([0.95, 0.05]), normals([[0.0] * 3, [4.0, 0.0, 0.0]])
    peaks = find_peaks(weights, means, covariances, 2_000, CpuEngine)
    random = np.random.default_rng(1)
    events = random.normal(size=(n_measured, 3))
    events[: n_measured // 20, 0] += gap_of_events
    nearest = nearest_components(weights, means, covariances, events)
    tree, _ = peaks.tree(Separation(peaks.moments, events.astype(np.float32), peaks.modes[nearest]))
    assert tree.cut(LEVEL).max() + 1 == count


def test_a_mode_with_few_events_is_not_a_population() -> None:
    means, covariances = normals([[0.0, 0.0], [50.0, 0.0]])
    weights = np.array([0.999, 0.001])
    assert tree_of(weights, means, covariances, 9_000, CpuEngine).cut(LEVEL).tolist() == [0, 0]
    assert tree_of(weights, means, covariances, 20_000, CpuEngine).cut(LEVEL).tolist() == [0, 1]


def test_components_without_events_belong_where_their_mean_lies() -> None:
    means, covariances = normals([[0.0, 0.0], [9.0, 0.0], [8.0, 0.5], [0.5, 0.5]])
    tree = tree_of(np.array([0.5, 0.5, 1e-9, 0.0]), means, covariances, 10_000, CpuEngine)
    assert tree.modes.tolist() == [0, 1, 1, 0]
    assert tree.cut(LEVEL).tolist() == [0, 1, 1, 0]


def test_copies_of_a_component_in_several_draws_have_the_events_of_one() -> None:
    means, covariances = normals([[0.0, 0.0], [0.1, 0.0], [9.0, 0.0], [9.1, 0.0]])
    weights = np.array([0.495, 0.495, 0.005, 0.005])
    tree = tree_of(weights, means, covariances, 1_200, CpuEngine, 2)  # 6 events in each copy
    assert tree.cut(LEVEL).tolist() == [0, 0, 1, 1]


def test_the_tolerance_is_the_height_a_fitted_peak_varies_by() -> None:
    """Compare the tolerance with the variation of peaks of normals fitted to 50 events."""
    random = np.random.default_rng(4)
    events, dim = 50, 6
    heights = []
    for _ in range(4000):
        x = random.normal(size=(events, dim))
        weight = random.poisson(events) / 1000.0
        heights.append(np.log(weight) - 0.5 * np.linalg.slogdet(np.cov(x.T))[1])
    for measured, chance in ((False, trees.CHANCE), (True, trees.CHANCE_MEASURED)):
        expected = chance * np.std(heights)
        assert valley_tolerance(events, dim, measured) == pytest.approx(expected, rel=0.1)


def test_levels_ascend_and_the_tree_is_cut_anywhere() -> None:
    for seed in range(8):
        weights, means, covariances = random_mixture(20, 3, seed)
        tree = tree_of(weights, 2 * means, covariances, 100_000, CpuEngine)
        assert (np.diff(tree.levels) >= 0).all()
        children = tree.merges[:, 0].tolist()
        assert len(set(children)) == len(children) == len(tree.heights) - 1
        counts = [tree.cut(level).max() + 1 for level in (0.0, 1.0, 2.5, 4.0, np.inf)]
        assert counts[0] == len(tree.heights)
        assert counts[-1] == 1
        assert counts == sorted(counts, reverse=True)
        for wanted in range(1, len(tree.heights) + 3):
            assert tree.cut_to(wanted).max() + 1 == min(wanted, len(tree.heights))


def test_merges_name_child_and_parent() -> None:
    tree = Tree(
        np.array([0, 1, 2, 2]),
        np.zeros((3, 1)),
        np.zeros(3),
        np.array([[2, 1], [1, 0]]),
        np.array([1.0, 3.0]),
    )
    assert tree.cut(0.5).tolist() == [0, 1, 2, 2]
    assert tree.cut(2.0).tolist() == [0, 1, 1, 1]
    assert tree.cut(3.5).tolist() == [0, 0, 0, 0]
    assert tree.cut_to(2).tolist() == [0, 1, 1, 1]


def test_one_component_is_one_population() -> None:
    tree = tree_of(np.ones(1), *normals([[0.0, 1.0]]), 10, CpuEngine)
    assert tree.cut(LEVEL).tolist() == [0]
    assert len(tree.levels) == 0


def test_the_density_is_that_of_scipy() -> None:
    mixture = random_mixture(7, 5, seed=2)
    points = 2 * np.random.default_rng(3).normal(size=(200, 5))
    np.testing.assert_allclose(
        Density(*mixture, CpuEngine).log_density(points), log_density(mixture, points), rtol=5e-6
    )
    terms = np.array(
        [np.log(w) + multivariate_normal(m, c).logpdf(points) for w, m, c in zip(*mixture, strict=True)]
    )
    np.testing.assert_array_equal(nearest_components(*mixture, points), terms.argmax(axis=0))


@pytest.mark.usefixtures("cuda_devices")
def test_the_tree_on_cuda_is_that_on_the_cpu() -> None:
    weights, means, covariances = random_mixture(5, 3, seed=9)
    on_cpu, on_cuda = (
        tree_of(weights, 2 * means, covariances, 100_000, make_engine)
        for make_engine in (CpuEngine, CudaEngine)
    )
    np.testing.assert_array_equal(on_cuda.modes, on_cpu.modes)
    np.testing.assert_array_equal(on_cuda.merges, on_cpu.merges)
    np.testing.assert_allclose(on_cuda.levels, on_cpu.levels, rtol=1e-12)
    np.testing.assert_allclose(on_cuda.heights, on_cpu.heights, atol=1e-4)
    assert len(on_cpu.levels) > 1
