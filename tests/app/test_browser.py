"""The page in a browser: from the run to the exported populations, by mouse and by keyboard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from selenium.common.exceptions import (
    NoSuchElementException,
    StaleElementReferenceException,
    TimeoutException,
)
from selenium.webdriver import ActionChains, Keys
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait
from test_page import Browser, browser  # noqa: F401
from test_server import Server, start
from workspaces import write_workspace

from dpmix.app.cell_types import types_path
from dpmix.app.judging import judged_path
from dpmix.app.judging import revision as types_revision
from dpmix.app.live import revision
from dpmix.config.load import load_config, parse_config
from dpmix.inputs.compensation import read_matrix
from dpmix.inputs.opening import open_source
from dpmix.populations.tree.decisions import decisions_path, read_decisions
from dpmix.runs.bem import run_bem
from dpmix.runs.reader import open_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(study: Path) -> Iterator[Server]:
    one = start(study)
    yield one
    one.process.terminate()
    one.process.wait(30)


class Page:
    """The page in a browser, and the file of decisions."""

    def __init__(self, driver: WebDriver, server: Server, study: Path) -> None:
        self.driver = driver
        self.path = decisions_path(study / "run.h5")
        self.path.unlink(missing_ok=True)
        driver.get("about:blank")
        for kind in ("browser", "performance"):
            driver.get_log(kind)
        driver.get(f"http://127.0.0.1:{server.port}/{server.token}/")
        self.until(lambda: driver.find_element(By.TAG_NAME, "html").get_attribute("data-ready") == "true")

    def until(self, done: Callable[[], object], seconds: float = 60.0) -> None:
        ignored = (StaleElementReferenceException, NoSuchElementException)  # the page is drawn again
        WebDriverWait(self.driver, seconds, ignored_exceptions=ignored).until(lambda d: done())

    def decided(self, *actions: str) -> None:
        """Wait until these actions are stored, and shown."""

        def done() -> bool:
            if self.actions() != [*actions]:
                return False
            shown = self.find("html").get_attribute("data-shown")
            return shown == revision(read_decisions(self.path))

        self.until(done)

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def rows(self) -> int:
        return len(self.driver.find_elements(By.CSS_SELECTOR, "#rows tr"))

    def actions(self) -> list[str]:
        return [action.do for action in read_decisions(self.path).actions] if self.path.exists() else []

    def drag_box(self, plot: str) -> None:
        """Drag a box over a plot, again where the browser was too slow.

        Bokeh ignores a drag whose first move comes more than 300 ms after the button is pressed.
        """

        def selected() -> bool:
            chain = ActionChains(self.driver, duration=20)  # the box is the tool at the start
            chain.move_to_element_with_offset(self.find(plot), -60, -60).click_and_hold()
            chain.move_by_offset(50, 60).move_by_offset(60, 60).release().perform()
            with suppress(TimeoutException):
                self.until(lambda: " of 2,500 events (" in self.find("#selection").text, 5.0)
                return True
            return False

        self.until(selected)

    def press(self, *keys: str) -> None:
        chain = ActionChains(self.driver)
        for key in keys[:-1]:
            chain.key_down(key)
        chain.send_keys(keys[-1])
        for key in keys[:-1]:
            chain.key_up(key)
        chain.perform()


@pytest.fixture
def page(browser: Browser, server: Server, study: Path) -> Page:  # noqa: F811
    return Page(browser.driver, server, study)


def test_decide_by_keyboard_and_export(page: Page, browser: Browser, study: Path) -> None:  # noqa: F811
    for plot in ("pair0", "pair1", "pair2", "pair3", "tree"):
        assert len(browser.canvas(plot)) > 3_000, f"{plot} is blank"
    before = page.rows()
    drawn = browser.canvas("pair0")

    page.find("#cut").send_keys(Keys.ARROW_LEFT)
    page.decided("cut")
    assert page.rows() == before - 1
    page.until(lambda: browser.canvas("pair0") != drawn)
    page.until(lambda: page.find("#counted").text.startswith("Proportions and intervals match dpmix gate"))

    page.find("#rows .name").send_keys("first <b>", Keys.ENTER)
    page.decided("cut", "name")
    for tick in page.driver.find_elements(By.CSS_SELECTOR, ".tick")[:2]:
        tick.send_keys(Keys.SPACE)
    page.press("m")
    page.decided("cut", "name", "merge")
    assert page.rows() == before - 2
    assert page.find("#rows .name").get_attribute("value") == "first <b>"
    percent = "(cell) => parseFloat(cell.textContent.replace('<', ''))"
    shares = page.driver.execute_script(
        f"return [...document.querySelectorAll('#rows .share')].map({percent})"
    )
    assert shares == sorted(shares, reverse=True)
    page.press(Keys.CONTROL, "z")
    page.decided("cut", "name")
    assert page.rows() == before - 1
    page.press(Keys.CONTROL, "y")
    page.decided("cut", "name", "merge")
    assert page.rows() == before - 2

    page.find("#output").clear()
    page.find("#output").send_keys("exported", Keys.ENTER)
    page.until(lambda: page.find("#jobs strong").text == "done", 120.0)
    tree = json.loads((study / "exported" / "tree.json").read_text(encoding="utf-8"))
    assert tree["names"] == ["first <b>", *[""] * (before - 3)]
    assert not page.find("#failed").is_displayed()
    assert [c for c in browser.complaints() if " " in c or not c.startswith("http://127.0.0.1:")] == []


def test_manual_gates_follow_the_cut(browser: Browser, server: Server, study: Path) -> None:  # noqa: F811
    names = {one.marker: one.detector for one in open_source(study / "blood.fcs").details}
    write_workspace(study / "m<b>.wsp", [study / "blood.fcs"], {"T": {names["CD3"]: (0.62, None)}})
    page = Page(browser.driver, server, study)
    assert not page.find("#gates-part").is_displayed()
    page.find("#workspace").send_keys("m")
    page.until(lambda: page.find("#gates").text.startswith("T "))
    before = page.find("#gates").text
    page.find("#cut").send_keys(Keys.HOME)
    page.decided("cut")
    page.until(lambda: page.find("#gates").text != before)
    assert " 1.00 " in page.find("#gates").text  # recall of the only population
    page.find("#gates .badge").send_keys(Keys.ENTER)
    page.until(lambda: "2,500 of 2,500 events" in page.find("#selection").text)
    assert page.find("#failed").text == ""
    (study / "m<b>.wsp").unlink()


def test_a_box_in_one_plot_selects_in_all(page: Page, browser: Browser) -> None:  # noqa: F811
    others = [browser.canvas(f"pair{k}") for k in range(1, 4)]
    page.drag_box("#plot-pair0")
    page.until(lambda: all(browser.canvas(f"pair{k}") != others[k - 1] for k in range(1, 4)))
    page.find("h1").click()
    page.press(Keys.ESCAPE)
    page.until(lambda: page.find("#selection").text.startswith("Select events"))
    # Events beyond an axis are drawn in its last bin, where a box over the whole plot contains them.
    page.driver.execute_script(
        """
        const [x0, x1, y0, y1] = ["across0", "up0"].flatMap((id) => state.opened.ranges[byId(id).value]);
        select(0, { type: "rect", x0, x1, y0, y1 });
        """
    )
    assert page.find("#selection").text.startswith("2,500 of 2,500 events (100%)")
    page.press(Keys.ESCAPE)


def test_rare_cells_are_judged_by_keyboard_and_mouse(page: Page, browser: Browser, study: Path) -> None:  # noqa: F811
    path = judged_path(study / "run.h5")
    path.unlink(missing_ok=True)
    page.find("#rare summary").click()
    page.until(lambda: page.find("#rare-numbers").text.startswith("0 events judged"))
    assert not page.find("#rare-selected").is_enabled()
    page.find("#rows .badge").click()
    page.find("#rare-selected").click()
    page.until(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, ".card svg circle")) == 100)
    assert not page.find("#rare-next").is_enabled()
    page.until(lambda: page.driver.switch_to.active_element.get_attribute("class") == "card")
    page.press("w")
    page.press("w")
    page.press("p")
    page.press(Keys.ARROW_LEFT)
    page.press(Keys.BACKSPACE)
    page.press(Keys.ARROW_RIGHT)
    for _ in range(9):
        page.press("u")
    page.driver.find_elements(By.CSS_SELECTOR, ".card")[-1].find_element(
        By.CSS_SELECTOR, "[data-word=part]"
    ).click()
    assert page.find("#rare-next").text == "Store 12 judgements and show the next screen"
    drawn = browser.canvas("pair0")
    page.find(".card").send_keys(Keys.ENTER)
    page.until(lambda: "12 events judged: 2 wanted, 1 part, 9 unwanted" in page.find("#rare-numbers").text)
    assert "such events: probably" in page.find("#rare-numbers").text
    assert f"--judged {path.name}" in page.find("#rare-commands").text
    assert len(path.read_text().splitlines()) == 13
    page.until(lambda: browser.canvas("pair0") != drawn)
    assert " of 2,500 events (" in page.find("#selection").text
    row, selected = page.find("#explored-row"), page.find("#selection").text
    assert row.text.startswith(f"{page.rows()} explored cells\n")
    assert "found by judging, each also in a population above" in row.text
    page.press(Keys.ESCAPE)
    page.until(lambda: page.find("#selection").text.startswith("Select events"))
    page.find("#explored-row .badge").send_keys(Keys.ENTER)
    page.until(lambda: page.find("#selection").text == selected)
    assert page.find("#command").text == f"dpmix gate run.h5 --output gated --judged {path.name}"
    page.find("#rare-undo").send_keys(Keys.ENTER)
    page.until(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, ".card")) == 12)
    assert len(page.driver.find_elements(By.CSS_SELECTOR, ".card[data-judged=unwanted]")) == 9
    assert not path.exists()
    page.until(lambda: not page.driver.find_elements(By.CSS_SELECTOR, "#explored-row"))
    assert page.find("#failed").text == ""
    assert [c for c in browser.complaints() if " " in c or not c.startswith("http://127.0.0.1:")] == []


DRAG = """
const given = { dataTransfer: new DataTransfer(), bubbles: true, cancelable: true };
const at = (element, name) => element.dispatchEvent(new DragEvent(name, given));
at(arguments[0], "dragstart");
at(arguments[1], "dragover");
at(arguments[1], "drop");
at(arguments[0], "dragend");
"""


def test_types_follow_a_table_on_the_page(page: Page, browser: Browser, study: Path) -> None:  # noqa: F811
    path = types_path(study / "run.h5")
    path.unlink(missing_ok=True)
    (study / "mine.csv").write_text("cell,CD3,CD19\nT,+,-\nB,-,+\n")

    def typed(rows: int) -> None:
        """Wait until the page shows a stored table with this many rows."""
        page.until(lambda: len(path.read_text().splitlines()) == rows + 1 if path.exists() else not rows)
        shown = lambda: (page.find("html").get_attribute("data-typed") or "none").split(" ")[0]  # noqa: E731
        page.until(lambda: shown() == types_revision(path))

    def types() -> list[str]:
        return [one.text for one in page.driver.find_elements(By.CSS_SELECTOR, "#rows .cell-type")]

    page.find("#types summary").click()
    page.until(lambda: page.find("#types-source").is_enabled())
    Select(page.find("#types-source")).select_by_visible_text("mine.csv")
    typed(2)
    page.until(lambda: {"T", "B", "unknown", "debris"} == set(types()))
    assert page.find("#command").text == "dpmix gate run.h5 --output gated --types run.types.csv"

    before = len(page.driver.find_elements(By.CSS_SELECTOR, "#types-unknown li"))
    number = page.find("#types-unknown .badge").text
    page.find("#types-unknown button").send_keys(Keys.ENTER)  # a row of the first unknown population
    typed(3)
    assert types()[int(number) - 1] == f"unknown {number}"
    assert len(page.driver.find_elements(By.CSS_SELECTOR, "#types-unknown li")) < before
    page.find("#types-undo").send_keys(Keys.ENTER)
    typed(2)
    page.until(lambda: types()[int(number) - 1] == "unknown")

    page.driver.execute_script(DRAG, page.find("#types-unknown .badge"), page.find("#types-rows tr"))
    page.until(lambda: "T,,,-" in path.read_text())  # its row has lost the cells that differ
    typed(2)
    page.find("#types-undo").send_keys(Keys.ENTER)
    page.until(lambda: "T,,+,-" in path.read_text())
    typed(2)

    page.find("#types-row").send_keys(Keys.ENTER)
    page.driver.switch_to.active_element.send_keys("none <b>", Keys.TAB)
    page.until(lambda: page.find("#types-rows tr:nth-child(3) .events").text == "not complete")
    cell = page.find('[data-type="2 2"]')
    cell.send_keys("x", Keys.TAB)
    page.until(lambda: "column CD3: got x; need +, -" in page.find("#types-problem").text)
    typed(2)
    page.find('[data-type="2 2"]').clear()
    page.find('[data-type="2 2"]').send_keys("-", Keys.TAB)
    typed(3)
    page.until(lambda: not page.find("#types-problem").text)
    page.find("#cut").send_keys(Keys.HOME)
    page.decided("cut")
    page.until(lambda: len(types()) == 1)
    page.find("[aria-label='remove none <b>']").click()
    typed(2)
    Select(page.find("#types-source")).select_by_value("no table")
    typed(0)
    assert page.find("#failed").text == ""
    said = [c for c in browser.complaints() if " " in c or not c.startswith("http://127.0.0.1:")]
    assert [one.rpartition(" - ")[0].rpartition("/")[2] for one in said] == ["edit_types"]  # the cell x


def test_the_page_tells_that_the_server_has_gone(browser: Browser, study: Path) -> None:  # noqa: F811
    server = start(study)
    page = Page(browser.driver, server, study)
    server.process.kill()
    server.process.wait()
    page.find("#cut").send_keys(Keys.ARROW_LEFT)
    page.until(lambda: "the server does not answer; start dpmix app again" in page.find("#failed").text)


def test_from_a_file_to_its_populations(browser: Browser, study: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "blood.fcs").write_bytes((study / "blood.fcs").read_bytes())
    server = start(tmp_path)
    page = Page(browser.driver, server, tmp_path)
    page.until(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, "#files svg.rate")) == 1)
    page.find(".file").send_keys(Keys.SPACE)
    page.find("[value=quick]").send_keys(Keys.SPACE)
    page.find("#estimate").send_keys(Keys.ENTER)
    page.until(lambda: page.find("#estimated").text.startswith("Estimated time: at most "))
    page.find("#fit-name").send_keys(Keys.ENTER)
    page.until(lambda: page.find("#estimated").text == "")
    page = Page(browser.driver, server, tmp_path)  # closed, and opened again during the run
    page.find("#commands summary").click()
    page.until(lambda: page.find("#jobs strong").text == "done", 120.0)
    if page.find("#begin").get_attribute("open") is None:
        page.find("#begin summary").click()
    page.until(lambda: "progress: complete" in page.find("#progress").text)
    page.until(lambda: page.find("#traces figcaption").text.startswith("Log posterior by step, 10 starts"))
    assert len(page.driver.find_elements(By.CSS_SELECTOR, "#traces polyline")) == 10
    page.find("#show").click()
    page.until(lambda: page.rows() > 3)
    assert page.find("#failed").text == ""
    server.process.terminate()
    server.process.wait(30)


def test_the_page_starts_next_to_a_run_without_draws(browser: Browser, study: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "blood.fcs").write_bytes((study / "blood.fcs").read_bytes())
    config = {
        "data": {"files": [str(tmp_path / "blood.fcs")]},
        "output": {"path": str(tmp_path / "first.h5")},
    }
    run_bem(parse_config(json.dumps(config), "run"), should_stop=lambda: True)
    assert open_run(tmp_path / "first.h5").committed == 0
    server = start(tmp_path)
    page = Page(browser.driver, server, tmp_path)
    assert page.find("#run").text.strip().endswith("not complete)")
    assert page.find("#failed").text == ""
    server.process.terminate()
    server.process.wait(30)


def test_the_verdict_on_a_recording_at_a_glance(browser: Browser, study: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "blood.fcs").write_bytes((study / "blood.fcs").read_bytes())
    server = start(tmp_path)
    page = Page(browser.driver, server, tmp_path)
    page.until(lambda: page.find("#files .recording").text == "Judge")
    page.find(".file").send_keys(Keys.SPACE)
    page.find("#files .recording button").send_keys(Keys.ENTER)
    page.until(lambda: page.find("#files .recording").text.startswith("✓ steady"), 120.0)
    assert page.find(".file").is_selected()
    page.driver.get(str(page.find("#files .recording a").get_attribute("href")))
    page.until(lambda: page.find("h1").text == "Were the recordings steady?")
    assert page.find("img").size["height"] > 100
    server.process.terminate()
    server.process.wait(30)


DROP = """
const transfer = new DataTransfer();
for (const name of arguments[0]) transfer.items.add(new File(["a,b\\n1,2\\n3,5\\n"], name));
const given = { dataTransfer: transfer, bubbles: true, cancelable: true };
document.body.dispatchEvent(new DragEvent("drop", given));
"""


def test_dropped_and_chosen_files_come_into_the_folder(
    browser: Browser,  # noqa: F811
    study: Path,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    server = start(folder)
    page = Page(browser.driver, server, folder)
    page.until(lambda: page.find("#no-files").is_displayed())
    page.find("#add").send_keys(str(study / "blood.fcs"))
    page.until(lambda: page.find("#files .file").get_attribute("value") == "blood.fcs")
    page.until(lambda: page.find("#files .file").is_selected())
    assert (folder / "blood.fcs").read_bytes() == (study / "blood.fcs").read_bytes()
    page.driver.execute_script(DROP, ["table.csv", "notes.exe", "blood.fcs"])
    page.until(lambda: "notes.exe: dpmix does not read such files" in page.find("#failed").text)
    assert "blood.fcs: exists already in the folder" in page.find("#failed").text
    boxes = page.driver.find_elements(By.CSS_SELECTOR, "#files .file")
    assert [box.get_attribute("value") for box in boxes] == ["blood.fcs", "table.csv"]
    assert all(box.is_selected() for box in boxes)
    assert page.find("#added").text == "Copied: table.csv."
    assert (folder / "table.csv").read_text() == "a,b\n1,2\n3,5\n"
    server.process.terminate()
    server.process.wait(30)


def test_channels_by_keyboard_go_into_the_run(browser: Browser, study: Path, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "blood.fcs").write_bytes((study / "blood.fcs").read_bytes())
    server = start(tmp_path)
    page = Page(browser.driver, server, tmp_path)
    page.until(lambda: page.find(".file"))
    page.find("#choose").send_keys(Keys.ENTER)
    page.until(lambda: "tick at least one" in page.find("#failed").text)
    page.find(".file").send_keys(Keys.SPACE)
    page.find("#choose").send_keys(Keys.ENTER)
    page.until(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, "#channel-rows svg.bars")) == 28)
    assert page.find("#failed").text == ""
    assert "leave out: scatter" in page.find("#channel0").text
    page.until(lambda: "- CD14" in page.find("#channel-yaml").text)

    def bars(name: str) -> str:
        row = f"#channel-rows tr:has([aria-label='use {name}'])"
        path = page.find(f"{row} .after path").get_attribute("d")
        assert path is not None
        return path

    def pixels() -> str:
        script = "return document.getElementById('density-after').toDataURL()"
        return str(page.driver.execute_script(script))

    assert len(page.driver.find_elements(By.CSS_SELECTOR, "#grid canvas")) == 15
    page.driver.execute_script("byId('grid-channels').parentElement.open = true")
    page.find("[aria-label='CD56 in the grid']").send_keys(Keys.SPACE)
    page.until(lambda: len(page.driver.find_elements(By.CSS_SELECTOR, "#grid canvas")) == 21)
    assert page.driver.switch_to.active_element.get_attribute("data-grid") == "CD56"
    page.find("[aria-label='show CD4 across, CD25 up']").send_keys(Keys.ENTER)
    page.until(lambda: page.find("#density-axes").text.startswith("Across: CD4, "))
    assert "Up: CD25, " in page.find("#density-axes").text
    page.find("[aria-label='use CD14']").send_keys(Keys.SPACE)
    page.until(lambda: "- CD14" not in page.find("#channel-yaml").text)
    before, other = bars("CD4"), bars("CD3")
    Select(page.find("[aria-label='transform of CD4']")).select_by_value("arcsinh")
    page.until(lambda: bars("CD4") != before)
    cofactor = page.find("[aria-label='cofactor of CD4']")
    page.until(lambda: cofactor.get_attribute("value") == "150")
    cofactor.send_keys(Keys.CONTROL, "a")
    cofactor.send_keys("-1", Keys.TAB)
    page.until(lambda: "transform.CD4.cofactor" in page.find("#failed").text)
    cofactor.send_keys(Keys.CONTROL, "a")
    cofactor.send_keys("200", Keys.TAB)
    page.until(lambda: "cofactor: 200" in page.find("#channel-yaml").text)
    assert page.find("#failed").text == ""
    assert bars("CD3") == other

    cell = page.find("[aria-label='share of FITC-A in PE-A']")
    cell.click()
    page.until(lambda: page.find("#density-axes").text.startswith("Across: CD45RA"))
    page.until(lambda: "Up: CD25" in page.find("#density-axes").text)
    drawn = pixels()
    cell.send_keys(Keys.CONTROL, "a")
    cell.send_keys("0.3")
    page.until(lambda: pixels() != drawn)
    page.until(lambda: "compensation: run.spillover.csv" in page.find("#channel-yaml").text)

    page.find("[value=quick]").send_keys(Keys.SPACE)
    page.find("#fit-name").send_keys(Keys.ENTER)
    # The file of the run is there once its data have been read. That a run ends is another test.
    page.until((tmp_path / "run.h5").exists, 120.0)
    page.until(lambda: page.find("#jobs strong").text in ("running", "done"))
    data = load_config(tmp_path / "run.yaml").data
    assert data.channels is not None
    assert "CD14" not in data.channels
    assert data.transform["CD4"].cofactor == 200.0
    matrix = read_matrix(tmp_path / data.compensation)
    assert matrix.matrix[matrix.detectors.index("FITC-A"), matrix.detectors.index("PE-A")] == 0.3
    server.process.terminate()
    server.process.wait(30)
