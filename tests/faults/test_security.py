"""Files from strangers run no code, write only to the configured places, and exhaust no memory."""

from __future__ import annotations

import os
import pickle
import time
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from test_draws import layout, state

from dpmix.cli import main
from dpmix.config.load import parse_config
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.opening import open_source
from dpmix.report.event_files import event_paths
from dpmix.runs.checkpoint import checkpoint_path
from dpmix.runs.reader import open_run
from dpmix.runs.writer import RunWriter
from dpmix.system import memory

EVENTS = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
FEW_BYTES = 40e6  # that a refusal may take; what is refused below would take 100 MB to a petabyte


def dpmix(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)


def refusal_of(path: Path, read: Callable[[Path], Any]) -> str:
    """Why a file is refused, in one line, at once and without taking memory."""
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises((DataError, ConfigError)) as caught:
            read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < FEW_BYTES
    assert time.process_time() - began < 10
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# -------------------------------------------------------------------------------------------- code


class Planted:
    """Makes a file where a pickle of it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_would_run(tmp_path: Path) -> None:
    """The control of the tests below: what they plant does run where it is let."""
    np.save(tmp_path / "a.npy", np.array([[Planted(tmp_path / "ran")]], object))
    np.load(tmp_path / "a.npy", allow_pickle=True)
    assert (tmp_path / "ran").exists()


def test_no_data_file_runs_code(tmp_path: Path) -> None:
    planted = np.array([[Planted(tmp_path / "ran")] * 2] * 3, object)
    np.save(tmp_path / "a.npy", planted)
    np.savez(tmp_path / "events.npz", events=planted)
    np.savez(tmp_path / "channels.npz", events=EVENTS, channels=planted[0])
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(planted))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["events"] = EVENTS
        file["channels"] = np.array([np.void(pickle.dumps(planted))] * 3)
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises((DataError, ConfigError)):
            open_source(path)
    assert not (tmp_path / "ran").exists()


def test_an_h5ad_file_is_opened_no_farther_than_its_events(tmp_path: Path) -> None:
    import anndata

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anndata.AnnData(EVENTS).write_h5ad(tmp_path / "a.h5ad")
    with h5py.File(tmp_path / "a.h5ad", "r+") as file:
        file["uns/planted"] = np.void(pickle.dumps(Planted(tmp_path / "ran")))
        file["uns/planted"].attrs["encoding-type"] = "pickle"
        file.create_dataset("obsm/bomb", (2**40, 2**10), "f8", chunks=(2**10, 2**10))
        file["layers/elsewhere"] = h5py.ExternalLink("/etc/passwd", "/")
    np.testing.assert_array_equal(open_source(tmp_path / "a.h5ad").read(0, 400), EVENTS)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("where", ["a.h5", "a.h5ad"])
@pytest.mark.parametrize("name", ["events", "channels"])
def test_a_data_file_shows_nothing_of_another_one(tmp_path: Path, where: str, name: str) -> None:
    import anndata

    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["events"], other["channels"] = EVENTS, np.array(list("abc"), h5py.string_dtype())
    if where == "a.h5":
        with h5py.File(tmp_path / where, "w") as file:
            file["events"] = EVENTS
            file.pop(name, None)
            file[name] = h5py.ExternalLink("other.h5", name)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            anndata.AnnData(EVENTS).write_h5ad(tmp_path / where)
        with h5py.File(tmp_path / where, "r+") as file:
            inside = "X" if name == "events" else f"var/{file['var'].attrs['_index']}"
            del file[inside]
            file[inside] = h5py.ExternalLink("other.h5", name)
    with pytest.raises(DataError, match=r"lies in another file, which is not opened|none of its data sets"):
        open_source(tmp_path / where)


@pytest.mark.parametrize("inner", ["other.h5", "."])
def test_a_virtual_data_set_shows_nothing_of_another_file(tmp_path: Path, inner: str) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as other:
        other["events"] = EVENTS
    layout = h5py.VirtualLayout(EVENTS.shape, EVENTS.dtype)
    layout[:] = h5py.VirtualSource(inner, "events" if inner != "." else "link", EVENTS.shape)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["link"] = h5py.ExternalLink("other.h5", "events")
        file.create_virtual_dataset("mapped/events", layout)
    with pytest.raises(DataError, match="lies in another file, which is not opened"):
        open_source(tmp_path / "a.h5")


@pytest.mark.parametrize(
    "tag", ["object/apply:os.mkdir", "object/new:os.mkdir", "name:os.mkdir", "module:os"]
)
def test_no_config_runs_code(tmp_path: Path, tag: str) -> None:
    text = f"data: {{files: [!!python/{tag} ['{tmp_path}/ran']]}}"
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_config(text, "run.yaml")
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_config("data: {files: [a]}", "run.yaml", [f"seed=!!python/{tag} [{tmp_path}/ran]"])
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    RunWriter.create(tmp_path / "run.h5", layout()).close()
    return tmp_path / "run.h5"


def test_no_run_file_or_checkpoint_runs_code(run_file: Path) -> None:
    ran = run_file.parent / "ran"
    with h5py.File(run_file, "r+") as file:
        file.attrs["config"] = f"data: {{files: [!!python/object/apply:os.mkdir ['{ran}']]}}"
    run = open_run(run_file)
    with pytest.raises(ConfigError, match="not valid YAML"):
        _ = run.config
    assert dpmix("info", run_file).exit_code == 2
    np.savez(checkpoint_path(run_file).open("wb"), run_id=np.array([Planted(ran)], object))
    with RunWriter.reopen(run_file) as writer, pytest.raises(DataError, match="not a whole checkpoint"):
        writer.load_checkpoint()
    assert not ran.exists()


# ------------------------------------------------------------------------------------------- memory


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """50 MB, so that a bomb need not be larger than the machine."""
    monkeypatch.setattr(memory, "available", lambda *_: 50_000_000)


def zeros_npz(path: Path) -> None:
    np.savez_compressed(path, events=np.zeros((100_000, 125)))


def names_npz(path: Path) -> None:
    np.savez_compressed(path, events=EVENTS, channels=np.full(3, "x", "U10000000"))


def lying_npz(path: Path) -> None:
    """A small member whose header claims a petabyte."""
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (250000000000000, 1)}".ljust(117) + "\n"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("events.npy", b"\x93NUMPY\x01\x00" + bytes([118, 0]) + header.encode())


def chunk_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_dataset("events", (10**7, 2), "f8", chunks=(10**7, 2), compression="gzip")
        data[:5] = 1.0


def columns_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("events", (10, 2**40), "f4", chunks=(1, 1000))


def names_hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["events"] = EVENTS
        file.create_dataset("channels", (2**40,), h5py.string_dtype(), chunks=(1000,))


def group_parquet(path: Path) -> None:
    column = np.zeros(20_000_000, np.float32)
    pyarrow.parquet.write_table(
        pyarrow.table({"a": column, "b": column}), path, row_group_size=len(column), compression="zstd"
    )


def sparse_h5ad(path: Path) -> None:
    import anndata
    from scipy.sparse import csr_matrix

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anndata.AnnData(csr_matrix((100, 50), dtype=np.float32)).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        file["X"].attrs["shape"] = (10**9, 50)


def wide_csv(path: Path) -> None:
    path.write_text("1," * 2**20)


BOMBS = {
    "a.npz": zeros_npz,
    "names.npz": names_npz,
    "lying.npz": lying_npz,
    "a.h5": chunk_hdf5,
    "columns.h5": columns_hdf5,
    "names.h5": names_hdf5,
    "a.parquet": group_parquet,
    "a.h5ad": sparse_h5ad,
    "a.csv": wide_csv,
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.usefixtures("little_memory")
def test_a_small_file_that_unpacks_to_a_large_one(tmp_path: Path, name: str) -> None:
    BOMBS[name](tmp_path / name)
    assert (tmp_path / name).stat().st_size < 9e6
    open_source  # noqa: B018 (imported before memory is counted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        message = refusal_of(tmp_path / name, lambda path: open_source(path).read(0, 10))
    assert name in message


@pytest.mark.parametrize("name", ["a.npz", "a.parquet"])
def test_the_same_files_are_read_where_there_is_memory(tmp_path: Path, name: str) -> None:
    BOMBS[name](tmp_path / name)
    assert open_source(tmp_path / name).read(0, 10).shape[0] == 10


def test_events_that_are_not_there_are_not_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An HDF5 data set that was never written takes no room in the file, and days to read."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("a.h5", "w") as file:
        file.create_dataset("events", (2**44, 8), "f4", chunks=(1024, 8))
    Path("run.yaml").write_text("data: {files: [a.h5], channels: ['ch*']}")
    result = dpmix("mcmc", "run.yaml")
    assert result.exit_code == 1
    assert "to hold 17592186044416 events in 8 channels needs" in result.output.splitlines()[-1]


def test_what_memory_is_left_is_known() -> None:
    assert 10**6 < memory.available() < 10**15
    with pytest.raises(DataError, match=r"^x needs 1,000,000.0 GB of memory, .* are available; y$"):
        memory.require(10**15, "x", "y")


LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 10)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{new}: &{new} {{!!merge <<: [{', '.join([f'*{old}'] * 10)}]}}\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, "more than 100000 values"),
        (MERGES, "more than 100000 values"),
        ("data: &d {files: [x], channels: *d}", "refers to itself"),
        ("seed: 1\n" * 600_000, "has 4800000 characters; it must have 4194304 at most"),
        ('data: {files: ["\\uD800"]}', "half of a surrogate pair"),
    ],
    ids=["aliases", "merges", "a value in itself", "a long text", "half a character"],
)
def test_a_config_that_stands_for_too_much(text: str, message: str) -> None:
    assert message in refusal_of(Path("run.yaml"), lambda path: parse_config(text, str(path)))


def test_aliases_as_people_use_them() -> None:
    text = "data: {files: [x], transform: {default: &t {method: arcsinh, cofactor: 5}, CD3: *t}}"
    assert parse_config(text, "run.yaml").data.transform["CD3"].cofactor == 5


# --------------------------------------------------------------------------- run files and checkpoints


def huge_constant(file: h5py.File) -> None:
    del file["constant_data/channel_sds"]
    file["constant_data"].create_dataset("channel_sds", (10**12,), "f8", chunks=(1000,))


def compressed_constant(file: h5py.File) -> None:
    file["constant_data"].create_dataset("more", data=np.zeros(10**7), compression="gzip")


def foreign_constant(file: h5py.File) -> None:
    """Bytes of any file of the reader's machine, shown as names."""
    del file["constant_data/sample"]
    file["constant_data"].create_dataset("sample", (100,), "u1", external=[("/etc/passwd", 0, 100)])


