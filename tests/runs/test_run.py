"""Whole runs: the same seed gives the same draws, whatever happens to the run on its way."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from whole_runs import StopAfter, a_config, assert_identical, write_events

from dpmix import open_run
from dpmix.engines.base import Engine
from dpmix.engines.cpu import CpuEngine
from dpmix.errors import ConfigError, DataError, DpmixError, EngineError
from dpmix.inputs import preprocess
from dpmix.model.bem import has_settled
from dpmix.model.mixture import Mixture, Stats, mixture_from
from dpmix.model.streams import Key
from dpmix.runs import initialise, session, writer
from dpmix.runs.bem import run_bem
from dpmix.runs.describe import describe_run
from dpmix.runs.layout import Record
from dpmix.runs.loop import Result
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.monitors import log_density
from dpmix.runs.profile import SPANS
from dpmix.runs.writer import RunWriter


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events in several chunks, the last one short."""
    folder = tmp_path_factory.mktemp("many")
    write_events(folder / "events.npy", 2 * 65_536 + 4_321)
    return folder


SHORT = {"chains": 2, "burn_in": 2, "draws": 3, "thin": 2, "split_merge": 2}


@pytest.fixture(scope="module")
def plain(many: Path) -> Path:
    """One thread, no pruning, one chunk at a time: what every other way of running must repeat."""
    engine = {"threads": 1, "chunks_in_flight": 1, "pruning": False}
    return run_mcmc(a_config(many, "plain.h5", mcmc=SHORT, engine=engine)).path


@pytest.mark.parametrize(
    "engine",
    [{"threads": 3, "chunks_in_flight": 2}, {"threads": 1, "chunks_in_flight": 4, "pruning": False}],
)
def test_draws_do_not_depend_on_threads_chunks_in_flight_or_pruning(
    many: Path, plain: Path, engine: dict[str, object], tmp_path: Path
) -> None:
    config = a_config(many, str(tmp_path / "run.h5"), mcmc=SHORT, engine=engine)
    assert_identical(plain, run_mcmc(config).path)


