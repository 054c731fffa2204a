"""What the figures and the report show, worked out once before either draws it.

D channels, K components, P populations, T draws, L modes; populations from 0, in the order of their size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import leaves_list, linkage

from dpmix.model.mixture import Array, Ints
from dpmix.populations.rasters import Rasters
from dpmix.populations.result import Gating, Map, interval
from dpmix.runs.diagnostics import Mixing
from dpmix.runs.reader import Run

# Of Okabe and Ito (2008), "Color Universal Design", the six that stand out from white and from black; then
# each time the colour whose least distance (Oklab) from those before it is the largest, as seen with normal
# sight and with protanopia, deuteranopia and tritanopia (matrices of Machado, Oliveira and Fernandes 2009,
# IEEE Trans. Vis. Comput. Graph. 15:1291). The large populations come first and so differ most; beyond a
# dozen no palette is safe, so every picture names the numbers too.
_HEX = (
    "0072b2d55e00009e73cc79a7e69f0056b4e97a1f00004770a366ffa33d33"
    "7000eba3c28f7000ad8f5c7a00d6e0cc0ab866334785ad70eb1fd6007052"
    "5c8f3d70478fad85ffcc99b885d6669933ffcc005c997099521f8f0a29cc"
    "8f3300cc705c70c252850a708570d6ad993deb8fff7a5c99a35c00eb66cc"
    "7a3d3d523d8fccc229d68f9970ccb8e014000a85eb7a3dd6298f7a85477a"
    "70145cf57ad6f500b85c47a3eb5c85cc47eb476633ff5c14f5a3ad66a3e0"
)
PALETTE = tuple(f"#{_HEX[i : i + 6]}" for i in range(0, len(_HEX), 6))
GREY = "#8c8c8c"

# What the levels of the tree are (`dpmix.populations.tree`).
LEVEL_NAME = "separation at which they merge (standard deviations)"

# Populations in one picture; the largest ones where there are more.
MOST_POPULATIONS = 60
# Leaves of a tree, unless there are more populations.
MOST_LEAVES = 48
# Modes that merge this far below the cut are one leaf.
FAR_BELOW = 0.25
# How often a reader sees in one panel that two populations lie apart there, others being in the way: two of
# them are shown apart more than once where there is room.
SEEN = 0.75
# Pairs of channels in the picture of those that set the populations apart.
MOST_PAIRS = 6
# Of the events of a channel, at either end: beyond the range that its colours tell.
TAIL = 0.01
# Populations whose ellipses are drawn together; more of them hide the events.
MOST_ELLIPSES = 20
# What a reader must know of the map.
MAP_NOTE = (
    "Neighbours are alike in all channels; how far apart islands lie, and how large they are, means nothing.",
    "Populations are not found on the map: an island may be of several, a population in several.",
)
# Of moving labels apart, at most.
SPREAD_ROUNDS = 200
# Points of a density that is drawn as a line.
DENSITY_POINTS = 400
# Squared radius that 90% of a bivariate normal lies within.
ELLIPSE = float(-2.0 * np.log(0.1))


def colour(population: int) -> str:
    """Of a population, as #rrggbb."""
    return PALETTE[population % len(PALETTE)]


def ink(background: str) -> str:
    """Black or white, whichever reads better on a colour (WCAG 2.1, relative luminance)."""
    channels = np.array([int(background[i : i + 2], 16) for i in (1, 3, 5)]) / 255.0
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return "#000000" if linear @ [0.2126, 0.7152, 0.0722] > 0.179 else "#ffffff"


def percent(share: float) -> str:
    """A share for a reader, to three digits at most."""
    if 0.0 < share < 1e-4:
        return "<0.01%"
    return f"{share:.1%}" if share >= 0.01 or share == 0.0 else f"{share:.2%}"


