"""A run in progress: traces of its chains, their agreement, and the time left."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpmix.config.schema import UntilConfig
from dpmix.model.mixture import Array
from dpmix.report.traces import Trace, thinned
from dpmix.runs.describe import last_sweep
from dpmix.runs.effective_size import MIN_DRAWS, r_hat_and_ess
from dpmix.runs.layout import POPULATION
from dpmix.runs.monitors import monitored
from dpmix.runs.reader import Run
from dpmix.runs.until import FIRST_CHECK, is_check

POINTS = 300  # of the trace of a chain
MOST_R_HAT = 3.0  # a larger one is drawn here
WINDOW = 60.0  # seconds that the speed is measured over
IDLE = 10.0  # seconds without a sweep after which a run counts as not running, or three sweeps if longer

Known = dict[tuple[str, int], tuple[list[float], float]]
"""R-hat of each proportion and the smallest effective sample size, by run and number of draws."""


def trace(run: Run) -> dict[str, Any]:
    """Return the log posterior by sweep of each chain, or by step of each start of Bayesian EM.

    The window leaves out the rise from the start, as in the report: it would flatten all that follows.
    """
    values = np.array(run.trace["log_posterior"], float)
    values[~np.isfinite(run.trace["seconds"])] = np.nan  # a row is complete when its seconds are written
    made = max(int(run.sweeps_made.max()), 0)
    shown = [thinned(own, POINTS) for own in values]
    low, high = Trace("log posterior", values, None).window(min(run.burn_in // 5 or made // 10, made // 2))
    return {
        "sweeps": [own.tolist() for own in shown],
        "values": [own[at].tolist() for own, at in zip(values, shown, strict=True)],
        "window": [low, high],
        "made": made,
        "burn_in": None if run.kind == "bem" else run.burn_in_end,
    }


def agreement(run: Run, known: Known) -> dict[str, Any] | None:
    """Return how the chains agree on the proportions of interim populations as the draws grow in number.

    These are quantities of mcmc.until (`dpmix.runs.monitors`), with its limits.

    Parameters
    ----------
    run : Run
    known : Known
        Results of earlier calls, which are added to: draws that are made do not change.

    Returns
    -------
    dict or None
        None for Bayesian EM and with fewer than eight draws.
    """
    numbers = [n for n in range(MIN_DRAWS, run.committed + 1) if _is_shown(n)]
    if run.kind != "mcmc" or not numbers:
        return None
    found = {name: values for name, values in monitored(run).items() if POPULATION in name}
    values = np.stack(list(found.values()), axis=2)
    identity = str(run.attributes["run_id"])
    for n in numbers:
        if (identity, n) not in known:
            known[identity, n] = _agreed(values[:, :n])
    rule = run.config["mcmc"]["until"] or UntilConfig().model_dump()
    r_hat, ess = zip(*(known[identity, n] for n in numbers), strict=True)
    return {
        "draws": numbers,
        "r_hat": [list(row) for row in zip(*r_hat, strict=True)],
        "limit": rule["rhat"],
        "ess": ess[-1],
        "ess_limit": rule["ess"],
    }


def _is_shown(n: int) -> bool:
    """Return whether agreement is shown after n draws: at the checks of mcmc.until, and some before them."""
    return is_check(n) or (n < FIRST_CHECK and n % MIN_DRAWS == 0)


def _agreed(values: Array) -> tuple[list[float], float]:
    """Return R-hat of each quantity, 1 for a constant one, and the smallest effective sample size.

    A constant quantity has the number of draws as its size, which counts only where all are constant.

    Parameters
    ----------
    values : float64 [chain, draw, quantity]
    """
    r_hat, ess = r_hat_and_ess(values)
    shown = np.where(np.isnan(r_hat), 1.0, np.minimum(r_hat, MOST_R_HAT))
    changing = ess[~np.isnan(ess)]
    least = changing.min() if len(changing) else values.shape[0] * values.shape[1]
    return shown.round(4).tolist(), float(least)


class Left(NamedTuple):
    """Most sweeps of a chain, or steps of all starts, that are left in a part of a run; its events."""

    sweeps: int
    events: int


def iterations(run: Run) -> tuple[int, list[Left]]:
    """Return the sweeps of a chain, or the steps of all starts, that are made, and what is left, by part."""
    made, n_events = np.maximum(run.sweeps_made, 0), int(run.attributes["n_events"])
    if run.kind == "mcmc":
        done = int(made.min())
        return done, [Left(0 if run.complete else last_sweep(run) - done, n_events)]
    if run.complete:
        return int(made.sum()), [Left(0, n_events)]
    settings = run.parsed_config().bem
    first, begun = settings.first_steps, int((run.sweeps_made >= 0).sum())
    if made.max() > first:  # the best start continues
        return int(made.sum()), [Left(settings.max_steps - int(made.max()), n_events)]
    latest = int(made[begun - 1]) if begun else first
    of_starts = (settings.starts - begun) * first + first - latest
    short = Left(of_starts, settings.first_events(run.n_components, n_events))
    return int(made.sum()), [short, Left(settings.max_steps - first, n_events)]


class Pace:
    """The speed of runs, from looks at their progress.

    Parameters
    ----------
    clock : callable
        Returns seconds since any fixed time.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: dict[Path, list[tuple[float, int]]] = {}

    def forget(self, path: Path) -> None:
        """Forget a run, which starts or continues: a pause does not count."""
        self._seen.pop(path, None)

    def per_second(self, path: Path, made: int) -> float | None:
        """Return the sweeps or steps per second of the last minute; None for a run that has stopped."""
        now, seen = self._clock(), self._seen.setdefault(path, [])
        if seen and made < seen[-1][1]:
            # Fewer than before: the run was started again, and its old speed says nothing.
            seen.clear()
        if not seen or made > seen[-1][1]:
            seen.append((now, made))
        # Two looks are kept in any case, so that a run with less than a sweep per minute has a speed.
        while len(seen) > 2 and now - seen[1][0] > WINDOW:
            del seen[0]
        (start, before), (latest, after) = seen[0], seen[-1]
        if after == before:
            return None
        each = (latest - start) / (after - before)
        return None if now - latest > max(IDLE, 3.0 * each) or not each else 1.0 / each


def time_left(run: Run, rate: float | None) -> str:
    """Return the time that a run still takes at a speed, in words; "" for one that has stopped or ended."""
    parts = iterations(run)[1]
    left, events = sum(part.sweeps for part in parts), parts[0].events
    if rate is None or not left:
        return ""
    seconds = sum(part.sweeps * part.events / events for part in parts) / rate
    unit = "sweeps" if run.kind == "mcmc" else "steps"
    early = run.kind == "bem" or (run.is_monitored and not run.lifted)
    ends = "the run ends when its chains agree" if run.kind == "mcmc" else "starts end when they settle"
    most, why = ("at most ", f"; {ends}") if early else ("", "")
    now = " now, with fewer events" if parts[-1].events > events else ""
    return f"Time left: {most}{duration(seconds)} ({left:,} {unit} at {rate:.2g} per second{now}{why})"


def duration(seconds: float) -> str:
    """Return a time in words, rounded up: to 1 s, from a minute on to 10 s, from ten minutes on to 1 min."""
    step = 1 if seconds <= 59.0 else 10 if seconds <= 590.0 else 60
    minutes, rest = divmod(int(np.ceil(seconds / step)) * step, 60)
    if minutes < 1:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
