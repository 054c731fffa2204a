"""A whole run: config -> events -> engine -> sampler -> draws. The one module that knows them all."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from dpmix import bem, gibbs, initialise, preprocess, summaries
from dpmix.config import Config, PriorConfig, to_yaml
from dpmix.draws import Layout, Record, RunWriter, open_run
from dpmix.engines import Engine, Key, choose_engine
from dpmix.errors import ConfigError, DataError
from dpmix.model import Prior, State, Stats, log_prior, mixture_of, occupied
from dpmix.streams import Step, Stream

log = logging.getLogger("dpmix")

CHECKPOINT_SECONDS = 5.0


@dataclass(frozen=True)
class Progress:
    """What a run tells of every sweep of every chain (every step of every start) as it goes on.

    Attributes
    ----------
    kind : str
        "mcmc" or "bem".
    phase : str
        "burn-in", "draws", or "start 2 of 5".
    iteration, total : int
        Sweeps made and to make in this run (steps made and allowed in this start).
    chain : int
        Chain or start.
    log_likelihood, log_posterior, occupied, alpha, seconds
        Of the state that the sweep left behind; seconds of this sweep alone.
    draws : int
        Draws committed to the run file.
    """

    kind: str
    phase: str
    iteration: int
    total: int
    chain: int
    log_likelihood: float
    log_posterior: float
    occupied: int
    alpha: float
    seconds: float
    draws: int


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes
    ----------
    path : Path
        The run file.
    completed : bool
        False if it was asked to stop before its end; everything so far is committed.
    summary : list of str
        Lines for a reader.
    """

    path: Path
    completed: bool
    summary: list[str]


OnSweep = Callable[[Progress], None]
ShouldStop = Callable[[], bool]


@dataclass(frozen=True)
class _Session:
    """What both kinds of run share: the events in their engine, the prior, the open run file."""

    config: Config
    base: Path
    events: preprocess.Events
    engine: Engine
    prior: Prior
    writer: RunWriter

    @property
    def learn_alpha(self) -> bool:
        return "alpha" in self.config.model.learn


def run_mcmc(
    config: Config,
    *,
    base: Path = Path(),
    resume: bool = False,
    overwrite: bool = False,
    on_sweep: OnSweep = lambda progress: None,
    should_stop: ShouldStop = lambda: False,
) -> Result:
    """Run block Gibbs MCMC and write its draws.

    Parameters
    ----------
    config : Config
    base : Path
        Folder that relative data paths of the config start from.
    resume : bool
        Go on from the run file's checkpoint, to the draws that an uninterrupted run gives.
    overwrite : bool
        Replace an existing run file.
    on_sweep : callable
        Told of every sweep.
    should_stop : callable
        Asked after every sweep; once it says True the run commits and ends.

    Returns
    -------
    Result

    Raises
    ------
    ConfigError, DataError, DpmixError
        One line each, for anything wrong outside the program.
    """
    mcmc = config.mcmc
    total = mcmc.burn_in + mcmc.draws * mcmc.thin
    with _session("mcmc", config, base, resume, overwrite) as session:
        writer = session.writer
        if writer.committed == mcmc.draws:
            return _finished(session)
        checkpoint = writer.load_checkpoint()
        if checkpoint is not None:
            states, first = checkpoint.states, checkpoint.iteration
            log.info("going on from sweep %d of %d", first, total)
        else:
            states, first = _initial_states(session), 0
        saved = time.monotonic()
        # Every pass of the engine gives the log likelihood of the state it is handed, so state t is recorded
        # in the pass that also draws the labels for state t + 1; the first state is made, not drawn.
        for iteration in range(first, total + 1):
            current, records = states, []
            states = []
            for chain, state in enumerate(current):
                following, record = _sweep(session, state, chain, last=iteration == total)
                states.append(following)
                records.append(record)
                writer.write_sweep(chain, iteration, record)
            draw, between = divmod(iteration - mcmc.burn_in, mcmc.thin)
            if draw >= 1 and between == 0:
                writer.write_draw(draw - 1, current, records)
            phase = "burn-in" if iteration <= mcmc.burn_in else "draws"
            for chain, record in enumerate(records):
                on_sweep(_progress("mcmc", phase, iteration, total, chain, record, writer.committed))
            stopping = iteration < total and should_stop()
            if stopping or (iteration < total and time.monotonic() - saved > CHECKPOINT_SECONDS):
                writer.save_checkpoint(states, iteration + 1, {})
                saved = time.monotonic()
            if stopping:
                return _stopped(session)
        return _finished(session)


