"""Ctrl-C and kill: the first asks a run to stop after its sweep, the second ends it at once."""

from __future__ import annotations

import os
import signal
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Whether a run was asked to stop, from SIGINT or SIGTERM, while it is open (a context manager)."""

    def __init__(self) -> None:
        self._signal: int | None = None
        self._handlers: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        """What a shell expects of a process that a signal has ended."""
        return 128 + (self._signal or signal.SIGINT)

    def __enter__(self) -> Self:
        self._handlers = {number: signal.signal(number, self._ask) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _ask(self, number: int, _: object) -> None:
        self._signal = number
        self._restore()  # the next one does what it always does
        # Not through Python's stderr, in the middle of whose writing the signal may have come.
        os.write(2, b"\ndpmix: stopping after this sweep; once more ends it at once\n")

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
