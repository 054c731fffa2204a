"""Stop a run on Ctrl-C or kill: the first signal after its sweep, the second at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from typing import Any, Self

NAMES = ("SIGINT", "SIGTERM", "SIGBREAK")  # the last is Windows' Ctrl-Break
SIGNALS = tuple(signal.Signals[name] for name in NAMES if hasattr(signal, name))


class Stop:
    """Record that a signal has asked a run to stop, while open as a context manager.

    Calling it returns True after a signal. Python handles signals in the main thread only: in another
    thread it never returns True.

    Parameters
    ----------
    signals : sequence of signal.Signals
        Signals to handle.
    """

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self._signals = signals
        self._signal: int | None = None
        self._at_once = False
        self._handlers: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        """Exit code that a shell expects of a process that a signal has ended."""
        return 128 + (self._signal or signal.SIGINT)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                self._handlers[number] = signal.signal(number, self._ask)
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._restore()
        # A library that a signal interrupts may raise an error of its own: h5py, for example, a SystemError.
        if self._at_once and isinstance(error, Exception):
            raise KeyboardInterrupt from error

    def _ask(self, number: int, _: object) -> None:
        self._signal = number
        for one in self._handlers:
            signal.signal(one, self._stop_at_once)
        # os.write, because the signal may have interrupted a write to Python's stderr.
        os.write(2, b"\ndpmix: stopping after this sweep; interrupt again to stop at once\n")

    def _stop_at_once(self, number: int, _: object) -> None:
        self._at_once = True
        self._restore()
        signal.raise_signal(signal.Signals(number))  # with its usual effect

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
