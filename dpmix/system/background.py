"""Work in the background: a thread that imports libraries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from threading import Thread


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
