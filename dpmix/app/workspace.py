"""The actions of the page on the runs of its folder, in addition to the actions in `dpmix.app.folder`.

The decisions and the judgements about a run are in their files only, so a server that ends loses none, and
two tabs show the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from threading import RLock
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dpmix.app import cell_types, counting, gates, judging, live, points
from dpmix.app.carried import carry_over
from dpmix.app.cell_types import Drawn, Typed
from dpmix.app.files import workspaces
from dpmix.app.folder import Folder, mark
from dpmix.app.gates import Gated
from dpmix.app.judging import Judging, Word
from dpmix.app.live import Live
from dpmix.app.points import PlottedEvents
from dpmix.commands.gate import WORKSPACE_FORMAT
from dpmix.errors import ConfigError
from dpmix.explore.exploration import HeldDevices
from dpmix.explore.screen import FURTHER
from dpmix.inputs.type_table import read_types
from dpmix.populations.draws import decide
from dpmix.populations.tree.decisions import Action, Decisions, decisions_path, problems_of, write_decisions
from dpmix.report.event_files import FORMATS
from dpmix.runs.reader import open_run

_ACTION: TypeAdapter[Any] = TypeAdapter(Action)


class StaleError(ConfigError):
    """The decisions have changed since the page last saw them."""


class Workspace(Folder):
    """A folder, and the runs that are open.

    Parameters
    ----------
    folder : Path
        An existing folder.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._judging_lock = RLock()  # taken before the other one: decisions do not wait for judgements
        self._counting_lock = RLock()
        self._points_lock = RLock()
        self._lives: dict[Path, tuple[tuple[int, int], Live]] = {}
        self._judging: tuple[Live, Judging] | None = None
        self._held: tuple[Live, HeldDevices] | None = None
        self.jobs.on_start = self.release_devices
        self._points: tuple[Live, PlottedEvents] | None = None
        self._gated: tuple[Any, Gated] | None = None
        self._types_lock = RLock()  # taken before the first one
        self._drawn: tuple[Live, Drawn] | None = None
        self._typed: tuple[Live, str, Typed] | None = None

    def open(self, run: str) -> dict[str, Any]:
        """Open a run, which takes seconds to a minute, and return what the page shows of it."""
        with self._lock:
            one = self._live(run, again=True)
            shown = {"run": run, "judged": judging.judged_path(self.inside(run)).exists()}
            shown |= {"counts": counting.is_quick(one), "points": points.number(one)}
            shown |= {"typed": cell_types.types_path(self.inside(run)).exists()}
            made = live.decisions_of(one)
            return shown | live.opened(one, made) | {"view": live.view(one, made)}

    def values(self, run: str) -> bytes:
        """Return the events of the densities, float32 [D, M]."""
        with self._lock:
            return live.packed_values(self._live(run))

    def view(self, run: str) -> dict[str, Any]:
        """Return the populations after the decisions in the file."""
        with self._lock:
            one = self._live(run)
            return live.view(one, live.decisions_of(one))

    def preview(self, run: str, action: Mapping[str, Any]) -> dict[str, Any]:
        """Return the populations after one more action, which is not stored."""
        with self._lock:
            one = self._live(run)
            return live.view(one, live.after(one, live.decisions_of(one), parsed(action)))

    def act(self, run: str, revision: str, action: Mapping[str, Any]) -> dict[str, Any]:
        """Store one more action, and return the populations after it."""
        with self._lock:
            one, decisions = self._current(run, revision)
            return self._stored(one, live.after(one, decisions, parsed(action)))

    def undo(self, run: str, revision: str) -> dict[str, Any]:
        """Remove the last action, and return the populations and, as `undone`, the action."""
        with self._lock:
            one, decisions = self._current(run, revision)
            earlier = live.before(decisions)
            return self._stored(one, earlier) | {"undone": decisions.actions[-1].model_dump(mode="json")}

    def count(self, run: str, revision: str) -> dict[str, Any] | None:
        """Return the proportions that `dpmix gate` gives after the decisions in the file, by counting events.

        None if the decisions differ from the revision, or change meanwhile.
        """
        path = decisions_path(self.inside(run))
        with self._lock:
            one = self._live(run)
            decisions = live.decisions_of(one)
            known = _identity(path)
        if live.revision(decisions) != revision:
            return None
        with self._counting_lock:  # one at a time; an earlier one ends after its next block
            return counting.counted(one, decisions, lambda: _identity(path) == known)

    def verdict(self, run: str, revision: str) -> dict[str, Any] | None:
        """Return the verdict of `dpmix gate` after the decisions in the file, which takes seconds.

        None if the decisions differ from the revision.
        """
        with self._lock:
            one = self._live(run)
            decisions = live.decisions_of(one)
        if live.revision(decisions) != revision:
            return None
        with self._counting_lock:
            return counting.verdict(one, decisions)

    def point_values(self, run: str, channels: list[int]) -> bytes:
        """Return channels of the events that are drawn as points, float32 [C, M]."""
        return points.packed_values(*self._opened_points(run), channels)

    def point_populations(self, run: str, revision: str, action: dict[str, Any] | None = None) -> bytes:
        """Return the population of each point after the decisions in the file, uint8 or uint16 [M].

        `action` is one more action, which is not stored.
        """
        one, own = self._opened_points(run)
        with self._lock:
            _, decisions = self._current(run, revision)
        if action is not None:
            decisions = live.after(one, decisions, parsed(action))
        return points.packed_populations(own, decide.decided(one.forest, decisions))

    def point_found(self, run: str) -> bytes:
        """Return 1 for points found by judging, by the judgements in the file of the run, uint8 [M]."""
        with self._judging_lock:
            _, own = self._opened_points(run)
            return judging.found_among(self._opened_judging(run), own.rows).tobytes()

    def types(self, run: str) -> dict[str, Any]:
        """Return the table of cell types of a run, and the types of some events and of the populations."""
        with self._types_lock:
            return self._state_of_types(run)

    def load_types(self, run: str, revision: str, source: str) -> dict[str, Any]:
        """Make a table the table of the run: a built-in one, or a CSV file of the folder."""
        with self._types_lock:
            path = self._current_types(run, revision)
            self.inside(source)
            cell_types.load(path, source, self.folder, self._opened_drawn(run)[1].channels)
            return self._state_of_types(run)

    def edit_types(self, run: str, revision: str, lines: list[list[str]]) -> dict[str, Any]:
        """Store the edited table of a run; without rows, its file is removed."""
        with self._types_lock:
            cell_types.store(self._current_types(run, revision), lines)
            return self._state_of_types(run)

    def add_type(self, run: str, revision: str, population: int, row: int | None = None) -> dict[str, Any]:
        """Make a row of a population, or let a row have its levels, too; both are numbered from 0."""
        with self._types_lock:
            path = self._current_types(run, revision)
            one, drawn = self._opened_drawn(run)
            with self._lock:
                decisions = live.decisions_of(one)
            found = self._opened_types(run)
            if found is None:
                raise ConfigError(["load a table of cell types first"])
            cell_types.store(path, cell_types.with_population(one, decisions, drawn, found, population, row))
            return self._state_of_types(run)

    def workspaces(self) -> list[str]:
        """Return the FlowJo workspaces of the folder."""
        return workspaces(self.folder)

    def compare(self, run: str, workspace: str) -> dict[str, Any]:
        """Return the population of each gate of a FlowJo workspace, after the decisions in the file."""
        with self._lock:
            one = self._live(run)
            return gates.table(one, live.decisions_of(one), self._opened_gates(run, workspace))

    def judged(self, run: str) -> dict[str, Any]:
        """Return the numbers of judged events and of those found, by the judgements in the file of the run.

        The page asks for it after each screen, while a person judges: counting takes longer than the screen.
        """
        with self._judging_lock:
            one, own = self._live(run), self._opened_judging(run)
            decisions = live.decisions_of(one)
            return judging.state(one, self.inside(run), own, decisions, self._held_devices(one))

    def candidates(
        self, run: str, further: float = FURTHER, selected: list[int] | None = None
    ) -> dict[str, Any]:
        """Return the next screen of events to judge, with their profiles, and the number of those judged.

        `further` goes from 0, more of the same, to 1, look further. `selected` are events to choose among,
        numbered among the events of the plots; without it, events are chosen among all of the run.
        """
        with self._judging_lock:
            one, own = self._live(run), self._opened_judging(run)
            rows, checks = judging.screen(own, further, judging.among(one, further, selected))
            shown = self.profiles(run, rows.tolist()) | {"checks": rows[checks].tolist()}
            return judging.stored(one, self.inside(run), own) | {"screen": shown}

    def judge(
        self,
        run: str,
        revision: str,
        judgements: dict[int, Word],
        checks: list[int],
        further: float = FURTHER,
        selected: list[int] | None = None,
    ) -> dict[str, Any]:
        """Store the judgements of a screen in the file of the run, and return the next screen.

        `judgements` are words by event, and `checks` events of the screen, as `candidates` returned them.
        """
        with self._judging_lock:
            path, own = self._current_judging(run, revision)
            judging.among(self._live(run), further, selected)  # raises before anything is stored
            judging.store(self._live(run), path, judgements, checks, own.judgements)
            return self.candidates(run, further, selected)

    def unjudge(self, run: str, revision: str) -> dict[str, Any]:
        """Remove the judgements of the last screen, and return this screen and its judgements."""
        with self._judging_lock:
            path, own = self._current_judging(run, revision)
            judgements, checks = judging.remove_last(self._live(run), path, own.judgements)
            shown = self.profiles(run, list(judgements)) | {"checks": checks}
            now = judging.stored(self._live(run), self.inside(run), self._opened_judging(run))
            return now | {"screen": shown, "judgements": judgements}

    def profiles(self, run: str, rows: list[int]) -> dict[str, Any]:
        """Return the profiles of events, numbered among all of the run, after the decisions in the file."""
        with self._lock:
            one = self._live(run)
            return judging.profiles(one, live.decisions_of(one), rows)

    def export(self, run: str, output: str, formats: list[str], strategy: bool = False) -> dict[str, Any]:
        """Start `dpmix gate` with decisions and judgements; return the state of the command."""
        path, folder = self.inside(run), self.inside(output)
        self._require_current(run)
        if folder == self.folder or not output.strip():
            raise ConfigError(["output: need the name of a folder inside this one"])
        known = (*FORMATS, WORKSPACE_FORMAT)
        unknown = [name for name in formats if name not in known]
        if unknown or not formats:
            raise ConfigError([f"formats: need some of {', '.join(known)}"])
        arguments = ["gate", self._argument(run), "--output", self._argument(output)]
        decided = decisions_path(path)
        if decided.exists():
            arguments += ["--decisions", str(decided.relative_to(self.folder))]
        judged = self.inside(str(judging.judged_path(path)))
        if judging.has_wanted(judged):
            arguments += ["--judged", str(judged.relative_to(self.folder))]
        if (table := cell_types.types_path(path)).exists():
            arguments += ["--types", str(table.relative_to(self.folder))]
        arguments += [part for name in formats for part in ("--format", name)]
        arguments += ["--strategy"] if strategy else []
        return self.jobs.start(arguments).state()

    def _require_current(self, run: str) -> None:
        """Raise `ConfigError` if a run has other draws than the populations shown, or soon will."""
        now, shown = open_run(self.inside(run)), self._live(run).task.run
        if now.committed != shown.committed or (not now.complete and self.jobs.running):
            raise ConfigError(
                [
                    f"{run}: the populations shown are from {shown.committed} draws, and it continues "
                    "or has ended since; after its end show its populations again, then write"
                ]
            )

    def _opened_gates(self, run: str, workspace: str) -> Gated:
        """Return the events inside gates; they are applied again if the run or the workspace has changed."""
        path = self.inside(workspace)
        key = run, self._lives[self.inside(run)][0], path, mark(path)
        if self._gated is None or self._gated[0] != key:
            self._gated = key, gates.gated(self._live(run), path)
        return self._gated[1]

    def _opened_points(self, run: str) -> tuple[Live, PlottedEvents]:
        """Return an open run and the events that are drawn as points; discard the points of another run."""
        with self._points_lock:
            one = self._live(run)
            if self._points is None or self._points[0] is not one:
                self._points = None
                self._points = one, points.open_points(one)
            return self._points

    def _state_of_types(self, run: str) -> dict[str, Any]:
        one, drawn = self._opened_drawn(run)
        with self._lock:
            decisions = live.decisions_of(one)
        path, problem, found = cell_types.types_path(self.inside(run)), "", None
        try:
            found = self._opened_types(run)
        except ConfigError as error:
            problem = "; ".join(error.problems)
        shown = cell_types.state(one, decisions, path, drawn, found, problem)
        return shown | {"decided": live.revision(decisions)}

    def _current_types(self, run: str, revision: str) -> Path:
        path = self.inside(str(cell_types.types_path(self.inside(run))))
        if judging.revision(path) != revision:
            raise StaleError(["the table of cell types was changed elsewhere; look, then edit again"])
        return path

    def _opened_drawn(self, run: str) -> tuple[Live, Drawn]:
        """Return an open run and what types need of it; discard what they needed of another run."""
        one = self._live(run)
        if self._drawn is None or self._drawn[0] is not one:
            self._drawn = None
            self._drawn = one, cell_types.draw(one, live.decisions_of(one))
        return self._drawn

    def _opened_types(self, run: str) -> Typed | None:
        """Return the types by the table of a run, computed again if it has changed; None without a table."""
        path = self.inside(str(cell_types.types_path(self.inside(run))))
        one, drawn = self._opened_drawn(run)
        own = judging.revision(path)
        if not own:
            return None
        if self._typed is None or self._typed[0] is not one or self._typed[1] != own:
            self._typed = one, own, cell_types.typed(one, drawn, read_types(path))
        return self._typed[2]

    def _opened_judging(self, run: str) -> Judging:
        """Return what follows from the judgements about a run; computed again if their file has changed.

        Computed are only further screens, if the file has these in addition to what it had.
        """
        path = self.inside(str(judging.judged_path(self.inside(run))))
        one = self._live(run)
        known = self._judging
        if known is None or known[0] is not one or known[1].revision != judging.revision(path):
            before = known[1] if known and known[0] is one else None
            known = self._judging = None  # after an error, the one before may be incomplete
            own = judging.open_judging(one, path, before, self._held_devices(one))
            self._judging = known = one, own
        return known[1]

    def _held_devices(self, one: Live) -> HeldDevices:
        """Return the devices for a run's events, which stay open while no command waits or runs."""
        if self._held is None or self._held[0] is not one:
            self.release_devices()
            task = one.task
            held = HeldDevices(task.events, task.config.engine, task.backend, lambda: not self.jobs.active)
            self._held = one, held
        return self._held[1]

    def release_devices(self) -> None:
        """Free the devices that hold events for judging, after a computation in progress."""
        with self._judging_lock:
            if self._held is not None:
                self._held[1].release()

    def _current_judging(self, run: str, revision: str) -> tuple[Path, Judging]:
        own = self._opened_judging(run)
        if own.revision != revision:
            raise StaleError(
                ["the judgements were changed elsewhere, perhaps in another tab; look, then judge again"]
            )
        return judging.judged_path(self.inside(run)), own

    def _live(self, run: str, again: bool = False) -> Live:
        """Return an open run; `again`: it is opened again if its file has changed."""
        path = self.inside(run)
        with self._lock:
            now = mark(path)
            if path not in self._lives or (again and self._lives[path][0] != now):
                self._check_inputs(path)
                before = self._lives[path][1] if path in self._lives else None
                opened = live.open_live(path, self.folder)
                for source in opened.task.events.sources:  # also those that a table of samples names
                    self.inside(str(source.path))
                opened = replace(opened, notes=carry_over(opened, before))
                self._lives[path] = now, opened
            return self._lives[path][1]

    def _check_inputs(self, path: Path) -> None:
        """Raise `ConfigError` if a run names inputs outside the folder, or its decisions lie there."""
        run = open_run(path)
        data = run.config["data"]
        names = [name.partition("::")[0] for name in data["files"]]
        names += [data["samples"]] if data["samples"] else []
        names += [data["compensation"]] if data["compensation"] not in ("auto", "none") else []
        names += [data["gate"]["workspace"]] if data["gate"] else []
        for name in names:
            self.inside(str(run.base / name))
        self.inside(str(decisions_path(path)))

    def _current(self, run: str, revision: str) -> tuple[Live, Decisions]:
        one = self._live(run)
        decisions = live.decisions_of(one)
        if live.revision(decisions) != revision:
            raise StaleError(
                ["the decisions were changed elsewhere, perhaps in another tab; look, then decide again"]
            )
        return one, decisions

    def _stored(self, one: Live, decisions: Decisions) -> dict[str, Any]:
        shown = live.view(one, decisions)
        write_decisions(one.path, decisions)
        return shown


def _identity(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file does; None without a file."""
    return mark(path) if path.exists() else None


def parsed(action: Mapping[str, Any]) -> Any:
    """Return an action from plain values.

    Raises
    ------
    ConfigError
        It is not an action.
    """
    try:
        return _ACTION.validate_python(action)
    except ValidationError as error:
        raise ConfigError(problems_of(error, "need an action of the page")) from None
