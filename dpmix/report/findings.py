"""Findings of a gating in sentences: the summary and the warnings of the report."""

from __future__ import annotations

import numpy as np

from dpmix.model.mixture import Ints
from dpmix.populations.result import INTERVAL, Gating
from dpmix.report.labels import effective_size, label, percent, shares
from dpmix.runs.diagnostics import GOOD_ESS, GOOD_R_HAT, Mixing, truncation_warning_of
from dpmix.runs.reader import Run

LOW_SUPPORT = 0.5  # share of the draws below which a population is reported
CHAINS_APART = 0.05  # drop in agreement between chains that exceeds chance
MANY_IMPLAUSIBLE = 0.05  # share of implausible events above which a sample is reported


def summary(gating: Gating) -> list[str]:
    """Return the main results in three sentences or paragraphs."""
    events, size = int(gating.n_events.sum()), shares(gating)
    samples, channels = count(len(gating.samples), "sample"), count(len(gating.channels), "channel")
    populations = count(gating.n_populations, "population")
    found = f"{populations} in {count(events, 'event')} from {samples} ({channels})."
    if len(gating.draws) > 1:
        low, high = np.quantile(gating.numbers, INTERVAL, method="inverted_cdf").astype(int)
        found += (
            f" The 90% credible interval for the number of populations is {low} to {high} "
            f"({draws_used(gating)})."
        )
    else:
        found += f" This is a point estimate ({draws_used(gating)}), without intervals."
    mean = float(np.nan_to_num(gating.certainty) @ gating.sizes.sum(axis=0) / max(events, 1))
    largest = int(np.argmax(size))
    certainty = (
        f"The largest population, {label(gating, largest)}, holds {percent(size[largest])} of the events. "
        f"The most probable population of an event has a mean probability of {mean:.1%}."
    )
    modes = count(len(gating.tree.heights), "mode")
    return [
        found,
        certainty,
        f"The tree of {modes} is cut at {gating.level:.3g} standard deviations ({gating.why}).",
    ]


def warnings(gating: Gating, run: Run, mixing: list[Mixing]) -> list[str]:
    """Return limitations that a reader must know before using the numbers, one line each."""
    lines = (
        _unfinished(run),
        _chains_apart(gating),
        _truncated(run),
        _slow_mixing(mixing),
        _low_support(gating),
        _empty(gating),
        _implausible(gating),
    )
    return [line for line in lines if line]


def draws_used(gating: Gating) -> str:
    """Return the draws that the gating uses, in words."""
    if gating.kind == "bem":
        return "the best start of Bayesian EM"
    return f"{count(len(gating.draws), 'draw')} from {count(gating.n_chains, 'chain')}"


def count(number: int, noun: str) -> str:
    """Return a number and its noun, for example "2 draws"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def numbers_of(populations: Ints, most: int = 20) -> str:
    """Return the numbers of populations, from 1, separated by commas."""
    numbers = [str(p + 1) for p in populations[:most]]
    return ", ".join(numbers) + (f" and {len(populations) - most} more" if len(populations) > most else "")


def _unfinished(run: Run) -> str | None:
    if run.complete:
        return None
    return f"The run is not complete: {run.committed} of {run.draws} draws were available."


def _chains_apart(gating: Gating) -> str | None:
    if gating.n_chains < 2:
        return None
    own = gating.agreement.diagonal()
    within = float(own[np.isfinite(own)].mean()) if np.isfinite(own).any() else 1.0
    between = float(gating.agreement[~np.eye(len(gating.agreement), dtype=bool)].mean())
    if not between < within - CHAINS_APART:
        return None
    return (
        f"Chains disagree: the adjusted Rand index between draws is {between:.2f} for different chains and "
        f"{within:.2f} within a chain. The intervals are too narrow. Increase mcmc.burn_in."
    )


def _truncated(run: Run) -> str | None:
    warning = truncation_warning_of(run) if run.committed else None
    return None if warning is None else f"{warning[0].upper()}{warning[1:]}."


def _slow_mixing(mixing: list[Mixing]) -> str | None:
    slow = [row for row in mixing if not row.good]
    if not slow:
        return None
    worst = min(slow, key=lambda row: row.ess_bulk if np.isfinite(row.ess_bulk) else np.inf)
    return (
        f"Slow mixing: {len(slow)} of {len(mixing)} monitored quantities have an effective sample size below "
        f"{GOOD_ESS} or R-hat above {GOOD_R_HAT}. The slowest is {worst.quantity}, with an effective sample "
        f"size of {effective_size(worst)} (R-hat {worst.r_hat:.2f}). For reliable intervals, increase "
        "mcmc.draws and mcmc.burn_in."
    )


def _low_support(gating: Gating) -> str | None:
    if len(gating.draws) < 2:
        return None
    weak = np.flatnonzero(gating.support < LOW_SUPPORT)
    if not len(weak):
        return None
    return (
        f"Low support: fewer than half of the draws contain {count(len(weak), 'population')}: "
        f"{numbers_of(weak)}."
    )


def _empty(gating: Gating) -> str | None:
    empty = np.flatnonzero(gating.sizes.sum(axis=0) == 0)
    if not len(empty):
        return None
    return (
        f"No event has {count(len(empty), 'population')} as its most probable population: "
        f"{numbers_of(empty)}."
    )


def _implausible(gating: Gating) -> str | None:
    share = gating.n_implausible / np.maximum(gating.n_events, 1)
    many = np.flatnonzero(share > MANY_IMPLAUSIBLE)
    if not len(many):
        return None
    worst = int(many[np.argmax(share[many])])
    others = f" (more than 5% in {count(len(many) - 1, 'other sample')})" if len(many) > 1 else ""
    return (
        f"{share[worst]:.1%} of the events of {gating.samples[worst]} are implausible under the model"
        f"{others}. They may belong to populations that are absent from the data of the run."
    )