def run_bem(
    config: Config,
    *,
    base: Path = Path(),
    resume: bool = False,
    overwrite: bool = False,
    on_sweep: OnSweep = lambda progress: None,
    should_stop: ShouldStop = lambda: False,
) -> Result:
    """Run Bayesian EM from several starts and write the best; every start's path is recorded.

    Parameters, returns and raises as `run_mcmc`; a step is told of and asked after as a sweep is.
    """
    starts, max_steps = config.bem.starts, config.bem.max_steps
    with _session("bem", config, base, resume, overwrite) as session:
        writer = session.writer
        if writer.committed == 1:
            return _finished(session)
        first = 0
        best: _Best | None = None
        climb: Iterator[tuple[State, State | None, Record]] | None = None
        checkpoint = writer.load_checkpoint()
        if checkpoint is not None:
            (resumed, passed, best_state), first, extra = checkpoint
            if "best" in extra:
                best = _Best(best_state, _as_record(extra["best"]))
            # The order of an engine's events, and so the last bits of its sums, come from the pass before.
            session.engine.expect_labels(mixture_of(passed))
            climb = _climb(session, resumed, float(extra["value"]))
            log.info("going on from step %d of start %d of %d", resumed.iteration, first + 1, starts)
        saved = time.monotonic()
        for start in range(first, starts):
            phase = f"start {start + 1} of {starts}"
            for state, following, record in climb or _climb(session, _initial_state(session, start)):
                step = state.iteration
                writer.write_sweep(start, step, record)
                on_sweep(_progress("bem", phase, step, max_steps, start, record, writer.committed))
                if following is None:
                    break
                stopping = should_stop()
                if stopping or time.monotonic() - saved > CHECKPOINT_SECONDS:
                    writer.save_checkpoint(*_bem_checkpoint(start, state, following, record, best))
                    saved = time.monotonic()
                if stopping:
                    return _stopped(session)
            climb = None
            log.info("%s: log posterior %.6g after %d steps", phase, record.log_posterior, step)
            if best is None or record.log_posterior > best.record.log_posterior:
                best = _Best(state, record)
        assert best is not None
        writer.write_draw(0, [best.state], [best.record])
        return _finished(session)


@dataclass(frozen=True)
class _Best:
    """Where the best start of Bayesian EM so far ended."""

    state: State
    record: Record


@contextmanager
def _session(kind: str, config: Config, base: Path, resume: bool, overwrite: bool) -> Iterator[_Session]:
    """Prepare the events, choose the engine and open the run file, and close all of it again."""
    path = Path(config.output.path)
    if not resume:
        RunWriter.refuse_existing(path, overwrite)
    events = preprocess.prepare(config.data, base, config.seed)
    for line in events.report.lines():
        log.info(line)
    prior = make_prior(config.model.prior, events.channels)
    with ExitStack() as stack:
        engine = stack.enter_context(closing(choose_engine(config.engine, events.values)))
        # One thread for the batched linear algebra: its matrices are small, its results then do not depend
        # on the number of cores, and an idle pool of spinning threads would slow the engine's own.
        stack.enter_context(threadpool_limits(1, "blas"))
        if resume:
            _check_same_data(path, events)
            writer = RunWriter.reopen(path)
        else:
            writer = RunWriter.create(path, _layout(kind, config, base, events, engine), overwrite)
        stack.enter_context(writer)
        yield _Session(config, base, events, engine, prior, writer)


