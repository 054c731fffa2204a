"""How much of a long piece of work is done, told to the log: a line every ten seconds, if it takes so long.

Whoever shows a bar in place of lines takes the records of level DEBUG too, which come more often. Each record
has `work`, what is done, and `share`, from 0 to 1.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

log = logging.getLogger("dpmix")

LINES, BARS = 10.0, 0.2  # seconds between the records of either level


class Telling:
    """Tells how far a piece of work is.

    Parameters
    ----------
    work : str
        What is done, as "reading events.csv".
    total : int
        How much there is to do, in any unit.
    clock : callable
        Seconds, from any moment.
    """

    def __init__(self, work: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._work, self._total, self._clock = work, max(total, 1), clock
        self._done = 0
        self._told = self._line = clock()

    def add(self, amount: int) -> None:
        """So much more is done."""
        self._done += amount
        now = self._clock()
        if now - self._line >= LINES:
            self._line = now
            self._tell(logging.INFO)
        elif now - self._told >= BARS:
            self._tell(logging.DEBUG)
        else:
            return
        self._told = now

    def _tell(self, level: int) -> None:
        share = min(self._done / self._total, 1.0)
        log.log(level, "%s: %.0f%%", self._work, 100 * share, extra={"work": self._work, "share": share})
