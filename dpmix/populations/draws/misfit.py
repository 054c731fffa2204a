"""Test the fit of new files to a run: shares of events in the tail of their population, by file.

The score of an event is the log density of its population at the event, without the weight of the
population: a file with other proportions fits. It is computed in the reference draw, with the file's own
weights and shift in a hierarchical run. The tail of a population is below the quantile `TAIL` of the scores
of events simulated from it. So the share of a file in the tail, its **misfit**, is `TAIL` where the model is
exact.

Cells are not exactly Gaussian and files differ, so the misfit of the run's own files is the standard: it is
computed from the events that the run file keeps. Of S + 1 exchangeable files, a new one has the largest
misfit with probability 1 / (S + 1), without being foreign. The limit is therefore `FACTOR` times the largest
misfit of a file of the run (of a population: `FACTOR` times its misfit in all files), and a file exceeds it
only if its number of events in the tail has a probability below `SURE` at the limit: a file of few events is
not flagged by chance.

A shift could also take a foreign file to the populations. It is flagged if it is beyond the shifts of the
run: if its two-sided probability under N(0, tau_d^2 (1 + 1 / G)), averaged over the draws, is below `SURE` /
D in a channel (Bonferroni).

S files, P populations, D channels, T draws, M events.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc, ndtr

from dpmix.engines.base import Engine
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.model.streams import Step, Stream
from dpmix.populations.draws.cohort import OwnTerms, terms_of_run
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.new_samples import shift_spread
from dpmix.populations.tree.modes import MakeEngine
from dpmix.runs.layout import EVENT_SUBSET, subset_rows

Flags = npt.NDArray[np.bool_]
TAIL = 0.01
FACTOR = 3.0
SURE = 0.001
POINTS = 2_000  # simulated from each population
PRIOR_EVENTS = 100.0  # with the expected misfit, which count in the misfit of few events
BLOCK = 131_072


@dataclass(frozen=True)
class Standard:
    """Scores and misfit of the run itself.

    Attributes
    ----------
    levels : float64 [P]
        Score below which an event is in the tail of a population.
    expected : float64 [P]
        Misfit of each population in the files of the run.
    limits : float64 [P]
        Largest misfit of a population in a file that fits.
    limit : float
        Largest misfit of a file that fits.
    """

    levels: Array
    expected: Array
    limits: Array
    limit: float


@dataclass(frozen=True)
class Fit:
    """The fit of new files to a run, by file and population.

    Attributes
    ----------
    standard : Standard
    events, tails : int64 [S, P]
        Events by most probable population in the reference draw, and how many of them are in its tail.
    shifts : float64 [S, T, D] or None
        Shifts of the files, standardised scale; None for a run without shifts.
    shift_chances : float64 [S, D] or None
        Probability of a shift as large or larger, under the shifts of the run.
    """

    standard: Standard
    events: Ints
    tails: Ints
    shifts: Array | None = None
    shift_chances: Array | None = None

    @property
    def misfit(self) -> Array:
        """Misfit of each file, float64 [S]."""
        share: Array = self.tails.sum(axis=1) / np.maximum(self.events.sum(axis=1), 1)
        return share

    @property
    def shift_fits(self) -> Flags:
        """True for files and channels whose shift is within the run's shifts, bool [S, D]."""
        if self.shift_chances is None:
            return np.ones((len(self.events), 1), bool)
        fits: Flags = self.shift_chances >= SURE / self.shift_chances.shape[1]
        return fits

    @property
    def population_fits(self) -> Flags:
        """True for files and populations within their limits, bool [S, P]."""
        return _within(self.tails, self.events, self.standard.limits)

    @property
    def fits(self) -> Flags:
        """True for files that fit, bool [S]."""
        by_tail = _within(self.tails.sum(axis=1), self.events.sum(axis=1), np.array(self.standard.limit))
        fits: Flags = by_tail & self.shift_fits.all(axis=1)
        return fits


def measure(
    found: Populations,
    make_engine: MakeEngine,
    values: Floats,
    starts: Ints,
    own: Sequence[OwnTerms] | None,
    seed: int,
) -> Fit:
    """Measure how well new files fit a run.

    Parameters
    ----------
    found : Populations
    make_engine : callable
        Returns an engine for events.
    values : float32 [N, D]
        Events of all files, standardised scale.
    starts : int64 [S + 1]
        Events starts[s] to starts[s + 1] belong to file s.
    own : S of OwnTerms, or None
        Weights and shifts of the files in a hierarchical run.
    seed : int
    """
    standard = standard_of(found, make_engine, seed)
    events, tails = _count(found, make_engine, values, starts, own, standard.levels)
    spread = shift_spread(found.run)
    if own is None or spread is None:
        return Fit(standard, events, tails)
    shifts = np.array([terms.shifts for terms in own])
    # Averaged over the draws, not computed from the mean shift: an uncertain shift is weaker evidence.
    chances = 2.0 * ndtr(-np.abs(shifts) / spread[tuple(found.draws.T)]).mean(axis=1)
    return Fit(standard, events, tails, shifts, chances)


