"""Gating: from a run file and events to populations, memberships, tables, figures and a report."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmix.config.schema import Config, parse_config, resets
from dpmix.engines.base import Engine
from dpmix.engines.choose import choose_backend, make_engine
from dpmix.errors import ConfigError
from dpmix.inputs import preprocess
from dpmix.inputs.events import Events
from dpmix.inputs.storage import Storage
from dpmix.inputs.transforms import Scaling
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.model.streams import Step, Stream
from dpmix.populations import alignment, find, phenotypes, proportions
from dpmix.populations.find import Populations
from dpmix.populations.result import QUANTILES, Block, Gating
from dpmix.report import embedding, event_files, figures, page, rasters, tables
from dpmix.runs.diagnostics import convergence
from dpmix.runs.reader import Run, open_run
from dpmix.runs.session import check_same_data
from dpmix.system.files import nearest_there, refuse
from dpmix.system.progress import ProgressLog

log = logging.getLogger("dpmix")

BLOCK = 131_072  # events whose memberships are held at a time
GRID_EVENTS, GRID_ENDS = 200_000, (0.001, 0.999)  # that say where the rasters begin and end


@dataclass(frozen=True)
class Task:
    """What is to be gated, and with what.

    Attributes
    ----------
    run : Run
        Standardised scale.
    config : Config
        Of the run, with the engine to use now.
    events : Events
    backend : str
        Of the engines, chosen once: what is odd about it is told once.
    storage : Storage
        What holds the events.
    """

    run: Run
    config: Config
    events: Events
    backend: str
    storage: Storage

    def engine(self, values: Floats) -> Engine:
        """An engine that holds events on the standardised scale, float32 [M, D]."""
        return make_engine(self.backend, self.config.engine, values, self.storage.scratch(values))


def prepare(
    run_file: str | Path,
    data: Sequence[str | Path] = (),
    engine: Sequence[str] = (),
    output: Path = Path("gated"),
) -> Task:
    """Open a run and the events to gate.

    Parameters
    ----------
    run_file : str or Path
    data : sequence of str or Path, optional
        Files or globs to gate in place of the run's own events.
    engine : sequence of str, optional
        Settings of the run's config to change, as ``engine.threads=2``.
    output : Path
        What will be written; beside it are events that are held in a file, where no other folder is given.

    Raises
    ------
    ConfigError, DataError
        A file is missing, cannot be read or used, or is no longer what the run was made from.
    """
    run = open_run(run_file)
    config = _config_here(run, engine)
    backend = choose_backend(config.engine, option="--backend ").backend
    storage = Storage.of(
        config.engine, backend, nearest_there(output.absolute().parent) / output.name, _beside
    )
    return Task(run, config, _events(run, config, data, storage), backend, storage)


def _events(run: Run, config: Config, data: Sequence[str | Path], storage: Storage) -> Events:
    """The run's own events, or those of other files."""
    if not data:
        events = preprocess.prepare(config.data, run.base, config.seed, storage)
        check_same_data(run, events, "gate other files with --data")
        return events
    settings = config.data
    if settings.compensation not in ("auto", "none"):  # a file beside the run's own data
        path = str(run.base / settings.compensation)
        settings = settings.model_copy(update={"compensation": path})
    files = [str(Path(name).absolute()) for name in data]
    scaling = Scaling.from_attributes(run.scaling)
    return preprocess.prepare_like(settings, Path(), files, scaling, run.detectors, storage)


def _beside(n: int, dim: int) -> int:
    """Bytes beside n events: the engine's, populations, those of a sample, a channel and a part of it."""
    return n * (2 + 4 + 8 + 4 + 4)


def _config_here(run: Run, engine: Sequence[str]) -> Config:
    """The config of a run, for this machine: populations are found and events gated by one process."""
    config = parse_config(run.config_text, str(run.path))
    if config.engine.backend == "cluster" and not resets(engine):  # and none is named
        log.info("the run was made on a cluster; this machine gates it")
        engine = ["engine.backend=auto", *engine]
    config = parse_config(run.config_text, str(run.path), [*resets(engine), *engine])
    if config.engine.backend == "cluster":
        raise ConfigError(["engine.backend: a cluster does not gate; take auto, cpu or cuda"])
    return config


