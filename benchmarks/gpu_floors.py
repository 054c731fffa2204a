"""Floors of the CUDA kernels: the work that each cannot avoid, and the unit of a device that limits it.

A kernel's floor is the longest of the times that its multiply-adds, its exponentials and its memory
traffic take at the rates that gpu_limits.py measures. Traffic counts each event, label and result once.
Loads of components from shared memory depend on the events per thread; they count for the limiting unit,
not for the floor, because another shape of blocks needs fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from dpmix.kernels.layout import CHUNK, EXTRAS, ROWS, SECTIONS, THREADS, Layout

SCREEN = 20
"""Judgements of a screen of `dpmix explore`."""

UNITS = {
    "float32": "multiply_add_per_second",
    "float64": "multiply_add_double_per_second",
    "exponential": "exponential_per_second",
    "memory": "copy_bytes_per_second",
    "shared": "load_shared_per_second",
}
"""Units of a device, with the name of the measured rate."""


class Shape(NamedTuple):
    """Sizes of a pass.

    Attributes
    ----------
    n_events, n_channels, n_components, n_populations : int
    weighted : float
        Mean number of components that have weight for an event.
    in_pairs : float
        Events of a division, as a share of all.
    """

    n_events: int
    n_channels: int
    n_components: int
    n_populations: int
    weighted: float
    in_pairs: float

    @property
    def layout(self) -> Layout:
        return Layout(self.n_channels)

    @property
    def per_pair(self) -> int:
        """Multiply-adds of one log density: differences, products with the whitener, squares."""
        return self.n_channels * (self.n_channels + 1) // 2 + 2 * self.n_channels

    @property
    def event_bytes(self) -> int:
        return self.n_events * self.layout.padded_dim * 4

    @property
    def moment_bytes(self) -> int:
        n_chunks = -(-self.n_events // CHUNK)
        return n_chunks * self.n_components * self.layout.n_moments * 8


class Work(NamedTuple):
    """Operations of a launch, in the units of UNITS; loads are counted by warp."""

    float32: float
    exponential: float
    memory: float
    shared: float = 0.0
    float64: float = 0.0


class Floor(NamedTuple):
    """Milliseconds of the floor, and the unit that takes longest."""

    milliseconds: float
    unit: str


def evaluations(shape: Shape, times: float = 1.0) -> Work:
    """Return the work of evaluating every component for every event, several times."""
    pairs = times * shape.n_events * shape.n_components
    events_per_load = 32 * shape.layout.events_per_block // THREADS
    loads = pairs * shape.layout.pack_dim / 4 / events_per_load
    return Work(pairs * shape.per_pair, pairs, shape.event_bytes, loads)


def draw(shape: Shape) -> Work:
    work, layout = evaluations(shape), shape.layout
    of_draws = layout.draw_events_per_block / layout.draw_threads  # events per thread
    shared = work.shared * layout.events_per_block / THREADS / of_draws
    return work._replace(memory=shape.event_bytes + 2 * shape.n_events, shared=shared)


def draw_sorted(shape: Shape) -> Work:
    """Return the work of a draw that evaluates the components with weight alone."""
    weighted = shape.n_events * shape.weighted
    return Work(weighted * shape.per_pair, weighted, shape.event_bytes + 14 * shape.n_events)


def traffic(bytes_per_event: float) -> Callable[[Shape], Work]:
    """Return the work of a kernel that only reads and writes numbers of events."""
    return lambda shape: Work(0.0, 0.0, bytes_per_event * shape.n_events)


def place_labels(shape: Shape) -> Work:
    return Work(0.0, 0.0, -(-shape.n_events // CHUNK) * shape.n_components * (4 * SECTIONS + 4))


def add_runs(shape: Shape) -> Work:
    return Work(0.0, 0.0, -(-shape.n_events // CHUNK) * EXTRAS * 4)


def accumulate(shape: Shape) -> Work:
    sums = shape.n_events * (shape.layout.n_moments + shape.n_channels)
    return Work(sums, 0.0, shape.event_bytes + 2 * shape.n_events + shape.moment_bytes)


def expect_totals(shape: Shape) -> Work:
    return evaluations(shape)._replace(memory=shape.event_bytes + 10 * shape.n_events)


def expect_moments(shape: Shape) -> Work:
    whole = evaluations(shape)
    sums = shape.n_events * shape.weighted * shape.layout.n_moments
    return whole._replace(
        float32=whole.float32 + sums,
        exponential=shape.n_events * shape.weighted,
        memory=shape.event_bytes + 10 * shape.n_events + shape.moment_bytes,
    )


def sum_parts(shape: Shape) -> Work:
    return Work(0.0, 0.0, 8 * shape.n_events / shape.layout.events_per_block)


def add_chunks(shape: Shape) -> Work:
    return Work(0.0, 0.0, shape.moment_bytes)


def copy_rows(shape: Shape) -> Work:
    n_chunks = -(-shape.n_events // CHUNK)
    return Work(0.0, 0.0, n_chunks * shape.n_components * (shape.n_channels + 1) * 16)


def memberships(shape: Shape) -> Work:
    whole = evaluations(shape, times=2.0)
    written = shape.n_events * (4 * shape.n_populations + 8)
    return whole._replace(exponential=whole.exponential / 2, memory=shape.event_bytes + written)


def divide(shape: Shape) -> Work:
    events = shape.n_events * shape.in_pairs
    memory = 2 * shape.n_events + events * (shape.layout.padded_dim * 4 + 2)
    return Work(2 * events * shape.per_pair, 2 * events, memory)


def mvn_log_density(shape: Shape) -> Work:
    whole = evaluations(shape)
    return whole._replace(exponential=0.0, memory=whole.memory + 4 * shape.n_events * shape.n_components)


def sample_indicators(shape: Shape) -> Work:
    pairs = shape.n_events * shape.n_components
    return Work(pairs, pairs, 4 * pairs + 6 * shape.n_events)


def vecchia(shape: Shape) -> Work:
    """Return the work of Vecchia's likelihood of as many points as events and neighbours as channels.

    A Cholesky factorisation, six triangular solutions, a product with a matrix, and twelve inner products.
    Exponentials in float64 are left out.
    """
    size = shape.n_channels + 1
    products = size**3 / 6 + 4 * size**2 + 12 * size
    memory = shape.n_events * (3 * 8 + 4 * shape.n_channels)
    return Work(0.0, 0.0, memory, float64=shape.n_events * products)


def posterior(shape: Shape) -> Work:
    """Return the work of a Gaussian process's pass for a screen, with as many judgements as components.

    A difference and a multiply-add or addition for each channel, an exponential, and a column of new rows.
    """
    pairs = shape.n_events * shape.n_components
    events_per_load = 32 * shape.layout.events_per_block // THREADS
    loads = pairs * (shape.layout.padded_dim + ROWS) / 4 / events_per_load
    memory = shape.n_events * 4 * (shape.n_channels + 4)
    return Work(pairs * (2 * shape.n_channels + SCREEN), pairs, memory, loads)


def vecchia_float(shape: Shape) -> Work:
    """Return the work of the same in float32, with an exponential for each pair of points of a system.

    The differences of times and the sums over points are float64.
    """
    size, whole = shape.n_channels + 1, vecchia(shape)
    exponentials = shape.n_events * size * (size - 1) / 2
    return Work(whole.float64, exponentials, whole.memory, float64=shape.n_events * (size + VECCHIA_SUMS))


def grow_designs(shape: Shape) -> Work:
    """Return the work of as many local designs as events, of as many points as channels, from 256 candidates.

    A column of a factor for each candidate, and the gains. Exponentials in float64 are left out.
    """
    size = shape.n_channels
    memory = shape.n_events * (3 * 8 + 4 * size)
    return Work(0.0, 0.0, memory, float64=shape.n_events * CANDIDATES * (size**2 / 2 + 4 * size))


def fit_designs(shape: Shape) -> Work:
    """Return the work of their fits, with the least number of steps.

    Factorisations of the covariance at the points of the grid and at one step; an inverse and its product.
    """
    size = shape.n_channels
    products = (GRID + 1) * (size**3 / 6 + size**2) + 4 / 3 * size**3
    memory = shape.n_events * (4 * 8 + 12 * size)
    return Work(0.0, 0.0, memory, float64=shape.n_events * products)


CANDIDATES, GRID = 256, 25
"""Candidates and grid of the local Gaussian processes of `dpmix drift`."""

VECCHIA_SUMS = 22
"""Numbers to which a point adds."""

KERNELS: dict[str, Callable[[Shape], Work]] = {
    "draw_labels": draw,
    "draw_sorted": draw_sorted,
    "sum_log_likelihoods": traffic(8),
    "count_labels": traffic(2),
    "place_labels": place_labels,
    "order_events": traffic(4),
    "accumulate": accumulate,
    "add_runs": add_runs,
    "expect_totals": expect_totals,
    "expect_moments": expect_moments,
    "memberships": memberships,
    "sum_parts": sum_parts,
    "add_chunks": add_chunks,
    "copy_rows": copy_rows,
    "divide": divide,
    "mvn_log_density": mvn_log_density,
    "sample_indicators": sample_indicators,
    "vecchia_threads": vecchia,
    "vecchia_batches": vecchia,
    "vecchia_blocks": vecchia,
    "grow_designs": grow_designs,
    "fit_designs": fit_designs,
    "posterior_gaussian": posterior,
    "posterior_laplacian": posterior,
    "vecchia_threads_float": vecchia_float,
    "vecchia_batches_float": vecchia_float,
    "vecchia_blocks_float": vecchia_float,
}


def floor(kernel: str, shape: Shape, rates: Mapping[str, float]) -> Floor | None:
    """Return the floor of a kernel; None if it has no model or a rate is missing.

    Parameters
    ----------
    kernel : str
    shape : Shape
    rates : mapping
        Operations per second, under the names of `UNITS`.
    """
    if kernel not in KERNELS or any(rates.get(name) is None for name in UNITS.values()):
        return None
    work = KERNELS[kernel](shape)._asdict()
    times = {unit: work[unit] / rates[name] * 1e3 for unit, name in UNITS.items()}
    slowest = max(times, key=lambda unit: times[unit])
    return Floor(max(times[unit] for unit in UNITS if unit != "shared"), slowest)
