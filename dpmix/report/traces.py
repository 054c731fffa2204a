"""Traces of log likelihood or log posterior, occupied components and alpha."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmix.model.mixture import Array, Ints
from dpmix.report.labels import effective_size
from dpmix.runs.diagnostics import Mixing
from dpmix.runs.reader import Run


@dataclass(frozen=True)
class Trace:
    """Trace of one quantity.

    Attributes
    ----------
    quantity : str
    values : float64 [chain, sweep]
        Values from the initial state on, NaN for sweeps not made; [start, step] for Bayesian EM.
    mixing : Mixing or None
        None for Bayesian EM and for few draws.
    """

    quantity: str
    values: Array
    mixing: Mixing | None

    @property
    def note(self) -> str:
        """R-hat and effective sample size, for a reader; "" if unknown."""
        if self.mixing is None:
            return ""
        if self.mixing.sd == 0.0:
            return "constant"
        return f"R-hat {self.mixing.r_hat:.3f}, effective sample size {effective_size(self.mixing.ess_bulk)}"

    def window(self, from_sweep: int) -> tuple[float, float]:
        """Return the range of values from a sweep on, with a margin; of all values if there are none by then.

        The increase from the initial state would flatten all that follows.
        """
        later = self.values[:, min(from_sweep, self.values.shape[1] - 1) :]
        values = later if np.isfinite(later).any() else self.values
        if not np.isfinite(values).any():
            return 0.0, 1.0
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        margin = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
        return low - margin, high + margin


def traces(run: Run, mixing: list[Mixing]) -> list[Trace]:
    """Return the traces of the log density, occupied components and alpha of every chain, with burn-in.

    For MCMC it is the log likelihood, by which chains are compared; Bayesian EM climbs the log posterior.
    """
    rows = {row.quantity: row for row in mixing}
    height = "log likelihood" if run.kind == "mcmc" else "log posterior"
    names = {height: height.replace(" ", "_"), "occupied components": "occupied", "alpha": "alpha"}
    found = []
    for quantity, name in names.items():
        values = np.array(run.trace[name], float)
        if name == "occupied":
            values[values < 0] = np.nan
        found.append(Trace(quantity, values, rows.get(quantity)))
    return found


def thinned(values: Array, most: int = 2000) -> Ints:
    """Choose points to draw of a trace: the extremes in equal stretches.

    Parameters
    ----------
    values : float64 [n]
        NaN where there is no value.
    most : int
        Approximate maximum number of points.

    Returns
    -------
    int64
        Indices, ascending.
    """
    there = np.flatnonzero(np.isfinite(values))
    if len(there) <= most:
        return there
    stretches = np.array_split(there, most // 2)
    ends = [(part[values[part].argmin()], part[values[part].argmax()]) for part in stretches]
    return np.unique(np.append(np.array(ends), there[[0, -1]]))
