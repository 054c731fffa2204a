"""The optional map of a gating: some of its events in two dimensions, by t-SNE. Nothing is found on it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from threadpoolctl import threadpool_limits

from dpmix.model.mixture import Array, Floats
from dpmix.model.streams import Step, Stream
from dpmix.populations.result import Map
from dpmix.system.extras import require_extra
from dpmix.system.progress import ProgressLog

MOST_EVENTS = 20_000
PERPLEXITY = 30.0
EARLY, LATE, REPORT_EVERY = 250, 500, 10  # steps: with exaggeration, without, between two reports


def need() -> None:
    """Raise `ConfigError` where openTSNE is missing."""
    require_extra("openTSNE", "map", "a map")


def make_map(values: Floats, populations: npt.NDArray[np.integer], seed: int) -> Map:
    """A map of at most 20,000 events, drawn at random.

    Parameters
    ----------
    values : float32 [N, D]
        All events, standardised scale.
    populations : int [N]
        Of each event, from 0.
    seed : int
        Of the run. The same seed gives the same map, bit for bit, for any number of threads; not for another
        version of openTSNE or another kind of processor.

    Raises
    ------
    ConfigError
        openTSNE is not installed.
    """
    need()
    random = Stream(seed, 0, 0).step(Step.MAP)
    rows = random.choice(len(values), min(len(values), MOST_EVENTS), replace=False)
    return Map(_embed(np.asarray(values[rows]), random), populations[rows].astype(np.int64))


def _embed(values: Floats, random: np.random.Generator) -> Floats:
    """Places of events on the map, float32 [M, 2] (van der Maaten and Hinton 2008, J. Mach. Learn.
    Res. 9:2579).

    Up to three events have no neighbours that a perplexity of 1 would keep: they stay where they begin.
    """
    from openTSNE import TSNE

    start = _principal(values, random)
    if len(values) <= 3:
        return start.astype(np.float32)
    progress = ProgressLog("drawing the map", EARLY + LATE)
    tsne = TSNE(
        perplexity=min(PERPLEXITY, (len(values) - 1) / 3),  # that of three times as many neighbours
        early_exaggeration_iter=EARLY,
        n_iter=LATE,
        initialization=start,
        random_state=int(random.integers(2**31)),
        n_jobs=1,  # its neighbours and its sums depend on the number of threads
        callbacks=lambda *_: progress.add(REPORT_EVERY),
        callbacks_every_iters=REPORT_EVERY,
    )
    with threadpool_limits(1):
        return np.asarray(tsne.fit(values), np.float32)


def _principal(values: Floats, random: np.random.Generator) -> Array:
    """Where the events begin, float64 [M, 2]: the first two principal components, which keep the map's large
    structure (Kobak and Linderman 2021, Nat. Biotechnol. 39:156), 1e-4 wide and a little apart."""
    centred = values.astype(float) - values.mean(axis=0, dtype=float)
    with threadpool_limits(1):
        _, axes = np.linalg.eigh(centred.T @ centred)
        first = centred @ axes[:, :-3:-1]
    places = np.zeros((len(values), 2))
    places[:, : first.shape[1]] = first / (first[:, 0].std() or 1.0)
    return 1e-4 * (places + 0.01 * random.standard_normal(places.shape))
