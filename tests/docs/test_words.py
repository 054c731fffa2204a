"""Test the list of words that no text of the project may use."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).resolve().parents[2] / "docs" / "words.py"))


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.md", "10,000 in place of 5,000", "in place of"),
        ("a.py", "# 10,000 in place\n# of 5,000", "in place # of"),
        ("a.md", "Time for so many events", "so many"),
        ("a.md", "Its draws are\nthose of one machine", "are those of"),
        ("a.md", "the density equals that of the events", "equals that of"),
        ("tutorial.md", "as deep as that of two normals", "that of"),
        ("a.py", '"""Sum.\n\n    counts\n        As of `posterior`."""', "As of"),
        ("a.py", '"""Sum.\n\n    name : str\n        Of row p.\n    """', "name : str Of"),
        ("a.py", 'N = 3\n"""Of a file."""', '"""Of'),
        ("a.py", "# its bits are those of the CPU", "those of"),
        ("a.py", '"""As in GpGp."""', '"""As'),
        ("a.py", '"""Whether it is."""', '"""Whether'),
    ],
)
def test_words_that_are_always_wrong_are_found(name: str, text: str, found: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(f"first line\n{text}\n", encoding="utf-8")
    (line,) = SCRIPT["problems"](path)
    assert f'"{found}": write "' in line


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "sorted in place, of all events; those of us"),
        ("a.md", "Many so-called populations"),
        ("a.cu", "// its bits are those of the CPU"),
        ("a.py", '"""Often called."""'),
        ("a.py", '"""Assign events."""'),
    ],
)
def test_other_texts_pass(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    assert SCRIPT["problems"](path) == []
