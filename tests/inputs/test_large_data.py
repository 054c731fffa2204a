"""Events larger than memory: the same draws from a file, which disappears however a run ends."""

from __future__ import annotations

import logging
import re
import signal
import subprocess
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from platforms import NAMED_FILE_STAYS, not_on
from test_faults import in_namespace
from whole_runs import StopAfter, a_config, assert_identical, contents, dpmix, wait_until_paused, write_events

from dpmix.cli import main
from dpmix.config.data import DataConfig
from dpmix.config.engine import EngineConfig
from dpmix.config.write import to_yaml
from dpmix.errors import ConfigError, DataError
from dpmix.inputs import blocks, preprocess
from dpmix.inputs.events import Events
from dpmix.inputs.preprocess import prepare
from dpmix.inputs.sources import source_of_array
from dpmix.inputs.storage import Storage, is_in_file, release_pages
from dpmix.runs import session
from dpmix.runs.bem import run_bem
from dpmix.runs.mcmc import run_mcmc
from dpmix.system import memory, progress
from dpmix.system.progress import ProgressLog

N, D = 100_000, 4
MCMC = {"chains": 2, "burn_in": 2, "draws": 3, "split_merge": 2}
SMALL = {"memory_limit": "1 MB"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write events of 1.6 MB, and a run that held them in memory."""
    folder = tmp_path_factory.mktemp("large")
    write_events(folder / "events.npy", N, D)
    run_mcmc(a_config(folder, "plain.h5", mcmc=MCMC))
    return folder


def config_file(data: Path, folder: Path, **sections: dict[str, object]) -> Path:
    config = a_config(data, str(folder / "run.h5"), **({"mcmc": MCMC, "engine": SMALL} | sections))
    (folder / "run.yaml").write_text(to_yaml(config))
    return folder / "run.yaml"


# ------------------------------------------------------------------------------------ whole runs


def test_events_in_a_file_give_the_same_draws(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dpmix")
    held, make = [], session.make_engine

    def making(backend: str, config: EngineConfig, events: Any, scratch: Path | None, *weights: Any) -> Any:
        held.append((is_in_file(events), scratch, sorted(path.name for path in tmp_path.iterdir())))
        return make(backend, config, events, scratch, *weights)

    monkeypatch.setattr(session, "make_engine", making)
    run_mcmc(a_config(data, str(tmp_path / "run.h5"), mcmc=MCMC, engine=SMALL))
    assert_identical(data / "plain.h5", tmp_path / "run.h5")
    assert f"events: 1.6 MB in a file in {tmp_path} (memory limit 1.0 MB)" in caplog.messages
    (tmp_path / "elsewhere").mkdir()
    scratch = SMALL | {"scratch": str(tmp_path / "elsewhere")}
    run_mcmc(a_config(data, str(tmp_path / "other.h5"), mcmc=MCMC, engine=scratch))
    assert_identical(data / "plain.h5", tmp_path / "other.h5")
    roomy = {"memory_limit": "1 GB"}
    run_mcmc(a_config(data, str(tmp_path / "third.h5"), mcmc=MCMC | {"draws": 1}, engine=roomy))
    assert [(file, folder) for file, folder, _ in held] == [
        (True, tmp_path),
        (True, tmp_path / "elsewhere"),
        (False, None),
    ]
    assert held[0][2] == []  # the file has no name
    write_events(tmp_path / "events.npy", N, D, seed=1)  # other events would be seen
    other = a_config(tmp_path, "fourth.h5", mcmc=MCMC, engine=SMALL)
    assert contents(run_mcmc(other).path)["posterior/means"] != contents(data / "plain.h5")["posterior/means"]


def test_events_in_a_file_pass_through_devices_too(
    data: Path, tmp_path: Path, cuda_devices: Callable[..., None]
) -> None:
    cuda_devices(1)
    few = {
        "data": {"files": [str(data / "events.npy")], "channels": ["ch0", "ch1"]},
        "model": {"components": 4},
        "mcmc": {"chains": 1, "burn_in": 0, "draws": 1},
    }
    for name, limit in (("memory", "1 GB"), ("file", "0.5 MB")):
        engine = {"backend": "cuda", "chunks_in_flight": 1, "memory_limit": limit}
        run_mcmc(a_config(data, str(tmp_path / name), engine=engine, **few))
    assert_identical(tmp_path / "memory", tmp_path / "file")


def test_bayesian_em_of_events_in_a_file_stopped_and_resumed_is_one_run(data: Path, tmp_path: Path) -> None:
    bem = {"starts": 2, "max_steps": 4}
    run_bem(a_config(data, str(tmp_path / "plain.h5"), bem=bem))
    config = a_config(data, str(tmp_path / "run.h5"), bem=bem, engine=SMALL)
    assert not run_bem(config, should_stop=StopAfter(3)).completed
    run_bem(config, resume=True)
    assert_identical(tmp_path / "plain.h5", tmp_path / "run.h5")


@pytest.mark.slow
def test_a_killed_run_leaves_only_its_own_files_and_resumes(data: Path, tmp_path: Path) -> None:
    config = config_file(data, tmp_path, mcmc=MCMC | {"draws": 60})
    process = subprocess.Popen(dpmix("mcmc", config, pause_at=20), stderr=subprocess.PIPE, text=True)
    wait_until_paused(process)
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    assert re.search(rf"{re.escape(str(tmp_path))}/.*\(deleted\)", maps), (
        "events are in no file of the folder"
    )
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert {path.name for path in tmp_path.iterdir()} - {
        "run.h5.checkpoint",
        "run.h5.checkpoint.partial",
    } == {
        "run.h5",
        "run.yaml",
    }
    run_mcmc(a_config(data, str(tmp_path / "run.h5"), mcmc=MCMC | {"draws": 60}), resume=True)


FULL = """
mount -t tmpfs -o size=1m tmpfs "$DISK"
code=0; "$@" mcmc "$CONFIG" --quiet --set "engine.scratch=$DISK" || code=$?
test $code = 1
code=0; "$@" mcmc "$CONFIG" --quiet --set "engine.scratch=$DISK" --set "data.files=[$CSV]" || code=$?
test $code = 1
test -z "$(ls -A "$DISK")"
"""


@pytest.mark.slow
def test_a_scratch_that_is_too_small_is_reported_in_one_line(data: Path, tmp_path: Path) -> None:
    disk, table = tmp_path / "disk", tmp_path / "events.csv"
    disk.mkdir()
    np.savetxt(table, np.load(data / "events.npy"), delimiter=",", fmt="%.4g")
    said = in_namespace(FULL, *dpmix(), DISK=disk, CONFIG=config_file(data, tmp_path), CSV=table)
    events, numbers = said.splitlines()
    assert events == (
        "dpmix: events.npy: to hold 100000 events in 4 channels needs a file of 1.6 MB in "
        f"{disk} (No space left on device); give another folder in engine.scratch, or use fewer events "
        "(data.max_events)"
    )
    assert numbers == (
        f"dpmix: {disk}: cannot be written: No space left on device; give another folder in engine.scratch, "
        "or use fewer events (data.max_events)"
    )
    assert not (tmp_path / "run.h5").exists()


def test_a_missing_scratch_folder(data: Path, tmp_path: Path) -> None:
    config = config_file(data, tmp_path, engine={"scratch": "/no/such/folder"})
    result = CliRunner().invoke(main, ["mcmc", str(config)])
    assert result.exit_code == 2
    assert result.stderr == (
        "dpmix: engine.scratch: no such folder: /no/such/folder; create it, or set another\n"
    )


def test_events_of_a_file_are_gated_alike(data: Path, tmp_path: Path) -> None:
    runs = [str(data / "plain.h5"), str(data / "events.npy"), "--backend", "cpu", "--quiet"]
    for name, options in (("memory", []), ("file", ["--memory-limit", "1 MB", "--scratch", str(tmp_path)])):
        result = CliRunner().invoke(main, ["predict", *runs, "--output", str(tmp_path / name), *options])
        assert result.exit_code == 0, result.output
    one, other = (
        pyarrow.parquet.read_table(tmp_path / name / "events.parquet") for name in ("memory", "file")
    )
    assert one.equals(other)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "memory"]


# --------------------------------------------------------------------------------------- storage


def prepared(folder: Path, storage: Storage | None, **settings: Any) -> Events:
    given = {"files": ["a.npz", "b.npz"], **settings}
    return preprocess.prepare(DataConfig.model_validate(given), folder, 1, storage)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write two files with atoms and margin events."""
    random = np.random.default_rng(1)
    for name, n in (("a", 3000), ("b", 1234)):
        values = random.normal(500, 100, (n, 3)).astype(np.float32)
        values[random.random(n) < 0.05, 0] = 700
        np.savez(tmp_path / f"{name}.npz", events=np.minimum(values, 700), channels=["CD3", "CD4", "CD8"])
    return tmp_path


@NAMED_FILE_STAYS
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_events": 2000, "atoms": "tail"},
        {"margin_events": "drop", "standardize": False},
        {"transform": {"default": {"method": "logicle", "t": 1000.0}}},
    ],
)
@pytest.mark.parametrize("named", [False, True])
def test_events_are_the_same_in_memory_and_in_a_file(
    folder: Path, named: bool, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = prepared(folder, None, **settings)
    assert not is_in_file(plain.values)
    monkeypatch.setattr(blocks, "READ_BLOCK", 1000)  # blocks across the end of a file
    path = folder / "run.h5.events" if named else None
    with Storage(folder, 0, path=path) as storage:
        events = prepared(folder, storage, **settings)
        np.testing.assert_array_equal(events.values, prepared(folder, None, **settings).values)
        if "max_events" not in settings:  # which are drawn chunk by chunk
            np.testing.assert_allclose(events.values, plain.values, rtol=1e-5, atol=1e-5)
        assert is_in_file(events.values)
        assert not events.values.flags.writeable
        if path is not None:
            loaded = np.load(path, mmap_mode="r")
            assert loaded.shape == plain.values.shape
            np.testing.assert_array_equal(loaded, events.values)
            assert events.values.filename == str(path)  # type: ignore[attr-defined]
    assert sorted(file.name for file in folder.iterdir()) == ["a.npz", "b.npz"]


@NAMED_FILE_STAYS
def test_the_file_of_a_cluster_belongs_to_one_run(folder: Path) -> None:
    path = folder / "run.h5.events"
    path.write_bytes(b"left by a run that was killed")
    with pytest.raises(ConfigError, match=r"run.h5.events: exists already; --overwrite replaces it"):
        Storage(folder, path=path)
    with Storage(folder, path=path, overwrite=True):
        with pytest.raises(ConfigError, match="another run is writing to it"):
            Storage(folder, path=path, overwrite=True)
        assert path.exists()
    assert not path.exists()
    np.savez(folder / "b.npz", events=np.full((20, 3), np.nan), channels=["CD3", "CD4", "CD8"])
    with pytest.raises(DataError, match="not finite"), Storage(folder, path=path) as storage:
        prepared(folder, storage)
    assert not path.exists()


@NAMED_FILE_STAYS
def test_the_file_of_a_killed_run_is_not_truncated_under_its_workers(tmp_path: Path) -> None:
    path = tmp_path / "run.h5.events"
    np.arange(100_000, dtype=np.float32).tofile(path)
    at_work, inode = np.memmap(path, np.float32, "r"), path.stat().st_ino
    with Storage(tmp_path, path=path, overwrite=True) as storage:
        storage.hold(10, 2, "events")
        assert path.stat().st_ino != inode, "the next line would end this process"
        assert at_work[-1] == 99_999


def test_the_overhead_of_a_run_counts() -> None:
    def in_file(limit: int, overhead: int) -> bool:
        return is_in_file(Storage(Path(), limit, lambda n, dim: n * overhead).hold(1000, 2, "events"))

    assert not in_file(12_000, 4)
    assert in_file(12_000, 5)
    assert in_file(8_500, 0)  # text files may take an eighth


def test_the_default_limit_is_the_available_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 10_000)
    storage = Storage.of(EngineConfig(), "cpu", tmp_path / "run.h5", lambda n, dim: 0)
    assert not is_in_file(storage.hold(800, 2, "events"))
    assert is_in_file(storage.hold(1_100, 2, "events"))


