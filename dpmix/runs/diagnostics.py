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

# The last weight is all the mass after the other sticks, which a longer mixture would divide further. More
# than one event in a thousand may be a population that a reader looks for.
VISIBLE_WEIGHT = 1e-3
# Occasional occupancy of all components is expected; in more than one draw in twenty the data need more.
FULL_SHARE = 0.05
# R-hat of 100 independent draws, in one chain or several, is below 1.1.
ROUGH_DRAWS = 100


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
        Limits of R-hat and of the bulk effective sample size: from mcmc.until, or its defaults.
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
        # A constant channel has no effective sample size, and is not the slowest.
        rows.append(min(channels, key=lambda row: np.nan_to_num(row.ess_bulk, nan=np.inf)))
    return [*_deciding(run), *rows]


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
        "or remove phi from model.learn"
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
