"""Each test of `short_tests` passes the sampler, and detects one wrong sampler of `wrong_samplers`.

`benchmarks/validation.py` runs all of these tests on all wrong samplers, and fails where one is not detected.
"""

from __future__ import annotations

import pytest
from comparisons import FAMILY
from short_tests import p_value
from wrong_samplers import WRONG

CAUGHT = {
    "labels, swaps": "labels without the determinants",
    "parameters": "scatter about the old means for scatter about the average",
    "gamma": "gamma: its lower bound forgotten",
    "joint": "a rate for a scale in alpha",
    "joint, learned": "nu: nu + 2 for nu + D + 1",
    "exact": "swaps leave the components behind",
    "split-merge": "split-merge: the probability of the proposal forgotten",
    "clouds": "clouds: labels as if the events were points",
    "clouds, split-merge": "clouds: split-merge proposes points",
    "samples, tables": "tables: shape + i for shape + i - 1",
    "samples, shifts": "tau: a standard deviation for a variance",
    "samples, exact": "kappa: the events of the samples forgotten",
    "samples, joint": "shifts: the present shift is not added back",
}
"""A wrong sampler for each test. Calibration is `test_sbc.py`."""


@pytest.mark.slow
@pytest.mark.parametrize("name", CAUGHT)
def test_a_wrong_sampler_is_caught(name: str) -> None:
    with WRONG[CAUGHT[name]]():
        assert p_value(name) < FAMILY


@pytest.mark.parametrize("name", [name for name in CAUGHT if name not in ("parameters", "gamma")])
@pytest.mark.slow
def test_the_sampler_passes_what_catches_wrong_ones(name: str) -> None:
    """The others are tests of their own."""
    assert p_value(name) > FAMILY
