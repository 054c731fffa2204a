"""Components that lie in several populations.

Chains arrange their components differently. If a component lies in two populations and counts for one, the
proportions of both depend on the arrangement, although the density hardly does: chains seem to disagree. So
such a component is divided by another draw: its events have their memberships in that draw. This is one of
the draws of the mean density, whose components define the populations. They are of different chains, and each
draw gets one of them at random. The border between two populations is then uncertain in every chain, and
alike in all.

T draws, G draws of the mean density, K components, M points, D channels, P populations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from dpmix.model.mixture import Array, Floats, Ints, Mixture
from dpmix.model.streams import Step, Stream
from dpmix.populations.forest import memberships_by
from dpmix.populations.modes import MakeEngine
from dpmix.runs.reader import Run

WHOLE = 0.98
"""A component belongs to one population if this has at least this share of the component's points."""

PAIRS = 32  # of opposite points that stand for a component
TOGETHER = 1_024  # components whose points are evaluated together

Guides = Callable[[Floats], Floats]
"""Return the memberships of points, float32 [M, D], in each draw of the mean density, float32 [G, M, P]."""


class Division(NamedTuple):
    """The components of a draw that are divided, and their shares.

    Attributes
    ----------
    components : int64 [d]
        Ascending.
    shares : float64 [d, P]
        Share of each in each population; rows sum to 1.
    guide : int
        The draw of the mean density by which they are divided, 0..G-1.
    """

    components: Ints
    shares: Array
    guide: int = 0

    def sums(self, values: Array, populations: Ints) -> Array:
        """Return the sums over the components of each population, float64 [P].

        Parameters
        ----------
        values : float64 [K]
            Of the components, for example their weights.
        populations : int64 [K]
            Population of each component; ignored for those that are divided.
        """
        whole = np.array(values, np.float64)
        whole[self.components] = 0.0
        divided: Array = np.asarray(values)[self.components] @ self.shares
        return np.bincount(populations, whole, self.shares.shape[1]) + divided


def in_several(counts: Ints) -> Ints:
    """Return the components that lie in several populations, ascending.

    Parameters
    ----------
    counts : int64 [K, P]
        Points whose most probable component and population these are.
    """
    return np.flatnonzero(counts.max(axis=1) < WHOLE * counts.sum(axis=1))


def divide(
    run: Run, draws: Ints, divided: Sequence[Ints], guides: Guides, n_guides: int
) -> tuple[Division, ...]:
    """Return the divisions of some draws.

    The share of a component in a population is its mean membership. The points for this mean are the same for
    every component, relative to mean and covariance, so shares of similar components are similar.

    Parameters
    ----------
    run : Run
        Standardised scale.
    draws : int64 [T, 2]
        Chain and draw.
    divided : sequence of int64 [d]
        Components of each draw that lie in several populations.
    guides : callable
    n_guides : int
        G.
    """
    random = Stream(0, 0, 0).step(Step.POINTS)
    normals = random.standard_normal((PAIRS, len(run.channels)))
    chosen = random.integers(n_guides, size=len(draws))
    shares = np.concatenate(
        [*_shares(run, draws, divided, guides, np.concatenate([normals, -normals]))], axis=1
    )
    ends = np.cumsum([len(components) for components in divided])
    return tuple(
        Division(components, shares[guide, end - len(components) : end], guide)
        for components, end, guide in zip(divided, ends.tolist(), chosen.tolist(), strict=True)
    )


def _shares(
    run: Run, draws: Ints, divided: Sequence[Ints], guides: Guides, normals: Array
) -> Iterator[Array]:
    """Yield the shares of the components of all draws by each guide, some together, float64 [G, d, P]."""
    held = [np.empty((0, *normals.shape))]

    def averaged() -> Array:
        points = np.concatenate(held).astype(np.float32)
        memberships = guides(points.reshape(-1, points.shape[2])).astype(np.float64)
        n_guides, _, n_populations = memberships.shape
        sums = memberships.reshape(n_guides, *points.shape[:2], n_populations).sum(axis=2)
        return sums / sums.sum(axis=2, keepdims=True)

    for (chain, draw), components in zip(draws, divided, strict=True):
        if len(components):
            roots = np.linalg.cholesky(run.covariances[chain, draw][components])
            held.append(np.asarray(run.means[chain, draw])[components, None] + normals @ roots.mT)
        if sum(map(len, held)) >= TOGETHER:
            yield averaged()
            del held[1:]
    yield averaged()


def guides_of(
    make_engine: MakeEngine, mixtures: Sequence[Mixture], populations: Ints, n_populations: int
) -> Guides:
    """Return the draws of the mean density as `Guides`.

    Parameters
    ----------
    make_engine : callable
    mixtures : sequence of Mixture
    populations : int64 [G, K]
        Population of each component of each draw.
    n_populations : int
        P.
    """

    def guides(points: Floats) -> Floats:
        if not len(points):
            return np.empty((len(mixtures), 0, n_populations), np.float32)
        drawn = zip(mixtures, populations, strict=True)
        with closing(make_engine(points)) as engine:
            return np.stack([memberships_by(engine, *one, n_populations, 0, len(points))[0] for one in drawn])

    return guides
