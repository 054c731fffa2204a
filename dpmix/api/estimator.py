"""`DPMixture`: runs as an estimator after scikit-learn's conventions."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, Self

import numpy as np

try:
    from sklearn.base import BaseEstimator, DensityMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError as _error:
    raise ImportError(
        f"dpmix.DPMixture needs scikit-learn ({_error}): pip install 'dpmix-cytometry[sklearn]'"
    ) from None

from dpmix.api.events import RunFolder, events_file, require_unmasked, standardised, write_events
from dpmix.api.parameters import make_config
from dpmix.api.predictions import draw_events, predicted
from dpmix.api.sampling import sample
from dpmix.config.schema import Config
from dpmix.config.write import to_yaml
from dpmix.errors import EngineError, OutputError
from dpmix.inputs.transforms import Scaling
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.kept import populations_of_run
from dpmix.populations.draws.local_engine import engine_maker
from dpmix.populations.tree.cut import require_cut
from dpmix.runs.reader import Run, open_run
from dpmix.runs.resume import choose
from dpmix.system.files import write_text

RUN_FILE, CONFIG_FILE = "run.h5", "run.yaml"


class DPMixture(DensityMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Bayesian Gaussian mixture with a truncated Dirichlet process prior, and the populations in it.

    ``fit`` makes the run of ``dpmix mcmc`` or ``dpmix bem``: the same events, parameters and seed give the
    same draws, bit for bit. ``predict`` assigns events to populations, which are merged components, by the
    rule of ``dpmix gate``. Parameters are keys of the config and have its defaults.

    Parameters
    ----------
    method : "mcmc" or "bem"
        Block Gibbs MCMC, or Bayesian EM.
    components : int
        Key model.components: the truncation, the most components that the mixture may use.
    prior : mapping, optional
        Keys of model.prior, as ``{"nu": 3.0}``.
    learn : sequence of str
        Key model.learn: hyperparameters to draw.
    coarseness : float, "auto" or None
        Key model.coarseness: the number of events that all events count as at most; "auto" chooses it from
        the events; None makes every event count in full.
    full_events : float
        Key model.full_events: events of a component that count in full for its mean and covariance.
    chains, burn_in, draws, thin, init
        Keys of mcmc. burn_in and draws are upper limits, unless until is None.
    until : mapping, "default" or None
        Key mcmc.until: when the run may end early, as ``{"rhat": 1.05, "ess": 200}``, which are the defaults
        of its keys. None makes all sweeps.
    starts, max_steps, tolerance
        Keys of bem.
    channels : sequence of str, optional
        Key data.channels: names of columns to use, globs allowed. Default: of an array, all; otherwise
        the channels that a run uses by default.
    transforms : mapping, optional
        Key data.transform; default: linear. (scikit-learn regards an object with an attribute transform as a
        transformer.)
    standardize, atoms
        Keys of data.
    n_populations, level : int, float, optional
        Number of populations, or the level at which to cut their tree; not both. Default: the rule of
        ``dpmix gate``.
    n_draws : int
        Draws of the run that predictions average over.
    random_state : int, RandomState or None
        The seed. A RandomState, or None for NumPy's global one, supplies a seed.
    n_jobs : int, optional
        Threads. None and -1: one per core; -2: one less. The draws do not depend on it.
    backend : str
        Key engine.backend.
    folder : str or Path, optional
        Folder for events, config (run.yaml) and run file (run.h5). Default: a temporary folder, which is
        removed with the estimator.
    warm_start : bool
        ``fit`` resumes the run of the last ``fit`` on the same events: after Ctrl-C, or with more draws.
    verbose : int
        Show progress if it is above 0.
    settings : mapping, optional
        Any other key of the config, as ``{"mcmc.label_swaps": False}``.

    Attributes
    ----------
    run_ : Run
        The draws.
    config_ : Config
        The config of the run.
    n_features_in_ : int
        Columns seen by ``fit``.
    feature_names_in_ : array of str
        Their names, if they have names.
    """

    def __init__(
        self,
        method: Literal["mcmc", "bem"] = "mcmc",
        *,
        components: int = 128,
        prior: Mapping[str, Any] | None = None,
        learn: Sequence[str] = ("alpha", "gamma", "nu", "phi"),
        coarseness: float | Literal["auto"] | None = 2000.0,
        full_events: float = 20.0,
        chains: int = 4,
        burn_in: int = 500,
        draws: int = 250,
        thin: int = 1,
        init: str = "kmeans",
        until: Mapping[str, float] | Literal["default"] | None = "default",
        starts: int = 10,
        max_steps: int = 500,
        tolerance: float = 1e-6,
        channels: Sequence[str] | None = None,
        transforms: Mapping[str, Any] | None = None,
        standardize: bool = True,
        atoms: Literal["report", "dither", "tail"] = "tail",
        n_populations: int | None = None,
        level: float | None = None,
        n_draws: int = 100,
        random_state: int | np.random.RandomState | None = 1,
        n_jobs: int | None = None,
        backend: Literal["auto", "cpu", "cuda", "cluster"] = "auto",
        folder: str | os.PathLike[str] | None = None,
        warm_start: bool = False,
        verbose: int = 0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.method = method
        self.components = components
        self.prior = prior
        self.learn = learn
        self.coarseness = coarseness
        self.full_events = full_events
        self.chains = chains
        self.burn_in = burn_in
        self.draws = draws
        self.thin = thin
        self.init = init
        self.until = until
        self.starts = starts
        self.max_steps = max_steps
        self.tolerance = tolerance
        self.channels = channels
        self.transforms = transforms
        self.standardize = standardize
        self.atoms = atoms
        self.n_populations = n_populations
        self.level = level
        self.n_draws = n_draws
        self.random_state = random_state
        self.n_jobs = n_jobs
        self.backend = backend
        self.folder = folder
        self.warm_start = warm_start
        self.verbose = verbose
        self.settings = settings

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw from the posterior, or find a mode of it.

        Ctrl-C stops the run and raises `KeyboardInterrupt`. The draws made so far are in ``run_`` and can be
        used; with ``warm_start=True`` a further ``fit`` continues the run.

        Parameters
        ----------
        X : array, data frame or AnnData, [N, columns]
            Events.
        y
            Ignored.

        Raises
        ------
        ValueError
            X is not a table of finite numbers, or has masked values.
        ConfigError, DataError, EngineError, OutputError
            As `dpmix.run_mcmc` raises them.
        """
        if self.method not in ("mcmc", "bem"):
            raise ValueError(f'method is {self.method!r}; it must be "mcmc" or "bem"')
        require_cut(self.n_draws, self.level, self.n_populations)
        values, names = self._table(X, reset=True)
        resume = bool(self.warm_start and hasattr(self, "run_"))
        home = self._home if resume else RunFolder(self.folder)
        path = home.path / RUN_FILE
        own = hasattr(self, "run_") and self.run_.path == path
        written = (RUN_FILE, CONFIG_FILE, events_file(names))
        if not own:
            home.require_absent(written, " and is not of this estimator; use another")
        stated = self.get_params(deep=False)
        if names is None and self.channels is None:
            stated["channels"] = ["*"]  # every column of an array, also one that a file would leave out
        if resume:
            stated["random_state"] = self.config_.seed
        if stated.get("transforms") is None:  # X is whatever a caller has, not light by its look
            stated["transforms"] = {"default": {"method": "linear"}}
        config = make_config(stated, [events_file(names)], path)
        try:
            write_events(home.path, values, names)
            write_text(home.path / CONFIG_FILE, to_yaml(config))
            chosen = replace(choose(self.method, config, resume=resume), base=home.path)
            run = sample(self.method, chosen, overwrite=own and not resume, progress=self.verbose > 0)
        except BaseException as error:
            if not path.exists():  # no draws: a further fit may use the folder
                for name in written:
                    (home.path / name).unlink(missing_ok=True)
            elif isinstance(error, KeyboardInterrupt | EngineError | OutputError):
                self._keep(home, config, open_run(path))
            raise
        self._keep(home, config, run)
        return self

    def predict(self, X: Any) -> Ints:
        """Return the most probable population of each event, int64 [N], from 0 by size.

        Population 0 here is population 1 of reports and tables. X is as in `fit`.
        """
        most: Ints = self.predict_proba(X).argmax(axis=1)
        return most

    def predict_proba(self, X: Any) -> Array:
        """Return the posterior probability of each population for each event, float64 [N, P].

        It is the mean over draws, with the proportions of the run. The result for an event does not depend
        on the other events: ``dpmix gate`` uses the proportions of the sample instead, and moves events at
        atoms as the run did.
        """
        return self._predicted(X)[0]

    def score_samples(self, X: Any) -> Array:
        """Return the log predictive density of each event, float64 [N].

        It is the log of the mean density over draws, in the units of X or, with ``transforms``, on the
        transformed scale.
        """
        log_density: Array = self._predicted(X)[1] - np.log(self._scaling.sds).sum()
        return log_density

    def score(self, X: Any, y: Any = None) -> float:
        """Return the mean of `score_samples` over the events."""
        return float(self.score_samples(X).mean())

    def fit_predict(self, X: Any, y: Any = None) -> Ints:
        """Fit, and return the most probable population of each event, int64 [N]."""
        return self.fit(X).predict(X)

    def sample(self, n_samples: int = 1) -> tuple[Array, Ints]:
        """Draw events from the posterior predictive distribution, by the seed of the run.

        Returns
        -------
        events : float64 [n_samples, D]
            In the units of X; the columns that the run uses.
        populations : int64 [n_samples]
        """
        if not isinstance(n_samples, int | np.integer) or n_samples < 1:
            raise ValueError(f"n_samples is {n_samples!r}; it must be a whole number of at least 1")
        points, populations = draw_events(self._populations(), n_samples, self.config_.seed)
        return self._scaling.to_raw(points), populations

    @property
    def n_populations_(self) -> int:
        """Number of populations."""
        return self._populations().n_populations

    # ------------------------------------------------------------------------------------- inside

    def _table(self, X: Any, reset: bool = False) -> tuple[Floats, list[str] | None]:
        """The events, float32 [N, columns], and the names of the columns."""
        if hasattr(X, "obs") and hasattr(X, "to_df"):
            X = X.to_df()
        require_unmasked(X)
        X = validate_data(
            self, X, reset=reset, dtype=[np.float32, np.float64], ensure_min_samples=2 if reset else 1
        )
        with np.errstate(over="ignore"):  # beyond float32: infinite, which the run refuses by channel
            values = np.ascontiguousarray(X, np.float32)
        names = getattr(self, "feature_names_in_", None)
        return values, None if names is None else [*map(str, names)]

    def _keep(self, home: RunFolder, config: Config, run: Run) -> None:
        self.run_, self.config_ = run, config
        self._home = home
        self._found: dict[tuple[int, float | None, int | None], Populations] = {}

    @property
    def _scaling(self) -> Scaling:
        check_is_fitted(self)
        return Scaling.from_attributes(self.run_.scaling)

    def _populations(self) -> Populations:
        """The populations of the run, found when they are first needed."""
        check_is_fitted(self)
        cut = self.n_draws, self.level, self.n_populations
        require_cut(*cut)
        if cut not in self._found:
            self._found[cut] = populations_of_run(
                self.run_,
                engine_maker(self.run_),
                n_draws=self.n_draws,
                level=self.level,
                n_populations=self.n_populations,
            )
        return self._found[cut]

    def _predicted(self, X: Any) -> tuple[Array, Array]:
        """Memberships [N, P], and log predictive densities on the standardised scale [N]."""
        scaling = self._scaling
        values, names = self._table(X)
        names = [f"ch{k}" for k in range(values.shape[1])] if names is None else names
        events = standardised(scaling, self.run_.detectors, values, names)
        return predicted(self._populations(), engine_maker(self.run_), events)

    def __getstate__(self) -> dict[str, Any]:
        """Return the parameters and the bytes of the run file: the estimator keeps its draws."""
        state = dict(super().__getstate__())
        if "run_" in state:
            state["run_"] = self.run_.path.read_bytes()
            del state["_home"], state["_found"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "run_" in state:
            home = RunFolder()
            path = home.path / RUN_FILE
            path.write_bytes(state["run_"])
            self._keep(home, self.config_, open_run(path))
