"""Bad data on the command line: one clear error and no run file, or a correct run; never a traceback.

Other tests give bad input to single modules; these tests run whole commands on real files.
"""

from __future__ import annotations

import os
import struct
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result
from test_fcs import channel_keywords, make_fcs

from dpmix.cli import main
from dpmix.inputs import gather
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.file_plans import FilePlan
from dpmix.inputs.limits import Scan
from dpmix.runs.reader import open_run
from dpmix.system.progress import ProgressLog

RNG = np.random.default_rng(1)
GOOD = RNG.normal(0, 100, (300, 3)).astype(np.float32)
NAMES = ["CD3", "CD4", "CD8"]
SETTINGS = (
    "model: {components: 4}\nmcmc: {chains: 1, burn_in: 2, draws: 3}\nengine: {backend: cpu, threads: 1}\n"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    # Other tests find populations, which is a third of the time of such a run.
    monkeypatch.setattr("dpmix.commands.whole_run.keep_populations", lambda run, engine: run)
    return tmp_path


def mcmc(file: str, *settings: str, data: str = "") -> Result:
    Path("run.yaml").write_text(f"data: {{files: ['{file}']{data}}}\n{SETTINGS}")
    options = [part for setting in settings for part in ("--set", setting)]
    return CliRunner().invoke(main, ["mcmc", "run.yaml", "--quiet", *options], catch_exceptions=False)


def assert_refused(result: Result, message: str, code: int = 1) -> None:
    """Require one line from the command, and no run file."""
    assert result.exit_code == code, result.output
    lines = result.output.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("dpmix: ")
    assert message in lines[0]
    assert not Path("run.h5").exists()


def assert_runs(result: Result) -> None:
    """Require a complete run with a finite log posterior and valid covariances."""
    assert result.exit_code == 0, result.output
    run = open_run("run.h5")
    assert run.complete
    assert np.isfinite(run.sample_stats["log_posterior"]).all()
    assert (np.linalg.eigvalsh(run.covariances[0, -1]) > 0).all()


# -------------------------------------------------------------------------- every kind of file


def save_h5ad(path: Path, values: np.ndarray) -> None:
    import anndata
    import pandas

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        anndata.AnnData(values, var=pandas.DataFrame(index=NAMES[: values.shape[1]])).write_h5ad(path)


def save_hdf5(path: Path, values: np.ndarray) -> None:
    with h5py.File(path, "w") as file:
        file["events"] = values


def save_csv(path: Path, values: np.ndarray) -> None:
    header = ",".join(NAMES[: values.shape[1]])
    np.savetxt(path, values, fmt="%.9g", delimiter=",", header=header, comments="")


def save_parquet(path: Path, values: np.ndarray) -> None:
    columns = {name: values[:, k] for k, name in enumerate(NAMES[: values.shape[1]])}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


SAVE: dict[str, Callable[[Path, np.ndarray], None]] = {
    "a.fcs": lambda path, x: write_fcs(path, x, NAMES[: x.shape[1]]),
    "a.csv": save_csv,
    "a.npy": np.save,
    "a.npz": lambda path, x: np.savez(path, events=x),
    "a.h5": save_hdf5,
    "a.parquet": save_parquet,
    "a.h5ad": save_h5ad,
}


@pytest.mark.parametrize("name", SAVE)
def test_values_that_are_refused_in_every_kind_of_file(folder: Path, name: str) -> None:
    for wrong, found in ((np.nan, "4 NaN, 0 infinite"), (-np.inf, "0 NaN, 4 infinite")):
        values = GOOD.copy()
        values[17:21, 1] = wrong
        SAVE[name](folder / name, values)
        assert_refused(mcmc(name), f"({found}, first in event 17)")
    SAVE[name](folder / name, GOOD[:0])
    assert_refused(mcmc(name), "found 0 events in 3 channels")


def test_the_same_files_run_where_nothing_is_wrong(folder: Path) -> None:
    """Control of the test above: without the wrong value the files run."""
    for name, save in SAVE.items():
        save(folder / name, GOOD)
        assert_runs(mcmc(name))
        Path("run.h5").unlink()


# ------------------------------------------------------------------------------- odd events

REFUSED = {
    "all events equal": (np.full((500, 3), 7.0), "constant in all 500 events: ch0, ch1, ch2"),
    "a million equal events": (np.full((10**6, 2), 1.0, np.float32), "constant in all 1000000 events"),
    "one event": (GOOD[:1], "found 1 events in 3 channels"),
    "one event of one channel": (GOOD[:1, :1], "constant in all 1 events"),
    "fewer events than channels": (GOOD[:2], "found 2 events in 3 channels"),
    "no events": (GOOD[:0], "found 0 events"),
    "beyond float32": (GOOD.astype(np.float64) * 1e40, "300 infinite"),
    "integers that float32 does not tell apart": (
        2**62 + np.arange(300, dtype=np.int64)[:, None] % 3,
        "constant in all 300 events",
    ),
    "more than 64 channels": (RNG.normal(size=(300, 65)), "found 65 channels, need 64 at most"),
    "a channel twice": (GOOD[:, [0, 1, 1]], "identical in all 300 events: ch1 and ch2; exclude one"),
    "complex numbers": (GOOD.astype(np.complex64), "need numbers [events, channels]"),
    "dates": (np.zeros((300, 2), "M8[s]"), "need numbers [events, channels]"),
}
RUNS = {
    "as many events as channels": RNG.normal(size=(3, 3)),
    "fewer events than components": RNG.normal(size=(4, 2)),
    "values of 1e30": GOOD * np.float32(1e28),
    "values at the end of float32": GOOD / np.abs(GOOD).max() * np.float32(3.4e38),
    "tiny values": GOOD * np.float32(1e-38),
    "far from 0": 1e6 + GOOD.astype(np.float64),
    "channels nearly alike": np.column_stack([GOOD, GOOD[:, 0] + RNG.normal(size=300)]),
    "a channel of two values": np.column_stack([GOOD[:, 0], GOOD[:, 1] > 0]),
    "nearly all events equal": np.where(np.arange(300)[:, None] < 290, 5.0, GOOD),
    "unsigned integers of 64 bits": RNG.integers(0, 2**64 - 1, (300, 2), np.uint64),
    "integers of 8 bits": RNG.integers(-128, 127, (300, 2), np.int8),
    "half precision": GOOD.astype(np.float16),
    "column by column": np.asfortranarray(GOOD),
}


@pytest.mark.parametrize("case", REFUSED)
def test_events_that_cannot_be_used(folder: Path, case: str) -> None:
    values, message = REFUSED[case]
    np.save("a.npy", values)
    assert_refused(mcmc("a.npy", data=", channels: ['*']"), message)


@pytest.mark.parametrize("case", RUNS)
def test_events_that_can(folder: Path, case: str) -> None:
    np.save("a.npy", RUNS[case])
    assert_runs(mcmc("a.npy"))


def test_a_logicle_scale_that_values_are_far_beyond(folder: Path) -> None:
    """FlowUtils returns -1 if it finds no solution; dpmix must not use that as a value."""
    write_fcs("a.fcs", GOOD, NAMES)
    result = mcmc("a.fcs", data=", transform: {default: {method: logicle, t: 1.0e+300}}")
    assert_refused(result, "too extreme to compute", 2)


# --------------------------------------------------------------------------- spillover, encodings


@pytest.mark.parametrize(
    ("spillover", "message"),
    [
        ("2,CD3,CD4,1,1,1,1", "the spillover matrix cannot be inverted; set data.compensation to none"),
        ("2,CD3,CD5,1,0.1,0,1", "the spillover matrix names CD5, which is not a channel of the file"),
        ("2,CD3,CD3,1,0,0,1", "not a square matrix"),
        ("3,CD3,CD4,1,0,0,1", "not a square matrix"),
        ("2,CD3,CD4,1,nan,0,1", "not a square matrix"),
        ("99999999999999999999,CD3", "not a square matrix"),
        ("-1,CD3", "not a square matrix"),
    ],
)
def test_a_spillover_matrix_that_is_wrong(folder: Path, spillover: str, message: str) -> None:
    write_fcs("a.fcs", GOOD, NAMES, keywords={"$SPILLOVER": spillover})
    assert_refused(mcmc("a.fcs"), message)
    assert_runs(mcmc("a.fcs", "data.compensation=none"))


@pytest.mark.parametrize(
    "content", ["CD3,CD4é\n1,0\n0,1\n".encode("cp1252"), b"CD3," + b"x" * 200_000, b"a,b\n1,2\n3,x"]
)
def test_a_matrix_file_in_an_unknown_encoding(folder: Path, content: bytes) -> None:
    write_fcs("a.fcs", GOOD, NAMES)
    Path("spill.csv").write_bytes(content)
    assert_refused(mcmc("a.fcs", "data.compensation=spill.csv"), "spill.csv is not a matrix", 2)


@pytest.mark.parametrize(
    "content",
    [
        "CD3,CD4\n1.5,2\n".encode("utf-16")[:-1],
        "CD3,CD4é\n1.5,2\n".encode("latin-1"),
        "CD3,CD4\n1.5,é\n".encode("latin-1"),
        b"CD3,CD4\n1.5,2\0\n",
        b"1," * 600_000,
        b'"CD3\n' * 50_000,
    ],
    ids=[
        "half a character of UTF-16",
        "a name in Latin-1",
        "a cell in Latin-1",
        "a zero byte",
        "a line without end",
        "no second quote",
    ],
)
def test_a_table_in_an_unknown_encoding(folder: Path, content: bytes) -> None:
    Path("a.csv").write_bytes(content)
    result = mcmc("a.csv")
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert "a.csv" in result.output


def test_a_config_in_latin_1(folder: Path) -> None:
    Path("run.yaml").write_bytes("data: {files: [é.fcs]}".encode("latin-1"))
    result = CliRunner().invoke(main, ["mcmc", "run.yaml"], catch_exceptions=False)
    assert_refused(result, "not a text file", 2)


def test_markers_in_latin_1(folder: Path) -> None:
    keywords = channel_keywords([32, 32], ["10", "10"], "F", n_events=300) | {"$P1S": "CD4µ"}
    path = make_fcs(folder / "a.fcs", GOOD[:, :2].tobytes(), keywords)
    utf8, latin = "µ".encode(), "µ".encode("latin-1") + b" "
    path.write_bytes(path.read_bytes().replace(utf8, latin))
    result = mcmc("a.fcs")
    assert_runs(result)
    assert open_run("run.h5").channels[0].startswith("CD4")


def test_a_file_whose_name_is_not_text(folder: Path) -> None:
    np.save("a.npy", GOOD)
    os.rename(b"a.npy", b"a\xff\x1b[31m\n.npy")
    result = mcmc("*.npy")
    assert_runs(result)
    assert open_run("run.h5").constants["sample"].tolist() == ["a  [31m .npy"]
    Path("run.h5").unlink()
    os.truncate(b"a\xff\x1b[31m\n.npy", 400)
    result = mcmc("*.npy")
    assert_refused(result, "cannot be read")
    assert "\x1b" not in result.output


# ----------------------------------------------------------- files that change while they are read


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def rewrite(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[:-64] + bytes(64))
    os.utime(path, ns=(1, 1))


def swap(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    os.replace(other, path)


@pytest.mark.parametrize("change", [cut, rewrite, swap, Path.unlink])
@pytest.mark.parametrize("name", ["a.fcs", "a.npy", "columns.npy", "a.h5"])
def test_a_file_that_changes_between_two_passes(
    folder: Path, name: str, change: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped file that is truncated would kill the process by a signal."""
    path, scan_file = folder / name, gather.scan_file
    if name == "columns.npy":
        np.save(path, np.asfortranarray(GOOD))
    else:
        SAVE[name](path, GOOD)

    def scan_and_change(plan: FilePlan, progress: ProgressLog) -> Scan:
        found = scan_file(plan, progress)
        change(path)
        return found

    monkeypatch.setattr(gather, "scan_file", scan_and_change)
    result = mcmc(name)
    assert_refused(result, name)
    assert any(
        words in result.output for words in ("changed while", "removed while", "cannot be read", "found ")
    ), result


# ---------------------------------------------------------------------------- files with false sizes


def lying_fcs(**changes: str) -> bytes:
    keywords = channel_keywords([32, 32], ["1024", "1024"], "F", n_events=300)
    keywords |= {f"${name}": value for name, value in changes.items()}
    return make_fcs(Path("lying.fcs"), GOOD[:, :2].tobytes(), keywords).read_bytes()


HUGE = "9" * 17
LIES: dict[str, tuple[Callable[[], bytes], str]] = {
    "events": (lambda: lying_fcs(TOT="1" + "0" * 15), "found 300 of the 1000000000000000 events"),
    "events without end": (lambda: lying_fcs(TOT="9" * 4000), '$TOT is "99999'),
    "less than no events": (lambda: lying_fcs(TOT="-5", ENDDATA="9" * 8), '$TOT is "-5"'),
    "channels": (lambda: lying_fcs(PAR="1" + "0" * 9), '$PAR is "1000000000"'),
    "bits": (lambda: lying_fcs(P1B="8" + "0" * 12), '$P1B is "8000000000000"'),
    "a supplement": (
        lambda: lying_fcs(BEGINSTEXT="100", ENDSTEXT=HUGE),
        "TEXT has 99999999999999900 bytes",
    ),
    "a supplement beyond all": (lambda: lying_fcs(BEGINSTEXT="9" * 18, ENDSTEXT="9" * 18 + "8"), ""),
    "TEXT": (
        lambda: lying_fcs().replace(b"FCS3.0          58", b"FCS3.0           0", 1),
        "TEXT has bytes 0 to ",
    ),
    "the end of TEXT": (
        lambda: lying_fcs()[:18] + b"99999999" + lying_fcs()[26:],
        "TEXT has 99999942 bytes",
    ),
}
HARMLESS = {
    "the next data set": lambda: lying_fcs(NEXTDATA="9" * 30),
    "the next data set is itself": lambda: lying_fcs(NEXTDATA="-1"),
    "ranges": lambda: lying_fcs(P1R="1e12", P2R="inf"),
    "analysis": lambda: lying_fcs(BEGINANALYSIS=HUGE, ENDANALYSIS="9" * 30),
}


@pytest.mark.parametrize("what", LIES)
def test_fcs_with_false_sizes_costs_no_memory(folder: Path, what: str) -> None:
    make, message = LIES[what]
    Path("a.fcs").write_bytes(make())
    tracemalloc.start()
    try:
        result = mcmc("a.fcs")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6
    if message:
        assert_refused(result, message)
    else:
        assert_runs(result)


@pytest.mark.parametrize("what", HARMLESS)
def test_fcs_with_false_values_that_are_not_needed(folder: Path, what: str) -> None:
    Path("a.fcs").write_bytes(HARMLESS[what]())
    assert_runs(mcmc("a.fcs"))


def test_a_chain_of_data_sets_without_end(folder: Path) -> None:
    one = lying_fcs(NEXTDATA="0" * 8)
    one = one.replace(b"$NEXTDATA/00000000", b"$NEXTDATA/%08d" % len(one))
    Path("a.fcs").write_bytes(one * 300)
    assert_refused(mcmc("a.fcs"), "has more than 256 data sets")


@pytest.mark.parametrize("shape", [(2**40, 3), (2**62, 4), (-300, 3), (300, 2**40), (10**30, 3), (300, 0)])
def test_npy_with_false_sizes(folder: Path, shape: tuple[int, int]) -> None:
    header = repr({"descr": "<f4", "fortran_order": False, "shape": shape}).ljust(117) + "\n"
    content = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + GOOD.tobytes()
    Path("a.npy").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = mcmc("a.npy")
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert "a.npy" in result.output


def test_a_real_fcs_file_without_its_end(folder: Path, shared_data: Path) -> None:
    for path in sorted((shared_data / "fcs_odd").glob("*.fcs")):
        content = path.read_bytes()
        if len(content) > 100:
            Path("a.fcs").write_bytes(content[: len(content) * 2 // 3])
            result = mcmc("a.fcs", data=", channels: ['*']")
            assert result.exit_code == 1, path.name
            assert len(result.output.splitlines()) == 1, path.name
