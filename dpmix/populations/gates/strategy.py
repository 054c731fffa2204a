"""Gating strategies: for each population the shortest sequence of two-channel gates that isolates it.

A sequence is searched step by step. Each step adds the polygon (`dpmix.populations.gates.polygons`) of any
two channels, or the ellipse (`dpmix.populations.gates.ellipses`) where its F1 is higher by more than 0.005,
that separates the population best from the other events inside the gates before it. The best sequences by F1,
and those with the highest yield, are kept and extended (a beam search), because the best first gate need not
start the best sequence. The search ends at an F1 of 0.97, after five gates, or where one more gate adds less
than 0.01; a gate whose removal costs less than that is removed.

F1 is the harmonic mean of purity (share of the population in the gated events) and yield (share of the
population that the gates keep). The sequences are searched in a sample of the events, stratified by
population, and measured on all events. Values are the values of the data files, transformed, without the
noise that spreads atoms: the gates apply to the files as they are. They are counted with all digits of the
files (`dpmix.inputs.exact_events`).

Related: GateFinder (Aghaeepour et al. 2018, Bioinformatics 34:4131) and hypergate (Becht et al. 2019,
Bioinformatics 35:301).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.inputs.events import Events
from dpmix.inputs.exact_events import exact_blocks
from dpmix.model.mixture import Array, Ints
from dpmix.populations.gates.ellipses import EllipseGate, best_ellipse
from dpmix.populations.gates.polygons import Binned, Flags, PolygonGate, best_regions, f_measure, polygon
from dpmix.system.threads import one_thread

MOST_GATES = 5
ENOUGH = 0.97  # F1 at which the search ends
GOOD = 0.9  # purity, yield and F1 below which the gates are reported as poor
GAIN = 0.01  # least F1 that a gate must add
ELLIPSE_GAIN = 0.005  # least F1 that an ellipse must gain over polygons in the same channels
PAIRS = 4  # pairs of channels for which polygons are made in each step
CHANNELS = 10  # channels whose pairs are examined in each step: those that separate best alone
BEAM = ((1.0, 3), (2.0, 2))  # beta of the F measure, and number of sequences kept by it
SAMPLE, LEAST = 40_000, 1_000  # events of the sample, and least number of each population

Gate = PolygonGate | EllipseGate
Gates = tuple[Gate, ...]


@dataclass(frozen=True)
class Strategy:
    """The gates of one population, in their order, with the events that they keep.

    Attributes
    ----------
    gates : tuple of PolygonGate or EllipseGate
        Empty for a population without events.
    kept, selected : int64 [gates]
        Events of the population, and all events, inside each gate and those before it.
    size : int
        Number of events of the population.
    """

    gates: Gates
    kept: Ints
    selected: Ints
    size: int

    @property
    def purity(self) -> Array:
        """Share of the population in the events inside each gate and those before it, float64 [gates]."""
        return self.kept / np.maximum(self.selected, 1)

    @property
    def recovered(self) -> Array:
        """Yield: share of the population inside each gate and those before it, float64 [gates]."""
        return self.kept / max(self.size, 1)

    @property
    def f1(self) -> Array:
        """F1 after each gate, float64 [gates]."""
        return f_measure(self.kept, self.selected, self.size)

    @property
    def good(self) -> bool:
        """True if the gates recover the population with an F1 of at least `GOOD`."""
        return bool(self.gates) and bool(self.f1[-1] >= GOOD)

    @property
    def shortfall(self) -> str:
        """Say what the last gate misses and what else it holds, where this is more than 10%; else ""."""
        if not self.gates:
            return ""
        missed, others = 1.0 - self.recovered[-1], 1.0 - self.purity[-1]
        parts = [f"misses {missed:.1%} of its events"] if missed > 1.0 - GOOD else []
        parts += [f"{others:.1%} of the gated events are others"] if others > 1.0 - GOOD else []
        return "; ".join(parts)


@dataclass(frozen=True)
class _Sequence:
    """Gates, the events of the sample inside them, and their weights: of the population and of all."""

    gates: Gates
    events: Ints
    true: float
    selected: float


def find_strategies(
    events: Events, population: npt.NDArray[np.int32], n_populations: int, seed: int
) -> tuple[Strategy, ...]:
    """Find the strategies of all populations.

    Parameters
    ----------
    events : Events
        Without noise at atoms (`dpmix.populations.draws.task.Task.events_without_noise`).
    population : int32 [N]
        Population of each event.
    n_populations : int
    seed : int
        Seed of the sample in which the gates are searched.
    """
    binned, own = sample_of(events, population, n_populations, seed)
    with one_thread():
        gates = find_gates(binned, own, n_populations)
    return tuple(measure(gates, blocks_of(events, population, gates)))


def sample_of(
    events: Events, population: npt.NDArray[np.int32], n_populations: int, seed: int
) -> tuple[Binned, npt.NDArray[np.int32]]:
    """Return the binned events of the search, and their populations, int32 [M]."""
    lowest, highest = events.scaling.to_transformed([events.values.min(0), events.values.max(0)])
    chosen, weights = stratified(population, n_populations, seed)
    values = events.scaling.to_transformed(events.values[chosen])
    return Binned.of(values, weights, lowest, highest), population[chosen]


def blocks_of(
    events: Events, population: npt.NDArray[np.int32], gates: Sequence[Gates]
) -> Iterator[tuple[Array, npt.NDArray[np.int32]]]:
    """Yield transformed values with all digits, float64 [M, D], and populations, to count events in gates."""
    for start, values in exact_blocks(events, _channels_of(gates)):
        yield values, population[start : start + len(values)]


def find_gates(binned: Binned, population: npt.NDArray[np.integer], n_populations: int) -> list[Gates]:
    """Find the gates of each population in a sample of the events.

    Parameters
    ----------
    binned : Binned
        The sample.
    population : int [M]
        Population of its events.
    n_populations : int

    Returns
    -------
    list of tuple of PolygonGate or EllipseGate
        For each population; empty for a population that is not in the sample.
    """
    totals = Totals(binned)
    return [Search(binned, population == p, totals).best() for p in range(n_populations)]


def stratified(population: npt.NDArray[np.integer], n_populations: int, seed: int) -> tuple[Ints, Array]:
    """Draw the events of the search.

    Parameters
    ----------
    population : int [N]
    n_populations : int
    seed : int

    Returns
    -------
    events : int64 [M]
        Ascending; at least `LEAST` of each population, or all of its events.
    weights : float64 [M]
        Number of events of its population that each event stands for.
    """
    random = np.random.default_rng(seed)
    sizes = np.bincount(population, minlength=n_populations)
    # At least a thousand events of a rare population, whose gates a plain sample could not show.
    wanted = np.minimum(np.maximum(np.ceil(SAMPLE * sizes / max(len(population), 1)), LEAST), sizes)
    drawn = [
        random.choice(np.flatnonzero(population == p), int(wanted[p]), replace=False)
        for p in range(n_populations)
    ]
    events = np.concatenate(drawn)
    weights = np.repeat(sizes / np.maximum(wanted, 1), wanted.astype(np.int64))
    order = np.argsort(events)
    return events[order], weights[order]


def measure(
    gates: Sequence[Gates],
    blocks: Iterable[tuple[Array, npt.NDArray[np.integer]]],
    targets: Flags | None = None,
) -> list[Strategy]:
    """Count the events inside the gates of each population, or of unions of populations.

    Parameters
    ----------
    gates : sequence of tuple of PolygonGate or EllipseGate
        P sequences.
    blocks : iterable of (float64 [M, D], int [M])
        Transformed values and populations of all events.
    targets : bool [P, populations], optional
        Populations that the gates of each sequence should select; default: sequence p selects population p.
    """
    wanted = np.eye(len(gates), dtype=bool) if targets is None else targets
    kept = [np.zeros(len(own), np.int64) for own in gates]
    selected = [np.zeros(len(own), np.int64) for own in gates]
    sizes = np.zeros(len(gates), np.int64)
    for values, population in blocks:
        sizes += wanted @ np.bincount(population, minlength=wanted.shape[1])
        for p, own in enumerate(gates):
            for k, inside in enumerate(_passed(own, values)):
                kept[p][k] += np.count_nonzero(wanted[p, population[inside]])
                selected[p][k] += len(inside)
    both = zip(gates, kept, selected, sizes.tolist(), strict=True)
    return [Strategy(own, true, chosen, size) for own, true, chosen, size in both]


def counts_in_files(gates: Sequence[Gates], events: Events) -> list[list[int]]:
    """Return the number of events inside each gate and those before it, of all events of the files.

    Parameters
    ----------
    gates : sequence of tuple of PolygonGate or EllipseGate
    events : Events
        Without noise at atoms.
    """
    counts = [[0] * len(own) for own in gates]
    for _, values in exact_blocks(events, _channels_of(gates), all_rows=True):
        for found, own in zip(counts, gates, strict=True):
            for k, inside in enumerate(_passed(own, values)):
                found[k] += len(inside)
    return counts


def _channels_of(gates: Sequence[Gates]) -> list[int]:
    """Return the numbers of the channels that some gate uses, ascending."""
    return sorted({channel for own in gates for gate in own for channel in gate.channels})


def _passed(gates: Gates, values: Array) -> Iterator[Ints]:
    """Yield for each gate the events, int64, inside it and those before it."""
    inside = np.arange(len(values))
    for gate in gates:
        inside = inside[gate.contains(values[inside])]
        yield inside


class Totals:
    """Counts of all events in the bins of two channels, which the first gates of all populations share."""

    def __init__(self, binned: Binned) -> None:
        self._binned = binned
        self._counts: dict[tuple[int, int], Array] = {}

    def __call__(self, events: Ints, channels: tuple[int, int]) -> Array:
        # Only the first gates of populations see all events, so only these counts are worth keeping.
        if len(events) < len(self._binned.values):
            return self._binned.counts(events, channels)
        if channels not in self._counts:
            self._counts[channels] = self._binned.counts(events, channels)
        return self._counts[channels]


class Search:
    """Search of the gates of one population; `own` marks its events, bool [M]."""

    def __init__(self, binned: Binned, own: Flags, totals: Totals) -> None:
        self._binned, self._own, self._totals = binned, own, totals
        self._total = float(binned.weights[own].sum())

    def best(self, start: Gates = ()) -> Gates:
        """Return the shortest sequence that isolates the population and begins with some gates."""
        if not self._own.any():
            return start
        states, best = [self._inside(start)], None
        for _ in range(MOST_GATES):
            found = [longer for state in states for longer in self._extended(state)]
            if not found:
                break
            leader = max(found, key=self._f1)
            if best is not None and self._f1(leader) < self._f1(best) + GAIN:
                break
            best = leader
            if self._f1(best) >= ENOUGH:
                break
            # Also sequences with a high yield and a low purity: later gates can raise the purity, but never
            # bring events back.
            states = self._kept(found)
        return self._shortened(best, len(start)) if best else start

    def first(self, n_gates: int) -> Gates:
        """Return up to `n_gates` gates, each the best next one: a quick search for plots, not the best."""
        state = self._inside(())
        for _ in range(n_gates if self._own.any() else 0):
            found = self._extended(state, 1)
            leader = max(found, key=self._f1, default=state)
            if leader is state or (state.gates and self._f1(leader) < self._f1(state) + GAIN):
                break
            state = leader
        return state.gates

    def f1_of(self, gates: Gates) -> float:
        """Return the F1 of a sequence in the sample, 0 for a population without events."""
        return self._f1(self._inside(gates)) if self._own.any() else 0.0

    def _inside(self, gates: Gates) -> _Sequence:
        """Return the events inside all gates."""
        events = np.arange(len(self._own))
        for gate in gates:
            events = events[gate.contains(self._binned.values[events])]
        return self._sequence(gates, events)

    def _sequence(self, gates: Gates, events: Ints) -> _Sequence:
        weights = self._binned.weights[events]
        return _Sequence(gates, events, float(weights[self._own[events]].sum()), float(weights.sum()))

    def _f1(self, state: _Sequence, beta: float = 1.0) -> float:
        return float(f_measure(state.true, state.selected, self._total, beta))

    def _extended(self, state: _Sequence, n_pairs: int = PAIRS) -> list[_Sequence]:
        """Return the sequence with one more gate, for the best pairs of channels and each beta."""
        events = state.events
        own = events[self._own[events]]
        if not len(own) or len(own) == len(events):
            return []
        scored = []
        for pair in itertools.combinations(self._channels(events, own), 2):
            target = self._binned.counts(own, pair)
            # Sums of the same weights in another order may differ by rounding.
            others = np.maximum(self._totals(events, pair) - target, 0.0)
            scored.append((*best_regions(target, others, self._total), pair, target))
        scored.sort(key=lambda one: -one[0])
        longer = []
        for _, regions, pair, target in scored[:n_pairs]:
            gates = [polygon(region, target, self._binned, pair) for region in regions]
            polygons = [self._added(state, gate) for gate in gates]
            ellipse = self._ellipse(state, pair)
            better = ellipse and self._f1(ellipse) > max(map(self._f1, polygons)) + ELLIPSE_GAIN
            longer += [*polygons, *([ellipse] if ellipse and better else [])]
        return longer

    def _ellipse(self, state: _Sequence, pair: tuple[int, int]) -> _Sequence | None:
        """Return the sequence with the best ellipse in two channels, None without one."""
        events = state.events
        values, weights = self._binned.values[events], self._binned.weights[events]
        gate = best_ellipse(values, self._own[events], weights, pair, self._total)
        return self._added(state, gate) if gate else None

    def _added(self, state: _Sequence, gate: Gate) -> _Sequence:
        """Return the sequence with one more gate."""
        inside = state.events[gate.contains(self._binned.values[state.events])]
        return self._sequence((*state.gates, gate), inside)

    def _channels(self, events: Ints, own: Ints) -> list[int]:
        """Return the channels that separate the population best alone, ascending."""
        dim = self._binned.values.shape[1]
        if dim <= CHANNELS:
            return list(range(dim))
        scores = []
        for d in range(dim):
            target = self._binned.line_counts(own, d)
            others = np.maximum(self._binned.line_counts(events, d) - target, 0.0)
            scores.append(best_regions(target, others, self._total)[0])
        return sorted(np.argsort(scores)[-CHANNELS:].tolist())

    def _kept(self, found: list[_Sequence]) -> list[_Sequence]:
        """Return the sequences to extend, each once."""
        kept: list[_Sequence] = []
        for beta, number in BEAM:
            ranked = sorted(found, key=lambda state: -self._f1(state, beta))
            kept += [state for state in ranked if not any(state is one for one in kept)][:number]
        return kept

    def _shortened(self, best: _Sequence, n_start: int) -> Gates:
        """Remove each gate after the first `n_start` whose removal costs little F1."""
        # A gate may become needless when a later one does its work, which a search forward cannot see.
        for gate in best.gates[n_start:-1]:
            shorter = self._inside(tuple(one for one in best.gates if one is not gate))
            if self._f1(shorter) > self._f1(best) - GAIN:
                best = shorter
        return best.gates
