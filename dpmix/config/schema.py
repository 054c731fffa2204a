"""The config: all sections and keys, their types, limits and defaults.

Paths that dpmix reads (data.files, data.samples, data.gate.workspace, data.compensation,
data.controls, mcmc.init) are
relative to the folder of the config file, so that a config can be moved together with its data. Paths that
it writes (output.path, engine.scratch) are relative to the current folder.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from dpmix.config.data import DataConfig, name_or_path
from dpmix.config.engine import EngineConfig
from dpmix.config.section import Section, key

INIT_METHODS = ("kmeans", "random", "prior", "bem")

Location = Annotated[float, Field(ge=-1e9, le=1e9)]
FULL_EVENTS = 20.0  # default of model.full_events
Coarseness = Annotated[float, Field(ge=1.0, le=1e12)]
Variance = Annotated[float, Field(ge=1e-12, le=1e12)]


class PriorConfig(Section):
    """Prior of the mixture, in the units of the preprocessed events (standardised by default).

    Hyperparameters that model.learn names are drawn; their values here are then the centres of their
    priors.
    """

    # The limits lie far outside what any data need, and within the range of float64 arithmetic.
    m: Location | list[Location] = key(
        0.0,
        "Prior mean of the component means: one number, or one per channel.",
        "the mean of standardised data",
        need="a number from -1e9 to 1e9, or a list with one per channel",
    )
    gamma: float = key(
        5.0,
        "Prior variance of a component's mean, in units of its covariance.",
        "with phi 0.3 it spreads the means over the data: 5 x 0.3 = 1.5 standard deviations squared",
        ge=1e-6,
        le=1e6,
    )
    nu: float = key(
        2.0,
        "Strength of the prior on the covariances, in events.",
        "a few events are then enough to determine a covariance",
        ge=1e-3,
        le=1e9,
    )
    phi: Variance | list[Variance] = key(
        0.3,
        "Prior mean of the covariances: the variance on the diagonal, one number, or one per channel.",
        "with nu 2 and gamma 5 the best fixed prior in a study of gated data, by held-out density",
        need="a number from 1e-12 to 1e12, or a list with one per channel",
    )
    alpha_shape: float = key(
        1.0,
        "Shape of the gamma prior of the concentration alpha.",
        "with rate 1 an exponential distribution of mean 1",
        ge=1e-3,
        le=1e6,
    )
    alpha_rate: float = key(
        1.0,
        "Rate of the gamma prior of the concentration alpha.",
        "weak compared with the information in the sticks",
        ge=1e-6,
        le=1e6,
    )
    kappa_shape: float = key(
        1.0,
        "Shape of the gamma prior of the concentration kappa of the samples (model.samples: hierarchical).",
        "with rate 0.01 an exponential distribution of mean 100",
        ge=1e-3,
        le=1e6,
    )
    kappa_rate: float = key(
        0.01,
        "Rate of the gamma prior of the concentration kappa of the samples.",
        "at kappa 100 the proportion of a population of 10% varies by 30% of itself between samples; the "
        "samples determine kappa",
        ge=1e-9,
        le=1e6,
    )
    shift: float = key(
        0.2,
        "Scale of the half-t prior (3 degrees of freedom) of the standard deviation tau of shifts "
        "(model.shifts), in the units of the preprocessed events.",
        "0.2 standard deviations of a channel: smaller than the distance between most populations",
        ge=1e-6,
        le=1e3,
    )


class ModelConfig(Section):
    """The mixture and its prior."""

    components: int = key(
        128,
        "Truncation K: the maximum number of mixture components.",
        "more than the populations of one sample, because a population may need several components; run time "
        "grows with K",
        ge=1,
        le=4096,
    )
    coarseness: Coarseness | Literal["auto"] | None = key(
        2_000.0,
        "Number of events n_c that the N events count as at most: the likelihood has the power "
        "n_c / (n_c + N) (coarsened posterior). null: every event counts in full (exact posterior). auto: a "
        "number that the run chooses at its start, at the elbow of fit against complexity.",
        "cells are not Gaussian: with more events, the exact posterior uses more and more components for the "
        "shapes of populations, and chains disagree; see docs/explanation/coarsening.md",
        need="a number of events from 1 to 1e12, auto, or null",
    )
    full_events: float = key(
        FULL_EVENTS,
        "Events of a component that count in full for its mean and covariance, however many there are. 0: "
        "all count as model.coarseness says. No effect on the exact posterior and on Bayesian EM.",
        "small components are then as narrow as their events: chains agree on more populations, and isolated "
        "groups of 50 cells are kept; see docs/explanation/coarsening.md",
        ge=0,
        le=1e6,
    )
    samples: Literal["pooled", "hierarchical"] = key(
        "pooled",
        "pooled: all samples have the same weights of the components. hierarchical: each sample has its own, "
        "which vary about common weights (hierarchical Dirichlet process); needs at least two samples. See "
        "docs/explanation/model.md.",
        "the model of one sample; hierarchical is for cohorts of samples whose proportions differ",
    )
    shifts: str = key(
        "none",
        "Shifts of all component means in the hierarchical model: none, sample (each sample has its own), or "
        "a column of data.samples (samples with the same value share a shift, for example a batch). Shifts "
        "sum to 0.",
        "where files agree, shifts only add parameters",
        min_length=1,
        need="none, sample, or a column of data.samples",
    )
    prior: PriorConfig = PriorConfig()
    learn: list[Literal["alpha", "m", "gamma", "nu", "phi"]] = key(
        ["alpha", "gamma", "nu", "phi"],
        "Hyperparameters drawn together with the mixture: any of alpha, m, gamma, nu, phi. [] keeps alpha at "
        "its prior mean, alpha_shape / alpha_rate. Their priors, with m0, gamma0, nu0, phi0 the values in "
        "model.prior: m is normal with mean m0 and covariance gamma0 phi0; 1 / gamma is gamma with shape 1/2 "
        "and mean 1 / gamma0, restricted to gamma of at least gamma0 / 2; nu is one of nu0 2^(k/8), k = "
        "-48 to 48; phi is Wishart with D + 2 degrees of freedom and mean phi0, restricted to "
        "phi - phi0 / 10,000 positive definite.",
        "the data determine how many components are used (alpha), their widths (phi), how similar these are "
        "(nu), and how far apart the components lie (gamma); m is not learned because standardised channels "
        "have mean 0",
        need="a list of different names from alpha, m, gamma, nu, phi, for example [alpha, phi], or []",
    )

    @model_validator(mode="after")
    def _shifts_need_samples(self) -> ModelConfig:
        if self.shifts != "none" and self.samples == "pooled":
            raise ValueError(f"shifts is {self.shifts}; this needs samples: hierarchical")
        return self

    @field_validator("learn")
    @classmethod
    def _learned_are_different(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError
        return value


class UntilConfig(Section):
    """When the chains agree, so that burn-in or the draws may end early."""

    rhat: float = key(
        1.05,
        "Draws end when R-hat of every monitored quantity is below this.",
        "larger values show chains that are not yet in one place; 1.01 needs many more draws",
        gt=1,
        le=10,
    )
    ess: int = key(
        200,
        "Draws end when every monitored quantity has at least this bulk effective sample size, of all chains "
        "together.",
        "the ends of a 90% interval are then known to about 5% of its width",
        ge=1,
        le=2**31,
    )


class McmcConfig(Section):
    """The Gibbs sampler (dpmix mcmc)."""

    chains: int = key(
        4,
        "Number of independent chains, run in lockstep.",
        "several chains show whether they agree, and find populations that one chain misses",
        ge=1,
        le=1024,
    )
    burn_in: int = key(
        500,
        "Sweeps before the first draw is kept; an upper limit unless mcmc.until is null.",
        "the log posterior settles within some hundred sweeps from a k-means start",
        ge=0,
        le=2**31,
    )
    draws: int = key(
        250,
        "Number of draws kept per chain; an upper limit unless mcmc.until is null.",
        "successive draws are correlated, so the effective sample size is smaller",
        ge=1,
        le=2**31,
    )
    thin: int = key(
        1,
        "Sweeps per draw kept.",
        "thinning only loses draws; raise it to save disk space",
        ge=1,
        le=2**31,
    )
    until: UntilConfig | None = key(
        UntilConfig(),
        "The run ends when its chains agree on the log likelihood, the log density at reference events and "
        "the proportions of interim populations; burn-in ends by a similar rule. null: the run makes all "
        "sweeps of mcmc.burn_in and all draws.",
        "further draws add little to what the chains agree on",
        need="null, or a mapping with rhat and ess, for example {rhat: 1.05, ess: 200}",
    )
    init: str = key(
        "kmeans",
        "Start of the chains: kmeans, random, prior, bem, or a run file, whose last draw is used.",
        "k-means++ on a subsample is fast and close enough",
        need="kmeans, random, prior, bem, or the path of a run file, for example other.h5",
    )
    label_swaps: bool = key(
        True,
        "Label-swap moves, which exchange components in the order of the sticks.",
        "without them the initial order persists and alpha mixes slowly",
    )
    split_merge: int = key(
        10,
        "Sweeps between rounds of split-merge moves, which propose to divide the events of one component "
        "between two, or to join the events of two; 0: no such moves, the default with model.samples: "
        "hierarchical, which has none.",
        "sweeps that move one event at a time rarely find a split; a round costs about one sweep",
        ge=0,
        le=2**31,
    )

    @field_validator("init")
    @classmethod
    def _init_is_known(cls, value: str) -> str:
        return name_or_path(value, INIT_METHODS)

    @property
    def sweeps(self) -> int:
        """Sweeps of one chain, burn-in included; with `until` the most."""
        return self.burn_in + self.draws * self.thin

    @model_validator(mode="after")
    def _sweeps_fit_the_counter(self) -> McmcConfig:
        # The random generator of the labels counts sweeps in 32 bits.
        if self.sweeps >= 2**32:
            raise ValueError(f"burn_in + draws x thin is {self.sweeps}; it must be less than {2**32}")
        return self


EVENTS_PER_COMPONENT = 20
"""Least events of a subsample that initial states are made from."""


class BemConfig(Section):
    """Bayesian EM (dpmix bem, and mcmc.init: bem)."""

    starts: int = key(
        10,
        "Number of runs from different starts; the best is kept.",
        "EM stops at the nearest mode",
        ge=1,
        le=10_000,
    )
    short_steps: int | None = key(
        40,
        "Steps that every start makes before only the best one continues (emEM; Biernacki, Celeux and "
        "Govaert 2003). null: every start continues to its end.",
        "often the best start by then is the best in the end, in less than half the time",
        ge=1,
        le=2**31,
        need="a number of steps of at least 1, or null",
    )
    short_events: int | None = key(
        20_000,
        "Events, drawn at random, that starts and their short steps are made on; 20 per component if that is "
        "more. null: all events. With short_steps: null it is not used.",
        "as good for choosing a start, and the time of short steps does not grow with the data",
        ge=1_000,
        le=2**31,
        need="a number of events of at least 1,000, or null",
    )
    max_steps: int = key(
        500,
        "Maximum number of steps of one start.",
        "several times the number needed for cytometry data",
        ge=1,
        le=2**31,
    )
    tolerance: float = key(
        1e-6,
        "A start ends when a step changes the log posterior by less than this, relative to its size "
        "or, if that is larger, to the number that the events count as.",
        "far below the differences between starts",
        gt=0,
        lt=1,
    )
    update: Literal["mean", "mode"] = key(
        "mean",
        "New means and covariances in a step. mean: the means of their posterior given the rest. mode: its "
        "mode, and learned m, gamma, nu and phi are set to their modes, too. With mode the log posterior "
        "never decreases, except where a stick reaches 1 and truncates the mixture; with mean it may. With "
        "mode, leave gamma, nu and phi out of model.learn: components at a mode are narrower, more of them "
        "remain, and a learned gamma, nu or phi adapts to them.",
        "the update of Suchard et al. 2010",
    )

    @property
    def first_steps(self) -> int:
        """The most steps that every start makes; the best one then makes up to max_steps."""
        if self.short_steps is None or self.starts == 1:
            return self.max_steps
        return min(self.short_steps, self.max_steps)

    def first_events(self, n_components: int, n_events: int) -> int:
        """Return the number of events of these first steps."""
        if self.short_events is None or self.first_steps == self.max_steps:
            return n_events
        return min(n_events, max(self.short_events, EVENTS_PER_COMPONENT * n_components))


class OutputConfig(Section):
    """The files that are written."""

    path: str = key(
        "run.h5",
        "Run file; relative to the current folder. An existing file is only replaced with --overwrite.",
        min_length=1,
        need="a file name, for example run.h5",
    )


class Config(Section):
    """The config of a run: every key with its value."""

    data: DataConfig = Field(json_schema_extra={"need": "a section with at least files: [...]"})
    model: ModelConfig = ModelConfig()
    mcmc: McmcConfig = McmcConfig()
    bem: BemConfig = BemConfig()
    engine: EngineConfig = EngineConfig()
    output: OutputConfig = OutputConfig()
    seed: int = key(1, "Seed of all random numbers: the same seed gives the same draws.", ge=0, le=2**64 - 1)

    @model_validator(mode="after")
    def _hierarchical_has_no_split_merge(self) -> Config:
        if self.model.samples == "hierarchical" and "split_merge" not in self.mcmc.model_fields_set:
            # The model is frozen for its users, not for its validation.
            object.__setattr__(self, "mcmc", self.mcmc.model_copy(update={"split_merge": 0}))
        return self


@cache
def schema() -> dict[str, Any]:
    """Return the JSON schema of the config; `why` and `need` come from `key`."""
    return Config.model_json_schema()
