"""Stop a run on Ctrl-C, kill, or a closed terminal: the first time after its sweep, the second at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, Self

from dpmix.system.console import leave_closed_terminal
from dpmix.system.window import on_close

# SIGHUP: the terminal was closed, or the connection to it was lost. SIGBREAK: Ctrl-Break of Windows.
NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
SIGNALS = tuple(signal.Signals[name] for name in NAMES if hasattr(signal, name))
HANGUP = getattr(signal, "SIGHUP", None)


def ending_signals() -> list[signal.Signals]:
    """Return the signals, other than Ctrl-C's, that end a server; none on Windows."""
    asked = [one for one in SIGNALS if one != signal.SIGINT and os.name != "nt"]
    return [one for one in asked if one != HANGUP or signal.getsignal(one) is not signal.SIG_IGN]  # nohup


class Stop:
    """Record that a signal has asked a run to stop, while open as a context manager.

    Calling it returns True after a signal, and on Windows after the window of the console was closed. Python
    handles signals in the main thread only: in another thread it never returns True.

    Parameters
    ----------
    signals : sequence of signal.Signals, optional
        Signals to handle. Default: all of `SIGNALS`, and closing the window.
    """

    def __init__(self, signals: Sequence[signal.Signals] | None = None) -> None:
        self._signals = SIGNALS if signals is None else signals
        self._by_window = signals is None
        self._signal: int | None = None
        self._at_once = False
        self._handlers: dict[int, Any] = {}
        self._window = ExitStack()

    def __call__(self) -> bool:
        return self._signal is not None

    @property
    def exit_code(self) -> int:
        """Exit code that a shell expects of a process that a signal has ended."""
        return 128 + (self._signal or signal.SIGINT)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in self._signals:
                if number != HANGUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has set it
                    self._handlers[number] = signal.signal(number, self._ask)
            if self._by_window:
                self._window.enter_context(on_close(self._close))
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._window.close()
        self._restore()
        # A library that a signal interrupts may raise an error of its own: h5py, for example, a SystemError.
        if self._at_once and isinstance(error, Exception):
            raise KeyboardInterrupt from error

    def _ask(self, number: int, _: object) -> None:
        self._signal = number
        for one in self._handlers:
            signal.signal(one, self._stop_at_once)
        if number == HANGUP:
            leave_closed_terminal()
        # os.write, because the signal may have interrupted a write to Python's stderr.
        with suppress(OSError):
            os.write(2, b"\ndpmix: stopping after this sweep; interrupt again to stop at once\n")

    def _close(self) -> None:
        self._signal = signal.SIGTERM

    def _stop_at_once(self, number: int, _: object) -> None:
        self._at_once = True
        self._restore()
        signal.raise_signal(signal.Signals(number))  # with its usual effect

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
