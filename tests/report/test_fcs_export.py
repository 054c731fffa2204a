"""FCS files with added channels: real files and every storage type, read by FlowIO and FlowKit."""

from __future__ import annotations

import re
import struct
import warnings
from pathlib import Path

import flowio
import numpy as np
import numpy.typing as npt
import pytest
from test_fcs import channel_keywords, make_fcs

from dpmix.inputs.fcs.data import read_analysis, read_events, read_rows
from dpmix.inputs.fcs.header import Header, read_header
from dpmix.inputs.simulate import simulation as simulate
from dpmix.report import fcs_export
from dpmix.report.fcs_export import Added, Copy

ADDED = (Added("new_number", "number", 20), Added("new_share", "share", 1.0, scale=10_000))
REAL = [
    "fcs/G69019FF_CMVpp65_CD4.fcs",
    "fcs_odd/coulter.lmd",
    "fcs_odd/data1.fcs",
    "fcs_odd/data_start_offset_discrepancy_example.fcs",
    "fcs_odd/duplicate_names.fcs",
    "fcs_odd/fake_large_fcs.fcs",
    "fcs_odd/flowcal_Data003.fcs",
    "fcs_odd/variable_int_example.fcs",
]
PLACES = {"par", "nextdata"} | {
    f"{end}{segment}" for end in ("begin", "end") for segment in ("data", "stext", "analysis")
}


def numbers(header: Header, seed: int = 1) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    share = random.random(header.n_events).astype(np.float32)
    share[: min(2, len(share))] = [0, 1][: len(share)]
    return random.integers(1, 21, header.n_events), share


def copied(header: Header, path: Path, rows: npt.NDArray[np.int64] | None = None, blocks: int = 3) -> Header:
    """Write the file with `numbers` added to all or some events, in several blocks."""
    number, share = numbers(header)
    rows = np.arange(header.n_events) if rows is None else rows
    copy = Copy(header, path, ADDED)
    for part in np.array_split(rows, blocks):
        copy.write(part, [number[part], share[part]])
    copy.close()
    return read_header(path)


def flow(path: Path, **options: bool | int) -> flowio.FlowData:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # FlowIO warns of ends that are one byte too large
        return flowio.FlowData(path, **options)


# ------------------------------------------------------------------------------------ real files


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_real_files(shared_data: Path, tmp_path: Path, name: str) -> None:
    flowkit = pytest.importorskip("flowkit")
    old = read_header(shared_data / name)
    new = copied(old, tmp_path / "new.fcs")
    d = len(old.channels)
    number, share = numbers(old)

    # read by FlowIO and FlowKit
    theirs = flow(new.path).as_array(preprocess=False)
    assert theirs.shape == (old.n_events, d + 2)
    sample = flowkit.Sample(new.path, preprocess=False)
    assert sample.pnn_labels[d:] == ["new_number", "new_share"]
    assert sample.pns_labels[d:] == ["number", "share"]
    np.testing.assert_array_equal(sample.get_events("raw"), theirs)

    # added channels
    gain = float(new.keywords[f"p{d + 2}g"])
    assert gain == (10_000 if old.datatype == "I" else 1)
    np.testing.assert_array_equal(theirs[:, d], number)
    np.testing.assert_array_equal(
        theirs[:, d + 1], np.rint(share.astype(float) * gain) if gain > 1 else share
    )

    # existing channels: values, and bytes except for 24-bit integers
    np.testing.assert_array_equal(theirs[:, :d].astype(np.float32), read_events(old))
    if name != "fcs_odd/flowcal_Data003.fcs":
        np.testing.assert_array_equal(
            read_rows(new, 0, new.n_events)[:, : old.row.itemsize], read_rows(old, 0, old.n_events)
        )
        options = {"ignore_offset_error": True, "ignore_offset_discrepancy": True, "nextdata_offset": 0}
        if "fake_large" not in name:  # FlowIO cannot read a blank HEADER
            before = flow(old.path, **options)
            np.testing.assert_array_equal(theirs[:, :d], before.as_array(preprocess=False))
            lost = "data1" in name  # FlowIO misreads empty values, dpmix.inputs.fcs.header does not
            kept = (
                {}
                if lost
                else {key: value for key, value in before.text.items() if key not in PLACES | {"originality"}}
            )
            assert kept == {key: flow(new.path).text[key] for key in kept}
    may_change = PLACES | {"originality"}
    may_change |= {f"p{n}b" for n in range(1, d + 1)} if "Data003" in name else set()
    assert {k: v for k, v in old.keywords.items() if k not in may_change} == {
        k: new.keywords[k] for k in old.keywords if k not in may_change
    }
    assert len(old.text) == len([key for key, _ in new.text if key in dict(old.text)])
    assert new.channels[:d] == old.channels
    assert (new.version, new.n_data_sets) == (old.version, 1)
    assert (new.spillover is None) == (old.spillover is None)
    if old.spillover is not None and new.spillover is not None:
        assert new.spillover.detectors == old.spillover.detectors
        np.testing.assert_array_equal(new.spillover.matrix, old.spillover.matrix)


