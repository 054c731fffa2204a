"""Parts shared by the loops of MCMC and Bayesian EM: sweep reports, start states, checkpoints, results."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from dpmix.errors import DataError, DpmixError, EngineError
from dpmix.model import cohort, cohort_bem, gibbs
from dpmix.model.mixture import Ints, Mixture, State, Stats, mixture_of, occupied
from dpmix.model.prior import log_prior
from dpmix.model.resolution import of_clouds
from dpmix.model.streams import Stream
from dpmix.runs import initialise
from dpmix.runs.checkpoint import Checkpoint
from dpmix.runs.layout import Record
from dpmix.runs.reader import open_run
from dpmix.runs.session import Session

log = logging.getLogger("dpmix")

CHECKPOINT_SECONDS = 5.0


@dataclass(frozen=True)
class SweepReport:
    """Report of one sweep of one chain, or of one step of one start of Bayesian EM.

    Attributes
    ----------
    kind : str
        "mcmc" or "bem".
    phase : str
        "burn-in", "draws", or "start 2 of 5".
    iteration, total : int
        Number of this sweep and of all sweeps of the run (of this step and of the most steps of a start).
    chain : int
        Chain or start, from 0.
    log_likelihood, log_posterior : float
        Values of the state after the sweep, in nats, of the standardised events.
    occupied : int
        Components that hold an event.
    alpha : float
        Concentration of the Dirichlet process.
    seconds : float
        Wall time of this sweep.
    draws : int
        Draws committed to the run file.
    at_most : bool
        The run may end before its last sweep (mcmc.until).
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
    at_most: bool = False


@dataclass(frozen=True)
class Result:
    """How a run ended.

    Attributes
    ----------
    path : Path
        The run file.
    completed : bool
        False if the run was asked to stop before its last draw; all draws so far are committed.
    """

    path: Path
    completed: bool


OnSweep = Callable[[SweepReport], None]
ShouldStop = Callable[[], bool]


class Checkpoints:
    """Saves what a run resumes from: every few seconds, when asked, and after an error or Ctrl-C.

    A context manager around all passes of the engine.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._latest: Checkpoint | None = None
        self._saved = time.monotonic()

    def take(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint in memory; save it if some seconds have passed since the last save."""
        self._latest = checkpoint
        if time.monotonic() - self._saved > CHECKPOINT_SECONDS:
            self.save()

    def save(self) -> None:
        """Save the latest checkpoint, if there is one."""
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


def mixture_for_pass(session: Session, state: State, order: Ints | None = None) -> Mixture:
    """Return the mixture of a state, of events that are clouds if they are; `order` as in `Mixture`."""
    return of_clouds(mixture_of(state, order), session.resolution)


@contextmanager
def engine_pass(session: Session) -> Iterator[None]:
    """Time the pass of the engine made inside, and raise `EngineError` where it fails."""
    try:
        with session.profile.engine_pass():
            yield
    except DpmixError as error:
        raise EngineError(str(error)) from error
    except MemoryError as error:
        raise EngineError(f"not enough memory for a pass over the events: {error}") from error


def record_of(
    session: Session, state: State, stats: Stats, seconds: float, counts: tuple[int, ...]
) -> Record:
    """Return the record of a state from the statistics of the pass that computed its log likelihood.

    The log posterior is coarsened if the config asks for it. In Bayesian EM of the hierarchical model it is a
    lower bound (`dpmix.model.cohort_bem`). In a session on fewer events, both are estimates for all events.
    """
    return Record(
        log_likelihood=session.stands_for * stats.log_likelihood,
        log_posterior=session.zeta * stats.log_likelihood + _log_prior(session, state),
        occupied=occupied(stats.counts),
        alpha=state.alpha,
        seconds=seconds,
        counts=counts,
    )


def _log_prior(session: Session, state: State) -> float:
    """Return the log prior density of a state, including all that differs between samples, in nats."""
    density = log_prior(state, session.prior)
    if state.cohort is not None:
        own = cohort.log_prior if state.cohort.factors is None else cohort_bem.bound
        density += own(state.cohort, state.log_base_weights, session.prior)
    return density


def report_of(
    kind: str, phase: str, iteration: int, total: int, chain: int, record: Record, draws: int
) -> SweepReport:
    """Return the report of a recorded sweep."""
    values = record.log_likelihood, record.log_posterior, record.occupied, record.alpha, record.seconds
    return SweepReport(kind, phase, iteration, total, chain, *values, draws)


def load_checkpoint(session: Session, resume: bool) -> Checkpoint | None:
    """Return the checkpoint to resume from, or None; log a warning where a resumed run has none."""
    checkpoint = session.writer.load_checkpoint()
    if resume and checkpoint is None:
        log.warning("no checkpoint next to %s: it restarts, and gives the same draws", session.writer.path)
    return checkpoint


def start_state(session: Session, chain: int, method: str = "kmeans") -> State:
    """Return a state made from a subsample of the events, or drawn from the prior.

    Parameters
    ----------
    session : Session
    chain : int
        Chain, or start of Bayesian EM, from 0.
    method : str
        "kmeans", "random" or "prior", as in mcmc.init.

    Raises
    ------
    DataError
        A component's scatter is not positive definite to float64 (collinear channels).
    """
    config, prior = session.config, session.prior
    stream, count = Stream(config.seed, chain, 0), config.model.components
    try:
        if method == "prior":
            alpha = None if "alpha" in prior.learned else initialise.alpha_start(prior)
            return gibbs.draw_prior(prior, count, alpha, stream)
        n_events = len(session.events.values)
        size = initialise.subsample_size(n_events, count)
        fewer = session.events.subset(initialise.subsample(n_events, size, stream))
        weights = None if fewer.weights is None else fewer.weights.each()
        given = fewer.values, n_events, count, prior, stream, weights
        if method == "random":
            return initialise.from_random_events(*given)
        return initialise.from_kmeans(*given, session.resolution)
    except np.linalg.LinAlgError as error:
        raise initialise.collinear("start", chain + 1) from error


def result_of(session: Session) -> Result:
    """Write where the time went, and return how the run ended."""
    session.write_profile()
    run = open_run(session.writer.path)
    return Result(run.path, run.complete)