def shortened(text: str, width: int) -> str:
    """Cut in the middle to so many characters: both ends of a name tell."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return f"{text[: width - 1 - tail]}…{text[len(text) - tail :]}"


def phenotype(gating: Gating, population: int, width: int) -> str:
    """The phenotype in so many characters: where that of any population is longer, of each only the markers
    that are not negative, or the first ones where all are."""
    full = gating.phenotypes[population]
    if max(map(len, gating.phenotypes)) <= width:
        return full
    names = "|".join(re.escape(name) for name in sorted(gating.channels, key=len, reverse=True))
    parts = [part.rstrip(",") for part in re.findall(rf"(?:^|(?<=\s))(?:{names})[+-]\S*", full)]
    telling = [part for part in parts if part.endswith("+/-") or not part.endswith("-")]
    kept = ""
    for part in telling or parts:
        if len(kept) + len(part) + 3 > width:
            return f"{kept} …" if kept else shortened(part, width)
        kept = f"{kept} {part}".strip()
    return kept


def label(gating: Gating, population: int, width: int = 44) -> str:
    """Number and phenotype of a population, as "3 CD3+ CD4+"."""
    return f"{population + 1} {phenotype(gating, population, width)}".strip()


def shown(gating: Gating) -> int:
    """How many populations a picture shows."""
    return min(gating.n_populations, MOST_POPULATIONS)


def shares(gating: Gating) -> Array:
    """Posterior mean of the proportion in all samples, float64 [P]."""
    mean: Array = gating.overall.mean(axis=0)
    return mean


# ------------------------------------------------------------------------------------------- pairs


def moments(gating: Gating) -> tuple[Array, Array]:
    """Means [P, D] and covariances [P, D, D] of the populations by the mixture, transformed scale.

    NaN of a population that the reference draw has no component of.
    """
    held = np.zeros((gating.n_populations, len(gating.weights)))
    held[gating.components, np.arange(len(gating.weights))] = gating.weights
    total = held.sum(axis=1, keepdims=True)
    held = np.divide(held, total, out=np.full_like(held, np.nan), where=total > 0.0)
    means = held @ gating.means
    off = gating.means - means[gating.components]
    within = gating.covariances + off[:, :, None] * off[:, None, :]
    return means, np.einsum("pk,kij->pij", held, within)


def ellipse(covariance: Array) -> tuple[float, float, float]:
    """Full width, full height and angle (radians) of the 90% ellipse of a covariance [2, 2]."""
    spread, axes = np.linalg.eigh(covariance)
    low, high = 2.0 * np.sqrt(ELLIPSE * np.maximum(spread, 0.0))
    return float(high), float(low), float(np.arctan2(axes[1, 1], axes[0, 1]))


def separation(gating: Gating, pairs: Ints) -> Array:
    """How well each two of the populations shown lie apart in each pair of channels, 0 (not) to 1.

    1 - the Bhattacharyya coefficient of the two normals with the populations' moments (Bhattacharyya 1943,
    Bull. Calcutta Math. Soc. 35:99; of normals: Kailath 1967, IEEE Trans. Commun. 15:52).

    Returns
    -------
    float64 [pairs, Q (Q - 1) / 2]
        Q populations shown; two of them in the order of `numpy.triu_indices`. 0 where the moments of one are
        not known.
    """
    means, covariances = moments(gating)
    a, b = np.triu_indices(shown(gating), 1)
    apart = np.empty((len(pairs), len(a)))
    for row, pair in enumerate(pairs):
        mean, own = means[:, pair], covariances[np.ix_(np.arange(len(means)), pair, pair)]
        both = (own[a] + own[b]) / 2.0
        gap = mean[a] - mean[b]
        determinants = _determinant(own)
        adjugate = (
            both[:, 1, 1] * gap[:, 0] ** 2
            - 2.0 * both[:, 0, 1] * gap[:, 0] * gap[:, 1]
            + both[:, 0, 0] * gap[:, 1] ** 2
        )
        determinant = _determinant(both)
        ratio = np.sqrt(np.sqrt(determinants[a] * determinants[b]) / determinant)
        apart[row] = np.nan_to_num(1.0 - ratio * np.exp(-adjugate / determinant / 8.0))
    return apart


def _determinant(matrices: Array) -> Array:
    """Of 2 x 2 covariances, float64 [...]; never 0."""
    a, b, c = matrices[..., 0, 0], matrices[..., 0, 1], matrices[..., 1, 1]
    return np.maximum(a * c - b * b, 1e-12 * a * c + np.finfo(float).tiny)


def separating_pairs(gating: Gating) -> list[int]:
    """Pairs of channels (rows of `Rasters.pairs`) which together show every two populations apart.

    Taken one by one: each time the pair that adds most, over each two populations weighted by the geometric
    mean of their shares, to how surely a reader sees them apart; in one panel that is `SEEN` times their
    separation there. Ends when a pair would add less than 2%.
    """
    pairs = gating.rasters.pairs
    if not len(pairs):
        return []
    a, b = np.triu_indices(shown(gating), 1)
    if not len(a):
        spread = gating.covariances.diagonal(0, 1, 2).mean(axis=0)
        return [int(np.argmax(spread[pairs].sum(axis=1)))]
    size = shares(gating)
    weights = np.sqrt(size[a] * size[b])
    apart, missed = SEEN * separation(gating, pairs), np.ones(len(a))
    chosen: list[int] = []
    while len(chosen) < min(MOST_PAIRS, len(pairs)):
        gains = apart @ (missed * weights)
        gains[chosen] = 0.0
        pair = int(np.argmax(gains))
        if chosen and gains[pair] < 0.02 * weights.sum():
            break
        chosen.append(pair)
        missed *= 1.0 - apart[pair]
    return chosen


def map_told(gating: Gating, events: Map) -> str:
    """Which events are on the map, for a reader."""
    drawn, total = len(events.places), int(gating.n_events.sum())
    which = f"All {drawn:,} events" if drawn == total else f"{drawn:,} of {total:,} events, drawn at random,"
    numbered = shown(gating)
    few = f" Numbered: the {numbered} largest." if numbered < gating.n_populations else ""
    return f"{which} by t-SNE, each in the colour of its most probable population.{few}"


def map_window(events: Map) -> tuple[Array, float]:
    """Lower left corner, float64 [2], and side of the square that holds the map."""
    low, high = events.places.min(axis=0).astype(float), events.places.max(axis=0).astype(float)
    side = 1.06 * float((high - low).max()) or 1.0
    return (low + high - side) / 2.0, side


def map_point(events: Map) -> float:
    """Diameter of an event's point, as a share of the side of the map."""
    return float(np.clip(0.25 / np.sqrt(len(events.places)), 0.0025, 0.008))


