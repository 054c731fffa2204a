"""The second half of docs/tutorial.md, followed on the page in a browser by docs/page_pictures.py."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image
from quick_jobs import COMMAND, SERVER
from test_how_to import BASH, ROOT, blocks, missing_lines, printed_by

pytestmark = pytest.mark.slow

SECTION = (
    (ROOT / "docs" / "tutorial.md")
    .read_text(encoding="utf-8")
    .partition("\n## The same sample on a page\n")[2]
    .partition("\n## ")[0]
)
SCRIPT = runpy.run_path(str(ROOT / "docs" / "page_pictures.py"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the tutorial's second half leaves behind; said.txt has what the page said."""
    if shutil.which("chromedriver") is None:
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    folder = tmp_path_factory.mktemp("walk")
    (folder / "pictures").mkdir()
    printed_by([*BASH, "dpmix simulate sample.fcs"], folder)
    follow = SCRIPT["follow"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(follow.__globals__, "PROGRAM", SERVER)
        (folder / "said.txt").write_text(follow(folder, folder / "pictures"), encoding="utf-8")
    return folder


def test_the_pictures_are_those_of_the_pages(folder: Path) -> None:
    how_to = SCRIPT["HOW_TO"].read_text(encoding="utf-8")
    shown = set(re.findall(r"pictures/(page-\w+\.png)\)", SECTION + how_to))
    assert {path.name for path in (folder / "pictures").iterdir()} == shown
    kept = ROOT / "docs" / "pictures"
    assert {path.name for path in kept.glob("page-*.png")} == shown
    for name in shown:
        assert (kept / name).stat().st_size <= SCRIPT["MOST_BYTES"]
        with Image.open(kept / name) as picture:
            assert picture.width <= SCRIPT["WIDTH"]


def test_the_names_are_those_of_the_tutorial() -> None:
    table = SECTION.partition("| name | markers |\n| --- | --- |\n")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| (.+) \| (.+) \|$", table, flags=re.MULTILINE)) == SCRIPT["NAMES"]


def test_the_commands_give_the_result_of_the_page(folder: Path) -> None:
    (commands,) = (text for kind, text in blocks(SECTION) if kind == "sh page")
    quicker = folder / "bin" / "dpmix"
    quicker.parent.mkdir()
    quicker.write_text(f"#!{sys.executable}\n{COMMAND}\n", encoding="utf-8")
    quicker.chmod(0o755)
    path = f"{quicker.parent}{os.pathsep}{os.environ['PATH']}"
    printed = printed_by([*BASH, commands], folder, PATH=path)
    assert printed.endswith("written: again; open again/report.html in a browser\n")
    assert (folder / "study" / "run.decisions.json").exists()


def test_the_page_says_what_the_tutorial_shows(folder: Path) -> None:
    said = (folder / "said.txt").read_text(encoding="utf-8")
    first, *texts = (text for kind, text in blocks(SECTION) if kind == "text")
    assert first.startswith("open http://127.0.0.1:")
    assert len(texts) == 2
    for text in texts:
        assert missing_lines(text, said) == []
    (share,) = re.findall(r"of 50,000 events \(.+\): \d+ CD4 regulatory ([\d.]+)%", said)
    assert abs(float(share) - 99.8) < 1.0
