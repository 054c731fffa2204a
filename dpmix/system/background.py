"""Work in the background: a forked process that writes files, a thread that imports libraries."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Thread

FORKS_SAFELY = sys.platform == "linux"  # elsewhere the system's own libraries may be in use at a fork


@contextmanager
def importing(modules: Sequence[str], *, allowed: bool = True) -> Iterator[None]:
    """Import modules in a thread while the body of the context runs, and wait for the imports after it.

    An import that fails raises its error where the module is used, not here.

    Parameters
    ----------
    modules : sequence of str
        Modules that are imported for the first time after the body.
    allowed : bool
        False: import nothing.
    """

    def import_all() -> None:
        for name in modules:
            with suppress(Exception):
                import_module(name)

    thread = Thread(target=import_all, name="imports")
    if allowed:
        thread.start()
    try:
        yield
    finally:
        if allowed:
            thread.join()


@contextmanager
def in_background(call: Callable[[], object], *, allowed: bool = True) -> Iterator[None]:
    """Make a call in a forked process while the body of the context runs.

    The call may only write files, and it must be possible to make it again: if it fails or warns in the
    background, it is made once more in this process, which raises its errors and shows its warnings.

    Parameters
    ----------
    call : callable
    allowed : bool
        False: make the call after the body, without another process. So it is also done where a process
        cannot fork safely, which is everywhere but on Linux.
    """
    child = _fork(call) if allowed and FORKS_SAFELY else None
    try:
        yield
        done = child is not None and _status(child) == 0
        child = None
    finally:
        if child is not None:
            os.kill(child, signal.SIGKILL)
            _status(child)
    if not done:
        call()


def _fork(call: Callable[[], object]) -> int | None:
    """Make a call in a child process and return its process id; None where there is no room for one.

    The child ends with status 0 if the call returned without a warning. It must not write to the log: a
    thread of this process may have held a lock of the log when it was forked.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # threads of this process do not matter
            child = os.fork()
    except OSError:
        return None
    if child == 0:
        status = 1
        try:
            logging.disable()
            warnings.simplefilter("error", UserWarning)
            call()
            status = 0
        finally:
            os._exit(status)
    return child


def _status(child: int) -> int | None:
    """Wait for the end of a process; return its status, None where this process has chosen not to know."""
    try:
        return os.waitpid(child, 0)[1]
    except ChildProcessError:
        return None
