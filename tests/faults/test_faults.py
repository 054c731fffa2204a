"""Faults of the machine and of its users: none loses a draw, and a resumed run gives the same draws.

`make faults` runs these with more kills and makes the table of docs/explanation/validation.md from
what they record.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner
from platforms import READS_LOCKED, USES_LINUX
from power import Disk
from whole_runs import (
    a_config,
    assert_draws_of,
    assert_identical,
    dpmix,
    dpmix_code,
    wait_until_paused,
    write_events,
)

from dpmix import open_run
from dpmix.cli import main
from dpmix.config.write import to_yaml
from dpmix.engines.cpu import CpuEngine
from dpmix.errors import ConfigError, DataError
from dpmix.runs import loop, mcmc, run_file
from dpmix.runs.bem import run_bem
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.writer import RunWriter
from dpmix.system import memory
from dpmix.system.own_file import OwnFile

KILLS = int(os.environ.get("DPMIX_FAULT_KILLS", "1"))
AT_LENGTH = pytest.mark.skipif(KILLS == 1, reason="make faults runs it: others find the same faults of dpmix")
N, K = 2_000, 8
SECTIONS: dict[str, dict[str, object]] = {
    "model": {"components": K},
    "mcmc": {"chains": 2, "burn_in": 0, "draws": 130},
    "bem": {"starts": 6, "max_steps": 80, "tolerance": 1e-12},
    "engine": {"threads": 1},
}
UNTIL: dict[str, dict[str, object]] = {
    **SECTIONS,
    "mcmc": {"chains": 2, "burn_in": 110, "draws": 130, "until": {"rhat": 1.5, "ess": 100}},
}
SHORT = {**SECTIONS, "mcmc": {"chains": 2, "burn_in": 5, "draws": 30}}

Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events, and what runs that nothing happened to made of them: mcmc.h5, until.h5, bem.h5, short.h5."""
    folder = tmp_path_factory.mktemp("data")
    write_events(folder / "events.npy", N)
    run_mcmc(a_config(folder, "mcmc.h5", **SECTIONS))
    run_mcmc(a_config(folder, "until.h5", **UNTIL))
    run_bem(a_config(folder, "bem.h5", **SECTIONS))
    run_mcmc(a_config(folder, "short.h5", **SHORT))
    return folder


@pytest.fixture
def folder(data: Path, tmp_path: Path) -> Path:
    """A folder with a config, run.yaml, whose output is run.h5 in the same folder."""
    (tmp_path / "out").mkdir()
    config = a_config(data, str(tmp_path / "out" / "run.h5"), **SECTIONS)
    (tmp_path / "out" / "run.yaml").write_text(to_yaml(config))
    return tmp_path / "out"


