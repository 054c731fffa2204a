"""The interface of a device that computes for `dpmix.drift` (`dpmix.engines.cuda.drift`)."""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from dpmix.drift.points import Points
from dpmix.model.mixture import Array

Precision = Literal["single", "double"]
"""Precision of the likelihood on a device."""


class Device(Protocol):
    """A device that computes instead of the CPU, with the same results within rounding."""

    def sums(
        self,
        points: Points,
        kind: int,
        parameters: tuple[float, float, float],
    ) -> Array:
        """Return the sums of the likelihood as `_cpu.vecchia` writes them, float64 [7, 4].

        The device may keep the points for the next call: they must not change.
        """
        ...

    def predict_locally(
        self,
        times: Array,
        values: Array,
        noise: Array,
        kind: int,
        centres: Array,
        sds: Array,
        at: Array,
        designs: npt.NDArray[np.int32],
        weights: Array,
        parameters: Array,
        variances: Array,
    ) -> None:
        """Write designs and predictions as `_cpu.predict_locally` does."""
        ...
