"""Where the time of a run goes: wall seconds, by what they were spent on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock

SPANS = {
    "kernels": "the engine's kernels",
    "copies": "copies to and from devices that no kernel hides",
    "passes": "passes of the engine beyond these",
    "parameters": "the host's part: parameter draws, or steps of Bayesian EM",
    "start": "initial states",
    "writing": "writing the run file and checkpoints",
    "other": "the rest",
}
"""What the time of a run is divided among, in words. What the host does during a pass is hidden by it."""


class Profile:
    """Divides the time from its making on among `SPANS`.

    Parameters
    ----------
    earlier : mapping of str to float
        Seconds of every span that the run has spent before; empty for one that begins.
    clock : callable
        Seconds, from any moment.
    """

    def __init__(
        self, earlier: Mapping[str, float] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._earlier = earlier or {}
        self._clock = clock
        self._measured = dict.fromkeys(("passes", "parameters", "start", "writing", "other"), 0.0)
        self._lock = Lock()
        self._since = clock()
        self._passing = False
        self._span = "other"

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Count what the host does inside as ``parameters``, ``start`` or ``writing``; never nested."""
        self._turn(span=name)
        try:
            yield
        finally:
            self._turn(span="other")

    @contextmanager
    def engine_pass(self) -> Iterator[None]:
        """A pass of the engine, inside, in whatever thread; one at a time."""
        self._turn(passing=True)
        try:
            yield
        finally:
            self._turn(passing=False)

    def seconds(self, engine: Mapping[str, float]) -> dict[str, float]:
        """Seconds of every span so far.

        Parameters
        ----------
        engine : mapping of str to float
            What an engine made with this profile says of its own `seconds`.
        """
        self._turn()
        measured = dict(self._measured)
        passes = measured.pop("passes")
        kernels = min(engine["kernels"], passes)
        copies = min(engine.get("copies", 0.0), passes - kernels)
        spent = {"kernels": kernels, "copies": copies, "passes": passes - kernels - copies, **measured}
        return {name: self._earlier.get(name, 0.0) + spent[name] for name in SPANS}

    def _turn(self, *, span: str | None = None, passing: bool | None = None) -> None:
        """Count the time since the last turn, and say what comes now."""
        with self._lock:
            now = self._clock()
            self._measured["passes" if self._passing else self._span] += now - self._since
            self._since = now
            self._span = self._span if span is None else span
            self._passing = self._passing if passing is None else passing
