"""Simulation-based calibration, short version; `make sbc` runs the long version."""

from __future__ import annotations

import numpy as np
import pytest
from comparisons import FAMILY, calibration, family_wise, rank_p_values, worst
from whole_chain import FIXED, Schedule

pytestmark = pytest.mark.slow


def test_ranks_of_truths_are_uniform() -> None:
    p_values = calibration(FIXED, 50, Schedule(burn_in=20, draws=15, thin=4))
    assert family_wise(p_values) > FAMILY, worst(p_values)


def test_ranks_that_are_not_uniform_are_caught() -> None:
    rng = np.random.default_rng(1)
    assert min(rank_p_values(rng.integers(16, size=400), 15).values()) > 1e-3
    for draws in (rng.binomial(15, 0.5, size=400), rng.integers(2, 16, size=400)):
        assert min(rank_p_values(draws, 15).values()) < 1e-6
