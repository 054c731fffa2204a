"""The console window of Windows: closing it, logging off or shutting down asks a run to stop.

Windows ends the process when every handler of these events has returned, or after five seconds (twenty at a
shutdown). Python has no signal for them. See SetConsoleCtrlHandler in the reference of Windows.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

HAS_WINDOW = os.name == "nt"
CLOSE, LOGOFF, SHUTDOWN = 2, 5, 6  # numbers of the events
PATIENCE = 30.0  # seconds, longer than Windows waits


@contextmanager
def on_close(ask: Callable[[], None]) -> Iterator[None]:
    """Call `ask`, in a thread of the system, when the window closes while the body of the context runs.

    Parameters
    ----------
    ask : callable
        Asks the process to end. The thread waits for that, because Windows ends the process after it.
    """
    if not HAS_WINDOW:
        yield
        return

    def handle(event: int) -> bool:
        if event in (CLOSE, LOGOFF, SHUTDOWN):  # Ctrl-C and Ctrl-Break are signals of Python
            ask()
            threading.Event().wait(PATIENCE)
        return False

    remove = _add_handler(handle)
    try:
        yield
    finally:
        remove()


def _add_handler(handle: Callable[[int], bool]) -> Callable[[], Any]:
    """Let the system call a function at events of the console; return what ends this."""
    import ctypes
    from ctypes import wintypes

    kernel = ctypes.WinDLL("kernel32", use_last_error=True)  # type: ignore[attr-defined]
    handler = ctypes.WINFUNCTYPE(wintypes.BOOL, wintypes.DWORD)(handle)  # type: ignore[attr-defined]
    kernel.SetConsoleCtrlHandler(handler, True)
    return lambda: kernel.SetConsoleCtrlHandler(handler, False)
