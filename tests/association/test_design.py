"""Designs in numbers, and one line for each design that cannot answer the question."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpmix.association.columns import read_design
from dpmix.association.design import make_design
from dpmix.errors import ConfigError

SAMPLES = [f"s{k}" for k in range(8)]
TABLE = {
    "group": ["control", "treated"] * 4,
    "age": ["21", "34", "55", "41", "60", "38", "29", "70"],
    "donor": list("aabbccdd"),
    "day": ["0", "7"] * 4,
    "batch": ["x", "x", "y", "y"] * 2,
    "same": ["1"] * 8,
    "rare": ["q", *"rrrrrrr"],
    "each": list("abcdefgh"),
    "again": ["control", "treated", *"zzzzzz"],
    "typo": ["21", "34", "55x", "41", "60", "38", "29", "70"],
    "visit": [*"21212131"],
    "plate": ["1_1", "1_2"] * 4,  # not the numbers 11 and 12
}


def test_a_design_in_numbers() -> None:
    design = make_design(
        TABLE, SAMPLES, "~ group + age + (1 | donor)", ["treated - control", "age"], "~ group"
    )
    assert design.predictors.fixed.shape == (8, 2)
    np.testing.assert_allclose(design.predictors.fixed.mean(axis=0), 0.0, atol=1e-12)
    assert design.predictors.random.sum() == 8
    group, age = design.contrasts
    np.testing.assert_allclose(group.first - group.second, [1.0, 0.0], atol=1e-12)
    np.testing.assert_allclose(group.variability, [1.0])
    ages = np.array(TABLE["age"], float)
    assert age.name == "age: 60 against 29"
    np.testing.assert_allclose(age.first - age.second, [0.0, 0.5 * (60 - 29) / ages.std()])
    (step,) = make_design(TABLE, SAMPLES, "~ group + age", ["age: 10"]).contrasts
    assert step.name == "age, per 10"
    np.testing.assert_allclose(step.first - step.second, [0.0, 5.0 / ages.std()])


def test_variability_needs_a_contrast_on_its_columns() -> None:
    with pytest.raises(ConfigError, match=r"--variability .* no contrast is on its columns"):
        make_design(TABLE, SAMPLES, "~ group + age", ["age"], "~ group")


def test_other_columns_take_the_values_of_the_samples() -> None:
    """With an interaction, the contrast is the mean effect over the batches."""
    (contrast,) = make_design(TABLE, SAMPLES, "~ group * batch", ["treated - control"]).contrasts
    np.testing.assert_allclose(contrast.first - contrast.second, [1.0, 0.0, 0.5], atol=1e-12)


@pytest.mark.parametrize(
    ("formula", "contrast", "message"),
    [
        ("~ group + agee", "treated - control", "no column agee .*did you mean age"),
        ("~ group + same", "treated - control", "column same has the value 1 for all samples"),
        ("~ group + day", "treated - control", r"group\[treated\] and day\[7\] are confounded"),
        ("~ group + (1 | day)", "treated - control", "group treated is confounded with day"),
        ("~ group + (1 | each)", "treated - control", "every each has one sample only"),
        ("~ group + (age | donor)", "treated - control", r"need \(1 \| column\)"),
        ("~ rare", "q - r", "rare q has one sample"),
        ("~ each", "a - b", "need at least 10 samples"),
        ("~ group", "treated-control", 'there are "treated - control"'),
        ("~ (1 | donor)", "treated - control", "; it has only random effects, which have no contrasts"),
        ("~ group + again", "treated - control", 'write "group: treated - control"'),
        ("~ 0 + group", "treated - control", "found no intercept"),
        ("~ group + ", "treated - control", "write for example"),
        ("~ group + f(age)", "treated - control", "cannot be evaluated"),
        ("y ~ group", "treated - control", 'need columns after "~"'),
        (
            "~ numeric(group)",
            "treated - control",
            "group has control for s0, which is not a number; .*without",
        ),
        (
            "~ group + typo",
            "treated - control",
            "column typo has 55x for s2, which is not a number; correct it",
        ),
        (
            "~ group * visit",
            "treated - control",
            r"no sample has group\[treated\]:visit\[2\]; leave the inter",
        ),
    ],
)
def test_a_design_that_cannot_answer(formula: str, contrast: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_design(TABLE, SAMPLES, formula, [contrast])


def test_an_empty_cell_names_the_sample() -> None:
    table = TABLE | {"group": [*TABLE["group"][:7], ""]}
    with pytest.raises(ConfigError, match="column group is empty for s7"):
        make_design(table, SAMPLES, "~ group", ["treated - control"])


@pytest.mark.parametrize("cell", ["NA", "N/A", "nan"])
def test_a_missing_group_is_no_group(cell: str) -> None:
    table = TABLE | {"group": [*TABLE["group"][:7], cell]}
    with pytest.raises(ConfigError, match=r"column group is empty for s7 \(NA counts as empty\); fill or"):
        make_design(table, SAMPLES, "~ group", ["ill - well"])


@pytest.mark.parametrize("cell", ["NA", "nan", "#N/A", "inf", "NULL", "-"])
def test_a_missing_number_names_the_sample(cell: str) -> None:
    table = TABLE | {"age": [*TABLE["age"][:7], cell]}
    with pytest.raises(ConfigError, match="column age is empty for s7"):
        make_design(table, SAMPLES, "~ group + age", ["treated - control"])


def test_decimal_commas_are_not_names_of_groups() -> None:
    table = TABLE | {"age": ["30,5", "31", "40,1", "31", "30,5", "31", "40,1", "40,1"]}
    with pytest.raises(ConfigError, match=r"column age has decimal commas \(30,5\); write points \(30\.5\)"):
        make_design(table, SAMPLES, "~ group + age", ["treated - control"])


def test_samples_of_the_table_and_of_the_gating_must_match(tmp_path: Path) -> None:
    path = tmp_path / "samples.csv"
    path.write_text("sample,group\nb,1\na,2\n")
    assert read_design(path, ["a", "b"]) == {"sample": ["a", "b"], "group": ["2", "1"]}
    path.write_text("file,group\nsub/a.fcs,1\n")
    assert read_design(path, ["a.fcs"])["group"] == ["1"]
    path.write_text("sample,group\na1,1\na,2\n")
    with pytest.raises(ConfigError, match="the gating has no sample a1"):
        read_design(path, ["a"])
    path.write_text("sample,group\npatinet 1,1\n")
    with pytest.raises(ConfigError, match="patient 1 of the gating has no row; a row is named patinet 1"):
        read_design(path, ["patient 1"])


def test_a_column_of_numbers_that_a_contrast_compares_is_a_factor() -> None:
    """Visit 4 against visit 1 is not three times a slope, and few integers are groups."""
    visits = [*"123412341234"]
    table = {"visit": visits, "batch": [*"111122223333"], "age": [str(20 + k * k % 29) for k in range(12)]}
    names = [f"s{k}" for k in range(12)]
    design = make_design(table, names, "~ visit + batch + age", ["4 - 1"])
    assert design.columns == ("visit[2]", "visit[3]", "visit[4]", "batch[2]", "batch[3]", "age")
    (contrast,) = design.contrasts
    np.testing.assert_allclose(contrast.first - contrast.second, [0, 0, 1, 0, 0, 0], atol=1e-12)
    assert design.readings[0] == "visit: groups 1, 2, 3, 4; numeric(visit) would be a slope"
    assert design.readings[2] == "age: numbers, 20 to 45"
    slope = make_design(table, names, "~ numeric(visit) + age", ["visit"])
    assert slope.columns == ("visit", "age")
    assert slope.contrasts[0].name == "visit: 4 against 1"


def test_groups_that_are_numbers_keep_their_names() -> None:
    """Batches named by dates are different groups, and 02 is not 2."""
    dates = ["20240105", "20240105", "20240106", "20240106", "20240110", "20240110", "20240105", "20240106"]
    table = TABLE | {"batch": dates, "group": ["01", "02"] * 4}
    design = make_design(table, SAMPLES, "~ group + batch", ["02 - 01"])
    assert design.columns == ("group[02]", "batch[20240106]", "batch[20240110]")
    assert design.readings[1].startswith("batch: groups 20240105, 20240106, 20240110;")
    (same,) = make_design(table, SAMPLES, "~ group + batch", ["2 - 1"]).contrasts
    assert same.groups == ("02", "01")
    donors = [str(202401001 + k // 2) for k in range(8)]  # the same in six digits
    paired = make_design(table | {"donor": donors}, SAMPLES, "~ group + (1 | donor)", ["02 - 01"])
    assert paired.predictors.random.shape == (8, 4)
    mixed = {"batch": ["1", "1.0", "2", "2.0"] * 2}
    assert make_design(mixed, SAMPLES, "~ batch", ["2 - 1"]).columns == ("batch[2]",)
    plate = make_design(TABLE, SAMPLES, "~ plate", ["1_2 - 1_1"])
    assert plate.readings == ("plate: groups 1_1, 1_2",)
    spaced = {"state": ["ill - new", "well"] * 4}
    assert make_design(spaced, SAMPLES, "~ state", ["ill - new - well"]).contrasts[0].groups == (
        "ill - new",
        "well",
    )


@pytest.mark.parametrize(
    ("name", "written"), [("time.h", "time.h"), ("Time (h)", "`Time (h)`"), ("âge", "âge")]
)
def test_a_column_of_any_name_can_be_a_slope(name: str, written: str) -> None:
    """The printed reading of the column says how; functions of R work, too."""
    table = {name: ["1", "2", "4", "4"] * 2}
    groups = make_design(table, SAMPLES, f"~ {written}", ["4 - 1"])
    assert groups.readings == (f"{name}: groups 1, 2, 4; numeric({written}) would be a slope",)
    for formula in (f"~ numeric({written})", f"~ log2({written})"):
        slope = make_design(table, SAMPLES, formula, [name])
        assert slope.readings == (f"{name}: numbers, 1 to 4",)
        assert slope.contrasts[0].name == f"{name}: 4 against 1"


def test_the_unit_of_a_column_changes_nothing() -> None:
    days = np.arange(8) * 7.0 + 1.5
    pairs = [
        make_design({"time": [f"{value:.9g}" for value in days / unit]}, SAMPLES, "~ time", ["time"])
        for unit in (1.0, 7.0, 91.0)
    ]
    effects = [(d.contrasts[0].first - d.contrasts[0].second) for d in pairs]
    np.testing.assert_allclose(effects[1:], [effects[0]] * 2, rtol=1e-6)
    assert pairs[1].contrasts[0].name == "time: 6.21429 against 1.21429"
