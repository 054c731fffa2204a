"""Ellipses in two channels that separate one population from other events.

Centre and shape are the mean and covariance of the population's events. The size is the one with the highest
F measure (`dpmix.populations.gates.polygons`), found by sorting all events by their Mahalanobis distance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmix.model.mixture import Array
from dpmix.populations.gates.polygons import Flags, PolygonGate, f_measure

LEAST_EVENTS = 20  # of the population, for a covariance
LEAST_DETERMINANT = 1e-6  # of the correlation matrix: flatter ellipses are lines
VERTICES = 128  # of the polygon for an ellipse: at most 0.02% of the axes away from it


@dataclass(frozen=True)
class EllipseGate:
    """An ellipse in two channels: points x with (x - centre)' covariance^-1 (x - centre) <= distance.

    Attributes
    ----------
    channels : (int, int)
        Numbers of the channels, from 0.
    centre : float64 [2]
        Transformed scale.
    covariance : float64 [2, 2]
    distance : float
        Squared Mahalanobis distance of the edge.
    """

    channels: tuple[int, int]
    centre: Array
    covariance: Array
    distance: float

    def contains(self, values: Array) -> Flags:
        """Return which events are inside, bool [M]; `values` are transformed, float64 [M, D]."""
        inside: Flags = _distances(values[:, self.channels], self.centre, self.covariance) <= self.distance
        return inside


def as_polygon(gate: PolygonGate | EllipseGate) -> PolygonGate:
    """Return a polygon with the area of an ellipse, with `VERTICES` vertices; a polygon as it is."""
    if isinstance(gate, PolygonGate):
        return gate
    turn = 2.0 * np.pi / VERTICES
    angles = turn * np.arange(VERTICES)
    # A polygon on the ellipse would be smaller than it; one of the same area keeps as many events.
    radius = np.sqrt(gate.distance * turn / np.sin(turn))
    circle = radius * np.column_stack([np.cos(angles), np.sin(angles)])
    return PolygonGate(gate.channels, gate.centre + circle @ np.linalg.cholesky(gate.covariance).T)


def _distances(points: Array, centre: Array, covariance: Array) -> Array:
    """Return squared Mahalanobis distances, float64 [M]."""
    away = points - centre
    distances: Array = np.einsum("mi,ij,mj->m", away, np.linalg.inv(covariance), away)
    return distances


def best_ellipse(
    values: Array, own: Flags, weights: Array, channels: tuple[int, int], total: float
) -> EllipseGate | None:
    """Find the ellipse around a population with the highest F measure.

    Parameters
    ----------
    values : float64 [M, D]
        Transformed scale.
    own : bool [M]
        Events of the population.
    weights : float64 [M]
        Number of events that each event stands for.
    channels : (int, int)
    total : float
        Weight of all events of the population, also of those that earlier gates have lost.

    Returns
    -------
    EllipseGate or None
        None if the population has too few events, or lies on a line.
    """
    points = values[:, channels]
    if np.count_nonzero(own) < LEAST_EVENTS:
        return None
    centre = np.average(points[own], axis=0, weights=weights[own])
    covariance = np.cov(points[own].T, aweights=weights[own])
    if not np.linalg.det(covariance) > LEAST_DETERMINANT * covariance[0, 0] * covariance[1, 1]:
        return None
    distances = _distances(points, centre, covariance)
    order = np.argsort(distances)
    kept, selected = np.cumsum((weights * own)[order]), np.cumsum(weights[order])
    last = int(f_measure(kept, selected, total).argmax())
    # Half way to the next event: an edge through an event would count it by rounding.
    edges = distances[order[[last, min(last + 1, len(order) - 1)]]]
    return EllipseGate(channels, centre, covariance, float(edges.mean()))
