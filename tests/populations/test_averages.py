"""The sums of memberships over draws, kernels/cpu/averages.cpp, against NumPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpmix.kernels import _cpu
from dpmix.populations.events.proportions import draw_populations

N_DRAWS = 3
GOLDEN = np.float32(0.6180339887)


@pytest.mark.parametrize("n_events", [0, 1, 15, 16, 17, 10_000])
@pytest.mark.parametrize("n_populations", [1, 2, 5, 40])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_sums_of_any_threads_are_those_of_numpy(n_events: int, n_populations: int, threads: int) -> None:
    """Bit for bit, also where a population has no weight in the sample or a uniform is at an end."""
    rng = np.random.default_rng(n_populations)
    memberships = rng.dirichlet(np.full(n_populations, 0.3), (N_DRAWS, n_events)).astype(np.float32)
    ratios = rng.uniform(0.01, 3.0, (N_DRAWS, n_populations)).astype(np.float32)
    if n_populations > 2:
        ratios[0, 1] = 0.0
    uniforms = rng.random(n_events, np.float32)
    uniforms[:2] = np.float32([0.0, 1.0 - 2.0**-24])[:n_events]

    total, counts = np.zeros((n_populations, n_events), np.float32), np.zeros((N_DRAWS, n_populations), int)
    wanted, drawn = np.zeros_like(total), np.zeros_like(counts)
    expected = uniforms.copy()
    for t in range(N_DRAWS):
        _cpu.add_memberships(memberships[t], ratios[t], threads, uniforms, total, counts[t])

        terms = memberships[t].T * ratios[t][:, None]
        drawn[t] = np.bincount(draw_populations(terms, expected), minlength=n_populations)
        sums = terms[0].copy()
        for term in itertools.islice(terms, 1, None):
            sums += term
        wanted += terms / sums
        expected = np.mod(expected + GOLDEN, np.float32(1.0))
    np.testing.assert_array_equal(total, wanted)
    np.testing.assert_array_equal(counts, drawn)
    np.testing.assert_array_equal(uniforms, expected)
