"""Designs in numbers, and one line for each design that cannot answer the question."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpmix.association.design import make_design, read_design
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
    np.testing.assert_allclose(age.first - age.second, [0.0, 0.5 / ages.std()])  # one year


def test_other_columns_take_the_values_of_the_samples() -> None:
    """With an interaction, the contrast is the mean effect over the batches."""
    (contrast,) = make_design(TABLE, SAMPLES, "~ group * batch", ["treated - control"]).contrasts
    np.testing.assert_allclose(contrast.first - contrast.second, [1.0, 0.0, 0.5], atol=1e-12)


@pytest.mark.parametrize(
    ("formula", "contrast", "message"),
    [
        ("~ group + agee", "treated - control", "no column agee .*did you mean age"),
        ("~ group + same", "treated - control", "column same has the value 1 for all samples"),
        ("~ group + day", "treated - control", r"group\[treated\] and day are confounded"),
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


@pytest.mark.parametrize("cell", ["NA", "nan", "#N/A", "inf"])
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
