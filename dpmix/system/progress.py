"""Log the progress of long work: one line every ten seconds, if the work takes that long.

A display that shows a bar instead of lines also uses the records of level DEBUG, which come more often. Each
record has the attributes `work`, the name of the work, `share`, the part done, from 0 to 1, and `place`, what
it is at, for example a file, or "".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("dpmix")

LINES, BARS = 10.0, 0.2  # seconds between the records of level INFO and of level DEBUG


class ProgressLog:
    """Log the progress of one piece of work.

    Parameters
    ----------
    work : str
        Name of the work, for example "reading events.csv".
    total : int
        Amount of work, in any unit.
    clock : callable
        Returns seconds since any fixed time.

    Attributes
    ----------
    place : str
        What the work is at; "" says nothing.
    """

    place = ""

    def __init__(self, work: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._work, self._total, self._clock = work, max(total, 1), clock
        self._done = 0
        self._logged = self._line = clock()

    def add(self, amount: int) -> None:
        """Count an amount of work as done, and log the progress if it is time to."""
        self._done += amount
        now = self._clock()
        if now - self._line >= LINES:
            self._line = now
            self._log(logging.INFO)
        elif now - self._logged >= BARS:
            self._log(logging.DEBUG)
        else:
            return
        self._logged = now

    def _log(self, level: int) -> None:
        share = min(self._done / self._total, 1.0)
        at = f" ({self.place})" if self.place else ""
        extra = {"work": self._work, "share": share, "place": self.place}
        log.log(level, "%s: %.0f%%%s", self._work, 100 * share, at, extra=extra)