def test_the_engine_is_told_how_label_swaps_renumbered_the_components(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or none of its passes would prune: with swaps, in the order of the means, and without, in none."""
    seen: list[Mixture] = []
    draw_sums = CpuEngine.draw_sums
    monkeypatch.setattr(CpuEngine, "draw_sums", lambda *given: (seen.append(given[1]), draw_sums(*given))[1])
    for label_swaps in (True, False):
        mcmc = {"burn_in": 2, "draws": 3, "label_swaps": label_swaps}
        run_mcmc(a_config(many, str(tmp_path / f"{label_swaps}.h5"), mcmc=mcmc))
    orders = [mixture.order for mixture in seen]
    assert orders[0] is None
    assert all(order is not None and order.tolist() != list(range(12)) for order in orders[1:6])
    assert orders[6:] == [None] * 6


LEARNED = {"components": 12, "learn": ["alpha", "m", "gamma", "nu", "phi"]}


def test_another_seed_gives_other_draws(many: Path, plain: Path, tmp_path: Path) -> None:
    config = a_config(many, str(tmp_path / "run.h5"), mcmc=SHORT).model_copy(update={"seed": 6})
    other = open_run(run_mcmc(config).path)
    assert not np.array_equal(other.weights, open_run(plain).weights)


def test_chains_differ_and_thinning_thins(many: Path, plain: Path, tmp_path: Path) -> None:
    drawn = open_run(plain)
    assert drawn.complete
    assert drawn.weights.shape == (2, 3, 12)
    assert not np.array_equal(drawn.weights[0], drawn.weights[1])
    dense = SHORT | {"draws": 6, "thin": 1}
    every = open_run(run_mcmc(a_config(many, str(tmp_path / "run.h5"), mcmc=dense)).path)
    assert np.array_equal(drawn.weights, every.weights[:, 1::2])
    assert np.array_equal(drawn.trace["log_posterior"], every.trace["log_posterior"])
    assert np.array_equal(drawn.sample_stats["log_likelihood"], drawn.trace["log_likelihood"][:, 4::2])


@pytest.mark.parametrize("questions", [1, 4])
def test_mcmc_stopped_and_resumed_is_one_run(many: Path, plain: Path, questions: int, tmp_path: Path) -> None:
    config = a_config(many, str(tmp_path / "run.h5"), mcmc=SHORT)
    assert not run_mcmc(config, should_stop=StopAfter(questions)).completed
    assert run_mcmc(config, resume=True).completed
    assert_identical(plain, Path(config.output.path))
    assert run_mcmc(config, resume=True).completed  # and again, with nothing left to do
    assert_identical(plain, Path(config.output.path))


@pytest.mark.parametrize("questions", [None, 4])
def test_a_run_goes_on_to_more_draws(tmp_path: Path, questions: int | None) -> None:
    """A run that was finished or stopped before equals the run with this many draws from the start."""
    write_events(tmp_path / "events.npy", 3000)
    many = SHORT | {"draws": 7}
    plain = run_mcmc(a_config(tmp_path, "plain.h5", mcmc=many)).path
    stop = {} if questions is None else {"should_stop": StopAfter(questions)}
    grown = run_mcmc(a_config(tmp_path, "grown.h5", mcmc=SHORT), **stop).path
    assert open_run(grown).complete == (questions is None)
    run_id = open_run(grown).attributes["run_id"]
    assert run_mcmc(a_config(tmp_path, "grown.h5", mcmc=many), resume=True).completed
    assert_identical(plain, grown)
    assert open_run(grown).attributes["run_id"] == run_id
    assert open_run(grown).config["mcmc"]["draws"] == 7
    assert sorted(path.name for path in tmp_path.glob("grown*")) == ["grown.h5", "grown.h5.checkpoint"]


def test_a_run_that_finds_no_room_for_more_draws_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_events(tmp_path / "events.npy", 3000)
    path = run_mcmc(a_config(tmp_path, "run.h5", mcmc=SHORT)).path
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    more = a_config(tmp_path, "run.h5", mcmc=SHORT | {"draws": 7})
    with monkeypatch.context() as patch:
        patch.setattr(writer, "copy_drawn", full)
        with pytest.raises(DpmixError, match="No space left"):
            run_mcmc(more, resume=True)
    assert path.read_bytes() == before
    assert not path.with_name("run.h5.partial").exists()
    assert run_mcmc(more, resume=True).completed
    assert open_run(path).draws == 7


@pytest.mark.slow
def test_mcmc_that_learns_is_one_run_too(many: Path, tmp_path: Path) -> None:
    engine = {"threads": 1, "chunks_in_flight": 1, "pruning": False}
    whole = run_mcmc(a_config(many, str(tmp_path / "whole.h5"), mcmc=SHORT, model=LEARNED, engine=engine))
    config = a_config(many, str(tmp_path / "run.h5"), mcmc=SHORT, model=LEARNED, engine={"threads": 2})
    stops = 0
    while not run_mcmc(config, resume=stops > 0, should_stop=StopAfter(2)).completed:
        stops += 1
    assert stops > 2
    assert_identical(whole.path, Path(config.output.path))


BEM = {"starts": 3, "short_steps": 5, "max_steps": 12, "tolerance": 1e-13}


@pytest.mark.slow
@pytest.mark.parametrize("pruning", [True, False])
def test_bayesian_em_stopped_and_resumed_is_one_run(many: Path, pruning: bool, tmp_path: Path) -> None:
    """Hyperparameters are learned."""
    engine = {"threads": 2}
    whole = run_bem(a_config(many, str(tmp_path / "whole.h5"), bem=BEM, model=LEARNED, engine=engine)).path
    engine = {"threads": 3, "pruning": pruning, "chunks_in_flight": 1}
    config = a_config(many, str(tmp_path / "run.h5"), bem=BEM, model=LEARNED, engine=engine)
    stops = 0
    while not run_bem(config, resume=stops > 0, should_stop=StopAfter(5)).completed:
        stops += 1
    assert stops > 3
    assert_identical(whole, Path(config.output.path))
    best = open_run(whole)
    assert sorted(best.sweeps_made) == [5, 5, 12]
    assert best.sample_stats["log_posterior"][0, 0] == np.nanmax(best.trace["log_posterior"][:, 12])


def test_only_the_best_start_continues_after_the_short_steps(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 2_000)
    short = open_run(run_bem(a_config(tmp_path, "short.h5", bem=BEM)).path)
    whole = open_run(run_bem(a_config(tmp_path, "whole.h5", bem={**BEM, "short_steps": None})).path)
    paths = short.trace["log_posterior"]
    best = int(paths[:, 5].argmax())
    assert [int(made) for made in short.sweeps_made] == [12 if start == best else 5 for start in range(3)]
    # The order in which an engine adds events differs, and with it the last bits.
    np.testing.assert_allclose(paths[best], whole.trace["log_posterior"][best], rtol=1e-6)
    assert short.sample_stats["log_posterior"][0, 0] == paths[best, 12]
    assert short.emptied == short.trace["emptied"][best, : 12 + 1].sum()
    ends = whole.trace["log_posterior"][:, 12]
    assert whole.sample_stats["log_posterior"][0, 0] == ends.max()
    lines = "\n".join(describe_run(short))
    assert "3 of 3 starts run, 5 steps each; the best continues" in lines
    assert f"  start {best + 1}: 12 steps" in lines
    assert lines.count("(kept)") == 1


def test_short_steps_are_made_on_some_of_the_events(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 3_000)
    settings = BEM | {"short_events": 1_000}
    config = a_config(tmp_path, "run.h5", bem=settings, model={"components": 12, "coarseness": 500.0})
    with session.open_session("bem", config, tmp_path, False, False) as whole:
        values = np.array(whole.events.values)
        with session.on_fewer_events(whole, 1_000) as fewer:
            assert fewer.engine.n_events == 1_000
            assert 1_000 * fewer.zeta == pytest.approx(3_000 * whole.zeta)
    run = open_run(run_bem(config, overwrite=True).path)
    best = int(run.sweeps_made.argmax())
    draw = mixture_from(np.log(run.weights[0, 0]), run.means[0, 0], run.covariances[0, 0])
    # The best start ends on all events. Its short steps have the log likelihood of some, times 3.
    likelihood = run.trace["log_likelihood"]
    assert likelihood[best, 12] == pytest.approx(log_density(draw, values).sum(), rel=1e-6)
    assert likelihood[:, 4] == pytest.approx(likelihood[best, 5], rel=0.2)
    lines = "\n".join(describe_run(run))
    assert "3 of 3 starts run, 5 steps each on 1,000 of the events; the best continues" in lines
    seconds = np.nanmedian(run.trace["seconds"][:, 6:])
    rate = f"{3_000 * 12 / seconds / 1e6:,.0f} million events x components per second"
    assert f"speed: {seconds:.3g} s per step, {rate}" in lines
    given = config.model.model_dump()
    on_all = open_run(run_bem(a_config(tmp_path, "all.h5", bem=BEM, model=given)).path)
    assert (likelihood[:, 4] != on_all.trace["log_likelihood"][:, 4]).all()


def test_the_best_short_start_goes_on_where_it_had_settled_on_fewer_events(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 3_000)
    settings = {"starts": 2, "short_steps": 100, "max_steps": 150, "short_events": 1_000}
    run = open_run(run_bem(a_config(tmp_path, "run.h5", bem=settings)).path)
    short, best = sorted(run.sweeps_made)
    assert short < 100
    assert best > short
    path = run.trace["log_posterior"][run.sweeps_made.argmax()]
    ends = path[np.isfinite(path)]
    assert has_settled(ends[-2], ends[-1], 1e-6, 3_000.0)


def test_a_log_posterior_near_0_settles_by_the_number_of_events() -> None:
    assert has_settled(-2000.0, -1999.999, 1e-6, 100.0)
    assert not has_settled(-0.005, 0.005, 1e-6, 100.0)
    assert has_settled(-0.005, 0.004, 1e-6, 10_000.0)
    assert not has_settled(-np.inf, 0.0, 1e-6, 10_000.0)


# An engine that fails


class Failing:
    """An engine that fails at its n-th pass, as one does whose devices are gone."""

    def __init__(self, engine: Engine, n: int) -> None:
        self.engine = engine
        self.left = n

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        self.count()
        return self.engine.draw_labels(mixture, key)

    def expect_labels(self, mixture: Mixture) -> Stats:
        self.count()
        return self.engine.expect_labels(mixture)

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise DpmixError("every device has failed")

    def __getattr__(self, name: str) -> object:
        return getattr(self.engine, name)


def fail_at_pass(n: int, patch: pytest.MonkeyPatch) -> None:
    """Have the engine of the next run fail at its n-th pass."""
    make = session.make_engine
    patch.setattr(session, "make_engine", lambda *given: Failing(make(*given), n))


@pytest.mark.parametrize("n", [1, 2, 13])
def test_mcmc_goes_on_after_its_engine_failed(
    many: Path, plain: Path, n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = a_config(many, str(tmp_path / "run.h5"), mcmc=SHORT)
    with monkeypatch.context() as patch:
        fail_at_pass(n, patch)
        with pytest.raises(EngineError, match="every device has failed"):
            run_mcmc(config)
    whole_sweeps = (n - 1) // 2  # of two chains
    stopped = RunWriter.reopen(tmp_path / "run.h5")
    assert stopped.committed == max(0, (whole_sweeps - 3) // 2)
    checkpoint = stopped.load_checkpoint()
    assert (0 if checkpoint is None else checkpoint.iteration) == whole_sweeps
    stopped.close()
    assert run_mcmc(config, resume=True).completed
    assert_identical(plain, tmp_path / "run.h5")


@pytest.mark.parametrize("n", [1, 13, 20])
def test_bayesian_em_goes_on_after_its_engine_failed(
    tmp_path: Path, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_events(tmp_path / "events.npy", 5_000)
    whole = run_bem(a_config(tmp_path, "whole.h5", bem=BEM)).path
    config = a_config(tmp_path, "run.h5", bem=BEM)
    with monkeypatch.context() as patch:
        fail_at_pass(n, patch)
        with pytest.raises(EngineError, match="every device has failed"):
            run_bem(config)
    stopped = RunWriter.reopen(tmp_path / "run.h5")
    assert (stopped.load_checkpoint() is None) == (n == 1)
    stopped.close()
    assert run_bem(config, resume=True).completed
    assert_identical(whole, tmp_path / "run.h5")


def test_the_failure_of_an_engine_is_told_where_the_disk_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: object) -> None:
        raise DataError("run.h5: cannot be written: disk full")

    write_events(tmp_path / "events.npy", 500)
    fail_at_pass(5, monkeypatch)
    monkeypatch.setattr(RunWriter, "save_checkpoint", refuse)
    with pytest.raises(EngineError, match="every device has failed"):
        run_mcmc(a_config(tmp_path, "run.h5", mcmc=SHORT))


# The engine and the host at once


@pytest.mark.parametrize("chains", [1, 2])
def test_the_next_pass_begins_before_a_sweep_is_recorded(
    many: Path, chains: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host draws parameters while other chains' passes are made, and writes while the chain's own is."""
    begun = {key: threading.Event() for key in itertools.product(range(chains), range(1, 6))}
    make, write_sweep = session.make_engine, RunWriter.write_sweep

    class Telling(Failing):
        def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
            begun[key.chain, key.iteration].set()
            return self.engine.draw_labels(mixture, key)

    def write_when_the_next_has_begun(writer: RunWriter, chain: int, sweep: int, record: Record) -> None:
        if sweep < 4:
            last_of_this_sweep = chain == chains - 1
            ahead = (0, sweep + 2) if last_of_this_sweep else (chain + 1, sweep + 1)
            assert begun[ahead].wait(timeout=60.0)
        write_sweep(writer, chain, sweep, record)

    monkeypatch.setattr(session, "make_engine", lambda *given: Telling(make(*given), 0))
    monkeypatch.setattr(RunWriter, "write_sweep", write_when_the_next_has_begun)
    run_mcmc(a_config(many, str(tmp_path / "run.h5"), mcmc={"burn_in": 0, "draws": 4, "chains": chains}))


# The profile


def test_where_the_time_went_adds_up_over_a_stop(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 20_000)
    config = a_config(tmp_path, "run.h5", mcmc={"burn_in": 10, "draws": 20})
    began = time.perf_counter()
    run_mcmc(config, should_stop=StopAfter(15))
    first = open_run(tmp_path / "run.h5").profile
    assert tuple(first) == tuple(SPANS)
    run_mcmc(config, resume=True)
    both = open_run(tmp_path / "run.h5").profile
    assert 0 < sum(both.values()) <= time.perf_counter() - began
    for span in ("kernels", "parameters", "writing", "other"):
        assert 0 < first[span] < both[span]
    assert first["start"] == both["start"] > 0
    assert first["copies"] == both["copies"] == 0


def test_the_profile_of_bayesian_em(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 5_000)
    spent = open_run(run_bem(a_config(tmp_path, "run.h5", bem=BEM)).path).profile
    assert all(spent[span] > 0 for span in SPANS if span != "copies")


def test_data_that_changed_are_refused_on_resume(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 2_000)
    config = a_config(tmp_path, "run.h5", mcmc=SHORT)
    run_mcmc(config, should_stop=StopAfter(2))
    write_events(tmp_path / "events.npy", 2_000, seed=1)
    with pytest.raises(DataError, match="data have changed"):
        run_mcmc(config, resume=True)


def test_an_existing_run_is_refused_before_the_data_are_read(tmp_path: Path) -> None:
    (tmp_path / "run.h5").write_text("precious")
    with pytest.raises(ConfigError, match="exists already"):
        run_mcmc(a_config(tmp_path, "run.h5"))
    assert (tmp_path / "run.h5").read_text() == "precious"


def test_prior_lists_must_fit_the_channels(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 500)
    model = {"components": 4, "prior": {"m": [0.0, 1.0], "phi": [1.0, 1.0, 1.0, 1.0]}}
    with pytest.raises(ConfigError) as caught:
        run_mcmc(a_config(tmp_path, "run.h5", model=model))
    assert len(caught.value.problems) == 2
    assert "model.prior.phi: got 4 numbers, need one or 3" in str(caught.value)


def test_a_run_may_begin_where_another_ended(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 3_000)
    first = run_mcmc(a_config(tmp_path, "first.h5", mcmc={"burn_in": 100, "draws": 5})).path
    mcmc = {"burn_in": 0, "draws": 5, "init": str(first)}
    second = open_run(run_mcmc(a_config(tmp_path, "second.h5", mcmc=mcmc)).path)
    before = open_run(first).sample_stats["log_likelihood"][0, -1]
    assert second.trace["log_likelihood"][0, 0] == pytest.approx(before, rel=1e-6)
    with pytest.raises(DataError, match=r"model\.components"):
        run_mcmc(a_config(tmp_path, "third.h5", mcmc=mcmc, model={"components": 5}))


def test_what_is_wrong_with_the_origin_is_said_before_a_file_is_made(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 500)
    first = a_config(tmp_path, "first.h5", mcmc={"burn_in": 1, "draws": 2})
    run_mcmc(first)
    drawn = (tmp_path / "first.h5").read_bytes()
    begin = {"burn_in": 1, "draws": 2, "init": str(tmp_path / "first.h5")}
    arcsinh = {"files": first.data.files, "transform": {"default": {"method": "arcsinh"}}}
    cases: list[tuple[str, dict[str, dict[str, object]], str]] = [
        ("second.h5", {"mcmc": begin | {"init": "nowhere.h5"}}, "no such run file"),
        ("second.h5", {"mcmc": begin, "model": {"components": 5}}, "model.components = 5"),
        ("second.h5", {"mcmc": begin, "data": arcsinh}, r"ch0 is linear, here arcsinh cofactor=150"),
        ("first.h5", {"mcmc": begin}, "give another --output"),
    ]
    for output, sections, problem in cases:
        with pytest.raises((ConfigError, DataError), match=problem):
            run_mcmc(a_config(tmp_path, output, **sections), overwrite=True)
        assert not (tmp_path / "second.h5").exists()
    assert (tmp_path / "first.h5").read_bytes() == drawn


@pytest.mark.slow
def test_alpha_that_is_not_learned_is_the_prior_mean_from_any_start(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 500)
    first = run_mcmc(a_config(tmp_path, "first.h5", mcmc={"burn_in": 1, "draws": 2})).path
    model = {"components": 12, "learn": [], "prior": {"alpha_shape": 3.0, "alpha_rate": 2.0}}
    for init in (str(first), "bem", "prior", "kmeans", "random"):
        config = a_config(tmp_path, "run.h5", mcmc={"burn_in": 1, "draws": 2, "init": init}, model=model)
        assert (open_run(run_mcmc(config, overwrite=True).path).trace["alpha"] == 1.5).all(), init


@pytest.mark.slow
def test_learned_hyperparameters_reach_the_same_posterior_from_any_start(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    roots = rng.normal(size=(5, 3, 3)) * rng.uniform(0.2, 2.0, size=(5, 1, 1))
    centres, labels = 6.0 * rng.normal(size=(5, 3)), rng.integers(5, size=2_000)
    events = centres[labels] + np.einsum("nij,nj->ni", roots[labels], rng.normal(size=(2_000, 3)))
    np.save(tmp_path / "events.npy", events.astype(np.float32))
    first = a_config(tmp_path, "first.h5", mcmc={"burn_in": 1, "draws": 2})
    run_mcmc(first)
    reached = {}
    for init in ("kmeans", "random", "prior", "bem", str(tmp_path / "first.h5")):
        mcmc = {"burn_in": 300, "draws": 300, "init": init}
        config = a_config(tmp_path, "run.h5", mcmc=mcmc, model=LEARNED, bem={"starts": 1})
        given = open_run(run_mcmc(config, overwrite=True).path).hyperparameters
        reached[init] = [
            np.log(given["gamma"]).mean(),
            np.log(given["nu"]).mean(),
            *given["m"].mean(axis=(0, 1)),
            np.linalg.slogdet(given["phi"])[1].mean() / 3,
        ]
    spread = np.ptp(list(reached.values()), axis=0)
    assert (spread < 1.0).all(), reached


@pytest.mark.parametrize("atoms", ["report", "dither"])
def test_events_piled_at_one_value_do_not_end_a_run_that_learns(tmp_path: Path, atoms: str) -> None:
    """Left as they are they draw phi to nothing, as far as its floor; dithered they do not."""
    write_events(tmp_path / "events.npy", 5_000)
    events = np.load(tmp_path / "events.npy")
    events[:, 0] = np.maximum(events[:, 0], np.quantile(events[:, 0], 0.4))
    np.save(tmp_path / "events.npy", events)
    runs: list[tuple[Callable[..., Result], dict[str, object]]] = [
        (run_mcmc, {"burn_in": 100, "draws": 50}),
        (run_bem, {}),
        (run_mcmc, {"burn_in": 0, "draws": 20, "init": "bem"}),
    ]
    data = {"files": [str(tmp_path / "events.npy")], "atoms": atoms}
    bem: dict[str, object] = {"starts": 1, "max_steps": 50}
    for command, mcmc in runs:
        config = a_config(tmp_path, "run.h5", data=data, model=LEARNED, mcmc=mcmc, bem=bem)
        drawn = open_run(command(config, overwrite=True).path)
        phi = drawn.hyperparameters["phi"]
        assert (phi[:, -1, 0, 0] < 1e-3) == (atoms == "report")
        assert np.linalg.eigvalsh(phi)[..., 0].min() >= 0.99e-4 * config.model.prior.phi
        assert (phi[:, -1, 1, 1] > 0.01).all()


def test_a_run_begins_where_weights_were_zero(tmp_path: Path) -> None:
    """Bayesian EM empties components, and small weights round to 0: no stick may come out as NaN."""
    write_events(tmp_path / "events.npy", 500)
    config = a_config(tmp_path, "first.h5", mcmc={"burn_in": 1, "draws": 1})
    drawn = open_run(run_mcmc(config).path)
    weights = np.array([0.5, 0.0, 0.3, 0.2] + 8 * [0.0])
    with h5py.File(tmp_path / "first.h5", "r+") as file:
        file["posterior/weights"][0, 0] = weights
    events = preprocess.prepare(config.data, tmp_path, config.seed)
    state = initialise.from_run(
        open_run(tmp_path / "first.h5"), 0, 12, events, session.make_prior(config.model, events.channels)
    )
    assert np.allclose(state.weights, weights, rtol=1e-14)
    assert not np.isnan(state.log1m_sticks).any()
    assert np.array_equal(state.means, drawn.means[0, 0])


def test_a_stop_while_a_start_is_sought_is_heeded(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 500)
    config = a_config(tmp_path, "run.h5", mcmc={"burn_in": 1, "draws": 2, "init": "bem"}, bem={"starts": 3})
    assert not run_mcmc(config, should_stop=StopAfter(2)).completed
    assert open_run(tmp_path / "run.h5").sweeps_made[0] == -1
    assert run_mcmc(config, resume=True).completed


def test_a_chain_that_starts_from_bayesian_em_does_not_occupy_all_components(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong: the end itself, whose empty sticks are 0 and whose alpha is therefore large."""
    write_events(tmp_path / "events.npy", 2_000)

    def most_occupied(output: str) -> int:
        mcmc = {"burn_in": 0, "draws": 10, "init": "bem"}
        config = a_config(
            tmp_path, output, mcmc=mcmc, model={"components": 64}, bem={"starts": 2, "update": "mean"}
        )
        return int(open_run(run_mcmc(config).path).sample_stats["occupied"].max())

    assert most_occupied("right.h5") < 25
    monkeypatch.setattr(initialise, "from_bem", lambda end, *_: replace(end, iteration=0))
    assert most_occupied("wrong.h5") > 40


def test_a_prior_far_from_the_data_is_told(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 500)
    model = {"components": 12, "prior": {"m": 1e9, "phi": 1e-12}}
    for command in (run_mcmc, run_bem):
        with pytest.raises(DataError, match="not positive definite"):
            command(a_config(tmp_path, "run.h5", model=model), overwrite=True)