def _sweep(session: _Session, state: State, chain: int, last: bool) -> tuple[State, Record]:
    """One pass of the engine and, unless it is the last, the sampler's part of the sweep."""
    began = time.perf_counter()
    config, following = session.config, state
    iteration = state.iteration + 1
    stats = session.engine.draw_labels(mixture_of(state), Key(config.seed, chain, iteration))
    if not last:
        stream = Stream(config.seed, chain, iteration)
        try:
            following, _ = gibbs.sweep(
                state,
                stats,
                session.prior,
                stream,
                learn_alpha="alpha" in config.model.learn,
                label_swaps=config.mcmc.label_swaps,
            )
        except np.linalg.LinAlgError as error:
            raise _collinear("sweep", iteration) from error
    return following, _record(state, stats, session.prior, began)


def _climb(
    session: _Session, state: State, value: float = -np.inf
) -> Iterator[tuple[State, State | None, Record]]:
    """Bayesian EM from one state: every state passed, the state after it (None at the end), its record.

    `value` is the log posterior of the state before the first.
    """
    config = session.config
    while True:
        began = time.perf_counter()
        stats = session.engine.expect_labels(mixture_of(state))
        record = _record(state, stats, session.prior, began)
        change = abs(record.log_posterior - value)
        if (
            change <= config.bem.tolerance * abs(record.log_posterior)
            or state.iteration == config.bem.max_steps
        ):
            yield state, None, record
            return
        try:
            following, _ = bem.step(state, stats, session.prior, learn_alpha="alpha" in config.model.learn)
        except np.linalg.LinAlgError as error:
            raise _collinear("step", state.iteration + 1) from error
        record = replace(record, seconds=time.perf_counter() - began)
        yield state, following, record
        state, value = following, record.log_posterior


def _bem_checkpoint(
    start: int, state: State, following: State, record: Record, best: _Best | None
) -> tuple[list[State], int, dict[str, npt.NDArray[np.float64]]]:
    """What Bayesian EM goes on from: the next state, the state just passed, and the best start so far."""
    extra = {"value": np.array(record.log_posterior)}
    if best is not None:
        extra["best"] = np.array(astuple(best.record))
    return [following, state, state if best is None else best.state], start, extra


def _as_record(values: npt.NDArray[np.float64]) -> Record:
    """The inverse of `astuple` as float64."""
    log_likelihood, log_posterior, n_occupied, alpha, seconds = values.tolist()
    return Record(log_likelihood, log_posterior, int(n_occupied), alpha, seconds)


def _record(state: State, stats: Stats, prior: Prior, began: float) -> Record:
    return Record(
        log_likelihood=stats.log_likelihood,
        log_posterior=stats.log_likelihood + log_prior(state, prior),
        occupied=occupied(stats.counts),
        alpha=state.alpha,
        seconds=time.perf_counter() - began,
    )


def _progress(
    kind: str, phase: str, iteration: int, total: int, chain: int, record: Record, draws: int
) -> Progress:
    return Progress(kind, phase, iteration, total, chain, **asdict(record), draws=draws)


def _initial_states(session: _Session) -> list[State]:
    """The state that every chain begins at, as mcmc.init says."""
    chains, method = session.config.mcmc.chains, session.config.mcmc.init
    if method == "bem":
        state = _best_climb(session)
        return [state] * chains
    if method in ("kmeans", "random", "prior"):
        return [_initial_state(session, chain, method) for chain in range(chains)]
    run = open_run(session.base / method)
    shape = (session.config.model.components, session.events)
    return [initialise.from_run(run, chain, *shape) for chain in range(chains)]


def _initial_state(session: _Session, chain: int, method: str = "kmeans") -> State:
    """A state from a subsample of the events, or from the prior."""
    config, values = session.config, session.events.values
    stream = Stream(config.seed, chain, 0)
    count = config.model.components
    if method == "prior":
        alpha = None if session.learn_alpha else initialise.alpha_start(session.prior)
        return gibbs.draw_prior(session.prior, count, alpha, stream)
    rows = stream.step(Step.SUBSAMPLE).choice(
        len(values), size=initialise.subsample_size(len(values), count), replace=False, shuffle=False
    )
    make = initialise.from_kmeans if method == "kmeans" else initialise.from_random_events
    return make(values[np.sort(rows)], len(values), count, session.prior, stream)


