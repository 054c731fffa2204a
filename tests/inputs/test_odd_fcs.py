"""FCS files that deviate from the standard are read right, with a warning, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import falsified_files
import numpy as np
import odd_files
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from odd_files import CASES, FLOATS, NAMES, NO_TIME, WORDS, Case, fcs_bytes, keywords_of, moved
from test_fcs import channel_keywords, make_fcs

from dpmix.cli import main
from dpmix.commands.gate import predict
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.compensation import match_matrix, own_matrix
from dpmix.inputs.fcs.data import read_events
from dpmix.inputs.fcs.header import Header, read_header
from dpmix.inputs.opening import open_source
from dpmix.inputs.suggest import suggest
from dpmix.report.fcs_export import Added, Copy
from dpmix.runs.reader import open_run

SETTINGS = "model: {components: 4}\nmcmc: {burn_in: 2, draws: 3}\nengine: {backend: cpu, threads: 1}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dpmix(*arguments: str) -> Result:
    result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


# ------------------------------------------------------------------------------------- one oddity each


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.odd)
def test_an_odd_file_gives_its_values_or_is_refused(tmp_path: Path, case: Case) -> None:
    found = odd_files.read(case, tmp_path)
    if case.values is None:
        assert isinstance(found, str), "it must be refused"
        assert found.startswith("a.fcs: ")
        assert "\n" not in found
    else:
        assert not isinstance(found, str), found
        np.testing.assert_array_equal(found.read(0, found.n_events), case.values.astype(np.float32))


def test_the_page_lists_all_odd_files() -> None:
    page = odd_files.PAGE.read_text(encoding="utf-8")
    assert page == odd_files.page(), "run: python tests/inputs/odd_files.py"


def read_of(folder: Path, file: bytes) -> Header:
    (folder / "a.fcs").write_bytes(file)
    return read_header(folder / "a.fcs")


@pytest.mark.parametrize("more", [b"SORTSTATS/Left/", b"/SORTSTATS/Left/", b"\n/SORTSTATS/Left/"])
def test_a_supplement_never_joins_the_last_value_of_text(tmp_path: Path, more: bytes) -> None:
    header = read_of(tmp_path, odd_files.with_supplement(more))
    assert header.channels[3].marker == "CD8"
    assert header.keywords["sortstats"] == "Left"


def test_keywords_without_a_dollar_replace_none_of_the_standard(tmp_path: Path) -> None:
    others = {
        "P1DATATYPE": "D",
        "BEGINANALYSIS": 70,
        "MODE": "Sheath",
        "TOT": 12,
        "PAR": 9,
        "P1R": 7,
        "P9N": "x",
        "P2S": "Lamp",
        "FIL": "other",
    }
    text = keywords_of(FLOATS, NAMES, P2S="CD3", FIL="a.fcs")
    for keywords in (text | others, others | text):
        header = read_of(tmp_path, fcs_bytes(keywords, FLOATS.tobytes()))
        assert (header.n_events, header.channels[0].range, header.channels[1].marker) == (40, 1024, "CD3")
        assert header.keywords["fil"] == "a.fcs"
        copy = Copy(header, tmp_path / "b.fcs", [Added("dpmix_population", "population", 9)])
        copy.close()
        again = read_header(tmp_path / "b.fcs")
        assert len(again.channels) == 5, "a copy changes $PAR, not PAR"
        assert (b"PAR", b"9") in again.text


def test_numbers_with_decimal_commas(tmp_path: Path) -> None:
    changes = {"P2E": "4,0,1,0", "P3G": "2,5", "P4R": "1024,0", "TIMESTEP": "0,01"}
    header = read_of(tmp_path, odd_files.words(changes=changes))
    assert header.channels[1].log == (4.0, 1.0)
    assert header.channels[2].gain == 2.5
    assert header.channels[3].range == 1024
    assert header.notes == ()


# ------------------------------------------------------------------------------- false places and ranges


@pytest.mark.parametrize("step", [-3, -2, -1, 1, 2, 3])
@pytest.mark.parametrize("kind", ["<f4", ">f4", "<f8"])
def test_floats_some_bytes_away_are_refused_without_a_clock(tmp_path: Path, step: int, kind: str) -> None:
    """An edit of TEXT: HEADER and TEXT agree, and no channel ascends."""
    rng = np.random.default_rng(abs(step))
    for truth in (rng.normal(0, 300, (400, 4)), rng.poisson(20, (400, 4)), rng.gamma(0.5, 1e4, (400, 4))):
        order = {"BYTEORD": "4,3,2,1" if kind[0] == ">" else "1,2,3,4"}
        events = truth.astype(kind)
        keywords = keywords_of(events, NO_TIME, **order) | {"$DATATYPE": "FD"[kind[2:] == "8"]}
        places = {"header": moved(step), "text": moved(step)}
        assert opened(tmp_path / "a.fcs", fcs_bytes(keywords, events.tobytes())) is not None
        file = fcs_bytes(keywords, events.tobytes(), gap=bytes(8), tail=b"00000000", **places)
        (tmp_path / "a.fcs").write_bytes(file)
        with pytest.raises(
            DataError, match=r"cannot be measurements .* they are plausible: (this place|.BYTEORD) is"
        ):
            read_header(tmp_path / "a.fcs")


def test_odd_values_in_the_right_place_are_read(tmp_path: Path) -> None:
    """A probability of 1e-30 in one channel, one value of 1e30, and NaN are no false place."""
    events = np.random.default_rng(5).normal(300, 60, (400, 4)).astype("<f4")
    events[:, 3] = 1e-30
    events[7, 1] = 1e30
    events[::2, 2] = np.nan
    found = opened(tmp_path / "a.fcs", fcs_bytes(keywords_of(events, NO_TIME), events.tobytes()))
    assert found is not None
    np.testing.assert_array_equal(found[1], events)
    assert found[0].warnings == ()


def test_saturated_integers_keep_their_values(tmp_path: Path) -> None:
    """24 of 32 bits are in use; a few events lie just above them, one where no sample is read."""
    events = np.random.default_rng(6).integers(0, 2**24, (20_000, 4)).astype("<u4")
    events[200, 1] = 2**24 + 500
    keywords = keywords_of(events, NAMES, **{f"P{n}R": 2**24 for n in range(1, 5)})
    header = read_of(tmp_path, fcs_bytes(keywords, events.tobytes()))
    assert read_events(header)[200, 1] == 2**24 + 500
    events[::20, 1] = 2**24 + np.arange(1000)
    header = read_of(tmp_path, fcs_bytes(keywords, events.tobytes()))
    np.testing.assert_array_equal(read_events(header), events.astype(np.float32))
    assert "values read are above $P2R (16777216); they are used as they are" in header.warnings[-1]


@pytest.mark.parametrize("share", [0.2, 0.6])
def test_many_saturated_integers_are_no_tags(tmp_path: Path, share: float) -> None:
    random = np.random.default_rng(9)
    events = random.integers(0, 1024, (2000, 4)).astype("<u2")
    saturated = random.random(2000) < share
    events[saturated, 1] = 1024 + random.integers(0, 5, saturated.sum())
    header = read_of(tmp_path, fcs_bytes(keywords_of(events, NAMES), events.tobytes()))
    np.testing.assert_array_equal(read_events(header), events)
    assert f"{saturated.sum()} of 2000 values read are above $P2R (1024)" in header.warnings[-1]


@pytest.mark.parametrize("limit", [1024, "4096"])
def test_a_false_range_of_integers_is_no_range(tmp_path: Path, limit: object) -> None:
    """1,024 is written for all; all events of forward scatter are above it, by other high bits each."""
    events = np.random.default_rng(10).lognormal(6, 2, (2000, 4)).clip(0, 60_000).astype("<u2")
    events[:, 0] = np.random.default_rng(11).normal(40_000, 4_000, 2000)
    keywords = keywords_of(events, NAMES, **{f"P{n}R": limit for n in range(1, 5)})
    (tmp_path / "a.fcs").write_bytes(fcs_bytes(keywords, events.tobytes()))
    source = open_source(tmp_path / "a.fcs")
    np.testing.assert_array_equal(source.read(0, 2000), events)
    assert [channel.range for channel in source.details] == [None] * 4
    assert [one.transform.method for one in suggest([source]).channels if one.transform] == ["logicle"] * 2


@pytest.mark.parametrize(
    ("text", "limit"), [("262,144", 262_144), ("1.024", 1024), ("1.048.576", 1_048_576), ("1024,0", 1024)]
)
def test_ranges_with_separators(tmp_path: Path, text: str, limit: float) -> None:
    assert read_of(tmp_path, odd_files.words(changes={"P2R": text})).channels[1].range == limit


@pytest.mark.parametrize("kind", ["<u2", ">u2", "<u4", ">u4"])
@pytest.mark.parametrize("step", [-1, 1, None])
def test_integers_at_a_false_place_or_in_a_false_order(tmp_path: Path, kind: str, step: int | None) -> None:
    """Without a channel of time, only their ranges show it; `None` is the other byte order."""
    events = np.random.default_rng(12).integers(0, 1024, (300, 4)).astype(kind)
    order = "1,2,3,4" if (kind[0] == "<") == (step is not None) else "4,3,2,1"
    keywords = keywords_of(events, NO_TIME, BYTEORD=order)
    place = odd_files.moved(step or 0)
    file = fcs_bytes(keywords, events.tobytes(), header=place, text=place, gap=bytes(8), tail=bytes(8))
    (tmp_path / "a.fcs").write_bytes(file)
    where = "the other byte order" if step is None else f"1 bytes {'earlier' if step > 0 else 'later'}"
    with pytest.raises(
        DataError, match=rf"of the values are above their ranges .*none is .*{where}.* is false"
    ):
        read_header(tmp_path / "a.fcs")


@pytest.mark.parametrize("command", ["init", "mcmc"])
def test_stored_logarithms_far_above_their_range_are_refused(folder: Path, command: str) -> None:
    """Some values of a damaged file would be above 10^200; float32 holds less than 10^39."""
    events = np.random.default_rng(7).integers(0, 1024, (2000, 4)).astype("<u2")
    events[:, 2] = np.random.default_rng(8).integers(0, 65_536, 2000)
    keywords = keywords_of(events, NAMES, P3E="4,1")
    Path("a.fcs").write_bytes(fcs_bytes(keywords, events.tobytes()))
    Path("run.yaml").write_text("data: {files: [a.fcs]}\nmcmc: {burn_in: 2, draws: 1}\n")
    result = CliRunner().invoke(main, [command, "a.fcs" if command == "init" else "run.yaml"])
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1, result.output
    assert NAMES[2] in result.output
    assert "not finite" in result.output


@pytest.mark.parametrize("tag", [1, 2, 3, 14])
def test_numbers_of_channels_in_high_bits_are_removed(tmp_path: Path, tag: int) -> None:
    stored = WORDS.copy()
    stored[:, 2] |= tag << 10
    header = read_of(tmp_path, fcs_bytes(keywords_of(WORDS, NAMES), stored.tobytes()))
    np.testing.assert_array_equal(read_events(header), WORDS)
    assert header.warnings == ()


# ------------------------------------------------------------------------------- the spillover matrix


def spilled(**keywords: str) -> bytes:
    return odd_files.floats(NO_TIME, changes={"P2S": "4"}, more=keywords)


@pytest.mark.parametrize(
    ("keywords", "detectors", "share"),
    [
        ({"$SPILLOVER": "2,2,3,1,0.1,0,1"}, ("CD3", "CD4"), 0.1),
        ({"$SPILLOVER": "2,3,4,1,0.1,0,1"}, ("3", "4"), 0.1),  # one of them is a marker, so they are names
        ({"$SPILLOVER": "2,3,9,1,0.1,0,1"}, ("3", "9"), 0.1),  # the file has no channel 9
        ({"$SPILLOVER": "2,CD3,CD4,1,0,0,1", "SPILL": "2,CD4,CD8,1,0.3,0,1"}, ("CD4", "CD8"), 0.3),
        ({"$SPILLOVER": "2,V1,V2,1,0.2,0,1", "SPILL": "2,CD4,CD8,1,0.3,0,1"}, ("CD4", "CD8"), 0.3),
        ({"$SPILLOVER": "2,CD3,CD4,1,0.2,0,1", "SPILL": "2,V1,V2,1,0.3,0,1"}, ("CD3", "CD4"), 0.2),
        ({"$SPILLOVER": "2,CD3", "SPILL": "2,CD4,CD8,1,0.3,0,1"}, ("CD4", "CD8"), 0.3),
        ({"SPILL": "2,CD4,CD8,1,000,0,300,0,000,1,000"}, ("CD4", "CD8"), 0.3),
        ({"SPILL": "2,CD4,CD8,1,0,-0,05,0,0,1,0"}, ("CD4", "CD8"), -0.05),
        ({"SPILL": "2, CD4 ,CD8,1,0.3,0,1,"}, ("CD4", "CD8"), 0.3),
        ({"SPILL": "2;CD4;CD8;1;0,3;0;1"}, ("CD4", "CD8"), 0.3),
        ({"SPILL": "2,CD4,CD8,1,0,4,5E-05,0,0,1,0"}, ("CD4", "CD8"), 4.5e-5),
        ({"SPILL": "2,CD4,CD8,100,30,0,100"}, ("CD4", "CD8"), 0.3),
        ({"$SPILLOVER": "0", "SPILL": "2,CD4,CD8,1,0.3,0,1"}, ("CD4", "CD8"), 0.3),
        ({"SPILL": "2,1,2,1,0.3,0,1"}, ("1", "2"), 0.3),  # channel 1 is scatter, so they are other numbers
    ],
)
def test_the_matrix_that_was_meant(
    tmp_path: Path, keywords: dict[str, str], detectors: tuple[str, ...], share: float
) -> None:
    header = read_of(tmp_path, spilled(**keywords))
    assert header.spillover is not None, header.spillover_problem
    assert header.spillover.detectors == detectors
    np.testing.assert_allclose(header.spillover.matrix[0], [1, share])


@pytest.mark.parametrize(
    ("second", "warns"),
    [("2,CD3,CD4,1,0.2,0,1", False), ("2,CD4,CD3,1,0,0.2,1", False), ("2,CD3,CD4,1,0.3,0,1", True)],
)
def test_two_matrices_that_differ_are_a_warning(tmp_path: Path, second: str, warns: bool) -> None:
    header = read_of(tmp_path, spilled(**{"$SPILLOVER": "2,CD3,CD4,1,0.2,0,1", "SPILL": second}))
    assert bool(header.warnings) == warns


@pytest.mark.parametrize(
    "value", ["2,CD3,CD4,1,000,0,1,000,1", "2,CD3,CD3,1,0,0,1", "x", "2,CD3,CD4,1,0,0,nan", "2,1,.1,0,1"]
)
def test_a_matrix_that_cannot_be_read_says_so(tmp_path: Path, value: str) -> None:
    header = read_of(tmp_path, spilled(SPILL=value))
    assert header.spillover is None
    assert header.spillover_problem.startswith("SPILL is not a square matrix")


@pytest.mark.parametrize("value", ["0", "0,", ","])
def test_a_matrix_of_no_channels_is_none(tmp_path: Path, value: str) -> None:
    header = read_of(tmp_path, spilled(SPILL=value))
    assert (header.spillover, header.spillover_problem) == (None, "")


@pytest.mark.parametrize("names", ["cd3,Cd4", "CD3,cd4"])
def test_a_matrix_whose_names_have_another_case(tmp_path: Path, names: str) -> None:
    (tmp_path / "a.fcs").write_bytes(spilled(SPILL=f"2,{names},1,0.3,0,1"))
    source = open_source(tmp_path / "a.fcs")
    found = own_matrix(source, False)
    assert found.spillover is not None, found.note
    assert match_matrix(found.spillover, source).channels == (1, 2)


# ------------------------------------------------------------------------------- several data sets


@pytest.mark.parametrize("between", [b"", b"00000000", bytes(6), b"  12abcdEF\0"])
@pytest.mark.parametrize("late", [0, 1])
def test_whole_files_one_after_another_are_data_sets(tmp_path: Path, between: bytes, late: int) -> None:
    parts = [odd_files.floats(text=odd_files.longer(late)), odd_files.words(), odd_files.floats()]
    (tmp_path / "a.fcs").write_bytes(between.join(parts))
    source = open_source(tmp_path / "a.fcs")
    assert source.warnings == (
        "3 data sets follow each other in the file, which $NEXTDATA does not say; only the first is read; "
        "add the others by name: a.fcs::2, a.fcs::3",
    )
    for number, values in enumerate((FLOATS, WORDS, FLOATS), start=1):
        part = open_source(tmp_path / "a.fcs", str(number))
        np.testing.assert_array_equal(part.read(0, 40), values.astype(np.float32))
        assert part.warnings == (), "who names a part knows of the others"


@pytest.mark.parametrize("between", [b"/KEY/VALUE/", bytes(range(1, 50))])
def test_a_file_behind_other_bytes_must_have_a_text(tmp_path: Path, between: bytes) -> None:
    (tmp_path / "a.fcs").write_bytes(odd_files.floats() + between + odd_files.words())
    assert "2 data sets follow each other" in open_source(tmp_path / "a.fcs").warnings[0]
    (tmp_path / "a.fcs").write_bytes(odd_files.floats() + between + odd_files.words()[:70])
    assert open_source(tmp_path / "a.fcs").warnings == ()


def test_next_data_that_counts_from_the_start_of_the_file(tmp_path: Path) -> None:
    one = odd_files.floats(changes=odd_files.LINK)
    linked = [one.replace(b"$NEXTDATA/%012d" % 0, b"$NEXTDATA/%012d" % (len(one) * k)) for k in (1, 2)]
    (tmp_path / "a.fcs").write_bytes(b"".join([*linked, odd_files.words()]))
    np.testing.assert_array_equal(open_source(tmp_path / "a.fcs", "3").read(0, 40), WORDS)


def test_a_broken_file_behind_a_data_set_is_refused_only_if_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.fcs").write_bytes(odd_files.floats() + odd_files.floats()[:100])
    assert "2 data sets" in open_source(tmp_path / "a.fcs").warnings[0]
    with pytest.raises(DataError, match="TEXT has bytes 58 to"):
        open_source(tmp_path / "a.fcs", "2")


# ------------------------------------------------------------------------------ any offsets and $TOT

ANY_FILE = settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
BYTES = st.integers(0, 80).map(lambda n: bytes(range(n)))
Offsets = tuple[int, int]


def opened(path: Path, file: bytes) -> tuple[Header, np.ndarray] | None:
    """Return header and events of a file, None if it is refused."""
    path.write_bytes(file)
    try:
        header = read_header(path)
        return header, read_events(header)
    except DataError:
        return None


def is_start(events: np.ndarray, truth: np.ndarray) -> bool:
    return np.array_equal(events, truth[: len(events)].astype(np.float32))


@st.composite
def false_places(draw: st.DrawFn, size: int) -> odd_files.Places:
    """Generate places that are moved, or start or end anywhere."""
    steps = st.integers(-90, 90) | st.integers(-size, size)
    first_by, last_by = draw(steps), draw(steps)
    if draw(st.booleans()):
        last_by = first_by
    return lambda first, last: (first + first_by, last + last_by)


@pytest.mark.parametrize("owner", ["header", "text"])
@given(data=st.data())
@ANY_FILE
def test_one_false_place_never_shifts_the_events(tmp_path: Path, owner: str, data: st.DataObject) -> None:
    truth = data.draw(st.sampled_from([FLOATS, WORDS]))
    names = data.draw(st.sampled_from([NAMES, NO_TIME]))
    places = {owner: data.draw(false_places(truth.nbytes))}
    gap, tail = data.draw(BYTES), data.draw(BYTES)
    file = fcs_bytes(keywords_of(truth, names), truth.tobytes(), gap=gap, tail=tail, **places)
    found = opened(tmp_path / "a.fcs", file)
    first, last = places[owner](0, 0)
    event("refused" if found is None else "read")
    if found is None:  # nothing tells the places apart
        assert first != 0
        assert names == NO_TIME or first % truth[0].nbytes == 0 or len(gap) >= truth[0].nbytes
    else:
        np.testing.assert_array_equal(found[1], truth.astype(np.float32))
        assert found[0].warnings or (first, last) in ((0, 0), (0, 1))


@given(tot=st.integers(-5, 90), gap=BYTES, tail=BYTES)
@ANY_FILE
def test_a_false_number_of_events_is_refused_or_gives_a_warning(
    tmp_path: Path, tot: int, gap: bytes, tail: bytes
) -> None:
    file = fcs_bytes(keywords_of(FLOATS, NAMES, TOT=tot), FLOATS.tobytes(), gap=gap, tail=tail)
    found = opened(tmp_path / "a.fcs", file)
    assert (found is None) == (tot < 0 or tot > len(FLOATS))
    if found:
        assert len(found[1]) == tot
        assert is_start(found[1], FLOATS)
        assert bool(found[0].warnings) == (tot < len(FLOATS))


def test_files_with_several_false_numbers_are_read_right_or_refused() -> None:
    found = falsified_files.counts(800, seed=1)
    assert {kind for _, kind, _ in found} == {"exact", "first events", "refused"}
    assert not any(found[clock, "first events", False] for clock in (True, False))


@pytest.mark.parametrize("columns", [-3, -1, 1, 2, 5])
@pytest.mark.parametrize("owner", ["header", "text"])
@pytest.mark.parametrize("clock", ["Time", "TIME", "HDR-T", "Event #", "Event_Count"])
def test_a_channel_that_counts_decides_where_columns_are_shifted(
    tmp_path: Path, columns: int, owner: str, clock: str
) -> None:
    room, places = bytes(100), {owner: moved(4 * columns)}
    file = fcs_bytes(
        keywords_of(FLOATS, [*NAMES[:3], clock]), FLOATS.tobytes(), gap=room, tail=room, **places
    )
    found = opened(tmp_path / "a.fcs", file)
    assert found is not None
    np.testing.assert_array_equal(found[1], FLOATS)
    assert f"the values of {clock} ascend only there" in found[0].warnings[0]


@pytest.mark.parametrize("step", [-7, -4, -1, 1, 2, 6])
@pytest.mark.parametrize("truth", [FLOATS, WORDS])
def test_the_same_false_first_byte_is_refused_where_time_ascends_elsewhere(
    tmp_path: Path, truth: np.ndarray, step: int
) -> None:
    """An edit of TEXT that moved the events, with no offset adjusted."""
    places = {"header": moved(step), "text": moved(step)}
    file = fcs_bytes(keywords_of(truth, NAMES), truth.tobytes(), gap=bytes(20), tail=bytes(20), **places)
    assert opened(tmp_path / "a.fcs", file) is None


def test_reordered_events_are_read_with_a_warning(tmp_path: Path) -> None:
    """Sorted by another column, which then ascends where Time does not."""
    events = np.random.default_rng(4).permutation(np.repeat(FLOATS, 10, axis=0))
    events[:, 0] = np.arange(400) // 40  # ten clusters
    file = fcs_bytes(keywords_of(events, NAMES), events.tobytes())
    found = opened(tmp_path / "a.fcs", file)
    assert found is not None
    np.testing.assert_array_equal(found[1], events)
    assert (
        found[0].warnings[0].startswith("the values of Time do not ascend: the events are in another order")
    )
    file = fcs_bytes(keywords_of(events, ["Event #", *NAMES[1:]]), events.tobytes())
    found = opened(tmp_path / "a.fcs", file)
    assert found is not None
    assert found[0].warnings == (), "one channel that ascends is enough"


def test_a_clock_that_is_reset_or_stands_still_still_decides(tmp_path: Path) -> None:
    events = np.random.default_rng(3).normal(300, 60, (20_000, 4)).astype("<f4")
    events[:, 3] = np.arange(20_000) // 50 % 150
    file = fcs_bytes(keywords_of(events, NAMES), events.tobytes(), header=moved(4), tail=bytes(4))
    found = opened(tmp_path / "a.fcs", file)
    assert found is not None
    np.testing.assert_array_equal(found[1], events)


@pytest.mark.parametrize(("tail", "read"), [(bytes(4), True), (b"0000abcd", True), (b"other", False)])
def test_where_no_channel_counts_the_events_must_fill_the_file(
    tmp_path: Path, tail: bytes, read: bool
) -> None:
    events = FLOATS.copy()
    events[:, 3] = 7
    file = fcs_bytes(keywords_of(events, NAMES), events.tobytes(), text=moved(4), tail=tail)
    found = opened(tmp_path / "a.fcs", file)
    assert (found is not None) == read
    if found:
        np.testing.assert_array_equal(found[1], events)
        assert (
            found[0]
            .warnings[0]
            .endswith("HEADER is used: the events fill the file between TEXT and its end there")
        )


@pytest.mark.parametrize("events", [-2, 1, 3])
@pytest.mark.parametrize("names", [NAMES, NO_TIME])
def test_a_place_that_is_moved_by_whole_events_is_refused(
    tmp_path: Path, events: int, names: list[str]
) -> None:
    places = {"header": moved(16 * events), "text": moved(-10_000)}
    file = fcs_bytes(keywords_of(FLOATS, names), FLOATS.tobytes(), gap=b"x" * 50, tail=b"x" * 50, **places)
    assert opened(tmp_path / "a.fcs", file) is None


# ------------------------------------------------------------------------ where a warning is shown


def test_a_warning_is_shown_by_every_command_and_stored(folder: Path) -> None:
    events = np.random.default_rng(1).normal(100, 20, (300, 2)).astype("<f4")
    keywords = channel_keywords([32, 32], ["1024", "1024"], "F", n_events=len(events))
    make_fcs(folder / "a.fcs", events.tobytes(), keywords, header_data=(70, 90))
    (folder / "run.yaml").write_text(f"data: {{files: [a.fcs]}}\n{SETTINGS}")
    warning = "a.fcs: HEADER and TEXT disagree"
    assert dpmix("mcmc", "run.yaml", "--quiet").output.count(f"warning: {warning}") == 1
    (stored,) = open_run("run.h5").data_warnings
    assert stored.startswith(warning)
    assert f"warning: {warning}" in dpmix("info", "run.h5").output
    assert "warning: HEADER and TEXT disagree" in dpmix("info", "a.fcs").output
    (folder / "a.fcs").rename(folder / "moved.fcs")
    lost = CliRunner().invoke(main, ["gate", "run.h5", "--output", "gated", "--quiet"])
    assert "a.fcs matches no file in" in lost.output
    assert lost.output.endswith("if the files have moved, name them with --data\n")
    (folder / "moved.fcs").rename(folder / "a.fcs")
    gating = predict("run.h5", ["a.fcs"], "predicted")
    assert [stored] == list(gating.warnings)
    assert f"warning: {warning}" in dpmix("predict", "run.h5", "a.fcs", "--output", "b", "--quiet").output
    dpmix("init", "a.fcs", "--output", "new.yaml")
    assert "# warning: HEADER and TEXT disagree" in (folder / "new.yaml").read_text()


def test_a_copy_states_the_warnings_of_its_original(tmp_path: Path) -> None:
    case = next(case for case in CASES if "FC500" in case.odd)
    (tmp_path / "a.fcs").write_bytes(case.file)
    header = read_header(tmp_path / "a.fcs")
    copy = Copy(header, tmp_path / "b.fcs", [Added("dpmix_population", "population", 9)])
    copy.write(np.arange(40), [np.arange(40) % 10])
    copy.close()
    again = read_header(tmp_path / "b.fcs")
    assert again.keywords["dpmix_warning"] == header.warnings[0]
    assert again.warnings == (f"copied from a file with this warning: {header.warnings[0]}",)
    np.testing.assert_array_equal(read_events(again)[:, :4], WORDS)


def test_four_numbers_that_agree_may_be_false_together(tmp_path: Path) -> None:
    """The length of TEXT is wrong by 4 in all offsets but $BEGINDATA: HEADER fits $ENDDATA and $TOT."""
    file = odd_files.floats(NO_TIME, header=moved(4), text=odd_files.longer(4), tail=odd_files.TAIL)
    assert opened(tmp_path / "a.fcs", file) is None


# ------------------------------------------------------------------------- the place that a user chooses


@pytest.mark.parametrize(("false", "choice"), [("text", "header"), ("header", "text")])
@pytest.mark.parametrize("second", [False, True])
def test_a_user_chooses_where_nothing_in_the_file_does(
    folder: Path, false: str, choice: str, second: bool
) -> None:
    doubtful = odd_files.floats(NO_TIME, tail=odd_files.TAIL, **{false: moved(4)})
    first = odd_files.floats(changes=odd_files.LINK)
    (folder / "a.fcs").write_bytes(odd_files.data_sets(first, doubtful) if second else doubtful)
    part = "2::" if second else ""
    with pytest.raises(DataError, match="nothing in the file shows which is right"):
        open_source("a.fcs", part.strip(":"))
    source = open_source("a.fcs", f"{part}{choice}")
    np.testing.assert_array_equal(source.read(0, 40), FLOATS)
    assert source.name == f"a.fcs::{part}{choice}"
    assert source.warnings[0].endswith(
        f"; {choice.upper()} is used: ::{choice} asks for it; nothing in the file shows which is right"
    )
    other = open_source("a.fcs", f"{part}{false}")
    assert not np.array_equal(other.read(0, 40), FLOATS), "a choice must count"


def test_a_choice_is_a_warning_that_stays_and_no_copy_hides_it(folder: Path) -> None:
    events = np.random.default_rng(1).normal(100, 20, (300, 4)).astype("<f4")
    file = fcs_bytes(keywords_of(events, NO_TIME), events.tobytes(), text=moved(4), tail=bytes(range(1, 40)))
    (folder / "a.fcs").write_bytes(file)
    (folder / "run.yaml").write_text(f'data: {{files: ["a.fcs::header"]}}\n{SETTINGS}')
    assert ": ::header asks for it; " in dpmix("mcmc", "run.yaml", "--quiet").output
    (stored,) = open_run("run.h5").data_warnings
    assert stored.startswith("a.fcs::header: HEADER and TEXT disagree")
    assert f"warning: {stored}" in dpmix("info", "run.h5").output
    assert ": ::header asks for it; " in dpmix("gate", "run.h5", "--output", "gated", "--quiet").output
    copy = CliRunner().invoke(main, ["gate", "run.h5", "--output", "copies", "--format", "fcs", "--quiet"])
    assert copy.exit_code == 1
    assert copy.output.endswith(
        "a.fcs::header: nothing in the file shows where its events are, and a copy would hide that; "
        "use --format parquet, csv, h5ad\n"
    )
    assert not (folder / "copies").exists()


@pytest.mark.parametrize(
    ("file", "choice", "found"),
    [
        (odd_files.floats(text=moved(-100)), "text", "the place by TEXT overlaps the keywords"),
        (odd_files.floats(text=None, version="FCS2.0"), "text", "TEXT has no place of the events"),
        (
            odd_files.floats(header=moved(4), tail=odd_files.TAIL),
            "header",
            "the values of Time ascend only there",
        ),
    ],
)
def test_a_choice_that_the_file_contradicts_is_refused(
    tmp_path: Path, file: bytes, choice: str, found: str
) -> None:
    (tmp_path / "a.fcs").write_bytes(file)
    with pytest.raises(DataError, match=f"{found}; remove ::{choice} from the name of the file"):
        open_source(tmp_path / "a.fcs", choice)


@pytest.mark.parametrize("choice", ["header", "text"])
def test_a_choice_changes_nothing_where_both_agree(tmp_path: Path, choice: str) -> None:
    (tmp_path / "a.fcs").write_bytes(odd_files.floats())
    source = open_source(tmp_path / "a.fcs", choice)
    np.testing.assert_array_equal(source.read(0, 40), FLOATS)
    assert source.warnings == ()


@pytest.mark.parametrize("part", ["x", "header::2", "HEADER::x", "2text", "-1"])
def test_a_part_that_no_fcs_file_has(tmp_path: Path, part: str) -> None:
    (tmp_path / "a.fcs").write_bytes(odd_files.floats())
    with pytest.raises(ConfigError, match="need the number of a data set of the FCS file"):
        open_source(tmp_path / "a.fcs", part)
