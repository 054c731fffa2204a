"""Local approximate Gaussian processes on CUDA devices, against the CPU's, and wrong versions of them."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from edited_kernels import edit_kernels
from test_local import KINDS, SLOPE_SD, example, predictive_variance

from dpmix.cli import main
from dpmix.drift.covariance import Correlation, Covariance
from dpmix.drift.device import Device
from dpmix.drift.fit import SignalFit
from dpmix.drift.local import MAX_CANDIDATES, LocalPosterior, local_posterior, shared_trend
from dpmix.drift.points import Points, make_points
from dpmix.errors import DpmixError
from dpmix.model.mixture import Array

AT = np.array([-30.0, -0.5, 0.0, 7.0, 31.0, 50.0, 58.5, 77.0, 99.9, 140.0])
"""Times of prediction: some outside the recording."""

NUMBERS = ("mean", "sd", "variances", "ranges", "weights")


@pytest.fixture
def device(cuda_devices: Callable[[int], None]) -> Iterator[Device]:
    cuda_devices(1)
    from dpmix.engines.cuda.drift import CudaDrift

    made = CudaDrift()
    yield made
    made.close()


def gain_lost(points: Points, found: LocalPosterior, other: LocalPosterior, place: int) -> float:
    """Return how much more variance a design leaves than another, as a share, at the other's parameters."""
    kind, parameters = found.fit.covariance.correlation, (other.variances[place], other.ranges[place])
    own, at = Covariance(kind, *map(float, parameters), 0.0), float(found.times[place])
    left, least = (
        predictive_variance(points, found.fit, own, one.designs[place].tolist(), at) for one in (found, other)
    )
    return (left - least) / own.variance


def check_equal(points: Points, fit: SignalFit, at: Array, size: int, device: Device) -> None:
    """Compare with the CPU.

    By a Matern correlation of 1/2, far points reduce the variance by nothing but rounding: some designs may
    differ, and must be equally good.
    """
    found = local_posterior(points, fit, at, SLOPE_SD, size, device=device)
    expected = local_posterior(points, fit, at, SLOPE_SD, size)
    same = (found.designs == expected.designs).all(axis=1)
    assert same.all() or fit.covariance.correlation == "matern12"
    assert same.any()
    for place in np.flatnonzero(~same):
        assert abs(gain_lost(points, found, expected, int(place))) < 1e-12
    for name in NUMBERS:
        got, other = getattr(found, name)[same], getattr(expected, name)[same]
        np.testing.assert_allclose(got, other, rtol=1e-10, atol=1e-11, err_msg=name)