def map_numbers(gating: Gating, events: Map) -> tuple[Ints, Array]:
    """The populations shown that are on the map, int64 [Q], and where their numbers stand, float64 [Q, 2].

    At the event nearest to the median of the population's, as that may lie between islands; above an island
    that the number would hide.
    """
    there = np.intersect1d(events.populations, np.arange(shown(gating)))
    points, (_, side) = np.empty((len(there), 2)), map_window(events)
    for row, population in enumerate(there):
        own = events.places[events.populations == population].astype(float)
        away = np.linalg.norm(own - np.median(own, axis=0), axis=1)
        points[row] = own[away.argmin()]
        if np.median(away) < 0.02 * side:
            points[row, 1] += 0.025 * side + np.median(away)
    return there, points


def channel_ranges(rasters: Rasters) -> tuple[Array, Array]:
    """Where the middle of each channel's events lies, from the 1% to the 99% quantile, float64 [D] each.

    To a bin's width, from the rasters; the whole grid of a single channel.
    """
    lows, highs = rasters.edges[:, 0].copy(), rasters.edges[:, -1].copy()
    for channel, edges in enumerate(rasters.edges):
        with_it = np.argwhere(rasters.pairs == channel)
        if not len(with_it) or not rasters.counts[with_it[0, 0]].any():
            continue
        pair, place = with_it[0]
        events = rasters.counts[pair].sum(axis=1 - place)
        reached = np.append(0.0, np.cumsum(events)) / events.sum()
        lows[channel], highs[channel] = np.interp([TAIL, 1.0 - TAIL], reached, edges)
    return lows, highs


def spread_out(points: Array, apart: Array) -> Array:
    """Labels moved until they hardly overlap, near the points that they belong to.

    Parameters
    ----------
    points : float64 [n, 2]
    apart : float64 [2]
        Width and height that a label needs.

    Returns
    -------
    float64 [n, 2]
    """
    # Labels at one place are first taken apart by a little, in a direction of their own.
    turn = 2.4 * np.arange(len(points))
    places = points / apart + 0.01 * np.stack((np.cos(turn), np.sin(turn)), axis=1)
    for _ in range(SPREAD_ROUNDS):
        gap = places[:, None] - places[None]
        distance = np.linalg.norm(gap, axis=2) + np.eye(len(places))
        lacking = np.maximum(1.0 - distance, 0.0)
        np.fill_diagonal(lacking, 0.0)
        if not (lacking > 0.02).any():
            break
        places = places + 0.4 * (gap / distance[..., None] * lacking[..., None]).sum(axis=1)
    return places * apart


