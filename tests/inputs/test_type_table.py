"""Tables of cell types: what cells mean, what is refused, and which channels markers are."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from dpmix.errors import ConfigError
from dpmix.inputs.type_cells import cells_of_column, levels_of_column, parse_cell, parse_phenotype
from dpmix.inputs.type_table import TypeTable, match_markers, parse_types, read_types, type_lines

TABLES = Path(__file__).parents[2] / ".." / "shared" / "data" / "tables"
EUROFLOW = (
    "CD19/TCRgd:PE Cy7-A LOGICAL", "CD38:APC H7-A LOGICAL", "CD3:APC-A LOGICAL", "CD4+CD20:PB-A LOGICAL",
    "CD45:PO-A LOGICAL", "CD56+IgK:PE-A LOGICAL", "CD5:PerCP Cy5-5-A LOGICAL", "CD8+IgL:FITC-A LOGICAL",
    "FSC-A LINEAR", "SSC-A Exp-SSC Low",
)  # fmt: skip


def written(levels: np.ndarray) -> list[str]:
    """Return the levels of each row as letters: f(off), l(ow), o(n), h(igh)."""
    return ["".join(letter for letter, has in zip("floh", row, strict=True) if has) for row in levels]


def read(folder: Path, text: str, encoding: str = "utf-8", **options: str) -> TypeTable:
    """Read a table of cell types from a text."""
    path = folder / "types.csv"
    path.write_text(text, encoding=encoding)
    return read_types(path, **options)


def problems(folder: Path, text: str) -> list[str]:
    """Return what is wrong with a table, without the path."""
    with pytest.raises(ConfigError) as error:
        read(folder, text)
    return [line.split("types.csv: ")[1] for line in error.value.problems]


@pytest.mark.parametrize(
    ("cells", "levels"),
    [
        (["+", "-", ""], ["loh", "f", "floh"]),
        (["+", "lo", "-"], ["oh", "l", "f"]),
        (["+", "dim", "++"], ["o", "l", "h"]),
        (["+", "HI", "mid"], ["lo", "h", "o"]),
        (["lo|mid", "-|LO", "+|-"], ["lo", "fl", "foh"]),
        (["NA", "*", "nan", "+/-"], ["floh"] * 4),
        (["1", "-1", "0.5", "-0,5", "1.0"], ["oh", "f", "l", "l", "oh"]),
        (["\u2212", "\u2013", "'+", " + "], ["f", "f", "loh", "loh"]),
        (["*", "+"], ["floh", "loh"]),  # a silent cell names no level
    ],
)
def test_levels_of_the_cells_of_a_column(cells: list[str], levels: list[str]) -> None:
    assert written(levels_of_column([parse_cell(cell) for cell in cells])) == levels


def test_a_cell_with_doubt() -> None:
    for cell in ("+ p=0.9", "+ (p = 0,9)", "+, P=.9"):
        assert parse_cell(cell).doubt == pytest.approx(0.1)
        assert parse_cell(cell).atoms == parse_cell("+").atoms
    assert np.isnan(parse_cell("+").doubt)
    for wrong in ("+ p=0", "+ p=1.5", "+ p=x", "+ p=nan"):
        with pytest.raises(ValueError, match="need p above 0"):
            parse_cell(wrong)


@pytest.mark.parametrize("wrong", ["++-", "1.1", "-2", "yes", "+|", "inf", "lo|maybe", "+ 0.9"])
def test_cells_that_are_refused(wrong: str) -> None:
    if wrong == "+|":  # nothing on one side is silent
        assert written(levels_of_column([parse_cell(wrong)])) == ["floh"]
        return
    with pytest.raises(ValueError, match="need \\+, -, \\+\\+"):
        parse_cell(wrong)


def test_a_zero_asks_what_it_means(tmp_path: Path) -> None:
    text = "population,CD4,CD8\nA,0,-1\nB,1,0.0\n"
    found = problems(tmp_path, text)
    assert [line.split(":")[0] for line in found] == ["row 1 (A), column CD4", "row 2 (B), column CD8"]
    assert all("0 is half way for Scyan, and not known for others" in line for line in found)
    assert written(read(tmp_path, text, zero="lo").levels[:, 0]) == ["l", "oh"]
    assert written(read(tmp_path, text, zero="blank").levels[:, 0]) == ["floh", "loh"]


@pytest.mark.parametrize(
    ("text", "cells"),
    [
        ("CD3+ CD4+ CD8-", {"CD3": "+", "CD4": "+", "CD8": "-"}),
        ("CD3+CD4++CD8-CD19-", {"CD3": "+", "CD4": "++", "CD8": "-", "CD19": "-"}),
        ("HLA-DR+CD3-", {"HLA-DR": "+", "CD3": "-"}),
        ("CD3-HLA-DR-", {"CD3": "-", "HLA-DR": "-"}),
        ("CD45RAdim CD56bright", {"CD45RA": "lo", "CD56": "hi"}),
        ("PD-1+, Pacific Blue marker-", {"PD-1": "+", "Pacific Blue marker": "-"}),
        ("CD4+CD20+ CD19/TCRgd- CD5+/- (CD38 higher) 2", {"CD4+CD20": "+", "CD19/TCRgd": "-", "CD5": ""}),
        ("CD8lo|+", {"CD8": "lo|+"}),
    ],
)
def test_phenotypes_written_as_one_text(text: str, cells: dict[str, str]) -> None:
    assert parse_phenotype(text) == {marker: parse_cell(cell) for marker, cell in cells.items()}


def test_phenotypes_that_are_refused() -> None:
    with pytest.raises(ValueError, match="CD4 has no sign"):
        parse_phenotype("CD3+ CD4 CD8-")
    with pytest.raises(ValueError, match="CD3 occurs twice"):
        parse_phenotype("CD3+ CD3-")


def test_narrow_tables(tmp_path: Path) -> None:
    table = read(tmp_path, "Cell,Gate,remark\nCD4 T,CD3+CD4+CD8-,x\nCD8 T,CD3+CD4-CD8+,\nDN,CD3+,\n")
    assert table.markers == ("CD3", "CD4", "CD8")
    assert written(table.levels[:, 1]) == ["loh", "f", "floh"]
    assert table.notes[0].endswith("markers are read from the column Gate; not used: remark")
    alone = read(tmp_path, "phenotype\nCD3+ CD4+\nCD3+ CD4-\n")
    assert alone.types == ("CD3+ CD4+", "CD3+ CD4-")
    assert problems(tmp_path, "name,phenotype\nA,CD3+ CD4\n") == [
        "row 1 (A), column phenotype: got CD3+ CD4; CD4 has no sign; write each marker with one, "
        "for example CD3+ CD4+ CD8-"
    ]


def test_a_blank_kind_is_what_the_name_says(tmp_path: Path) -> None:
    names = ("T", "Debris RBC", "doublets B cells", "dead", "Deadly", "debris")
    kinds = ("cell", "debris", "doublet", "dead", "cell", "cell")
    table = read(
        tmp_path, "cell,kind,CD3\n" + "".join(f"{name},,-\n" for name in names[:-1]) + "debris,cell,-\n"
    )
    assert table.kinds == kinds
    assert parse_types("again", type_lines(table)).kinds == kinds


@pytest.mark.parametrize("head", ["Cell type", "CELLTYPE", "cell_types", "Populations", "cell", "Name", ""])
def test_names_of_the_first_column(tmp_path: Path, head: str) -> None:
    assert read(tmp_path, f"{head},CD3\nT,+\nB,-\n").types == ("T", "B")


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    text = (
        "population,CD3,parent,kind,cl\nT,yes,,cell,CL:84\nTy,+,Tx,cells,CL_0000084\nB,1.5,,ghost,\nC,,,,\n"
    )
    assert [line.split(";")[0] for line in problems(tmp_path, text)] == [
        "row 1 (T), column CD3: got yes",
        "row 3 (B), column CD3: got 1.5",
        "row 3 (B), column kind: got ghost",
        "row 1 (T), column cl: got CL:84",
        "row 2 (Ty), column parent: no row is named Tx, nearest: T",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty"),
        ("CD3,CD4\n+,-\n", "the first column is CD3"),
        ("population,CD3\n", "found no row"),
        ("population,CD3,cd3\nT,+,+\n", "two columns are named cd3"),
        ("population,,CD3\nT,+,+\n", "column 2 has no name"),
        ("population,CD3\nT,+,+\n", "row 1 (T) has 3 cells, need 2"),
        ("population,CD3\nT,+\nT,-\n", "row 2 (T): row 1 has this name, too"),
        ("population,CD3\n,+\n", "row 1 (without a name): need a name"),
        ("population,parent\nT,\n", "has no column of a marker"),
        ("population,CD3\nT,\n", "row 1 (T): has no cell"),
        ("population,CD3,parent,level\nT,+,,\n", "has the columns parent and level"),
        ("population,CD3,parent\nA,+,B\nB,+,C\nC,+,B\n", "the parents go in a circle: B in C in B"),
        ("population,CD3,level\nA,+,B\nB,-,A\n", "the parents go in a circle: A in B in A"),
    ],
)
def test_tables_that_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    found = problems(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_parents_and_levels(tmp_path: Path) -> None:
    text = "population,CD3,CD4,CD45RA,parent\nT,+,,,\nCD4 T,,+ p=0.8,,T\nNaive,,,+,CD4 T\n"
    table = read(tmp_path, text)
    assert table.parents == ("", "T", "CD4 T")
    assert table.is_silent[2].tolist() == [True, True, False]
    whole = table.with_inherited()
    assert written(whole.levels[2]) == ["loh"] * 3
    assert whole.doubt[2, 1] == pytest.approx(0.2)
    own = read(tmp_path, text.replace("Naive,,,+", "Naive,-,,+")).with_inherited()
    assert written(own.levels[2])[0] == "f"  # its own cell counts, not the parent's
    groups = read(tmp_path, "Population,level,CD3,CD4\nCD4 T,T,1,1\nCD8 T,T,1,-1\nB,,-1,\n")
    assert groups.types == ("CD4 T", "CD8 T", "B", "T")
    assert groups.parents == ("T", "T", "", "")
    assert written(groups.levels[3]) == ["loh", "floh"]


def test_plus_of_a_parent_includes_its_children(tmp_path: Path) -> None:
    """NK cells are CD56+, whatever its subsets are; of other types, + is what no row names."""
    table = read(tmp_path, "population,CD56,parent\nNK,+,\nbright,++,NK\nearly,-,NK\nT,+,\n")
    assert written(table.levels[:, 0]) == ["loh", "h", "f", "lo"]


def test_formats_of_spreadsheets(tmp_path: Path) -> None:
    plain = read(tmp_path, "population,CD3,CD4\nT,1,-0.5\nB,-1,\n")
    for text, encoding in (
        ("population;CD3;CD4\nT;1;-0,5\nB;-1;\n", "utf-8"),
        ("sep=;\npopulation;CD3;CD4;;\nT;1;-0,5;;\nB;-1;;;\n;;;;\n", "utf-8-sig"),
        ("population\tCD3\tCD4\r\nT\t1\t-0.5\r\nB\t-1\t\r\n", "utf-16"),
    ):
        found = read(tmp_path, text, encoding)
        assert found.markers == plain.markers
        assert np.array_equal(found.levels, plain.levels)
    assert "not text in UTF-8" in str(problems_of_bytes(tmp_path, b"population,\xe9\nT,+\n"))
    with pytest.raises(ConfigError, match=r"none\.csv: cannot be read \(No such file"):
        read_types(tmp_path / "none.csv")


def problems_of_bytes(folder: Path, content: bytes) -> ConfigError:
    """Return the error about a file that is not text."""
    (folder / "types.csv").write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_types(folder / "types.csv")
    return error.value


def test_rows_with_the_same_cells_are_noted(tmp_path: Path) -> None:
    table = read(tmp_path, "population,CD3\nA,+\nB,pos\nC,-\n")
    assert [note.split("types.csv: ")[1] for note in table.notes] == [
        "A and B have the same cells; no event can tell them apart"
    ]


@pytest.mark.parametrize(
    ("marker", "channels", "number"),
    [
        ("HLA-DR", ("HLADR", "CD3"), 0),
        ("HLA.DR", ("CD3", "HLA-DR"), 1),
        ("CD8", ("CD8b", "CD8a"), 1),
        ("CD8a", ("CD8", "CD3"), 0),
        ("CD45RA", ("CD45R", "CD45RO", "CD45RA PE"), 2),
        ("NK1.1", ("NK1/1", "CD3"), 0),
        ("TCRgd", ("TCRyd", "TCRb"), 0),
        ("TCR\u03b3\u03b4", ("TCRb", "TCRgd"), 1),
        ("CD4", ("CD4", "CD4 APC"), 0),  # the exact name first
        ("CD19/TCRgd", EUROFLOW, 0),
        ("FSC-A", EUROFLOW, 8),
        ("SSC-A", EUROFLOW, 9),
        ("CD4", ("CD3", "170Er_CD4"), 1),
        ("PD-1", ("CD279", "CD3"), 0),
    ],
)
def test_markers_are_matched_as_a_reader_would(
    tmp_path: Path, marker: str, channels: tuple[str, ...], number: int
) -> None:
    numbers, notes = match_markers(read(tmp_path, f"population,{marker}\nA,+\n"), channels)
    assert numbers.tolist() == [number]
    assert notes == ()


def test_markers_that_do_not_match(tmp_path: Path) -> None:
    table = read(tmp_path, "population,CD3,CD8,CD7\nA,+,+,+\n")
    numbers, notes = match_markers(table, ("CD8a", "CD3"))
    assert numbers.tolist() == [1, 0, -1]
    assert [note.split("types.csv: ")[1] for note in notes] == ["ignored, not in the panel: CD7"]
    for channels, problem in (
        (("CD4", "CD19"), "none of its markers is in the panel: CD3, CD8, CD7"),
        (("CD8 PE", "CD8 APC", "CD3"), "marker CD8 matches CD8 PE, CD8 APC"),
    ):
        with pytest.raises(ConfigError, match=problem):
            match_markers(table, channels)
    with pytest.raises(ConfigError, match="markers CD8 and CD8a match one channel, CD8"):
        match_markers(read(tmp_path, "population,CD8,CD8a\nA,+,+\n"), ("CD8", "CD3"))


@pytest.mark.parametrize(
    "cells",
    [["+", "-", ""], ["+", "lo", "hi"], ["lo|+", "+", "lo"], ["mid|hi", "+", "-"], ["lo|hi", "-|mid", "+"]],
)
def test_written_cells_read_back(cells: list[str]) -> None:
    levels = levels_of_column([parse_cell(cell) for cell in cells])
    doubt = np.array([np.nan, 0.1, 0.25])
    read_back = [parse_cell(text) for text in cells_of_column(levels, doubt)]
    assert np.array_equal(levels_of_column(read_back), levels)
    spoken = ~levels.all(axis=1)
    np.testing.assert_allclose(np.array([cell.doubt for cell in read_back])[spoken], doubt[spoken])


@pytest.mark.parametrize(
    ("name", "shape", "has_parents"),
    [
        ("hipc", (10, 7), False),
        ("pbmc_himc", (26, 19), False),
        ("euroflow", (17, 10), False),
        ("flowsom_68983", (6, 7), False),
        ("levine32_scyan", (14, 14), False),
        ("poised_scyan", (38, 19), True),  # 28 rows and 9 levels that are no rows, and its own header
    ],
)
def test_tables_of_other_programs(
    tmp_path: Path, name: str, shape: tuple[int, int], has_parents: bool
) -> None:
    path = TABLES / f"{name}.csv"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    table = read_types(path, zero="lo" if name == "poised_scyan" else "")
    assert table.levels.shape[:2] == shape
    assert any(table.parents) == has_parents
    assert not table.is_silent.all(axis=1).any()
    copy = tmp_path / "copy.csv"
    with copy.open("w", newline="") as file:
        csv.writer(file).writerows(type_lines(table))
    again = read_types(copy)
    assert (again.types, again.parents, again.markers) == (table.types, table.parents, table.markers)
    assert np.array_equal(again.levels, table.levels)
    if name == "euroflow":
        assert match_markers(table, EUROFLOW)[0].tolist() == [*range(10)]
