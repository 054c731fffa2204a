"""Recognise the run files of dpmix, for modules that do not read runs."""

from __future__ import annotations

from pathlib import Path

import h5py

RUN_ID = "run_id"  # attribute of the root group; every run file has it, and no other file of dpmix


def is_run_file(path: Path) -> bool:
    """Return True for a file that `dpmix mcmc` or `dpmix bem` wrote, False where it cannot be opened."""
    try:
        with h5py.File(path, "r", locking=False) as file:
            return RUN_ID in file.attrs
    except OSError:
        return False
