"""`data.weights`: tables of weights, and what is wrong with them."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dpmix import open_run
from dpmix.cli import main
from dpmix.config.load import parse_config
from dpmix.config.write import to_yaml
from dpmix.errors import ConfigError
from dpmix.inputs.events import Events
from dpmix.inputs.preprocess import prepare

FILES = "data: {files: [a.npy, b.npy], weights: %s}"
TABLE = "data: {samples: samples.csv, weights: %s}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write samples of 90 and 30 events in two groups, a table of them and a table of weights."""
    rng = np.random.default_rng(0)
    for name, n, share in (("a", 90, 0.8), ("b", 30, 0.2)):
        group = np.arange(n) >= share * n
        np.save(tmp_path / f"{name}.npy", (9.0 * group[:, None] + rng.normal(size=(n, 3))).astype(np.float32))
    (tmp_path / "samples.csv").write_text("file,sample,dose,weight\na.npy,A,1,2\nb.npy,B,2,8\n")
    (tmp_path / "weights.csv").write_text("weight;sample\n8;b.npy\n2;a.npy\n5;c.npy\n")
    return tmp_path


def prepared(folder: Path, text: str) -> Events:
    return prepare(parse_config(text, "run.yaml").data, folder, seed=1)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (FILES % "equal", [2 / 3, 2.0]),
        (FILES % "{file: weights.csv, column: weight}", [4 / 7, 16 / 7]),
        (TABLE % "{column: weight}", [4 / 7, 16 / 7]),
        (TABLE % "{column: dose}", [4 / 5, 8 / 5]),
    ],
)
def test_weights_have_mean_1_and_the_given_ratios(folder: Path, text: str, want: list[float]) -> None:
    events = prepared(folder, text)
    assert events.weights is not None
    np.testing.assert_allclose(events.weights.values, want, rtol=1e-6)
    np.testing.assert_array_equal(events.weights.starts, [0, 90, 120])
    assert events.report.notes[-1].startswith("weights (data.weights: ")
    assert f"an event counts {want[0]:.3g} in " in events.report.notes[-1]


def test_without_weights_and_with_equal_ones_every_event_counts_1(folder: Path) -> None:
    assert prepared(folder, FILES % "proportional").weights is None
    (folder / "weights.csv").write_text("sample,weight\na.npy,3\nb.npy,3\n")
    events = prepared(folder, FILES % "{file: weights.csv, column: weight}")
    assert events.weights is None
    assert "every event counts 1" in events.report.notes[-1]


def test_weights_are_of_the_events_in_use(folder: Path) -> None:
    events = prepared(folder, "data: {files: [a.npy, b.npy], weights: equal, max_events: 60}")
    assert events.weights is not None
    totals = events.weights.values * np.diff(events.sample_starts)
    np.testing.assert_allclose(totals, 30.0, rtol=1e-6)


@pytest.mark.parametrize("most", ["null", "60"])
def test_some_of_the_events_keep_their_samples_weights_and_rows(folder: Path, most: str) -> None:
    events = prepared(folder, f"data: {{files: [a.npy, b.npy], weights: equal, max_events: {most}}}")
    first_of_b = events.sample_starts[1]
    numbers = np.array([0, 3, first_of_b - 1, first_of_b, first_of_b + 2])
    some = events.subset(numbers)
    np.testing.assert_array_equal(some.values, events.values[numbers])
    np.testing.assert_array_equal(some.sample_starts, [0, 3, 5])
    assert some.weights is not None
    assert events.weights is not None
    np.testing.assert_array_equal(some.weights.each(), events.weights.each()[numbers])
    for sample, (start, stop) in enumerate([(0, 3), (3, 5)]):
        in_data = [events.rows_in_file(sample, n, n + 1)[0] for n in numbers[start:stop]]
        np.testing.assert_array_equal(some.rows_in_file(sample, start, stop), in_data)
    without_b = events.subset(numbers[:2])
    np.testing.assert_array_equal(without_b.sample_starts, [0, 2, 2])


