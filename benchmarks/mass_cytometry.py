"""Simulate mass cytometry: ion counts with many zeros, and populations that differ in few channels.

The steps follow the instrument. A cell has an expected count in each channel: none, dim or bright, by its
population, times a gamma variate (expression within a population is skewed) and the size of the cell.
The instrument counts ions (Poisson), its conversion adds normal noise, and negative values are stored as
zero: half of the events of a negative channel. Channels are on the scale arcsinh(x / 5).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LARGEST, SMALLEST = 0.2, 0.002  # shares of populations, geometric between these
NOISE = 0.02  # share of noise events, label 0
DIM, BRIGHT = (5.0, 10.0), (25.0, 80.0)  # expected counts of a channel, between these
COFACTOR = 5.0


def mass_cytometry(random: np.random.Generator, number: int, dim: int, n: int) -> tuple[Array, Ints]:
    """Simulate populations that differ from their nearest one in two or three channels.

    A quarter of the channels is the same in all populations. The shares of the populations are geometric from
    20% to 0.2% if there are twenty. Half of the noise events are doublets, the counts of two cells added. The
    other half have each channel from one of two cells.

    Returns
    -------
    events : float64 [n, dim]
    labels : int64 [n]
        Population of each event, from 1; 0 for noise.
    """
    patterns = level_patterns(random, number, dim)
    shares = np.geomspace(LARGEST, SMALLEST, number)
    kinds = random.choice(number, n, p=shares / shares.sum())
    counts = _ions(random, patterns[kinds])
    noise = random.uniform(size=n) < NOISE
    partners = counts[random.integers(n, size=int(noise.sum()))]
    doublets = random.uniform(size=(len(partners), 1)) < 0.5
    mixed = np.where(random.uniform(size=partners.shape) < 0.5, counts[noise], partners)
    counts[noise] = np.where(doublets, counts[noise] + partners, mixed)
    return np.arcsinh(counts / COFACTOR), np.where(noise, 0, kinds + 1)


def level_patterns(random: np.random.Generator, number: int, dim: int) -> Ints:
    """Draw levels of populations, 0 (none), 1 (dim) or 2 (bright), int64 [number, dim].

    Each population changes two or three channels of an earlier one, at least one of them between none and
    bright. Levels of any two populations differ by three steps or more, that is, in two channels at least.
    """
    informative = random.permutation(dim)[: dim - dim // 4]
    patterns = random.choice(3, (1, dim), p=(0.7, 0.1, 0.2))
    while len(patterns) < number:
        child = patterns[random.integers(len(patterns))].copy()
        first, *others = random.choice(informative, random.integers(2, 4), replace=False)
        if child[first] == 1:
            continue
        child[first] = 2 - child[first]
        child[others] = (child[others] + random.integers(1, 3, len(others))) % 3
        if np.abs(patterns - child).sum(axis=1).min() >= 3:
            patterns = np.concatenate((patterns, child[None]))
    return patterns


def _ions(random: np.random.Generator, levels: Ints) -> Array:
    """Simulate the stored counts of events of these levels, float64 [N, D]."""
    dim = levels.shape[1]
    expected = np.stack([np.zeros(dim), random.uniform(*DIM, dim), random.uniform(*BRIGHT, dim)])
    size = np.exp(0.25 * random.normal(size=(len(levels), 1)))
    expression = random.gamma(2.5, 0.4, levels.shape)
    counts = random.poisson(expected[levels, np.arange(dim)] * size * expression)
    return np.maximum(counts + random.normal(0.0, random.uniform(0.5, 2.0, dim), levels.shape), 0.0)
