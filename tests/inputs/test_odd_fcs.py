"""FCS files that deviate from the standard are read right, with a warning, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import odd_files
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from odd_files import CASES, FLOATS, NAMES, NO_TIME, WORDS, Case, fcs_bytes, keywords_of, moved
from test_fcs import channel_keywords, make_fcs

from dpmix.cli import main
from dpmix.errors import DataError
from dpmix.inputs.fcs import Header, read_header
from dpmix.inputs.fcs_data import read_events
from dpmix.report.fcs_export import Added, Copy
from dpmix.report.gate import predict
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
    assert found is not None, "the other place is right"
    header, events = found
    first, last = places[owner](0, 0)
    event("undecided" if header.undecided else "decided")
    if header.undecided:  # only where both places fit, and no time tells them apart
        assert first != 0
        assert last - first in (0, 1)
        assert names == NO_TIME or first % truth[0].nbytes == 0 or first % truth.itemsize
        assert header.warnings
    else:
        np.testing.assert_array_equal(events, truth.astype(np.float32))
    assert header.warnings or (first, last) in ((0, 0), (0, 1))


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


@given(data=st.data())
@ANY_FILE
def test_no_falsification_is_silent(tmp_path: Path, data: st.DataObject) -> None:
    truth = data.draw(st.sampled_from([FLOATS, WORDS]))
    header_place, text_place = (data.draw(false_places(truth.nbytes)) for _ in range(2))
    header_first, text_first = header_place(0, 0)[0], text_place(0, 0)[0]
    assume(header_first != text_first)  # nothing can show a place on which both agree to be wrong
    tot = data.draw(st.just(len(truth)) | st.integers(0, 90))
    file = fcs_bytes(
        keywords_of(truth, NAMES, TOT=tot),
        truth.tobytes(),
        header=header_place,
        text=text_place,
        gap=data.draw(BYTES),
        tail=data.draw(BYTES),
    )
    found = opened(tmp_path / "a.fcs", file)
    event("refused" if found is None else "read")
    assert found is None or found[0].warnings


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
    assert not found[0].undecided
    assert f"the values of {clock} ascend there" in found[0].warnings[0]


def test_a_clock_that_is_reset_or_stands_still_still_decides(tmp_path: Path) -> None:
    events = np.random.default_rng(3).normal(300, 60, (20_000, 4)).astype("<f4")
    events[:, 3] = np.arange(20_000) // 50 % 150
    file = fcs_bytes(keywords_of(events, NAMES), events.tobytes(), header=moved(4), tail=bytes(4))
    found = opened(tmp_path / "a.fcs", file)
    assert found is not None
    np.testing.assert_array_equal(found[1], events)


def test_a_constant_time_decides_nothing(tmp_path: Path) -> None:
    events = FLOATS.copy()
    events[:, 3] = 7
    file = fcs_bytes(keywords_of(events, NAMES), events.tobytes(), text=moved(4), tail=bytes(4))
    found = opened(tmp_path / "a.fcs", file)
    assert found is not None
    np.testing.assert_array_equal(found[1], events)
    assert found[0].undecided


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
    copy.write(np.arange(40), [np.arange(40)])
    copy.close()
    again = read_header(tmp_path / "b.fcs")
    assert again.keywords["dpmix_warning"] == header.warnings[0]
    assert again.warnings == (f"copied from a file with this warning: {header.warnings[0]}",)
    np.testing.assert_array_equal(read_events(again)[:, :4], WORDS)


def test_fcs_files_are_not_exported_where_events_may_be_shifted(folder: Path) -> None:
    events = np.random.default_rng(1).normal(300, 60, (300, 3)).astype("<f4")
    file = fcs_bytes(keywords_of(events, NO_TIME[:3]), events.tobytes(), text=moved(4), tail=bytes(4))
    (folder / "a.fcs").write_bytes(file)
    (folder / "run.yaml").write_text(f"data: {{files: [a.fcs]}}\n{SETTINGS}")
    dpmix("mcmc", "run.yaml", "--quiet")
    result = CliRunner().invoke(main, ["gate", "run.h5", "--output", "gated", "--format", "fcs"])
    assert result.exit_code == 1
    assert "a.fcs: HEADER and TEXT disagree on the place of the events" in result.output
    assert not list((folder / "gated").glob("*"))
