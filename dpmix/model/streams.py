"""The random numbers of the host: each step of a sweep has its own generator, determined by a key.

A key contains no history. A chain that is stopped and resumed, or whose engine has other threads or devices,
therefore draws the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np


class Step(IntEnum):
    """The purpose of random numbers. The values are part of the key and must never change."""

    INITIAL = 0
    SUBSAMPLE = 1
    PARAMETERS = 2
    STICKS = 3
    ALPHA = 4
    SWAPS = 5
    HYPERPARAMETERS = 6
    POINTS = 7
    PROPORTIONS = 8
    SPLIT_MERGE = 9
    MAP = 10
    COARSENESS = 11


@dataclass(frozen=True)
class Stream:
    """Random numbers of one sweep of one chain.

    Attributes
    ----------
    seed, chain, iteration : int
        Non-negative, each below 2**64.
    """

    seed: int
    chain: int
    iteration: int

    def step(self, step: Step) -> np.random.Generator:
        """Return a step's generator: Philox4x64-10 with key (seed, chain) and counter (iteration, step)."""
        key = self.seed + (self.chain << 64)
        counter = (self.iteration << 64) + (int(step) << 128)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Key(NamedTuple):
    """The key of the uniforms that draw the labels of one sweep, one for each event.

    The uniform of event i is ``((x >> 9) + 0.5) * 2**-23`` in float32, where x is the first word of
    Philox4x32-10 (Salmon et al. 2011) with counter ``(i mod 2**32, i div 2**32, iteration, chain)`` and key
    ``(seed mod 2**32, seed div 2**32)``. The scans of `Engine.divide` use the other three words.
    """

    seed: int
    chain: int
    iteration: int


def chain_of(key: Key | None) -> int:
    """Return the chain whose labels a pass stores: that of the key, or 0 for an E step, which has no key."""
    return 0 if key is None else key.chain
