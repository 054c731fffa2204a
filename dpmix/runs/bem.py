"""Run Bayesian EM: several starts, one after the other, of which the best end is kept."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmix.config.schema import Config
from dpmix.model import bem
from dpmix.model.mixture import State, mixture_of
from dpmix.runs import initialise
from dpmix.runs.checkpoint import Checkpoint
from dpmix.runs.layout import Record
from dpmix.runs.loop import (
    Checkpoints,
    OnSweep,
    Result,
    ShouldStop,
    engine_pass,
    load_checkpoint,
    record_of,
    report_of,
    result_of,
    start_state,
)
from dpmix.runs.session import Session, open_session

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

    Parameters, returns and raises as `run_mcmc`, with steps in place of sweeps.
    """
    with (
        open_session("bem", config, base, resume, overwrite) as session,
        Checkpoints(session) as checkpoints,
    ):
        writer, starts = session.writer, config.bem.starts
        if writer.committed == 1:
            writer.discard_checkpoint()  # left by a run that was killed just before it did so itself
            return result_of(session)
        first, best, resumed = _resumed(session, resume)
        for start in range(first, starts):
            phase = f"start {start + 1} of {starts}"
            for step in resumed or climb(session, _Point(start_state(session, start))):
                at, record = step.point.state.iteration, step.record
                with session.profile.span("writing"):
                    writer.write_sweep(start, at, record)
                on_sweep(report_of("bem", phase, at, config.bem.max_steps, start, record, writer.committed))
                if step.following is not None:
                    checkpoints.take(_checkpoint(start, step, step.following, best))
                    if should_stop():
                        checkpoints.save()
                        return result_of(session)
            resumed = None
            log.info("%s: log posterior %.6g after %d steps", phase, record.log_posterior, at)
            best = _better(best, step.end)
        assert best is not None
        with session.profile.span("writing"):
            writer.write_draw(0, [best.state], [best.record])
        writer.discard_checkpoint()  # the run is complete
        return result_of(session)


@dataclass(frozen=True)
class _Point:
    """A state on the path of a start.

    Attributes
    ----------
    state : State
    log_posterior : float
        Of the state before it.
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
    """The state at which a start ended, and its record, with the components emptied by the whole start."""

    state: State
    record: Record


@dataclass(frozen=True)
class _Step:
    """A point on the path of a start, its record, and the next point; None at the end of the path."""

    point: _Point
    record: Record
    following: _Point | None

    @property
    def end(self) -> _End:
        """The point as an end of its start."""
        return _End(self.point.state, replace(self.record, counts=(self.point.emptied_so_far,)))


def climb(session: Session, point: _Point) -> Iterator[_Step]:
    """Yield the steps of Bayesian EM from a point, until the log posterior settles or bem.max_steps."""
    config = session.config
    while True:
        state, started = point.state, time.perf_counter()
        mixture = mixture_of(state)
        with engine_pass(session):
            stats = session.engine.expect_labels(mixture)
        with session.profile.span("parameters"):
            seconds = time.perf_counter() - started
            record = record_of(session, state, stats, seconds, (point.emptied,))
        change = abs(record.log_posterior - point.log_posterior)
        settled = change <= config.bem.tolerance * abs(record.log_posterior)
        if settled or state.iteration == config.bem.max_steps:
            yield _Step(point, record, None)
            return
        try:
            with session.profile.span("parameters"):
                next_state, info = bem.step(state, stats, session.prior, config.bem.update, zeta=session.zeta)
        except np.linalg.LinAlgError as error:
            raise initialise.collinear("step", state.iteration + 1) from error
        emptied = int(info.emptied)
        following = _Point(next_state, record.log_posterior, emptied, point.emptied_so_far + emptied)
        yield _Step(point, replace(record, seconds=time.perf_counter() - started), following)
        point = following


def best_end(session: Session, should_stop: ShouldStop) -> State | None:
    """Return the end of the best start, as the initial state of a chain; None if asked to stop."""
    best: _End | None = None
    for start in range(session.config.bem.starts):
        for step in climb(session, _Point(start_state(session, start))):
            last = step
            if should_stop():
                return None
        log.info("start %d of Bayesian EM: log posterior %.6g", start + 1, last.record.log_posterior)
        best = _better(best, last.end)
    assert best is not None
    return replace(best.state, iteration=0)


def _better(best: _End | None, end: _End) -> _End:
    """Return the end with the higher log posterior; the earlier one of equals."""
    return end if best is None or end.record.log_posterior > best.record.log_posterior else best


def _checkpoint(start: int, step: _Step, following: _Point, best: _End | None) -> Checkpoint:
    """Return what Bayesian EM resumes from: the next point, the state just passed, the best end so far."""
    extra: dict[str, npt.NDArray[np.float64]] = {
        "value": np.array(following.log_posterior),
        "emptied": np.array([following.emptied, following.emptied_so_far], np.float64),
    }
    if best is not None:
        record = best.record
        values = record.log_likelihood, record.log_posterior, record.occupied, record.alpha, record.seconds
        extra["best"] = np.array([*values, *record.counts])
    passed = step.point.state
    return Checkpoint([following.state, passed, passed if best is None else best.state], start, extra)


def _resumed(session: Session, resume: bool) -> tuple[int, _End | None, Iterator[_Step] | None]:
    """Return the start to resume, the best end before it, and the steps left; a new run begins at start 0.

    Checkpoints written before emptied components were counted have no counts; neither have their run files.
    """
    checkpoint = load_checkpoint(session, resume)
    if checkpoint is None:
        return 0, None, None
    (state, passed, best_state), start, extra = checkpoint
    best = None
    if "best" in extra:
        log_likelihood, log_posterior, n_occupied, alpha, seconds, *counts = extra["best"].tolist()
        values = log_likelihood, log_posterior, int(n_occupied), alpha, seconds
        best = _End(best_state, Record(*values, tuple(map(int, counts))))
    # The engine's order of the events, and so the last bits of its sums, come from the pass before.
    with engine_pass(session):
        session.engine.expect_labels(mixture_of(passed))
    emptied, so_far = map(int, extra.get("emptied", np.zeros(2)))
    log.info("resuming from step %d of start %d of %d", state.iteration, start + 1, session.config.bem.starts)
    return start, best, climb(session, _Point(state, float(extra["value"]), emptied, so_far))
