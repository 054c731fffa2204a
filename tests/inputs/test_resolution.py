"""The resolution of channels: from counting ions, from coarse values, and as the config says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from test_preprocess import events_of

from dpmix.config.data import DataConfig
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.mass import cofactor_of_counts
from dpmix.inputs.preprocess import Recorded, prepare, prepare_like
from dpmix.inputs.resolution import of_counts, of_steps
from dpmix.inputs.transforms import Scaling, Transform

Array = npt.NDArray[np.float64]


def counts(n: int = 4_000, dim: int = 4, seed: int = 1) -> Array:
    """Return counts of ions as a mass cytometer stores them: zeros, and a tail."""
    random = np.random.default_rng(seed)
    expected = random.gamma(0.6, 12.0, size=(n, dim)) * (random.random((n, dim)) < 0.5)
    return random.poisson(expected).astype(float)


def mass_file(base: Path, name: str = "mass.fcs") -> Path:
    """Write a file of a mass cytometer with four antibodies, and Time."""
    values = np.column_stack([counts(), np.arange(4_000.0)])
    detectors = [f"{isotope}Di" for isotope, _ in ISOTOPES]
    markers = [marker for _, marker in ISOTOPES]
    keywords = {"$CYT": "CyTOF"}
    write_fcs(base / name, values.astype(np.float32), [*detectors, "Time"], [*markers, ""], keywords)
    return base / name


ISOTOPES = (("Ce140", "CD3"), ("Nd142", "CD4"), ("Sm147", "CD20"), ("Er166", "CD8"))


def test_a_count_of_zero_ions_has_the_error_of_the_background() -> None:
    assert of_counts(Transform("arcsinh", cofactor=5.0)) == pytest.approx(np.arcsinh(0.3))
    assert of_counts(Transform("arcsinh", cofactor=15.0)) == pytest.approx(np.arcsinh(0.1))
    assert of_counts(Transform("linear")) == 1.5


@pytest.mark.parametrize(("ions", "least", "most"), [(0, 0.28, 0.30), (3, 0.36, 0.40), (30, 0.17, 0.20)])
def test_the_error_of_other_counts_is_as_the_module_states(ions: int, least: float, most: float) -> None:
    random = np.random.default_rng(2)
    measured = ions + random.normal(0.0, np.sqrt(ions + 1.5**2), 200_000)
    assert least < np.arcsinh(measured / 5.0).std() < most


def test_mass_cytometry_is_as_wide_as_counting_and_time_is_not(tmp_path: Path) -> None:
    mass_file(tmp_path)
    events = events_of(tmp_path, "mass.fcs", channels=["CD*", "Time"])
    assert events.channels == ("CD3", "CD4", "CD20", "CD8", "Time")
    assert events.scaling.resolution == pytest.approx([np.arcsinh(0.3)] * 4 + [0.0])
    standardised = events.scaling.standardised_resolution
    assert standardised is not None
    assert standardised[:4] == pytest.approx(np.arcsinh(0.3) / events.scaling.sds[:4])
    (line,) = [line for line in events.report.lines() if line.startswith("resolution")]
    assert line.endswith("0.296: CD3, CD4, CD20, CD8")


def test_the_config_has_the_last_word(tmp_path: Path) -> None:
    mass_file(tmp_path)
    assert events_of(tmp_path, "mass.fcs", resolution=0.0).scaling.standardised_resolution is None
    assert events_of(tmp_path, "mass.fcs", resolution=0.2).scaling.resolution == (0.2,) * 4
    mixed = events_of(tmp_path, "mass.fcs", resolution={"CD*": 0.1, "CD4": 0.0}).scaling.resolution
    assert mixed == (0.1, 0.0, 0.1, 0.1)
    rest = events_of(tmp_path, "mass.fcs", resolution={"Nd142Di": 0.5}).scaling.resolution
    assert rest == pytest.approx([np.arcsinh(0.3), 0.5, np.arcsinh(0.3), np.arcsinh(0.3)])
    with pytest.raises(ConfigError, match=r"data\.resolution: CD5 matches no channel of mass.fcs"):
        events_of(tmp_path, "mass.fcs", resolution={"CD5": 0.1})


def test_events_do_not_depend_on_the_resolution(tmp_path: Path) -> None:
    mass_file(tmp_path)
    one, other = (events_of(tmp_path, "mass.fcs", resolution=value) for value in ("auto", 0.0))
    assert one.data_hash == other.data_hash


def test_no_more_than_the_standard_deviation_of_a_channel_is_used(tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=(500, 2)) * [1.0, 0.1]
    np.save(tmp_path / "narrow.npy", values)
    scaling = events_of(tmp_path, "narrow.npy", resolution=0.3).scaling
    assert scaling.resolution == pytest.approx((0.3, values[:, 1].std()), rel=1e-5)


@pytest.mark.parametrize(
    ("step", "expected"), [(1.0, 1 / np.sqrt(12)), (0.2, 0.2 / np.sqrt(12)), (0.01, 0.0), (0.0, 0.0)]
)
def test_coarse_values_are_as_wide_as_their_step(step: float, expected: float) -> None:
    values = np.random.default_rng(4).normal(size=20_000)
    rounded = np.round(values / step) * step if step else values
    assert of_steps(rounded) == pytest.approx(expected)


def ions(dim: int = 6, seed: int = 8) -> Array:
    rng = np.random.default_rng(seed)
    return rng.poisson(rng.gamma(0.3, 10.0, size=(4_000, dim))).astype(float)


def test_a_table_of_transformed_counts_is_recognised_by_its_zeros(tmp_path: Path) -> None:
    rng = np.random.default_rng(9)
    whole = ions()
    randomised = whole - rng.random(whole.shape)
    normalised = whole * rng.uniform(0.8, 1.2, size=(len(whole), 1))
    for counts, cofactor, said in ((randomised, 15.0, "15"), (whole, 5.0, "5"), (normalised, 5.0, "5")):
        np.save(tmp_path / "table.npy", np.arcsinh(counts / cofactor))
        events = events_of(tmp_path, "table.npy")
        assert events.scaling.resolution == pytest.approx((np.arcsinh(1.5 / cofactor),) * 6, rel=1e-3)
        assert any(f"arcsinh(x / {said})" in note for note in events.report.notes)
        assert events_of(tmp_path, "table.npy", resolution=0.0).scaling.resolution == (0.0,) * 6


@pytest.mark.parametrize(
    "kind", ["smooth", "compensated", "channel numbers", "clipped in few channels", "a pile"]
)
def test_other_tables_are_not_taken_for_counts(kind: str) -> None:
    rng = np.random.default_rng(10)
    smooth = rng.normal(2.0, 1.0, size=(4_000, 6))
    clipped = np.maximum(smooth - np.array([3, 0, 0, 0, 0, 0]), 0.0) + np.array([0, 0.1, 0.1, 0.1, 0.1, 0.1])
    values = {
        "smooth": smooth,
        "compensated": np.arcsinh(rng.normal(0.0, 100.0, size=(4_000, 6)) / 150.0),
        "channel numbers": np.clip(np.round(rng.normal(100.0, 200.0, size=(4_000, 6))), 0.0, 1023.0),
        "clipped in few channels": clipped,
        "a pile": np.maximum(rng.normal(0.0, 1.0, size=(4_000, 6)), -0.19),
    }
    assert cofactor_of_counts(values[kind]) is None


def test_an_atom_among_smooth_values_is_no_step() -> None:
    values = np.random.default_rng(5).normal(size=20_000)
    values[:9_000] = -3.0
    assert of_steps(values) == 0.0
    assert of_steps(np.zeros(10)) == 0.0


def test_the_scaling_keeps_the_resolution(tmp_path: Path) -> None:
    mass_file(tmp_path)
    events = events_of(tmp_path, "mass.fcs")
    attributes: dict[str, Any] = json.loads(json.dumps(events.scaling.as_attributes()))
    assert Scaling.from_attributes(attributes).resolution == events.scaling.resolution
    del attributes["resolution"]  # as versions that knew none wrote it
    assert Scaling.from_attributes(attributes).standardised_resolution is None
    for wrong in ([0.1], [-1.0] * 4, ["x"] * 4):
        with pytest.raises(DataError, match="the scaling in a run file cannot be read"):
            Scaling.from_attributes(attributes | {"resolution": wrong})


def test_other_events_have_the_recorded_resolution(tmp_path: Path) -> None:
    mass_file(tmp_path)
    events = events_of(tmp_path, "mass.fcs", resolution=0.2)
    settings = DataConfig(files=["mass.fcs"])
    again = prepare(settings, tmp_path, 1, earlier=Recorded(events.detectors, events.scaling))
    assert again.scaling.resolution == (0.2,) * 4
    like = prepare_like(settings, tmp_path, ["mass.fcs"], events.scaling, events.detectors)
    assert like.scaling.resolution == (0.2,) * 4
