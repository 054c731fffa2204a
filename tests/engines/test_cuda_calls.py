"""The host's work in a pass of the CUDA engine does not depend on the number of resident chunks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cuda_cases import SPLIT, Emulate
from engine_contract import halves, problem

from dpmix.engines.cuda.engine import CudaEngine
from dpmix.kernels.layout import CHUNK
from dpmix.model.streams import Key


class CountedDriver:
    """PyCUDA's driver module, whose calls are counted by name."""

    def __init__(self, driver: Any) -> None:
        self._driver, self.calls = driver, Counter[str]()

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._driver, name)
        if isinstance(function, type):
            return function

        def counted(*arguments: Any, **named: Any) -> Any:
            self.calls[name] += 1
            return function(*arguments, **named)

        return counted

    def of(self, work: Callable[[], object]) -> Counter[str]:
        """Return the calls of a pass."""
        self.calls.clear()
        work()
        return self.calls.copy()


@pytest.fixture
def driver(emulated_devices: Emulate, monkeypatch: pytest.MonkeyPatch) -> CountedDriver:
    """Count the driver's functions and the launches of passes."""
    emulated_devices(2)
    from dpmix.engines.cuda import lane, memory, passes
    from dpmix.engines.cuda.kernels import Kernels

    counted, launch = CountedDriver(passes.driver), Kernels.launch
    monkeypatch.setattr(passes, "driver", counted)
    monkeypatch.setattr(memory, "driver", counted)
    monkeypatch.setattr(lane, "driver", counted)

    def counted_launch(*arguments: Any) -> None:
        counted.calls["launch"] += 1
        launch(*arguments)

    monkeypatch.setattr(Kernels, "launch", counted_launch)
    return counted


def passes_of(engine: CudaEngine) -> list[Callable[[], object]]:
    _, mixture = problem(10, 2, 4)
    key = Key(1, 0, 0)
    return [
        lambda: engine.draw_labels(mixture, key),
        lambda: engine.divide(SPLIT, halves(mixture, SPLIT, 2), key),
        lambda: engine.expect_labels(mixture),
    ]


def test_calls_of_a_pass_grow_with_devices_and_not_with_chunks(driver: CountedDriver) -> None:
    found = {}
    for chunks, devices in ((2, 1), (5, 1), (4, 2)):
        engine = CudaEngine(np.zeros((chunks * CHUNK - 5, 2), np.float32), devices=list(range(devices)))
        passes_of(engine)[0]()  # events and lanes come to the devices
        found[chunks, devices] = [driver.of(work) for work in passes_of(engine)]
        engine.close()
    one = found[2, 1]
    assert all(calls["launch"] >= 4 for calls in one)
    assert found[5, 1] == one
    assert found[4, 2] == [Counter({name: 2 * n for name, n in calls.items()}) for calls in one]
