"""The cluster engine: the contract of all engines, and the bits of one process.

The workers are threads of this process.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
from cluster_cases import N_CHUNKS, N, assert_same, engine_on, everything, threads
from distributed import LocalCluster
from engine_contract import AnyEngine, EngineContract, Floats, problem, weights_of

from dpmix.engines.cluster import part, placement
from dpmix.engines.cluster.engine import ClusterEngine
from dpmix.engines.cohort import CohortEngine
from dpmix.engines.cpu import CpuEngine
from dpmix.engines.cuda.cohort import CudaCohortEngine
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Mixture, SampleTerms
from dpmix.model.resolution import of_clouds
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key


class TestCluster(EngineContract):
    @pytest.fixture(autouse=True)
    def _place(self, one_worker: LocalCluster, tmp_path: Path) -> Iterator[None]:
        self.address, self.folder = one_worker.scheduler_address, tmp_path
        self.made: list[AnyEngine] = []
        yield
        for engine in self.made:
            engine.close()

    def make(self, events: Floats, **options: object) -> AnyEngine:
        assert options.pop("first_event", 0) == 0, "a cluster holds all events of a run"
        self.made.append(engine_on(self.address, events, self.folder, **options))
        return self.made[-1]

    # Workers have the CPU engine, which passes the contract; here is what the cluster adds.
    @pytest.mark.parametrize(("n", "dim", "n_components"), [(700, 10, 40)])
    def test_draw_agrees_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        super().test_draw_agrees_with_the_reference(n, dim, n_components)

    @pytest.mark.parametrize(("n", "dim", "n_components"), [(700, 10, 40)])
    def test_expectation_agrees_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        super().test_expectation_agrees_with_the_reference(n, dim, n_components)

    @pytest.mark.parametrize(("n", "dim", "n_components"), [(100, 2, 31)])
    def test_memberships_agree_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        super().test_memberships_agree_with_the_reference(n, dim, n_components)

    @pytest.mark.parametrize(("n", "dim", "n_components"), [(700, 10, 40)])
    def test_a_division_agrees_with_the_reference(self, n: int, dim: int, n_components: int) -> None:
        super().test_a_division_agrees_with_the_reference(n, dim, n_components)

    @pytest.mark.parametrize(("n", "dim", "n_components"), [(1000, 2, 32)])
    def test_statistics_of_weighted_events_agree_with_the_reference(
        self, n: int, dim: int, n_components: int
    ) -> None:
        super().test_statistics_of_weighted_events_agree_with_the_reference(n, dim, n_components)

    @pytest.mark.parametrize(("dim", "n_components"), [(14, 64)])
    @pytest.mark.parametrize("distance", [1e15])
    def test_far_events_are_finite_and_right(self, dim: int, n_components: int, distance: float) -> None:
        super().test_far_events_are_finite_and_right(dim, n_components, distance)

    @pytest.mark.parametrize(("dim", "n_components"), [(14, 64)])
    @pytest.mark.parametrize("distance", [1e15])
    def test_memberships_of_far_events_are_right(self, dim: int, n_components: int, distance: float) -> None:
        super().test_memberships_of_far_events_are_right(dim, n_components, distance)

    @pytest.mark.parametrize("dim", [14])
    def test_labels_have_the_right_frequencies(self, dim: int) -> None:
        super().test_labels_have_the_right_frequencies(dim)

    @pytest.mark.parametrize("first_event", [0])
    def test_labels_go_with_the_number_of_the_event(self, first_event: int) -> None:
        super().test_labels_go_with_the_number_of_the_event(first_event)


@pytest.mark.parametrize("workers", [(1, 2), (1,) * 7])
def test_draws_are_bit_for_bit_those_of_one_process(
    case: tuple[Floats, Mixture, list], workers: tuple[int, ...], tmp_path: Path
) -> None:
    events, mixture, expected = case
    with threads(*workers) as local, closing(engine_on(local.scheduler_address, events, tmp_path)) as engine:
        assert engine.info["workers"] == min(len(workers), N_CHUNKS)
        assert_same(everything(engine, mixture), expected)
        if workers == (1, 2):
            clouds = of_clouds(mixture, np.full(events.shape[1], 0.5))
            assert_same(everything(engine, clouds), everything(CpuEngine(events), clouds))


@pytest.mark.parametrize("workers", [(1, 2)])
def test_draws_of_weighted_events_are_bit_for_bit_those_of_one_process(
    case: tuple[Floats, Mixture, list], workers: tuple[int, ...], tmp_path: Path
) -> None:
    events, mixture, unweighted = case
    weights = weights_of(len(events))
    expected = everything(CpuEngine(events, weights=weights), mixture)
    with (
        threads(*workers) as local,
        closing(engine_on(local.scheduler_address, events, tmp_path, weights=weights)) as engine,
    ):
        assert_same(everything(engine, mixture), expected)
    with pytest.raises(AssertionError):
        assert_same(expected, unweighted)


def test_chunks_are_assigned_once_if_some_workers_get_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(placement, "LOOK_SECONDS", 0.0)
    events, mixture = problem(100, 2, 2)
    with (
        caplog.at_level(logging.INFO, "dpmix"),
        threads(1, 1) as local,
        closing(engine_on(local.scheduler_address, events, tmp_path)) as engine,
    ):
        for step in range(3):
            engine.draw_labels(mixture, Key(3, 0, step))
    assert caplog.messages.count("cluster: 1 chunks on 1 workers") == 1


@pytest.mark.parametrize("share", [0.4, 2.0])
def test_a_part_is_made_once_whether_it_fits_a_workers_memory_or_not(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask moves results above 0.6 of the memory to disk: a part would then be read again in every sweep."""
    events, mixture = problem(2 * CHUNK, 16, 4)
    made = []

    def making(values: Floats, **options: Any) -> CpuEngine:
        made.append("scratch" in options)
        return CpuEngine(values, **options)

    monkeypatch.setattr(part, "CpuEngine", making)
    limits = dict.fromkeys((f"distributed.worker.memory.{what}" for what in ("spill", "pause")), False)
    with (
        dask.config.set(limits),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
            memory_limit=int(events.nbytes / share),
        ) as local,
        closing(engine_on(local.scheduler_address, events, tmp_path)) as engine,
    ):
        for step in range(3):
            engine.draw_labels(mixture, Key(3, 0, step))
    assert made == [share > 0.5]


