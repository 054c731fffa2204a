"""docs/coming-from.md and docs/migrating.md: blocks run, names are there, and priors map as the pages say."""

from __future__ import annotations

import contextlib
import inspect
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import click
import numpy as np
import pytest
from scipy import stats as st
from sklearn.mixture import BayesianGaussianMixture
from test_how_to import BASH, dpmix, lines_of, printed_by, with_options

from dpmix.cli import main
from dpmix.config.load import parse_config
from dpmix.config.problems import keys
from dpmix.config.schema import schema
from dpmix.model.mixture import Hyperparameters, State, Stats, whiteners_of
from dpmix.model.normal_wishart import posterior
from dpmix.model.prior import Prior, log_prior
from dpmix.runs.session import make_prior

DOCS = Path(__file__).resolve().parents[2] / "docs"
COMING_FROM = (DOCS / "coming-from.md").read_text(encoding="utf-8")
MIGRATING = (DOCS / "migrating.md").read_text(encoding="utf-8")
PAGES = pytest.mark.parametrize("page", [COMING_FROM, MIGRATING], ids=["coming-from", "migrating"])
PEERS = ("flowsom", "phenograph")

# What makes it quick: appended to the commands that begin so.
SMALLER = {
    "dpmix simulate": "--events 2000",
    "dpmix mcmc": "--set mcmc.burn_in=10 --set mcmc.draws=5 --set model.components=16",
    "dpmix gate": "--draws 4 --no-map",
}


def names_of(head: str) -> set[str]:
    """Names in the first column of a table of docs/coming-from.md."""
    rows = COMING_FROM.partition(f"{head}\n")[2].partition("\n\n")[0].splitlines()[1:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def run_lines(commands: str) -> None:
    """Run commands; dpmix runs in this process, as for the pages in docs/how-to."""
    for line in lines_of(commands):
        arguments = shlex.split(line, comments=True)
        if arguments[:1] == ["dpmix"]:
            dpmix(arguments[1:], {0})
        else:
            printed_by([*BASH, line])


@pytest.mark.slow
@PAGES
def test_every_block_works(page: str, tmp_path: Path) -> None:
    variables: dict[str, object] = {}
    left_out = []
    for language, text in re.findall(r"^```(sh|python)\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL):
        if language == "sh":
            with contextlib.chdir(tmp_path):
                run_lines(with_options(text, SMALLER))
            continue
        imported = re.findall(r"^(?:import|from) (\w+)", text, flags=re.MULTILINE)
        if absent := [peer for peer in PEERS if peer in imported and find_spec(peer) is None]:
            left_out += absent
            continue
        with contextlib.chdir(tmp_path):
            exec(compile(text, "the page", "exec"), variables)
    if left_out:
        pytest.skip(f"all other blocks work; not here (pip install '.[peers]'): {', '.join(left_out)}")


@PAGES
def test_keys_and_options_are_there(page: str) -> None:
    named = set(re.findall(r"`((?:data|model|mcmc|bem|engine|output)\.[a-z_.]+)", page))
    assert len(named) > 10
    paths = {".".join(path[:length]) for path in keys(schema()) for length in range(1, len(path) + 1)}
    assert named - paths == set()
    options = {
        name
        for command in main.commands.values()
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for name in parameter.opts
    }
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page)) - options == set()


def test_names_of_scikit_learn_are_there() -> None:
    names = names_of("| `BayesianGaussianMixture` | dpmix |")
    fitted = BayesianGaussianMixture().fit(np.random.default_rng(1).normal(size=(20, 2)))
    methods = {"predict", "predict_proba", "score_samples"}
    assert len(names) > 15
    assert names - {*inspect.signature(BayesianGaussianMixture).parameters, *vars(fitted), *methods} == set()


def test_names_of_phenograph_are_there() -> None:
    phenograph = pytest.importorskip("phenograph", reason="pip install '.[peers]'")
    returned = {"communities", "graph", "Q"}
    names = names_of("| `phenograph.cluster(...)` | dpmix |")
    assert len(names) > 10
    assert names - {*inspect.signature(phenograph.cluster).parameters, *returned} == set()


def test_the_prior_of_scikit_learn_is_ours_as_the_page_maps_it() -> None:
    """The conditional of one component that holds every event: nothing variational is left in it."""
    rng = np.random.default_rng(3)
    dim, gamma, nu, phi = 3, 5.0, 2.0, 0.3
    events = rng.normal(1.0, 2.0, (50, dim)) @ rng.normal(size=(dim, dim))
    m = rng.normal(size=dim)
    theirs = BayesianGaussianMixture(
        n_components=1,
        mean_prior=m,
        mean_precision_prior=1 / gamma,
        degrees_of_freedom_prior=nu + dim + 1,
        covariance_prior=nu * phi * np.eye(dim),
        reg_covar=0.0,
    ).fit(events)
    ours = posterior(stats_of(events), Hyperparameters(m, gamma, nu, phi * np.eye(dim)))
    np.testing.assert_allclose(theirs.means_, ours.means, rtol=1e-9)
    np.testing.assert_allclose(theirs.mean_precision_, ours.precisions, rtol=1e-9)
    np.testing.assert_allclose(theirs.degrees_of_freedom_, ours.dofs, rtol=1e-9)
    np.testing.assert_allclose(theirs.covariances_ * ours.dofs[:, None, None], ours.scales, rtol=1e-9)


