"""An exploration: judgements so far, the posterior at all events, and what to judge next."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from dpmix.explore.count import Bools, Found, find, threshold_of
from dpmix.explore.covariance import SHAPES, first_covariance
from dpmix.explore.learn import can_learn, learn
from dpmix.explore.posterior import Device, Posterior
from dpmix.explore.screen import FURTHER, SIZE, next_screen
from dpmix.model.mixture import Array, Floats, Ints

GROWTH = 2.0
"""The covariance is learned again when there are this many times as many judgements as the last time."""

CHECKS = 5
"""Random events of a screen among those found."""


class Explorer:
    """Judge events, and get the next ones to judge.

    Parameters
    ----------
    events : float32 [N, D], C-contiguous
        Standardised scale; not copied.
    seed : int
        Results depend on the events, the judgements in their order, and the seed.
    threads : int, optional
    device : Device, optional
        Devices that compute the passes over the events. Default: the CPU.

    Attributes
    ----------
    rows : int64 [n]
        Judged events, in the order of judgement.
    values : float64 [n]
        Judgements: 1 wanted, 0.5 in part, 0 unwanted.
    checks : bool [n]
        Judged events that were random ones of those found.
    posterior : Posterior
    """

    def __init__(
        self, events: Floats, seed: int = 0, threads: int | None = None, device: Device | None = None
    ) -> None:
        self._events, self._seed, self._threads, self._device = events, seed, threads, device
        self._firsts = [first_covariance(events, seed, shape) for shape in SHAPES]
        self._learned = 0
        self.rows: Ints = np.empty(0, np.int64)
        self.values: Array = np.empty(0)
        self.checks: Bools = np.empty(0, bool)
        self.posterior = Posterior(events, self._firsts[0], threads, device=device)

    def judge(self, rows: Ints, values: Array, checks: Bools | None = None) -> None:
        """Add judgements, float64 [m], of events, int64 [m].

        Parameters
        ----------
        rows, values : int64 [m], float64 [m]
        checks : bool [m], optional
            Events that `screen` returned as checks. Default: none.

        Raises
        ------
        ValueError
            An event is judged twice, or is not there.
        """
        self.rows = np.concatenate([self.rows, np.asarray(rows, np.int64)])
        self.values = np.concatenate([self.values, np.asarray(values, np.float64)])
        self.checks = np.concatenate([self.checks, np.zeros(len(rows), bool) if checks is None else checks])
        if len(np.unique(self.rows)) != len(self.rows):
            raise ValueError("an event is judged twice")
        if len(self.rows) and not 0 <= self.rows.min() <= self.rows.max() < len(self._events):
            raise ValueError(f"events are numbered from 0 to {len(self._events) - 1}")
        points = np.asarray(self._events[self.rows], np.float64)
        with one_blas_thread():
            if can_learn(self.values) and len(self.rows) >= GROWTH * self._learned:
                covariance = learn(self._firsts, points, self.values)
                self.posterior = Posterior(self._events, covariance, self._threads, device=self._device)
                self._learned = len(self.rows)
            known = len(self.posterior.judged.values)
            self.posterior.add(points[known:], self.values[known:])

    def screen(
        self, size: int = SIZE, further: float = FURTHER, among: Ints | None = None, checks: int = CHECKS
    ) -> tuple[Ints, Bools]:
        """Return the events to judge next, int64 [size], and which of them are checks, bool [size].

        Checks are random ones of the events that are found and not judged. They show how many of these are
        wanted, which the highest bounds do not: an event with a lower mean would be judged last.

        Parameters
        ----------
        size : int
        further : float
            From 0, more of the same, to 1, look further (`dpmix.explore.screen`).
        among : int64 [M], optional
            Events to choose among. None: all.
        checks : int
            The number of checks, 0 while no judgement is wanted.
        """
        number = 1 + len(self.rows) // SIZE
        closed = np.zeros(len(self._events), bool)
        if among is not None:
            closed[:] = True
            closed[among] = False
        closed[self.rows] = True
        threshold = threshold_of(self.posterior)
        checked = np.empty(0, np.int64)
        if threshold is not None:
            random = np.random.default_rng([self._seed, number, len(self.rows)])
            found = np.flatnonzero((self.posterior.mean >= np.float32(threshold)) & ~closed)
            checked = random.choice(found, min(checks, len(found)), replace=False)
            closed[checked] = True
        with one_blas_thread():
            best = next_screen(
                self.posterior,
                self._events,
                closed,
                screen=number,
                further=further,
                size=size - len(checked),
                seed=self._seed,
            )
        return np.concatenate([best, checked]), np.arange(len(best) + len(checked)) >= len(best)

    def found(self) -> Found | None:
        """Return the events found and their number; None if no judged event is wanted."""
        with one_blas_thread():
            return find(self.posterior, self._events, self.rows, self.checks, self._seed)


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS uses one thread.

    Its matrices are small, so that several threads wait for each other more than they compute, the more so
    next to other work. The results also have the same bits for any number of cores.
    """
    limited: AbstractContextManager[Any] = threadpool_limits(1, "blas")
    return limited
