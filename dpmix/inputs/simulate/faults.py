"""Faults of a recording over its time, for simulated samples: drift, steps, air bubbles, a clog.

A recording lasts from 0 to 1. A fault changes the gain of detectors (the factor between light and stored
value), or the rate of events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array

Fault = Literal["slow", "step", "bubble", "clog"]
FAULTS: tuple[Fault, ...] = get_args(Fault)

SIZE = 0.5
"""Log gain: on a scale like arcsinh, bright populations move by half a unit, a little more than their sd."""

GRID = 2_001  # times at which a recording is known
SHARE = 1.0 / 3.0  # of the detectors; they share one laser
BUBBLE, CLOG = 0.03, 0.10  # lengths
CLOGGED = 0.3  # of the usual rate


@dataclass(frozen=True)
class Course:
    """The gains of the detectors, and the rate of events, over the time of a recording.

    Attributes
    ----------
    times : float64 [T]
        From 0 to 1.
    log_gains : float64 [T, D]
        Log gains of the detectors.
    rate : float64 [T]
        Rate of events, in units of the usual rate.
    faulty : bool [T]
        Times that a person would remove: a bubble or a clog, and the shorter side of a step. A slow drift has
        none.
    """

    times: Array
    log_gains: Array
    rate: Array
    faulty: npt.NDArray[np.bool_]

    def times_of(self, uniforms: Array) -> Array:
        """Return the times of events at the rate, from uniform ones in ascending order, float64 [N]."""
        total = np.concatenate(([0.0], np.cumsum(0.5 * (self.rate[1:] + self.rate[:-1]))))
        return np.interp(uniforms, total / total[-1], self.times)

    def gains_at(self, times: Array) -> Array:
        """Return the gains at some times, float64 [N, D]."""
        return np.asarray(
            np.exp(np.column_stack([np.interp(times, self.times, one) for one in self.log_gains.T]))
        )

    def faulty_at(self, times: Array) -> npt.NDArray[np.bool_]:
        """Return which times are faulty, bool [N]."""
        return np.asarray(self.faulty[np.searchsorted(self.times, times).clip(0, len(self.times) - 1)])


def draw_course(
    faults: Sequence[Fault], n_detectors: int, size: float, random: np.random.Generator
) -> Course:
    """Draw the course of a recording with one fault of each kind given.

    Parameters
    ----------
    faults : sequence of str
        "slow": the gains of one laser's detectors drift smoothly, over a range of `size`. "step": they jump
        by `size`. "bubble": all gains fall by `size` or more for 3% of the time. "clog": the rate of events
        falls to 30% for 10% of the time.
    n_detectors : int
    size : float
        Log gain.
    random : numpy.random.Generator
    """
    times = np.linspace(0.0, 1.0, GRID)
    log_gains, rate, faulty = np.zeros((GRID, n_detectors)), np.ones(GRID), np.zeros(GRID, bool)
    of_laser = random.permutation(n_detectors) < max(round(SHARE * n_detectors), 1)
    for fault in faults:
        start = float(random.uniform(0.1, 0.85))
        if fault == "slow":
            waves = np.cos(np.pi * np.outer(times, (1, 2)) + random.uniform(0.0, 2.0 * np.pi, 2))
            curve = waves @ random.normal(1.0, 0.3, 2)
            log_gains[:, of_laser] += size * (curve[:, None] - curve[0]) / np.ptp(curve)
        elif fault == "step":
            after = times >= start
            log_gains[np.ix_(after, of_laser)] += size * random.choice((-1.0, 1.0))
            faulty |= after if start > 0.5 else ~after
        else:
            length = BUBBLE if fault == "bubble" else CLOG
            inside = (times >= start) & (times < start + length)
            faulty |= inside
            if fault == "bubble":
                log_gains[inside] -= size * random.uniform(1.0, 2.0, n_detectors)
            else:
                rate[inside] = CLOGGED
    return Course(times, log_gains, rate, faulty)
