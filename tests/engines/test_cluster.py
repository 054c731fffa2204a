"""The cluster engine: the contract of all engines, the bits of one process, workers that join, leave or lag.

Workers are threads of this process or, in tests that kill them, processes on the loopback of this machine.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Timer
from types import MethodType, SimpleNamespace
from typing import Any

import dask
import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from distributed import LocalCluster
from engine_contract import AnyEngine, EngineContract, Floats, assert_same_stats, problem
from whole_runs import a_config, assert_identical, wait_for_draws, write_events

from dpmix.cli import main
from dpmix.config.engine import EngineConfig
from dpmix.config.write import to_yaml
from dpmix.engines import cluster, cluster_connect, cluster_placement, part
from dpmix.engines.cluster import ClusterEngine
from dpmix.engines.cluster_connect import closing_quietly, connected
from dpmix.engines.cpu import CpuEngine
from dpmix.engines.cuda import CudaEngine
from dpmix.engines.shares import contiguous_shares
from dpmix.errors import ConfigError, DpmixError
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Mixture
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key
from dpmix.report.gate import gate
from dpmix.runs.loop import SweepReport
from dpmix.runs.mcmc import run_mcmc

N_CHUNKS = 7
N = (N_CHUNKS - 1) * CHUNK + 1234


def held_in_file(events: Floats, folder: Path) -> np.memmap:
    path = folder / f"{len(list(folder.glob('*.events')))}.events"
    with path.open("wb") as file:
        np.save(file, events)
    held = np.load(path, mmap_mode="r")
    assert isinstance(held, np.memmap)
    return held


@contextmanager
def threads(*of_workers: int) -> Iterator[LocalCluster]:
    """A cluster of workers in this process, with these numbers of threads."""
    cluster = LocalCluster(n_workers=0, processes=False, dashboard_address="127.0.0.1:0", memory_limit=0)
    with cluster:
        for n in of_workers:
            cluster.worker_spec[f"worker {len(cluster.worker_spec)}"] = {
                **cluster.new_spec,
                "options": {**cluster.new_spec["options"], "nthreads": n},
            }
        cluster.sync(cluster._correct_state)
        yield cluster


def engine_on(address: str, events: Floats, folder: Path, **options: object) -> ClusterEngine:
    config = EngineConfig.model_construct(backend="cluster", scheduler=address, **options)
    return ClusterEngine(held_in_file(events, folder), config)


@pytest.fixture(scope="module")
def one_worker() -> Iterator[LocalCluster]:
    with threads(2) as cluster:
        yield cluster


class TestCluster(EngineContract):
    @pytest.fixture(autouse=True)
    def _place(self, one_worker: LocalCluster, tmp_path: Path) -> Iterator[None]:
        self.address, self.folder = one_worker.scheduler_address, tmp_path
        self.made: list[AnyEngine] = []
        yield
        for engine in self.made:
            engine.close()

    def make(self, events: Floats, **options: object) -> AnyEngine:
        assert options.pop("first_event", 0) == 0, "a cluster holds all events of a run"
        self.made.append(engine_on(self.address, events, self.folder, **options))
        return self.made[-1]

    @pytest.mark.parametrize("first_event", [0])
    def test_labels_go_with_the_number_of_the_event(self, first_event: int) -> None:
        super().test_labels_go_with_the_number_of_the_event(first_event)


def everything(engine: AnyEngine, mixture: Mixture, mid: Callable[[int], None] = lambda step: None) -> list:
    """Return the results of all kinds of passes for two chains; `mid` is called between the passes."""
    k = len(mixture.means)
    pairs = np.repeat(np.arange(k // 4, dtype=np.int32), 4)
    few = Mixture(*(field[: k // 2] for field in vars(mixture).values() if field is not None))
    split = SplitAssignment(pairs, np.full(k, -1, np.int8), 2)
    found: list = []
    for step in range(3):
        mid(step)
        for chain in range(2):
            found.append(engine.draw_labels(mixture, Key(3, chain, step)))
        mid(step)
        found += [*engine.divide(split, few, Key(3, 0, step)), engine.labels(1)]
    for step in range(3):
        mid(step)
        found.append(engine.expect_labels(replace(mixture, means=mixture.means + 0.1 * step)))
    mid(3)
    found += [engine.labels(0), *engine.memberships(mixture, np.arange(k) % 3, CHUNK - 7, CHUNK + 70)]
    return found


def assert_same(found: list, expected: list) -> None:
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(ours, np.ndarray):
            np.testing.assert_array_equal(ours, theirs)
        else:
            assert_same_stats(ours, theirs)


@pytest.fixture(scope="module")
def case() -> tuple[Floats, Mixture, list]:
    events, mixture = problem(N, 3, 16)
    return events, mixture, everything(CpuEngine(events, threads=2), mixture)


@pytest.mark.parametrize("workers", [(1,), (1, 2), (3, 1, 1), (1,) * 9])
def test_draws_are_bit_for_bit_those_of_one_process(
    case: tuple[Floats, Mixture, list], workers: tuple[int, ...], tmp_path: Path
) -> None:
    events, mixture, expected = case
    with threads(*workers) as local, closing(engine_on(local.scheduler_address, events, tmp_path)) as engine:
        assert engine.info["workers"] == min(len(workers), N_CHUNKS)
        assert_same(everything(engine, mixture), expected)


def test_chunks_are_assigned_once_if_some_workers_get_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cluster_placement, "LOOK_SECONDS", 0.0)
    events, mixture = problem(100, 2, 2)
    with (
        caplog.at_level(logging.INFO, "dpmix"),
        threads(1, 1) as local,
        closing(engine_on(local.scheduler_address, events, tmp_path)) as engine,
    ):
        for step in range(3):
            engine.draw_labels(mixture, Key(3, 0, step))
    assert caplog.messages.count("cluster: 1 chunks on 1 workers") == 1


@pytest.mark.parametrize("share", [0.4, 2.0])
def test_a_part_is_made_once_whether_it_fits_a_workers_memory_or_not(
    share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dask moves results above 0.6 of the memory to disk: a part would then be read again in every sweep."""
    events, mixture = problem(2 * CHUNK, 16, 4)
    made = []

    def making(values: Floats, **options: Any) -> CpuEngine:
        made.append("scratch" in options)
        return CpuEngine(values, **options)

    monkeypatch.setattr(part, "CpuEngine", making)
    limits = dict.fromkeys((f"distributed.worker.memory.{what}" for what in ("spill", "pause")), False)
    with (
        dask.config.set(limits),
        LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            processes=False,
            dashboard_address="127.0.0.1:0",
            memory_limit=int(events.nbytes / share),
        ) as local,
        closing(engine_on(local.scheduler_address, events, tmp_path)) as engine,
    ):
        for step in range(3):
            engine.draw_labels(mixture, Key(3, 0, step))
    assert made == [share > 0.5]


