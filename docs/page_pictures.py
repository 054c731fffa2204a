"""Take the pictures of the page of `dpmix app`: for docs/tutorial.md and docs/how-to/name-my-cells.md.

    python docs/page_pictures.py

Simulates the tutorial's sample in a temporary folder, starts `dpmix app` there, does on the page what the
second half of the tutorial says, loads the table of cell types of the how-to, and writes
docs/pictures/page-*.png. Needs Chromium and chromedriver (Debian: chromium, chromium-driver) and takes about
a minute. Seed and settings are fixed: another run takes the same pictures, except for the fonts and the
browser of the machine.
"""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

from dpmix.app.jobs import PROGRAM
from dpmix.app.live import revision
from dpmix.populations.tree.decisions import decisions_path, read_decisions

PICTURES = Path(__file__).parent / "pictures"
HOW_TO = Path(__file__).parent / "how-to" / "name-my-cells.md"
WIDTH, HEIGHT = 1280, 2600  # of the browser's window, high enough that nothing has to be scrolled
MARGIN = 10  # around what a picture shows
MOST_BYTES = 150_000  # of a picture
SECONDS = 300.0  # longest wait; commands of dpmix take seconds, on a busy machine minutes

NAMES = {
    "CD4 naive": "CD3+ CD4+ CD45RAhi",
    "CD4 central memory": "CD3+ CD4+ CD45RA- CCR7hi CD127hi",
    "CD4 effector memory": "CD3+ CD4+ CCR7-",
    "CD4 regulatory": "CD3+ CD4+ CD25hi CD127-",
    "CD8 naive": "CD3+ CD8+ CD45RAhi CCR7hi",
    "CD8 central memory": "CD3+ CD8+ CD45RA- CCR7+",
    "CD8 effector": "CD3+ CD8+ CCR7-",
    "Double negative T": "CD3+ CD4- CD8- CD56-",
    "NKT cells": "CD3+ CD4- CD8lo CD56hi",
    "NK cells": "CD3- CD56hi",
    "B cells": "CD3- CD19+",
    "Monocytes": "CD3- CD14+",
    "Debris": "CD3- CD19- CD14- CD56-",
}
"""The table of names in the tutorial: each name, and the markers by which its population is recognised."""
MERGED = "CD3- CD56hi CD127-", "CD3- CD56hi CD127hi"
"""The markers of two populations of NK cells, CD56 dim and bright, which are merged before they are named."""
REGULATORY = ("CD127", (0.0, 0.35)), ("CD25", (0.62, 0.84))
"""A box around regulatory CD4 T cells: channel and ends on both axes, transformed scale."""


