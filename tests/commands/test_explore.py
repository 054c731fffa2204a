"""dpmix explore from end to end: screens that an oracle fills in, and wrong files of judgements."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from dpmix.cli import explore, main
from dpmix.config.schema import Config
from dpmix.engines.cpu import instruction_sets
from dpmix.explore.screen import FURTHER, SIZE
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.opening import open_source
from dpmix.populations.sample_draws import SampleDraws
from dpmix.runs.bem import run_bem

SIZES, RARE = (1_500, 2_500), 25


def blood(seed: int, n_events: int) -> tuple[np.ndarray, np.ndarray]:
    """Return events of three populations, and of rare cells that differ from the first in two channels."""
    random = np.random.default_rng(seed)
    means = np.array([[0.0, 0, 0, 0], [5, 5, 0, 0], [0, 5, 5, 0], [0, 3, 0, 3]])
    labels = np.concatenate([random.integers(0, 3, n_events - RARE), np.full(RARE, 3)])
    random.shuffle(labels)
    return (means[labels] + 0.6 * random.standard_normal((n_events, 4))).astype(np.float32), labels == 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of two samples; the rows of rare cells are in wanted-a.npy and wanted-b.npy."""
    folder = tmp_path_factory.mktemp("rare")
    for name, n_events, seed in zip("ab", SIZES, (1, 2), strict=True):
        events, wanted = blood(seed, n_events)
        np.savetxt(folder / f"{name}.csv", events, delimiter=",", header="CD3,CD4,CD8,CD34", comments="")
        np.save(folder / f"wanted-{name}.npy", wanted)
    settings = {
        "data": {"files": [str(folder / f"{name}.csv") for name in "ab"]},
        "model": {"components": 6},
        "bem": {"starts": 1, "max_steps": 40},
        "engine": {"backend": "cpu", "threads": 1},
        "output": {"path": str(folder / "run.h5")},
    }
    run_bem(Config.model_validate(settings))
    return folder


