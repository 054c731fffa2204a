"""Findings of a gating in sentences: the summary and the warnings of the report."""

from __future__ import annotations

import numpy as np

from dpmix.model.mixture import Ints
from dpmix.populations.events.artefacts import KINDS
from dpmix.populations.events.estimates import INTERVAL, LEAST_DRAWS
from dpmix.populations.explored import next_number
from dpmix.populations.gates.strategy import GOOD
from dpmix.populations.result import Gating
from dpmix.populations.tree.support import MAJORITY
from dpmix.report.labels import label, shares
from dpmix.runs.diagnostics import truncation_warning_of
from dpmix.runs.effective_size import MIN_DRAWS
from dpmix.runs.reader import Run
from dpmix.system.console import first_few, percent

BORDER = 1.25  # ratio of the proportions by two shapes from which the report names a population
LOW_ESS = 100  # effective sample size below which the ends of an interval are rough
NEARLY_ALL = 0.95  # share of the events in one population that a sample of several markers rarely has
SEVERAL_CHANNELS = 4
MANY_IMPLAUSIBLE = 0.05  # share of implausible events above which a sample is reported


def summary(gating: Gating) -> list[str]:
    """Return the main results in three or four sentences or paragraphs."""
    events, size = int(gating.n_events.sum()), shares(gating)
    samples, channels = count(len(gating.samples), "sample"), count(len(gating.channels), "channel")
    populations = count(gating.n_populations, "population")
    found = f"{populations} in {count(events, 'event')} from {samples} ({channels})."
    if len(gating.draws) > 1:
        low, high = np.quantile(gating.numbers, INTERVAL, method="inverted_cdf").astype(int)
        found += (
            f" The 90% credible interval for the number of populations is {low} to {high} "
            f"({count(len(gating.numbers), 'draw')} from {count(gating.n_chains, 'chain')})."
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
    tree = f"The tree of {modes} is cut at {gating.level:.3g} standard deviations ({gating.why})."
    return [found, certainty, tree, *filter(None, [_sentence(artefacts(gating) or None)])]


def explored(gating: Gating) -> str:
    """Return a sentence about the events like those judged as wanted; empty without judgements."""
    if gating.exploration is None:
        return ""
    found, judged = gating.exploration.found, count(len(gating.exploration.judgements.rows), "judgement")
    return (
        f"explored cells (population {next_number(gating.labels, gating.n_populations)}): "
        f"{found.n_found:,} found from {judged}; "
        f"probably {found.number:,.0f} in all ({found.low:,.0f} to {found.high:,.0f})"
    )


def artefacts(gating: Gating) -> str:
    """Return a sentence about debris, doublets and dead cells; empty where none was found, or looked for."""
    sizes, found = gating.sizes.sum(axis=0), []
    for kind in KINDS:
        own = np.array([p for p, mark in enumerate(gating.artefacts) if mark == kind], np.int64)
        if len(own):
            share = percent(sizes[own].sum() / gating.n_events.sum())
            what = f"{'look' if len(own) > 1 else 'looks'} like {kind}"
            found.append(
                f"{count(len(own), 'population')} ({numbers_of(gating, own)}), {share} of the events, {what}"
            )
    if not found:
        return ""
    used = "left out of" if gating.without_artefacts else "counted in"
    return f"{'; '.join(found)}; {used} the proportions"


def warnings(gating: Gating, run: Run) -> list[str]:
    """Return limitations that a reader must know before using the numbers, one line each."""
    lines = (
        *(f"{warning}." for warning in gating.warnings),
        _sentence(unfinished_warning(run)),
        _sentence(few_draws_warning(gating)),
        _sentence(one_population_warning(gating)),
        _sentence(truncation_warning_of(run) if run.committed else None),
        _low_support(gating),
        _empty(gating),
        _implausible(gating),
        _sentence(poor_gates_warning(gating)),
    )
    return [line for line in lines if line]


def unfinished_warning(run: Run) -> str | None:
    """Warn of a run that is not complete; None for a complete one."""
    if run.complete:
        return None
    return f"the run is not complete: {run.committed} of {run.draws} draws were available"


def few_draws_warning(gating: Gating) -> str | None:
    """Warn of intervals from too few draws for 90%; None for enough draws, and for a single one."""
    n_draws = len(gating.draws)
    if not 1 < n_draws < LEAST_DRAWS:
        return None
    return (
        f"the 90% intervals are from {n_draws} draws, and contain a further draw with probability "
        f"{(n_draws - 1) / (n_draws + 1):.0%}; gate with {LEAST_DRAWS} draws or more (--draws), or make more"
    )


def one_population_warning(gating: Gating) -> str | None:
    """Warn where one population has nearly all events of several channels; None where it has not."""
    size, n_channels = shares(gating), len(gating.channels)
    largest = int(np.argmax(size))
    if n_channels < SEVERAL_CHANNELS or size[largest] <= NEARLY_ALL:
        return None
    return (
        f"population {gating.number(largest)} has {percent(size[largest])} of the events in {n_channels} "
        "channels: if there are several cell types, look at the transform of each channel (dpmix info), use "
        "the channels that tell them apart (data.channels), and give the error of a measurement "
        "(data.resolution)"
    )


def poor_gates_warning(gating: Gating) -> str | None:
    """Warn of populations with events that simple gates do not isolate; None if they isolate all."""
    added = () if gating.explored_strategy is None else (gating.explored_strategy,)
    found = (*gating.strategies, *added)
    poor = np.array([p for p, s in enumerate(found) if s.size and not s.good], np.int64)
    if not len(poor):
        return None
    return (
        f"gates in two markers do not isolate {count(len(poor), 'population')} (F1 below {GOOD:g}): "
        f"{numbers_of(gating, poor)}"
    )


def border_note(gating: Gating) -> str:
    """Name the populations whose interval is wide because of their shape; "" for none."""
    errors = np.hypot(np.log(gating.shape_ratios), gating.overlaps)
    found = np.flatnonzero(errors > np.log(BORDER))
    if not len(found):
        return ""
    return (
        f"The interval is wide for population{'s' if len(found) > 1 else ''} {numbers_of(gating, found)}: "
        "the border to the neighbours depends on the shape that is assumed for the populations."
    )


def mixing_note(gating: Gating) -> str:
    """Return limits of R-hat and effective sample size in the table, in sentences; "" where all are fine."""
    if not gating.verdict.is_known:
        return f"Empty: {MIN_DRAWS} draws of each chain are needed, and the run has {gating.verdict.n_draws}."
    few = np.flatnonzero(gating.ess < LOW_ESS)
    notes = []
    if len(few):
        several = "s" if len(few) > 1 else ""
        notes.append(
            f"Below {LOW_ESS}, the ends of the interval are rough: population{several} "
            f"{numbers_of(gating, few)}."
        )
    if np.isnan(gating.r_hat).any():
        notes.append("Empty for a proportion that is the same in every draw.")
    return " ".join(notes)


def draws_used(gating: Gating) -> str:
    """Return the draws that the gating uses, in words."""
    if gating.kind == "bem":
        return "the best start of Bayesian EM"
    return f"{count(len(gating.draws), 'draw')} from {count(gating.n_chains, 'chain')}"


def count(number: int, noun: str) -> str:
    """Return a number and its noun, for example "2 draws"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def numbers_of(gating: Gating, populations: Ints, most: int = 20) -> str:
    """Return the numbers of populations, separated by commas."""
    return first_few([str(gating.number(p)) for p in populations], most)


def _sentence(warning: str | None) -> str | None:
    return None if warning is None else f"{warning[0].upper()}{warning[1:]}."


def _low_support(gating: Gating) -> str | None:
    if len(gating.draws) < 2:
        return None
    weak = np.flatnonzero(gating.support <= MAJORITY)
    if not len(weak):
        return None
    return (
        f"Low support: at most {MAJORITY:.0%} of the draws contain {count(len(weak), 'population')}: "
        f"{numbers_of(gating, weak)}."
    )


def _empty(gating: Gating) -> str | None:
    empty = np.flatnonzero(gating.sizes.sum(axis=0) == 0)
    if not len(empty):
        return None
    return (
        f"No event has {count(len(empty), 'population')} as its most probable population: "
        f"{numbers_of(gating, empty)}."
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
