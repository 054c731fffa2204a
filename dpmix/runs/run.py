"""A whole run: the loops of block Gibbs MCMC and of Bayesian EM, from engine to sampler to draws."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from dpmix.config.schema import Config
from dpmix.errors import DataError, DpmixError, EngineError
from dpmix.model import bem, gibbs, split_merge
from dpmix.model.mixture import Array, Ints, Mixture, Prior, State, Stats, log_prior, mixture_of, occupied
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key, Stream
from dpmix.runs import diagnostics, initialise
from dpmix.runs.draws import Checkpoint, Record, open_run
from dpmix.runs.session import Session, initial_state, open_session

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
        Go on from the run file's checkpoint, to the draws that an uninterrupted run gives; also to more of
        them than it began with.
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
    EngineError
        The engine failed on the way; everything so far is committed, and `resume` goes on from there.
    """
    mcmc = config.mcmc
    total = mcmc.sweeps
    with (
        open_session("mcmc", config, base, resume, overwrite) as session,
        _Checkpoints(session) as checkpoints,
    ):
        writer = session.writer
        if writer.committed == mcmc.draws:
            return _finished(session)
        checkpoint = _checkpoint(session, resume)
        if checkpoint is not None:
            states, first = checkpoint.states, checkpoint.iteration
            log.info("going on from sweep %d of %d", first, total)
        else:
            begun = _initial_states(session, should_stop)
            if begun is None:
                return _stopped(session)
            states, first = begun, 0
        # Every pass of the engine gives the log likelihood of the state it is handed, so state t is recorded
        # in the pass that also draws the labels for state t + 1; the first state is made, not drawn. The next
        # pass of a chain begins as soon as its parameters are drawn: all else, the host does during passes.
        with _Passes(session) as passes:
            for chain, state in enumerate(states):
                passes.begin(state, chain)
            for iteration in range(first, total + 1):
                current, records, stopping = states, [], False
                states = []
                for chain, state in enumerate(current):
                    stats, seconds = passes.result(chain)
                    if iteration < total:
                        stopping = stopping or (chain == 0 and should_stop())
                        following, order, host_seconds = _following(session, passes, state, stats, chain)
                        seconds += host_seconds
                        states.append(following)
                        if not stopping:
                            passes.begin(following, chain, order)
                    records.append(_record(state, stats, session.prior, seconds))
                    with session.profile.span("writing"):
                        writer.write_sweep(chain, iteration, records[chain])
                draw, between = divmod(iteration - mcmc.burn_in, mcmc.thin)
                if draw >= 1 and between == 0:
                    with session.profile.span("writing"):
                        writer.write_draw(draw - 1, current, records)
                phase = "burn-in" if iteration <= mcmc.burn_in else "draws"
                for chain, record in enumerate(records):
                    at = "mcmc", phase, iteration, total, chain
                    on_sweep(Progress(*at, **asdict(record), draws=writer.committed))
                if iteration < total:
                    checkpoints.take(states, iteration + 1, {})
                if stopping:
                    checkpoints.save()
                    return _stopped(session)
        # More draws may be asked for later: where they go on from stays.
        checkpoints.take(current, total, {})
        checkpoints.save()
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
    with (
        open_session("bem", config, base, resume, overwrite) as session,
        _Checkpoints(session) as checkpoints,
    ):
        writer = session.writer
        if writer.committed == 1:
            writer.discard_checkpoint()  # a run killed just before it did so itself has left one
            return _finished(session)
        first = 0
        best: _Best | None = None
        climb: Iterator[tuple[State, State | None, Record]] | None = None
        checkpoint = _checkpoint(session, resume)
        if checkpoint is not None:
            (resumed, passed, best_state), first, extra = checkpoint
            if "best" in extra:
                best = _Best(best_state, _as_record(extra["best"]))
            # The order of an engine's events, and so the last bits of its sums, come from the pass before.
            with _engine_pass(session):
                session.engine.expect_labels(mixture_of(passed))
            climb = _climb(session, resumed, float(extra["value"]))
            log.info("going on from step %d of start %d of %d", resumed.iteration, first + 1, starts)
        for start in range(first, starts):
            phase = f"start {start + 1} of {starts}"
            for state, following, record in climb or _climb(session, _initial_state(session, start)):
                step = state.iteration
                with session.profile.span("writing"):
                    writer.write_sweep(start, step, record)
                at = "bem", phase, step, max_steps, start
                on_sweep(Progress(*at, **asdict(record), draws=writer.committed))
                if following is None:
                    break
                checkpoints.take(*_bem_checkpoint(start, state, following, record, best))
                if should_stop():
                    checkpoints.save()
                    return _stopped(session)
            climb = None
            log.info("%s: log posterior %.6g after %d steps", phase, record.log_posterior, step)
            if best is None or record.log_posterior > best.record.log_posterior:
                best = _Best(state, record)
        assert best is not None
        with session.profile.span("writing"):
            writer.write_draw(0, [best.state], [best.record])
        writer.discard_checkpoint()  # nothing is left to resume
        return _finished(session)