def foreign_draws(file: h5py.File) -> None:
    with h5py.File(Path(file.filename).with_name("other.h5"), "w") as other:
        file.copy("posterior", other)
    del file["posterior"]
    file["posterior"] = h5py.ExternalLink("other.h5", "posterior")


def foreign_constants(file: h5py.File) -> None:
    """The whole group of constants in another file."""
    with h5py.File(Path(file.filename).with_name("other.h5"), "w") as other:
        file.copy("constant_data", other)
    del file["constant_data"]
    file["constant_data"] = h5py.ExternalLink("other.h5", "constant_data")


def linked_constant(file: h5py.File) -> None:
    with h5py.File(Path(file.filename).with_name("other.h5"), "w") as other:
        file.copy("constant_data/sample", other, "sample")
    del file["constant_data/sample"]
    file["constant_data/sample"] = h5py.ExternalLink("other.h5", "sample")


def linked_softly(file: h5py.File) -> None:
    linked_constant(file)
    file.move("constant_data/sample", "elsewhere")
    file["constant_data/sample"] = h5py.SoftLink("/elsewhere")


def one_text_many_times(file: h5py.File) -> None:
    """10,000 names that are one and the same megabyte of the file: 10 GB when read."""
    del file["constant_data/sample"]
    made = file["constant_data"].create_dataset("sample", (10_000,), h5py.string_dtype())
    made[0] = "x" * 10**6
    file.flush()
    place = made.id.get_offset()
    file.close()
    path = Path(file_name)
    content = bytearray(path.read_bytes())
    content[place : place + 16 * 10_000] = content[place : place + 16] * 10_000
    path.write_bytes(content)


