"""The statistical tests at the size at which they are run on wrong samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import test_gibbs
from exact_cases import exact_posterior, split_merge_alone
from test_conditionals import DISTANCES, label_frequencies, swap_moves
from whole_chain import (
    FIXED,
    LEARNED,
    Sampler,
    Schedule,
    calibration,
    cpu_engine,
    family_wise,
    joint_distribution,
)

PLAIN = Sampler(split_merge=False)


def labels_and_swaps() -> dict[str, float]:
    """Steps 1 and 5 alone."""
    p_values = {f"labels {distance} away": label_frequencies(cpu_engine, distance) for distance in DISTANCES}
    return p_values | swap_moves(3000)


def asserting(*tests: Callable[[], None]) -> dict[str, float]:
    """Of tests that only assert: 0 where they fail, and 1 where they pass."""

    def passes(test: Callable[[], None]) -> bool:
        try:
            test()
        except AssertionError:
            return False
        return True

    return {test.__name__: float(passes(test)) for test in tests}


SHORT: Mapping[str, Callable[[], dict[str, float]]] = {
    "labels, swaps": labels_and_swaps,
    "parameters": lambda: asserting(
        test_gibbs.test_parameters_have_the_moments_of_the_normal_inverse_wishart,
        test_gibbs.test_sticks_and_alpha_have_their_conditionals,
    ),
    "joint": lambda: joint_distribution(FIXED, 40, 20, PLAIN),
    "joint, learned": lambda: joint_distribution(LEARNED, 150, 6, PLAIN),
    "exact": lambda: exact_posterior(1.0, 2000, PLAIN, batches=40),
    "split-merge": lambda: split_merge_alone(1000),
    "calibration": lambda: calibration(FIXED, 60, Schedule(burn_in=20, draws=15, thin=4), PLAIN),
}


def p_value(name: str) -> float:
    """Of all comparisons of a test together; 0 where a wrong sampler's numbers cannot go on."""
    try:
        return family_wise(SHORT[name]())
    except (np.linalg.LinAlgError, FloatingPointError):
        return 0.0
