"""Tables on an arcsinh scale: one that divides noise about zero is made wider; all other values are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from test_logicle import lobes

from dpmix.config.load import parse_config
from dpmix.inputs.preprocess import prepare
from dpmix.inputs.transformed import widening_cofactor, widening_cofactors
from dpmix.inputs.transforms import Transform

Array = npt.NDArray[Any]
N = 10_000


def light(seed: int = 1) -> Array:
    """Return compensated light, float64 [N, 4]: noise of sd 400 or 60, and 30% bright events."""
    rng = np.random.default_rng(seed)
    raw = rng.normal(0.0, [400.0, 60.0, 400.0, 60.0], (N, 4))
    for j in range(4):
        raw[j * N // 8 : j * N // 8 + 3 * N // 10, j] = np.exp(rng.normal(9.0, 0.4, 3 * N // 10))
    return raw


MARKERS = ["CD4", "CD8", "CD19", "TCRb"]


def table(tmp_path: Path, values: Array, more: str = "", names: Sequence[str] = MARKERS) -> Any:
    """Preprocess a table of four markers."""
    np.savez(tmp_path / "events.npz", events=values.astype(np.float32), channels=names)
    config = f"{{data: {{files: [{tmp_path / 'events.npz'}]{more}}}}}"
    return prepare(parse_config(config, "run.yaml").data, tmp_path, 1)


def test_noise_in_two_lobes_is_one_again() -> None:
    """The noise of 400 is wider than the linear part of arcsinh(x / 150), noise of 60 is not."""
    found = widening_cofactors(np.arcsinh(light() / 150.0))
    assert found == pytest.approx([1.96 * 400 / 150, 1.0, 1.96 * 400 / 150, 1.0], rel=0.05)
    assert lobes(Transform("arcsinh", cofactor=150.0), 0.0, 400.0) > 0.4
    assert lobes(Transform("arcsinh", cofactor=150.0 * found[0]), 0.0, 400.0) == 0.0


def test_widen_is_the_arcsinh_scale_of_a_larger_cofactor() -> None:
    raw = light()[:, 0]
    wider = Transform("widen", cofactor=3.0)
    assert wider.apply(np.arcsinh(raw / 150.0)) == pytest.approx(np.arcsinh(raw / 450.0), abs=1e-9)
    assert wider.invert(wider.apply(np.arcsinh(raw / 150.0))) == pytest.approx(
        np.arcsinh(raw / 150.0), abs=1e-9
    )
    far = np.array([-1e4, -200.0, 90.0, 150.0, 1e5])  # where sinh overflows
    assert wider.apply(far) == pytest.approx(far - np.sign(far) * np.log(3.0), rel=1e-12)
    assert wider.invert(wider.apply(far)) == pytest.approx(far, rel=1e-12)
    assert widening_cofactor(np.abs(np.arcsinh(raw))) == 1.0  # nothing below zero: no noise about it


@pytest.mark.parametrize(
    "values",
    [
        np.arcsinh(light() / 2_000.0),  # fits
        (np.arcsinh(light() / 150.0) - np.arcsinh(light() / 150.0).mean(0)) / 2.0,  # standardised
        np.arcsinh(light() / 150.0) - np.median(np.arcsinh(light() / 150.0), axis=0),
        np.arcsinh(light() / 150.0) - 8.0,  # all below zero
        light(),  # not transformed
        np.log10(np.maximum(light(), 1.0)),
        np.arcsinh(light()[:900] / 150.0),  # too few events
    ],
)
def test_other_values_stay_on_their_scale(values: Array) -> None:
    assert (widening_cofactors(values) == 1.0).all()


def test_a_table_on_a_narrow_scale_is_widened_and_a_note_says_so(tmp_path: Path) -> None:
    values = np.arcsinh(light() / 150.0)
    events = table(tmp_path, values)
    made = events.scaling.transforms
    assert [one.method for one in made] == ["widen", "linear", "widen", "linear"]
    found = [line for line in events.report.notes if "arcsinh scale" in line]
    wider = f"CD4 (cofactor {made[0].cofactor:g}), CD19 (cofactor {made[2].cofactor:g})"
    assert found == [
        "events.npz: values look like an arcsinh scale that divides the noise about zero into two lobes; "
        f"method auto is widen for {wider}; linear keeps their scale (data.transform)"
    ]


def test_values_without_names_of_markers_stay_on_their_scale(tmp_path: Path) -> None:
    """Two clusters of a mixture of normals are as good as two lobes, and nobody expects another scale."""
    made = table(tmp_path, np.arcsinh(light() / 150.0), names=["x", "y", "CDF1", "abcd4"]).scaling.transforms
    assert {one.method for one in made} == {"linear"}


def test_what_the_config_says_has_precedence(tmp_path: Path) -> None:
    values = np.arcsinh(light() / 150.0)
    kept = table(tmp_path, values, ", transform: {default: {method: linear}}").scaling.transforms
    assert {one.method for one in kept} == {"linear"}
    own = table(tmp_path, values, ", transform: {default: {method: widen}}").scaling.transforms
    assert own[0].cofactor == pytest.approx(1.96 * 400 / 150, rel=0.05)
    assert own[1].cofactor == 1.0
    given = table(tmp_path, values, ", transform: {default: {method: widen, cofactor: 7}}").scaling.transforms
    assert {one.cofactor for one in given} == {7.0}
