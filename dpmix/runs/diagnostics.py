"""Diagnose a run: whether its chains mix and agree, whether its truncation binds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from dpmix.config.schema import UntilConfig
from dpmix.model.mixture import Array
from dpmix.runs.effective_size import MIN_DRAWS, ess_tail, r_hat_and_ess
from dpmix.runs.layout import REFERENCES
from dpmix.runs.monitors import monitored
from dpmix.runs.reader import Run
from dpmix.runs.until import negligible_errors
from dpmix.system.console import listed, quoted

# The last weight is all the mass after the other sticks, which a longer mixture would divide further. More
# than one event in a thousand may be a population that a reader looks for.
VISIBLE_WEIGHT = 1e-3
# Occasional occupancy of all components is expected; in more than one draw in twenty the data need more.
FULL_SHARE = 0.05
# Above it, chains are in different places. R-hat of 100 independent draws, in one chain or several, is below
# it; R-hat of fewer draws may be above it by chance.
BAD_R_HAT = 1.1
ROUGH_DRAWS = 100
# Chains whose mean log likelihood is further below that of the best chain, in nats and in standard deviations
# within chains, are reported.
FAR_BELOW, FAR_BELOW_SDS = 100.0, 2.0


@dataclass(frozen=True)
class Mixing:
    """Mixing of one quantity. ESS and R-hat are NaN for a quantity that is the same in every draw.

    R-hat is infinite where a quantity is constant in each chain (or half of a chain) and differs between
    them.

    Attributes
    ----------
    quantity : str
        Its name, in words.
    mean, sd : float
        Over all draws of all chains.
    ess_bulk, ess_tail : float
        Effective sample size for the centre and for the 5% tails of the distribution.
    r_hat : float
        Rank-normalised split R-hat.
    decides : bool
        The quantity is one of `dpmix.runs.monitors`, by which runs are judged; others are for information.
    negligible : float
        Standard error of the mean below which the quantity counts as agreed.
    rhat_limit, ess_limit : float
        Limits of R-hat and of the bulk effective sample size: those of mcmc.until, or its defaults.
    """

    quantity: str
    mean: float
    sd: float
    ess_bulk: float
    ess_tail: float
    r_hat: float
    decides: bool = False
    negligible: float = 0.0
    rhat_limit: float = UntilConfig().rhat
    ess_limit: float = UntilConfig().ess

    @property
    def is_negligible(self) -> bool:
        """Test whether the quantity is constant, or its standard error negligible."""
        return self.sd == 0.0 or self.sd / math.sqrt(self.ess_bulk) < self.negligible

    @property
    def good(self) -> bool:
        """Test whether the draws are enough by the rule of mcmc.until."""
        return self.is_negligible or (self.r_hat < self.rhat_limit and self.ess_bulk >= self.ess_limit)


def convergence(run: Run) -> list[Mixing]:
    """Return the mixing of quantities of the whole mixture: first those that decide, then others.

    The quantities of `dpmix.runs.monitors` decide. Of the others, learned m and phi are given for their
    slowest channel. No quantity follows a component by its number. All but the log posterior are invariant to
    the order of the components. The log posterior depends on the order through the prior of the sticks; the
    chain moves over orders as well.

    Rank-normalised split R-hat and effective sample sizes of Vehtari, Gelman, Simpson, Carpenter and Buerkner
    (2021), Bayesian Analysis 16:667, as ArviZ computes them. The halves of a single chain stand for two
    chains in R-hat.

    Parameters
    ----------
    run : Run
        A run of MCMC; Bayesian EM has no mixing.

    Returns
    -------
    list of Mixing
        Empty while there are fewer than 8 draws.
    """
    if run.kind != "mcmc" or run.committed < MIN_DRAWS:
        return []
    stats = run.sample_stats
    quantities = {
        "log posterior": stats["log_posterior"],
        "alpha": run.alpha,
        "occupied components": stats["occupied"],
        "entropy of the weights": entr(run.weights).sum(axis=-1),
        **{name: values for name, values in run.hyperparameters.items() if name in ("gamma", "nu")},
    }
    largest = np.sort(run.weights, axis=-1)[..., :-4:-1]
    for rank in range(largest.shape[-1]):
        quantities[f"weight of component {rank + 1} by size"] = largest[..., rank]
    rows = [_mixing(quantity, np.asarray(values, float)) for quantity, values in quantities.items()]
    for name, by_channel in by_channel_of(run).items():
        channels = [
            _mixing(f"{name} of {channel}, the slowest", by_channel[..., d])
            for d, channel in enumerate(run.channels)
        ]
        rows.append(min(channels, key=lambda row: np.nan_to_num(row.ess_bulk, nan=np.inf)))
    return [*_deciding(run), *rows]


def disagreement_warning(rows: Sequence[Mixing], chains: int, draws: int) -> str | None:
    """Warn where chains, or the halves of a chain, are in different places, and say what to do.

    Parameters
    ----------
    rows : sequence of Mixing
    chains, draws : int
        Number of chains, and of draws per chain.

    Returns
    -------
    str or None
        One line; None where no R-hat is above 1.1, or with fewer than 100 draws in all.
    """
    apart = [row for row in rows if row.decides and row.r_hat > BAD_R_HAT and not row.is_negligible]
    if not apart or chains * draws < ROUGH_DRAWS:
        return None
    worst = max(apart, key=lambda row: row.r_hat)
    others = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
    return (
        f"{who_disagrees(chains)} on {worst.quantity} (R-hat {worst.r_hat:.2f}){others}: the draws do not "
        "yet represent one posterior; raise mcmc.burn_in and mcmc.draws"
    )


def who_disagrees(chains: int) -> str:
    """Return the start of a sentence about disagreement between chains or, of a single chain, its halves."""
    return "chains, or the halves of a chain, disagree" if chains > 1 else "the halves of the chain disagree"


def straggler_warning(log_likelihood: Array, zeta: float = 1.0) -> str | None:
    """Warn of chains that sit far below the best one, and say what to do.

    Parameters
    ----------
    log_likelihood : float64 [chain, draw]
    zeta : float
        What an event counts in the coarsened posterior, 1 in the exact one.

    Returns
    -------
    str or None
        One line; None where every chain is within 100 nats of the best, or within twice the standard
        deviation of a chain.
    """
    counted = zeta * log_likelihood
    means = counted.mean(axis=1)
    gaps = means.max() - means
    low = np.flatnonzero(gaps > max(FAR_BELOW, FAR_BELOW_SDS * float(counted.std(axis=1).mean())))
    if not len(low):
        return None
    numbers = listed([str(chain + 1) for chain in low])
    least, most = (f"{gaps[low].min():,.0f}", f"{gaps[low].max():,.0f}")
    nats = least if least == most else f"{least} to {most}"
    which = f"chain {numbers} sits" if len(low) == 1 else f"chains {numbers} sit"
    what = "log likelihood" if zeta == 1.0 else "coarsened log likelihood"
    return (
        f"{which} {nats} nats below chain {int(gaps.argmin()) + 1} in {what}, in a worse place; "
        "raise mcmc.burn_in, or start again with another seed"
    )


def longer_run(run: Run) -> str:
    """Return the command of a run from where this one ended, with burn-in again and twice the draws."""
    longer = run.path.with_name(f"{run.path.stem}-longer{run.path.suffix}")
    origin = quoted(f"mcmc.init={run.path.resolve()}")  # else relative to the folder of the config
    return (
        f"dpmix mcmc {quoted(run.path)} --output {quoted(longer)} --set {origin} "
        f"--set mcmc.draws={2 * run.draws}"
    )


def truncation_warning(
    last_weight: npt.ArrayLike, occupied: npt.ArrayLike, n_components: int, *, which: str = "last"
) -> str | None:
    """Warn where the truncation binds, and say what to do.

    Parameters
    ----------
    last_weight : float64 [...]
        Weight of the last component in each draw: the mass after all other sticks.
    occupied : int [...]
        Occupied components in each draw.
    n_components : int
        The truncation K.
    which : str
        Name of that component in the warning.

    Returns
    -------
    str or None
        One line; None where the truncation does not bind.
    """
    left_over = float(np.asarray(last_weight).mean())
    full = float((np.asarray(occupied) == n_components).mean())
    signs, several = [], np.size(last_weight) > 1
    if left_over > VISIBLE_WEIGHT:
        signs.append(f"the {which} component holds {left_over:.2%} of the mass" + " on average" * several)
    if full > FULL_SHARE:
        signs.append(f"all {n_components} components are occupied" + f" in {full:.0%} of the draws" * several)
    if not signs:
        return None
    return f"the truncation binds: {' and '.join(signs)}; raise model.components above {n_components}"


def truncation_warning_of(run: Run) -> str | None:
    """Return `truncation_warning` for the draws of a run, at least one."""
    occupied = run.sample_stats["occupied"]
    if run.kind == "mcmc":
        return truncation_warning(run.weights[..., -1], occupied, run.n_components)
    # Bayesian EM does not order its sticks by weight; the lightest component takes the place of the last.
    return truncation_warning(run.weights.min(axis=-1), occupied, run.n_components, which="lightest")


def floor_warning(
    variances: Array, least: npt.ArrayLike, channels: Sequence[str], *, by_modes: bool = False
) -> str | None:
    """Warn where a learned phi is near its lower bound, and say what to do.

    Parameters
    ----------
    variances : float64 [..., D]
        Diagonal of phi in each draw.
    least : float64 [D] or float
        Lower bound that the prior sets.
    channels : sequence of str
        D names.
    by_modes : bool
        Bayesian EM updated to modes, where empty components also pull phi down.

    Returns
    -------
    str or None
        One line; None where each channel's mean is at least ten times its lower bound.
    """
    means = variances.reshape(-1, len(channels)).mean(axis=0)
    low = [c for c, near in zip(channels, means < 10.0 * np.asarray(least), strict=True) if near]
    if not low:
        return None
    cause = (
        "empty components at their modes pull it there; set bem.update: mean"
        if by_modes
        else "very many events share a value there; spread them with data.atoms: tail or dither"
    )
    return (
        f"phi is down to the least that its prior allows in {', '.join(low)}: {cause}, "
        "or take phi out of model.learn"
    )


def by_channel_of(run: Run) -> dict[str, Array]:
    """Return m and the variances of phi where they are learned, float64 [chain, draw, channel]."""
    found, learned = {}, run.hyperparameters
    if "m" in learned:
        found["m"] = learned["m"]
    if "phi" in learned:
        found["variance phi"] = np.einsum("cdii->cdi", learned["phi"])
    return found


def _deciding(run: Run) -> list[Mixing]:
    """Return the mixing of the monitored quantities, with the limits of the run."""
    rule = run.config["mcmc"]["until"] or UntilConfig().model_dump()
    found = monitored(run)
    n_references = len(run.constants[REFERENCES]) if run.is_monitored else 0
    negligible = negligible_errors(run.attributes["n_events"], n_references, len(found))
    return [
        replace(
            _mixing(quantity, values),
            decides=True,
            negligible=float(error),
            rhat_limit=rule["rhat"],
            ess_limit=rule["ess"],
        )
        for (quantity, values), error in zip(found.items(), negligible, strict=True)
    ]


def _mixing(quantity: str, values: Array) -> Mixing:
    """Return the mixing of one quantity, float64 [chain, draw]."""
    if np.ptp(values) == 0.0:
        return Mixing(quantity, float(values.flat[0]), 0.0, np.nan, np.nan, np.nan)
    (r_hat,), (ess,) = r_hat_and_ess(values[..., None])
    tail = ess_tail(values)
    return Mixing(quantity, float(values.mean()), float(values.std()), float(ess), tail, float(r_hat))
