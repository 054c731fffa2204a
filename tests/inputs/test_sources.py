"""Data files of every kind give the same events; files without a table of numbers are refused."""

from __future__ import annotations

import decimal
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.parquet
import pytest
from platforms import USES_LINUX

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.channel_names import why_not_measured
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.opening import open_source, open_sources
from dpmix.inputs.storage import Storage
from dpmix.inputs.table_files import TEXT_BLOCK
from dpmix.system import progress

NAMES = ["CD3", "CD4", "CD8"]
Values = npt.NDArray[np.float32]


@pytest.fixture
def values() -> Values:
    return np.random.default_rng(3).normal(0, 100, (500, 3)).astype(np.float32)


def write_csv(path: Path, values: Values, header: str = "CD3,CD4,CD8", delimiter: str = ",") -> None:
    np.savetxt(path, values, fmt="%.9g", delimiter=delimiter, header=header, comments="")


def write_hdf5(path: Path, values: Values) -> None:
    with h5py.File(path, "w") as file:
        file["a/names"] = ["x", "y"]
        file["b/events"] = values
        file["b/channels"] = NAMES
        file["c/other"] = values[:, :2] * 2
        file["c/other"].attrs["channels"] = ["left", "right"]


def write_h5ad(path: Path, values: Values, sparse: bool = False) -> None:
    import anndata
    import pandas as pd
    from scipy.sparse import csr_matrix

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = anndata.AnnData(
            csr_matrix(values) if sparse else values,
            var=pd.DataFrame({"marker": ["CD3", None, "CD8"]}, index=["PE-A", "APC-A", "FITC-A"]),
        )
        table.write_h5ad(path)


def write_parquet(path: Path, values: Values) -> None:
    columns = {name: values[:, k] for k, name in enumerate(NAMES)} | {"word": ["a"] * len(values)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=64)


