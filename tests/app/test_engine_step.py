"""The engine of a run that the page starts: options of the command, and mistakes in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpmix.app import engine
from dpmix.app.workspace import Workspace
from dpmix.config.load import parse_config
from dpmix.errors import ConfigError

DATA = "data: {files: [events.fcs]}"


@pytest.mark.parametrize(
    "given",
    [{}, {"backend": "cpu"}, {"backend": "cpu", "threads": 3}, {"backend": "cuda", "devices": [0, 2]}],
)
def test_options_give_the_settings_to_the_command(given: dict[str, Any]) -> None:
    options = engine.options(given)
    assert set(options[::2]) <= {"--set"}
    found = parse_config(DATA, "config", options[1::2]).engine
    assert {key: getattr(found, key) for key in given} == given
    assert engine.checked(given) == found


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"backend": "gpu"}, "must be one of auto, cpu, cuda"),
        ({"backend": "cuda", "threads": 2}, "backend cuda ignores threads"),
        ({"backend": "cluster"}, "start runs on a cluster by dpmix mcmc"),
        ({"scratch": "/tmp"}, "the page has no scratch"),
        ({"threads": "2]"}, "engine.threads"),
    ],
)
def test_mistakes_are_one_line_and_start_nothing(given: dict[str, Any], problem: str, tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("a,b\n1,2\n2,1\n", encoding="utf-8")
    own = Workspace(tmp_path)
    for start in (own.fit, own.estimate):
        arguments = (["events.csv"], "new") if start == own.fit else (["events.csv"],)
        with pytest.raises(ConfigError, match=problem) as caught:
            start(*arguments, on=given)
        assert "\n" not in str(caught.value)
    assert own.jobs.states() == []


def test_the_command_and_the_estimate_use_the_engine(tmp_path: Path) -> None:
    given = {"backend": "cpu", "threads": 1}
    (tmp_path / "events.csv").write_text("a,b\n" + "1,2\n2,3\n3,5\n4,4\n" * 50, encoding="utf-8")
    own = Workspace(tmp_path)
    assert "with the cpu engine" in own.estimate(["events.csv"], quick=True, on=given)["text"]
    started = own.fit(["events.csv"], "new", quick=True, on=given)
    assert started["command"].endswith("--set engine.backend=cpu --set engine.threads=1")
    own.jobs.stop_all()
