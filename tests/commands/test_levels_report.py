"""dpmix levels: thresholds, positive shares and figures."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dpmix.cli import main
from dpmix.commands.levels import figure_paths, levels
from dpmix.config.schema import Config
from dpmix.populations.positive import Positive
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.reader import open_run

SHARE, EVENTS = 0.3, 3_000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two samples: CD3 has two levels, CD4 one."""
    folder = tmp_path_factory.mktemp("levels")
    random = np.random.default_rng(1)
    for name, share in (("a", SHARE), ("b", 2.0 * SHARE)):
        positive = random.random(EVENTS) < share
        values = np.column_stack([6.0 * positive, np.zeros(EVENTS)]) + random.normal(size=(EVENTS, 2))
        np.savetxt(folder / f"{name}.csv", values, delimiter=",", header="CD3,CD4", comments="")
    settings = {
        "data": {
            "files": [str(folder / f"{name}.csv") for name in "ab"],
            "transform": {"default": {"method": "linear"}},
        },
        "model": {"components": 6},
        "mcmc": {"burn_in": 60, "draws": 20, "chains": 1},
        "engine": {"backend": "cpu", "threads": 1},
        "output": {"path": str(folder / "run.h5")},
    }
    assert run_mcmc(Config.model_validate(settings)).completed
    return folder / "run.h5"


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("real_figures")
def test_thresholds_and_positive_shares(run: Path, tmp_path: Path) -> None:
    output = tmp_path / "levels"
    arguments = ["levels", str(run), "--output", str(output)]
    done = CliRunner().invoke(main, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "CD4: no threshold" in done.output
    thresholds = {(row["channel"], row["between"]): row for row in rows_of(output / "levels.csv")}
    low, middle, high = (float(thresholds["CD3", "- +"][name]) for name in ("low", "threshold", "high"))
    assert 1.5 < low <= middle <= high < 4.5
    assert thresholds["CD4", "- +"]["threshold"] == ""
    positive = rows_of(output / "positive.csv")
    assert {row["channel"] for row in positive} == {"CD3"}
    of_all = {row["sample"]: row for row in positive if row["population"] == "all"}
    for sample, share in (("a", SHARE), ("b", 2.0 * SHARE), ("all", 1.5 * SHARE)):
        own = next(row for name, row in of_all.items() if name.startswith(sample))
        assert float(own["share"]) == pytest.approx(share, abs=0.03)
        assert float(own["low"]) < float(own["share"]) < float(own["high"])
        width = 2.0 * 1.645 * np.sqrt(share * (1.0 - share) / (EVENTS * (2 if sample == "all" else 1)))
        assert float(own["high"]) - float(own["low"]) == pytest.approx(width, rel=0.35)
    assert all(path.stat().st_size > 1_000 for path in figure_paths(output, ["CD3", "CD4"]))
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2
    assert "--overwrite" in again.output


def test_controls_are_recorded_and_used(run: Path, tmp_path: Path) -> None:
    random = np.random.default_rng(2)
    (tmp_path / "fmo.csv").write_text("CD4\n" + "\n".join(map(str, random.normal(size=2_000))))
    settings = open_run(run).parsed_config().model_dump()
    settings["data"]["controls"] = {"CD4": str(tmp_path / "fmo.csv")}
    settings["output"]["path"] = str(tmp_path / "run.h5")
    assert run_mcmc(Config.model_validate(settings)).completed
    (tmp_path / "fmo.csv").unlink()  # the run file has what is needed
    control = open_run(tmp_path / "run.h5").controls["CD4"]
    assert control.n_events == 2_000
    levels(tmp_path / "run.h5", tmp_path / "levels")
    rows = {(row["channel"], row["between"]): row for row in rows_of(tmp_path / "levels" / "levels.csv")}
    low, middle, high = (float(rows["CD4", "- +"][name]) for name in ("low", "threshold", "high"))
    assert low < middle < high  # its standard error, although no draw has a valley
    assert middle == pytest.approx(control.limit, abs=2.0 * control.error)
    assert 1.5 < float(rows["CD3", "- +"]["threshold"]) < 4.5  # a channel without a control


def test_a_threshold_that_few_draws_have_is_not_given() -> None:
    ends = np.full((4, 3, 1), np.nan)
    ends[0, 1] = 0.5
    counts = np.full((4, 1, 1, 1), 10.0)
    made = Positive(("CD3",), ("a",), ends, counts, counts[..., 0], np.zeros(10, np.int32), 1)
    assert made.support[1, 0] == 0.25
    assert made.thresholds(1, 0) is None
    assert made.shares(0) is None


def test_intervals_contain_the_uncertainty_of_the_threshold() -> None:
    def width(above: list[float]) -> float:
        ends = np.zeros((4, 3, 1))
        positive = np.array(above).reshape(4, 1, 1, 1)
        events = np.full((4, 1, 1), 10_000.0)
        found = Positive(("CD3",), ("a",), ends, positive, events, np.zeros(10, np.int32), 1).shares(0)
        assert found is not None
        return float(found.high[0, 0] - found.low[0, 0])

    assert width([2_000, 3_000, 4_000, 5_000]) > 5.0 * width([3_500] * 4)


def test_names_of_figures_are_file_names() -> None:
    assert [path.name for path in figure_paths(Path(), ["a/b c"])] == [
        "level-1-a_b_c.png",
        "level-1-a_b_c.pdf",
    ]