# ------------------------------------------------------------------------------------------ heatmap


@dataclass(frozen=True)
class Heat:
    """Medians of the populations' events, populations and channels alike beside each other.

    Attributes
    ----------
    populations : int64 [Q]
        Of the rows, the first on top; populations without events last.
    channels : int64 [D]
        Of the columns.
    medians : float64 [Q, D]
        Transformed scale, NaN where there are no events.
    levels : float64 [Q, D]
        The medians from 0, the 1% quantile of all events of the channel, to 1, the 99% quantile.
    """

    populations: Ints
    channels: Ints
    medians: Array
    levels: Array


def heat(gating: Gating) -> Heat:
    """The heatmap: rows and columns in the order of the leaves of average linkage, turned so that neighbours
    are as alike as can be (Bar-Joseph, Gifford and Jaakkola 2001, Bioinformatics 17:S22)."""
    medians = gating.quantiles[2, : shown(gating)]
    lows, highs = channel_ranges(gating.rasters)
    levels = np.clip((medians - lows) / np.maximum(highs - lows, np.finfo(float).tiny), 0.0, 1.0)
    there = np.flatnonzero(~np.isnan(levels).any(axis=1))
    rows = np.append(there[_alike(levels[there])], np.setdiff1d(np.arange(len(levels)), there))
    columns = _alike(levels[there].T)
    return Heat(rows, columns, medians[np.ix_(rows, columns)], levels[np.ix_(rows, columns)])


def _alike(rows: Array) -> Ints:
    """An order of rows in which neighbours are alike, the first as it comes in theirs."""
    if len(rows) < 3 or not rows.shape[1]:
        return np.arange(len(rows))
    order: Ints = leaves_list(linkage(rows, "average", optimal_ordering=True)).astype(np.int64)
    return order if order[0] <= order[-1] else order[::-1]


# --------------------------------------------------------------------------------------------- tree


@dataclass(frozen=True)
class Leaf:
    """Modes that one leaf of the drawn tree stands for.

    Attributes
    ----------
    modes : int
        How many.
    populations : tuple of int
        That they are in: one, unless there are too many populations to draw each.
    """

    modes: int
    populations: tuple[int, ...]


@dataclass(frozen=True)
class Dendrogram:
    """A tree of modes laid out: leaf i at position i, merges at their levels.

    Attributes
    ----------
    leaves : tuple of Leaf
    floor : float
        Level that the leaves are drawn from: what merges below is one leaf.
    levels : float64 [n, 4]
        Of the bracket of each merge: lower end, corner, corner, lower end.
    positions : float64 [n, 4]
        The same, across.
    populations : int64 [n]
        Population that lies wholly in the merge's two sides, -1 where there are several.
    """

    leaves: tuple[Leaf, ...]
    floor: float
    levels: Array
    positions: Array
    populations: Ints


def dendrogram(gating: Gating) -> Dendrogram:
    """Lay out the tree: what merges far below the cut is drawn as one leaf, so that a page holds it."""
    tree = gating.tree
    levels = np.minimum(tree.levels, 2.0 * np.max(tree.levels, initial=0.0, where=np.isfinite(tree.levels)))
    count = _collapsed(tree.levels, gating.level, gating.n_populations)
    floor = _floor(levels, count, gating.level)

    of_mode = [{population} for population in gating.modes.tolist()]
    into = list(range(len(of_mode)))
    modes = [1] * len(of_mode)
    merges = _of_those_left(tree.merges)
    for child, parent in merges[:count]:
        modes[parent] += modes[child]
        of_mode[parent] |= of_mode[child]
        into[child] = parent
    roots = [mode for mode, target in enumerate(into) if target == mode]

    order = _leaf_order(roots, merges[count:], {r: min(of_mode[r]) for r in roots})
    leaves = tuple(Leaf(modes[root], tuple(sorted(of_mode[root]))) for root in order)
    place = {root: float(position) for position, root in enumerate(order)}
    height = dict.fromkeys(roots, floor)
    within = {root: set(of_mode[root]) for root in roots}
    drawn, across, populations = [], [], []
    for (child, parent), level in zip(merges[count:], levels[count:], strict=True):
        top = max(float(level), floor)
        drawn.append((height[child], top, top, height[parent]))
        across.append((place[child], place[child], place[parent], place[parent]))
        within[parent] |= within[child]
        populations.append(min(within[parent]) if len(within[parent]) == 1 else -1)
        place[parent], height[parent] = (place[child] + place[parent]) / 2.0, top
    return Dendrogram(
        leaves,
        floor,
        np.array(drawn).reshape(-1, 4),
        np.array(across).reshape(-1, 4),
        np.array(populations, np.int64),
    )


