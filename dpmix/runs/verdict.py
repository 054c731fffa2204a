"""The verdict on a run: whether its chains agree about its populations, in one sentence.

Every command says it in these words. It is about the populations that `dpmix gate` finds by its defaults,
which the run file keeps from the end of the run (`dpmix.populations.draws.kept`). While a run is in progress,
`dpmix info` and `run.verdict` judge interim populations (`dpmix.runs.monitors`), which are known at any time,
and say that this is preliminary; so do they for a file of an earlier version, without that word.

C chains, S draws of each, P populations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

import numpy as np
from scipy.special import fdtri

from dpmix.model.coarsening import zeta_of
from dpmix.model.mixture import Array, Ints
from dpmix.runs.coarseness import choice_of
from dpmix.runs.effective_size import MIN_DRAWS, PopulationMixing, r_hat_and_ess
from dpmix.runs.layout import POPULATION
from dpmix.runs.monitors import monitored
from dpmix.runs.reader import Run
from dpmix.runs.until import NEGLIGIBLE_LIKELIHOOD
from dpmix.system.console import listed, percent

# With 25 draws of each of 4 chains, R-hat of 8% of independent quantities is above 1.05; with 100, of none.
BAD_R_HAT = 1.05
ROUNDING = 1e-12  # of weights, for example of all that sum to 1
FALSE_ALARMS = 0.05  # probability that chains differ by chance alone
# The log likelihood mixes more slowly than any population: chains differ in their fit above this R-hat.
BAD_FIT = 1.1
MOST_NAMED = 8
# In runs with this many draws of each chain, four times the draws, four times the burn-in and other seeds
# left as many populations apart. A resolution left fewer, but lost populations, so it is not advised either
# (benchmarks/results/remedies.json).
MANY_DRAWS = 250
NO_HELP = "more draws are unlikely to help, because each chain keeps to its own division of these events"
# Chains whose mean log likelihood is further below the best chain's, in nats and in standard deviations
# within chains, are named.
FAR_BELOW, FAR_BELOW_SDS = 100.0, 2.0


@dataclass(frozen=True)
class Verdict:
    """The agreement of the chains of a run about its populations; as a text, one or two sentences.

    Attributes
    ----------
    kind : str
        "mcmc" or "bem".
    noun : str
        What a population is called: "population" or "interim population".
    n_chains, n_draws : int
        Number of chains, and of draws of each that were compared.
    shares : float64 [P]
        Mean weight of each population in the run.
    r_hat : float64 [P]
        R-hat of the weight; NaN where it is the same in every draw, or draws are too few.
    fit : str
        How chains differ in their log likelihood; "" where they agree.
    draws : int
        Draws of each chain in the run file.
    is_complete : bool
        The run has ended.
    """

    kind: str
    noun: str
    n_chains: int
    n_draws: int
    shares: Array
    r_hat: Array
    fit: str
    draws: int = MANY_DRAWS
    is_complete: bool = True

    @property
    def is_known(self) -> bool:
        """True if chains, or the halves of a chain, were compared."""
        return self.kind == "mcmc" and self.n_draws >= MIN_DRAWS

    @property
    def limit(self) -> float:
        """The R-hat above which chains differ."""
        return r_hat_limit(self.n_chains, max(self.n_draws, MIN_DRAWS), max(len(self.r_hat), 1))

    @property
    def apart(self) -> Ints:
        """The populations about which the chains differ, from 0."""
        return np.flatnonzero(self.r_hat > self.limit)

    @property
    def agrees(self) -> bool:
        """True if the chains were compared and differ in nothing."""
        return self.is_known and not len(self.apart) and not self.fit

    @property
    def level(self) -> int:
        """Level at which it is logged: a warning where chains differ."""
        return WARNING if self.is_known and not self.agrees else INFO

    def __str__(self) -> str:
        if self.kind == "bem":
            return "Bayesian EM gives one estimate: no chains were compared."
        if not self.is_known:
            return (
                f"Chains were not compared: {MIN_DRAWS} draws of each are needed, and there are "
                f"{self.n_draws}."
            )
        of_gate = "dpmix gate judges the populations that it finds." if self.noun == POPULATION else ""
        parts = self._agreement(), self._differences(), self._fit(), self._single(), of_gate
        return " ".join(filter(None, parts))

    def _agreement(self) -> str:
        who = "Chains agree" if self.n_chains > 1 else "The halves of the chain agree"
        who = who if self.is_complete else f"Preliminary: so far, {who[0].lower()}{who[1:]}"
        count, apart = len(self.r_hat), len(self.apart)
        plural = "" if count == 1 else "s"
        if not apart:
            return f"{who} on {'the' if count == 1 else f'all {count}'} {self.noun}{plural}."
        return f"{who} on {count - apart or 'none'} of {count} {self.noun}{plural}."

    def _differences(self) -> str:
        """Name the populations about which the chains differ."""
        apart = self.apart
        if not len(apart):
            return ""
        names = [str(p + 1) for p in apart]
        if len(names) > MOST_NAMED:
            names = [*names[: MOST_NAMED - 1], f"{len(names) - MOST_NAMED + 1} more"]
        share = percent(float(self.shares[apart].sum()))
        hopeless = f"; {NO_HELP}" if self.is_complete and self.draws >= MANY_DRAWS else ""
        about = f"They differ about {listed(names)} ({share} of the events)"
        return f"{about}: read these with care{hopeless}."

    def _fit(self) -> str:
        return f"They {'also ' * bool(len(self.apart))}differ in their fit ({self.fit})." if self.fit else ""

    def _single(self) -> str:
        if self.n_chains > 1:
            return ""
        return "One chain cannot show whether another start gives others; mcmc.chains: 4 can."


def judge(run: Run, mixing: PopulationMixing, noun: str = "population", fit: str | None = None) -> Verdict:
    """Return the verdict on a run by some populations.

    Parameters
    ----------
    run : Run
    mixing : Mixing
        Mixing of the weights of the populations.
    noun : str
        What a population is called.
    fit : str, optional
        Result of `fit_of`, if it is known.
    """
    fit = fit_of(run) if fit is None else fit
    chains, (n_draws, shares, r_hat, _) = len(run.alpha), mixing
    return Verdict(run.kind, noun, chains, n_draws, shares, r_hat, fit, run.committed, run.complete)


def interim_verdict(run: Run) -> Verdict:
    """Return the verdict on a run by its interim populations."""
    if run.kind != "mcmc" or run.committed < MIN_DRAWS:
        return judge(run, PopulationMixing(run.committed, *np.zeros((3, 0))), POPULATION, fit="")
    found = [values for name, values in monitored(run).items() if POPULATION in name]
    weights = np.stack(found, axis=2)
    return judge(run, mixing_of(weights), POPULATION)


def kept_verdict(run: Run) -> Verdict | None:
    """Return the verdict on the populations that a run file has; None without any of all its draws."""
    kept = run.kept
    return None if kept is None else judge(run, kept_mixing(kept), fit=kept["fit"])


def kept_mixing(kept: Mapping[str, Any]) -> PopulationMixing:
    """Return the mixing of the populations that a run file has (`Run.kept`)."""
    found = ~np.isnan(kept["share"])
    share, r_hat, ess = (np.array(kept[name])[found] for name in ("share", "r_hat", "ess"))
    return PopulationMixing(int(kept["compared"]), share, r_hat, ess)


def mixing_of(weights: Array) -> PopulationMixing:
    """Return the mixing of the weights of populations.

    Vehtari, Gelman, Simpson, Carpenter and Buerkner (2021), Bayesian Analysis 16:667, as ArviZ computes it.

    Parameters
    ----------
    weights : float64 [C, S, P]
    """
    n_draws, shares = weights.shape[1], weights.mean(axis=(0, 1))
    if n_draws < MIN_DRAWS:
        return PopulationMixing(n_draws, shares, *np.full((2, len(shares)), np.nan))
    # The weight of all events together is 1 but for rounding, which would have an R-hat.
    constant = np.ptp(weights, axis=(0, 1)) <= ROUNDING
    r_hat, ess = (np.where(constant, np.nan, found) for found in r_hat_and_ess(weights))
    return PopulationMixing(n_draws, shares, r_hat, ess)


def fit_of(run: Run) -> str:
    """Return how the chains of a run differ in their log likelihood; "" where they agree."""
    if run.kind != "mcmc" or run.committed < MIN_DRAWS:
        return ""
    values = np.asarray(run.sample_stats["log_likelihood"])
    (r_hat,), (ess,) = r_hat_and_ess(values[..., None])
    negligible = NEGLIGIBLE_LIKELIHOOD * int(run.attributes["n_events"])
    n_chains, n_draws = values.shape
    limit = max(BAD_FIT, r_hat_limit(n_chains, n_draws, 1))
    # `not >` rather than `<=`: R-hat is NaN for a log likelihood that never changes.
    if not r_hat > limit or values.std() / np.sqrt(ess) < negligible:
        return ""
    below = stragglers(values, zeta_of(choice_of(run).coarseness, int(run.attributes["n_events"])))
    return f"R-hat of the log likelihood {r_hat:.2f}{below}"


def stragglers(log_likelihood: Array, zeta: float = 1.0) -> str:
    """Name chains that lie far below the best one; "" where there are none.

    Parameters
    ----------
    log_likelihood : float64 [C, S]
    zeta : float
        What an event counts in the coarsened posterior, 1 in the exact one.

    Returns
    -------
    str
        It begins with "; ". "" where every chain is within 100 nats of the best, or within twice the standard
        deviation of a chain.
    """
    # Nats as the posterior counts them: in the coarsened one a gap of the whole log likelihood weighs less.
    counted = zeta * log_likelihood
    means = counted.mean(axis=1)
    gaps = means.max() - means
    low = np.flatnonzero(gaps > max(FAR_BELOW, FAR_BELOW_SDS * float(counted.std(axis=1).mean())))
    if not len(low):
        return ""
    least, most = (f"{gaps[low].min():,.0f}", f"{gaps[low].max():,.0f}")
    which, nats = listed([str(chain + 1) for chain in low]), least if least == most else f"{least} to {most}"
    lie = f"chain {which} lies" if len(low) == 1 else f"chains {which} lie"
    return f"; {lie} {nats} nats below chain {int(gaps.argmin()) + 1}"


def r_hat_limit(n_chains: int, n_draws: int, n_quantities: int) -> float:
    """Return the R-hat above which chains disagree: 1.05, or more where chance alone often exceeds that.

    Independent draws of m sequences of length n have an R-hat of sqrt((n - 1 + F) / n), with F of an F
    distribution of m - 1 and m (n - 1) degrees of freedom (Gelman and Rubin 1992, Stat. Sci. 7:457). Above
    the limit, the largest R-hat of all quantities is not chance. The rank-normalised R-hat is the larger of
    two values.

    Parameters
    ----------
    n_chains, n_draws : int
        Number of chains, and of draws of each, at least `MIN_DRAWS`.
    n_quantities : int
        Number of quantities compared with the limit, at least 1.
    """
    # Halves of chains, and quarters of a single one, as `r_hat_and_ess` compares them.
    sequences = 2 * max(n_chains, 2)
    length = n_draws // 2 if n_chains > 1 else n_draws // 4
    # Bonferroni over the quantities, twice because R-hat is the larger of two values.
    ratio = fdtri(sequences - 1, sequences * (length - 1), 1.0 - FALSE_ALARMS / (2 * n_quantities))
    return max(BAD_R_HAT, float(np.sqrt((length - 1 + ratio) / length)))
