"""Each wrong sampler of `wrong_samplers` is detected by its cheapest test of `short_tests`.

`benchmarks/validation.py` runs all of these tests on all wrong samplers.
"""

from __future__ import annotations

import pytest
from comparisons import FAMILY
from short_tests import SHORT, p_value
from wrong_samplers import WRONG

CHEAPEST = {
    "every sweep draws labels with the same uniforms": "exact",
    "labels without the weights": "joint",
    "labels without the determinants": "labels, swaps",
    "weights below a third of the largest are set to 0": "labels, swaps",
    "nu + 2 for nu + D + 1 degrees of freedom": "joint",
    "gamma for 1 / gamma": "joint",
    "scatter about the old means for scatter about the average": "parameters",
    "no pull of the scale towards m": "joint",
    "Bartlett's degrees of freedom in the wrong order": "joint",
    "statistics of the labels before": "joint",
    "an empty component keeps its parameters": "joint, learned",
    "sticks off by one: sum over r >= j for r > j": "joint",
    "a rate for a scale in alpha": "joint",
    "K for K - 1 sticks in alpha": "joint",
    "first swap: the ratio inverted": "labels, swaps",
    "second swap: always accepted": "labels, swaps",
    "third swap: alpha forgotten": "labels, swaps",
    "swaps leave the components behind": "exact",
    "split-merge: the probability of the proposal forgotten": "split-merge",
    "split-merge: the prior of the labels forgotten": "split-merge",
    "split-merge: a proposal drawn with the launch's uniforms": "split-merge",
    "split-merge: the two ways to merge taken for one": "split-merge",
    "clouds: the resolution missing in the scatters": "clouds",
    "clouds: a standard deviation for a variance": "clouds",
    "clouds: the resolution added once, not for each event": "clouds",
    "clouds: labels as if the events were points": "clouds",
    "clouds: split-merge proposes points": "clouds, split-merge",
    "m: gamma forgotten": "joint, learned",
    "gamma: a rate for a scale": "joint, learned",
    "gamma: its lower bound forgotten": "gamma",
    "gamma: draws below the bound are put at it": "gamma",
    "nu: nu + 2 for nu + D + 1": "joint, learned",
    "Phi: nu + 2 for nu + D + 1": "joint, learned",
    "sums over components about 0 instead of m": "joint, learned",
    "samples: weights without their events": "samples, exact",
    "samples: kappa forgotten in the weights and the tables": "samples, exact",
    "samples: a table for every event in beta": "samples, tables",
    "tables: shape + i for shape + i - 1": "samples, tables",
    "kappa: the events of the samples forgotten": "samples, exact",
    "shifts: the sum is not 0": "samples, shifts",
    "shifts: the present shift is not added back": "samples, joint",
    "tau: all shifts taken for free": "samples, shifts",
    "tau: a standard deviation for a variance": "samples, shifts",
}


@pytest.mark.slow
@pytest.mark.parametrize("slip", WRONG)
def test_a_wrong_sampler_is_caught(slip: str) -> None:
    with WRONG[slip]():
        assert p_value(CHEAPEST[slip]) < FAMILY


@pytest.mark.parametrize("name", [name for name in SHORT if name in CHEAPEST.values()])
def test_the_sampler_passes_what_catches_wrong_ones(name: str) -> None:
    assert p_value(name) > FAMILY