def dpmix(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def judge(path: Path, folder: Path) -> list[dict[str, str]]:
    """Fill in a screen as an oracle."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        wanted = np.load(folder / f"wanted-{row['sample'][0]}.npy")[int(row["event"])]
        row["judgement"] = "wanted" if wanted else "unwanted"
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(rows)
    return rows


def test_screens_lead_to_the_rare_cells(folder: Path, tmp_path: Path) -> None:
    """From a rough gate; the number of cells and their quality are as simulated."""
    screens = str(tmp_path / "screen-*.csv")
    dpmix("explore", folder / "run.h5", "--output", tmp_path, "--within", "CD34 > 2")
    for _ in range(4):
        judge(max(tmp_path.glob("screen-*.csv")), folder)
        printed = dpmix("explore", folder / "run.h5", "--output", tmp_path, "--judged", screens).output
    with (tmp_path / "progress.csv").open(newline="") as file:
        progress = list(csv.DictReader(file))
    assert [row["screen"] for row in progress] == ["01", "02", "03", "04", "05"]
    assert progress[0]["number"] == ""
    last = progress[-1]
    assert 0.9 * float(last["low"]) <= 2 * RARE <= 1.1 * float(last["high"])
    assert int(last["judged"]) == 4 * SIZE
    assert f"such events: probably {last['number']} of 4,000" in printed
    assert f"written: {tmp_path}/screen-05.csv" in printed


def test_a_screen_describes_its_events(folder: Path, tmp_path: Path) -> None:
    dpmix("explore", folder / "run.h5", "--output", tmp_path, "--within", "CD34 > 2.5", "--events", "7")
    rows = judge(tmp_path / "screen-01.csv", folder)
    assert len(rows) == 7
    for row in rows:
        values = np.loadtxt(folder / row["sample"], delimiter=",", skiprows=1)
        everyone = np.vstack([np.loadtxt(folder / f"{n}.csv", delimiter=",", skiprows=1) for n in "ab"])
        event = values[int(row["event"])]
        assert event[3] > 2.5
        expected = 100.0 * (everyone < event).mean(axis=0)
        shown = [float(row[f"{channel} %"]) for channel in ("CD3", "CD4", "CD8", "CD34")]
        np.testing.assert_allclose(shown, expected, atol=0.1)
        assert int(row["population"]) >= 1


def test_the_same_judgements_give_the_same_screen(folder: Path, tmp_path: Path) -> None:
    """In any order, and in other files, with the numbers of their screens."""
    first, rows = tmp_path / "first", list[dict[str, str]]()
    dpmix("explore", folder / "run.h5", "--output", first)
    for number in (1, 2):
        rows += judge(first / f"screen-0{number}.csv", folder)
        dpmix("explore", folder / "run.h5", "--output", first, "--judged", first / "screen-*.csv")
    assert [row["screen"] for row in rows] == ["1"] * SIZE + ["2"] * SIZE
    names = ("sample", "event", "screen", "judgement")
    for name, some in (("one.csv", rows[::-2]), ("two.csv", rows[-2::-2])):
        lines = [";".join(row[key] for key in names) for row in some]
        (tmp_path / name).write_text("\n".join([";".join(names), *lines, f"{lines[-1].split(';')[0]};7;;"]))
    files = "--judged", tmp_path / "two.csv", "--judged", tmp_path / "one.csv"
    dpmix("explore", folder / "run.h5", "--output", tmp_path / "again", *files)
    assert (tmp_path / "again/screen-01.csv").read_text() == (first / "screen-03.csv").read_text()


def test_a_number_of_a_screen_is_a_number(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "judged.csv").write_text("sample,event,judgement,screen\na.csv,1,1,first\n")
    options = "--output", tmp_path, "--judged", tmp_path / "judged.csv"
    printed = dpmix("explore", folder / "run.h5", *options, code=2).output
    assert "need the number of a screen, or nothing, in the column screen, got 'first'" in printed


@pytest.mark.slow
def test_cuda_gives_the_results_of_the_cpu(
    folder: Path, tmp_path: Path, cuda_devices: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results of explore and gate: screens, the numbers to stop by, and the events found."""
    cuda_devices(1)
    from dpmix.engines.cuda.gaussian_process import CudaGaussianProcess

    used = []
    plain = CudaGaussianProcess.update
    monkeypatch.setattr(CudaGaussianProcess, "update", lambda *a: used.append(1) or plain(*a))
    dpmix("explore", folder / "run.h5", "--output", tmp_path, "--within", "CD34 > 2")
    judge(tmp_path / "screen-01.csv", folder)
    judged = "--judged", tmp_path / "screen-01.csv"
    found = []
    for backend in ("cpu", "cuda"):
        output, options = tmp_path / backend, (*judged, "--backend", backend)
        dpmix("explore", folder / "run.h5", "--output", output, *options)
        dpmix("gate", folder / "run.h5", "--output", output / "gated", "--format", "csv", *options)
        assert len(used) == {"cpu": 0, "cuda": 2}[backend]
        names = "screen-01.csv", "progress.csv", "gated/explored.csv"
        found.append([(output / name).read_text() for name in names])
    if instruction_sets()[0] != "v2":  # no fused multiply-add
        assert found[0] == found[1]


def test_a_failed_device_is_one_line(
    folder: Path, tmp_path: Path, emulated_devices: Callable[..., None]
) -> None:
    dpmix("explore", folder / "run.h5", "--output", tmp_path)
    judge(tmp_path / "screen-01.csv", folder)
    options = "--output", tmp_path, "--judged", tmp_path / "screen-01.csv", "--backend", "cuda"
    emulated_devices(fail="0:cuLaunchKernel:1")
    result = dpmix("explore", folder / "run.h5", *options, code=1)
    assert "no CUDA device is left" in result.output
    emulated_devices(0)
    result = dpmix("explore", folder / "run.h5", *options, code=2)
    assert "cuda is not available here" in result.output
    assert not (tmp_path / "screen-02.csv").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("event,judgement\n3,wanted\n", "row 2: need the name of a sample of the run in the column sample"),
        ("sample,event,judgement\nc.csv,3,wanted\n", "got 'c.csv'"),
        (
            "sample,event,judgement\na.csv,1500,wanted\n",
            "event 1500 of a.csv is not among the events of the run",
        ),
        ("sample,event,judgement\na.csv,x,wanted\n", "row 2: need the number of an event, got 'x'"),
        (
            "sample,event,judgement\na.csv,3,yes\n",
            "need wanted, part, unwanted (or 1, 0.5, 0) as judgement, got 'yes'",
        ),
        ("sample,event,judgement\na.csv,3,1\na.csv,3,0\n", "row 3: event 3 has another judgement elsewhere"),
        (
            "sample,judgement\na.csv,1\n",
            "has no column event; need a CSV file with the columns event and judgement",
        ),
        ("", "is empty, need a CSV file"),
    ],
)
def test_wrong_judgements_are_one_line(folder: Path, tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "judged.csv").write_text(text)
    result = dpmix(
        "explore", folder / "run.h5", "--output", tmp_path, "--judged", tmp_path / "judged.csv", code=2
    )
    assert result.output.startswith(f"dpmix: --judged: {tmp_path}/judged.csv: ")
    assert message in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--judged", "nothing-*.csv"], "--judged: nothing-*.csv: no such file"),
        (["--within", "CD34"], "--within CD34: need CHANNEL > NUMBER or CHANNEL < NUMBER"),
        (["--within", "CD99 > 1"], "no channel CD99; use one of CD3, CD4, CD8, CD34"),
        (["--within", "CD34 > 99"], "no event satisfies this"),
    ],
)
def test_wrong_options_are_one_line(folder: Path, tmp_path: Path, options: list[str], message: str) -> None:
    result = dpmix("explore", folder / "run.h5", "--output", tmp_path, *options, code=2)
    assert message in result.output
    assert not list(tmp_path.iterdir())


