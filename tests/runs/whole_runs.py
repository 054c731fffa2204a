"""Whole runs in tests: their events and config, being stopped, and whether two came out the same."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import h5py
import numpy as np

from dpmix import open_run
from dpmix.config.schema import Config
from dpmix.errors import DataError

FOUND = "populations/committed"
# Attributes that say when and with what a run was made, not what it drew.
VARYING = {"created", "run_id", "config", "base", "engine"}


def write_events(path: Path, n_events: int, dim: int = 3, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    centres = rng.normal(scale=3.0, size=(5, dim))
    labels = rng.choice(5, size=n_events, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    np.save(path, (centres[labels] + rng.normal(size=(n_events, dim))).astype(np.float32))


def a_config(folder: Path, output: str, **sections: dict[str, object]) -> Config:
    settings: dict[str, object] = {
        "data": {"files": [str(folder / "events.npy")]},
        "model": {"components": 12},
        "output": {"path": str(folder / output)},
        "seed": 5,
    }
    engine = {"backend": "cpu"} | sections.pop("engine", {})
    mcmc = {"chains": 1, "until": None} | sections.pop("mcmc", {})
    return Config.model_validate(settings | sections | {"engine": engine, "mcmc": mcmc})


def contents(path: Path) -> dict[str, bytes]:
    """Every array and attribute of a run file that must not differ between runs of one config."""
    found: dict[str, bytes] = {}
    with h5py.File(path) as file:

        def take(name: str, item: object) -> None:
            if isinstance(item, h5py.Dataset) and not name.endswith("seconds"):
                found[name] = (
                    np.asarray(item).tobytes() if item.dtype.kind != "O" else bytes(str(item[()]), "utf8")
                )

        file.visititems(take)
        for name, value in file.attrs.items():
            if name not in VARYING:
                found[f"@{name}"] = bytes(str(value), "utf8")
    return found


def assert_identical(one: Path, other: Path) -> None:
    ours, theirs = contents(one), contents(other)
    assert ours.keys() == theirs.keys()
    # Commands find populations, samplers alone do not: they are compared where both files have them.
    found = all(np.frombuffer(one.get(FOUND, b""), np.int64).tolist() > [0] for one in (ours, theirs))
    names = [name for name in ours if found or not name.startswith("populations/")]
    assert [name for name in names if ours[name] != theirs[name]] == []


class StopAfter:
    """Says stop once, after this many questions."""

    def __init__(self, questions: int) -> None:
        self.left = questions

    def __call__(self) -> bool:
        self.left -= 1
        return self.left == 0


def assert_draws_of(whole: Path, path: Path) -> int:
    """Assert that a run file has the draws of a whole run, bit for bit; return their number."""
    theirs, ours = open_run(whole), open_run(path)
    n = ours.committed
    for name in ("weights", "means", "covariances", "alpha"):
        assert getattr(ours, name).tobytes() == getattr(theirs, name)[:, :n].tobytes(), f"{name} of {n} draws"
    for name, values in ours.sample_stats.items():
        if name != "seconds":
            assert values.tobytes() == theirs.sample_stats[name][:, :n].tobytes(), f"{name} of {n} draws"
    return n


def dpmix(*arguments: str | Path, pause_at: int | None = None) -> list[str]:
    """A command line of dpmix, in which a run saves its checkpoint more often than a user's does."""
    return [sys.executable, "-c", dpmix_code(pause_at), *map(str, arguments)]


def dpmix_code(pause_at: int | None = None) -> str:
    """The code of `dpmix`.

    With ``pause_at``, a run saves a checkpoint after each sweep and pauses itself at that one (SIGSTOP) until
    SIGCONT: what a test does to a run that is not over must not depend on who is faster.
    """
    pause = "" if pause_at is None else PAUSE.format(pause_at)
    seconds = 0.02 if pause_at is None else 0.0
    return CODE.format(seconds, pause)


CODE = """
from dpmix.runs import loop
loop.CHECKPOINT_SECONDS = {}
{}
from dpmix.cli import main
main(prog_name='dpmix')
"""
PAUSE = """
import itertools, os, signal
number, save = itertools.count(1), loop.Checkpoints.save

def save_and_pause(checkpoints):
    save(checkpoints)
    if next(number) == {}:
        os.kill(os.getpid(), signal.SIGSTOP)

loop.Checkpoints.save = save_and_pause
"""


def wait_until_paused(process: subprocess.Popen[str]) -> None:
    """Wait until a process has stopped itself; it has not ended then."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"ended with {os.waitstatus_to_exitcode(status)}"


def wait_for_draws(path: Path, n: int, process: subprocess.Popen[str]) -> None:
    """Wait until this many draws are committed by a process that is still running."""
    while process.poll() is None:
        with suppress(DataError):
            if open_run(path).committed >= n:
                return
        time.sleep(0.01)
    raise AssertionError(f"ended before its draw {n}, with {process.returncode}: {process.communicate()}")