class Page:
    """The page in a browser.

    Parameters
    ----------
    driver : webdriver.Chrome
    address : str
    run : Path
        File of the run that will be made on the page.
    pictures : Path
        Folder for pictures.
    """

    def __init__(self, driver: webdriver.Chrome, address: str, run: Path, pictures: Path) -> None:
        self.driver, self.run, self.pictures = driver, run, pictures
        driver.get(address)
        self.until(lambda: self.find("html").get_attribute("data-ready") == "true")

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def until(self, done: Callable[[], object]) -> None:
        """Wait; the page must not report an error."""
        ignored = (StaleElementReferenceException, NoSuchElementException)  # the page is drawn again

        def checked(_: object) -> object:
            if problem := self.find("#failed").text:
                raise RuntimeError(f"the page says: {problem}")
            return done()

        WebDriverWait(self.driver, SECONDS, ignored_exceptions=ignored).until(checked)

    def decide(self, act: Callable[[], object]) -> None:
        """Do something that is stored as a decision, and wait until it is shown."""
        before = self.find("html").get_attribute("data-shown")

        def done() -> bool:
            shown = self.find("html").get_attribute("data-shown")
            path = decisions_path(self.run)
            return path.exists() and shown != before and shown == revision(read_decisions(path))

        act()
        self.until(done)

    def counted(self) -> None:
        """Wait until the proportions are the same as in `dpmix gate`."""
        done = "Proportions and intervals match dpmix gate"
        self.until(lambda: self.find("#counted").text.startswith(done))

    def population(self, markers: str) -> WebElement:
        """Return the row of the only population that has all these markers."""
        rows = [
            row
            for row in self.find_all("#rows tr")
            if set(markers.split())
            <= set((row.find_element(By.CSS_SELECTOR, ".phenotype").get_attribute("title") or "").split())
        ]
        if len(rows) != 1:
            raise RuntimeError(f"{len(rows)} populations are {markers}")
        return rows[0]

    def name(self, markers: str, name: str) -> None:
        field = self.population(markers).find_element(By.CSS_SELECTOR, ".name")
        self.decide(lambda: field.send_keys(name, Keys.ENTER))

    def select_box(self, plot: int, across: tuple[float, float], up: tuple[float, float]) -> None:
        """Draw a box; ends are values of the two axes."""
        # Corners, in pixels from the centre of the plot's element.
        corners = self.driver.execute_script(
            """
            const model = models[`pair${arguments[0]}`];
            const view = Bokeh.index.roots.find((one) => one.model === model);
            const { left, top, width, height } = view.frame.bbox;
            const place = document.getElementById(`plot-pair${arguments[0]}`).getBoundingClientRect();
            const share = (value, range) => (value - range.start) / (range.end - range.start);
            return [0, 1].map((end) => [
              left + width * share(arguments[1][end], model.x_range) - place.width / 2,
              top + height * (1 - share(arguments[2][end], model.y_range)) - place.height / 2,
            ].map(Math.round));
            """,
            plot,
            across,
            up,
        )
        middle = [round((first + last) / 2) for first, last in zip(*corners, strict=True)]
        element = self.find(f"#plot-pair{plot}")
        chain = ActionChains(self.driver)
        chain.move_to_element_with_offset(element, *corners[0]).click_and_hold()
        chain.move_to_element_with_offset(element, *middle)
        chain.move_to_element_with_offset(element, *corners[1]).release().perform()

    def picture(self, name: str, first: str, *last: str, above: str = "") -> None:
        """Write a picture of the page from an element to the last of others, in the width of the first.

        Parameters
        ----------
        name : str
        first : str
        *last : str
            Selectors; the lowest element of all ends the picture.
        above : str, optional
            Use only elements `last` that end above this one.
        """
        self.driver.execute_script("document.activeElement.blur()")
        ActionChains(self.driver).move_to_element(self.find("h1")).perform()
        self.until(lambda: not self.find("#busy").is_displayed())
        start = self.find(first).rect
        limit = self.find(above).rect["y"] if above else HEIGHT
        ends = [one.rect["y"] + one.rect["height"] for one in self.find_all(", ".join(last or (first,)))]
        left, top = (max(0.0, start[side] - MARGIN) for side in ("x", "y"))
        width = min(start["x"] + start["width"] + MARGIN, WIDTH) - left
        height = max(end for end in ends if end <= limit) - top
        place = {"x": left, "y": top, "width": width, "height": height}
        write_png(self.pictures / f"page-{name}.png", self._still(place))

    def _still(self, place: dict[str, float]) -> bytes:
        """Return the part of the page as PNG, once it has stopped changing."""
        before = b""
        for _ in range(100):
            found = self.driver.execute_cdp_cmd(
                "Page.captureScreenshot", {"format": "png", "clip": {**place, "scale": 1}}
            )
            now = base64.b64decode(found["data"])
            if now == before:
                return now
            before = now
            time.sleep(0.3)
        raise RuntimeError("the page does not stop changing")


def write_png(path: Path, taken: bytes) -> None:
    """Write a picture with 256 colours, which take a third of the bytes.

    Colours are chosen to be near all that occur, not the most frequent: small marks keep theirs.
    """
    picture = Image.open(io.BytesIO(taken)).convert("RGB")
    fewer = picture.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    fewer.save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path}: {picture.width} x {picture.height}, {size:,} bytes")
    if size > MOST_BYTES:
        raise RuntimeError(f"{path}: more than {MOST_BYTES:,} bytes; show less of the page")


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Start `dpmix app` in a folder, and yield its address."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "app", str(folder), "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().removeprefix("open ").strip()
    finally:
        process.terminate()
        process.wait()


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Start Chromium without a window, and with the same settings everywhere."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        raise RuntimeError("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--lang=en"):
        options.add_argument(flag)
    options.add_argument("--force-color-profile=srgb")
    driver = webdriver.Chrome(options=options, service=Service(chromedriver))
    try:
        window = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", window)
        light = {"name": "prefers-color-scheme", "value": "light"}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [light]})
        yield driver
    finally:
        driver.quit()


