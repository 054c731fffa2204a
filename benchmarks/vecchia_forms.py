"""Vecchia's likelihood written plainly, in NumPy and in Numba, for benchmarks/drift_speed.py.

Both return the sums of `dpmix.kernels._cpu.vecchia` for a Matern covariance of smoothness 3/2, point by
point, float64 [22]: log determinant, y'y, 1'y and 1'1 of the whitened vectors, their derivatives by
parameter, and the lower triangle of the information.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from scipy.linalg import solve_triangular

from dpmix.drift.covariance import Covariance
from dpmix.drift.points import Points
from dpmix.kernels import _cpu
from dpmix.model.mixture import Array

ROOT3 = np.sqrt(3.0)
N_SUMS = 4 + 12 + 6


def sums_of(out: Array) -> Array:
    """Return the sums in the order of this module from the sums by `dpmix.kernels._cpu.vecchia` [7, 4]."""
    return np.concatenate((out[:4, 0], out[:4, 1:].ravel(), out[4:, :3][np.tril_indices(3)]))


def native(points: Points, own: Covariance, isa: str, threads: int = 1) -> Array:
    """Return the sums of dpmix's pass over all points."""
    out = np.empty((7, 4))
    parameters = (own.variance, own.range, own.nugget)
    _cpu.vecchia(
        points.times, points.values, points.errors**2, points.neighbours, 1, *parameters, isa, threads, out
    )
    return sums_of(out)


def numpy_form(points: Points, own: Covariance, chosen: Iterable[int]) -> Array:
    """Return the sums over the chosen points, with matrices of NumPy and triangular solves of SciPy."""
    sums = np.zeros(N_SUMS)
    for i in chosen:
        near = points.neighbours[i]
        places = np.append(near[near >= 0], i)
        t, y = points.times[places], points.values[places]
        a = ROOT3 / own.range * np.abs(t[:, None] - t)
        decay = np.exp(-a)
        signal = own.variance * (1.0 + a) * decay
        by_range = own.variance * a**2 * decay
        cov = signal + np.diag(own.nugget + points.errors[places] ** 2)
        factor = np.linalg.cholesky(cov)
        last = np.zeros(len(t))
        last[-1] = 1.0
        white = solve_triangular(factor, np.column_stack((y, np.ones(len(t)))), lower=True)
        w = solve_triangular(factor, last, lower=True, trans="T")
        slopes = np.column_stack((signal @ w, by_range @ w, own.nugget * w))
        columns = solve_triangular(factor, slopes, lower=True)
        u, x, diagonal = white[-1, 0], white[-1, 1], columns[-1]
        with_y, with_one = columns.T @ white[:, 0], columns.T @ white[:, 1]
        information = columns.T @ columns - 0.5 * np.outer(diagonal, diagonal)
        sums[:4] += 2.0 * np.log(factor[-1, -1]), u * u, u * x, x * x
        sums[4:7] += diagonal
        sums[7:10] += diagonal * u * u - 2.0 * u * with_y
        sums[10:13] += diagonal * u * x - x * with_y - u * with_one
        sums[13:16] += diagonal * x * x - 2.0 * x * with_one
        sums[16:] += information[np.tril_indices(3)]
    return sums


def numba_form() -> Callable[..., None]:
    """Compile the form with loops: pass(times, values, known, neighbours, chosen, parameters [3], sums).

    Raises
    ------
    ImportError
        Numba is not installed.
    """
    from numba import njit

    return njit(error_model="numpy")(_loops)  # type: ignore[no-any-return]


def _loops(
    times: Array,
    values: Array,
    known: Array,
    neighbours: np.ndarray,
    chosen: np.ndarray,
    parameters: Array,
    sums: Array,
) -> None:
    variance, scale, nugget = parameters
    most = neighbours.shape[1] + 1
    cov, slope = np.empty((most, most)), np.empty((most, most))
    noise, white, w, columns = np.empty(most), np.empty((2, most)), np.empty(most), np.empty((3, most))
    places = np.empty(most, np.int64)
    for i in chosen:
        size = 0
        while size < most - 1 and neighbours[i, size] >= 0:
            places[size] = neighbours[i, size]
            size += 1
        places[size] = i
        size += 1
        for r in range(size):
            noise[r] = nugget + known[places[r]]
            white[0, r], white[1, r] = values[places[r]], 1.0
            for c in range(r + 1):
                a = 1.7320508075688772 * abs(times[places[r]] - times[places[c]]) / scale
                decay = np.exp(-a)
                cov[r, c] = variance * (1.0 + a) * decay
                slope[r, c] = variance * a * a * decay
            cov[r, r] += noise[r]
        for r in range(size):  # Cholesky factor, by rows, and L^-1 of values and ones
            for c in range(r + 1):
                total = cov[r, c]
                for k in range(c):
                    total -= cov[r, k] * cov[c, k]
                cov[r, c] = np.sqrt(total) if r == c else total / cov[c, c]
            for v in range(2):
                for k in range(r):
                    white[v, r] -= cov[r, k] * white[v, k]
                white[v, r] /= cov[r, r]
        for r in range(size):
            w[r] = 1.0 if r == size - 1 else 0.0
        for r in range(size - 1, -1, -1):
            w[r] /= cov[r, r]
            for c in range(r):
                w[c] -= cov[r, c] * w[r]
        for r in range(size):
            columns[0, r], columns[1, r], columns[2, r] = -noise[r] * w[r], slope[r, r] * w[r], nugget * w[r]
        for r in range(size):
            for c in range(r):
                columns[1, r] += slope[r, c] * w[c]
                columns[1, c] += slope[r, c] * w[r]
        for v in range(3):
            for r in range(size):
                for k in range(r):
                    columns[v, r] -= cov[r, k] * columns[v, k]
                columns[v, r] /= cov[r, r]
        columns[0, size - 1] += 1.0
        u, x = white[0, size - 1], white[1, size - 1]
        sums[0] += 2.0 * np.log(cov[size - 1, size - 1])
        sums[1] += u * u
        sums[2] += u * x
        sums[3] += x * x
        place = 16
        for p in range(3):
            diagonal, with_y, with_one = columns[p, size - 1], 0.0, 0.0
            for k in range(size):
                with_y += columns[p, k] * white[0, k]
                with_one += columns[p, k] * white[1, k]
            sums[4 + p] += diagonal
            sums[7 + p] += diagonal * u * u - 2.0 * u * with_y
            sums[10 + p] += diagonal * u * x - x * with_y - u * with_one
            sums[13 + p] += diagonal * x * x - 2.0 * x * with_one
            for q in range(p + 1):
                total = -0.5 * diagonal * columns[q, size - 1]
                for k in range(size):
                    total += columns[p, k] * columns[q, k]
                sums[place] += total
                place += 1
