"""Open data files of every kind.

The content of a file shows its kind, not its suffix (an .lmd file is FCS). Text files are CSV or TSV.

| kind | channels | part of a file, after `::` in its name |
| --- | --- | --- |
| FCS | $PnN, markers $PnS | number of the data set, from 1: `sample.lmd::2`; `header` or `text` where they \
disagree on the place of the events and nothing shows who is right: `sample.fcs::header` |
| CSV, TSV | first line; ch0, ch1, ... if it has only numbers | |
| NPY, float or integer [N, D] | ch0, ch1, ... | |
| NPZ | array `channels`, else ch0, ch1, ... | name of the array; `events`, or the only 2-D one |
| HDF5 | attribute `channels` of the data set, else a data set `channels` in its group, else ch0, ... | \
path of the data set; the first 2-D one in the order of names |
| AnnData (h5ad) | names of the variables, markers from the column `marker` of `var` | |
| Parquet | names of the columns | |

NPZ and AnnData files are read into memory as a whole. Of all other files only the rows in use are in memory
(of Parquet: a row group). A CSV or TSV file is read once, when it is opened, into a table of float32 numbers.
The table is in memory up to a share of the run's limit, and beyond it in a file (`dpmix.inputs.storage`).

No file is trusted. The size that a file declares is compared with the available memory before any memory is
allocated: a few bytes can declare terabytes. Pickles are not opened. Names are printed in one line, without
control characters for the terminal.
"""

from __future__ import annotations

import csv
import errno
import glob
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from dpmix.config.yaml_text import BACKSLASHES
from dpmix.errors import ConfigError, DataError, DpmixError, printable
from dpmix.inputs.array_files import open_hdf5, open_npy, open_npz
from dpmix.inputs.channel_names import measurement, why_not_measured
from dpmix.inputs.fcs import header as fcs
from dpmix.inputs.fcs.data import read_events
from dpmix.inputs.fcs.evidence import Owner
from dpmix.inputs.fcs.spillover import is_identity
from dpmix.inputs.fcs.text import AGAIN
from dpmix.inputs.mass import named_by_isotopes
from dpmix.inputs.sources import Source, file_stamp
from dpmix.inputs.storage import Storage
from dpmix.inputs.table_files import open_parquet, open_text
from dpmix.inputs.text_format import text_format
from dpmix.inputs.transformed import partly_transformed, why_transformed
from dpmix.system.paths import below_common_folder, file_id, from_home, in_order
from dpmix.system.run_marker import is_run_file

Place = tuple[Path, str]
TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".tab")
FOLDER_SUFFIXES = (".fcs", ".lmd", ".csv", ".tsv", ".npy", ".npz", ".h5", ".h5ad", ".hdf5", ".parquet")
SPREADSHEETS = (".xls", ".xlsx", ".xlsm", ".xlsb", ".ods")
NO_EVENTS = (".truth.npz", ".judged.csv", ".spillover.csv", ".types.csv")
"""Ends of the names of files that dpmix writes next to data files."""
SAMPLE_FILE = "file"
"""Column of a table of samples with the names of the data files."""
OTHER_NAMES = ("file", "filename", "fcs", "fcsfile", "fcsfilename", "datafile")
"""Names that other programs give it (CATALYST: file_name), without case and what separates words."""
PART_OF_FCS = re.compile(r"(?P<data_set>[0-9]{0,9})(?:(?:^|::)(?P<owner>header|text))?")
SPECTRAL = 30  # detectors without markers, at least, of a spectral cytometer
BANDS = re.compile(r"(UV|V|B|YG|R)\d{1,2}(-[AHW])?")  # its detectors in a table: laser and number
NOT_UNMIXED = (
    "{} like a spectral cytometer's, which are not unmixed; unmix the file first, in the software of the "
    "instrument"
)
SEEN, STRETCHES = 512, 4  # events in a stretch, and stretches, that show whether values are transformed
KNOWN = "FCS, CSV, TSV, NPY, NPZ, HDF5, h5ad or Parquet"


