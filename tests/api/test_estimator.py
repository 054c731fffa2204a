"""The estimator: scikit-learn's conventions, the draws of the command line, and what it predicts."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import pickle
import signal
import subprocess
import sys
import unittest
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas
import pytest
from platforms import FORKS, USES_LINUX
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator
from whole_runs import assert_identical, contents

import dpmix
from dpmix.api.parameters import CONFIG_KEYS, EstimatorParameters, make_config, threads_of
from dpmix.cli import main
from dpmix.config.load import parse_config
from dpmix.config.write import to_yaml
from dpmix.populations.draws.task import prepare
from dpmix.runs.describe import describe_run

SMALL: dict[str, Any] = {
    "components": 8, "chains": 2, "burn_in": 10, "draws": 6, "starts": 2, "max_steps": 20,
    "backend": "cpu", "n_jobs": 1,
}  # fmt: skip
METHODS = ("mcmc", "bem")


def a_table(n: int = 600, seed: int = 0) -> np.ndarray[Any, Any]:
    """Three groups of events in three channels, some of them piled up at 0."""
    random = np.random.default_rng(seed)
    centres = np.array([[0.5, 0.0, 0.0], [7.0, 0.0, 3.0], [0.5, 9.0, 9.0]])
    table = centres[random.choice(3, n, p=[0.5, 0.3, 0.2])] + random.normal(size=(n, 3))
    table[:, 0] = np.maximum(table[:, 0], 0.0)
    return table


@pytest.fixture(scope="module")
def fitted() -> dpmix.DPMixture:
    return dpmix.DPMixture(**SMALL).fit(a_table())


# scikit-learn's own checks


@pytest.mark.slow
def test_the_checks_of_scikit_learn_pass() -> None:
    """All of them. scikit-learn itself skips array API input: arrays of other libraries are not claimed."""
    estimator = dpmix.DPMixture(**SMALL | {"chains": 1})
    names = []
    for checked, check in estimator_checks_generator(estimator):
        names.append(check.func.__name__ if hasattr(check, "func") else check.__name__)
        try:
            check(checked)
        except unittest.SkipTest:
            assert names[-1] == "check_array_api_input"
    assert len(names) > 35


def test_an_estimator_works_in_a_pipeline(fitted: dpmix.DPMixture) -> None:
    pipeline = make_pipeline(StandardScaler(), dpmix.DPMixture(**SMALL))
    table = a_table()
    assert (pipeline.fit(table).predict(table) == fitted.predict(table)).mean() > 0.99


def test_parameters_have_the_defaults_of_the_config() -> None:
    parameters = inspect.signature(dpmix.DPMixture).parameters
    defaults = parse_config("data: {files: [a.npy]}", "test").model_dump()
    for name, key in CONFIG_KEYS.items():
        section, last = key.split(".")
        ours, theirs = parameters[name].default, defaults[section][last]
        if name == "until":
            assert (
                ours,
                make_config({"until": ours}, ["a.npy"], Path("run.h5")).mcmc.until.model_dump(),
            ) == (
                "default",
                theirs,
            )
            continue
        assert ours is None or (list(ours) if isinstance(ours, tuple) else ours) == theirs, name
    assert parameters["random_state"].default == defaults["seed"]
    others = {"n_populations", "level", "n_draws", "folder", "warm_start", "verbose"}
    assert {*parameters} == {*EstimatorParameters.__annotations__} | others


# The draws


@pytest.mark.parametrize(("method", "named"), [("mcmc", True), ("bem", False)])
def test_draws_are_those_of_the_command_line(method: Any, named: bool, tmp_path: Path) -> None:
    """Events with an atom. Neither the name of the file nor its format changes the noise of its events."""
    table = a_table()
    X = pandas.DataFrame(table, columns=["CD3", "CD4", "CD8"]) if named else table
    estimator = dpmix.DPMixture(**SMALL, method=method, random_state=7).fit(X)
    if named:
        X.to_parquet(tmp_path / "cells")
    else:
        np.save((tmp_path / "cells").open("wb"), table)
    config = estimator.config_
    own = config.data.model_copy(update={"files": ["cells"]})
    (tmp_path / "run.yaml").write_text(to_yaml(config.model_copy(update={"data": own})))
    path = tmp_path / "cli.h5"
    main([method, str(tmp_path / "run.yaml"), "--output", str(path), "--quiet"], standalone_mode=False)
    theirs, ours = contents(path), contents(estimator.run_.path)
    assert {name for name in ours if ours[name] != theirs[name]} == {"constant_data/sample"}
    assert estimator.run_.channels == (("CD3", "CD4", "CD8") if named else ("ch0", "ch1", "ch2"))


def test_a_folder_keeps_the_run_for_the_command_line(tmp_path: Path) -> None:
    estimator = dpmix.DPMixture(**SMALL, folder=tmp_path / "kept").fit(a_table())
    assert {path.name for path in (tmp_path / "kept").iterdir()} >= {"run.h5", "run.yaml", "events.npy"}
    path = tmp_path / "again.h5"
    arguments = ["mcmc", str(tmp_path / "kept" / "run.yaml"), "--output", str(path), "--quiet"]
    main(arguments, standalone_mode=False)
    assert_identical(path, estimator.run_.path)
    assert prepare(estimator.run_.path).events.values.shape == (600, 3)  # the events that dpmix gate reads
    with pytest.raises(dpmix.ConfigError, match="exists already and is not of this estimator"):
        clone(estimator).fit(a_table())
    before = path.read_bytes()
    estimator.set_params(random_state=2).fit(a_table())  # its own run may be replaced
    assert estimator.run_.path.read_bytes() != before


@pytest.mark.parametrize("name", ["run.yaml", "events.npy", "run.h5"])
def test_a_folder_keeps_its_other_files(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("not of an estimator")
    with pytest.raises(dpmix.ConfigError, match=f"{name} exists already and is not of this estimator"):
        dpmix.DPMixture(**SMALL, folder=tmp_path).fit(a_table())
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "not of an estimator"


def test_a_folder_can_be_used_after_a_failure(tmp_path: Path) -> None:
    table = a_table()
    with pytest.raises(dpmix.DataError, match="constant in all 600 events: ch1"):
        dpmix.DPMixture(**SMALL, folder=tmp_path).fit(table * [1.0, 0.0, 1.0])
    assert not [*tmp_path.iterdir()]
    assert dpmix.DPMixture(**SMALL, folder=tmp_path).fit(table).run_.complete


@FORKS
def test_a_temporary_folder_goes_with_the_estimator(tmp_path: Path) -> None:
    estimator = dpmix.DPMixture(**SMALL).fit(a_table())
    folder = estimator.run_.path.parent
    assert (folder / "run.h5").exists()
    if (child := os.fork()) == 0:  # a fork leaves it alone
        del estimator
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (folder / "run.h5").exists()
    run = estimator.run_
    del estimator
    gc.collect()
    assert not folder.exists()
    assert run.weights.shape == (2, 6, 8)  # an open run stays readable


@pytest.mark.parametrize("duplicate", [lambda e: pickle.loads(pickle.dumps(e)), copy.deepcopy])
def test_a_pickled_estimator_takes_its_draws_along(fitted: dpmix.DPMixture, duplicate: Any) -> None:
    other = duplicate(fitted)
    assert other.run_.path != fitted.run_.path
    assert_identical(fitted.run_.path, other.run_.path)
    np.testing.assert_array_equal(other.predict_proba(a_table()), fitted.predict_proba(a_table()))
    assert pickle.loads(pickle.dumps(dpmix.DPMixture(components=3))).components == 3


def test_the_seed_may_come_from_a_generator() -> None:
    one, two = (
        dpmix.DPMixture(**SMALL, random_state=np.random.RandomState(3)).fit(a_table()) for _ in range(2)
    )
    assert_identical(one.run_.path, two.run_.path)
    assert one.config_.seed == two.config_.seed != 1
    drawn = dpmix.DPMixture(**SMALL, random_state=None).fit(a_table())
    assert drawn.config_.seed not in (1, one.config_.seed)


@USES_LINUX
def test_jobs_are_threads() -> None:
    cores = len(os.sched_getaffinity(0))
    assert [threads_of(n) for n in (None, -1, 3, -2, -1000)] == [None, None, 3, max(cores - 1, 1), 1]


# Ctrl-C and warm starts


@pytest.mark.slow
def test_ctrl_c_keeps_the_draws_and_a_warm_start_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    estimator = dpmix.DPMixture(**SMALL, warm_start=True, random_state=None)
    interrupted = monkeypatch.context()
    with interrupted as patch:
        patch.setattr("dpmix.api.sampling.Stop", _StopAtSweep(15))
        with pytest.raises(KeyboardInterrupt, match="resume=True continues"):
            estimator.fit(a_table())
    assert 0 < estimator.run_.committed < 6
    assert estimator.predict(a_table()).shape == (600,)
    with pytest.raises(dpmix.DataError, match="the data have changed"):
        estimator.fit(a_table(seed=1))
    estimator.fit(a_table())
    assert estimator.run_.complete
    whole = dpmix.DPMixture(**SMALL, random_state=estimator.config_.seed).fit(a_table())
    assert_identical(whole.run_.path, estimator.run_.path)
    more = estimator.set_params(draws=9).fit(a_table()).run_
    assert more.draws == 9
    np.testing.assert_array_equal(more.weights[:, :6], whole.run_.weights)


class _StopAtSweep:
    """Instead of `Stop`: Ctrl-C comes in a sweep."""

    def __init__(self, sweep: int) -> None:
        self._sweep, self._asked = sweep, 0

    def __call__(self, *_: object) -> Any:
        return self if _ else self._count()

    def _count(self) -> bool:
        self._asked += 1
        return self._asked >= self._sweep

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_a_signal_in_fit_keeps_the_draws(tmp_path: Path) -> None:
    """The real one, in a process of its own."""
    script = f"""
