"""Targets of the fuzzer: each takes bytes, and returns or raises an exception that is a finding.

An error of dpmix with one line per problem is the right answer to invalid input, and is caught here. Any
other exception is a finding. No fuzzer is needed here: the tests replay the corpus
(tests/faults/test_fuzz_corpus.py).
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

with suppress(ImportError):
    import flowkit  # noqa: F401 (its import takes longer than an input may)

from dpmix.config.load import parse_config
from dpmix.config.write import to_yaml
from dpmix.errors import ConfigError, DpmixError
from dpmix.inputs import transforms
from dpmix.inputs.compensation import read_matrix
from dpmix.inputs.fcs import data as fcs_data
from dpmix.inputs.fcs import header as fcs
from dpmix.inputs.fitting import make_transform
from dpmix.inputs.manual_gates import ManualGates
from dpmix.inputs.opening import is_table_of_samples, open_source
from dpmix.inputs.samples import open_samples
from dpmix.inputs.suggest import describe_only
from dpmix.inputs.transforms import Scaling
from dpmix.model.mixture import Hyperparameters, State
from dpmix.report import fcs_export
from dpmix.runs.describe import describe_profile, describe_run
from dpmix.runs.layout import FileLayout, Record
from dpmix.runs.profile import SPANS
from dpmix.runs.reader import Run, open_run
from dpmix.runs.writer import RunWriter

EVENTS = 1_000  # events that are read, however many a file declares


class NotOneLine(AssertionError):
    """A problem that is reported in no line, or in several lines."""


@contextmanager
def refusals() -> Iterator[None]:
    """Catch errors of dpmix with one line per problem, and raise `NotOneLine` for others."""
    try:
        yield
    except DpmixError as error:
        problems = error.problems if isinstance(error, ConfigError) else [str(error)]
        if not problems or any(len(problem.splitlines()) != 1 for problem in problems):
            raise NotOneLine(problems) from error


# ------------------------------------------------------------------------------------------------ FCS


def fuzz_fcs(data: bytes) -> None:
    """Read an FCS file: bytes that start with FCS, or other bytes as TEXT and DATA after a valid HEADER.

    In the second case the first byte selects where the offsets are stored, and a zero byte ends TEXT. So
    mutations reach the code behind HEADER without guessing its offsets.
    """
    path = _folder() / "fuzzed.fcs"
    path.write_bytes(data if data.startswith(b"FCS") else _assembled(data))
    with refusals():
        header = fcs.read_header(path)
        stop = min(header.n_events, EVENTS)
        events = fcs_data.read_events(header, 0, stop)
        assert events.shape == (stop, len(header.channels))
        assert fcs_data.read_rows(header, 0, stop).shape == (stop, header.row.itemsize)
        source = open_source(path)
        for suggestion in describe_only(source)[0]:
            if suggestion.transform is not None:
                with np.errstate(all="ignore"):
                    suggestion.transform.apply(events[:, 0].astype(np.float64))
        if header.n_events <= EVENTS:
            copy = fcs_export.Copy(header, path.with_suffix(".copy"), [fcs_export.Added("dpmix_x", "x", 7.0)])
            try:
                copy.write(np.arange(stop), [np.ones(stop)])
                copy.close()
            finally:
                copy.abandon()
            again = fcs.read_header(path.with_suffix(".copy"))
            assert (again.n_events, len(again.channels)) == (header.n_events, len(header.channels) + 1)
    with suppress(DpmixError):
        fcs.read_header(path, 2)


def _assembled(data: bytes) -> bytes:
    """Return an FCS file with a valid HEADER, and TEXT and DATA from bytes."""
    how, (text, _, events) = data[:1], data[1:].partition(b"\0")
    first = 58 + len(text)
    places = {b"b": (0, 0), b"o": (first, first + len(events))}.get(how, (first, first + len(events) - 1))
    offsets = (58, first - 1, *places, 0, 0)
    version = b"FCS2.0" if how == b"2" else b"FCS3.1"
    return version + b"    " + b"".join(b"%8d" % offset for offset in offsets) + text + events


# --------------------------------------------------------------------------------------------- config


def fuzz_config(data: bytes) -> None:
    """Read a config, with overrides as of --set after a line `---set`, one per line.

    An accepted config must give the same config after writing and reading it. Its transforms are made and
    used.
    """
    text, _, overrides = data.decode("utf-8", "ignore").partition("\n---set\n")
    with refusals(), warnings.catch_warnings():
        warnings.simplefilter("error")
        config = parse_config(text, "run.yaml", overrides.splitlines())
        written = to_yaml(config, comments=len(text) % 2 == 0)
        written.encode()
        assert parse_config(written, "written.yaml") == config
        for settings in list(config.data.transform.values())[:8]:
            with np.errstate(all="ignore"):
                method = "linear" if settings.method == "auto" else settings.method
                transform = make_transform(settings, method, "x", None, 1024.0)
                there = transform.apply(np.array([-1e30, -1.0, 0.0, 1.0, 1e30]))
                transform.invert(np.clip(there, -10, 10))


# ------------------------------------------------------------------------------------ tables of text


def fuzz_text(data: bytes) -> None:
    """Read a text file as events, as a table of samples, and as a spillover matrix."""
    path = _folder() / "fuzzed.csv"
    path.write_bytes(data)
    with refusals():
        source = open_source(path)
        events = source.read(0, source.n_events, [k for k, one in enumerate(source.details) if one.numeric])
        assert events.dtype == np.float32
        describe_only(source)
    is_table_of_samples(path)
    with refusals():
        open_samples([], path.name, path.parent)
    with refusals():
        assert len({*read_matrix(path).detectors}) == len(read_matrix(path).matrix)


# ------------------------------------------------------------------------------------------ workspaces


def fuzz_workspace(data: bytes) -> None:
    """Read a workspace or a GatingML file, and apply its gates to a file of 40 events."""
    path, cells = _folder() / "fuzzed.wsp", _folder() / "a.fcs"
    path.write_bytes(data)
    if not cells.exists():
        values = np.random.default_rng(1).normal(300, 60, (40, 2)).astype(np.float32)
        fcs_data.write_fcs(cells, values, ["CD3", "CD4"])
    with refusals():
        gates, source = ManualGates(path, "fuzzed"), open_source(cells)
        gates.unread(source)
        assert all(inside.shape == (40,) for inside in gates.members(source).values())
        gates.transforms(source)


# ------------------------------------------------------------------------------------------- run file


class Choices:
    """Decisions read from bytes; zeros after their end."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """Return the number of bytes that are not used yet."""
        return max(len(self._data) - self._at, 0)

    def number(self, below: int) -> int:
        """Return an integer from 0 to below - 1, from two bytes."""
        return int.from_bytes(self.bytes(2), "little") % max(below, 1)

    def bytes(self, count: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def text(self) -> str:
        """Return a text of less than 40 bytes."""
        return self.bytes(self.number(40)).decode("utf-8", "ignore").replace("\0", "")

    def one_of(self, options: Any) -> Any:
        """Return one of some options."""
        if not options:
            raise LookupError("nothing to choose from")
        return options[self.number(len(options))]


TYPES = ("f8", "f4", ">f8", "i8", "u1", "S5", "O", "c16", "V3", "b")
H5PY_ERRORS = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    RuntimeError,
    OverflowError,
    AttributeError,
    MemoryError,
)
NUMBERS = (0, 1, 2, 3, -1, 10**6, 2**31, 2**62, 0.5, 1e300, float("nan"), float("inf"))
WORDS = ("null", "[]", "{}", "[1]", '{"a": 1}', "NaN", "1e999", '"x"', "data: {files: [x]}", "\x1b[2J", "é")
SHAPES = (
    (),
    (1,),
    (0,),
    (2,),
    (3, 2),
    (1, 3),
    (1, 3, 2),
    (1, 3, 2, 2),
    (1, 3, 2, 2, 2),
    (2**40,),
    (2**31, 2**31),
)


def fuzz_run_file(data: bytes) -> None:
    """Read a valid run file after up to twelve changes through h5py; the data decide the changes.

    All that `dpmix info` and `dpmix gate` need is read. Bytes are not changed at random: that would fuzz the
    HDF5 library, and some such files keep it busy forever.
    """
    choices = Choices(data)
    path = _folder() / "fuzzed.h5"
    path.write_bytes(_template(choices.number(2) == 1))
    with suppress(*H5PY_ERRORS), h5py.File(path, "r+") as file:
        for _ in range(12):
            if choices.left:
                # A change that h5py refuses is no change.
                with suppress(*H5PY_ERRORS):
                    _change(file, choices)
    with refusals(), warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        read_all(open_run(path, transformed=len(data) % 2 == 1))


def read_all(run: Run) -> None:
    """Read all that the commands need of a run file."""
    describe_run(run), describe_profile(run)
    Scaling.from_attributes(run.scaling)
    list(map(str, run.detectors))
    parse_config(run.config_text, str(run.path))
    for array in (run.weights, run.means, run.covariances, run.alpha, *run.hyperparameters.values()):
        assert array.dtype == np.float64
        assert array.shape[1] == run.committed
    for array in (*run.sample_stats.values(), *run.trace.values(), run.sweeps_made):
        assert array.ndim in (1, 2)
    assert (run.kind, run.complete, run.n_components, run.draws) is not None


def _change(file: h5py.File, choices: Choices) -> None:
    """Make one change to a run file."""
    names = sorted(_names(file))
    name = choices.one_of(names)
    item = file.get(name)
    match choices.number(12):
        case 0:
            del file[name]
        case 1:
            owner = file if choices.number(2) else item
            del owner.attrs[choices.one_of(sorted(owner.attrs))]
        case 2 | 3:  # an attribute that the reader knows
            attribute = choices.one_of(sorted(file.attrs))
            file.attrs[attribute] = choices.one_of((choices.text(), choices.one_of(WORDS)))
        case 4:
            attribute = choices.one_of(sorted(file.attrs))
            file.attrs[attribute] = choices.one_of(NUMBERS)
        case 5:  # a leaf of a JSON attribute
            attribute = choices.one_of(("scaling", "engine", "versions", "report", "detectors"))
            value = json.loads(file.attrs[attribute])
            _mutate(value, choices)
            file.attrs[attribute] = json.dumps(value)
        case 6:
            file.attrs[choices.one_of(sorted(file.attrs))] = np.zeros(choices.one_of(SHAPES[:8]), "f4")
        case 7 | 8:  # a data set of another shape or type, in chunks or compressed
            shape, kind = choices.one_of(SHAPES), choices.one_of(TYPES)
            dims = (
                [dim[0] for dim in item.dims] if isinstance(item, h5py.Dataset) and choices.number(2) else []
            )
            del file[name]
            options = {"compression": "gzip"} if choices.number(3) == 0 else {}
            kind = h5py.string_dtype() if kind == "O" else kind
            made = file.create_dataset(name, shape, kind, **options)
            for k, dim in enumerate(dims[: len(shape)]):
                made.dims[k].attach_scale(dim)
        case 9:
            del file[name]
            link = choices.number(3)
            file[name] = (
                h5py.SoftLink("/nowhere"),
                h5py.ExternalLink("/etc/passwd", "/"),
                file["committed"],
            )[link]
        case 10 if item.size < 2**20:  # to write a data set of an earlier change may take forever
            item[...] = choices.one_of(NUMBERS)
        case 11:
            at = choices.number(max(item.size, 1))
            item[np.unravel_index(at, item.shape)] = choices.one_of((choices.one_of(NUMBERS), choices.text()))


def _mutate(value: Any, choices: Choices) -> None:
    """Change one part of a JSON value."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = choices.one_of(keys) if keys else 0
    if keys and isinstance(value[key], (dict, list)) and value[key] and choices.number(4):
        _mutate(value[key], choices)
    elif keys and choices.number(4) == 0:
        del value[key]
    elif keys:
        value[key] = choices.one_of((choices.one_of(NUMBERS), choices.text(), None, [], {}, True))


