"""Thresholds of channels and phenotypes of populations: known signs, and a gated sample."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn.mixture import GaussianMixture

from dpmix import open_run
from dpmix.config.data import DataConfig
from dpmix.config.schema import Config
from dpmix.inputs.preprocess import prepare
from dpmix.populations.events import phenotypes
from dpmix.populations.events.phenotypes import thresholds
from dpmix.runs.mcmc import run_mcmc

Array = npt.NDArray[np.float64]
Component = tuple[float, float, float, int]  # weight, mean, standard deviation, population


def random(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def threshold(*components: Component) -> float:
    weights, means, sds, populations = map(np.array, zip(*components, strict=True))
    (found,) = thresholds(weights, means[:, None], np.square(sds)[:, None, None], populations.astype(int))
    return float(found)


# ----------------------------------------------------------------------------------- thresholds


def test_a_threshold_is_at_the_bottom_of_the_valley() -> None:
    a, b = (0.6, 0.0, 1.0, 0), (0.4, 6.0, 0.8, 1)
    x = np.linspace(0, 6, 600_001)
    density = sum(w / s * np.exp(-0.5 * ((x - m) / s) ** 2) for w, m, s, _ in (a, b))
    assert threshold(a, b) == pytest.approx(x[np.argmin(density)], abs=0.02)
    assert threshold(b, a) == threshold(a, b)


@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e5])
def test_the_unit_of_a_channel_only_scales_its_threshold(unit: float) -> None:
    components = [(3.0, 0.0, 1.0, 0), (2.0, 5.0, 1.0, 1), (0.5, 5.5, 2.0, 2)]
    scaled = [(w, unit * (m + 7), unit * s, p) for w, m, s, p in components]
    assert threshold(*scaled) == pytest.approx(unit * (threshold(*components) + 7), rel=1e-9)


def test_one_level_has_no_threshold() -> None:
    assert np.isnan(threshold((1, 0, 1, 0)))
    assert np.isnan(threshold((0.5, 0, 1, 0), (0.5, 1.5, 1, 1)))
    assert np.isnan(threshold((0.4, 0, 1, 0), (0.3, 1.5, 1, 1), (0.3, 3.0, 1, 2)))  # gradual
    wide = [(0.1, 0.7 * k, 1.0, k) for k in range(10)]
    assert np.isnan(threshold(*wide))


def test_events_without_a_valley_between_populations_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each population is split at zero, as some transforms split negative events."""
    cut = [(0.25, m, 0.5, p) for p in (0, 1) for m in (-1.5, 1.5)]
    assert np.isnan(threshold(*cut))
    monkeypatch.setattr(phenotypes, "SHARE", 0.0)  # wrong: ignores the populations next to a valley
    assert threshold(*cut) == pytest.approx(0, abs=0.02)


def test_ripples_are_not_valleys(monkeypatch: pytest.MonkeyPatch) -> None:
    ripples = [(0.1, 2.6 * k, 1.0, k) for k in range(5)]
    assert np.isnan(threshold(*ripples))
    monkeypatch.setattr(phenotypes, "VALLEY", 1.0)  # wrong
    assert np.isfinite(threshold(*ripples))


def test_a_stray_component_is_not_a_level() -> None:
    base = [(0.6, 0.0, 1.0, 0), (0.4, 5.0, 1.0, 1)]
    plain = threshold(*base)
    for stray in ((1e-5, 40.0, 1.0, 2), (1e-4, -300.0, 0.1, 0), (9e-4, 12.0, 0.2, 2)):
        assert threshold(*base, stray) == pytest.approx(plain, abs=0.05)
    assert np.isnan(threshold((1, 0, 1, 0), (9e-4, 12.0, 0.2, 1)))


@pytest.mark.parametrize("share", [0.001, 0.003, 0.01, 0.1])
@pytest.mark.parametrize("place", [4.0, 6.0])
def test_rare_positive_events_in_the_tail_of_the_others(share: float, place: float) -> None:
    """The density of all events has no valley, but the populations on either side of a cut have one."""
    others = [((1 - share) / 8, 0.1 * k - 0.4, 1.0, k) for k in range(8)]
    rare = (share / (1 - share), place, 1.0, 8)
    x = np.linspace(-5, place + 5, 20_001)
    density = sum(w / s * np.exp(-0.5 * ((x - m) / s) ** 2) for w, m, s, _ in (*others, rare))
    valleys = (np.diff(np.sign(np.diff(density))) > 0).sum()
    assert valleys == (0 if place == 4.0 and share < 0.1 else 1)
    assert 0.35 * place < threshold(*others, rare) < 0.75 * place


