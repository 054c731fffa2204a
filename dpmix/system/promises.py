"""The promises of dpmix about files, memory and stopping, and how this system keeps them."""

from __future__ import annotations

import os
import platform

from dpmix.system import memory, window
from dpmix.system.optional import module
from dpmix.system.own_file import OPEN_FILES_KEEP_THEIR_NAMES, kind_of_lock


def promises() -> dict[str, str]:
    """Return how this system keeps each promise, in the order of the table in docs/how-to/install.md."""
    windows = OPEN_FILES_KEEP_THEIR_NAMES
    groups, addresses = memory.OWN_GROUPS.exists(), module("resource") is not None
    limits = ["memory", *["control groups"] * groups, *["ulimit -v"] * addresses]
    return {
        "a run file has one writer": kind_of_lock(),
        "a full disk is noticed before a run starts": (
            "space is allocated" if hasattr(os, "posix_fallocate") else "zeros are written"
        ),
        "draws survive a power cut": "not the names of new files" if windows else "yes",
        "nothing is left of temporary files": "a file for a cluster may stay" if windows else "yes",
        "too much work for the memory is refused": ", ".join(limits),
        "a finished run gets more draws": (
            "while no other program reads it" if windows else "also while others read it"
        ),
        "memory does not grow with the number of events": (
            "the system releases pages" if windows else "pages are released"
        ),
        "a closed terminal ends a run after its sweep": (
            "if it ends in 5 seconds" if window.HAS_WINDOW else "yes"
        ),
    }


def system_name() -> str:
    """Return the name of the system and of the processor, for example `Linux x86_64`."""
    return f"{platform.system()} {platform.machine()}"
