"""Effects of simulated cohorts are found, and no others."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import stats

from dpmix.association.design import make_design
from dpmix.association.effects import Effects, adjust, weigh
from dpmix.association.study import Study, count_responses, run_study, sampling_variances
from dpmix.cli import main
from dpmix.errors import ConfigError
from dpmix.populations.events.medians import medians
from dpmix.populations.sample_draws import SampleDraws
from dpmix.report.association_figures import differences_of, panels
from dpmix.report.association_page import sentence
from dpmix.report.association_samples import groups_of, sample_map, strips_of
from dpmix.report.drawing import CHARACTER, GAP, LINE_HEIGHT, labels_apart

Array = np.ndarray

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "compare-samples.md"
N_SAMPLES, CHANGED, RATIO, SHIFT = 24, 3, 3.0, 0.5
GROUPS = ["control", "treated"] * (N_SAMPLES // 2)


VERDICT = "Chains agree on 7 of 8 populations. They differ about 8 (0.1% of the events): read with care."


def cohort(ratio: float = RATIO, outlier: float = 1.0) -> SampleDraws:
    """Simulate draws of 8 populations and 2 channels; population `CHANGED` is large and grows.

    Channel 1 of population 5 is shifted; population 6 of the first sample is an outlier.
    """
    random = np.random.default_rng(3)
    treated = np.array(GROUPS) == "treated"
    logs = np.log([30.0, 20, 10, 20, 8, 6, 4, 0.2]) + 0.2 * random.standard_normal((N_SAMPLES, 8))
    logs[treated, CHANGED] += np.log(ratio)
    logs[0, 6] += np.log(outlier)
    shares = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    counts = np.stack([random.multinomial(20_000, share) for share in shares])
    drawn = random.binomial(counts, 0.98, (10, N_SAMPLES, 8))
    middles = 1.0 + 0.1 * random.standard_normal((N_SAMPLES, 8, 2))
    middles[treated, 5, 1] += SHIFT
    middles = middles + 0.01 * random.standard_normal((10, N_SAMPLES, 8, 2))
    return SampleDraws(
        counts=drawn,
        medians=middles.astype(np.float32),
        samples=tuple(f"s{k}" for k in range(N_SAMPLES)),
        phenotypes=tuple(f"CD{p}+" for p in range(8)),
        channels=("CD1", "CD2"),
        columns={"group": GROUPS},
        verdict=VERDICT,
    )


def fitted(draws: SampleDraws) -> Study:
    design = make_design(draws.columns, draws.samples, "~ group", ["treated - control"])
    return run_study(draws, design, 1.1, with_expression=True)


@pytest.fixture(scope="module")
def study() -> Study:
    return fitted(cohort())


def test_the_changed_population_is_found_and_no_other(study: Study) -> None:
    """Others shrink in proportion, but not in comparison with those that do not change."""
    effects = study.effects[0]
    middle, low, high = effects.intervals
    assert low[CHANGED] < RATIO < high[CHANGED]
    assert effects.found(0.05).nonzero()[0].tolist() == [CHANGED]
    assert effects.order(0.05)[0] == CHANGED
    others = np.arange(8) != CHANGED
    assert ((low < 1.1) & (high > 1.0 / 1.1))[others].all()
    assert effects.proportions is not None
    assert (effects.proportions[0][others] < 0.85 * middle[others]).all()


def test_the_shifted_median_is_found_and_no_other(study: Study) -> None:
    effects = study.effects[1]
    (found,) = effects.found(0.05).nonzero()[0]
    assert (effects.populations[found], effects.channels[found]) == (5, 1)
    _, low, high = effects.intervals
    assert low[found] < SHIFT < high[found]


def test_points_that_matter_have_names(study: Study) -> None:
    abundance, expression = panels(study, 0.05)
    assert abundance.marks[CHANGED] == str(CHANGED + 1)
    assert all(rate < 0.5 for rate, mark in zip(abundance.rate, abundance.marks, strict=True) if mark)
    assert "CD2 in 6" in expression.marks


def test_labels_cover_nothing() -> None:
    random = np.random.default_rng(1)
    points, texts = random.random((30, 2)), [f"CD{q} in {q}" for q in range(30)]
    texts[5] = ""
    size = np.array([3.0, 3.0])
    fitting, sides = labels_apart(points, texts, (3.0, 3.0))
    assert 8 < sum(map(bool, fitting)) < 30
    boxes = []
    for (x, y), text, side in zip(points * size, fitting, sides, strict=True):
        if text:
            width = CHARACTER * len(text)
            left = x + GAP if side == "left" else x - GAP - width
            box = (left, left + width, y - LINE_HEIGHT / 2, y + LINE_HEIGHT / 2)
            inside = (points * size > box[::2]) & (points * size < box[1::2])
            assert not inside.all(axis=1).any()
            assert not any(box[0] < b[1] and b[0] < box[1] and box[2] < b[3] and b[2] < box[3] for b in boxes)
            boxes.append(box)


def test_similar_samples_are_near_each_other(study: Study) -> None:
    """The population that changes separates the groups; a rare and noisy one does not."""
    found = sample_map(study)
    treated = np.array(GROUPS) == "treated"
    first = found.places[:, 0]
    assert first[treated].min() > first[~treated].max() or first[treated].max() < first[~treated].min()
    assert found.shares[0] > found.shares[1] > 0.0
    counts = np.round(study.draws.counts * np.linspace(0.2, 5.0, N_SAMPLES)[:, None]).astype(np.int64)
    scaled = sample_map(replace(study, draws=replace(study.draws, counts=counts)))  # more events, same shares
    assert abs(np.corrcoef(scaled.places[:, 0], first)[0, 1]) > 0.99


def test_medians_and_differences_are_those_of_the_draws(study: Study) -> None:
    contrast = study.design.contrasts[0]
    shown = strips_of(study, contrast, "expression", 0.05, 1)
    assert shown.titles[0].startswith("CD2 in 6")
    np.testing.assert_allclose(shown.mean[:, 0], study.draws.medians[:, :, 5, 1].mean(axis=0), rtol=1e-5)
    assert (shown.low[:, 0] < shown.mean[:, 0]).all()
    assert (shown.mean[:, 0] < shown.high[:, 0]).all()
    (one,) = differences_of(study, 0.05)
    assert one.values.shape == (8, 2)
    assert np.argwhere(one.found).tolist() == [[5, 1]]
    assert abs(one.values[5, 1] - SHIFT) < 0.2
    assert one.limit == np.abs(one.values).max()


def test_samples_of_a_donor_are_joined() -> None:
    draws = cohort()
    columns = {"group": GROUPS, "donor": [f"d{k // 2}" for k in range(N_SAMPLES)]}
    design = make_design(columns, draws.samples, "~ group + (1 | donor)", ["treated - control"])
    paired = Study(draws, design, (), ())
    groups = groups_of(paired, design.contrasts[0])
    assert [unit.tolist() for unit in groups.units] == [[k, k + 1] for k in range(0, N_SAMPLES, 2)]
    assert list(groups.ticks.values()) == ["control", "treated"]
    assert groups.colours[0] != groups.colours[1]


def test_without_an_effect_nothing_is_found() -> None:
    assert not fitted(cohort(ratio=1.0)).effects[0].found(0.05).any()


def test_an_outlier_is_reported_and_counts_less() -> None:
    odd = fitted(cohort(outlier=30.0))
    assert (odd.outliers[0].sample, odd.outliers[0].population) == ("s0", 6)
    assert sentence(odd, odd.effects[0], 6).endswith(": CD6+ (outliers: s0).")
    assert sentence(odd, odd.effects[0], 5).endswith(": CD5+.")
    assert 0.8 < odd.effects[0].intervals[0][6] < 1.25


def test_what_samples_of_a_draw_share_is_no_variance() -> None:
    random = np.random.default_rng(1)
    moved = np.array([1_000.0, 2_000.0, 4_000.0])[:, None, None] * np.ones((3, 5, 2))
    of_counts = 1.0 / 2_333.0  # a Poisson distribution
    assert count_responses(moved.astype(int))[1].max() < of_counts + 1e-6
    own = random.integers(1_000, 4_000, (50, 5, 2))
    assert count_responses(own)[1].min() > 0.05


def test_variances_of_medians_do_not_depend_on_the_medians() -> None:
    """Two samples near zero have small errors, as the events there are dense; one has no median."""
    errors = np.array([0.01, 0.01, 0.07, np.nan])[:, None, None]
    found = sampling_variances(errors, np.array([100.0, 400.0, 100.0, 3.0])[:, None])[:, 0, 0]
    of_one_event = 100.0 * (0.01**2 + 4.0 * 0.01**2 + 0.07**2) / 3.0
    np.testing.assert_allclose(found, of_one_event * np.array([1 / 100, 1 / 400, 1 / 100, 0.0]))


def effects_of(means: list[float], least: float = 0.0, converged: bool = True) -> Effects:
    """Return effects with one normal of standard deviation 1 each."""
    numbers, column = np.arange(len(means)), np.array(means)[:, None]
    return Effects(
        "a - b",
        "expression",
        numbers,
        numbers,
        np.ones_like(column),
        column,
        np.ones_like(column),
        least,
        np.full(len(means), converged),
        np.ones_like(column),
        np.full(len(means), np.nan),
    )


def test_error_rates_of_effects() -> None:
    z = [4.0, -3.0, 0.5]
    p = 2.0 * stats.norm.sf(np.abs(z))
    one = effects_of(z)
    np.testing.assert_allclose(one.tails, p)
    np.testing.assert_allclose(one.intervals[1], np.array(z) + stats.norm.ppf(0.05), atol=1e-9)
    assert one.order(0.05).tolist() == [0, 1, 2]
    (alone,) = adjust([one])
    assert alone.found(0.05).tolist() == [True, True, False]
    np.testing.assert_allclose(alone.rates, stats.false_discovery_control(p))
    together = adjust([one, effects_of([0.0] * 40)])  # of another contrast
    assert together[0].found(0.05).tolist() == [True, False, False]
    assert effects_of(z, least=3.5).tails.round(2).tolist() == [0.62, 1.0, 1.0]


def test_the_first_effect_is_large_and_certain() -> None:
    """Neither the largest one, which is uncertain, nor the most certain one, which is tiny."""
    means, sds = (
        np.array([[4.0], [-2.0], [0.1], [0.0], [0.5]]),
        np.array([[1.6], [0.2], [0.005], [1.0], [1.0]]),
    )
    numbers = np.arange(5)
    every = np.ones(5, bool)
    one = Effects(
        "a",
        "expression",
        numbers,
        numbers,
        np.ones_like(means),
        means,
        sds,
        0.0,
        every,
        np.ones_like(means),
        every + 0.0,
    )
    assert one.tails.argmin() == 2
    (made,) = adjust([one])
    assert made.order(0.05).tolist() == [1, 0, 2, 4, 3]


def test_what_has_not_converged_is_not_found() -> None:
    (made,) = adjust([effects_of([9.0], converged=False)])
    assert not made.found(0.05).any()


def shares_of(change: str, in_on: int, in_off: int = 0, z: float = 2.7) -> list[float]:
    """Return mean numbers of effects found, on and off, and the false share: 400 panels of known scales."""
    random, on = np.random.default_rng(4), np.arange(100) < 30
    kinds = np.column_stack([on, ~on]).astype(float)
    truth = np.where(on, np.arange(100) < in_on, np.arange(100) >= 100 - in_off) * z
    found, false = [], []
    for drawn in truth + random.standard_normal((400, 100)):
        p = 2.0 * stats.norm.sf(np.abs(drawn))
        weights = {
            "": weigh(p, kinds),
            "no weights": 1.0,
            "by the smallest": np.where(on == on[p.argmin()], 100.0 / (on == on[p.argmin()]).sum(), 1e-9),
            "sum too large": 2.0 * weigh(p, kinds),
        }[change]
        listed = stats.false_discovery_control(np.minimum(1.0, p / weights)) <= 0.05
        found.append([(listed & (truth > 0.0) & own).sum() for own in (on, ~on)])
        false.append((listed & (truth == 0.0)).sum() / max(listed.sum(), 1))
    return [*np.mean(found, axis=0).tolist(), float(np.mean(false))]


def test_weights_by_kind_find_more_and_keep_the_false_share() -> None:
    """A Monte Carlo error of the false share is 1.1% at most."""
    assert shares_of("", 10)[0] > 1.15 * shares_of("no weights", 10)[0]
    assert all(shares_of("", *effects)[2] < 0.072 for effects in ((0,), (10,), (3, 5)))
    # Strong effects of one kind hardly cost effects of the other.
    assert shares_of("", 10, 5, 4.0)[1] > 0.9 * shares_of("no weights", 10, 5, 4.0)[1]


@pytest.mark.parametrize("wrong", ["by the smallest", "sum too large"])
def test_wrong_weights_are_noticed(wrong: str) -> None:
    assert shares_of(wrong, 0)[2] > 0.072


def test_one_kind_has_equal_weights() -> None:
    tails = np.array([1e-9, 0.3, 0.01, 1.0])
    np.testing.assert_allclose(weigh(tails, np.ones((4, 1))), 1.0)
    np.testing.assert_allclose(weigh(np.full(4, 0.9), np.eye(2)[[0, 0, 1, 1]]), 1.0)
    mixed = weigh(tails, np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5], [0.0, 1.0]]))
    assert mixed.min() >= 0.5
    np.testing.assert_allclose(mixed.mean(), 1.0)


def test_weighted_medians() -> None:
    values, populations = np.array([1.0, 2.0, 3.0, 4.0, 9.0]), np.array([0, 2, 0, 2, 0])
    found, _ = medians(values, np.ones(5), populations, 3)
    np.testing.assert_array_equal(found, [3.0, np.nan, 3.0])
    random = np.random.default_rng(1)
    many = np.sort(random.standard_normal((400, 100)), axis=1)
    drawn = [medians(own, np.ones(100), np.zeros(100, np.int64), 1) for own in many]
    spread = np.std([found[0] for found, _ in drawn])
    assert abs(np.mean([errors[0] for _, errors in drawn]) / spread - 1.0) < 0.15


@pytest.mark.usefixtures("real_plots")
def test_the_command(tmp_path: Path) -> None:
    draws = cohort()
    draws.write(tmp_path / "samples.nc")
    read = SampleDraws.read(tmp_path)
    np.testing.assert_array_equal(read.counts, draws.counts)
    np.testing.assert_array_equal(read.medians, draws.medians)
    assert (read.columns, read.phenotypes) == ({"group": tuple(GROUPS)}, draws.phenotypes)
    options = ["--formula", "~ group", "--contrast", "treated - control"]
    more = CliRunner().invoke(main, ["associate", str(tmp_path), *options, "--expression"])
    assert more.exit_code == 0, more.output
    drawn = {path.stem for path in (tmp_path / "associate" / "figures").iterdir()}
    assert drawn == {"samples", "forest", "volcano", "strips", "differences", "medians"}
    done = CliRunner().invoke(main, ["associate", str(tmp_path), *options, "--overwrite"])
    assert done.exit_code == 0, done.output
    assert f"population {CHANGED + 1} is" in done.output
    with (tmp_path / "associate" / "associations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["population"] for row in rows if row["found"] == "yes"] == [str(CHANGED + 1)]
    with (tmp_path / "associate" / "outliers.csv").open() as file:
        columns = [*rows[0], *next(csv.reader(file))]
    described = PAGE.read_text(encoding="utf-8")
    assert [column for column in columns if f"`{column}`" not in described] == []
    page = (tmp_path / "associate" / "report.html").read_text()
    assert f"The gating: {VERDICT}" in page
    assert f"The gating: {VERDICT}" in done.output
    assert "times as frequent" in page
    assert "http://" not in page.partition("<script>")[0]
    drawn = {path.stem for path in (tmp_path / "associate" / "figures").iterdir()}
    assert drawn == {"samples", "forest", "volcano", "strips"}
    again = CliRunner().invoke(main, ["associate", str(tmp_path), *options])
    assert again.exit_code == 2
    assert "exist already" in again.output


def test_cells_found_by_judging_are_compared(tmp_path: Path) -> None:
    """They have the number after the mixture's, and grow where the mixture's populations do not."""
    draws, random = cohort(ratio=1.0), np.random.default_rng(7)
    expected = np.where(np.array(GROUPS) == "treated", 4.0 * RATIO, 4.0)
    found = replace(
        draws,
        explored=random.poisson(expected * random.lognormal(0.0, 0.2, N_SAMPLES)),
        explored_medians=np.full((N_SAMPLES, 2), np.nan, np.float32),
    )
    found.write(tmp_path / "samples.nc")
    options = ["--formula", "~ group", "--contrast", "treated - control", "--expression"]
    done = CliRunner().invoke(main, ["associate", str(tmp_path), *options])
    assert done.exit_code == 0, done.output
    assert "explored cells (population 9): compared by the cells found in each sample" in done.output
    with (tmp_path / "associate" / "associations.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "abundance"]
    assert len(rows) == 9
    (own,) = (row for row in rows if row["found"] == "yes")
    assert (own["population"], own["phenotype"]) == ("9", "explored cells")
    assert float(own["low"]) < RATIO < float(own["high"])


def test_an_integral_that_is_not_exact_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpmix.association.effects.ENOUGH", 1e6)
    cohort().write(tmp_path / "samples.nc")
    options = ["--formula", "~ group", "--contrast", "treated - control"]
    done = CliRunner().invoke(main, ["associate", str(tmp_path), *options])
    assert done.exit_code == 1, done.output
    assert "8 effects have not converged" in done.output
    with (tmp_path / "associate" / "associations.csv").open() as file:
        assert {row["found"] for row in csv.DictReader(file)} == {"not converged"}


def test_the_variability_of_a_group() -> None:
    """Population 2 varies three times as much between treated samples."""
    draws, random = cohort(ratio=1.0), np.random.default_rng(4)
    treated = np.array(GROUPS) == "treated"
    counts = draws.counts.astype(float)
    counts[:, treated, 2] *= np.exp(0.7 * random.standard_normal(N_SAMPLES // 2))
    columns = {"group": GROUPS, "age": random.uniform(20.0, 70.0, N_SAMPLES).round(1).astype(str).tolist()}
    contrasts = ["treated - control", "age"]
    design = make_design(columns, draws.samples, "~ group + age", contrasts, "~ group")
    *abundance, own = run_study(replace(draws, counts=counts.astype(int)), design, 1.1).effects
    assert [one.measure for one in abundance] == ["abundance"] * 2  # age has no variability
    assert (own.measure, own.contrast) == ("variability", "treated - control")
    assert own.order(0.05)[0] == 2
    assert own.direction[2] > 0.95
    assert own.tails[2] < 0.1


def test_without_the_extra_a_line_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "formulae", None)
    with pytest.raises(ConfigError, match=r"dpmix associate needs formulae .*'dpmix-cytometry\[associate\]'"):
        fitted(cohort())
