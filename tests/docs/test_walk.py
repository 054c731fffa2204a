"""Follow docs/tutorial.md with fewer events, sweeps and draws; compare its files with the reference.

`.ci/run` runs the commands by the wheel, in processes of their own.
"""

import contextlib
import re
from pathlib import Path

import pytest
from test_how_to import Follower

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
FILES = PAGE.parent / "reference" / "gating-files.md"


def blocks() -> list[tuple[str, str]]:
    """Return language and text of the blocks: tutorial after its installation, then reference."""
    walk = PAGE.read_text(encoding="utf-8").partition("## A sample")[2] + FILES.read_text(encoding="utf-8")
    return re.findall(r"^```(sh|python|r)\n(.*?)^```$", walk, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which every block has been run."""
    folder = tmp_path_factory.mktemp("walk")
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as monkeypatch:
        follower = Follower(folder, monkeypatch)
        for language, text in blocks():
            follower.ways[language](text)
    return folder


def test_there_is_a_walk() -> None:
    shell = [text for language, text in blocks() if language == "sh"]
    assert {line.split()[1] for text in shell for line in text.splitlines()} == {
        "run",
        "simulate",
        "info",
        "init",
        "mcmc",
        "gate",
        "predict",
    }


def test_every_block_works_and_the_files_that_the_page_names_are_there(walked: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = FILES.read_text(encoding="utf-8").partition("| file | contents |")[2].partition("\n\n")[0]
    names = re.findall(r"^\| `([^`]+)` \|", table, flags=re.MULTILINE)
    assert len(names) == 8
    assert [name for name in names if not (walked / "gated" / name).exists()] == []
    named = set(re.findall(r"`((?:gated|new|both|figures)/[\w.-]+\.\w+)`", page))
    assert "gated/sample.gated.fcs" in named
    places = {name: walked / ("gated" if name.startswith("figures/") else "") / name for name in named}
    assert [name for name, path in places.items() if not path.is_file()] == []


def test_the_columns_of_the_events_are_those_of_the_reference(walked: Path) -> None:
    import flowio
    import pandas

    page = FILES.read_text(encoding="utf-8")
    table = page.partition("| column of the events |")[2].partition("\n\n")[0]
    columns = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    events = pandas.read_parquet(walked / "gated" / "events.parquet")
    assert list(events.columns) == columns
    predicted = pandas.read_parquet(walked / "new" / "events.parquet")
    assert list(predicted.columns[: len(columns) + 1]) == [*columns, "p1"]
    table = page.partition("| channel |")[2].partition("\n\n")[0]
    channels = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert flowio.FlowData(walked / "gated" / "sample.gated.fcs").pnn_labels[-4:] == channels
