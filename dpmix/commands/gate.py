"""Gate events with a run, and write tables, event files, figures and the report into a folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpmix.commands.additions import Additions
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.type_examples import Examples, are_examples, read_examples
from dpmix.inputs.type_table import TypeTable, match_markers, read_types
from dpmix.model.mixture import Floats
from dpmix.populations import sample_draws
from dpmix.populations.assign import assign_events
from dpmix.populations.draws import alignment, find, misfit
from dpmix.populations.draws.cohort import OwnTerms
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.new_samples import fit_sample
from dpmix.populations.draws.task import Task, prepare
from dpmix.populations.events.artefacts import Artefacts, Marks
from dpmix.populations.gates.cards import find_cards
from dpmix.populations.marks import find_artefacts
from dpmix.populations.result import Gating, Map
from dpmix.populations.summary import Summary
from dpmix.populations.tree.cut import require_cut
from dpmix.populations.tree.decisions import read_decisions
from dpmix.populations.types.assign import assign_types
from dpmix.populations.types.draws import type_draws
from dpmix.populations.types.examples import assign_by_examples, require_classifiers
from dpmix.populations.types.types import CERTAINTY, UNKNOWN, Types, types_by_population
from dpmix.report import embedding, event_files, figures, findings, fit, page, shifts, tables, type_tables
from dpmix.report.labels import shown
from dpmix.runs.coarseness import choice_of
from dpmix.runs.diagnostics import convergence
from dpmix.runs.reader import Run, open_run
from dpmix.system.background import importing
from dpmix.system.console import quoted
from dpmix.system.cores import usable_cores
from dpmix.system.files import check_outputs

if TYPE_CHECKING:
    from dpmix.explore.exploration import Exploration

log = logging.getLogger("dpmix")

WORKSPACE_FORMAT = "wsp"
LIBRARIES = (  # of votes, alignment, figures and report; importing them takes a second
    "scipy.sparse",
    "scipy.cluster.hierarchy",
    "scipy.optimize",
    "matplotlib.figure",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_pdf",
    "bokeh.embed",
    "bokeh.plotting",
)


def gate(
    run_file: str | os.PathLike[str],
    output: str | Path,
    *,
    data: Sequence[str | Path] = (),
    formats: Sequence[str] = ("parquet",),
    memberships: bool = False,
    state_values: bool = False,
    with_map: bool | None = None,
    strategy: bool = False,
    compare: str | Path | None = None,
    judged: Sequence[str | Path] = (),
    calibrated: bool = False,
    without_artefacts: bool = False,
    types: str | Path | TypeTable | None = None,
    types_zero: str = "",
    type_certainty: float = CERTAINTY,
    n_draws: int = find.DRAWS,
    level: float | None = None,
    n_populations: int | None = None,
    decisions: str | Path | None = None,
    engine: Sequence[str] = (),
    overwrite: bool = False,
) -> Gating:
    """Gate events with a run and write all results into a folder.

    Parameters
    ----------
    run_file, output : str or Path
        Run file (or open `Run`), and the folder to write to, created if missing.
    data, formats : sequence of str or Path, optional
        Files or globs to gate instead of the run's own; formats of event files: parquet, csv, h5ad, fcs. wsp
        writes the gates of `strategy` as a workspace of FlowJo instead (`dpmix.report.flowjo`).
    memberships, state_values, strategy, overwrite : bool
        Write all memberships to Parquet and CSV; the values of state channels, too; find gates; replace
        existing files.
    with_map : bool, optional
        Draw a t-SNE map of at most 20,000 events (`dpmix.report.embedding`). None: if openTSNE is installed.
    calibrated : bool
        Subtract the posterior mean of each sample's shift (model.shifts) from the values in h5ad and
        FCS files.
    without_artefacts : bool
        Leave populations that look like debris, doublets or dead cells out of the proportions.
    judged : sequence of str or Path
        Files of judgements (`dpmix.explore.judgements`): events like those wanted are marked.
    types : str, Path or TypeTable
        Table of cell types: a CSV file, or the name of a built-in table (`dpmix types --list`); or examples
        of them (`dpmix.inputs.type_examples`). Events get a type, and types.csv the proportions
        (`dpmix.populations.types.assign`, `dpmix.populations.types.examples`).
    types_zero : str
        Meaning of the number 0 in the table: "lo", "blank", or "", an error.
    type_certainty : float
        Least probability of a child of the table, given its parent, for an event to get it.
    n_draws, level, n_populations : int, float, int
        Draws to use; cut height of the tree, or number of populations to cut it into, not both.
    decisions : str or Path
        File of decisions made by hand (`dpmix.populations.tree.decisions`), instead of these three.
    compare, engine : str or Path, sequence of str
        FlowJo workspace or GatingML file to compare with; engine settings such as ``engine.threads=2``.

    Returns
    -------
    Gating

    Raises
    ------
    DpmixError
        Anything wrong outside the program, in one line.
    """
    _require_lists(data=data, formats=formats, judged=judged, engine=engine)
    require_cut(n_draws, level, n_populations)
    asked = Additions.of(with_map, strategy, WORKSPACE_FORMAT in formats, compare, judged)
    formats = [name for name in formats if name != WORKSPACE_FORMAT]
    folder = Path(output)
    by_hand = None if decisions is None else read_decisions(decisions)
    table = _table_of_types(types, types_zero, type_certainty)
    task = prepare(run_file, data, engine, folder, with_quality=True)
    if without_artefacts and task.events.quality is None:
        raise ConfigError(["--without-artefacts: found neither scatter nor viability in the files"])
    known = _known_types(table, task, folder)
    if data and "shifts" in task.run.cohort:
        raise ConfigError(
            [f"--data: {task.run.path} has shifts (model.shifts); use dpmix predict, which finds them"]
        )
    moved = shifts.to_subtract(task.run, formats, task.events.sources) if calibrated else None
    asked.check(task)
    if state_values and task.events.state is None:
        raise ConfigError([f"--state-values: {task.run.path} has no state channels (data.state_channels)"])
    explored = asked.explore(task)
    check_outputs(
        [*_paths(task, folder, formats, asked), *(type_tables.paths(folder) if known else [])],
        overwrite,
        _inputs(task),
    )
    if with_map is None and not asked.with_map:
        log.info(embedding.HINT)
    with asked.drawing_map(task) as finished_map:
        with importing(LIBRARIES, allowed=_may_use_two_cores(task)):
            found = task.find_populations(n_draws, level, n_populations, by_hand)
            own = _own_terms(task, found)
            artefacts = find_artefacts(task, found)
            typed = None if known is None else known.assign(task, found, own, type_certainty, artefacts)
            gating, population = _write_events(
                task,
                found,
                artefacts.marks,
                folder,
                formats,
                memberships,
                moved,
                own,
                explored,
                state_values,
                without_artefacts,
                typed,
            )
        _say_verdict(gating)
        one = findings.one_population_warning(gating)
        for warning in (_unfinished(task.run), findings.few_draws_warning(gating), one):
            if warning:
                log.warning("%s", warning)
        gating = asked.add(task, gating, population, folder)
        gating = _with_cards(task, gating, population)
        return _write_report(task, found, gating, folder, lambda: finished_map(population))


def predict(
    run_file: str | os.PathLike[str],
    data: Sequence[str | Path],
    output: str | Path,
    *,
    formats: Sequence[str] = ("parquet",),
    n_draws: int = find.DRAWS,
    level: float | None = None,
    n_populations: int | None = None,
    decisions: str | Path | None = None,
    engine: Sequence[str] = (),
    state_values: bool = False,
    types: str | Path | TypeTable | None = None,
    types_zero: str = "",
    type_certainty: float = CERTAINTY,
    overwrite: bool = False,
) -> Gating:
    """Gate new events with a run and write event files and fit.csv, with the probability of every population.

    In a hierarchical run each file gets its own weights and shift (`dpmix.populations.draws.new_samples`);
    with shifts, shifts.csv has the files' shifts. Parameters, return value and errors are as in `gate`. The
    attribute `fit` of the result says whether the files fit the run. With state channels, populations.csv and
    samples.nc have their medians, and `dpmix associate` compares the new files. Thresholds of cell types come
    from the new events.
    """
    _require_lists(data=data, formats=formats, engine=engine)
    if not data:
        raise ConfigError(["data is empty; give the files to predict; dpmix.gate gates the files of the run"])
    require_cut(n_draws, level, n_populations)
    folder = Path(output)
    by_hand = None if decisions is None else read_decisions(decisions)
    table = _table_of_types(types, types_zero, type_certainty)
    task = prepare(run_file, data, engine, folder, with_quality=isinstance(table, TypeTable))
    known = _known_types(table, task, folder)
    if state_values and task.events.state is None:
        raise ConfigError([f"--state-values: {task.run.path} has no state channels (data.state_channels)"])
    paths = [
        *event_files.event_paths(folder, formats, task.events.samples, task.events.sources),
        *fit.paths(folder, task.run),
        *([folder / sample_draws.FILE, tables.table_paths(folder)[0]] if task.events.state else []),
        *(type_tables.paths(folder) if known else []),
    ]
    check_outputs(paths, overwrite, _inputs(task))
    found = task.find_populations(n_draws, level, n_populations, by_hand)
    own = _own_terms(task, found)
    artefacts = find_artefacts(task, found)
    typed = None if known is None else known.assign(task, found, own, type_certainty, artefacts)
    gating = _write_events(
        task,
        found,
        artefacts.marks,
        folder,
        formats,
        memberships=True,
        own=own,
        state_values=state_values,
        typed=typed,
    )[0]
    events = task.events
    measured = misfit.measure(
        found, task.make_engine, events.values, events.sample_starts, own, task.config.seed
    )
    gating = replace(gating, fit=measured)
    fit.write_fit(folder, gating, task.run)
    if gating.types is not None:
        type_tables.write_types(folder, gating)
    if task.events.state:  # for the medians of the state channels
        tables.write_sample_draws(folder, gating)
        tables.write_populations(folder, gating)
    _say_verdict(gating)
    of_draws = _unfinished(task.run), findings.few_draws_warning(gating)
    for warning in [*fit.warnings(gating), *filter(None, of_draws)]:
        log.warning("%s", warning)
    return gating


@dataclass(frozen=True)
class _KnownTypes:
    """A table of cell types, or examples and the task with the events of the run, which have their labels."""

    table: TypeTable | None
    examples: Examples | None
    labelled: Task

    def assign(
        self,
        task: Task,
        found: Populations,
        own: Sequence[OwnTerms] | None,
        certainty: float,
        artefacts: Artefacts,
    ) -> Types:
        """Return the cell types of all events of a task."""
        if self.examples is not None:
            types = assign_by_examples(task, found, self.examples, self.labelled, own, certainty)
        else:
            assert self.table is not None
            types = assign_types(task, found, self.table, own, certainty, artefacts)
        parents = (*types.table.parents, "")
        return replace(types, draws=type_draws(task.events, types.names, parents, types.rows, types.counts))


def _table_of_types(
    types: str | Path | TypeTable | None, types_zero: str, type_certainty: float
) -> TypeTable | str | Path | None:
    """Return the table of cell types that is asked for, read and checked, a file of examples, or None."""
    if not 0.0 < type_certainty <= 1.0:
        raise ConfigError([f"type_certainty is {type_certainty}; it must be above 0 and at most 1"])
    if types is None or isinstance(types, TypeTable):
        table = types
    elif are_examples(types):
        require_classifiers()
        return types
    else:
        table = read_types(types, types_zero)
    if table is not None and UNKNOWN in table.types:
        raise ConfigError([f"{table.source}: a row is named {UNKNOWN}, the type without a row; rename it"])
    return table


def _known_types(table: TypeTable | str | Path | None, task: Task, folder: Path) -> _KnownTypes | None:
    """Return the types to use, checked against the events before any work; None for none."""
    if table is None:
        return None
    if isinstance(table, TypeTable):
        match_markers(table, task.events.all_channels)  # refuses a table without a marker of the panel
        return _KnownTypes(table, None, task)
    labelled = task
    if task.data:
        try:
            labelled = replace(prepare(task.run, (), (), folder), config=task.config)
        except (ConfigError, DataError) as error:
            raise ConfigError([f"--types: {table}: needs the events of the run: {error}"]) from error
    return _KnownTypes(None, read_examples(table, labelled.events), labelled)


def _say_verdict(gating: Gating) -> None:
    """Log the verdict, which is a warning where chains differ."""
    log.log(gating.verdict.level, "%s", gating.verdict)


def _require_lists(**given: Sequence[str | Path]) -> None:
    """Raise `ConfigError` for a single name, whose letters would be taken for names."""
    problems = [
        f'{name} is "{value}"; it must be a list, as ["{value}"]'
        for name, value in given.items()
        if isinstance(value, (str, os.PathLike))
    ]
    if problems:
        raise ConfigError(problems)


def _unfinished(run: Run) -> str | None:
    """Warn of a run that is not complete, with the command to continue it; None for a complete one."""
    warning = findings.unfinished_warning(run)
    again = f"dpmix {run.kind} {quoted(run.path)} --resume continues a stopped run"
    return f"{warning}; {again}" if warning else None


def _own_terms(task: Task, found: Populations) -> list[OwnTerms] | None:
    """Return the weights and shifts of new files in a hierarchical run; None for others."""
    if not found.run.cohort or not task.data:
        return None
    events = task.events
    return [
        fit_sample(found, task.make_engine, events.values[start:stop], name, task.config.seed)
        for name, (start, stop) in zip(events.samples, pairwise(events.sample_starts), strict=True)
    ]


def _paths(task: Task, folder: Path, formats: Sequence[str], asked: Additions) -> list[Path]:
    """Return all files that `gate` writes."""
    chosen = ["coarseness"] if choice_of(task.run).curve else []
    moved = "shifts" in task.run.cohort
    chosen += ["shifts"] if moved else []
    return [
        *event_files.event_paths(folder, formats, task.events.samples, task.events.sources),
        *tables.table_paths(folder),
        *asked.paths(folder),
        *figures.figure_paths(folder / "figures", [*chosen, *asked.figures()]),
        *([folder / shifts.TABLE] if moved else []),
        folder / "aligned.nc",
        folder / sample_draws.FILE,
        folder / "report.html",
    ]


def _inputs(task: Task) -> list[Path]:
    """Return the files that the task reads."""
    return [task.run.path, *(source.path for source in task.events.sources)]


def _write_events(
    task: Task,
    found: Populations,
    marks: Marks,
    folder: Path,
    formats: Sequence[str],
    memberships: bool,
    moved: Floats | None = None,
    own: Sequence[OwnTerms] | None = None,
    explored: Exploration | None = None,
    state_values: bool = False,
    without_artefacts: bool = False,
    typed: Types | None = None,
) -> tuple[Gating, npt.NDArray[np.int32]]:
    """Assign all events and write them; return the gating and the population of each event, int32 [N].

    `marks` has what each population looks like. `moved`, float32 [S, D], is subtracted from the values that
    are written. `own` has the weights and shifts of samples that are not in the run. `explored` has the
    events like those judged as wanted. `state_values`: Parquet and CSV have the values of the state channels.
    `typed` has the events' types.
    """
    summary = Summary.empty(task.events, found)
    with event_files.open_writers(
        folder,
        formats,
        channels=task.events.channels,
        samples=task.events.samples,
        sources=task.events.sources,
        labels=found.labels or range(1, found.n_populations + 1),
        memberships=memberships,
        explored=explored is not None,
        to_raw=None if moved is None else task.events.scaling.transformed_to_raw,
        state=() if task.events.state is None else task.events.state.channels,
        with_state=state_values,
        types=() if typed is None else typed.names,
    ) as writers:
        for block, counts in assign_events(task, found, summary.medians, own):
            summary.add(block, counts)
            own_events = slice(summary.n_added - len(block.rows), summary.n_added)
            if typed is not None:
                block = replace(
                    block,
                    cell_type=typed.of_event[own_events],
                    type_probability=typed.probability[own_events],
                )
            if explored is not None:
                block = replace(block, explored=explored.is_found[own_events])
            writers.write(
                block if moved is None else replace(block, values=block.values - moved[block.sample])
            )
        gating = replace(summary.gating(task, found, marks, without_artefacts), exploration=explored)
        if typed is not None:
            together = types_by_population(typed, summary.population, gating.n_populations)
            gating = replace(gating, types=typed, type_populations=together)
        writers.finish(gating)
    return gating, summary.population


def _with_cards(task: Task, gating: Gating, population: npt.NDArray[np.int32]) -> Gating:
    """Return the gating with the plots of the cards of its populations."""
    edges, seed = gating.rasters.edges, task.config.seed
    cards = find_cards(task.events, population, gating.n_populations, shown(gating), edges, seed)
    return replace(gating, cards=cards)


def _write_report(
    task: Task, found: Populations, gating: Gating, folder: Path, finished_map: Callable[[], Map | None]
) -> Gating:
    """Write tables, aligned draws, figures and the report; return the gating."""
    tables.write_sample_draws(folder, gating)
    tables.write_tables(folder, gating, task.events.scaling.means, task.events.scaling.sds)
    run = open_run(task.run.path, transformed=True)
    if gating.types is not None:
        type_tables.write_types(folder, gating)
    alignment.write_aligned(folder / "aligned.nc", run, found.draws, found.order)
    mixing = convergence(run)
    if (drawn := shifts.draws_of(run)) is not None:
        shifts.write_shifts(folder / shifts.TABLE, drawn, run.constants["sample"].tolist(), run.channels)
        if warning := shifts.shift_warning(gating, run):
            log.warning("%s", warning)

    figures.write_figures(folder / "figures", gating, run, mixing)
    if (drawn_map := finished_map()) is not None:
        gating = replace(gating, map=drawn_map)
        figures.write_figures(folder / "figures", gating, run, mixing, ["map"])
    page.write_report(folder / "report.html", gating, run, mixing)
    return gating


def _may_use_two_cores(task: Task) -> bool:
    return usable_cores() > 1 and task.config.engine.threads != 1
