"""Where the time of a run goes: wall seconds, by what they were spent on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

SPANS = {
    "kernels": "the engine's kernels",
    "copies": "copies to and from devices that no kernel hides",
    "waiting": "waiting for the engine beyond these",
    "parameters": "the host's part: parameter draws, or steps of Bayesian EM",
    "start": "initial states",
    "writing": "writing the run file and checkpoints",
    "other": "the rest",
}
"""What the time of a run is divided among, in words."""


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
        self._began = clock()
        self._measured = dict.fromkeys(("engine", "parameters", "start", "writing"), 0.0)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Count what runs inside as ``engine``, ``parameters``, ``start`` or ``writing``; never nested."""
        began = self._clock()
        try:
            yield
        finally:
            self._measured[name] += self._clock() - began

    def seconds(self, engine: Mapping[str, float]) -> dict[str, float]:
        """Seconds of every span so far.

        Parameters
        ----------
        engine : mapping of str to float
            What an engine made with this profile says of its own `seconds`. They overlap where copies run
            beside kernels; only the part of the passes that kernels leave over is counted as copies.
        """
        now = self._clock() - self._began
        measured = dict(self._measured)
        passes = measured.pop("engine")
        kernels = min(engine["kernels"], passes)
        copies = min(engine.get("copies", 0.0), passes - kernels)
        spent = {"kernels": kernels, "copies": copies, "waiting": passes - kernels - copies, **measured}
        spent["other"] = now - sum(spent.values())
        return {name: self._earlier.get(name, 0.0) + spent[name] for name in SPANS}
