"""Results that a gating has on request: a map, gates, a workspace of FlowJo, a comparison with gates."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError
from dpmix.inputs.manual_gates import ManualGates
from dpmix.populations.draws.task import Task
from dpmix.populations.gates.comparison import compare, gated_samples, unread_gates
from dpmix.populations.gates.nested import Node, find_families, find_nested, unions_of, with_polygons
from dpmix.populations.gates.strategy import find_strategies
from dpmix.populations.result import Gating, Map
from dpmix.populations.types.types import included
from dpmix.report import embedding, findings, flowjo, tables
from dpmix.report.gatingml import nested, shortest, space_of, write_gates
from dpmix.system.paths import as_text

if TYPE_CHECKING:
    from dpmix.explore.exploration import Exploration

log = logging.getLogger("dpmix")

TABLE, GATES, COMPARISON = "strategy.csv", "gates.xml", "compare.csv"
EXPLORED = "explored.csv"
HIERARCHY_TABLE, HIERARCHY = "hierarchy.csv", "hierarchy.xml"
STRATEGY_FILES = (TABLE, GATES, HIERARCHY_TABLE, HIERARCHY)

FinishMap = Callable[[npt.NDArray[np.int32]], Map | None]


@dataclass(frozen=True)
class Additions:
    """The results asked for.

    Attributes
    ----------
    with_map, strategy, workspace : bool
    manual : ManualGates or None
        Gates to compare with.
    judged : tuple of (str or Path)
        Files of judgements.
    """

    with_map: bool = False
    strategy: bool = False
    workspace: bool = False
    manual: ManualGates | None = None
    judged: tuple[str | Path, ...] = ()

    @classmethod
    def of(
        cls,
        with_map: bool | None,
        strategy: bool,
        workspace: bool,
        compare_with: str | os.PathLike[str] | None,
        judged: Sequence[str | Path] = (),
    ) -> Additions:
        """Return the results asked for, with the gates of the file to compare with.

        A workspace has the gates of the strategies. None for the map: there is one if openTSNE is installed.

        Raises
        ------
        ConfigError
            A library is missing, or the workspace cannot be read.
        """
        if with_map:
            embedding.need()
        if with_map is None:
            with_map = embedding.available()
        manual = None if compare_with is None else ManualGates(Path(compare_with), "--compare")
        return cls(with_map, strategy or workspace, workspace, manual, tuple(judged))

    def check(self, task: Task) -> None:
        """Raise `ConfigError` or `DataError` if the events do not allow a result, before any work."""
        if self.strategy:
            space_of(task.events, task.config.data.linearize)
        if self.workspace:
            flowjo.check_samples(task.events.sources)
            if warning := flowjo.gain_warning(task.events):
                log.warning("%s", warning)
        if self.manual:
            for source in task.events.sources:
                self.manual.require(source)
        if self.judged and task.data:
            raise ConfigError(["--judged: the judgements are of events of the run; leave out --data"])

    def explore(self, task: Task) -> Exploration | None:
        """Return the events like those judged as wanted; None without judgements.

        Raises
        ------
        ConfigError
            The judgements cannot be read, or none is wanted.
        """
        if not self.judged:
            return None
        from dpmix.explore.exploration import exploration
        from dpmix.explore.judgements import read_judgements

        judgements = read_judgements(self.judged, task.events)
        found = exploration(task.events, judgements, task.config.seed, task.config.engine, task.backend)
        if found is None:
            raise ConfigError(["--judged: no event is judged as wanted; judge more (dpmix explore)"])
        return found

    def paths(self, folder: Path) -> list[Path]:
        """Return the files that `add` writes."""
        names = [*(STRATEGY_FILES if self.strategy else ()), *((COMPARISON,) if self.manual else ())]
        names += [EXPLORED] if self.judged else []
        names += [flowjo.WORKSPACE, flowjo.TABLE] if self.workspace else []
        return [folder / name for name in names]

    def figures(self) -> tuple[str, ...]:
        """Return the names of the figures of these results."""
        asked = {"map": self.with_map, "gates": self.strategy, "compare": self.manual is not None}
        return tuple(name for name, wanted in asked.items() if wanted)

    @contextmanager
    def drawing_map(self, task: Task) -> Iterator[FinishMap]:
        """Draw the map in a thread of its own: it needs no populations, only their colours.

        Yields
        ------
        callable
            Waits for the map and returns it, given the most probable population of each event, int32 [N].
            Returns None if none was asked for.
        """
        if not self.with_map:
            yield lambda population: None
            return
        with ThreadPoolExecutor(1, thread_name_prefix="map") as pool:
            drawn = pool.submit(embedding.place_events, task.events.values, task.config.seed)

            def finished(population: npt.NDArray[np.int32]) -> Map:
                rows, places = drawn.result()
                return Map(places, population[rows].astype(np.int64), np.asarray(task.events.values[rows]))

            yield finished

    def add(self, task: Task, gating: Gating, population: npt.NDArray[np.int32], folder: Path) -> Gating:
        """Compute the results but the map, write their tables, and return the gating with them.

        Parameters
        ----------
        task : Task
        gating : Gating
        population : int32 [N]
            Most probable population of each event.
        folder : Path
        """
        if self.strategy:
            gating = _with_strategies(task, gating, population, folder)
        if self.workspace:
            _write_workspace(task, gating, population, folder)
        if self.manual:
            samples = gated_samples(task.events, self.manual)
            compared = compare(as_text(self.manual.path), samples, population, gating.n_populations)
            tables.write_comparison(folder / COMPARISON, compared, gating)
            warnings = *gating.warnings, *unread_gates(task.events, self.manual)
            gating = replace(gating, comparison=compared, warnings=warnings)
        if gating.exploration:
            tables.write_explored(folder / EXPLORED, gating)
        return gating


def _with_strategies(task: Task, gating: Gating, population: npt.NDArray[np.int32], folder: Path) -> Gating:
    """Find the gates of all populations, alone and along the tree, and write them."""
    events, seed = task.events_without_noise(), task.config.seed
    found = find_strategies(events, population, gating.n_populations, seed)
    gating = replace(gating, strategies=found)
    if gating.exploration is not None:
        is_found = gating.exploration.is_found.astype(np.int32)
        gating = replace(gating, explored_strategy=find_strategies(events, is_found, 2, seed)[1])
    unions = unions_of(gating.tree, gating.modes)
    gating = replace(gating, hierarchy=find_nested(events, population, found, unions, seed))
    hierarchy = nested(gating, gating.hierarchy)
    tables.write_strategy(folder / TABLE, gating)
    tables.write_hierarchy(folder / HIERARCHY_TABLE, gating, hierarchy)
    parent = task.config.data.gate.population if task.config.data.gate else ""
    space = space_of(events, task.config.data.linearize)
    write_gates(folder / GATES, gating, shortest(gating), space, parent)
    write_gates(folder / HIERARCHY, gating, hierarchy, space, parent)
    if parent:
        log.info("the gates of --strategy apply inside %s (data.gate)", parent)
    if warning := findings.poor_gates_warning(gating):
        log.warning("%s", warning)
    return gating


def _write_workspace(task: Task, gating: Gating, population: npt.NDArray[np.int32], folder: Path) -> None:
    """Write the gates of populations and cell types as a workspace of FlowJo, and their table."""
    events, seed = task.events_without_noise(), task.config.seed
    hierarchy = with_polygons(gating.hierarchy, events, population, gating.n_populations)
    explored: Sequence[Node] = ()
    if gating.exploration is not None and (own := gating.explored_strategy) is not None:
        alone = Node((1,), -1, len(own.gates), own)
        explored = with_polygons([alone], events, gating.exploration.is_found.astype(np.int32), 2)
    types: Sequence[Node] = ()
    if gating.types is not None:
        n_types = len(gating.types.names)
        of_event = gating.types.rows.astype(np.int32)
        families = [tuple(np.flatnonzero(row).tolist()) for row in included(gating.types.table)[:-1]]
        types = with_polygons(
            find_families(events, of_event, families, n_types, seed), events, of_event, n_types
        )
    groups = flowjo.groups_of(gating, hierarchy, explored, types)
    space = space_of(events, task.config.data.linearize)
    flowjo.write_workspace(folder / flowjo.WORKSPACE, events, space, groups)
    flowjo.write_table(folder / flowjo.TABLE, events, groups)
