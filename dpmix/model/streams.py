"""The host's random numbers: a fresh generator for every step, keyed and never sequenced.

Nothing that happened earlier is in a key, so a chain that is stopped and resumed, or whose engine has other
threads or devices, draws the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

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


class Key(NamedTuple):
    """What the uniform behind every label of one sweep is keyed by, beside the event's own number.

    The uniform of event i is ``((x >> 9) + 0.5) * 2**-23`` in float32, x the first word of Philox4x32-10
    (Salmon et al. 2011) with counter ``(i mod 2**32, i div 2**32, iteration, chain)`` and key
    ``(seed mod 2**32, seed div 2**32)``. The other three words are for the scans of `Engine.divide`.
    """

    seed: int
    chain: int
    iteration: int


def chain_of(key: Key | None) -> int:
    """The chain whose labels a pass leaves; an E step has no key, and leaves those of the first."""
    return 0 if key is None else key.chain
