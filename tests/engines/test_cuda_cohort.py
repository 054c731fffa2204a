"""The hierarchical model on CUDA devices: the labels of the CPU engine, and the same bits for any devices."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from cuda_cases import FMA, SPLIT, BytesMoved, Emulate, Results, assert_same_results, needs_fma
from engine_contract import Floats, assert_near_stats, assert_same_stats, halves, problem, weights_of
from reference import ReferenceEngine

from dpmix.engines import cohort_sums
from dpmix.engines.chunk_grid import ChunkGrid
from dpmix.engines.cohort import CohortEngine, of_sample
from dpmix.engines.cohort_sums import CohortSums
from dpmix.engines.cuda.cohort import CudaCohortEngine
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.engines.cuda.work import Pass
from dpmix.kernels.layout import CHUNK, Layout
from dpmix.model.mixture import Ints, Mixture, SampleTerms, Stats
from dpmix.model.streams import Key

pytestmark = pytest.mark.slow

KEY = Key(3, 1, 2)
N = 3 * CHUNK + 777
STARTS = np.array([0, 700, 700, 701, 2 * CHUNK + 1000, N])  # of one, no, one, three and one chunks
WEIGHTS = weights_of(N)


class Case(NamedTuple):
    """Events, the starts of their samples, and a mixture with weights and shifts of samples."""

    events: Floats
    starts: Ints
    mixture: Mixture


def case_of(starts: Ints, dim: int, n_components: int, *, shift: float = 0.3, spread: float = 0.5) -> Case:
    events, plain = problem(int(starts[-1]), dim, n_components, spread=spread)
    rng = np.random.default_rng(dim)
    weights = np.log(rng.dirichlet(np.full(n_components, 0.5), len(starts) - 1))
    shifts = shift * rng.normal(size=(len(weights), dim))
    return Case(events, starts, replace(plain, samples=SampleTerms(weights, shifts)))


@cache
def several_samples() -> Case:
    return case_of(STARTS, 2, 4)


def small(dim: int, n_components: int) -> Case:
    return case_of(np.array([0, 300, 300, 301, 1200]), dim, n_components)


def made(case: Case, **options: Any) -> CudaCohortEngine:
    return CudaCohortEngine(case.events, case.starts, **options)


def assert_near_by_sample(got: Stats, want: Stats, n_events: int) -> None:
    """Check equality within float32 rounding, also by sample."""
    assert_near_stats(got, want, n_events)
    assert got.log_likelihood == pytest.approx(want.log_likelihood, rel=1e-6)
    assert got.by_sample is not None
    assert want.by_sample is not None
    np.testing.assert_allclose(got.by_sample.counts, want.by_sample.counts, rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(got.by_sample.sums, want.by_sample.sums, rtol=1e-4, atol=2e-3)


# ---- Comparison with the CPU engine


def assert_agrees_with_the_cpu(case: Case) -> None:
    """Compare all kinds of passes with the CPU engine's; labels may differ at steps alone."""
    events, starts, mixture = case
    n, k = len(events), len(mixture.means)
    engine, other = made(case, devices=[0]), CohortEngine(events, starts, threads=2, isa=FMA)
    for iteration in range(3):  # dense first, then in the order of the last labels
        key = KEY._replace(iteration=iteration)
        got, want = engine.draw_labels(mixture, key), other.draw_labels(mixture, key)
        moved = engine.labels(1) != other.labels(1)
        for sample in range(len(starts) - 1):
            own = slice(starts[sample], starts[sample + 1])
            if moved[own].any():
                alone = ReferenceEngine(events[own], first_event=int(starts[sample]))
                assert (alone.step_distances(of_sample(mixture, sample), key)[moved[own]] < 1e-5).all()
        if not moved.any():
            assert_near_by_sample(got, want, n)
    split = SPLIT._replace(pairs=np.arange(k) % 3 - 1, sides=np.full(k, -1, np.int8))
    two = replace(halves(mixture, split, 2), samples=mixture.samples)
    (got, got_logs), (want, logs) = (each.divide(split, two, key) for each in (engine, other))
    np.testing.assert_allclose(got.counts, want.counts, atol=2)
    np.testing.assert_allclose(got_logs, logs, rtol=1e-2)
    assert_near_by_sample(engine.expect_labels(mixture), other.expect_labels(mixture), n)
    assert (engine.labels() != other.labels()).sum() <= 1  # two components equally probable
    start, stop = int(starts[1]) - 7, n - 3
    (got_rows, got_densities), (rows, densities) = (
        each.memberships(mixture, np.arange(k) * 7 % 5, start, stop) for each in (engine, other)
    )
    np.testing.assert_allclose(got_rows, rows, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got_densities, densities, rtol=5e-7, atol=2e-6)
    engine.close()
    other.close()


