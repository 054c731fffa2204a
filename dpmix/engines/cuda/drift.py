"""Vecchia's likelihood and local Gaussian processes of `dpmix drift` on a CUDA device, by the kernels of
kernels/vecchia.cu, kernels/local_designs.cu and kernels/local_fits.cu."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pycuda.driver as driver

from dpmix.drift.device import Precision
from dpmix.drift.local import DESIGN, MAX_DESIGN
from dpmix.drift.points import Points
from dpmix.engines.cuda.devices import chosen
from dpmix.engines.cuda.kernels import load
from dpmix.engines.cuda.messages import failure
from dpmix.errors import DpmixError
from dpmix.kernels import build
from dpmix.model.mixture import Array

THREADS = 128
"""Threads of a block of `vecchia_threads`, `vecchia_blocks` and `fit_designs`."""

SUMS = 22
BLOCKS = 1_024
"""Largest grid of `vecchia_blocks` and `vecchia_batches`. It does not depend on the device, so that the
sums do not either."""

LEAST_POINTS, MOST_NEIGHBOURS = 65_536, 32
"""`vecchia_threads` takes at least this many points, which occupy a device, and at most this many neighbours,
because the local memory of a thread grows with their square. This many neighbours also occupy the warp that a
point has in `vecchia_batches`. For 10^6 points on an H200, threads are faster up to 14 neighbours, batches as
fast at 30 and faster at 64, and blocks slowest. The limits for fewer points are not measured."""

WARP = 32

CANDIDATES = 256
"""Threads of a block of `grow_designs`."""

PER_LAUNCH = 8_192
"""Most times of prediction of a launch. They bound the memory, and occupy a device."""

PASSES = 2
"""Designs of a prediction, each with a fit, as in kernels/cpu/local.cpp."""


class Launch(NamedTuple):
    """Shape of a launch: blocks, threads of a block, and rows of sums that the kernel writes."""

    grid: int
    threads: int
    rows: int


def variant(n: int, n_neighbours: int) -> str:
    """Return the kernel for n points: `vecchia_threads`, `vecchia_batches` or `vecchia_blocks`."""
    if n_neighbours > MOST_NEIGHBOURS:
        return "vecchia_batches" if n >= LEAST_POINTS else "vecchia_blocks"
    return "vecchia_threads" if n >= LEAST_POINTS else "vecchia_batches"


def launch(kernel: str, n: int, n_neighbours: int) -> Launch:
    """Return the shape of the launch of a kernel, of either precision, for n points."""
    if kernel.startswith("vecchia_batches"):
        batch = 4 if n_neighbours <= 32 else 2  # BATCH of vecchia.cu
        grid = min(-(-n // batch), BLOCKS)
        return Launch(grid, WARP * batch, grid * batch)
    grid = -(-n // THREADS) if kernel.startswith("vecchia_threads") else min(n, BLOCKS)
    return Launch(grid, THREADS, grid)


class CudaDrift:
    """The kernels on one device. Threads may share it: their calls take turns.

    Parameters
    ----------
    device : int
    precision : "single" or "double"
        Precision of the system of a point in Vecchia's likelihood: covariances, Cholesky factor, solutions.
        Differences of times, sums over points and local predictions are float64 in both. The error of
        float32 is in docs/benchmarks/drift.md.

    Raises
    ------
    DpmixError
        The device does not exist or cannot be used.
    """

    def __init__(self, device: int = 0, precision: Precision = "double") -> None:
        self._info = chosen([device])[0]
        self.precision = precision
        self._turn = threading.Lock()
        self._functions: dict[tuple[str, int], Any] = {}
        self._points: Points | None = None
        self._sent: list[Any] = []  # the points on the device
        try:
            self._context = driver.Device(device).make_context()
        except driver.Error as error:
            raise DpmixError(f"{self._info.name} ({device}): {failure(error)}") from error
        driver.Context.pop()

    def close(self) -> None:
        """Release the device."""
        with self._turn:
            self._functions.clear()
            if self._sent:
                self._context.push()
                self._points, self._sent = None, []
                driver.Context.pop()
            self._context.detach()

    def sums(
        self,
        points: Points,
        kind: int,
        parameters: tuple[float, float, float],
    ) -> Array:
        """Return the sums as `_cpu.vecchia` writes them, float64 [7, 4].

        Parameters
        ----------
        points : Points
            The device keeps the points of the last call: a fit computes many likelihoods of the same points.
        kind : int
            Number of the correlation in `dpmix.drift.covariance.CORRELATIONS`.
        parameters : tuple of float
            Variance, range and nugget.

        Raises
        ------
        DpmixError
            The device fails.
        """
        n, m = points.neighbours.shape
        name = variant(n, m)
        grid, threads, rows = launch(name, n, m)
        parts = np.empty((rows, SUMS))
        centre = 0.0
        if self.precision == "single":
            name += "_float"
            centre = float(points.values.mean())  # a common level would take digits of float32
        with self._current():
            self._hold(points, centre)
            self._function("vecchia", name, m)(
                *self._sent,
                *(np.int32(n), np.int32(kind), *(np.float64(one) for one in parameters)),
                driver.Out(parts),
                grid=(grid, 1),
                block=(threads, 1, 1),
            )
        total = parts.sum(0)
        if self.precision == "single" and not np.isfinite(total).all():
            raise DpmixError(
                "the errors of the values are too small, compared with the signal, for float32 "
                "(variance {:.3g}, range {:.3g}, nugget {:.3g}): use --precision double".format(*parameters)
            )
        out = np.zeros((7, 4))
        out[:4] = total[:16].reshape(4, 4)
        out[1] += centre * (2.0 * out[2] + centre * out[3])  # yy, then xy, of the values themselves
        out[2] += centre * out[3]
        lower, columns = np.tril_indices(3)
        out[4 + lower, columns] = out[4 + columns, lower] = total[16:]
        return out

    def predict_locally(
        self,
        times: Array,
        values: Array,
        noise: Array,
        kind: int,
        centres: Array,
        sds: Array,
        at: Array,
        designs: npt.NDArray[np.int32],
        weights: Array,
        parameters: Array,
        variances: Array,
    ) -> None:
        """Predict as `_cpu.predict_locally` does, in float64, and write designs and predictions.

        The device holds the points, and at most `PER_LAUNCH` predictions.

        Parameters
        ----------
        times, values, noise : float64 [n]
            Ascending times, values without mean and trend, and variances of their noise, above 0.
        kind : int
            Number of the correlation in `dpmix.drift.covariance.CORRELATIONS`.
        centres, sds : float64 [2]
            Centres and standard deviations of the priors of log variance and log range.
        at : float64 [P]
            Times of prediction.
        designs : int32 [P, k]
            Written; k is at most n and `MAX_DESIGN`.
        weights, parameters, variances : float64 [P, k], [P, 2], [P]
            Written; variances are NaN where a covariance is singular.

        Raises
        ------
        DpmixError
            The device fails.
        """
        size = designs.shape[1]
        room = DESIGN if size <= DESIGN else MAX_DESIGN  # so that short stretches compile nothing
        shape = np.int32(kind), np.int32(size)
        prior = [np.float64(one) for one in (*centres, *sds)]
        parameters[:] = np.exp(centres)  # of the first designs
        with self._current():
            grow = self._function("local_designs", "grow_designs", room)
            fit = self._function("local_fits", "fit_designs", room)
            for start in range(0, len(at), PER_LAUNCH):
                own = slice(start, start + PER_LAUNCH)
                grid = (len(at[own]), 1)
                for _ in range(PASSES):
                    grow(
                        *(driver.In(array) for array in (times, noise, at[own], parameters[own])),
                        *(np.int32(len(times)), *shape, driver.Out(designs[own])),
                        grid=grid,
                        block=(CANDIDATES, 1, 1),
                    )
                    fit(
                        *(driver.In(array) for array in (times, values, noise, at[own], designs[own])),
                        *(*shape, *prior),
                        *(driver.Out(array[own]) for array in (parameters, weights, variances)),
                        grid=grid,
                        block=(THREADS, 1, 1),
                    )

    def _hold(self, points: Points, centre: float) -> None:
        """Hold points on the device, with values minus the centre, and variances of the errors."""
        if self._points is points:
            return
        self._points, self._sent = None, []
        arrays = points.times, points.values - centre, points.errors**2, points.neighbours
        self._sent = [driver.to_device(array) for array in arrays]
        self._points = points

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device's context current for one thread at a time; errors of the device are one line."""
        with self._turn:
            self._context.push()
            try:
                yield
            except driver.Error as error:
                self._points, self._sent = None, []
                raise DpmixError(f"{self._info.name}: {failure(error)}") from error
            finally:
                driver.Context.pop()

    def _function(self, source: str, name: str, n_channels: int) -> Any:
        """Return a kernel of SOURCE.cu, which is compiled at first use; the context is current."""
        if (name, n_channels) not in self._functions:
            module = load(build.cubin(source, n_channels, self._info.architecture))
            self._functions[name, n_channels] = module.get_function(name)
        return self._functions[name, n_channels]
