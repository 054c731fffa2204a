"""An exploration: judgements so far, the posterior at all events, and what to judge next."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from threadpoolctl import ThreadpoolController

from dpmix.explore.count import Bools, Found, find, threshold_of
from dpmix.explore.covariance import SHAPES, first_covariance
from dpmix.explore.learn import can_learn, learn
from dpmix.explore.posterior import EventPosterior
from dpmix.explore.screen import FURTHER, SIZE, next_screen
from dpmix.model.mixture import Array, Floats, Ints

if TYPE_CHECKING:
    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess

SOON = 100
"""Judgements up to which the covariance is learned again at each screen; learning takes a moment."""

GROWTH = 1.25
"""Beyond, it is learned again when there are this many times as many judgements as the last time."""

CHECKS = 5
"""Random events of a screen among those found."""


class Explorer:
    """Judge events, and get the next ones to judge.

    Up to 100 judgements, the covariance is learned from all of them. Beyond, it is learned each time their
    number has grown by a quarter, and is used from the next screen on: `learn_ahead` computes it while a
    person judges, and a screen adds only its own judgements. Results depend on the events, the judgements
    with their screens, and the seed. They have the same bits if screens are added one by one or together.

    Parameters
    ----------
    events : float32 [N, D], C-contiguous
        Standardised scale; not copied.
    seed : int
    threads : int, optional

    Attributes
    ----------
    rows : int64 [n]
        Judged events, in the order of judgement.
    values : float64 [n]
        Judgements: 1 wanted, 0.5 in part, 0 unwanted.
    checks : bool [n]
        Judged events that were random ones of those found.
    screens : int64 [n]
        Number of the screen of each, ascending.
    posterior : EventPosterior
    """

    def __init__(self, events: Floats, seed: int = 0, threads: int | None = None) -> None:
        self._events, self._seed, self._threads = events, seed, threads
        self._firsts = [first_covariance(events, seed, shape) for shape in SHAPES]
        self.rows: Ints = np.empty(0, np.int64)
        self.values: Array = np.empty(0)
        self.checks: Bools = np.empty(0, bool)
        self.screens: Ints = np.empty(0, np.int64)
        self.posterior = EventPosterior(events, self._firsts[0], threads)
        self._learned, self._ahead = 0, (0, self.posterior)  # judgements that the covariance was learned from

    def judge(
        self,
        rows: Ints,
        values: Array,
        checks: Bools | None = None,
        screens: Ints | None = None,
        device: CudaGaussianProcess | None = None,
    ) -> None:
        """Add judgements, float64 [m], of events, int64 [m].

        Parameters
        ----------
        rows, values : int64 [m], float64 [m]
        checks : bool [m], optional
            Events that `screen` returned as checks. Default: none.
        screens : int64 [m], optional
            Numbers of the screens of the events, ascending, above those before. Default: one screen.
        device : CudaGaussianProcess, optional
            Devices that compute the pass over the events. Default: the CPU.

        Raises
        ------
        ValueError
            An event is judged twice, or is not there.
        """
        if screens is None:
            screens = np.full(len(rows), 1 + self.screens.max(initial=0))
        self.rows = np.concatenate([self.rows, np.asarray(rows, np.int64)])
        self.values = np.concatenate([self.values, np.asarray(values, np.float64)])
        self.checks = np.concatenate([self.checks, np.zeros(len(rows), bool) if checks is None else checks])
        self.screens = np.concatenate([self.screens, screens])
        if len(np.unique(self.rows)) != len(self.rows):
            raise ValueError("an event is judged twice")
        if len(self.rows) and not 0 <= self.rows.min() <= self.rows.max() < len(self._events):
            raise ValueError(f"events are numbered from 0 to {len(self._events) - 1}")
        learned = judgements_to_learn(self.values, self.screens)
        if learned > self._learned:
            self._learned, self.posterior = learned, self._learn(learned)
        self._complete(self.posterior, device)

    def is_to_learn(self) -> bool:
        """Return whether the next screen needs a covariance that `learn_ahead` has not learned yet."""
        return self._next_learned() > max(self._learned, self._ahead[0])

    def learn_ahead(self, device: CudaGaussianProcess | None = None) -> None:
        """Compute what the next screen needs anyway: the covariance, and the posterior by it."""
        if self.is_to_learn():
            learned = self._next_learned()
            self._ahead = learned, self._learn(learned)
            self._complete(self._ahead[1], device)

    def _next_learned(self) -> int:
        return judgements_to_learn(self.values, self.screens, ahead=True)

    def _learn(self, n: int) -> EventPosterior:
        """Return the posterior, perhaps without judgements yet, by the covariance learned from n of them."""
        # Learned while the person judged.
        if n == self._ahead[0]:
            return self._ahead[1]
        points = np.asarray(self._events[self.rows[:n]], np.float64)
        with one_blas_thread():
            covariance = learn(self._firsts, points, self.values[:n])
        return EventPosterior(self._events, covariance, self._threads)

    def _complete(self, posterior: EventPosterior, device: CudaGaussianProcess | None) -> None:
        """Add the judgements that the posterior does not have yet."""
        known = len(posterior.judged.values)
        ends = _ends(self.screens[known:])[:-1]
        points = np.asarray(self._events[self.rows[known:]], np.float64)
        with one_blas_thread():
            posterior.add(points, self.values[known:], ends, device)

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


def judgements_to_learn(values: Array, screens: Ints, ahead: bool = False) -> int:
    """Return the number of judgements, the first ones, that the covariance is learned from; 0 for none.

    Parameters
    ----------
    values : float64 [n]
    screens : int64 [n]
        Number of the screen of each, ascending.
    ahead : bool
        For the next screen, instead of the last one.
    """
    learned, ends = 0, _ends(screens)
    for end in ends:
        is_used = ahead or end < ends[-1] or learned == 0 or end <= SOON
        if is_used and (end <= SOON or end >= GROWTH * learned) and can_learn(values[:end]):
            learned = end
    return learned


def _ends(screens: Ints) -> list[int]:
    """Return the number of judgements after each screen."""
    return [*(np.flatnonzero(np.diff(screens)) + 1).tolist(), len(screens)]


def one_blas_thread() -> AbstractContextManager[Any]:
    """Return a context in which BLAS uses one thread.

    Its matrices are small, so that several threads wait for each other more than they compute, the more so
    next to other work. The results also have the same bits for any number of cores.
    """
    limited: AbstractContextManager[Any] = _libraries().limit(limits=1, user_api="blas")
    return limited


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()  # to find them takes milliseconds
