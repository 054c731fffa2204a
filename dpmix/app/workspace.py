"""The actions of the page in its folder: each is one method, which takes and returns plain values.

Nothing outside the folder is read or written. The decisions about a run are in their file only, so a server
that ends loses none, and two tabs show the same.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from threading import RLock
from typing import Any

from pydantic import TypeAdapter, ValidationError

from dpmix.app import channels, engine, estimate, gates, judging, live, running
from dpmix.app.channels import Choice, Matrix
from dpmix.app.files import data_files, workspaces
from dpmix.app.gates import Gated
from dpmix.app.incoming import Incoming
from dpmix.app.jobs import Jobs
from dpmix.app.judging import Judging, Word
from dpmix.app.live import Live
from dpmix.app.running import Known, Pace
from dpmix.config.schema import Config
from dpmix.config.write import to_yaml
from dpmix.errors import ConfigError, DpmixError
from dpmix.explore.screen import FURTHER
from dpmix.populations.decisions import Action, Decisions, decisions_path, problems_of, write_decisions
from dpmix.report.event_files import FORMATS
from dpmix.runs.describe import describe_run
from dpmix.runs.reader import open_run
from dpmix.system.files import write_text
from dpmix.system.run_marker import is_run_file

NAME = re.compile(r"[A-Za-z0-9][\w-]{0,60}", re.ASCII)
"""Of a run that the page starts."""

_ACTION: TypeAdapter[Any] = TypeAdapter(Action)


class StaleError(ConfigError):
    """The decisions have changed since the page last saw them."""


class Workspace:
    """A folder with run files, the runs that are open, and the commands that were started.

    Parameters
    ----------
    folder : Path
        An existing folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError([f"{folder}: is not a folder; give the folder with the run files"])
        self.folder = folder.resolve()
        self.jobs = Jobs(self.folder)
        self._lives: dict[Path, tuple[tuple[int, int], Live]] = {}
        self._choice: tuple[Any, Choice] | None = None
        self._judging: tuple[Live, Judging] | None = None
        self._gated: tuple[Any, Gated] | None = None
        self._agreed: Known = {}
        self._pace = Pace()
        self._lock = RLock()

    def inside(self, name: str) -> Path:
        """Return the path of a name in the folder.

        Raises
        ------
        ConfigError
            It lies outside the folder.
        """
        path = self.folder if "\0" in name else (self.folder / name).resolve()
        if "\0" in name or not path.is_relative_to(self.folder):
            raise ConfigError(
                [f"{name}: lies outside {self.folder}; start dpmix app in a folder that has it"]
            )
        return path

    def runs(self) -> list[dict[str, Any]]:
        """Return the run files of the folder and what each holds, or why it cannot be read."""
        rows = []
        for path in sorted(self.folder.glob("**/*.h5")):
            if not path.resolve().is_relative_to(self.folder) or not is_run_file(path):
                continue
            row: dict[str, Any] = {"name": str(path.relative_to(self.folder)), "error": ""}
            try:
                run = open_run(path)
                row |= {
                    "kind": run.kind,
                    "events": int(run.attributes["n_events"]),
                    "chains": len(run.weights),
                    "draws": run.committed,
                    "complete": run.complete,
                    "channels": len(run.channels),
                    "decided": decisions_path(path).exists(),
                }
            except DpmixError as error:
                row["error"] = str(error)
            rows.append(row)
        return rows

    def files(self) -> list[dict[str, Any]]:
        """Return the data files of the folder: what each holds, and its event rate."""
        return data_files(self.folder)

    def receive(self, name: str) -> Incoming:
        """Start a file of the folder that arrives in pieces; the server calls it, not the page."""
        return Incoming(self.folder, name)

    def channels(self, files: list[str]) -> dict[str, Any]:
        """Return the channels of data files, and what `dpmix init` suggests for each and why."""
        return channels.described(self._opened_choice(files))

    def look(
        self,
        files: list[str],
        data: dict[str, Any],
        matrix: list[list[float]] | None = None,
        name: str = "run",
    ) -> dict[str, Any]:
        """Return each channel before and after its transform, and the keys of the config; see `fit`."""
        return channels.look(self._opened_choice(files), self._inside_data(data), matrix, name)

    def pair(
        self,
        files: list[str],
        data: dict[str, Any],
        across: str,
        up: str,
        matrix: list[list[float]] | None = None,
    ) -> dict[str, Any]:
        """Return the densities of two channels, not compensated and as set; see `fit`."""
        return channels.pair(self._opened_choice(files), self._inside_data(data), matrix, across, up)

    def grid(
        self, files: list[str], data: dict[str, Any], matrix: list[list[float]] | None = None
    ) -> dict[str, Any]:
        """Return the densities of all pairs of the first chosen channels; see `fit`."""
        return channels.grid(self._opened_choice(files), self._inside_data(data), matrix)

    def fit(
        self,
        files: list[str],
        name: str,
        quick: bool = False,
        data: dict[str, Any] | None = None,
        matrix: list[list[float]] | None = None,
        on: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Queue a run on data files; return the state of its commands.

        `quick` is Bayesian EM, otherwise MCMC. The config is NAME.yaml and the run NAME.h5. The settings of
        the channels are `data`: channels, transform and compensation, as in a config. Without them, the
        config is that of `dpmix init`. An edited `matrix` is written as NAME.spillover.csv. The settings of
        the engine (`dpmix.app.engine.KEYS`) are `on`.
        """
        if not files:
            raise ConfigError(["files: tick at least one"])
        if not NAME.fullmatch(name):
            raise ConfigError([f"name: {name!r}: need letters, digits, - and _, first a letter or digit"])
        config, run = f"{name}.yaml", f"{name}.h5"
        for existing in (config, run):
            if self.inside(existing).exists():
                raise ConfigError([f"{existing}: exists already; give another name, or remove it"])
        given = [self._argument(file) for file in files]
        engine.checked(on or {})
        fitted = ["bem" if quick else "mcmc", config, "--output", run, *engine.options(on or {})]
        if data is not None:
            self._write_config(files, name, data, matrix)
            return self.jobs.start(fitted, queued=True).state()
        return self.jobs.start(["init", *given, "--output", config], fitted, queued=True).state()

    def estimate(
        self,
        files: list[str],
        quick: bool = False,
        data: dict[str, Any] | None = None,
        matrix: list[list[float]] | None = None,
        on: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the time of a run, see `fit`; short runs on some of the events measure it."""
        if self.jobs.running:
            raise ConfigError(["a command is running, which makes an estimate too long; wait, or stop it"])
        given = None if data is None else self._inside_data(data)
        used = engine.checked(on or {})
        return estimate.estimate(self._opened_choice(files), given, matrix, quick, used)

    def resume(self, run: str) -> dict[str, Any]:
        """Queue the continuation of a run that is not complete; return the state of the command."""
        kind = open_run(self.inside(run)).kind
        self._pace.forget(self.inside(run))
        return self.jobs.start([kind, self._argument(run), "--resume"], queued=True).state()

    def progress(self, run: str) -> dict[str, Any]:
        """Return the progress of a run, its mixing and advice, as `dpmix info` prints them, and its traces.

        The time left is known from the second call on, while commands of the page run.
        """
        path = self.inside(run)
        one = open_run(path)
        rate = self._pace.per_second(path, running.iterations(one)[0]) if self.jobs.running else None
        return {
            "kind": one.kind,
            "complete": one.complete,
            "draws": one.committed,
            "lines": list(describe_run(one)),
            "trace": running.trace(one),
            "agreement": running.agreement(one, self._agreed),
            "left": running.time_left(one, rate),
        }

    def open(self, run: str) -> dict[str, Any]:
        """Open a run, which takes seconds to a minute, and return what the page shows of it."""
        with self._lock:
            one = self._live(run, again=True)
            return {"run": run, **live.opened(one), "view": live.view(one, live.decisions_of(one))}

    def values(self, run: str) -> bytes:
        """Return the events that the pictures show, float32 [D, M]."""
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

        With judgements, this takes as long as `dpmix explore`: seconds for millions of events.
        """
        with self._lock:
            return judging.state(self._live(run), self.inside(run), self._opened_judging(run))

    def candidates(
        self, run: str, further: float = FURTHER, selected: list[int] | None = None
    ) -> dict[str, Any]:
        """Return the next screen of events to judge, with their profiles, and the same as `judged`.

        `further` goes from 0, more of the same, to 1, look further. `selected` are events to choose among,
        numbered among those of the plots; without it, events are chosen among all of the run.
        """
        with self._lock:
            one, own = self._live(run), self._opened_judging(run)
            rows, checks = judging.screen(own, further, judging.among(one, further, selected))
            shown = self.profiles(run, rows.tolist()) | {"checks": rows[checks].tolist()}
            return self.judged(run) | {"screen": shown}

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
        with self._lock:
            path, own = self._current_judging(run, revision)
            judging.among(self._live(run), further, selected)  # raises before anything is stored
            judging.store(self._live(run), path, judgements, checks, own.judgements)
            return self.candidates(run, further, selected)

    def unjudge(self, run: str, revision: str) -> dict[str, Any]:
        """Remove the judgements of the last screen, and return this screen and its judgements."""
        with self._lock:
            path, own = self._current_judging(run, revision)
            judgements, checks = judging.remove_last(self._live(run), path, own.judgements)
            shown = self.profiles(run, list(judgements)) | {"checks": checks}
            return self.judged(run) | {"screen": shown, "judgements": judgements}

    def profiles(self, run: str, rows: list[int]) -> dict[str, Any]:
        """Return the profiles of events, numbered among all of the run, after the decisions in the file."""
        with self._lock:
            one = self._live(run)
            return judging.profiles(one, live.decisions_of(one), rows)

    def export(self, run: str, output: str, formats: list[str], strategy: bool = False) -> dict[str, Any]:
        """Start `dpmix gate` with the decisions; return the state of the command."""
        path, folder = self.inside(run), self.inside(output)
        if folder == self.folder or not output.strip():
            raise ConfigError(["output: need the name of a folder inside this one"])
        unknown = [name for name in formats if name not in FORMATS]
        if unknown or not formats:
            raise ConfigError([f"formats: need some of {', '.join(FORMATS)}"])
        arguments = ["gate", self._argument(run), "--output", self._argument(output)]
        decided = decisions_path(path)
        if decided.exists():
            arguments += ["--decisions", str(decided.relative_to(self.folder))]
        arguments += [part for name in formats for part in ("--format", name)]
        arguments += ["--strategy"] if strategy else []
        return self.jobs.start(arguments).state()

    def commands(self) -> list[dict[str, Any]]:
        """Return the states of all commands that were started."""
        return self.jobs.states()

    def stop(self, number: int) -> list[dict[str, Any]]:
        """Ask a command to stop, and return the states of all."""
        job = self.jobs.find(number)
        if job is None:
            raise ConfigError([f"there is no command {number}"])
        job.stop()
        return self.jobs.states()

    def _argument(self, name: str) -> str:
        """Return the name of a file of the folder as an argument of a command."""
        path = str(self.inside(name).relative_to(self.folder))
        if path.startswith("-"):
            raise ConfigError([f"{name}: begins with -, as an option does; give another name"])
        return path

    def _opened_choice(self, files: list[str]) -> Choice:
        """Return the files whose channels are chosen; they are opened again if one has changed."""
        if not files:
            raise ConfigError(["files: tick at least one"])
        for file in files:
            self._argument(file)
        key = [(file, _mark(self.inside(file.partition("::")[0]))) for file in files]
        with self._lock:
            if self._choice is None or self._choice[0] != key:
                self._choice = key, channels.open_choice(files, self.folder)
            return self._choice[1]

    def _opened_gates(self, run: str, workspace: str) -> Gated:
        """Return the events inside gates; they are applied again if the run or the workspace has changed."""
        path = self.inside(workspace)
        key = run, self._lives[self.inside(run)][0], path, _mark(path)
        if self._gated is None or self._gated[0] != key:
            self._gated = key, gates.gated(self._live(run), path)
        return self._gated[1]

    def _opened_judging(self, run: str) -> Judging:
        """Return what follows from the judgements about a run; computed again if their file has changed."""
        path = self.inside(str(judging.judged_path(self.inside(run))))
        one = self._live(run)
        known = self._judging
        if known is None or known[0] is not one or known[1].revision != judging.revision(path):
            self._judging = None  # frees the memory for the new one
            self._judging = known = one, judging.open_judging(one, path)
        return known[1]

    def _current_judging(self, run: str, revision: str) -> tuple[Path, Judging]:
        own = self._opened_judging(run)
        if own.revision != revision:
            raise StaleError(
                ["the judgements were changed elsewhere, perhaps in another tab; look, then judge again"]
            )
        return judging.judged_path(self.inside(run)), own

    def _inside_data(self, data: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of channels; their file of a matrix must lie in the folder."""
        compensation = data.get("compensation", "auto")
        if compensation not in ("auto", "none"):
            self.inside(str(compensation))
        return data

    def _write_config(self, files: list[str], name: str, data: dict[str, Any], matrix: Matrix | None) -> None:
        """Write the config of a run, and its edited matrix."""
        choice = self._opened_choice(files)
        channels.look(
            choice, self._inside_data(data), matrix, name
        )  # raises for settings that a run would refuse
        if matrix is not None:
            there = self.inside(channels.matrix_file(name))
            if there.exists():
                raise ConfigError([f"{there.name}: exists already; give another name, or remove it"])
            write_text(there, channels.matrix_text(choice, matrix))
            data = data | {"compensation": there.name}
        section = channels.of_taken(channels.checked(files, data))
        write_text(self.inside(f"{name}.yaml"), to_yaml(Config(data=section), comments=True))

    def _live(self, run: str, again: bool = False) -> Live:
        """Return an open run; `again`: it is opened again if its file has changed."""
        path, mark = self.inside(run), _mark(self.inside(run))
        if path not in self._lives or (again and self._lives[path][0] != mark):
            self._check_inputs(path)
            opened = live.open_live(path)
            for source in opened.task.events.sources:  # also those that a table of samples names
                self.inside(str(source.path))
            self._lives[path] = mark, opened
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


def _mark(path: Path) -> tuple[int, int]:
    """Return what changes when a file does.

    Raises
    ------
    ConfigError
        It cannot be read.
    """
    try:
        there = path.stat()
    except OSError as error:
        raise ConfigError([f"{path.name}: cannot be read: {error.strerror}"]) from None
    return there.st_mtime_ns, there.st_size


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
