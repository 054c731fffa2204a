"""An exploration from judgements to events found, and the draws behind their number."""

from __future__ import annotations

import numpy as np
import pytest

from dpmix.explore.count import DRAWS, draw_signals
from dpmix.explore.covariance import SHAPES, JudgementCovariance, Shape
from dpmix.explore.explorer import CHECKS, Explorer, judgements_to_learn
from dpmix.explore.posterior import Judged
from dpmix.explore.screen import SIZE
from dpmix.model.mixture import Array, Floats

N, RARE = 12_000, 40


@pytest.fixture(scope="module")
def sample() -> tuple[Floats, Array]:
    """Four populations in six channels, and 40 rare cells that differ from one of them in two channels."""
    random = np.random.default_rng(5)
    means = np.vstack([random.uniform(-2.0, 2.0, (4, 6)), np.zeros(6)])
    means[4] = means[0] + [0.0, 2.0, 0.0, 0.0, -2.0, 0.0]
    labels = np.concatenate([random.integers(0, 4, N - RARE), np.full(RARE, 4)])
    events = means[labels] + 0.4 * random.standard_normal((N, 6))
    return ((events - events.mean(axis=0)) / events.std(axis=0)).astype(np.float32), labels == 4


def explored(events: Floats, wanted: Array, screens: int, mistakes: float = 0.0) -> Explorer:
    """Return an exploration from two wanted events and 18 random ones, with an oracle."""
    random = np.random.default_rng(7)
    explorer = Explorer(events, seed=1, threads=1)
    known = np.flatnonzero(wanted)[:2]
    rows = np.concatenate([known, random.choice(np.flatnonzero(~wanted), SIZE - 2, replace=False)])
    checks = np.zeros(SIZE, bool)
    for _ in range(screens):
        wrong = random.random(len(rows)) < mistakes
        explorer.judge(rows, np.where(wrong, ~wanted[rows], wanted[rows]).astype(float), checks)
        rows, checks = explorer.screen()
    return explorer


@pytest.mark.parametrize("mistakes", [0.0, 0.05])
def test_a_hidden_population_is_found(sample: tuple[Floats, Array], mistakes: float) -> None:
    events, wanted = sample
    explorer = explored(events, wanted, 7, mistakes)
    found = explorer.found()
    assert found is not None
    gate = explorer.posterior.mean >= np.float32(found.threshold)
    assert found.n_found == gate.sum()
    assert gate[wanted].mean() > 0.8
    assert wanted[gate].mean() > 0.8
    assert 0.9 * found.low <= RARE <= found.high
    assert found.precision > 0.7


