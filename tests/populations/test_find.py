"""Populations from draws: runs of known mixtures with switched labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from sklearn.metrics import adjusted_rand_score

from dpmix.engines.cpu import CpuEngine
from dpmix.errors import DataError
from dpmix.populations.draws import find, forest, pooling
from dpmix.populations.draws.find import Populations, find_populations
from dpmix.populations.draws.pooling import draw_points, mixture_of_draw, some_of_each_chain
from dpmix.populations.tree.cut import CutRule
from dpmix.populations.tree.tree import LEVEL, Tree
from dpmix.runs.layout import EVENT_SUBSET, SUBSET_WEIGHTS, FileLayout, Record
from dpmix.runs.reader import Run, open_run
from dpmix.runs.writer import RunWriter

Array = np.ndarray

N_EVENTS = 4_000


@dataclass(frozen=True)
class Normals:
    """A mixture with the parameters of a draw in a run file."""

    weights: Array
    means: Array
    covariances: Array
    alpha: float = 1.0
    cohort: None = None  # pooled

    def shuffled(self, rng: np.random.Generator) -> Normals:
        order = rng.permutation(len(self.weights))
        return Normals(self.weights[order], self.means[order], self.covariances[order])

    def __add__(self, other: Normals) -> Normals:
        """Add the other's components; the weights of these are scaled down."""
        return Normals(
            np.append(self.weights * (1.0 - other.weights.sum()), other.weights),
            np.concatenate([self.means, other.means]),
            np.concatenate([self.covariances, other.covariances]),
        )


def normals(*parts: tuple[float, Sequence[float], float]) -> Normals:
    """Return a mixture of normals given by (weight, mean, standard deviation)."""
    weights, means, sds = zip(*parts, strict=True)
    eye = np.eye(len(means[0]))
    return Normals(np.array(weights), np.array(means, float), np.array([sd**2 * eye for sd in sds]))


# Three populations, 4 and about 9 standard deviations apart; the second has two components.
POPULATIONS = normals(
    (0.15, (4.0, 0.0), 1.0),
    (0.30, (0.0, 10.0), 1.0),
    (0.20, (0.0, 11.0), 1.0),
    (0.35, (0.0, 0.0), 1.0),
)
OF_COMPONENT = np.array([2, 0, 0, 1])
ACROSS = np.array([[4.36, 0.0], [0.0, 1.0]])  # moments of the first and the last together
MERGED = replace(
    POPULATIONS,
    means=np.array([(1.2, 0.0), (0.0, 10.0), (0.0, 11.0), (1.2, 0.0)]),
    covariances=np.array([ACROSS, np.eye(2), np.eye(2), ACROSS]),
)


def write_run(
    path: Path,
    chains: Sequence[Sequence[Normals]],
    kind: str = "mcmc",
    n_events: int = N_EVENTS,
    constants: Mapping[str, tuple[tuple[str, ...], npt.ArrayLike]] | None = None,
) -> Run:
    """Write a run file with these draws of each chain, and open it."""
    n_draws, first, every = len(chains[0]), chains[0][0], [draw for own in chains for draw in own]
    mean = [np.concatenate([getattr(d, part) for d in every]) for part in ("weights", "means", "covariances")]
    channels = tuple(f"CD{k}" for k in range(first.means.shape[1]))
    zeros = np.zeros(len(channels))
    layout = FileLayout(
        kind=kind,
        chains=len(chains),
        draws=max(n_draws, 1),
        sweeps=n_draws + 1,
        n_components=len(first.weights),
        channels=channels,
        constants={
            "channel_means": (("channel",), zeros),
            "channel_sds": (("channel",), zeros + 1.0),
            EVENT_SUBSET: (("subset", "channel"), draw_points(*mean, seed=5)[::5]),
            **(constants or {}),
        },
        attributes={
            "config": "data: {files: [a.fcs]}\n",
            "seed": 5,
            "engine": {"backend": "cpu"},
            "scaling": {},
            "data_hash": "ab12",
            "n_events": n_events,
        },
    )
    record = Record(-1.0, -1.0, len(first.weights), 1.0, 0.1)
    with RunWriter.create(path, layout) as writer:
        for draw, states in enumerate(zip(*chains, strict=True)):
            writer.write_draw(draw, states, [record] * len(states))  # type: ignore[arg-type]
    return open_run(path)


