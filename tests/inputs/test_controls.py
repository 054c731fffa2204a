"""Controls: FMO and unstained files, and what is wrong with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from dpmix.config.data import DataConfig
from dpmix.errors import DpmixError
from dpmix.inputs.controls import Control, by_number
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.preprocess import prepare

Array = np.ndarray
SPILL = 0.4  # of CD3 into CD25


def write(path: Path, values: Array, names: str = "CD3,CD25,CD4") -> None:
    np.savetxt(path, values, delimiter=",", header=names, comments="")


def settings(controls: dict[str, str], **more: object) -> DataConfig:
    data = {"files": ["a.csv"], "transform": {"default": {"method": "linear"}}, "controls": controls}
    return DataConfig.model_validate(data | more)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(1)
    write(tmp_path / "a.csv", random.normal(0.0, 1.0, (2_000, 3)) * [1.0, 2.0, 3.0])
    write(tmp_path / "fmo.csv", random.normal(1.0, 1.0, (4_000, 2)), "CD25,CD3")
    write(tmp_path / "none.csv", random.normal(-2.0, 1.0, (4_000, 3)))
    write(tmp_path / "few.csv", random.normal(0.0, 1.0, (40, 3)))
    return tmp_path


def test_the_limit_is_the_upper_quantile_with_its_standard_error() -> None:
    random = np.random.default_rng(2)
    made = [Control.of("a", random.normal(3.0, 2.0, 1_000), 2.0) for _ in range(200)]
    limits = np.array([one.limit for one in made])
    assert limits.mean() == pytest.approx(3.0 + 2.0 * norm.ppf(0.99), abs=0.1)
    assert np.mean([one.error for one in made]) == pytest.approx(limits.std(), rel=0.15)
    apart = 2.0 * float(norm.ppf(0.99) - norm.ppf(0.95))
    assert np.mean([one.near for one in made]) == pytest.approx(apart, rel=0.05)
    constant = Control.of("a", np.zeros(500), 2.0)
    assert (constant.limit, constant.near) == (0.0, 0.02)


def test_a_name_has_precedence_over_a_glob_and_both_over_default(folder: Path) -> None:
    events = prepare(settings({"CD*": "none.csv", "CD25": "fmo.csv"}), folder, 1)
    assert {name: one.file for name, one in events.controls.items()} == {
        "CD3": "none.csv",
        "CD25": "fmo.csv",
        "CD4": "none.csv",
    }
    assert events.controls["CD25"].limit == pytest.approx(1.0 + norm.ppf(0.99), abs=0.2)
    assert events.controls["CD4"].median == pytest.approx(-2.0, abs=0.1)
    assert any("controls, 99% quantiles" in note for note in events.report.notes)
    rest = prepare(settings({"default": "none.csv", "CD25": "fmo.csv"}), folder, 1).controls
    assert rest == events.controls
    assert prepare(settings({}), folder, 1).controls == {}
    moved = by_number(rest, events.channels, np.array([0.0, 2.0, 0.0]))
    assert moved[1].limit == pytest.approx(rest["CD25"].limit + 2.0 * rest["CD25"].error)
    assert moved[0] == rest["CD3"]


def test_controls_are_no_data(folder: Path) -> None:
    with_control, without = (prepare(settings(each), folder, 1) for each in ({"CD25": "fmo.csv"}, {}))
    assert with_control.data_hash == without.data_hash


def test_a_control_is_compensated_and_transformed_like_the_run(folder: Path) -> None:
    random = np.random.default_rng(3)
    pure = np.column_stack([random.normal(500.0, 200.0, 3_000), random.normal(0.0, 20.0, 3_000)])
    spilled = pure @ [[1.0, SPILL], [0.0, 1.0]]
    for name in ("a", "fmo"):
        write_fcs(folder / f"{name}.fcs", spilled.astype(np.float32), ["CD3", "CD25"])
    (folder / "spill.csv").write_text(f"CD3,CD25\n1,{SPILL}\n0,1\n")
    asinh = {"default": {"method": "arcsinh", "cofactor": 100.0}}
    given = settings({"CD25": "fmo.fcs"}, files=["a.fcs"], compensation="spill.csv", transform=asinh)
    found = prepare(given, folder, 1).controls["CD25"].limit
    assert found == pytest.approx(np.quantile(np.arcsinh(pure[:, 1] / 100.0), 0.99), abs=1e-4)
    wrong = np.quantile(np.arcsinh(spilled[:, 1] / 100.0), 0.99)  # not compensated: spillover is the limit
    assert abs(found - wrong) > 1.0


@pytest.mark.parametrize(
    ("controls", "error"),
    [
        ({"CD99": "fmo.csv"}, "data.controls: CD99 matches no channel of a.csv"),
        ({"CD4": "fmo.csv"}, "data.controls: fmo.csv: has no channel CD4"),
        ({"CD25": "gone.csv"}, "data.controls: "),
        ({"CD25": "few.csv"}, "data.controls: few.csv has 40 events; a control needs at least 100"),
        ({"CD25": "*.csv"}, "data.controls: \\*.csv stands for 4 files; name one of them"),
    ],
)
def test_wrong_controls_are_one_line(folder: Path, controls: dict[str, str], error: str) -> None:
    with pytest.raises(DpmixError, match=error) as raised:
        prepare(settings(controls), folder, 1)
    assert "\n" not in str(raised.value)
    assert "data.files" not in str(raised.value)


def test_a_control_of_a_channel_that_is_not_in_the_model(folder: Path) -> None:
    with pytest.raises(DpmixError, match="CD25 is not a channel of the model"):
        prepare(settings({"CD25": "fmo.csv"}, channels=["CD3", "CD4"]), folder, 1)
