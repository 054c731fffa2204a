"""The comparison with committed times in benchmarks/guard.py, with times that are made up."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import guard

    monkeypatch.setattr(sys, "argv", ["guard.py"])
    monkeypatch.setattr(guard.logging, "disable", lambda level: None)  # it would hold for all tests after
    for name in ("passes", "parameters"):
        monkeypatch.setattr(guard, name, lambda minima: None)
    return guard


@pytest.mark.parametrize(
    ("factor", "of_sgemm", "fails"),
    [(1.0, 1.0, False), (2.9, 1.0, False), (3.1, 1.0, True), (3.1, 3.1, False)],
)
def test_a_time_that_has_tripled_fails_unless_the_machine_is_as_slow(
    guard: ModuleType, monkeypatch: pytest.MonkeyPatch, factor: float, of_sgemm: float, fails: bool
) -> None:
    committed = guard.read_results("guard")["results"]["seconds"]
    changed = committed | {"prepare": factor * committed["prepare"], "sgemm": of_sgemm * committed["sgemm"]}
    monkeypatch.setattr(guard, "files", lambda minima, folder: minima.seconds.update(changed))
    if not fails:
        guard.main()
        return
    with pytest.raises(SystemExit, match="3 times as long as committed: an FCS file of 200,000 events"):
        guard.main()
