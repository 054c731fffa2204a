"""Runs with a resolution: what they record, and that they record it for events that are clouds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats as st
from scipy.special import logsumexp
from whole_runs import StopAfter, a_config, assert_identical, write_events

from dpmix import open_run
from dpmix.model.mixture import Array
from dpmix.runs.bem import run_bem
from dpmix.runs.describe import describe_run
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.reader import Run

SD = 0.8


def data(folder: Path, resolution: object) -> dict[str, object]:
    return {"files": [str(folder / "events.npy")], "resolution": resolution}


def log_likelihood_of_clouds(run: Run, values: Array, resolution: float) -> Array:
    """Return the log likelihood of each draw of chain 0, by SciPy, on the scale of the sampler."""
    sds = values.std(axis=0)
    events, variances = (values - values.mean(axis=0)) / sds, np.square(resolution / sds)
    found = []
    for weights, means, covariances in zip(run.weights[0], run.means[0], run.covariances[0], strict=True):
        logs = [
            st.multivariate_normal(m, c).logpdf(events) - 0.5 * np.linalg.inv(c).diagonal() @ variances
            for m, c in zip(means, covariances, strict=True)
        ]
        with np.errstate(divide="ignore"):  # Bayesian EM empties components
            found.append(logsumexp(np.log(weights)[:, None] + logs, axis=0).sum())
    return np.array(found)


@pytest.mark.parametrize("kind", ["mcmc", "bem"])
def test_the_log_likelihood_of_a_run_is_that_of_clouds(tmp_path: Path, kind: str) -> None:
    write_events(tmp_path / "events.npy", 400)
    lengths = {"burn_in": 12, "draws": 5, "split_merge": 3}
    bem = {"starts": 2, "max_steps": 20}
    config = a_config(tmp_path, "run.h5", data=data(tmp_path, SD), mcmc=lengths, bem=bem)
    run = open_run((run_mcmc if kind == "mcmc" else run_bem)(config).path)
    values = np.load(tmp_path / "events.npy").astype(float)
    found = run.sample_stats["log_likelihood"][0]
    np.testing.assert_allclose(found, log_likelihood_of_clouds(run, values, SD), rtol=1e-5)
    assert np.abs(found - log_likelihood_of_clouds(run, values, 0.0)).min() > 10.0
    assert run.scaling["resolution"] == [SD] * 3
    assert f"{SD}: ch0, ch1, ch2" in "\n".join(describe_run(run))


def test_zero_is_a_run_without_a_resolution(tmp_path: Path) -> None:
    """The events of a plain table have none, so that auto and 0 are the same, bit for bit."""
    write_events(tmp_path / "events.npy", 300)
    paths = []
    for name, value in (("auto", "auto"), ("zero", 0.0)):
        config = a_config(tmp_path, f"{name}.h5", data=data(tmp_path, value), mcmc={"burn_in": 9, "draws": 6})
        paths.append(run_mcmc(config).path)
    assert_identical(*paths)
    assert "resolution (" not in "\n".join(describe_run(open_run(paths[0])))


def test_a_resumed_run_has_the_draws_of_an_uninterrupted_one(tmp_path: Path) -> None:
    write_events(tmp_path / "events.npy", 300)
    mcmc = {"burn_in": 9, "draws": 8, "split_merge": 4}
    whole, parts = (
        a_config(tmp_path, f"{name}.h5", data=data(tmp_path, {"ch0": 0.5}), mcmc=mcmc)
        for name in ("whole", "parts")
    )
    run_mcmc(whole)
    assert not run_mcmc(parts, should_stop=StopAfter(11)).completed
    run_mcmc(parts, resume=True)
    assert_identical(tmp_path / "whole.h5", tmp_path / "parts.h5")


@pytest.mark.parametrize("kind", ["mcmc", "bem"])
def test_samples_that_differ_have_components_as_wide_as_the_resolution(tmp_path: Path, kind: str) -> None:
    """Two samples of one narrow population."""
    rng = np.random.default_rng(6)
    for s in range(2):
        values = np.concatenate([rng.normal(size=(200, 2)), 0.01 * rng.normal(size=(300, 2)) + 4.0])
        np.save(tmp_path / f"s{s}.npy", values.astype(np.float32))
    files = {"files": [str(tmp_path / f"s{s}.npy") for s in range(2)], "standardize": False}
    widths = {}
    for resolution in (0.5, 0.0):
        config = a_config(
            tmp_path,
            f"{resolution}.h5",
            data=files | {"resolution": resolution},
            model={"components": 6, "samples": "hierarchical", "shifts": "sample"},
            mcmc={"burn_in": 60, "draws": 5, "split_merge": 0},
            bem={"starts": 1, "max_steps": 60},
        )
        run = open_run((run_mcmc if kind == "mcmc" else run_bem)(config).path)
        near = np.square(run.means[0, -1] - 4.0).sum(axis=1) < 0.3
        heaviest = np.argmax(np.where(near, run.weights[0, -1], 0.0))
        widths[resolution] = np.sqrt(np.diag(run.covariances[0, -1, heaviest]))
    np.testing.assert_allclose(widths[0.5], 0.5, rtol=0.25)
    assert (widths[0.0] < 0.2).all()