WRITERS: dict[str, Callable[[Path, Values], None]] = {
    "a.fcs": lambda path, x: write_fcs(path, x, NAMES),
    "a.lmd": lambda path, x: write_fcs(path, x, NAMES),
    "a.csv": write_csv,
    "semicolons.csv": lambda path, x: write_csv(path, x, "CD3;CD4;CD8", ";"),
    "quoted.csv": lambda path, x: write_csv(path, x, '"CD3","CD4","CD8"'),
    "a.tsv": lambda path, x: write_csv(path, x, "CD3\tCD4\tCD8", "\t"),
    "a.npz": lambda path, x: np.savez(path, events=x, channels=NAMES, labels=np.zeros(len(x))),
    "a.h5": write_hdf5,
    "a.parquet": write_parquet,
    "suffix.wrong": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_each_kind_gives_names_and_events(tmp_path: Path, values: Values, name: str) -> None:
    WRITERS[name](tmp_path / name, values)
    source = open_source(tmp_path / name)
    assert list(source.channels[:3]) == NAMES
    assert source.n_events == 500
    assert source.name == name
    everything = source.read(0, 500, [0, 1, 2])
    assert everything.dtype == np.float32
    np.testing.assert_array_equal(everything, values)
    np.testing.assert_array_equal(source.read(60, 300, [2, 0]), values[60:300, [2, 0]])
    assert source.read(7, 7, [0, 1]).shape == (0, 2)


@pytest.mark.parametrize("sparse", [False, True])
def test_anndata_has_markers(tmp_path: Path, values: Values, sparse: bool) -> None:
    write_h5ad(tmp_path / "a.h5ad", values, sparse)
    source = open_source(tmp_path / "a.h5ad")
    assert source.channels == ("PE-A", "APC-A", "FITC-A")
    assert [c.marker for c in source.details] == ["CD3", "", "CD8"]
    np.testing.assert_array_equal(source.read(3, 9), values[3:9])


@pytest.mark.parametrize("column", ["channel", "PnN", "$PnN", "Channel Name"])
@pytest.mark.parametrize("marker", [False, True])
def test_anndata_whose_index_repeats_markers(
    tmp_path: Path, values: Values, column: str, marker: bool
) -> None:
    """The layout that readfcs and pytometry write."""
    anndata, pd = pytest.importorskip("anndata"), pytest.importorskip("pandas")
    names = ["CD3", "-", "-"]
    var = pd.DataFrame({column: ["PE-A", "APC-A", "FITC-A"]}, index=names)
    var = var.assign(marker=["CD3", "", ""]) if marker else var
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anndata.AnnData(values, var=var).write_h5ad(tmp_path / "a.h5ad")
    source = open_source(tmp_path / "a.h5ad")
    assert source.channels == ("PE-A", "APC-A", "FITC-A")
    assert [channel.marker for channel in source.details] == (["CD3", "", ""] if marker else names)
    np.testing.assert_array_equal(source.read(3, 9), values[3:9])


@pytest.mark.parametrize("dtype", ["float32", "float64", ">f4", "int16", "uint8"])
def test_npy_of_any_number_type(tmp_path: Path, values: Values, dtype: str) -> None:
    stored = np.abs(values).astype(dtype)
    np.save(tmp_path / "a.npy", np.asfortranarray(stored))
    source = open_source(tmp_path / "a.npy")
    assert source.channels == ("ch0", "ch1", "ch2")
    np.testing.assert_array_equal(source.read(0, 500), stored.astype(np.float32))


def test_a_table_without_a_header(tmp_path: Path, values: Values) -> None:
    np.savetxt(tmp_path / "a.csv", values, fmt="%.9g", delimiter=",")
    source = open_source(tmp_path / "a.csv")
    assert source.channels == ("ch0", "ch1", "ch2")
    np.testing.assert_array_equal(source.read(0, 500), values)


def test_an_empty_cell_is_not_a_number_but_nan(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,2\n,3\n")
    read = open_source(tmp_path / "a.csv").read(0, 2)
    np.testing.assert_array_equal(read, [[1, 2], [np.nan, 3]])


def test_text_columns_are_refused_only_if_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,kind,b\n1,x,2\n3,y,4\n")
    source = open_source(tmp_path / "a.csv")
    assert [c.numeric for c in source.details] == [True, False, True]
    np.testing.assert_array_equal(source.read(0, 2, [2, 0]), [[2, 1], [4, 3]])
    with pytest.raises(
        DataError, match=r"a.csv: no numbers in kind; list the channels to use in data.channels"
    ):
        source.read(0, 2)


def test_a_text_in_a_column_of_numbers_is_reported_with_its_row(tmp_path: Path) -> None:
    rows = [f"{k},{k + 1},donor {k},{k}" for k in range(1, 101)]
    rows[49] = '50,"5,1",donor 50,'
    (tmp_path / "a.csv").write_text("\n".join(["CD3,CD4,who,CD8", *rows]))
    source = open_source(tmp_path / "a.csv")
    assert [channel.numeric for channel in source.details] == [True, False, False, True]
    warning = 'column CD4 is not used: row 50 is "5,1", which is not a number (1 of 100 rows)'
    assert source.warnings == (warning,)  # who has no numbers: it is not a channel
    with pytest.raises(DataError, match="row 50"):
        source.read(0, 3)


def test_a_text_far_into_a_file_is_an_error_with_its_row(tmp_path: Path) -> None:
    rows = ["1.5,2.5"] * 300_000
    rows[290_000] = "1.5,oops"
    (tmp_path / "a.csv").write_text("\n".join(["CD3,CD4", *rows]))
    with pytest.raises(DataError, match=r'a.csv: row 290001 of column CD4 is "oops", which is not a number;'):
        open_source(tmp_path / "a.csv")


def test_parts_of_a_file(tmp_path: Path, values: Values) -> None:
    write_hdf5(tmp_path / "a.h5", values)
    np.savez(tmp_path / "a.npz", left=values, right=values * 2)
    sources = open_sources(["a.h5::/c/other", "a.npz::right"], tmp_path)
    assert [s.name for s in sources] == ["a.h5::/c/other", "a.npz::right"]
    assert sources[0].channels == ("left", "right")
    np.testing.assert_array_equal(sources[1].read(0, 500), values * 2)
    with pytest.raises(DataError, match=r"arrays left, right may be the events; name one, as in \S+::left"):
        open_source(tmp_path / "a.npz")
    for file, part in (("a.h5", "nowhere"), ("a.npz", "middle")):
        with pytest.raises(ConfigError, match=part):
            open_source(tmp_path / file, part)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (("x/cells", "y/cells"), "x/cells, y/cells may be the events; name one, as in a.h5::x/cells"),
        (("x/events", "y/events"), "data sets x/events, y/events may be the events"),
        ((), "none of its data sets has two dimensions of numbers"),
    ],
)
def test_a_file_with_several_tables_or_none_is_an_error(
    tmp_path: Path, values: Values, tables: tuple[str, ...], message: str
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["names"] = ["left", "right"]
        for name in tables:
            file[name] = values
    with pytest.raises(DataError, match=message):
        open_source(tmp_path / "a.h5")


def test_the_only_table_of_a_file_needs_no_name(tmp_path: Path, values: Values) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x/cells"] = values
        file["x/names"] = ["left", "right"]
    np.testing.assert_array_equal(open_source(tmp_path / "a.h5").read(0, 500), values)


def test_globs_in_sorted_order_and_names_that_differ(tmp_path: Path, values: Values) -> None:
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        for name in ("b.npy", "a.npy"):
            np.save(tmp_path / folder / name, values)
    assert [s.name for s in open_sources(["y/*.npy"], tmp_path)] == ["a.npy", "b.npy"]
    assert [s.name for s in open_sources(["y/b.npy", "x/*.npy"], tmp_path)] == [
        "y/b.npy",
        "x/a.npy",
        "x/b.npy",
    ]


def test_a_name_with_brackets_is_a_name(tmp_path: Path, values: Values) -> None:
    np.save(tmp_path / "a[1].npy", values)
    assert open_sources(["a[1].npy"], tmp_path)[0].n_events == 500


def test_all_wrong_names_are_reported_together(tmp_path: Path, values: Values) -> None:
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(ConfigError) as caught:
        open_sources(["a.npy", "no*.fcs", "*.npy"], tmp_path)
    assert len(caught.value.problems) == 2
    assert "no*.fcs matches no file" in caught.value.problems[0]
    assert "named twice" in caught.value.problems[1]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.fcs", b"oi21j08cn\n", "is named FCS, but its content is not FCS"),
        ("a.fcs", b"", "a.fcs: is empty; export or copy the file again"),
        ("a.doc", b"abcdefgh", "is not a data file that dpmix reads; give FCS"),
        ("a.xlsx", b"PK\x03\x04 a workbook", "is a spreadsheet, which dpmix does not read; save it as CSV"),
        ("a.npz", b"PK\x03\x04 broken", "cannot be read"),
        ("a.h5", b"\x89HDF\r\n\x1a\n broken", "cannot be read"),
        ("a.parquet", b"PAR1 broken", "cannot be read"),
        ("a.npy", b"\x93NUMPY\x01\x00", "cannot be read .*; export or copy the file again, as FCS"),
        ("a.csv", "µ,b\n1,2\n".encode("latin-1"), r"\(not text in UTF-8\); save it as CSV in UTF-8"),
        ("a.csv", b"", "empty first line"),
        ("a.csv", b"a,b\nx,y\n", "no column of numbers"),
        ("a.csv", b"a,a\n1,2\n", "several channels are named a"),
        ("a.csv", b"a,b\n1,2\n3\n", "need 2 as in the first line"),
        ("a.csv", b"\xff\xfe\x00a,\n", "cannot be read"),
    ],
)
def test_a_file_without_data_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        open_source(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


def test_a_missing_file_needs_another_path(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"a.fcs: cannot be read \(No such file or directory\); correct the path"
    ):
        open_source(tmp_path / "a.fcs")


def test_an_empty_name_is_not_the_folder(tmp_path: Path, values: Values) -> None:
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(ConfigError, match=r"data\.files: a name is empty; give a file, a glob or a folder"):
        open_sources([""], tmp_path)


@USES_LINUX
def test_a_text_file_with_a_name_not_in_utf_8(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"a\xfc.csv")
    path.write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match=r"cannot be read \(its name is not in UTF-8\); rename the file"):
        open_source(path)


