"""FCS files: odd files of real laboratories, corrupt files, and files that dpmix writes."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import flowio
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpmix.errors import DataError
from dpmix.inputs.fcs.data import read_events, write_fcs
from dpmix.inputs.fcs.header import Header, read_header


def make_fcs(
    path: Path,
    data: bytes,
    keywords: dict[str, str],
    *,
    version: str = "FCS3.0",
    delimiter: str = "/",
    header_data: tuple[int | None, int | None] | None = None,
    supplement: dict[str, str] | None = None,
) -> Path:
    """Write an FCS file byte by byte, with any errors."""

    def joined(pairs: dict[str, str]) -> bytes:
        return (
            delimiter + delimiter.join(f"{k}{delimiter}{v}" for k, v in pairs.items()) + delimiter
        ).encode()

    extra = joined(supplement) if supplement else b""
    places = {"$BEGINDATA": "0" * 8, "$ENDDATA": "0" * 8, "$BEGINSTEXT": "0" * 8, "$ENDSTEXT": "0" * 8}
    length = len(joined(places | keywords))
    first_extra = 58 + length
    start = first_extra + len(extra)
    stop = start + len(data) - 1
    places = {"$BEGINDATA": f"{start:08d}", "$ENDDATA": f"{stop:08d}"}
    places |= {
        "$BEGINSTEXT": f"{first_extra if extra else 0:08d}",
        "$ENDSTEXT": f"{start - 1 if extra else 0:08d}",
    }
    text = joined(places | keywords)
    first, last = (start, stop) if header_data is None else header_data
    offsets = [58, 58 + length - 1, first, last, 0, 0]
    header = version.encode() + b"    " + b"".join(b" " * 8 if x is None else b"%8d" % x for x in offsets)
    path.write_bytes(header + text + extra + data)
    return path


def channel_keywords(
    bits: list[int], ranges: list[str], datatype: str = "I", order: str = "1,2,3,4", n_events: int = 2
) -> dict[str, str]:
    keywords = {"$MODE": "L", "$DATATYPE": datatype, "$BYTEORD": order, "$NEXTDATA": "0"}
    keywords |= {"$PAR": str(len(bits)), "$TOT": str(n_events)}
    for n, (width, limit) in enumerate(zip(bits, ranges, strict=True), start=1):
        keywords |= {f"$P{n}B": str(width), f"$P{n}R": limit, f"$P{n}E": "0,0", f"$P{n}N": f"FL{n}"}
    return keywords


# ------------------------------------------------------------------------------------ real files


def test_odd_files_give_the_values_of_an_independent_reader(shared_data: Path) -> None:
    expected = json.loads((shared_data / "fcs_odd" / "expected.json").read_text())
    for name, want in expected.items():
        path = shared_data / "fcs_odd" / name
        if "reject" in want:
            with pytest.raises(DataError, match="no FCS header"):
                read_header(path)
            continue
        header = read_header(path)
        events = read_events(header).astype(np.float64)
        assert (header.version, header.datatype) == (want["version"], want["datatype"]), name
        assert events.shape == (want["events"], want["channels"]), name
        assert [c.detector for c in header.channels] == want["names"], name
        np.testing.assert_allclose(events.mean(0), want["mean"], rtol=1e-7, atol=6e-5, err_msg=name)
        np.testing.assert_allclose(events.min(0), want["min"], rtol=1e-6, atol=1e-6, err_msg=name)
        np.testing.assert_allclose(events.max(0), want["max"], rtol=1e-6, err_msg=name)


def test_ordinary_files_agree_with_flowio(shared_data: Path) -> None:
    for path in [
        *sorted((shared_data / "fcs").glob("*.fcs")),
        shared_data / "labelled" / "flowsom_68983.fcs",
    ]:
        theirs = flowio.FlowData(path).as_array(preprocess=False).astype(np.float32)
        np.testing.assert_array_equal(read_events(read_header(path)), theirs)


def test_what_the_headers_of_real_files_say(shared_data: Path) -> None:
    header = read_header(shared_data / "fcs" / "100715.fcs")
    assert header.channels[4].detector == "R780-A"
    assert header.channels[4].marker == "CD3"
    assert header.channels[4].range == 261588
    assert header.instrument == "Main Aria (FACSAria)"
    assert header.kind == "fluorescence"
    assert header.spillover is not None
    assert header.spillover.matrix.shape == (13, 13)
    log = read_header(shared_data / "fcs" / "3FITC_4PE_004.fcs").channels
    assert [c.log for c in log] == [None, None, (4.0, 1.0), (4.0, 1.0)]
    slash = read_header(shared_data / "fcs_odd" / "duplicate_names.fcs").channels
    assert slash[7].marker == "GFP/FITC-A"


def test_every_data_set_of_a_file(shared_data: Path) -> None:
    path = shared_data / "fcs_odd" / "coulter.lmd"
    first, second = read_header(path), read_header(path, 2)
    assert (first.version, second.version) == ("FCS2.0", "FCS3.0")
    assert (first.data_set, second.data_set, second.n_data_sets) == (1, 2, 2)
    assert "data set 1 of 2 in the file" in first.notes
    # the same events, in 10 bits and in 20
    fine, coarse = read_events(second)[:, 1] / 1024, read_events(first)[:, 1]
    assert np.corrcoef(fine, coarse)[0, 1] > 0.999
    with pytest.raises(DataError, match="found 2 data sets"):
        read_header(path, 3)


# -------------------------------------------------------------------------- one oddity at a time


@pytest.mark.parametrize("order", ["1,2,3,4", "4,3,2,1"])
def test_integers_of_all_widths_in_one_event(tmp_path: Path, order: str) -> None:
    little = order.startswith("1")
    values = [[200, 60_000, 16_000_001, 4_000_000_000, 2**50], [1, 2, 3, 4, 5]]
    sizes = [1, 2, 3, 4, 8]
    data = b"".join(
        x.to_bytes(size, "little" if little else "big")
        for row in values
        for x, size in zip(row, sizes, strict=True)
    )
    bits = [8 * size for size in sizes]
    path = make_fcs(tmp_path / "a.fcs", data, channel_keywords(bits, [str(2**b) for b in bits], order=order))
    np.testing.assert_array_equal(read_events(read_header(path)), np.array(values, np.float32))


def test_integers_are_masked_to_the_next_power_of_two(tmp_path: Path) -> None:
    data = struct.pack("<4H", 0xF3FF, 0x0400, 0x03E9, 0xFFFF)
    path = make_fcs(tmp_path / "a.fcs", data, channel_keywords([16, 16], ["1000", "0"]))
    # $PnR 1000 keeps 10 bits; $PnR 0 says nothing
    np.testing.assert_array_equal(read_events(read_header(path)), [[0x3FF, 0x400], [0x3E9, 0xFFFF]])


def test_floats_and_their_own_types_by_channel(tmp_path: Path) -> None:
    data = struct.pack(">fdH", 1.5, -2.25, 7) + struct.pack(">fdH", 3.0, 1e10, 8)
    keywords = channel_keywords([32, 64, 16], ["1e3", "262144", "16"], "F", "4,3,2,1")
    keywords |= {"$P2DATATYPE": "D", "$P3DATATYPE": "I"}
    header = read_header(make_fcs(tmp_path / "a.fcs", data, keywords, version="FCS3.2"))
    np.testing.assert_array_equal(
        read_events(header), np.array([[1.5, -2.25, 7], [3.0, 1e10, 8]], np.float32)
    )
    assert [c.integer for c in header.channels] == [False, False, True]


@pytest.mark.parametrize("delimiter", ["/", "|", "\\", "\x0c", "^", "+", ".", "*", "\x1e", "!"])
def test_any_delimiter(tmp_path: Path, delimiter: str) -> None:
    data = struct.pack("<2f", 1, 2)
    keywords = channel_keywords([32], ["10"], "F")
    keywords["$P1S"] = f"CD4{delimiter * 2}CD8"
    path = make_fcs(tmp_path / "a.fcs", data, keywords, delimiter=delimiter)
    header = read_header(path)
    assert header.channels[0].marker == f"CD4{delimiter if delimiter.isprintable() else ' '}CD8"
    np.testing.assert_array_equal(read_events(header), [[1], [2]])


def test_empty_values_do_not_shift_the_keywords(tmp_path: Path) -> None:
    keywords = channel_keywords([32, 32], ["10", "10"], "F")
    keywords |= {"$P1S": "", "$P2S": "CD8", "$SRC": "", "SPILL": "2,FL1,FL2,1,0.1,0,1"}
    header = read_header(make_fcs(tmp_path / "a.fcs", struct.pack("<4f", 1, 2, 3, 4), keywords))
    assert [c.marker for c in header.channels] == ["", "CD8"]
    assert header.spillover is not None
    np.testing.assert_array_equal(header.spillover.matrix, [[1, 0.1], [0, 1]])


def test_supplemental_text_is_read(tmp_path: Path) -> None:
    path = make_fcs(
        tmp_path / "a.fcs",
        struct.pack("<4f", 1, 2, 3, 4),
        channel_keywords([32, 32], ["10", "10"], "F"),
        supplement={"$P2S": "CD4", "$SPILLOVER": "2,FL1,FL2,1,0.1,0.2,1"},
    )
    header = read_header(path)
    assert header.channels[1].marker == "CD4"
    assert header.spillover is not None


def test_no_event_count_in_fcs_2(tmp_path: Path) -> None:
    keywords = channel_keywords([16], ["1024"])
    del keywords["$TOT"]
    header = read_header(
        make_fcs(tmp_path / "a.fcs", struct.pack("<3H", 1, 2, 3), keywords, version="FCS2.0")
    )
    np.testing.assert_array_equal(read_events(header), [[1], [2], [3]])


def test_blank_offsets_in_the_header(tmp_path: Path) -> None:
    path = make_fcs(
        tmp_path / "a.fcs", struct.pack("<2H", 1, 2), channel_keywords([16], ["8"]), header_data=(None, None)
    )
    np.testing.assert_array_equal(read_events(read_header(path)), [[1], [2]])


def test_disagreeing_offsets_give_a_warning(tmp_path: Path) -> None:
    path = make_fcs(
        tmp_path / "a.fcs", struct.pack("<2H", 1, 2), channel_keywords([16], ["8"]), header_data=(60, 90)
    )
    header = read_header(path)
    np.testing.assert_array_equal(read_events(header), [[1], [2]])
    assert any("HEADER and TEXT disagree" in warning for warning in header.warnings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"$TOT": "3"}, "found 2 of the 3 events"),
        ({"$MODE": "C"}, "histogram"),
        ({"$DATATYPE": "A"}, "data type A"),
        ({"$P1B": "10"}, r'P1B is "10" with data type I, need I with 8, 16, 24'),
        ({"$BYTEORD": "3,4,1,2"}, "BYTEORD is 3,4,1,2"),
        ({"$PAR": "2"}, "PAR is 2"),
        ({"$P1E": "-4,0"}, r'\$P1E is "-4,0", need decades'),
        ({"$P1E": "four,0"}, r'\$P1E is "four,0"'),
        ({"$P1R": "many"}, r'\$P1R is "many", need the range'),
        ({"$TOT": "two"}, r'\$TOT is "two", need the number of events'),
        ({"$TOT": "-2"}, r'\$TOT is "-2"'),
        ({"$BEGINSTEXT": "100", "$ENDSTEXT": "9" * 17}, "TEXT has 99999999999999900 bytes"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_in_one_line(
    tmp_path: Path, change: dict[str, str], message: str
) -> None:
    path = make_fcs(tmp_path / "a.fcs", struct.pack("<2H", 1, 2), channel_keywords([16], ["8"]) | change)
    with pytest.raises(DataError, match=message) as caught:
        read_header(path)
    assert "\n" not in str(caught.value)
    assert "a.fcs" in str(caught.value)


def test_a_name_with_a_padded_number_is_missing(tmp_path: Path) -> None:
    keywords = channel_keywords([16], ["8"])
    keywords["$P01N"] = keywords.pop("$P1N")
    path = make_fcs(tmp_path / "a.fcs", struct.pack("<2H", 1, 2), keywords)
    with pytest.raises(DataError, match=r"\$P1N, the name of channel 1, is missing"):
        read_header(path)


def test_a_truncated_file_says_how_much_is_there(tmp_path: Path) -> None:
    path = tmp_path / "a.fcs"
    write_fcs(path, np.ones((100, 3), np.float32), ["a", "b", "c"])
    path.write_bytes(path.read_bytes()[:-600])
    with pytest.raises(DataError, match="found 50 of the 100 events"):
        read_header(path)


def test_unusable_spillover_is_reported_not_raised(tmp_path: Path) -> None:
    keywords = channel_keywords([32], ["10"], "F") | {"$SPILLOVER": "2,FL1,FL2,1,0"}
    header = read_header(make_fcs(tmp_path / "a.fcs", struct.pack("<2f", 1, 2), keywords))
    assert header.spillover is None
    assert "$SPILLOVER is not a square matrix" in header.spillover_problem


@pytest.mark.parametrize(
    ("instrument", "detector", "kind"),
    [
        ("CyTOF", "x", "mass"),
        ("Helios", "x", "mass"),
        ("", "(Ir191)Di", "mass"),
        ("", "Nd142Di", "mass"),
        ("LSRII", "PE-A", "fluorescence"),
        ("", "FITC-A", "fluorescence"),
    ],
)
def test_the_kind_of_instrument(tmp_path: Path, instrument: str, detector: str, kind: str) -> None:
    write_fcs(
        tmp_path / "a.fcs", np.ones((2, 1), np.float32), [detector], keywords={"$CYT": instrument or "none"}
    )
    assert read_header(tmp_path / "a.fcs").kind == kind


# ----------------------------------------------------------------------------- writing and ranges


@pytest.fixture
def written(tmp_path: Path) -> tuple[np.ndarray, Header]:
    events = np.random.default_rng(1).normal(0, 1e4, (1000, 4)).astype(np.float32)
    path = tmp_path / "written.fcs"
    write_fcs(path, events, ["FSC-A", "PE-A", "a/b", "Time"], ["", "CD4", "NK1/1", ""], {"$P2R": "1024"})
    return events, read_header(path)


def test_written_events_come_back(written: tuple[np.ndarray, Header]) -> None:
    events, header = written
    np.testing.assert_array_equal(read_events(header), events)
    assert [c.detector for c in header.channels] == ["FSC-A", "PE-A", "a/b", "Time"]
    assert [c.marker for c in header.channels] == ["", "CD4", "NK1/1", ""]
    assert [c.range for c in header.channels] == [262144, 1024, 262144, 262144]


def test_ranges_of_rows_and_columns(written: tuple[np.ndarray, Header]) -> None:
    events, header = written
    np.testing.assert_array_equal(read_events(header, 10, 20, [3, 0]), events[10:20, [3, 0]])
    assert read_events(header, 5, 5).shape == (0, 4)


def test_names_must_fit_the_events(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="need 3 columns"):
        write_fcs(tmp_path / "a.fcs", np.ones((2, 2), np.float32), ["a", "b", "c"])


# ------------------------------------------------------------------------------------- mangled files


def mangled(base: bytes) -> st.SearchStrategy[bytes]:
    """Generate files with some bytes or keywords of HEADER and TEXT replaced, or truncated."""
    text_end = int(base[18:26])
    replaced = st.lists(st.tuples(st.integers(0, text_end), st.binary(min_size=1, max_size=6)), max_size=4)
    words = [
        b"$PAR",
        b"$TOT",
        b"$P1B",
        b"$P2R",
        b"$P1N",
        b"$DATATYPE",
        b"$BYTEORD",
        b"$NEXTDATA",
        b"$BEGINDATA",
    ]
    swaps = st.lists(
        st.tuples(st.sampled_from(words), st.sampled_from([b"$XYZ", b"", b"$PAR", b"//", b"9"])), max_size=2
    )
    numbers = st.lists(
        st.tuples(st.sampled_from([10, 18, 26, 34, 42, 50]), st.integers(-(10**6), 10**7)), max_size=3
    )
    cut = st.one_of(st.just(len(base)), st.integers(0, len(base)))

    def build(
        replacements: list[tuple[int, bytes]],
        swapped: list[tuple[bytes, bytes]],
        offsets: list[tuple[int, int]],
        length: int,
    ) -> bytes:
        file = bytearray(base)
        for at, new in replacements:
            file[at : at + len(new)] = new
        for at, number in offsets:
            file[at : at + 8] = b"%8d" % number
        whole = bytes(file)
        for old, new in swapped:
            whole = whole.replace(old, new, 1)
        return whole[:length]

    return st.builds(build, replaced, swaps, numbers, cut)


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fcs") / "small.fcs"
    events = np.random.default_rng(2).normal(0, 1e3, (20, 3)).astype(np.float32)
    write_fcs(
        path, events, ["FSC-A", "PE-A", "APC-A"], ["", "CD4", "CD8"], {"$SPILLOVER": "2,PE-A,APC-A,1,0.1,0,1"}
    )
    return path


@given(data=st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.slow
def test_a_mangled_file_is_read_or_refused(small_file: Path, data: st.DataObject) -> None:
    file = small_file.with_name("mangled.fcs")
    file.write_bytes(data.draw(mangled(small_file.read_bytes())))
    refusal = refusal_of(file)
    assert refusal is None or ("mangled.fcs" in refusal and "\n" not in refusal)


def refusal_of(path: Path) -> str | None:
    """Return the error of a file that is refused, None for a file that is read; other errors propagate."""
    try:
        header = read_header(path)
        events = read_events(header)
    except DataError as error:
        return str(error)
    assert events.shape == (header.n_events, len(header.channels))
    return None
