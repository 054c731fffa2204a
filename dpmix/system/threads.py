"""Limit the threads of numerical libraries, from several threads of a process at once.

The limit is one of the whole process. With `threadpool_limits` alone, a computation that ends would lift the
limit of another one that still runs. Newer versions of threadpoolctl obey the first thread that sets a limit,
and ignore the others while it lives.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import threadpoolctl

_lock = Lock()
_held: dict[str | None, tuple[int, Any]] = {}  # users of the limit, and what lifts it


@contextmanager
def one_thread(api: str | None = "blas") -> Iterator[None]:
    """Limit libraries to one thread while the body of the context runs, in whatever thread it does.

    Sums of BLAS then have the same bits for any number of cores.

    Parameters
    ----------
    api : "blas", "openmp" or None
        Which libraries; None for all.
    """
    with _lock:
        users, limit = _held.get(api, (0, None))
        if not users:
            _take_control()
            limit = threadpoolctl.threadpool_limits(1, api)
        _held[api] = users + 1, limit
    try:
        yield
    finally:
        with _lock:
            users, limit = _held.pop(api)
            if users > 1:
                _held[api] = users - 1, limit
            else:
                _take_control()
                limit.restore_original_limits()


def _take_control() -> None:
    """Let this thread set limits, if threadpoolctl obeys another one."""
    for controller in vars(threadpoolctl).values():
        if clear := getattr(controller, "clear_controlling_thread", None):
            clear(force=True)
