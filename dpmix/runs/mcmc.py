"""Run block Gibbs MCMC: all chains in lockstep, from their initial states to the last draw."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from operator import add
from pathlib import Path
from threading import Lock
from typing import Self

import numpy as np

from dpmix.config.schema import Config
from dpmix.errors import DataError
from dpmix.model import gibbs, split_merge
from dpmix.model.mixture import Array, Ints, Mixture, State, Stats
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key, Stream
from dpmix.runs import cohort, initialise
from dpmix.runs.bem import best_end
from dpmix.runs.checkpoint import Checkpoint, checkpoint_path
from dpmix.runs.layout import MCMC_COUNTS, Record
from dpmix.runs.loop import (
    Checkpoints,
    OnSweep,
    Result,
    ShouldStop,
    SweepReport,
    engine_pass,
    load_checkpoint,
    mixture_for_pass,
    record_of,
    report_of,
    result_of,
    start_state,
)
from dpmix.runs.reader import open_run
from dpmix.runs.session import Session, open_session
from dpmix.runs.until import Plan, stop_reason
from dpmix.system.cores import usable_cores

log = logging.getLogger("dpmix")

NO_MOVES = (0,) * len(MCMC_COUNTS)


def run_mcmc(
    config: Config,
    *,
    base: Path = Path(),
    resume: bool = False,
    overwrite: bool = False,
    on_sweep: OnSweep = lambda report: None,
    should_stop: ShouldStop = lambda: False,
) -> Result:
    """Run block Gibbs MCMC and write its draws.

    Parameters
    ----------
    config : Config
    base : Path
        Folder that relative data paths of the config start from.
    resume : bool
        Resume from the run file's checkpoint. The draws are the same as in an uninterrupted run. The config
        may ask for more draws than the run was started with.
    overwrite : bool
        Replace an existing run file.
    on_sweep : callable
        Called after each sweep of each chain.
    should_stop : callable
        Called after each sweep; when it returns True, the run saves its checkpoint and ends.

    Returns
    -------
    Result
        Not completed where `should_stop` ended the run.

    Raises
    ------
    ConfigError, DataError, DpmixError
        One line each, for anything wrong outside the program.
    EngineError
        The engine failed. All draws so far are committed, and `resume` continues from there.
    """
    with (
        open_session("mcmc", config, base, resume, overwrite) as session,
        Checkpoints(session) as checkpoints,
        _Passes(session) as passes,
    ):
        begun = open_run(session.writer.path)
        if begun.complete:
            return result_of(session)
        chains = _resumed_chains(session, resume) or _new_chains(session, should_stop)
        plan = Plan(config.mcmc, session.writer, begun, chains[0].state.iteration if chains else 0)
        for sweep in _lockstep(session, plan, passes, chains, should_stop):
            for report in _reports(session, plan, sweep):
                on_sweep(report)
            checkpoints.take(sweep.checkpoint)
        checkpoints.save()  # after the last draw too: a user may ask for more draws
        session.write_profile()
        ended = open_run(session.writer.path)
        if reason := stop_reason(ended):
            log.info(reason)
        return Result(ended.path, ended.complete)


@dataclass(frozen=True)
class _Chain:
    """A chain between two sweeps.

    Attributes
    ----------
    state : State
    order : int64 [K] or None
        How the last sweep reordered the components, as in `Mixture`; None before the first sweep.
    moves : tuple of int
        `MCMC_COUNTS` of the sweep that drew the state.
    recent : tuple of int
        Their sums over all sweeps since the last draw, the sweep that drew the state included.
    """

    state: State
    order: Ints | None = None
    moves: tuple[int, ...] = NO_MOVES
    recent: tuple[int, ...] = NO_MOVES


@dataclass(frozen=True)
class _Sweep:
    """States of all chains after one sweep, with their records, and the chains one sweep later.

    After the last sweep of the run, `following` are the same chains again.
    """

    chains: list[_Chain]
    records: list[Record]
    following: list[_Chain]

    @property
    def iteration(self) -> int:
        """Number of the sweep; 0 for the initial states."""
        return self.chains[0].state.iteration

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint from which the run resumes after this sweep."""
        # Of the chains one sweep later: labels are not stored, so a resumed run draws them again from these
        # states.
        states = [chain.state for chain in self.following]
        counts = np.array([(chain.moves, chain.recent) for chain in self.following])
        return Checkpoint(states, states[0].iteration, {"counts": counts})