def test_at_most_all_events_are_wanted(sample: tuple[Floats, Array], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpmix.explore.count._surprises", lambda *_: np.full(DRAWS, 1e6))
    found = explored(*sample, 1).found()
    assert found is not None
    assert found.high == N


def test_a_screen_has_checks_and_no_judged_event(sample: tuple[Floats, Array]) -> None:
    events, wanted = sample
    explorer = explored(events, wanted, 2)
    rows, checks = explorer.screen()
    assert len(rows) == SIZE
    assert not set(rows.tolist()) & set(explorer.rows.tolist())
    assert checks.sum() == CHECKS
    threshold = explorer.found().threshold  # type: ignore[union-attr]
    assert (explorer.posterior.mean[rows[checks]] >= np.float32(threshold)).all()
    rows, _ = explorer.screen(among=np.arange(100, 200), checks=0)
    assert ((rows >= 100) & (rows < 200)).all()


def test_without_a_wanted_event_nothing_is_found(sample: tuple[Floats, Array]) -> None:
    explorer = Explorer(sample[0], threads=1)
    rows, checks = explorer.screen()
    assert not checks.any()
    explorer.judge(rows, np.zeros(SIZE))
    assert explorer.found() is None


def test_screens_one_by_one_or_together_give_the_same_bits(sample: tuple[Floats, Array]) -> None:
    """With and without learning ahead, also where the covariance changes."""
    events, wanted = sample
    random = np.random.default_rng(3)
    rare, others = np.flatnonzero(wanted), random.permutation(np.flatnonzero(~wanted))
    screens = [np.concatenate([rare[3 * k :][:3], others[17 * k :][:17]]) for k in range(12)]
    waiting, ahead, together = (Explorer(events, 1, 1) for _ in range(3))
    for number, rows in enumerate(screens):
        waiting.judge(rows, wanted[rows].astype(float))
        ahead.judge(rows, wanted[rows].astype(float))
        ahead.learn_ahead()
        assert not ahead.is_to_learn()
        if number in (3, 6, len(screens) - 1):
            known = len(together.rows)
            more = np.concatenate(screens)[known : len(waiting.rows)]
            numbers = np.arange(known, known + len(more)) // SIZE
            together.judge(more, wanted[more].astype(float), screens=numbers)
            for other in (waiting, ahead):
                np.testing.assert_array_equal(other.posterior.mean, together.posterior.mean)
                np.testing.assert_array_equal(other.posterior.variance, together.posterior.variance)
                assert other.found() == together.found()
                assert other.screen()[0].tolist() == together.screen()[0].tolist()


def test_a_screen_after_learning_ahead_learns_nothing(
    sample: tuple[Floats, Array], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And computes only its own rows."""
    explorer = explored(*sample, 7)
    explorer.learn_ahead()
    passes = list[int]()
    monkeypatch.setattr("dpmix.explore.explorer.learn", None)
    monkeypatch.setattr(
        "dpmix.explore.posterior._cpu.update_posterior", lambda *given: passes.append(len(given[4]))
    )
    before = explorer.posterior
    rows, checks = explorer.screen()
    explorer.judge(rows, sample[1][rows].astype(float), checks)
    assert passes == [SIZE]
    assert explorer.posterior is not before  # the one that was computed ahead


def test_a_covariance_is_learned_from_all_but_the_last_screen_when_there_are_a_quarter_more() -> None:
    """At once up to 100 judgements, and the first time."""
    values, screens = np.resize([1.0, 0.0], 400), np.arange(400) // SIZE
    learned = [judgements_to_learn(values[:n], screens[:n]) for n in range(20, 401, 20)]
    assert learned[:5] == [20, 40, 60, 80, 100]
    assert learned[5:] == [100, 100, 140, 140, 180, 180, 180, 240, 240, 240, 300, 300, 300, 300, 380]
    ahead = [judgements_to_learn(values[:n], screens[:n], ahead=True) for n in (120, 140, 380)]
    assert ahead == [100, 140, 380]
    assert judgements_to_learn(values, np.zeros(400, int)) == 400
    late = (np.arange(400) == 390).astype(float)
    assert judgements_to_learn(late, screens) == 400
    assert judgements_to_learn(late[:380], screens[:380]) == 0


def test_an_event_is_judged_once(sample: tuple[Floats, Array]) -> None:
    explorer = Explorer(sample[0], threads=1)
    with pytest.raises(ValueError, match="judged twice"):
        explorer.judge(np.array([3, 3]), np.ones(2))


@pytest.mark.parametrize("shape", SHAPES)
def test_draws_of_the_signal_have_the_mean_and_covariance_of_the_posterior(shape: Shape) -> None:
    """Random features are redrawn, so that their error, of 1,024 features, averages out."""
    random = np.random.default_rng(2)
    points, events = random.standard_normal((8, 3)), random.standard_normal((5, 3))
    covariance = JudgementCovariance(shape, np.full(3, 2.0), 0.3, 0.02)
    judged = Judged(covariance, points, random.integers(0, 2, 8).astype(float))
    drawn = np.concatenate([draw_signals(judged, events, 100, random) for _ in range(40)], axis=1)
    whitened = judged.whitened(events)
    expected = covariance.between(events, events) - whitened.T @ whitened
    errors = np.sqrt(expected.diagonal() / drawn.shape[1])
    assert (np.abs(drawn.mean(axis=1) - whitened.T @ judged.targets) < 4.5 * errors).all()
    scale = np.sqrt(np.outer(expected.diagonal(), expected.diagonal()))
    assert np.abs((np.cov(drawn) - expected) / scale).max() < 5.0 * np.sqrt(2.0 / drawn.shape[1])
