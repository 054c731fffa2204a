"""The run file: written in place, readable at every instant, never lost or overwritten by accident."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path

import h5py
import numpy as np
import pytest
import xarray
from platforms import FORKS, READS_LOCKED, USES_LINUX
from waiting import wait_until

from dpmix.errors import ConfigError, DataError
from dpmix.model.mixture import HYPERPARAMETERS, Array, Hyperparameters, State
from dpmix.runs import mapped
from dpmix.runs.checkpoint import checkpoint_path
from dpmix.runs.layout import COUNTS, MCMC_COUNTS, FileLayout, Record
from dpmix.runs.profile import SPANS
from dpmix.runs.reader import open_run
from dpmix.runs.run_file import Contents, read_contents
from dpmix.runs.writer import RunWriter
from dpmix.system.extras import import_arviz

CHAINS, K, CHANNELS = 2, 32, ("CD3", "CD4é", "side scatter", "CD8", "CD19")
D = len(CHANNELS)
MEANS, SDS = np.arange(5.0), np.array([1.0, 2.0, 3.0, 0.5, 10.0])


def layout(
    draws: int = 20,
    burn_in: int = 5,
    kind: str = "mcmc",
    chains: int = CHAINS,
    learned: tuple[str, ...] = (),
) -> FileLayout:
    return FileLayout(
        kind=kind,
        chains=chains,
        draws=draws,
        sweeps=1 + burn_in + draws,
        n_components=K,
        channels=CHANNELS,
        constants={
            "channel_means": (("channel",), MEANS),
            "channel_sds": (("channel",), SDS),
            "sample_starts": (("sample_edge",), np.array([0, 10, 30])),
            "sample": (("sample",), np.array(["a.fcs", "b.fcs"], dtype=object)),
        },
        attributes={
            "config": "data: {files: [a.fcs]}\nseed: 7\nmodel: {components: 32}\n",
            "seed": 7,
            "engine": {"backend": "cpu", "threads": 2},
            "scaling": {"CD3": {"method": "arcsinh"}},
            "data_hash": "ab12",
            "n_events": 30,
        },
        learned=learned,
        counts=COUNTS[kind] if kind == "mcmc" else (),
    )


def state(draw: int, chain: int = 0) -> State:
    """A state that its draw and chain determine."""
    rng = np.random.default_rng([draw, chain])
    return State(
        iteration=draw,
        alpha=float(rng.gamma(2.0)),
        log_sticks=np.log(rng.uniform(0.1, 0.9, K - 1)),
        log1m_sticks=np.log(rng.uniform(0.1, 0.9, K - 1)),
        means=rng.normal(size=(K, D)),
        covariances=rng.normal(size=(K, D, D)),
        whiteners=rng.normal(size=(K, D, D)),
        hyperparameters=Hyperparameters(
            rng.normal(size=D), float(rng.gamma(2.0)), float(rng.gamma(2.0)), rng.normal(size=(D, D))
        ),
    )


def record(draw: int, chain: int = 0) -> Record:
    return Record(-100.0 + draw, -200.0 + draw, 3 + chain, 1.5, 0.25, (draw, chain, 2, 3, 4, 5))


def write_draw(writer: RunWriter, draw: int, chains: int = CHAINS) -> None:
    writer.write_draw(draw, [state(draw, c) for c in range(chains)], [record(draw, c) for c in range(chains)])


def assert_whole(path: Path, committed: int | None = None) -> int:
    """The file opens and its committed draws are those that were written, to the last bit."""
    run = open_run(path)
    assert committed is None or run.committed == committed
    for draw in range(run.committed):
        for chain in range(CHAINS):
            expected = state(draw, chain)
            np.testing.assert_array_equal(run.weights[chain, draw], expected.weights)
            np.testing.assert_array_equal(run.means[chain, draw], expected.means)
            np.testing.assert_array_equal(run.covariances[chain, draw], expected.covariances)
            assert run.alpha[chain, draw] == expected.alpha
            assert run.sample_stats["log_posterior"][chain, draw] == -200.0 + draw
            assert run.sample_stats["occupied"][chain, draw] == 3 + chain
            counts = [run.sample_stats[name][chain, draw] for name in MCMC_COUNTS]
            assert counts == [draw, chain, 2, 3, 4, 5]
    return run.committed


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.h5"


# Reading back


def test_what_was_written_is_read(path: Path) -> None:
    with RunWriter.create(path, layout()) as writer:
        for draw in range(20):
            write_draw(writer, draw)
            assert writer.committed == draw + 1
        for chain in range(CHAINS):
            for sweep in range(26):
                writer.write_sweep(chain, sweep, record(sweep, chain))
    assert_whole(path, 20)
    run = open_run(path)
    assert run.complete
    assert run.kind == "mcmc"
    assert run.channels == CHANNELS
    assert (run.n_components, run.draws) == (K, 20)
    assert (run.config["seed"], run.config["model"]["components"]) == (7, 32)
    assert run.attributes["seed"] == 7
    assert run.attributes["n_events"] == 30
    assert run.attributes["format_version"] == 3
    assert run.engine == {"backend": "cpu", "threads": 2}
    assert run.scaling == {"CD3": {"method": "arcsinh"}}
    assert set(run.versions) == {"dpmix", "numpy", "python"}
    assert list(run.constants["sample"]) == ["a.fcs", "b.fcs"]
    assert list(run.constants["sample_starts"]) == [0, 10, 30]
    np.testing.assert_array_equal(run.trace["log_likelihood"], np.tile(np.arange(26) - 100.0, (2, 1)))
    np.testing.assert_array_equal(run.trace["occupied"][:, 7], [3, 4])
    assert list(run.sweeps_made) == [25, 25]


def test_a_run_half_way_gives_what_is_committed(path: Path) -> None:
    with RunWriter.create(path, layout()) as writer:
        for draw in range(7):
            write_draw(writer, draw)
        for sweep in range(12):
            writer.write_sweep(0, sweep, record(sweep))
        writer._write("posterior/means", (0, 7), state(7).means)  # a draw that is begun, not committed
    assert_whole(path, 7)
    run = open_run(path)
    assert not run.complete
    assert run.weights.shape == (CHAINS, 7, K)
    assert run.covariances.shape == (CHAINS, 7, K, D, D)
    assert list(run.sweeps_made) == [11, -1]
    assert np.isnan(run.trace["alpha"][0, 12:]).all()
    assert (run.trace["occupied"][1] == -1).all()


def test_nothing_drawn_reads_nan(path: Path) -> None:
    RunWriter.create(path, layout()).close()
    run = open_run(path)
    assert run.committed == 0
    assert run.means.shape == (CHAINS, 0, K, D)
    assert list(run.sweeps_made) == [-1, -1]
    with h5py.File(path) as file:
        assert np.isnan(file["posterior/covariances"][:]).all()
        assert (file["sample_stats/occupied"][:] == -1).all()
        assert file["committed"][()] == 0


def test_transformed_scale(path: Path) -> None:
    """x = z sd + mean: the moments of a normal follow."""
    with RunWriter.create(path, layout()) as writer:
        write_draw(writer, 0)
    run, plain = open_run(path, transformed=True), open_run(path)
    scale = np.diag(SDS)
    np.testing.assert_allclose(run.means[1, 0, 5], scale @ plain.means[1, 0, 5] + MEANS, rtol=1e-14)
    np.testing.assert_allclose(
        run.covariances[1, 0, 5], scale @ plain.covariances[1, 0, 5] @ scale, rtol=1e-14
    )
    np.testing.assert_array_equal(run.weights, plain.weights)
    np.testing.assert_array_equal(run.arviz()["posterior"]["means"], run.means)


def test_hyperparameters_that_are_learned_are_read(path: Path) -> None:
    with RunWriter.create(path, layout(learned=HYPERPARAMETERS)) as writer:
        for draw in range(3):
            write_draw(writer, draw)
    run, scaled = open_run(path), open_run(path, transformed=True)
    assert tuple(run.hyperparameters) == HYPERPARAMETERS
    expected = state(2, 1).hyperparameters
    for name in HYPERPARAMETERS:
        assert len(run.hyperparameters[name][0]) == 3
        np.testing.assert_array_equal(run.hyperparameters[name][1, 2], getattr(expected, name))
    np.testing.assert_allclose(scaled.hyperparameters["m"][1, 2], SDS * expected.m + MEANS, rtol=1e-14)
    phi = np.diag(SDS) @ expected.phi @ np.diag(SDS)
    np.testing.assert_allclose(scaled.hyperparameters["phi"][1, 2], phi, rtol=1e-14)
    np.testing.assert_array_equal(scaled.hyperparameters["gamma"], run.hyperparameters["gamma"])
    np.testing.assert_array_equal(scaled.hyperparameters["nu"], run.hyperparameters["nu"])
    data = import_arviz().from_netcdf(path)
    group = data["posterior"]
    assert group["m"].dims == ("chain", "draw", "channel")
    assert group["gamma"].dims == group["nu"].dims == ("chain", "draw")
    assert group["phi"].dims == ("chain", "draw", "channel", "channel_bis")
    data.close()
    np.testing.assert_array_equal(scaled.arviz()["posterior"]["phi"], scaled.hyperparameters["phi"])


def test_only_what_is_learned_is_in_the_file(path: Path) -> None:
    with RunWriter.create(path, layout(learned=("nu",))) as writer:
        write_draw(writer, 0)
    assert set(open_run(path).hyperparameters) == {"nu"}
    assert "gamma" not in open_run(path).arviz()["posterior"]


@READS_LOCKED
def test_arviz_and_xarray_open_the_file_as_it_is(path: Path) -> None:
    az = import_arviz()
    with RunWriter.create(path, layout()) as writer:
        for draw in range(20):
            write_draw(writer, draw)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data = az.from_netcdf(path)
            tree = xarray.open_datatree(path, engine="h5netcdf")
        write_draw(writer, 19)  # nobody holds a lock
    assert set(data.groups()) == {"posterior", "sample_stats", "trace", "profile", "constant_data"}
    assert data.attrs["data_hash"] == "ab12"
    for group in (data["posterior"], tree["posterior"].to_dataset()):
        assert group["means"].dims == ("chain", "draw", "component", "channel")
        assert group["covariances"].dims == ("chain", "draw", "component", "channel", "channel_bis")
        assert tuple(group["channel"].values) == tuple(group["channel_bis"].values) == CHANNELS
        np.testing.assert_array_equal(group["means"][1, 19], state(19, 1).means)
    assert data["sample_stats"]["occupied"].dtype == np.int64
    assert data["trace"]["alpha"].dims == ("chain", "sweep")
    assert tuple(data["profile"]["span"].values) == tuple(SPANS)
    assert tuple(data["constant_data"]["sample"].values) == ("a.fcs", "b.fcs")
    assert int(tree["committed"]) == 20
    assert list(az.summary(data, var_names=["alpha"])["mean"]) == [
        pytest.approx(np.mean([state(t, c).alpha for t in range(20) for c in range(2)]), abs=1e-3)
    ]
    data.close()
    tree.close()


def test_arviz_object_has_committed_draws_only(path: Path) -> None:
    with RunWriter.create(path, layout()) as writer:
        for draw in range(9):
            write_draw(writer, draw)
    data = open_run(path).arviz()
    assert dict(data["posterior"].sizes) == {
        "chain": 2,
        "draw": 9,
        "component": K,
        "channel": D,
        "channel_bis": D,
    }
    assert data["sample_stats"]["log_likelihood"].shape == (2, 9)
    assert data["trace"]["log_likelihood"].shape == (2, 26)
    assert tuple(data["posterior"]["channel"].values) == CHANNELS
    assert tuple(data["constant_data"]["sample"].values) == ("a.fcs", "b.fcs")
    np.testing.assert_array_equal(data["posterior"]["weights"][1, 8], state(8, 1).weights)
    assert data.attrs["seed"] == 7


def test_bayesian_em_keeps_the_best_start_and_all_traces(path: Path) -> None:
    with RunWriter.create(path, layout(draws=1, burn_in=49, kind="bem", chains=3)) as writer:
        for start, steps in enumerate((4, 50, 7)):
            for step in range(steps + 1):
                writer.write_sweep(start, step, record(step, start))
        write_draw(writer, 0, chains=1)
    run = open_run(path)
    assert (run.kind, run.complete, run.weights.shape) == ("bem", True, (1, 1, K))
    assert list(run.sweeps_made) == [4, 50, 7]
    data = import_arviz().from_netcdf(path)
    assert data["trace"]["log_posterior"].dims == ("start", "step")
    assert data["trace"]["log_posterior"].shape == (3, 51)
    data.close()


def test_the_profile_is_replaced_and_read_back(path: Path) -> None:
    with RunWriter.create(path, layout()) as writer:
        assert open_run(path).profile == {}
        for factor in (1.0, 2.0):
            seconds = {span: factor * i for i, span in enumerate(SPANS)}
            writer.write_profile(seconds)
            assert open_run(path).profile == seconds
    data = open_run(path).arviz()
    assert float(data["profile"]["seconds"].sel(span="writing")) == seconds["writing"]


# Writing


def test_only_the_places_of_draws_ever_change(path: Path) -> None:
    """Whatever HDF5 says of the file stays as it was laid out, so that no moment can leave it broken."""
    with RunWriter.create(path, layout()) as writer:
        before = np.fromfile(path, np.uint8)
        for draw in range(20):
            write_draw(writer, draw)
            writer.write_sweep(1, draw, record(draw))
        writer.sync()
    after = np.fromfile(path, np.uint8)
    assert len(before) == len(after)
    elsewhere = np.ones(len(before), bool)
    for slot in read_contents(path).slots.values():
        assert slot.offset % 8 == 0, "a number that crosses a page may be torn by a kill"
        elsewhere[slot.offset : slot.offset + 8 * int(np.prod(slot.shape))] = False
    np.testing.assert_array_equal(before[elsewhere], after[elsewhere])
    assert elsewhere.sum() < 200_000


def test_size_is_known_beforehand(path: Path) -> None:
    planned = layout(draws=100)
    RunWriter.create(path, planned).close()
    assert planned.n_bytes <= path.stat().st_size < planned.n_bytes + 300_000
    assert os.stat(path).st_blocks * 512 >= planned.n_bytes, "a sparse file could still meet a full disk"


def test_draws_may_be_written_again_but_leave_no_gap(path: Path) -> None:
    with RunWriter.create(path, layout()) as writer:
        for draw in (0, 1, 2, 1, 2, 3):
            write_draw(writer, draw)
        assert writer.committed == 4
        with pytest.raises(ValueError, match="gap"):
            write_draw(writer, 5)
    with RunWriter.reopen(path) as writer:
        assert writer.committed == 4
        write_draw(writer, 2)
        write_draw(writer, 4)
    assert_whole(path, 5)


@READS_LOCKED
def test_a_run_that_ends_notes_that_its_draws_have_reached_the_disk(path: Path) -> None:
    def synced() -> int:
        with h5py.File(path) as file:
            return int(file["synced"][()])

    with RunWriter.create(path, layout()) as writer:
        write_draw(writer, 0)
        assert synced() == 0
        writer.sync()
        assert synced() == 1
        write_draw(writer, 1)
        writer.discard_checkpoint()
        assert synced() == 2


def test_nothing_is_written_outside_its_place(path: Path) -> None:
    with RunWriter.create(path, layout()) as writer:
        before = path.read_bytes()
        with pytest.raises(IndexError):
            writer.write_sweep(0, 26, record(0))
        with pytest.raises(IndexError):
            writer.write_sweep(-1, 0, record(0))
        with pytest.raises(ValueError, match="shape"):
            writer._write("posterior/means", (0, 0), np.zeros((K, D + 1)))
        with pytest.raises(ValueError, match="1 states"):
            writer.write_draw(0, [state(0)], [record(0)])
        assert path.read_bytes() == before


@USES_LINUX
def test_a_full_disk_is_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunWriter.create(path, layout()) as writer:
        write_draw(writer, 0)
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(DataError, match=r"run\.h5: cannot be written: No space left on device"):
            write_draw(writer, 1)
    assert_whole(path, 1)


@USES_LINUX
def test_short_writes_are_finished(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: whole(file, data[:1000], offset))
    with RunWriter.create(path, layout()) as writer:
        write_draw(writer, 0)
    assert_whole(path, 1)


# Refusals


def test_existing_files_are_not_overwritten(path: Path) -> None:
    RunWriter.create(path, layout()).close()
    before = path.read_bytes()
    for attempt in (RunWriter.refuse_place, lambda p, overwrite: RunWriter.create(p, layout(), overwrite)):
        with pytest.raises(ConfigError, match=r"run\.h5: exists already; --resume .* --overwrite"):
            attempt(path, False)
    assert path.read_bytes() == before
    RunWriter.create(path, layout(), overwrite=True).close()
    assert path.read_bytes() != before  # another run_id
    assert_whole(path, 0)


def test_a_name_that_leaves_no_room_for_that_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    name = "é" * 116 + ".h5"  # 235 bytes
    with pytest.raises(ConfigError, match=r"x\.h5: the name is too long; give one of at most 236 bytes"):
        RunWriter.create(tmp_path / f"xx{name.replace('.h5', 'x.h5')}", layout())
    with RunWriter.create(tmp_path / f"x{name}", layout()) as writer:
        writer.save_checkpoint([state(1)], 1, {})
    assert checkpoint_path(tmp_path / f"x{name}").exists()


def test_what_is_no_run_file_is_never_overwritten(path: Path) -> None:
    path.write_text("my thesis")
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match=r"run\.h5: exists already and is not a run file"):
            RunWriter.create(path, layout(), overwrite)
    assert path.read_text() == "my thesis"
    with pytest.raises(ConfigError, match="is a folder"):
        RunWriter.create(path.parent, layout(), overwrite=True)
    with pytest.raises(ConfigError, match="is a folder"):
        RunWriter.create(Path(), layout(), overwrite=True)


def test_a_repacked_run_file_is_told(path: Path) -> None:
    RunWriter.create(path, layout()).close()
    with h5py.File(path, "r+") as file:
        weights = file["posterior/weights"][()]
        del file["posterior/weights"]
        file["posterior"].create_dataset("weights", data=weights, chunks=True)
    with pytest.raises(DataError, match="repacked by another program"):
        open_run(path)


def test_no_dimension_is_searched_by_hdf5(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunWriter.create(path, layout()).close()
    found: list[bytes] = []
    get_name = h5py.h5i.get_name

    def looked_up(scale: h5py.h5d.DatasetID) -> bytes:
        found.append(get_name(scale))
        return found[-1]

    monkeypatch.setattr(h5py.h5i, "get_name", looked_up)
    slots = read_contents(path).slots
    assert slots["posterior/means"].dims == ("chain", "draw", "component", "channel")
    assert slots["trace/alpha"].dims == ("chain", "sweep")
    assert b"/posterior/draw" not in found


def test_no_room_on_the_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil._ntuple_diskusage(10**12, 10**12, 2 * 10**6)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage)
    with pytest.raises(
        ConfigError, match=r"run\.h5: needs 1\d\.\d MB, 2\.0 MB are free .* mcmc\.draws .* model\.components"
    ):
        RunWriter.create(path, layout(draws=1000))
    assert list(path.parent.iterdir()) == []


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such folder: .*nowhere"):
        RunWriter.create(tmp_path / "nowhere" / "run.h5", layout())


def test_a_file_that_the_system_refuses(path: Path) -> None:
    """A limit like a quota; in a process of its own, for its limit cannot be taken back."""
    attempt = f"""
