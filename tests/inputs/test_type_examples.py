"""Examples of cell types: labels of events from gates and from columns."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anndata
import flowkit
import numpy as np
import pandas
import pytest
from workspaces import write_workspace

from dpmix.errors import ConfigError
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.opening import open_source
from dpmix.inputs.type_examples import are_examples, read_examples

N = 60
WORDS = ["B", "T", "", "unknown", "NA", "T"]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files of 60 events: A-A rises from 0, B-A falls to 0."""
    paths = [tmp_path / "a.fcs", tmp_path / "b.fcs"]
    rise = 100_000.0 * np.linspace(0.0, 1.0, N)
    values = np.column_stack([rise, rise, rise[::-1]]).astype(np.float32)
    for path in paths:
        keywords = {"$SPILLOVER": "2,A-A,B-A,1,0,0,1"}
        write_fcs(path, values, ["FSC-A", "A-A", "B-A"], ["", "CD1", "CD2"], keywords)
    return paths


def events_of(paths: list[Path], rows: np.ndarray | None = None) -> Any:
    """Events of a run, with the attributes that are read: all of each file, or some rows of it."""
    rows = np.arange(N) if rows is None else rows
    starts = np.arange(len(paths) + 1) * len(rows)
    return SimpleNamespace(
        sources=tuple(open_source(path) for path in paths),
        samples=tuple(path.name for path in paths),
        sample_starts=starts,
        rows_in_file=lambda s, first, end: rows[first - starts[s] : end - starts[s]],
    )


def names_of(found: Any) -> list[str]:
    return [(*found.types, "no type", "")[code] if code >= 0 else "" for code in found.labels]


EXPECTED = ["B", "T", "", "no type", "", "T"]


def test_a_list_of_events_has_labels_by_file_and_row(files: list[Path], tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    lines = [f"b.fcs,{row},{word}" for row, word in zip((50, 3, 4, 5, 6, 0), WORDS, strict=True)]
    path.write_text("\n".join(["sample,event,type", *lines]))
    assert are_examples(path)
    found = read_examples(path, events_of(files))
    assert found.types == ("B", "T")
    assert found.parents == ("", "")
    names = names_of(found)
    assert [names[N + row] for row in (50, 3, 4, 5, 6, 0)] == EXPECTED
    assert not any(names[:N])
    assert "4 of 60 events of b.fcs have labels" in found.notes[0]
    some = read_examples(path, events_of(files, np.array([3, 50])))  # the run has some of the events
    assert names_of(some) == ["", "", "T", "B"]


def test_a_column_has_a_label_in_each_line(files: list[Path], tmp_path: Path) -> None:
    words = WORDS * 10
    (tmp_path / "b.csv").write_text("\n".join(["x,gate", *(f"1,{word}" for word in words)]))
    data = anndata.AnnData(np.zeros((N, 1)), obs=pandas.DataFrame({"cell_type": pandas.Categorical(words)}))
    data.obs.index = data.obs.index.astype(str)
    data.write_h5ad(tmp_path / "b.h5ad")
    codes = np.array([1, 2, -1, 0, -1, 2] * 10)
    np.savez(tmp_path / "b.npz", labels=codes, label_names=np.array(["ungated", "B", "T"]), numbers=codes)
    for given in ("b.csv::gate", "b.h5ad", "b.h5ad::cell_type", "b.npz"):
        path = f"{tmp_path}/{given}"
        assert are_examples(path)
        assert names_of(read_examples(path, events_of(files))) == [""] * N + EXPECTED * 10, given
    np.savez(tmp_path / "b.npz", labels=codes)  # without names: 0 and below say nothing
    found = read_examples(tmp_path / "b.npz", events_of(files))
    assert names_of(found)[N : N + 6] == ["1", "2", "", "", "", "2"]


def test_the_innermost_gate_is_the_label(files: list[Path], tmp_path: Path) -> None:
    """A is A-A above 0.4 with a gate inside, B is B-A above 0.4, both of 1; some events are in both."""
    gates = {"A": {"A-A": (0.4, None)}, "A/deep": {"A-A": (0.8, None)}, "B": {"B-A": (0.4, None)}}
    linear = flowkit.transforms.LinearTransform(100_000, 0.0)
    write_workspace(tmp_path / "w.wsp", files[:1], gates, transform=linear)
    assert are_examples(tmp_path / "w.wsp")
    found = read_examples(tmp_path / "w.wsp", events_of(files))
    assert dict(zip(found.types, found.parents, strict=True)) == {"A": "", "B": "", "deep": "A"}
    rise = np.linspace(0.0, 1.0, N)
    expected = np.where(rise >= 0.8, "deep", np.where(rise >= 0.4, "A", "no type"))
    in_b = rise[::-1] >= 0.4
    expected = np.where(in_b & (rise >= 0.4), "", np.where(in_b, "B", expected))
    assert names_of(found) == [*expected.tolist(), *[""] * N]  # the workspace lacks the second file
    unclear = int((expected == "").sum())
    assert f"{unclear:,} events lie in several gates" in found.notes[0]


def test_events_outside_of_all_gates_are_of_no_type(files: list[Path], tmp_path: Path) -> None:
    gates = {"A": {"A-A": (0.8, None)}, "B": {"B-A": (0.8, None)}}
    linear = flowkit.transforms.LinearTransform(100_000, 0.0)
    write_workspace(tmp_path / "w.wsp", files[1:], gates, transform=linear)
    names = names_of(read_examples(tmp_path / "w.wsp", events_of(files)))
    rise = np.linspace(0.0, 1.0, N)
    expected = np.where(rise >= 0.8, "A", np.where(rise[::-1] >= 0.8, "B", "no type"))
    assert names == [*[""] * N, *expected.tolist()]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "labels.csv",
            "sample,event,type\nc.fcs,0,B\n",
            "row 1: no file c.fcs in the run; it has a.fcs, b.fcs",
        ),
        ("labels.csv", "sample,event,type\na.fcs,60,B\n", "row 1: event 60 of a file of 60 events"),
        ("labels.csv", "sample,event,type\na.fcs,x,B\n", "row 1: event is x, need the number of a row"),
        ("labels.csv", "event,type\n0,B\n", "has no column sample, which a run of 2 files needs"),
        (
            "labels.csv",
            "sample,event,type\na.fcs,0,B\n",
            "need labels of at least 2 cell types, found only B",
        ),
        ("a.csv::gate", "gate\nB\nT\n", "has 2 labels, a.fcs has 60 events"),
        ("a.csv::other", "gate\nB\nT\n", "has no column other; it has gate"),
        ("c.csv::gate", "gate\nB\nT\n", "no file of the run has this name but for the suffix"),
    ],
)
def test_errors_are_one_line(files: list[Path], tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name.partition("::")[0]).write_text(text)
    with pytest.raises(ConfigError, match=words) as caught:
        read_examples(tmp_path / name, events_of(files))
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("--types: ")


def test_a_table_is_no_file_of_examples(tmp_path: Path) -> None:
    (tmp_path / "types.csv").write_text("cell,CD3\nT,+\nB,-\n")
    assert not are_examples(tmp_path / "types.csv")
    assert not are_examples("pbmc-t")
    with pytest.raises(ConfigError, match="no such file"):
        are_examples(tmp_path / "missing.wsp")
