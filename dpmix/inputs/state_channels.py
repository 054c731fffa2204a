"""State channels: markers that are measured in the populations, but that the populations are not found by.

They are read, compensated and transformed like the channels of the model, for the same events. The model does
not see them. N events, E state channels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpmix.config.data import DataConfig
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.blocks import blocks
from dpmix.inputs.channels import match_all, refuse_twice, run_panel, same_channels
from dpmix.inputs.file_plans import FilePlan, plan_files
from dpmix.inputs.gather import ChannelCounts, Gathered
from dpmix.inputs.scales import FittedScale, RecordedScale, Scale
from dpmix.inputs.sources import Source
from dpmix.inputs.storage import Storage, release_pages
from dpmix.inputs.transforms import Scaling
from dpmix.model.mixture import Floats, Ints
from dpmix.system.progress import ProgressLog


@dataclass(frozen=True)
class StateChannels:
    """State channels of the events.

    Attributes
    ----------
    values : float32 [N, E]
        Transformed scale; no events where only the scaling is known.
    detectors : tuple of str
        E names in the first file.
    scaling : Scaling
        Means 0 and standard deviations 1.
    """

    values: Floats
    detectors: tuple[str, ...]
    scaling: Scaling

    @property
    def channels(self) -> tuple[str, ...]:
        """E names to show."""
        return self.scaling.channels

    def without_values(self) -> StateChannels:
        """Return the scaling alone."""
        return replace(self, values=self.values[:0].copy())

    def as_attributes(self) -> dict[str, Any]:
        """Return the detectors and the scaling as plain lists and numbers, for JSON."""
        return {"detectors": list(self.detectors), "scaling": self.scaling.as_attributes()}

    @classmethod
    def from_attributes(cls, attributes: dict[str, Any]) -> StateChannels:
        """Make it from the result of `as_attributes`, without values."""
        scaling = Scaling.from_attributes(attributes["scaling"])
        none = np.empty((0, len(scaling.channels)), np.float32)
        return cls(none, tuple(map(str, attributes["detectors"])), scaling)


def choose_state(
    patterns: Sequence[str] | None, sources: Sequence[Source], recorded: StateChannels | None
) -> list[Sequence[int]]:
    """Return the numbers of the state channels in each file; none where there are none.

    Raises
    ------
    ConfigError
        A name matches no channel of the first file, or is listed twice.
    DataError
        A file lacks a channel.
    """
    if not patterns:
        return []
    first = sources[0]
    if recorded is not None:
        if missing := [name for name in recorded.detectors if name not in first.channels]:
            raise DataError(f"{first.name}: has no channel {', '.join(missing)}, which the run used")
        own = [first.channels.index(name) for name in recorded.detectors]
    else:
        found = match_all("data.state_channels", patterns, first)
        refuse_twice("data.state_channels", patterns, found, first)
        own = list(dict.fromkeys(k for numbers in found.values() for k in numbers))
    return [own, *(same_channels(first, own, source)[0] for source in sources[1:])]


def require_separate(source: Source, model: Sequence[int], state: Sequence[int]) -> None:
    """Raise `ConfigError` where a channel is of the model and a state channel, too."""
    if both := [source.channels[k] for k in state if k in model]:
        raise ConfigError(
            [f"data.state_channels: {', '.join(both)} is also in data.channels; leave it out of one of them"]
        )


@dataclass(frozen=True)
class StatePlan:
    """How the state channels of files are read; `plan_state` and `plan_like` make it."""

    plans: Sequence[FilePlan]
    scale: Scale

    def read(self, gathered: Gathered, storage: Storage) -> StateChannels:
        """Read the state channels of the events that are gathered.

        Raises
        ------
        ConfigError, DataError
            A transform does not fit, or a value is not finite.
        """
        plans, n_events, n_channels = self.plans, len(gathered.values), len(self.plans[0].chosen)
        values = storage.hold_more(n_events, n_channels, "state channels")
        counts = ChannelCounts(n_channels)
        progress = ProgressLog("reading the state channels", sum(plan.source.n_events for plan in plans))
        for sample, plan in enumerate(plans):
            first, end = (int(at) for at in gathered.sample_starts[sample : sample + 2])
            rows = None if gathered.rows is None else gathered.rows[first:end]
            for start, stop in blocks(plan.source.n_events, progress):
                place, picked = _picked(rows, start, stop)
                _, raw = plan.read(start, stop, picked)
                if not np.isfinite(raw).all():
                    wrong = np.array(plan.chosen)[~np.isfinite(raw).all(axis=0)]
                    names = ", ".join(plan.source.channels[k] for k in wrong)
                    raise DataError(
                        f"{plan.source.name}: values that are not finite in the state channels {names}; "
                        "remove these events, or leave the channels out of data.state_channels"
                    )
                counts.add_values(raw)
                values[first + place : first + place + len(raw)] = raw
        held = Gathered(values, gathered.rows, gathered.sample_starts, n_events, counts, (), (), ())
        # A scale of their own, fitted to the same events: the scale of the model must not depend on them.
        scaling, _ = self.scale.before_transform(plans, held)
        step = max(1, 4_000_000 // max(n_channels, 1))
        for start in range(0, n_events, step):
            block = values[start : start + step]
            for j, transform in enumerate(scaling.transforms):
                block[:, j] = transform.apply(block[:, j].astype(np.float64))
            release_pages(values, start, min(start + step, n_events))
        values.flags.writeable = False
        detectors = tuple(plans[0].source.details[k].detector for k in plans[0].chosen)
        return StateChannels(values, detectors, scaling)


def plan_state(
    settings: DataConfig,
    base: Path,
    sources: Sequence[Source],
    chosen: Sequence[Sequence[int]],
    recorded: StateChannels | None,
) -> StatePlan | None:
    """Return how the state channels of a run are read; None where there are none.

    Parameters
    ----------
    settings : DataConfig
    base : Path
        Folder that the name of a compensation matrix is relative to.
    sources : sequence of Source
    chosen : sequence of sequence of int
        Numbers of the channels in each file, of `choose_state`.
    recorded : StateChannels, optional
        State channels of an earlier run with the same events, for their transforms.
    """
    if not chosen:
        return None
    scaling = None if recorded is None else recorded.scaling
    plain, plans = _plans(settings, base, sources, chosen)
    return StatePlan(plans, FittedScale(plain, plans, scaling))


def plan_like(
    settings: DataConfig, base: Path, sources: Sequence[Source], state: StateChannels | None
) -> StatePlan | None:
    """Return how the state channels of a run are read from other files, on its scale; None without any."""
    if state is None:
        return None
    run = run_panel(state.detectors, state.channels)
    chosen = [same_channels(run, range(len(state.detectors)), source)[0] for source in sources]
    _, plans = _plans(settings, base, sources, chosen)
    return StatePlan(plans, RecordedScale(state.scaling))


def _plans(
    settings: DataConfig, base: Path, sources: Sequence[Source], chosen: Sequence[Sequence[int]]
) -> tuple[DataConfig, list[FilePlan]]:
    """Return the settings without what only the channels of the model have, and a plan for each file."""
    plain = settings.model_copy(update={"atoms": "report", "standardize": False, "resolution": 0.0})
    return plain, plan_files(plain, base, sources, chosen)[0]


def _picked(rows: Ints | None, start: int, stop: int) -> tuple[int, Ints | None]:
    """Return the place among the events of the first one of a block, and the rows in it; None for all."""
    if rows is None:
        return start, None
    low, high = (int(at) for at in np.searchsorted(rows, (start, stop)))
    return low, rows[low:high] - start
