"""Every file of the fuzzers' corpus again, what they found among it (fuzz/README.md)."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from dpmix.errors import ConfigError, DataError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "fuzz"))

from targets import TARGETS, NotOneLine, refusals  # noqa: E402

FILES = sorted((ROOT / "fuzz" / "corpus").glob("*/*"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_file_of_the_corpus_is_read_or_refused(path: Path) -> None:
    began = time.process_time()
    TARGETS[path.parent.name](path.read_bytes())
    assert time.process_time() - began < 10


def test_every_target_has_a_corpus() -> None:
    assert {path.parent.name for path in FILES} == {*TARGETS}


@pytest.mark.parametrize("error", [KeyError("p1n"), ConfigError([]), MemoryError(), DataError("")])
def test_what_no_user_should_see_is_a_finding(error: Exception) -> None:
    """The control: the targets let nothing pass but the project's errors in a line each."""
    with pytest.raises((type(error), NotOneLine)), refusals():
        raise error
    with refusals():
        raise DataError("a name with a line feed,\nwhich becomes a space")
