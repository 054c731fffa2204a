"""Assign events to populations, block by block: memberships by each sample's own proportions.

T draws, S samples, N events, M events of a block, P populations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing

import numpy as np

from dpmix.engines.base import Engine
from dpmix.kernels import _cpu
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.model.streams import Step, Stream, number_of
from dpmix.populations.draws.cohort import OwnTerms
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.predictive import MeanDensity
from dpmix.populations.draws.task import Task
from dpmix.populations.events import proportions
from dpmix.populations.events.medians import Medians
from dpmix.populations.result import Block
from dpmix.system.cores import usable_cores
from dpmix.system.progress import ProgressLog

BLOCK = 131_072  # events whose memberships are held at a time


def assign_events(
    task: Task,
    found: Populations,
    medians: Medians | None = None,
    own_terms: Sequence[OwnTerms] | None = None,
) -> Iterator[tuple[Block, Ints]]:
    """Assign all events to populations, sample by sample, block by block.

    Memberships use each sample's own proportions (`dpmix.populations.events.proportions`), log densities the
    run's. Both use the weights and the shift that a sample has in a hierarchical run; `own_terms` gives them
    for samples that are not in the run. `medians` receives the medians of each sample.

    Yields
    ------
    block : Block
    counts : int64 [T, P]
        Events of the block by population in each draw, each event's population drawn by its memberships.
    """
    events, scaling = task.events, task.events.scaling
    random = Stream(task.config.seed, 0, 0).step(Step.PROPORTIONS)
    threads = task.config.engine.threads or usable_cores()
    progress = ProgressLog("gating", len(events.values))
    weights = found.weights
    with closing(task.make_engine(events.values)) as engine:
        for sample, first in enumerate(events.sample_starts[:-1]):
            end = int(events.sample_starts[sample + 1])
            if end == first:  # a file without events, or one whose events are all margin events
                continue
            own = task.own_terms(found, sample, own_terms)
            if own is None:
                ratios = sample_ratios(task, found, weights, engine, sample, medians)
            else:
                ratios = np.ones(weights.shape, np.float32)  # its weights are in its mixtures
                if medians is not None:
                    add_medians(task, found, engine, sample, own, medians)
            for start in range(int(first), end, BLOCK):
                stop = min(start + BLOCK, end)
                mean, log_density, counts = average_draws(
                    found, engine, start, stop, ratios, random, threads, own
                )
                block = Block(
                    sample=sample,
                    rows=events.rows_in_file(sample, start, stop),
                    values=scaling.to_transformed(events.values[start:stop]).astype(np.float32),
                    memberships=mean,
                    log_density=log_density,
                    implausible=log_density < found.least_density,
                    state=None if events.state is None else events.state.values[start:stop],
                    labels=found.labels,
                )
                yield block, counts
                progress.add(stop - start)


def sample_ratios(
    task: Task,
    found: Populations,
    weights: Array,
    engine: Engine,
    sample: int,
    medians: Medians | None = None,
) -> Floats:
    """Return a sample's weights of the populations divided by the run's, float32 [T, P].

    The draws depend on the sample and its name, not on the other samples.

    Parameters
    ----------
    task : Task
    found : Populations
    weights : float64 [T, P]
        Weights in the run.
    engine : Engine
        Holds all events.
    sample : int
        Number of the sample, from 0.
    medians : Medians, optional
        Receives the medians of the sample.
    """
    rows, each = representatives(task, found, engine, sample)
    random = sample_stream(task, sample)
    values, drawn = task.events.values[rows], list[Ints]()
    with closing(task.make_engine(values)) as few:
        memberships = (shares for shares, _ in found.memberships(few, 0, len(rows)))
        kept = None if medians is None else drawn
        own = proportions.sample_weights(memberships, weights, each, random, kept)
    if medians is not None:
        medians.add(sample, task.events.measured(rows), each, drawn)
    return proportions.ratios(own, weights)


def representatives(
    task: Task, found: Populations, engine: Engine, sample: int, own: OwnTerms | None = None
) -> tuple[Ints, Array]:
    """Return events that represent a sample, int64 [M], and how many each represents, float64 [M].

    Parameters are as in `assign_events`; `own` has the sample's weights and shift in a hierarchical run.
    """
    first, end = (int(at) for at in task.events.sample_starts[sample : sample + 2])
    populations = np.zeros(end - first, np.int64)
    if end - first > proportions.MOST_EVENTS:
        for start in range(first, end, BLOCK):
            stop = min(start + BLOCK, end)
            shares, _ = found.memberships_in(found.reference, engine, start, stop, own)
            populations[start - first : stop - first] = shares.argmax(axis=1)
    rows, each = proportions.representatives(populations, found.n_populations)
    return first + rows, each


def sample_stream(task: Task, sample: int) -> np.random.Generator:
    """Return random numbers that depend on the sample's name, and not on the other samples."""
    # By name, so that a file has the same draws whichever other files are gated with it.
    return Stream(task.config.seed, 2, number_of(task.events.samples[sample])).step(Step.PROPORTIONS)


def add_medians(
    task: Task, found: Populations, engine: Engine, sample: int, own: OwnTerms, medians: Medians
) -> None:
    """Add the medians of a sample with its own weights and shift, with populations drawn by memberships."""
    rows, each = representatives(task, found, engine, sample, own)
    values, random = task.events.values[rows], sample_stream(task, sample)
    drawn = {}
    with closing(task.make_engine(values)) as few:
        for t in medians.draws.tolist():
            shares, _ = found.memberships_in(t, few, 0, len(rows), own)
            uniforms = random.random(len(rows), np.float32)
            drawn[t] = proportions.draw_populations(np.ascontiguousarray(shares.T), uniforms)
    medians.add(sample, task.events.measured(rows), each, drawn)


def average_draws(
    found: Populations,
    engine: Engine,
    start: int,
    stop: int,
    ratios: Floats,
    random: np.random.Generator,
    threads: int,
    own: OwnTerms | None = None,
) -> tuple[Floats, Array, Ints]:
    """Average memberships and densities of events start..stop-1 of one sample over the draws.

    In each draw, each event also gets a population drawn by its memberships, so the proportions reflect the
    uncertainty of memberships.

    Parameters
    ----------
    found : Populations
    engine : Engine
    start, stop : int
    ratios : float32 [T, P]
        Result of `sample_ratios`.
    random : numpy Generator
    threads : int
        That add up; the engine has its own.
    own : OwnTerms, optional
        Weights and shift of the sample in a hierarchical run; `ratios` are then 1.

    Returns
    -------
    memberships : float32 [M, P]
    log_density : float64 [M]
        Log predictive density, standardised scale.
    counts : int64 [T, P]
        Events by drawn population.
    """
    n_events = stop - start
    total = np.zeros((found.n_populations, n_events), np.float32)
    mean_density = MeanDensity(n_events)
    counts = np.zeros(ratios.shape, np.int64)
    # The same uniforms for all draws of the run: the counts then differ by the draws, with less noise of
    # their own.
    uniforms = random.random(n_events, np.float32)
    for t, (by_run, log_density) in enumerate(found.memberships(engine, start, stop, own)):
        _cpu.add_memberships(by_run, ratios[t], threads, uniforms, total, counts[t])
        mean_density.add(log_density)
    n_draws = len(found.draws)
    memberships = np.ascontiguousarray(total.T) / np.float32(n_draws)
    return memberships, mean_density.log(n_draws), counts