def test_arrays_that_are_not_tables(tmp_path: Path) -> None:
    for array in (np.zeros(5), np.zeros((2, 2, 2)), np.array([["a", "b"]])):
        np.save(tmp_path / "a.npy", array)
        with pytest.raises(DataError, match=r"need numbers \[events, channels\]"):
            open_source(tmp_path / "a.npy")
    np.savez(tmp_path / "a.npz", events=np.zeros((3, 2)), channels=["a"])
    with pytest.raises(DataError, match="found 1 channel names and 2 columns"):
        open_source(tmp_path / "a.npz")


def test_pickles_are_not_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        open_source(tmp_path / "a.npy")


def test_a_folder_is_the_data_files_in_it(tmp_path: Path, values: Values) -> None:
    folder = tmp_path / "data"
    (folder / "inner.npy").mkdir(parents=True)
    with pytest.raises(
        ConfigError, match=r"data.files: .*data: has no data file; give a folder with .fcs, .lmd, "
    ):
        open_sources(["data"], tmp_path)
    for name in ("b.CSV", "a.fcs", "c.tsv", "d.parquet"):
        WRITERS[f"a.{name[2:].lower()}"](folder / name, values)
    for name in (".hidden.npy", "notes.txt", "a.xlsx"):
        np.save(folder / "x.npy", values)
        (folder / "x.npy").rename(folder / name)
    write_hdf5(folder / "run.h5", values)
    with h5py.File(folder / "run.h5", "a") as file:
        file.attrs["run_id"] = "x"  # as in the run file of a run with its output there
    assert [s.name for s in open_sources(["data"], tmp_path)] == ["a.fcs", "b.CSV", "c.tsv", "d.parquet"]
    assert [s.name for s in open_sources([folder / ""])] == ["a.fcs", "b.CSV", "c.tsv", "d.parquet"]
    with pytest.raises(ConfigError, match=r"a.fcs is named twice"):
        open_sources(["data", "data/a.fcs"], tmp_path)
    (folder / "broken.h5").write_bytes(b"\x89HDF broken")
    with pytest.raises(DataError, match=r"broken.h5: cannot be read"):
        open_sources(["data"], tmp_path)


