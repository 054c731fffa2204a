"""`dpmix associate --types`: cell types instead of populations."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import dpmix
from dpmix.association.design import make_design
from dpmix.association.study import run_study
from dpmix.cli import main
from dpmix.commands import associate as associate_command
from dpmix.config.schema import Config
from dpmix.errors import ConfigError
from dpmix.inputs.simulate import simulation
from dpmix.populations.sample_draws import FILE, SampleDraws, by_type
from dpmix.populations.types.draws import TypeDraws
from dpmix.report import association_page
from dpmix.report.association_samples import own_name

EVENTS, RATIO, DONORS = 2_500, 3.0, 8
TABLE = """cell,parent,CD3,CD4,CD8,CD19,CD14
T,,+,,,-,-
CD4 T,T,,+,-,,
CD8 T,T,,-,+,,
B,,-,-,-,+,-
monocytes,,-,,-,-,+
nothing,,+,+,+,+,+
"""
ON_CPU = ("engine.backend=cpu", "engine.threads=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cohort in which B cells are `RATIO` times as frequent in treated donors, gated into `typed`."""
    folder = tmp_path_factory.mktemp("cohort")
    random = np.random.default_rng(1)
    rows = ["file,sample,group"]
    for donor in range(DONORS):
        made = simulation.cytometry_like(8 * EVENTS, seed=donor)
        share = random.lognormal(0.0, 0.2, len(made.populations))
        group = "treated" if donor % 2 else "control"
        if group == "treated":
            share[made.populations.index("B")] *= RATIO
        chance = share[made.labels] / share[made.labels].sum()
        kept = np.sort(random.choice(len(made.labels), EVENTS, replace=False, p=chance))
        name = f"D{donor}.fcs"
        replace(made, events=made.events[kept], labels=made.labels[kept]).write(folder / name)
        rows.append(f"{name},D{donor},{group}")
    (folder / "samples.csv").write_text("\n".join(rows) + "\n")
    (folder / "types.csv").write_text(TABLE)
    settings = {
        "data": {
            "samples": str(folder / "samples.csv"),
            "channels": ["CD3", "CD4", "CD8", "CD19", "CD14"],
        },
        "model": {"components": 24},
        "mcmc": {"chains": 1, "burn_in": 60, "draws": 8},
        "engine": {"backend": "cpu", "threads": 1},
        "output": {"path": str(folder / "run.h5")},
        "seed": 5,
    }
    run = dpmix.run_mcmc(Config.model_validate(settings))
    dpmix.gate(run, folder / "typed", types=folder / "types.csv", engine=ON_CPU)
    return folder


def simulated() -> SampleDraws:
    """Return draws of six types, of which B grows in every second of 16 samples, and T is a parent."""
    random = np.random.default_rng(2)
    names = ("T", "CD4 T", "CD8 T", "B", "nothing", "unknown")
    logs = np.log([4.0, 40, 25, 10, 1e-6, 5]) + 0.15 * random.standard_normal((16, 6))
    logs[1::2, 3] += np.log(RATIO)
    counts = EVENTS * np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    drawn = counts * random.lognormal(0.0, 0.01, (10, 16, 6))
    types = TypeDraws(
        names,
        ("", "T", "T", "", "", ""),
        drawn,
        random.normal(1.0, 0.1, (16, 6, 2)).astype(np.float32),
        np.full((16, 6, 2), 0.02, np.float32),
    )
    return SampleDraws(
        counts=np.full((10, 16, 1), EVENTS),
        medians=np.zeros((10, 16, 1, 2), np.float32),
        samples=tuple(f"s{k}" for k in range(16)),
        phenotypes=("all",),
        channels=("CD1", "CD2"),
        columns={"group": ["control", "treated"] * 8},
        types=types,
    )


def test_draws_of_types_are_written_read_and_compared(tmp_path: Path) -> None:
    draws = simulated()
    assert draws.types is not None
    draws.write(tmp_path / FILE)
    read = SampleDraws.read(tmp_path)
    assert read.types is not None
    assert (read.types.names, read.types.parents) == (draws.types.names, draws.types.parents)
    np.testing.assert_array_equal(read.types.counts, draws.types.counts)
    np.testing.assert_array_equal(read.types.medians, draws.types.medians)
    compared, left_out = by_type(read)
    assert compared.phenotypes == ("T (other)", "CD4 T", "CD8 T", "B", "unknown")
    assert left_out == ("nothing",)
    np.testing.assert_allclose(compared.counts.sum(axis=2), draws.types.counts.sum(axis=2))
    study = run_study(
        compared, make_design(read.columns, read.samples, "~ group", ["treated - control"]), 1.1, True
    )
    abundance = study.effects[0]
    assert abundance.found(0.05).nonzero()[0].tolist() == [3]
    middle, low, high = abundance.intervals
    assert middle[3] == pytest.approx(RATIO, rel=0.25)  # a 90% interval may lack it, as with this seed
    assert low[3] < middle[3] < high[3]
    assert not study.effects[1].found(0.05).any()
    (line,) = [line for line in association_page.summary(study, 0.05) if "times as frequent" in line]
    assert line.startswith("B is ")


