"""Populations from the draws of a run, and the membership of any events in them.

The populations come from the **posterior mean density**: the tree (`dpmix.populations.tree.tree`) of a
mixture of several draws spread over the run, cut at one height. A ripple that appears in one draw and not in
the next is not a population. If such mixtures of different draws disagree, the one that agrees best with the
others is used. Each other draw assigns its components to populations by the events they share, so
memberships, proportions and their uncertainty come from all draws.

The shared events are points drawn from the posterior mean density, not the events of the run. So the run file
is all that is needed, and the result does not depend on which events are gated. The same points give the log
density below which an event is implausible.

T draws (some are pooled, U have a tree of their own); J pooled components, K components, P populations, M
points, D channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from dpmix.engines.base import Engine
from dpmix.errors import DataError
from dpmix.model.mixture import Array, Floats, Ints, Mixture
from dpmix.populations.draws import alignment, decide
from dpmix.populations.draws.cohort import OwnTerms
from dpmix.populations.draws.decide import Decided
from dpmix.populations.draws.forest import (
    Forest,
    cast_votes,
    components_of,
    grow,
    memberships_by,
    weights_of,
)
from dpmix.populations.draws.pooling import POINTS, spread
from dpmix.populations.tree import partitions
from dpmix.populations.tree.cut import CutRule
from dpmix.populations.tree.decisions import Decisions
from dpmix.populations.tree.modes import MakeEngine
from dpmix.populations.tree.support import populations_of_modes
from dpmix.populations.tree.tree import Tree
from dpmix.runs.effective_size import PopulationMixing
from dpmix.runs.layout import KEPT_POINTS, USED_DRAWS
from dpmix.runs.reader import Run
from dpmix.system.threads import one_thread

DRAWS = USED_DRAWS
"""Default number of draws to use; more hardly change a probability."""

IMPLAUSIBLE = 0.001  # share of the model's own events that would be flagged as implausible


@dataclass(frozen=True)
class Populations:
    """The populations of a run, their support and their uncertainty; result of `find_populations`.

    Attributes
    ----------
    run : Run
        Standardised scale.
    draws : int64 [T, 2]
        Chain and draw of each draw used.
    pooled : int64 [pooled draws]
        Draws in the mean density. Component j of it is component j mod K of the (j div K)th of them.
    tree : Tree
        Tree of the mean density.
    modes : int64 [L]
        Population of each mode of the tree.
    level : float
        Cut height.
    why : str
        Reason for the cut height, for a reader.
    components : int64 [T, K]
        Population of every component of every draw: 0..P-1, by weight, the largest first (after decisions, by
        `labels`). Most of its points are in it.
    mixture : callable
        Returns the mixture of a draw of the run, given its chain and draw.
    n_populations : int
    reference : int
        The draw whose own populations are most similar to these.
    order : int64 [T, K]
        Components of every draw in the places of the reference's (`dpmix.populations.draws.alignment`).
    numbers : int64 [U]
        Number of populations in the own density of evenly spaced draws, at most 50, cut by the same rule.
    support : float64 [P]
        Share of these draws whose own density has this population.
    agreement : float64 [C, C]
        Mean adjusted Rand index of these draws' own populations within and between chains.
    least_density : float64
        Log predictive density (standardised scale) below which an event is implausible.
    points : float32 [M, D]
        Some points drawn from the mean density, standardised scale.
    of_points : int64 [M]
        Most probable population of each.
    names : tuple of str
        P names given by hand, "" for none; empty without decisions.
    labels, colours : tuple of int
        P numbers of populations, from 1, and of colours (`dpmix.report.palette`); empty without decisions.
    mixing : PopulationMixing, optional
        Mixing of the weights, where the run file has it (`dpmix.populations.draws.kept`).
    """

    run: Run
    draws: Ints
    pooled: Ints
    tree: Tree
    modes: Ints
    level: float
    why: str
    components: Ints
    mixture: Callable[[int, int], Mixture]
    n_populations: int
    reference: int
    order: Ints
    numbers: Ints
    support: Array
    agreement: Array
    least_density: float
    points: Floats
    of_points: Ints
    names: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    colours: tuple[int, ...] = ()
    mixing: PopulationMixing | None = None

    @property
    def weights(self) -> Array:
        """Weights of the populations in every draw, float64 [T, P]."""
        return weights_of(self.run, self.draws, self.components, self.n_populations)

    def memberships(
        self, engine: Engine, start: int, stop: int, own: OwnTerms | None = None
    ) -> Iterator[tuple[Floats, Array]]:
        """Yield memberships and log densities of events start..stop-1 of an engine, draw by draw.

        Memberships, float32 [M, P], use the weights of the run, or a sample's own weights and shift. Log
        densities are float64 [M], on the standardised scale.
        """
        return (self.memberships_in(t, engine, start, stop, own) for t in range(len(self.draws)))

    def memberships_in(
        self, t: int, engine: Engine, start: int, stop: int, own: OwnTerms | None = None
    ) -> tuple[Floats, Array]:
        """Return memberships and log densities in draw t."""
        numbers, count = self.components[t], self.n_populations
        return memberships_by(engine, self.mixture_of(t, own), numbers, count, start, stop)

    def mixture_of(self, t: int, own: OwnTerms | None) -> Mixture:
        """Return the mixture of draw t, of the run or of a sample."""
        of_run = self.mixture(*self.draws[t])
        return of_run if own is None else own.mixture(of_run, t)


def find_populations(
    run: Run,
    make_engine: MakeEngine,
    *,
    n_draws: int = DRAWS,
    level: float | None = None,
    n_populations: int | None = None,
    decisions: Decisions | None = None,
) -> Populations:
    """Find the populations of a run.

    Parameters
    ----------
    run : Run
        Standardised scale, with at least one committed draw.
    make_engine : callable
        Returns an engine for events float32 [M, D]. All densities come from such engines. The result is
        bit-identical for any number of threads. CPU and CUDA engines may differ in the last bits, so two
        merges of the tree at nearly the same height, or a point between two components, may differ.
    n_draws : int
        Draws to use, evenly spaced in each chain; all draws if there are fewer.
    level, n_populations : float, int, optional
        Cut height of the tree, or the number of populations to cut it into. Not both.
    decisions : Decisions, optional
        Decisions made by hand; they include the number of draws and the cut.

    Raises
    ------
    DataError
        The run has no draw yet.
    ConfigError
        The decisions were made for another tree.
    """
    rule = CutRule(level, n_populations)
    if decisions is not None:
        forest = forest_of(run, make_engine, decisions.draws)
        return decided_populations(forest, decide.decided(forest, decisions))
    forest = forest_of(run, make_engine, n_draws, rule)
    with one_thread():
        return populations_of(forest, rule, *forest.cut(rule), forest.why(rule))


def forest_of(run: Run, make_engine: MakeEngine, n_draws: int = DRAWS, rule: CutRule | None = None) -> Forest:
    """Return the trees of a run; parameters and errors are as in `find_populations`.

    `rule` chooses the tree of the mean density; default: the one for the default cut.
    """
    if run.committed == 0:
        raise DataError(
            f"{run.path}: the run has no draws yet; wait for the first draw, or continue with --resume"
        )
    with one_thread():  # the same bits for any number of cores
        return grow(run, make_engine, spread(run, n_draws), rule or CutRule())


def decided_populations(forest: Forest, chosen: Decided) -> Populations:
    """Return the populations that were decided by hand."""
    with one_thread():
        own, shares = forest.shared_by(chosen.modes[forest.tree.modes])
        return populations_of(forest, chosen.rule, own, shares, chosen.why, chosen)


def populations_of(
    forest: Forest, rule: CutRule, own: Ints, shares: Array, why: str, decided: Decided | None = None
) -> Populations:
    """Return the populations of a run, given the population of each component of its mean density.

    Parameters
    ----------
    forest : Forest
    rule : CutRule
        Cuts the trees of single draws.
    own, shares : int64 [J], float64 [M, P]
        Population of each component of the mean density, and memberships of the points.
    why : str
        Reason for the cut height, for a reader.
    decided : Decided, optional
        Names and colours.
    """
    run, draws, tree, labels = forest.run, forest.draws, forest.tree, forest.labels
    partition = forest.partitions(rule)
    n_found = int(own.max()) + 1
    estimate = shares.argmax(axis=1)
    reference = forest.typical_draw(estimate, partition)
    components = components_of(forest, own, cast_votes(forest, shares))
    kept = slice(None, None, max(POINTS // KEPT_POINTS, 1))  # of all components: points are in their order
    return Populations(
        run=run,
        draws=draws,
        pooled=forest.pooled,
        tree=tree,
        modes=populations_of_modes(tree, own),
        level=rule.level_in(tree),
        why=why,
        components=components,
        mixture=forest.mixture,
        n_populations=n_found,
        reference=reference,
        order=alignment.align(labels, np.array([run.weights[tuple(draw)] for draw in draws]), reference),
        numbers=np.array([own.max() + 1 for own in forest.cut_draws(rule)]),
        support=forest.support(estimate, n_found),
        agreement=partitions.agreement(partition, draws[forest.with_tree, 0]),
        least_density=float(np.quantile(forest.log_density, IMPLAUSIBLE)),
        points=np.ascontiguousarray(forest.points[kept]),
        of_points=estimate[kept],
        names=decided.names if decided else (),
        labels=decided.labels if decided else (),
        colours=decided.colours if decided else (),
    )