def test_another_table_is_not_overwritten(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "progress.csv").write_text("a,b\n")
    result = dpmix("explore", folder / "run.h5", "--output", tmp_path, code=1)
    assert "progress.csv: is not a table of dpmix explore" in result.output
    assert (tmp_path / "progress.csv").read_text() == "a,b\n"


def test_defaults_of_the_command_are_those_of_the_library() -> None:
    defaults = {option.name: option.default for option in explore.command.params}
    assert (defaults["further"], defaults["size"]) == (FURTHER, SIZE)


@pytest.mark.usefixtures("made_figures")
def test_gate_writes_the_events_that_are_found(folder: Path, tmp_path: Path) -> None:
    """In the event files, the table and the page; the same number as dpmix explore."""
    screens = tmp_path / "screen-*.csv"
    dpmix("explore", folder / "run.h5", "--output", tmp_path, "--within", "CD34 > 2")
    for _ in range(3):
        judge(max(tmp_path.glob("screen-*.csv")), folder)
        dpmix("explore", folder / "run.h5", "--output", tmp_path, "--judged", screens)
    output = tmp_path / "gated"
    printed = dpmix(
        "gate", folder / "run.h5", "--output", output, "--judged", screens, "--format", "csv"
    ).output
    with (output / "events.csv").open(newline="") as file:
        events = list(csv.DictReader(file))
    with (output / "explored.csv").open(newline="") as file:
        table = {row["sample"]: row for row in csv.DictReader(file)}
    for name, n_events in zip("ab", SIZES, strict=True):
        own = np.array([row["explored"] == "true" for row in events if row["sample"] == f"{name}.csv"])
        wanted = np.load(folder / f"wanted-{name}.npy")
        assert len(own) == n_events == int(table[f"{name}.csv"]["events"])
        assert own.sum() == int(table[f"{name}.csv"]["found"])
        assert own[wanted].mean() > 0.8
        assert wanted[own].mean() > 0.8
    with (tmp_path / "progress.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert last["found"] == table["all"]["found"]
    assert float(table["all"]["number"]) == pytest.approx(float(last["number"]), abs=0.5)
    assert 2.0 < float(table["all"]["CD34 median"]) < 4.0
    number = len(read(output / "populations.csv"))
    assert f"explored cells (population {number}): {last['found']} found" in printed
    assert "Explored cells</h2>" in (output / "report.html").read_text()
    is_the_last_population(output, table)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def is_the_last_population(output: Path, explored: dict[str, dict[str, str]]) -> None:
    """The events found are a population with a number in tables, tree, draws of samples and the page."""
    *others, last = read(output / "populations.csv")
    n = len(others)
    assert (last["population"], last["name"], last["found by"]) == (f"{n + 1}", "explored cells", "judging")
    assert {(row["name"], row["found by"]) for row in others} == {("", "mixture")}
    assert sum(int(row["events"]) for row in others) == sum(SIZES)  # also those that were found
    total = explored["all"]
    assert last["events"] == total["found"]
    for name, of in (("proportion", "number"), ("low", "low"), ("high", "high")):
        assert float(last[name]) == pytest.approx(float(total[of]) / sum(SIZES), rel=1e-4)
    assert last["CD34 median"] == total["CD34 median"]
    assert float(last["CD34 q05"]) < float(last["CD34 median"]) < float(last["CD34 q95"])
    assert last["rhat"] == last["support"] == ""
    samples = [row for row in read(output / "proportions.csv") if row["population"] == last["population"]]
    for row in samples:
        own = explored[row["sample"]]
        assert (row["events"], row["proportion"], row["low"]) == (own["found"], own["share"], "")
        assert row["name"] == "explored cells"
    draws = SampleDraws.read(output)
    assert draws.explored is not None
    assert draws.explored.tolist() == [int(explored[f"{name}.csv"]["found"]) for name in "ab"]
    assert draws.counts.shape[2] == n
    tree = json.loads((output / "tree.json").read_text())
    assert (tree["explored"]["population"], len(tree["phenotypes"])) == (n + 1, n)
    page = (output / "report.html").read_text()
    assert f"<b>explored cells (also in other populations)</b> {last['phenotype']}" in page
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1])
    assert data["names"][-1].startswith(f"{n + 1} explored cells")
    assert data["explored"]["population"] == n
    assert len(data["explored"]["values"][0]) == int(total["found"])
    assert data["channels"].index("CD34") in data["populations"][-1]["best"]  # they alone have CD34


