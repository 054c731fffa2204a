"""The pictures of the page of `dpmix app`: `make pictures` takes them as it follows the tutorial."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
SECTION = (
    (ROOT / "docs" / "tutorial.md")
    .read_text(encoding="utf-8")
    .partition("\n## The same sample on a page\n")[2]
    .partition("\n## ")[0]
)
SCRIPT = runpy.run_path(str(ROOT / "docs" / "page_pictures.py"))


def test_the_pages_show_the_pictures_that_are_there() -> None:
    how_to = SCRIPT["HOW_TO"].read_text(encoding="utf-8")
    shown = set(re.findall(r"pictures/(page-\w+\.png)\)", SECTION + how_to))
    kept = ROOT / "docs" / "pictures"
    assert {path.name for path in kept.glob("page-*.png")} == shown
    for name in shown:
        assert (kept / name).stat().st_size <= SCRIPT["MOST_BYTES"]
        with Image.open(kept / name) as picture:
            assert picture.width <= SCRIPT["WIDTH"]


def test_the_names_are_those_of_the_tutorial() -> None:
    table = SECTION.partition("| name | markers |\n| --- | --- |\n")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| (.+) \| (.+) \|$", table, flags=re.MULTILINE)) == SCRIPT["NAMES"]
