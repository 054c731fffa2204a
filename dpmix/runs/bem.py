"""Run Bayesian EM from several starts, and keep one end.

Each start makes some short steps; then the best one alone continues to its end (emEM: Biernacki, Celeux and
Govaert 2003, Comput. Stat. Data Anal. 41:561). Short steps are made on some of the events, the same for all
starts, so that their log posteriors compare. Without short steps, every start goes to its end on all events,
and the best end is kept.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmix.config.schema import BemConfig, Config
from dpmix.model import bem
from dpmix.model.mixture import State
from dpmix.runs import cohort, initialise
from dpmix.runs.checkpoint import Checkpoint
from dpmix.runs.layout import Record
from dpmix.runs.loop import (
    Checkpoints,
    OnSweep,
    Result,
    ShouldStop,
    engine_pass,
    load_checkpoint,
    mixture_for_pass,
    record_of,
    report_of,
    result_of,
    start_state,
)
from dpmix.runs.session import Session, on_fewer_events, open_session

log = logging.getLogger("dpmix")


def run_bem(
    config: Config,
    *,
    base: Path = Path(),
    resume: bool = False,
    overwrite: bool = False,
    on_sweep: OnSweep = lambda report: None,
    should_stop: ShouldStop = lambda: False,
) -> Result:
    """Run Bayesian EM from several starts; write the path of each start, and the best end as the draw.

    Parameters, returns and raises as `run_mcmc`, with steps instead of sweeps.
    """
    with (
        open_session("bem", config, base, resume, overwrite) as session,
        Checkpoints(session) as checkpoints,
    ):
        writer = session.writer
        if writer.committed == 1:
            writer.discard_checkpoint()  # left by a run that was killed just before it did so itself
            return result_of(session)
        best: _End | None = None
        for visit in _visits(session, _resumed(session, resume)):
            step, best = visit.step, visit.end if visit.step.following is None else visit.best
            at, record = step.point.state.iteration, step.record
            with session.profile.span("writing"):
                writer.write_sweep(visit.start, at, record)
            total = visit.limit(config.bem)
            on_sweep(report_of("bem", visit.phase, at, total, visit.start, record, writer.committed))
            if step.following is not None:
                checkpoints.take(_checkpoint(visit, step.following))
                if should_stop():
                    checkpoints.save()
                    return result_of(session)
            else:
                log.info("%s: log posterior %.6g after %d steps", visit.phase, record.log_posterior, at)
        assert best is not None
        with session.profile.span("writing"):
            writer.write_draw(0, [best.point.state], [best.drawn])
        writer.discard_checkpoint()  # the run is complete
        return result_of(session)


@dataclass(frozen=True)
class _Point:
    """A state on the path of a start.

    Attributes
    ----------
    state : State
    log_posterior : float
        Log posterior of the state before it.
    emptied : int
        Components emptied by the step that led to the state.
    emptied_so_far : int
        Components emptied by all steps of the start.
    """

    state: State
    log_posterior: float = -np.inf
    emptied: int = 0
    emptied_so_far: int = 0


@dataclass(frozen=True)
class _End:
    """The point at which a start ended, or stopped after its short steps, and its record."""

    start: int
    point: _Point
    record: Record

    @property
    def drawn(self) -> Record:
        """The record as of a draw: with the components emptied by all steps of the start."""
        return replace(self.record, counts=(self.point.emptied_so_far,))


@dataclass(frozen=True)
class _Step:
    """A point on the path of a start, its record, and the next point; None at the end of the path."""

    point: _Point
    record: Record
    following: _Point | None


@dataclass(frozen=True)
class _Visit:
    """A step of a run of several starts.

    Attributes
    ----------
    start, starts : int
        The start that the step belongs to, from 0, and their number.
    step : _Step
    best : _End or None
        The best of the starts before; while the best start continues, that start.
    continues : bool
        The start is the best one, and continues after its short steps.
    """

    start: int
    starts: int
    step: _Step
    best: _End | None
    continues: bool

    @property
    def phase(self) -> str:
        """The part of the run, for a reader."""
        return f"start {self.start + 1}{', the best' if self.continues else ''} of {self.starts}"

    def limit(self, bem_config: BemConfig) -> int:
        """Return the most steps of this part of the path."""
        return bem_config.max_steps if self.continues else bem_config.first_steps

    @property
    def end(self) -> _End:
        """The best end so far, where the step is the last one of its part of the path."""
        own = _End(self.start, self.step.point, self.step.record)
        # The continued start replaces its own end after short steps, whose log posterior was of fewer events.
        if self.best is None or self.continues or own.record.log_posterior > self.best.record.log_posterior:
            return own
        return self.best


@dataclass(frozen=True)
class _Resumed:
    """Where a run begins or resumes.

    Attributes
    ----------
    first : int
        Its start; the number of starts if the best one continues.
    point : _Point or None
        The next point of this start; None for its initial state.
    passed : State or None
        The state before that point.
    best : _End or None
        The best of the starts before; while the best start continues, that start.
    """

    first: int = 0
    point: _Point | None = None
    passed: State | None = None
    best: _End | None = None

    def climb(self, session: Session, limit: int) -> Iterator[_Step]:
        """Yield the steps from the point."""
        assert self.point is not None
        assert self.passed is not None
        # The engine's order of the events, and so the last bits of its sums, come from the pass before.
        with engine_pass(session):
            session.engine.expect_labels(mixture_for_pass(session, self.passed))
        yield from climb(session, self.point, limit)


def _visits(session: Session, resumed: _Resumed) -> Iterator[_Visit]:
    """Yield the steps of all starts, and then of the best one, if it has not yet made all its steps."""
    settings, best = session.config.bem, resumed.best
    limit, most, n_events = settings.first_steps, settings.max_steps, session.engine.n_events
    size = settings.first_events(session.config.model.components, n_events)
    if resumed.first < settings.starts:
        with on_fewer_events(session, size) as fewer:
            for visit in _visits_of_starts(fewer, resumed, limit):
                yield visit
            best = visit.end
    if limit < most:
        assert best is not None
        # The log posterior on fewer events says nothing of whether that on all events has settled.
        point = best.point if size == n_events else replace(best.point, log_posterior=-np.inf)
        continues = resumed.first == settings.starts
        for step in resumed.climb(session, most) if continues else climb(session, point, most):
            yield _Visit(best.start, settings.starts, step, best, True)


def _visits_of_starts(session: Session, resumed: _Resumed, limit: int) -> Iterator[_Visit]:
    """Yield the first steps of all starts. A thread makes the initial state of the next start meanwhile."""
    starts, best = session.config.bem.starts, resumed.best
    with ThreadPoolExecutor(1, "start") as thread:
        following = None
        for start in range(resumed.first, starts):
            if start == resumed.first and resumed.point is not None:
                steps = resumed.climb(session, limit)
            else:
                with session.profile.span("start"):
                    state = following.result() if following else _initial_state(session, start)
                steps = climb(session, _Point(state), limit)
            if start + 1 < starts:
                # k-means of the next start uses the cores that the steps of this one leave.
                following = thread.submit(_initial_state, session, start + 1)
            for step in steps:
                visit = _Visit(start, starts, step, best, False)
                yield visit
            best = visit.end


def _initial_state(session: Session, start: int) -> State:
    """Return the initial state of a start."""
    state = start_state(session, start)
    return cohort.with_factors(state, session.events, session.groups, session.prior, session.zeta)


def climb(session: Session, point: _Point, limit: int) -> Iterator[_Step]:
    """Yield the steps of Bayesian EM from a point, until the log posterior settles or the limit."""
    config = session.config
    events = session.zeta * session.engine.n_events
    while True:
        state, started = point.state, time.perf_counter()
        mixture = mixture_for_pass(session, state)
        with engine_pass(session):
            stats = session.engine.expect_labels(mixture)
        with session.profile.span("parameters"):
            seconds = time.perf_counter() - started
            record = record_of(session, state, stats, seconds, (point.emptied,))
        settled = bem.has_settled(point.log_posterior, record.log_posterior, config.bem.tolerance, events)
        if settled or state.iteration == limit:
            yield _Step(point, record, None)
            return
        try:
            with session.profile.span("parameters"):
                next_state, info = bem.step(
                    state,
                    stats,
                    session.prior,
                    config.bem.update,
                    zeta=session.zeta,
                    resolution=session.resolution,
                )
        except np.linalg.LinAlgError as error:
            raise initialise.collinear("step", state.iteration + 1) from error
        emptied = int(info.emptied)
        following = _Point(next_state, record.log_posterior, emptied, point.emptied_so_far + emptied)
        yield _Step(point, replace(record, seconds=time.perf_counter() - started), following)
        point = following


def best_end(session: Session, should_stop: ShouldStop) -> State | None:
    """Return the end of the best start; None if asked to stop."""
    for visit in _visits(session, _Resumed()):
        if should_stop():
            return None
        if visit.step.following is None:
            log.info("%s of Bayesian EM: log posterior %.6g", visit.phase, visit.step.record.log_posterior)
    return visit.end.point.state


def _checkpoint(visit: _Visit, following: _Point) -> Checkpoint:
    """Return what Bayesian EM resumes from: the next point, the state just passed, the best end so far."""
    extra: dict[str, npt.NDArray[np.float64]] = {
        "value": np.array(following.log_posterior),
        "emptied": np.array([following.emptied, following.emptied_so_far], np.float64),
    }
    passed, best = visit.step.point.state, visit.best
    if best is not None:
        record, point = best.record, best.point
        values = record.log_likelihood, record.log_posterior, record.occupied, record.alpha, record.seconds
        extra["best"] = np.array([*values, point.emptied_so_far])
        extra["best_path"] = np.array([best.start, point.log_posterior, point.emptied])
    states = [following.state, passed, passed if best is None else best.point.state]
    return Checkpoint(states, visit.starts if visit.continues else visit.start, extra)


def _resumed(session: Session, resume: bool) -> _Resumed:
    """Return where a run resumes; a new run starts at start 0."""
    checkpoint = load_checkpoint(session, resume)
    if checkpoint is None:
        return _Resumed()
    (state, passed, best_state), first, extra = checkpoint
    cohort.check_fits(state, session.groups)
    settings, best = session.config.bem, None
    if "best" in extra:
        log_likelihood, log_posterior, n_occupied, alpha, seconds, so_far = extra["best"].tolist()
        values = log_likelihood, log_posterior, int(n_occupied), alpha, seconds
        start, before, emptied = extra["best_path"].tolist()
        point = _Point(best_state, before, int(emptied), int(so_far))
        best = _End(int(start), point, Record(*values, (int(emptied),)))
    emptied, so_far = map(int, extra["emptied"])
    continues = first == settings.starts
    number = best.start if continues and best is not None else first
    log.info("resuming from step %d of start %d of %d", state.iteration, number + 1, settings.starts)
    return _Resumed(first, _Point(state, float(extra["value"]), emptied, so_far), passed, best)