def standard_of(found: Populations, make_engine: MakeEngine, seed: int) -> Standard:
    """Return levels of the scores by simulation, and limits by the events that the run file keeps."""
    run, n_populations = found.run, found.n_populations
    points = _simulated(found, seed)
    with closing(make_engine(points)) as engine:
        population, score = scores(found, engine, 0, len(points), None)
    levels = np.full(n_populations, -np.inf)
    for p in np.unique(population):
        levels[p] = np.quantile(score[population == p], TAIL)
    starts, values = run.constants["sample_starts"], run.constants[EVENT_SUBSET]
    # The kept events are evenly spaced in all events, so the sample of each follows from its row.
    own_starts = np.searchsorted(subset_rows(int(starts[-1]), len(values)), starts)
    own = [terms_of_run(run, found.draws, s) for s in range(len(starts) - 1)] if run.cohort else None
    events, tails = _count(found, make_engine, values, own_starts, own, levels)
    overall = tails.sum() / events.sum()
    expected = _shrunk(tails.sum(axis=0), events.sum(axis=0), overall)
    largest = _shrunk(tails.sum(axis=1), events.sum(axis=1), overall).max()
    return Standard(levels, expected, _limit(expected), float(_limit(np.array(largest))))


def scores(
    found: Populations, engine: Engine, start: int, stop: int, own: OwnTerms | None
) -> tuple[Ints, Array]:
    """Return the most probable population and the score of events start..stop-1, int64 [M], float64 [M]."""
    t = found.reference
    shares, log_density = found.memberships_in(t, engine, start, stop, own)
    mixture = found.mixture(*found.draws[t])
    weights = np.exp(mixture.log_weights if own is None else own.log_weights[t])
    of_population = np.bincount(found.components[t], weights, found.n_populations)
    population: Ints = shares.argmax(axis=1)
    share = np.take_along_axis(shares, population[:, None], axis=1)[:, 0].astype(np.float64)
    # The engine gives the density of all components and the share of the population: their product, divided
    # by its weight, is its own density, without another pass.
    score: Array = log_density + np.log(share) - np.log(np.maximum(of_population[population], 1e-300))
    return population, score


def _count(
    found: Populations,
    make_engine: MakeEngine,
    values: Floats,
    starts: Ints,
    own: Sequence[OwnTerms] | None,
    levels: Array,
) -> tuple[Ints, Ints]:
    """Return the events of each file and population, and those in the tail, int64 [S, P] each."""
    events = np.zeros((len(starts) - 1, found.n_populations), np.int64)
    tails = np.zeros_like(events)
    with closing(make_engine(values)) as engine:
        for s in range(len(events)):
            end = int(starts[s + 1])
            for start in range(int(starts[s]), end, BLOCK):
                population, score = scores(
                    found, engine, start, min(start + BLOCK, end), None if own is None else own[s]
                )
                events[s] += np.bincount(population, minlength=found.n_populations)
                tails[s] += np.bincount(population[score < levels[population]], minlength=found.n_populations)
    return events, tails


def _simulated(found: Populations, seed: int) -> Floats:
    """Draw `POINTS` points from each population of the reference draw, float32 [M, D]."""
    random = Stream(seed, 3, 0).step(Step.POINTS)
    mixture, own = found.mixture(*found.draws[found.reference]), found.components[found.reference]
    weights, parts = np.exp(mixture.log_weights), []
    for p in np.unique(own):
        inside = np.where(own == p, weights, 0.0)
        if inside.sum() > 0.0:
            counts = random.multinomial(POINTS, inside / inside.sum())
            for j in np.flatnonzero(counts):
                normals = random.standard_normal((counts[j], mixture.means.shape[1]))
                parts.append(mixture.means[j] + np.linalg.solve(mixture.whiteners[j], normals.T).T)
    return np.ascontiguousarray(np.concatenate(parts), np.float32)


def _shrunk(tails: Ints, events: Ints, overall: float) -> Array:
    """Return shares of events in the tail, with `PRIOR_EVENTS` that have the overall share."""
    share: Array = (tails + PRIOR_EVENTS * overall) / (events + PRIOR_EVENTS)
    return share


def _limit(share: Array) -> Array:
    """Return the limits of shares in the tail: below 1 also where the run itself fits badly."""
    share = np.maximum(share, TAIL)
    # Three times a share above a third would be above 1, and no file could exceed it.
    limit: Array = np.minimum(FACTOR * share, 0.5 + 0.5 * share)
    return limit


def _within(tails: Ints, events: Ints, limits: Array) -> Flags:
    """Return True where as many events in the tail are not improbable at the limit."""
    fits: Flags = bdtrc(tails - 1, events, limits) >= SURE
    return fits