def bytes_sent(cluster: LocalCluster) -> int:
    """Return the bytes that the workers of this process have sent so far, by Dask's count."""
    return sum(worker.transfer_outgoing_bytes_total for worker in cluster.workers.values())


def test_what_moves_in_a_sweep_is_parameters_and_statistics_however_many_events(tmp_path: Path) -> None:
    """The other worker receives parameters, the adding worker a state, and the host the sum."""
    sent = []
    for n in (2 * CHUNK, 6 * CHUNK):
        events, mixture = problem(n, 5, 64)
        with threads(1, 1) as local, closing(engine_on(local.scheduler_address, events, tmp_path)) as engine:
            engine.draw_labels(mixture, Key(3, 0, 0))
            before = bytes_sent(local)
            engine.draw_labels(mixture, Key(3, 0, 1))
            sent.append(bytes_sent(local) - before)
    parameters = part.size_of_mixture(mixture)
    state = 4 * 8 * (64 * 6 * 7 // 2 + 1)
    assert sent[0] == sent[1]
    assert parameters + 2 * state <= sent[0] < parameters + 2 * state + 4096


@pytest.mark.slow
def test_workers_with_gpus_give_the_bits_of_gpus(
    emulated_devices: Callable[..., None], tmp_path: Path
) -> None:
    events, mixture = problem(CHUNK + 77, 1, 4)
    expected = everything(CudaEngine(events, devices=[0]), mixture)
    with threads(1, 1) as local, closing(engine_on(local.scheduler_address, events, tmp_path)) as engine:
        assert engine.info["engine"] == "cuda"
        assert_same(everything(engine, mixture), expected)


def test_workers_with_gpus_give_the_bits_of_gpus_by_sample(
    emulated_devices: Callable[..., None], tmp_path: Path
) -> None:
    """The second sample is cut between the workers."""
    events, plain = problem(2 * CHUNK + 600, 1, 4)
    starts = np.array([0, 300, 2 * CHUNK + 400, 2 * CHUNK + 600])
    rng = np.random.default_rng(5)
    mixture = replace(
        plain, samples=SampleTerms(np.log(rng.dirichlet(np.ones(4), 3)), rng.normal(size=(3, 1)))
    )
    alone = CudaCohortEngine(events, starts, devices=[0])
    expected = [alone.draw_labels(mixture, Key(3, 0, 0)), alone.labels(), alone.expect_labels(mixture)]
    with (
        threads(1, 1) as local,
        closing(engine_on(local.scheduler_address, events, tmp_path, starts=starts)) as engine,
    ):
        assert engine.info["engine"] == "cuda"
        found = [engine.draw_labels(mixture, Key(3, 0, 0)), engine.labels(), engine.expect_labels(mixture)]
    assert_same(found, expected)


COHORT_STARTS = np.array([0, 2 * CHUNK + 500, 2 * CHUNK + 500, 3 * CHUNK, N])  # the second has no events


def cohort_passes(engine: ClusterEngine | CohortEngine, mixture: Mixture) -> list[Any]:
    """Return the results of all kinds of passes with weights and shifts of samples."""
    k = len(mixture.means)
    pairs = SplitAssignment(np.arange(k, dtype=np.int32) // 4, np.full(k, -1, np.int8), 2)
    few = Mixture(
        mixture.log_weights[: k // 2],
        mixture.means[: k // 2],
        mixture.whiteners[: k // 2],
        mixture.log_norms[: k // 2],
        samples=mixture.samples,
    )
    found: list[Any] = [engine.draw_labels(mixture, Key(3, 1, step)) for step in range(2)]
    found += [*engine.divide(pairs, few, Key(3, 1, 1)), engine.labels(1)]
    found += [engine.expect_labels(mixture) for _ in range(2)]
    middle = int(COHORT_STARTS[1])
    return [*found, *engine.memberships(mixture, np.arange(k) % 3, middle - 7, middle + 70)]


def test_samples_are_bit_for_bit_those_of_one_process(tmp_path: Path) -> None:
    """Samples are cut between workers, or whole, or both."""
    events, plain = problem(N, 3, 16)
    rng = np.random.default_rng(5)
    terms = SampleTerms(np.log(rng.dirichlet(np.ones(16), 4)), rng.normal(size=(4, 3)))
    mixture, weights = replace(plain, samples=terms), weights_of(N)
    with closing(CohortEngine(events, COHORT_STARTS, threads=2, weights=weights)) as alone:
        expected = cohort_passes(alone, mixture)
    for workers in ((1, 2), (1,) * 5):
        with (
            threads(*workers) as local,
            closing(
                engine_on(local.scheduler_address, events, tmp_path, weights=weights, starts=COHORT_STARTS)
            ) as engine,
        ):
            found = cohort_passes(engine, mixture)
            with pytest.raises(ValueError, match="need weights and shifts of 4 samples"):
                engine.draw_labels(plain, Key(3, 0, 0))
        assert_same(found, expected)
