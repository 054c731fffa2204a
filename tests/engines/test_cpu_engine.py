"""The CPU engine: the contract of all engines for every instruction set, and its own properties."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

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
    native_log_densities,
    problem,
    weights_of,
)
from platforms import FORKS
from reference import log_densities

from dpmix.engines.cpu import CpuEngine, available, instruction_sets, native_mixture
from dpmix.errors import DataError
from dpmix.kernels import _cpu
from dpmix.kernels.layout import CHUNK, MAX_CHANNELS, MAX_COMPONENTS
from dpmix.model.mixture import Ints, Mixture, log_norms
from dpmix.model.streams import Key

ISAS = instruction_sets()
ROUNDINGS = [isa for isa in ISAS if isa == ISAS[0] or isa == "v2"]
"""Instruction sets with other bits: v3 and v4 have the same."""


def needs(isa: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(isa not in ISAS, reason=f"this processor does not have {isa}")


class TestBest(PruningContract):
    """v3 and v4 have the same bits, and so have files: tests below."""

    def make(self, events: Floats, **options: object) -> AnyEngine:
        return CpuEngine(events, threads=2, **options)  # type: ignore[arg-type]


@needs("v2")
class TestV2(PruningContract):
    def make(self, events: Floats, **options: object) -> AnyEngine:
        return CpuEngine(events, threads=1, isa="v2", **options)  # type: ignore[arg-type]


def in_file(events: Floats) -> Floats:
    """Return the same events in an unnamed file."""
    with tempfile.TemporaryFile() as file:
        file.write(events.tobytes())
        file.flush()
        return np.memmap(file, np.float32, "r", 0, events.shape)


def test_grid_and_limits_are_the_same_in_python_and_in_native_code() -> None:
    assert (_cpu.CHUNK, _cpu.MAX_CHANNELS, _cpu.MAX_COMPONENTS) == (CHUNK, MAX_CHANNELS, MAX_COMPONENTS)


def test_it_says_what_it_runs_on() -> None:
    usable, why = available()
    assert usable
    assert ISAS[0] in why
    engine = CpuEngine(np.zeros((1, 1), np.float32), threads=3)
    assert engine.info == {"backend": "cpu", "isa": ISAS[0], "threads": 3, "pruning": True}


@pytest.mark.parametrize(("dim", "n_components"), [(2, 6), (14, 40)])
@pytest.mark.parametrize(
    ("threads", "chunks", "files"),
    [(3, None, False), (2, 2, False), (2, 1, True)],
)
def test_threads_and_batches_do_not_change_a_bit(
    dim: int, n_components: int, threads: int, chunks: int | None, files: bool
) -> None:
    """Nor does the thread that reads ahead from files."""
    events, mixture = problem(2 * CHUNK + 5000, dim, n_components)
    one = CpuEngine(events, threads=1)
    held, scratch = (in_file(events), Path(tempfile.gettempdir())) if files else (events, None)
    other = CpuEngine(held, threads=threads, chunks_in_flight=chunks, scratch=scratch)
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


@pytest.mark.parametrize(("threads", "chunks", "files"), [(3, 1, False), (2, 1, True)])
def test_threads_batches_and_parts_do_not_change_a_bit_of_weighted_events(
    threads: int, chunks: int | None, files: bool
) -> None:
    events, mixture = problem(2 * CHUNK + 5000, 5, 12, spread=2.0)
    weights, cut = weights_of(len(events)), CHUNK
    held, scratch = (in_file(events), Path(tempfile.gettempdir())) if files else (events, None)
    options: dict[str, Any] = {"threads": threads, "chunks_in_flight": chunks, "scratch": scratch}
    parts = [
        CpuEngine(held[:cut], weights=weights.part(0, cut), **options),
        CpuEngine(held[cut:], weights=weights.part(cut, len(events)), first_event=cut, **options),
    ]
    other = problem(100, 5, 12, spread=2.0, seed=1)[1]
    for several in ([CpuEngine(held, weights=weights, **options)], parts):
        one = CpuEngine(events, threads=1, weights=weights)
        assert_parts_have_the_bits_of_the_whole(one, several, (mixture, other), seed=1)


@cache
def ten_chunks() -> tuple[Floats, tuple[Mixture, Mixture]]:
    events, mixture = problem(9 * CHUNK + 5000, 5, 20, spread=2.0)
    return events, (mixture, problem(100, 5, 20, spread=2.0, seed=1)[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cuts", "pruning"), [([0, 10], True), ([0, 3, 10], False), ([0, 1, 2, 4, 5, 6, 9, 10], True)]
)
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
    """Otherwise the test above would prove nothing."""
    events, mixtures = ten_chunks()
    cut = CHUNK // 2
    parts = [CpuEngine(events[:cut]), CpuEngine(events[cut : 2 * CHUNK], first_event=cut)]
    with pytest.raises(AssertionError, match="Arrays are not equal"):
        assert_parts_have_the_bits_of_the_whole(CpuEngine(events[: 2 * CHUNK]), parts, mixtures, seed=0)


@pytest.mark.parametrize("mode", ["r", "c", None])
def test_files_do_not_change_a_bit(mode: str | None, tmp_path: Path) -> None:
    """With this many channels, every chunk is its own window. Values outside files cannot be released."""
    rng = np.random.default_rng(0)
    events = rng.normal(size=(3 * CHUNK + 777, 64)).astype(np.float32)
    mixture, other = (problem(100, 64, 4, seed=seed)[1] for seed in (0, 1))
    np.save(tmp_path / "events.npy", events)
    held = events.copy() if mode is None else np.load(tmp_path / "events.npy", mmap_mode=mode)
    if mode == "c":  # changes outside the file
        events[::7] = held[::7] = 0.5
    streaming, resident = CpuEngine(held, threads=1, scratch=tmp_path), CpuEngine(events, threads=2)
    assert_parts_have_the_bits_of_the_whole(resident, [streaming], (mixture, other), seed=0)
    made = [
        engine.memberships(mixture, np.arange(4), 100, len(events) - 5) for engine in (resident, streaming)
    ]
    for mine, theirs in zip(*made, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(held, events)


@needs("v3")
@needs("v4")
@pytest.mark.parametrize("dim", [1, 2, 7, 8, 14, 16, 17, 30, 33, 64])
def test_instruction_sets_with_a_fused_multiply_add_give_the_same_bits(dim: int) -> None:
    events, mixture = problem(2000, dim, 48)
    v3, v4 = CpuEngine(events, isa="v3"), CpuEngine(events, isa="v4")
    of_v3, of_v4 = (native_log_densities(events, mixture, isa) for isa in ("v3", "v4"))
    np.testing.assert_array_equal(of_v3, of_v4)
    for iteration in range(3):
        key = Key(3, 0, iteration)
        assert_same_stats(v3.draw_labels(mixture, key), v4.draw_labels(mixture, key))
        np.testing.assert_array_equal(v3.labels(), v4.labels())
    for _ in range(2):
        assert_same_stats(v3.expect_labels(mixture), v4.expect_labels(mixture))
    made = [engine.memberships(mixture, np.arange(48) % 9, 0, 2000) for engine in (v3, v4)]
    for mine, theirs in zip(*made, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@needs("v3")
@needs("v4")
@pytest.mark.parametrize(("n_components", "spread"), [(48, 3.0), (300, 0.0)])
def test_instruction_sets_with_other_tiles_add_the_same_blocks(n_components: int, spread: float) -> None:
    """Blocks that are full of events, and of entries."""
    events, mixture = problem(5000, 6, n_components, spread=spread)
    events[::61] *= 1000.0  # far
    v3, v4 = CpuEngine(events, isa="v3"), CpuEngine(events, isa="v4")
    for _ in range(3):
        assert_same_stats(v3.expect_labels(mixture), v4.expect_labels(mixture))


@pytest.mark.parametrize("isa", ROUNDINGS)
@pytest.mark.parametrize("dim", [1, 5, 14, 30, 50])
def test_log_densities_are_within_rounding_of_float64(isa: str, dim: int) -> None:
    events, mixture = problem(500, dim, 30)
    got = native_log_densities(events, mixture, isa)
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
        kept.append(engine._native.kept)
    assert kept[0] == 1.0  # no earlier labels
    assert kept[-1] < 0.5

    alike, overlapping = problem(40_000, 14, 64, spread=0.0)
    engine = CpuEngine(alike)
    for iteration in range(4):
        engine.draw_labels(overlapping, Key(1, 0, iteration))
    assert engine._native.kept == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("isa", ROUNDINGS)
def test_a_component_is_dropped_only_if_adding_its_weight_changes_nothing(isa: str) -> None:
    """Weights of a little more than 2^-25 of the sum before them raise it, 600 of them by as many ulps."""
    dim, light = 8, 600
    log_weights = np.log(np.concatenate([[0.99], np.full(light, 2.0**-24.9), [1.0]]))
    count = len(log_weights)
    eyes = np.broadcast_to(np.eye(dim), (count, dim, dim)).copy()
    mixture = Mixture(log_weights, np.zeros((count, dim)), eyes, log_norms(eyes))
    events = np.zeros((2048, dim), np.float32)
    engine = CpuEngine(events, isa=isa, threads=1)
    weights = np.exp(log_weights).astype(np.float32)
    total = np.cumsum(weights, dtype=np.float32)[-1]
    assert total > 1.99 + 0.5 * light * 2.0**-24
    for iteration in range(2):  # dense, then pruned
        found = engine.draw_labels(mixture, Key(1, 0, iteration)).log_likelihood / len(events)
        assert found - log_norms(eyes)[0] == pytest.approx(np.log(float(total)), abs=3e-6)


@pytest.mark.parametrize("isa", ROUNDINGS)
@pytest.mark.parametrize("spread", [0.5, 2.0])
@pytest.mark.parametrize("scale", [1.0, 1e-4])  # of the last channel, whose whiteners are then large
def test_clearances_drop_only_components_without_weight(isa: str, spread: float, scale: float) -> None:
    """Components that matter are never dropped, at any distance."""
    events, mixture = problem(40_000, 8, 64, spread=spread)
    units = np.array([1.0] * 7 + [scale])
    events = (events * units).astype(np.float32)
    whiteners = mixture.whiteners / units
    mixture = Mixture(mixture.log_weights, mixture.means * units, whiteners, log_norms(whiteners))
    pruned, dense = CpuEngine(events, isa=isa), CpuEngine(events, isa=isa, pruning=False)
    for iteration in range(34):
        key = Key(1, 0, iteration)
        found = pruned.draw_labels(mixture, key)
        if iteration % 32 == 1:  # every 32nd pass tries clearances, whether or not they pay
            assert_same_stats(found, dense.draw_labels(mixture, key))
            np.testing.assert_array_equal(pruned.labels(), dense.labels())


@pytest.mark.parametrize(("n_events", "least", "most"), [(200_000, 0.0, 0.08), (40_000, 0.1, 0.2)])
def test_clearances_save_most_of_the_work_where_they_pay(n_events: int, least: float, most: float) -> None:
    """The table takes the time of some 200 events for each of 64 components; stages alone keep 0.13."""
    events, mixture = problem(n_events, 14, 64, spread=6.0)
    engine = CpuEngine(events)
    for iteration in range(5):
        engine.draw_labels(mixture, Key(1, 0, iteration))
    assert least < engine._native.kept < most


def test_pruning_follows_components_that_are_renumbered() -> None:
    """Label swaps renumber components in every sweep; without the order, last labels belong to other ones."""
    events, mixture = problem(40_000, 14, 64, spread=3.0)
    informed, uninformed, dense = CpuEngine(events), CpuEngine(events), CpuEngine(events, pruning=False)
    rng = np.random.default_rng(5)
    kept = {}
    for iteration in range(4):
        key, order = Key(1, 0, iteration), rng.permutation(64)
        mixture = renumbered(mixture, order)
        want = dense.draw_labels(mixture, key)
        for name, engine, now in (
            ("informed", informed, replace(mixture, order=order)),
            ("uninformed", uninformed, mixture),
        ):
            assert_same_stats(engine.draw_labels(now, key), want)
            kept[name] = engine._native.kept
    assert kept["informed"] < 0.5
    assert kept["uninformed"] > 0.9

    for order in (np.zeros(64, np.int64), np.arange(63)):
        with pytest.raises(ValueError, match="each of 0 to 63 once"):
            informed.draw_labels(replace(mixture, order=order), Key(1, 0, 9))


@pytest.mark.parametrize("isa", ROUNDINGS)
@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_memberships_of_draw_after_draw_are_those_of_one_draw_alone(isa: str, spread: float) -> None:
    """Passes over the same range prune by labels; draws number their components in any order."""
    events, mixture = problem(90_000, 8, 64, spread=spread)
    rng = np.random.default_rng(7)
    engine, dense = CpuEngine(events, isa=isa), CpuEngine(events, isa=isa, pruning=False)
    for start, stop in ((CHUNK - 9_000, CHUNK + 11_000), (5, 90_000)):
        for _ in range(4):
            moved = replace(mixture, means=mixture.means + 0.05 * rng.standard_normal(mixture.means.shape))
            draw, numbers = renumbered(moved, rng.permutation(64)), rng.integers(0, 9, 64)
            found, want = (one.memberships(draw, numbers, start, stop) for one in (engine, dense))
            for mine, theirs in zip(found, want, strict=True):
                np.testing.assert_array_equal(mine, theirs)


def test_memberships_of_draw_after_draw_save_work_where_it_pays() -> None:
    events, apart = problem(40_000, 14, 64, spread=6.0)
    alike, overlapping = problem(40_000, 14, 64, spread=0.0)
    rng = np.random.default_rng(8)
    kept = {}
    for name, held, mixture in (("apart", events, apart), ("overlapping", alike, overlapping)):
        engine = CpuEngine(held)
        for _ in range(5):
            mixture = renumbered(mixture, rng.permutation(64))
            engine.memberships(mixture, np.zeros(64, int), 0, 40_000)
            kept.setdefault(name, []).append(engine._native.kept)
    assert kept["apart"][:2] == [1.0, 1.0]  # no labels of this range
    assert max(kept["apart"][2:]) < 0.15
    assert kept["overlapping"][2] > 0.9
    assert kept["overlapping"][3:] == [1.0, 1.0]


@pytest.mark.parametrize("isa", ROUNDINGS)
@pytest.mark.parametrize(("n_events", "n_components"), [(90_000, 64), (3_000, 64), (20_000, 8)])
def test_components_and_log_densities_of_draw_after_draw_are_those_of_separate_passes(
    isa: str, n_events: int, n_components: int
) -> None:
    """Passes prune by the labels of the draw before; some events are far from all components."""
    events, mixture = problem(n_events, 8, n_components, spread=3.0)
    events[::997] *= 1000.0
    rng = np.random.default_rng(9)
    engine, dense = CpuEngine(events, isa=isa), CpuEngine(events, isa=isa, pruning=False)
    engine.draw_labels(mixture, Key(1, 0, 0))
    drawn = engine.labels()
    for _ in range(4):
        moved = replace(mixture, means=mixture.means + 0.05 * rng.standard_normal(mixture.means.shape))
        draw = renumbered(moved, rng.permutation(n_components))
        components, log_densities = engine.classify(draw)
        dense.expect_labels(draw)
        np.testing.assert_array_equal(components, dense.labels())
        one_population = np.zeros(n_components, int)
        np.testing.assert_array_equal(log_densities, dense.memberships(draw, one_population, 0, n_events)[1])
    np.testing.assert_array_equal(engine.labels(), drawn)


def renumbered(mixture: Mixture, order: Ints) -> Mixture:
    """Return a mixture with component order[j] as component j."""
    return Mixture(
        *(
            values[order]
            for values in (mixture.log_weights, mixture.means, mixture.whiteners, mixture.log_norms)
        )
    )


def test_one_component_holds_everything() -> None:
    events = np.random.default_rng(0).normal(size=(70_000, 2)).astype(np.float32)
    mixture = mixture_of(np.ones(1), np.zeros((1, 2)), np.eye(2)[None])
    stats = CpuEngine(events).draw_labels(mixture, Key(1, 0, 0))
    wide = events.astype(np.float64)
    assert stats.counts[0] == 70_000
    np.testing.assert_allclose(stats.sums[0], wide.sum(axis=0), rtol=1e-5)
    np.testing.assert_allclose(stats.scatters[0], wide.T @ wide, rtol=1e-6, atol=1e-2)


@pytest.mark.slow
def test_many_components() -> None:
    events, mixture = problem(1000, 3, 4096)
    stats = CpuEngine(events).draw_labels(mixture, Key(1, 0, 0))
    assert stats.counts.sum() == 1000
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


PEAK = """
import sys
import numpy as np
from pathlib import Path
from typing import Any
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key
from dpmix.engines.cpu import CpuEngine
from dpmix.model.mixture import Ints, Mixture, log_norms

