"""Vecchia's likelihood on CUDA devices, against the exact one and the CPU's, and wrong versions of it."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from cuda_cases import BytesMoved
from edited_kernels import edit_kernels
from test_likelihood import KINDS, exact_value, example

from dpmix.cli import main
from dpmix.drift.covariance import Correlation, Covariance
from dpmix.drift.fit import SignalPrior, fit, fit_blocks
from dpmix.drift.likelihood import likelihood
from dpmix.drift.points import Points, make_points
from dpmix.errors import DpmixError

KERNELS = ["vecchia_threads", "vecchia_batches", "vecchia_blocks"]
INTERVAL = ("range", "low", "high")


@pytest.fixture
def device(cuda_devices: Callable[[int], None]) -> Iterator[object]:
    cuda_devices(1)
    from dpmix.engines.cuda.drift import CudaDrift

    made = CudaDrift()
    yield made
    made.close()


@pytest.fixture
def single(cuda_devices: Callable[[int], None]) -> Iterator[object]:
    cuda_devices(1)
    from dpmix.engines.cuda.drift import CudaDrift

    made = CudaDrift(precision="single")
    yield made
    made.close()


def force(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    monkeypatch.setattr("dpmix.engines.cuda.drift.variant", lambda n, m: kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", ["matern52"])
def test_all_predecessors_give_the_exact_likelihood(
    kind: Correlation, kernel: str, device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, kernel)
    points, own = example(31, 30), Covariance(kind, 0.7, 1.3, 0.02)
    assert abs(likelihood(points, own, device=device).value - exact_value(points, own)) < 1e-10


def check_equal(points: Points, own: Covariance, device: object) -> None:
    got, expected = likelihood(points, own, device=device), likelihood(points, own)
    assert got.value == pytest.approx(expected.value, rel=1e-11)
    np.testing.assert_allclose(got.gradient, expected.gradient, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(got.information, expected.information, rtol=1e-8, atol=1e-8)
    assert (got.mean, got.mean_error) == pytest.approx((expected.mean, expected.mean_error), rel=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("n", "m", "kind"),
    [(1, 5, "squared"), (70, 64, "matern12"), *((300, 30, kind) for kind in KINDS)],
)
def test_sums_are_those_of_the_cpu(
    n: int, m: int, kind: Correlation, kernel: str, device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, kernel)
    check_equal(example(n, m), Covariance(kind, 0.7, 1.3, 0.02), device)


@pytest.mark.parametrize("kernel", KERNELS)
def test_sums_of_many_points_are_those_of_the_cpu(
    kernel: str, device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, kernel)
    check_equal(example(4500, 5), Covariance("matern52", 0.7, 1.3, 0.02), device)


def far_away(n: int, m: int) -> Points:
    """Return points whose times and values have leading digits that say nothing."""
    points = example(n, m)
    return Points(points.times + 1e6, points.values + 1e4, points.errors, points.neighbours)


def check_near(points: Points, own: Covariance, device: object) -> None:
    """Compare float32 with float64; the limits come from docs/benchmarks/drift.md for this noise."""
    got, expected = likelihood(points, own, device=device), likelihood(points, own)
    error = np.sqrt(np.diag(np.linalg.inv(expected.information)))
    root = np.sqrt(np.diag(expected.information))
    assert abs(got.value - expected.value) < 3e-3
    assert (np.abs(got.gradient - expected.gradient) * error < 3e-3).all()
    assert (np.abs(got.information - expected.information) / np.outer(root, root) < 3e-5).all()
    assert abs(got.mean - expected.mean) < 1e-3 * expected.mean_error
    assert got.mean_error == pytest.approx(expected.mean_error, rel=1e-3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("n", "m", "kind"),
    [(1100, 5, "matern52"), (300, 30, "matern32"), (300, 30, "squared")],
)
def test_float32_is_near_float64(
    n: int, m: int, kind: Correlation, kernel: str, single: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, kernel)
    check_near(far_away(n, m), Covariance(kind, 0.7, 1.3, 0.02), single)


@pytest.mark.parametrize("kernel", KERNELS)
def test_single_precision_is_that_of_float32(
    kernel: str, single: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, kernel)
    points, own = example(300, 30), Covariance("matern32", 0.7, 1.3, 0.02)
    got, expected = likelihood(points, own, device=single), likelihood(points, own)
    assert (np.abs(got.gradient / expected.gradient - 1.0) > 1e-10).all()


def without_digits() -> tuple[Points, Covariance]:
    times = np.linspace(0.0, 10.0, 60)
    return make_points(times, np.sin(times), np.zeros(60), 5), Covariance("matern52", 1.0, 5.0, 1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_float32_is_refused_where_it_has_too_few_digits(
    kernel: str, single: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, kernel)
    points, own = without_digits()
    assert np.isfinite(likelihood(points, own).value)
    with pytest.raises(
        DpmixError, match=r"float32 \(variance 1, range 5, nugget 1e-06\): use --precision double$"
    ):
        likelihood(points, own, device=single)


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_wrong_float32_kernel_is_caught(
    kernel: str, cuda_devices: Callable[[int], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cuda_devices(1)
    right, wrong = "Real(times[place] - times[point])", "(Real(times[place]) - Real(times[point]))"
    edit_kernels(monkeypatch, tmp_path, right, wrong)
    from dpmix.engines.cuda.drift import CudaDrift

    force(monkeypatch, kernel)
    made = CudaDrift(precision="single")
    try:
        with pytest.raises(AssertionError):
            check_near(far_away(300, 30), Covariance("matern52", 0.7, 1.3, 0.02), made)
    finally:
        made.close()


def test_fit_in_float32_is_near_that_of_the_cpu(single: object) -> None:
    points, prior = example(200, 12), SignalPrior.weak(10.0, 0.1)
    got, expected = fit(points, prior, device=single), fit(points, prior)
    assert got.converged
    np.testing.assert_allclose(got.covariance.logs(), expected.covariance.logs(), atol=1e-2)


def test_order_of_threads_does_not_change_a_bit(
    emulated_devices: Callable[..., None], device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    points, own, found = example(150, 5), Covariance("matern32", 0.7, 1.3, 0.02), []
    for kernel in KERNELS:
        force(monkeypatch, kernel)
        values = []
        for order in (0, 1, 9):
            emulated_devices(order=order)
            values.append(likelihood(points, own, device=device).gradient.tolist())
        found.append(values)
    assert all(values[0] == values[1] == values[2] for values in found)


def test_fit_is_that_of_the_cpu(device: object) -> None:
    points, prior = example(200, 5), SignalPrior.weak(10.0, 0.1)
    got, expected = fit(points, prior, device=device), fit(points, prior)
    assert (got.converged, got.steps) == (expected.converged, expected.steps)
    np.testing.assert_allclose(got.covariance.logs(), expected.covariance.logs(), rtol=1e-8)


def test_fits_of_blocks_and_averages_are_those_of_the_cpu(
    device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpmix.drift.fit.COARSEST", 100)
    points, prior = example(160, 5), SignalPrior.weak(10.0, 0.1)
    given = points.times, points.values, points.errors, prior
    asked: list[int] = []
    sums = device.sums  # type: ignore[attr-defined]
    monkeypatch.setattr(device, "sums", lambda at, *rest: asked.append(len(at.times)) or sums(at, *rest))
    got, expected = fit_blocks(*given, device=device), fit_blocks(*given)  # type: ignore[arg-type]
    assert set(asked) == {80, 160}
    np.testing.assert_allclose(got.covariance.logs(), expected.covariance.logs(), rtol=1e-8)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("last < NEIGHBOURS && own[last] >= 0", "last + 1 < NEIGHBOURS && own[last] >= 0"),
        ("sums[4 * i] += plain[i]", "sums[4 * i] = plain[i]"),
    ],
)
def test_wrong_kernels_are_caught(
    right: str,
    wrong: str,
    kernel: str,
    cuda_devices: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    cuda_devices(1)
    if "plain" in right and kernel == "vecchia_threads":
        pytest.skip("a thread has one point")
    edit_kernels(monkeypatch, tmp_path, right, wrong)
    from dpmix.engines.cuda.drift import CudaDrift

    force(monkeypatch, kernel)
    made = CudaDrift()
    try:
        with pytest.raises(AssertionError):
            check_equal(example(4500, 5), Covariance("matern52", 0.7, 1.3, 0.02), made)
    finally:
        made.close()


@pytest.mark.parametrize("kernel", KERNELS)
def test_singular_covariance_is_an_error(
    kernel: str, device: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    force(monkeypatch, kernel)
    points = make_points(np.zeros(5), np.arange(5.0), np.zeros(5), 5)
    with pytest.raises(np.linalg.LinAlgError, match="singular"):
        likelihood(points, Covariance("squared", 1.0, 1.0, 1e-300), device=device)


def test_variants_are_chosen_by_points_and_neighbours() -> None:
    from dpmix.engines.cuda.drift import variant

    assert variant(100_000, 30) == "vecchia_threads"
    assert variant(2_000, 32) == "vecchia_batches"
    assert variant(100_000, 64) == "vecchia_batches"
    assert variant(2_000, 33) == "vecchia_blocks"


def test_failed_launch_is_an_error(emulated_devices: Callable[..., None], device: object) -> None:
    emulated_devices(fail="0:cuLaunchKernel:1")
    with pytest.raises(DpmixError, match="cuLaunchKernel"):
        likelihood(example(20, 5), Covariance("squared", 1.0, 1.0, 0.1), device=device)


def rows(backend: str, sample: Path, output: Path, *options: str) -> list[dict[str, str]]:
    words = ["drift", str(sample), "--output", str(output), "--backend", backend, *options]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 0, done.output
    return list(csv.DictReader((output / "drift.csv").read_text().splitlines()))


@pytest.mark.parametrize("precision", ["single", "double"])
def test_command_gives_the_table_of_the_cpu(
    precision: str, cuda_devices: Callable[[int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda_devices(1)
    sample = tmp_path / "sample.fcs"
    made = CliRunner().invoke(main, ["simulate", str(sample), "--events", "5000", "--drift", "slow"])
    assert made.exit_code == 0, made.output
    from dpmix.engines.cuda.drift import CudaDrift

    used = []
    plain = CudaDrift.sums

    def counted(self: CudaDrift, *arguments: object) -> object:
        used.append(self.precision)
        return plain(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(CudaDrift, "sums", counted)
    expected = rows("cpu", sample, tmp_path / "cpu")
    assert not used
    found = rows("cuda", sample, tmp_path / "cuda", "--precision", precision)
    assert set(used) == {precision}
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert {key: one[key] for key in one if key not in INTERVAL} == {
            key: other[key] for key in other if key not in INTERVAL
        }
        numbers = [[float(row[key]) for key in INTERVAL] for row in (one, other)]
        np.testing.assert_allclose(*numbers, rtol=0.0, atol=0.01 if precision == "single" else 0.0)


@pytest.mark.usefixtures("emulated_devices")
def test_a_device_keeps_the_points_of_a_fit() -> None:
    from dpmix.engines.cuda.drift import CudaDrift

    rng = np.random.default_rng(3)
    one, other = (
        make_points(np.sort(rng.uniform(size=400)), rng.normal(size=400), np.full(400, 0.5)) for _ in range(2)
    )
    own = Covariance("matern32", 1.0, 0.3, 0.1)
    size = 400 * (3 * 8 + 30 * 4)
    device = CudaDrift()
    try:
        moved = []
        for points in (one, one, other, one):
            with BytesMoved() as counter:
                got = likelihood(points, own, device=device)
            moved.append(counter.up)
            assert abs(got.value - likelihood(points, own).value) < 1e-9
    finally:
        device.close()
    assert moved == [size, 0, size, size]


def test_missing_device_is_an_error(emulated_devices: Callable[..., None], tmp_path: Path) -> None:
    emulated_devices(0)
    sample = tmp_path / "sample.fcs"
    CliRunner().invoke(main, ["simulate", str(sample), "--events", "5000"])
    done = CliRunner().invoke(
        main, ["drift", str(sample), "--output", str(tmp_path / "out"), "--backend", "cuda"]
    )
    assert done.exit_code != 0
    assert "cuda is not available here" in done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("backend", ["cpu", "auto"])
def test_single_precision_on_the_cpu_is_an_error(
    backend: str, emulated_devices: Callable[..., None], tmp_path: Path
) -> None:
    emulated_devices(0)
    sample = tmp_path / "sample.fcs"
    CliRunner().invoke(main, ["simulate", str(sample), "--events", "5000"])
    words = ["--output", str(tmp_path / "out"), "--backend", backend, "--precision", "single"]
    done = CliRunner().invoke(main, ["drift", str(sample), *words])
    assert done.exit_code == 2
    last = done.output.splitlines()[-1]
    assert f"--precision single: the CPU fits in float64 only (--backend {backend}: " in last
    assert last.endswith("; use --backend cuda or --precision double")
    assert not (tmp_path / "out").exists()