def _names(file: h5py.File) -> list[str]:
    """Return the names of all groups and data sets."""
    found: list[str] = []
    file.visit(found.append)
    return found


def _layout(kind: str, draws: int) -> FileLayout:
    """Return the layout of a run file of two components in two channels."""
    names = ("CD3", "CD4")
    both = (transforms.Transform("arcsinh", 5.0), transforms.Transform("logicle", t=1024.0))
    scale = Scaling(names, both, np.zeros(2), np.ones(2), ((), ()))
    return FileLayout(
        kind=kind,
        chains=1,
        draws=draws,
        sweeps=5,
        n_components=2,
        channels=names,
        learned=("m", "gamma", "nu", "phi"),
        constants={
            "channel_means": (("channel",), np.zeros(2)),
            "channel_sds": (("channel",), np.ones(2)),
            "sample": (("sample",), np.array(["a.csv"], object)),
            "sample_starts": (("sample_edge",), np.array([0, 30])),
        },
        attributes={
            "config": "{data: {files: [a.csv]}, model: {components: 2}}",
            "base": "/nowhere",
            "report": {"n_read": 30, "n_dropped": 0, "channels": [], "notes": ["a note"]},
            "seed": 1,
            "engine": {"backend": "cpu", "isa": "v3", "threads": 2, "pruning": True, "chosen": "asked for"},
            "scaling": scale.as_attributes(),
            "data_hash": "ab12",
            "n_events": 30,
            "detectors": ["A", "B"],
        },
    )