import os, signal, threading
import numpy as np, dpmix
from dpmix.runs import writer
drawn = []
write = writer.RunWriter.write_draw
def interrupt(self, draw, *rest):
    write(self, draw, *rest)
    if draw == 3:
        os.kill(os.getpid(), signal.SIGINT)
writer.RunWriter.write_draw = interrupt
e = dpmix.DPMixture(**{SMALL | {"draws": 50}})
X = np.random.default_rng(0).normal(size=(500, 3))
try:
    e.fit(X)
except KeyboardInterrupt:
    print(e.run_.complete, 4 <= e.run_.committed < 10, e.predict(X).shape)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.stdout == "False True (500,)\n"


# Predictions


def test_predictions_are_those_of_the_command_line(fitted: dpmix.DPMixture, tmp_path: Path) -> None:
    """Log densities to the bit; populations and probabilities but for the sample's own proportions."""
    table = a_table(800, seed=2) + 0.25  # no event at the atom
    np.save(tmp_path / "new.npy", table)
    gating = dpmix.predict(fitted.run_.path, [tmp_path / "new.npy"], tmp_path / "out", n_draws=100)
    events = pandas.read_parquet(tmp_path / "out" / "events.parquet")
    assert fitted.n_populations_ == gating.n_populations
    sds = fitted.run_.constants["channel_sds"]
    expected = events["log_density"].to_numpy() - np.log(sds).sum()
    np.testing.assert_array_equal(fitted.score_samples(table), expected)
    assert fitted.score(table) == expected.mean()
    memberships = fitted.predict_proba(table)
    theirs = events[[f"p{k}" for k in range(1, gating.n_populations + 1)]].to_numpy()
    assert np.abs(memberships - theirs).mean() < 0.01
    certain = memberships.max(axis=1) > 0.9
    np.testing.assert_array_equal(fitted.predict(table)[certain], events["population"][certain] - 1)
    np.testing.assert_allclose(memberships.sum(axis=1), 1.0, rtol=1e-12)