def gate(
    run_file: str | Path,
    output: str | Path,
    *,
    data: Sequence[str | Path] = (),
    formats: Sequence[str] = ("parquet",),
    memberships: bool = False,
    with_map: bool = False,
    n_draws: int = find.DRAWS,
    level: float | None = None,
    n_populations: int | None = None,
    engine: Sequence[str] = (),
    overwrite: bool = False,
) -> Gating:
    """Gate events with a run and write everything there is to say of them into a folder.

    Parameters
    ----------
    run_file : str or Path
        What ``dpmix mcmc`` or ``dpmix bem`` wrote.
    output : str or Path
        Folder to write to, made where it is missing.
    data : sequence of str or Path, optional
        Files or globs to gate in place of the run's own events.
    formats : sequence of str
        Of the events: parquet, csv, h5ad, fcs.
    memberships : bool
        Write the probability of every population to Parquet and CSV, too.
    with_map : bool
        Draw a map of at most 20,000 events in two dimensions (`dpmix.report.embedding`), too.
    n_draws : int
        Draws of the run to use.
    level, n_populations : float, int, optional
        Where to cut the tree of populations, or into how many; not both.
    engine : sequence of str, optional
        Settings of the engine, as ``engine.threads=2``.
    overwrite : bool
        Replace files that are there.

    Returns
    -------
    Gating

    Raises
    ------
    ConfigError, DataError, DpmixError
        One line each, for anything wrong outside the program.
    """
    if with_map:
        embedding.need()
    directory = Path(output)
    task = prepare(run_file, data, engine, directory)
    samples = task.events.samples
    paths = [
        *event_files.event_paths(directory, formats, samples, task.events.sources),
        *tables.table_paths(directory),
        *figures.figure_paths(directory / "figures", with_map),
        directory / "aligned.nc",
        directory / "report.html",
    ]
    refuse(paths, overwrite, [task.run.path, *(source.path for source in task.events.sources)])
    found = find_populations(task, n_draws, level, n_populations)
    summary = _Summary.of(task.events, found)
    gating = _write_events(task, found, summary, directory, formats, memberships)
    tables.write_tables(directory, gating, task.events.scaling.means, task.events.scaling.sds)
    shown = open_run(run_file, transformed=True)
    alignment.write_aligned(directory / "aligned.nc", shown, found.draws, found.order)
    if with_map:
        drawn = embedding.make_map(task.events.values, summary.population, task.config.seed)
        gating = replace(gating, map=drawn)
    mixing = convergence(shown)
    figures.write_figures(directory / "figures", gating, shown, mixing)
    page.write_report(directory / "report.html", gating, shown, mixing)
    return gating


def predict(
    run_file: str | Path,
    data: Sequence[str | Path],
    output: str | Path,
    *,
    formats: Sequence[str] = ("parquet",),
    n_draws: int = find.DRAWS,
    level: float | None = None,
    n_populations: int | None = None,
    engine: Sequence[str] = (),
    overwrite: bool = False,
) -> Gating:
    """Memberships and log predictive densities of new events, as files of events alone.

    Parameters, returns and raises as `gate`; the probability of every population is written, too.
    """
    directory = Path(output)
    task = prepare(run_file, data, engine, directory)
    samples = task.events.samples
    paths = event_files.event_paths(directory, formats, samples, task.events.sources)
    refuse(paths, overwrite, [task.run.path, *(source.path for source in task.events.sources)])
    found = find_populations(task, n_draws, level, n_populations)
    summary = _Summary.of(task.events, found)
    return _write_events(task, found, summary, directory, formats, memberships=True)


def _write_events(
    task: Task,
    found: Populations,
    summary: _Summary,
    directory: Path,
    formats: Sequence[str],
    memberships: bool,
) -> Gating:
    """Pass over all events, writing them; the summary is told of each."""
    with event_files.open_writers(
        directory,
        formats,
        channels=task.events.channels,
        samples=task.events.samples,
        sources=task.events.sources,
        n_populations=found.n_populations,
        memberships=memberships,
    ) as writers:
        for block in blocks(task, found, summary):
            writers.write(block)
        gating = summary.gating(task, found)
        writers.finish(gating)
    return gating


