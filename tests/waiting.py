"""Wait for events in tests, with a limit that only an event that never comes reaches."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT = 400.0
"""Seconds; a busy machine is many times slower than an idle one."""


def wait_until(happened: Callable[[], object], what: str) -> None:
    """Return when a condition is true; fail with `what` if it is not within `LIMIT`."""
    until = time.monotonic() + LIMIT
    while not happened():
        assert time.monotonic() < until, f"not within {LIMIT:.0f} s: {what}"
        time.sleep(0.05)