def open_sources(
    files: Sequence[str | Path], base: Path = Path(), storage: Storage | None = None
) -> list[Source]:
    """Open the files that names, globs or folders stand for; see `find_places` and `open_places`."""
    return open_places(find_places(files, base), storage)


def find_places(files: Sequence[str | Path], base: Path = Path()) -> list[Place]:
    """Find the files that names, globs or folders stand for.

    Parameters
    ----------
    files : sequence of str or Path
        Names, globs or folders, relative to `base`, in the order of the run. A glob or a folder stands for
        its files in sorted order, a folder only for files with known suffixes that may have events
        (`may_have_events`). The name of a part of a file follows `::`.
    base : Path
        Folder that names are relative to: the folder of the config.

    Returns
    -------
    list of (Path, str)
        Files, each with the part of it.

    Raises
    ------
    ConfigError
        A name matches no file, a folder has no data file, or a file is named twice.
    """
    places: list[Place] = []
    problems = []
    for given in map(str, files):
        name, _, part = given.partition("::")
        found, problem = _match_files(name, base)
        if problem:
            problems.append(f"data.files: {problem}")
        places += [(file, part) for file in found]
    problems += [f"data.files: {file} is named twice, need each file once" for file in named_twice(places)]
    if problems:
        raise ConfigError(problems)
    return places


def _match_files(name: str, base: Path) -> tuple[list[Path], str]:
    """Return the files that a name, a glob or a folder stands for, and what is wrong if there are none."""
    if not name:  # from a variable of the shell that is not set; a path without a name is the folder itself
        return [], "a name is empty; give a file, a glob or a folder"
    path = base / from_home(name)
    if path.is_dir():
        try:
            found = _files_of(path)
            problem = "" if found else "has no data file"
        except OSError as error:
            found, problem = [], f"cannot be read ({error.strerror})"
        need = f"give a folder with {', '.join(FOLDER_SUFFIXES)}"
        return found, f"{path}: {problem}; {need}" if problem else ""
    if path.exists():  # a full name, even with the characters of a glob
        return [path], ""
    pattern = str(from_home(name))
    found = [base / p for p in in_order(glob.glob(pattern, root_dir=base, recursive=True))]
    problem = f"{name} matches no file in {base.resolve()}; correct the path"
    if not name.isprintable():
        problem = f"{name} has a control character; {BACKSLASHES}"
    return found, "" if found else problem


def open_places(places: Sequence[Place], storage: Storage | None = None) -> list[Source]:
    """Open files by their paths and parts. Where file names are equal, sample names include folders.

    Raises
    ------
    DataError
        A file is of an unknown kind, or cannot be read.
    """
    storage = Storage() if storage is None else storage
    sources = [open_source(path, part, storage) for path, part in places]
    if len({source.name for source in sources}) == len(sources):
        return sources
    names = below_common_folder([path for path, _ in places])
    return [
        replace(source, name=_joined(name, part))
        for source, name, (_, part) in zip(sources, names, places, strict=True)
    ]


def named_twice(places: Sequence[Place]) -> list[Path]:
    """Return the files that occur more than once with the same part, in other case too if it is ignored."""
    keys = [(str(path).casefold(), file_id(path), part) for path, part in places]
    first = {key: path for key, (path, _) in reversed([*zip(keys, places, strict=True)])}
    return [first[key] for key, count in Counter(keys).items() if count > 1]


def _files_of(folder: Path) -> list[Path]:
    """Return the data files of a folder by their suffixes."""
    found = (
        file
        for file in folder.iterdir()
        if file.suffix.lower() in FOLDER_SUFFIXES
        and not file.name.startswith(".")
        and file.is_file()
        and may_have_events(file)
    )
    return sorted(found, key=lambda file: file.name)  # on Windows, paths are compared without case


def may_have_events(path: Path) -> bool:
    """Return False for a run file, a table of samples, and other files of dpmix without events."""
    return not (path.name.endswith(NO_EVENTS) or is_run_file(path) or is_table_of_samples(path))