class _Checkpoints:
    """Saves what a run resumes from: every few seconds, when asked, and after an error or Ctrl-C.

    A context manager, around everything that the engine does.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._latest: Checkpoint | None = None
        self._saved = time.monotonic()

    def take(self, states: list[State], iteration: int, extra: dict[str, npt.NDArray[np.float64]]) -> None:
        """Remember what the run would go on from now, and save it if the last time is some seconds ago."""
        self._latest = Checkpoint(states, iteration, extra)
        if time.monotonic() - self._saved > CHECKPOINT_SECONDS:
            self.save()

    def save(self) -> None:
        """Save what was taken last, if anything was."""
        if self._latest is not None:
            self._session.write_profile()
            with self._session.profile.span("writing"):
                self._session.writer.save_checkpoint(*self._latest)
            self._saved = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        # Not after a DataError: the data or the disk failed, and the checkpoint on disk is the better one.
        if error is not None and not isinstance(error, DataError):
            with suppress(DataError):  # the first error is the one to report
                self.save()


@dataclass(frozen=True)
class _Best:
    """Where the best start of Bayesian EM so far ended."""

    state: State
    record: Record


class _Passes:
    """Passes of the engine for the chains of a run, one at a time, in a thread of their own.

    A context manager; passes that are not yet under way at its end are not made.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(1, "engine")
        self._begun: dict[int, Future[tuple[Stats, float]]] = {}

    def begin(self, state: State, chain: int, order: Ints | None = None) -> None:
        """Have the labels drawn for the state that follows this one, after the passes begun before.

        `order` is that of `Mixture`.
        """
        self._begun[chain] = self._thread.submit(self._draw_labels, state, order, chain)

    def result(self, chain: int) -> tuple[Stats, float]:
        """Statistics of the chain's pass, and the seconds that it took."""
        return self._begun.pop(chain).result()

    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        """Divide the events of a chain whose pass has ended, after the passes started before."""
        return self._thread.submit(self._divide, split, mixture, key).result()

    def _divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        with _engine_pass(self._session):
            return self._session.engine.divide(split, mixture, key)

    def _draw_labels(self, state: State, order: Ints | None, chain: int) -> tuple[Stats, float]:
        began = time.perf_counter()
        mixture, key = mixture_of(state, order), Key(self._session.config.seed, chain, state.iteration + 1)
        with _engine_pass(self._session):
            stats = self._session.engine.draw_labels(mixture, key)
        return stats, time.perf_counter() - began

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)


def _following(
    session: Session, passes: _Passes, state: State, stats: Stats, chain: int
) -> tuple[State, Ints | None, float]:
    """The sampler's part of a sweep: the state after this one, its order (`Mixture`), and the seconds."""
    began = time.perf_counter()
    iteration = state.iteration + 1
    mcmc, key = session.config.mcmc, Key(session.config.seed, chain, iteration)
    is_due = mcmc.split_merge > 0 and iteration % mcmc.split_merge == 0
    try:
        with session.profile.span("parameters"):
            following, info = gibbs.sweep(
                state,
                stats,
                session.prior,
                Stream(*key),
                label_swaps=mcmc.label_swaps,
                regroup=split_merge.round_of(passes.divide, key) if is_due else None,
            )
    except np.linalg.LinAlgError as error:
        raise _collinear("sweep", iteration) from error
    return following, info.order, time.perf_counter() - began


