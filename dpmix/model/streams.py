"""The random numbers of the host: each step of a sweep has its own generator, determined by a key.

A key contains no history. A chain that is stopped and resumed, or whose engine has other threads or devices,
therefore draws the same numbers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import IntEnum
from threading import Lock
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from dpmix.kernels import _cpu
from dpmix.model.mixture import Array, Ints


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
    TABLES = 12
    CONCENTRATION = 13
    SAMPLE_WEIGHTS = 14
    SHIFTS = 15


class FastGenerator:
    """The variates of a step's generator, bit for bit, in less time.

    Native code draws them (kernels/cpu/generator.hpp), except gamma variates of shapes below 1.

    Parameters
    ----------
    native : dpmix.kernels._cpu.Generator
        At its start, used by nothing else.
    """

    def __init__(self, native: _cpu.Generator) -> None:
        self._native = native
        self._generator = numpy_generator(native)
        self._ahead: tuple[Array, _cpu.NormalsAhead] | None = None

    def start_normals(self, size: tuple[int, ...]) -> None:
        """Draw the first normal variates in another thread, while the caller does something else.

        The next call must be `standard_normal` with this size.
        """
        out = np.empty(size)
        self._ahead = out, _cpu.NormalsAhead(self._native, out.reshape(-1))

    def random(self, size: int | tuple[int, ...]) -> Array:
        """Return uniform variates from 0 to 1, float64 [size]."""
        out = np.empty(size)
        self._native.uniforms(out.reshape(-1))
        return out

    def standard_normal(self, size: tuple[int, ...]) -> Array:
        """Return standard normal variates, float64 [size]."""
        if self._ahead is not None:
            (out, ahead), self._ahead = self._ahead, None
            ahead.wait()
            return out
        out = np.empty(size)
        self._native.normals(out.reshape(-1))
        return out

    def standard_exponential(self, size: int) -> Array:
        """Return Exponential(1) variates, float64 [size]."""
        out = np.empty(size)
        self._native.exponentials(out)
        return out

    def integers(self, high: int, size: int) -> Ints:
        """Return integers from 0 to high - 1, int64 [size]."""
        out = np.empty(size, dtype=np.int64)
        self._native.integers(high, out)
        return out

    def log_betas(self, first: Array, second: Array) -> tuple[Array, Array]:
        """Return log v and log(1 - v), float64 [n], of Beta(first, second) variates v; see `draw_sticks`."""
        out = np.empty(len(first)), np.empty(len(first))
        self._native.log_betas(first, second, *out)
        return out

    def standard_gamma(self, shapes: Array) -> Array:
        """Return Gamma(shape, 1) variates, float64 of the size of `shapes`."""
        # NumPy has another algorithm for shapes below 1, which the native code does not repeat.
        if shapes.size == 0 or shapes.min() < 1.0:
            variates: Array = self._generator.standard_gamma(shapes)
            return variates
        out = np.empty(shapes.shape)
        self._native.gammas(np.ravel(shapes), out.reshape(-1))
        return out


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
        return numpy_generator(self._native(step))

    def fast_step(self, step: Step) -> FastGenerator:
        """Return the variates of `step` for a step with many: the same as by its generator, faster."""
        return FastGenerator(self._native(step))

    def _native(self, step: Step) -> _cpu.Generator:
        return _cpu.Generator(self.seed, self.chain, self.iteration, int(step))


def numpy_generator(native: _cpu.Generator) -> np.random.Generator:
    """Return NumPy's generator with the words of a native one, which takes less time to make than Philox."""
    # NumPy's `Generator` asks for these two attributes only; `owner` keeps the native words alive.
    bit_generator: Any = SimpleNamespace(capsule=native.capsule, lock=Lock(), owner=native)
    return np.random.Generator(bit_generator)


def number_of(name: str) -> int:
    """Return the number below 2**64 of a sample's name, for a stream that depends on no other sample."""
    # Not `hash`, which differs from process to process.
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


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
    """Return the chain whose labels a pass stores: the key's, or 0 for an E step, which has no key."""
    return 0 if key is None else key.chain