class _Passes:
    """Passes of the engine over the events, each in a thread: as many at a time as the engine makes.

    A context manager; at its end, passes that have not started are cancelled.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        # Each pass already has all cores or devices; with two, devices have work while the host reads sums.
        self._threads = ThreadPoolExecutor(session.engine.passes_at_once, "engine")
        self._ended, self._lock = 0.0, Lock()
        self._started: dict[int, Future[tuple[Stats, float]]] = {}

    def start(self, number: int, chain: _Chain) -> None:
        """Draw the labels for the next state of a chain, after the passes started before."""
        # The mixture is computed here, not between two passes, so that the engine works meanwhile.
        mixture = mixture_for_pass(self._session, chain.state, chain.order)
        key = Key(self._session.config.seed, number, chain.state.iteration + 1)
        self._started[number] = self._threads.submit(self._draw_labels, mixture, key)

    def result(self, number: int) -> tuple[Stats, float]:
        """Wait for a chain's pass, and return its statistics and its seconds."""
        return self._started.pop(number).result()

    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        """Divide the events of a chain whose pass has ended, after the passes started before."""
        return self._threads.submit(self._divide, split, mixture, key).result()

    def _divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        with engine_pass(self._session):
            return self._session.engine.divide(split, mixture, key)

    def _draw_labels(self, mixture: Mixture, key: Key) -> tuple[Stats, float]:
        started = time.perf_counter()
        with engine_pass(self._session):
            stats = self._session.engine.draw_labels(mixture, key)
        return stats, self._seconds_since(started)

    def _seconds_since(self, started: float) -> float:
        """Return the seconds from the start of a pass, or the end of the pass before if later, to now."""
        with self._lock:
            now = time.perf_counter()
            seconds, self._ended = now - max(started, self._ended), now
        return seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)


def _lockstep(
    session: Session, plan: Plan, passes: _Passes, chains: list[_Chain], should_stop: ShouldStop
) -> Iterator[_Sweep]:
    """Make, write and yield the sweeps of all chains in lockstep, to the last one or until asked to stop.

    A pass of the engine computes the log likelihood of a state and draws the labels for the next state: a
    state is recorded one pass after it was drawn. A chain's next pass starts as soon as its parameters are
    drawn, so that the host does everything else while the engine works. A pass that has started when the plan
    ends the run is not used.
    """
    ending = not chains
    for number, chain in enumerate(chains):
        passes.start(number, chain)
    while not ending:
        records, following = [], []
        for number, chain in enumerate(chains):
            stats, pass_seconds = passes.result(number)
            is_last = chain.state.iteration == plan.total
            if number == 0:
                # Asked once in a sweep, at the first chain: all chains must end with the same sweep.
                ending = is_last or should_stop()
            started = time.perf_counter()
            following.append(chain if is_last else _advance(session, passes, number, chain, stats))
            if not ending:
                # Before the record and the files, so that the engine works meanwhile.
                passes.start(number, following[number])
            seconds = pass_seconds + time.perf_counter() - started
            records.append(record_of(session, chain.state, stats, seconds, chain.moves))
        # Counts of moves start again with each draw, which has those since the draw before.
        if _write(session, plan, chains, records) and not is_last:
            following = [replace(chain, recent=chain.moves) for chain in following]
        yield _Sweep(chains, records, following)
        chains, ending = following, ending or plan.ended


