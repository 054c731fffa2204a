"""Populations of a run in progress, and what becomes of decisions about them when it has more draws."""

from __future__ import annotations

import base64
import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpmix.app.carried import matched
from dpmix.app.workspace import Workspace
from dpmix.config.schema import Config
from dpmix.errors import ConfigError
from dpmix.inputs.simulate import simulation
from dpmix.runs.mcmc import run_mcmc
from dpmix.system.console import quoted

RUN, MADE, DRAWS = "my run.h5", 3, 8


@pytest.fixture
def going_on(tmp_path: Path) -> Config:
    """The config of a run in a folder inside, which has been stopped after some draws."""
    (tmp_path / "inner").mkdir()
    simulation.cytometry_like(2_500, seed=1).write(tmp_path / "inner" / "blood.fcs")
    config = Config.model_validate(
        {
            "data": {"files": [str(tmp_path / "inner" / "blood.fcs")], "channels": ["CD3", "CD4", "CD19"]},
            "model": {"components": 16, "coarseness": None},
            "mcmc": {"chains": 2, "burn_in": 40, "draws": DRAWS, "until": None},
            "engine": {"backend": "cpu", "threads": 1},
            "output": {"path": str(tmp_path / "inner" / RUN)},
            "seed": 5,
        }
    )
    looks = count(1)
    assert not run_mcmc(config, should_stop=lambda: next(looks) > 40 + MADE).completed
    return config


def opened(workspace: Workspace) -> dict[str, Any]:
    return workspace.open(f"inner/{RUN}")


def named(workspace: Workspace, view: dict[str, Any], p: int, action: dict[str, Any]) -> dict[str, Any]:
    given = {"population": view["populations"][p]["modes"], **action}
    return workspace.act(f"inner/{RUN}", view["revision"], given)


def test_names_and_colours_are_carried_over(going_on: Config, tmp_path: Path) -> None:
    """From the populations of some draws to the populations of all, by events; the old file is set aside."""
    workspace = Workspace(tmp_path)
    first = opened(workspace)
    assert (first["complete"], first["planned"], first["notes"]) == (False, DRAWS, ())
    assert 1 <= first["made"] < DRAWS
    view = named(workspace, first["view"], 0, {"do": "name", "name": "largest"})
    view = named(workspace, view, 1, {"do": "colour", "colour": 40})
    run, decisions = (quoted(str(Path("inner", name))) for name in (RUN, "my run.decisions.json"))
    assert view["command"] == f"dpmix gate {run} --output gated --decisions {decisions}"
    assert run_mcmc(going_on, resume=True).completed
    with pytest.raises(ConfigError, match=rf"the populations shown are from {first['made']} draws"):
        workspace.export(f"inner/{RUN}", "gated", ["parquet"])
    last = opened(workspace)
    assert (last["complete"], last["made"]) == (True, DRAWS)
    aside, carried = last["notes"][:2]
    assert aside.endswith("are about an earlier state of this run; they are kept as my run.decisions.1.json.")
    assert carried.startswith("Names and colours are kept by the populations with the same events")
    (p,) = [p for p, one in enumerate(last["view"]["populations"]) if one["name"] == "largest"]
    events = [np.frombuffer(bytes_of(view), "<u2") for view in (first["view"], last["view"])]
    same = (events[0] == 0) & (events[1] == p)
    assert same.sum() > 0.5 * ((events[0] == 0) | (events[1] == p)).sum()
    colours = [one["colour"] for one in last["view"]["populations"]]
    assert view["populations"][1]["colour"] in colours
    assert [action["do"] for action in stored(tmp_path)["actions"]] == ["name", "colour"]
    assert opened(workspace)["notes"] == last["notes"]  # until the page is closed


def test_after_a_restart_the_names_are_listed(going_on: Config, tmp_path: Path) -> None:
    """The earlier populations are gone. The run opens; it was refused until the file was removed by hand."""
    workspace = Workspace(tmp_path)
    named(workspace, opened(workspace)["view"], 0, {"do": "name", "name": "largest"})
    assert run_mcmc(going_on, resume=True).completed
    notes = opened(Workspace(tmp_path))["notes"]
    assert notes[1:] == ("Names to give again: largest.",)
    assert not (tmp_path / "inner" / "my run.decisions.json").exists()
    assert (tmp_path / "inner" / "my run.decisions.1.json").exists()


def test_each_population_has_at_most_one_successor() -> None:
    before = np.repeat([0, 1, 2], [50, 30, 20])
    after = np.repeat([1, 0, 2, 3], [45, 35, 10, 10])
    np.testing.assert_array_equal(matched(before, after, 3), [1, 0, -1])
    np.testing.assert_array_equal(matched(before, np.zeros(100, int), 3), [-1, -1, -1])


def bytes_of(view: dict[str, Any]) -> bytes:
    return base64.b64decode(view["of_events"])


def stored(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "inner" / "my run.decisions.json").read_text("utf-8"))
    return found
