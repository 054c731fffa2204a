"""Choose the coarseness of a run, `model.coarseness: auto`, by the elbow of fit against complexity.

At most `MOST_EVENTS` events, drawn at random, are divided into two halves. For each n_c of `GRID`, Bayesian
EM is fitted to one half. The fit is judged by its mean log density at the other half: up to a constant, this
is minus the Kullback-Leibler divergence from the distribution of the events to the fit. Its complexity is the
number of occupied components.

n_c belongs to all N events: a run counts them as zeta N = n_c N / (n_c + N) events. A fit to n of them takes
the same precision from fewer events, so each counts zeta N / n. No event can count more than one: n_c is
tried only where zeta N is at most n.

The choice is the n_c at which the fit, minus the complexity, is largest, both scaled to run from 0 to 1 over
the grid. This is the elbow of the curve as Satopää et al. (2011), ICDCS Workshops, p. 166, define it. Miller
and Dunson (2019), J. Am. Stat. Assoc. 114:1113, choose the coarseness where such a curve begins to level off.

The fits use the CPU engine for every backend, so that the choice does not depend on it. G values of n_c.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpmix.config.schema import Config
from dpmix.engines.cpu import CpuEngine
from dpmix.errors import DataError
from dpmix.inputs.storage import release_pages
from dpmix.model import bem
from dpmix.model.coarsening import zeta_of
from dpmix.model.mixture import Array, Floats, Ints, State, mixture_of, occupied
from dpmix.model.prior import Prior, log_prior
from dpmix.model.resolution import of_clouds
from dpmix.model.sample_weights import SampleWeights, sample_weights
from dpmix.model.streams import Step, Stream
from dpmix.runs import initialise
from dpmix.runs.layout import AnyArray
from dpmix.runs.reader import Run

log = logging.getLogger("dpmix")

GRID = (500.0, 1_000.0, 2_000.0, 3_000.0, 5_000.0, 7_000.0, 10_000.0, 14_000.0, 20_000.0)
MOST_EVENTS = 20_000
LEAST_EVENTS = 2_000  # with fewer, less than three values of n_c could be compared
FEW_EVENTS_DEFAULT = 2_000.0  # an event then counts more than half
MOST_COMPONENTS = 128
MOST_STEPS = 100
TOLERANCE = 1e-5
CONSTANTS = ("coarseness", "held_out_log_density", "held_out_error", "held_out_components")
"""Constants of a run file with the parts of a `Curve`."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Fit and complexity by n_c.

    Attributes
    ----------
    grid : float64 [G]
        n_c, ascending.
    held_out : float64 [G]
        Mean log density at the held-out events, nats, on the standardised scale.
    errors : float64 [G]
        Standard error of the difference from the best fit, whose own is 0.
    components : int64 [G]
        Occupied components.
    """

    grid: Array
    held_out: Array
    errors: Array
    components: Ints

    @property
    def chosen(self) -> int:
        """Index of the elbow; the smaller n_c of equals."""
        return int(np.argmax(_scaled(self.held_out) - _scaled(self.components)))

    @property
    def best(self) -> int:
        """Index of the best fit."""
        return int(np.argmax(self.held_out))


@dataclass(frozen=True)
class CoarsenessChoice:
    """The coarseness of a run.

    Attributes
    ----------
    coarseness : float or None
        n_c, in events.
    is_chosen : bool
        The run chose it (`model.coarseness: auto`).
    curve : Curve or None
        The curve that it was chosen from; None where there were too few events to compare.
    """

    coarseness: float | None
    is_chosen: bool = False
    curve: Curve | None = None

    @property
    def place(self) -> int:
        """Index of the coarseness in the grid of its curve."""
        assert self.curve is not None
        assert self.coarseness is not None
        return int(np.abs(self.curve.grid - self.coarseness).argmin())

    @property
    def attributes(self) -> dict[str, float]:
        """The choice as an attribute of a run file; none where the config says the coarseness."""
        return {} if self.coarseness is None or not self.is_chosen else {"coarseness": self.coarseness}

    @property
    def constants(self) -> dict[str, tuple[tuple[str, ...], AnyArray]]:
        """The curve as constants of a run file."""
        if self.curve is None:
            return {}
        arrays = self.curve.grid, self.curve.held_out, self.curve.errors, self.curve.components
        return {name: (("coarseness",), array) for name, array in zip(CONSTANTS, arrays, strict=True)}


def choose(
    config: Config,
    events: Floats,
    weights: SampleWeights | None,
    prior: Prior,
    resolution: Array | None = None,
) -> CoarsenessChoice:
    """Return the coarseness of a new run: as the config says, or chosen from the events; log a choice.

    The seed and the events determine the choice, whatever the threads and the backend.

    Parameters
    ----------
    config : Config
    events : float32 [N, D]
        All events of the run.
    weights : SampleWeights or None
        Their weights; None: 1.
    prior : Prior
    resolution : float64 [D], optional
        Standard deviation of one measurement; see `dpmix.model.resolution`.

    Raises
    ------
    DataError
        A component's scatter is not positive definite to float64 (collinear channels).
    """
    given = config.model.coarseness
    if given != "auto":
        return CoarsenessChoice(given)
    if len(events) < LEAST_EVENTS:
        choice = CoarsenessChoice(FEW_EVENTS_DEFAULT, True)
    else:
        log.info("choosing the coarseness from fits to some of the events")
        curve = measure(config, events, weights, prior, resolution)
        choice = CoarsenessChoice(float(curve.grid[curve.chosen]), True, curve)
    log.info("coarseness: %s", describe(choice))
    return choice


def choice_of(run: Run) -> CoarsenessChoice:
    """Return the coarseness of a run, with its curve where it was chosen.

    Raises
    ------
    DataError
        The file does not hold the choice as dpmix writes it.
    """
    given = run.config["model"]["coarseness"]
    if given != "auto":
        return CoarsenessChoice(given)
    value = run.attributes.get("coarseness")
    if not isinstance(value, float) or not value > 0.0:
        raise DataError(f"{run.path}: the attribute coarseness is not as dpmix writes it")
    return CoarsenessChoice(value, True, _curve_of(run))


def _curve_of(run: Run) -> Curve | None:
    arrays = [run.constants[name] for name in CONSTANTS if name in run.constants]
    if not arrays:
        return None
    if len(arrays) < len(CONSTANTS) or {array.shape for array in arrays} != {(arrays[0].size,)}:
        raise DataError(f"{run.path}: the curve of the coarseness is not as dpmix writes it")
    return Curve(*arrays)


def describe(choice: CoarsenessChoice) -> str:
    """Describe a choice by `model.coarseness: auto` in one line."""
    chosen = f"{choice.coarseness:,.0f} events, chosen by model.coarseness: auto"
    if choice.curve is None:
        return f"{chosen} without comparison, because fewer than {LEAST_EVENTS:,} events do not allow one"
    curve, c = choice.curve, choice.place
    below = curve.held_out[curve.best] - curve.held_out[c]
    return (
        f"{chosen} from {curve.grid[0]:,.0f} to {curve.grid[-1]:,.0f} (held-out log density "
        f"{curve.held_out[c]:.3f}, {below:.3f} below the best; {curve.components[c]} components, "
        f"{curve.components.min()} to {curve.components.max()} over the range)"
    )


def measure(
    config: Config,
    events: Floats,
    weights: SampleWeights | None,
    prior: Prior,
    resolution: Array | None = None,
) -> Curve:
    """Fit to one half of a subsample for each n_c, and return fit and complexity; see `choose`."""
    fitted, held = _halves(events, weights, config.seed)
    n_components = min(config.model.components, MOST_COMPONENTS)
    precisions = {n_c: zeta_of(n_c, len(events)) * len(events) for n_c in GRID}
    n = len(fitted.events)
    tried = {n_c: count / n for n_c, count in precisions.items() if count <= n}
    each, stream = fitted.of_each_event, Stream(config.seed, 0, 0)
    try:
        # One start for all n_c: the curve then shows the coarseness, not the luck of a start.
        start = initialise.from_kmeans(fitted.events, n, n_components, prior, stream, each, resolution)
        ends = [_climb(fitted, start, prior, weight, resolution) for weight in tried.values()]
    except np.linalg.LinAlgError as error:
        raise initialise.collinear("model.coarseness: auto: fit", 1) from error
    densities = np.array([_log_densities(held, state, resolution) for state, _ in ends])
    counted = np.ones(len(held.events)) if held.of_each_event is None else held.of_each_event.astype(float)
    shares = counted / counted.sum()
    means = densities @ shares
    # Errors of differences to the best fit, not of the means: both are at the same events, whose spread
    # cancels.
    below = densities[means.argmax()] - densities
    errors = np.sqrt(np.square(below - (below @ shares)[:, None]) @ np.square(shares))
    return Curve(np.array([*tried]), means, errors, np.array([number for _, number in ends], np.int64))


class Half(NamedTuple):
    """Some of the events, float32 [n, D], and their weights, of mean 1."""

    events: Floats
    weights: SampleWeights | None

    @property
    def of_each_event(self) -> Floats | None:
        """The weight of each event, float32 [n]; None without weights."""
        return None if self.weights is None else self.weights.each()


def _halves(events: Floats, weights: SampleWeights | None, seed: int) -> tuple[Half, Half]:
    """Draw at most `MOST_EVENTS` events; return the half to fit to, and the held-out half."""

    def half_of(rows: Ints) -> Half:
        own = np.ascontiguousarray(events[rows])
        if weights is None:
            return Half(own, None)
        starts = np.searchsorted(rows, weights.starts).astype(np.int64)
        return Half(own, sample_weights(starts, weights.values.astype(np.float64)))

    half = min(len(events), MOST_EVENTS) // 2
    rows = Stream(seed, 0, 0).step(Step.COARSENESS).choice(len(events), size=2 * half, replace=False)
    halves = half_of(np.sort(rows[:half])), half_of(np.sort(rows[half:]))
    # Random rows touch most pages of a mapped file, which would stay in memory during the run.
    release_pages(events, 0, len(events))
    return halves


def _climb(
    half: Half, state: State, prior: Prior, zeta: float, resolution: Array | None
) -> tuple[State, int]:
    """Return the end of Bayesian EM in which an event counts `zeta`, and how many components are occupied."""
    before = -np.inf
    with closing(CpuEngine(half.events, threads=1, weights=half.weights)) as engine:
        for _ in range(MOST_STEPS):
            stats = engine.expect_labels(of_clouds(mixture_of(state), resolution))
            reached = zeta * stats.log_likelihood + log_prior(state, prior)
            if abs(reached - before) <= TOLERANCE * abs(reached):
                break
            before = reached
            state, _ = bem.step(state, stats, prior, zeta=zeta, resolution=resolution)
    return state, occupied(stats.counts)


def _log_densities(half: Half, state: State, resolution: Array | None) -> Array:
    """Return the log density of the mixture at each event, which may be a cloud, float64 [n]."""
    together = np.zeros(state.n_components, np.int64)
    mixture = of_clouds(mixture_of(state), resolution)
    with closing(CpuEngine(half.events, threads=1)) as engine:
        return engine.memberships(mixture, together, 0, engine.n_events)[1]


def _scaled(values: Array | Ints) -> Array:
    """Return values scaled to run from 0 to 1; 0 where all are equal."""
    spread = np.ptp(values)
    return np.zeros(len(values)) if spread == 0 else (values - values.min()) / spread
