"""FCS files with two or more false numbers among the four offsets of DATA and $TOT, and how dpmix reads them.

`python tests/inputs/falsified_files.py` counts the readings of 8,000 files and writes the table of
docs/reference/fcs-deviations.md. `test_odd_fcs.py` repeats the count.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import odd_files
from odd_files import FLOATS, NAMES, NO_TIME, WORDS, fcs_bytes, keywords_of

from dpmix.errors import DataError
from dpmix.inputs.fcs.data import read_events
from dpmix.inputs.fcs.header import read_header

N_FILES = 8_000
SEED = 16
SIZES = (0, 8, 90, 700)  # bytes by which an offset is false, at most
MOST_AROUND = 81  # bytes before DATA, and behind it
START = "<!-- table of tests/inputs/falsified_files.py -->\n"
END = "<!-- end of the table of falsified files -->\n"
KINDS = ("exact", "first events", "refused", "wrong")


@dataclass(frozen=True)
class Falsified:
    """A file, its true events, and its false numbers: steps of both ends by HEADER and TEXT, and $TOT."""

    file: bytes
    truth: np.ndarray
    header: tuple[int, int]
    text: tuple[int, int]
    n_events: int
    clock: bool


def falsified(n_files: int = N_FILES, seed: int = SEED) -> Iterator[Falsified]:
    """Generate files. Both first bytes are never false by the same number: no reader could notice it."""
    random = np.random.default_rng(seed)
    while n_files:
        truth = (FLOATS, WORDS)[random.integers(2)]
        clock = bool(random.integers(2))
        header, text = _steps(random), _steps(random)
        n_events = len(truth) if random.integers(2) else int(random.integers(0, 91))
        false = sum(step != 0 for step in (*header, *text)) + (n_events != len(truth))
        gap, tail = (_around(random) for _ in range(2))
        if false < 2 or header[0] == text[0] != 0:
            continue
        n_files -= 1
        file = fcs_bytes(
            keywords_of(truth, NAMES if clock else NO_TIME, TOT=n_events),
            truth.tobytes(),
            header=_stated(header),
            text=_stated(text),
            gap=gap,
            tail=tail,
        )
        yield Falsified(file, truth, header, text, n_events, clock)


def _steps(random: np.random.Generator) -> tuple[int, int]:
    """Return by how many bytes the two ends of a place are false; half of the places keep their length."""
    most = SIZES[random.integers(len(SIZES))]
    first, last = (int(step) for step in random.integers(-most, most + 1, 2))
    kept = random.integers(4)
    return (first, first) if kept < 2 else (0, last) if kept == 2 else (first, last)


def _stated(steps: tuple[int, int]) -> odd_files.Places:
    return lambda first, last: (first + steps[0], last + steps[1])


def _around(random: np.random.Generator) -> bytes:
    """Return bytes next to DATA: none, padding, or anything."""
    n = int(random.integers(MOST_AROUND))
    return (b"", bytes(n), random.bytes(n))[random.integers(3)]


def reading(one: Falsified, path: Path) -> tuple[str, bool]:
    """Return the kind of a reading, and whether dpmix gave a warning."""
    path.write_bytes(one.file)
    try:
        header = read_header(path)
        events = read_events(header)
    except DataError:
        return "refused", True
    truth = one.truth.astype(np.float32)
    if np.array_equal(events, truth):
        return "exact", bool(header.warnings)
    first = len(events) == one.n_events < len(truth) and np.array_equal(events, truth[: len(events)])
    return "first events" if first else "wrong", bool(header.warnings)


def counts(n_files: int = N_FILES, seed: int = SEED) -> Counter[tuple[bool, str, bool]]:
    """Count files by: a channel of time, the kind of the reading, and a warning."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.fcs"
        return Counter((one.clock, *reading(one, path)) for one in falsified(n_files, seed))


def table() -> str:
    """Return the table of the page."""
    found = counts()
    lines = [
        "| files | exact | first `$TOT` events, with a warning | refused | wrong | without a warning |\n"
    ]
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: |\n")
    for clock, name in ((True, "with a channel of time"), (False, "without")):
        cells = [sum(found[clock, kind, said] for said in (True, False)) for kind in KINDS]
        silent = sum(found[clock, kind, False] for kind in KINDS[1:])
        lines.append(f"| {name} | {' | '.join(f'{cell:,}' for cell in (*cells, silent))} |\n")
    return "".join(lines)


def page() -> str:
    """Return the page with a new table."""
    before, _, rest = odd_files.PAGE.read_text(encoding="utf-8").partition(START)
    return f"{before}{START}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    odd_files.PAGE.write_text(page(), encoding="utf-8")
