"""The time of a run before its start, from a short run on some of its events.

The short run has the chains, components and channels of the run and makes the same sweeps with the engine of
this machine. Its events are those that `dpmix.app.channels` reads, repeated where more are needed: the engine
must have work for all its threads. The seconds of a sweep are a constant plus a term that is proportional to
the number of events, which two short runs of different size give. A run of no more events than the larger one
has needs only one short run, of its own size.

The first sweeps of MCMC take longer than later ones, because all components are occupied. So the short runs
continue from a run on fewer events, in which most components are empty by then. Bayesian EM has two parts,
the short steps of all starts, on fewer events, and the steps of the best start. Each part has short runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dpmix.app import channels
from dpmix.app.channels import Choice, Matrix
from dpmix.app.running import duration
from dpmix.config.engine import EngineConfig
from dpmix.config.schema import BemConfig, Config, McmcConfig, ModelConfig
from dpmix.errors import ConfigError
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Floats
from dpmix.runs.bem import run_bem
from dpmix.runs.loop import SweepReport
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.reader import open_run
from dpmix.runs.until import FIRST_CHECK, FIRST_END_OF_BURN_IN
from dpmix.system.console import listed
from dpmix.system.cores import usable_cores

WARM_UP, WARM_UP_EVENTS = 60, 20_000  # sweeps, and most events, of the run that timed runs of MCMC continue
SWEEPS, STEPS = 21, 41  # of a timed run: two rounds of split-merge moves, or the short steps of a start
SECONDS = 8.0  # after which a timed run ends early
MOST_EVENTS = 1_000_000


@dataclass(frozen=True)
class Timed:
    """A short run.

    Attributes
    ----------
    events : int
    sweep : float
        Seconds of a sweep of all chains, or of a step of Bayesian EM.
    start : float
        Seconds until the first sweep, for one chain or start.
    engine : str
        Name of the engine.
    """

    events: int
    sweep: float
    start: float
    engine: str


@dataclass(frozen=True)
class RunPart:
    """A part of a run: the events of a sweep, and the least and the most sweeps (steps of Bayesian EM)."""

    events: int
    least: int
    most: int


def estimate(
    choice: Choice,
    data: Mapping[str, Any] | None,
    matrix: Matrix | None,
    quick: bool,
    engine: EngineConfig,
) -> dict[str, Any]:
    """Return the time of a run on the files of a choice; this takes up to half a minute.

    Parameters
    ----------
    choice, data, matrix
        As in `channels.look`; without `data` as `dpmix init` suggests.
    quick : bool
        Bayesian EM, otherwise MCMC.
    engine : EngineConfig
        Settings of the engine of the run.

    Returns
    -------
    dict
        ``seconds``: the least and the most; ``text``: the same in words, and how it was found.
    """
    began = time.perf_counter()
    values, n_events = _values(choice, data, matrix), sum(source.n_events for source in choice.sources)
    threads, made = engine.threads or usable_cores(), parts(n_events, quick)
    with TemporaryDirectory(prefix="dpmix-estimate-") as name:
        by_part = [_timed(values, sizes(part.events, threads), quick, engine, Path(name)) for part in made]
    timed = [one for of_part in by_part for one in of_part]
    sweeps = [seconds_per_sweep(own, part.events) for own, part in zip(by_part, made, strict=True)]
    starts = timed[0].start * (BemConfig().starts if quick else McmcConfig().chains)
    least, most = [part.least for part in made], [part.most for part in made]
    seconds = [starts + float(np.dot(sweeps, numbers)) for numbers in (least, most)]
    return {
        "seconds": seconds,
        "text": f"Estimated time: {_words(seconds, sum(least), sum(most), quick)}. "
        + f"{n_events:,} events in {values.shape[1]} channels; reading the files is not included. "
        + _method(timed, time.perf_counter() - began),
    }


def _words(seconds: list[float], least: int, most: int, quick: bool) -> str:
    """Return the least and the most time in words."""
    if quick:
        return f"at most {duration(seconds[1])} (at most {most:,} steps; a start ends when it settles)"
    between = " to ".join(map(duration, seconds))
    return f"{between} ({least:,} to {most:,} sweeps; the run ends when its chains agree)"


def _method(timed: list[Timed], seconds: float) -> str:
    """Say in one sentence how the time was estimated."""
    runs = "a short run" if len(timed) == 1 else f"{len(timed)} short runs"
    numbers = listed([f"{one.events:,}" for one in timed])
    on = f"{runs} on {numbers} events with the {timed[0].engine} engine"
    return f"Measured in {duration(seconds)} by {on}."


def sizes(n_events: int, threads: int) -> list[int]:
    """Return the numbers of events of the short runs, which keep all threads busy."""
    small = min(threads * CHUNK, MOST_EVENTS // 2)
    return [n_events] if n_events <= 2 * small else [small, 2 * small]


def seconds_per_sweep(timed: list[Timed], n_events: int) -> float:
    """Return the seconds of a sweep of a number of events, from one run of this size or two smaller ones."""
    first, last = timed[0], timed[-1]
    if first.events == last.events:
        return last.sweep
    # By chance the larger run may be the faster one.
    slope = max(0.0, last.sweep - first.sweep) / (last.events - first.events)
    return last.sweep + slope * (n_events - last.events)


def parts(n_events: int, quick: bool) -> list[RunPart]:
    """Return the parts of a run with the defaults."""
    if not quick:
        mcmc = McmcConfig()
        return [RunPart(n_events, FIRST_END_OF_BURN_IN + FIRST_CHECK * mcmc.thin, mcmc.sweeps)]
    settings = BemConfig()
    short, first = settings.first_events(ModelConfig().components, n_events), settings.first_steps
    of_starts, of_best = settings.starts * first, settings.max_steps - first
    if short == n_events:
        return [RunPart(n_events, 1, of_starts + of_best)]
    return [RunPart(short, 1, of_starts), RunPart(n_events, 1, of_best)]


def _values(choice: Choice, data: Mapping[str, Any] | None, matrix: Matrix | None) -> Floats:
    """Return some events in the channels of a run, transformed, float32 [M, D]."""
    given = {"compensation": choice.settings.compensation} if data is None else data
    settings = channels.checked([], given)
    suggested = [name for name, one in zip(choice.names, choice.settings.channels, strict=True) if one.taken]
    raw = channels.raw_values(choice, given, matrix)
    transforms = channels.transforms_of(choice, raw, settings.transform)
    places = [choice.place(name) for name in settings.channels or suggested]
    values = np.column_stack([channels.applied(transforms[j], raw[:, j]) for j in places])
    finite = values[np.isfinite(values).all(axis=1)].astype(np.float32)
    if len(finite) <= finite.shape[1]:
        raise ConfigError(["the ticked files have too few events for an estimate"])
    return finite


def _timed(values: Floats, events: list[int], quick: bool, engine: EngineConfig, folder: Path) -> list[Timed]:
    """Make short runs on numbers of events in a folder, and return their times."""
    if quick:
        return [_short_run(values, size, STEPS, engine, folder, "bem", "kmeans") for size in events]
    warm_up = _short_run(values, min(events[0], WARM_UP_EVENTS), WARM_UP, engine, folder, "mcmc", "kmeans")
    timed = [_short_run(values, size, SWEEPS, engine, folder, "mcmc", f"{WARM_UP}.h5") for size in events]
    # The run to come starts with k-means, as the warm-up did and those that continue it did not.
    return [replace(one, start=warm_up.start) for one in timed]


def _short_run(
    values: Floats, size: int, sweeps: int, engine: EngineConfig, folder: Path, kind: str, init: str
) -> Timed:
    """Make a run on events, repeated or cut to a size, and time its sweeps after the first."""
    np.save(folder / "events.npy", values[np.arange(size) % len(values)])
    config = Config.model_validate(
        {
            "data": {"files": ["events.npy"], "transform": {"default": {"method": "linear"}}},
            "mcmc": {"burn_in": sweeps - 1, "draws": 1, "until": None, "init": init},
            "bem": {"starts": 1, "short_steps": None, "max_steps": sweeps, "tolerance": 1e-300},
            "engine": engine,
            "output": {"path": str(folder / f"{sweeps}.h5")},
        }
    )
    chains = 1 if kind == "bem" else config.mcmc.chains
    stamps: list[float] = []

    def on_sweep(report: SweepReport) -> None:
        if report.chain == chains - 1:
            stamps.append(time.perf_counter())

    def takes_long() -> bool:
        # The warm-up needs a draw, which is its last sweep.
        return sweeps != WARM_UP and len(stamps) > 2 and time.perf_counter() - began > SECONDS

    began, run = time.perf_counter(), run_bem if kind == "bem" else run_mcmc
    made = open_run(run(config, base=folder, overwrite=True, on_sweep=on_sweep, should_stop=takes_long).path)
    return Timed(
        events=size,
        sweep=(stamps[-1] - stamps[1]) / max(1, len(stamps) - 2),
        start=made.profile["start"] / chains,
        engine=str(made.engine["backend"]),
    )