def status(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])

events = np.load(sys.argv[1], mmap_mode="r")
dim = events.shape[1]
mixture = Mixture(np.log([0.3, 0.7]), np.zeros((2, dim)), np.stack([np.eye(dim)] * 2), np.zeros(2))
before = status("VmRSS:")
engine = CpuEngine(events, threads=2, scratch=Path(sys.argv[2]) if sys.argv[2:] else None)
for iteration in range(2):
    engine.draw_labels(mixture, Key(1, 0, iteration))
engine.expect_labels(mixture)
engine.divide(SplitAssignment(np.zeros(2, np.int32), np.full(2, -1, np.int8), 1), mixture, Key(1, 0, 1))
for start in range(0, len(events), 1_000_000):
    engine.memberships(mixture, np.arange(2), start, min(start + 1_000_000, len(events)))
engine.labels()
print(status("VmHWM:") - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_events_in_a_file(tmp_path: Path) -> None:
    """With 200 MB of events and 15 MB of values of them, next to 10 MB of labels and 12 of memberships."""
    path, block = tmp_path / "events.npy", np.random.default_rng(0).normal(size=(100_000, 20))
    events = np.lib.format.open_memmap(path, "w+", np.float32, (2_500_000, 20))
    for start in range(0, len(events), len(block)):
        events[start : start + len(block)] = block
    del events
    peaks = []
    for options in ([str(tmp_path)], []):
        command = [sys.executable, "-c", PEAK, str(path), *options]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) / 1000)
    streaming, resident = peaks
    assert streaming < 110.0
    assert resident > 215.0  # otherwise this would prove nothing
    assert sorted(tmp_path.iterdir()) == [path]


