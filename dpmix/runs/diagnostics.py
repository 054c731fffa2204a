"""What a run says about itself: progress, mixing, whether its truncation binds."""

from __future__ import annotations

import math
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import entr

from dpmix.model.mixture import PHI_FLOOR, Array
from dpmix.runs.draws import Run
from dpmix.runs.profile import SPANS

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
# Where more than so many times the draws would be needed, other things are of more use.
MOST_TIMES = 20


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
    for name, by_channel in _by_channel(run).items():
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


def describe_run(run: Run) -> list[str]:
    """A run in lines for a reader: config, progress, engine, components, mixing, speed."""
    described = _describe_mcmc(run) if run.kind == "mcmc" else _describe_bem(run)
    return [*_describe_setting(run), *described]


def describe_engine(engine: Mapping[str, object]) -> str:
    """An engine's `info` and why it was chosen, as the run file has them, in one line."""
    details = {name: value for name, value in engine.items() if name not in ("backend", "chosen")}
    chosen = f" ({engine['chosen']})" if "chosen" in engine else ""
    return ", ".join(
        [f"{engine['backend']}{chosen}", *(f"{name} {value}" for name, value in details.items())]
    )


def describe_profile(run: Run) -> list[str]:
    """Where the time of a run went, a line for every span; none before its first checkpoint."""
    total = sum(run.profile.values())
    if not total:
        return []
    width = max(map(len, SPANS.values()))
    return [
        f"time: {total:,.2f} s",
        *(
            f"  {SPANS[span]:{width}}  {seconds:10,.2f} s  {seconds / total:6.1%}"
            for span, seconds in run.profile.items()
        ),
    ]


def _describe_setting(run: Run) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
    data = run.config["data"]
    files = ", ".join(data["files"]) or data["samples"]
    method = "MCMC" if run.kind == "mcmc" else f"Bayesian EM by posterior {_update(run)}s"
    yield f"{run.path}: {method}, begun {run.attributes['created']}"
    yield f"data: {run.attributes['n_events']:,} events of {files}"
    yield f"channels ({len(run.channels)}): {', '.join(run.channels)}"
    yield f"model: at most {run.n_components} components; seed {run.attributes['seed']}"
    yield f"engine: {describe_engine(run.engine)}"
    yield f"versions: {versions}"


def _describe_mcmc(run: Run) -> Iterator[str]:
    trace, made = run.trace, int(run.sweeps_made.min())
    total = trace["seconds"].shape[1] - 1
    burn_in = run.config["mcmc"]["burn_in"]
    state = "complete" if run.complete else "not complete"
    chains = len(trace["seconds"])
    each = f" of each of {chains} chains" if chains > 1 else ""
    yield (
        f"progress: {state}; {run.committed} of {run.draws} draws{each}, "
        f"sweep {max(made, 0)} of {total} (burn-in {burn_in})"
    )
    if made > 0:
        yield _speed(run)
    if run.committed == 0:
        if made >= 0:
            yield f"log posterior at sweep {made}: {trace['log_posterior'][:, made].mean():,.1f}"
        return
    occupied, alpha = run.sample_stats["occupied"], run.alpha
    yield f"occupied components: mean {occupied.mean():.1f}, {occupied.min()} to {occupied.max()}"
    yield f"alpha: mean {alpha.mean():.3g}, sd {alpha.std():.2g}"
    yield from _describe_hyperparameters(run)
    log_posterior = run.sample_stats["log_posterior"]
    yield f"log posterior: mean {log_posterior.mean():,.1f}, last {log_posterior[:, -1].mean():,.1f}"
    rows = convergence(run)
    yield from _describe_mixing(rows)
    yield from _advise(run, rows)
    for warning in (disagreement_warning(rows, chains, run.committed), truncation_warning_of(run)):
        if warning:
            yield f"warning: {warning}"


def _describe_hyperparameters(run: Run) -> Iterator[str]:
    """Those that are learned: averages over the draws, or what Bayesian EM found."""
    mean, spread = ("mean ", True) if run.kind == "mcmc" else ("", False)
    for name, values in run.hyperparameters.items():
        if name in ("gamma", "nu"):
            yield f"{name}: {mean}{values.mean():.3g}" + (f", sd {values.std():.2g}" if spread else "")
    for name, by_channel in _by_channel(run).items():
        means = zip(run.channels, by_channel.mean(axis=(0, 1)), strict=True)
        yield f"{name}: {mean}{', '.join(f'{value:.3g} of {channel}' for channel, value in means)}"
    if "phi" in run.hyperparameters:
        sds = run.constants["channel_sds"] if run.transformed else 1.0
        least = PHI_FLOOR * np.asarray(run.config["model"]["prior"]["phi"]) * np.square(sds)
        by_modes = run.kind == "bem" and _update(run) == "mode"
        warning = floor_warning(_by_channel(run)["variance phi"], least, run.channels, by_modes=by_modes)
        if warning:
            yield f"warning: {warning}"


def _by_channel(run: Run) -> dict[str, Array]:
    """m and the variances of phi where they are learned, [chain, draw, channel]."""
    found, learned = {}, run.hyperparameters
    if "m" in learned:
        found["m"] = learned["m"]
    if "phi" in learned:
        found["variance phi"] = np.einsum("cdii->cdi", learned["phi"])
    return found