def _advance(session: Session, passes: _Passes, number: int, chain: _Chain, stats: Stats) -> _Chain:
    """Return a chain one sweep later: draw all but the labels, whose statistics are given."""
    mcmc, iteration = session.config.mcmc, chain.state.iteration + 1
    key = Key(session.config.seed, number, iteration)
    split_merge_due = mcmc.split_merge > 0 and iteration % mcmc.split_merge == 0
    try:
        with session.profile.span("parameters"):
            state, info = gibbs.sweep(
                chain.state,
                stats,
                session.prior,
                Stream(*key),
                label_swaps=mcmc.label_swaps,
                regroup=_round(session, passes, key) if split_merge_due else None,
                zeta=session.zeta,
                full_events=session.config.model.full_events,
                resolution=session.resolution,
                threads=session.config.engine.threads or usable_cores(),
            )
    except np.linalg.LinAlgError as error:
        raise initialise.collinear("sweep", iteration) from error
    moves = tuple(int(getattr(info, name)) for name in MCMC_COUNTS)
    return _Chain(state, info.order, moves, tuple(map(add, chain.recent, moves)))


def _round(session: Session, passes: _Passes, key: Key) -> split_merge.Regroup:
    """Return a round of split-merge moves for one sweep of one chain."""
    full_events = session.config.model.full_events
    return split_merge.round_of(
        passes.divide, key, session.zeta, session.least, session.resolution, full_events
    )


def _write(session: Session, plan: Plan, chains: list[_Chain], records: list[Record]) -> bool:
    """Write a sweep to the trace, and its states as a draw where one is due.

    Returns whether the counts of moves start again from 0: after each draw, and at the end of burn-in.
    """
    at, writer = chains[0].state.iteration, session.writer
    states = [chain.state for chain in chains]
    with session.profile.span("writing"):
        for number, record in enumerate(records):
            writer.write_sweep(number, at, record)
    plan.observe(at, states, records)
    draw = plan.draw(at)
    if draw is not None:
        with session.profile.span("writing"):
            summed = [replace(r, counts=chain.recent) for chain, r in zip(chains, records, strict=True)]
            writer.write_draw(draw, states, summed)
    return draw is not None or at == plan.burn_in


def _reports(session: Session, plan: Plan, sweep: _Sweep) -> Iterator[SweepReport]:
    """Yield the report of a sweep of each chain."""
    at = sweep.iteration
    phase = "burn-in" if plan.in_burn_in(at) else "draws"
    for number, record in enumerate(sweep.records):
        report = report_of("mcmc", phase, at, plan.total, number, record, session.writer.committed)
        yield replace(report, at_most=plan.at_most)


def _resumed_chains(session: Session, resume: bool) -> list[_Chain]:
    """Return the chains of the checkpoint; none where there is no checkpoint."""
    checkpoint = load_checkpoint(session, resume)
    if checkpoint is None:
        return []
    shape = len(checkpoint.states), 2, len(MCMC_COUNTS)
    counts = checkpoint.extra.get("counts")
    if counts is None or counts.shape != shape:
        raise DataError(
            f"{checkpoint_path(session.writer.path)}: does not fit the run; restart with --overwrite"
        )
    for state in checkpoint.states:
        cohort.check_fits(state, session.groups)
    most = "" if session.config.mcmc.until is None else "at most "
    log.info("resuming from sweep %d of %s%d", checkpoint.iteration, most, session.config.mcmc.sweeps)
    pairs = zip(checkpoint.states, counts.tolist(), strict=True)
    return [_Chain(state, None, tuple(moves), tuple(recent)) for state, (moves, recent) in pairs]


def _new_chains(session: Session, should_stop: ShouldStop) -> list[_Chain]:
    """Return the chains at their initial states, as mcmc.init says; none if asked to stop meanwhile."""
    numbers, method = range(session.config.mcmc.chains), session.config.mcmc.init
    if method == "bem":
        end = best_end(session, should_stop)
        if end is None:
            return []
        state = initialise.from_bem(end, session.engine.n_events, session.prior)
        return [_Chain(state) for _ in numbers]
    if session.origin is None:
        with session.profile.span("start"):
            states = [start_state(session, number, method) for number in numbers]
    else:
        origin, count = open_run(session.origin), session.config.model.components
        given = count, session.events, session.prior
        states = [initialise.from_run(origin, number, *given) for number in numbers]
    return [
        _Chain(cohort.with_samples(state, session.events, session.groups, session.prior)) for state in states
    ]
