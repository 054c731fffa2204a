"""Which tests are left out where Python behaves as on another system (tests/other_system)."""

from __future__ import annotations

import os

import pytest

PLATFORM = os.environ.get("DPMIX_TEST_PLATFORM", "")


def not_on(*platforms: str, because: str) -> pytest.MarkDecorator:
    """Skip a test on some platforms."""
    return pytest.mark.skipif(PLATFORM in platforms, reason=f"not on {PLATFORM}: {because}")


ELSEWHERE = ("macos", "windows")
USES_LINUX = not_on(*ELSEWHERE, because="the test itself uses what only Linux has")
SIGTERM_KILLS = not_on("windows", because="SIGTERM ends a process there at once")
FORKS = not_on(*ELSEWHERE, because="the test or dpmix forks")
READS_LOCKED = not_on("macos", because="HDF5's own lock for reading meets flock; dpmix reads without it")
NAMED_FILE_STAYS = not_on(
    "windows", because="a mapped file cannot be deleted; a warning names the file of a cluster"
)
