"""A folder with a run, for the tests of the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import quick_jobs

from dpmix.app import jobs
from dpmix.config.schema import Config
from dpmix.inputs.simulate import simulation
from dpmix.runs.mcmc import run_mcmc

MARKERS = ["CD3", "CD4", "CD8", "CD19", "CD14"]


@pytest.fixture(scope="session", autouse=True)
def quicker_jobs() -> Iterator[None]:
    """The commands of a page's queue draw neither the map nor the figures of `dpmix gate`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jobs, "PROGRAM", quick_jobs.COMMAND)
        yield


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with blood.fcs, of 2,500 events, and run.h5, 16 draws from two chains."""
    folder = tmp_path_factory.mktemp("study")
    simulation.cytometry_like(2_500, seed=1).write(folder / "blood.fcs")
    settings = {
        "data": {"files": [str(folder / "blood.fcs")], "channels": MARKERS},
        "model": {"components": 24, "coarseness": None},
        "mcmc": {"chains": 2, "burn_in": 60, "draws": 8},
        "engine": {"backend": "cpu", "threads": 1},
        "output": {"path": str(folder / "run.h5")},
        "seed": 5,
    }
    assert run_mcmc(Config.model_validate(settings)).completed
    return folder
