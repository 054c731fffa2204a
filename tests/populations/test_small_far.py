"""Small populations far from a large one, which a histogram shows: the default config finds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpmix.config.schema import Config
from dpmix.populations.draws.find import DRAWS
from dpmix.populations.draws.task import prepare
from dpmix.runs.mcmc import run_mcmc


@pytest.mark.slow
@pytest.mark.parametrize("small", [25, 0])
def test_a_small_population_six_standard_deviations_away_is_found(tmp_path: Path, small: int) -> None:
    """Four channels; the small one has standard deviation 0.5."""
    random = np.random.default_rng(0)
    events = random.normal(size=(5_000, 4))
    away = 0.5 * random.normal(size=(small, 4)) + [6.0, 0.0, 0.0, 0.0]
    np.save(tmp_path / "events.npy", np.concatenate([events, away]).astype(np.float32))
    path = str(tmp_path / "run.h5")
    data = {"files": [str(tmp_path / "events.npy")]}
    run_mcmc(Config.model_validate({"data": data, "output": {"path": path}}))
    found = prepare(Path(path), output=tmp_path / "gated").find_populations(DRAWS, None, None)
    assert found.n_populations == (2 if small else 1)
