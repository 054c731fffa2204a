"""Fuzz a target with atheris (libFuzzer): python fuzz/fuzz.py TARGET [options of libFuzzer].

A crash is an exception other than an error of dpmix, ten seconds without an answer, or 2 GB of memory. New
inputs are written to the first folder among the options.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import atheris

FOLDER = Path(__file__).resolve().parent
LIMITS = ["-timeout=10", "-rss_limit_mb=2048", "-max_len=8192"]

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
    atheris.Setup([sys.argv[0], *LIMITS, *words, *options, str(FOLDER / "corpus" / name)], TARGETS[name])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
