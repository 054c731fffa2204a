"""Checks of events, options and mixtures, shared by all engines."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmix.engines.exact import MAX_ADDITIONS
from dpmix.kernels.layout import CHUNK, MAX_CHANNELS, MAX_COMPONENTS
from dpmix.model.mixture import Array, Ints, Mixture
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment

MAX_EVENTS = MAX_ADDITIONS * CHUNK
"""Limit for all parts of the data: every chunk is an addition to each sum (dpmix.engines.exact)."""


def check_events(events: npt.NDArray[np.float32]) -> None:
    """Raise ValueError unless events are a C-contiguous float32 [N, D] with N >= 1 and 1 <= D <= 64."""
    if events.dtype != np.float32 or events.ndim != 2 or not events.flags.c_contiguous:
        raise ValueError(
            f"events: got {events.dtype} {list(events.shape)}, need C-contiguous float32 [events, channels]"
        )
    if len(events) == 0 or not 1 <= events.shape[1] <= MAX_CHANNELS:
        raise ValueError(
            f"events: got {events.shape[0]} events in {events.shape[1]} channels, "
            f"need at least 1 event and 1 to {MAX_CHANNELS} channels"
        )


def check_options(n_events: int, weight_floor: float, chunks_in_flight: int | None, first_event: int) -> None:
    """Raise ValueError if a common option is out of its range, or if there are too many events."""
    if n_events > MAX_EVENTS:
        raise ValueError(f"events: got {n_events}, need at most {MAX_EVENTS}, or their sums would be rounded")
    if chunks_in_flight is not None and chunks_in_flight < 1:
        raise ValueError(f"chunks_in_flight: got {chunks_in_flight}, need at least 1")
    if not 1.0 <= weight_floor <= 80.0:
        raise ValueError(f"weight_floor: got {weight_floor}, need 1 to 80 nats (float32 ends at 87)")
    if not 0 <= first_event < 2**64 - n_events:
        raise ValueError(f"first_event: got {first_event}, need at least 0")


def check_weights(weights: SampleWeights | None, n_events: int) -> None:
    """Raise ValueError if weights are for another number of events."""
    if weights is not None and weights.n_events != n_events:
        raise ValueError(f"weights: got weights of {weights.n_events} events, need {n_events}")


def checked_parameters(mixture: Mixture, n_channels: int) -> tuple[Array, Array, Array]:
    """Check a mixture of D channels and return the parameters that engines evaluate.

    Returns
    -------
    log_constants : float64 [K]
        log pi_j + log of the normal density at its mean.
    means : float64 [K, D]
    whiteners : float64 [K, D, D]

    Raises
    ------
    ValueError
        Shapes do not match, the number of components is out of range, numbers are not finite, or samples
        have their own weights.
    """
    if mixture.samples is not None:
        raise ValueError("mixture: this engine has one mixture for all events, not one for each sample")
    n_components = len(mixture.means)
    if not 1 <= n_components <= MAX_COMPONENTS:
        raise ValueError(f"mixture: got {n_components} components, need 1 to {MAX_COMPONENTS}")
    constants = np.ascontiguousarray(mixture.log_weights + mixture.log_norms, dtype=np.float64)
    means = np.ascontiguousarray(mixture.means, dtype=np.float64)
    whiteners = np.ascontiguousarray(mixture.whiteners, dtype=np.float64)
    expected = ((n_components,), (n_components, n_channels), (n_components, n_channels, n_channels))
    shapes = (constants.shape, means.shape, whiteners.shape)
    if shapes != expected:
        raise ValueError(f"mixture: got arrays of shapes {shapes}, need {expected}")
    check_constants(constants)
    check_finite(means)
    check_finite(whiteners)
    return constants, means, whiteners


def check_constants(constants: Array) -> None:
    """Raise ValueError unless log constants [..., K] are below infinity, and one in each row is finite."""
    if not np.isfinite(constants.max(axis=-1)).all():
        raise ValueError("mixture: log weights must be below infinity, and finite for one component at least")


def check_finite(parameters: Array) -> None:
    """Raise ValueError unless means or whiteners are finite."""
    if not np.isfinite(parameters).all():
        raise ValueError("mixture: means and whiteners must be finite")


def check_samples(mixture: Mixture, n_samples: int) -> None:
    """Raise ValueError unless a mixture has weights and a shift of each sample."""
    if mixture.samples is None or len(mixture.samples.shifts) != n_samples:
        raise ValueError(f"mixture: need weights and shifts of {n_samples} samples")


def numbers_now(mixture: Mixture) -> npt.NDArray[np.uint16]:
    """Return the present number of each component of the last labels, uint16 [K]: the inverse of the order.

    Raises
    ------
    ValueError
        The order does not have each of 0, ..., K - 1 once.
    """
    numbers = np.arange(len(mixture.means), dtype=np.uint16)
    if mixture.order is None:
        return numbers
    if not np.array_equal(np.sort(mixture.order), numbers):
        raise ValueError(f"mixture: order must hold each of 0 to {len(numbers) - 1} once")
    now = np.empty_like(numbers)
    # The inverse of the order: the engine asks which number the component of an old label has now.
    now[mixture.order] = numbers
    return now


def checked_populations(populations: Ints, n_components: int) -> npt.NDArray[np.int32]:
    """Check the population of each component and return it as int32 [K].

    Raises
    ------
    ValueError
        They are not an integer from 0 to 4095 for each component.
    """
    if populations.shape != (n_components,) or not np.issubdtype(populations.dtype, np.integer):
        raise ValueError(
            f"populations: got {populations.dtype} {list(populations.shape)}, "
            f"need an integer for each of {n_components} components"
        )
    low, high = populations.min(), populations.max()
    if low < 0 or high >= MAX_COMPONENTS:
        raise ValueError(f"populations: got {low} to {high}, need 0 to {MAX_COMPONENTS - 1}")
    return np.ascontiguousarray(populations, dtype=np.int32)


def checked_split(split: SplitAssignment, n_components: int) -> SplitAssignment:
    """Check a split to the pairs of a mixture's components and return it as contiguous arrays.

    Raises
    ------
    ValueError
        It does not match `dpmix.model.split_merge.SplitAssignment`, or the number of components is odd.
    """
    if n_components % 2:
        raise ValueError(f"split: got a mixture of {n_components} components, need 2 for each pair")
    n_pairs = n_components // 2
    pairs, sides = np.asarray(split.pairs), np.asarray(split.sides)
    if pairs.ndim != 1 or pairs.shape != sides.shape or not 1 <= len(pairs) <= MAX_COMPONENTS:
        raise ValueError(
            f"split: got pairs {list(pairs.shape)}, sides {list(sides.shape)}, need both for each component"
        )
    if pairs.min() < -1 or pairs.max() >= n_pairs or sides.min() < -1 or sides.max() > 1:
        raise ValueError(f"split: need pairs from -1 to {n_pairs - 1} and sides -1, 0 or 1")
    if split.word not in (1, 2, 3):
        raise ValueError(f"split: got word {split.word}, need 1, 2 or 3")
    return SplitAssignment(
        np.ascontiguousarray(pairs, np.int32), np.ascontiguousarray(sides, np.int8), split.word
    )


def check_range(start: int, stop: int, n_events: int) -> None:
    """Raise ValueError unless start, ..., stop - 1 are events, at least one."""
    if not 0 <= start < stop <= n_events:
        raise ValueError(
            f"range: got events {start} to {stop - 1}, need at least one of the events 0 to {n_events - 1}"
        )


def rounded(means: Array) -> Array:
    """Return means rounded to float32, the centres of sums and scatters, as float64 [K, D]."""
    return means.astype(np.float32).astype(np.float64)
