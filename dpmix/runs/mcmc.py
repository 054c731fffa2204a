"""The loop of block Gibbs MCMC."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Self

import numpy as np

from dpmix.config.schema import Config
from dpmix.model import gibbs, split_merge
from dpmix.model.mixture import Array, Ints, Mixture, State, Stats, mixture_of
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key, Stream
from dpmix.runs import initialise
from dpmix.runs.bem import best_climb
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
from dpmix.runs.reader import open_run
from dpmix.runs.session import Session, open_session

log = logging.getLogger("dpmix")


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
        Checkpoints(session) as checkpoints,
    ):
        writer = session.writer
        if writer.committed == mcmc.draws:
            return finished(session)
        checkpoint = checkpoint_of(session, resume)
        if checkpoint is not None:
            states, first = checkpoint.states, checkpoint.iteration
            log.info("going on from sweep %d of %d", first, total)
        else:
            begun = _initial_states(session, should_stop)
            if begun is None:
                return stopped(session)
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
                    records.append(record_of(state, stats, session.prior, seconds))
                    with session.profile.span("writing"):
                        writer.write_sweep(chain, iteration, records[chain])
                draw, between = divmod(iteration - mcmc.burn_in, mcmc.thin)
                if draw >= 1 and between == 0:
                    with session.profile.span("writing"):
                        writer.write_draw(draw - 1, current, records)
                phase = "burn-in" if iteration <= mcmc.burn_in else "draws"
                for chain, record in enumerate(records):
                    at = "mcmc", phase, iteration, total, chain
                    on_sweep(SweepReport(*at, **asdict(record), draws=writer.committed))
                if iteration < total:
                    checkpoints.take(states, iteration + 1, {})
                if stopping:
                    checkpoints.save()
                    return stopped(session)
        # More draws may be asked for later: where they go on from stays.
        checkpoints.take(current, total, {})
        checkpoints.save()
        return finished(session)


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
        with engine_pass(self._session):
            return self._session.engine.divide(split, mixture, key)

    def _draw_labels(self, state: State, order: Ints | None, chain: int) -> tuple[Stats, float]:
        began = time.perf_counter()
        mixture, key = mixture_of(state, order), Key(self._session.config.seed, chain, state.iteration + 1)
        with engine_pass(self._session):
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
        raise collinear("sweep", iteration) from error
    return following, info.order, time.perf_counter() - began


def _initial_states(session: Session, should_stop: ShouldStop) -> list[State] | None:
    """The state that every chain begins at, as mcmc.init says; None if asked to stop on the way there."""
    chains, method = session.config.mcmc.chains, session.config.mcmc.init
    if method == "bem":
        state = best_climb(session, should_stop)
        return None if state is None else [state] * chains
    if session.origin is None:
        return [start_state(session, chain, method) for chain in range(chains)]
    run = open_run(session.origin)
    return [
        initialise.from_run(run, chain, session.config.model.components, session.events, session.prior)
        for chain in range(chains)
    ]