def _of_those_left(merges: Ints) -> list[tuple[int, int]]:
    """The merges, each side under the name that it has by then: a mode named may have merged before."""
    name = list(range(len(merges) + 1))
    found = []
    for child, parent in merges.tolist():
        while name[child] != child:
            child = name[child]
        while name[parent] != parent:
            parent = name[parent]
        name[child] = parent
        found.append((child, parent))
    return found


def _collapsed(levels: Array, cut: float, n_populations: int) -> int:
    """How many of the merges, the lowest, are not drawn."""
    modes = len(levels) + 1
    below_cut = int(np.searchsorted(levels, cut))
    far = int(np.searchsorted(levels, FAR_BELOW * cut))
    few_enough = modes - max(MOST_LEAVES, min(n_populations, 4 * MOST_LEAVES))
    return max(min(max(far, few_enough), below_cut), modes - 4 * MOST_LEAVES, 0)


def _floor(levels: Array, count: int, cut: float) -> float:
    """A level above 0 at or below all that is drawn, on an axis of logarithms."""
    seen = [value for value in (*levels[count:], cut) if 0.0 < value < np.inf]
    lowest = min(seen, default=1.0)
    return float(max(levels[count - 1], lowest / 10.0) if count and levels[count - 1] > 0.0 else lowest / 2.0)


def _leaf_order(roots: list[int], merges: list[tuple[int, int]], first: dict[int, int]) -> list[int]:
    """Roots in an order in which no two brackets cross, the side with the largest population first."""
    order = {root: [root] for root in roots}
    first = dict(first)
    for child, parent in merges:
        sides = sorted((parent, child), key=lambda mode: first[mode])
        order[parent] = order[sides[0]] + order[sides[1]]
        first[parent] = min(first[parent], first[child])
        del order[child]
    return [root for side in sorted(order, key=lambda mode: first[mode]) for root in order[side]]


# ------------------------------------------------------------------------------------------- traces


@dataclass(frozen=True)
class Trace:
    """The path of one quantity.

    Attributes
    ----------
    quantity : str
    values : float64 [chain, sweep]
        From the initial state on, NaN where nothing was made; [start, step] of Bayesian EM.
    mixing : Mixing or None
        None where it is not told: few draws, or Bayesian EM.
    """

    quantity: str
    values: Array
    mixing: Mixing | None

    @property
    def told(self) -> str:
        """R-hat and the effective number of draws, in words; "" where they are not told."""
        if self.mixing is None:
            return ""
        if self.mixing.sd == 0.0:
            return "the same in every draw"
        return f"R-hat {self.mixing.r_hat:.3f}, {effective(self.mixing)} effective draws"

    def window(self, from_sweep: int) -> tuple[float, float]:
        """Least and greatest value from a sweep on (of all where nothing was made by then), a little wider:
        the climb from the initial state would flatten all that follows."""
        later = self.values[:, min(from_sweep, self.values.shape[1] - 1) :]
        values = later if np.isfinite(later).any() else self.values
        if not np.isfinite(values).any():
            return 0.0, 1.0
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        return low - margin, high + margin


def traces(run: Run, mixing: list[Mixing]) -> list[Trace]:
    """Log posterior, occupied components and alpha of every chain, burn-in too, and how each mixes."""
    rows = {row.quantity: row for row in mixing}
    names = {"log posterior": "log_posterior", "occupied components": "occupied", "alpha": "alpha"}
    found = []
    for quantity, name in names.items():
        values = np.array(run.trace[name], float)
        if name == "occupied":
            values[values < 0] = np.nan
        found.append(Trace(quantity, values, rows.get(quantity)))
    return found


def burn_in(run: Run) -> int:
    """Sweeps before the first draw; 0 of Bayesian EM."""
    return int(run.config["mcmc"]["burn_in"]) if run.kind == "mcmc" else 0