@needs_fma
@pytest.mark.usefixtures("cuda_devices")
@pytest.mark.parametrize(("dim", "n_components"), [(1, 3), (5, 20), (33, 31)])
def test_it_agrees_with_the_cpu_engine_label_by_label(dim: int, n_components: int) -> None:
    assert_agrees_with_the_cpu(small(dim, n_components))


@needs_fma
@pytest.mark.usefixtures("cuda_devices")
def test_samples_of_several_chunks_agree_with_the_cpu_engine() -> None:
    assert_agrees_with_the_cpu(several_samples())


@needs_fma
@pytest.mark.usefixtures("cuda_devices")
def test_far_events_agree_with_the_cpu_engine() -> None:
    """Every 60th event is far from the means of all samples, so each sample's mixture is sent in float64."""
    case = small(5, 20)
    far = np.random.default_rng(0).normal(size=(20, 5))
    case.events[::60] = far * 1e4 / np.linalg.norm(far, axis=1, keepdims=True)
    assert_agrees_with_the_cpu(case)


@pytest.mark.usefixtures("cuda_devices")
def test_samples_that_are_alike_have_the_labels_of_the_pooled_engine() -> None:
    events, starts, mixture = small(5, 20)
    alike = SampleTerms(np.tile(mixture.log_weights, (4, 1)), np.zeros((4, 5)))
    engine = CudaCohortEngine(events, starts, devices=[0])
    pooled = CudaEngine(events, devices=[0])
    found = engine.draw_labels(replace(mixture, samples=alike), KEY)
    expected = pooled.draw_labels(replace(mixture, samples=None), KEY)
    np.testing.assert_array_equal(engine.labels(1), pooled.labels(1))
    np.testing.assert_array_equal(found.counts, expected.counts)
    assert found.log_likelihood == pytest.approx(expected.log_likelihood, rel=1e-12)


# ---- Mistakes that the comparison finds


def without(what: str) -> Callable[..., Any]:
    """Return `Layout.of_sample` with a mistake."""

    def of_sample(layout: Layout, packed: Any, log_constants: Any, shift: Any) -> Any:
        own = packed.copy()
        if what != "weights":
            own[:, 0] = log_constants
        if what != "shifts":
            own[:, layout._mean_places] += shift
        return own

    return of_sample


MISTAKES: dict[str, tuple[object, str, object]] = {
    "without the weights of the samples": (Layout, "of_sample", without("weights")),
    "with the mixture of the first sample for all": (
        Pass,
        "rows",
        lambda work, layout, _, right=Pass.rows: right(work, layout, 0),
    ),
    "with random numbers by the place in the sample": (
        ChunkGrid,
        "sample",
        lambda grid, sample: (0, int(grid.starts[sample + 1] - grid.starts[sample])),
    ),
}


@cache
def drawn_on_the_cpu() -> tuple[Stats, npt.NDArray[np.int32]]:
    events, starts, mixture = several_samples()
    engine = CohortEngine(events, starts, threads=2, isa=FMA)
    found = engine.draw_labels(mixture, KEY), engine.labels(1)
    engine.close()
    return found


