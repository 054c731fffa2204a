"""Results of gating: populations, their sizes and their uncertainty.

N events in S samples, D channels, K components, P populations, T draws of the posterior. Populations are
numbered by their mean weight in the draws, from 1 in files and texts, from 0 in arrays. So a population has
the same number in all events that are gated with a run. Tables and pictures list them by `Gating.order`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpmix.inputs.marker_names import short_names
from dpmix.inputs.samples import Columns
from dpmix.inputs.transforms import Transform
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.draws.misfit import Fit
from dpmix.populations.events.estimates import Estimates, over_samples
from dpmix.populations.events.phenotypes import full_phenotypes
from dpmix.populations.events.rasters import Rasters
from dpmix.populations.gates.cards import Card
from dpmix.populations.gates.comparison import Comparison
from dpmix.populations.gates.nested import Node
from dpmix.populations.gates.strategy import Strategy
from dpmix.populations.tree.tree import Tree
from dpmix.populations.types.types import Types, marked_types
from dpmix.runs.verdict import Verdict

if TYPE_CHECKING:
    from dpmix.explore.exploration import Exploration

TAIL = 0.01
"""Share of the events of a channel beyond either end of its colour scale."""


@dataclass(frozen=True)
class Block:
    """Memberships of consecutive events of one sample, averaged over the draws.

    Attributes
    ----------
    sample : int
        Number of the sample, from 0.
    rows : int64 [M]
        Row of each event in its file.
    values : float32 [M, D]
        The events on the transformed scale.
    memberships : float32 [M, P]
        Posterior probability of each population given the sample's own proportions; rows sum to 1.
    log_density : float64 [M]
        Log predictive density on the standardised scale: log of the mixture density averaged over the draws.
    implausible : bool [M]
        Events that are implausible under the model (`dpmix.populations.draws.find`).
    explored : bool [M], optional
        Events that are like those judged as wanted (`dpmix.explore`).
    state : float32 [M, E], optional
        Their state channels, transformed scale.
    cell_type : int32 [M], optional
        Row of the table of cell types, -1 for unknown (`dpmix.populations.types.types`).
    type_probability : float32 [M], optional
        Posterior probability of this type, with its children.
    labels : tuple of int
        Labels of `Gating`.
    """

    sample: int
    rows: Ints
    values: Floats
    memberships: Floats
    log_density: Array
    implausible: npt.NDArray[np.bool_]
    explored: npt.NDArray[np.bool_] | None = None
    state: Floats | None = None
    cell_type: npt.NDArray[np.int32] | None = None
    type_probability: Floats | None = None
    labels: tuple[int, ...] = ()

    @property
    def number(self) -> Ints:
        """Number of the most probable population, int64 [M], from 1."""
        return np.array(self.labels)[self.population] if self.labels else self.population + 1

    @property
    def population(self) -> Ints:
        """Most probable population, int64 [M], from 0."""
        most: Ints = self.memberships.argmax(axis=1)
        return most

    @property
    def probability(self) -> Floats:
        """Probability of the most probable population, float32 [M]."""
        most: Floats = self.memberships.max(axis=1)
        return most

    @property
    def entropy(self) -> Floats:
        """Entropy of the memberships in nats, float32 [M]: 0 if the population is certain."""
        p = self.memberships
        entropy: Floats = -(p * np.log(np.maximum(p, np.finfo(np.float32).tiny))).sum(axis=1)
        return entropy + np.float32(0.0)  # no -0


@dataclass(frozen=True)
class Map:
    """Some events in two dimensions (`dpmix.report.embedding`), in random order.

    Attributes
    ----------
    places : float32 [M, 2]
    populations : int64 [M]
        Most probable population of each event, from 0.
    values : float32 [M, D], optional
        The events, on any scale.
    """

    places: Floats
    populations: Ints
    values: Floats | None = None


@dataclass(frozen=True)
class StateSummary:
    """State channels of the populations: measured, and not in the model.

    Attributes
    ----------
    channels : tuple of str
        E names.
    quantiles : float64 [5, P, E]
        `QUANTILES` of the events of each population, transformed scale; NaN where there are none.
    ends : float64 [2, E]
        1% and 99% quantiles of all events.
    n_quality : int
        The last of them are scatter and viability, which the run does not have.
    """

    channels: tuple[str, ...]
    quantiles: Array
    ends: Array
    n_quality: int = 0


@dataclass(frozen=True)
class Gating:
    """Populations of the events of one or several samples.

    Attributes
    ----------
    run : str
        Path of the run file.
    kind : str
        "mcmc" or "bem".
    channels, samples : tuple of str
        D and S names.
    n_events : int64 [S]
        Number of events gated.
    n_chains : int
    draws : int64 [T, 2]
        Chain and draw, from 0, of each draw used.
    reference : int
        The draw whose own populations are most similar to these. Ellipses and phenotypes use its components.
    pooled : int64 [pooled draws]
        Draws in the mean density that defines the populations.
    tree : Tree
        Tree of that density. Its component j is component j mod K of the (j div K)th of these draws.
    modes : int64 [L]
        Population of each mode of the tree.
    level : float
        Cut height of the tree.
    why : str
        Reason for the cut height, for a reader.
    components : int64 [K]
        Population of each component of the reference draw.
    weights, means, covariances : float64 [K], [K, D], [K, D, D]
        Mixture of the reference draw, transformed scale.
    numbers : int64 [U]
        Number of populations in the own tree of evenly spaced draws, at most 50, cut by the same rule.
    support : float64 [P]
        Share of these draws whose own tree contains this population (Jaccard similarity of the events above
        1/2).
    agreement : float64 [C, C]
        Mean adjusted Rand index of these draws' own partitions within (diagonal) and between chains.
    sizes : int64 [S, P]
        Number of events with this most probable population.
    proportions : float64 [T, S, P]
        Posterior draws of each sample's proportions, for the ends of intervals.
    mean_proportions : float64 [S, P]
        Their posterior mean (`dpmix.populations.events.proportions.posterior_mean`).
    shape_ratios : float64 [P]
        Proportions if each population had one t distribution, relative to the mixture's
        (`dpmix.populations.events.borders`): far from 1, the interval is wide because the border depends on
        the shape.
    overlaps : float64 [P]
        Share of the events of each population that are taken for others, if the memberships by these t
        distributions are right: far from 0, the interval is wide, too.
    r_hat, ess : float64 [P]
        Rank-normalised split R-hat and bulk effective sample size of the population's weight in the run; NaN
        where not known (`dpmix.populations.draws.convergence.population_mixing`).
    verdict : Verdict
        Whether the chains of the run agree about the populations, by these R-hat.
    certainty : float64 [P]
        Mean probability of the population among these events.
    n_implausible : int64 [S]
        Number of events that are implausible under the model.
    quantiles : float64 [5, P, D]
        `QUANTILES` of the events of each population, transformed scale; NaN for a population without events.
    levels : float64 [3, D]
        Ends of the levels of each channel, transformed scale: between - and lo, lo and +, + and hi; NaN for
        those that a channel does not have (`dpmix.populations.events.phenotypes.levels`).
    phenotypes : tuple of str
        P short phenotypes, for example "CD8+ CD3+"; no two are the same (`dpmix.populations.events.names`).
    names : tuple of str
        P names given by hand, "" for none; empty without decisions.
    labels : tuple of int
        P numbers by which readers know the populations, ascending, with decisions; empty: 1..P.
    colours : tuple of int
        P numbers of colours (`dpmix.report.palette`) with decisions; empty: each has its own number.
    rasters : Rasters
    sample_columns : mapping of str to S str
        Columns of the table of samples.
    sample_weights : float64 [S], optional
        What an event of each sample counted in the run (data.weights). None: every event counted 1, or these
        are not the events of the run.
    transforms : tuple of Transform
        D transforms, for axes in raw units; empty: the transformed values are shown.
    counts : int64 [T, S, P], optional
        Events by drawn population.
    medians : float32 [U, S, P, D + E], optional
        Medians in some of the draws, of state channels, too (`dpmix.populations.sample_draws`).
    median_errors : float32 [S, P, D + E], optional
        Their standard errors.
    state : StateSummary, optional
        Channels that are not in the model.
    artefacts : tuple of str
        What each population looks like: "debris", "doublets", "dead cells" or ""
        (`dpmix.populations.events.artefacts`); empty where the files have neither scatter nor viability.
    without_artefacts : bool
        Proportions are those among the populations that look like cells; 0 for the others.
    map : Map, optional
        None unless requested.
    warnings : tuple of str
        What may make values of the run's files, or of the files that were gated, wrong.
    strategies : tuple of Strategy
        P strategies; empty unless requested.
    hierarchy : tuple of Node
        Gates along the tree; empty unless requested.
    comparison : Comparison, optional
        With the gates of a workspace; None unless requested.
    exploration : Exploration, optional
        Events like those judged as wanted; None without judgements.
    explored_strategy : Strategy, optional
        Gates of these events; None unless requested.
    cards : tuple of Card
        The plots of each population shown on its card; empty without them.
    fit : Fit, optional
        Whether files that are not in the run fit it; None for the files of the run.
    types : Types, optional
        Cell types by a table; None unless requested.
    type_populations : int64 [R + 1, P], optional
        Events by row of the table, the last unknown, and population.
    """

    run: str
    kind: str
    channels: tuple[str, ...]
    samples: tuple[str, ...]
    n_events: Ints
    n_chains: int
    draws: Ints
    reference: int
    pooled: Ints
    tree: Tree
    modes: Ints
    level: float
    why: str
    components: Ints
    weights: Array
    means: Array
    covariances: Array
    numbers: Ints
    support: Array
    agreement: Array
    sizes: Ints
    proportions: Array
    mean_proportions: Array
    shape_ratios: Array
    overlaps: Array
    r_hat: Array
    ess: Array
    verdict: Verdict
    certainty: Array
    n_implausible: Ints
    quantiles: Array
    levels: Array
    phenotypes: tuple[str, ...]
    rasters: Rasters
    names: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    colours: tuple[int, ...] = ()
    sample_columns: Columns = field(default_factory=dict)
    sample_weights: Array | None = None
    transforms: tuple[Transform, ...] = ()
    counts: Ints | None = None
    medians: Floats | None = None
    median_errors: Floats | None = None
    state: StateSummary | None = None
    artefacts: tuple[str, ...] = ()
    without_artefacts: bool = False
    map: Map | None = None
    warnings: tuple[str, ...] = ()
    strategies: tuple[Strategy, ...] = ()
    hierarchy: tuple[Node, ...] = ()
    comparison: Comparison | None = None
    exploration: Exploration | None = None
    explored_strategy: Strategy | None = None
    fit: Fit | None = None
    cards: tuple[Card, ...] = ()
    types: Types | None = None
    type_populations: Ints | None = None

    def number(self, population: int) -> int:
        """Return the number by which a reader knows a population, from 1."""
        return self.labels[population] if self.labels else population + 1

    @property
    def all_numbers(self) -> tuple[int, ...]:
        """Numbers of the populations, ascending."""
        return self.labels or tuple(range(1, self.n_populations + 1))

    @property
    def measured_channels(self) -> tuple[str, ...]:
        """D + E names of channels: the model's, then state channels."""
        return self.channels + (() if self.state is None else self.state.channels)

    @property
    def short_channels(self) -> tuple[str, ...]:
        """Their names in pictures, without dyes."""
        return short_names(self.measured_channels)

    @property
    def n_state(self) -> int:
        """Number of state channels of the run."""
        return 0 if self.state is None else len(self.state.channels) - self.state.n_quality

    @property
    def measured_quantiles(self) -> Array:
        """Quantiles of all of them, float64 [5, P, D + E]; NaN for state channels of judged cells."""
        if self.state is None:
            return self.quantiles
        own = self.state.quantiles
        more = [(0, 0), (0, self.quantiles.shape[1] - own.shape[1]), (0, 0)]
        return np.concatenate([self.quantiles, np.pad(own, more, constant_values=np.nan)], axis=2)

    @property
    def left_out(self) -> npt.NDArray[np.bool_]:
        """Populations that are not in the proportions, bool [P]."""
        found = np.zeros(self.n_populations, np.bool_)  # explored cells may come last
        if self.without_artefacts:
            found[: len(self.artefacts)] = [bool(mark) for mark in self.artefacts]
        return found

    @property
    def n_populations(self) -> int:
        return len(self.phenotypes)

    @cached_property
    def order(self) -> list[int]:
        """Populations in the order in which tables and pictures list them: the largest proportion first.

        Numbers follow the weights in the run, so populations of nearly equal size, populations of other files
        and those merged by hand may stand in another order than their numbers. Those that are not in the
        proportions come last, and after them the explored cells.
        """
        n_found = len(self.shape_ratios)  # without explored cells
        mean = np.where(self.left_out[:n_found], -1.0, self.overall.mean[:n_found])
        return [*np.argsort(-mean, kind="stable").tolist(), *range(n_found, self.n_populations)]

    @property
    def thresholds(self) -> Array:
        """Threshold between - and + of each channel, float64 [D]; NaN for a channel without two levels."""
        limits: Array = self.levels[1]
        return limits

    @property
    def full_phenotypes(self) -> tuple[str, ...]:
        """All markers of each population with their levels, for example "CD3+ CD4- CD8+"."""
        return full_phenotypes(self.quantiles[1], self.quantiles[3], self.levels, self.channels)

    @cached_property
    def population_types(self) -> tuple[str, ...]:
        """Cell type of each population, or what it looks like, "" for neither; empty without types."""
        if self.types is None or self.type_populations is None:
            return ()
        return marked_types(self.types.of_populations(self.type_populations), self.artefacts)

    @property
    def titles(self) -> tuple[str, ...]:
        """Name of each population, or its phenotype if it has none, after its cell type."""
        own = self.names or ("",) * self.n_populations
        titles = [name or phenotype for name, phenotype in zip(own, self.phenotypes, strict=True)]
        none = ("",) * (self.n_populations - len(self.population_types))  # explored cells have no type
        return tuple(map(with_type, titles, self.population_types + none))

    @property
    def estimates(self) -> Estimates:
        """Mean and interval of each sample's proportions, each float64 [S, P]."""
        return Estimates.of(self.mean_proportions, self.proportions)

    @property
    def overall(self) -> Estimates:
        """Mean and interval of the proportions in all samples together, each float64 [P].

        Each sample counts by its events and, where the run had weights, what each of them counted.
        """
        both = self.mean_proportions, self.proportions
        return Estimates.of(*(over_samples(each, self.n_events, self.sample_weights) for each in both))


def with_type(title: str, cell_type: str) -> str:
    """Return the title of a population after its cell type, as in "B cells: CD19+ CD3-"."""
    return f"{cell_type}: {title}" if cell_type and cell_type != title else title