file_name = ""  # of the run file that is spoiled


def names_without_end(file: h5py.File) -> None:
    del file["posterior/channel"]
    file.create_dataset("posterior/channel", (2**40,), h5py.string_dtype(), chunks=(1000,))


SPOILERS: dict[str, Callable[[h5py.File], None]] = {
    "constants in another file": foreign_constants,
    "a link to a constant": linked_constant,
    "a soft link to a constant": linked_softly,
    "a constant of 8 TB": huge_constant,
    "a compressed constant": compressed_constant,
    "a constant in another file": foreign_constant,
    "draws in another file": foreign_draws,
    "one text many times": one_text_many_times,
    "names without end": names_without_end,
    "no channels": lambda file: file["posterior"].move("channel", "channels"),
}


@pytest.mark.parametrize("what", SPOILERS)
def test_run_files_of_strangers(run_file: Path, what: str) -> None:
    globals()["file_name"] = str(run_file)
    with h5py.File(run_file, "r+") as file:
        SPOILERS[what](file)
    assert "not a run file of dpmix" in refusal_of(run_file, open_run)
    result = dpmix("info", run_file)
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1


def test_attributes_of_any_size_are_not_read(run_file: Path) -> None:
    with h5py.File(run_file, "r+", libver="latest") as file:
        file.attrs["more"] = np.zeros((1000, 1000))
        file.attrs["empty"] = h5py.Empty("f8")
    assert {"more", "empty"}.isdisjoint(open_run(run_file).attributes)
    with h5py.File(run_file, "r+", libver="latest") as file:
        file.attrs["config"] = np.full(10, "x" * 1000, object)
    assert "no attribute config" in refusal_of(run_file, open_run)


