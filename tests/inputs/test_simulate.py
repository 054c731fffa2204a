"""Simulated data agree with the truth that is written with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpmix.errors import ConfigError
from dpmix.inputs.opening import open_source
from dpmix.inputs.simulate.faults import Fault
from dpmix.inputs.simulate.simulation import cytometry_like, from_model
from dpmix.model.prior import Prior


def test_events_of_the_model_have_its_moments() -> None:
    simulation = from_model(40_000, 3, 6, seed=5)
    assert simulation.events.shape == (40_000, 3)
    expected = simulation.weights * 40_000
    counts = np.bincount(simulation.labels, minlength=6)
    held = expected > 5
    chi2 = (((counts - expected) ** 2) / expected)[held].sum()
    assert stats.chi2.sf(chi2, held.sum()) > 1e-4
    for k in np.flatnonzero(counts > 1000):
        own = simulation.events[simulation.labels == k].astype(np.float64)
        white = np.linalg.solve(np.linalg.cholesky(simulation.covariances[k]), (own - simulation.means[k]).T)
        assert stats.chi2.sf((white**2).sum(), white.size) > 1e-4
        assert stats.chi2.sf((white.sum(1) ** 2).sum() / len(own), 3) > 1e-4


def test_parameters_of_the_model_follow_the_prior() -> None:
    prior = Prior(np.array([1.0, -2.0]), 4.0, 12.0, np.array([[2.0, 0.5], [0.5, 1.0]]), 3.0, 1.0)
    simulation = from_model(1, 2, 4000, prior, seed=6)
    np.testing.assert_allclose(simulation.covariances.mean(0), prior.phi, atol=0.06)
    shifts = np.linalg.solve(
        np.linalg.cholesky(simulation.covariances), (simulation.means - prior.m)[..., None]
    )
    assert stats.kstest(shifts.ravel() / 2.0, "norm").pvalue > 1e-4
    assert simulation.weights.sum() == pytest.approx(1.0)


def test_one_channel_and_one_component() -> None:
    simulation = from_model(5000, 1, 1, seed=7)
    sd = np.sqrt(simulation.covariances[0, 0, 0])
    assert stats.kstest((simulation.events[:, 0] - simulation.means[0, 0]) / sd, "norm").pvalue > 1e-4


@pytest.mark.parametrize("arguments", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_numbers_below_one(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="need 1 or more"):
        from_model(*arguments)


def test_a_cytometer_sample_shows_its_populations_after_compensation() -> None:
    simulation = cytometry_like(60_000, seed=8)
    assert simulation.spillover is not None
    shares = np.bincount(simulation.labels, minlength=14) / 60_000
    np.testing.assert_allclose(shares, simulation.weights, atol=0.006)
    assert simulation.weights.min() == pytest.approx(0.002)
    dyes = [simulation.channels.index(d) for d in simulation.spillover.detectors]
    light = simulation.events[:, dyes].astype(np.float64)
    assert (light == 262_143).any()
    assert light.max() == 262_143
    compensated = np.linalg.solve(simulation.spillover.matrix.T, light.T).T
    assert (compensated < 0).mean() > 0.05
    scale = np.arcsinh(compensated / 150.0)
    for k, name in enumerate(simulation.populations):
        own = scale[simulation.labels == k]
        np.testing.assert_allclose(np.median(own, axis=0), simulation.means[k], atol=0.35, err_msg=name)
    # moments are exact before noise and limits of the instrument: use channels with little of either
    naive = scale[simulation.labels == 0][:, [0, 1, 6]]
    covariance = simulation.covariances[0][np.ix_([0, 1, 6], [0, 1, 6])]
    np.testing.assert_allclose(np.cov(naive.T), covariance, rtol=0.25, atol=0.01)
    assert stats.skew(naive[:, 1]) > 0.15
    assert stats.kurtosis(naive[:, 1]) > 0.3


def test_the_same_seed_gives_the_same_data() -> None:
    one, two, other = (cytometry_like(1000, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.events, two.events)
    assert not np.array_equal(one.events, other.events)
    np.testing.assert_array_equal(from_model(50, 2, 3, seed=1).events, from_model(50, 2, 3, seed=1).events)


@pytest.mark.parametrize("name", ["a.fcs", "a.csv", "a.npy"])
def test_written_data_and_truth_are_read_back(tmp_path: Path, name: str) -> None:
    simulation = cytometry_like(300, seed=9)
    truth_path = simulation.write(tmp_path / name)
    source = open_source(tmp_path / name)
    np.testing.assert_array_equal(source.read(0, 300), simulation.events)
    assert truth_path == tmp_path / "a.truth.npz"
    with np.load(truth_path) as truth:
        np.testing.assert_array_equal(truth["labels"], simulation.labels)
        np.testing.assert_array_equal(truth["means"], simulation.means)
        assert list(truth["populations"]) == list(simulation.populations)
        assert str(truth["scale"]) == "arcsinh 150"
    if name == "a.fcs":
        assert source.spillover is not None
        assert simulation.spillover is not None
        assert source.spillover.detectors == simulation.spillover.detectors
        np.testing.assert_allclose(
            source.spillover.matrix, simulation.spillover.matrix, rtol=1e-8, atol=1e-12
        )
        assert source.details[4].marker == "CD4"
    if name == "a.csv":
        assert source.channels == simulation.channels


def test_events_of_the_model_as_fcs_lie_within_their_range(tmp_path: Path) -> None:
    simulation = from_model(200, 2, 3, seed=10)
    simulation.write(tmp_path / "a.fcs")
    source = open_source(tmp_path / "a.fcs")
    np.testing.assert_array_equal(source.read(0, 200), simulation.events)
    assert all(c.range is not None and np.abs(simulation.events).max() < c.range for c in source.details)
    assert source.spillover is None


def test_a_suffix_in_capitals(tmp_path: Path) -> None:
    made = from_model(20, 2, 2)
    made.write(tmp_path / "A.NPY")
    assert np.array_equal(np.load(tmp_path / "A.NPY"), made.events)


def test_an_unknown_suffix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"its suffix is \.xls; it must be one of \.fcs, \.csv, \.npy"):
        cytometry_like(10).write(tmp_path / "a.xls")


# ------------------------------------------------------------------------------ faults of the recording


def test_faults_change_gains_and_times_and_nothing_else() -> None:
    plain, faulty = cytometry_like(20_000, 3), cytometry_like(20_000, 3, faults=("step", "clog"))
    course, times = faulty.course, faulty.events[:, -1] / 60_000.0
    assert course is not None
    assert faulty.faulty is not None
    np.testing.assert_array_equal(plain.labels, faulty.labels)
    assert (np.diff(times) >= 0).all()
    unsaturated = (plain.events[:, :-1] < 2e5) & (plain.events[:, :-1] > 1.0)
    gains = np.where(unsaturated, faulty.events[:, :-1] / plain.events[:, :-1], 1.0)
    wanted = np.where(unsaturated, course.gains_at(times), 1.0)
    near = np.abs(np.subtract.outer(times, course.times[course.log_gains.any(axis=1)][[0, -1]])).min(axis=1)
    np.testing.assert_allclose(gains[near > 1e-3], wanted[near > 1e-3], rtol=1e-4)
    assert (gains[near > 1e-3] != 1.0).any()
    slow = course.times[course.rate < 1.0]
    inside = (times > slow[0]) & (times < slow[-1])
    assert 0.02 < inside.mean() < 0.05, "a tenth of the time at 30% of the rate"
    assert faulty.faulty[inside].all()


@pytest.mark.parametrize(("fault", "share"), [("slow", 0.0), ("bubble", 0.03)])
def test_what_is_faulty(fault: Fault, share: float) -> None:
    made = cytometry_like(20_000, 5, faults=(fault,), fault_size=1.0)
    assert made.course is not None
    assert made.faulty is not None
    assert abs(made.faulty.mean() - share) < 0.005
    ranges = np.ptp(made.course.log_gains, axis=0)
    if fault == "slow":
        assert np.count_nonzero(ranges) == 4  # a third of 13 detectors
        np.testing.assert_allclose(ranges[ranges > 0], 1.0)
    else:
        assert ((ranges >= 1.0) & (ranges <= 2.0)).all()


def test_the_truth_has_the_faults(tmp_path: Path) -> None:
    made = cytometry_like(2_000, 5, faults=("slow", "bubble"))
    with np.load(made.write(tmp_path / "a.fcs")) as truth:
        np.testing.assert_array_equal(truth["faulty"], made.faulty)
        assert truth["log_gains"].shape == (len(truth["fault_times"]), 13)
        assert truth["rate"].shape == truth["fault_times"].shape
    with np.load(cytometry_like(2_000, 5).write(tmp_path / "b.fcs")) as truth:
        assert "faulty" not in truth