def find_populations(task: Task, n_draws: int, level: float | None, n_populations: int | None) -> Populations:
    """The populations of the run of a task, and a line about them in the log."""
    found = find.find_populations(
        task.run, task.engine, n_draws=n_draws, level=level, n_populations=n_populations
    )
    log.info(
        "%d populations at level %.3g (%s), from %d draws",
        found.n_populations,
        found.level,
        found.why,
        len(found.draws),
    )
    return found


def blocks(task: Task, found: Populations, summary: _Summary) -> Iterator[Block]:
    """Memberships of all events, block by block, sample by sample; the summary is told of each.

    They are by each sample's own proportions (`dpmix.populations.proportions`), log densities by the run's.
    """
    events, scaling = task.events, task.events.scaling
    random = Stream(task.config.seed, 0, 0).step(Step.PROPORTIONS)
    progress = ProgressLog("gating", len(events.values))
    weights = found.weights
    with closing(task.engine(events.values)) as engine:
        for sample, (first, end) in enumerate(
            zip(events.sample_starts, events.sample_starts[1:], strict=False)
        ):
            ratios = _ratios(task, found, weights, engine, sample)
            for start in range(int(first), int(end), BLOCK):
                stop = min(start + BLOCK, int(end))
                counts = summary.counts[:, sample]
                mean, log_density = _averaged(found, engine, start, stop, ratios, counts, random)
                rows = (
                    np.arange(start - first, stop - first) if events.rows is None else events.rows[start:stop]
                )
                block = Block(
                    sample=sample,
                    rows=rows,
                    values=scaling.to_transformed(events.values[start:stop]).astype(np.float32),
                    memberships=mean,
                    log_density=log_density,
                    implausible=log_density < found.least_density,
                )
                summary.add(block, start)
                yield block
                progress.add(stop - start)


def _ratios(task: Task, found: Populations, weights: Array, engine: Engine, sample: int) -> Floats:
    """A sample's weights of the populations over the run's, float32 [T, P]; `weights` are the run's.

    What is drawn depends on the sample and its name, not on the other samples.
    """
    first, end = (int(at) for at in task.events.sample_starts[sample : sample + 2])
    populations = np.zeros(end - first, np.int64)
    if end - first > proportions.MOST_EVENTS:
        for start in range(first, end, BLOCK):
            stop = min(start + BLOCK, end)
            shares, _ = found.memberships_in(found.reference, engine, start, stop)
            populations[start - first : stop - first] = shares.argmax(axis=1)
    rows, each = proportions.representatives(populations, found.n_populations)
    name = hashlib.sha256(task.events.samples[sample].encode()).digest()[:8]
    random = Stream(task.config.seed, 2, int.from_bytes(name, "little")).step(Step.PROPORTIONS)
    with closing(task.engine(task.events.values[first + rows])) as few:
        memberships = (shares for shares, _ in found.memberships(few, 0, len(rows)))
        return proportions.ratios(proportions.sample_weights(memberships, weights, each, random), weights)


def _averaged(
    found: Populations,
    engine: Engine,
    start: int,
    stop: int,
    ratios: Floats,
    counts: Ints,
    random: np.random.Generator,
) -> tuple[Floats, Array]:
    """Memberships [M, P] and log predictive densities [M] of a block of a sample.

    A population is drawn for each event in each draw and counted in counts [T, P]: proportions know that way
    that memberships are uncertain.
    """
    total = np.zeros((stop - start, found.n_populations), np.float32)
    log_density = np.full(stop - start, -np.inf)
    uniforms = random.random((stop - start, 1), np.float32)
    for t, (of_run, of_draw) in enumerate(found.memberships(engine, start, stop)):
        shares = of_run * ratios[t]
        shares /= shares.sum(axis=1, keepdims=True)
        total += shares
        log_density = np.logaddexp(log_density, of_draw)
        # One uniform per event, turned on from draw to draw: every draw's is uniform.
        drawn = proportions.draw_populations(shares, uniforms)
        counts[t] += np.bincount(drawn, minlength=found.n_populations)
        uniforms = np.mod(uniforms + np.float32(0.6180339887), np.float32(1.0))
    n_draws = len(found.draws)
    return total / np.float32(n_draws), log_density - np.log(n_draws)


