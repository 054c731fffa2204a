"""Workers of a cluster that join, leave or lag, and whole runs on a cluster.

Scheduler and workers are processes on the loopback of this machine.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from types import MethodType, SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from cluster_cases import Processes, assert_same, engine_on, everything
from engine_contract import Floats
from platforms import PLATFORM
from whole_runs import a_config, assert_identical, wait_for_draws, write_events

from dpmix.cli import main
from dpmix.commands.gate import gate
from dpmix.config.write import to_yaml
from dpmix.engines.cluster import connect
from dpmix.engines.cluster import engine as cluster
from dpmix.engines.cluster import placement as cluster_placement
from dpmix.engines.cluster.engine import ClusterEngine
from dpmix.errors import ConfigError, DpmixError
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Mixture
from dpmix.model.streams import Key
from dpmix.runs.loop import SweepReport
from dpmix.runs.mcmc import run_mcmc


@pytest.mark.slow
def test_workers_killed_at_any_moment_and_added_change_nothing(
    case: tuple[Floats, Mixture, list], processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_placement, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(cluster, "TRANSFER_SECONDS", 1.0)
    events, mixture, expected = case
    for _ in range(3):
        processes.add()
    processes.await_workers(3)
    random = np.random.default_rng(4)
    doomed: list[subprocess.Popen[bytes]] = []

    def kill_one_soon(step: int) -> None:
        if step == 1 or step == 3:
            processes.add()
        spared = [worker for worker in processes.workers if worker not in doomed]
        if len(spared) > 1:  # the last one may still be starting: there may be no worker for some time
            doomed.append(spared[random.integers(len(spared))])
            Timer(random.uniform(0.0, 0.15), doomed[-1].kill).start()

    with closing(engine_on(str(processes.file), events, processes.folder)) as engine:
        assert_same(everything(engine, mixture, kill_one_soon), expected)


@pytest.mark.slow
def test_the_chunks_of_a_worker_that_is_late_are_done_by_others(
    case: tuple[Floats, Mixture, list],
    processes: Processes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(cluster, "LATE_SECONDS", 1.0)
    monkeypatch.setattr(cluster_placement, "SILENT_SECONDS", 4.0)
    monkeypatch.setattr(cluster_placement, "LOOK_SECONDS", 0.0)
    events, mixture, expected = case
    stopped = processes.add()
    processes.add()
    processes.await_workers(2)
    with (
        caplog.at_level(logging.WARNING, "dpmix"),
        closing(engine_on(str(processes.file), events, processes.folder)) as engine,
    ):

        def stop_and_go_on(step: int) -> None:
            if step == 1:
                stopped.send_signal(signal.SIGSTOP)
            if step == 3:
                stopped.send_signal(signal.SIGCONT)

        assert_same(everything(engine, mixture, stop_and_go_on), expected)
        assert any("the others do its chunks" in line for line in caplog.messages)
        for _ in range(100):  # until its old task is done
            engine.draw_labels(mixture, Key(3, 0, 9))
            if engine.info["workers"] == 2:
                break
            time.sleep(0.1)
        assert engine.info["workers"] == 2


@pytest.mark.slow
def test_a_lost_scheduler_is_reported_by_the_next_call(
    case: tuple[Floats, Mixture, list], processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_placement, "LOOK_SECONDS", 0.0)
    events, mixture, _ = case
    processes.add()
    processes.await_workers(1)
    with closing(engine_on(str(processes.file), events, processes.folder)) as engine:
        engine.draw_labels(mixture, Key(3, 0, 0))
        processes.scheduler.kill()
        processes.scheduler.wait()
        monkeypatch.setattr(connect, "CONNECT_SECONDS", 2.0)
        for ask in (
            lambda: engine.draw_labels(mixture, Key(3, 0, 1)),
            lambda: engine.labels(0),
            lambda: engine.memberships(mixture, np.zeros(16, int), 0, 10),
        ):
            with pytest.raises(DpmixError, match=r"^cluster .*: the scheduler is gone"):
                ask()


@dataclass(eq=False)
class Timed:
    """A task that is done at some second of a clock, which `result` advances."""

    at: float
    clock: list[float]

    def done(self) -> bool:
        return self.clock[0] >= self.at

    def result(self, timeout: float) -> str:
        self.clock[0] += timeout
        if self.done():
            return "sums"
        raise TimeoutError

    def exception(self, timeout: float) -> None:
        self.result(timeout)


@pytest.mark.parametrize(("ends", "expected"), [(105.0, set()), (200.0, {"new"})])
def test_the_time_that_a_part_is_made_in_does_not_make_a_worker_late(
    ends: float, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(cluster.time, "monotonic", lambda: clock[0])
    late: set[str] = set()
    placement = SimpleNamespace(redistribute=lambda found: late.update(found))
    host = SimpleNamespace(_placement=placement, _patience=cluster.TRANSFER_SECONDS)
    host._result = MethodType(ClusterEngine._result, host)
    old = cluster_placement.Held("old", (0, 1), Timed(0.0, clock))
    new = cluster_placement.Held("new", (1, 2), Timed(100.0, clock))
    leaves = {old: Timed(2.0, clock), new: Timed(ends, clock)}
    assert ClusterEngine._awaited(host, Timed(ends, clock), leaves) == "sums"
    assert late == expected


@pytest.mark.slow
def test_a_run_whose_scheduler_dies_resumes_elsewhere_with_the_same_draws(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = processes.folder
    write_events(folder / "events.npy", 2 * CHUNK + 99)
    mcmc = {"burn_in": 2, "draws": 20}
    run_mcmc(a_config(folder, "whole.h5", mcmc=mcmc))
    processes.add()
    processes.await_workers(1)
    config = a_config(
        folder, "run.h5", mcmc=mcmc, engine={"backend": "cluster", "scheduler": str(processes.file)}
    )
    made = []

    def kill_the_scheduler(progress: SweepReport) -> None:
        made.append(progress.iteration)
        if len(made) == 10:
            processes.scheduler.kill()

    with pytest.raises(DpmixError, match=r"^cluster .*: the scheduler is gone"):
        run_mcmc(config, on_sweep=kill_the_scheduler)
    here = a_config(folder, "run.h5", mcmc=mcmc)
    run_mcmc(here, resume=True, on_sweep=lambda progress: made.append(progress.iteration))
    assert made.count(0) == 1, "it started again"
    assert_identical(folder / "run.h5", folder / "whole.h5")


@pytest.mark.slow
def test_ctrl_c_ends_a_run_on_a_cluster_of_this_machine_as_any_other(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """All processes of a terminal get the signal; workers ignore it. One process then continues the run."""
    write_events(tmp_path / "events.npy", 2 * CHUNK + 99)
    mcmc = {"burn_in": 2, "draws": 20, "split_merge": 2, "chains": 2}
    engine = {"backend": "cluster", "cluster": {"workers": 2, "threads_per_worker": 1}}
    (tmp_path / "run.yaml").write_text(to_yaml(a_config(tmp_path, "run.h5", mcmc=mcmc, engine=engine)))
    command = subprocess.Popen(
        ["dpmix", "mcmc", "run.yaml"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for_draws(tmp_path / "run.h5", 2, command)
    os.killpg(command.pid, signal.SIGINT)
    _, said = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "Traceback" not in said
    assert "stopped; resume with: dpmix mcmc" in said
    if PLATFORM != "windows":  # a mapped file cannot be deleted there; a warning names it
        assert not list(tmp_path.glob("*.events")), "a file of events is left"
    options = ["--resume", "--set", "engine.backend=cpu"]
    found = CliRunner().invoke(main, ["mcmc", str(tmp_path / "run.h5"), *options])
    assert found.exit_code == 0, found.output
    run_mcmc(a_config(tmp_path, "whole.h5", mcmc=mcmc))
    assert_identical(tmp_path / "run.h5", tmp_path / "whole.h5")


@pytest.mark.slow
def test_a_run_made_on_a_cluster_is_gated_by_one_process(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 3000)
    engine = {"backend": "cluster", "cluster": {"workers": 1, "threads_per_worker": 1}}
    path = tmp_path / "run.h5"
    run_mcmc(a_config(tmp_path, "run.h5", mcmc={"burn_in": 20, "draws": 5}, engine=engine))
    found = CliRunner().invoke(main, ["gate", str(path), "--output", str(tmp_path / "gated")])
    assert found.exit_code == 0, found.output
    with pytest.raises(ConfigError, match="a cluster cannot gate"):
        gate(path, tmp_path / "gated", engine=["engine.backend=cluster"], overwrite=True)
