"""Describe a run in plain lines: its setting, progress, mixing and speed, as `dpmix info` prints them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from logging import WARNING

import numpy as np

from dpmix.config.schema import BemConfig
from dpmix.inputs.events import RESOLUTION, describe_resolution
from dpmix.inputs.transforms import Scaling
from dpmix.model.bem import has_settled
from dpmix.model.coarsening import zeta_of
from dpmix.model.prior import PHI_FLOOR
from dpmix.runs import coarseness
from dpmix.runs.diagnostics import (
    ROUGH_DRAWS,
    Mixing,
    by_channel_of,
    convergence,
    floor_warning,
    truncation_warning_of,
)
from dpmix.runs.effective_size import MIN_DRAWS
from dpmix.runs.layout import POPULATION, REFERENCE, WEIGHTS
from dpmix.runs.profile import SPANS
from dpmix.runs.reader import Run
from dpmix.runs.until import stop_reason


def describe_run(run: Run) -> list[str]:
    """Describe the config, engine, progress, components, mixing and speed of a run."""
    described = _describe_mcmc(run) if run.kind == "mcmc" else _describe_bem(run)
    return [*_describe_setting(run), *described]


def describe_engine(engine: Mapping[str, object]) -> str:
    """Describe an engine in one line, from its `info` and the reason why it was chosen."""
    apart = "backend", "chosen", "parameters"
    details = {name: value for name, value in engine.items() if name not in apart}
    chosen = f" ({engine['chosen']})" if "chosen" in engine else ""
    return ", ".join(
        [f"{engine['backend']}{chosen}", *(f"{name} {value}" for name, value in details.items())]
    )


def describe_profile(run: Run) -> list[str]:
    """Describe where the time of a run went, one line per span; empty before its first checkpoint."""
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
    yield f"{run.path}: {method}, started {run.attributes['created']}"
    yield f"data: {run.attributes['n_events']:,} events of {files}"
    if WEIGHTS in run.constants:
        weights = run.constants[WEIGHTS]
        yield f"weights: an event counts {weights.min():.3g} to {weights.max():.3g}, by sample (data.weights)"
    yield f"channels ({len(run.channels)}): {', '.join(run.channels)}"
    if text := resolution_text(run):
        yield f"{RESOLUTION}: {text}"
    yield f"model: at most {run.n_components} components; {_posterior(run)}; seed {run.attributes['seed']}"
    if (choice := coarseness.choice_of(run)).is_chosen:
        yield f"coarseness: {coarseness.describe(choice)}"
    yield f"engine: {describe_engine(run.engine)}"
    yield f"versions: {versions}"


def resolution_text(run: Run) -> str:
    """Return the resolution of the channels of a run in words, "" if it is 0 in all."""
    if "resolution" not in run.scaling:  # versions that knew none
        return ""
    resolution = Scaling.from_attributes(run.scaling).resolution
    return describe_resolution(dict(zip(run.channels, resolution, strict=True)))


def _posterior(run: Run) -> str:
    """Return which posterior the run is of, in words."""
    if coarseness.choice_of(run).coarseness is None:
        return "exact posterior"
    full = run.config["model"]["full_events"] if run.kind == "mcmc" else 0.0
    text = f", the first {full:g} of a component in full for its mean and covariance" if full else ""
    return f"coarsened posterior, in which the events count as {_counted(run):,.0f}{text}"


def _counted(run: Run) -> float:
    """Return the number of events that the events count as."""
    return int(run.attributes["n_events"]) * _zeta(run)


def _zeta(run: Run) -> float:
    """Return what an event counts: 1 in the exact posterior."""
    return zeta_of(coarseness.choice_of(run).coarseness, int(run.attributes["n_events"]))


def _describe_mcmc(run: Run) -> Iterator[str]:
    trace, made = run.trace, int(run.sweeps_made.min())
    yield _progress(run)
    if reason := stop_reason(run):
        yield reason
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
    yield from _describe_moves(run)
    log_posterior = run.sample_stats["log_posterior"]
    yield f"log posterior: mean {log_posterior.mean():,.1f}, last {log_posterior[:, -1].mean():,.1f}"
    rows = convergence(run)
    yield from _describe_mixing(rows)
    yield from _explain(run, rows)
    if warning := truncation_warning_of(run):
        yield f"warning: {warning}"
    yield from _judge(run)


def _judge(run: Run) -> Iterator[str]:
    verdict = run.verdict
    yield f"{'warning' if verdict.level >= WARNING else 'verdict'}: {verdict}"


def _progress(run: Run) -> str:
    """Describe how many draws and sweeps are made; "at most" where mcmc.until may end them earlier."""
    made, burn_in = max(int(run.sweeps_made.min()), 0), run.config["mcmc"]["burn_in"]
    chains, total = len(run.trace["seconds"]), last_sweep(run)
    state = "complete" if run.complete else "not complete"
    each = f" of each of {chains} chains" if chains > 1 else ""
    most = "at most " if run.is_monitored else ""
    before = f"{run.burn_in} of at most {burn_in}" if run.burn_in_end not in (None, burn_in) else burn_in
    return (
        f"progress: {state}; {run.committed} of {most}{run.draws} draws{each}, "
        f"sweep {made} of {most}{total} (burn-in {before})"
    )


def last_sweep(run: Run) -> int:
    """Return the number of the last sweep of MCMC; with mcmc.until of the last possible one."""
    total = int(run.trace["seconds"].shape[1]) - 1
    return total - (run.config["mcmc"]["burn_in"] - run.burn_in if run.is_monitored else 0)


def _describe_moves(run: Run) -> Iterator[str]:
    """Describe acceptance rates; nothing for Bayesian EM."""
    rates = [
        f"{accepted:,} of {proposed:,} {'label swaps' if name == 'swaps' else name}"
        + (f" ({accepted / proposed:.1%})" if proposed else "")
        for name, (accepted, proposed) in run.moves.items()
    ]
    if rates:
        yield f"moves accepted after burn-in: {', '.join(rates)}"


def _describe_hyperparameters(run: Run) -> Iterator[str]:
    """Describe learned hyperparameters: means over the draws, or the values that Bayesian EM found."""
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
        yield f"mixing: not assessed with fewer than {MIN_DRAWS} draws"
        return
    families = {
        f"log density at {{}} {REFERENCE}s": [row for row in rows if REFERENCE in row.quantity],
        f"proportions of {{}} {POPULATION}s": [row for row in rows if POPULATION in row.quantity],
    }
    grouped = [row for family in families.values() for row in family]
    deciding = [(row.quantity, [row]) for row in rows if row.decides and row not in grouped]
    deciding += [(name.format(len(family)), family) for name, family in families.items() if family]
    others = [(row.quantity, [row]) for row in rows if not row.decides]
    width = max(len(name) for name, _ in deciding + others)
    yield f"mixing: {'':{width - 6}}   R-hat  bulk ESS  tail ESS"
    yield from (_mixing_line(name, family, width) for name, family in deciding)
    yield "  for information:"
    yield from (_mixing_line(name, family, width) for name, family in others)


def _mixing_line(name: str, rows: list[Mixing], width: int) -> str:
    """Describe the mixing of one quantity, or the worst R-hat and effective sample sizes of several."""
    if all(row.sd == 0.0 for row in rows):
        return f"  {name:{width}}  the same in every draw"
    if not (counted := [row for row in rows if not row.is_negligible]):
        return f"  {name:{width}}  {'negligible error':>26}"
    bulk, tail = min(row.ess_bulk for row in counted), min(row.ess_tail for row in counted)
    return f"  {name:{width}}  {max(row.r_hat for row in counted):6.3f}  {bulk:8,.0f}  {tail:8,.0f}"


def _explain(run: Run, rows: list[Mixing]) -> Iterator[str]:
    """Explain R-hat and ESS."""
    deciding = [row for row in rows if row.decides]
    if not deciding:
        return
    chains, draws = len(run.alpha), run.committed
    limits = deciding[0]
    parts = "the chains and their halves" if chains > 1 else "the halves of the chain"
    yield f"  The first {len(deciding)} quantities decide (mcmc.until); of several, the worst numbers."
    yield f"  R-hat compares {parts} (below {limits.rhat_limit:g} asked). ESS is the effective sample size"
    yield f"  for means (bulk; {limits.ess_limit:g} asked) and for 5% and 95% quantiles (tail)."
    if chains * draws < ROUGH_DRAWS:
        yield f"  {chains * draws} draws in all: R-hat and ESS are rough with fewer than {ROUGH_DRAWS}."
    if all(row.is_negligible for row in deciding):
        yield f"  R-hat compared nothing: the errors of all {len(deciding)} quantities are negligible."


def _update(run: Run) -> str:
    """Return whether Bayesian EM updates components to their posterior mean or mode."""
    return str(run.config["bem"]["update"])


def _bem_settings(run: Run) -> BemConfig:
    return BemConfig(**run.config["bem"])


def _describe_bem(run: Run) -> Iterator[str]:
    trace, made = run.trace, run.sweeps_made
    state = "complete" if run.complete else "not complete"
    settings, n_events = _bem_settings(run), run.attributes["n_events"]
    rest = ""
    if settings.short_steps is not None and len(made) > 1:
        size = settings.first_events(run.n_components, n_events)
        on_some = f" on {size:,} of the events" if size < n_events else ""
        rest = f", {settings.short_steps} steps each{on_some}; the best continues"
    yield f"progress: {state}; {int((made >= 0).sum())} of {len(made)} starts run{rest}"
    if (made > 0).any():
        yield _speed(run)
    begun = np.flatnonzero(made >= 0).tolist()
    ends = {start: float(trace["log_posterior"][start, made[start]]) for start in begun}
    end = float(run.sample_stats["log_posterior"][0, 0]) if run.complete else None
    kept = next((start for start in begun if ends[start] == end), None)
    unsettled = [start for start in begun if _ran_out(run, start)]
    for start, log_posterior in ends.items():
        occupied = trace["occupied"][start, made[start]]
        mark = (", not converged" if start in unsettled else "") + (" (kept)" if start == kept else "")
        yield (
            f"  start {start + 1}: {made[start]} steps, log posterior {log_posterior:,.1f}, "
            f"{occupied} occupied components{mark}"
        )
    if unsettled:
        yield f"warning: {len(unsettled)} of {len(begun)} starts had not converged by bem.max_steps; raise it"
    if run.complete:
        if run.emptied is not None:
            yield f"components emptied: {run.emptied} of {run.n_components} in the kept start"
        yield f"alpha: {run.alpha[0, 0]:.3g}"
        yield from _describe_hyperparameters(run)
        if warning := truncation_warning_of(run):
            yield f"warning: {warning}"


def _ran_out(run: Run, start: int) -> bool:
    """Return whether a start of Bayesian EM used all its steps and had not converged."""
    path = run.trace["log_posterior"][start]
    if run.sweeps_made[start] < len(path) - 1:
        return False
    before, after = path[-2:].tolist()
    return not has_settled(before, after, run.config["bem"]["tolerance"], _counted(run))


def _speed(run: Run) -> str:
    """Describe the median time of a sweep or step, which ignores pauses; of steps on all events, if any."""
    trace, n_events = run.trace["seconds"], run.attributes["n_events"]
    if run.kind == "bem":
        settings = _bem_settings(run)
        later = trace[:, settings.first_steps + 1 :]
        if np.isfinite(later).any():
            trace = later
        else:
            n_events = settings.first_events(run.n_components, n_events)
    seconds = float(np.nanmedian(trace))
    unit = "sweep" if run.kind == "mcmc" else "step"
    if not seconds > 0.0:  # the file is damaged, but its draws may be readable
        return f"speed: {seconds:.3g} s per {unit}"
    rate = n_events * run.n_components / seconds
    return f"speed: {seconds:.3g} s per {unit}, {rate / 1e6:,.0f} million events x components per second"
