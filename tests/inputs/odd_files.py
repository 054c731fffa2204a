"""FCS files that deviate from the standard, one oddity each, and the page that lists them.

`python tests/inputs/odd_files.py` writes the table of docs/reference/fcs-deviations.md: what dpmix makes of
each file, in its own words. `test_odd_fcs.py` reads the files, and compares the page.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpmix.errors import DataError
from dpmix.inputs.opening import open_source
from dpmix.inputs.sources import Source

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "fcs-deviations.md"
START, END = "<!-- table of tests/inputs/odd_files.py -->\n", "<!-- end of the table -->\n"

Places = Callable[[int, int], tuple[object, object]]
Keywords = Mapping[str, object]


def right(first: int, last: int) -> tuple[object, object]:
    """State the right place of DATA."""
    return first, last


def moved(by: int) -> Places:
    """State a place of DATA that is moved by some bytes, with the right length."""
    return lambda first, last: (first + by, last + by)


def longer(by: int) -> Places:
    """State a place of DATA that ends some bytes too late."""
    return lambda first, last: (first, last + by)


def join(keywords: Keywords, mark: str = "/") -> bytes:
    return (mark + "".join(f"{key}{mark}{value}{mark}" for key, value in keywords.items())).encode()


def keywords_of(events: np.ndarray, names: list[str], **changes: object) -> dict[str, object]:
    """Return the keywords of a file with float32 or integer events; `changes` replaces them, None removes."""
    kind = {"f": "F", "u": "I"}[events.dtype.kind]
    keywords: dict[str, object] = {"$BYTEORD": "1,2,3,4", "$DATATYPE": kind, "$MODE": "L", "$NEXTDATA": 0}
    keywords |= {"$PAR": len(names), "$TOT": len(events)}
    for n, name in enumerate(names, start=1):
        keywords |= {f"$P{n}N": name, f"$P{n}B": 8 * events.dtype.itemsize, f"$P{n}R": 1024, f"$P{n}E": "0,0"}
    keywords |= {f"${key}": value for key, value in changes.items()}
    return {key: value for key, value in keywords.items() if value is not None}


def fcs_bytes(
    keywords: Keywords,
    data: bytes,
    *,
    header: Places = right,
    text: Places | None = right,
    gap: bytes = b"",
    tail: bytes = b"",
    version: str = "FCS3.1",
    text_place: Places = right,
    blanks: Mapping[str, int] | None = None,
) -> bytes:
    """Return an FCS file: HEADER, TEXT, a gap, DATA and a tail, with any places of DATA in HEADER and TEXT.

    `text_place` states the place of TEXT in HEADER, and `blanks` puts blanks before keywords.
    """
    stated = dict(keywords)
    if text is not None:
        stated = {"$BEGINDATA": "0" * 12, "$ENDDATA": "0" * 12, **stated}
    padded = {" " * (blanks or {}).get(key, 0) + key: value for key, value in stated.items()}
    first = 58 + len(join(padded)) + len(gap)
    last = first + len(data) - 1
    if text is not None:
        padded |= {
            key: f"{value:>12}"
            for key, value in zip(("$BEGINDATA", "$ENDDATA"), text(first, last), strict=True)
        }
    segment = join(padded)
    offsets = (*text_place(58, 57 + len(segment)), *header(first, last), 0, 0)
    fields = b"".join(f"{'' if value is None else value!s:>8}".encode() for value in offsets)
    return version.encode() + b"    " + fields + segment + gap + data + tail


# --------------------------------------------------------------------------------------- the events

RANDOM = np.random.default_rng(16)
NAMES = ["FSC-A", "CD3", "CD4", "Time"]
FLOATS = RANDOM.normal(300, 60, (40, 4)).astype("<f4")
FLOATS[:, 3] = np.arange(40) * 2.5 + 1
WORDS = RANDOM.integers(0, 1024, (40, 4)).astype("<u2")
WORDS[:, 3] = np.arange(40) * 3
NO_TIME = ["FSC-A", "CD3", "CD4", "CD8"]
TAIL = b"00000000" * 4


def floats(names: list[str] = NAMES, **options: object) -> bytes:
    changes, more = options.pop("changes", {}), options.pop("more", {})
    keywords = keywords_of(FLOATS, names, **changes) | more  # type: ignore[arg-type, operator]
    return fcs_bytes(keywords, FLOATS.tobytes(), **options)  # type: ignore[arg-type]


def words(data: bytes = WORDS.tobytes(), changes: Keywords | None = None, **options: object) -> bytes:
    return fcs_bytes(keywords_of(WORDS, NAMES, **(changes or {})), data, **options)  # type: ignore[arg-type]


def saturated(events: np.ndarray) -> bytes:
    return words(events.astype("<u2").tobytes())


def packed_bits(events: np.ndarray, bits: int) -> bytes:
    """Return events whose integers follow each other without words; each event fills whole bytes."""
    shifts = np.arange(bits)
    flat = (events[:, :, None] >> shifts & 1).astype(np.uint8).reshape(len(events), -1)
    return np.packbits(flat, axis=1, bitorder="little").tobytes()


def three_bytes(events: np.ndarray) -> bytes:
    return b"".join(int(value).to_bytes(3, "little") for value in events.flat)


def with_supplement(more: bytes, place: Places = right) -> bytes:
    """Return a file with a supplemental TEXT behind DATA; its last primary keyword is $P4S."""
    keywords = {"BEGINSTEXT": "0" * 12, "ENDSTEXT": "0" * 12, "P4S": "CD8"}
    file = floats(NO_TIME, changes=keywords)
    for key, value in zip(("$BEGINSTEXT", "$ENDSTEXT"), place(len(file), len(file + more) - 1), strict=True):
        file = file.replace(f"{key}/{'0' * 12}".encode(), f"{key}/{value:012d}".encode())
    return file + more


def data_sets(*files: bytes) -> bytes:
    """Return a file of several data sets, each of which states $NEXTDATA as a number of twelve digits."""
    parts = [file.replace(b"$NEXTDATA/%012d" % 0, b"$NEXTDATA/%012d" % len(file), 1) for file in files[:-1]]
    return b"".join([*parts, files[-1]])


SHUFFLED = RANDOM.permutation(FLOATS)
SHUFFLED_FILE = fcs_bytes(keywords_of(SHUFFLED, NAMES), SHUFFLED.tobytes())
ABOVE = WORDS.copy()
ABOVE[5:9, 1] = 1030 + np.arange(4)  # saturated, of a range of 1,024
TAGS = np.arange(4, dtype="<u2") << 10
FLAGGED = WORDS.copy()
FLAGGED[::3, 1] |= 1 << 15
TRANSFORMED = {"transformation": "custom", "flowCore_$P2Rmax": "4.5", "SPILL": "2,CD3,CD4,1,0.1,0,1"}
WITHOUT_DOLLAR = fcs_bytes(
    {key.removeprefix("$"): value for key, value in keywords_of(FLOATS, NAMES).items()}, FLOATS.tobytes()
)
LINK = {"NEXTDATA": "0" * 12}
COMMAS = {"P2E": "0,0,0,0", "P3G": "2,5", "P4R": "1024,0"}
BITS_10 = {f"P{n}B": 10 for n in range(1, 5)}


@dataclass(frozen=True)
class Case:
    """An odd file: what is odd, for the page; its bytes; its values, None where it is refused; its part."""

    odd: str
    file: bytes
    values: np.ndarray | None = None
    part: str = ""


CASES = [
    # where the events are
    Case("offsets of DATA blank in HEADER (large files)", floats(header=lambda *_: (0, 0)), FLOATS),
    Case("only the end of DATA is 0 in HEADER (large files)", floats(header=lambda a, b: (a, 0)), FLOATS),
    Case("no offsets of DATA in TEXT (FCS 2.0)", floats(text=None, version="FCS2.0"), FLOATS),
    Case("DATA ends one byte too late", floats(text=longer(1)), FLOATS),
    Case("TEXT ends one byte too late", floats(text_place=longer(1)), FLOATS),
    Case("TEXT ends far too late", floats(text_place=longer(50)), FLOATS),
    Case("the place by HEADER overlaps HEADER", floats(header=lambda a, b: (20, 19 + b - a)), FLOATS),
    Case("the place by TEXT overlaps the keywords (Accuri C6)", floats(text=moved(-100)), FLOATS),
    Case("the length by HEADER does not fit `$TOT`", floats(header=longer(20), tail=TAIL), FLOATS),
    Case("both places fit `$TOT`; Time ascends by HEADER (CyAn)", floats(text=moved(4), tail=TAIL), FLOATS),
    Case("both places fit `$TOT`; Time ascends by TEXT", floats(header=moved(4), tail=TAIL), FLOATS),
    Case(
        "both places fit `$TOT`, no channel of time; only padding by HEADER",
        floats(NO_TIME, text=moved(4), tail=bytes(4)),
        FLOATS,
    ),
    Case("both places fit `$TOT`, no channel of time", floats(NO_TIME, text=moved(4), tail=TAIL)),
    Case(
        "one place overlaps TEXT; Time is noise in the other",
        floats(header=moved(6), text=moved(-99), tail=TAIL),
    ),
    Case(
        "both places fit `$TOT`, no channel of time; named `a.fcs::header`",
        floats(NO_TIME, text=moved(4), tail=TAIL),
        FLOATS,
        part="header",
    ),
    Case(
        "both places fit `$TOT`; Time ascends by HEADER; named `a.fcs::text`",
        floats(text=moved(4), tail=TAIL),
        part="text",
    ),
    Case(
        "HEADER and TEXT differ, and neither fits `$TOT`",
        floats(header=lambda a, b: (a, b - 3), text=lambda a, b: (a + 4, b)),
    ),
    Case(
        "HEADER and TEXT place the events 4 bytes too early; Time ascends only in the right place",
        floats(header=moved(-4), text=moved(-4), gap=bytes(4)),
    ),
    Case("Time does not ascend", SHUFFLED_FILE, SHUFFLED),
    Case("no number as an offset of DATA in HEADER", floats(header=lambda a, b: ("x", b)), FLOATS),
    Case("no number as an offset of TEXT in HEADER", floats(text_place=lambda a, b: ("5x", b))),
    Case("no offsets of DATA at all", floats(header=lambda *_: (0, 0), text=None)),
    Case("DATA is cut short", floats()[:-100]),
    # how many events
    Case(
        "HEADER and TEXT place the events 2 bytes too late; no channel of time (flowCore)",
        floats(NO_TIME, header=moved(2), text=moved(2), tail=b"00000000"),
    ),
    Case("`$BYTEORD` is false", floats(NO_TIME, changes={"BYTEORD": "4,3,2,1"})),
    Case("`$TOT` is smaller than DATA", floats(changes={"TOT": 30}), FLOATS[:30]),
    Case("`$TOT` is larger than DATA", floats(changes={"TOT": 50})),
    Case("`$TOT` is not a number", floats(changes={"TOT": "many"})),
    Case("no `$TOT` (FCS 2.0)", floats(changes={"TOT": None}, version="FCS2.0"), FLOATS),
    Case("DATA includes the checksum", floats(header=longer(8), text=longer(8), tail=TAIL), FLOATS),
    Case(
        "DATA ends where it starts, by HEADER and TEXT (iQue)",
        floats(header=lambda a, b: (a, a), text=lambda a, b: (a, a)),
        FLOATS,
    ),
    Case(
        "DATA ends at 0, by HEADER and TEXT",
        floats(header=lambda a, b: (a, 0), text=lambda a, b: (a, 0)),
        FLOATS,
    ),
    Case(
        "DATA ends where it starts, and other bytes follow it",
        floats(header=lambda a, b: (a, a), text=lambda a, b: (a, a), tail=b"x" * 64),
    ),
    # keywords
    Case(
        "keywords without `$` next to those with it",
        fcs_bytes(keywords_of(FLOATS, NAMES) | {"MODE": "Sheath", "TOT": 12, "P9N": "x"}, FLOATS.tobytes()),
        FLOATS,
    ),
    Case("no keyword has its `$`", WITHOUT_DOLLAR, FLOATS),
    Case("supplemental TEXT starts without a delimiter (S3)", with_supplement(b"SORTSTATS/Left 12/"), FLOATS),
    Case("blanks before a keyword (Partec, CyFlow)", floats(blanks={"$DATATYPE": 100}), FLOATS),
    Case("empty values", floats(changes={"SRC": "", "P2S": ""}), FLOATS),
    Case("`$PnN` is blank", floats(["FSC-A", " ", "CD4", "Time"]), FLOATS),
    Case("`$PnN` occurs twice", floats(["FSC-A", "CD4", "CD4", "Time"])),
    Case("`$PnG` is not a number", floats(changes={"P2G": "NA"}), FLOATS),
    Case("`$PnE`, `$PnG`, `$PnR` with decimal commas", words(changes=COMMAS), WORDS),
    Case("`$PnE` is wrong, for integers", words(changes={"P2E": "NA"})),
    Case("`$PnE` is wrong, for floating point numbers", floats(changes={"P2E": "NA"}), FLOATS),
    Case("`$PnR` is not a number, for integers", words(changes={"P2R": "NA"})),
    Case("`$PnR` is not a number, for floating point numbers", floats(changes={"P2R": "NA"}), FLOATS),
    Case("no `$PnR`, for floating point numbers", floats(changes={"P2R": None}), FLOATS),
    Case("`$PAR` differs from the number of channels", floats(changes={"PAR": 5})),
    Case("the spillover matrix is incomplete", floats(changes={"SPILLOVER": "2,CD3,CD4,1,0"}), FLOATS),
    Case(
        "the first spillover matrix is incomplete, the second is not",
        floats(changes={"SPILLOVER": "2,CD3,CD4"}, more={"SPILL": "2,CD3,CD4,1,0.1,0,1"}),
        FLOATS,
    ),
    Case(
        "the first spillover matrix is the identity matrix, the second is not (Cytobank)",
        floats(changes={"SPILLOVER": "2,CD3,CD4,1,0,0,1"}, more={"SPILL": "2,CD3,CD4,1,0.1,0,1"}),
        FLOATS,
    ),
    Case(
        "two spillover matrices differ",
        floats(changes={"SPILLOVER": "2,CD3,CD4,1,0.2,0,1"}, more={"SPILL": "2,CD3,CD4,1,0.1,0,1"}),
        FLOATS,
    ),
    Case(
        "a spillover matrix of channel numbers (Navios)",
        floats(changes={"SPILLOVER": "2,2,3,1,.1,0,1"}),
        FLOATS,
    ),
    Case(
        "a spillover matrix with decimal commas",
        floats(changes={"SPILLOVER": "2,CD3,CD4,1,000,0,100,0,020,1,000"}),
        FLOATS,
    ),
    Case(
        "values are compensated and transformed already (flowCore)",
        floats(changes={f"P{n}R": 262144 for n in range(1, 5)}, more=TRANSFORMED),
        FLOATS,
    ),
    # types
    Case("integers of 24 bits", words(three_bytes(WORDS), {f"P{n}B": 24 for n in range(1, 5)}), WORDS),
    Case("values above `$PnR` in some events (Accuri)", saturated(ABOVE), ABOVE),
    Case("the number of the channel above `$PnR` in all events (XL)", saturated(WORDS | TAGS), WORDS),
    Case("flags above `$PnR` in some events", saturated(FLAGGED), WORDS),
    Case("integers of 10 bits in words of 16 (FC500)", words(changes=BITS_10), WORDS),
    Case("integers of 10 bits without words", words(packed_bits(WORDS, 10), BITS_10)),
    Case("`$DATATYPE` A, numbers as text", floats(changes={"DATATYPE": "A"})),
    Case("`$MODE` C or U, a histogram", floats(changes={"MODE": "C"})),
    Case("another byte order", floats(changes={"BYTEORD": "3,4,1,2"})),
    # several data sets
    Case("two data sets", data_sets(floats(changes=LINK), words()), FLOATS),
    Case("two data sets, the first a histogram", data_sets(floats(changes=LINK | {"MODE": "U"}), words())),
    Case("whole files one after another, `$NEXTDATA` 0 (Muse)", floats() + words() + floats(), FLOATS),
    Case("the third of them, named `a.fcs::3`", words() + b"00000000" + words() + floats(), FLOATS, part="3"),
    Case("more than 256 data sets", data_sets(*[floats(changes=LINK)] * 258)),
]  # fmt: skip


# ------------------------------------------------------------------------------------------ the page


def read(case: Case, folder: Path) -> Source | str:
    """Return the open file of a case, or the message of its error without the folder."""
    path = folder / "a.fcs"
    path.write_bytes(case.file)
    try:
        return open_source(path, case.part)
    except DataError as error:
        return str(error).replace(f"{folder}/", "")


def outcome(found: Source | str) -> tuple[str, str]:
    """Return what dpmix does with a file, and what it says."""
    if isinstance(found, str):
        return "refuses", found
    said = [*found.warnings, *found.notes, *([found.spillover_problem] if found.spillover_problem else [])]
    done = "warns" if found.warnings else "reads"
    return done, "; ".join(said)


def table() -> str:
    """Return the table of the page."""
    lines = ["| the file | dpmix | message |\n", "| --- | --- | --- |\n"]
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            done, said = outcome(read(case, Path(folder)))
            lines.append(f"| {case.odd} | {done} | {f'`{said}`' if said else ''} |\n")
    return "".join(lines)


def page() -> str:
    """Return the page with a new table of odd files."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    return f"{before}{START}\n{table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