class Older:
    """The prior of the older dpmix as its code has it, in SciPy's distributions."""

    def __init__(self, dim: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        root = rng.normal(size=(dim, dim))
        self.gamma0, self.nu0, self.e0, self.f0 = rng.uniform(0.5, 12.0, 4)
        self.m0 = rng.normal(size=dim)
        self.Phi0 = root @ root.T + np.eye(dim)

    def mapped(self) -> Prior:
        """Ours, by the table of docs/migrating.md."""
        return Prior(
            m=self.m0,
            gamma=self.gamma0,
            nu=self.nu0,
            phi=self.Phi0 / self.nu0,
            alpha_shape=self.e0,
            alpha_rate=self.f0,
            learned=frozenset({"alpha"}),
        )

    def log_density(self, state: State) -> float:
        dim = len(self.m0)
        density = st.gamma(self.e0, scale=1 / self.f0).logpdf(state.alpha)
        density += st.beta(1, state.alpha).logpdf(state.sticks).sum()
        for mean, covariance in zip(state.means, state.covariances, strict=True):
            density += st.invwishart(self.nu0 + dim + 1, self.Phi0).logpdf(covariance)
            density += st.multivariate_normal(self.m0, self.gamma0 * covariance).logpdf(mean)
        return float(density)


def stats_of(events: np.ndarray) -> Stats:
    """The statistics of one component that holds all events."""
    dim = events.shape[1]
    counts, sums = np.array([float(len(events))]), events.sum(axis=0)[None]
    return Stats(counts, sums, (events.T @ events)[None], np.zeros((1, dim)), 0.0)


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_the_prior_of_the_older_dpmix_is_ours_as_the_page_maps_it(dim: int) -> None:
    older = Older(dim, seed=dim)
    rng = np.random.default_rng(7)
    for _ in range(3):
        roots = rng.normal(size=(4, dim, dim))
        covariances = roots @ roots.transpose(0, 2, 1) + 0.1 * np.eye(dim)
        sticks = rng.uniform(0.05, 0.95, 3)
        prior = older.mapped()
        state = State(
            0,
            rng.uniform(0.2, 4.0),
            np.log(sticks),
            np.log1p(-sticks),
            rng.normal(size=(4, dim)),
            covariances,
            whiteners_of(covariances),
            prior.centre,
        )
        assert log_prior(state, prior) == pytest.approx(older.log_density(state), rel=1e-10)


@pytest.mark.parametrize("dim", [1, 3])
def test_the_conditionals_of_the_older_dpmix_are_those_of_our_joint_one(dim: int) -> None:
    """It draws Sigma given mu, then mu given Sigma; we draw both jointly: one density, up to a constant."""
    older = Older(dim, seed=20 + dim)
    rng = np.random.default_rng(8)
    events = rng.normal(1.0, 1.5, (30, dim))
    ours = posterior(stats_of(events), older.mapped())

    def joint(mean: np.ndarray, covariance: np.ndarray) -> float:
        density = st.invwishart(ours.dofs[0], ours.scales[0]).logpdf(covariance)
        return float(
            density + st.multivariate_normal(ours.means[0], covariance / ours.precisions[0]).logpdf(mean)
        )

    def covariance_given(mean: np.ndarray, covariance: np.ndarray) -> float:
        away, deviations = mean - older.m0, events - mean
        scale = older.Phi0 + deviations.T @ deviations + np.outer(away, away) / older.gamma0
        return float(st.invwishart(len(events) + dim + older.nu0 + 2, scale).logpdf(covariance))

    def mean_given(mean: np.ndarray, covariance: np.ndarray) -> float:
        precision = 1 / older.gamma0 + len(events)
        centre = (older.m0 / older.gamma0 + events.sum(axis=0)) / precision
        return float(st.multivariate_normal(centre, covariance / precision).logpdf(mean))

    roots = rng.normal(size=(4, dim, dim))
    covariances = roots @ roots.transpose(0, 2, 1) + np.eye(dim)
    means = rng.normal(1.0, 0.5, (4, dim))
    of_covariance = [joint(means[0], c) - covariance_given(means[0], c) for c in covariances]
    of_mean = [joint(m, covariances[0]) - mean_given(m, covariances[0]) for m in means]
    np.testing.assert_allclose(of_covariance, of_covariance[0], rtol=1e-9)
    np.testing.assert_allclose(of_mean, of_mean[0], rtol=1e-9)


def test_the_config_of_the_older_defaults_is_their_prior() -> None:
    text = MIGRATING.partition("```yaml\n")[2].partition("```")[0]
    model = parse_config(text, "the page").model
    prior = make_prior(model, ["one", "two"])
    older = Older(2, seed=1)
    older.gamma0, older.nu0, older.e0, older.f0 = 10, 1, 10, 1
    older.m0, older.Phi0 = np.zeros(2), 1 * np.eye(2)
    mapped = older.mapped()
    assert model.components == 256
    assert prior.learned == mapped.learned
    for name in ("m", "gamma", "nu", "phi", "alpha_shape", "alpha_rate"):
        np.testing.assert_array_equal(getattr(prior, name), getattr(mapped, name))