@pytest.mark.parametrize("limit", [None, 20_000, 10**9])
def test_a_text_file_is_the_same_table_in_memory_and_in_a_file(
    tmp_path: Path, values: Values, limit: int | None
) -> None:
    """The numbers of both files are 14 kB. With a limit of 20,000 bytes, 2,500 bytes stay in memory."""
    write_csv(tmp_path / "a.csv", values)
    write_csv(tmp_path / "b.csv", values[:, ::-1] * 2, "a;word;b", ";")
    lines = (tmp_path / "b.csv").read_text().splitlines()
    lines[1:] = [f"{line.split(';')[0]};x;{line.split(';')[2]}" for line in lines[1:]]
    (tmp_path / "b.csv").write_text("\n".join(lines))
    storage = Storage(tmp_path, limit)
    one, two = open_sources(["a.csv", "b.csv"], tmp_path, storage)
    assert storage.table(1)._spool._rolled == (limit == 20_000)  # type: ignore[attr-defined]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "b.csv"]
    np.testing.assert_array_equal(two.read(60, 300, [2, 0]), values[60:300, [0, 2]] * 2)
    np.testing.assert_array_equal(one.read(0, 500), values)
    np.testing.assert_array_equal(one.read(499, 500, [1]), values[499:, [1]])
    assert (two.n_events, two.read(7, 7, [0]).shape) == (500, (0, 1))