def test_a_compressed_checkpoint_is_not_unpacked(run_file: Path) -> None:
    np.savez_compressed(checkpoint_path(run_file).open("wb"), run_id=np.array("x"), bomb=np.zeros(10**7))
    with RunWriter.reopen(run_file) as writer:
        message = refusal_of(run_file, lambda path: writer.load_checkpoint())
    assert "not a whole checkpoint" in message


def test_a_checkpoint_that_does_not_fit_its_run(run_file: Path) -> None:
    with RunWriter.reopen(run_file) as writer:
        states = [state(1), state(1)]
        writer.save_checkpoint(states, 10**6, {})
        assert "does not fit the run" in refusal_of(run_file, lambda path: writer.load_checkpoint())
        writer.save_checkpoint(states, 3, {})
        assert writer.load_checkpoint() is not None


# ------------------------------------------------------------------------------------------ places


@pytest.mark.parametrize(
    "names",
    [
        ("../../x.fcs", "/etc/y.fcs"),
        ("../x.fcs::1", "../x.fcs::2"),
        ("a/../../b.fcs", "a\\..\\b.fcs"),
    ],
)
def test_no_name_of_a_sample_leads_out_of_the_folder(tmp_path: Path, names: tuple[str, ...]) -> None:
    write_fcs(tmp_path / "a.fcs", EVENTS, ["a", "b", "c"])
    source = open_source(tmp_path / "a.fcs")
    folder = tmp_path / "out"
    paths = event_paths(folder, ["fcs", "csv"], names, [source] * len(names))
    assert {path.parent for path in paths} == {folder}
    assert len({*paths}) == 3


class Elements(HTMLParser):
    """Names and attributes of a page's elements, and its text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1] not in ("script", "style"):
            self.text += data


def gate_with_names(
    folder: Path, sample: str, markers: list[str], monkeypatch: pytest.MonkeyPatch
) -> Elements:
    """A whole run on an FCS file with these names, gated; everything it writes is where it should be."""
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    events = np.concatenate([EVENTS - 4, EVENTS + 4]) * 100
    keywords = {"$FIL": "../../evil.fcs", "$SRC": "<script>alert(3)</script>", "$P1N": "../../evil"}
    write_fcs(Path(sample), events, ["A", "B", "C"], markers, keywords)
    Path("run.yaml").write_text(
        "data: {files: ['*.fcs']}\nmodel: {components: 3}\nmcmc: {burn_in: 5, draws: 4}\n"
        "engine: {backend: cpu, threads: 1}\n"
    )
    assert dpmix("mcmc", "run.yaml", "--quiet").exit_code == 0
    before = {path for path in folder.parent.rglob("*") if folder.parent / "out" not in path.parents}
    result = dpmix("gate", "run.h5", "--output", "../out", "--format", "fcs", "--format", "csv", "--quiet")
    assert result.exit_code == 0, result.output
    after = {path for path in folder.parent.rglob("*") if folder.parent / "out" not in path.parents}
    assert after - before <= {folder.parent / "out"}
    page = Elements((folder.parent / "out" / "report.html").read_text(encoding="utf-8"))
    told = dpmix("info", "run.h5").output
    assert "\x1b" not in told
    return page


@pytest.mark.slow
@pytest.mark.usefixtures("made_figures", "real_plots")
def test_names_in_the_report_are_text_and_nothing_is_written_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    markers = ["<script>alert(1)</script>", '"onmouseover="alert(4)', "\x1b[31m../../CD8"]
    nasty = gate_with_names(
        tmp_path / "nasty" / "in", "<img src=x onerror=alert(2)>.fcs", markers, monkeypatch
    )
    plain = gate_with_names(tmp_path / "plain" / "in", "a.fcs", ["CD3", "CD4", "CD8"], monkeypatch)
    assert nasty.found == plain.found  # element by element: no name has become one
    assert nasty.attributes == plain.attributes
    for name in (*markers[:2], "<img src=x onerror=alert(2)>.fcs"):
        assert name in nasty.text
    assert Elements(f"<p>{markers[0]}</p>").found != ["p"]  # the control: unescaped it would be seen


def test_nothing_but_a_run_file_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The config of a stranger may name any place for its run file, so what is there is safe."""
    monkeypatch.chdir(tmp_path)
    np.save("a.npy", EVENTS)
    Path("mine.txt").write_text("precious")
    for place in ("mine.txt", "a.npy", "."):
        Path("run.yaml").write_text(f"data: {{files: [a.npy]}}\noutput: {{path: {os.path.abspath(place)}}}")
        assert dpmix("mcmc", "run.yaml", "--overwrite").exit_code == 2
    assert Path("mine.txt").read_text() == "precious"
    np.testing.assert_array_equal(np.load("a.npy"), EVENTS)
