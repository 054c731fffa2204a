"""Describe a run in lines for a reader."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator, Mapping

import numpy as np

from dpmix.model.prior import PHI_FLOOR
from dpmix.runs.diagnostics import (
    GOOD_ESS,
    GOOD_R_HAT,
    MIN_DRAWS,
    ROUGH_DRAWS,
    Mixing,
    by_channel_of,
    convergence,
    disagreement_warning,
    floor_warning,
    truncation_warning_of,
)
from dpmix.runs.profile import SPANS
from dpmix.runs.reader import Run

# Where more than so many times the draws would be needed, other things are of more use.
MOST_TIMES = 20


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
    for name, by_channel in by_channel_of(run).items():
        means = zip(run.channels, by_channel.mean(axis=(0, 1)), strict=True)
        yield f"{name}: {mean}{', '.join(f'{value:.3g} of {channel}' for channel, value in means)}"
    if "phi" in run.hyperparameters:
        sds = run.constants["channel_sds"] if run.transformed else 1.0
        least = PHI_FLOOR * np.asarray(run.config["model"]["prior"]["phi"]) * np.square(sds)
        by_modes = run.kind == "bem" and _update(run) == "mode"
        warning = floor_warning(by_channel_of(run)["variance phi"], least, run.channels, by_modes=by_modes)
        if warning:
            yield f"warning: {warning}"


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
