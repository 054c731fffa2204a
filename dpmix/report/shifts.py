"""The shifts of a run's samples (model.shifts): a table, a figure, and a warning where they are large."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpmix.errors import ConfigError
from dpmix.inputs.marker_names import short_names
from dpmix.inputs.sources import Source
from dpmix.model.mixture import Array, Floats
from dpmix.populations.events.estimates import interval
from dpmix.populations.result import Gating
from dpmix.report.drawing import new_figure
from dpmix.report.labels import shortened
from dpmix.runs.reader import Run
from dpmix.system.files import csv_text, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TABLE = "shifts.csv"
MOST_SAMPLES = 200  # with a row of their own in the figure


def draws_of(run: Run) -> Array | None:
    """Return all draws of the shifts, float64 [T, S, D], on the scale of the run; None for a run without."""
    if "shifts" not in run.cohort:
        return None
    shifts = run.cohort["shifts"]
    return shifts.reshape(-1, *shifts.shape[2:])


def to_subtract(run: Run, formats: Sequence[str], sources: Sequence[Source]) -> Floats:
    """Return the posterior mean shift of each sample on the transformed scale, float32 [S, D].

    Parameters
    ----------
    run : Run
        Standardised scale.
    formats : sequence of str
        Formats of the event files.
    sources : sequence of Source
        Files of the samples.

    Raises
    ------
    ConfigError
        The run has no shifts, no format holds values, or FCS files store integers.
    """
    draws = draws_of(run)
    if draws is None:
        raise ConfigError([f"--calibrated: {run.path} has no shifts to subtract (model.shifts: none)"])
    if not {"h5ad", "fcs"} & {*formats}:
        raise ConfigError(["--calibrated: only h5ad and FCS files hold values of events; use --format h5ad"])
    for source in sources if "fcs" in formats else ():
        if all(channel.integer for channel in source.details):
            raise ConfigError(
                [f"--calibrated: {source.name} stores integers and cannot hold them; use --format h5ad"]
            )
    shifts: Floats = (draws.mean(axis=0) * run.constants["channel_sds"]).astype(np.float32)
    return shifts


def write_shifts(path: Path, draws: Array, samples: Sequence[str], channels: Sequence[str]) -> None:
    """Write shifts.csv: one row per sample and channel.

    `shift` is the posterior mean of what the sample adds to the values of the channel, on the transformed
    scale; `low` and `high` are the ends of the 90% credible interval, empty for a single draw.

    Parameters
    ----------
    path : Path
    draws : float64 [T, S, D]
        Transformed scale.
    samples, channels : sequence of str

    Raises
    ------
    DataError
        The file cannot be written.
    """
    rows: list[Sequence[object]] = [("sample", "channel", "shift", "low", "high")]
    for sample, intervals in zip(samples, np.stack(interval(draws), axis=-1), strict=True):
        for channel, (mean, *ends) in zip(channels, intervals.tolist(), strict=True):
            rows.append((sample, channel, mean, *(ends if len(draws) > 1 else ("", ""))))
    write_text(path, csv_text(rows))


def shift_figure(run: Run) -> Figure:
    """Draw the mean shift of each sample (rows) and channel (columns), in standard deviations.

    A dot marks a shift whose 90% credible interval does not contain 0. A single draw has no interval.
    """
    draws = draws_of(run)
    assert draws is not None
    mean, low, high = (part / run.constants["channel_sds"] for part in interval(draws))
    names = [shortened(str(name), 40) for name in run.constants["sample"]][:MOST_SAMPLES]
    mean, low, high = mean[:MOST_SAMPLES], low[:MOST_SAMPLES], high[:MOST_SAMPLES]
    rows, columns = mean.shape
    channels = [shortened(name, 24) for name in short_names(run.channels)]
    height = 1.5 + max(0.09, 0.19 if rows <= 60 else 0.0) * rows + 0.08 * max(map(len, channels))
    figure = new_figure(3.5 + 0.24 * columns, height)
    axes = figure.add_subplot()
    most = max(float(np.abs(mean).max()), 1e-3)
    image = axes.imshow(mean, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
    axes.set_xticks(range(columns), channels)
    axes.tick_params(axis="x", rotation=90)
    axes.set_yticks(range(rows), names)
    axes.tick_params(length=0)
    several = len(draws) > 1
    sure = np.argwhere((low > 0.0) | (high < 0.0)) if several else np.empty((0, 2))
    axes.plot(sure[:, 1], sure[:, 0], ".", color="black", markersize=2.5)
    figure.colorbar(image, label="shift, standard deviations of the channel")
    dots = " (dot: the 90% interval does not contain 0)" if several else ""
    axes.set_title(f"Shifts of samples{dots}", fontsize=8)
    return figure


def shift_warning(gating: Gating, run: Run) -> str:
    """Return a warning where a sample's shift is as large as a distance between populations; "" otherwise.

    The shift along the line between the means of two populations is compared with their distance, both in
    standard deviations of the channels. Parameters on the transformed scale.
    """
    draws = draws_of(run)
    if draws is None or gating.n_populations < 2:
        return ""
    sds = run.constants["channel_sds"]
    shifts = draws.mean(axis=0) / sds
    held = np.zeros((gating.n_populations, len(gating.weights)))
    held[gating.components, np.arange(len(gating.weights))] = gating.weights
    means = held @ (gating.means / sds) / np.maximum(held.sum(axis=1), 1e-300)[:, None]
    one, other = np.triu_indices(gating.n_populations, 1)
    away = means[other] - means[one]
    ratios = np.abs(shifts @ away.T) / np.maximum(np.square(away).sum(axis=1), 1e-12)
    sample, pair = np.unravel_index(int(ratios.argmax()), ratios.shape)
    if ratios[sample, pair] < 1.0:
        return ""
    return (
        f"the shift of sample {gating.samples[sample]} is as large as the distance between populations "
        f"{one[pair] + 1} and {other[pair] + 1}: their events may have been exchanged; look at "
        "figures/shifts.png, or run without model.shifts"
    )
