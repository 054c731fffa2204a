"""The posterior of what is wanted, at judged events and at all events.

Gaussian process regression (Rasmussen and Williams 2006, algorithm 2.1). The mean and the variance of all
events are kept. Further judgements add rows to the inverse Cholesky factor, and only the terms of these rows
are computed. This is exact, and much cheaper than all rows again. Whether judgements of several screens are
added screen by screen or together makes no difference, not even of a bit.

N events, D channels, n judgements.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg.lapack import dtrtri

from dpmix.engines.cpu import instruction_sets
from dpmix.explore.covariance import JudgementCovariance
from dpmix.kernels import _cpu
from dpmix.model.mixture import Array, Floats
from dpmix.system.cores import usable_cores

if TYPE_CHECKING:
    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess


class Judged:
    """The posterior given judgements of some events.

    Parameters
    ----------
    covariance : JudgementCovariance
    points : float64 [n, D]
        Judged events, standardised scale.
    values : float64 [n]
        Judgements from 0, unwanted, to 1, wanted.

    Attributes
    ----------
    inverse : float64 [n, n]
        Inverse of the lower Cholesky factor of the covariance of the judgements.
    targets : float64 [n]
        Judgements whitened by it.

    Raises
    ------
    numpy.linalg.LinAlgError
        The covariance of the judgements is not positive definite to float64.
    """

    def __init__(self, covariance: JudgementCovariance, points: Array, values: Array) -> None:
        self.covariance, self.points, self.values = covariance, points[:0], values[:0]
        self.inverse: Array = np.empty((0, 0))
        self.targets: Array = np.empty(0)
        self.add(points, values)

    def add(self, points: Array, values: Array) -> None:
        """Add judgements, float64 [m], of points, float64 [m, D]: rows of the inverse, and targets."""
        before, m = self.inverse, len(values)
        across = self.whitened(points)
        left = self.covariance.between(points, points) + self.covariance.noise * np.eye(m) - across.T @ across
        own = dtrtri(np.linalg.cholesky(left), lower=1)[0] if m else left
        # Rows of the inverse of a lower triangular matrix do not depend on rows below them, so those before
        # stay.
        self.inverse = np.block([[before, np.zeros((len(before), m))], [-own @ (across.T @ before), own]])
        self.targets = np.concatenate([self.targets, own @ (values - across.T @ self.targets)])
        self.points = np.concatenate([self.points, points])
        self.values = np.concatenate([self.values, values])

    def whitened(self, events: Array) -> Array:
        """Return the covariances of events, float64 [M, D], with the judgements, whitened: float64 [n, M]."""
        covariances = self.covariance.between(self.points, events)
        whitened: Array = self.inverse @ covariances
        return whitened

    def left_out(self) -> tuple[Array, Array]:
        """Return mean and variance of the signal at each judged event given the others, float64 [n] each.

        Rasmussen and Williams (2006), equations 5.10 to 5.12; the noise of the judgement is subtracted.
        """
        precisions = (self.inverse**2).sum(axis=0)
        means = self.values - (self.inverse.T @ self.targets) / precisions
        return means, np.maximum(1.0 / precisions - self.covariance.noise, 0.0)

    def smoothed(self) -> tuple[Array, Array]:
        """Return mean and variance of the signal at each judged event given all, float64 [n] each."""
        noise = self.covariance.noise
        means = self.values - noise * (self.inverse.T @ self.targets)
        return means, np.maximum(noise - noise**2 * (self.inverse**2).sum(axis=0), 0.0)


class EventPosterior:
    """Posterior mean and variance of the signal at all events.

    Parameters
    ----------
    events : float32 [N, D], C-contiguous
        Standardised scale.
    covariance : JudgementCovariance
    threads : int, optional
        Default: the number of cores that the process may use. Results are bit-identical for any number.
    isa : str, optional
        Instruction set of the native code; default: the best one.

    Attributes
    ----------
    mean, variance : float32 [N]
        Errors of float32: docs/benchmarks/explore.md.
    judged : Judged
    """

    def __init__(
        self,
        events: Floats,
        covariance: JudgementCovariance,
        threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        self._events = events
        self._threads = threads or usable_cores()
        self._isa = isa or instruction_sets()[0]
        self.mean: Floats = np.zeros(len(events), np.float32)
        self.variance: Floats = np.full(len(events), covariance.variance, np.float32)
        self.judged = Judged(covariance, np.empty((0, events.shape[1])), np.empty(0))

    def add(
        self,
        points: Array,
        values: Array,
        ends: Sequence[int] = (),
        device: CudaGaussianProcess | None = None,
    ) -> None:
        """Add judgements, float64 [m], of points, float64 [m, D].

        Parameters
        ----------
        points, values : float64 [m, D], float64 [m]
        ends : sequence of int
            Where screens before the last one end, ascending, from 1 to m - 1. Results have the same bits if
            each screen is added by itself.
        device : CudaGaussianProcess, optional
            Devices that hold the same events, and compute the pass over them. Default: the CPU. The results
            have the same bits, except on processors without a fused multiply-add.
        """
        if not len(values):
            return
        judged, before = self.judged, len(self.judged.values)
        # Screen by screen, also if they come together: the same operations, so the same bits.
        for part, own in zip(np.split(points, ends), np.split(values, ends), strict=True):
            judged.add(part, own)
        covariance = judged.covariance
        added = (
            np.ascontiguousarray(judged.points, np.float32),
            covariance.scales.astype(np.float32),
            covariance.shape == "laplacian",
            np.ascontiguousarray(covariance.variance * judged.inverse[before:], np.float32),
            judged.targets[before:].astype(np.float32),
        )
        if device is None:
            _cpu.update_posterior(self._events, *added, self._isa, self._threads, self.mean, self.variance)
        else:
            device.update(*added, self.mean, self.variance)

    @property
    def sd(self) -> Floats:
        """Posterior standard deviation of the signal, float32 [N]."""
        return np.sqrt(np.maximum(self.variance, np.float32(0.0)))
