"""The contents of a run file and its datasets as arrays, all of one file.

A run that is extended (``--resume`` with more draws) or replaced (``--overwrite``) puts another file in the
place of the run file, with its datasets elsewhere. A reader opens the file several times and must not mix
two.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from dpmix.errors import DataError
from dpmix.runs.layout import AnyArray
from dpmix.runs.run_file import Contents, committed_draws, read_contents
from dpmix.system.paths import file_id


class Mapped(NamedTuple):
    """Contents of a run file, and its datasets as arrays.

    Attributes
    ----------
    contents : Contents
    committed : int
        Draws that are complete in every chain.
    arrays : dict of str to array
        The datasets but for the counters, as `DatasetPlace.map` gives them.
    """

    contents: Contents
    committed: int
    arrays: dict[str, AnyArray]


def map_run(path: Path) -> Mapped:
    """Read a run file; again if another file takes its place meanwhile.

    Raises
    ------
    DataError
        The file is missing, not a run file, truncated, of a newer format, or damaged.
    """
    while True:
        before = file_id(path)
        try:
            contents = read_contents(path)
            committed = committed_draws(path, contents)
            arrays = {name: slot.map(path) for name, slot in contents.variables.items()}
            found = Mapped(contents, committed, arrays)
        except (DataError, OSError, ValueError):  # the places of one file need not lie within another
            if file_id(path) == before:
                raise
        else:
            if file_id(path) == before:
                return found