def test_progress_of_reading_a_text_file_is_logged(
    tmp_path: Path, values: Values, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_csv(tmp_path / "a.csv", np.tile(values, (400, 1)))
    monkeypatch.setattr(progress, "LINES", 0.0)
    caplog.set_level("INFO", "dpmix")
    open_source(tmp_path / "a.csv")
    shares = [record.share for record in caplog.records]  # type: ignore[attr-defined]
    blocks = (tmp_path / "a.csv").stat().st_size / TEXT_BLOCK
    assert shares == pytest.approx([min(k / blocks, 1.0) for k in range(1, math.ceil(blocks) + 1)])
    assert len(shares) > 3
    assert caplog.messages[-1] == "reading a.csv: 100%"


def test_real_tables(shared_data: Path) -> None:
    gvhd = open_source(shared_data / "labelled" / "gvhd_flowcap1.npz")
    assert (gvhd.n_events, gvhd.channels[2]) == (207_171, "FL1.H")
    dlbcl = open_source(shared_data / "labelled" / "dlbcl_flowcap1.csv")
    assert dlbcl.channels == ("CD3", "CD5", "CD19", "label")
    np.testing.assert_array_equal(dlbcl.read(0, 1), [[171, 387, 118, 4]])


def test_a_run_file_is_refused(tmp_path: Path, values: Values) -> None:
    write_hdf5(tmp_path / "run.h5", values)
    with h5py.File(tmp_path / "run.h5", "a") as file:
        file.attrs["run_id"] = "x"
    with pytest.raises(DataError, match="is a run file of dpmix"):
        open_source(tmp_path / "run.h5")


def test_a_folder_with_brackets_in_its_name(tmp_path: Path, values: Values) -> None:
    folder = tmp_path / "[panel]"
    folder.mkdir()
    np.save(folder / "a.npy", values)
    assert [s.name for s in open_sources(["*.npy"], folder)] == ["a.npy"]


@pytest.mark.parametrize("header", [["A,B,C"], []])
@pytest.mark.parametrize(("line", "cells"), [("1,2", 2), ("1,2,3,4", 4)])
def test_a_row_with_another_number_of_cells_is_named(
    tmp_path: Path, header: list[str], line: str, cells: int
) -> None:
    rows = [*header, *["1,2,3"] * 6, "", line, "5,6,7"]
    (tmp_path / "a.csv").write_text("\n".join(rows))
    found = f"a.csv: row 7: the number of cells is {cells}, need 3 as in the first line; correct this row"
    with pytest.raises(DataError, match=found):
        open_source(tmp_path / "a.csv")


# ------------------------------------------------------------------------------- formats of text files

COMMAS = "2717,22;-92,46;3228\n54,09;3415,9;100,05\n-3,1;1,5;6,2e1\n"
POINTS = [[2717.22, -92.46, 3228], [54.09, 3415.9, 100.05], [-3.1, 1.5, 62]]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (COMMAS, ["ch0", "ch1", "ch2"]),  # as Excel and write.csv2 write where commas are decimal
        ("CD3;CD4;CD8\n" + COMMAS, ["CD3", "CD4", "CD8"]),
        ("Cd(110,111);CD4;CD8\n" + COMMAS, ["Cd(110,111)", "CD4", "CD8"]),
        (COMMAS.replace(";", "\t"), ["ch0", "ch1", "ch2"]),
        ("sep=;\nCD3;CD4;CD8\n" + COMMAS, ["CD3", "CD4", "CD8"]),
        ("sep=;\n" + COMMAS, ["ch0", "ch1", "ch2"]),
        ("sep=,\r\nCD3,CD4,CD8\r\n" + COMMAS.replace(",", ".").replace(";", ","), ["CD3", "CD4", "CD8"]),
        ("CD3;CD4;CD8\n" + COMMAS.replace(",", "."), ["CD3", "CD4", "CD8"]),
        ("CD3 CD4 CD8\n" + COMMAS.replace(",", ".").replace(";", " "), ["CD3", "CD4", "CD8"]),
        ("CD3|CD4|CD8\n" + COMMAS.replace(",", ".").replace(";", "|"), ["CD3", "CD4", "CD8"]),
        ("CD3 FITC,CD4 PE,CD8\n" + COMMAS.replace(",", ".").replace(";", ","), ["CD3 FITC", "CD4 PE", "CD8"]),
    ],
)
def test_delimiters_and_decimal_commas(tmp_path: Path, text: str, names: list[str]) -> None:
    (tmp_path / "a.csv").write_text(text, newline="")
    source = open_source(tmp_path / "a.csv")
    assert [channel.detector for channel in source.details] == names
    np.testing.assert_array_equal(source.read(0, 3), np.array(POINTS, np.float32))
    assert ("decimal commas, read as decimal points" in source.notes) == (",22" in text)
    assert any("its first line has numbers: an event" in note for note in source.notes) == (names[0] == "ch0")
    assert source.warnings == ()