def in_pairs(n: int, kind: Correlation = "matern32") -> tuple[Points, SignalFit]:
    """Return points at regular times, two at each, so that two gains are always equal."""
    points, fit = example(n, kind)
    times = np.repeat(np.arange(n // 2), 2).astype(np.float64)
    return make_points(times, points.values, np.full(n, 0.1)), fit


def regular(n: int) -> tuple[Points, SignalFit]:
    """Return points at regular times: gains on both sides of a prediction are equal but for rounding."""
    points, fit = example(n)
    return make_points(np.arange(n, dtype=np.float64), points.values, np.full(n, 0.1)), fit


def smooth(n: int) -> tuple[Points, SignalFit]:
    """Return a signal so smooth that designs reach far."""
    points, fit = example(n)
    return points, dataclasses.replace(fit, covariance=Covariance("matern32", 0.04, 500.0, 0.003))


def check_examples(device: Device) -> None:
    for points, fit in (example(300, "matern52"), in_pairs(40), regular(60), smooth(600)):
        check_equal(points, fit, AT, 15, device)
    check_equal(*regular(60), AT, 6, device)  # the nearest points alone
    # Which ties are rounded apart differs between processors; of these, some are on each.
    check_equal(*regular(90), np.arange(10.0, 80.0, 0.5), 20, device)


@pytest.mark.parametrize(("n", "size", "kind"), [(40, 1, "matern32"), *((300, 25, kind) for kind in KINDS)])
def test_predictions_are_those_of_the_cpu(n: int, size: int, kind: Correlation, device: Device) -> None:
    check_equal(*example(n, kind), AT, size, device)


@pytest.mark.parametrize(("n", "size"), [(3, 25), (MAX_CANDIDATES, 64), (600, 64)])
def test_points_fewer_and_more_than_candidates(n: int, size: int, device: Device) -> None:
    check_equal(*example(n, "matern32"), AT[::3], size, device)


def test_designs_reach_as_far_as_the_candidates(device: Device) -> None:
    points, fit = smooth(2 * MAX_CANDIDATES)
    found = local_posterior(points, fit, AT, SLOPE_SD, 20, device=device)
    spans = np.ptp(found.designs, axis=1)
    assert spans.max() > MAX_CANDIDATES / 2
    assert spans.max() < MAX_CANDIDATES
    check_equal(points, fit, AT, 20, device)


@pytest.mark.parametrize("make", [in_pairs, regular])
@pytest.mark.parametrize("n", [40, 600])
def test_the_first_of_equal_gains_is_taken(
    n: int, make: Callable[[int], tuple[Points, SignalFit]], device: Device
) -> None:
    points, fit = make(n)
    middle = float(points.times[n // 2])
    check_equal(points, fit, np.array([-1.0, 3.0, 3.5, middle, middle + 0.5]), 20, device)


def all_bits(found: LocalPosterior) -> list[bytes]:
    return [getattr(found, name).tobytes() for name in (*NUMBERS, "designs")]


def test_launches_and_order_of_threads_do_not_change_a_bit(
    emulated_devices: Callable[..., None], device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, fit = example(120)
    whole = local_posterior(points, fit, AT, SLOPE_SD, 20, device=device)
    for order, per_launch in ((1, 10), (9, 3), (0, 1)):
        emulated_devices(order=order)
        monkeypatch.setattr("dpmix.engines.cuda.drift.PER_LAUNCH", per_launch)
        again = local_posterior(points, fit, AT, SLOPE_SD, 20, device=device)
        assert all_bits(again) == all_bits(whole)


def test_threads_share_a_device(device: Device) -> None:
    cases = [example(90, kind) for kind in KINDS]
    alone = [local_posterior(*case, AT, SLOPE_SD, 12, device=device) for case in cases]
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(local_posterior, *case, AT, SLOPE_SD, 12, device=device) for case in cases]
    for future, expected in zip(made, alone, strict=True):
        assert all_bits(future.result()) == all_bits(expected)


def message_of_singular(device: Device | None) -> str:
    points = make_points(np.zeros(9), np.arange(9.0), np.zeros(9))
    fit = SignalFit(Covariance("squared", 1.0, 1.0, 1e-300), 0.0, 1.0, 0.0, 1, True)
    with pytest.raises(np.linalg.LinAlgError) as error:
        local_posterior(points, fit, np.array([0.0, 1.0]), 0.0, device=device)
    return str(error.value)


def test_singular_designs_are_the_error_of_the_cpu(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    trend = shared_trend(*example(9), 0.0)  # the trend of these points is singular itself
    monkeypatch.setattr("dpmix.drift.local.shared_trend", lambda *_: trend)
    message = message_of_singular(None)
    assert message.startswith("the covariance of a design is singular: Covariance(")
    assert message_of_singular(device) == message


def test_failed_launch_is_an_error(emulated_devices: Callable[..., None], device: Device) -> None:
    emulated_devices(fail="0:cuLaunchKernel:2")
    with pytest.raises(DpmixError, match="cuLaunchKernel"):
        local_posterior(*example(30), AT, SLOPE_SD, 10, device=device)


def test_too_little_memory_is_an_error(emulated_devices: Callable[..., None], device: Device) -> None:
    emulated_devices(fail="0:cuMemAlloc:4")
    with pytest.raises(DpmixError, match="cuMemAlloc"):
        local_posterior(*example(30), AT, SLOPE_SD, 10, device=device)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("now - s.times[left - 1] <= s.times", "now - s.times[left - 1] < s.times"),
        ("- (at.range - s.centre.range) * prior.range", ""),
    ],
)
def test_wrong_kernels_are_caught(
    right: str,
    wrong: str,
    cuda_devices: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    cuda_devices(1)
    edit_kernels(monkeypatch, tmp_path, right, wrong)
    from dpmix.engines.cuda.drift import CudaDrift

    made = CudaDrift()
    try:
        with pytest.raises((AssertionError, DpmixError, np.linalg.LinAlgError)):
            check_examples(made)
    finally:
        made.close()


def rows(sample: Path, output: Path, *options: str) -> list[dict[str, str]]:
    done = CliRunner().invoke(main, ["drift", str(sample), "--local", "--output", str(output), *options])
    assert done.exit_code == 0, done.output
    return list(csv.DictReader((output / "drift.csv").read_text().splitlines()))


@pytest.mark.slow
def test_command_gives_the_table_of_the_cpu(
    cuda_devices: Callable[[int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda_devices(1)
    sample = tmp_path / "sample.fcs"
    made = CliRunner().invoke(main, ["simulate", str(sample), "--events", "2400", "--drift", "slow"])
    assert made.exit_code == 0, made.output
    from dpmix.engines.cuda.drift import CudaDrift

    used, plain = [], CudaDrift.predict_locally

    def counted(self: CudaDrift, *arguments: Any) -> None:
        used.append(self.precision)
        plain(self, *arguments)

    monkeypatch.setattr(CudaDrift, "predict_locally", counted)
    expected = rows(sample, tmp_path / "cpu")
    assert not used
    found = rows(sample, tmp_path / "cuda", "--backend", "auto")
    assert set(used) == {"double"}
    assert len(used) >= len(found)  # a call for each stretch
    for one, other in zip(found, expected, strict=True):
        assert (one["verdict"], one["change points"]) == (other["verdict"], other["change points"])
        numbers = [[float(row[key]) for key in ("range", "low", "high")] for row in (one, other)]
        np.testing.assert_allclose(*numbers, rtol=0.0, atol=0.0)
