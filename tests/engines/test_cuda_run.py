"""Whole runs on CUDA devices, emulated or real: the draws do not depend on failures of devices."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from whole_runs import StopAfter, a_config, assert_identical, write_events

from dpmix import open_run
from dpmix.cli import main
from dpmix.config.schema import Config
from dpmix.config.write import to_yaml
from dpmix.errors import EngineError
from dpmix.runs.bem import run_bem
from dpmix.runs.coarseness import choice_of
from dpmix.runs.mcmc import run_mcmc

Devices = Callable[..., None]

SECTIONS: dict[str, dict[str, object]] = {
    "model": {"components": 4},
    "mcmc": {"chains": 2, "burn_in": 1, "draws": 2},
    "bem": {"starts": 2, "max_steps": 2, "tolerance": 1e-13},
}
RUNS = {"mcmc": run_mcmc, "bem": run_bem}


def on_cuda(folder: Path, output: Path, *devices: int) -> Config:
    engine = {"backend": "cuda", "devices": list(devices), "chunks_in_flight": 1}
    return a_config(folder, str(output), engine=engine, **SECTIONS)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return events in three chunks, the last one short."""
    folder = tmp_path_factory.mktemp("many")
    write_events(folder / "events.npy", 2 * 65_536 + 4_321, dim=2)
    return folder


