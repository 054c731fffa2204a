"""The reference engine: a direct float64 implementation of the definitions, for tests of all other engines.

N events, D channels, K components. It makes an array of N x K numbers and is meant for small N.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Mixture, Stats
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.uint32]


def philox4x32(counter: Words, key: Words) -> Words:
    """Philox4x32-10 of Salmon et al. (2011), "Parallel random numbers: as easy as 1, 2, 3", SC11.

    Parameters
    ----------
    counter : uint32 [..., 4]
    key : uint32 [..., 2]

    Returns
    -------
    uint32 [..., 4]
    """
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = (key[..., i].astype(np.uint64) for i in range(2))
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        product0 = c0 * np.uint64(0xD2511F53)
        product1 = c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (product1 >> np.uint64(32)) ^ c1 ^ k0,
            product1 & low,
            (product0 >> np.uint64(32)) ^ c3 ^ k1,
            product0 & low,
        )
        k0 = (k0 + np.uint64(0x9E3779B9)) & low
        k1 = (k1 + np.uint64(0xBB67AE85)) & low
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1).astype(np.uint32)


def uniforms(key: Key, events: npt.NDArray[np.uint64], word: int = 0) -> Floats:
    """Return the uniform of each event number (see `Key`), float32 [N], in (0, 1); word 0 is for labels."""
    low = np.uint64(0xFFFFFFFF)
    counter = np.empty((len(events), 4), np.uint32)
    counter[:, 0] = events & low
    counter[:, 1] = events >> np.uint64(32)
    counter[:, 2] = key.iteration
    counter[:, 3] = key.chain
    words = np.array([key.seed & 0xFFFFFFFF, key.seed >> 32], np.uint32)
    drawn = philox4x32(counter, words)[:, word]
    return ((drawn >> np.uint32(9)).astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-23)


def log_densities(events: Floats, mixture: Mixture) -> Array:
    """Return log pi_j N(x_i | mu_j, Sigma_j), float64 [N, K]."""
    constants, wide = mixture.log_weights + mixture.log_norms, events.astype(np.float64)
    return np.stack(
        [
            constant - 0.5 * np.square((wide - mean) @ whitener.T).sum(axis=1)
            for constant, mean, whitener in zip(constants, mixture.means, mixture.whiteners, strict=True)
        ],
        axis=1,
    )


class ReferenceEngine:
    """Engine in NumPy, float64 throughout (interface: dpmix.engines.base.Engine).

    Parameters
    ----------
    events : float32 [N, D]
    tau : float
        Weight floor in nats: a component tau or more below the event's best component has weight 0.
    first_event : int
        Number of the first event, for an engine that holds a part of the data.
    weights : SampleWeights, optional
        Weights of the events; default: 1.
    """

    def __init__(
        self,
        events: Floats,
        tau: float = 25.0,
        *,
        first_event: int = 0,
        weights: SampleWeights | None = None,
    ) -> None:
        self.events = events
        self.event_weights = np.ones(len(events)) if weights is None else weights.each().astype(np.float64)
        self.tau = tau
        self.first_event = first_event
        self._labels: dict[int, npt.NDArray[np.int32]] = {}
        self._weighed: tuple[Mixture, Array, Array] | None = None

    @property
    def n_events(self) -> int:
        return len(self.events)

    @property
    def n_channels(self) -> int:
        return int(self.events.shape[1])

    def uniforms(self, key: Key, word: int = 0) -> Floats:
        """Return the uniform of each event, float32 [N]."""
        return uniforms(key, np.uint64(self.first_event) + np.arange(self.n_events, dtype=np.uint64), word)

    def weights(self, mixture: Mixture) -> tuple[Array, Array]:
        """Return weights relative to the best component [N, K], and log sum_j pi_j N(x_i) [N]; float64."""
        if self._weighed is None or self._weighed[0] is not mixture:  # requested repeatedly
            log_density = log_densities(self.events, mixture)
            best = log_density.max(axis=1, keepdims=True)
            gaps = log_density - best
            weights = np.where(gaps > -self.tau, np.exp(gaps), 0.0)
            self._weighed = mixture, weights, best[:, 0] + np.log(weights.sum(axis=1))
        return self._weighed[1:]

    def draw_labels(self, mixture: Mixture, key: Key) -> Stats:
        weights, log_likelihoods = self.weights(mixture)
        steps = np.cumsum(weights, axis=1)
        points = self.uniforms(key) * steps[:, -1]
        labels = (steps <= points[:, None]).sum(axis=1).astype(np.int32)
        self._labels[key.chain] = labels
        drawn = labels[:, None] == np.arange(weights.shape[1])
        return self._stats(mixture, drawn.astype(np.float64), log_likelihoods)

    def side_probabilities(self, split: SplitAssignment, mixture: Mixture, chain: int) -> tuple[Array, Array]:
        """Return the probabilities of both sides of each event's pair, float64 [N, 2], and the pairs [N]."""
        pairs = split.pairs[self._labels[chain]]
        densities = log_densities(self.events, mixture).reshape(self.n_events, -1, 2)
        own = densities[np.arange(self.n_events), pairs]
        gaps = own - own.max(axis=1, keepdims=True)
        weights = np.where(gaps > -self.tau, np.exp(gaps), 0.0)
        return weights / weights.sum(axis=1, keepdims=True), pairs

    def divide(self, split: SplitAssignment, mixture: Mixture, key: Key) -> tuple[Stats, Array]:
        n_sides = len(mixture.means)
        probabilities, pairs = self.side_probabilities(split, mixture, key.chain)
        drawn = probabilities[:, 0] <= self.uniforms(key, split.word)
        given = split.sides[self._labels[key.chain]]
        sides = np.where(given < 0, drawn, given)
        places = np.where(pairs < 0, -1, 2 * pairs + sides)
        with np.errstate(divide="ignore"):
            logs = np.log(probabilities[np.arange(self.n_events), sides])
        logs *= self.event_weights
        sums = [logs[pairs == pair].sum() for pair in range(n_sides // 2)]
        chosen = places[:, None] == np.arange(n_sides)
        return self._stats(mixture, chosen.astype(np.float64), np.zeros(self.n_events)), np.array(sums)

    def expect_labels(self, mixture: Mixture) -> Stats:
        weights, log_likelihoods = self.weights(mixture)
        self._labels[0] = weights.argmax(axis=1).astype(np.int32)
        return self._stats(mixture, weights / weights.sum(axis=1, keepdims=True), log_likelihoods)

    def memberships(
        self, mixture: Mixture, populations: npt.NDArray[np.int64], start: int, stop: int
    ) -> tuple[Array, Array]:
        """Return memberships, float64 [M, P] here, and log densities [M] of the events start to stop - 1."""
        weights, log_densities = ReferenceEngine(self.events[start:stop], self.tau).weights(mixture)
        of_population = populations[:, None] == np.arange(populations.max() + 1)
        return weights @ of_population / weights.sum(axis=1, keepdims=True), log_densities

    def step_distances(self, mixture: Mixture, key: Key) -> Array:
        """Return the distance of each uniform from the nearest step of its cumulative sum, float64 [N]."""
        weights, _ = self.weights(mixture)
        steps = np.cumsum(weights, axis=1)
        distances: Array = np.abs(steps / steps[:, -1:] - self.uniforms(key)[:, None]).min(axis=1)
        return distances

    def labels(self, chain: int = 0) -> npt.NDArray[np.int32]:
        return self._labels[chain]

    def close(self) -> None:
        self._labels.clear()

    def _stats(self, mixture: Mixture, responsibilities: Array, log_likelihoods: Array) -> Stats:
        n_components, dim = mixture.means.shape
        responsibilities = responsibilities * self.event_weights[:, None]
        log_likelihood = float(self.event_weights @ log_likelihoods)
        centres = mixture.means.astype(np.float32).astype(np.float64)
        sums = np.empty((n_components, dim))
        scatters = np.empty((n_components, dim, dim))
        for j in range(n_components):
            held = np.flatnonzero(responsibilities[:, j])
            weight = responsibilities[held, j]
            distances = self.events[held].astype(np.float64) - centres[j]
            sums[j] = weight @ distances
            scatters[j] = (weight[:, None] * distances).T @ distances
        return Stats(responsibilities.sum(axis=0), sums, scatters, centres, log_likelihood)
