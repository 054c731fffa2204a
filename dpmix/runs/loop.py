"""What the loops of MCMC and of Bayesian EM share: reports of sweeps, checkpoints, results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from dpmix.errors import DataError, DpmixError, EngineError
from dpmix.model.mixture import State, Stats, occupied
from dpmix.model.prior import Prior, log_prior
from dpmix.runs.checkpoint import Checkpoint
from dpmix.runs.describe import describe_run
from dpmix.runs.layout import Record
from dpmix.runs.reader import open_run
from dpmix.runs.session import Session, initial_state

log = logging.getLogger("dpmix")

CHECKPOINT_SECONDS = 5.0


@dataclass(frozen=True)
class SweepReport:
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


OnSweep = Callable[[SweepReport], None]
ShouldStop = Callable[[], bool]


class Checkpoints:
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


@contextmanager
def engine_pass(session: Session) -> Iterator[None]:
    """A pass of the engine, inside: its time, and its failure as what a run can go on from."""
    try:
        with session.profile.engine_pass():
            yield
    except DpmixError as error:
        raise EngineError(str(error)) from error
    except MemoryError as error:
        raise EngineError(f"not enough memory for a pass over the events: {error}") from error


def record_of(state: State, stats: Stats, prior: Prior, seconds: float) -> Record:
    """Of a state, given the statistics of the pass that took its log likelihood."""
    return Record(
        log_likelihood=stats.log_likelihood,
        log_posterior=stats.log_likelihood + log_prior(state, prior),
        occupied=occupied(stats.counts),
        alpha=state.alpha,
        seconds=seconds,
    )


def checkpoint_of(session: Session, resume: bool) -> Checkpoint | None:
    """What a run goes on from; a resumed one that has to begin again says so."""
    checkpoint = session.writer.load_checkpoint()
    if resume and checkpoint is None:
        log.warning("no checkpoint beside %s: it begins again, to the same draws", session.writer.path)
    return checkpoint


def start_state(session: Session, chain: int, method: str = "kmeans") -> State:
    try:
        with session.profile.span("start"):
            return initial_state(session, chain, method)
    except np.linalg.LinAlgError as error:
        raise collinear("start", chain + 1) from error


def collinear(what: str, iteration: int) -> DataError:
    return DataError(
        f"{what} {iteration}: a component's covariance is not positive definite: some channels are linear "
        "combinations of others (leave one of them out with data.channels, or raise model.prior.phi), or "
        "model.prior is far from the scale of the data"
    )


def stopped(session: Session) -> Result:
    session.write_profile()
    return Result(session.writer.path, False, describe_run(open_run(session.writer.path)))


def finished(session: Session) -> Result:
    return replace(stopped(session), completed=True)
