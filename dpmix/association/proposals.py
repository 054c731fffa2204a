"""Proposals of the integrals over the scales of responses: Student t distributions that adapt.

A response can be of one kind or of another (`dpmix.association.regression`), so that the posterior of its
scales can have two narrow modes. Each response thus has a mixture of K distributions, one for each kind,
whose means, covariances and shares follow from weighted points (Cappe et al. 2008, Stat. Comput. 18:447).

Q responses, N points, K kinds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from dpmix.model.mixture import Array

ENOUGH = 30.0  # effective points of an integral
TAILS, WIDEN = 5.0, 1.3  # degrees of freedom, and width relative to the posterior
LEAST_SHARE = 0.05  # of a kind
PRIOR = 0.02  # weight of the distribution of a kind, where few points of the response are of the kind


@dataclass(frozen=True)
class Proposals:
    """Mixtures of Student t distributions.

    Attributes
    ----------
    shares : float64 [Q, K]
    centres : float64 [Q, K, dims]
    roots : float64 [Q, K, dims, dims]
        Lower triangles whose squares are covariances.
    """

    shares: Array
    centres: Array
    roots: Array

    @classmethod
    def around(cls, centres: Array, sds: Array, n_kinds: int) -> Proposals:
        """Return proposals around points [Q, dims], alike for all kinds, with standard deviations [dims]."""
        q, dims = centres.shape
        return cls(
            np.full((q, n_kinds), 1.0 / n_kinds),
            np.repeat(centres[:, None], n_kinds, axis=1),
            np.broadcast_to(np.diag(sds), (q, n_kinds, dims, dims)),
        )

    def draw(self, seed: int, number: int) -> tuple[Array, Array]:
        """Return quasi-random points [Q, N, dims] and their log densities [Q, N].

        Parameters
        ----------
        seed : int
        number : int
            N, a power of 2.
        """
        n_kinds, dims = self.centres.shape[1:]
        uniforms = stats.qmc.Sobol(dims + 2, scramble=True, seed=seed).random(number)
        chi = stats.chi2.ppf(uniforms[:, -2], TAILS)
        # Wider than the posterior and with the tails of t, so that no single point holds most of the weight.
        base = WIDEN * stats.norm.ppf(uniforms[:, :dims]) / np.sqrt(chi / TAILS)[:, None]
        ends = np.cumsum(self.shares, axis=1)[:, None, :-1]
        kind = (uniforms[:, -1, None] > ends).sum(axis=2)  # [Q, N]
        rows = np.arange(len(kind))[:, None]
        moved = np.einsum("qnij,nj->qni", self.roots[rows, kind], base)
        points = self.centres[rows, kind] + moved
        logs = np.empty((*kind.shape, n_kinds))
        for k in range(n_kinds):
            inverse = np.linalg.inv(self.roots[:, k]) / WIDEN
            z = np.einsum("qij,qnj->qni", inverse, points - self.centres[:, None, k])
            scale = np.log(np.diagonal(inverse, axis1=1, axis2=2)).sum(axis=1) + np.log(self.shares[:, k])
            logs[..., k] = scale[:, None] - 0.5 * (TAILS + dims) * np.log1p((z**2).sum(axis=2) / TAILS)
        return points, np.asarray(np.logaddexp.reduce(logs, axis=2), np.float64)

    def adapted(self, points: Array, logs: Array, kinds: Array, means: Array, sds: Array) -> Proposals:
        """Return proposals with the moments of weighted points.

        Parameters
        ----------
        points : float64 [Q, N, dims]
        logs : float64 [Q, N]
            Log weights.
        kinds : float64 [Q, N, K]
            Probabilities of the kinds at each point.
        means, sds : float64 [K, dims]
            Means and standard deviations of the kinds.
        """
        # To a power below 1 where few points count: the covariance of one or two points would make the
        # proposal collapse.
        own = _temper(logs)[..., None] * kinds
        sums = own.sum(axis=1)  # [Q, K]
        total = (sums + PRIOR)[..., None]
        centres = (np.einsum("qnk,qni->qki", own, points) + PRIOR * means) / total
        moved = points[:, :, None] - centres[:, None]
        squares = np.einsum("qnk,qnki,qnkj->qkij", own, moved, moved)
        eye = np.eye(points.shape[2])
        of_kinds = PRIOR * sds[:, :, None] ** 2 * eye
        roots = np.linalg.cholesky((squares + of_kinds) / total[..., None] + 1e-4 * eye)
        shares = sums + LEAST_SHARE
        return Proposals(shares / shares.sum(axis=1, keepdims=True), centres, roots)


def _temper(logs: Array) -> Array:
    """Return weights [Q, N] to a power of at most 1 at which at least `ENOUGH` points count."""
    logs = logs - logs.max(axis=1, keepdims=True)
    low, high = np.zeros((len(logs), 1)), np.ones((len(logs), 1))
    power = high
    for _ in range(20):
        weights = np.exp(power * logs)
        weights /= weights.sum(axis=1, keepdims=True)
        few = (weights**2).sum(axis=1, keepdims=True) * ENOUGH > 1.0
        low, high = np.where(few, low, power), np.where(few, power, high)
        power = (low + high) / 2.0
    weights = np.exp(low * logs)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), np.float64)
