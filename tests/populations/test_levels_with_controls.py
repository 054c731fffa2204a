"""Thresholds with controls: simulated FMO files where the valley misleads, next to the rule without them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dpmix.inputs.controls import Control
from dpmix.populations.events.phenotypes import levels
from dpmix.populations.types.levels import fit_levels
from dpmix.populations.types.markers import DOUBT, log_factors

Array = np.ndarray
OFF, LOW, ON, HIGH = np.eye(4, dtype=bool)
PLUS, SILENT = LOW | ON | HIGH, np.ones(4, bool)


def control(*groups: tuple[float, float, int]) -> Control:
    """A simulated FMO file of normal groups (mean, standard deviation, events)."""
    random = np.random.default_rng(7)
    values = np.concatenate([random.normal(mean, sd, n) for mean, sd, n in groups])
    return Control.of("fmo.fcs", values, 2.0)


def limits(weights: list[float], means: list[float], sds: list[float], own: Control | None = None) -> Array:
    covariances = np.square(sds)[:, None, None]
    controls = {} if own is None else {0: own}
    found: Array = levels(weights, np.array(means)[:, None], covariances, range(len(means)), controls)[:, 0]
    return found


MISLEADING = [0.6, 0.3, 0.1], [0.0, 4.0, 8.0], [0.7, 0.7, 0.9]
"""Lymphocytes, autofluorescent monocytes, and positive cells: the largest valley is between the first two."""
OF_MISLEADING = (0.0, 0.7, 6_600), (4.0, 0.7, 3_300)


def test_a_control_shows_that_a_valley_is_between_negative_cells() -> None:
    low, alone, _ = limits(*MISLEADING)
    assert 1.0 < alone < 3.0  # the rule without a control calls the monocytes positive
    low, found, _ = limits(*MISLEADING, control(*OF_MISLEADING))
    assert 5.2 < found < 7.0
    assert np.isnan(low)  # a level below the control is no "lo"


def test_without_a_valley_the_control_decides() -> None:
    fmo = control((0.0, 1.0, 5_000))
    shoulder = [0.9, 0.1], [0.0, 2.5], [1.0, 1.0]
    assert np.isnan(limits(*shoulder)[1])
    assert limits(*shoulder, fmo)[1] == pytest.approx(fmo.limit, abs=0.02)
    assert limits([1.0], [0.0], [1.0], fmo)[1] == pytest.approx(fmo.limit, abs=0.02)  # one population
    far = replace(fmo, limit=20.0)
    assert limits([1.0], [0.0], [1.0], far)[1] == 20.0  # above all events


def test_a_control_is_no_hard_limit_where_there_is_a_valley() -> None:
    fmo = control((0.0, 1.0, 5_000))
    apart = [0.7, 0.3], [0.0, 6.0], [1.0, 1.0]
    found = limits(*apart, fmo)[1]
    assert fmo.limit + 0.3 < found < 3.5
    vague = limits(*apart, replace(fmo, near=3.0 * fmo.near))[1]
    assert abs(vague - limits(*apart)[1]) < abs(found - limits(*apart)[1])


def lineages(random: np.random.Generator, n: int = 6_000) -> tuple[Array, Array, Array]:
    """Return CD14 and CD25 of events, their component, and whether they are positive for CD25."""
    component = random.choice(4, n, p=[0.5, 0.1, 0.3, 0.1])  # T -, T +, monocytes -, monocytes +
    centre = np.array([[0.0, 0.0], [0.0, 8.0], [5.0, 4.0], [5.0, 8.0]])[component]
    return centre + random.normal(0.0, 0.7, (n, 2)), component, component % 2 == 1


def test_a_table_uses_the_control() -> None:
    values, component, positive = lineages(np.random.default_rng(3))
    table = np.array([[SILENT, OFF], [SILENT, PLUS]])
    fmo = control(*OF_MISLEADING)

    def right(controls: dict[int, Control]) -> float:
        fitted = fit_levels(values, component, table, controls)
        logs = log_factors(fitted, values, np.full((2, 2), 1.0 - DOUBT))
        return float(((logs[:, 1] > logs[:, 0]) == positive).mean())

    assert right({}) < 0.75  # the valley between lymphocytes and monocytes
    assert right({1: fmo}) > 0.96
    assert fit_levels(values, component, table, {1: fmo})[1].errors.max() < fmo.near


def test_the_standard_error_of_a_control_is_in_that_of_the_threshold() -> None:
    values, component, _ = lineages(np.random.default_rng(4))
    table = np.array([[SILENT, OFF], [SILENT, PLUS]])
    fmo = control(*OF_MISLEADING)
    few = replace(fmo, error=0.8)
    sharp, vague = (fit_levels(values, component, table, {1: one})[1].errors[0, 0] for one in (fmo, few))
    assert vague > 0.8 > sharp


def test_a_control_says_nothing_about_a_boundary_between_higher_levels() -> None:
    values, component, _ = lineages(np.random.default_rng(5))
    table = np.array([[SILENT, OFF | LOW | ON], [SILENT, HIGH]])
    own = {1: control(*OF_MISLEADING)}
    with_control, without = (fit_levels(values, component, table, each)[1] for each in (own, {}))
    np.testing.assert_array_equal(with_control.thresholds, without.thresholds)


def test_a_marker_without_positive_components_is_told_by_its_control() -> None:
    random = np.random.default_rng(6)
    values, labels = random.normal(0.0, 1.0, (3_000, 1)), np.arange(3_000) % 3
    fmo = control((0.0, 1.0, 5_000))
    one = fit_levels(values, labels, np.array([[OFF], [PLUS]]), {0: fmo})[0]
    assert one.thresholds == pytest.approx(fmo.limit, abs=0.2)
    assert one.passes(np.array([fmo.limit + 1.5]), 1)[0] > 0.95
    assert one.passes(np.array([0.0]), 1)[0] < 0.01