@pytest.mark.parametrize("name", ["fcs/3FITC_4PE_004.fcs", "fcs/100715.fcs", "fcs_odd/data1.fcs"])
def test_readers_apply_gain_and_amplification(shared_data: Path, tmp_path: Path, name: str) -> None:
    old = read_header(shared_data / name)
    new = copied(old, tmp_path / "new.fcs")
    before, after = flow(old.path).as_array(), flow(new.path).as_array()
    np.testing.assert_array_equal(after[:, :-2], before)
    number, share = numbers(old)
    np.testing.assert_array_equal(after[:, -2], number)
    np.testing.assert_allclose(after[:, -1], share, rtol=0, atol=0.500001e-4)


def test_the_second_data_set(shared_data: Path, tmp_path: Path) -> None:
    old = read_header(shared_data / "fcs_odd" / "coulter.lmd", 2)
    new = copied(old, tmp_path / "new.fcs")
    assert (new.version, new.n_data_sets, new.data_set) == ("FCS3.0", 1, 1)
    np.testing.assert_array_equal(flow(new.path).as_array(preprocess=False)[:, :-2], read_events(old))


# --------------------------------------------------------------------------- every storage type


def sized(values: list[int], sizes: list[int], order: str) -> bytes:
    little: dict[bool, str] = {True: "little", False: "big"}
    return b"".join(x.to_bytes(size, little[order[0] == "1"]) for x, size in zip(values, sizes, strict=True))  # type: ignore[arg-type]


@pytest.mark.parametrize("order", ["1,2,3,4", "4,3,2,1"])
@pytest.mark.parametrize(
    ("sizes", "added_bits"),
    [
        ([1, 1], 16),
        ([2, 2], 16),
        ([3, 3], 32),
        ([4, 4], 32),
        ([8, 8], 64),
        ([1, 2], 16),
        ([2, 4], 32),
        ([2, 3], 32),
    ],
)
def test_integers(tmp_path: Path, order: str, sizes: list[int], added_bits: int) -> None:
    values = [[200, 130], [255, 7], [0, 99]]
    if sizes == [3, 3]:
        values = [[16_777_215, 70_001], [1, 2], [65_536, 0]]
    # $PnR 100 masks the 8th bit of the second channel, which stays in the file
    ranges = [str(256 ** sizes[0]), "100" if sizes != [3, 3] else "16777216"]
    data = b"".join(sized(row, sizes, order) for row in values)
    keywords = channel_keywords([8 * s for s in sizes], ranges, order=order, n_events=3)
    old = read_header(make_fcs(tmp_path / "old.fcs", data, keywords))
    new = copied(old, tmp_path / "new.fcs")
    assert new.keywords["p3b"] == new.keywords["p4b"] == f"{added_bits}"
    want = np.array(values) if sizes == [3, 3] else np.array(values) & [0xFFFFFFFF, 127]
    number, share = numbers(old)
    np.testing.assert_array_equal(read_events(new)[:, :2], want)
    np.testing.assert_array_equal(
        read_events(new)[:, 2:], np.column_stack([number, np.rint(share.astype(float) * 1e4)])
    )
    assert [c.range for c in new.channels[2:]] == [21, 10_001]
    assert "new_share 10000" in new.keywords["dpmix_scale"]
    if max(sizes) < 8:  # FlowIO cannot read these
        np.testing.assert_array_equal(flow(new.path).as_array(preprocess=False), read_events(new))