def _best_climb(session: _Session) -> State:
    """The end of the best start of Bayesian EM, as the beginning of a chain."""
    best: _Best | None = None
    for start in range(session.config.bem.starts):
        *_, (state, _, record) = _climb(session, _initial_state(session, start))
        log.info("start %d of Bayesian EM: log posterior %.6g", start + 1, record.log_posterior)
        if best is None or record.log_posterior > best.record.log_posterior:
            best = _Best(state, record)
    assert best is not None
    return best.state


def make_prior(prior: PriorConfig, channels: Sequence[str]) -> Prior:
    """The prior over the chosen channels.

    Raises
    ------
    ConfigError
        A list in the config is not as long as there are channels.
    """
    dim = len(channels)
    problems = []
    for key, value in (("m", prior.m), ("phi", prior.phi)):
        if isinstance(value, list) and len(value) != dim:
            problems.append(
                f"model.prior.{key}: got {len(value)} numbers, need one or {dim}, one per channel "
                f"({', '.join(channels)})"
            )
    if problems:
        raise ConfigError(problems)
    return Prior(
        m=np.broadcast_to(np.asarray(prior.m, float), dim).copy(),
        gamma=prior.gamma,
        nu=prior.nu,
        phi=np.diag(np.broadcast_to(np.asarray(prior.phi, float), dim)),
        alpha_shape=prior.alpha_shape,
        alpha_rate=prior.alpha_rate,
    )


def _layout(kind: str, config: Config, base: Path, events: preprocess.Events, engine: Engine) -> Layout:
    """The frame of the run file: its size, and everything about the run that does not change."""
    scaling = events.scaling
    is_mcmc = kind == "mcmc"
    rows = {} if events.rows is None else {"rows": (("event",), events.rows)}
    return Layout(
        kind=kind,
        chains=config.mcmc.chains if is_mcmc else config.bem.starts,
        draws=config.mcmc.draws if is_mcmc else 1,
        sweeps=1 + (config.mcmc.sweeps if is_mcmc else config.bem.max_steps),
        n_components=config.model.components,
        channels=events.channels,
        constants={
            "channel_means": (("channel",), scaling.means),
            "channel_sds": (("channel",), scaling.sds),
            "sample": (("sample",), np.array(events.samples, dtype=object)),
            "sample_starts": (("sample_edge",), events.sample_starts),
            **rows,
        },
        attributes={
            "config": to_yaml(config),
            "base": str(base.resolve()),
            "report": events.report.as_attributes(),
            "seed": config.seed,
            "engine": engine.info,
            "scaling": scaling.as_attributes(),
            "data_hash": events.data_hash,
            "n_events": len(events.values),
            "detectors": list(events.detectors),
        },
    )


def _check_same_data(path: Path, events: preprocess.Events) -> None:
    """Refuse to go on with a run whose events are no longer what they were."""
    if open_run(path).attributes["data_hash"] != events.data_hash:
        raise DataError(
            f"{path}: the data have changed since this run began, so it cannot go on; put the old files "
            "back, or begin anew with --overwrite"
        )


def _collinear(what: str, iteration: int) -> DataError:
    return DataError(
        f"{what} {iteration}: a component's covariance is not positive definite: some channels are linear "
        "combinations of others; leave one of them out with data.channels, or raise model.prior.phi"
    )


def _stopped(session: _Session) -> Result:
    return Result(session.writer.path, False, summaries.describe_run(open_run(session.writer.path)))


def _finished(session: _Session) -> Result:
    """Close the books: nothing is left to resume."""
    session.writer.discard_checkpoint()
    return replace(_stopped(session), completed=True)
