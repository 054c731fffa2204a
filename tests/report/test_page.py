"""The report: its text, and its rendering in a browser."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gatings import make_choice, make_gating, make_run, with_cards, with_map
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select, WebDriverWait

from dpmix.errors import DataError
from dpmix.populations.gates.nested import Node
from dpmix.populations.gates.polygons import PolygonGate
from dpmix.populations.gates.strategy import Strategy
from dpmix.populations.result import Gating, Map
from dpmix.report import embedding, figures, findings, page, page_data, pairs
from dpmix.runs.diagnostics import convergence
from dpmix.system import console

pytestmark = pytest.mark.usefixtures("real_plots")

NASTY = (
    "<b>CD3</b>",
    "</script><script>alert(1)</script>",
    "$$x^2$$",
    "&lt;i&gt; \"q\" 'a'",
    "\\(y\\) {{ 7 * 7 }}",
)
SECTIONS = (
    "populations",
    "proportions",
    "heatmap",
    "table",
    "markers",
    "histograms",
    "tree",
    "traces",
    "run",
)
PLOTS = ("markers", "heatmap", "proportions", "tree", "traces")


class Page(HTMLParser):
    """Collects ids, table cells and addresses of a page, and checks that its elements are closed in order."""

    VOID = ("meta", "input", "br", "link", "img")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.ids: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        if "id" in given:
            self.ids.append(str(given["id"]))
        self.addresses += [str(given[name]) for name in ("src", "href") if name in given]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if ("td" in self.open or "th" in self.open) and self.rows:
            self.rows[-1][-1] += data.strip()


def page_of(tmp_path: Path, gating: Gating, **options: Any) -> str:
    run = make_run(tmp_path / "run.h5", kind=gating.kind, gating=gating, **options)
    page.write_report(tmp_path / "report.html", gating, run, convergence(run))
    return (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_page_shows_gating_strategies(tmp_path: Path) -> None:
    square = PolygonGate((0, 2), np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]))
    counts = [np.array([90, 70]), np.array([300, 100])]
    own = [Strategy((square, square), *counts, 100), Strategy((), *np.zeros((2, 0), np.int64), 0)]
    page = Page(page_of(tmp_path, replace(make_gating(2), strategies=tuple(own))))
    assert "strategy" in page.ids
    assert page.open == []
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "1. CD1 and CD3<br>2. CD1 and CD3<br>" in text
    assert "30.0%<br>70.0%<br>" in text  # purity
    assert "90.0%<br>70.0%<br>" in text  # yield
    assert '<td class="n low">0.70</td>' in text
    assert "Gates in two markers do not isolate 1 population (F1 below 0.9): 1." in text


@pytest.mark.usefixtures("made_figures")
def test_the_page_draws_the_tree_of_gates(tmp_path: Path) -> None:
    square = PolygonGate((0, 2), np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0]]))
    branch = Strategy((square,), np.array([290]), np.array([300]), 300)
    inside = Strategy((square, square), np.array([100, 80]), np.array([300, 80]), 100)
    alone = Strategy((square,), np.array([99]), np.array([100]), 100)
    nodes = (Node((0, 2), -1, 1, branch), Node((0,), 0, 1, inside), Node((1,), -1, 1, alone))
    nodes = (*nodes, Node((2,), 0, 0, Strategy((), *np.zeros((2, 0), np.int64), 0)))
    gating = replace(make_gating(3), strategies=(alone,) * 3, hierarchy=nodes)
    page = Page(page_of(tmp_path, gating))
    assert page.open == []
    assert {"gates", "plot-gates"} <= set(page.ids)
    rows = [row for row in page.rows if len(row) == 9]
    head = next(k for k, row in enumerate(rows) if row[0] == "Gate")
    names = gating.phenotypes
    assert rows[head + 1 :][:4] == [
        ["branch_1", "populations 1, 3", "branch_1", "CD1 and CD3", "300", "96.7%", "96.7%", "0.97", ""],
        [
            *("1", names[0], "branch_1 / population_1", "CD1 and CD3", "80", "100.0%", "80.0%", "0.89"),
            "misses 20.0% of its events",
        ],
        ["3", names[2], "branch_1", "", "", "", "", "", "no gates"],
        ["2", names[1], "population_2", "CD1 and CD3", "100", "99.0%", "99.0%", "0.99", ""],
    ]
    run = make_run(tmp_path / "drawn.h5", gating=gating)
    figures.write_figures(tmp_path, gating, run, convergence(run), ["gates"])
    assert (tmp_path / "gates.png").exists()


def test_the_page_is_valid_and_self_contained(tmp_path: Path) -> None:
    page = Page(page_of(tmp_path, make_gating(samples=("a.fcs", "b.fcs"))))
    assert page.open == []
    assert len(page.ids) == len(set(page.ids))
    assert {*SECTIONS, *(f"plot-{name}" for name in PLOTS), "plot-samples"} <= set(page.ids)
    assert not {"map", "strategy", "coarseness"} & set(page.ids)
    assert page.addresses
    links = [address for address in page.addresses if not address.startswith("data:image/png;base64,")]
    assert all(address.startswith("#") and address[1:] in page.ids for address in links)


def test_the_page_starts_with_the_verdict_and_the_pictures(tmp_path: Path) -> None:
    gating = with_cards(with_map(make_gating(5, 4)))
    text = page_of(tmp_path, gating)
    wanted = ["verdict", "populations", "map", "proportions", "heatmap", "table", "cards", "tree", "traces"]
    assert [name for name in Page(text).ids if name in wanted] == wanted
    assert text.count('<svg class="biaxial"') == len(pairs.separating_pairs(gating)) + 5
    assert "max-height: none" in text
    assert 'class="wide tall"' not in text
    assert "Inside the gate: purity 90.0%, yield 80.0%." in text
    assert "prefers-color-scheme: dark" in text
    for p, name in enumerate(gating.phenotypes, 1):
        assert f'id="card-{p}"' in text
        assert name in text


@pytest.mark.slow
def test_the_page_has_dark_colours(tmp_path: Path, browser: Browser) -> None:
    page_of(tmp_path, make_gating(4, 3))
    browser.open(tmp_path / "report.html")
    colour = "return getComputedStyle(document.body).backgroundColor"
    light, before = browser.driver.execute_script(colour), browser.canvas("heatmap")
    Select(browser.driver.find_element(By.ID, "theme")).select_by_value("dark")
    assert browser.driver.execute_script(colour) != light
    WebDriverWait(browser.driver, 20).until(lambda d: browser.canvas("heatmap") != before, "axes stay dark")
    assert browser.complaints() == []


def test_a_map_has_a_section(tmp_path: Path) -> None:
    text = page_of(tmp_path, with_map(make_gating()))
    page = Page(text)
    assert page.open == []
    assert {"map", "plot-map"} <= set(page.ids)
    assert "#map" in page.addresses
    assert "1,000 of 4,000 events, drawn at random (t-SNE)" in text
    assert all(sentence in text for sentence in embedding.MAP_NOTE)


def test_a_chosen_coarseness_has_a_section(tmp_path: Path) -> None:
    text = page_of(tmp_path, make_gating(), choice=make_choice())
    page = Page(text)
    assert page.open == []
    assert {"coarseness", "plot-coarseness"} <= set(page.ids)
    assert "#coarseness" in page.addresses
    assert "coarseness of the run, 2,000 events." in text
    assert "held-out log density" in text


def test_the_table_has_the_numbers_of_the_gating(tmp_path: Path) -> None:
    gating = make_gating(5, 4)
    page = Page(page_of(tmp_path, gating))
    rows = [row for row in page.rows if len(row) == 9][1:]
    mean, low, high = gating.overall
    assert len(rows) == 5
    for p, row in enumerate(rows):
        assert row == [
            str(p + 1),
            gating.phenotypes[p],
            f"{gating.sizes[:, p].sum():,}",
            console.percent(mean[p]),
            f"{console.percent(low[p])} to {console.percent(high[p])}",
            "1.00",
            "400",
            f"{gating.support[p]:.0%}",
            f"{gating.certainty[p]:.1%}",
        ]


def test_one_estimate_has_no_interval_and_no_support(tmp_path: Path) -> None:
    text = page_of(tmp_path, make_gating(3, 3, kind="bem"), chains=3)
    assert "without intervals" in text
    assert "point estimate, no interval" in text
    assert ">Support<" not in text
    assert "90% interval</th>" not in text
    assert "R-hat" not in text


def test_the_summary_has_numbers_and_uncertainty() -> None:
    gating = replace(make_gating(5, 4, draws=20), numbers=np.repeat([4, 5, 6, 7], [1, 18, 18, 3]))
    found, sure, cut = findings.summary(gating)
    assert found.startswith("5 populations in 4,000 events from 1 sample (4 channels).")
    assert "credible interval for the number of populations is 5 to 7 (40 draws from 2 chains)." in found
    weighted = float(np.average(gating.certainty, weights=gating.sizes[0]))
    assert f"{weighted:.1%}" in sure
    assert console.percent(gating.overall.mean.max()) in sure
    assert gating.why in cut


def test_each_warning_appears_only_when_it_applies(tmp_path: Path) -> None:
    good = replace(make_gating(4, 3, n_events=8_000), support=np.full(4, 0.9))
    run = make_run(tmp_path / "good.h5", draws=600)
    assert findings.warnings(good, run) == []

    def one(gating: Gating = good, of: Any = run) -> str:
        (line,) = findings.warnings(gating, of)
        return line

    assert "Low support" in one(replace(good, support=np.array([0.9, 0.4, 0.9, 0.1])))
    assert one(replace(good, support=np.array([0.9, 0.4, 0.9, 0.1]))).endswith(": 2, 4.")
    assert "2.0%" not in one(replace(good, n_implausible=np.array([480])))
    assert "6.0% of the events of a.fcs are implausible" in one(replace(good, n_implausible=np.array([480])))
    assert one(replace(good, warnings=("a.fcs: $TOT is 3",))) == "a.fcs: $TOT is 3."
    empty = make_gating(4, 3, empty=True, n_events=8_000)
    assert "No event has 1 population as its most probable population: 4." in one(
        replace(empty, support=np.ones(4))
    )
    bound = make_run(tmp_path / "bound.h5", draws=20, stick=0.2)
    assert "The truncation binds" in one(of=bound)
    climbed = make_run(tmp_path / "climbed.h5", kind="bem", stick=0.2)
    assert "the lightest component holds" in one(of=climbed)
    few = replace(make_gating(4, 3, n_events=8_000, draws=9), support=np.full(4, 0.9))
    assert one(few) == (
        "The 90% intervals are from 18 draws, and contain a further draw with probability 89%; gate with 19 "
        "draws or more (--draws), or make more."
    )
    alone = replace(make_gating(4, 3, n_events=8_000, draws=1, chains=1), support=np.full(4, 0.9))
    assert findings.warnings(alone, run) == []
    part = make_run(tmp_path / "part.h5", draws=20, committed=12)
    assert "not complete: 12 of 20" in one(of=part)


def mixed(gating: Gating, r_hat: list[float], n_draws: int = 100, **changes: Any) -> Gating:
    """Give the populations these R-hat, and the same size but for the last, which has 0.1% of the events."""
    size = np.append(np.full(len(r_hat) - 1, 0.999 / (len(r_hat) - 1)), 0.001)
    verdict = replace(gating.verdict, shares=size, r_hat=np.array(r_hat), n_draws=n_draws)
    return replace(gating, r_hat=np.array(r_hat), verdict=verdict, **changes)


def test_the_page_marks_and_explains_what_the_chains_disagree_on(tmp_path: Path) -> None:
    gating = mixed(make_gating(4, 3), [1.31, 1.0, np.nan, 1.4], ess=np.array([9.34, 1234.0, np.nan, 80.0]))
    text = page_of(tmp_path, gating)
    cells = [row[5:7] for row in Page(text).rows if len(row) == 9][1:]
    assert cells == [["1.31", "9.3"], ["1.00", "1,234"], ["", ""], ["1.40", "80"]]
    assert text.count('class="n low">1.31<') == 1
    assert text.count('class="n low">1.40<') == 1
    verdict = "Chains agree on 2 of 4 populations. They differ about 1 and 4 (33.4% of the events): "
    assert text.index("</h1>") < text.index(f'<p id="verdict" class="note">{verdict}') < text.index("<main>")
    assert "from 200 draws. Below 100, the ends of the interval are rough: populations 1, 4." in text
    assert "Empty for a proportion that is the same in every draw." in text
    assert (
        "Agreement of the chains, and of their halves, on the proportion: 1 if they agree, above 1.05" in text
    )
    (tmp_path / "run.h5").unlink()
    text = page_of(tmp_path, mixed(make_gating(4, 3), [np.nan] * 4, n_draws=7))
    assert "Empty: 8 draws of each chain are needed, and the run has 7." in text


@pytest.mark.slow
def test_the_page_is_small(tmp_path: Path) -> None:
    gating = make_gating(8, 64)
    rng = np.random.default_rng(1)
    shape = gating.rasters.counts.shape
    crowded = replace(
        gating.rasters,  # every bin is filled at random and cannot be compressed
        counts=rng.integers(1, 1_000_000_000, shape),
        populations=rng.integers(0, 8, shape).astype(np.int16),
    )
    text = page_of(tmp_path, with_map(replace(gating, rasters=crowded), 20_000), draws=20)
    assert len(text.encode()) <= 10_000_000


def test_packed_rasters_can_be_read_back(tmp_path: Path) -> None:
    import base64
    import zlib

    gating = make_gating(300, 3, parts=1, n_events=20_000)
    rasters = gating.rasters
    full = np.log1p(rasters.counts.reshape(3, -1).max(axis=1))
    for pair, packed in enumerate(page_data.pack_rasters(rasters, full)):
        planes = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.uint8).reshape(
            3, *rasters.counts[0].shape
        )
        np.testing.assert_array_equal(planes[1] + 256 * planes[2].astype(int) - 1, rasters.populations[pair])
        events = np.expm1(planes[0] / 255 * full[pair])
        np.testing.assert_array_equal(events > 0.5, rasters.counts[pair] > 0)
        np.testing.assert_allclose(events, rasters.counts[pair], rtol=0.05, atol=0.5)


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    gating = make_gating()
    run = make_run(tmp_path / "run.h5", gating=gating)
    with pytest.raises(DataError, match=r"missing.*cannot be written: No such file"):
        page.write_report(tmp_path / "missing" / "report.html", gating, run, [])


# ------------------------------------------------------------------------------------- in a browser


TOOLTIPS = """
const texts = [];
const walk = (node, within) => {
  const tip = within || [...(node.classList || [])].some((c) => c.includes("tooltip"));
  if (node.shadowRoot) for (const child of node.shadowRoot.children) walk(child, tip);
  for (const child of node.children || []) walk(child, tip);
  const seen = tip && node.tagName === "DIV" && getComputedStyle(node).display !== "none";
  if (seen && node.innerText) texts.push(node.innerText);
};
walk(document.documentElement, false);
return texts.join(" | ");
"""


class Browser:
    """A headless Chromium with its logs and network requests."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, path: Path) -> None:
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(path.as_uri())
        WebDriverWait(self.driver, 60).until(
            lambda d: self.attribute("html", "data-ready") == "true" or self.failed
        )
        assert not self.failed

    @property
    def failed(self) -> str:
        return self.driver.find_element(By.ID, "failed").text

    def attribute(self, selector: str, name: str) -> str | None:
        return self.driver.find_element(By.CSS_SELECTOR, selector).get_attribute(name)

    def wait(self, selector: str, name: str, value: str) -> None:
        WebDriverWait(self.driver, 30).until(lambda d: self.attribute(selector, name) == value)

    def complaints(self) -> list[str]:
        """Return errors of the page and its network requests."""
        logged = [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
        ]
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        asked = [
            m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"
        ]
        return logged + [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]

    def canvas(self, plot: str) -> str:
        """Return the image of a plot: its largest canvas, as text."""
        found: str = self.driver.execute_script(
            """
            const canvases = [];
            const walk = (node) => {
              if (node.tagName === "CANVAS") canvases.push(node);
              for (const child of node.children || []) walk(child);
              if (node.shadowRoot) for (const child of node.shadowRoot.children) walk(child);
            };
            walk(document.getElementById(arguments[0]));
            return canvases.map((c) => c.toDataURL()).sort((a, b) => b.length - a.length)[0] || "";
            """,
            f"plot-{plot}",
        )
        return found

    def hover(self, plot: str, across: float, up: float) -> str:
        """Return the text of the tooltip at shares of a plot's width and height."""
        place = self.driver.find_element(By.ID, f"plot-{plot}")
        self.driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", place)
        size = place.size
        x, y = int((across - 0.5) * size["width"]), int((0.5 - up) * size["height"])
        ActionChains(self.driver).move_to_element_with_offset(place, x + 3, y).move_by_offset(-3, 0).perform()
        until = time.monotonic() + 5.0
        found = ""
        while not found and time.monotonic() < until:
            time.sleep(0.4)
            found = self.driver.execute_script(TOOLTIPS)
        return found


