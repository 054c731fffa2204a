"""Alignment of components across draws, simulated and sampled, and the file of aligned draws."""

from __future__ import annotations

import itertools
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import pytest
import xarray
from scipy.optimize import linear_sum_assignment
from scipy.signal import find_peaks
from scipy.stats import gaussian_kde, multivariate_normal
from whole_runs import a_config, contents

from dpmix import open_run
from dpmix.errors import ConfigError, DataError
from dpmix.populations.draws.alignment import align, write_aligned
from dpmix.populations.tree.partitions import contingency
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.reader import Run
from dpmix.system.extras import import_arviz
from dpmix.system.run_marker import is_run_file

Ints = npt.NDArray[np.int64]
Array = npt.NDArray[np.float64]


def random(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


# ------------------------------------------------------------------------------- simulated draws

K = 9


@pytest.fixture
def switched() -> tuple[Ints, Array, Ints]:
    """Labels and weights of 30 draws, and the numbers in each draw of the components of draw 4.

    Components 7 and 8 never have events; some events of the others move.
    """
    rng = random()
    n_draws, n_events = 30, 3000
    truth = rng.choice(K, n_events, p=[0.4, 0.2, 0.1, 0.1, 0.1, 0.08, 0.02, 0, 0])
    names = np.array([rng.permutation(K) for _ in range(n_draws)])
    strays = rng.random((n_draws, n_events)) < 0.1
    labels = np.where(strays, rng.integers(0, 7, (n_draws, n_events)), truth)
    weights = np.array([np.bincount(one, minlength=K) + rng.random(K) for one in labels])
    weights[:, 7] = 0.5 + 0.2 * rng.random(n_draws)  # always above the weight of 8
    weights[:, 8] = 0.1 * rng.random(n_draws)
    renamed = np.take_along_axis(names, labels, axis=1)
    heavy = np.empty_like(weights)
    np.put_along_axis(heavy, names, weights / weights.sum(axis=1, keepdims=True), axis=1)
    return renamed, heavy, names[:, np.argsort(names[4])]


def test_switched_labels_are_undone_exactly(switched: tuple[Ints, Array, Ints]) -> None:
    labels, weights, expected = switched
    order = align(labels, weights, 4)
    assert order.dtype == np.int64
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_array_equal(order[4], np.arange(K))
    assert not np.array_equal(expected, np.tile(np.arange(K), (len(labels), 1)))
    assert not np.array_equal(by_weight(weights), expected)  # ordering by weight is not enough


def by_weight(weights: Array) -> Ints:
    """Return a wrong variant: match components by weight only."""
    order = np.empty(weights.shape, np.int64)
    order[:, np.argsort(-weights[4])] = np.argsort(-weights, axis=1)
    return order


def test_no_permutation_has_more_events_in_common() -> None:
    rng = random(2)
    labels = rng.integers(0, 5, (6, 200))
    order = align(labels, np.full((6, 5), 0.2), 2)
    for t in range(6):
        shared = contingency(labels[2], labels[t], 5, 5)
        most = max(shared[range(5), p].sum() for p in itertools.permutations(range(5)))
        assert shared[range(5), order[t]].sum() == most
        assert sorted(order[t]) == [0, 1, 2, 3, 4]
        least = linear_sum_assignment(shared)[1]  # wrong: minimises the shared events
        assert t == 2 or shared[range(5), least].sum() < most


def test_components_without_shared_events_match_by_weight_then_number() -> None:
    labels = [[0, 0, 1, 1], [3, 3, 3, 3], [2, 2, 4, 4]]
    weights = [[0.4, 0.3, 0.1, 0.1, 0.1], [0.1, 0.2, 0.05, 0.6, 0.05], [0.05, 0.1, 0.4, 0.15, 0.3]]
    # Component 3 of draw 1 shares equally many events with 0 and 1. Others are matched by weight.
    order = align(labels, weights, 0)
    np.testing.assert_array_equal(order[0], [0, 1, 2, 3, 4])
    assert order[1].tolist() in ([3, 1, 0, 2, 4], [1, 3, 0, 2, 4])
    np.testing.assert_array_equal(order[2], [2, 4, 3, 1, 0])
    np.testing.assert_array_equal(align(np.zeros((3, 0), int), weights, 0)[2], [2, 4, 3, 1, 0])


def test_many_components_of_few_events() -> None:
    labels = np.array([[4095, 0, 17], [5, 6, 4000]])
    weights = np.linspace(1, 2, 4096) * np.array([[1.0], [-1.0]])
    order = align(labels, weights, 0)
    np.testing.assert_array_equal(order[1, [4095, 0, 17]], [5, 6, 4000])
    np.testing.assert_array_equal(np.sort(order[1]), np.arange(4096))
    assert order[1, 4094] == 0  # the heaviest remaining component in the heaviest remaining place


@pytest.mark.parametrize(
    ("labels", "weights", "message"),
    [
        ([[0, 5]], [[0.5, 0.5]], "labels 0 to 5 of 2 components"),
        ([[-1, 0]], [[0.5, 0.5]], "labels -1 to 0 of 2 components"),
        ([[0, 1]], [[0.5, 0.5]] * 2, r"labels of shape \(1, 2\)"),
        ([[0.0, 1.0]], [[0.5, 0.5]], "type float64"),
    ],
)
def test_what_cannot_be_aligned(labels: npt.ArrayLike, weights: npt.ArrayLike, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        align(labels, weights, 0)


# ---------------------------------------------------------------------------------- sampled draws


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of two chains on five separated populations, with all hyperparameters learned."""
    folder = tmp_path_factory.mktemp("aligned")
    centres = 6 * np.array([[0, 0, 0], [2, 1, 0], [0, 1, 2], [1, 3, 1], [3, 3, 3]])
    labels = random().choice(5, 2000, p=[0.24, 0.22, 0.2, 0.18, 0.16])
    values = centres[labels] + random(2).normal(size=(2000, 3))
    np.save(folder / "events.npy", values.astype(np.float32))
    config = a_config(
        folder,
        "run.h5",
        mcmc={"chains": 2, "burn_in": 300, "draws": 30, "thin": 5},
        model={"components": 6, "learn": ["alpha", "m", "gamma", "nu", "phi"]},
    )
    return open_run(run_mcmc(config).path)


def pairs_of(run: Run, draws: npt.ArrayLike) -> Ints:
    return np.array([(c, d) for c in range(run.weights.shape[0]) for d in np.asarray(draws)])


def classified(run: Run, pairs: Ints) -> Ints:
    """Return the most probable component of each event in each draw, with densities of scipy."""
    events = np.load(run.path.parent / "events.npy").astype(np.float64)
    events = (events - run.constants["channel_means"]) / run.constants["channel_sds"]
    found = []
    for c, d in pairs:
        logs = [
            np.log(run.weights[c, d, k])
            + multivariate_normal(run.means[c, d, k], run.covariances[c, d, k]).logpdf(events)
            for k in range(run.n_components)
        ]
        found.append(np.argmax(logs, axis=0))
    return np.array(found)


def peaks(trace: Array) -> int:
    """Count the modes of a density estimate of a component's mean over the draws, standardised scale."""
    grid = np.linspace(-4, 4, 801)
    density = gaussian_kde(trace, bw_method=0.15 / trace.std())(grid)
    return len(find_peaks(density)[0])


def test_traces_of_separated_components_are_unimodal_after_alignment(sampled: Run) -> None:
    pairs = pairs_of(sampled, range(30))
    order = align(classified(sampled, pairs), sampled.weights[tuple(pairs.T)], 3)
    raw = sampled.means[tuple(pairs.T)]
    aligned = np.take_along_axis(raw, order[:, :, None], axis=1)
    heavy = np.flatnonzero(sampled.weights[0, 3] > 0.04)
    assert len(heavy) == 5
    assert [peaks(aligned[:, k, j]) for k in heavy for j in range(3)] == [1] * 15
    assert np.mean([peaks(raw[:, k, j]) > 1 for k in heavy for j in range(3)]) > 0.5
    weights = np.take_along_axis(sampled.weights[tuple(pairs.T)], order, axis=1)
    assert weights[:, heavy].std(axis=0).max() < 0.05 < sampled.weights[..., heavy].std(axis=(0, 1)).max()


@pytest.mark.parametrize("transformed", [False, True])
def test_the_aligned_file_opens_in_arviz_and_xarray(sampled: Run, tmp_path: Path, transformed: bool) -> None:
    run = open_run(sampled.path, transformed=transformed)
    before = contents(run.path)
    draws = np.array([2, 7, 19, 28])
    pairs = pairs_of(run, draws)
    order = align(classified(sampled, pairs), run.weights[tuple(pairs.T)], 1)
    shuffled = random().permutation(len(pairs))
    path = tmp_path / "aligned.nc"
    write_aligned(path, run, pairs[shuffled], order[shuffled])

    posterior = import_arviz().from_netcdf(path).posterior
    tree = xarray.open_datatree(path, engine="h5netcdf")
    xarray.testing.assert_identical(tree["posterior"].to_dataset(), posterior)
    assert posterior.means.dims == ("chain", "draw", "component", "channel")
    assert posterior.covariances.dims == ("chain", "draw", "component", "channel", "channel_bis")
    np.testing.assert_array_equal(posterior.draw, draws)
    np.testing.assert_array_equal(posterior.chain, [0, 1])
    assert tuple(posterior.channel.values) == run.channels
    assert set(posterior.data_vars) == {
        *("weights", "means", "covariances", "alpha", "m", "gamma", "nu", "phi", "component_order")
    }
    for (c, d), one in zip(pairs, order, strict=True):
        at = posterior.sel(chain=c, draw=d)
        np.testing.assert_array_equal(at.component_order, one)
        for name in ("weights", "means", "covariances"):
            np.testing.assert_array_equal(at[name], getattr(run, name)[c, d][one])
        np.testing.assert_array_equal(at.alpha, run.alpha[c, d])
        for name, values in run.hyperparameters.items():
            np.testing.assert_array_equal(at[name], values[c, d])
    assert tree.attrs["source_run_id"] == run.attributes["run_id"]
    assert tree.attrs["scale"] == ("transformed" if transformed else "standardised")
    assert contents(run.path) == before
    assert not is_run_file(path)
    assert list(tmp_path.iterdir()) == [path]


def test_draws_in_the_file_are_ordered_by_number(sampled: Run, tmp_path: Path) -> None:
    pairs = np.array([[1, 9], [1, 4]])
    order = np.array([random(k).permutation(6) for k in range(2)])
    write_aligned(tmp_path / "a.nc", sampled, pairs, order)
    with h5py.File(tmp_path / "a.nc") as file:
        np.testing.assert_array_equal(file["posterior/chain"], [1])
        np.testing.assert_array_equal(file["posterior/draw"], [4, 9])
        np.testing.assert_array_equal(file["posterior/component_order"], order[None, ::-1])
        np.testing.assert_array_equal(file["posterior/weights"][0, 1], sampled.weights[1, 9][order[0]])


def test_a_disk_without_space_is_an_error_before_hdf5_writes(
    sampled: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpmix.populations.draws.alignment.HDF5_BYTES", 2**60)
    with pytest.raises(DataError, match=r"a\.nc: cannot be written: "):
        write_aligned(tmp_path / "a.nc", sampled, [[0, 0]], np.arange(6)[None])
    assert not list(tmp_path.iterdir())


def test_the_run_file_is_not_replaced(sampled: Run, tmp_path: Path) -> None:
    order = np.arange(6)[None]
    with pytest.raises(ConfigError, match="is the run file, which must not change"):
        write_aligned(sampled.path, sampled, [[0, 0]], order)
    with pytest.raises(DataError, match="cannot be written"):
        write_aligned(tmp_path / "none" / "a.nc", sampled, [[0, 0]], order)
    with pytest.raises(ValueError, match="the chains have different draws"):
        write_aligned(tmp_path / "a.nc", sampled, [[0, 0], [0, 1], [1, 0]], np.repeat(order, 3, 0))
    with pytest.raises(ValueError, match="each once"):
        write_aligned(tmp_path / "a.nc", sampled, [[0, 0], [0, 0]], np.repeat(order, 2, 0))
    assert not list(tmp_path.iterdir())
