"""The statistical tests at the size used for wrong samplers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import cohort_cases
import numpy as np
import test_gibbs
import test_hyperparameters
from comparisons import calibration, family_wise, joint_distribution
from exact_cases import RESOLUTION, exact_posterior, split_merge_alone
from test_conditionals import DISTANCES, label_frequencies, swap_moves
from whole_chain import FIXED, LEARNED, Sampler, Schedule, cpu_engine

PLAIN = Sampler(split_merge=False)


def labels_and_swaps() -> dict[str, float]:
    """Return the p-values of labels and label swaps alone."""
    p_values = {f"labels {distance} away": label_frequencies(cpu_engine, distance) for distance in DISTANCES}
    return p_values | swap_moves(3000)


def asserting(*tests: Callable[[], None]) -> dict[str, float]:
    """Return 0 for each test that fails an assertion, and 1 for each that passes."""

    def passes(test: Callable[[], None]) -> bool:
        try:
            test()
        except AssertionError:
            return False
        return True

    return {test.__name__: float(passes(test)) for test in tests}


def gamma_of_copies() -> None:
    """Test gamma where components are nearly copies of one another."""
    test_hyperparameters.test_gamma_of_components_that_are_copies_stays_above_its_bound(5.0)


SHORT: Mapping[str, Callable[[], dict[str, float]]] = {
    "labels, swaps": labels_and_swaps,
    "parameters": lambda: asserting(
        test_gibbs.test_parameters_have_the_moments_of_the_normal_inverse_wishart,
        test_gibbs.test_sticks_and_alpha_have_their_conditionals,
    ),
    "gamma": lambda: asserting(gamma_of_copies),
    "joint": lambda: joint_distribution(FIXED, 40, 20, PLAIN),
    "joint, learned": lambda: joint_distribution(LEARNED, 150, 6, PLAIN),
    "exact": lambda: exact_posterior(1.0, 2000, PLAIN, batches=40),
    "split-merge": lambda: split_merge_alone(2400),
    "clouds": lambda: exact_posterior(1.0, 2000, PLAIN._replace(resolution=RESOLUTION), batches=40),
    "clouds, split-merge": lambda: split_merge_alone(1000, resolution=RESOLUTION),
    "samples, tables": lambda: cohort_cases.table_counts(2000),
    "samples, shifts": lambda: cohort_cases.shift_and_tau_draws(3000),
    "samples, exact": lambda: cohort_cases.exact_posterior(1200),
    "samples, joint": lambda: cohort_cases.joint_distribution(100, 8),
    "calibration": lambda: calibration(FIXED, 60, Schedule(burn_in=20, draws=15, thin=4), PLAIN),
}


def p_value(name: str) -> float:
    """Return the p-value of a test, all its comparisons together, or 0 if it ends in a numerical error."""
    try:
        return family_wise(SHORT[name]())
    except (np.linalg.LinAlgError, FloatingPointError):
        return 0.0
