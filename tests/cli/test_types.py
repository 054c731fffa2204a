"""dpmix types: built-in tables, an empty table for a run, and the check of a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from dpmix.cli import main
from dpmix.config.schema import Config
from dpmix.inputs.type_table import built_in_names, match_markers, read_types, remarks
from dpmix.runs.mcmc import run_mcmc


def dpmix(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["types", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the channels CD3, HLADR and "CD8a, x"."""
    folder = tmp_path_factory.mktemp("run")
    values = np.random.default_rng(1).normal(size=(60, 3))
    np.savetxt(folder / "e.csv", values, delimiter=",", header='CD3,HLADR,"CD8a, x"', comments="")
    settings = {
        "data": {"files": [str(folder / "e.csv")]},
        "model": {"components": 2},
        "mcmc": {"burn_in": 2, "draws": 2, "chains": 1},
        "engine": {"backend": "cpu", "threads": 1},
        "output": {"path": str(folder / "run.h5")},
    }
    assert run_mcmc(Config.model_validate(settings)).completed
    return folder / "run.h5"


def test_a_template_has_the_channels_of_the_run(run: Path, tmp_path: Path) -> None:
    text = dpmix("--template", run).stdout
    assert text == 'population,parent,kind,cl,CD3,HLADR,"CD8a, x"\n'
    (tmp_path / "types.csv").write_text(text + "T,,,CL:0000084,+,,\nB,,,,-,+,\n")
    assert read_types(tmp_path / "types.csv").markers == ("CD3", "HLADR", "CD8a, x")


def test_the_built_in_tables(tmp_path: Path) -> None:
    assert built_in_names() == ["marrow", "mouse-spleen", "pbmc", "pbmc-b", "pbmc-t"]
    listed = dpmix("--list").stdout
    for name in built_in_names():
        table = read_types(name)
        about, source, *_ = remarks(name)
        assert "A start: check every row" in about
        assert source.startswith("Source: ")
        assert f"{name}: {len(table.types)} cell types, {len(table.markers)} markers. {about}" in listed
        assert table.notes == ()  # no two rows say the same
        assert table.source == name
        copy = tmp_path / "copy.csv"
        copy.write_text(dpmix("--show", name).stdout)
        again = read_types(copy)
        assert (again.types, again.parents, again.ontology) == (table.types, table.parents, table.ontology)
        assert np.array_equal(again.levels, table.levels)
        own = table.with_inherited()
        for r, parent in enumerate(table.parents):  # a child is a part of its parent
            if parent:
                above = own.levels[table.types.index(parent)]
                assert (own.levels[r] & above).any(axis=1).all(), (name, table.types[r])


def test_a_file_has_precedence_only_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pbmc-t").write_text("population,CD3\nA,+\nB,-\n")
    assert read_types("./pbmc-t").types == ("A", "B")
    assert len(read_types("pbmc-t").types) == 14


def test_definitions_of_t_cells() -> None:
    """A few cells that every reader of the source expects."""
    table = read_types("pbmc-t")
    at = {name: m for m, name in enumerate(table.markers)}

    def off(name: str, marker: str) -> bool:
        return table.levels[table.types.index(name), at[marker]].tolist() == [True, False, False, False]

    assert [off(f"CD4 {x}", "CCR7") for x in ("naive", "central memory", "effector memory", "effector")] == [
        *(False, False, True, True)
    ]
    assert [
        off(f"CD8 {x}", "CD45RA") for x in ("naive", "central memory", "effector memory", "effector")
    ] == [*(False, True, True, False)]
    assert match_markers(table, ("CD3", "CD4", "CD8a", "CCR7", "CD45RA", "HLADR"))[1] == (
        "pbmc-t: ignored, not in the panel: CD38, CD25, CD127",
    )


def test_a_table_is_checked(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "types.csv"
    path.write_text("population,CD3,HLA-DR,CD19\nT,+,,-\nB,-,0,+\n")
    refused = dpmix(path, code=2)
    assert "row 2 (B), column HLA-DR: got 0; 0 is half way for Scyan" in refused.stderr
    lines = dpmix(path, "--zero", "lo", "--run", run).stdout.splitlines()
    assert lines == [
        f"{path}: 2 cell types, 3 markers, 5 cells",
        f"markers in {run}: 2 of 3",
        "HLA-DR is HLADR",
        f"{path}: ignored, not in the panel: CD19",
    ]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "got nothing; need one of TABLE, --list, --show and --template"),
        (["--list", "--show", "pbmc"], "got --list and --show; need one of"),
        (["--list", "--zero", "lo"], "--run and --zero need TABLE"),
        (["--show", "pbmc-x"], "no built-in table is named pbmc-x; there are marrow, mouse-spleen, pbmc"),
        (["pbmc-x"], "or the name of a built-in table: marrow, mouse-spleen, pbmc"),
        (["--template", "none.h5"], "none.h5"),
    ],
)
def test_wrong_usage(arguments: list[str], problem: str) -> None:
    result = CliRunner().invoke(main, ["types", *arguments], catch_exceptions=False)
    assert result.exit_code in (1, 2)
    assert problem in result.stderr