def switched(mixture: Normals, n_draws: int, seed: int = 1) -> list[Normals]:
    """Return the same mixture several times, with shuffled components."""
    rng = np.random.default_rng(seed)
    return [mixture.shuffled(rng) for _ in range(n_draws)]


def cpu(events: Array) -> CpuEngine:
    return CpuEngine(events, threads=1)


def truth(found: Populations, t: int) -> Array:
    """Return the true population of each component of a draw, by its mean."""
    chain, draw = found.draws[t]
    away = np.abs(found.run.means[chain, draw][:, None] - POPULATIONS.means).sum(axis=2)
    return OF_COMPONENT[away.argmin(axis=1)]


def assert_same(one: Populations, other: Populations) -> None:
    for name in ("modes", "components", "order", "numbers", "support", "agreement"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), err_msg=name)
    np.testing.assert_array_equal(one.tree.levels, other.tree.levels)
    np.testing.assert_array_equal(one.tree.points, other.tree.points)
    assert (one.level, one.why, one.reference) == (other.level, other.why, other.reference)
    assert one.least_density == other.least_density


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def found(folder: Path) -> Populations:
    run = write_run(folder / "switched.h5", [switched(POPULATIONS, 8, 1), switched(POPULATIONS, 8, 2)])
    return find_populations(run, cpu)


# ---------------------------------------------------------------------------- populations of all draws


def test_switched_labels_give_the_same_populations(found: Populations) -> None:
    """Populations are numbered by weight: 0.50, 0.35 and 0.15."""
    assert (found.n_populations, found.level, found.why) == (3, LEVEL, "the default")
    orders = set()
    for t in range(16):
        np.testing.assert_array_equal(found.components[t], truth(found, t))
        orders.add(tuple(found.components[t]))
    assert len(orders) > 6  # labels are switched
    np.testing.assert_array_equal(found.numbers, 3)
    np.testing.assert_array_equal(found.support, 1.0)
    np.testing.assert_array_equal(found.agreement, np.ones((2, 2)))


def test_populations_are_numbered_by_their_mean_weight(folder: Path) -> None:
    """Also where most draws give another order, and whatever events the run file has."""
    often, once = (normals((share, (0.0, 0.0), 1.0), (1.0 - share, (9.0, 0.0), 1.0)) for share in (0.55, 0.2))
    events = np.zeros((2_000, 2), np.float32)
    for draws, first in (([often] * 3, 0), ([often, often, once], 1)):
        given = {EVENT_SUBSET: (("subset", "channel"), events)}
        run = write_run(folder / f"sizes-{first}.h5", [draws], constants=given)
        found = find_populations(run, cpu)
        assert found.components.tolist() == [[first, 1 - first]] * 3


def test_populations_are_numbered_by_weight_and_not_by_height(folder: Path) -> None:
    high, heavy = (0.4, (0.0, 0.0), 0.5), (0.6, (20.0, 0.0), 3.0)
    found = find_populations(write_run(folder / "broad.h5", [[normals(high, heavy)] * 3]), cpu)
    assert found.tree.heights[found.modes == 1].max() > found.tree.heights[found.modes == 0].max()
    np.testing.assert_array_equal(found.components, [[1, 0]] * 3)


def test_modes_are_of_the_pooled_draws(found: Populations) -> None:
    assert np.bincount(found.draws[found.pooled, 0]).tolist() == [2, 2]  # equally many of both chains
    modes = found.tree.modes.reshape(len(found.pooled), -1)
    np.testing.assert_array_equal(found.modes[modes], found.components[found.pooled])
    np.testing.assert_array_equal(np.bincount(found.modes, minlength=3) > 0, np.ones(3, bool))


def test_components_in_the_order_of_the_reference(found: Populations) -> None:
    run = found.run
    aligned = [
        run.means[chain, draw][order] for (chain, draw), order in zip(found.draws, found.order, strict=True)
    ]
    np.testing.assert_array_equal(aligned, np.broadcast_to(aligned[found.reference], np.shape(aligned)))
    np.testing.assert_array_equal(found.order[found.reference], np.arange(4))


