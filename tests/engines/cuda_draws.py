"""Launches of the kernels of a draw without the engine, for tests of pruning and of sorted statistics."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from engine_contract import Floats

from dpmix.kernels.build import cubin
from dpmix.kernels.layout import CHUNK, EXTRAS, MOMENT_THREADS, SECTIONS, THREADS, Layout
from dpmix.model.mixture import Mixture

Labels = npt.NDArray[np.uint16]
KEY = np.uint64(5 + (3 << 40)), np.uint32(2), np.uint32(7)
WARPS = THREADS // 32


class Drawn(NamedTuple):
    """Labels uint16 [N], log likelihoods float64 [slots, blocks], and the share of multiply-adds."""

    labels: Labels
    log_likelihoods: npt.NDArray[np.float64]
    share: float


class Sorted(NamedTuple):
    """Order uint16 [slots, CHUNK], starts uint32 [slots, K + 1], extra runs uint32 [slots, EXTRAS]."""

    order: Labels
    starts: npt.NDArray[np.uint32]
    extras: npt.NDArray[np.uint32]


class Draws:
    """Events and a mixture in the current context; arrays are copied for every launch."""

    def __init__(
        self,
        events: Floats,
        mixture: Mixture,
        *,
        weights: Floats | None = None,
        weight_floor: float = 25.0,
        with_exact: bool = True,
    ) -> None:
        (self.n_events, dim), self.layout = events.shape, Layout(events.shape[1])
        self.n_slots = -(-self.n_events // CHUNK)
        self.events = np.zeros((self.n_slots * CHUNK, self.layout.padded_dim), np.float32)
        self.events[: self.n_events, :dim] = events
        constants = mixture.log_weights + mixture.log_norms
        self.exact = self.layout.pack(constants, mixture.means, mixture.whiteners)
        self.rows, self.k = self.exact.astype(np.float32), len(self.exact)
        self.chunks = np.arange(self.n_slots, dtype=np.uint32)
        self.weights = None
        if weights is not None:
            self.weights = np.ones(self.n_slots * CHUNK, np.float32)
            self.weights[: self.n_events] = weights
        self.floor, self.with_exact = np.float32(weight_floor), with_exact

    def launch(self, source: str, name: str, grid: tuple[int, int], block: int, *arguments: Any) -> None:
        """Launch a kernel; arrays are read and written, None is a null pointer."""
        import pycuda.driver as cuda

        major, minor = cuda.Context.get_device().compute_capability()
        code = cubin(source, self.layout.n_channels, f"sm_{major}{minor}")
        function = cuda.module_from_buffer(code).get_function(name)
        passed = [
            cuda.InOut(value) if isinstance(value, np.ndarray) else np.uintp(0) if value is None else value
            for value in arguments
        ]
        function(*passed, grid=grid, block=(block, 1, 1))

    def dense(self) -> Drawn:
        """Draw labels by draw_labels."""
        labels, sums, far = self._output()
        numbers = np.uint64(self.n_events), np.uint64(0), np.int32(self.k), self.floor
        tables = self.events, self.rows, self.exact if self.with_exact else None, self.chunks, self.weights
        arguments = *tables, *numbers, *KEY, labels, sums, far
        self.launch("draw_labels", "draw_labels", self._grid, self.layout.draw_threads, *arguments)
        return Drawn(labels[: self.n_events], sums, 1.0)

    def pruned(self, last: Labels, now: Labels | None = None) -> Drawn:
        """Draw labels by draw_sorted, given the last labels."""
        labels, sums, far = self._output()
        labels[: self.n_events] = last
        order = self.sort(labels).order
        each, work = np.full(self.n_slots * CHUNK, np.nan), np.zeros(self.n_slots, np.uint64)
        numbers = np.uint64(self.n_events), np.uint64(0), np.int32(self.k), self.floor
        tables = self.events, self.rows, self.exact if self.with_exact else None, self.chunks, order, now
        grid = self.layout.blocks_per_chunk, self.n_slots
        output = labels, each, far, work
        self.launch("draw_sorted", "draw_sorted", grid, THREADS, *tables, *numbers, *KEY, *output)
        summed = each, self.chunks, self.weights, np.uint64(self.n_events), sums
        self.launch("draw_labels", "sum_log_likelihoods", self._grid, self.layout.draw_threads, *summed)
        dim = self.layout.n_channels
        n_warps = sum(
            -(-min(CHUNK, self.n_events - slot * CHUNK) // self.layout.events_per_block) * WARPS
            for slot in range(self.n_slots)
        )
        whole = n_warps * self.k * (dim * (dim + 1) // 2 + 2 * dim)
        return Drawn(labels[: self.n_events], sums, float(work.sum()) / whole)

    def sort(self, labels: Labels) -> Sorted:
        """Sort events by label, [slots * CHUNK]."""
        counts = np.zeros((self.n_slots, SECTIONS, self.k), np.uint16)
        made = Sorted(
            np.full((self.n_slots, CHUNK), 7, np.uint16),
            np.zeros((self.n_slots, self.k + 1), np.uint32),
            np.zeros((self.n_slots, EXTRAS), np.uint32),
        )
        by_section = (SECTIONS // WARPS, self.n_slots), THREADS
        common = labels, self.chunks, np.uint64(self.n_events), np.int32(self.k), counts
        self.launch("sort_labels", "count_labels", *by_section, *common)
        table = np.int32(self.k), counts, made.starts, made.extras
        self.launch("sort_labels", "place_labels", (1, self.n_slots), MOMENT_THREADS, *table)
        self.launch("sort_labels", "order_events", *by_section, *common, made.order)
        return made

    def moments(self, labels: Labels) -> npt.NDArray[np.float64]:
        """Return the moments of events by label, float64 [slots, K, N_MOMENTS]."""
        made = self.sort(labels)
        moments = np.full((self.n_slots, self.k, self.layout.n_moments), np.nan)
        of_extras = np.full((self.n_slots, EXTRAS, self.layout.n_moments), np.nan)
        arguments = self.events, self.rows, self.weights, *made, np.int32(self.k), moments, of_extras
        grid = self.k + EXTRAS, self.n_slots
        self.launch("accumulate", "accumulate", grid, MOMENT_THREADS, *arguments)
        added = np.int32(self.k), made.extras, of_extras, moments
        self.launch("accumulate", "add_runs", (EXTRAS, self.n_slots), MOMENT_THREADS, *added)
        return moments

    @property
    def _grid(self) -> tuple[int, int]:
        """Blocks of draw_labels.cu."""
        return self.layout.draw_blocks_per_chunk, self.n_slots

    def _output(self) -> tuple[Labels, npt.NDArray[np.float64], npt.NDArray[np.uint32]]:
        labels = np.full(self.n_slots * CHUNK, 65_535, np.uint16)
        sums = np.full((self.n_slots, self.layout.draw_blocks_per_chunk), np.nan)
        return labels, sums, np.zeros(self.n_slots, np.uint32)
