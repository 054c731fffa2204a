"""Figures of the samples of a study: a map of all samples, and the values of each response by group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from dpmix.association.columns import text_of
from dpmix.association.design import Contrast
from dpmix.association.effects import ABUNDANCE
from dpmix.association.study import Study, count_responses, count_weights
from dpmix.model.mixture import Array, Ints
from dpmix.populations.events.estimates import INTERVAL, Estimates
from dpmix.populations.events.proportions import posterior, posterior_mean
from dpmix.report.drawing import labels_apart, new_figure, percent_axis, place_texts, within_margins
from dpmix.report.labels import label, shortened
from dpmix.report.palette import GREY, colour

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_STRIPS = 24  # responses
STRIP_WIDTH = 0.6  # of the samples of a group
MAP_SIZE = 4.3, 4.0  # of the axes of the map, inches
MAP_MARGIN = 0.12  # around its points, as a share of their range
MOST_NAMES = 60  # samples of a map that have names
LINE: Any = {"color": "#aaaaaa", "linewidth": 0.6, "zorder": 0}  # of samples that belong together


@dataclass(frozen=True)
class Groups:
    """Places and colours of the samples, by the groups of a contrast or against a column of numbers.

    Attributes
    ----------
    column : str
    places : float64 [S]
    ticks : mapping of float to str
        Names of the groups; empty for a column of numbers.
    colours : S str
    key : mapping of str to str
        Names of the colours.
    units : list of int64 [samples of a unit]
        Samples that belong together, for example to a donor, from left to right: lines join them.
    """

    column: str
    places: Array
    ticks: dict[float, str]
    colours: list[str]
    key: dict[str, str]
    units: list[Ints]


def groups_of(study: Study, contrast: Contrast) -> Groups:
    """Return the samples in the groups of a contrast."""
    values = study.design.table[contrast.column]
    if contrast.groups is None:
        numbers = np.array(values, np.float64)
        return Groups(contrast.column, numbers, {}, _shades(numbers), {}, _units(study, numbers))
    others = [value for value in dict.fromkeys(values) if value not in contrast.groups]
    kinds = [*reversed(contrast.groups), *others]
    at = np.array([kinds.index(value) for value in values])
    places = at.astype(np.float64)
    for kind in range(len(kinds)):
        own = np.flatnonzero(at == kind)
        places[own] += STRIP_WIDTH * ((np.arange(len(own)) + 0.5) / len(own) - 0.5)
    names = [text_of(kind) for kind in kinds]
    colours = [colour(k) if k < 2 else GREY for k in range(len(kinds))]
    key = dict(zip(names[:2], colours, strict=False)) | ({"other": GREY} if others else {})
    return Groups(
        contrast.column,
        places,
        dict(enumerate(names)),
        [colours[k] for k in at],
        key,
        _units(study, places),
    )


def _shades(numbers: Array) -> list[str]:
    """Return colours for a column of numbers, darker for smaller ones."""
    import matplotlib
    from matplotlib.colors import to_hex

    shares = (numbers - numbers.min()) / max(float(np.ptp(numbers)), 1e-12)
    return [to_hex(shade) for shade in matplotlib.colormaps["viridis"](0.9 * shares)]


def _units(study: Study, places: Array) -> list[Ints]:
    """Return the samples of each level of the first random effect, in the order of their places."""
    column = study.design.terms[0].partition("|")[2].strip() if study.design.terms else ""
    if column not in study.design.table:
        return []
    cells = np.array([str(cell) for cell in study.design.table[column]])
    found = [np.flatnonzero(cells == cell) for cell in dict.fromkeys(cells.tolist())]
    return [own[np.argsort(places[own], kind="stable")] for own in found if len(own) > 1]


@dataclass(frozen=True)
class Strips:
    """Values of Q responses in the samples, with 90% intervals: proportions, or medians.

    Attributes
    ----------
    titles : Q str
    mean, low, high : float64 [S, Q]
    is_share : bool
    """

    titles: list[str]
    mean: Array
    low: Array
    high: Array
    is_share: bool

    @property
    def axis(self) -> str:
        what = "proportion of the sample" if self.is_share else "median of the sample, transformed scale"
        return f"{what}: mean and 90% interval"


def strips_of(study: Study, contrast: Contrast, measure: str, share: float, seed: int) -> Strips:
    """Return the values of the first `MOST_STRIPS` responses of a contrast, those found first.

    Parameters
    ----------
    study : Study
    contrast : Contrast
    measure : str
        `ABUNDANCE` or `EXPRESSION`.
    share : float
        Accepted share of false discoveries.
    seed : int
        Seed of the intervals of proportions.
    """
    (own,) = [e for e in study.effects if e.measure == measure and e.contrast == contrast.name]
    order = own.order(share)[:MOST_STRIPS]
    width = 30 if measure == ABUNDANCE else 22
    titles = [response_name(study, int(own.populations[q]), int(own.channels[q]), width) for q in order]
    if measure == ABUNDANCE:
        found = Estimates.of(posterior_mean(study.draws.counts), posterior(study.draws.counts, seed))
        least = 0.25 / max(1.0, float(study.draws.counts[0].sum(axis=1).min()))  # a quarter of an event
        mean, low, high = (np.maximum(end[:, order], least) for end in found)
        return Strips(titles, mean, low, high, is_share=True)
    assert study.medians is not None
    means, variances = (part[:, order] for part in study.medians)
    half = stats.norm.ppf(INTERVAL[1]) * np.sqrt(variances)
    return Strips(titles, means, means - half, means + half, is_share=False)


def own_name(study: Study, population: int, width: int = 44) -> str:
    """Return the number and phenotype of a population, or the name of a type."""
    if study.draws.by_type:
        return shortened(study.draws.phenotypes[population], width)
    return label(study.draws, population, width)


def response_name(study: Study, population: int, channel: int, width: int = 44) -> str:
    """Return the name of a response: its population, and its channel for expression."""
    own = own_name(study, population, width)
    return own if channel < 0 else f"{study.draws.channels[channel]} in {own}"


def strips(shown: Strips, groups: Groups) -> Figure:
    """Draw the value of each response in each sample, with its 90% interval, by group."""
    columns = min(4, len(shown.titles))
    rows = -(-len(shown.titles) // columns)
    figure = new_figure(2.4 * columns, 1.9 * rows + 0.3)
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes in grid[len(shown.titles) :]:
        axes.set_axis_off()
    for q, (title, axes) in enumerate(zip(shown.titles, grid, strict=False)):
        for own in groups.units:
            axes.plot(groups.places[own], shown.mean[own, q], **LINE)
        ends = shown.low[:, q], shown.high[:, q]
        axes.vlines(groups.places, *ends, colors=groups.colours, linewidth=1.2, alpha=0.6)
        axes.scatter(groups.places, shown.mean[:, q], c=groups.colours, s=8)
        if groups.ticks:
            axes.set_xticks(list(groups.ticks), list(groups.ticks.values()))
            axes.set_xlim(-0.5, len(groups.ticks) - 0.5)
        if shown.is_share:
            percent_axis(axes, "y")
        axes.set_title(title, fontsize=7)
        axes.grid(axis="y", color="#dddddd", linewidth=0.5)
        axes.set_axisbelow(True)
    figure.supylabel(shown.axis, fontsize=8)
    figure.supxlabel(groups.column, fontsize=8)
    return figure


@dataclass(frozen=True)
class SampleMap:
    """Principal components of the samples by their proportions.

    Attributes
    ----------
    places : float64 [S, 2]
    shares : float64 [2]
        Shares of the variance.
    names, sides : S str
        Names to write next to the points, "" where they would cover another; their alignment.
    """

    places: Array
    shares: Array
    names: list[str]
    sides: list[str]

    def axis(self, k: int) -> str:
        return f"component {k + 1}: {self.shares[k]:.0%} of the variance"


def sample_map(study: Study) -> SampleMap:
    """Return the principal components of the logarithms of the proportions.

    Each is relative to the mean of the sample, and a rare population, whose counts are noisy, has less weight
    (weighted log-ratio analysis; Greenacre and Lewi 2009, J. Classif. 26:29). The sign of a component is such
    that the population that matters most for it grows along it.
    """
    values, variances = count_responses(study.draws.counts)
    moved = (values - values.mean(axis=0)) * np.sqrt(count_weights(variances))
    left, sizes, right = np.linalg.svd(moved, full_matrices=False)
    largest = right[np.arange(len(right)), np.abs(right).argmax(axis=1)]
    places, shares = np.zeros((len(values), 2)), np.zeros(2)
    n = min(2, len(sizes))
    places[:, :n] = (left * sizes * np.sign(largest))[:, :n]
    shares[:n] = sizes[:n] ** 2 / max(float((sizes**2).sum()), 1e-300)
    texts = [shortened(name, 24) if len(places) <= MOST_NAMES else "" for name in study.draws.samples]
    return SampleMap(
        places, shares, *labels_apart(within_margins(places, (MAP_MARGIN, MAP_MARGIN)), texts, MAP_SIZE)
    )


def draw_map(study: Study, groups: Groups) -> Figure:
    """Draw the samples by their proportions: similar samples are near each other."""
    found = sample_map(study)
    figure = new_figure(5.6, 4.6)
    axes = figure.add_subplot()
    for own in groups.units:
        axes.plot(*found.places[own].T, **LINE)
    axes.scatter(found.places[:, 0], found.places[:, 1], c=groups.colours, s=22)
    for name, shown in groups.key.items():
        axes.scatter([], [], c=shown, s=22, label=name)
    if groups.key:
        axes.legend(title=groups.column, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.margins(MAP_MARGIN)
    place_texts(axes, found.places, found.names, found.sides)
    axes.set_xlabel(found.axis(0))
    axes.set_ylabel(found.axis(1))
    axes.set_title(f"Samples by the proportions of their {study.draws.noun}s")
    return figure