def _climb(
    session: Session, state: State, value: float = -np.inf
) -> Iterator[tuple[State, State | None, Record]]:
    """Bayesian EM from one state: every state passed, the state after it (None at the end), its record.

    `value` is the log posterior of the state before the first.
    """
    config = session.config
    while True:
        began = time.perf_counter()
        mixture = mixture_of(state)
        with _engine_pass(session):
            stats = session.engine.expect_labels(mixture)
        with session.profile.span("parameters"):
            record = _record(state, stats, session.prior, time.perf_counter() - began)
        change = abs(record.log_posterior - value)
        settled = change <= config.bem.tolerance * abs(record.log_posterior)
        if settled or state.iteration == config.bem.max_steps:
            yield state, None, record
            return
        try:
            with session.profile.span("parameters"):
                following, _ = bem.step(state, stats, session.prior, config.bem.update)
        except np.linalg.LinAlgError as error:
            raise _collinear("step", state.iteration + 1) from error
        record = replace(record, seconds=time.perf_counter() - began)
        yield state, following, record
        state, value = following, record.log_posterior


@contextmanager
def _engine_pass(session: Session) -> Iterator[None]:
    """A pass of the engine, inside: its time, and its failure as what a run can go on from."""
    try:
        with session.profile.engine_pass():
            yield
    except DpmixError as error:
        raise EngineError(str(error)) from error
    except MemoryError as error:
        raise EngineError(f"not enough memory for a pass over the events: {error}") from error


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


def _record(state: State, stats: Stats, prior: Prior, seconds: float) -> Record:
    """Of a state, given the statistics of the pass that took its log likelihood."""
    return Record(
        log_likelihood=stats.log_likelihood,
        log_posterior=stats.log_likelihood + log_prior(state, prior),
        occupied=occupied(stats.counts),
        alpha=state.alpha,
        seconds=seconds,
    )


def _checkpoint(session: Session, resume: bool) -> Checkpoint | None:
    """What a run goes on from; a resumed one that has to begin again says so."""
    checkpoint = session.writer.load_checkpoint()
    if resume and checkpoint is None:
        log.warning("no checkpoint beside %s: it begins again, to the same draws", session.writer.path)
    return checkpoint


def _initial_states(session: Session, should_stop: ShouldStop) -> list[State] | None:
    """The state that every chain begins at, as mcmc.init says; None if asked to stop on the way there."""
    chains, method = session.config.mcmc.chains, session.config.mcmc.init
    if method == "bem":
        state = _best_climb(session, should_stop)
        return None if state is None else [state] * chains
    if session.origin is None:
        return [_initial_state(session, chain, method) for chain in range(chains)]
    run = open_run(session.origin)
    return [
        initialise.from_run(run, chain, session.config.model.components, session.events, session.prior)
        for chain in range(chains)
    ]


def _initial_state(session: Session, chain: int, method: str = "kmeans") -> State:
    try:
        with session.profile.span("start"):
            return initial_state(session, chain, method)
    except np.linalg.LinAlgError as error:
        raise _collinear("start", chain + 1) from error


def _best_climb(session: Session, should_stop: ShouldStop) -> State | None:
    """The end of the best start of Bayesian EM, as the beginning of a chain; None if asked to stop."""
    best: _Best | None = None
    for start in range(session.config.bem.starts):
        for passed in _climb(session, _initial_state(session, start)):
            end = passed
            if should_stop():
                return None
        state, _, record = end
        log.info("start %d of Bayesian EM: log posterior %.6g", start + 1, record.log_posterior)
        if best is None or record.log_posterior > best.record.log_posterior:
            best = _Best(state, record)
    assert best is not None
    return replace(best.state, iteration=0)


def _collinear(what: str, iteration: int) -> DataError:
    return DataError(
        f"{what} {iteration}: a component's covariance is not positive definite: some channels are linear "
        "combinations of others (leave one of them out with data.channels, or raise model.prior.phi), or "
        "model.prior is far from the scale of the data"
    )


def _stopped(session: Session) -> Result:
    session.write_profile()
    return Result(session.writer.path, False, diagnostics.describe_run(open_run(session.writer.path)))


def _finished(session: Session) -> Result:
    return replace(_stopped(session), completed=True)