def _describe_mixing(rows: list[Mixing]) -> Iterator[str]:
    if not rows:
        yield f"mixing: told from {MIN_DRAWS} draws on"
        return
    width = max(len(row.quantity) for row in rows)
    yield f"mixing: {'':{width - 6}}   R-hat  bulk ESS  tail ESS"
    for row in rows:
        if row.sd == 0.0:
            yield f"  {row.quantity:{width}}  the same in every draw"
        else:
            yield f"  {row.quantity:{width}}  {row.r_hat:6.3f}  {row.ess_bulk:8,.0f}  {row.ess_tail:8,.0f}"


def _advise(run: Run, rows: list[Mixing]) -> Iterator[str]:
    """What the figures of the mixing mean, and what to do about them."""
    if not rows:
        return
    chains, draws = len(run.alpha), run.committed
    parts = "the chains, and their halves," if chains > 1 else "the halves of the chain"
    yield f"  R-hat: whether {parts} agree, as they do below {GOOD_R_HAT}. ESS: how many independent"
    yield f"  draws these are worth, for means (bulk) and 5% and 95% quantiles (tail); {GOOD_ESS} are enough."
    if chains * draws < ROUGH_DRAWS:
        yield f"  {chains * draws} draws in all: below {ROUGH_DRAWS} these figures are rough themselves."
    poor = [row for row in rows if not row.good]
    if poor:
        first, *others = _remedy(run, poor)
        yield f"  Not enough for {len(poor)} of {len(rows)} quantities: {first}"
        yield from (f"  {line}" for line in others)
    else:
        yield f"  Enough for all {len(rows)} quantities."
    if chains == 1:
        yield "  One chain cannot show whether another start would end elsewhere; mcmc.chains: 4 can."


def _remedy(run: Run, poor: list[Mixing]) -> list[str]:
    """How a run gets the effective draws that it lacks: these grow as draws do."""
    if not run.complete:
        return [f"{run.draws - run.committed} draws of each chain are still to come."]
    chains = len(run.alpha)
    times = max(2.0, *(GOOD_ESS / min(row.ess_bulk, row.ess_tail) for row in poor))
    if times > MOST_TIMES and chains * run.draws >= ROUGH_DRAWS:
        where = "by mcmc.chains: 4" if chains == 1 else "in the report of dpmix gate"
        return [
            f"it would take more than {MOST_TIMES} times the draws. Raise mcmc.draws",
            f"and mcmc.burn_in, and see {where} whether chains agree on what you need.",
        ]
    more = _rounded_up(times * run.draws)
    return [
        f"go on to some {more:,} draws of each chain:",
        f"dpmix mcmc {shlex.quote(str(run.path))} --resume --set mcmc.draws={more}",
    ]


def _rounded_up(number: float) -> int:
    """To two digits."""
    unit = int(10 ** max(len(str(int(number))) - 2, 0))
    return math.ceil(number / unit) * unit


def _update(run: Run) -> str:
    """To what Bayesian EM takes components."""
    return str(run.config["bem"]["update"])


def _describe_bem(run: Run) -> Iterator[str]:
    trace, made = run.trace, run.sweeps_made
    state = "complete" if run.complete else "not complete"
    yield f"progress: {state}; {int((made >= 0).sum())} of {len(made)} starts begun"
    if (made > 0).any():
        yield _speed(run)
    begun = np.flatnonzero(made >= 0).tolist()
    ends = {start: float(trace["log_posterior"][start, made[start]]) for start in begun}
    kept = max(ends, key=lambda start: ends[start]) if run.complete and ends else None
    unsettled = [start for start in begun if _ran_out(run, start)]
    for start, log_posterior in ends.items():
        occupied = trace["occupied"][start, made[start]]
        mark = (", not settled" if start in unsettled else "") + (" (kept)" if start == kept else "")
        yield (
            f"  start {start + 1}: {made[start]} steps, log posterior {log_posterior:,.1f}, "
            f"{occupied} components occupied{mark}"
        )
    if unsettled:
        yield f"warning: {len(unsettled)} of {len(begun)} starts had not settled by bem.max_steps; raise it"
    if run.complete:
        yield f"alpha: {run.alpha[0, 0]:.3g}"
        yield from _describe_hyperparameters(run)
        if warning := truncation_warning_of(run):
            yield f"warning: {warning}"


def _ran_out(run: Run, start: int) -> bool:
    """Whether a start of Bayesian EM ended with its steps and not because it had settled."""
    path, tolerance = run.trace["log_posterior"][start], run.config["bem"]["tolerance"]
    if run.sweeps_made[start] < len(path) - 1:
        return False
    return bool(abs(path[-1] - path[-2]) > tolerance * abs(path[-1]))


def _speed(run: Run) -> str:
    """Median over all sweeps made, so that a pause does not count."""
    seconds = float(np.nanmedian(run.trace["seconds"]))
    unit = "sweep" if run.kind == "mcmc" else "step"
    if not seconds > 0.0:  # a file that says so is damaged, but its draws may be read
        return f"speed: {seconds:.3g} s a {unit}"
    rate = run.attributes["n_events"] * run.n_components / seconds
    return f"speed: {seconds:.3g} s a {unit}, {rate / 1e6:,.0f} million events times components a second"


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