@pytest.mark.parametrize("order", ["1,2,3,4", "4,3,2,1"])
@pytest.mark.parametrize(("letter", "code"), [("F", "f4"), ("D", "f8")])
def test_floats(tmp_path: Path, order: str, letter: str, code: str) -> None:
    kind = np.dtype(("<" if order[0] == "1" else ">") + code)
    values = np.array([[1.1, -2.2], [np.pi, 1e-30], [np.inf, np.nan], [3e38, -0.0]], kind)
    keywords = channel_keywords([8 * kind.itemsize] * 2, ["1000", "1e3"], letter, order, 4)
    old = read_header(make_fcs(tmp_path / "old.fcs", values.tobytes(), keywords, version="FCS3.1"))
    new = copied(old, tmp_path / "new.fcs")
    theirs = flow(new.path).as_array(preprocess=False)
    assert theirs[:, :2].astype(code).tobytes() == values.astype(code).tobytes()
    number, share = numbers(old)
    np.testing.assert_array_equal(theirs[:, 2:], np.column_stack([number, share]))
    assert "dpmix_scale" not in new.keywords
    assert "p3datatype" not in new.keywords


def test_mixed_types_of_fcs_3_2(tmp_path: Path) -> None:
    data = struct.pack("<IdHf", 7, -2.25, 3, 0.1) + struct.pack("<IdHf", 9, 1e100, 4, 0.2)
    keywords = channel_keywords([32, 64, 16, 32], ["1024", "1e3", "16", "1e3"])
    keywords |= {"$P2DATATYPE": "D", "$P4DATATYPE": "F"}
    old = read_header(make_fcs(tmp_path / "old.fcs", data, keywords, version="FCS3.2"))
    new = copied(old, tmp_path / "new.fcs")
    assert [new.keywords[f"p{n}datatype"] for n in (2, 4, 5, 6)] == ["D", "F", "F", "F"]
    assert new.version == "FCS3.2"
    np.testing.assert_array_equal(read_rows(new, 0, 2)[:, :18], read_rows(old, 0, 2))
    np.testing.assert_array_equal(read_events(new)[:, 4:], np.column_stack(numbers(old)))


def test_events_left_out_have_zeros(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcs_export, "EVENTS", 64)  # gaps and blocks span several steps of copying
    simulation = simulate.cytometry_like(1000, seed=4)
    simulation.write(tmp_path / "old.fcs")
    old = read_header(tmp_path / "old.fcs")
    rows = np.flatnonzero(np.random.default_rng(3).random(1000) < 0.3)
    rows = rows[(rows > 150) & (rows < 800)]
    new = copied(old, tmp_path / "new.fcs", rows, blocks=7)
    theirs = flow(new.path).as_array(preprocess=False)
    np.testing.assert_array_equal(theirs[:, :-2], flow(old.path).as_array(preprocess=False))
    want = np.zeros((1000, 2))
    want[rows] = np.column_stack(numbers(old))[rows]
    np.testing.assert_array_equal(theirs[:, -2:], want)


def test_no_event_at_all(tmp_path: Path) -> None:
    keywords = channel_keywords([32], ["10"], "F", n_events=0)
    old = read_header(make_fcs(tmp_path / "old.fcs", b"", keywords))
    new = copied(old, tmp_path / "new.fcs")
    assert flow(new.path).as_array(preprocess=False).shape == (0, 3)


@pytest.mark.parametrize("rows", [[3, 2], [0, 4], [1, 1]])
def test_rows_that_do_not_ascend_in_the_file(tmp_path: Path, rows: list[int]) -> None:
    keywords = channel_keywords([32], ["10"], "F", n_events=4)
    old = read_header(make_fcs(tmp_path / "old.fcs", bytes(16), keywords))
    copy = Copy(old, tmp_path / "new.fcs", ADDED)
    with pytest.raises(ValueError, match="do not ascend"):
        copy.write(np.array(rows), [np.ones(2), np.ones(2)])
    copy.abandon()


# ------------------------------------------------------------------------------------------- TEXT


@pytest.mark.parametrize("delimiter", ["/", "|", "\\", "\x0c", "^", "*", "\x1e", "!"])
def test_values_with_the_delimiter_in_them(tmp_path: Path, delimiter: str) -> None:
    keywords = channel_keywords([32], ["10"], "F")
    keywords |= {
        "$P1S": f"CD4{delimiter * 2}CD8",
        "other": f"a/b|c\\d^e*f!g{delimiter}".replace(delimiter, "_"),
    }
    old = read_header(make_fcs(tmp_path / "old.fcs", bytes(8), keywords, delimiter=delimiter))
    new = copied(old, tmp_path / "new.fcs")
    theirs = flow(new.path)
    assert theirs.text["p1s"] == f"CD4{delimiter}CD8"
    assert theirs.text["other"] == keywords["other"]
    assert theirs.pnn_labels == ["FL1", "new_number", "new_share"]


