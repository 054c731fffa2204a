"""Marks of the populations of a task, found before its events get cell types.

M events.
"""

from __future__ import annotations

from contextlib import closing

import numpy as np

from dpmix.inputs.controls import by_number
from dpmix.inputs.quality_channels import HEIGHT, SIZE, QualityChannels
from dpmix.model.mixture import Array, Floats
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.pooling import transformed_draw
from dpmix.populations.draws.predictive import classify
from dpmix.populations.draws.task import Task
from dpmix.populations.events.artefacts import Artefacts, artefacts, limits, look_like_cells, main_cells
from dpmix.populations.events.medians import evenly
from dpmix.populations.events.phenotypes import levels, quantiles_of

EVENTS = 200_000  # evenly spaced, by which populations are compared


def find_artefacts(task: Task, found: Populations) -> Artefacts:
    """Return what each population looks like (`dpmix.populations.events.artefacts`).

    No population has a mark where the files have neither scatter nor viability. An event counts for the
    population of its most probable component in the reference draw.
    """
    events, run, quality = task.events, found.run, task.events.quality
    if quality is None:
        return Artefacts()
    rows = evenly(len(events.values), EVENTS)
    values = np.ascontiguousarray(events.values[rows])
    components = found.components[found.reference]
    with closing(task.make_engine(values)) as engine:
        population = components[classify(engine, found.mixture_of(found.reference, None))[0]]
    mixture = transformed_draw(run, events.scaling, *found.draws[found.reference])
    thresholds = levels(*mixture, components, by_number(run.controls, events.channels))[1]
    markers = [d for d, name in enumerate(events.detectors) if name not in quality.measured.detectors]
    measured = quality.measured.values[rows]
    pulse = _pulse(measured, quality)

    def quantiles(of_events: Array | Floats) -> Array:
        return quantiles_of(of_events, population, found.n_populations)

    sizes = np.bincount(population, minlength=found.n_populations)
    of_markers = quantiles(events.scaling.to_transformed(values)[:, markers])
    of_quality = quantiles(measured)
    of_role = {role: of_quality[:, :, k] for k, role in enumerate(quality.roles)}
    marks = artefacts(
        sizes,
        of_markers,
        thresholds[markers],
        of_role,
        None if pulse is None else quantiles(pulse[:, None])[:, :, 0],
    )
    least = limits(sizes, main_cells(sizes, of_markers, thresholds[markers]), of_role)
    every = {role: quality.measured.values[:, k] for k, role in enumerate(quality.roles)}
    return Artefacts(marks, look_like_cells(every, least))


def _pulse(measured: Floats, quality: QualityChannels) -> Floats | None:
    """Return the ratio of area to height of forward scatter, float32 [M]; None where it is not known."""
    at = {role: k for k, role in enumerate(quality.roles)}
    # A ratio of transformed values has no meaning.
    if HEIGHT not in at or any(
        quality.measured.scaling.transforms[at[role]].method != "linear" for role in (SIZE, HEIGHT)
    ):
        return None
    area, height = measured[:, at[SIZE]], measured[:, at[HEIGHT]]
    return np.divide(area, height, out=np.ones_like(area), where=height > 0)