def follow(folder: Path, pictures: Path) -> str:
    """Do what the second half of the tutorial says, from its sample, and take the pictures on the way.

    Parameters
    ----------
    folder : Path
        With the tutorial's sample.fcs. The folder of the page, study, is made here; it then has run.h5, its
        decisions, and the results in gated.
    pictures : Path

    Returns
    -------
    str
        Texts of the page that the tutorial shows: progress, selection, and what the commands printed.
    """
    study = folder / "study"
    study.mkdir()
    shutil.copy(folder / "sample.fcs", study)
    with served(study) as address, browser() as driver:
        page = Page(driver, address, study / "run.h5", pictures)
        said = "\n".join([choose_and_run(page), look_and_decide(page), export(page)])
        name_cells(page, study)
        return said


def choose_and_run(page: Page) -> str:
    """From the file through its channels to the run; return its progress."""
    page.until(lambda: page.find("#files svg.rate"))
    page.find(".file").click()
    page.find("#choose").click()
    page.until(lambda: page.find("html").get_attribute("data-looked"))
    page.picture("channels", "body", "#channel-rows tr", above="#channel-pair h2:nth-of-type(2)")
    page.find("#fit button:not([type=button])").click()
    page.until(lambda: page.find("#jobs strong").text == "done")
    page.until(lambda: "progress: complete" in page.find("#progress").text)
    return page.find("#progress").text


def look_and_decide(page: Page) -> str:
    """Move the cut, merge, name and select events; return the line about the selected events."""
    page.find("#show").click()
    page.until(lambda: page.find_all("#rows tr"))
    for part in page.find_all("details[open]"):
        part.find_element(By.TAG_NAME, "summary").click()
    page.counted()
    page.picture("populations", "#work", "#rows tr", "#pairs > figure")

    page.decide(lambda: page.find("#cut").send_keys(Keys.ARROW_LEFT))
    page.picture("cut", "#pairs > figure:has(#plot-tree)")
    page.decide(page.find("#default").click)

    for markers in MERGED:
        page.population(markers).find_element(By.CSS_SELECTOR, ".tick").click()
    page.decide(page.find("#merge").click)
    for name, markers in NAMES.items():
        page.name(markers, name)
    page.counted()
    page.picture("named", "#columns > section", "#export + p")

    for select, (channel, _) in zip(("across0", "up0"), REGULATORY, strict=True):
        Select(page.find(f"#{select}")).select_by_visible_text(channel)
    page.select_box(0, *(ends for _, ends in REGULATORY))
    page.until(lambda: " of 50,000 events (" in page.find("#selection").text)
    page.picture("selection", "#pairs", "#pairs > figure:not(:has(#plot-tree))")
    return page.find("#selection").text


def export(page: Page) -> str:
    """Write the results by the button of the page; return what the command printed."""
    page.find("#export button").click()
    page.until(lambda: page.find("#jobs strong").text == "done")
    return page.find("#jobs pre").text


def name_cells(page: Page, folder: Path) -> None:
    """Load the table of cell types of docs/how-to/name-my-cells.md."""
    (table,) = re.findall(
        r"^```csv types.csv\n(.*?)^```$", HOW_TO.read_text("utf-8"), re.DOTALL | re.MULTILINE
    )
    (folder / "types.csv").write_text(table, encoding="utf-8")
    page.find("#types summary").click()
    page.until(lambda: page.find("#types-source").is_enabled())
    Select(page.find("#types-source")).select_by_visible_text("types.csv")
    page.until(lambda: page.find("#types-unknown-row .events").text)
    page.picture("types", "#types", "#types-unknown-part")


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        subprocess.run([sys.executable, "-c", PROGRAM, "simulate", "sample.fcs"], cwd=folder, check=True)
        print(follow(folder, PICTURES))  # to be compared with the tutorial


if __name__ == "__main__":
    main()