@cache
def _template(bem: bool) -> bytes:
    """Make a complete run file: two components in two channels, three draws of one chain."""
    path, draws = _folder() / "template.h5", 1 if bem else 3
    layout = _layout("bem" if bem else "mcmc", draws)
    whole = np.broadcast_to(np.eye(2), (2, 2, 2)).copy()
    hyper = Hyperparameters(np.zeros(2), 5.0, 2.0, np.eye(2))
    with RunWriter.create(path, layout, overwrite=True) as writer:
        for sweep in range(5):
            writer.write_sweep(0, sweep, Record(-1.0 - sweep, -2.0, 2, 1.5, 0.1))
        for draw in range(draws):
            state = State(
                draw, 1.0 + draw, np.array([-0.5]), np.array([-0.9]), np.zeros((2, 2)), whole, whole, hyper
            )
            writer.write_draw(draw, [state], [Record(-1.0 - draw, -2.0, 2, 1.5, 0.1)])
        writer.write_profile(dict.fromkeys(SPANS, 1.0))
    return path.read_bytes()


@cache
def _folder() -> Path:
    """Make a folder for this process."""
    return Path(tempfile.mkdtemp(prefix="dpmix-fuzz-"))


TARGETS: dict[str, Callable[[bytes], None]] = {
    "fcs": fuzz_fcs,
    "config": fuzz_config,
    "text": fuzz_text,
    "workspace": fuzz_workspace,
    "run_file": fuzz_run_file,
}
