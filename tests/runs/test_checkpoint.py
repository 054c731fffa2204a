"""The checkpoint file: the names of its arrays, which every version reads and writes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpmix.model import gibbs
from dpmix.model.prior import Prior
from dpmix.model.streams import Stream
from dpmix.runs import checkpoint

PRIOR = Prior(np.array([0.5, -0.5]), 2.0, 3.0, np.eye(2), 2.0, 1.0)


def test_the_file_of_an_earlier_version_loads_and_is_written_again(tmp_path: Path) -> None:
    states = [gibbs.draw_prior(PRIOR, 4, None, Stream(1, chain, 7)) for chain in (0, 1)]
    arrays = {
        "run_id": np.array("a run"),
        "iteration": np.array(7),
        "state.iteration": np.array([7, 7]),
        "state.alpha": np.array([s.alpha for s in states]),
        "state.log_sticks": np.stack([s.log_sticks for s in states]),
        "state.log_rests": np.stack([s.log1m_sticks for s in states]),
        "state.means": np.stack([s.means for s in states]),
        "state.covariances": np.stack([s.covariances for s in states]),
        "state.whiteners": np.stack([s.whiteners for s in states]),
        "given.m": np.stack([s.hyperparameters.m for s in states]),
        "given.gamma": np.array([s.hyperparameters.gamma for s in states]),
        "given.nu": np.array([s.hyperparameters.nu for s in states]),
        "given.phi": np.stack([s.hyperparameters.phi for s in states]),
        "extra.value": np.array(3.5),
    }
    np.savez(tmp_path / "earlier.npz", **arrays)
    loaded = checkpoint.load(tmp_path / "earlier.npz", "a run")
    assert loaded is not None
    assert loaded.iteration == 7
    assert loaded.extra["value"] == 3.5
    for state, expected in zip(loaded.states, states, strict=True):
        np.testing.assert_equal(vars(state.hyperparameters), vars(expected.hyperparameters))
        np.testing.assert_equal(
            vars(state) | {"hyperparameters": None}, vars(expected) | {"hyperparameters": None}
        )
    checkpoint.save(tmp_path / "now.npz", "a run", *loaded)
    with np.load(tmp_path / "now.npz") as file:
        np.testing.assert_equal(dict(file), arrays)
