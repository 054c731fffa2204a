"""Effects of simulated cohorts are found, by the approximation and by the sampler."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import arviz
import numpy as np
import pytest
from click.testing import CliRunner

from dpmix.association.design import make_design
from dpmix.association.effects import Effects
from dpmix.association.model import Predictors, Responses
from dpmix.association.sampling import Fit, find_device
from dpmix.association.study import Study, approximation, count_responses, run_study, sampler
from dpmix.cli import main
from dpmix.errors import ConfigError, DataError
from dpmix.populations.sample_draws import SampleDraws, medians
from dpmix.report.associate import write_model
from dpmix.report.association_figures import panels

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
    return run_study(draws, design, approximation(1), 1.1, with_expression=True)


@pytest.fixture(scope="module")
def study() -> Study:
    return fitted(cohort())


def test_the_changed_population_is_found_and_no_other(study: Study) -> None:
    """Others shrink in proportion, but not in comparison with those that do not change."""
    effects = study.effects[0]
    middle, low, high = effects.intervals()
    own = effects.draws[:, CHANGED]
    assert abs(own.mean() - np.log(RATIO)) < 3.0 * own.std()
    assert effects.found(0.05).nonzero()[0].tolist() == [CHANGED]
    others = np.arange(8) != CHANGED
    assert ((low < 1.0) & (high > 1.0))[others].all()
    of_shares = effects.intervals(effects.proportions)[0]
    assert (of_shares[others] < 0.85 * middle[others]).all()


def test_the_shifted_median_is_found_and_no_other(study: Study) -> None:
    effects = study.effects[1]
    (found,) = effects.found(0.05).nonzero()[0]
    assert (effects.populations[found], effects.channels[found]) == (5, 1)
    own = effects.draws[:, found]
    assert abs(own.mean() - SHIFT) < 3.0 * own.std()


def test_points_that_matter_have_names(study: Study) -> None:
    abundance, expression = panels(study, 0.05)
    assert abundance.marks[CHANGED] == str(CHANGED + 1)
    assert all(rate < 0.5 for rate, mark in zip(abundance.false_sign, abundance.marks, strict=True) if mark)
    assert "CD2 in 6" in expression.marks


def test_without_an_effect_nothing_is_found() -> None:
    assert not fitted(cohort(ratio=1.0)).effects[0].found(0.05).any()


def test_an_outlier_is_reported_and_counts_less() -> None:
    odd = fitted(cohort(outlier=30.0))
    assert (odd.outliers[0].sample, odd.outliers[0].population) == ("s0", 6)
    assert 0.8 < odd.effects[0].intervals()[0][6] < 1.25


def test_what_samples_of_a_draw_share_is_no_variance() -> None:
    random = np.random.default_rng(1)
    moved = np.array([1_000.0, 2_000.0, 4_000.0])[:, None, None] * np.ones((3, 5, 2))
    assert count_responses(moved.astype(int)).variances.max() < 1e-6
    own = random.integers(1_000, 4_000, (50, 5, 2))
    assert count_responses(own).variances.min() > 0.05


def test_error_rates_of_effects() -> None:
    draws = np.array([[0.5, -0.5, 0.01], [0.5, 0.5, 0.01], [0.5, 0.5, -0.5], [0.05, 0.5, 0.2]])
    numbers = np.arange(3)
    effects = Effects("a - b", "abundance", numbers, numbers, draws, np.full(3, 0.1))
    np.testing.assert_allclose(effects.direction, [1.0, 0.75, 0.75])
    np.testing.assert_allclose(effects.false_sign, [0.25, 0.25, 0.75])
    np.testing.assert_allclose(effects.expected_false, [0.5, 0.5, 1.25])
    assert effects.found(0.2).sum() == 0
    assert effects.found(0.25).tolist() == [True, True, False]


def test_weighted_medians() -> None:
    values, populations = np.array([1.0, 2.0, 3.0, 4.0, 9.0]), np.array([0, 2, 0, 2, 0])
    found = medians(values, np.ones(5), populations, 3)
    np.testing.assert_array_equal(found, [3.0, np.nan, 3.0])


def test_the_command(tmp_path: Path) -> None:
    draws = cohort()
    draws.write(tmp_path / "samples.nc")
    read = SampleDraws.read(tmp_path)
    np.testing.assert_array_equal(read.counts, draws.counts)
    np.testing.assert_array_equal(read.medians, draws.medians)
    assert (read.columns, read.phenotypes) == ({"group": tuple(GROUPS)}, draws.phenotypes)
    options = ["--formula", "~ group", "--contrast", "treated - control", "--quick"]
    done = CliRunner().invoke(main, ["associate", str(tmp_path), *options])
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
    again = CliRunner().invoke(main, ["associate", str(tmp_path), *options])
    assert again.exit_code == 2
    assert "exist already" in again.output


def test_cells_found_by_judging_are_compared(tmp_path: Path) -> None:
    """They have the number after those of the mixture, and grow where the mixture's populations do not."""
    draws, random = cohort(ratio=1.0), np.random.default_rng(7)
    expected = np.where(np.array(GROUPS) == "treated", 4.0 * RATIO, 4.0)
    found = replace(
        draws,
        explored=random.poisson(expected * random.lognormal(0.0, 0.2, N_SAMPLES)),
        explored_medians=np.full((N_SAMPLES, 2), np.nan, np.float32),
    )
    found.write(tmp_path / "samples.nc")
    options = ["--formula", "~ group", "--contrast", "treated - control", "--quick", "--expression"]
    done = CliRunner().invoke(main, ["associate", str(tmp_path), *options])
    assert done.exit_code == 0, done.output
    assert "explored cells (population 9): compared by the cells found in each sample" in done.output
    with (tmp_path / "associate" / "associations.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "abundance"]
    assert len(rows) == 9
    (own,) = (row for row in rows if row["found"] == "yes")
    assert (own["population"], own["phenotype"]) == ("9", "explored cells")
    assert float(own["low"]) < RATIO < float(own["high"])


def test_the_posterior_has_names_for_arviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draws = cohort()
    age = [str(20 + k) for k in range(N_SAMPLES)]
    donors = [f"d{k // 2}" for k in range(N_SAMPLES)]
    columns = {"group": GROUPS, "age": age, "donor": donors}
    design = make_design(
        columns, draws.samples, "~ group + age + (1 | donor)", ["treated - control"], "~ age"
    )
    study = run_study(draws, design, stand_in, 1.1, with_expression=True)
    write_model(tmp_path / "posterior.nc", study)
    read = arviz.from_netcdf(tmp_path / "posterior.nc")
    found = read.posterior
    assert found.beta.dims == ("chain", "draw", "column", "population")
    assert list(found.column.values) == ["group[treated]", "age"]
    assert found.sel(population=CHANGED + 1).phenotype.item() == f"CD{CHANGED}+"
    assert found.weight.sel(sample="s3").shape == (2, 7, 8)
    assert found.omega.sel(term="1|donor").shape == (2, 7, 8)
    assert found.gamma.sel(scale="age").shape == (2, 7, 8)
    assert found.expression_beta.sel(response="6 CD2", column="age").shape == (2, 7)
    assert read.constant_data.column_unit.sel(column="group[treated]") == 1.0
    assert list(arviz.summary(read, var_names=["beta"]).index[:1]) == ["beta[group[treated], 1]"]
    assert set(arviz.summary(read)["mean"].index.str.split("[").str[0]) == set(found.data_vars)
    monkeypatch.setattr("dpmix.report.associate.HDF5_BYTES", 2**60)  # more than any disk has
    with pytest.raises(DataError, match=r"full\.nc: cannot be written: "):
        write_model(tmp_path / "full.nc", study)


def stand_in(responses: Responses, predictors: Predictors) -> Fit:
    """Return 2 chains of 7 draws without a fit."""
    random, n = np.random.default_rng(1), responses.values.shape[1]
    firsts = {"alpha": (), "beta": predictors.fixed.shape[1:], "sigma": (), "omega": (predictors.n_terms,)}
    firsts |= {"gamma": predictors.variability.shape[1:], "weight": predictors.fixed.shape[:1]}
    return Fit({name: random.random((2, 7, *first, n)) for name, first in firsts.items()})


def test_without_the_extra_a_line_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(ConfigError, match=r"dpmix associate needs numpyro .*'dpmix\[associate\]'"):
        find_device("cpu")


@pytest.mark.slow
def test_the_sampler_agrees_with_the_approximation(study: Study) -> None:
    """In a study of this size, centres agree within a standard deviation."""
    draws = study.draws
    design = make_design(draws.columns, draws.samples, "~ group", ["treated - control"], "~ group")
    own = run_study(draws, design, sampler(1, find_device("cpu")), 1.1)
    assert [one.measure for one in own.effects] == ["abundance", "variability"]
    assert not own.effects[1].found(0.05).any()
    exact, quick = own.effects[0].draws, study.effects[0].draws
    # What all effects have in common is weakly determined: it is compared less strictly.
    assert (np.abs(exact.mean(axis=0) - quick.mean(axis=0)) < 2.0 * exact.std(axis=0)).all()
    assert own.fits["abundance"].divergences == 0
    assert own.effects[0].found(0.05).nonzero()[0].tolist() == [CHANGED]
