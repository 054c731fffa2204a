"""Files with one row per event, read back by other libraries."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import flowio
import numpy as np
import pytest
from test_tables import small_gating

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.opening import open_sources
from dpmix.inputs.simulate import simulation
from dpmix.inputs.sources import Source
from dpmix.populations.result import Block
from dpmix.report import event_files
from dpmix.report.event_files import FORMATS, event_paths, open_writers
from dpmix.system.files import check_outputs

CHANNELS = ("CD3", "CD4/x", "CD8")
N_POPULATIONS = 4


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    """Two FCS files."""
    for name, n_events in (("a.fcs", 700), ("b.fcs", 500)):
        simulation.cytometry_like(n_events, seed=n_events).write(tmp_path / name)
    return open_sources([tmp_path / "a.fcs", tmp_path / "b.fcs"])


def whole(sample: int, n_events: int, seed: int) -> Block:
    """All gated events of one sample; some rows are missing."""
    random = np.random.default_rng(seed)
    rows = np.flatnonzero(random.random(n_events) < 0.9)
    n = len(rows)
    return Block(
        sample=sample,
        rows=rows,
        values=random.normal(size=(n, len(CHANNELS))).astype(np.float32),
        memberships=random.dirichlet(np.full(N_POPULATIONS, 0.3), n).astype(np.float32),
        log_density=random.normal(-9, 3, n),
        implausible=random.random(n) < 0.05,
    )


def parted(block: Block, size: int) -> list[Block]:
    cuts = [slice(k, k + size) for k in range(0, len(block.rows), size)]
    names = ("rows", "values", "memberships", "log_density", "implausible")
    return [Block(block.sample, *(getattr(block, name)[cut] for name in names)) for cut in cuts]


WHOLE = [whole(0, 700, 1), whole(1, 500, 2)]


def write(
    directory: Path,
    formats: tuple[str, ...],
    sources: list[Source],
    *,
    size: int = 97,
    memberships: bool = False,
) -> None:
    samples = [source.name for source in sources]
    options: dict[str, Any] = {"channels": CHANNELS, "samples": samples, "sources": sources}
    with open_writers(
        directory, formats, **options, labels=range(1, N_POPULATIONS + 1), memberships=memberships
    ) as files:
        for block in WHOLE[: len(sources)]:
            for part in parted(block, size):
                files.write(part)
        files.finish(small_gating(samples=tuple(samples), channels=CHANNELS, n_populations=N_POPULATIONS))


def wanted() -> dict[str, np.ndarray]:
    """Compute the columns from the memberships in float64."""
    p = np.concatenate([block.memberships for block in WHOLE]).astype(np.float64)
    logs = np.log(p, out=np.zeros_like(p), where=p > 0)
    return {
        "event": np.concatenate([block.rows for block in WHOLE]),
        "sample": np.repeat(["a.fcs", "b.fcs"], [len(block.rows) for block in WHOLE]),
        "population": p.argmax(axis=1) + 1,
        "probability": p.max(axis=1),
        "entropy": -(p * logs).sum(axis=1),
        "log_density": np.concatenate([block.log_density for block in WHOLE]),
        "implausible": np.concatenate([block.implausible for block in WHOLE]),
    } | {f"p{k + 1}": p[:, k] for k in range(N_POPULATIONS)}


def agree(found: np.ndarray, name: str) -> None:
    want = wanted()[name]
    if want.dtype.kind == "f":
        np.testing.assert_allclose(found.astype(float), want, rtol=1e-6, atol=1e-6, err_msg=name)
    else:
        np.testing.assert_array_equal(found, want, err_msg=name)


# ------------------------------------------------------------------------------------------ formats


@pytest.mark.parametrize("memberships", [False, True])
def test_parquet(tmp_path: Path, sources: list[Source], memberships: bool) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    write(tmp_path / "out", ("parquet",), sources, memberships=memberships)
    table = parquet.read_table(tmp_path / "out" / "events.parquet")
    assert [f"{field.type}" for field in table.schema][:7] == [
        "int64",
        "dictionary<values=string, indices=int32, ordered=0>",
        "int32",
        "float",
        "float",
        "double",
        "bool",
    ]
    assert table.column_names == list(wanted())[: 11 if memberships else 7]
    for name in table.column_names:
        agree(np.array(table[name].to_pylist()), name)


@pytest.mark.parametrize("memberships", [False, True])
def test_csv(tmp_path: Path, sources: list[Source], memberships: bool) -> None:
    write(tmp_path / "out", ("csv",), sources, memberships=memberships)
    with (tmp_path / "out" / "events.csv").open(newline="") as file:
        head, *rows = csv.reader(file)
    assert head == list(wanted())[: 11 if memberships else 7]
    for name, column in zip(head, zip(*rows, strict=True), strict=True):
        cells = np.array(column)
        agree(cells == "true" if name == "implausible" else cells.astype(wanted()[name].dtype), name)


def test_h5ad(tmp_path: Path, sources: list[Source]) -> None:
    anndata = pytest.importorskip("anndata")
    write(tmp_path / "out", ("h5ad",), sources)
    table = anndata.read_h5ad(tmp_path / "out" / "events.h5ad")
    assert list(table.var_names) == list(CHANNELS)
    assert table.X.dtype == np.float32
    np.testing.assert_array_equal(table.X, np.concatenate([block.values for block in WHOLE]))
    np.testing.assert_array_equal(
        table.obsm["memberships"], np.concatenate([block.memberships for block in WHOLE])
    )
    assert list(table.obs.columns) == list(wanted())[:7]
    assert list(table.obs["population"].cat.categories) == ["1", "2", "3", "4"]
    for name in table.obs.columns:
        agree(table.obs[name].to_numpy().astype(wanted()[name].dtype), name)
    assert table.obs_names.is_unique
    assert table.obs_names[0] == f"a.fcs-{WHOLE[0].rows[0]}"
    gating = small_gating(n_populations=N_POPULATIONS)
    assert table.uns["dpmix"]["run"] == gating.run
    assert tuple(table.uns["dpmix"]["phenotypes"]) == gating.phenotypes


def test_fcs_of_several_samples(tmp_path: Path, sources: list[Source]) -> None:
    write(tmp_path / "out", ("fcs",), sources)
    for source, block in zip(sources, WHOLE, strict=True):
        assert source.header is not None
        flow = flowio.FlowData(tmp_path / "out" / source.name.replace(".fcs", ".gated.fcs"))
        names = [
            *source.channels,
            *("dpmix_population", "dpmix_probability", "dpmix_entropy", "dpmix_implausible"),
        ]
        assert flow.pnn_labels == names
        events = flow.as_array(preprocess=False)
        before = flowio.FlowData(source.header.path).as_array(preprocess=False)
        np.testing.assert_array_equal(events[:, : len(source.channels)], before)
        want = np.zeros((source.n_events, 4), np.float32)
        want[block.rows] = np.column_stack(
            [block.population + 1, block.probability, block.entropy, block.implausible]
        )
        np.testing.assert_array_equal(events[:, -4:], want)
        # values must be below the range
        limits = [float(flow.channels[n]["pnr"]) for n in range(len(names) - 3, len(names) + 1)]
        assert limits == [5, 2, 3, 2]


def test_fcs_of_samples_without_events_that_were_gated(tmp_path: Path, sources: list[Source]) -> None:
    three = [*sources, *open_sources([sources[0].header.path])]  # type: ignore[union-attr]
    samples = ["a.fcs", "b.fcs", "c.fcs"]
    with open_writers(
        tmp_path / "out", ["fcs"], channels=CHANNELS, samples=samples, sources=three, labels=range(1, 5)
    ) as files:
        files.write(WHOLE[1])
        with pytest.raises(ValueError, match="comes after sample 1"):
            files.write(WHOLE[0])
        files.finish(small_gating(channels=CHANNELS, n_populations=4))
    sums = [
        flowio.FlowData(path).as_array(preprocess=False)[:, -4].sum()
        for path in sorted((tmp_path / "out").iterdir())
    ]
    assert sums[0] == sums[2] == 0 < sums[1]


def test_all_formats_at_once_in_blocks_of_any_size(tmp_path: Path, sources: list[Source]) -> None:
    write(tmp_path / "one", FORMATS, sources, size=10_000)
    write(tmp_path / "many", FORMATS, sources, size=1)
    names = ["a.gated.fcs", "b.gated.fcs", "events.csv", "events.h5ad", "events.parquet"]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == names
    for name in ("a.gated.fcs", "b.gated.fcs", "events.csv"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes()


def test_row_groups_are_large_and_blocks_can_be_reused(
    tmp_path: Path, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    anndata = pytest.importorskip("anndata")
    monkeypatch.setattr(event_files, "ROW_GROUP", 250)
    samples = [source.name for source in sources]
    with open_writers(
        tmp_path / "out",
        ["parquet", "h5ad"],
        channels=CHANNELS,
        samples=samples,
        sources=sources,
        labels=range(1, 5),
        memberships=True,
    ) as files:
        for block in [part for sample in WHOLE for part in parted(sample, 100)]:
            names = ("rows", "values", "memberships", "log_density", "implausible")
            used = Block(block.sample, *(getattr(block, name).copy() for name in names))
            files.write(used)
            for name in names:
                getattr(used, name)[:] = 0
        files.finish(small_gating(channels=CHANNELS, n_populations=4))
    file = parquet.ParquetFile(tmp_path / "out" / "events.parquet")
    groups = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
    assert min(groups[:-1]) >= 250
    assert max(groups) < 350
    for name in wanted():
        agree(np.array(file.read()[name].to_pylist()), name)
    table = anndata.read_h5ad(tmp_path / "out" / "events.h5ad")
    np.testing.assert_array_equal(table.X, np.concatenate([block.values for block in WHOLE]))
    agree(table.obs["log_density"].to_numpy(), "log_density")


# -------------------------------------------------------------------------------- names and places


@pytest.mark.parametrize(
    ("samples", "stems"),
    [
        (["a.fcs", "b.b.fcs"], ["a", "b.b"]),
        (["x/a.fcs", "y/a.fcs"], ["x_a", "y_a"]),
        (["a.lmd::1", "a.lmd::2"], ["a_1", "a_2"]),
        (["a.fcs", "a.lmd"], ["a.fcs", "a.lmd"]),
        (["a.fcs", "A.lmd"], ["a.fcs", "A.lmd"]),
        (["x/a.fcs", "x_a.fcs"], ["1_x_a.fcs", "2_x_a.fcs"]),
    ],
)
def test_names_of_fcs_files(tmp_path: Path, samples: list[str], stems: list[str]) -> None:
    write_fcs(tmp_path / "a.fcs", np.ones((2, 1), np.float32), ["a"])
    sources = open_sources([tmp_path / "a.fcs"]) * 2
    paths = event_paths(tmp_path, ["fcs", "csv", "fcs"], samples, sources)
    assert paths == [tmp_path / "events.csv", *(tmp_path / f"{stem}.gated.fcs" for stem in stems)]


def test_an_unknown_format(tmp_path: Path, sources: list[Source]) -> None:
    with pytest.raises(ConfigError, match="format xlsx: need one of parquet, csv, h5ad, fcs"):
        event_paths(tmp_path, ["csv", "xlsx"], ["a", "b"], sources)


def test_fcs_requires_fcs_files(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.ones((5, 2), np.float32))
    sources = open_sources([tmp_path / "a.npy"])
    with pytest.raises(DataError, match=r"a.npy: is not an FCS file.*parquet, csv, h5ad") as caught:
        write(tmp_path / "out", ("fcs",), sources)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_fcs_that_was_gated_before(tmp_path: Path, sources: list[Source]) -> None:
    write(tmp_path / "out", ("fcs",), sources)
    again = open_sources([tmp_path / "out" / "a.gated.fcs"])
    with pytest.raises(ConfigError, match=r"a.gated.fcs: has the channel dpmix_population of an earlier"):
        write(tmp_path / "again", ("fcs",), again)


def test_existing_files(tmp_path: Path) -> None:
    there, folder, new, read = (tmp_path / name for name in ("there", "folder", "new", "read"))
    there.write_text("x")
    read.write_text("x")
    folder.mkdir()
    check_outputs([new, there], True)
    check_outputs([new], False, [read])
    with pytest.raises(ConfigError) as caught:
        check_outputs([new, there, folder, read], False, [tmp_path / "folder" / ".." / "read"])
    problems = caught.value.problems
    assert [problem.split(":")[0] for problem in problems] == [f"{folder}", f"{read}", f"{there}"]
    assert "--overwrite" in problems[-1]
    with pytest.raises(ConfigError, match="would replace an input file"):
        check_outputs([read], True, [read])


@pytest.mark.parametrize("formats", [FORMATS, ("fcs",)])
def test_unfinished_files_are_deleted(
    tmp_path: Path, sources: list[Source], formats: tuple[str, ...]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "events.csv").write_text("of an earlier gating")
    samples = [source.name for source in sources]
    files = open_writers(
        out, formats, channels=CHANNELS, samples=samples, sources=sources, labels=range(1, 5)
    )
    with files:
        files.write(WHOLE[0])
        made = [path.name for path in out.iterdir() if path.name != "events.csv"]
        assert made
        assert all(name.endswith(".partial") for name in made)
    assert [path.name for path in out.iterdir()] == ["events.csv"]
    assert (out / "events.csv").read_text() == "of an earlier gating"


@pytest.mark.parametrize("name", FORMATS)
def test_a_place_that_cannot_be_written_to(tmp_path: Path, sources: list[Source], name: str) -> None:
    out = tmp_path / "out"
    out.write_text("a file")
    with pytest.raises(DataError, match="out: cannot be written: ") as caught:
        write(out, (name,), sources)
    assert "\n" not in str(caught.value)
    out.unlink()
    out.mkdir()
    target = "a.gated.fcs" if name == "fcs" else f"events.{name}"
    (out / f"{target}.partial").mkdir()
    with pytest.raises(DataError, match=f"{target}: cannot be written: "):
        write(out, (name,), sources)


@pytest.mark.parametrize("name", ["parquet", "csv", "fcs"])  # HDF5 cannot open a device
def test_a_full_disk(tmp_path: Path, sources: list[Source], name: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("/dev/full, which is a full disk, is not here")
    out = tmp_path / "out"
    out.mkdir()
    target = "a.gated.fcs" if name == "fcs" else f"events.{name}"
    (out / f"{target}.partial").symlink_to("/dev/full")
    with pytest.raises(DataError, match=f"{target}: cannot be written: No space left"):
        write(out, (name,), sources)
    assert not list(out.iterdir())


def test_a_data_file_truncated_while_it_is_copied(tmp_path: Path, sources: list[Source]) -> None:
    header = sources[1].header
    assert header is not None
    header.path.write_bytes(header.path.read_bytes()[:-1000])
    with pytest.raises(DataError, match=r"b.fcs: found 51 of events \d+ to 500"):
        write(tmp_path / "out", ("fcs",), sources)
    assert not list((tmp_path / "out").iterdir())


def test_many_existing_files_give_one_line(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv", "new.csv")]
    for path in paths[:3]:
        path.touch()
    with pytest.raises(ConfigError) as refused:
        check_outputs(paths, False)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{paths[0]} and 2 other files: exist already; ")


def test_a_file_in_the_place_of_the_folder_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").touch()
    with pytest.raises(ConfigError, match=r"run\.yaml: is a file, not a folder"):
        check_outputs([tmp_path / "run.yaml" / "report.html", tmp_path / "run.yaml" / "tree.json"], True)


def test_a_file_in_the_place_of_the_folder_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("out").touch()
    with pytest.raises(ConfigError) as caught:
        check_outputs([Path("out/report.html"), Path("out/figures/tree.png")], True)
    assert caught.value.problems == ["out: is a file, not a folder; give another --output"]