def thinned(values: Array, most: int = 2000) -> Ints:
    """Where to draw a path with about so many points at most: its extremes in equal stretches.

    Parameters
    ----------
    values : float64 [n]
        NaN where nothing is.
    most : int

    Returns
    -------
    int64
        Ascending.
    """
    there = np.flatnonzero(np.isfinite(values))
    if len(there) <= most:
        return there
    stretches = np.array_split(there, most // 2)
    ends = [(part[values[part].argmin()], part[values[part].argmax()]) for part in stretches]
    return np.unique(np.append(np.array(ends), there[[0, -1]]))


def strength(counts: Ints) -> Array:
    """How dark each bin of a raster is drawn, 0 to 1: by the logarithm of its events. A few bins where events
    pile up do not make the others pale."""
    filled = counts[counts > 0]
    full = float(np.quantile(filled, 0.995)) if len(filled) else 1.0
    dark: Array = np.minimum(np.log1p(counts) / np.log1p(full), 1.0)
    return dark


def rgb(populations: npt.NDArray[np.integer], counts: Ints) -> npt.NDArray[np.float64]:
    """Colours of a raster: each bin that of its population, the paler the fewer events (log), [..., 3]."""
    table = np.array([[int(c[i : i + 2], 16) / 255.0 for i in (1, 3, 5)] for c in PALETTE])
    depth = np.where(counts > 0, 0.22 + 0.78 * strength(counts), 0.0)[..., None]
    colours: npt.NDArray[np.float64] = 1.0 - depth * (1.0 - table[populations % len(PALETTE)])
    return colours


def leaf_labels(gating: Gating, drawn: Dendrogram, size: Array) -> list[str]:
    """What stands at each leaf: the population at the first of its leaves, and of how many modes a leaf is.

    Parameters
    ----------
    gating : Gating
    drawn : Dendrogram
        Of it.
    size : float64 [P]
        Proportions.
    """
    seen: set[int] = set()
    modes: dict[int, int] = {}
    for leaf in drawn.leaves:
        modes[leaf.populations[0]] = modes.get(leaf.populations[0], 0) + leaf.modes
    labels = []
    for leaf in drawn.leaves:
        population = leaf.populations[0]
        if len(leaf.populations) > 1:
            labels.append(f"{len(leaf.populations)} populations")
        elif population in seen:
            labels.append(f"{population + 1}")
        else:
            of = f", {modes[population]} modes" if modes[population] > 1 else ""
            labels.append(f"{label(gating, population, 36)}  ({percent(size[population])}{of})")
        seen.add(population)
    return labels


def densities(gating: Gating) -> list[tuple[Array, Array]]:
    """Share times density of each population shown, of a single channel: places and values, float64 [n]."""
    places = np.linspace(gating.rasters.edges[0, 0], gating.rasters.edges[0, -1], DENSITY_POINTS)
    sds = np.sqrt(gating.covariances[:, 0, 0])
    units = (places[:, None] - gating.means[:, 0]) / sds
    each = gating.weights * np.exp(-0.5 * units**2) / (sds * np.sqrt(2.0 * np.pi))
    return [(places, each[:, gating.components == p].sum(axis=1)) for p in range(shown(gating))]


def share_limits(draws: Array, n_events: int) -> tuple[float, float]:
    """Ends of an axis (of logarithms) of proportions: no lower than a quarter of one of so many events."""
    mean, low, high = interval(draws)
    least = 0.25 / max(1, n_events)
    return max(least, 0.7 * float(min(low.min(), mean.min()))), min(1.0, 1.4 * float(high.max()))


def effective(mixing: Mixing) -> str:
    """The effective number of draws, for a reader."""
    return f"{mixing.ess_bulk:.1f}" if mixing.ess_bulk < 10.0 else f"{mixing.ess_bulk:,.0f}"


def ticks(low: float, high: float) -> list[float]:
    """Where an axis of logarithms is named: at 1, 2 and 5 of each power of ten; at the 1s alone where it is
    long, at every digit where it is short."""
    many = (1, 2, 5) if high < 1000.0 * low else (1,)
    for digits in (many, range(1, 10)):
        powers = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
        found = [digit * 10.0**power for power in powers for digit in digits]
        found = [place for place in found if low <= place <= high]
        if len(found) > 1:
            break
    return found