def test_score_samples_is_the_density_in_the_units_of_the_table(fitted: dpmix.DPMixture) -> None:
    """Against SciPy, from all draws on the transformed scale; float32 densities."""
    table = a_table(50, seed=3)
    run = dpmix.open_run(fitted.run_.path, transformed=True)
    densities = [
        run.weights[c, d, k]
        * multivariate_normal(run.means[c, d, k], run.covariances[c, d, k]).pdf(np.float32(table))
        for c in range(2)
        for d in range(6)
        for k in range(8)
    ]
    np.testing.assert_allclose(
        fitted.score_samples(table), np.log(np.sum(densities, axis=0) / 12), rtol=1e-4, atol=1e-4
    )


def test_samples_are_of_the_populations_and_like_the_data(fitted: dpmix.DPMixture) -> None:
    events, populations = fitted.sample(4000)
    assert events.shape == (4000, 3)
    table = a_table()
    # The mean of 4,000 draws of the predictive, about the mean of the 600 events.
    error = table.std(axis=0) * np.sqrt(1 / 600 + 1 / 4000)
    assert (np.abs(events.mean(axis=0) - table.mean(axis=0)) < 5 * error).all()
    assert (fitted.predict(events) == populations).mean() > 0.97
    np.testing.assert_array_equal(events, fitted.sample(4000)[0])
    with pytest.raises(ValueError, match="n_samples is 0"):
        fitted.sample(0)


