"""The choice of a backend, its messages and what the run file stores of it."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dpmix import open_run
from dpmix.config.engine import EngineConfig
from dpmix.config.schema import Config
from dpmix.engines.choose import EngineChoice, choose_backend, make_engine, warn_of_other_arithmetic
from dpmix.engines.cpu import CpuEngine
from dpmix.errors import ConfigError, DpmixError
from dpmix.model.mixture import Mixture
from dpmix.model.normal_wishart import ARITHMETIC
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.streams import Key
from dpmix.runs.mcmc import run_mcmc


class FakeCudaEngine(CpuEngine):
    """The CPU engine under another name; it keeps its options."""

    def __init__(
        self,
        events: npt.NDArray[np.float32],
        *,
        devices: str | list[int],
        pruning: bool,
        weight_floor: float,
        chunks_in_flight: int | None,
        weights: SampleWeights | None,
    ) -> None:
        options = {"weight_floor": weight_floor, "chunks_in_flight": chunks_in_flight, "weights": weights}
        super().__init__(events, pruning=pruning, **options)  # type: ignore[arg-type]
        self.given = (devices, pruning, weight_floor, chunks_in_flight)

    @property
    def info(self) -> dict[str, str | int | float | bool]:
        return {"backend": "cuda", "devices": "0: a fake"}


class FakeCuda:
    """A replacement of the module `dpmix.engines.cuda.engine`."""

    CudaEngine = FakeCudaEngine

    def __init__(self, found: bool) -> None:
        self.found = found

    def available(self) -> tuple[bool, str]:
        return (True, "1 device") if self.found else (False, "no driver; install one")

    def chosen(self, numbers: str | list[int]) -> None:
        if numbers == [5]:
            raise DpmixError("engine.devices: got 5")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda(True)
    monkeypatch.setattr("dpmix.engines.choose.cuda", fake)
    return fake


@pytest.mark.parametrize(
    ("backend", "began", "found", "expected"),
    [
        ("auto", None, True, EngineChoice("cuda", "auto: 1 device")),
        ("auto", None, False, EngineChoice("cpu", "auto: no usable GPU; dpmix devices says why")),
        ("cpu", None, True, EngineChoice("cpu", "as the config says")),
        ("cuda", None, True, EngineChoice("cuda", "as the config says")),
        ("auto", "cpu", True, EngineChoice("cpu", "auto: the run started on it")),
        ("auto", "cuda", True, EngineChoice("cuda", "auto: the run started on it")),
        ("cpu", "cuda", False, EngineChoice("cpu", "as the config says")),
        ("cuda", "cpu", True, EngineChoice("cuda", "as the config says")),
    ],
)
def test_the_backend_of_a_run(
    cuda: FakeCuda, backend: str, began: str | None, found: bool, expected: EngineChoice
) -> None:
    cuda.found = found
    assert choose_backend(EngineConfig.model_validate({"backend": backend}), began) == expected


@pytest.mark.parametrize(
    ("backend", "began", "problem"),
    [
        ("cuda", None, "engine.backend: cuda is not available here: no driver; install one; "),
        ("cuda", "cpu", "engine.backend: cuda is not available here: no driver; install one; "),
        ("auto", "cuda", "engine.backend: the run started on cuda, which is not available here: no driver; "),
    ],
)
def test_a_backend_that_is_not_there(cuda: FakeCuda, backend: str, began: str | None, problem: str) -> None:
    cuda.found = False
    with pytest.raises(ConfigError) as caught:
        choose_backend(EngineConfig.model_validate({"backend": backend}), began)
    (line,) = caught.value.problems
    assert line.startswith(problem)
    assert line.endswith("; or use --set engine.backend=cpu")


@pytest.mark.parametrize(
    ("found", "options", "said"),
    [
        (True, {"threads": 2, "devices": [0]}, ["engine.threads: ignored by the cuda engine"]),
        (False, {"threads": 2, "devices": [0]}, ["engine.devices: ignored by the cpu engine"]),
        (True, {"devices": [0], "chunks_in_flight": 2}, []),
        (False, {"threads": 2, "pruning": False}, []),
    ],
)
def test_options_that_auto_has_no_use_for_are_told(
    cuda: FakeCuda,
    caplog: pytest.LogCaptureFixture,
    found: bool,
    options: dict[str, object],
    said: list[str],
) -> None:
    cuda.found = found
    choose_backend(EngineConfig.model_validate(options))
    assert [record.getMessage() for record in caplog.records] == said


def test_options_reach_the_cuda_engine(cuda: FakeCuda) -> None:
    config = EngineConfig(devices=[1, 0], weight_floor=30.0, chunks_in_flight=3)
    engine = make_engine("cuda", config, np.zeros((5, 2), np.float32))
    assert isinstance(engine, FakeCudaEngine)
    assert engine.given == ([1, 0], True, 30.0, 3)


def test_options_reach_the_cuda_engine_of_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[object] = []
    monkeypatch.setattr(
        "dpmix.engines.choose.CudaCohortEngine", lambda *arrays, **options: given.append((arrays, options))
    )
    config = EngineConfig(devices=[1], weight_floor=30.0, chunks_in_flight=3, pruning=False)
    events, starts = np.zeros((5, 2), np.float32), np.array([0, 3, 5])
    make_engine("cuda", config, events, starts=starts)
    options = {"devices": [1], "weight_floor": 30.0, "chunks_in_flight": 3, "pruning": False, "weights": None}
    assert given == [((events, starts), options)]


def test_options_reach_the_cpu_engine() -> None:
    config = EngineConfig(threads=3, pruning=False)
    engine = make_engine("cpu", config, np.zeros((5, 2), np.float32))
    assert (engine.info["backend"], engine.info["threads"], engine.info["pruning"]) == ("cpu", 3, False)


# Whole runs


def a_config(folder: Path, **engine: object) -> Config:
    np.save(folder / "events.npy", np.random.default_rng(0).normal(size=(300, 2)).astype(np.float32))
    return Config.model_validate(
        {
            "data": {"files": [str(folder / "events.npy")]},
            "model": {"components": 4},
            "mcmc": {"burn_in": 2, "draws": 3},
            "engine": engine,
            "output": {"path": str(folder / "run.h5")},
        }
    )


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_engine_gets_the_weights_of_the_events(cuda: FakeCuda, backend: str) -> None:
    events, weights = np.zeros((10, 1), np.float32), SampleWeights(np.array([0, 4, 10]), np.float32([2, 3]))
    engine = make_engine(backend, EngineConfig(), events, weights=weights)
    one = Mixture(np.zeros(1), np.zeros((1, 1)), np.ones((1, 1, 1)), np.zeros(1))
    assert engine.draw_labels(one, Key(1, 0, 0)).counts == [26.0]


def test_what_was_chosen_and_why_is_logged_and_stored(
    cuda: FakeCuda, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "dpmix")
    path = run_mcmc(a_config(tmp_path)).path
    described = {"backend": "cuda", "devices": "0: a fake", "chosen": "auto: 1 device"}
    assert open_run(path).engine == {**described, "parameters": ARITHMETIC}
    assert "engine: cuda (auto: 1 device), devices 0: a fake" in caplog.messages


def test_a_run_of_a_version_with_another_rounding_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    now = {"backend": "cpu", "parameters": ARITHMETIC}
    warn_of_other_arithmetic(now, now)
    assert not caplog.messages
    warn_of_other_arithmetic({"backend": "cpu"}, now)
    assert caplog.messages[0].startswith("the run started with a version of dpmix that rounds parameters")


@pytest.mark.parametrize(
    ("began", "now", "warns"),
    [
        ("v4", "v2", True),
        ("v2", "v3", True),
        ("v4", "v3", False),
        ("neon", "v4", False),
        ("v2", "v2", False),
    ],
)
def test_instructions_that_round_differently_are_warned_of(
    caplog: pytest.LogCaptureFixture, began: str, now: str, warns: bool
) -> None:
    warn_of_other_arithmetic(
        *({"backend": "cpu", "isa": isa, "parameters": ARITHMETIC} for isa in (began, now))
    )
    assert bool(caplog.messages) == warns
    if warns:
        assert caplog.messages[0].startswith(f"engine: the instructions {now} round differently from {began}")


@pytest.mark.parametrize(("began", "other"), [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_run_goes_on_with_the_backend_that_it_began_on(
    cuda: FakeCuda, tmp_path: Path, caplog: pytest.LogCaptureFixture, began: str, other: str
) -> None:
    caplog.set_level(logging.INFO, "dpmix")

    def stopped_after_a_sweep() -> None:
        cuda.found = began == "cuda"
        run_mcmc(a_config(tmp_path), overwrite=True, should_stop=lambda: True)
        cuda.found = True
        caplog.clear()

    stopped_after_a_sweep()
    assert run_mcmc(a_config(tmp_path), resume=True).completed
    assert any(line.startswith(f"engine: {began} (auto: the run started on it)") for line in caplog.messages)
    assert open_run(tmp_path / "run.h5").engine["backend"] == began

    stopped_after_a_sweep()
    assert run_mcmc(a_config(tmp_path, backend=other), resume=True).completed
    assert any(line.startswith(f"engine: {other} (as the config says)") for line in caplog.messages)
    (warning,) = (record for record in caplog.records if record.levelno == logging.WARNING)
    assert warning.getMessage().startswith(f"engine: {other}, but the run started on {began}: ")


def test_a_missing_gpu_is_told_before_the_data_are_read(cuda: FakeCuda, tmp_path: Path) -> None:
    config = a_config(tmp_path, backend="cuda")
    (tmp_path / "events.npy").write_text("no events")
    cuda.found = False
    with pytest.raises(ConfigError, match="cuda is not available here"):
        run_mcmc(config)
    cuda.found = True
    with pytest.raises(DpmixError, match=r"engine\.devices: got 5"):
        run_mcmc(a_config(tmp_path, devices=[5]))
    assert not (tmp_path / "run.h5").exists()
