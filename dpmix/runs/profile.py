"""Measure where the time of a run goes: wall seconds by activity."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock

SPANS = {
    "kernels": "the engine's kernels",
    "copies": "copies to and from devices, not hidden by kernels",
    "passes": "rest of the engine's passes",
    "parameters": "host: parameter draws, or steps of Bayesian EM",
    "start": "initial states",
    "writing": "writing the run file and checkpoints",
    "other": "other",
}
"""Activities that share the time of a run, in words. Work of the host during a pass counts as the pass."""


class TimeProfile:
    """Divides the time since it was made among `SPANS`.

    Parameters
    ----------
    earlier : mapping of str to float
        Seconds of each span before a resume; empty for a new run.
    clock : callable
        Returns seconds since any fixed time.
    """

    def __init__(
        self, earlier: Mapping[str, float] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._earlier = earlier or {}
        self._clock = clock
        self._measured = dict.fromkeys(("passes", "parameters", "start", "writing", "other"), 0.0)
        self._closed = {"kernels": 0.0, "copies": 0.0}  # of engines that are closed
        self._lock = Lock()
        self._since = clock()
        self._passing = 0  # passes in progress
        self._span = "other"

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Count the host's work inside as ``parameters``, ``start`` or ``writing``; never nested."""
        self._turn(span=name)
        try:
            yield
        finally:
            self._turn(span="other")

    @contextmanager
    def engine_pass(self) -> Iterator[None]:
        """Count a pass of the engine inside, in any thread; several at a time count once."""
        self._turn(more_passes=1)
        try:
            yield
        finally:
            self._turn(more_passes=-1)

    def add_engine(self, seconds: Mapping[str, float]) -> None:
        """Add `Engine.seconds` of an engine that is closed before the run ends."""
        for name in self._closed:
            self._closed[name] += seconds.get(name, 0.0)

    def seconds(self, engine: Mapping[str, float]) -> dict[str, float]:
        """Return the seconds of each span so far.

        Parameters
        ----------
        engine : mapping of str to float
            `Engine.seconds` of the engine of the run.
        """
        self._turn()
        measured = dict(self._measured)
        passes = measured.pop("passes")
        kernels = min(self._closed["kernels"] + engine["kernels"], passes)
        copies = min(self._closed["copies"] + engine.get("copies", 0.0), passes - kernels)
        spent = {"kernels": kernels, "copies": copies, "passes": passes - kernels - copies, **measured}
        return {name: self._earlier.get(name, 0.0) + spent[name] for name in SPANS}

    def _turn(self, *, span: str | None = None, more_passes: int = 0) -> None:
        """Count the time since the last call, and set the activity from now on."""
        with self._lock:
            now = self._clock()
            self._measured["passes" if self._passing else self._span] += now - self._since
            self._since = now
            self._span = self._span if span is None else span
            self._passing += more_passes