def test_fit_predict_and_another_cut(fitted: dpmix.DPMixture) -> None:
    table = a_table()
    np.testing.assert_array_equal(dpmix.DPMixture(**SMALL).fit_predict(table), fitted.predict(table))
    other = copy.deepcopy(fitted).set_params(n_populations=2)
    assert other.n_populations_ == 2
    assert set(other.predict(table)) == {0, 1}
    assert other.set_params(n_populations=1).predict_proba(table).shape == (600, 1)


# Tables


def test_columns_are_chosen_by_name() -> None:
    frame = pandas.DataFrame(np.random.default_rng(5).normal(size=(600, 3)), columns=["CD3", "CD4", "Time"])
    markers = dpmix.DPMixture(**SMALL).fit(frame)
    assert markers.run_.channels == ("CD3", "CD4")
    assert markers.feature_names_in_.tolist() == ["CD3", "CD4", "Time"]
    assert markers.sample(3)[0].shape == (3, 2)
    plain = dpmix.DPMixture(**SMALL).fit(frame.to_numpy()[:, :2])
    np.testing.assert_array_equal(plain.score_samples(frame.to_numpy()[:, :2]), markers.score_samples(frame))
    chosen = dpmix.DPMixture(**SMALL, channels=["Time", "CD3"]).fit(frame)
    assert chosen.run_.channels == ("Time", "CD3")
    assert chosen.score_samples(frame.iloc[:5]).shape == (5,)


def test_anndata_is_a_table_with_names(fitted: dpmix.DPMixture) -> None:
    adata = anndata.AnnData(a_table().astype(np.float32), var=pandas.DataFrame(index=["CD3", "CD4", "CD8"]))
    estimator = dpmix.DPMixture(**SMALL).fit(adata)
    assert estimator.feature_names_in_.tolist() == ["CD3", "CD4", "CD8"]
    np.testing.assert_array_equal(estimator.predict(adata), fitted.predict(a_table()))


def test_transforms_are_those_of_the_config() -> None:
    table = a_table()[:, 1:]  # no atoms: their noise depends on the values before the transform
    raw = 150 * np.sinh(table / 2)
    transforms = {"default": {"method": "arcsinh", "cofactor": 150.0}}
    estimator = dpmix.DPMixture(**SMALL, transforms=transforms, standardize=False).fit(raw)
    assert np.abs(estimator.run_.means[0, -1]).max() < 10
    assert np.abs(estimator.sample(100)[0]).max() > 1000
    plain = dpmix.DPMixture(**SMALL, standardize=False).fit(np.arcsinh(np.float32(raw) / 150.0))
    np.testing.assert_allclose(estimator.score_samples(raw), plain.score_samples(table / 2), atol=0.05)
    logarithm = dpmix.DPMixture(**SMALL, transforms={"default": {"method": "log"}}).fit(raw**2 + 1.0)
    with pytest.raises(dpmix.DataError, match="ch1: not finite after the transform"):
        logarithm.predict([[1.0, -1.0]])


