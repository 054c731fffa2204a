"""Report words that no text of the project may use, each with its replacement.

    python docs/words.py                 # all tracked Markdown, Python, CUDA, C++, HTML, YAML and make files
    python docs/words.py README.md cli   # these files and folders

Prints `file:line: "found": write "replacement"` for each match; the exit status is 1 if there is one.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

OWN = {"words.py", "test_words.py"}
SUFFIXES = {".md", ".py", ".pyi", ".cu", ".cuh", ".cpp", ".hpp", ".h", ".html", ".yaml", ".yml"}
REPLACEMENTS = {
    r"(is|are|was|were|be|been|being) told": "gets, is given (input); is reported, is logged (output)",
    r"told of": "given, informed of",
    r"needed are": "requirements:",
    r"anew": "again, from scratch",
    r"(begin|begins|began|begun) again": "restart",
    r"(go|goes|going|went|gone) on": "continue, resume",
    r"beside": "compared with, next to",
    r"of (no|some) use to": "ignored by, used by",
    r"(than|what) is free": "available memory",
    r"memory that is left": "available memory",
    r"how far long work is": "progress, time remaining",
    r"come in normals": "are Gaussian",
    r"far from normal": "not Gaussian",
    r"(is|are) no populations?": "is not a population, are not populations",
    r"draws are worth": "effective sample size",
    r"not here yet": "not yet available, not yet benchmarked",
    r"full house": "all components are occupied",
    r"room by room": "how the code is organised",
    r"there is (?-i:none)": "none exists, is missing",
    r"into another order": "reordered, sorted",
    r"lets? go": "release",
    r"in place of": "instead of",
    r"so many": "this many; such a number of",
    r"cells found by judging": "explored cells",
    r"as of (?=`)": "as in (a function)",
}
IN_PAGES = {r"(is|are|was|were|be|equals?) (that|those) of": "comes from, belongs to; or repeat the noun"}
IN_USER_PAGES = {r"(that|those) of": "comes from, belongs to; or repeat the noun"}  # and in `CODE`
CODE = {".py", ".pyi", ".cpp", ".hpp", ".h", ".html"}  # not CUDA: benchmarks record the hashes of its files
USER_PAGES = {"how-to", "explanation", "reference", "README.md", "tutorial.md", "coming-from.md"}
SPACE = r"\s+(?:[#*/>|]+\s+)?"  # also over the end of a line, with the mark of a comment on the next one


def compiled(replacements: dict[str, str]) -> dict[re.Pattern[str], str]:
    """Return the pattern of each text as whole words, also over the end of a line, with its replacement."""
    return {
        re.compile(rf"(?<![\w-]){found.replace(' ', SPACE)}(?![\w-])", re.IGNORECASE): write
        for found, write in replacements.items()
    }


OPENINGS = {
    re.compile(r'"""(What|Whether)\b'): 'a verb: "Return ...", "Test whether ..."',
    re.compile(r'"""(Of|As|That|Those)\b'): 'the noun, or a verb: "Columns of ...", "Return ..."',
    re.compile(r"\w+ : [^\n]+\n +(Of|As of)\b"): 'the noun: "Names of ...", or "As in ..."',
}
WORDS = compiled(REPLACEMENTS) | OPENINGS
PAGE_WORDS = WORDS | compiled(IN_PAGES)
USER_WORDS = WORDS | compiled(IN_USER_PAGES)


def files(places: list[str]) -> list[Path]:
    """Return the tracked text files in the given files and folders, without this one and its test."""
    command = ["git", "ls-files", "-z", "--", *places]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [
        path
        for path in map(Path, filter(None, names))
        if (path.suffix in SUFFIXES or path.name == "Makefile") and path.name not in OWN
    ]


def problems(path: Path) -> list[str]:
    """One line for each match in a file, in the order of the file."""
    text = path.read_text(encoding="utf-8")
    words = PAGE_WORDS if path.suffix == ".md" else WORDS
    if path.suffix in CODE or (path.suffix == ".md" and USER_PAGES & set(path.parts)):
        words = USER_WORDS
    matches = [(match, write) for pattern, write in words.items() for match in pattern.finditer(text)]
    return [
        f'{path}:{text.count(chr(10), 0, match.start()) + 1}: "{" ".join(match[0].split())}": write "{write}"'
        for match, write in sorted(matches, key=lambda found: found[0].start())
    ]


if __name__ == "__main__":
    found = [line for path in files(sys.argv[1:]) for line in problems(path)]
    print("\n".join(found), file=sys.stderr)
    sys.exit(bool(found))
