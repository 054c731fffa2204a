"""The actions of the page on the files of its folder, and the runs that it starts.

Each is one method, which takes and returns plain values. Nothing outside the folder is read or written.
"""

from __future__ import annotations

import re
from pathlib import Path
from threading import RLock
from typing import Any

from dpmix.app import channels, engine, estimate, recordings, running
from dpmix.app.channels import Choice, Matrix
from dpmix.app.files import data_files
from dpmix.app.incoming import Incoming, remove_left
from dpmix.app.jobs import Jobs
from dpmix.app.running import Known, Pace
from dpmix.config.schema import Config
from dpmix.config.write import to_yaml
from dpmix.errors import ConfigError, DpmixError
from dpmix.populations.tree.decisions import decisions_path
from dpmix.runs.describe import describe_run
from dpmix.runs.reader import open_run
from dpmix.system.files import write_text
from dpmix.system.run_marker import is_run_file

NAME = re.compile(r"[A-Za-z0-9][\w-]{0,60}", re.ASCII)
"""Pattern for the name of a run that the page starts."""


class Folder:
    """A folder with data files and run files, and the commands that were started in it.

    Parameters
    ----------
    folder : Path
        An existing folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise ConfigError([f"{folder}: is not a folder; give the folder with the run files"])
        self.folder = folder.resolve()
        remove_left(self.folder)
        self.jobs = Jobs(self.folder)
        self._choice: tuple[Any, Choice] | None = None
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
                    "planned": run.draws,
                    "complete": run.complete,
                    "channels": len(run.channels),
                    "decided": decisions_path(path).exists(),
                }
            except DpmixError as error:
                row["error"] = str(error)
            rows.append(row)
        return rows

    def files(self) -> list[dict[str, Any]]:
        """Return the data files of the folder: what each holds, its event rate, and the verdict on it."""
        return [
            row | {"verdict": recordings.verdict(self.folder, row["name"])} for row in data_files(self.folder)
        ]

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
        self,
        files: list[str],
        data: dict[str, Any],
        matrix: list[list[float]] | None = None,
        shown: list[str] | None = None,
    ) -> dict[str, Any]:
        """Return the densities of all pairs of some channels, by default the first chosen ones; see `fit`."""
        return channels.grid(self._opened_choice(files), self._inside_data(data), matrix, shown)

    def judge_recording(self, file: str) -> dict[str, Any]:
        """Start `dpmix drift` on a data file; return the state of the command. `files` has its verdict."""
        given = self._argument(file)
        if not self.inside(file.partition("::")[0]).is_file():
            raise ConfigError([f"{file}: no such file"])
        output = self._argument(recordings.folder_of(file))
        return self.jobs.start(["drift", given, "--output", output, "--overwrite"]).state()

    def report(self, file: str) -> str:
        """Return the page that `dpmix drift` has written about a data file."""
        return recordings.report(self.folder, self.inside(file))

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
        config is the one that `dpmix init` writes. An edited `matrix` is written as NAME.spillover.csv. The
        settings of the engine (`dpmix.app.engine.KEYS`) are `on`.
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
        key = [(file, mark(self.inside(file.partition("::")[0]))) for file in files]
        with self._lock:
            if self._choice is None or self._choice[0] != key:
                self._choice = key, channels.open_choice(files, self.folder)
            return self._choice[1]

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


def mark(path: Path) -> tuple[int, int]:
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
