"""Shapes and layouts of the CUDA kernels in Python (limits.cuh, mixture.cuh and moments.cuh).

K components, D channels. A packed row of a component holds, by columns of W, its whitener times sqrt(1/2):

    constant, then for i = 0 .. D-1: mean_i, W_ii, W_(i+1)i, .. W_(D-1)i; zeros to PACK_DIM

The moments of a component are the lower triangle, by rows, of the sum of r z z' with z = (x - mean, 1). Row D
holds the sums and, at its end, the count.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]

CHUNK: int = 65_536
"""Number of consecutive events in a chunk of the grid on which every engine forms statistics.

Statistics of one chunk are formed in one order. Statistics of several chunks are added in a way that does not
depend on their order (dpmix.engines.exact).
"""
MAX_CHANNELS: int = 64
MAX_COMPONENTS: int = 4096
THREADS = 128
MOMENT_THREADS = 256
PARTS = 8
"""Blocks that share a chunk's events of a pair in divide.cu."""


class Layout:
    """Sizes that follow from the number of channels, under the names of the kernels.

    Attributes
    ----------
    padded_dim : int
        Floats per event.
    pack_dim : int
        Numbers per packed component.
    events_per_block, blocks_per_chunk : int
        Events per block, and blocks per chunk, of the kernels that give every event a thread.
    n_moments : int
        Numbers in the moments of a component.
    """

    def __init__(self, n_channels: int) -> None:
        self.n_channels = n_channels
        self.padded_dim = (n_channels + 3) // 4 * 4
        self.pack_dim = (1 + n_channels + n_channels * (n_channels + 1) // 2 + 3) // 4 * 4
        self.events_per_block = THREADS * (4 if self.padded_dim <= 16 else 2 if self.padded_dim <= 32 else 1)
        self.blocks_per_chunk = CHUNK // self.events_per_block
        self.n_moments = (n_channels + 1) * (n_channels + 2) // 2

    def pack(self, log_constants: Array, means: Array, whiteners: Array) -> Array:
        """Return a mixture in packed rows, float64 [K, PACK_DIM]; kernels evaluate them rounded to float32.

        Parameters
        ----------
        log_constants : float64 [K]
            log pi_j + log of the normal density at its mean.
        means : float64 [K, D]
        whiteners : float64 [K, D, D]
            Lower triangular.
        """
        n_components = len(means)
        columns, rows = self._triangle
        packed = np.zeros((n_components, self.pack_dim))
        packed[:, 0] = log_constants
        packed[:, self._mean_places] = means
        packed[:, self._whitener_places] = whiteners[:, rows, columns] * np.sqrt(0.5)
        return packed

    def unpack_moments(self, moments: Array) -> tuple[Array, Array, Array]:
        """Return counts [K], sums [K, D] and scatters [K, D, D] from moments [K, N_MOMENTS], all float64."""
        dim = self.n_channels
        sums = moments[:, -dim - 1 : -1].copy()
        return moments[:, -1].copy(), sums, np.take(moments, self._scatter_places, axis=1)

    @cached_property
    def _triangle(self) -> tuple[Places, Places]:
        """Columns and rows of a lower triangle by columns: the transpose of an upper triangle by rows."""
        columns, rows = np.triu_indices(self.n_channels)
        return columns, rows

    @cached_property
    def _mean_places(self) -> Places:
        column = np.arange(self.n_channels)
        return 1 + column * (self.n_channels + 1) - column * (column - 1) // 2

    @cached_property
    def _whitener_places(self) -> Places:
        columns, rows = self._triangle
        places: Places = self._mean_places[columns] + 1 + rows - columns
        return places

    @cached_property
    def _scatter_places(self) -> Places:
        a, b = np.indices((self.n_channels, self.n_channels))
        high, low = np.maximum(a, b), np.minimum(a, b)
        places: Places = high * (high + 1) // 2 + low
        return places
