"""Tables of samples: from their rows to proportions."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dpmix import open_run
from dpmix.cli import main
from dpmix.errors import ConfigError, DataError, DpmixError
from dpmix.inputs.opening import is_table_of_samples, open_source
from dpmix.inputs.samples import open_samples

TABLE = "sample,file,group,day\nP1,one/a.npy,ill,1\nP2,one/b.npy,,2\nP3,../many.npz::right,well,10\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write three samples of different sizes, and their table in a subfolder."""
    random = np.random.default_rng(1)
    (tmp_path / "study" / "one").mkdir(parents=True)
    centres = np.array([[0, 0, 0], [6, 6, 6]])
    for name, n in (("a", 600), ("b", 500)):
        values = centres[random.integers(0, 2, n)] + random.normal(size=(n, 3))
        np.save(tmp_path / "study" / "one" / f"{name}.npy", values.astype(np.float32))
    right = centres[random.integers(0, 2, 300)] + random.normal(size=(300, 3))
    np.savez(tmp_path / "many.npz", left=np.zeros((5, 2)), right=right.astype(np.float32))
    (tmp_path / "study" / "samples.csv").write_text(TABLE)
    return tmp_path


def test_a_table_names_files_and_samples(folder: Path) -> None:
    sources, columns = open_samples([], "study/samples.csv", folder)
    assert [(s.name, s.n_events) for s in sources] == [("P1", 600), ("P2", 500), ("P3", 300)]
    assert columns == {"group": ["ill", "", "well"], "day": ["1", "2", "10"]}
    table = folder / "study" / "samples.csv"
    table.write_text("\ufeff" + TABLE.replace(",", ";").replace("sample;", "id;") + ";;;\n")
    sources, columns = open_samples([], str(table), Path("/nowhere"))
    assert [s.name for s in sources] == ["a.npy", "b.npy", "many.npz::right"]
    assert columns["id"] == ["P1", "P2", "P3"]
    assert open_samples(["many.npz::left"], None, folder)[1] == {}


@pytest.mark.parametrize("name", ["file_name", "File", "filename", "FCS file", "fcs_filename"])
def test_names_that_other_programs_give_the_column_of_files(folder: Path, name: str) -> None:
    table = folder / "study" / "samples.csv"
    table.write_text(TABLE.replace("sample,file", f"sample,{name}"))
    sources, columns = open_samples([], str(table), folder)
    assert [source.name for source in sources] == ["P1", "P2", "P3"]
    assert [*columns] == ["group", "day"]
    assert is_table_of_samples(table)
    table.write_text("sep=;\n" + TABLE.replace("sample,file", f"sample,{name}").replace(",", ";"))
    assert is_table_of_samples(table)
    assert len(open_samples([], str(table), folder)[0]) == 3


@pytest.mark.parametrize("corner", ['"",', ""])
def test_row_names_of_r_are_no_column(folder: Path, corner: str) -> None:
    """write.csv has an empty name above them, write.table none."""
    head, *rows = TABLE.strip().splitlines()
    lines = [corner + head, *(f'"{k}",{row}' for k, row in enumerate(rows, start=1))]
    (folder / "study" / "samples.csv").write_text("\n".join(lines))
    sources, columns = open_samples([], "study/samples.csv", folder)
    assert [source.name for source in sources] == ["P1", "P2", "P3"]
    assert [*columns] == ["group", "day"]