def assert_drawn_as_on_the_cpu() -> None:
    """Compare a draw with the CPU engine's; a few labels may differ at steps."""
    case, (want, labels) = several_samples(), drawn_on_the_cpu()
    engine = made(case, devices=[0], chunks_in_flight=2)
    got = engine.draw_labels(case.mixture, KEY)
    assert (engine.labels(1) != labels).sum() <= 3
    assert got.by_sample is not None
    assert want.by_sample is not None
    np.testing.assert_allclose(got.by_sample.counts, want.by_sample.counts, atol=3)
    np.testing.assert_allclose(got.counts, want.counts, atol=3)
    engine.close()


@needs_fma
@pytest.mark.usefixtures("cuda_devices")
def test_draws_of_a_few_chunks_at_a_time_are_those_of_the_cpu() -> None:
    assert_drawn_as_on_the_cpu()


@needs_fma
@pytest.mark.usefixtures("cuda_devices")
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_version_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    # A wrong version may read memory that nobody wrote; the comparison must find it, not a warning about NaN.
    with np.errstate(all="ignore"), pytest.raises((AssertionError, ValueError)):
        assert_drawn_as_on_the_cpu()


# ---- Choices that do not change a bit


def results(engine: CudaCohortEngine, case: Case) -> Results:
    """Return the results of all kinds of passes."""
    mixture = case.mixture
    stats = [engine.draw_labels(mixture, KEY._replace(iteration=iteration)) for iteration in (0, 1)]
    arrays: list[Any] = [engine.labels(1)]
    two = replace(halves(mixture, SPLIT, 2), samples=mixture.samples)
    divided, log_probabilities = engine.divide(SPLIT, two, KEY)
    stats += [divided, *(engine.expect_labels(mixture) for _ in range(2))]
    middle = int(case.starts[3])
    gated = engine.memberships(mixture, np.array([1, 0, 1, 3]), middle - 30, middle + CHUNK + 9)
    return stats, [*arrays, log_probabilities, engine.labels(), *gated]


@cache
def expected_results(weighted: bool = False) -> Results:
    """Return the results of one device with resident events; needs the fixture `cuda_devices`."""
    case = several_samples()
    engine = made(case, devices=[0], weights=WEIGHTS if weighted else None)
    found = results(engine, case)
    engine.close()
    return found


@pytest.mark.parametrize(("devices", "chunks", "weighted"), [([2, 0, 1], 1, True)])
def test_devices_and_batches_do_not_change_a_bit(
    cuda_devices: Emulate, devices: list[int], chunks: int | None, weighted: bool
) -> None:
    cuda_devices(1 + max(devices))
    want, case = expected_results(weighted), several_samples()
    weights = WEIGHTS if weighted else None
    engine = made(case, devices=devices, chunks_in_flight=chunks, weights=weights)
    assert_same_results(results(engine, case), want)
    engine.close()


@pytest.mark.usefixtures("cuda_devices")
def test_statistics_of_samples_sum_to_those_of_all() -> None:
    for weighted in (False, True):
        for stats in expected_results(weighted)[0]:
            assert stats.by_sample is not None
            np.testing.assert_allclose(stats.by_sample.counts.sum(axis=0), stats.counts, rtol=1e-9, atol=1e-9)
            np.testing.assert_allclose(stats.by_sample.sums.sum(axis=0), stats.sums, rtol=1e-9, atol=1e-6)
            assert (stats.by_sample.counts[1] == 0.0).all()
    counts = expected_results()[0][0].by_sample
    assert counts is not None
    np.testing.assert_array_equal(counts.counts.sum(axis=1), np.diff(STARTS))


