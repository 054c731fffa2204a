"""Kernels with a mistake, for tests that must notice it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpmix.kernels import build


def edit_kernels(monkeypatch: pytest.MonkeyPatch, folder: Path, right: str, wrong: str) -> None:
    """Copy the kernels to a folder, change them wherever `right` occurs, and have dpmix take these."""
    found = False
    for path in [
        *build.FOLDER.glob("*.cuh"),
        *build.FOLDER.glob("vecchia.cu"),
        *build.FOLDER.glob("local_*.cu"),
    ]:
        text = path.read_text()
        found = found or right in text
        (folder / path.name).write_text(text.replace(right, wrong))
    assert found, f"no {right!r} in the kernels"
    monkeypatch.setattr("dpmix.kernels.build.FOLDER", folder)