THREADS = """
import os
import time
import numpy as np
from dpmix.engines.cpu import CpuEngine
from dpmix.model.mixture import Mixture
from dpmix.model.streams import Key

def n_threads():
    return len(os.listdir("/proc/self/task"))

events = np.random.default_rng(0).normal(size=(50_000, 4)).astype(np.float32)
mixture = Mixture(np.log([0.3, 0.7] * 16), np.zeros((32, 4)), np.stack([np.eye(4)] * 32), np.zeros(32))
engine, others = CpuEngine(events, threads=2), n_threads()
drawn = [engine.draw_labels(mixture, Key(1, 0, iteration)).log_likelihood for iteration in range(50)]
while n_threads() - others > os.cpu_count():  # a busy machine is late with some
    time.sleep(0.01)
assert n_threads() > others
child = os.fork()
if child == 0:
    assert engine.draw_labels(mixture, Key(1, 0, 0)).log_likelihood == drawn[0]
    assert n_threads() == 2
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@FORKS
def test_helpers_are_kept_for_the_next_pass_and_made_anew_after_a_fork() -> None:
    said = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=60)
    assert said.returncode == 0, said.stderr


@contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """Limit the size of this process's files in bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_a_line_and_no_end(tmp_path: Path) -> None:
    events, mixture = problem(10_000, 2, 4)
    said = f"^{tmp_path}: cannot hold 2 bytes for each of 10000 events .File too large.; give another folder"
    with files_end_at(19_999), pytest.raises(DataError, match=said):
        CpuEngine(events, scratch=tmp_path)
    engine = CpuEngine(events, scratch=tmp_path)
    with files_end_at(19_999), pytest.raises(DataError, match=said):
        engine.draw_labels(mixture, Key(1, 0, 0))
    with files_end_at(20_000):
        got = engine.draw_labels(mixture, Key(1, 0, 0))
    assert_same_stats(got, CpuEngine(events).draw_labels(mixture, Key(1, 0, 0)))
    assert not list(tmp_path.iterdir())
    with pytest.raises(DataError, match=r"nowhere: cannot hold .* \(No such file or directory\)"):
        CpuEngine(events, scratch=tmp_path / "nowhere")


def test_a_closed_engine_is_closed() -> None:
    engine = CpuEngine(np.zeros((10, 3), np.float32))
    engine.close()
    with pytest.raises(AttributeError):
        engine.labels()


def test_an_output_of_another_type_is_refused() -> None:
    """It would be converted: the result would go into a copy, and be lost."""
    events, truth = problem(40, 2, 3)
    native = CpuEngine(events, threads=1)._native
    with pytest.raises(TypeError):
        native.labels(0, np.empty(40, np.int64))
    mixture = native_mixture(truth, 2)
    numbers = np.zeros(3, np.int32)
    for dtypes in ((np.float64, np.float64), (np.float32, np.float32)):
        outputs = np.empty((40, 1), dtypes[0]), np.empty(40, dtypes[1])
        with pytest.raises(TypeError):
            native.memberships(*mixture, numbers, 0, *outputs)
    native.memberships(*mixture, numbers, 0, np.empty((40, 1), np.float32), np.empty(40, np.float64))
    with pytest.raises(TypeError):
        native.log_densities(*mixture, events, np.empty((40, 3), np.float64))
