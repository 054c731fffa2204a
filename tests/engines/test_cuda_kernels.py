"""The kernels that the engine does not launch: log densities, and labels from them.

The other kernels are tested through the engine (test_cuda_engine.py), and here the rounding of sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from engine_contract import Floats, native_log_densities, problem
from reference import ReferenceEngine, log_densities

from dpmix.engines import exact
from dpmix.engines.cpu import instruction_sets
from dpmix.kernels.build import FOLDER, cubin
from dpmix.kernels.layout import MOMENT_THREADS, Layout
from dpmix.model.mixture import Array, Mixture
from dpmix.model.streams import Key

SHAPES = [(1, 1, 1), (129, 5, 31), (513, 14, 256), (300, 33, 31)]
Labels = npt.NDArray[np.uint16]


@pytest.fixture
def context(cuda_devices: Callable[[int], None]) -> Iterator[None]:
    """A context on the first device, in this thread."""
    import pycuda.driver as cuda

    cuda_devices(1)
    cuda.init()
    held = cuda.Device(0).make_context()
    yield
    held.pop()


def launch(name: str, n_channels: int, *arguments: Any, grid: int, block: int, source: str = "") -> None:
    import pycuda.driver as cuda

    major, minor = cuda.Context.get_device().compute_capability()
    module = cuda.module_from_buffer(cubin(source or name, n_channels, f"sm_{major}{minor}"))
    module.get_function(name)(*arguments, grid=(grid, 1), block=(block, 1, 1))


def densities_on_device(events: Floats, mixture: Mixture) -> Floats:
    """Return the output of mvn_log_density, float32 [K, N]."""
    import pycuda.driver as cuda

    (n, dim), layout = events.shape, Layout(events.shape[1])
    padded = np.zeros((n, layout.padded_dim), np.float32)
    padded[:, :dim] = events
    constants = mixture.log_weights + mixture.log_norms
    components = layout.pack(constants, mixture.means, mixture.whiteners).astype(np.float32)
    out = np.full((len(components), n), np.nan, np.float32)
    arguments = cuda.In(padded), cuda.In(components), np.int32(n), np.int32(len(components)), cuda.InOut(out)
    launch("mvn_log_density", dim, *arguments, grid=-(-n // layout.events_per_block), block=128)
    return out


def indicators_on_device(densities: Floats, dim: int, key: Key, first_event: int) -> tuple[Labels, Floats]:
    """Return the output of sample_indicators: labels uint16 [N] and log likelihoods float32 [N]."""
    import pycuda.driver as cuda

    n_components, n = densities.shape
    labels, log_likelihoods = np.full(n, 65_535, np.uint16), np.full(n, np.nan, np.float32)
    arguments = cuda.In(densities), np.int32(n), np.uint64(first_event), np.int32(n_components)
    arguments += np.float32(25.0), np.uint64(key.seed), np.uint32(key.chain), np.uint32(key.iteration)
    arguments += cuda.InOut(labels), cuda.InOut(log_likelihoods)
    launch("sample_indicators", dim, *arguments, grid=-(-n // 128), block=128)
    return labels, log_likelihoods


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize(("n", "dim", "n_components"), SHAPES)
def test_log_densities_are_those_of_the_cpu_engine(n: int, dim: int, n_components: int) -> None:
    events, mixture = problem(n, dim, n_components)
    got = densities_on_device(events, mixture).T
    np.testing.assert_allclose(got, log_densities(events, mixture), rtol=5e-6, atol=1e-4)
    if instruction_sets()[0] != "v2":  # which has no fused multiply-add
        np.testing.assert_array_equal(got, native_log_densities(events, mixture))


@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("dim", [14])
def test_the_order_of_threads_does_not_change_a_bit(emulated_devices: Callable[..., None], dim: int) -> None:
    events, mixture = problem(700, dim, 70, spread=0.3)
    found = []
    for order in (0, 1, 9):
        emulated_devices(order=order)
        found.append(densities_on_device(events, mixture))
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])


@pytest.mark.slow
@pytest.mark.usefixtures("context")
@pytest.mark.parametrize("first_event", [0, 2**32 - 100])
@pytest.mark.parametrize(("n", "dim", "n_components"), [(513, 14, 256)])
def test_indicators_are_those_of_the_reference(n: int, dim: int, n_components: int, first_event: int) -> None:
    events, mixture = problem(n, dim, n_components)
    key = Key(seed=5 + (3 << 40), chain=2, iteration=7)
    labels, log_likelihoods = indicators_on_device(
        densities_on_device(events, mixture), dim, key, first_event
    )
    reference = ReferenceEngine(events, first_event=first_event)
    want = reference.draw_labels(mixture, key)
    moved = labels != reference.labels(2)
    assert moved.sum() <= 0.002 * n + 1
    assert (reference.step_distances(mixture, key)[moved] < 1e-4).all()
    np.testing.assert_allclose(log_likelihoods.sum(dtype=float), want.log_likelihood, rtol=2e-6)


@pytest.mark.usefixtures("context")
def test_a_component_without_weight_gets_no_event() -> None:
    events, mixture = problem(500, 5, 31)
    densities = densities_on_device(events, mixture)
    densities[::2] = -np.inf
    labels, _ = indicators_on_device(densities, 5, Key(1, 0, 0), 0)
    assert (labels % 2 == 1).all()


# ---- Rounded sums


def sums_on_device(numbers: Array) -> tuple[Array, Array]:
    """Return the state of sums, float64 [4, n], and the rounded sums, of numbers float64 [slots, n]."""
    import pycuda.driver as cuda

    slots, n = numbers.shape
    out = np.zeros((5, n + 1))
    arrays = cuda.In(numbers), cuda.In(np.zeros(slots)), cuda.In(np.zeros(slots, np.uint32))
    grid = -(-(n + 1) // MOMENT_THREADS)
    counts = np.int32(slots), np.int32(n), np.int32(1)
    arguments = *arrays, *counts, cuda.InOut(out)
    launch("add_chunks", 1, *arguments, grid=grid, block=MOMENT_THREADS, source="sum_chunks")
    return out[:4], out[4]


def hard_numbers() -> Array:
    """Numbers whose sums cancel, are near ties, span many bins or are not finite, float64 [5, 600]."""
    rng = np.random.default_rng(3)
    numbers = rng.normal(size=(5, 600)) * np.exp2(rng.integers(-300, 300, (5, 600)))
    numbers[3:, :200] = -numbers[:2, :200] * (1.0 + np.exp2(-rng.integers(30, 60, (2, 200))))
    numbers[1, 200:205] = np.inf, -np.inf, np.nan, 1e308, 0.0
    numbers[2, 205:207] = np.inf, -np.inf
    numbers[:, 210:215] = 0.0
    near_ties = [1.0 + rng.integers(1 << 40, size=300) * 2.0**-52, [2.0**-53] * 300, [2.0**-75] * 300]
    numbers[:3, 300:] = np.array(near_ties) * np.exp2(rng.integers(-100, 100, 300))
    numbers[3:, 300:] = 0.0
    return numbers


@pytest.mark.usefixtures("context")
def test_a_device_rounds_sums_as_the_host_does() -> None:
    state, rounded = sums_on_device(hard_numbers())
    np.testing.assert_array_equal(rounded, exact.values(state))
    assert np.isfinite(rounded).sum() > 580


@pytest.mark.usefixtures("context")
def test_sums_that_a_device_rounds_twice_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (*FOLDER.glob("*.cuh"), FOLDER / "sum_chunks.cu"):
        text = path.read_text().replace("high + (high_error + low_error)", "a0 + (a1 + a2)")
        (tmp_path / path.name).write_text(text)
    monkeypatch.setattr("dpmix.kernels.build.FOLDER", tmp_path)
    state, rounded = sums_on_device(hard_numbers())
    with pytest.raises(AssertionError):
        np.testing.assert_array_equal(rounded, exact.values(state))