import resource, sys
from pathlib import Path
sys.path[:0] = {[str(folder) for folder in Path(__file__).parents[:2]]!r}
from test_draws import RunWriter, layout
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
RunWriter.create(Path({str(path)!r}), layout())
"""
    done = subprocess.run([sys.executable, "-c", attempt], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith("run.h5: cannot be written: File too large")
    assert list(path.parent.iterdir()) == []


def test_what_a_killed_layout_left_is_in_nobodys_way(path: Path) -> None:
    path.with_name("run.h5.partial").write_bytes(b"half of a file")
    RunWriter.create(path, layout()).close()
    assert [p.name for p in path.parent.iterdir()] == ["run.h5"]


def spoil_text(path: Path) -> None:
    path.write_text("seed: 1\n")


def spoil_foreign(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["posterior/x"] = np.zeros(3)


def spoil_foreign_empty(path: Path) -> None:
    with h5py.File(path, "w"):
        pass


def spoil_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1000)


def spoil_dimension(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["posterior/chain"]


def spoil_older(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = 2


def spoil_newer(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["format_version"] = 4


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (Path.unlink, "no such run file"),
        (spoil_text, "not a run file of dpmix; give the file that output.path"),
        (spoil_foreign, "not a run file of dpmix"),
        (spoil_foreign_empty, "not a run file of dpmix"),
        (spoil_short, "or truncated"),
        (spoil_dimension, "not a run file of dpmix"),
        (spoil_older, "format 2, of a version before 1.0.0; .* make the run again"),
        (spoil_newer, "format 4, this dpmix reads up to 3: upgrade"),
    ],
)
def test_foreign_files_are_refused_in_one_line(
    path: Path, spoil: Callable[[Path], None], message: str
) -> None:
    RunWriter.create(path, layout()).close()
    spoil(path)
    for opener in (open_run, RunWriter.reopen):
        with pytest.raises(DataError, match=message) as caught:
            opener(path)
        assert "\n" not in str(caught.value)
        assert str(caught.value).startswith(str(path))


def test_a_layout_names_what_it_lacks() -> None:
    whole = layout()
    with pytest.raises(ValueError, match="attributes missing: config, engine"):
        replace(whole, attributes={"seed": 1})
    with pytest.raises(ValueError, match="constants missing: channel_means, channel_sds"):
        replace(whole, constants={})
    with pytest.raises(ValueError, match="one draw"):
        replace(whole, kind="bem")
    with pytest.raises(ValueError, match="mcmc or bem"):
        replace(whole, kind="gibbs")


# Checkpoints


def assert_same_state(one: State, other: State) -> None:
    ours, theirs = (vars(s) | vars(s.hyperparameters) | {"hyperparameters": None} for s in (one, other))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, theirs[name])
        assert type(value) is type(theirs[name])


def test_checkpoint_round_trip(path: Path) -> None:
    with RunWriter.create(path, layout()) as writer:
        assert writer.load_checkpoint() is None
        writer.save_checkpoint([state(4, 0), state(4, 1)], 4, {"best": np.array([np.nan, 1.0]), "n": 3})
    with RunWriter.reopen(path) as writer:
        loaded = writer.load_checkpoint()
        assert loaded is not None
        assert loaded.iteration == 4
        for chain, one in enumerate(loaded.states):
            assert_same_state(one, state(4, chain))
        assert set(loaded.extra) == {"best", "n"}
        np.testing.assert_array_equal(loaded.extra["best"], [np.nan, 1.0])
        assert int(loaded.extra["n"]) == 3
        writer.discard_checkpoint()
        assert writer.load_checkpoint() is None
        writer.discard_checkpoint()


def test_a_failed_checkpoint_leaves_the_old_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails_half_way(file: object, **arrays: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with RunWriter.create(path, layout()) as writer:
        writer.save_checkpoint([state(1)], 1, {})
        with monkeypatch.context() as patch:
            patch.setattr(np, "savez", fails_half_way)
            with pytest.raises(DataError, match=r"run\.h5\.checkpoint: cannot be written: No space left"):
                writer.save_checkpoint([state(2)], 2, {})
        loaded = writer.load_checkpoint()
        assert loaded is not None
        assert loaded.iteration == 1


def test_a_checkpoint_of_another_run_is_refused(path: Path) -> None:
    other = path.with_name("other.h5")
    with RunWriter.create(path, layout()) as writer, RunWriter.create(other, layout()) as stranger:
        writer.save_checkpoint([state(1)], 1, {})
        shutil.copy(checkpoint_path(path), checkpoint_path(other))
        with pytest.raises(DataError, match=r"other\.h5\.checkpoint: checkpoint of another run"):
            stranger.load_checkpoint()


@pytest.mark.parametrize("keep", [0, 10, 1000, -1])
def test_a_broken_checkpoint_is_refused(path: Path, keep: int) -> None:
    with RunWriter.create(path, layout()) as writer:
        writer.save_checkpoint([state(1)], 1, {})
        whole = checkpoint_path(path).read_bytes()
        checkpoint_path(path).write_bytes(whole[:keep])
        with pytest.raises(DataError, match=r"run\.h5\.checkpoint: not a whole checkpoint"):
            writer.load_checkpoint()


def test_overwriting_a_run_drops_its_checkpoint(path: Path) -> None:
    with RunWriter.create(path, layout()) as writer:
        writer.save_checkpoint([state(1)], 1, {})
    with RunWriter.create(path, layout(), overwrite=True) as writer:
        assert writer.load_checkpoint() is None


def test_a_run_whose_file_was_replaced_stops_at_its_next_checkpoint(path: Path) -> None:
    other = path.with_name("other.h5")
    RunWriter.create(other, layout()).close()
    with RunWriter.create(path, layout()) as old:
        other.replace(path)
        with RunWriter.reopen(path) as new:
            new.save_checkpoint([state(1)], 1, {})
            with pytest.raises(DataError, match=r"run\.h5: moved, deleted or replaced"):
                old.save_checkpoint([state(9)], 9, {})
            loaded = new.load_checkpoint()
            assert loaded is not None
            assert loaded.iteration == 1
            path.unlink()
            with pytest.raises(DataError, match=r"run\.h5: moved, deleted or replaced"):
                new.save_checkpoint([state(2)], 2, {})


# Kills and readers

DRAWS = 300


def write_forever(path: Path, started: Connection, pause: float = 0.0) -> None:
    with RunWriter.reopen(path) as writer:
        for draw in range(writer.committed, DRAWS):
            write_draw(writer, draw)
            for chain in range(CHAINS):
                writer.write_sweep(chain, draw, record(draw, chain))
            if draw == 0:
                started.send(None)
            time.sleep(pause)
        time.sleep(60)


def checkpoint_forever(path: Path, started: Connection) -> None:
    with RunWriter.reopen(path) as writer:
        writer.save_checkpoint(*checkpoint_at(1))
        started.send(None)
        for iteration in cycle(range(2, layout().sweeps)):
            writer.save_checkpoint(*checkpoint_at(iteration))


def checkpoint_at(iteration: int) -> tuple[list[State], int, dict[str, Array]]:
    states = [state(iteration, chain) for chain in range(CHAINS)]
    return states, iteration, {"iteration": np.full(10_000, iteration)}


@contextmanager
def child(work: Callable[[Path, Connection], None], path: Path) -> Iterator[None]:
    """A process that has begun to work, killed with SIGKILL at the end."""
    context = multiprocessing.get_context("fork")  # quick to start; the child uses no thread of the parent
    here, there = context.Pipe()
    process = context.Process(target=work, args=(path, there), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    try:
        assert here.poll(30)
        yield
    finally:
        process.kill()
        process.join()


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_a_file_with_its_committed_draws(path: Path) -> None:
    rng = np.random.default_rng(1)
    counts = set()
    for _ in range(6):
        RunWriter.create(path, layout(draws=DRAWS), overwrite=True).close()
        wanted = int(rng.integers(1, 100))
        with child(write_forever, path):
            wait_until(lambda: open_run(path).committed >= wanted, f"draw {wanted}")  # noqa: B023
        committed = assert_whole(path)
        assert committed >= wanted
        counts.add(committed)
        with xarray.open_datatree(path, engine="h5netcdf") as tree:
            assert int(tree["committed"]) == committed
            undrawn = tree["posterior"].to_dataset()["covariances"][:, committed + 1 :]
            assert np.isnan(undrawn).all()
    assert len(counts) > 3, "the kills came at much the same moment"
    assert min(counts) < DRAWS


@FORKS
def test_a_killed_run_is_written_on_from_where_it_was(path: Path) -> None:
    RunWriter.create(path, layout(draws=DRAWS)).close()
    with child(write_forever, path):
        pass
    with RunWriter.reopen(path) as writer:
        for draw in range(writer.committed, DRAWS):
            write_draw(writer, draw)
    assert_whole(path, DRAWS)


@FORKS
def test_a_reader_beside_the_writer_sees_whole_draws(path: Path) -> None:
    RunWriter.create(path, layout(draws=DRAWS)).close()
    seen: list[int] = []
    with child(partial(write_forever, pause=0.001), path):
        until = time.monotonic() + 20.0
        while time.monotonic() < until and (not seen or seen[-1] < DRAWS):
            run = open_run(path)
            seen.append(run.committed)
            for draw in {0, run.committed // 2, run.committed - 1}:
                for chain in range(CHAINS):
                    np.testing.assert_array_equal(
                        run.covariances[chain, draw], state(draw, chain).covariances
                    )
                    np.testing.assert_array_equal(run.weights[chain, draw], state(draw, chain).weights)
    assert seen == sorted(seen)
    assert len(set(seen)) > 1
    assert seen[-1] == DRAWS


@pytest.mark.parametrize("draws", [3 * DRAWS, 8], ids=["larger", "smaller"])
def test_a_reader_does_not_mix_a_file_with_the_one_that_replaces_it(
    path: Path, monkeypatch: pytest.MonkeyPatch, draws: int
) -> None:
    """A run that is extended or overwritten while it is read: its datasets move to other places."""
    for name, size in (("run.h5", DRAWS), ("other.h5", draws)):
        with RunWriter.create(path.with_name(name), layout(draws=size, burn_in=size)) as writer:
            for draw in range(7):
                write_draw(writer, draw)

    def replaced_then_read(path: Path) -> Contents:
        contents = read_contents(path)
        if (other := path.with_name("other.h5")).exists():
            other.replace(path)
        return contents

    monkeypatch.setattr(mapped, "read_contents", replaced_then_read)
    assert open_run(path).draws == draws
    assert_whole(path, 7)


@FORKS
def test_a_kill_leaves_a_whole_checkpoint(path: Path) -> None:
    rng = np.random.default_rng(2)
    RunWriter.create(path, layout()).close()
    for _ in range(8):
        with child(checkpoint_forever, path):
            time.sleep(rng.uniform(0.0, 0.05))
        with RunWriter.reopen(path) as writer:
            loaded = writer.load_checkpoint()
        assert loaded is not None
        for chain, one in enumerate(loaded.states):
            assert_same_state(one, state(loaded.iteration, chain))
        assert (loaded.extra["iteration"] == loaded.iteration).all()