def start(*arguments: str | Path, pause_at: int | None = None) -> subprocess.Popen[str]:
    """Start a command; with ``pause_at``, return once it has paused at that checkpoint."""
    process = subprocess.Popen(
        dpmix(*arguments, pause_at=pause_at), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if pause_at is not None:
        wait_until_paused(process)
    return process


def ended(*arguments: str | Path, code: int = 0) -> str:
    """Return the stderr of a command in this process that ends with this exit code."""
    result = CliRunner().invoke(main, [*map(str, arguments)], prog_name="dpmix")
    assert result.exit_code == code, result.output
    return result.stderr


def seconds_of(*arguments: str | Path) -> float:
    """Return the seconds of a command in a process of its own."""
    began = time.monotonic()
    subprocess.run(dpmix(*arguments), capture_output=True, timeout=120, check=True)
    return time.monotonic() - began


def how_to_go_on(path: Path) -> list[str]:
    """An option; a run killed between its last draw and its end is complete, and restarts from scratch."""
    if not path.exists():
        return []
    return ["--overwrite" if open_run(path).complete else "--resume"]


# The process ends


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kills"),
    [
        ("mcmc", KILLS),
        pytest.param("until", KILLS // 2, marks=AT_LENGTH),
        pytest.param("bem", KILLS // 5, marks=AT_LENGTH),
    ],
)
def test_killed_at_random_moments_a_run_goes_on_to_the_same_draws(
    data: Path, folder: Path, name: str, kills: int, record_property: Record
) -> None:
    random = np.random.default_rng(1)
    path, whole, kind = folder / "run.h5", data / f"{name}.h5", "bem" if name == "bem" else "mcmc"
    if name == "until":
        (folder / "run.yaml").write_text(to_yaml(a_config(data, str(path), **UNTIL)))
        assert open_run(whole).stopped is not None
    longest = seconds_of(kind, folder / "run.yaml", "--quiet", "--overwrite")
    path.unlink()
    met, found = 0, 0
    for _ in range(kills):
        there = open_run(path) if path.exists() else None
        before = 0 if there is None or there.complete else there.committed
        process = start(kind, folder / "run.yaml", "--quiet", *how_to_go_on(path))
        time.sleep(random.uniform(0.0, longest))
        met += process.poll() is None
        process.kill()
        process.communicate()
        if path.exists():
            found += 1
            with h5py.File(path) as file:
                assert "posterior" in file
            assert assert_draws_of(whole, path) >= min(before, open_run(path).draws)
    ended(kind, folder / "run.yaml", "--quiet", *how_to_go_on(path))
    assert_identical(whole, path)
    assert met >= kills / 2
    record_property("fault", f"`kill -9` of `dpmix {kind}` at {kills} random moments, from its start on")
    record_property(
        "outcome", f"{met} met a living process; {found} of {found} files open; the same draws at the end"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "number", "code"), [("mcmc", signal.SIGTERM, 143), ("bem", signal.SIGINT, 130)]
)
def test_a_signal_stops_a_run_that_says_how_it_goes_on(
    data: Path, folder: Path, kind: str, number: signal.Signals, code: int, record_property: Record
) -> None:
    path, whole = folder / "run.h5", data / f"{kind}.h5"
    process = start(kind, folder / "run.yaml", pause_at=5)
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    committed = assert_draws_of(whole, path)
    assert not open_run(path).complete
    last = said.splitlines()[-1]
    assert last == f"dpmix: stopped; resume with: dpmix {kind} {path} --resume"
    ended(*shlex.split(last.partition("resume with: dpmix ")[2]), "--quiet")
    assert_identical(whole, path)
    record_property("fault", f"{number.name} to `dpmix {kind}`")
    record_property(
        "outcome",
        f"its sweep finished and committed ({committed} draws), exit code {code}; the printed command "
        "resumes to the same draws",
    )


# The power fails


def run_with_power_cuts(
    folder: Path, data: Path, patch: pytest.MonkeyPatch, heeds_syncs: bool = True
) -> list[Path]:
    """The folders that power cuts at random moments of a run would leave."""
    written, cuts = folder / "written", folder / "cuts"
    written.mkdir()
    cuts.mkdir()
    clock = SimpleNamespace(monotonic=itertools.count().__next__, perf_counter=time.perf_counter)
    disk = Disk(written, cuts, 0.016 if KILLS > 1 else 0.008, heeds_syncs)
    with patch.context() as patched:
        patched.setattr(loop, "time", clock)
        patched.setattr(loop, "CHECKPOINT_SECONDS", 7)
        disk.watch(patched)
        run_mcmc(a_config(data, str(written / "run.h5"), **SHORT))
    disk.close()
    return disk.made


def resume_after_power_cuts(cuts: list[Path], data: Path) -> tuple[int, int]:
    """How many of the cuts left a run file, and how many of those fewer draws than its counter says."""
    found = fewer = 0
    for cut in cuts:
        path = cut / "run.h5"
        resume = path.exists()
        if resume:
            found += 1
            with h5py.File(path) as file:
                counted = int(file["committed"][()])
            fewer += assert_draws_of(data / "short.h5", path) < counted
        run_mcmc(a_config(data, str(path), **SHORT), resume=resume)
        assert_identical(data / "short.h5", path)
    return found, fewer


@pytest.mark.slow
def test_what_is_left_when_the_power_fails_opens_and_goes_on_to_the_same_draws(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Record
) -> None:
    cuts = run_with_power_cuts(tmp_path, data, monkeypatch)
    found, fewer = resume_after_power_cuts(cuts, data)
    assert found > 5
    assert fewer > 0, "no draw was ever lost with the power: the test is too easy"
    record_property("fault", f"power cut at {len(cuts)} random moments, unsynced sectors lost at random")
    record_property(
        "outcome",
        f"{found} of {found} files open; in {fewer} of them counted draws were lost, and none of these is "
        "shown; the same draws at the end",
    )


@pytest.mark.slow
def test_without_syncs_or_without_a_look_at_the_draws_a_power_cut_would_show(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controls of the test above."""
    (tmp_path / "unsynced").mkdir()
    cuts = run_with_power_cuts(tmp_path / "unsynced", data, monkeypatch, heeds_syncs=False)
    with pytest.raises(Exception, match=r"truncated|not a whole checkpoint|draws"):
        resume_after_power_cuts(cuts, data)
    cuts = run_with_power_cuts(tmp_path, data, monkeypatch)
    monkeypatch.setattr(run_file, "is_drawn", lambda values: True)
    with pytest.raises(AssertionError, match="draws"):
        resume_after_power_cuts(cuts, data)


class Killed(BaseException):
    """Stop like a kill between two calls of the system."""


def killed_at_write(n: int, patch: pytest.MonkeyPatch) -> None:
    """Kill this process, as far as a run can tell, at its n-th write."""
    pwrite, left = os.pwrite, itertools.count(n, -1)

    def writing(*given: Any) -> int:
        if next(left) == 0:
            raise Killed
        return pwrite(*given)

    patch.setattr(os, "pwrite", writing)


def committed_first(writer: RunWriter, draw: int, *given: Any) -> None:
    writer._write("committed", (), draw + 1)
    writer._committed = draw
    WRITE_DRAW(writer, draw, *given)


WRITE_DRAW = RunWriter.write_draw


@pytest.mark.slow
@pytest.mark.parametrize("counter", ["last", "first"])
def test_the_counter_is_written_last(
    data: Path, tmp_path: Path, counter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill at any write shows whole draws; with a counter that is written first it would not."""
    if counter == "first":
        monkeypatch.setattr(RunWriter, "write_draw", committed_first)
    monkeypatch.setattr(run_file, "is_drawn", lambda values: True)  # which would hide it
    wrong = 0
    for n in range(300, 325, 5):  # about the writes of a sweep and its draw
        path = tmp_path / f"{n}.h5"
        with monkeypatch.context() as patch:
            killed_at_write(n, patch)
            with pytest.raises(Killed):
                run_mcmc(a_config(data, str(path), **SHORT))
        try:
            assert assert_draws_of(data / "short.h5", path) > 0
        except AssertionError:
            wrong += 1
    assert (wrong > 0) == (counter == "first")


# The disk


def refuse_at(name: str, n: int, number: int, patch: pytest.MonkeyPatch) -> None:
    """Have the n-th call of a function of the system refused."""
    call, left = getattr(os, name), itertools.count(n - 1, -1)

    def calling(*given: Any, **named: Any) -> Any:
        if next(left) == 0:
            raise OSError(number, os.strerror(number))
        return call(*given, **named)

    patch.setattr(os, name, calling)


@USES_LINUX
@pytest.mark.parametrize(
    ("name", "n", "number"),
    [
        ("pwrite", 400, errno.ENOSPC),
        ("fsync", 9, errno.EIO),
        ("replace", 3, errno.EDQUOT),
    ],
)
@pytest.mark.slow
def test_a_write_that_the_system_refuses_is_told_and_loses_nothing(
    data: Path, folder: Path, name: str, n: int, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "run.h5"
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    with monkeypatch.context() as patch:
        refuse_at(name, n, number, patch)
        result = CliRunner().invoke(main, ["mcmc", str(folder / "run.yaml"), "--quiet"])
    assert result.exit_code == 1
    problem, advice = result.stderr.splitlines()
    assert problem.startswith(f"dpmix: {path}")
    assert problem.endswith(f": cannot be written: {os.strerror(number)}")
    assert advice == f"dpmix: stopped; resume with: dpmix mcmc {path} --resume"
    assert not path.with_name("run.h5.checkpoint.partial").exists()
    assert assert_draws_of(data / "mcmc.h5", path) >= 0
    assert CliRunner().invoke(main, ["mcmc", str(path), "--resume", "--quiet"]).exit_code == 0
    assert_identical(data / "mcmc.h5", path)


def in_namespace(script: str, *arguments: str | Path, **variables: str | Path) -> str:
    """Return the output of a shell script that may mount file systems, in a namespace of its own."""
    unshare = ["unshare", "--mount", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("needs a mount namespace of its own (unshare --mount --map-root-user is refused here)")
    process = subprocess.run(
        [*unshare, "sh", "-euc", script, "sh", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {name: str(value) for name, value in variables.items()},
    )
    assert process.returncode == 0, process.stderr + process.stdout
    assert "Traceback" not in process.stderr
    return process.stderr


FULL = """
mount -t tmpfs -o size=4m tmpfs "$DISK"
"$1" -c "$PAUSING" mcmc "$CONFIG" --output "$DISK/run.h5" --quiet & run=$!
while ! grep -q "^State:.*stopped" /proc/$run/status; do sleep 0.01; done
cat /dev/zero > "$DISK/other" 2>/dev/null || true
kill -CONT $run
code=0; wait $run || code=$?
test $code = 1
cp "$DISK/run.h5" "$KEPT"
code=0; "$@" mcmc "$DISK/run.h5" --resume --quiet || code=$?
test $code = 1
rm "$DISK/other"
"$@" mcmc "$DISK/run.h5" --resume --quiet
cp "$DISK/run.h5" "$RESUMED"
"""


@pytest.mark.slow
def test_a_disk_that_fills_up_is_told_and_loses_nothing(
    data: Path, folder: Path, record_property: Record
) -> None:
    disk = folder / "disk"
    disk.mkdir()
    kept, resumed = folder / "kept.h5", folder / "resumed.h5"
    files = {"DISK": disk, "CONFIG": folder / "run.yaml", "KEPT": kept, "RESUMED": resumed}
    said = in_namespace(FULL, *dpmix(), PAUSING=dpmix_code(pause_at=5), **files)
    lines = said.splitlines()
    assert lines[:4] == 2 * [
        f"dpmix: {disk}/run.h5.checkpoint: cannot be written: No space left on device",
        f"dpmix: stopped; resume with: dpmix mcmc {disk}/run.h5 --resume",
    ]
    committed = assert_draws_of(data / "mcmc.h5", kept)
    assert committed > 0
    assert_identical(data / "mcmc.h5", resumed)
    record_property("fault", "disk filled by another program during a run")
    record_property(
        "outcome", f"a line, exit code 1, {committed} committed draws kept; with room again the same draws"
    )


SMALL = """
mount -t tmpfs -o size=100k tmpfs "$DISK"
code=0; "$@" mcmc "$CONFIG" --output "$DISK/run.h5" --quiet || code=$?
test $code = 2
test -z "$(ls -A "$DISK")"
"""


def test_a_disk_that_is_too_small_is_refused(folder: Path, record_property: Record) -> None:
    (folder / "disk").mkdir()
    said = in_namespace(SMALL, *dpmix(), DISK=folder / "disk", CONFIG=folder / "run.yaml")
    assert re.search(r"run\.h5: needs 0\.\d MB, 0\.1 MB are free on its disk; lower mcmc\.draws", said)
    assert len(said.splitlines()) == 1
    record_property("fault", "disk too small for the run file and its checkpoint")
    record_property(
        "outcome", "refused before the first sweep, with the space needed and the space available"
    )


READ_ONLY = """
"$1" -c "$PAUSING" mcmc "$CONFIG" --output "$DISK/run.h5" & run=$!
while ! grep -q "^State:.*stopped" /proc/$run/status; do sleep 0.01; done
kill -9 $run; wait $run || true
cp "$DISK/run.h5" "$KEPT"
mount --bind "$DISK" "$DISK"
mount -o remount,bind,ro "$DISK"
echo ---- >&2
code=0; "$@" mcmc "$DISK/run.h5" --resume --quiet || code=$?
test $code = 1
code=0; "$@" mcmc "$CONFIG" --output "$DISK/new.h5" --quiet || code=$?
test $code = 2
cmp "$DISK/run.h5" "$KEPT"
umount "$DISK"
echo ---- >&2
"$@" mcmc "$DISK/run.h5" --resume --quiet
"""


@AT_LENGTH
@pytest.mark.slow
def test_a_folder_that_is_read_only_is_told_and_loses_nothing(
    data: Path, folder: Path, record_property: Record
) -> None:
    disk = folder / "disk"
    disk.mkdir()
    files = {"DISK": disk, "CONFIG": folder / "run.yaml", "KEPT": folder / "kept.h5"}
    said = in_namespace(READ_ONLY, *dpmix(), PAUSING=dpmix_code(pause_at=5), **files)
    assert said.split("----")[1].splitlines()[1:] == [
        f"dpmix: {disk}/run.h5: cannot be written: Read-only file system",
        f"dpmix: {disk}/new.h5: {disk} cannot be written to; give another --output",
    ]
    committed = assert_draws_of(data / "mcmc.h5", folder / "kept.h5")
    assert committed > 0
    assert_identical(data / "mcmc.h5", disk / "run.h5")
    record_property("fault", "output folder read-only, for a new run and for a resumed one")
    record_property(
        "outcome",
        f"a line, exit codes 2 and 1; {committed} committed draws kept; writable again, the same draws",
    )


# Two runs on one file


@pytest.mark.slow
def test_a_second_run_on_a_file_is_refused(data: Path, folder: Path, record_property: Record) -> None:
    path, busy = (
        folder / "run.h5",
        "run.h5: another run is writing to it; wait until it ends, or give another",
    )
    process = start("mcmc", folder / "run.yaml", "--quiet", pause_at=5)
    try:
        assert busy in ended("mcmc", path, "--resume", code=2)
        assert busy in ended("mcmc", folder / "run.yaml", "--overwrite", code=2)
        assert "run.h5: exists already" in ended("mcmc", folder / "run.yaml", code=2)
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=60) is not None
    assert process.returncode == 0
    assert_identical(data / "mcmc.h5", path)
    record_property("fault", "a second run on one output: new, `--overwrite`, `--resume`")
    record_property("outcome", "refused, exit code 2; the first continues to the same draws")


@AT_LENGTH
@pytest.mark.slow
def test_of_two_that_resume_at_once_one_is_refused(data: Path, folder: Path, record_property: Record) -> None:
    path = folder / "run.h5"
    process = start("mcmc", folder / "run.yaml", "--quiet", pause_at=5)
    process.kill()
    process.communicate()
    both = [start("mcmc", path, "--resume", "--quiet") for _ in range(2)]
    said = [process.communicate(timeout=60)[1] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 2], [0, 0]), said  # twice 0: one had ended before the other began
    assert codes == [0, 0] or any("another run is writing to it" in lines for lines in said)
    assert_identical(data / "mcmc.h5", path)
    record_property("fault", "two `--resume` at once, after a kill")
    record_property("outcome", "one resumes to the same draws, the other is refused, exit code 2")


def test_two_new_runs_cannot_lay_out_one_file(data: Path, tmp_path: Path) -> None:
    config = a_config(data, str(tmp_path / "run.h5"), **SHORT)
    with (
        OwnFile(tmp_path / "run.h5.partial", create=True),
        pytest.raises(ConfigError, match=r"run\.h5: another run is writing to it"),
    ):
        run_mcmc(config)
    run_mcmc(config)
    assert_identical(data / "short.h5", tmp_path / "run.h5")


@READS_LOCKED
def test_a_lock_keeps_no_reader_off_and_outlasts_them(data: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.h5"
    shutil.copy(data / "short.h5", path)
    with RunWriter.reopen(path):
        with h5py.File(path) as file:  # with HDF5's own lock
            assert "posterior" in file
        open_run(path).arviz()
        with pytest.raises(ConfigError, match="another run is writing"):
            RunWriter.reopen(path)
    RunWriter.reopen(path).close()


# Resumed as it did not begin


@pytest.mark.slow
def test_a_run_goes_on_only_with_its_config_and_its_data(
    data: Path, folder: Path, record_property: Record
) -> None:
    path = folder / "run.h5"
    shutil.copy(data / "events.npy", folder / "events.npy")
    config = folder / "run.yaml"
    config.write_text(config.read_text().replace(str(data / "events.npy"), str(folder / "events.npy")))
    process = start("mcmc", config, "--quiet", pause_at=5)
    process.kill()
    process.communicate()
    kept = path.read_bytes()

    def refused(*arguments: str, code: int) -> str:
        result = CliRunner().invoke(main, ["mcmc", str(path), "--resume", *arguments])
        assert result.exit_code == code
        assert path.read_bytes() == kept
        return str(result.stderr)

    for key, value in (("seed", 9), ("model.components", 9), ("mcmc.thin", 2), ("model.prior.nu", 9.0)):
        assert f"{key}: not what {path} was started with" in refused("--set", f"{key}={value}", code=2)
    events = np.load(folder / "events.npy")
    for changed, difference in (
        (events[:-1], "2,000 events then, 1,999 now"),
        (events[:, :2], "has no channel ch2, which the run used"),
        (events[::-1], "other values, or in another order"),
    ):
        np.save(folder / "events.npy", changed)
        assert difference in refused("--quiet", code=1)
    np.save(folder / "events.npy", events)
    ended("mcmc", path, "--resume", "--quiet")
    assert assert_draws_of(data / "mcmc.h5", path) == open_run(path).draws
    record_property("fault", "`--resume` with another config, or with other data")
    record_property("outcome", "refused, naming the key, or the change in the data; nothing changed")


# Memory


def limited(addresses: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A command under `ulimit -v` of this many bytes; one that hangs is an error."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))

    command = [sys.executable, "-c", "from dpmix.cli import main; main(prog_name='dpmix')", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=limit)


# OpenBLAS never came to an end with 200 MB.
@USES_LINUX
@pytest.mark.parametrize("megabytes", [200, 600])
def test_too_few_addresses_for_the_libraries_are_a_line(
    folder: Path, megabytes: int, record_property: Record
) -> None:
    process = limited(megabytes * 1_000_000, "mcmc", folder / "run.yaml")
    assert process.returncode == 1
    assert process.stderr.startswith(
        f"dpmix: ulimit -v: {megabytes / 1000:.2f} GB of address space; loading the libraries needs at least"
    )
    assert len(process.stderr.splitlines()) == 1
    record_property("fault", f"`ulimit -v` of {megabytes} MB, too little to load the libraries")
    record_property("outcome", "one line, exit code 1 (earlier: a traceback, or a process without end)")


@USES_LINUX
@pytest.mark.parametrize("kind", ["mcmc", "bem"])
def test_a_run_that_memory_has_no_room_for_is_refused_before_its_first_sweep(
    folder: Path, kind: str, record_property: Record
) -> None:
    write_events(folder / "wide.npy", 100, 64)
    settings = ["--set", "model.components=4096", "--set", "data.files=[wide.npy]"]
    process = limited(1_300_000_000, kind, folder / "run.yaml", *settings)
    assert process.returncode == 1
    needs, line = f"a {kind} run of 100 events in 64 channels", process.stderr.splitlines()[-1]
    found = re.search(rf"{needs}.* needs ([\d.]+ [GM]B) of memory, (.*) are available; use fewer", line)
    assert found is not None, process.stderr
    assert not (folder / "run.h5").exists()
    record_property("fault", f"`ulimit -v` of 1.3 GB for {needs}, 4,096 components")
    record_property("outcome", f"refused before the first sweep: needs {found[1]}, {found[2]} available")


def test_events_that_memory_has_no_room_for_are_refused_before_they_are_read(
    folder: Path, record_property: Record
) -> None:
    np.lib.format.open_memmap(
        folder / "many.npy", "w+", np.float32, (100_000_000, 4)
    ).flush()  # a sparse file
    process = limited(1_300_000_000, "mcmc", folder / "run.yaml", "--set", "data.files=[many.npy]")
    assert process.returncode == 1
    assert re.search(r"many\.npy: (.* )?needs? 1\.6 GB", process.stderr.splitlines()[-1]), process.stderr
    assert not (folder / "run.h5").exists()
    record_property("fault", "`ulimit -v` of 1.3 GB, events of 1.6 GB")
    record_property("outcome", "refused before they are read, with the memory needed")


@pytest.mark.slow
def test_the_memory_that_is_asked_for_is_what_a_run_takes(folder: Path) -> None:
    write_events(folder / "wide.npy", 5_000, 64)
    code = f"""
import sys
from pathlib import Path
from dpmix.runs import loop, mcmc, run_file
from dpmix.runs.bem import run_bem
from dpmix.runs.mcmc import run_mcmc
from dpmix.system import memory
from dpmix.config.load import load_config
def peak():  # of this program alone: the maximum of getrusage goes back before its start
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
def require(n_bytes, what, *_, **__):
    asked.append((what, n_bytes, peak()))
asked, memory.require = [], require
run_mcmc(load_config(Path({str(folder / "run.yaml")!r}), sys.argv[1:]))
_, n_bytes, before = next(each for each in asked if "mcmc run of" in each[0])
print(n_bytes, peak() - before)
"""
    settings = [f"data.files=[{folder}/wide.npy]", "model.components=512", "mcmc.burn_in=1", "mcmc.draws=1"]
    process = subprocess.run(
        [sys.executable, "-c", code, *settings], stdout=subprocess.PIPE, text=True, check=True
    )
    asked, taken = map(int, process.stdout.split())
    assert 0.6 * taken < asked < 1.4 * taken


def test_a_control_group_above_the_own_one_limits_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Use the limits of a batch job: /slurm/job_7 limited, /slurm/job_7/step_0 not."""
    for version, names in (("", ("max", "current")), ("memory", ("limit_in_bytes", "usage_in_bytes"))):
        root = tmp_path / f"cgroup{version}"
        job = root / version / "slurm" / "job_7"
        (job / "step_0").mkdir(parents=True)
        for folder, limit in ((job, "5000000"), (job / "step_0", "max")):
            (folder / f"memory.{names[0]}").write_text(limit)
            (folder / f"memory.{names[1]}").write_text("3000000")
            (folder / "memory.stat").write_text("inactive_file 500000\ntotal_inactive_file 500000\n")
        own = tmp_path / "own"
        own.write_text(f"4:{version}:/slurm/job_7/step_0\n1:cpu:/\n")
        monkeypatch.setattr(memory, "CGROUP", root)
        monkeypatch.setattr(memory, "OWN_GROUPS", own)
        assert memory.available() == 2_500_000
        with pytest.raises(DataError, match=r"it needs 3\.0 MB of memory, 2\.5 MB are available; take less"):
            memory.require(3_000_000, "it", "take less")
        memory.require(2_400_000, "it", "take less")


@pytest.mark.slow
def test_memory_that_ends_in_the_midst_of_a_run_loses_nothing(
    data: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, left = folder / "run.h5", itertools.count(99, -1)
    draw_labels = CpuEngine.draw_labels

    def fail_once(*given: Any) -> Any:
        if next(left) == 0:
            raise MemoryError("std::bad_alloc")
        return draw_labels(*given)

    monkeypatch.setattr(CpuEngine, "draw_labels", fail_once)
    result = CliRunner().invoke(main, ["mcmc", str(folder / "run.yaml"), "--quiet"])
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "dpmix: not enough memory for a pass over the events: std::bad_alloc",
        f"dpmix: stopped; resume with: dpmix mcmc {path} --resume",
    ]
    assert assert_draws_of(data / "mcmc.h5", path) > 20
    assert CliRunner().invoke(main, ["mcmc", str(path), "--resume", "--quiet"]).exit_code == 0
    assert_identical(data / "mcmc.h5", path)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 1.2 TiB"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("x.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
    ],
)
def test_lack_of_memory_is_a_line_however_it_is_said(
    folder: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **named: object) -> None:
        raise error

    monkeypatch.setattr(mcmc, "run_mcmc", fail)
    result = CliRunner().invoke(main, ["mcmc", str(folder / "run.yaml")])
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith(f"dpmix: not enough memory: {error}; use fewer events")


SMALL_FOR_RESULTS = """
mount -t tmpfs -o size=300k tmpfs "$DISK"
code=0; "$@" gate "$RUN" --output "$DISK/gated" --no-map --quiet || code=$?
test $code = 1
test -z "$(ls "$DISK/gated" | grep samples.nc)"
"""


@pytest.mark.slow
def test_results_that_do_not_fit_the_disk(data: Path, folder: Path) -> None:
    """HDF5 crashes at the end of a process that could not write a file: space is asked for before."""
    disk = folder / "disk"
    disk.mkdir()
    said = in_namespace(SMALL_FOR_RESULTS, *dpmix(), DISK=disk, RUN=data / "mcmc.h5")
    assert said == f"dpmix: {disk}/gated/samples.nc: cannot be written: No space left on device\n"