def test_the_same_draws_of_each_chain_are_used_with_the_last(found: Populations) -> None:
    few = find_populations(found.run, cpu, n_draws=9).draws
    assert [list(few[few[:, 0] == chain, 1]) for chain in (0, 1)] == [[0, 2, 5, 7]] * 2
    assert find_populations(found.run, cpu, n_draws=1).draws.tolist() == [[0, 7], [1, 7]]
    np.testing.assert_array_equal(found.draws, [(chain, draw) for chain in (0, 1) for draw in range(8)])


def test_an_incomplete_run(folder: Path) -> None:
    run = write_run(folder / "half.h5", [switched(POPULATIONS, 6)])
    run.committed = 3
    assert find_populations(run, cpu).draws[:, 1].tolist() == [0, 1, 2]
    run.committed = 0
    with pytest.raises(DataError, match=r"half\.h5: the run has no draws yet"):
        find_populations(run, cpu)


def test_the_threads_of_the_engine_change_nothing(found: Populations) -> None:
    assert_same(find_populations(found.run, lambda events: CpuEngine(events, threads=3)), found)
    assert_same(
        find_populations(found.run, lambda events: CpuEngine(events, threads=1, chunks_in_flight=2)), found
    )


def test_every_engine_is_made_by_the_factory_and_closed(
    found: Populations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One engine for the points, and one for each set of points of each tree."""
    made: list[CpuEngine] = []
    initialise = CpuEngine.__init__

    def counted(self: CpuEngine, *given: object, **options: object) -> None:
        count.append(self)
        initialise(self, *given, **options)  # type: ignore[arg-type]

    count: list[CpuEngine] = []
    monkeypatch.setattr(CpuEngine, "__init__", counted)

    def make(events: Array) -> CpuEngine:
        made.append(CpuEngine(events))
        return made[-1]

    find_populations(found.run, make, n_draws=2)
    assert len(made) == len(count) > 3
    for engine in made:
        with pytest.raises(AttributeError):
            engine.labels()


# ---------------------------------------------------------------------------- draws that disagree


def test_a_component_without_points_is_where_its_mean_lies(folder: Path) -> None:
    """Also in a draw that is not pooled, and not in the heaviest population, as its weight suggests."""
    empty = normals((1e-9, (4.0, 0.5), 1.0), (1e-9, (0.3, 0.0), 1.0), (1e-9, (0.0, 12.0), 1.0))
    run = write_run(folder / "empty.h5", [[POPULATIONS + empty] * 12])
    found = find_populations(run, cpu)
    other = np.setdiff1d(np.arange(12), found.pooled)
    assert len(other)
    np.testing.assert_array_equal(found.components[other], [[*OF_COMPONENT, 2, 1, 0]] * len(other))


def test_a_population_split_in_one_pooled_draw_is_one_population(folder: Path) -> None:
    """Four of five draws have one broad normal, the fifth has two, 4 standard deviations apart."""
    a_pair = normals((0.3, (-1.2, 0.0), 0.6), (0.3, (1.2, 0.0), 0.6), (0.4, (0.0, 20.0), 1.0))
    broad = np.diag([0.36 + 1.44, 0.36])
    one = replace(
        a_pair,
        means=np.array([(0.0, 0.0), (0.0, 0.0), (0.0, 20.0)]),
        covariances=np.array([broad, broad, np.eye(2)]),
    )
    run = write_run(folder / "one_splits.h5", [[one, one, a_pair, one, one]])
    found = find_populations(run, cpu)
    np.testing.assert_array_equal(found.pooled, np.arange(5))
    assert found.n_populations == 2
    np.testing.assert_array_equal(found.components, [[0, 0, 1]] * 5)
    np.testing.assert_array_equal(found.numbers, 2)  # the events show no valley
    # If all draws split it, it is two populations.
    assert find_populations(write_run(folder / "all_split.h5", [[a_pair] * 5]), cpu).n_populations == 3


def test_the_events_of_the_run_file_decide(folder: Path) -> None:
    """All draws have a valley; the events have one, none, or one if they count by their weights."""
    a_pair = normals((0.3, (-1.2, 0.0), 0.6), (0.3, (1.2, 0.0), 0.6), (0.4, (0.0, 20.0), 1.0))
    random = np.random.default_rng(8)
    apart, between = (0.6 * random.normal(size=(9_000, 2)) for _ in range(2))
    apart[:, 0] += np.where(random.random(9_000) < 0.5, -1.2, 1.2)
    between[:, 0] = random.uniform(-1.0, 1.0, 9_000)
    events = np.concatenate([apart, between]).astype(np.float32)
    weights = np.repeat([1.0, 1e-3], 9_000)
    for name, subset, n_found in (
        ("apart", {EVENT_SUBSET: (("subset", "channel"), events[:9_000])}, 3),
        ("filled", {EVENT_SUBSET: (("subset", "channel"), events)}, 2),
        (
            "weighted",
            {EVENT_SUBSET: (("subset", "channel"), events), SUBSET_WEIGHTS: (("subset",), weights)},
            3,
        ),
    ):
        run = write_run(folder / f"subset_{name}.h5", [[a_pair] * 5], constants=subset)
        assert find_populations(run, cpu).n_populations == n_found, name


@pytest.mark.parametrize(
    ("splits", "n_found"),
    [
        ([0], 2),
        ([5, 7, 9], 2),  # three of the first four groups, but few of all
        ([0, 1, 2, 4, 6, 7, 8, 9], 3),
        ([0, 1, 2, 4, 6, 8], 2),  # the first four groups, 9, 7, 5 and 3, agree: they decide
    ],
)
def test_the_mean_density_that_agrees_with_the_others_defines_the_populations(
    folder: Path, splits: list[int], n_found: int
) -> None:
    """Ten groups of draws, each with its mean density; some of them divide a population."""
    a_pair = normals((0.3, (-1.2, 0.0), 0.6), (0.3, (1.2, 0.0), 0.6), (0.4, (0.0, 20.0), 1.0))
    one = replace(
        a_pair,
        means=np.array([(0.0, 0.0), (0.0, 0.0), (0.0, 20.0)]),
        covariances=np.array([np.diag([1.8, 0.36]), np.diag([1.8, 0.36]), np.eye(2)]),
    )
    random = np.random.default_rng(9)
    events = np.concatenate(
        [random.normal((x, y), 0.6, (3_000, 2)) for x, y in ((-1.2, 0), (1.2, 0), (0, 20))]
    )
    draws = [a_pair if draw % 10 in splits else one for draw in range(50)]
    kept = {EVENT_SUBSET: (("subset", "channel"), events.astype(np.float32))}
    found = find_populations(
        write_run(folder / f"groups{''.join(map(str, splits))}.h5", [draws], constants=kept), cpu
    )
    assert found.n_populations == n_found
    assert len(found.pooled) == 5
    group = set((found.pooled % 10).tolist())
    assert len(group) == 1
    assert group <= ({*range(10)} - {*splits} if n_found == 2 else {*splits})


@pytest.mark.parametrize(("draws_with_it", "n_found"), [(1, 3), (5, 4)])
def test_forty_separate_events_are_a_population_if_all_draws_have_them(
    folder: Path, draws_with_it: int, n_found: int
) -> None:
    """In one of five draws they count as eight events."""
    found = find_populations(apart_in(folder, (10.0, 0.0), draws_with_it), cpu)
    assert found.n_populations == n_found
    assert found.numbers.tolist() == [4] * draws_with_it + [3] * (5 - draws_with_it)


def test_forty_distant_events_of_one_draw_do_not_merge_others(folder: Path) -> None:
    """They would widen the population they join, and reduce its separation from the next from 4 to 1.7."""
    assert find_populations(apart_in(folder, (30.0, 0.0), 1), cpu).n_populations == 3


def apart_in(folder: Path, place: tuple[float, float], n_draws: int) -> Run:
    """Return five draws; this many of them have 40 additional events at a place."""
    apart = POPULATIONS + normals((0.01, place, 1.0))
    without = POPULATIONS + normals((0.01, (0.0, 0.0), 1.0))
    return write_run(
        folder / f"apart{n_draws}_{place[0]}.h5", [[apart] * n_draws + [without] * (5 - n_draws)]
    )


def test_a_draw_that_merges_two_populations_supports_the_larger_alone(folder: Path) -> None:
    """The Jaccard similarity is 0.35 / 0.5 for one population and 0.15 / 0.5 for the other."""
    draws = switched(POPULATIONS, 20)
    draws[4] = MERGED
    found = find_populations(write_run(folder / "merges.h5", [draws]), cpu)
    assert 4 not in found.pooled
    assert found.n_populations == 3
    assert found.numbers.tolist() == [2 if t == 4 else 3 for t in range(20)]
    np.testing.assert_allclose(found.support, [1.0, 1.0, 0.95])
    # Its components get the population of most of their points.
    np.testing.assert_array_equal(found.components[4], [1, 0, 0, 1])
    assert found.reference != 4


def test_some_draws_of_each_chain_have_a_tree(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Support, the numbers of populations and the reference are theirs."""
    monkeypatch.setattr(forest, "MOST_TREES", 11)
    chains = [switched(POPULATIONS, 20, 1), switched(POPULATIONS, 20, 2)]
    chains[0][0] = chains[0][5] = chains[0][6] = chains[1][14] = MERGED
    found = find_populations(write_run(folder / "trees.h5", chains), cpu)
    assert found.numbers.tolist() == [2, 2, 3, 3, 3, 3, 3, 3, 2, 3]
    np.testing.assert_allclose(found.support, [1.0, 1.0, 0.7])
    assert found.reference in (10, 14, 19, 20, 25, 30, 39)
    assert some_of_each_chain(found.draws, 1).tolist() == [19, 39]
    np.testing.assert_array_equal(some_of_each_chain(found.draws, 40), np.arange(40))


def test_agreement_between_chains_with_different_populations(folder: Path) -> None:
    """Compare with the index of scikit-learn for events drawn from the mixture."""
    moved = replace(POPULATIONS, means=POPULATIONS.means[[0, 1, 2, 0]])  # half of one population moved
    run = write_run(folder / "apart.h5", [switched(POPULATIONS, 4), switched(moved, 4)])
    found = find_populations(run, cpu)
    assert found.agreement[0, 0] == found.agreement[1, 1] == 1.0
    assert found.agreement[0, 1] == found.agreement[1, 0] < 0.95
    events = sample(found.run, found.draws[found.pooled], 20_000)
    own = [nearest_population(one, events) for one in (POPULATIONS, moved)]
    assert found.agreement[0, 1] == pytest.approx(adjusted_rand_score(*own), abs=0.02)
    assert set(found.numbers[:4]) == {3}
    assert set(found.numbers[4:]) == {2}


def nearest_population(mixture: Normals, events: Array) -> Array:
    """Return the population of each event by its most probable component; equal means, equal population."""
    terms = [
        multivariate_normal(mean, cov).logpdf(events) + np.log(weight)
        for weight, mean, cov in zip(mixture.weights, mixture.means, mixture.covariances, strict=True)
    ]
    places = np.unique(np.where(mixture.means[:, 1] > 5.0, 1, mixture.means[:, 0]), return_inverse=True)[1]
    return places[np.argmax(terms, axis=0)]


# ---------------------------------------------------------------------------- another cut


def test_another_level(found: Populations) -> None:
    coarse = find_populations(found.run, cpu, level=5.0)
    assert (coarse.n_populations, coarse.level, coarse.why) == (2, 5.0, "requested")
    for t in range(16):  # weights 0.50 and 0.35 + 0.15 are equal: either may be first
        upper = truth(found, t) == 0
        assert len(set(coarse.components[t][upper])) == len(set(coarse.components[t][~upper])) == 1
        assert set(coarse.components[t]) == {0, 1}
    np.testing.assert_array_equal(coarse.numbers, 2)
    assert find_populations(found.run, cpu, level=100.0).n_populations == 1
    assert (np.diff(found.tree.levels) >= 0).all()


@pytest.mark.parametrize("n_asked", [1, 2, 3])
def test_a_number_of_populations(found: Populations, n_asked: int) -> None:
    asked = find_populations(found.run, cpu, n_populations=n_asked)
    assert asked.n_populations == n_asked
    assert asked.why == f"{n_asked} populations requested"
    np.testing.assert_array_equal(asked.numbers, n_asked)
    # The level lies between two levels of the tree and gives the same cut.
    np.testing.assert_array_equal(asked.tree.levels, found.tree.levels)
    assert len(np.unique(asked.tree.cut(asked.level))) == n_asked
    assert (asked.tree.levels < asked.level).sum() == len(asked.tree.levels) + 1 - n_asked
    again = find_populations(found.run, cpu, level=asked.level)
    np.testing.assert_array_equal(again.components, asked.components)


def test_more_populations_than_there_are_modes(found: Populations) -> None:
    asked = find_populations(found.run, cpu, n_populations=50)
    n_modes = len(asked.tree.heights)
    assert asked.n_populations == n_modes < 50
    assert asked.why == f"50 populations requested, but the density has {n_modes} modes"


def test_a_number_of_populations_between_merges_at_one_level() -> None:
    """The number is reached, and the reason says that the level alone would not reach it."""
    merges = np.array([[3, 2], [2, 1], [1, 0]])
    tree = Tree(np.arange(4), np.zeros((4, 1)), np.zeros(4), merges, np.array([1.0, 1.0, 3.0]))
    assert [tree.cut_to(n).max() + 1 for n in (1, 2, 3, 4, 5)] == [1, 2, 3, 4, 4]
    assert [tree.level_of(n) for n in (1, 2, 3, 4, 5)] == [4.0, 2.0, 1.0, 0.5, 0.5]
    why = [CutRule(None, n).why(tree, min(n, 4), 0) for n in (2, 3, 4, 5)]
    assert why == [
        "2 populations requested",
        "3 populations requested, with only some of the merges at this height",
        "4 populations requested",
        "5 populations requested, but the density has 4 modes",
    ]


def test_mixtures_in_memory_and_recomputed_are_the_same(
    found: Populations, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = sample(found.run, found.draws, 100)
    held = memberships(found, events)
    assert found.mixture(*found.draws[0]) is found.mixture(*found.draws[0])
    monkeypatch.setattr(pooling, "HELD_BYTES", 0)
    recomputed = find_populations(found.run, cpu)
    assert recomputed.mixture(*recomputed.draws[0]) is not recomputed.mixture(*recomputed.draws[0])
    for one, other in zip(memberships(recomputed, events), held, strict=True):
        np.testing.assert_array_equal(one[0], other[0])
        np.testing.assert_array_equal(one[1], other[1])


def test_weights_of_the_populations_in_every_draw(found: Populations) -> None:
    assert found.weights.shape == (16, 3)
    np.testing.assert_allclose(found.weights, [[0.5, 0.35, 0.15]] * 16)


def test_one_normal_is_one_population(folder: Path) -> None:
    run = write_run(folder / "one.h5", [[normals((1.0, (0.0, 0.0), 1.0))] * 3])
    for asked in ({}, {"n_populations": 1}, {"n_populations": 4}, {"level": 0.0}):
        one = find_populations(run, cpu, **asked)
        assert one.n_populations == 1
        assert np.isfinite(one.level)
        np.testing.assert_array_equal(one.components, 0)


# ---------------------------------------------------------------------------- Bayesian EM


def test_bayesian_em_has_one_draw_and_components_of_no_weight(folder: Path) -> None:
    mixture = POPULATIONS + normals((0.0, (4.2, 0.0), 0.1), (0.0, (0.0, 9.0), 1.0), (0.0, (0.2, 0.1), 3.0))
    run = write_run(folder / "bem.h5", [[mixture]], kind="bem")
    found = find_populations(run, cpu)
    assert found.draws.tolist() == [[0, 0]]
    assert found.n_populations == 3
    np.testing.assert_array_equal(found.components, [[*OF_COMPONENT, 2, 0, 1]])
    np.testing.assert_array_equal(found.support, 1.0)
    np.testing.assert_array_equal(found.agreement, [[np.nan]])
    assert np.isneginf(mixture_of_draw(run, 0, 0).log_weights[4:]).all()
    ((shares, log_density),) = memberships(found, sample(run, found.draws, 500))
    assert np.isfinite(log_density).all()
    assert shares.shape == (500, 3)


# ---------------------------------------------------------------------------- events


def sample(run: Run, draws: Array, n: int, seed: int = 3) -> Array:
    """Draw events from the mean density of some draws, float64."""
    rng = np.random.default_rng(seed)
    places = np.column_stack([draws[rng.integers(0, len(draws), n)], np.zeros(n, np.int64)])
    for chain, draw in draws:
        own = (places[:, :2] == (chain, draw)).all(axis=1)
        places[own, 2] = rng.choice(run.n_components, own.sum(), p=run.weights[chain, draw])
    means, roots = run.means[*places.T], np.linalg.cholesky(run.covariances)[*places.T]
    return np.asarray(means + (roots @ rng.standard_normal((*means.shape, 1)))[..., 0])


def memberships(found: Populations, events: Array) -> list[tuple[Array, Array]]:
    engine = CpuEngine(events.astype(np.float32))
    return list(found.memberships(engine, 0, len(events)))


def terms_of(run: Run, draw: Array, events: Array) -> Array:
    """Return log w_j N(x | mu_j, Sigma_j), float64 [M, K]."""
    w, m, c = (np.asarray(part[tuple(draw)]) for part in (run.weights, run.means, run.covariances))
    return np.transpose(
        [multivariate_normal(m[j], c[j]).logpdf(events) + np.log(w[j]) for j in range(len(w))]
    )


def test_memberships_are_sums_over_the_components_of_each_population(found: Populations) -> None:
    events = sample(found.run, found.draws, 300).astype(np.float32)
    given = memberships(found, events)
    assert len(given) == 16
    for t, (shares, log_density) in enumerate(given):
        terms = terms_of(found.run, found.draws[t], events.astype(float))
        np.testing.assert_allclose(log_density, logsumexp(terms, axis=1), rtol=1e-5)
        responsibilities = np.exp(terms - logsumexp(terms, axis=1, keepdims=True))
        wanted = responsibilities @ np.eye(3)[truth(found, t)]
        np.testing.assert_allclose(shares, wanted, atol=1e-5)


def test_one_in_1000_of_the_models_own_events_is_implausible(found: Populations) -> None:
    """The standard error is 0.14 per 1,000 for the threshold and 0.1 per 1,000 for the events."""
    events = sample(found.run, found.draws, 100_000)
    log_densities = [logsumexp(terms_of(found.run, draw, events), axis=1) for draw in found.draws[:2]]
    np.testing.assert_allclose(*log_densities, rtol=1e-12)  # every draw is the same mixture
    share = (log_densities[0] < found.least_density).mean()
    assert 0.0005 < share < 0.0015


def test_the_least_density_is_of_the_mean_over_all_draws(folder: Path) -> None:
    """With two separated draws, the mean density is half of either."""
    one, other = normals((1.0, (0.0, 0.0), 1.0)), normals((1.0, (50.0, 0.0), 1.0))
    far = find_populations(write_run(folder / "far.h5", [[one, other]]), cpu).least_density
    near = find_populations(write_run(folder / "near.h5", [[one, one]]), cpu).least_density
    # In two channels a share u of the events lies beyond the squared distance -2 log(u).
    assert near == pytest.approx(np.log(0.001) - np.log(2.0 * np.pi), abs=0.5)
    assert far == pytest.approx(near - np.log(2.0), abs=0.5)
    assert far < near


def test_points_depend_on_the_seed_alone(folder: Path, found: Populations) -> None:
    seen: dict[bytes, Array] = {}

    def make(events: Array) -> CpuEngine:
        if len(events) == find.POINTS:  # the others belong to a tree
            seen[events.tobytes()] = events
        return CpuEngine(events)

    assert_same(find_populations(found.run, make), found)
    find_populations(found.run, make)
    (points,) = seen.values()
    assert points.shape == (find.POINTS, 2)
    assert points.dtype == np.float32
    shares = np.bincount((points[:, 1] > 5.0).astype(int)) / find.POINTS
    np.testing.assert_allclose(shares, 0.5, atol=0.01)
