"""Pruned label draws and sorted statistics on emulated devices: the bits of the dense and the plain ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cuda_draws import Draws, Labels
from engine_contract import assert_same_stats, problem

from dpmix.engines.cuda.engine import CudaEngine
from dpmix.engines.cuda.pruning import RETRY, WORTH, PruningRule
from dpmix.engines.cuda.work import Account
from dpmix.kernels import build
from dpmix.kernels.layout import CHUNK, Layout
from dpmix.model.mixture import Mixture
from dpmix.model.streams import Key


@pytest.fixture
def context(cuda_devices: Callable[[int], None]) -> Iterator[None]:
    """A context on the first device, in this thread."""
    import pycuda.driver as cuda

    cuda_devices(1)
    cuda.init()
    held = cuda.Device(0).make_context()
    yield
    held.pop()


def last_labels(kind: str, labels: Labels, n_components: int) -> Labels:
    """Return last labels: these, component 0 for all events, or arbitrary ones."""
    rng = np.random.default_rng(0)
    arbitrary = rng.integers(0, n_components, len(labels)).astype(np.uint16)
    kinds = {"good": labels, "one": np.zeros_like(labels), "arbitrary": arbitrary}
    return kinds[kind]


def assert_pruned_is_dense(draws: Draws, kinds: tuple[str, ...] = ("good", "arbitrary")) -> float:
    """Compare pruned and dense draws bit for bit; return the share of multiply-adds with good last labels."""
    dense = draws.dense()
    shares = []
    for kind in kinds:
        pruned = draws.pruned(last_labels(kind, dense.labels, draws.k))
        np.testing.assert_array_equal(pruned.labels, dense.labels)
        np.testing.assert_array_equal(pruned.log_likelihoods, dense.log_likelihoods)
        shares.append(pruned.share)
    return shares[0]


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize(
    ("n", "dim", "n_components", "spread"),
    [
        (1, 14, 1, 1.0),
        (700, 14, 256, 3.0),
        (700, 14, 70, 0.3),
        (513, 5, 512, 1.0),
    ],
)
def test_pruned_draws_are_dense_draws(n: int, dim: int, n_components: int, spread: float) -> None:
    events, mixture = problem(n, dim, n_components, spread=spread)
    assert_pruned_is_dense(Draws(events, mixture), ("good", "arbitrary", "one"))


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("weight_floor", [1.0, 15.0, 80.0])
def test_pruned_draws_obey_any_weight_floor(weight_floor: float) -> None:
    events, mixture = problem(600, 5, 48, spread=0.7)
    assert_pruned_is_dense(Draws(events, mixture, weight_floor=weight_floor))


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("with_exact", [True, False])
def test_pruned_draws_of_atoms_weights_and_far_events(with_exact: bool) -> None:
    """Atoms: many events at one value of a channel, and narrow components there."""
    events, mixture = problem(900, 5, 48, spread=2.0)
    events[::3, 1] = events[0, 1]
    events[::7] = events[0]
    events[5::100] += np.float32(1e4)
    events[6::100] += np.float32(1e12)
    sizes = np.full((48, 1, 1), 1.0)
    sizes[::5] = 30.0
    narrow = replace(mixture, whiteners=mixture.whiteners * sizes)
    weights = np.random.default_rng(1).uniform(0.1, 9.0, len(events)).astype(np.float32)
    assert_pruned_is_dense(Draws(events, narrow, weights=weights, with_exact=with_exact))


@pytest.mark.usefixtures("context")
def test_separated_components_are_skipped_and_overlapping_ones_are_not() -> None:
    apart = assert_pruned_is_dense(Draws(*problem(2000, 14, 64, spread=4.0)), ("good",))
    overlapping = assert_pruned_is_dense(Draws(*problem(2000, 14, 64, spread=0.1)), ("good",))
    assert apart < 0.45
    assert overlapping > 0.95


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize(("was", "becomes"), [("SILENT = 17.33f", "SILENT = 3.0f")])
def test_a_wrong_bound_changes_labels(
    was: str, becomes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison bit for bit finds bounds that drop too much."""
    events, mixture = problem(2000, 5, 12, spread=0.7)
    draws = Draws(events, mixture)
    dense = draws.dense()
    shutil.copytree(build.FOLDER, tmp_path / "kernels", ignore=shutil.ignore_patterns("cpu", "*.so", "*.py"))
    stages = tmp_path / "kernels" / "stages.cuh"
    assert stages.read_text().count(was) == 1
    stages.write_text(stages.read_text().replace(was, becomes))
    monkeypatch.setattr(build, "FOLDER", tmp_path / "kernels")
    pruned = draws.pruned(dense.labels)
    assert (pruned.log_likelihoods != dense.log_likelihoods).any() or (pruned.labels != dense.labels).any()