@dataclass
class _Summary:
    """What is kept of all blocks; see `dpmix.populations.result.Gating` for the meaning of each.

    `population` is the most probable population of each event.
    """

    counts: Ints
    sizes: Ints
    certainty: Array
    n_implausible: Ints
    population: npt.NDArray[np.int32]
    counter: rasters.Counter

    @classmethod
    def of(cls, events: Events, found: Populations) -> _Summary:
        n_samples, n_populations = len(events.samples), found.n_populations
        some = events.values[:: max(len(events.values) // GRID_EVENTS, 1)]
        lows, highs = events.scaling.to_transformed(np.quantile(some, GRID_ENDS, axis=0))
        return cls(
            counts=np.zeros((len(found.draws), n_samples, n_populations), np.int64),
            sizes=np.zeros((n_samples, n_populations), np.int64),
            certainty=np.zeros(n_populations),
            n_implausible=np.zeros(n_samples, np.int64),
            population=np.zeros(len(events.values), np.int32),
            counter=rasters.Counter(rasters.grid(lows, highs), n_populations),
        )

    def add(self, block: Block, start: int) -> None:
        """Take a block in whose first event is number `start` of all."""
        population, n_populations = block.population, len(self.certainty)
        self.population[start : start + len(population)] = population
        self.sizes[block.sample] += np.bincount(population, minlength=n_populations)
        self.certainty += np.bincount(population, block.probability, n_populations)
        self.n_implausible[block.sample] += int(block.implausible.sum())
        self.counter.add(block.values, population)

    def gating(self, task: Task, found: Populations) -> Gating:
        """Everything together."""
        run, scaling = found.run, task.events.scaling
        chain, draw = found.draws[found.reference]
        components = found.components[found.reference]
        means = scaling.to_transformed(run.means[chain, draw])
        covariances = scaling.covariance_to_transformed(run.covariances[chain, draw])
        weights = np.array(run.weights[chain, draw])
        limits = phenotypes.thresholds(weights, means, covariances, components)
        quantiles = self._quantiles(task.events)
        sizes = self.sizes.sum(axis=0)
        return Gating(
            run=str(run.path),
            kind=run.kind,
            channels=task.events.channels,
            samples=task.events.samples,
            n_events=np.diff(task.events.sample_starts),
            n_chains=len(np.unique(found.draws[:, 0])),
            draws=found.draws,
            reference=found.reference,
            pooled=found.pooled,
            tree=found.tree,
            modes=found.modes,
            level=found.level,
            why=found.why,
            components=components,
            weights=weights,
            means=means,
            covariances=covariances,
            numbers=found.numbers,
            support=found.support,
            agreement=found.agreement,
            sizes=self.sizes,
            proportions=proportions.posterior(self.counts, task.config.seed),
            certainty=np.divide(self.certainty, sizes, out=np.full(len(sizes), np.nan), where=sizes > 0),
            n_implausible=self.n_implausible,
            quantiles=quantiles,
            thresholds=limits,
            phenotypes=phenotypes.phenotypes(quantiles[1], quantiles[3], limits, task.events.channels),
            rasters=self.counter.rasters(),
            sample_columns=task.events.sample_columns,
        )

    def _quantiles(self, events: Events) -> Array:
        """QUANTILES of each population and channel, float64 [5, P, D]."""
        found = np.full((len(QUANTILES), len(self.certainty), events.values.shape[1]), np.nan)
        for d in range(events.values.shape[1]):  # one at a time: the events may be in a file
            column = np.array(events.values[:, d])
            for p in range(len(self.certainty)):
                own = column[self.population == p]
                if len(own):
                    found[:, p, d] = np.quantile(own, QUANTILES, overwrite_input=True)
        return events.scaling.to_transformed(found)
