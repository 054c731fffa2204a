"""Shapes and layouts of the CUDA kernels in Python (limits.cuh, mixture.cuh and moments.cuh).

K components, D channels. A packed row of a component holds W, its whitener times sqrt(1/2), by rows:

    constant, then for r = 0 .. D-1: mean_r, W_r0, W_r1, .. W_rr; zeros to PACK_DIM

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
SECTIONS = 64
"""Sections of a chunk, each sorted by one warp (sort_labels.cu)."""
EXTRAS = 32
"""Most runs of a chunk after the first one of each component (runs.cuh)."""
PARTS = 8
"""Blocks that share a chunk's events of a pair in divide.cu."""
ROWS = 24
"""Rows of a round of gaussian_process.cu."""


class Layout:
    """Sizes that follow from the number of channels, under the names of the kernels.

    Attributes
    ----------
    padded_dim : int
        Floats per event.
    pack_dim : int
        Numbers per packed component.
    events_per_block, blocks_per_chunk : int
        Events per block of THREADS, and blocks per chunk, of the kernels that give every event a thread.
    draw_threads, draw_events_per_block, draw_blocks_per_chunk : int
        The same, with the threads of a block, of draw_labels.cu, which has other shapes of blocks.
    joint : int
        Components of a block of expect_moments (expect_labels.cu).
    n_moments : int
        Numbers in the moments of a component.
    """

    def __init__(self, n_channels: int) -> None:
        self.n_channels = n_channels
        self.padded_dim = (n_channels + 3) // 4 * 4
        self.pack_dim = (1 + n_channels + n_channels * (n_channels + 1) // 2 + 3) // 4 * 4
        self.events_per_block = THREADS * (4 if self.padded_dim <= 16 else 2 if self.padded_dim <= 32 else 1)
        self.joint = self.events_per_block // THREADS
        self.blocks_per_chunk = CHUNK // self.events_per_block
        self.draw_threads = 256 if n_channels > 61 else THREADS
        per_thread = 2 if self.padded_dim == 8 else self.joint
        self.draw_events_per_block = self.draw_threads * per_thread
        self.draw_blocks_per_chunk = CHUNK // self.draw_events_per_block
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
        n_components, square = len(means), self.n_channels**2
        numbers = np.zeros((n_components, square + self.n_channels + 2))  # the last one pads
        np.multiply(whiteners.reshape(n_components, square), np.sqrt(0.5), out=numbers[:, :square])
        numbers[:, square:-2] = means
        numbers[:, -2] = log_constants
        packed: Array = numbers.take(self._pack_places, axis=1)  # faster than assigning to places
        return packed

    def of_sample(self, packed: Array, log_constants: Array, shift: Array) -> Array:
        """Return packed rows with the constants [K] of a sample and with means moved by its shift [D]."""
        own = packed.copy()
        own[:, 0] = log_constants
        own[:, self._mean_places] += shift
        return own

    def unpack_moments(self, moments: Array) -> tuple[Array, Array, Array]:
        """Return counts [K], sums [K, D] and scatters [K, D, D] from moments [K, N_MOMENTS], all float64."""
        dim = self.n_channels
        sums = moments[:, -dim - 1 : -1].copy()
        return moments[:, -1].copy(), sums, np.take(moments, self._scatter_places, axis=1)

    @cached_property
    def _pack_places(self) -> Places:
        """For each number of a packed row, its place in: whitener by rows, mean, constant, zero."""
        dim = self.n_channels
        rows, columns = np.tril_indices(dim)
        places = np.full(self.pack_dim, dim * dim + dim + 1)
        places[0] = dim * dim + dim
        places[self._mean_places] = dim * dim + np.arange(dim)
        places[self._mean_places[rows] + 1 + columns] = rows * dim + columns
        return places

    @cached_property
    def _mean_places(self) -> Places:
        row = np.arange(self.n_channels)
        return 1 + row * (row + 3) // 2

    @cached_property
    def _scatter_places(self) -> Places:
        a, b = np.indices((self.n_channels, self.n_channels))
        high, low = np.maximum(a, b), np.minimum(a, b)
        places: Places = high * (high + 1) // 2 + low
        return places
