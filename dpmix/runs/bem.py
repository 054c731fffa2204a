"""The loop of Bayesian EM."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmix.config.schema import Config
from dpmix.model import bem
from dpmix.model.mixture import State, mixture_of
from dpmix.runs.layout import Record
from dpmix.runs.loop import (
    Checkpoints,
    OnSweep,
    Result,
    ShouldStop,
    SweepReport,
    checkpoint_of,
    collinear,
    engine_pass,
    finished,
    record_of,
    start_state,
    stopped,
)
from dpmix.runs.session import Session, open_session

log = logging.getLogger("dpmix")


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
        Checkpoints(session) as checkpoints,
    ):
        writer = session.writer
        if writer.committed == 1:
            writer.discard_checkpoint()  # a run killed just before it did so itself has left one
            return finished(session)
        first = 0
        best: _Best | None = None
        resumed_climb: Iterator[tuple[State, State | None, Record]] | None = None
        checkpoint = checkpoint_of(session, resume)
        if checkpoint is not None:
            (resumed, passed, best_state), first, extra = checkpoint
            if "best" in extra:
                best = _Best(best_state, _as_record(extra["best"]))
            # The order of an engine's events, and so the last bits of its sums, come from the pass before.
            with engine_pass(session):
                session.engine.expect_labels(mixture_of(passed))
            resumed_climb = climb(session, resumed, float(extra["value"]))
            log.info("going on from step %d of start %d of %d", resumed.iteration, first + 1, starts)
        for start in range(first, starts):
            phase = f"start {start + 1} of {starts}"
            for state, following, record in resumed_climb or climb(session, start_state(session, start)):
                step = state.iteration
                with session.profile.span("writing"):
                    writer.write_sweep(start, step, record)
                at = "bem", phase, step, max_steps, start
                on_sweep(SweepReport(*at, **asdict(record), draws=writer.committed))
                if following is None:
                    break
                checkpoints.take(*_bem_checkpoint(start, state, following, record, best))
                if should_stop():
                    checkpoints.save()
                    return stopped(session)
            resumed_climb = None
            log.info("%s: log posterior %.6g after %d steps", phase, record.log_posterior, step)
            if best is None or record.log_posterior > best.record.log_posterior:
                best = _Best(state, record)
        assert best is not None
        with session.profile.span("writing"):
            writer.write_draw(0, [best.state], [best.record])
        writer.discard_checkpoint()  # nothing is left to resume
        return finished(session)


@dataclass(frozen=True)
class _Best:
    """Where the best start of Bayesian EM so far ended."""

    state: State
    record: Record


def climb(
    session: Session, state: State, value: float = -np.inf
) -> Iterator[tuple[State, State | None, Record]]:
    """Bayesian EM from one state: every state passed, the state after it (None at the end), its record.

    `value` is the log posterior of the state before the first.
    """
    config = session.config
    while True:
        began = time.perf_counter()
        mixture = mixture_of(state)
        with engine_pass(session):
            stats = session.engine.expect_labels(mixture)
        with session.profile.span("parameters"):
            record = record_of(state, stats, session.prior, time.perf_counter() - began)
        change = abs(record.log_posterior - value)
        settled = change <= config.bem.tolerance * abs(record.log_posterior)
        if settled or state.iteration == config.bem.max_steps:
            yield state, None, record
            return
        try:
            with session.profile.span("parameters"):
                following, _ = bem.step(state, stats, session.prior, config.bem.update)
        except np.linalg.LinAlgError as error:
            raise collinear("step", state.iteration + 1) from error
        record = replace(record, seconds=time.perf_counter() - began)
        yield state, following, record
        state, value = following, record.log_posterior


def best_climb(session: Session, should_stop: ShouldStop) -> State | None:
    """The end of the best start of Bayesian EM, as the beginning of a chain; None if asked to stop."""
    best: _Best | None = None
    for start in range(session.config.bem.starts):
        for passed in climb(session, start_state(session, start)):
            end = passed
            if should_stop():
                return None
        state, _, record = end
        log.info("start %d of Bayesian EM: log posterior %.6g", start + 1, record.log_posterior)
        if best is None or record.log_posterior > best.record.log_posterior:
            best = _Best(state, record)
    assert best is not None
    return replace(best.state, iteration=0)


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