def test_populations_are_named_with_their_types(tmp_path: Path) -> None:
    own = simulated()
    assert own.types is not None
    draws = replace(
        own,
        counts=own.types.counts.astype(np.int64)[..., :4] + 1,
        medians=np.zeros((10, 16, 4, 2), np.float32),
        phenotypes=("CD3+", "CD4+", "CD8+", "CD19+"),
        population_types=("T", "", "unknown", "B cells"),
    )
    draws.write(tmp_path / FILE)
    read = SampleDraws.read(tmp_path)
    assert read.population_types == draws.population_types
    study = run_study(
        read, make_design(read.columns, read.samples, "~ group", ["treated - control"]), 1.1, False
    )
    head, first, *_ = associate_command._rows(study, 0.05)
    assert [*head[2:5]] == ["population", "type", "phenotype"]
    assert [*first[2:5]] == [4, "B cells", "CD19+"]
    (line,) = [line for line in association_page.summary(study, 0.05) if "times as frequent" in line]
    assert line.startswith("population 4 is ")
    assert line.endswith(": B cells: CD19+.")
    assert own_name(study, 3) == "4 B cells: CD19+"
    assert own_name(study, 1) == "2 CD4+"


def test_draws_without_types_are_an_error() -> None:
    with pytest.raises(ConfigError, match="the gating has no cell types; gate again"):
        by_type(replace(simulated(), types=None))


def test_types_without_events_are_an_error() -> None:
    draws = simulated()
    assert draws.types is not None
    with pytest.raises(ConfigError, match="no type of the table has 20 events"):
        by_type(replace(draws, types=replace(draws.types, counts=draws.types.counts * 0.0)))


def associate(folder: Path, gated: str, *options: str, code: int = 0) -> str:
    contrast = ("--formula", "~ group", "--contrast", "treated - control", "--types")
    done = CliRunner().invoke(main, ["associate", str(folder / gated), *contrast, *options])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.slow
def test_the_type_that_changes_is_found_and_no_other(folder: Path) -> None:
    text = associate(folder, "typed")
    assert "B is " in text
    assert "a type with children counts without them: T (other)" in text
    assert "too few events, counted as unknown: nothing" in text
    output = folder / "typed" / "associate-types"
    with (output / "associations.csv").open(newline="") as file:
        rows = {row["type"]: row for row in csv.DictReader(file)}
    assert set(rows) == {"T (other)", "CD4 T", "CD8 T", "B", "monocytes", "unknown"}
    assert {name for name, row in rows.items() if row["found"] == "yes"} == {"B"}
    assert float(rows["B"]["low"]) < RATIO < float(rows["B"]["high"])
    assert "Samples by the proportions of their types" in (output / "report.html").read_text()
    assert (output / "outliers.csv").read_text().startswith("sample,type,channel,weight")


def test_types_partition_the_events(folder: Path) -> None:
    draws, left_out = by_type(SampleDraws.read(folder / "typed"))
    np.testing.assert_allclose(draws.counts.sum(axis=2), EVENTS, rtol=1e-6)
    assert left_out == ("nothing",)
    assert draws.phenotypes[0] == "T (other)"
    events = SampleDraws.read(folder / "typed").types
    assert events is not None
    assert events.names[-1] == "unknown"
    assert events.parents == ("", "T", "T", "", "", "", "")


def test_medians_are_those_of_the_events_of_the_type(folder: Path) -> None:
    draws, _ = by_type(SampleDraws.read(folder / "typed"))
    values = draws.medians[0, :, :, draws.channels.index("CD19")]
    others = np.arange(values.shape[1]) != draws.phenotypes.index("B")
    assert (values[:, ~others] > np.nanmax(values[:, others], axis=1, keepdims=True)).all()


def test_expression_by_type(folder: Path) -> None:
    text = associate(folder, "typed", "--expression", "--output", str(folder / "expressed"))
    assert "intervals lack the uncertainty of the types of events" in text
    with (folder / "expressed" / "associations.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["measure"] == "expression"]
    assert {row["channel"] for row in rows} == {"CD3", "CD4", "CD8", "CD19", "CD14"}
    assert not [row for row in rows if row["found"] == "yes"]
