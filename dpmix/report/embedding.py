"""The map of a gating: some events in two dimensions by t-SNE. Populations are not found on it.

Its settings place 20,000 events in about 3 processor seconds, with neighbourhoods as good as slow settings
give (docs/benchmarks/end-to-end.md): the 15 nearest neighbours, all with the same weight (Damrich et al.
2023, From t-SNE to UMAP with contrastive learning, ICLR), repulsion on a grid (Linderman et al. 2019, Nat.
Methods 16:243) of wide cells, and few steps.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np

from dpmix.model.mixture import Array, Floats, Ints
from dpmix.model.streams import Step, Stream
from dpmix.populations.result import Gating, Map
from dpmix.report.labels import shown
from dpmix.system.extras import require_extra
from dpmix.system.progress import ProgressLog
from dpmix.system.threads import one_thread

MOST_EVENTS = 20_000
NEIGHBOURS = 15
CELL = 2.0  # width of the cells of the grid, in units of the map
LEAST_CELLS = 10  # on a side of the grid, while the map is small
MAP_NOTE = (
    "Neighbours are similar in all channels. Distances between islands and sizes of islands have no meaning.",
    "Populations are not defined on the map: an island may hold several; one may form several islands.",
)
EARLY, LATE, REPORT_EVERY = 50, 100, 10  # steps: with exaggeration, without, between progress reports
HINT = "no map: openTSNE is not installed; pip install 'dpmix-cytometry[map]' adds it"


def available() -> bool:
    """Return True if openTSNE is installed."""
    try:
        return find_spec("openTSNE") is not None
    except ValueError:  # an import that was blocked
        return False


def need() -> None:
    """Raise `ConfigError` if openTSNE is not installed."""
    require_extra("openTSNE", "map", "a map")


def place_events(values: Floats, seed: int) -> tuple[Ints, Floats]:
    """Place at most `MOST_EVENTS` random events on a map.

    Parameters
    ----------
    values : float32 [N, D]
        All events, standardised scale.
    seed : int
        Seed of the run. The same seed gives the same map, bit for bit, for any number of threads, but not for
        another version of openTSNE or another kind of processor.

    Returns
    -------
    rows : int64 [M]
        The events, in random order.
    places : float32 [M, 2]

    Raises
    ------
    ConfigError
        openTSNE is not installed.
    """
    need()
    random = Stream(seed, 0, 0).step(Step.MAP)
    rows = random.choice(len(values), min(len(values), MOST_EVENTS), replace=False)
    return rows, _embed(np.asarray(values[rows]), random)


def _embed(values: Floats, random: np.random.Generator) -> Floats:
    """Compute positions on the map, float32 [M, 2] (van der Maaten and Hinton 2008, J. Mach. Learn. Res.
    9:2579).

    Three events or fewer keep their initial positions.
    """
    from openTSNE import TSNE, affinity, nearest_neighbors
    from sklearn.neighbors import NearestNeighbors

    start = _principal(values, random)
    if len(values) <= 3:
        return start.astype(np.float32)
    progress = ProgressLog("drawing the map", EARLY + LATE)
    with one_thread(None):  # neighbours at the same distance could depend on the number of threads
        search = NearestNeighbors(n_neighbors=min(NEIGHBOURS, len(values) - 1), algorithm="brute")
        distances, near = search.fit(values).kneighbors()
        tsne = TSNE(
            early_exaggeration_iter=EARLY,
            n_iter=LATE,
            random_state=int(random.integers(2**31)),
            negative_gradient_method="fft",
            ints_in_interval=CELL,
            min_num_intervals=LEAST_CELLS,
            n_jobs=1,
            callbacks=lambda *_: progress.add(REPORT_EVERY),
            callbacks_every_iters=REPORT_EVERY,
        )
        graph = affinity.Uniform(
            knn_index=nearest_neighbors.PrecomputedNeighbors(near, distances), symmetrize="mean"
        )
        return np.asarray(tsne.fit(affinities=graph, initialization=start), np.float32)


def _principal(values: Floats, random: np.random.Generator) -> Array:
    """Return initial positions, float64 [M, 2]: two principal components, scaled to 1e-4, with noise.

    They preserve the large-scale structure (Kobak and Linderman 2021, Nat. Biotechnol. 39:156).
    """
    centred = values.astype(float) - values.mean(axis=0, dtype=float)
    with one_thread(None):
        _, axes = np.linalg.eigh(centred.T @ centred)
        first = centred @ axes[:, :-3:-1]
    places = np.zeros((len(values), 2))
    places[:, : first.shape[1]] = first / (first[:, 0].std() or 1.0)
    # Noise, because events with equal values would stay at the same place for ever.
    return 1e-4 * (places + 0.01 * random.standard_normal(places.shape))


def map_caption(gating: Gating, events: Map) -> str:
    """Return which events the map shows, for a reader."""
    drawn, total = len(events.places), int(gating.n_events.sum())
    which = f"All {drawn:,} events" if drawn == total else f"{drawn:,} of {total:,} events, drawn at random"
    numbered = shown(gating)
    few = f" Numbers mark the {numbered} largest." if numbered < gating.n_populations else ""
    return f"{which} (t-SNE). Colour: most probable population.{few}"


def map_window(events: Map) -> tuple[Array, float]:
    """Return the lower left corner, float64 [2], and the side of the square with the map and its numbers."""
    low, high = events.places.min(axis=0).astype(float), events.places.max(axis=0).astype(float)
    side = 1.13 * float((high - low).max()) or 1.0
    return (low + high - side) / 2.0, side


def map_point(events: Map) -> float:
    """Return the diameter of an event's point relative to the side of the map."""
    return float(np.clip(0.25 / np.sqrt(len(events.places)), 0.0025, 0.008))


def map_numbers(gating: Gating, events: Map) -> tuple[Ints, Array]:
    """Return the populations shown that are on the map, int64 [Q], and positions of their numbers [Q, 2].

    A number stands at the event nearest to the median, which itself may lie between islands. It stands above
    an island that it would hide.
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
