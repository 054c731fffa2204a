"""Fuzz a target with atheris (libFuzzer): python fuzz/fuzz.py TARGET [options of libFuzzer].

A crash is an exception other than an error of dpmix, ten seconds without an answer, or an input that takes
2 GB of memory more than all before it. New inputs are written to the first folder among the options.
"""

from __future__ import annotations

import logging
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import atheris

FOLDER = Path(__file__).resolve().parent
MEMORY = 2048  # MiB of one input
LIMITS = ["-timeout=10", "-rss_limit_mb=16384", "-max_len=8192"]  # libFuzzer itself grows by 1 GB in an hour

# The finder of an editable installation loads modules without instrumentation, so it comes last.
sys.meta_path.sort(key=lambda finder: type(finder).__module__.startswith("_editable"))
sys.path.insert(0, str(FOLDER.parent))

with atheris.instrument_imports(include=["dpmix", "flowutils", "yaml"]):
    from targets import TARGETS


def main() -> None:
    """Fuzz the target that the command line names."""
    if len(sys.argv) < 2 or sys.argv[1] not in TARGETS:
        sys.exit(f"usage: fuzz.py {'|'.join(TARGETS)} [folders and options of libFuzzer]")
    name, options = sys.argv[1], sys.argv[2:]
    logging.getLogger("dpmix").setLevel(logging.CRITICAL)
    dictionary = FOLDER / f"{name}.dict"
    words = [f"-dict={dictionary}"] if dictionary.exists() else []
    target = within_memory(TARGETS[name])
    atheris.Setup([sys.argv[0], *LIMITS, *words, *options, str(FOLDER / "corpus" / name)], target)
    atheris.Fuzz()


def within_memory(target: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """Return the target with a `MemoryError` for an input that takes more memory than `MEMORY`."""

    def most() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024

    def run(data: bytes) -> None:
        before = most()
        target(data)
        if (taken := most() - before) > MEMORY:
            raise MemoryError(f"{taken} MiB")

    return run


if __name__ == "__main__":
    main()
