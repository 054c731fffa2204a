"""What a run says about itself: progress, mixing, whether its truncation binds."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from dpmix.model.mixture import Array
from dpmix.runs.reader import Run

# The last weight is all the mass that the sticks before it leave over, which a longer mixture would divide
# further; more than one event in a thousand is a population that a reader could look for.
VISIBLE_WEIGHT = 1e-3
# A full house now and then is chance; in more than one draw in twenty the data asked for more components.
FULL_SHARE = 0.05
# Vehtari et al. (2021), section 4.
GOOD_R_HAT = 1.01
GOOD_ESS = 400
# Above it chains are in different places. Of 100 independent draws, in one chain or several, it is below; of
# fewer it need not be, and says little.
BAD_R_HAT = 1.1
ROUGH_DRAWS = 100
# An R-hat so large is a variance of 0 within chains, but for rounding.
NO_MOVE_R_HAT = 1e6
# R-hat of one chain compares its quarters, each of two draws at least.
MIN_DRAWS = 8


@dataclass(frozen=True)
class Mixing:
    """How well one quantity of the chains is known; NaN where that cannot be told because it never moved.

    R-hat is infinite where a quantity moved only from one chain, or half of one, to another.

    Attributes
    ----------
    quantity : str
        In words.
    mean, sd : float
        Over all draws of all chains.
    ess_bulk, ess_tail : float
        Effective number of draws, for the middle and for the 5% tails of the distribution.
    r_hat : float
        Rank-normalised split R-hat.
    """

    quantity: str
    mean: float
    sd: float
    ess_bulk: float
    ess_tail: float
    r_hat: float

    @property
    def good(self) -> bool:
        """Whether the draws are enough for this quantity, by the usual rules (a constant is)."""
        if self.sd == 0.0:
            return True
        return self.r_hat < GOOD_R_HAT and min(self.ess_bulk, self.ess_tail) >= GOOD_ESS


def convergence(run: Run) -> list[Mixing]:
    """Mixing of quantities of the whole mixture, none of which follows one component by its number; of m and
    phi, where they are learned, in the channel that mixes worst.

    All but the log posterior are the same however the components are numbered. That depends on their order as
    the prior of the sticks does, over which the chain moves as well.

    Rank-normalised split R-hat and effective sample sizes of Vehtari, Gelman, Simpson, Carpenter and Buerkner
    (2021), Bayesian Analysis 16:667, as ArviZ computes them. The halves of a single chain stand for two
    chains in R-hat.

    Parameters
    ----------
    run : Run
        A chain; Bayesian EM has no mixing.

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
        "log likelihood": stats["log_likelihood"],
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
    return rows


def disagreement_warning(rows: Sequence[Mixing], chains: int, draws: int) -> str | None:
    """Whether chains, or the halves of a chain, are in different places, and what to do about it.

    Parameters
    ----------
    rows : sequence of Mixing
    chains, draws : int
        Chains, and draws of each.

    Returns
    -------
    str or None
        One line, or None where no R-hat is above 1.1 or where fewer than 100 draws in all cannot tell.
    """
    apart = [row for row in rows if row.r_hat > BAD_R_HAT]
    if not apart or chains * draws < ROUGH_DRAWS:
        return None
    worst = max(apart, key=lambda row: row.r_hat)
    others = f" and {len(apart) - 1} more" if len(apart) > 1 else ""
    who = "chains, or the halves of one, disagree" if chains > 1 else "the halves of the chain disagree"
    return (
        f"{who} on {worst.quantity} (R-hat {worst.r_hat:.2f}){others}: not yet draws of one posterior; raise "
        "mcmc.burn_in and mcmc.draws"
    )


def truncation_warning(
    last_weight: npt.ArrayLike, occupied: npt.ArrayLike, n_components: int, *, which: str = "last"
) -> str | None:
    """Whether the truncation binds, and what to do about it.

    Parameters
    ----------
    last_weight : float64 [...]
        Weight of the last component in every draw: what all sticks before it leave over.
    occupied : int [...]
        Occupied components in every draw.
    n_components : int
        The truncation K.
    which : str
        What that component is called.

    Returns
    -------
    str or None
        One line, or None where the truncation does not show.
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
    """`truncation_warning` of the draws of a run, one at least."""
    occupied = run.sample_stats["occupied"]
    if run.kind == "mcmc":
        return truncation_warning(run.weights[..., -1], occupied, run.n_components)
    # Nothing orders the sticks of Bayesian EM by weight: its last component is the lightest one.
    return truncation_warning(run.weights.min(axis=-1), occupied, run.n_components, which="lightest")


def floor_warning(
    variances: Array, least: npt.ArrayLike, channels: Sequence[str], *, by_modes: bool = False
) -> str | None:
    """Whether a learned phi lies near the least that its prior allows, and what to do about it.

    Parameters
    ----------
    variances : float64 [..., D]
        Diagonal of phi in every draw.
    least : float64 [D] or float
        What they exceed by the prior.
    channels : sequence of str
        D names.
    by_modes : bool
        Whether Bayesian EM went to modes, where empty components draw phi down, too.

    Returns
    -------
    str or None
        One line, or None where no channel's mean is within ten times of its least.
    """
    means = variances.reshape(-1, len(channels)).mean(axis=0)
    low = [c for c, near in zip(channels, means < 10.0 * np.asarray(least), strict=True) if near]
    if not low:
        return None
    cause = (
        "empty components at their modes draw it there; set bem.update: mean"
        if by_modes
        else "very many events share a value there; spread them with data.atoms: tail or dither"
    )
    return (
        f"phi is down to the least that its prior allows in {', '.join(low)}: {cause}, "
        "or take phi out of model.learn"
    )


def by_channel_of(run: Run) -> dict[str, Array]:
    """m and the variances of phi where they are learned, [chain, draw, channel]."""
    found, learned = {}, run.hyperparameters
    if "m" in learned:
        found["m"] = learned["m"]
    if "phi" in learned:
        found["variance phi"] = np.einsum("cdii->cdi", learned["phi"])
    return found


def _mixing(quantity: str, values: Array) -> Mixing:
    """Mixing of one quantity, [chain, draw]."""
    if np.ptp(values) == 0.0:
        return Mixing(quantity, float(values.flat[0]), 0.0, np.nan, np.nan, np.nan)
    from arviz_stats.base import array_stats  # of ArviZ what works on arrays: quick to import

    chains, draws = values.shape
    compared = values if chains > 1 else values[0, : draws // 2 * 2].reshape(2, -1)
    with warnings.catch_warnings():  # a variance within the halves may be 0
        warnings.simplefilter("ignore", RuntimeWarning)
        r_hat = float(array_stats.rhat(compared, chain_axis=0, draw_axis=1, method="rank"))
    return Mixing(
        quantity,
        float(values.mean()),
        float(values.std()),
        float(array_stats.ess(values, chain_axis=0, draw_axis=1, method="bulk")),
        float(array_stats.ess(values, chain_axis=0, draw_axis=1, method="tail", prob=(0.05, 0.95))),
        r_hat if r_hat < NO_MOVE_R_HAT else np.inf,
    )
