"""`dpmix simulate` as a function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from dpmix.inputs.simulate.faults import FAULTS, SIZE, Fault
from dpmix.inputs.simulate.simulation import Simulation, cytometry_like, from_model


def simulate(
    n_events: int = 50_000,
    *,
    kind: Literal["cytometry", "model"] = "cytometry",
    channels: int | None = None,
    components: int | None = None,
    spill: bool = True,
    drift: Sequence[Fault] = (),
    drift_size: float = SIZE,
    seed: int = 1,
) -> Simulation:
    """Simulate events with known populations, as ``dpmix simulate`` does.

    Parameters
    ----------
    n_events : int
    kind : str
        "cytometry": like the data of a ten-colour flow cytometer, with 14 populations. "model": drawn from
        the model.
    channels, components : int, optional
        For kind "model": channels (default 8) and truncation (default 32).
    spill : bool
        For kind "cytometry": spillover between dyes.
    drift : sequence of str
        For kind "cytometry": faults of the recording, each "slow", "step", "bubble" or "clog".
    drift_size : float
        Size of a drift, step or bubble, as log gain.
    seed : int
        The same arguments and seed give the same data.

    Returns
    -------
    Simulation

    Raises
    ------
    ValueError
        A number is below 1 or not finite, or an argument is not of the stated type or does not belong to
        this kind.
    """
    if kind == "cytometry":
        if (channels, components) != (None, None):
            raise ValueError('channels and components apply to kind="model" only')
        if isinstance(drift, str):
            raise ValueError(f'drift is "{drift}"; it must be a list, as ["{drift}"]')
        if unknown := set(drift) - set(FAULTS):
            raise ValueError(f"drift is {sorted(unknown)}; each must be one of {', '.join(FAULTS)}")
        if not 0.0 < drift_size < math.inf:
            raise ValueError(f"drift_size is {drift_size}; it must be a finite number above 0")
        return cytometry_like(n_events, seed, spill, drift, drift_size)
    if kind != "model":
        raise ValueError(f'kind is {kind!r}; it must be "cytometry" or "model"')
    if not spill or drift:
        raise ValueError(f'{"drift" if spill else "spill"} applies to kind="cytometry" only')
    if channels == 0 or components == 0:
        raise ValueError("channels and components must be at least 1")
    return from_model(n_events, channels or 8, components or 32, seed=seed)
