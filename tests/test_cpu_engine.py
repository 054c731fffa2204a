"""The CPU engine: the contract of all engines for every instruction set, and what is its own."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from engine_contract import (
    AnyEngine,
    Floats,
    PruningContract,
    assert_parts_have_the_bits_of_the_whole,
    assert_right_memberships,
    assert_same_stats,
    mixture_of,
    problem,
)
from reference import log_densities

from dpmix.engines.base import CHUNK, Key
from dpmix.engines.checks import MAX_CHANNELS, MAX_COMPONENTS
from dpmix.engines.cpu import CpuEngine, available, instruction_sets, native_chunk
from dpmix.kernels import _cpu
from dpmix.model import Mixture

ISAS = instruction_sets()


def needs(isa: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(isa not in ISAS, reason=f"this processor does not have {isa}")


class TestBest(PruningContract):
    def make(self, events: Floats, **options: object) -> AnyEngine:
        return CpuEngine(events, threads=2, **options)  # type: ignore[arg-type]


@needs("v3")
class TestV3(PruningContract):
    def make(self, events: Floats, **options: object) -> AnyEngine:
        return CpuEngine(events, threads=1, isa="v3", **options)  # type: ignore[arg-type]


@needs("v2")
class TestV2(PruningContract):
    def make(self, events: Floats, **options: object) -> AnyEngine:
        return CpuEngine(events, threads=1, isa="v2", **options)  # type: ignore[arg-type]


def test_the_grid_is_the_same_in_python_and_in_native_code() -> None:
    assert native_chunk() == CHUNK


def test_the_limits_are_the_same_in_python_and_in_native_code() -> None:
    assert (_cpu.MAX_CHANNELS, _cpu.MAX_COMPONENTS) == (MAX_CHANNELS, MAX_COMPONENTS)


def test_it_says_what_it_runs_on() -> None:
    usable, why = available()
    assert usable
    assert ISAS[0] in why
    engine = CpuEngine(np.zeros((1, 1), np.float32), threads=3)
    assert engine.info == {"backend": "cpu", "isa": ISAS[0], "threads": 3, "pruning": True}


@pytest.mark.parametrize(("dim", "n_components"), [(2, 6), (14, 40)])
@pytest.mark.parametrize(("threads", "chunks"), [(2, None), (3, None), (1, 1), (2, 2)])
def test_threads_and_batches_do_not_change_a_bit(
    dim: int, n_components: int, threads: int, chunks: int | None
) -> None:
    events, mixture = problem(2 * CHUNK + 5000, dim, n_components)
    one, other = CpuEngine(events, threads=1), CpuEngine(events, threads=threads, chunks_in_flight=chunks)
    for iteration in range(2):
        key = Key(3, 0, iteration)
        assert_same_stats(one.draw_labels(mixture, key), other.draw_labels(mixture, key))
        np.testing.assert_array_equal(one.labels(), other.labels())
    for _ in range(2):
        assert_same_stats(one.expect_labels(mixture), other.expect_labels(mixture))
    np.testing.assert_array_equal(one.labels(), other.labels())
    populations = np.arange(n_components) % 4
    made = [engine.memberships(mixture, populations, 100, len(events)) for engine in (one, other)]
    for mine, theirs in zip(*made, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@cache
def ten_chunks() -> tuple[Floats, tuple[Mixture, Mixture]]:
    events, mixture = problem(9 * CHUNK + 5000, 5, 20, spread=2.0)
    return events, (mixture, problem(100, 5, 20, spread=2.0, seed=1)[1])


@pytest.mark.parametrize("pruning", [True, False])
@pytest.mark.parametrize("cuts", [[0, 10], [0, 3, 10], [0, 1, 8, 10], [0, 1, 2, 4, 5, 6, 9, 10]])
def test_parts_of_the_chunks_have_the_bits_of_the_whole(cuts: list[int], pruning: bool) -> None:
    events, mixtures = ten_chunks()
    parts = [
        CpuEngine(
            events[first * CHUNK : end * CHUNK],
            first_event=first * CHUNK,
            threads=1 + first % 2,
            chunks_in_flight=(None, 1, 3)[end % 3],
            pruning=pruning,
        )
        for first, end in pairwise(cuts)
    ]
    assert_parts_have_the_bits_of_the_whole(CpuEngine(events, threads=2), parts, mixtures, seed=len(cuts))


def test_parts_that_cut_a_chunk_have_other_bits() -> None:
    """Or the test above would prove nothing."""
    events, mixtures = ten_chunks()
    cut = CHUNK // 2
    parts = [CpuEngine(events[:cut]), CpuEngine(events[cut : 2 * CHUNK], first_event=cut)]
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        assert_parts_have_the_bits_of_the_whole(CpuEngine(events[: 2 * CHUNK]), parts, mixtures, seed=0)


@needs("v3")
@needs("v4")
@pytest.mark.parametrize("dim", [1, 2, 7, 8, 14, 16, 17, 30, 33, 64])
def test_instruction_sets_with_a_fused_multiply_add_give_the_same_bits(dim: int) -> None:
    events, mixture = problem(2000, dim, 48)
    v3, v4 = CpuEngine(events, isa="v3"), CpuEngine(events, isa="v4")
    np.testing.assert_array_equal(v3.log_densities(events, mixture), v4.log_densities(events, mixture))
    for iteration in range(3):
        key = Key(3, 0, iteration)
        assert_same_stats(v3.draw_labels(mixture, key), v4.draw_labels(mixture, key))
        np.testing.assert_array_equal(v3.labels(), v4.labels())
    for _ in range(2):
        assert_same_stats(v3.expect_labels(mixture), v4.expect_labels(mixture))
    made = [engine.memberships(mixture, np.arange(48) % 9, 0, 2000) for engine in (v3, v4)]
    for mine, theirs in zip(*made, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dim", [1, 5, 14, 30, 50])
def test_log_densities_are_within_rounding_of_float64(isa: str, dim: int) -> None:
    events, mixture = problem(500, dim, 30)
    got = CpuEngine(events, isa=isa).log_densities(events, mixture)
    want = log_densities(events, mixture)
    near = want > want.max(axis=1, keepdims=True) - 30.0
    assert np.abs(got - want)[near].max() < 1e-4
    np.testing.assert_allclose(got, want, rtol=5e-6, atol=1e-4)


def test_pruning_is_measured_and_switches_itself_off() -> None:
    events, apart = problem(40_000, 14, 64, spread=3.0)
    engine = CpuEngine(events)
    kept = []
    for iteration in range(4):
        engine.draw_labels(apart, Key(1, 0, iteration))
        kept.append(engine.kept)
    assert kept[0] == 1.0  # no labels to go by
    assert kept[-1] < 0.5

    alike, overlapping = problem(40_000, 14, 64, spread=0.0)
    engine = CpuEngine(alike)
    for iteration in range(4):
        engine.draw_labels(overlapping, Key(1, 0, iteration))
    assert engine.kept == pytest.approx(1.0, abs=0.02)


def test_one_component_holds_everything() -> None:
    events = np.random.default_rng(0).normal(size=(70_000, 2)).astype(np.float32)
    mixture = mixture_of(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
    stats = CpuEngine(events).draw_labels(mixture, Key(1, 0, 0))
    wide = events.astype(np.float64)
    assert stats.counts[0] == 70_000
    np.testing.assert_allclose(stats.sums[0], wide.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(stats.scatters[0], wide.T @ wide, rtol=1e-6, atol=1e-2)


def test_many_components() -> None:
    events, mixture = problem(3000, 3, 4096)
    stats = CpuEngine(events).draw_labels(mixture, Key(1, 0, 0))
    assert stats.counts.sum() == 3000
    assert_right_memberships(CpuEngine(events), events, mixture, np.arange(4096)[::-1])


def with_log_weight(mixture: Mixture, value: float) -> Mixture:
    log_weights = mixture.log_weights.copy()
    log_weights[:] = value
    return Mixture(log_weights, mixture.means, mixture.whiteners, mixture.log_norms)


def test_what_is_wrong_with_events_is_said() -> None:
    good = np.zeros((10, 3), np.float32)
    for bad in (good.astype(np.float64), good[:, ::2], good[0], good[:0], np.zeros((4, 65), np.float32)):
        with pytest.raises(ValueError, match=r"^events: got"):
            CpuEngine(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "options",
    [{"threads": 0}, {"chunks_in_flight": 0}, {"weight_floor": 0.0}, {"weight_floor": 100.0}, {"isa": "mmx"}],
)
def test_what_is_wrong_with_options_is_said(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=f"^{next(iter(options))}: got"):
        CpuEngine(np.zeros((10, 3), np.float32), **options)  # type: ignore[arg-type]


def test_what_is_wrong_with_a_mixture_is_said() -> None:
    events, mixture = problem(100, 3, 4)
    engine = CpuEngine(events)
    _, wrong_dim = problem(100, 2, 4)
    not_finite = Mixture(mixture.log_weights, mixture.means * np.nan, mixture.whiteners, mixture.log_norms)
    for bad in (wrong_dim, with_log_weight(mixture, -np.inf), with_log_weight(mixture, np.nan), not_finite):
        with pytest.raises(ValueError, match=r"^mixture: "):
            engine.draw_labels(bad, Key(1, 0, 0))


def test_a_closed_engine_is_closed() -> None:
    engine = CpuEngine(np.zeros((10, 3), np.float32))
    engine.close()
    with pytest.raises(AttributeError):
        engine.labels()
