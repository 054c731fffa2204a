"""Draw labels and sum statistics the textbook way: serial, dense, in NumPy.

This is the work of a serial program for the sampler of Suchard et al. (2010) in an iteration: the weighted
density of every event in every component, its cumulative sum over the components, one uniform, and the
component where the sum exceeds it; then counts, sums and scatters, component by component. For Bayesian EM,
the normalised densities are the weights of the events. benchmarks/paper.py uses it as the baseline.

Densities are float32 and computed through the log, statistics are float64, as in the engines. N events, D
channels, K components; M events of a block.
"""

from __future__ import annotations

import numpy as np

from dpmix.model.mixture import Floats, Ints, Mixture, Stats
from dpmix.model.streams import Key

BLOCK = 2048
"""Events whose densities are held at a time: 2 MB at K = 256, the size of a core's cache."""


class SerialEngine:
    """Both passes of an engine (`dpmix.engines.base.Engine`) over events, float32 [N, D]."""

    def __init__(self, events: Floats) -> None:
        self.events = events

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        """Draw every label, and sum the statistics of the events by label."""
        random = np.random.default_rng(key)
        labels = np.empty(len(self.events), np.int64)
        log_likelihood = 0.0
        for start in range(0, len(self.events), BLOCK):
            block = self.events[start : start + BLOCK]
            weights, log_densities = weighted_densities(block, mixture)
            sums = np.cumsum(weights, axis=1)
            uniforms = 1.0 - random.random((len(block), 1), np.float32)  # in (0, 1]
            labels[start : start + BLOCK] = (sums < uniforms * sums[:, -1:]).sum(axis=1)
            log_likelihood += log_densities
        return labelled_statistics(self.events, labels, mixture, log_likelihood)

    def expect_labels(self, mixture: Mixture) -> Stats:
        """Sum the statistics of the events weighted by their responsibilities."""
        stats = no_statistics(mixture)
        log_likelihood = 0.0
        for start in range(0, len(self.events), BLOCK):
            block = self.events[start : start + BLOCK]
            weights, log_densities = weighted_densities(block, mixture)
            weights /= weights.sum(axis=1, keepdims=True)
            for j, centre in enumerate(stats.centres.astype(np.float32)):
                away = block - centre
                weighted = weights[:, j, None] * away
                stats.counts[j] += weights[:, j].sum(dtype=np.float64)
                stats.sums[j] += weighted.sum(axis=0, dtype=np.float64)
                stats.scatters[j] += weighted.T @ away
            log_likelihood += log_densities
        return Stats(stats.counts, stats.sums, stats.scatters, stats.centres, log_likelihood)


def weighted_densities(block: Floats, mixture: Mixture) -> tuple[Floats, float]:
    """pi_j N(x_i | mu_j, Sigma_j) over the largest of each row, float32 [M, K]; the sum of log densities."""
    logs = np.empty((len(block), len(mixture.means)), np.float32)
    constants = mixture.log_weights + mixture.log_norms
    means, whiteners = mixture.means.astype(np.float32), mixture.whiteners.astype(np.float32)
    for j in range(len(means)):
        whitened = (block - means[j]) @ whiteners[j].T
        logs[:, j] = constants[j] - 0.5 * np.einsum("id,id->i", whitened, whitened)
    largest = logs.max(axis=1, keepdims=True)
    weights = np.exp(logs - largest)
    log_densities = np.log(weights.sum(axis=1, dtype=np.float64)) + largest[:, 0]
    return weights, float(log_densities.sum())


def labelled_statistics(events: Floats, labels: Ints, mixture: Mixture, log_likelihood: float) -> Stats:
    """Counts of the events of each label, and their sums and scatters about the component's mean."""
    stats = no_statistics(mixture)
    for j, centre in enumerate(stats.centres):
        away = events[labels == j] - centre
        stats.counts[j] = len(away)
        stats.sums[j] = away.sum(axis=0)
        stats.scatters[j] = away.T @ away
    return Stats(stats.counts, stats.sums, stats.scatters, stats.centres, log_likelihood)


def no_statistics(mixture: Mixture) -> Stats:
    """Zeros, about the means as float32 has them."""
    n_components, dim = mixture.means.shape
    centres = mixture.means.astype(np.float32).astype(np.float64)
    zeros = np.zeros((n_components, dim, dim))
    return Stats(zeros[:, 0, 0].copy(), zeros[:, 0].copy(), zeros, centres, 0.0)
