"""`dpmix mcmc` and `dpmix bem` as functions."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpmix.config.yaml_text import flow
from dpmix.runs.bem import run_bem as bem_loop
from dpmix.runs.loop import SweepReport
from dpmix.runs.mcmc import run_mcmc as mcmc_loop
from dpmix.runs.reader import Run, open_run
from dpmix.runs.resume import ConfigLike, Kind, choose
from dpmix.system.stop import Stop

log = logging.getLogger("dpmix")

Settings = Mapping[str, Any] | Sequence[str]


def run_mcmc(
    config: ConfigLike,
    *,
    settings: Settings = (),
    base: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_sweep: Callable[[SweepReport], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Run:
    """Draw from the posterior by block Gibbs sampling, as ``dpmix mcmc`` does.

    The draws are in the run file of the config (key output.path) at every moment. Ctrl-C stops the run after
    its sweep and keeps the draws: the function raises `KeyboardInterrupt`, `open_run` reads the draws made
    so far, and the same call with ``resume=True`` continues to the draws of an uninterrupted run. A second
    Ctrl-C ends the run at once; it resumes from its last checkpoint.

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
        Continue the run in the run file from its checkpoint. The result is that of an uninterrupted run. A
        larger mcmc.draws adds draws.
    overwrite : bool
        Replace an existing run file.
    on_sweep : callable, optional
        Called with a `SweepReport` after each sweep of each chain.
    should_stop : callable, optional
        Called after each sweep. The run stops when it returns True, and the function returns the draws made
        so far.

    Returns
    -------
    Run
        The draws. ``complete`` is False where the run has stopped early.

    Raises
    ------
    ConfigError
        The config is wrong. The error names each problem in a line.
    DataError
        The data cannot be read or used.
    EngineError, OutputError
        The run failed on its way. ``resume=True`` continues it.
    KeyboardInterrupt
        Ctrl-C stopped the run.
    """
    return _sample("mcmc", config, settings, base, resume, overwrite, on_sweep, should_stop)


def run_bem(
    config: ConfigLike,
    *,
    settings: Settings = (),
    base: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    on_sweep: Callable[[SweepReport], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Run:
    """Find a mode of the posterior by Bayesian EM, as ``dpmix bem`` does.

    The run file has one draw: the end of the best start. Parameters, returns and raises as `run_mcmc`; the
    callables are called after each step.
    """
    return _sample("bem", config, settings, base, resume, overwrite, on_sweep, should_stop)


def _sample(
    kind: Kind,
    config: ConfigLike,
    settings: Settings,
    base: str | Path | None,
    resume: bool,
    overwrite: bool,
    on_sweep: Callable[[SweepReport], None] | None,
    should_stop: Callable[[], bool] | None,
) -> Run:
    if resume and overwrite:
        raise ValueError("resume continues a run file and overwrite replaces it; use one of them")
    chosen = choose(kind, config, overrides_of(settings), resume)
    if chosen.finished is not None:
        return chosen.finished
    sampler = mcmc_loop if kind == "mcmc" else bem_loop
    with Stop([signal.SIGINT]) as stop:
        result = sampler(
            chosen.config,
            base=chosen.base if base is None else Path(base),
            resume=resume,
            overwrite=overwrite,
            on_sweep=on_sweep or (lambda progress: None),
            should_stop=lambda: stop() or (should_stop is not None and should_stop()),
        )
    drawn = open_run(result.path)
    if stop() and not result.completed:
        raise KeyboardInterrupt(
            f"{drawn.path}: stopped with {drawn.committed} of {drawn.draws} draws; open_run reads them, "
            "resume=True continues"
        )
    return drawn


def overrides_of(settings: Settings) -> list[str]:
    """Return settings as ``key=value``, the value in YAML."""
    if isinstance(settings, Mapping):
        return [f"{key}={flow(value)}" for key, value in settings.items()]
    return list(settings)
