"""Explored cells (`dpmix.explore`) as one more population of a gating.

Its number follows the numbers of the mixture's populations. Its events keep their population of the mixture:
it overlaps the others, and the proportions of the mixture's populations sum to 1 without it.

S samples, D channels, P populations of the mixture, T draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.events.names import names_of
from dpmix.populations.events.phenotypes import QUANTILES
from dpmix.populations.result import Gating

if TYPE_CHECKING:
    from dpmix.explore.count import Found
    from dpmix.populations.sample_draws import SampleDraws

NAME = "explored cells"
MIXTURE, JUDGING = "mixture", "judging"
"""Values of the column `found by` in tables."""


@dataclass(frozen=True)
class Explored:
    """The population of the explored cells.

    Attributes
    ----------
    index : int
        Its number from 0: P.
    phenotype : str
        Short phenotype, formed as for the other populations.
    colour : int
        Number of its colour (`dpmix.report.palette`).
    number : int
        The next one after the numbers of the populations.
    sizes : int64 [S]
        Events found.
    quantiles : float64 [5, D]
        `dpmix.populations.events.phenotypes.QUANTILES` of these events, transformed scale.
    proportion, low, high : float
        Share of the events in all samples together: the probable number of such cells, and its ends
        (`dpmix.explore.count.Found`).
    """

    index: int
    phenotype: str
    colour: int
    number: int
    sizes: Ints
    quantiles: Array
    proportion: float
    low: float
    high: float

    @property
    def title(self) -> str:
        """Number and name."""
        return f"{self.number} {NAME}"


def explored_of(gating: Gating) -> Explored | None:
    """Return the population of the explored cells; None without judgements."""
    one = gating.exploration
    if one is None:
        return None
    quantiles = quantiles_of(one.values)
    quartiles = gating.quantiles[[1, 3]]
    sizes = gating.sizes.sum(axis=0)
    return Explored(
        index=gating.n_populations,
        phenotype=phenotype(quantiles, len(one.values), quartiles, gating.levels, sizes, gating.channels),
        colour=free_colour(gating.colours, gating.n_populations),
        number=next_number(gating.labels, gating.n_populations),
        sizes=one.sizes,
        quantiles=quantiles,
        **proportions(one.found, int(gating.n_events.sum())),
    )


def with_explored(draws: SampleDraws) -> SampleDraws:
    """Return the draws with the explored cells as population P, the same in all draws.

    `dpmix associate` compares them like the others. They count in their populations of the mixture, too.
    """
    if draws.explored is None or draws.explored_medians is None:
        return draws
    # The same in all draws: judgements, not the mixture, say which cells these are.
    counts = np.broadcast_to(draws.explored[:, None], (*draws.counts.shape[:2], 1))
    medians = np.broadcast_to(
        draws.explored_medians[:, None], (*draws.medians.shape[:2], 1, len(draws.channels))
    )
    errors = draws.errors  # of the medians of the cells found: not known
    if errors is not None:
        errors = np.pad(errors, [(0, 0), (0, 1), (0, 0)], constant_values=np.nan)
    return replace(
        draws,
        errors=errors,
        counts=np.concatenate([draws.counts, counts], axis=2),
        medians=np.concatenate([draws.medians, medians], axis=2),
        phenotypes=(*draws.phenotypes, NAME),
        names=(*draws.names, NAME) if draws.names else (),
        labels=(*draws.labels, next_number(draws.labels, len(draws.phenotypes))) if draws.labels else (),
    )


def quantiles_of(values: Floats) -> Array:
    """Return `QUANTILES` of events found, float64 [5, D], from their values, float32 [F, D]; NaN for none."""
    if not len(values):
        return np.full((len(QUANTILES), values.shape[1]), np.nan)
    quantiles: Array = np.quantile(values, QUANTILES, axis=0)
    return quantiles


def phenotype(
    quantiles: Array, found: int, quartiles: Array, levels: Array, sizes: Ints, channels: tuple[str, ...]
) -> str:
    """Return the phenotype of events found: their name as one more population of the mixture.

    Parameters
    ----------
    quantiles : float64 [5, D]
        Quantiles of the events found.
    found : int
        Their number.
    quartiles : float64 [2, P, D]
        Quartiles of the populations of the mixture.
    levels, sizes, channels
        As in `dpmix.populations.events.names.names_of`.
    """
    lower, upper = np.concatenate([quartiles, quantiles[[1, 3], None]], axis=1)
    return names_of(lower, upper, levels, [*sizes, found], channels)[-1]


def proportions(found: Found, n_events: int) -> dict[str, float]:
    """Return the probable number of such cells and its ends, divided by the number of all events."""
    ends = {"proportion": found.number, "low": found.low, "high": found.high}
    return {name: value / max(n_events, 1) for name, value in ends.items()}


def free_colour(colours: tuple[int, ...], n_populations: int) -> int:
    """Return the first number of a colour from P on that no population has."""
    return next(n for n in range(n_populations, 2 * n_populations + 1) if n not in colours)


def next_number(labels: Sequence[int], n_populations: int) -> int:
    """Return the number after the numbers of P populations, `labels` or 1..P."""
    return max(labels, default=n_populations) + 1


def extended(gating: Gating) -> Gating:
    """Return the gating with the explored cells as population P, for pictures.

    Its share is the share of the events found, the same in all draws. All that only the mixture knows is NaN.
    """
    own = explored_of(gating)
    if own is None:
        return gating
    shares = np.where(gating.n_events > 0, own.sizes / np.maximum(gating.n_events, 1), np.nan)
    drawn = np.broadcast_to(shares, gating.proportions.shape[:2])
    names = gating.names or ("",) * gating.n_populations
    colours = gating.colours or tuple(range(gating.n_populations))
    return replace(
        gating,
        phenotypes=(*gating.phenotypes, own.phenotype),
        names=(*names, NAME),
        labels=(*gating.labels, own.number) if gating.labels else (),
        colours=(*colours, own.colour),
        sizes=np.column_stack([gating.sizes, own.sizes]),
        proportions=np.concatenate([gating.proportions, drawn[..., None]], axis=2),
        mean_proportions=np.column_stack([gating.mean_proportions, shares]),
        quantiles=np.concatenate([gating.quantiles, own.quantiles[:, None]], axis=1),
        support=np.append(gating.support, np.nan),
        r_hat=np.append(gating.r_hat, np.nan),
        ess=np.append(gating.ess, np.nan),
        certainty=np.append(gating.certainty, np.nan),
    )