def is_table_of_samples(path: Path) -> bool:
    """Return True for a text file with a column of names of data files (`file_column`).

    A column of events with the name of their file has it several times, except in a column `file`.
    """
    if path.suffix.lower() not in TEXT_SUFFIXES:
        return False
    try:
        text = text_format(path)
    except (OSError, ValueError, DataError, csv.Error):
        return False
    column = file_column(text.head)
    cells = [row[text.head.index(column)] for row in text.start if len(row) == len(text.head) and column]
    is_file = [Path(cell.partition("::")[0]).suffix.lower() in FOLDER_SUFFIXES for cell in cells]
    return bool(is_file) and is_file[0] and (column == SAMPLE_FILE or len({*cells}) == len(cells))


def file_column(head: Sequence[str]) -> str:
    """Return the column of a table of samples that has the names of the data files, "" for none."""
    others = [name for name in head if re.sub(r"[\W_]+", "", name).casefold() in OTHER_NAMES]
    return SAMPLE_FILE if SAMPLE_FILE in head else others[0] if len(others) == 1 else ""


def open_source(path: str | Path, part: str = "", storage: Storage | None = None) -> Source:
    """Open one data file by its content; see the table at the top of this module.

    Raises
    ------
    ConfigError
        The file has no such part, or its kind has no parts.
    DataError
        The file is of an unknown kind, or cannot be read.
    """
    path = Path(path)
    try:
        # Before the file is read, so that a change in between does not go unnoticed.
        stamp = file_stamp(path)
        opener = _opener(path, Storage() if storage is None else storage)
        source = opener(path, part)
    except (DpmixError, MemoryError):
        raise
    except Exception as error:  # each library has its own exceptions for a corrupt file
        if getattr(error, "errno", None) == errno.ENOMEM:
            size = f"{path.stat().st_size / 1e9:.1f} GB"
            raise DataError(f"{path}: needs {size} of address space, more than ulimit -v allows") from error
        raise DataError(f"{path}: cannot be read ({_reason(error)}); {_remedy(error)}") from error
    if not source.details:
        raise DataError(
            f"{path}: has no channels; give a table with a row per event and a column per channel"
        )
    details = tuple(
        replace(channel, detector=printable(channel.detector), marker=printable(channel.marker))
        for channel in source.details
    )
    twice = sorted(name for name, count in Counter(d.detector for d in details).items() if count > 1)
    if twice:
        raise DataError(f"{path}: several channels are named {', '.join(twice)}; give them different names")
    name, kind = printable(_joined(path.name, part)), "mass" if named_by_isotopes(details) else source.kind
    warnings = source.warnings
    bands = {measurement(d.detector).stem for d in details if BANDS.fullmatch(d.detector)}
    if source.header is None and len(bands) >= SPECTRAL:
        warnings = (*warnings, NOT_UNMIXED.format(f"{len(bands)} columns are named"))
    return replace(source, name=name, details=details, kind=kind, path=path, stamp=stamp, warnings=warnings)


def _opener(path: Path, storage: Storage) -> Callable[[Path, str], Source]:
    """Return the function that opens a file, by its first bytes."""
    if path.is_dir():
        raise DataError(f"{path}: is a folder; give a file, for example one of {path / '*.fcs'}")
    with path.open("rb") as file:
        start = file.read(8)
    # Before the first bytes are compared: an .xlsx file starts with PK, as an NPZ file does.
    if path.suffix.lower() in SPREADSHEETS:
        raise DataError(f"{path}: is a spreadsheet, which dpmix does not read; save it as CSV in UTF-8")
    if start.startswith(b"FCS"):
        return _fcs
    if start.startswith(b"\x93NUMPY"):
        return open_npy
    if start.startswith(b"PK"):
        return open_npz
    if start.startswith(b"\x89HDF"):
        return open_hdf5
    if start.startswith(b"PAR1"):
        return open_parquet
    if path.suffix.lower() in TEXT_SUFFIXES:
        return partial(open_text, storage=storage)
    if not start:
        raise DataError(f"{path}: is empty; {AGAIN}")
    suffix = path.suffix.lower().lstrip(".")
    claim = suffix.upper() if suffix in ("fcs", "lmd", "npy", "npz", "h5", "h5ad", "hdf5", "parquet") else ""
    if claim:
        raise DataError(f"{path}: is named {claim}, but its content is not {claim}; {AGAIN}")
    raise DataError(f"{path}: is not a data file that dpmix reads; give {KNOWN}")


