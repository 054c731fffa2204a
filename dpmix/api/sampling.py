"""`dpmix mcmc` and `dpmix bem` as functions."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from dpmix.commands.whole_run import run_to_end
from dpmix.config.yaml_text import flow
from dpmix.errors import ConfigError
from dpmix.runs.display import ProgressDisplay
from dpmix.runs.loop import SweepReport
from dpmix.runs.reader import Run, open_run
from dpmix.runs.resume import Chosen, ConfigLike, Kind, choose, plain
from dpmix.system.stop import Stop

Settings = Mapping[str, Any] | Sequence[str]


def run_mcmc(
    config: ConfigLike,
    *,
    settings: Settings = (),
    base: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    on_sweep: Callable[[SweepReport], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Run:
    """Draw from the posterior by block Gibbs sampling, as ``dpmix mcmc`` does.

    Each draw is written to the run file (config key output.path) as it is made. Ctrl-C stops the run after
    its sweep and keeps the draws: the function raises `KeyboardInterrupt`, `open_run` reads the draws made
    so far, and the same call with ``resume=True`` continues to the draws of an uninterrupted run. A second
    Ctrl-C ends the run at once; it resumes from its last checkpoint.

    At the end, the populations of `dpmix.gate` are found and kept in the run file, for ``verdict``. Ctrl-C
    meanwhile keeps all draws, and ``resume=True`` finds the populations.

    Parameters
    ----------
    config : Config, mapping or path
        A `Config`, its sections as a mapping, or a YAML file. To resume a run, also its run file.
    settings : mapping, or sequence of str, optional
        Config keys to change, as ``{"model.components": 64}`` or ``["model.components=64"]``.
    base : str or Path, optional
        Folder that relative data paths of the config start from. Default: the folder of the YAML file, else
        the current folder.
    resume : bool
        Continue the run in the run file from its checkpoint. The result equals an uninterrupted run's. A
        larger mcmc.draws adds draws, and mcmc.until set to null those that the rule left out.
    overwrite : bool
        Replace an existing run file.
    progress : bool, optional
        Show the log and the progress. Default: on a terminal and in a notebook.
    on_sweep : callable, optional
        Called with a `SweepReport` after each sweep of each chain.
    should_stop : callable, optional
        Called after each sweep. The run stops when it returns True, and the function returns the draws made
        so far.

    Returns
    -------
    Run
        The draws. ``complete`` is False if the run stopped early.

    Raises
    ------
    ConfigError
        The config is wrong. The error names each problem on a line of its own.
    DataError
        The data cannot be read or used.
    EngineError, OutputError
        The run failed. ``resume=True`` continues it.
    KeyboardInterrupt
        Ctrl-C stopped the run.
    """
    chosen = _chosen("mcmc", config, settings, base, resume, overwrite)
    return sample(
        "mcmc", chosen, overwrite=overwrite, progress=progress, on_sweep=on_sweep, should_stop=should_stop
    )


def run_bem(
    config: ConfigLike,
    *,
    settings: Settings = (),
    base: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool | None = None,
    on_sweep: Callable[[SweepReport], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Run:
    """Find a mode of the posterior by Bayesian EM, as ``dpmix bem`` does.

    The run file has one draw: the end of the best start. Parameters, returns and raises as `run_mcmc`; the
    callables are called after each step.
    """
    chosen = _chosen("bem", config, settings, base, resume, overwrite)
    return sample(
        "bem", chosen, overwrite=overwrite, progress=progress, on_sweep=on_sweep, should_stop=should_stop
    )


def sample(
    kind: Kind,
    chosen: Chosen,
    *,
    overwrite: bool = False,
    progress: bool | None = None,
    on_sweep: Callable[[SweepReport], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Run:
    """Run a sampler and return its draws; Ctrl-C stops it after its sweep and raises `KeyboardInterrupt`."""
    stop = Stop([signal.SIGINT])
    with shown(progress) as display:

        def report(sweep: SweepReport) -> None:
            if display is not None:
                display.on_sweep(sweep)
            if on_sweep is not None:
                on_sweep(sweep)

        result = run_to_end(
            kind,
            chosen,
            stop,
            overwrite=overwrite,
            on_sweep=report,
            should_stop=should_stop or (lambda: False),
        )
        drawn = open_run(result.path)
    if stop() and not result.completed:
        raise KeyboardInterrupt(
            f"{drawn.path}: stopped with {drawn.committed} of {drawn.draws} draws; open_run reads them, "
            "resume=True continues"
        )
    return drawn


def shown(progress: bool | None) -> AbstractContextManager[ProgressDisplay | None]:
    """Return a display of log and progress, or of nothing; None shows them to a user who is there."""
    if progress is None:
        console = Console(stderr=True)
        progress = console.is_interactive or console.is_jupyter
    return ProgressDisplay() if progress else nullcontext()


def _chosen(
    kind: Kind, config: ConfigLike, settings: Settings, base: str | Path | None, resume: bool, overwrite: bool
) -> Chosen:
    if resume and overwrite:
        raise ValueError("resume continues a run file and overwrite replaces it; use one of them")
    chosen = choose(kind, config, overrides_of(settings), resume)
    return chosen if base is None else replace(chosen, base=Path(base))


def overrides_of(settings: Settings) -> list[str]:
    """Return settings as ``key=value``, the value in YAML; `ConfigError` for a single text."""
    if isinstance(settings, str):
        raise ConfigError([f'settings is "{settings}"; it must be a mapping or a list, as ["{settings}"]'])
    if isinstance(settings, Mapping):
        return [f"{key}={flow(plain(value))}" for key, value in settings.items()]
    return list(settings)
