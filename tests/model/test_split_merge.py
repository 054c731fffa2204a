"""Split-merge moves; test_exact_posterior.py tests their densities and their invariant distribution."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from whole_runs import StopAfter, a_config, assert_identical, write_events

from dpmix import open_run
from dpmix.config.schema import Config
from dpmix.engines.cpu import CpuEngine
from dpmix.model import gibbs, normal_wishart, split_merge
from dpmix.model.mixture import Array, Floats, Ints, State, Stats, mixture_of, no_events, occupied
from dpmix.model.prior import Prior, log_prior
from dpmix.model.streams import Key, Step, Stream
from dpmix.runs.mcmc import run_mcmc

PRIOR = Prior(np.array([0.2, -0.1]), 5.0, 2.0, np.array([[0.4, 0.1], [0.1, 0.3]]), 1.0, 1.0)


def stats_of(events: Floats, labels: Ints, centres: Array) -> Stats:
    stats = no_events(len(centres), events.shape[1])
    for j, centre in enumerate(centres):
        away = events[labels == j] - centre
        stats.counts[j], stats.sums[j], stats.scatters[j] = len(away), away.sum(axis=0), away.T @ away
    return Stats(stats.counts, stats.sums, stats.scatters, centres, -1.0)


def state_of(events: Floats, labels: Ints, n_components: int, prior: Prior) -> State:
    """Draw a state given labels."""
    stats = stats_of(events, labels, np.zeros((n_components, events.shape[1])))
    state = gibbs.draw_prior(prior, n_components, 1.0, Stream(0, 0, 0))
    return gibbs.sweep(state, stats, prior, Stream(0, 0, 0))[0]


def separated(n_events: int, n_groups: int, dim: int) -> tuple[Floats, Ints]:
    rng = np.random.default_rng(2)
    labels = rng.integers(n_groups, size=n_events)
    events = 4.0 * rng.standard_normal((n_groups, dim))[labels] + rng.standard_normal((n_events, dim))
    return ((events - events.mean(axis=0)) / events.std(axis=0)).astype(np.float32), labels


def test_merged_statistics_are_those_of_the_joined_events() -> None:
    rng = np.random.default_rng(1)
    events, labels = rng.normal(size=(50, 2)).astype(np.float32), rng.integers(2, size=50)
    centres = np.array([[3.0, 1.0], [-2.0, 7.0]])
    apart = stats_of(events, labels, centres)
    both = split_merge.merge_components(split_merge.rows_of(apart, [0]), split_merge.rows_of(apart, [1]))
    want = stats_of(events, np.zeros(50, int), centres[:1])
    for name in ("counts", "sums", "scatters", "centres"):
        np.testing.assert_allclose(getattr(both, name), getattr(want, name), rtol=1e-12, err_msg=name)


def chain(
    events: Floats, state: State, prior: Prior, sweeps: int, *, moves: bool
) -> tuple[list[float], list[int]]:
    """Return log posteriors and numbers of occupied components, with a round in every sweep or in none."""
    engine = CpuEngine(events)
    log_posteriors, numbers = [], []
    for _ in range(sweeps):
        key = Key(1, 0, state.iteration + 1)
        stats = engine.draw_labels(mixture_of(state), key)
        log_posteriors.append(stats.log_likelihood + log_prior(state, prior))
        numbers.append(occupied(stats.counts))
        regroup = split_merge.round_of(engine.divide, key) if moves else None
        state, _ = gibbs.sweep(state, stats, prior, Stream(*key), regroup=regroup)
    return log_posteriors, numbers


def test_separated_groups_are_found_from_one_component() -> None:
    """Without the moves they are not found."""
    events, labels = separated(4000, 12, 5)
    prior = Prior(np.zeros(5), 5.0, 2.0, 0.1 * np.eye(5), 1.0, 1.0)
    truth, _ = chain(events, state_of(events, labels, 30, prior), prior, 40, moves=False)
    level = np.mean(truth[10:]) - 4.0 * np.std(truth[10:])
    one = state_of(events, np.zeros_like(labels), 30, prior)
    assert max(chain(events, one, prior, 40, moves=True)[0]) > level
    assert max(chain(events, one, prior, 200, moves=False)[0]) < level


@pytest.mark.slow
def test_splits_and_merges_balance() -> None:
    """With few events, both are common."""
    events = np.random.default_rng(4).normal(size=(12, 2)).astype(np.float32)
    state = state_of(events, np.zeros(12, int), 6, PRIOR)
    engine, made = CpuEngine(events), np.zeros(2, int)
    for _ in range(1500):
        key = Key(1, 0, state.iteration + 1)
        stats = engine.draw_labels(mixture_of(state), key)
        rng = Stream(*key).step(Step.SPLIT_MERGE)
        divide = partial(engine.divide, key=key)
        stats, moves = split_merge.regroup(stats, PRIOR, state.alpha, divide, rng)
        made += [moves.splits_accepted, moves.merges_accepted]
        state, _ = gibbs.sweep(state, stats, PRIOR, Stream(*key))
    assert made.min() > 100
    assert made.max() < 1.5 * made.min()


@pytest.mark.parametrize(("n_events", "n_components"), [(1, 1), (1, 2), (2, 3), (5, 2), (40, 5)])
def test_the_smallest_cases_go_through(n_events: int, n_components: int) -> None:
    events = np.random.default_rng(0).normal(size=(n_events, 2)).astype(np.float32)
    state = state_of(events, np.zeros(n_events, int), n_components, PRIOR)
    assert np.isfinite(chain(events, state, PRIOR, 30, moves=True)[0]).all()


def test_a_round_moves_events_and_loses_none() -> None:
    events, labels = separated(3000, 8, 3)
    prior = Prior(np.zeros(3), 5.0, 2.0, 0.1 * np.eye(3), 1.0, 1.0)
    state, engine, key = state_of(events, labels // 2, 20, prior), CpuEngine(events), Key(1, 0, 1)
    before = engine.draw_labels(mixture_of(state), key)
    after, moves = split_merge.regroup(
        before, prior, 1.0, lambda *split: engine.divide(*split, key), np.random.default_rng(0)
    )
    assert moves.splits_proposed >= moves.splits_accepted >= 2
    assert moves.merges_proposed >= moves.merges_accepted
    assert moves.splits_proposed + moves.merges_proposed <= 10
    assert after.log_likelihood == before.log_likelihood
    assert occupied(after.counts) == occupied(before.counts) + moves.splits_accepted - moves.merges_accepted
    for stats in (before, after):
        centred = stats.sums + stats.counts[:, None] * stats.centres
        assert stats.counts.sum() == 3000
        np.testing.assert_allclose(centred.sum(axis=0), events.sum(axis=0, dtype=float), atol=1e-3)
        moments = normal_wishart.posterior(stats, prior)
        assert (np.linalg.eigvalsh(moments.scales) > 0).all()


def test_a_round_counts_the_moves_it_proposes() -> None:
    """This includes moves rejected without a pass over the events: here all, with one event each."""
    events = np.array([[0.0, 0.0], [90.0, 90.0], [-90.0, 90.0], [-90.0, -90.0]], np.float32)

    def no_pass(split: split_merge.SplitAssignment, mixture: object) -> tuple[Stats, Array]:
        raise AssertionError("a pass")

    def moves_of(labels: list[int], n_components: int) -> split_merge.Moves:
        stats = stats_of(events[: len(labels)], np.array(labels), np.zeros((n_components, 2)))
        rng = np.random.default_rng(3)
        return split_merge.regroup(stats, PRIOR, 1.0, no_pass, rng)[1]

    assert moves_of([0, 1, 2, 3], 4) == (0, 0, 2, 0)
    assert moves_of([0], 2) == (1, 0, 0, 0)
    assert moves_of([], 6) == (0, 0, 0, 0)


def test_a_round_is_due_when_the_config_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_events(tmp_path / "events.npy", 300)
    due: list[tuple[int, int]] = []

    def round_of(divide: object, key: Key, *_: object) -> split_merge.Regroup:
        due.append((key.chain, key.iteration))
        return lambda stats, hyper, alpha: (stats, split_merge.Moves())

    monkeypatch.setattr(split_merge, "round_of", round_of)
    for every, expected in ((0, []), (3, [(chain, t) for t in (3, 6, 9) for chain in (0, 1)])):
        lengths = {"burn_in": 4, "draws": 3, "thin": 2, "chains": 2, "split_merge": every}
        run_mcmc(a_config(tmp_path, f"{every}.h5", mcmc=lengths))
        assert due == expected


def test_a_run_with_moves_is_the_same_stopped_and_on_other_threads(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 65_536 + 5000)
    lengths = {"burn_in": 3, "draws": 6, "chains": 2, "init": "prior"}
    model = {"components": 30}

    def config(name: str, threads: int, in_flight: int | None = None, every: int = 2) -> Config:
        engine = {"threads": threads, "chunks_in_flight": in_flight}
        mcmc = lengths | {"split_merge": every}
        return a_config(tmp_path, name, mcmc=mcmc, model=model, engine=engine)

    plain = run_mcmc(config("plain.h5", 1)).path
    assert_identical(plain, run_mcmc(config("threads.h5", 3, 1)).path)
    stopped = config("stopped.h5", 2)
    assert not run_mcmc(stopped, should_stop=StopAfter(5)).completed
    assert_identical(plain, run_mcmc(stopped, resume=True).path)
    without = run_mcmc(config("without.h5", 2, every=0)).path
    assert (np.asarray(open_run(without).alpha) != np.asarray(open_run(plain).alpha)).all()