def bytes_sent(cluster: LocalCluster) -> int:
    """Return the bytes that the workers of this process have sent so far, by Dask's count."""
    return sum(worker.transfer_outgoing_bytes_total for worker in cluster.workers.values())


def test_what_moves_in_a_sweep_is_parameters_and_statistics_however_many_events(tmp_path: Path) -> None:
    """The other worker receives parameters, the adding worker a state, and the host the sum."""
    sent = []
    for n in (2 * CHUNK, 6 * CHUNK):
        events, mixture = problem(n, 5, 64)
        with threads(1, 1) as local, closing(engine_on(local.scheduler_address, events, tmp_path)) as engine:
            engine.draw_labels(mixture, Key(3, 0, 0))
            before = bytes_sent(local)
            engine.draw_labels(mixture, Key(3, 0, 1))
            sent.append(bytes_sent(local) - before)
    parameters = part.size_of_mixture(mixture)
    state = 4 * 8 * (64 * 6 * 7 // 2 + 1)
    assert sent[0] == sent[1]
    assert parameters + 2 * state <= sent[0] < parameters + 2 * state + 4096


# ------------------------------------------------------------------------ workers that join, leave or lag


class Processes:
    """A scheduler and workers as separate processes on the loopback."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "scheduler.json"
        self.workers: list[subprocess.Popen[bytes]] = []
        self.scheduler = self.start("scheduler", "--port", "0", "--no-dashboard", "--no-show")
        for _ in range(300):
            if self.file.exists():
                break
            time.sleep(0.1)

    def start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--host", "127.0.0.1"]
        return subprocess.Popen(
            [*command, "--scheduler-file", str(self.file), *options],
            stdout=subprocess.DEVNULL,
            stderr=(self.folder / f"{what}-{len(self.workers)}.log").open("wb"),
            env={**os.environ, "PYTHONPATH": str(self.folder)},
        )

    def add(self, nthreads: int = 1) -> subprocess.Popen[bytes]:
        options = ("--no-nanny", "--no-dashboard", "--nthreads", str(nthreads), "--local-directory")
        self.workers.append(self.start("worker", *options, str(self.folder)))
        return self.workers[-1]

    def await_workers(self, count: int) -> None:
        client = connected(str(self.file))
        client.wait_for_workers(count, timeout=60)
        client.close()

    def end(self) -> None:
        for process in (*self.workers, self.scheduler):
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@pytest.fixture
def environment() -> dict[str, str]:
    """An environment that finds `dpmix` and `dask`."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.end()


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


def test_a_worker_that_is_added_gets_chunks(
    case: tuple[Floats, Mixture, list], processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_placement, "LOOK_SECONDS", 0.0)
    events, mixture, expected = case
    processes.add()
    with closing(engine_on(str(processes.file), events, processes.folder)) as engine:
        assert engine.info["workers"] == 1
        engine.draw_labels(mixture, Key(3, 0, 9))
        processes.add()
        processes.await_workers(2)
        assert_same(everything(engine, mixture), expected)
        assert engine.info["workers"] == 2


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
        monkeypatch.setattr(cluster_connect, "CONNECT_SECONDS", 2.0)
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


def test_a_run_whose_scheduler_dies_resumes_elsewhere_with_the_same_draws(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = processes.folder
    write_events(folder / "events.npy", 2 * CHUNK + 99)
    mcmc = {"burn_in": 2, "draws": 40}
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


def test_a_run_on_a_cluster_of_this_machine_is_the_run_of_one_process(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 2 * CHUNK + 99)
    sections = {"mcmc": {"burn_in": 3, "draws": 10, "split_merge": 2, "chains": 2}}
    run_mcmc(a_config(tmp_path, "one.h5", **sections))
    engine = {"backend": "cluster", "cluster": {"workers": 2, "threads_per_worker": 1}}
    run_mcmc(a_config(tmp_path, "many.h5", engine=engine, **sections))
    assert_identical(tmp_path / "one.h5", tmp_path / "many.h5")
    assert not list(tmp_path.glob("*.events")), "a file of events is left"


@pytest.mark.slow
def test_ctrl_c_ends_a_run_on_a_cluster_of_this_machine_as_any_other(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    """All processes of a terminal get the signal; workers ignore it. One process then continues the run."""
    write_events(tmp_path / "events.npy", 2 * CHUNK + 99)
    mcmc = {"burn_in": 2, "draws": 60}
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
    for options in ([], ["--backend", "cpu"]):
        output = ["--output", str(tmp_path / "gated"), "--overwrite"]
        found = CliRunner().invoke(main, ["gate", str(path), *output, *options])
        assert found.exit_code == 0, found.output
    with pytest.raises(ConfigError, match="a cluster does not gate"):
        gate(path, tmp_path / "gated", engine=["engine.backend=cluster"], overwrite=True)


# ---------------------------------------------------------------------------------------------- messages


def test_errors_are_reported_before_a_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_connect, "CONNECT_SECONDS", 1.0)
    write_events(tmp_path / "events.npy", 1000)
    (tmp_path / "run.yaml").write_text("data: {files: [events.npy]}\nengine: {backend: cluster}\n")
    options = ["--set", "engine.scheduler=tcp://127.0.0.1:1", "--output", str(tmp_path / "run.h5")]
    found = CliRunner().invoke(main, ["mcmc", str(tmp_path / "run.yaml"), *options])
    assert found.exit_code == 2
    assert "no Dask scheduler answers at tcp://127.0.0.1:1" in found.output
    assert "start one with dask scheduler" in found.output
    assert not (tmp_path / "run.h5").exists()


@pytest.mark.parametrize(
    ("text", "said"), [(None, "No such file"), ("{}", "no address"), ("[", "no address")]
)
def test_a_wrong_scheduler_file_is_reported(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "scheduler.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(DpmixError, match=rf"scheduler.json: no scheduler file \({said}"):
        connected(str(file))


def test_an_address_that_dask_cannot_use_is_reported() -> None:
    with pytest.raises(DpmixError, match=r"no Dask scheduler answers at tls://127.0.0.1:1 \(TLS expects"):
        connected("tls://127.0.0.1:1")


def test_the_connection_is_repeated_after_an_assertion_of_dask(
    one_worker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If other messages arrive with the first one, an assertion in Dask fails."""
    answers: list[type[Exception]] = [AssertionError, AssertionError]
    client = cluster_connect.Client

    def begin(*arguments: object, **options: object) -> object:
        if answers:
            raise answers.pop()
        return client(*arguments, **options)

    monkeypatch.setattr(cluster_connect, "Client", begin)
    with closing_quietly(connected(one_worker.scheduler_address)) as found:
        assert found.status == "running"
    answers += [AssertionError] * cluster_connect.CONNECT_TIMES
    with pytest.raises(DpmixError, match="no Dask scheduler answers"):
        connected(one_worker.scheduler_address)


def test_a_system_error_on_a_worker_is_reported(
    one_worker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(part: part.Part, work: part.Pass) -> None:
        raise OSError(5, "Input/output error")

    events, mixture = problem(100, 2, 2)
    with closing(engine_on(one_worker.scheduler_address, events, tmp_path)) as engine:
        monkeypatch.setattr(part.Part, "run", fail)
        with pytest.raises(DpmixError, match=r"^cluster .*: .*Input/output error"):
            engine.draw_labels(mixture, Key(3, 0, 0))


def test_a_scheduler_without_workers_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_connect, "CONNECT_SECONDS", 1.0)
    with threads() as local, pytest.raises(DpmixError, match="no worker: start some with dask worker"):
        engine_on(local.scheduler_address, problem(100, 2, 2)[0], tmp_path)


def test_another_file_on_a_worker_is_reported(
    one_worker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints = iter(["of the file here", "of the file there"])
    monkeypatch.setattr(part, "fingerprint", lambda path, chunks: next(prints))
    with pytest.raises(DpmixError, match="another file where a worker is; name a folder that every worker"):
        engine_on(one_worker.scheduler_address, problem(100, 2, 2)[0], tmp_path)


def test_a_file_that_a_worker_cannot_read_is_reported(
    one_worker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = held_in_file(problem(100, 2, 2)[0], tmp_path)
    found = part.fingerprint

    def print_and_remove(path: str, chunks: tuple[int, int]) -> str:
        here = found(path, chunks)
        Path(path).unlink()
        return here

    monkeypatch.setattr(part, "fingerprint", print_and_remove)
    config = EngineConfig(backend="cluster", scheduler=one_worker.scheduler_address)
    with pytest.raises(DpmixError, match=r"cannot be read by a worker .*; name a folder that every worker"):
        ClusterEngine(events, config)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (
            part.About("0.0.1", "with fused multiply-add", False),
            r"dpmix is .* here and .*0\.0\.1.*: install",
        ),
        (ImportError("No module named 'dpmix'"), "No module named 'dpmix': install dpmix there"),
        (RuntimeError("no driver"), r"worker .*: no driver"),
        (OSError("closed"), "no worker answers"),
    ],
)
def test_an_unusable_worker_is_reported(
    one_worker: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    about: object,
    said: str,
) -> None:
    monkeypatch.setattr(
        cluster_connect.Client, "run", lambda self, task, workers, on_error: dict.fromkeys(workers, about)
    )
    with pytest.raises(DpmixError, match=said):
        engine_on(one_worker.scheduler_address, problem(100, 2, 2)[0], tmp_path)


@pytest.mark.parametrize(
    ("n_chunks", "speeds", "expected"),
    [
        (10, {"a": 1.0}, {"a": (0, 10)}),
        (10, {"a": 1.0, "b": 4.0}, {"a": (0, 2), "b": (2, 10)}),
        (1, {"a": 1.0, "b": 1.0, "c": 1.0}, {"b": (0, 1)}),
        (3, {"a": 1.0, "b": 1.0}, {"a": (0, 2), "b": (2, 3)}),
    ],
)
def test_chunks_are_assigned_by_speed(
    n_chunks: int, speeds: dict[str, float], expected: dict[str, tuple[int, int]]
) -> None:
    assert contiguous_shares(n_chunks, speeds) == expected


def test_events_must_be_in_a_file() -> None:
    with pytest.raises(ValueError, match=r"need an np\.memmap"):
        ClusterEngine(np.zeros((10, 2), np.float32), EngineConfig(backend="cluster"))


# ------------------------------------------------------------------------------------------- other engines


def test_workers_with_gpus_give_the_bits_of_gpus(
    emulated_devices: Callable[..., None], tmp_path: Path
) -> None:
    events, mixture = problem(CHUNK + 77, 1, 4)
    expected = everything(CudaEngine(events, devices=[0]), mixture)
    with threads(1, 1) as local, closing(engine_on(local.scheduler_address, events, tmp_path)) as engine:
        assert engine.info["engine"] == "cuda"
        assert_same(everything(engine, mixture), expected)


# ------------------------------------------------------------------------------- commands of the cluster page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "cluster.md"


def recipe(title: str) -> list[tuple[str, str]]:
    """Return kind and text of the blocks under a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```([\w ]+)\n(.*?)^```$", section, flags=re.MULTILINE | re.DOTALL)


def free_port() -> int:
    with socket.socket() as any_socket:
        any_socket.bind(("127.0.0.1", 0))
        return int(any_socket.getsockname()[1])


QUICK = "--set mcmc.burn_in=2 --set mcmc.draws=2 --set mcmc.chains=1"


@pytest.mark.slow
def test_the_recipe_of_two_terminals(tmp_path: Path, environment: dict[str, str]) -> None:
    ports = {"8786": str(free_port()), "8787": str(free_port())}
    terminals = []
    try:
        for kind, text in recipe("Two terminals"):
            for written, free in ports.items():
                text = text.replace(written, free)
            command = ["bash", "-euo", "pipefail", "-c"]
            place = {"cwd": tmp_path, "env": environment}
            if kind == "sh terminal":
                terminals.append(subprocess.Popen([*command, text], start_new_session=True, **place))
            elif kind == "sh":
                quick = re.sub(r"^(dpmix mcmc .*)$", rf"\1 {QUICK}", text, flags=re.MULTILINE)
                done = subprocess.run([*command, quick], capture_output=True, text=True, check=False, **place)
                assert done.returncode == 0, done.stderr
            else:
                printed = text.strip()
    finally:
        for terminal in terminals:
            os.killpg(terminal.pid, signal.SIGKILL)
            terminal.wait()
    assert printed in done.stderr, "what the page says it prints"
    assert (tmp_path / "run.h5").exists()


@pytest.mark.slow
def test_the_recipe_of_slurm_on_a_queue_of_this_machine(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cluster_connect, "CONNECT_SECONDS", 60.0
    )  # jobs take as long to start as the machine is busy
    ((kind, text),) = recipe("Slurm")
    assert kind == "python"
    here = {
        "from dask_jobqueue import SLURMCluster": "from dask_jobqueue.local import LocalCluster",
        "SLURMCluster(": "LocalCluster(",
        r"queue=.*": "",
        r"walltime=.*": "",
        r"cores=32,": "cores=1,",
        r"jobs=8": "jobs=2",
    }
    for written, meant in here.items():
        text, count = re.subn(written.replace("(", r"\("), meant, text)
        assert count == 1, written
    (tmp_path / "slurm.py").write_text(text)
    write_events(tmp_path / "events.npy", 2 * CHUNK)
    cluster_process = subprocess.Popen(
        [sys.executable, "slurm.py"],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert cluster_process.stdout is not None
        address = cluster_process.stdout.readline().strip()
        assert address.startswith("tcp://")
        mcmc = {"burn_in": 2, "draws": 4}
        engine = {"backend": "cluster", "scheduler": address}
        run_mcmc(a_config(tmp_path, "many.h5", mcmc=mcmc, engine=engine))
    finally:
        cluster_process.communicate("\n", timeout=60)
    run_mcmc(a_config(tmp_path, "one.h5", mcmc=mcmc))
    assert_identical(tmp_path / "one.h5", tmp_path / "many.h5")


def test_the_manifests_of_kubernetes_are_yaml() -> None:
    (kind, text), _ = recipe("Kubernetes")
    assert kind == "yaml"
    assert [one["kind"] for one in yaml.safe_load_all(text)] == ["Service", "Deployment", "Deployment", "Job"]