@pytest.mark.usefixtures("cuda_devices")
@pytest.mark.parametrize(("dim", "n_components"), [(5, 40)])
def test_pruned_and_dense_draws_are_the_same_bits(dim: int, n_components: int) -> None:
    case = small(dim, n_components)
    pruned, dense = made(case, devices=[0]), made(case, devices=[0], pruning=False)
    order = np.random.default_rng(0).permutation(n_components)
    for iteration, mixture in enumerate([case.mixture, replace(case.mixture, order=order), case.mixture]):
        key = KEY._replace(iteration=iteration)
        assert_same_stats(pruned.draw_labels(mixture, key), dense.draw_labels(mixture, key))
        np.testing.assert_array_equal(pruned.labels(1), dense.labels(1))
        assert (sum(account.work for account in pruned._accounts) > 0) == (iteration == 1)  # the others dense


@pytest.mark.usefixtures("emulated_devices")
def test_a_sample_takes_the_memory_of_its_events_and_not_of_a_chunk() -> None:
    case = case_of(np.arange(0, 1001, 50), 2, 4)
    engine = made(case)
    rows = 20 * 4 * Layout(2).pack_dim * 4
    for sent in (1000 * 4 * 4 + 20 * 4 + rows, rows):
        with BytesMoved() as moved:
            engine.draw_labels(case.mixture, KEY)
        assert moved.up == sent


@pytest.mark.parametrize("fail", ["1:cuLaunchKernel:14,0:cuLaunchKernel:19"])
@pytest.mark.usefixtures("equal_speeds")
def test_the_others_take_over(emulated_devices: Emulate, fail: str, caplog: pytest.LogCaptureFixture) -> None:
    want, case = expected_results(), several_samples()
    emulated_devices(3, fail=fail)
    with caplog.at_level(logging.WARNING, "dpmix"):
        assert_same_results(results(made(case), case), want)
    assert sum("the others continue" in line for line in caplog.messages) == 1 + fail.count(",")


@pytest.mark.usefixtures("cuda_devices")
@pytest.mark.parametrize("cut", [3])
def test_parts_of_the_data_have_the_bits_of_the_whole(cut: int) -> None:
    """Cut within the sample of three chunks."""
    events, starts, mixture = several_samples()
    edge = int(ChunkGrid(starts).events(cut)[0])
    options: dict[str, Any] = {"devices": [0]}
    whole = CudaCohortEngine(events, starts, **options)
    parts = [
        CudaCohortEngine(events[:edge], starts, **options),
        CudaCohortEngine(events[edge:], starts, first_event=edge, **options),
    ]
    for sums in (
        lambda engine: engine.draw_sums(mixture, KEY),
        lambda engine: engine.expect_sums(mixture),
    ):
        found: CohortSums = cohort_sums.merged(*(sums(part) for part in parts))
        expected = sums(whole)
        assert not expected.cut
        np.testing.assert_array_equal(found.total, expected.total)
        assert_same_stats(cohort_sums.stats_of(found, mixture), cohort_sums.stats_of(expected, mixture))
    for chain in (0, 1):
        labels = np.concatenate([part.labels(chain) for part in parts])
        np.testing.assert_array_equal(labels, whole.labels(chain))


# ---- Checks


@pytest.mark.usefixtures("cuda_devices")
def test_what_is_wrong_with_samples_is_said() -> None:
    events, starts, mixture = small(2, 3)
    engine = CudaCohortEngine(events, starts, devices=[0])
    assert engine.info["backend"] == "cuda"
    assert engine.info["samples"] == 4
    with pytest.raises(ValueError, match="need weights and shifts of 4 samples"):
        engine.draw_labels(replace(mixture, samples=None), KEY)
    with pytest.raises(ValueError, match="one mixture for all events"):
        CudaEngine(events, devices=[0]).draw_labels(mixture, KEY)
    with pytest.raises(ValueError, match="ascending from 0 to 1200"):
        CudaCohortEngine(events, starts[1:], devices=[0])
    assert mixture.samples is not None
    endless = mixture.samples._replace(shifts=np.full((4, 2), np.inf))
    with pytest.raises(ValueError, match="must be finite"):
        engine.draw_labels(replace(mixture, samples=endless), KEY)
