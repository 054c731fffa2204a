"""The terminal: characters that it lacks, lists and shares as text, commands to copy, closed terminals."""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper

WINDOWS_SHELL = os.name == "nt"  # its shells know double quotes, and no backslash before a character


def keep_unknown_characters() -> None:
    r"""Write characters that the encoding of stdout or stderr lacks as, for example, ``\u03b2``.

    On Windows the encoding of a pipe or a file is often one of 256 characters. Python would raise an error.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def unknown_characters(text: str) -> str:
    """Return the characters of a text, each once, which the encoding of stdout lacks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return "".join(one for one in dict.fromkeys(text) if not one.encode(encoding, "ignore"))


def quoted(argument: object) -> str:
    """Return an argument of a command as the user's shell reads it."""
    text = str(argument)
    return subprocess.list2cmdline([text]) if WINDOWS_SHELL else shlex.quote(text)


def first_few(texts: Sequence[str], most: int = 3) -> str:
    """Return texts separated by commas; of more than `most`, the first ones and the number of the others."""
    more = f" and {len(texts) - most} more" if len(texts) > most else ""
    return ", ".join(texts[:most]) + more


def percent(share: float) -> str:
    """Format a share as a percentage with at most three digits."""
    if 0.0 < share < 1e-4:
        return "<0.01%"
    return f"{share:.1%}" if share >= 0.01 or share == 0.0 else f"{share:.2%}"


def listed(texts: Sequence[str]) -> str:
    """Return texts in one line, as "a, b and c"."""
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))


def leave_closed_terminal() -> None:
    """Write to nowhere what would go to a terminal that has been closed, where writing is an error."""
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            _to_nowhere(descriptor)


def leave_stdout() -> None:
    """Write to nowhere what would go to stdout, which takes no more: Python writes the rest at its end."""
    _to_nowhere(1)


def _to_nowhere(descriptor: int) -> None:
    """Write to nowhere what would go to a descriptor."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


@contextmanager
def ignoring_closed_terminal() -> Iterator[None]:
    """Ignore the error of writing to a terminal that has been closed: SIGHUP, just after it, ends a run."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        leave_closed_terminal()