def test_rare_events_of_a_marker_that_populations_differ_in_gradually(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Next to a few bright populations, a gradual series is not negative at its high end."""
    slope = [(0.19, 0.8 * k, 1.0, k) for k in range(5)]
    bright = (0.01, 8.0, 0.7, 5)
    assert np.isnan(threshold(*slope, bright))
    monkeypatch.setattr(phenotypes, "EXPLAINS", 0.0)  # wrong
    assert threshold(*slope, bright) == pytest.approx(5.5, abs=1)


def test_the_valley_that_explains_most_of_three() -> None:
    low, dim, bright = (0.5, 0.0, 0.7, 0), (0.3, 4.0, 0.7, 1), (0.2, 12.0, 0.7, 2)
    assert 6 < threshold(low, dim, bright) < 10
    assert 1 < threshold(low, dim, (0.05, 8.0, 0.7, 2)) < 3


def test_two_normals_need_the_documented_distance() -> None:
    rare = 0.002
    near, far = ([(1 - rare, 0.0, 1.0, 0), (rare, d, 1.0, 1)] for d in (3.25, 3.45))
    assert np.isnan(threshold(*near))
    assert threshold(*far) == pytest.approx(3.45 / 2, abs=0.3)


@pytest.mark.parametrize("bend", [0.3, 0.6])
def test_skewed_populations_have_their_true_signs(bend: float) -> None:
    """Fit each log-normal population by several normals, as a Dirichlet process mixture does."""
    signs = np.array([[1, -1, 1, 0], [1, 1, -1, 0], [-1, -1, -1, 0], [-1, 1, 1, 0]])
    sizes = [9000, 4000, 6000, 400]
    events, weights, means, covariances, populations = [], [], [], [], []
    for p, (row, size) in enumerate(zip(signs, sizes, strict=True)):
        skewed = (np.exp(bend * random(p).normal(size=(size, 4))) - 1) / bend
        x = skewed + np.where(row > 0, 8.0, 0.0)
        fit = GaussianMixture(4, random_state=p).fit(x)
        events.append(x)
        weights.append(fit.weights_ * size)
        means.append(fit.means_)
        covariances.append(fit.covariances_)
        populations.append([p] * 4)
    found = thresholds(*map(np.concatenate, (weights, means, covariances, populations)))
    assert np.isnan(found[3])
    assert ((found[:3] > 2) & (found[:3] < 8)).all()
    low, high = (np.array([np.quantile(x, q, axis=0) for x in events]) for q in (0.25, 0.75))
    assert words(low, high, found, ["CD3", "CD4", "CD8", "CD45"]) == (
        *("CD3+ CD4- CD8+", "CD3+ CD4+ CD8-", "CD3- CD4- CD8-", "CD3- CD4+ CD8+"),
    )


def test_channels_are_independent_of_covariances_between_them() -> None:
    means = np.array([[0.0, 3.0], [8.0, 3.1], [0.2, 2.9]])
    covariances = np.array([[[1.0, r], [r, 1.0]] for r in (0.9, -0.5, 0.0)])
    found = thresholds([1, 1, 1], means, covariances, [0, 1, 2])
    assert found[0] == pytest.approx(4, abs=0.7)
    assert np.isnan(found[1])


def test_many_small_populations() -> None:
    n = 1500
    means = np.repeat([0.0, 10.0], n // 2)[:, None]
    assert np.isnan(thresholds(np.ones(n), means, np.ones((n, 1, 1)), np.arange(n))).all()


# ---------------------------------------------------------------------------------------- levels


def ends(*components: Component) -> list[float]:
    weights, means, sds, populations = map(np.array, zip(*components, strict=True))
    found = phenotypes.levels(weights, means[:, None], np.square(sds)[:, None, None], populations.astype(int))
    return [round(float(end), 1) for end in found[:, 0]]


def test_levels_on_either_side_of_the_threshold() -> None:
    """Means 0, 5 and 15 have a lo below the threshold; 0, 10 and 15 a hi above it."""
    low, high = [0.0, 5.0, 15.0], [0.0, 10.0, 15.0]
    nan = float("nan")
    of_low = ends(*((1.0, m, 1.0, p) for p, m in enumerate(low)))
    assert of_low == pytest.approx([2.5, 10.0, nan], abs=0.4, nan_ok=True)
    of_high = ends(*((1.0, m, 1.0, p) for p, m in enumerate(high)))
    assert of_high == pytest.approx([nan, 5.0, 12.5], abs=0.4, nan_ok=True)
    assert ends((1.0, 0.0, 1.0, 0), (1.0, 15.0, 1.0, 1)) == pytest.approx(
        [nan, 7.5, nan], abs=0.6, nan_ok=True
    )


def test_a_side_on_which_populations_differ_gradually_has_one_level() -> None:
    shades = [(0.1, 10.0 + 0.7 * k, 1.0, k + 1) for k in range(5)]
    assert np.isnan(ends((1.0, 0.0, 1.0, 0), *shades)[2])
    apart = [(0.1, 10.0 + 6.0 * (k > 2) + 0.1 * k, 1.0, k + 1) for k in range(5)]
    assert ends((1.0, 0.0, 1.0, 0), *apart)[2] == pytest.approx(13.2, abs=0.5)


# ------------------------------------------------------------------------------------ phenotypes


def words(low: Any, high: Any, limits: Any, channels: list[str]) -> tuple[str, ...]:
    unknown = np.full(len(limits), np.nan)
    return phenotypes.full_phenotypes(low, high, [unknown, limits, unknown], channels)


def test_signs_are_of_three_quarters_of_the_events() -> None:
    low, high = [[2.1, 0.0, 1.0, 5.0], [0.0, 2.0, 2.0, 5.0]], [[3.0, 1.9, 3.0, 6.0], [1.0, 3.0, 2.0, 6.0]]
    names = ["CD3", "CD4", "CD45RA", "CD8"]
    assert words(low, high, [2, 2, 2, np.nan], names) == ("CD3+ CD4- CD45RA+/-", "CD3- CD4+/- CD45RA+/-")
    assert words(low, high, [np.nan] * 4, names) == ("", "")


def test_a_population_without_events_has_no_signs() -> None:
    assert words([[np.nan], [3.0]], [[np.nan], [4.0]], [2.0], ["CD3"]) == ("", "CD3+")


def test_names_with_spaces_are_kept_apart_by_commas() -> None:
    assert words([[3, 0]], [[4, 1]], [2, 2], ["HLA DR", "CD3"]) == ("HLA DR+, CD3-",)


def test_the_signs_of_four_levels() -> None:
    low = np.array([[0.0], [1.1], [2.1], [3.5], [0.5], [1.8], [2.5]])
    found = phenotypes.signs(low, low + 0.8, [[1.0], [2.0], [3.0]])[:, 0]
    assert found.tolist() == ["-", "lo", "+", "hi", "-", "+/-", "+"]
    assert phenotypes.signs(low, low + 0.8, [[np.nan], [2.0], [np.nan]])[1:4, 0].tolist() == ["-", "+", "+"]


# ------------------------------------------------------------------------------------ real events

MOUSE = {
    "B cells": "CD3- CD4- CD8- CD19+ NK1/1- TCRyd-",
    "CD4 T cells": "CD3+ CD4+ CD8- CD19- NK1/1- TCRyd-",
    "CD8 T cells": "CD3+ CD4- CD8+ CD19- NK1/1- TCRyd-",
    "NK cells": "CD3- CD4- CD8- CD19- NK1/1+ TCRyd-",
    "NK T cells": "CD3+ CD4- CD8- CD19- NK1/1+ TCRyd-",
    "gd T cells": "CD3+ CD4- CD8- CD19- NK1/1- TCRyd+",
}


def test_the_gates_of_the_mouse_sample_have_their_phenotypes(shared_data: Path, tmp_path: Path) -> None:
    """Thresholds come from the mixture, each component a population; quartiles come from the gates."""
    names = ["CD3", "CD4", "CD8", "CD19", "NK1/1", "TCRyd", "CD45"]
    settings = {
        "data": {"files": [str(shared_data / "labelled/flowsom_68983.fcs")], "channels": names},
        "model": {"components": 64, "learn": ["alpha", "gamma", "nu", "phi"]},
        "mcmc": {"burn_in": 60, "draws": 1},
        "engine": {"backend": "cpu"},
        "output": {"path": str(tmp_path / "run.h5")},
    }
    run = open_run(run_mcmc(Config.model_validate(settings)).path, transformed=True)
    found = thresholds(run.weights[0, 0], run.means[0, 0], run.covariances[0, 0], np.arange(64))
    events = prepare(DataConfig.model_validate(settings["data"]), tmp_path, 1)
    x = events.scaling.to_transformed(events.values)
    with open(shared_data / "labelled/flowsom_68983_labels.csv", newline="") as file:
        gates = np.array([row[-1] for row in csv.reader(file) if row])
    low, high = (np.array([np.quantile(x[gates == g], q, axis=0) for g in MOUSE]) for q in (0.25, 0.75))
    read = dict(zip(MOUSE, words(low, high, found, names), strict=True))
    assert {gate: text.removesuffix(" CD45+") for gate, text in read.items()} == MOUSE