def _fcs(path: Path, part: str) -> Source:
    """Open a data set of an FCS file, by default the first."""
    header = fcs.read_header(path, *_fcs_part(path, part))
    transformed, doubts = _why_transformed(header)
    then = "they are not compensated, and not transformed unless data.transform says so"
    return Source(
        name=path.name,
        details=header.channels,
        n_events=header.n_events,
        fetch=lambda start, stop, columns: read_events(header, start, stop, columns, exact=True),
        spillover=header.spillover,
        spillover_problem=header.spillover_problem,
        kind=header.kind,
        transformed=transformed,
        notes=header.notes,
        warnings=(
            *header.warnings,
            *_raw_spectral(header),
            *doubts,
            *([f"values are transformed already ({transformed}); {then}"] * bool(transformed)),
        ),
        header=header,
    )


def _raw_spectral(header: fcs.Header) -> list[str]:
    """Return a warning for a file of a spectral cytometer that is not unmixed: many detectors, no marker."""
    light = [channel for channel in header.channels if not why_not_measured(channel)]
    stems = {measurement(channel.detector).stem for channel in light}
    named = any(channel.marker and channel.marker != channel.detector for channel in light)
    has_matrix = header.spillover is not None and not is_identity(header.spillover)
    if header.kind == "mass" or named or has_matrix or len(stems) < SPECTRAL:
        return []
    return [NOT_UNMIXED.format(f"{len(stems)} detectors without a marker or matrix look")]


def _why_transformed(header: fcs.Header) -> tuple[str, list[str]]:
    """Return what shows that the values of an FCS file are transformed, by some of its events; and doubts."""
    if header.kind == "mass":
        return "", []
    named = {*header.spillover.detectors} if header.spillover else set()
    light = [k for k, channel in enumerate(header.channels) if channel.detector in named]
    light = light or [k for k, channel in enumerate(header.channels) if not why_not_measured(channel)]
    starts = np.linspace(0, max(header.n_events - SEEN, 0), STRETCHES).astype(int).tolist()
    parts = [read_events(header, start, start + SEEN, light) for start in sorted({*starts})]
    values = np.concatenate(parts)
    why = why_transformed(header.keywords, header.channels, light, values)
    return why, [] if why else partly_transformed(header.channels, light, values)


def _fcs_part(path: Path, part: str) -> tuple[int | None, Owner | None]:
    """Return what a part names: a data set, None for the first, and who places its events."""
    found = PART_OF_FCS.fullmatch(part)
    if found is None:
        need = (
            "need the number of a data set of the FCS file (::1), or ::header or ::text to say who is right"
        )
        raise ConfigError([f"data.files: {path}::{part}: {need} about the place of the events"])
    owner: dict[str | None, Owner] = {"header": "HEADER", "text": "TEXT"}
    return int(found["data_set"]) if found["data_set"] else None, owner.get(found["owner"])


def _joined(name: str, part: str) -> str:
    """Return the name of a file with its part."""
    return f"{name}::{part}" if part else name


def _reason(error: Exception) -> str:
    """Return why a file cannot be read."""
    if isinstance(error, UnicodeDecodeError):
        return "not text in UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return "its name is not in UTF-8"
    return getattr(error, "strerror", None) or _line(error)


def _remedy(error: Exception) -> str:
    """Return what to do about a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return "correct the path"
    if isinstance(error, UnicodeDecodeError):
        return "save it as CSV in UTF-8"
    if isinstance(error, UnicodeEncodeError):
        return "rename the file"
    return f"{AGAIN}, as {KNOWN}"


def _line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return (str(error) or type(error).__name__).splitlines()[0]
