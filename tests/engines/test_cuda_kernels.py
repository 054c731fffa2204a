"""The kernels that the engine does not launch: log densities, and labels from them.

The other kernels are tested through the engine (test_cuda_engine.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from engine_contract import Floats, native_log_densities, problem
from reference import ReferenceEngine, log_densities

from dpmix.engines.cpu import instruction_sets
from dpmix.kernels.build import cubin
from dpmix.kernels.layout import Layout
from dpmix.model.mixture import Mixture
from dpmix.model.streams import Key

SHAPES = [
    (1, 1, 1),
    (1001, 1, 2),
    (1, 2, 1),
    (700, 2, 1000),
    (129, 5, 31),
    (513, 14, 256),
    (600, 16, 33),
    (257, 17, 32),
    (300, 33, 31),
    (129, 64, 33),
    (500, 64, 33),
    (300, 2, 4096),
]
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


def launch(name: str, n_channels: int, *arguments: Any, grid: int, block: int) -> None:
    import pycuda.driver as cuda

    major, minor = cuda.Context.get_device().compute_capability()
    module = cuda.module_from_buffer(cubin(name, n_channels, f"sm_{major}{minor}"))
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
@pytest.mark.parametrize("dim", [5, 14, 33])
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
@pytest.mark.parametrize(("n", "dim", "n_components"), SHAPES)
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
