"""Run a sampler to its end, and judge its populations there: what `dpmix mcmc` and `dpmix.run_mcmc` do."""

from __future__ import annotations

import logging
from collections.abc import Callable

from dpmix.errors import DpmixError
from dpmix.populations.draws.kept import keep_populations
from dpmix.runs import bem, mcmc
from dpmix.runs.loop import OnSweep, Result
from dpmix.runs.reader import Run, open_run
from dpmix.runs.resume import Chosen, Kind
from dpmix.system.stop import Stop

log = logging.getLogger("dpmix")


def run_to_end(
    kind: Kind,
    chosen: Chosen,
    stop: Stop,
    *,
    overwrite: bool,
    on_sweep: OnSweep,
    should_stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Run a sampler to its end, or until it is asked to stop; find the populations of a run that has ended.

    Ctrl-C stops the sampler after its sweep. While populations are found, it raises `KeyboardInterrupt` at
    once: all draws are in the file, and the next `dpmix mcmc --resume` finds the populations.

    Parameters
    ----------
    kind : str
    chosen : Chosen
        The run. One that has ended already only gets its populations, if the file lacks them.
    stop : Stop
        Not entered yet.
    overwrite : bool
        Replace an existing run file.
    on_sweep, should_stop : callable
        As in `dpmix.runs.mcmc.run_mcmc`.
    """
    if chosen.finished is not None:
        _judge(chosen.finished, chosen)
        return Result(chosen.finished.path, True)
    sampler = {"mcmc": mcmc.run_mcmc, "bem": bem.run_bem}[kind]
    with stop:
        result = sampler(
            chosen.config,
            base=chosen.base,
            resume=chosen.earlier is not None,
            overwrite=overwrite,
            on_sweep=on_sweep,
            should_stop=lambda: stop() or should_stop(),
        )
    if result.completed and not stop():
        _judge(open_run(result.path), chosen)
    return result


def _judge(run: Run, chosen: Chosen) -> None:
    """Find and keep the populations of a run that has ended."""
    try:
        keep_populations(run, chosen.config.engine)
    except KeyboardInterrupt:
        log.warning("%s: complete, but its populations were not found; --resume finds them", run.path)
        raise
    except (DpmixError, MemoryError) as error:
        log.warning("%s: complete, but its populations were not found: %s", run.path, error)