def test_keywords_in_a_supplement_empty_odd_and_not_english(tmp_path: Path) -> None:
    keywords = channel_keywords([32], ["10"], "F") | {"$SRC": "", "Größe": "µ", "$ORIGINALITY": "Original"}
    del keywords["$NEXTDATA"]
    keywords |= {"$nextdata": "0", "cost": "5 $ each"}
    path = make_fcs(
        tmp_path / "old.fcs", bytes(8), keywords, supplement={"$P1S": "CD4", "$SPILLOVER": "1,FL1,1"}
    )
    new = copied(read_header(path), tmp_path / "new.fcs")
    theirs = flow(new.path).text
    assert {key: theirs[key] for key in ("src", "größe", "originality", "p1s", "spillover")} == {
        "src": " ",
        "größe": "µ",
        "originality": "Appended",
        "p1s": "CD4",
        "spillover": "1,FL1,1",
    }
    assert int(theirs["beginstext"]) == int(theirs["endstext"]) == 0
    assert b"5 $ each" in new.path.read_bytes()  # FlowIO drops the $
    assert len(re.findall(rb"(?i)\$nextdata", new.path.read_bytes())) == 1


@pytest.mark.parametrize("version", ["FCS2.0", "FCS3.0"])
def test_the_analysis_is_kept(tmp_path: Path, version: str) -> None:
    analysis = b"/gate 1/0.25/gate 2/0.5/"
    keywords = channel_keywords([32], ["10"], "F")
    if version == "FCS3.0":
        keywords |= {"$BEGINANALYSIS": "0" * 8, "$ENDANALYSIS": "0" * 8}
    path = make_fcs(tmp_path / "old.fcs", bytes(8), keywords, version=version)
    raw = path.read_bytes()
    first, last = len(raw), len(raw) + len(analysis) - 1
    for name, number in (("BEGIN", first), ("END", last)):
        raw = raw.replace(f"${name}ANALYSIS/{0:08d}".encode(), f"${name}ANALYSIS/{number:08d}".encode())
    path.write_bytes(raw[:42] + b"%8d%8d" % (first, last) + raw[58:] + analysis)
    old = read_header(path)
    assert read_analysis(old) == analysis
    new = copied(old, tmp_path / "new.fcs")
    assert read_analysis(new) == analysis
    assert flow(new.path).analysis == {"gate 1": "0.25", "gate 2": "0.5"}
    in_header = [int(new.path.read_bytes()[at : at + 8]) for at in (42, 50)]
    assert in_header == [new.analysis[0], new.analysis[0] + len(analysis) - 1]


def test_a_missing_analysis_has_no_position(tmp_path: Path) -> None:
    path = make_fcs(tmp_path / "old.fcs", bytes(8), channel_keywords([32], ["10"], "F"))
    raw = path.read_bytes()
    path.write_bytes(raw[:42] + b"%8d%8d" % (len(raw) + 100, len(raw) + 200) + raw[58:])
    new = copied(read_header(path), tmp_path / "new.fcs")
    assert flow(new.path).analysis == {}


def test_events_beyond_eight_digit_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcs_export, "IN_HEADER", 1500)
    keywords = channel_keywords([32], ["10"], "F", n_events=200)
    keywords.pop("$TOT")  # FCS 2.0 has none; the size of DATA gives the number of events
    data = np.arange(200, dtype="<f4").tobytes()
    old = read_header(make_fcs(tmp_path / "old.fcs", data, keywords, version="FCS2.0"))
    new = copied(old, tmp_path / "new.fcs")
    raw = new.path.read_bytes()
    assert raw[:6] == b"FCS3.0"
    assert raw[10:58].split()[2:] == [b"0"] * 4
    assert int(new.keywords["enddata"]) - int(new.keywords["begindata"]) + 1 == 200 * 12
    assert new.keywords["tot"] == "200"
    np.testing.assert_array_equal(read_events(new)[:, 0], np.arange(200))