def start_browser(profile: Path, *flags: str) -> Browser:
    """Start Chromium without a window, and by default without a GPU."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (
        "--headless",
        "--no-sandbox",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={profile}",
        "--window-size=1200,1000",
        *(flags or ("--disable-gpu", "--enable-unsafe-swiftshader")),
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Browser(webdriver.Chrome(options=options, service=Service(chromedriver)))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    one = start_browser(tmp_path_factory.mktemp("browser"))
    yield one
    one.driver.quit()


@pytest.mark.slow
def test_a_browser_shows_the_page(tmp_path: Path, browser: Browser) -> None:
    gating = with_map(make_gating(6, 4, samples=("a.fcs", "b.fcs", "c.fcs")), 20_000)
    page_of(tmp_path, gating)
    browser.open(tmp_path / "report.html")
    for plot in (*PLOTS, "samples", "map"):
        assert len(browser.canvas(plot)) > 3_000, f"{plot} is blank"
    table = browser.driver.find_element(By.CSS_SELECTOR, "#table ~ .wide table")
    assert len(table.find_elements(By.CSS_SELECTOR, "tbody tr")) == 6
    headings = [h.text for h in browser.driver.find_elements(By.CSS_SELECTOR, "h1, h2")]
    assert headings[0] == "Cell populations of 3 samples"
    assert {
        "Populations",
        "Any two markers",
        "One marker",
        "Table",
        "Heatmap",
        "Proportions",
        "Tree",
        "Traces",
        "Run and samples",
    } <= set(headings)
    for plot in browser.driver.find_elements(By.CSS_SELECTOR, ".plot"):
        assert plot.get_attribute("aria-label")
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_tooltip_of_the_map_shows_one_event(tmp_path: Path, browser: Browser) -> None:
    gating = replace(make_gating(1, 2, parts=1), phenotypes=("<b>CD3</b>+",))
    places = 0.05 * np.random.default_rng(1).normal(size=(20_000, 2)).astype(np.float32)
    places[:2] = [[-1.0, -1.0], [1.0, 1.0]]
    page_of(tmp_path, replace(gating, map=Map(places, np.zeros(20_000, np.int64))))
    browser.open(tmp_path / "report.html")
    told = "1 <b>CD3</b>+"
    assert set(browser.hover("map", 0.5, 0.5).split(" | ")) == {"population:", told, f"population:\t{told}"}
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_reader_picks_markers_and_populations(tmp_path: Path, browser: Browser) -> None:
    gating = with_cards(with_map(make_gating(6, 4, samples=("a.fcs", "b.fcs"))))
    page_of(tmp_path, gating)
    browser.open(tmp_path / "report.html")
    first = gating.rasters.pairs[pairs.separating_pairs(gating)[0]].tolist()
    shown = "#plot-markers"
    browser.wait(shown, "data-shown", f"{first[0]},{first[1]},-1,population")
    seen = {browser.canvas("markers")}

    def changed(plot: str) -> None:
        looks = [""]  # some plots are drawn in two steps: two looks must be the same

        def settled(_: object) -> bool:
            looks.append(browser.canvas(plot))
            return looks[-1] == looks[-2] and looks[-1] not in seen

        WebDriverWait(browser.driver, 20, 0.2).until(settled, f"{plot} looks like what was there before")
        seen.add(looks[-1])

    def expect(state: str) -> None:
        browser.wait(shown, "data-shown", state)
        changed("markers")

    across = Select(browser.driver.find_element(By.ID, "across"))
    other = next(c for c in range(4) if c not in first)
    across.select_by_value(str(other))
    expect(f"{other},{first[1]},-1,population")
    across.select_by_value(str(first[1]))  # the same as vertical: they are exchanged
    expect(f"{first[1]},{other},-1,population")
    browser.driver.find_element(By.CSS_SELECTOR, "input[value=density]").click()
    expect(f"{first[1]},{other},-1,density")
    browser.driver.find_element(By.ID, "outlines").click()
    changed("markers")
    browser.driver.find_element(By.CSS_SELECTOR, "button[data-population='3']").click()
    best = page_data.best_pairs(gating)[3]
    expect(f"{best[0]},{best[1]},3,density")

    alone = browser.driver.find_element(By.CSS_SELECTOR, "button[data-highlight='2']")
    alone.click()
    outlines = browser.driver.find_elements(By.CSS_SELECTOR, ".panels .outline")
    assert {one.get_attribute("data-of") for one in outlines if one.is_displayed()} == {"2"}
    browser.wait("#plot-histograms", "data-shown", f"{first[0]},2")
    Select(browser.driver.find_element(By.ID, "marker")).select_by_value("3")
    browser.wait("#plot-histograms", "data-shown", "3,2")
    assert len(browser.driver.find_elements(By.CSS_SELECTOR, "#plot-histograms .faint")) == 5
    browser.wait("#map-marker", "data-shown", f"{first[0]},2")
    Select(browser.driver.find_element(By.ID, "map-channel")).select_by_value("3")
    browser.wait("#map-marker", "data-shown", "3,2")
    alone.click()
    browser.wait("#map-marker", "data-shown", "3,-1")
    assert all(one.is_displayed() for one in outlines)

    seen.add(browser.canvas("samples"))
    Select(browser.driver.find_element(By.ID, "sampled")).select_by_value("4")
    browser.wait("#plot-samples", "data-shown", "4")
    changed("samples")
    assert browser.complaints() == []


@pytest.mark.slow
def test_tooltips_show_population_and_events(tmp_path: Path, browser: Browser) -> None:
    gating = make_gating(3, 2, parts=1, n_events=20_000)
    page_of(tmp_path, gating)
    browser.open(tmp_path / "report.html")
    centre = gating.quantiles[2, 0]
    ranges = gating.rasters.edges[:, [0, -1]]
    at = (centre - ranges[:, 0]) / (ranges[:, 1] - ranges[:, 0])
    told = [
        browser.hover("markers", 0.08 + 0.82 * at[0] + dx, 0.09 + 0.9 * at[1]) for dx in (0.0, 0.01, -0.01)
    ]
    assert any(f"1 {gating.phenotypes[0]}" in text for text in told), told
    assert any(re.search(r"events here:?\s*(about )?[\d,]+", text) for text in told), told
    heat = browser.hover("heatmap", 0.2, 0.7)
    assert "marker" in heat
    assert "median" in heat
    assert any(name in heat for name in gating.channels)
    assert browser.complaints() == []


@pytest.mark.slow
def test_names_are_shown_literally(tmp_path: Path, browser: Browser) -> None:
    channels = NASTY
    gating = make_gating(
        3, 5, channels=channels, samples=("<img src=x onerror=alert(2)>.fcs", "$$s$$"), parts=1
    )
    gating = replace(gating, why="<u>because</u>", run="</title><b>.h5")
    page_of(tmp_path, gating)
    browser.open(tmp_path / "report.html")
    body = browser.driver.find_element(By.TAG_NAME, "body").text
    for text in (*gating.phenotypes, *gating.samples, "<u>because</u>", gating.run):
        assert " ".join(text.split()) in " ".join(body.split())
    options = [o.text for o in Select(browser.driver.find_element(By.ID, "across")).options]
    assert options == [" ".join(name.split()) for name in channels]
    assert browser.driver.title == "Cell populations of 2 samples"
    assert not browser.driver.find_elements(By.CSS_SELECTOR, "body b, body u, body img")
    told = " ".join(browser.hover("heatmap", 0.1 + 0.1 * k, 0.8) for k in range(5))
    assert any(name in told for name in channels), told
    assert all(len(browser.canvas(plot)) > 3_000 for plot in PLOTS)
    assert browser.complaints() == []


def lacks_a_population() -> Gating:
    """The reference draw has nothing of the last population."""
    components, certainty = np.array([0, 1, 1]), np.array([0.9, 0.8, np.nan])
    return replace(make_gating(3, 3, parts=1), components=components, certainty=certainty)


UNUSUAL = {
    "one channel": partial(make_gating, 3, 1),
    "one population of Bayesian EM": partial(make_gating, 1, 2, parts=1, kind="bem"),
    "more than are drawn": partial(make_gating, 70, 5, parts=1, n_events=20_000),
    "one draw, an empty population": partial(make_gating, 4, 3, empty=True, draws=1, chains=1),
    "one that the reference lacks": lacks_a_population,
}


@pytest.mark.slow
@pytest.mark.parametrize("unusual", UNUSUAL)
def test_unusual_gatings_are_shown(tmp_path: Path, browser: Browser, unusual: str) -> None:
    page_of(tmp_path, UNUSUAL[unusual](), draws=8)
    browser.open(tmp_path / "report.html")
    assert all(len(browser.canvas(plot)) > 2_000 for plot in PLOTS)
    assert browser.complaints() == []


@pytest.mark.slow
def test_the_page_fits_a_narrow_screen(tmp_path: Path, browser: Browser) -> None:
    page_of(tmp_path, make_gating(6, 12, samples=("a" * 80 + ".fcs", "b")))
    size = browser.driver.get_window_size()
    browser.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False},
    )
    try:
        browser.open(tmp_path / "report.html")
        wide, screen = browser.driver.execute_script(
            "return [document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert wide <= screen + 1
    finally:
        browser.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.driver.set_window_size(size["width"], size["height"])


def await_complaints(browser: Browser, *words: str) -> None:
    heard: list[str] = []

    def all_heard(_: object) -> bool:
        heard.extend(browser.complaints())
        return all(word in " ".join(heard) for word in words)

    WebDriverWait(browser.driver, 20).until(all_heard, f"{words}")


@pytest.mark.slow
def test_these_tests_detect_errors(tmp_path: Path, browser: Browser) -> None:
    text = page_of(tmp_path, make_gating(3, 2))
    tail = "<script>console.error('wrong')</script><img src='http://example.invalid/x.png' alt=''></body>"
    bad = tmp_path / "bad.html"
    bad.write_text(
        text.replace("</body>", tail).replace("img-src data: blob:", "img-src *"), encoding="utf-8"
    )
    browser.open(bad)
    await_complaints(browser, "wrong", "example.invalid")
    bad.write_text(text.replace("</body>", tail), encoding="utf-8")
    browser.open(bad)
    await_complaints(browser, "Content Security Policy")  # the page forbids external content


@pytest.mark.slow
def test_a_browser_without_decompression_shows_a_message(tmp_path: Path, browser: Browser) -> None:
    text = page_of(tmp_path, make_gating(3, 2))
    old = tmp_path / "old.html"
    old.write_text(
        text.replace("<body>", "<body><script>delete window.DecompressionStream</script>"), encoding="utf-8"
    )
    browser.driver.get(old.as_uri())
    WebDriverWait(browser.driver, 30).until(lambda d: browser.failed)
    assert "figures" in browser.failed


def test_nearly_all_events_in_one_population_are_a_warning() -> None:
    gating = make_gating(2, 4)
    nearly = np.broadcast_to([0.97, 0.03], (40, 1, 2))
    warning = findings.one_population_warning(replace(gating, mean_proportions=nearly[0]))
    assert warning is not None
    assert warning.startswith("population 1 has 97.0% of the events in 4 channels: ")
    assert findings.one_population_warning(gating) is None
    assert findings.one_population_warning(replace(make_gating(2, 3), mean_proportions=nearly[0])) is None
