"""Fixtures of the tests of engines; Dask is slow to import, so they import it when needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def one_worker() -> Iterator[Any]:
    """A cluster with one worker of two threads, in this process."""
    from cluster_cases import threads

    with threads(2) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def case() -> tuple[Any, Any, list]:
    """Events, a mixture, and the results of one process."""
    from cluster_cases import N, everything
    from engine_contract import problem

    from dpmix.engines.cpu import CpuEngine

    events, mixture = problem(N, 3, 16)
    return events, mixture, everything(CpuEngine(events, threads=2), mixture)


@pytest.fixture
def equal_speeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """All devices get as many chunks: by measured speed, the next to fail might get none."""
    from dpmix.engines.cuda.fleet import Fleet

    monkeypatch.setattr(Fleet, "_speeds", lambda fleet: dict.fromkeys(fleet._devices, 1.0))


@pytest.fixture
def environment() -> dict[str, str]:
    """An environment that finds `dpmix` and `dask`."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Any]:
    from cluster_cases import Processes

    started = Processes(tmp_path)
    yield started
    started.end()
