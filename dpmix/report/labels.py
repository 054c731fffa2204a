"""Names, numbers and axis ticks for figures and the report."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.populations.events.estimates import Estimates
from dpmix.populations.gates.strategy import Gate
from dpmix.populations.result import Gating, with_type
from dpmix.system.console import percent

MOST_POPULATIONS = 60  # shown in one picture, the largest first
LEAST_ROOM = 8  # characters of a phenotype after a cell type


class Named(Protocol):
    """Names and numbers of populations: of a gating, or of the draws of its samples."""

    @property
    def names(self) -> tuple[str, ...]: ...

    @property
    def population_types(self) -> tuple[str, ...]: ...

    @property
    def phenotypes(self) -> tuple[str, ...]: ...

    def number(self, population: int) -> int: ...


def shortened(text: str, width: int) -> str:
    """Shorten a name in the middle, to `width` characters."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def phenotype(gating: Named, population: int, width: int) -> str:
    """Return the phenotype of a population, or its first markers, in at most `width` characters."""
    full = gating.phenotypes[population]
    first = textwrap.shorten(full, width, placeholder=" …")
    return shortened(full, width) if first.strip() == "…" else first


def label(gating: Named, population: int, width: int = 44) -> str:
    """Return number and phenotype of a population, for example "3 CD3+ CD4+", or its number and name."""
    return f"{gating.number(population)} {title(gating, population, width)}".strip()


def title(gating: Named, population: int, width: int) -> str:
    """Return the name that a population was given, or its phenotype, after its cell type.

    The text has at most `width` characters; a long type leaves no room for a phenotype.
    """
    name = gating.names[population] if gating.names else ""
    cell_type = "".join(gating.population_types[population : population + 1])
    if not cell_type or cell_type == name:
        return shortened(name, width) if name else phenotype(gating, population, width)
    room = width - len(cell_type) - len(": ")
    if room < LEAST_ROOM:
        return shortened(cell_type, width)
    return with_type(shortened(name, room) if name else phenotype(gating, population, room), cell_type)


def short_samples(samples: Sequence[str]) -> list[str]:
    """Return names of samples without the words that all begin or end with, in at most 24 characters."""
    words = [re.findall(r"[^\W_]+|[\W_]", name) for name in samples]
    start = end = 0
    least = min(map(len, words), default=0) if len(words) > 1 else 0
    while start < least - 1 and len({own[start] for own in words}) == 1:
        start += 1
    while end < least - 1 - start and len({own[-1 - end] for own in words}) == 1:
        end += 1
    short = ["".join(own[start : len(own) - end]).strip(" _-.") for own in words]
    return [shortened(own or name, 24) for own, name in zip(short, samples, strict=True)]


def named_channels(channels: Sequence[str], gate: Gate) -> str:
    """Return the channels of a gate in words."""
    *before, last = (channels[c] for c in gate.channels)
    return f"{', '.join(before)} and {last}"


def shown(gating: Gating) -> int:
    """Return the number of populations that a picture shows."""
    return min(gating.n_populations, MOST_POPULATIONS)


def share_rows(gating: Gating) -> Ints:
    """Return the row of each population shown, int64, in pictures of proportions: the largest first."""
    shown_first = [p for p in gating.order if p < shown(gating)]
    rows: Ints = np.argsort(shown_first)
    return rows


def shares(gating: Gating) -> Array:
    """Return the posterior mean of the proportions in all samples, float64 [P]."""
    return gating.overall.mean


def share_text(gating: Gating, population: int) -> str:
    """Format the proportion of a population in all samples; "left out" of an artefact without one."""
    return "left out" if gating.left_out[population] else percent(shares(gating)[population])


def first(estimates: Estimates, n_populations: int) -> Estimates:
    """Return the estimates of the first populations."""
    return Estimates(*(each[..., :n_populations] for each in estimates))


def share_limits(estimates: Iterable[Array], n_events: int) -> tuple[float, float]:
    """Return the ends of a logarithmic axis of proportions, at least a quarter of one event."""
    every = np.stack([*estimates])  # NaN: a sample without events, the interval of a single draw
    least, most = 0.7 * float(np.nanmin(every)), 1.4 * float(np.nanmax(every))
    return max(0.25 / max(1, n_events), least), min(1.0, most)


def fewest_events(gating: Gating) -> int:
    """Return the number of events of the smallest sample with events."""
    return int(gating.n_events[gating.n_events > 0].min())


def effective_size(ess: float) -> str:
    """Format an effective sample size."""
    return f"{ess:.1f}" if ess < 10.0 else f"{ess:,.0f}"


def mixing_cells(gating: Gating, population: int) -> tuple[str, str]:
    """Format R-hat and effective sample size of a population's proportion; "" where not known."""
    r_hat, ess = gating.r_hat[population], gating.ess[population]
    return ("", "") if np.isnan(r_hat) else (f"{r_hat:.2f}", effective_size(ess))


def ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis: at 1, 2 and 5 times each power of ten.

    A long axis has ticks at the powers of ten only, a short one at every digit.
    """
    many = (1, 2, 5) if high < 1000.0 * float(low) else (1,)
    for digits in (many, range(1, 10)):
        last = min(int(np.ceil(np.log10(high))), sys.float_info.max_10_exp)
        powers = range(int(np.floor(np.log10(low))), last + 1)
        found = [digit * 10.0**power for power in powers for digit in digits]
        found = [place for place in found if low <= place <= high]
        if len(found) > 1:
            break
    return found


def only_the_largest(gating: Gating) -> str:
    """Return a note if a picture does not show all populations, else ""."""
    drawn = shown(gating)
    return f": the {drawn} largest of {gating.n_populations}" if drawn < gating.n_populations else ""


def overall_note(gating: Gating) -> str:
    """Return what the proportions in all samples together are proportions of."""
    if gating.sample_weights is None:
        return "Proportion of the events in all samples"
    return "Proportion in all samples, each event with its weight in the run (data.weights)"


def estimate_note(gating: Gating) -> str:
    """Return which statistic of the proportions a picture shows."""
    if len(gating.proportions) > 1:
        return "posterior mean and 90% credible interval"
    return "point estimate, no interval" if gating.kind == "bem" else "single draw, no interval"