# What is wrong


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"method": "em"}, ValueError, 'method is \'em\'; it must be "mcmc" or "bem"'),
        (
            {"components": 0},
            dpmix.ConfigError,
            "config: model.components is 0; it must be an",
        ),
        (
            {"prior": {"nux": 1.0}},
            dpmix.ConfigError,
            "config: model.prior.nux is not a key",
        ),
        ({"settings": {"mcmc.label_swap": True}}, dpmix.ConfigError, "did you mean mcmc.label_swaps"),
        ({"settings": {"mcmc": {"label_swaps": False}}}, dpmix.ConfigError, "others as mcmc.KEY"),
        ({"settings": {"model": {"samples": "pooled"}}}, dpmix.ConfigError, "others as model.KEY"),
        ({"settings": ["mcmc.label_swaps=false"]}, dpmix.ConfigError, "; it must be a mapping, as {"),
        ({"n_jobs": "all"}, dpmix.ConfigError, 'engine.threads is "all"; it must be an integer from 1'),
        ({"settings": {"seed": 3}}, dpmix.ConfigError, "settings: seed is set by a parameter"),
        ({"settings": {"model.components": 3}}, dpmix.ConfigError, "model.components is set by a parameter"),
        (
            {"until": {"rhat": 1.1}, "settings": {"mcmc.until.ess": 3}},
            dpmix.ConfigError,
            "settings: mcmc.until.ess is set by a parameter",
        ),
        (
            {"coarseness": "auto "},
            dpmix.ConfigError,
            '"auto"; it must be a number of events from 1 to 1e12, auto, or',
        ),
        (
            {"until": "never"},
            dpmix.ConfigError,
            'mcmc.until is "never"; it must be null, or a mapping with rhat',
        ),
        ({"n_draws": 0}, dpmix.ConfigError, "n_draws is 0; it must be a whole number of at least 1"),
        ({"level": -1.0}, dpmix.ConfigError, "level is -1.0; it must be a number"),
        ({"n_populations": 0}, dpmix.ConfigError, "n_populations is 0"),
        ({"level": 1.0, "n_populations": 2}, dpmix.ConfigError, "give one of them"),
        (
            {"random_state": np.random.default_rng(1)},
            ValueError,
            "it must be an integer, a RandomState or None",
        ),
    ],
)
def test_problems_name_the_key(parameters: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as found:
        dpmix.DPMixture(**SMALL | parameters).fit(a_table())
    assert message in str(found.value)


def test_masked_values_are_not_used(fitted: dpmix.DPMixture) -> None:
    table = np.ma.masked_greater(a_table(), 8.0)
    for use in (dpmix.DPMixture(**SMALL).fit, fitted.predict):
        with pytest.raises(ValueError, match="X has masked values; remove these events, or fill the values"):
            use(table)
    unmasked = np.ma.masked_array(a_table(), mask=False)
    np.testing.assert_array_equal(fitted.predict(unmasked), fitted.predict(a_table()))


@pytest.mark.parametrize("number", [0, 1.5, "3"])
def test_a_number_of_samples_is_whole(fitted: dpmix.DPMixture, number: Any) -> None:
    with pytest.raises(ValueError, match=r"n_samples is .*; it must be a whole number of at least 1"):
        fitted.sample(number)


def test_a_wrong_cut_after_the_fit_is_an_error() -> None:
    estimator = dpmix.DPMixture(**SMALL).fit(a_table())
    with pytest.raises(dpmix.ConfigError, match="n_populations is -2"):
        estimator.set_params(n_populations=-2).predict(a_table())


@pytest.mark.parametrize("coarseness", [None, "auto", 300, 300.0])
@pytest.mark.parametrize("until", [None, "default", {"rhat": 1.2}])
def test_coarseness_and_until_are_those_of_the_config(coarseness: Any, until: Any) -> None:
    """None is null in the config, not its default."""
    own = {"settings": {"mcmc.until.rhat": 1.1}} if until == "default" else {}
    config = make_config({"coarseness": coarseness, "until": until, **own}, ["a.npy"], Path("run.h5"))
    assert config.model.coarseness == coarseness
    rhat = {"default": 1.1, None: None}.get(until if until is None else str(until), 1.2)
    assert (None if config.mcmc.until is None else config.mcmc.until.rhat) == rhat


def test_an_estimator_without_until_makes_all_sweeps() -> None:
    estimator = dpmix.DPMixture(**SMALL, coarseness=50, until=None).fit(a_table())
    assert not estimator.run_.is_monitored
    assert estimator.run_.committed == SMALL["draws"]
    assert "the events count as 46" in "\n".join(describe_run(estimator.run_))


def test_settings_are_other_keys_of_the_config() -> None:
    settings = {"mcmc.label_swaps": False, "data.max_events": 300}
    estimator = dpmix.DPMixture(**SMALL, settings=settings).fit(a_table())
    assert estimator.config_.mcmc.label_swaps is False
    assert estimator.run_.attributes["n_events"] == 300


def test_progress_is_shown_where_it_is_asked_for(capfd: pytest.CaptureFixture[str]) -> None:
    dpmix.DPMixture(**SMALL).fit(a_table())
    assert capfd.readouterr().err == ""
    dpmix.DPMixture(**SMALL, verbose=1).fit(a_table())
    assert "sweep 16 of at most 16" in capfd.readouterr().err


def test_a_missing_library_is_named() -> None:
    script = (
        "import sys; sys.modules['sklearn'] = sys.modules['sklearn.base'] = None\n"
        "import dpmix\n"
        "try:\n    dpmix.DPMixture\nexcept ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("dpmix.DPMixture needs scikit-learn (")
    assert done.stdout.endswith("pip install 'dpmix-cytometry[sklearn]'\n")