def test_decimal_commas_that_come_late_or_in_one_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("CD3;CD4\n" + "1;2\n" * 100 + "1,5;2,5\n")
    np.testing.assert_array_equal(open_source(tmp_path / "a.csv").read(100, 101), [[1.5, 2.5]])
    (tmp_path / "a.csv").write_text("CD3\n2717,22\n-92,46\n")
    source = open_source(tmp_path / "a.csv")
    assert source.channels == ("CD3",)
    np.testing.assert_allclose(source.read(0, 2), [[2717.22], [-92.46]])


@pytest.mark.parametrize("cell", ["n.a.", "-", "#DIV/0!", "#NV", "-nan(ind)", "1.#QNAN0", "None", "NAN"])
def test_missing_values_of_other_programs(tmp_path: Path, cell: str) -> None:
    (tmp_path / "a.csv").write_text(f"CD3,CD4\n1.5,2\n{cell},3\n4.5,5\n")
    source = open_source(tmp_path / "a.csv")
    assert source.warnings == (), "the event is left out, not the marker"
    np.testing.assert_array_equal(source.read(0, 3)[:, 0], [1.5, np.nan, 4.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("CD3;CD4\n2.717,22;1.000,5\n", r'no column of numbers \(row 1 starts with "2\.717,22"\)'),
        (
            "# of Monday\nCD3,CD4,CD8\n1,2,3\n",
            r'need 1 as in the first line, "# of Monday"; remove the lines above',
        ),
    ],
)
def test_what_is_no_table_is_shown(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=message):
        open_source(tmp_path / "a.csv")


def test_decimals_in_parquet_are_numbers(tmp_path: Path) -> None:
    cells = [decimal.Decimal("1.50"), decimal.Decimal("-2.25")]
    pyarrow.parquet.write_table(pyarrow.table({"CD3": cells, "CD4": [1, 2]}), tmp_path / "a.parquet")
    np.testing.assert_array_equal(open_source(tmp_path / "a.parquet").read(0, 2), [[1.5, 1], [-2.25, 2]])


@pytest.mark.parametrize("mark", [" ", "\t"])
def test_row_names_of_write_table_are_no_channel(tmp_path: Path, mark: str) -> None:
    rows = [mark.join([f'"{k}"', *map(str, row)]) for k, row in enumerate(POINTS, start=1)]
    (tmp_path / "a.txt").write_text("\n".join([mark.join(['"CD3"', '"CD4"', '"CD8"']), *rows]))
    source = open_source(tmp_path / "a.txt")
    assert source.channels == ("row names", "CD3", "CD4", "CD8")
    np.testing.assert_array_equal(source.read(0, 3, [1, 2, 3]), np.array(POINTS, np.float32))
    assert why_not_measured(source.details[0])


def test_a_cell_that_is_not_a_number_with_decimal_commas(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("CD3;CD4\n" + "1,5;2,5\n" * 30_0000 + "1,5;oops\n")
    with pytest.raises(DataError, match=r'row 300001 of column CD4 is "oops", which is not a number'):
        open_source(tmp_path / "a.csv")


def test_a_clock_of_seconds_since_1970_in_a_table_does_not_stand(tmp_path: Path) -> None:
    seconds = 1.7e9 + np.arange(300) * 0.25
    rows = [f"{time!r},{k % 7}.5" for k, time in enumerate(seconds.tolist())]
    (tmp_path / "late.csv").write_text("\n".join(["Time,CD3", *rows]) + "\n")
    source = open_source(tmp_path / "late.csv")
    times = source.read(0, 300, [0])[:, 0]
    np.testing.assert_array_equal(times, np.arange(300) * 0.25)  # since the first event
    np.testing.assert_array_equal(source.read(0, 3, [1])[:, 0], [0.5, 1.5, 2.5])
