"""The record of a GPU run: one JSON file, replaced at once whenever something is added.

The runner (gpu.py) and its stages write it in turn. This module needs no package.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Record = dict[str, Any]


def read(path: Path) -> Record:
    record: Record = json.loads(path.read_text())
    return record


def write(path: Path, record: Record) -> None:
    """Replace the file; a process killed at any moment leaves the old one or the new one."""
    unfinished = path.with_suffix(".new")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(path)