@pytest.fixture(params=["mcmc", "bem"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def made() -> dict[str, Path]:
    """The files that `whole` has made so far."""
    return {}


@pytest.fixture
def whole(cuda_devices: Devices, many: Path, kind: str, made: dict[str, Path]) -> Path:
    """The run file of an uninterrupted run on one device."""
    if kind not in made:
        cuda_devices(1)
        made[kind] = RUNS[kind](on_cuda(many, many / f"{kind}.h5", 0)).path
    return made[kind]


def test_the_coarseness_chosen_is_that_of_the_cpu(cuda_devices: Devices, tmp_path: Path) -> None:
    cuda_devices(1)
    write_events(tmp_path / "events.npy", 2_000, dim=2)
    sections = SECTIONS | {"model": {"components": 4, "coarseness": "auto"}}
    engines = {"cuda.h5": {"backend": "cuda", "devices": [0]}, "cpu.h5": {"backend": "cpu"}}
    for name, engine in engines.items():
        run_bem(a_config(tmp_path, name, engine=engine, **sections))
    one, other = (choice_of(open_run(tmp_path / name)) for name in engines)
    assert open_run(tmp_path / "cuda.h5").engine["backend"] == "cuda"
    assert one.curve is not None
    assert other.curve is not None
    assert one.coarseness == other.coarseness
    np.testing.assert_array_equal(one.curve.held_out, other.curve.held_out)


def test_the_draws_are_those_of_the_cpu_engine(many: Path, kind: str, whole: Path, tmp_path: Path) -> None:
    """Check equality up to rounding and rare labels: one of 130,000 changes no mean here by 1e-4."""
    cuda = open_run(whole)
    cpu = open_run(RUNS[kind](a_config(many, str(tmp_path / "cpu.h5"), **SECTIONS)).path)
    np.testing.assert_allclose(cuda.trace["log_posterior"], cpu.trace["log_posterior"], rtol=1e-6)
    np.testing.assert_allclose(cuda.weights, cpu.weights, atol=1e-4)
    np.testing.assert_allclose(cuda.means, cpu.means, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bem"], indirect=True)
def test_stopped_and_resumed_on_other_devices_is_one_run(
    cuda_devices: Devices, many: Path, kind: str, whole: Path, tmp_path: Path
) -> None:
    cuda_devices(2)
    assert not RUNS[kind](on_cuda(many, tmp_path / "run.h5", 0, 1), should_stop=StopAfter(2)).completed
    assert RUNS[kind](on_cuda(many, tmp_path / "run.h5", 1), resume=True).completed
    assert_identical(whole, tmp_path / "run.h5")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mcmc"], indirect=True)
def test_a_device_that_dies_leaves_the_draws_as_they_are(
    emulated_devices: Devices,
    many: Path,
    kind: str,
    whole: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    emulated_devices(2, fail="1:cuLaunchKernel:7")
    assert RUNS[kind](on_cuda(many, tmp_path / "run.h5", 0, 1)).completed
    assert_identical(whole, tmp_path / "run.h5")
    assert open_run(tmp_path / "run.h5").profile["kernels"] > 0
    (line,) = (record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert "(1)" in line


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mcmc"], indirect=True)
def test_the_last_device_that_dies_stops_the_run_and_it_goes_on(
    emulated_devices: Devices, many: Path, kind: str, whole: Path, tmp_path: Path
) -> None:
    emulated_devices(2, fail="0:cuLaunchKernel:51,1:cuLaunchKernel:90")  # after some passes
    with pytest.raises(EngineError):
        RUNS[kind](on_cuda(many, tmp_path / "run.h5", 0, 1))
    stopped = open_run(tmp_path / "run.h5")
    assert stopped.sweeps_made.sum() > 0
    assert not stopped.complete
    emulated_devices(2)
    assert RUNS[kind](on_cuda(many, tmp_path / "run.h5", 1), resume=True).completed
    assert_identical(whole, tmp_path / "run.h5")


# The commands


def dpmix(*arguments: str | Path) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def test_the_commands_on_devices(
    emulated_devices: Devices, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_events(tmp_path / "events.npy", 2_000, dim=2)
    config = a_config(tmp_path, "run.h5", engine={"backend": "auto"}, **SECTIONS)
    (tmp_path / "run.yaml").write_text(to_yaml(config))

    emulated_devices(2)
    code, out, _ = dpmix("devices")
    assert code == 0
    listed = out.splitlines()
    assert listed[1] == "cuda  available"
    assert [line.split()[0] for line in listed[2:4]] == ["0", "1"]

    code, _, said = dpmix("mcmc", "run.yaml", "--set", "engine.devices=[5]")
    assert (code, len(said.splitlines())) == (1, 1)
    assert "engine.devices: got 5" in said

    emulated_devices(1, fail="0:cuLaunchKernel:11")
    code, _, said = dpmix("mcmc", "run.yaml")
    assert code == 1
    assert "engine: cuda (auto: " in said
    assert said.splitlines()[-1] == f"dpmix: stopped; resume with: dpmix mcmc {config.output.path} --resume"

    emulated_devices(0)
    code, _, said = dpmix("mcmc", "run.h5", "--resume")
    assert code == 2
    assert said.startswith("dpmix: engine.backend: the run started on cuda, which is not available here: ")
    assert said.endswith("; or use --set engine.backend=cpu\n")

    emulated_devices(1)
    code, out, _ = dpmix("mcmc", config.output.path, "--resume", "--profile")
    assert code == 0
    assert "time: " in out
    assert open_run(config.output.path).complete


@pytest.mark.parametrize("kind", ["mcmc"])
def test_the_draws_of_clouds_are_those_of_the_cpu_engine(
    cuda_devices: Devices, kind: str, tmp_path: Path
) -> None:
    """The trace of a cloud is part of the norms, so kernels need not know it: the test sees it arrive."""
    cuda_devices(2)
    write_events(tmp_path / "events.npy", 2_000, dim=2)
    engines = {"cuda": {"backend": "cuda", "devices": [0, 1]}, "cpu": {"backend": "cpu"}}
    runs = {}
    for resolution in (0.0, 0.6):
        data = {"files": [str(tmp_path / "events.npy")], "resolution": resolution}
        for name, engine in engines.items():
            config = a_config(tmp_path, f"{name}{resolution}.h5", engine=engine, data=data, **SECTIONS)
            runs[name, resolution] = open_run(RUNS[kind](config).path)
    for resolution in (0.0, 0.6):
        cuda, cpu = runs["cuda", resolution], runs["cpu", resolution]
        np.testing.assert_allclose(cuda.trace["log_posterior"], cpu.trace["log_posterior"], rtol=1e-5)
        np.testing.assert_allclose(cuda.means, cpu.means, atol=2e-3)
    assert np.abs(runs["cuda", 0.0].means - runs["cuda", 0.6].means).max() > 0.05
