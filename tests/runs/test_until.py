"""mcmc.until: the rule, where it ends burn-in and draws, and that a resumed run makes the same decisions."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray
from whole_runs import StopAfter, a_config, assert_draws_of, assert_identical, write_events

from dpmix import open_run
from dpmix.config.schema import Config
from dpmix.engines.cpu import CpuEngine
from dpmix.model.mixture import Array, mixture_from
from dpmix.runs import monitors, until
from dpmix.runs.checkpoint import Checkpoint
from dpmix.runs.describe import describe_run
from dpmix.runs.loop import Checkpoints
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.monitors import InterimPopulations, interim_populations, reference_events
from dpmix.runs.reader import Run
from dpmix.runs.resume import choose
from dpmix.runs.until import Agreement, is_check
from dpmix.system.extras import import_arviz

NONE = np.zeros(3)  # no error is negligible


def draws(chains: int = 4, n: int = 100, apart: float = 0.0, drift: float = 0.0, seed: int = 0) -> Array:
    """Independent draws of three quantities; in the second one chain is elsewhere, in the third all drift."""
    values = np.random.default_rng(seed).normal(size=(chains, n, 3))
    values[-1, :, 1] += apart
    values[..., 2] += drift * np.linspace(0.0, 1.0, n)
    return values


# The rule


@pytest.mark.parametrize("chains", [1, 2, 4])
def test_chains_that_agree_pass_and_others_do_not(chains: int) -> None:
    n = 400 // chains
    passed = [Agreement.of(draws(chains, n, seed=s)).holds(NONE, 1.05, 200) for s in range(20)]
    assert sum(passed) >= 17  # by chance R-hat of independent draws is above 1.05 now and then
    assert not any(
        Agreement.of(draws(chains, n, drift=3.0, seed=s)).holds(NONE, 1.05, 200) for s in range(20)
    )
    if chains > 1:
        apart = [Agreement.of(draws(chains, n, apart=2.0, seed=s)).holds(NONE, 1.05, 200) for s in range(20)]
        assert not any(apart)


def test_a_rule_that_ignores_the_variance_between_chains_would_pass_chains_that_are_apart() -> None:
    """The wrong rule: split R-hat of each chain on its own, which says nothing of the others."""

    def wrong(values: Array) -> bool:
        return all(Agreement.of(chain[None]).holds(NONE, 1.1) for chain in values)

    apart = [draws(4, 400, apart=2.0, seed=s) for s in range(20)]
    assert sum(map(wrong, apart)) >= 15
    assert not any(Agreement.of(values).holds(NONE, 1.1) for values in apart)


def test_too_few_effective_draws_do_not_pass() -> None:
    assert Agreement.of(draws(4, 100)).holds(NONE, 1.05, 200)
    assert not Agreement.of(draws(4, 100)).holds(NONE, 1.05, 600)


def test_constant_quantities_and_negligible_errors_do_not_count() -> None:
    values = draws(apart=2.0)
    values[..., 0] = 1.0
    found = Agreement.of(values)
    assert np.isnan(found.r_hat[0])
    assert found.counts(NONE).tolist() == [False, True, True]
    assert not found.holds(NONE, 1.05)
    assert found.holds(np.array([0.0, 2.0 * found.error[1], 0.0]), 1.05)
    stuck = np.repeat(np.arange(4.0)[:, None, None], 20, axis=1)
    assert not Agreement.of(stuck).holds(np.zeros(1), 1.05)


def test_burn_in_ends_where_the_likelihood_and_most_densities_agree() -> None:
    none = np.zeros(21)
    values = np.random.default_rng(0).normal(size=(4, 60, 21))
    assert Agreement.of(values).allows_draws(none)
    values[0, :, [5, 9]] += 4.0
    assert Agreement.of(values).allows_draws(none)
    values[0, :, 12] += 4.0
    assert not Agreement.of(values).allows_draws(none)
    assert Agreement.of(values).allows_draws(none + 10.0)  # errors are negligible
    values = np.random.default_rng(0).normal(size=(4, 60, 21))
    values[0, :, 0] += 4.0
    assert not Agreement.of(values).allows_draws(none)


def test_burn_in_does_not_end_while_the_number_of_occupied_components_falls() -> None:
    rng = np.random.default_rng(0)
    steady = rng.integers(18, 23, (4, 101))
    assert not until.still_empties(steady)
    apart = np.arange(0, 80, 20)[:, None]
    assert not until.still_empties(steady + apart)  # chains may differ
    assert not until.still_empties(steady + np.arange(101))
    assert until.still_empties(steady + np.arange(100, -1, -1))
    assert not until.still_empties(np.linspace(2.6, 2.0, 100)[None])  # less than one component
    early = np.where(np.arange(101) < 40, 128, steady)
    assert not until.still_empties(early)  # the fall is over


def test_checks_become_rarer() -> None:
    checks = [n for n in range(1, 3_000) if is_check(n)]
    assert checks[:4] == [50, 75, 100, 125]
    assert {b - a for a, b in itertools.pairwise(checks) if a < 475} == {25}
    assert max((b - a) / a for a, b in itertools.pairwise(checks) if a >= 500) <= 0.15
    assert len(checks) < 60


# What is monitored


def test_reference_events_are_spread_and_the_same_for_the_same_data() -> None:
    rng = np.random.default_rng(0)
    centres = np.array([[0.0, 0.0], [20.0, 0.0], [0.0, 20.0]])
    sizes = [5_000, 500, 50]
    values = np.concatenate([c + rng.normal(size=(n, 2)) for c, n in zip(centres, sizes, strict=True)])
    values = values[rng.permutation(len(values))].astype(np.float32)
    chosen = reference_events(values)
    assert chosen.shape == (monitors.N_REFERENCES, 2)
    assert np.array_equal(chosen, reference_events(values.copy()))
    near = np.square(chosen[:, None] - centres).sum(axis=2).argmin(axis=1)
    assert (np.bincount(near, minlength=3) >= 1).all()
    assert (values.astype(np.float64)[:, None] == chosen).all(axis=2).any(axis=0).all()
    assert len(reference_events(np.ones((100, 2), np.float32))) == 1
    assert len(reference_events(np.array([[0.0], [1.0], [1.0]], np.float32))) == 2


def three_populations(rng: np.random.Generator) -> tuple[Array, Array, Array]:
    """Weights, means and covariances of nine components: three of each of three populations."""
    centres = np.repeat([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]], 3, axis=0)
    weights = np.repeat([0.5, 0.3, 0.2], 3) * np.tile([0.5, 0.3, 0.2], 3)
    return weights, centres + 0.5 * rng.normal(size=(9, 2)), np.tile(np.eye(2), (9, 1, 1))


def test_interim_populations_do_not_depend_on_the_numbers_of_components() -> None:
    rng = np.random.default_rng(3)
    weights, means, covariances = three_populations(rng)
    order = rng.permutation(9)
    one = interim_populations(weights, means, covariances)
    other = interim_populations(weights[order], means[order], covariances[order])
    assert one.n_groups == other.n_groups == 3
    for found in (one, other):
        np.testing.assert_allclose(found.proportions(weights, means), [0.5, 0.3, 0.2])
        np.testing.assert_allclose(found.proportions(weights[order], means[order]), [0.5, 0.3, 0.2])
    moved = means + 0.3 * rng.normal(size=means.shape)
    np.testing.assert_allclose(one.proportions(weights, moved), [0.5, 0.3, 0.2])


def test_components_of_one_population_are_one_group_and_light_groups_are_not_monitored() -> None:
    weights, means = np.array([0.6, 0.3985, 0.0015]), np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 30.0]])
    covariances = np.tile(np.eye(2), (3, 1, 1))
    found = interim_populations(weights, means, covariances)
    assert (found.n_groups, found.groups.tolist()) == (2, [0, 1, 2])
    closer = interim_populations(weights, means / 3.0, covariances)
    assert (closer.n_groups, closer.groups.tolist()) == (1, [0, 0, 1])


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_groups_that_a_valley_divides_are_monitored_apart_whatever_their_sizes(share: float) -> None:
    weights, covariances = np.array([1.0 - share, share]), np.tile(np.eye(2), (2, 1, 1))
    apart, close = ([[0.0, 0.0], [distance, 0.0]] for distance in (3.5, 2.5))
    assert interim_populations(weights, np.array(apart), covariances).n_groups == 2
    assert interim_populations(weights, np.array(close), covariances).n_groups == 1


def test_the_log_density_is_that_of_the_mixture() -> None:
    from scipy.stats import multivariate_normal

    rng = np.random.default_rng(5)
    weights, means, covariances = three_populations(rng)
    points = 5.0 * rng.normal(size=(7, 2))
    expected = np.log(
        sum(
            w * multivariate_normal(m, c).pdf(points)
            for w, m, c in zip(weights, means, covariances, strict=True)
        )
    )
    found = monitors.log_density(mixture_from(np.log(weights), means, covariances), points)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


# Runs

RULE: dict[str, Any] = {"chains": 2, "burn_in": 60, "draws": 40, "until": {"rhat": 1.3, "ess": 8}}


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check so often that short runs end early."""
    monkeypatch.setattr(until, "FIRST_CHECK", 8)
    monkeypatch.setattr(until, "CHECK_EVERY", 4)
    monkeypatch.setattr(until, "FIRST_END_OF_BURN_IN", 16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events of two groups far apart."""
    folder = tmp_path_factory.mktemp("until")
    rng = np.random.default_rng(1)
    events = rng.normal(size=(600, 2)) + 8.0 * (rng.random((600, 1)) < 0.3)
    np.save(folder / "events.npy", events.astype(np.float32))
    return folder


def config_of(folder: Path, output: Path, **mcmc: object) -> Config:
    return a_config(folder, str(output), mcmc=RULE | mcmc, model={"components": 4})


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("more", [{}, {"thin": 3}, {"chains": 1, "until": {"rhat": 2.0, "ess": 5}}])
def test_a_run_whose_chains_agree_ends_early(folder: Path, tmp_path: Path, more: dict[str, Any]) -> None:
    config = config_of(folder, tmp_path / "run.h5", **more)
    assert run_mcmc(config).completed
    run = open_run(tmp_path / "run.h5")
    assert run.complete
    assert run.stopped == run.committed < run.draws == 40
    assert run.burn_in_end is not None
    assert run.burn_in_end < 60
    assert run.sweeps_made.tolist() == [run.burn_in + run.committed * config.mcmc.thin] * config.mcmc.chains
    log_likelihood = run.trace["log_likelihood"][:, run.draw_sweeps]
    assert np.array_equal(log_likelihood, run.sample_stats["log_likelihood"])
    found = Agreement.of(np.stack([*monitors.monitored(run).values()], axis=2))
    for stored, again in zip(run.agreement, found, strict=True):
        assert np.array_equal(stored[: len(again)], again, equal_nan=True)
    text = "\n".join(describe_run(run))
    assert f"progress: complete; {run.committed} of at most 40 draws" in text
    assert f"(burn-in {run.burn_in} of at most 60)" in text
    assert f"\nstopped after {run.committed} of at most 40 draws: R-hat " in text
    assert f"in all {1 + 24 + 2} monitored quantities" in text


@pytest.mark.usefixtures("often")
def test_a_run_in_which_nothing_was_compared_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_mcmc(config_of(folder, tmp_path / "run.h5"))
    run = open_run(tmp_path / "run.h5")
    all_negligible = np.full(run.agreement[0].shape, np.inf)
    monkeypatch.setattr(until, "negligible_errors", lambda *_: all_negligible)
    reason = until.stop_reason(run)
    assert reason is not None
    assert "R-hat compared nothing" in reason
    assert "inf" not in reason


def test_most_components_of_a_start_empty_before_the_first_draw(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The density of these five groups is the same with 30 components as with 7."""
    write_events(tmp_path / "events.npy", 2_000)
    rule, model = RULE | {"burn_in": 400, "draws": 8}, {"components": 40, "coarseness": 5_000.0}

    def run(output: str) -> Run:
        return open_run(run_mcmc(a_config(tmp_path, output, mcmc=rule, model=model)).path)

    right = run("right.h5")
    monkeypatch.setattr(until, "still_empties", lambda occupied: False)
    wrong = run("wrong.h5")
    assert wrong.burn_in == 100 < right.burn_in
    assert right.sample_stats["occupied"].mean() < 15 < 20 < wrong.sample_stats["occupied"].mean()


@pytest.mark.usefixtures("often")
def test_arviz_and_xarray_open_a_run_that_ended_early(folder: Path, tmp_path: Path) -> None:
    run = open_run(run_mcmc(config_of(folder, tmp_path / "run.h5")).path)
    data, tree = import_arviz().from_netcdf(run.path), xarray.open_datatree(run.path, engine="h5netcdf")
    for group in (data["convergence"], tree["convergence"].to_dataset(), run.arviz()["convergence"]):
        assert group["log_density"].dims == ("chain", "sweep", "reference")
        assert int(group["stopped"]) == run.committed
        assert int(group["burn_in"]) == run.burn_in
        assert float(group["r_hat"].sel(quantity="log likelihood")) == run.agreement[0][0]
    assert run.arviz()["posterior"].sizes["draw"] == run.committed
    data.close()
    tree.close()


@pytest.mark.usefixtures("often")
def test_the_end_does_not_depend_on_threads_or_pruning(folder: Path, tmp_path: Path) -> None:
    one = config_of(folder, tmp_path / "one.h5")
    engine = {"threads": 2, "pruning": False}
    other = a_config(folder, str(tmp_path / "other.h5"), mcmc=RULE, model={"components": 4}, engine=engine)
    assert_identical(run_mcmc(one).path, run_mcmc(other).path)


@pytest.mark.usefixtures("often")
def test_without_the_rule_a_run_makes_all_draws(folder: Path, tmp_path: Path) -> None:
    run = open_run(run_mcmc(config_of(folder, tmp_path / "run.h5", until=None)).path)
    assert (run.committed, run.burn_in, run.stopped, run.is_monitored) == (40, 60, None, False)
    assert "reference_events" not in run.constants
    assert "stopped" not in "\n".join(describe_run(run))


@pytest.mark.usefixtures("often")
def test_a_rule_that_is_never_met_gives_the_draws_of_a_run_without_it(folder: Path, tmp_path: Path) -> None:
    """And says what was missing. Burn-in of 0 leaves no room for the rule there."""
    strict = {"burn_in": 0, "draws": 12, "until": {"rhat": 1.05, "ess": 10_000}}
    with_rule = run_mcmc(config_of(folder, tmp_path / "rule.h5", **strict)).path
    without = run_mcmc(config_of(folder, tmp_path / "null.h5", **strict | {"until": None})).path
    assert assert_draws_of(without, with_rule) == 12
    (line,) = (line for line in describe_run(open_run(with_rule)) if line.startswith("stopped at"))
    assert line.startswith("stopped at mcmc.draws (12): ")
    assert "asked)" in line


@pytest.mark.usefixtures("often")
def test_a_run_stopped_anywhere_and_resumed_is_one_run(folder: Path, tmp_path: Path) -> None:
    whole = run_mcmc(config_of(folder, tmp_path / "whole.h5", thin=2)).path
    config = config_of(folder, tmp_path / "run.h5", thin=2)
    stops = 0
    while not run_mcmc(config, resume=stops > 0, should_stop=StopAfter(3)).completed:
        stops += 1
    assert stops >= 4
    assert_identical(whole, tmp_path / "run.h5")
    assert run_mcmc(config, resume=True).completed
    assert_identical(whole, tmp_path / "run.h5")


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("passes", [1, 31])
def test_a_run_that_fails_anywhere_resumes_from_its_last_checkpoint(
    folder: Path, tmp_path: Path, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint may be older than the decisions in the file."""
    whole = run_mcmc(config_of(folder, tmp_path / "whole.h5")).path
    config = config_of(folder, tmp_path / "run.h5")
    draw_labels, left = CpuEngine.draw_labels, [passes]

    def take(checkpoints: Checkpoints, checkpoint: Checkpoint) -> None:
        if checkpoint.iteration % 7 == 0:
            checkpoints._session.writer.save_checkpoint(*checkpoint)

    def fail(*given: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt  # like a kill: dpmix does not save its latest checkpoint
        return draw_labels(*given)

    with monkeypatch.context() as patch:
        patch.setattr(CpuEngine, "draw_labels", fail)
        patch.setattr("dpmix.runs.loop.Checkpoints.take", take)
        patch.setattr("dpmix.runs.loop.Checkpoints.save", lambda self: None)
        with pytest.raises(KeyboardInterrupt):
            run_mcmc(config)
    assert run_mcmc(config, resume=True).completed
    assert_identical(whole, tmp_path / "run.h5")


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("how", ["null", "more", "null, stopped"])
def test_a_run_that_the_rule_ended_goes_on_where_asked(folder: Path, tmp_path: Path, how: str) -> None:
    """Burn-in stays where it ended, and the draws are as with a rule that is never met."""
    path = tmp_path / "run.h5"
    never = {"until": {"rhat": 1.3, "ess": 10**6}, "draws": 52 if how == "more" else 40}
    whole = run_mcmc(config_of(folder, tmp_path / "whole.h5", **never)).path
    run_mcmc(config_of(folder, path))
    before = open_run(path)
    assert before.stopped is not None
    settings = ["mcmc.draws=52"] if how == "more" else ["mcmc.until=null"]
    assert choose("mcmc", path, resume=True).finished is not None
    chosen = choose("mcmc", path, settings, resume=True)
    assert chosen.finished is None
    if how == "null, stopped":
        assert not run_mcmc(chosen.config, resume=True, should_stop=StopAfter(2)).completed
        chosen = choose("mcmc", path, resume=True)
        assert chosen.finished is None
    assert run_mcmc(chosen.config, resume=True).completed
    run = open_run(path)
    assert (run.committed, run.burn_in, run.stopped) == (never["draws"], before.burn_in, None)
    assert assert_draws_of(whole, path) == never["draws"]
    assert choose("mcmc", path, settings, resume=True).finished is not None
    assert "continued after mcmc.until" in "\n".join(describe_run(run))


@pytest.mark.usefixtures("often")
def test_a_report_says_that_a_run_may_end_earlier(folder: Path, tmp_path: Path) -> None:
    reports: list[Any] = []
    run_mcmc(config_of(folder, tmp_path / "run.h5"), on_sweep=reports.append)
    run = open_run(tmp_path / "run.h5")
    assert all(report.at_most for report in reports)
    assert {report.phase for report in reports if report.iteration <= run.burn_in} == {"burn-in"}
    assert {report.phase for report in reports if report.iteration > run.burn_in} == {"draws"}
    assert reports[0].total == 100
    assert reports[-1].total == run.burn_in + run.committed
    reports.clear()
    run_mcmc(config_of(folder, tmp_path / "null.h5", until=None), on_sweep=reports.append)
    assert not any(report.at_most for report in reports)


def test_groups_that_one_chain_lacks_keep_chains_apart() -> None:
    """A population that one chain has not found shows in the proportions."""
    rng = np.random.default_rng(7)
    weights, means, covariances = three_populations(rng)
    found: InterimPopulations = interim_populations(weights, means, covariances)
    own = np.stack(
        [
            [found.proportions(rng.dirichlet(2_000 * weights), means) for _ in range(60)],
            [found.proportions(rng.dirichlet(2_000 * weights), means) for _ in range(60)],
        ]
    )
    assert Agreement.of(own).holds(np.zeros(3), 1.1)
    lacking = means.copy()
    lacking[6:] = lacking[:3]  # the components of the third population are in the first
    own[1] = [found.proportions(rng.dirichlet(2_000 * weights), lacking) for _ in range(60)]
    assert not Agreement.of(own).holds(np.zeros(3), 1.1)
