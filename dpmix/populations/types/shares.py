"""Shares of cell types in components, and probabilities of types of events, in one draw.

In a draw, event x belongs to component h with probability P(h | x). With F_r(x) the evidence of x for row r
of the table (`dpmix.populations.types.markers`; 1 for the unknown type), and theta_hr the share of type r in
component h,

    P(r | x) = sum_h P(h | x) theta_hr F_r(x) / sum_s theta_hs F_s(x).

**Names.** theta_hr is proportional to (1 + u)(1 + v), with u and v the shares, by EM, of row r in the events
of component h and of its population: the row of a whole component, or population, counts twice as much as a
row that it has not, so that a rare type is named where its cells fit. (With one tenth of the weight for the
shares and the rest spread evenly over the rows, this factor grew with the number of rows, and large tables
lost their rare types. Without v, neutrophils with much CD45 were eosinophils, although these are another
population.) A component on one side of all thresholds goes to one type as a whole, and a component that
straddles a threshold is divided by the values of its events, by the average over the places that the
threshold may have (`markers.Marker.softened`).
F is relative to events whose markers are independent and have their base rates; this is the unknown type,
which a row has to beat.

**Proportions** have

    theta_h ~ Dirichlet(`OWN_EVENTS` rho),

rho the proportions of the rows in all events; theta and rho are learned by the same EM. A component thus
mostly has the shares of its own events. (With even shares, the doubt of the cells alone gave one in ten of
the events of a rare type to frequent types that differ in one cell.) Events that two rows explain alike count
for the type of the other events of their component, then for the frequent one.

**A population on the wrong side.** The evidence of many cells that pass hides one that fails. So a row
explains an event only as far as the event, or its component, passes the cells one by one. With q the
probability that an event passes a cell and a its mean over the events of component h, the row explains the
event by

    k_r(x) = prod min(1, `TELLS` q),
    k_hr   = prod a^2 / (a^2 + (1 - a)^2),
    1 - (1 - k_r(x)) (1 - k_hr),

the products over the cells that divide types which are otherwise alike (`markers.telling`) or that are upheld
(`dpmix.populations.types.cells`, on cells that the data contradict), and over the other cells
(`cells.other_cells`) but the one with the least factor: a single cell can be wrong for a part of a type, or
its marker have a background there, while a population that fails two cells is of another type. (With all
other cells, naive CD4 T cells were unknown where the table says CD45RA - for CD4 T cells; with none, removed
rows of large tables went to others from which they differ in two cells.) What a row does not explain of its
part of P(r | x) goes to its parent, as far as the parent explains it. Of what is left, the share max pi_r(x)
goes to rows, in proportion to pi_r(x) P(r | x), and the rest to unknown, with

    pi_r(x) = prod q^2 / (q^2 + (1 - q)^2)

over all cells of row r. (When all of it went to unknown, events of rare types that pass all cells of their
row became unknown in the components of frequent types. With the product of q, more events of a type without a
row, which are near a threshold, got the name of a row.)

N events, R rows, M markers, T draws, K components, P populations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.inputs.type_table import KINDS
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.types.markers import Marker, each_cell

OWN_EVENTS = 10.0  # prior of the shares of a component in proportions, as a number of events
TELLS = 1.5  # an event passes a cell where q is 2 / 3
STEPS = 20  # of EM


class Fits(NamedTuple):
    """How far rows explain N events of one draw.

    Attributes
    ----------
    events : float64 [N, R]
        k_r(x).
    components : float64 [K, R]
        k_hr.
    all_cells : float64 [N, R]
        pi_r(x).
    """

    events: Array
    components: Array
    all_cells: Array


def component_shares(
    evidence: Array,
    labels: Ints,
    n_components: int,
    learn: bool = False,
    barred: npt.NDArray[np.bool_] | None = None,
) -> Array:
    """Return the shares of the rows in each component, float64 [K, R + 1].

    Parameters
    ----------
    evidence : float64 [N, R + 1]
        F.
    labels : int [N]
        Component of each event in a draw.
    n_components : int
    learn : bool
        Return the shares for proportions.
    barred : bool [K, R + 1], optional
        Rows that a component cannot have (`barred_rows`).
    """
    n_rows = evidence.shape[1]
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.diff(labels[order], prepend=-1))
    there = labels[order][starts]
    shares = np.full((n_components, n_rows), 1.0 / n_rows)
    _bar(shares, barred)
    sorted_evidence = evidence[order]
    for _ in range(STEPS):
        parts = sorted_evidence * shares[labels[order]]
        parts /= parts.sum(axis=1, keepdims=True)
        sums = np.add.reduceat(parts, starts, axis=0)
        sizes = sums.sum(axis=1, keepdims=True)
        if learn:
            rho = (sums.sum(axis=0) + 1.0) / (sums.sum() + n_rows)
            shares[:] = rho
            shares[there] = (sums + OWN_EVENTS * rho) / (sizes + OWN_EVENTS)
        else:
            shares[there] = (sums / sizes + 1.0) / (n_rows + 1.0)
        _bar(shares, barred)
    return shares


def name_shares(
    evidence: Array, labels: Ints, populations: Ints, barred: npt.NDArray[np.bool_] | None = None
) -> Array:
    """Return the shares of the rows in each component that give events their names, float64 [K, R + 1].

    `populations`, int64 [K], has the population of each component. Other parameters are as in
    `component_shares`.
    """
    shares = component_shares(evidence, labels, len(populations), barred=barred)
    shares *= component_shares(evidence, populations[labels], int(populations.max()) + 1)[populations]
    shares /= shares.sum(axis=1, keepdims=True)
    return shares


def _bar(shares: Array, barred: npt.NDArray[np.bool_] | None) -> None:
    """Set shares [K, R + 1] to 0 where they are barred; the others of the component sum to 1 then."""
    if barred is not None:
        shares[barred] = 0.0
        shares /= shares.sum(axis=1, keepdims=True)


def barred_rows(kinds: Sequence[str], marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return the rows that components cannot have, bool [..., R + 1].

    Parameters
    ----------
    kinds : sequence of str
        Kinds of R rows.
    marked : bool [...]
        Components that look like artefacts (`dpmix.populations.events.artefacts.Artefacts.marked`).
    """
    of_cells = np.array([*(kind == KINDS[0] for kind in kinds), False])
    found: npt.NDArray[np.bool_] = marked[..., None] & of_cells
    return found