def test_missing_address_space_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_of_addresses", lambda: 1000)
    with pytest.raises(
        DataError, match=r"a.npy: to hold 1000 events in 2 channels needs .* of address space, because it"
    ):
        Storage(tmp_path, 10).hold(1000, 2, "a.npy")


def peak(folder: Path, n_events: int, storage: Storage | None) -> int:
    """Return the most memory in bytes while events are prepared."""
    write_events(folder / "events.npy", n_events, D)
    tracemalloc.start()
    preprocess.prepare(DataConfig(files=["events.npy"]), folder, 1, storage)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def test_memory_does_not_grow_with_the_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "READ_BLOCK", 1024)
    monkeypatch.setattr("dpmix.inputs.atoms.SAMPLE", 1024)
    monkeypatch.setattr("dpmix.inputs.default_channels.MOST_EVENTS", 1024)
    few, many = 20_000, 200_000
    held = 4 * D * (many - few)
    peaks = [peak(tmp_path, n, Storage(tmp_path, 0)) for n in (few, few, many)]
    assert peaks[2] - peaks[1] < 0.02 * held
    assert peak(tmp_path, many, None) - peaks[1] > 0.8 * held


def mapped() -> int:
    """Return the bytes of mapped files in the memory of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(1024 * int(x.split()[1]) for x in lines if x.startswith(("RssFile", "RssShmem")))


@not_on("windows", because="the system releases pages itself")
def test_pages_of_a_mapped_file_are_released_after_a_pass(tmp_path: Path) -> None:
    before = mapped()
    values = Storage(tmp_path, 0).hold(2_000_000, 4, "events")  # 32 MB
    values[:] = 3
    assert mapped() - before > 30e6
    release_pages(values, 0, 1)
    assert mapped() - before > 30e6
    release_pages(values, 1, len(values))
    assert mapped() - before < 2e6
    assert (values == 3).all()


# ------------------------------------------------------------------------------------------ progress


def test_the_progress_of_long_work_is_logged_at_intervals(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "dpmix")
    now = 0.0
    done = ProgressLog("preparing", 1000, lambda: now)
    for _ in range(250):
        now += 0.1
        done.add(4)
    lines = [record for record in caplog.records if record.levelno == logging.INFO]
    assert [record.getMessage() for record in lines] == ["preparing: 40%", "preparing: 80%"]
    assert 80 < len(caplog.records) < 130


def test_the_progress_of_several_files_names_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINES", -1.0)  # a line each time
    caplog.set_level(logging.INFO, "dpmix")
    for name in ("one", "two"):
        np.save(
            tmp_path / f"{name}.npy", np.random.default_rng(1).standard_normal((50, 2)).astype(np.float32)
        )
    prepare(DataConfig(files=["one.npy", "two.npy"]), tmp_path, seed=1)
    said = [re.sub(r"\d+%", "%", r.getMessage()) for r in caplog.records if "preparing" in r.getMessage()]
    assert said[:4] == [f"preparing the events: % ({name}.npy)" for name in ("one", "two", "one", "two")]
    assert said[-1] == "preparing the events: %"


def test_a_warning_that_many_files_share_is_one_line() -> None:
    files = [source_of_array(Path(f"s{k}"), np.zeros((1, 1))) for k in range(9)]
    lines = ["of all: odd", *(f"{file.name}: odd: {k > 9}" for k, file in enumerate(files)), "s2: rare"]
    shared = "s0, s1, s2 and 6 more files: odd: False"
    assert preprocess._shared(lines, files) == ("of all: odd", shared, "s2: rare")
    assert preprocess._shared(lines[1:3], files) == ("s0: odd: False", "s1: odd: False")