def test_explored_cells_have_gates_and_keywords(tmp_path: Path) -> None:
    """In gates.xml, strategy.csv, FCS files and h5ad; gates select most of the cells and few others."""
    events, wanted = blood(3, 2_000)
    write_fcs(tmp_path / "a.fcs", events, ["CD3", "CD4", "CD8", "CD34"])
    settings = {
        "data": {"files": [str(tmp_path / "a.fcs")], "transform": {"default": {"method": "linear"}}},
        "model": {"components": 6},
        "bem": {"starts": 1, "max_steps": 40},
        "engine": {"backend": "cpu", "threads": 1},
        "output": {"path": str(tmp_path / "run.h5")},
    }
    run_bem(Config.model_validate(settings))
    words = np.where(wanted, "wanted", "unwanted")
    rows = [*np.flatnonzero(wanted)[:15], *np.flatnonzero(~wanted)[:60]]
    lines = "\n".join(f"{row},{words[row]}" for row in rows)
    (tmp_path / "judged.csv").write_text(f"event,judgement\n{lines}\n")
    output = tmp_path / "gated"
    options = ["--judged", tmp_path / "judged.csv", "--strategy", "--format", "fcs", "--format", "h5ad"]
    dpmix("gate", tmp_path / "run.h5", "--output", output, *options)
    last = read(output / "populations.csv")[-1]
    number = last["population"]
    (gate, *_) = [row for row in read(output / "strategy.csv") if row["gate"] == f"population_{number}"]
    assert float(gate["f1"]) > 0.8
    assert gate["events"] == last["events"]
    gates = (output / "gates.xml").read_text()
    assert f'gating:id="population_{number}"' in gates
    assert f'population="{number}" phenotype="explored cells"' in gates
    flowkit = pytest.importorskip("flowkit")
    inside = flowkit.parse_gating_xml(output / "gates.xml").gate_sample(flowkit.Sample(tmp_path / "a.fcs"))
    assert inside.get_gate_count(f"population_{number}") == int(gate["gated"])
    source = open_source(output / "a.gated.fcs")
    assert source.header is not None
    assert source.header.keywords[f"dpmix_population_{number}"] == f"{number} explored cells"
    marked = source.read(0, len(events))[:, source.channels.index("dpmix_explored")]
    assert marked.sum() == int(last["events"])
    table = pytest.importorskip("anndata").read_h5ad(output / "events.h5ad")
    assert table.uns["dpmix"]["explored"] == f"{number} explored cells"
    assert table.obs["explored"].sum() == int(last["events"])
    assert "Black dots: explored cells" in (output / "report.html").read_text()


def test_gate_refuses_judgements_of_other_files_and_without_a_wanted_event(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "judged.csv").write_text("sample,event,judgement\na.csv,3,unwanted\n")
    options = ["gate", folder / "run.h5", "--output", tmp_path / "x", "--judged", tmp_path / "judged.csv"]
    assert "no event is judged as wanted" in dpmix(*options, code=2).output
    assert "leave out --data" in dpmix(*options, "--data", folder / "a.csv", code=2).output