def test_tables_that_are_not_of_samples(tmp_path: Path) -> None:
    """A column of the file of each event, and a column of files with a name that nobody knows."""
    (tmp_path / "events.csv").write_text("CD3,CD4,file_name\n" + "1,2,a.fcs\n3,4,a.fcs\n5,6,b.fcs\n")
    assert not is_table_of_samples(tmp_path / "events.csv")
    assert open_source(tmp_path / "events.csv").n_events == 3
    (tmp_path / "other.csv").write_text("what,group\na.fcs,ill\nb.fcs,well\n")
    with pytest.raises(
        DataError, match="names data files in its column what, and a table of samples needs a"
    ):
        open_source(tmp_path / "other.csv")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("", "is empty, need a CSV file with a row per sample and a column file"),
        ("name,group\na,b\n", "found the columns name, group, need a CSV file with a row per sample and a"),
        ("file,group\n", "found no row after its first line, need at least one"),
        ("file,a,a\none/a.npy,1,2\n", "two columns with one name"),
        ("file,\none/a.npy,1\n", "found a column without a name"),
        ("file,low\none/a.npy,1\n", "low is a column of the result tables, need another name"),
        ("file,group\none/a.npy,1\none/b.npy\n", "row 2 has 1 cells, need 2 as in the first line"),
        ("file\none/c.npy\n", "row 1: no such file: "),
        ("file,group\n,x\n", "row 1: no such file: "),
        ("file\none/a.npy\none/a.npy\n", "one/a.npy is named twice, need each file once"),
        ("file,sample\none/a.npy,x\none/b.npy,x\n", "the sample x is named twice"),
        ("file,sample\none/a.npy,x\none/b.npy,\n", 'row 2: got the sample "", need a name without /'),
        ("file,sample\none/a.npy,../x\n", 'row 1: got the sample "../x", need a name without /'),
        (b"file\n\xff\xfe\n", "cannot be read (not text in UTF-8)"),
        (None, "cannot be read (No such file or directory), need a CSV file with a row per sample"),
    ],
)
def test_errors_of_a_table(folder: Path, table: str | bytes | None, message: str) -> None:
    path = folder / "study" / "samples.csv"
    path.unlink()
    if table is not None:
        path.write_bytes(table.encode() if isinstance(table, str) else table)
    with pytest.raises(ConfigError) as caught:
        open_samples([], "study/samples.csv", folder)
    assert [line for line in caught.value.problems if message in line], caught.value.problems
    assert all(line.startswith(f"data.samples: {path}: ") for line in caught.value.problems)


def test_all_problems_of_a_table_are_reported_together(folder: Path) -> None:
    (folder / "study" / "samples.csv").write_text("file,sample\none/x.npy,a/b\none/y.npy,c\none/a.npy,c\n")
    with pytest.raises(ConfigError) as caught:
        open_samples([], "study/samples.csv", folder)
    assert len(caught.value.problems) == 4


def test_control_characters_in_names_are_removed(folder: Path) -> None:
    (folder / "study" / "samples.csv").write_text("file,sample,x\x1b[2J\none/a.npy,P\x1b[2J1,\x07\n")
    (source,), columns = open_samples([], "study/samples.csv", folder)
    assert (source.name, columns) == ("P [2J1", {"x [2J": [" "]})


def test_a_missing_part(folder: Path) -> None:
    (folder / "study" / "samples.csv").write_text("file\n../many.npz::middle\n")
    with pytest.raises(DpmixError, match="has no array middle, it has left, right"):
        open_samples([], "study/samples.csv", folder)


CONFIG = """
data: {samples: samples.csv, transform: {default: {method: linear}}}
model: {components: 6}
mcmc: {chains: 1, burn_in: 20, draws: 10}
engine: {backend: cpu, threads: 1}
"""


def test_a_table_of_samples_reaches_the_proportions(folder: Path) -> None:
    (folder / "study" / "run.yaml").write_text(CONFIG)

    def dpmix(*arguments: str | Path) -> str:
        result = CliRunner().invoke(main, [*map(str, arguments)], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    dpmix("mcmc", folder / "study" / "run.yaml", "--output", folder / "run.h5", "--quiet")
    assert "events of samples.csv" in dpmix("info", folder / "run.h5")
    table = json.loads(open_run(folder / "run.h5").attributes["sample_table"])
    assert table == {"group": ["ill", "", "well"], "day": ["1", "2", "10"]}
    dpmix("gate", folder / "run.h5", "--output", folder / "gated", "--quiet")
    with (folder / "gated" / "proportions.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:5] == ["sample", "group", "day", "population", "phenotype"]
    found = list(dict.fromkeys((row["sample"], row["group"], row["day"]) for row in rows))
    assert found == [("P1", "ill", "1"), ("P2", "", "2"), ("P3", "well", "10")]
    sizes = {name: sum(int(row["events"]) for row in rows if row["sample"] == name) for name, *_ in found}
    assert sizes == {"P1": 600, "P2": 500, "P3": 300}
    dpmix("predict", folder / "run.h5", folder / "study" / "one", "--output", folder / "new", "--quiet")
