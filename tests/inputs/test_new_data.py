"""Events on the scale of a run: its own files and others (`prepare_like`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.parquet
import pytest
from flowutils.transforms import logicle
from test_fcs import channel_keywords, make_fcs
from test_preprocess import LINEAR, MATRIX, events_of, normal, save, write_spilled

from dpmix.config.data import DataConfig
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.event_times import read_times, times_of
from dpmix.inputs.events import Events
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.opening import open_source, open_sources
from dpmix.inputs.preprocess import prepare, prepare_like
from dpmix.inputs.suggest import suggest
from dpmix.inputs.transforms import Scaling

MODES = ("report", "dither", "tail")


def random(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def like(run: Events, base: Path, *files: str, **settings: Any) -> Events:
    """Prepare files on the scale of a run, with the attributes that its run file keeps."""
    scaling = Scaling.from_attributes(json.loads(json.dumps(run.scaling.as_attributes())))
    config = DataConfig.model_validate({"files": ["not_there.fcs"], **settings})
    return prepare_like(config, base, files, scaling, run.detectors)


def write_flow(path: Path, n: int = 4000, seed: int = 1) -> None:
    """Write a fluorescence file with a spillover matrix, clipped in a channel without spillover."""
    x = random(seed).lognormal(8, 2, (n, 3)).astype(np.float32)
    x[:, 0] = np.minimum(x[:, 0], 262_143)
    x[:, 2] = np.maximum(x[:, 2] - 1000, 0)
    keywords = {"$SPILLOVER": "2,PE-A,FITC-A,1,0.1,0.05,1"}
    write_fcs(path, x, ["APC-A", "PE-A", "FITC-A"], ["CD3", "CD4", "CD8"], keywords)


# ---------------------------------------------------------------------------- a run's own events


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.parametrize("method", ["logicle", "arcsinh", "linear"])
def test_a_runs_own_files_give_its_own_bits(
    tmp_path: Path, mode: str, standardize: bool, method: str
) -> None:
    write_flow(tmp_path / "a.fcs")
    write_flow(tmp_path / "b.fcs", 3000, seed=2)
    settings = {"atoms": mode, "standardize": standardize, "transform": {"default": {"method": method}}}
    run = events_of(tmp_path, "a.fcs", "b.fcs", **settings)
    assert any(run.scaling.atoms)
    again = like(run, tmp_path, "a.fcs", "b.fcs", **settings)
    assert again.values.dtype == np.float32
    assert again.values.flags.c_contiguous
    np.testing.assert_array_equal(again.values.view(np.uint32), run.values.view(np.uint32))
    assert again.data_hash == run.data_hash
    assert (again.channels, again.detectors, again.samples) == (run.channels, run.detectors, run.samples)
    np.testing.assert_array_equal(again.sample_starts, run.sample_starts)
    assert again.rows is None
    assert again.scaling.as_attributes() == run.scaling.as_attributes()
    assert again.report == run.report

    # One of them alone, or in another order: the same bits of each event.
    edge = run.sample_starts[1]
    np.testing.assert_array_equal(like(run, tmp_path, "b.fcs", **settings).values, run.values[edge:])
    swapped = like(run, tmp_path, "b.fcs", "a.fcs", **settings)
    np.testing.assert_array_equal(swapped.values, np.r_[run.values[edge:], run.values[:edge]])
    assert swapped.samples == ("b.fcs", "a.fcs")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fewer", [{"max_events": 5000}, {"margin_events": "drop"}])
def test_all_events_are_taken_where_a_run_took_a_part(
    tmp_path: Path, mode: str, fewer: dict[str, Any]
) -> None:
    write_flow(tmp_path / "a.fcs")
    write_flow(tmp_path / "b.fcs", 3000, seed=2)
    run = events_of(tmp_path, "a.fcs", "b.fcs", atoms=mode, **fewer)
    again = like(run, tmp_path, "a.fcs", "b.fcs", atoms=mode, **fewer)
    assert len(again.values) == 7000 > len(run.values)
    assert run.rows is not None
    places = run.rows + np.repeat([0, 4000], np.diff(run.sample_starts))
    np.testing.assert_array_equal(again.values[places], run.values)
    assert (again.report.n_read, again.report.n_dropped) == (7000, 0)
    margins = [line for line in again.report.lines() if line.startswith("margin events")]
    assert margins[0].startswith("margin events (kept): CD3 0 low, ")


@pytest.mark.parametrize("mode", MODES)
def test_a_copy_of_the_file_under_another_name_gives_the_same_bits(tmp_path: Path, mode: str) -> None:
    write_flow(tmp_path / "a.fcs")
    run = events_of(tmp_path, "a.fcs", atoms=mode)
    (tmp_path / "c.fcs").write_bytes((tmp_path / "a.fcs").read_bytes())
    copy = like(run, tmp_path, "c.fcs")
    np.testing.assert_array_equal(copy.values.view(np.uint32), run.values.view(np.uint32))
    assert (copy.samples, copy.data_hash) == (("c.fcs",), run.data_hash)


def test_amplification_is_undone_as_in_the_run(tmp_path: Path) -> None:
    stored = random(5).integers(0, 1024, (500, 2))
    keywords = channel_keywords([16, 16], ["1024", "1024"], n_events=500) | {"$P2E": "4,0"}
    make_fcs(tmp_path / "a.fcs", stored.astype("<u2").tobytes(), keywords)
    for linearize in (True, False):
        run = events_of(tmp_path, "a.fcs", linearize=linearize)
        again = like(run, tmp_path, "a.fcs", linearize=linearize)
        assert again.data_hash == run.data_hash
        assert any("undone in FL2" in note for note in again.report.notes) == linearize


# ------------------------------------------------------------------------------------- new events


def test_new_events_are_on_the_scale_of_the_run_not_on_their_own(tmp_path: Path) -> None:
    old, new = 100 + 20 * normal(), 40_000 + 500 * normal(seed=2)
    write_fcs(tmp_path / "old.fcs", old, ["A", "B", "C"], keywords={f"$P{k}R": "5000" for k in (1, 2, 3)})
    write_fcs(tmp_path / "new.fcs", new, ["A", "B", "C"])
    transform = {"A": {"method": "logicle"}, "B": {"method": "arcsinh"}, "default": {"method": "linear"}}
    run = events_of(tmp_path, "old.fcs", transform=transform)
    got = like(run, tmp_path, "new.fcs", transform=transform)
    x = new.astype(np.float64)
    transformed = np.column_stack(
        (logicle(x[:, 0], None, t=5000, w=0.5, m=4.5, a=0), np.arcsinh(x[:, 1] / 150), x[:, 2])
    )
    want = (transformed - run.scaling.means) / run.scaling.sds
    np.testing.assert_allclose(got.values, want, rtol=1e-5)
    assert [c.beyond_top for c in got.report.channels] == [300, 0, 0]
    assert got.data_hash != run.data_hash


def test_channels_are_found_by_marker_then_by_detector(tmp_path: Path) -> None:
    values = normal(dim=4)
    write_fcs(tmp_path / "a.fcs", values, ["PE-A", "PE-H", "APC-A", "FITC-A"], ["CD4", "CD4", "CD8", ""])
    run = events_of(tmp_path, "a.fcs", transform=LINEAR, channels=["PE-A", "CD8", "FITC-A"])
    assert run.channels == ("CD4", "CD8", "FITC-A")
    write_fcs(
        tmp_path / "b.fcs", values[:, [3, 2, 1, 0]], ["FITC-A", "PE-A", "X", "V450-A"], ["", "CD8", "", "CD4"]
    )
    got = like(run, tmp_path, "b.fcs")
    np.testing.assert_array_equal(got.values, run.values)
    assert got.channels == run.channels
    assert got.detectors == ("V450-A", "PE-A", "FITC-A")
    assert [c.detector for c in got.report.channels] == list(got.detectors)
    assert "b.fcs: V450-A (CD4) used as PE-A (CD4) of the run" in got.report.notes
    assert like(run, tmp_path, "a.fcs").data_hash == run.data_hash
    save(tmp_path, "c.npz", values[:, :2], ["CD4", "CD8"])
    with pytest.raises(DataError, match=r"c.npz: has no channel FITC-A, which the run has; give files"):
        like(run, tmp_path, "c.npz")


def test_each_file_is_compensated_by_its_own_matrix(tmp_path: Path) -> None:
    true_values = random(4).gamma(2.0, 500.0, (400, 3))
    names = ["A", "B", "C"]
    write_spilled(tmp_path / "a.fcs", true_values, names)
    save(tmp_path, "plain.npz", true_values, names)
    twice = np.eye(3) + 2 * (MATRIX - np.eye(3))
    spill = "3,A,B,C," + ",".join(str(x) for x in twice.ravel())
    write_fcs(
        tmp_path / "b.fcs", (true_values @ twice).astype(np.float32), names, None, {"$SPILLOVER": spill}
    )
    run = events_of(tmp_path, "a.fcs", transform=LINEAR)
    for name, note in (("b.fcs", "own spillover matrix"), ("plain.npz", "")):
        got = like(run, tmp_path, name)
        np.testing.assert_allclose(got.values, run.values, atol=1e-4)
        assert [n for n in got.report.notes if note in n] == list(got.report.notes)
    lines = [",".join(names), *(",".join(map(str, row)) for row in MATRIX)]
    (tmp_path / "m.csv").write_text("\n".join(lines) + "\n")
    by_file = like(run, tmp_path, "a.fcs", compensation="m.csv")
    np.testing.assert_allclose(by_file.values, run.values, atol=1e-4)
    raw = like(run, tmp_path, "a.fcs", compensation="none")
    np.testing.assert_allclose(
        run.scaling.to_transformed(raw.values), true_values @ MATRIX, rtol=1e-4, atol=1e-2
    )


@pytest.mark.parametrize("first", ["raw", "done"])
@pytest.mark.parametrize("prefix", ["FJComp-", "Comp-"])
def test_files_before_and_after_compensation_have_the_same_channels(
    tmp_path: Path, first: str, prefix: str
) -> None:
    """FlowJo exports compensated values under another name and without the matrix."""
    true_values = random(4).gamma(2.0, 500.0, (400, 3)).astype(np.float32)
    write_spilled(tmp_path / "raw.fcs", true_values, ["A", "B", "C"])
    write_fcs(tmp_path / "done.fcs", true_values, [f"{prefix}{name}" for name in "ABC"])
    second = "done" if first == "raw" else "raw"
    files = [f"{first}.fcs", f"{second}.fcs"]
    both = prepare(DataConfig(files=files, transform=LINEAR, standardize=False), tmp_path, 1)
    np.testing.assert_allclose(both.values[:400], both.values[400:], rtol=1e-3, atol=0.1)
    assert both.report.warnings == ()
    assert suggest(open_sources(files, tmp_path)).compensation == "auto"
    run = events_of(tmp_path, f"{first}.fcs", transform=LINEAR)
    np.testing.assert_allclose(like(run, tmp_path, f"{second}.fcs").values, run.values, atol=1e-3)
    write_fcs(tmp_path / "raw.fcs", true_values, ["A", "B", "C"])
    with pytest.raises(DataError, match="is not the same: only one of them is compensated"):
        prepare(DataConfig(files=files), tmp_path, 1)
    with pytest.raises(DataError, match=rf"not in {second}\.fcs with the same compensation"):
        suggest(open_sources(files, tmp_path))


def test_a_marker_that_is_compensated_in_one_file_only_is_a_warning(tmp_path: Path) -> None:
    true_values = random(4).gamma(2.0, 500.0, (400, 2)).astype(np.float32)
    write_fcs(tmp_path / "a.fcs", true_values, ["<A>", "<B>"], ["CD3", "CD4"])
    write_fcs(tmp_path / "b.fcs", true_values, ["A", "B"], ["CD3", "CD4"])
    (warning,) = prepare(DataConfig(files=["a.fcs", "b.fcs"]), tmp_path, 1).report.warnings
    assert warning == (
        "b.fcs: only one of A here and <A> in a.fcs is compensated (and so for 1 other channels); check "
        "data.compensation"
    )


@pytest.mark.parametrize("kind", ["fcs", "parquet", "npy", "h5"])
def test_seconds_since_1970_are_times(tmp_path: Path, kind: str) -> None:
    """In float32 they would be the same for 128 seconds."""
    path, times = tmp_path / f"a.{kind}", 1.7e9 + np.arange(300) / 10
    values = np.column_stack((random().normal(300, 60, (300, 2)), times))
    names = ["CD3", "CD4", "Time"]
    if kind == "fcs":
        keywords = channel_keywords([64] * 3, ["262144"] * 3, "D", n_events=300)
        keywords |= {f"$P{n}N": name for n, name in enumerate(names, start=1)}
        make_fcs(path, values.astype("<f8").tobytes(), keywords)
    elif kind == "parquet":
        columns = {name: values[:, k] for k, name in enumerate(names)}
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
    elif kind == "npy":
        np.save(path, values)
    else:
        with h5py.File(path, "w") as file:
            file["events"] = values
            file["events"].attrs["channels"] = names
    source = open_source(path)
    np.testing.assert_array_equal(read_times(source, 2), times)
    assert source.read(0, 300).dtype == np.float32
    if kind != "npy":
        np.testing.assert_array_equal(times_of(source), times)


def test_atoms_are_those_of_the_run_counted_here(tmp_path: Path) -> None:
    x = np.maximum(random().normal(100, 40, (3000, 2)), 60).astype(np.float32)
    y = x[:2000].copy()
    y[:, 1] = random(3).normal(100, 40, 2000)
    y[:500, 1] = 77  # as an atom of its own would be
    save(tmp_path, "a.npz", x, ["CD3", "CD4"])
    save(tmp_path, "b.npz", y, ["CD3", "CD4"])
    run = events_of(tmp_path, "a.npz", atoms="tail", transform=LINEAR)
    got = like(run, tmp_path, "b.npz", atoms="tail")
    assert got.scaling.atoms == run.scaling.atoms
    (atom,), of_the_other = (channel.atoms for channel in got.report.channels)
    assert of_the_other == ()
    assert (atom.events, atom.treatment) == (int((y[:, 0] == 60).sum()), "tail below")
    raw = run.scaling.to_transformed(got.values)
    assert (raw[y[:, 0] == 60, 0] < 60).all()
    np.testing.assert_allclose(raw[:, 1], y[:, 1], rtol=1e-5)


# ----------------------------------------------------------------------------------- what is refused


@pytest.fixture
def run(tmp_path: Path) -> Events:
    save(tmp_path, "run.npz", normal(), ["CD3", "CD4", "CD8"])
    return events_of(
        tmp_path, "run.npz", transform={"CD3": {"method": "log"}, "default": {"method": "linear"}}
    )


def write_new(base: Path, values: npt.ArrayLike) -> None:
    save(base, "new.npz", values, ["CD3", "CD4", "CD8"])


def test_few_or_constant_events_are_accepted(tmp_path: Path, run: Events) -> None:
    write_new(tmp_path, normal()[:1])
    got = like(run, tmp_path, "new.npz")
    np.testing.assert_array_equal(got.values, run.values[:1])
    save(tmp_path, "none.npz", normal()[:0], ["CD3", "CD4", "CD8"])
    with pytest.raises(DataError, match=r"none.npz: .*no events"):
        like(run, tmp_path, "none.npz")


def test_values_that_are_not_finite(tmp_path: Path, run: Events) -> None:
    values = normal()
    values[17, 1] = np.nan
    write_new(tmp_path, values)
    got = like(run, tmp_path, "new.npz")
    assert got.rows is not None
    assert 17 not in got.rows
    assert len(got.values) == len(values) - 1
    assert "new.npz: 1 of " in got.report.warnings[0]
    values[:100, 1] = np.nan
    write_new(tmp_path, values)
    with pytest.raises(DataError, match=r"new.npz: values that are not finite in CD4 \(100 NaN, 0 infinite"):
        like(run, tmp_path, "new.npz")


def test_the_logarithm_requires_positive_values(tmp_path: Path, run: Events) -> None:
    values = normal()
    values[:4, 0] = [0, -1, 0, 5]
    write_new(tmp_path, values)
    with pytest.raises(DataError, match=r"transform log: values at or below 0 in CD3 \(3 events\)"):
        like(run, tmp_path, "new.npz")


def test_values_that_overflow_on_the_scale_of_the_run(tmp_path: Path) -> None:
    save(tmp_path, "run.npz", normal() * 1e-6, ["CD3", "CD4", "CD8"])
    run = events_of(tmp_path, "run.npz")
    values = normal()
    values[3, 2] = 1e38
    write_new(tmp_path, values)
    with pytest.raises(DataError, match=r"^CD8: not finite after the transform"):
        like(run, tmp_path, "new.npz")


def test_a_missing_file(tmp_path: Path, run: Events) -> None:
    with pytest.raises(ConfigError, match=r"absent.fcs matches no file"):
        like(run, tmp_path, "absent.fcs")


# ---------------------------------------------------------------------------------------- real files


@pytest.mark.parametrize(
    "files", [["fcs/G69*.fcs"], ["fcs/3FITC_4PE_004.fcs"], ["labelled/flowsom_68983.fcs"]]
)
@pytest.mark.parametrize("mode", ["report", "tail"])
def test_real_samples_give_their_own_bits(shared_data: Path, files: list[str], mode: str) -> None:
    run = events_of(shared_data, *files, atoms=mode)
    assert like(run, shared_data, *files, atoms=mode).data_hash == run.data_hash


@pytest.mark.parametrize("n_events", [1, 50])
def test_equal_values_in_a_new_file_are_not_rounded(tmp_path: Path, n_events: int) -> None:
    save(tmp_path, "a.npz", normal(), ["CD3", "CD4", "CD8"])
    save(tmp_path, "b.npz", np.full((n_events, 3), 7.7, np.float32), ["CD3", "CD4", "CD8"])
    assert not like(events_of(tmp_path, "a.npz"), tmp_path, "b.npz").report.warnings
