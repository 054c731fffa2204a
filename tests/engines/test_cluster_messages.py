"""Messages of the cluster engine, and the commands of its page."""

from __future__ import annotations

import gc
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from cluster_cases import engine_on, held_in_file, threads
from distributed import Client, LocalCluster
from engine_contract import problem
from whole_runs import a_config, assert_identical, write_events

from dpmix.cli import main
from dpmix.config.engine import EngineConfig
from dpmix.engines.cluster import connect
from dpmix.engines.cluster import part as cluster_part
from dpmix.engines.cluster.connect import closing_quietly, connected
from dpmix.engines.cluster.engine import ClusterEngine
from dpmix.engines.shares import contiguous_shares
from dpmix.errors import DpmixError
from dpmix.kernels.layout import CHUNK
from dpmix.model.streams import Key
from dpmix.runs.mcmc import run_mcmc


def test_errors_are_reported_before_a_run_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 1.0)
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


@pytest.mark.slow
def test_a_failed_connection_leaves_no_client_to_the_garbage_collector() -> None:
    """Dask would close it at any time later, and wait forever if another client starts at that moment."""
    gc.collect()
    before = {id(item) for item in gc.get_objects() if isinstance(item, Client)}
    with pytest.raises(DpmixError, match="no Dask scheduler answers"):
        connected("tcp://127.0.0.1:1")
    assert [item for item in gc.get_objects() if isinstance(item, Client) and id(item) not in before] == []


def test_the_connection_is_repeated_after_an_assertion_of_dask(
    one_worker: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If other messages arrive with the first one, an assertion in Dask fails."""
    answers: list[type[Exception]] = [AssertionError, AssertionError]
    client = connect.Client

    def begin(*arguments: object, **options: object) -> object:
        if answers:
            raise answers.pop()
        return client(*arguments, **options)

    monkeypatch.setattr(connect, "Client", begin)
    with closing_quietly(connected(one_worker.scheduler_address)) as found:
        assert found.status == "running"
    answers += [AssertionError] * connect.CONNECT_TIMES
    with pytest.raises(DpmixError, match="no Dask scheduler answers"):
        connected(one_worker.scheduler_address)


def test_a_system_error_on_a_worker_is_reported(
    one_worker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(part: cluster_part.Part, work: cluster_part.Pass) -> None:
        raise OSError(5, "Input/output error")

    events, mixture = problem(100, 2, 2)
    with closing(engine_on(one_worker.scheduler_address, events, tmp_path)) as engine:
        monkeypatch.setattr(cluster_part.Part, "run", fail)
        with pytest.raises(DpmixError, match=r"^cluster .*: .*Input/output error"):
            engine.draw_labels(mixture, Key(3, 0, 0))


def test_a_scheduler_without_workers_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 1.0)
    with threads() as local, pytest.raises(DpmixError, match="no worker: start some with dask worker"):
        engine_on(local.scheduler_address, problem(100, 2, 2)[0], tmp_path)


def test_another_file_on_a_worker_is_reported(
    one_worker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prints = iter(["of the file here", "of the file there"])
    monkeypatch.setattr(cluster_part, "fingerprint", lambda path, chunks: next(prints))
    with pytest.raises(DpmixError, match="another file where a worker is; name a folder that every worker"):
        engine_on(one_worker.scheduler_address, problem(100, 2, 2)[0], tmp_path)


def test_a_file_that_a_worker_cannot_read_is_reported(
    one_worker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = held_in_file(problem(100, 2, 2)[0], tmp_path)
    found = cluster_part.fingerprint

    def print_and_remove(path: str, chunks: tuple[int, int]) -> str:
        here = found(path, chunks)
        Path(path).unlink()
        return here

    monkeypatch.setattr(cluster_part, "fingerprint", print_and_remove)
    config = EngineConfig(backend="cluster", scheduler=one_worker.scheduler_address)
    with pytest.raises(DpmixError, match=r"cannot be read by a worker .*; name a folder that every worker"):
        ClusterEngine(events, config)


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (
            cluster_part.About("0.0.1", "with fused multiply-add", False),
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
        connect.Client, "run", lambda self, task, workers, on_error: dict.fromkeys(workers, about)
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
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 60.0)  # jobs take as long to start as the machine is busy
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
    ((kind, text),) = recipe("Kubernetes")
    assert kind == "yaml"
    assert [one["kind"] for one in yaml.safe_load_all(text)] == ["Service", "Deployment", "Deployment", "Job"]