def event_fits(
    markers: tuple[Marker, ...],
    values: Array,
    tells: npt.NDArray[np.bool_],
    others: npt.NDArray[np.bool_],
) -> tuple[Array, Array]:
    """Return how far events pass the cells that count, and whether they pass all cells.

    Parameters
    ----------
    markers : tuple of Marker
    values : float64 [N, M]
    tells : bool [R, M]
        Cells that divide similar types.
    others : bool [R, M]
        Other cells that count, but for one.

    Returns
    -------
    fits : float64 [N, R]
        k_r(x).
    all_cells : float64 [N, R]
        pi_r(x); 0 for a row without cells.
    """
    silent = np.array([marker.silent for marker in markers])
    fits, least = np.ones((2, len(values), len(tells)))
    all_cells = np.tile(np.where(silent.all(axis=0), 0.0, 1.0), (len(values), 1))
    for m, marker in enumerate(markers):
        for r, passed in each_cell(marker, values[:, m], ~marker.silent):
            all_cells[:, r] *= _clear(passed)
            if tells[r, m] or others[r, m]:
                factor = np.minimum(1.0, TELLS * passed)
                _multiply(fits[:, r], factor, None if tells[r, m] else least[:, r])
    return fits, all_cells


def _clear(passed: Array) -> Array:
    """Return probabilities of passing a cell moved away from 1/2: q^2 / (q^2 + (1 - q)^2)."""
    found: Array = passed**2 / (passed**2 + (1.0 - passed) ** 2)
    return found


def component_fits(
    markers: tuple[Marker, ...],
    values: Array,
    tells: npt.NDArray[np.bool_],
    others: npt.NDArray[np.bool_],
    labels: Sequence[Ints],
    n_components: int,
) -> Array:
    """Return k_hr, how far components pass the cells that count, float64 [T, K, R] for T draws of labels [N].

    A component without events has 1. For other parameters see `event_fits`.
    """
    sizes = [np.bincount(own, minlength=n_components) for own in labels]
    fits, least = np.ones((2, len(labels), n_components, len(tells)))
    for m, marker in enumerate(markers):
        for r, passed in each_cell(marker, values[:, m], tells[:, m] | others[:, m]):
            for k, own in enumerate(labels):
                mean = np.bincount(own, passed, n_components) / np.maximum(sizes[k], 1)
                factor = np.where(sizes[k] > 0, _clear(mean), 1.0)
                _multiply(fits[k, :, r], factor, None if tells[r, m] else least[k, :, r])
    return fits


def _multiply(product: Array, factor: Array, least: Array | None) -> None:
    """Multiply a product by a factor, both [X]; with `least`, by all such factors but the least."""
    if least is None:
        product *= factor
    else:
        product *= np.maximum(least, factor)
        np.minimum(least, factor, out=least)


def event_shares(
    memberships: Array | Floats,
    shares: Array,
    evidence: Array,
    fits: Fits | None = None,
    parents: Sequence[int] = (),
) -> Array:
    """Return P(r | x) of one draw, float64 [N, R + 1].

    Parameters
    ----------
    memberships : float [N, K]
    shares : float64 [K, R + 1]
        theta.
    evidence : float64 [N, R + 1]
        F.
    fits : Fits, optional
        Without it, every row explains its part.
    parents : sequence of int
        Row of the parent of each of R rows, -1 for none.
    """
    weights = memberships / (evidence @ shares.T)
    found: Array = evidence * (weights @ shares)
    if fits is not None:
        n_rows = fits.events.shape[1]
        inside = evidence[:, :n_rows] * (weights @ (shares[:, :n_rows] * fits.components))
        explained = fits.events * found[:, :n_rows] + (1.0 - fits.events) * inside
        left = found[:, :n_rows] - explained
        for r in _deepest_first(parents):
            p = parents[r]
            share = np.divide(explained[:, p], found[:, p], out=np.zeros(len(left)), where=found[:, p] > 0.0)
            found[:, p] += left[:, r]
            explained[:, p] += share * left[:, r]
            left[:, p] += (1.0 - share) * left[:, r]
            left[:, r] = 0.0
        passing = fits.all_cells * found[:, :n_rows]
        whole = passing.sum(axis=1)
        moved = np.where(whole > 0.0, fits.all_cells.max(axis=1), 0.0) * left.sum(axis=1)
        found[:, :n_rows] = explained
        found[:, :n_rows] += passing * (moved / np.where(whole > 0.0, whole, 1.0))[:, None]
        found[:, n_rows] += left.sum(axis=1) - moved
    found /= found.sum(axis=1, keepdims=True)
    return found


def _deepest_first(parents: Sequence[int]) -> list[int]:
    """Return the rows that have a parent, children before their parents."""
    depth = []
    for r in range(len(parents)):
        above, steps = parents[r], 0
        while above >= 0:
            above, steps = parents[above], steps + 1
        depth.append(steps)
    return [r for r in sorted(range(len(parents)), key=lambda r: -depth[r]) if depth[r]]
