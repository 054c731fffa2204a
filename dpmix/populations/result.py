"""What gating gives: populations, how large they are, and how sure that is.

N events in S samples, D channels, K components, P populations, T draws of the posterior. Populations are
numbered from 1 where a user meets them, by size, and from 0 in arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dpmix.inputs.samples import Columns
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.rasters import Rasters
from dpmix.populations.tree import Tree

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Of the events of a population, per channel."""
INTERVAL = (0.05, 0.95)
"""Posterior quantiles that a credible interval reaches from and to: 90%."""


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
        Posterior probability of each population, by the sample's own proportions; rows sum to 1.
    log_density : float64 [M]
        Log predictive density on the standardised scale: log of the mean over draws of the mixture's density.
    implausible : bool [M]
        Events that the model finds implausible (`dpmix.populations.find`).
    """

    sample: int
    rows: Ints
    values: Floats
    memberships: Floats
    log_density: Array
    implausible: npt.NDArray[np.bool_]

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
        """Entropy of the memberships, float32 [M], in nats: 0 where the population is certain."""
        p = self.memberships
        entropy: Floats = -(p * np.log(np.maximum(p, np.finfo(np.float32).tiny))).sum(axis=1)
        return entropy + np.float32(0.0)  # no -0


@dataclass(frozen=True)
class Map:
    """Some of the events in two dimensions (`dpmix.report.embedding`), in a random order.

    Attributes
    ----------
    places : float32 [M, 2]
    populations : int64 [M]
        Most probable population of each event, from 0.
    """

    places: Floats
    populations: Ints


@dataclass(frozen=True)
class Gating:
    """Populations of the events of one or several samples.

    Attributes
    ----------
    run : str
        The run file.
    kind : str
        "mcmc" or "bem".
    channels, samples : tuple of str
        D and S names.
    n_events : int64 [S]
        Events gated.
    n_chains : int
    draws : int64 [T, 2]
        Chain and draw, from 0, of each draw used.
    reference : int
        The one whose own populations are most like these: pictures and markers' signs are of its components.
    pooled : int64 [pooled draws]
        Those whose mean density the populations are of.
    tree : Tree
        Of that density: component j of it is component j mod K of the (j div K)th of them.
    modes : int64 [L]
        Population of each mode of the tree.
    level : float
        Where the tree is cut.
    why : str
        What chose the level, for a reader.
    components : int64 [K]
        Population of each component of the reference draw.
    weights, means, covariances : float64 [K], [K, D], [K, D, D]
        Of the reference draw, transformed scale.
    numbers : int64 [T]
        Populations that each draw's own tree has, cut by the same rule.
    support : float64 [P]
        Share of the draws whose own tree has this population again: Jaccard similarity of the events
        above 1/2.
    agreement : float64 [C, C]
        Mean adjusted Rand index of the draws' own partitions within (diagonal) and between chains.
    sizes : int64 [S, P]
        Events whose most probable population it is.
    proportions : float64 [T, S, P]
        Posterior draws of each sample's proportions.
    certainty : float64 [P]
        Mean probability, of the events whose most probable population it is.
    n_implausible : int64 [S]
        Events that the model finds implausible.
    quantiles : float64 [5, P, D]
        QUANTILES of the events of each population, transformed scale; NaN where it has none.
    thresholds : float64 [D]
        Between the low and the high events of a channel, transformed scale; NaN where the mixture shows no
        two levels.
    phenotypes : tuple of str
        P, as "CD3+ CD4+ CD8-".
    rasters : Rasters
    sample_columns : mapping of str to S str
        What a table of samples says of each.
    map : Map, optional
        Where one was asked for.
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
    certainty: Array
    n_implausible: Ints
    quantiles: Array
    thresholds: Array
    phenotypes: tuple[str, ...]
    rasters: Rasters
    sample_columns: Columns = field(default_factory=dict)
    map: Map | None = None

    @property
    def n_populations(self) -> int:
        return len(self.phenotypes)

    @property
    def overall(self) -> Array:
        """Posterior draws of the proportions in all samples, weighted by events, float64 [T, P]."""
        overall: Array = np.einsum("tsp,s->tp", self.proportions, self.n_events / self.n_events.sum())
        return overall


def interval(draws: Array) -> tuple[Array, Array, Array]:
    """Posterior mean and the ends of the 90% credible interval, over the first axis.

    A further draw lies between the ends with that probability, whatever the number of draws (Hyndman and Fan
    1996, Am. Stat. 50:361, definition 6). Numpy's default takes in 88% of them where 100 draws are given.

    Parameters
    ----------
    draws : float64 [T, ...]

    Returns
    -------
    mean, low, high : float64 [...]
    """
    low, high = np.quantile(draws, INTERVAL, axis=0, method="weibull")
    return draws.mean(axis=0), low, high
