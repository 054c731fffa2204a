"""The host's random numbers: a fresh generator for every step, keyed and never sequenced.

Nothing that happened earlier is in a key, so a chain that is stopped and resumed, or whose engine has other
threads or devices, draws the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Step(IntEnum):
    """What the numbers are for; part of the key, so the values must never change."""

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
        """One step's generator: Philox4x64-10 keyed by (seed, chain), counting from (iteration, step)."""
        key = self.seed + (self.chain << 64)
        counter = (self.iteration << 64) + (int(step) << 128)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))