@pytest.mark.parametrize(
    ("weights", "table", "message"),
    [
        ("{column: w}", None, "data: weights.file is missing; give a CSV file with the columns sample and w"),
        ("even", None, 'data.weights is "even"; it must be proportional, equal, or a column of a table'),
        ("{colum: w}", None, "did you mean data.weights.column?"),
        ("{file: no.csv, column: w}", None, "no.csv: cannot be read (No such file or directory), need a CSV"),
        (
            "{file: w.csv, column: w}",
            "name,w\na.npy,1\n",
            "found the columns name, w, need a CSV file with a",
        ),
        ("{file: w.csv, column: w}", "sample,v\na.npy,1\n", "found the columns sample, v, need a CSV file"),
        ("{file: w.csv, column: w}", "sample,w\na.npy,1\n", "found no row for the sample b.npy, need one"),
        ("{file: w.csv, column: w}", "sample,w\na.npy,1\na.npy,1\nb.npy,1\n", "a.npy is named twice"),
        ("{file: w.csv, column: w}", "sample,w\na.npy,0\nb.npy,1\n", 'the w of a.npy is "0", need a number'),
        ("{file: w.csv, column: w}", "sample,w\na.npy,1\nb.npy,inf\n", 'the w of b.npy is "inf", need a'),
        ("{file: w.csv, column: w}", "sample,w\na.npy,1\nb.npy,\n", 'the w of b.npy is "", need a number'),
    ],
)
def test_what_is_wrong_with_weights_is_said(
    folder: Path, weights: str, table: str | None, message: str
) -> None:
    if table is not None:
        (folder / "w.csv").write_text(table)
    with pytest.raises(ConfigError) as caught:
        prepared(folder, FILES % weights)
    assert [line for line in caught.value.problems if message in line], caught.value.problems


def test_a_column_that_the_table_of_samples_lacks(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"data.weights.column: got w, need a column of data.samples: dose"):
        prepared(folder, TABLE % "{column: w}")


@pytest.mark.parametrize("weights", ["proportional", "equal", "{file: w.csv, column: w}"])
def test_a_config_with_weights_is_written_and_read(weights: str) -> None:
    config = parse_config(FILES % weights, "run.yaml")
    assert parse_config(to_yaml(config, comments=True), "again") == config


@pytest.mark.slow
def test_proportions_of_a_weighted_run_are_those_of_its_samples_and_of_the_weighted_events(
    folder: Path,
) -> None:
    settings: dict[str, Any] = {"model.components": 4, "mcmc.burn_in": 20, "mcmc.draws": 20}
    settings |= {"mcmc.chains": 1, "mcmc.until": "null", "engine.backend": "cpu", "engine.threads": 1}
    (folder / "run.yaml").write_text(FILES % "equal")
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    run, gated = str(folder / "run.h5"), folder / "gated"

    def dpmix(*arguments: str) -> str:
        result = CliRunner().invoke(main, [*arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    dpmix("mcmc", str(folder / "run.yaml"), *given, "--output", run)
    assert "weights: an event counts 0.667 to 2, by sample (data.weights)" in dpmix("info", run)
    np.testing.assert_allclose(open_run(run).constants["sample_weights"], [2 / 3, 2.0], rtol=1e-6)
    assert "each event with its weight in the run" in dpmix("gate", run, "--output", str(gated))
    tables = {}
    for name in ("populations", "proportions"):
        with (gated / f"{name}.csv").open() as file:
            tables[name] = [*csv.DictReader(file)]
    for population in tables["populations"]:
        own = [row for row in tables["proportions"] if row["population"] == population["population"]]
        assert [row["sample"] for row in own] == ["a.npy", "b.npy"]
        mean = np.mean([float(row["proportion"]) for row in own])  # the samples count equally
        assert float(population["proportion"]) == pytest.approx(mean, abs=1e-5)
    assert "each event with its weight in the run" in (gated / "report.html").read_text()