@pytest.mark.usefixtures("context")
def test_events_are_sorted_by_label_and_stable() -> None:
    n, k = CHUNK + 5000, 300
    draws = Draws(*problem(n, 2, k))
    labels = np.full(2 * CHUNK, 65_535, np.uint16)
    labels[:n] = np.random.default_rng(0).integers(0, k, n) // 7 * 7
    labels[:20_000:2], labels[CHUNK : CHUNK + 100] = 7, 65_535  # a heavy component, and events of none
    made = draws.sort(labels)
    for slot in range(2):
        own = labels[slot * CHUNK : min((slot + 1) * CHUNK, n)]
        want = np.argsort(own, kind="stable")[: (own < k).sum()]
        np.testing.assert_array_equal(made.order[slot, : len(want)], want)
        counts = np.bincount(own[own < k], minlength=k)
        np.testing.assert_array_equal(made.starts[slot], np.concatenate(([0], counts.cumsum())))
        extras = [j | run << 16 for j in range(k) for run in range(1, -(-counts[j] // 2048))]
        np.testing.assert_array_equal(made.extras[slot, : len(extras)], extras)
        assert (made.extras[slot, len(extras) :] == 2**32 - 1).all()


def sums_of(draws: Draws, labels: Labels, slot: int, component: int) -> float:
    """Return the sum of one channel over the events of a component, in the kernel's order."""
    own = labels[slot * CHUNK : (slot + 1) * CHUNK]
    z = draws.events[slot * CHUNK : (slot + 1) * CHUNK][own == component, 0] - draws.rows[component, 1]
    total = 0.0
    for run in range(0, len(z), 2048):
        of_run = 0.0
        for group in range(run, min(run + 2048, len(z)), 64):
            of_group = np.float32(0.0)
            for value in z[group : min(group + 64, run + 2048)]:
                of_group = np.float32(value + of_group)
            of_run += float(of_group)
        total += of_run
    return total


@pytest.mark.usefixtures("context")
def test_moments_are_sums_in_the_order_of_the_events() -> None:
    """A component with half of the events is divided among blocks; the order of the additions is stated."""
    events, mixture = problem(CHUNK + 300, 1, 3)
    draws = Draws(events, mixture)
    labels = np.full(2 * CHUNK, 65_535, np.uint16)
    labels[: len(events)] = np.random.default_rng(0).choice([0, 2], len(events), p=[0.6, 0.4])
    moments = draws.moments(labels)
    for slot in range(2):
        own = labels[slot * CHUNK : (slot + 1) * CHUNK]
        np.testing.assert_array_equal(moments[slot, :, 2], [(own == j).sum() for j in range(3)])
        assert (moments[slot, 1] == 0).all()
        for j in (0, 2):
            assert moments[slot, j, 1] == sums_of(draws, labels, slot, j)


@pytest.mark.usefixtures("cuda_devices")
def test_an_engine_prunes_after_label_swaps() -> None:
    events, mixture = problem(2500, 14, 20, spread=4.0)
    swapped = np.random.default_rng(0).permutation(20)
    fields = (mixture.log_weights, mixture.means, mixture.whiteners, mixture.log_norms)
    moved = Mixture(*(field[swapped] for field in fields), swapped)
    pruned, dense = (CudaEngine(events, devices=[0], pruning=pruning) for pruning in (True, False))
    for iteration, now in enumerate([mixture, mixture, moved]):
        key = Key(1, 0, iteration)
        assert_same_stats(pruned.draw_labels(now, key), dense.draw_labels(now, key))
        np.testing.assert_array_equal(pruned.labels(), dense.labels())
        share = pruned._pruning.share(20, pruned._accounts)
        assert share < 0.75
        assert (share > 0) == (iteration > 0)
        assert dense._pruning.share(20, dense._accounts) == 0


def test_a_chain_prunes_while_it_saves_work_and_tries_again() -> None:
    _, mixture = problem(10, 14, 64)
    layout = Layout(14)
    rule = PruningRule(True, layout, 128_000)
    whole = 1000 * 64 * (14 * 15 // 2 + 28)  # of 1,000 warps
    assert rule.share(64, [Account(1, 0.0, 0.0, whole)]) == 1.0
    assert rule.last_labels(0, mixture, True) is not None
    rule.note(0, 64, [Account(1, 0.0, 0.0, int(0.9 * WORTH * whole))])
    assert rule.last_labels(0, mixture, True) is not None
    rule.note(0, 64, [Account(1, 0.0, 0.0, int(1.1 * WORTH * whole))])
    tries = [rule.last_labels(0, mixture, True) is not None for _ in range(RETRY)]
    assert tries == [False] * (RETRY - 1) + [True]
    assert rule.last_labels(1, mixture, True) is not None  # each chain has its own state
    assert PruningRule(False, layout, 10).last_labels(0, mixture, True) is None
    assert PruningRule(True, Layout(4), 10).last_labels(0, mixture, True) is None
