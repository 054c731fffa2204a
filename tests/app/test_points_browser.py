"""Events as points, by WebGL and without, in a browser with WebGL by software, and in one without WebGL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from selenium.webdriver import Keys
from test_browser import Page, server  # noqa: F401
from test_page import Browser, start_browser
from test_server import Server

pytestmark = pytest.mark.slow

SOFTWARE = "--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"
WITHOUT = "--disable-gpu", "--disable-3d-apis"
CURRENT = "return isPoints() && areCurrent() && !bringing"
BY_WEBGL = "points.layer = new PointLayer(redrawAll, redrawAll)"  # as with a graphics processor
LOSE = "points.context = points.layer.gl.getExtension('WEBGL_lose_context'); points.context.loseContext()"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    one = start_browser(tmp_path_factory.mktemp("software"), *SOFTWARE)
    yield one
    one.driver.quit()


@pytest.fixture(params=["painter"])
def page(browser: Browser, server: Server, study: Path, request: pytest.FixtureRequest) -> Page:  # noqa: F811
    one = Page(browser.driver, server, study)
    name = "return points.layer.constructor.name"
    assert browser.driver.execute_script(name) == "PointPainter"  # WebGL by software is slower
    if request.param == "webgl":
        browser.driver.execute_script(BY_WEBGL)
    one.find("#as-density").send_keys(Keys.ARROW_RIGHT)  # by keyboard
    one.until(lambda: browser.driver.execute_script(CURRENT))
    return one


def shown(page: Page, plot: int = 0) -> tuple[Any, Any, Any]:
    """Return the pixels of a plot as uint32 [H, W], the colours of populations, and values and populations.

    Values of the two channels and the population, float64 [3, M].
    """
    found = page.driver.execute_script(
        """
        const source = models[`pair${arguments[0]}`].document.get_model_by_name(`image${arguments[0]}`);
        const image = source.data.image[0];
        const [x, y] = axesOf(arguments[0]).map((d) => Array.from(points.layer.values.get(d)));
        const colours = state.view.populations.map((p) => p.colour);
        return [Array.from(image), image.shape, colours, x, y, Array.from(points.population)];
        """,
        plot,
    )
    pixels = np.array(found[0], np.uint32).reshape(found[1])
    colours = [int.from_bytes(bytes.fromhex(f"{code[1:]}ff"), "little") for code in found[2]]
    return pixels, np.array(colours, np.uint32), np.array(found[3:], float)


def expected(page: Page, pixels: Any, events: Any, plot: int = 0) -> tuple[Any, Any]:
    """Return the row and column of the pixel that contains each event."""
    ends = page.driver.execute_script("return axesOf(arguments[0]).map((d) => state.opened.ranges[d])", plot)
    (left, right), (bottom, top) = ends
    height, width = pixels.shape
    columns = np.floor((events[0] - left) / (right - left) * width).clip(0, width - 1).astype(int)
    rows = np.floor((events[1] - bottom) / (top - bottom) * height).clip(0, height - 1).astype(int)
    return rows, columns


@pytest.mark.parametrize("page", ["webgl", "painter"], indirect=True)
def test_each_event_is_a_mark_in_the_colour_of_its_population(page: Page, browser: Browser) -> None:
    assert page.find("#shown").text.startswith("Points: all 2,500 events.")
    pixels, colours, events = shown(page)
    rows, columns = expected(page, pixels, events)
    assert set(np.unique(pixels)) <= {0, *colours}  # 0: no event
    assert (pixels[rows, columns] != 0).mean() > 0.98  # but for rounding to a pixel
    assert 0.01 < (pixels != 0).mean() < 0.6
    sizes = np.bincount(events[2].astype(int), minlength=len(colours))
    smallest = int(np.where(sizes > 0, sizes, sizes.max()).argmin())
    own = events[2] == smallest
    assert (pixels[rows[own], columns[own]] == colours[smallest]).mean() > 0.95  # nothing lies on top
    largest = int(sizes.argmax())
    own = events[2] == largest
    assert 0.3 < (pixels[rows[own], columns[own]] == colours[largest]).mean() <= 1.0
    assert [c for c in browser.complaints() if " " in c or not c.startswith("http://127.0.0.1:")] == []


def test_points_follow_decisions(page: Page, browser: Browser) -> None:
    events = shown(page)[2]

    def cut() -> None:
        page.find("#cut").send_keys(Keys.HOME)
        page.decided("cut")
        page.until(lambda: browser.driver.execute_script(CURRENT))

    def undo() -> None:
        page.find("#undo").click()
        page.until(lambda: page.actions() == [] and browser.driver.execute_script(CURRENT))

    cut()  # on a busy machine the plots take their final size only after the points are there
    undo()
    before = shown(page)[0]
    cut()
    pixels, colours, one = shown(page)
    assert set(one[2]) == {0.0}
    assert set(np.unique(pixels)) == {0, colours[0]}
    np.testing.assert_array_equal(pixels != 0, before != 0)
    undo()
    pixels, _, again = shown(page)
    np.testing.assert_array_equal(again[2], events[2])
    np.testing.assert_array_equal(pixels, before)
    assert page.find("#failed").text == ""


def test_a_selection_is_the_same_in_both_views(page: Page, browser: Browser) -> None:
    page.drag_box("#plot-pair0")
    line = page.find("#selection").text
    pixels, colours, _ = shown(page, 1)
    others = {int(one) for one in np.unique(pixels)} - {0, *colours.tolist()}
    assert len(others) == 1  # grey: the events outside
    drawn = browser.canvas("pair1")
    page.find("#as-points").send_keys(Keys.ARROW_LEFT)
    page.until(lambda: page.find("#shown").text == "Density of all 2,500 events.")
    assert page.find("#selection").text == line
    page.until(lambda: browser.canvas("pair1") != drawn)
    page.find("#as-density").send_keys(Keys.ARROW_RIGHT)
    page.until(lambda: browser.driver.execute_script(CURRENT))
    assert page.find("#selection").text == line
    page.find("h1").click()
    page.press(Keys.ESCAPE)
    page.until(lambda: page.find("#selection").text.startswith("Select events"))
    page.find("#rows .badge").click()
    page.until(lambda: browser.driver.execute_script(CURRENT))
    _, _, events = shown(page)
    assert page.find("#selection").text.startswith(f"{int((events[2] == 0).sum()):,} of 2,500 events (")
    page.press(Keys.ESCAPE)


def test_a_moved_window_is_drawn_again(page: Page) -> None:
    page.driver.execute_script(
        """
        const { x_range } = models.pair0, half = (x_range.end - x_range.start) / 2;
        x_range.setv({ end: x_range.start + half });
        redrawMoved(0);
        """
    )
    # In the new window, with a pixel for each pixel of the plot, which on a busy machine takes its final size
    # only now.
    drawn = """
        const { document, x_range } = models.pair0, { frame, canvas_view } = views.pair0;
        const { dw, image } = document.get_model_by_name("image0").data;
        const sides = [frame.bbox.height, frame.bbox.width];
        const shape = sides.map((side) => Math.round(side * canvas_view.pixel_ratio));
        return dw[0] === x_range.end - x_range.start && String(image[0].shape) === String(shape);
    """
    page.until(lambda: page.driver.execute_script(drawn))
    pixels, _, events = shown(page)
    edges = page.driver.execute_script("return [models.pair0.x_range.start, models.pair0.x_range.end]")
    inside = events[:, (events[0] > edges[0]) & (events[0] < edges[1])]
    columns = np.floor((inside[0] - edges[0]) / (edges[1] - edges[0]) * pixels.shape[1]).astype(int)
    rows, _ = expected(page, pixels, inside)
    assert (pixels[rows, columns.clip(0, pixels.shape[1] - 1)] != 0).mean() > 0.98


@pytest.mark.parametrize("page", ["webgl"], indirect=True)
def test_a_lost_context_is_said_and_recovered(page: Page, browser: Browser) -> None:
    before, _, _ = shown(page)
    page.driver.execute_script(LOSE)
    lost = (
        "The browser has taken WebGL away. Until it is back, the plots show the density of all 2,500 events."
    )
    page.until(lambda: page.find("#shown").text == lost)
    shape = "return models.pair0.document.get_model_by_name('image0').data.image[0].shape"
    assert page.driver.execute_script(shape) == [128, 128]
    page.find("#cut").send_keys(Keys.HOME)
    page.decided("cut")
    page.find("#undo").click()
    page.until(lambda: page.actions() == [])
    page.driver.execute_script("points.context.restoreContext()")
    page.until(lambda: page.find("#shown").text.startswith("Points: all"))
    page.until(lambda: browser.driver.execute_script(CURRENT))
    np.testing.assert_array_equal(shown(page)[0], before)
    assert page.find("#failed").text == ""


def test_both_ways_draw_the_same(page: Page) -> None:
    """But for rounding: graphics processors place points on a grid of sixteenths of a pixel, or finer."""
    differences = page.driver.execute_script(
        """
        const [one, other] = [new PointLayer(() => {}, () => {}), new PointPainter()];
        const axes = axesOf(0), limits = axes.map(limitsOf), found = [];
        for (const layer of [one, other]) {
          for (const channel of axes) layer.setValues(channel, points.layer.values.get(channel));
          layer.setOrder(points.layer.order);
        }
        const { x_range: x, y_range: y } = models.pair0, window = [[x.start, x.end], [y.start, y.end]];
        for (const size of [1, 2, 4, 5]) {
          const groups = points.groups.map(({ count }, k) => ({ count, colour: [k, 100, 200], size }));
          const draw = (layer) => layer.draw(300, 250, axes, window, limits, groups);
          const [a, b] = [one, other].map(draw);
          let marked = 0, apart = 0;
          for (let i = 0; i < a.length; i++) {
            marked += a[i] || b[i] ? 1 : 0;
            apart += a[i] !== b[i] ? 1 : 0;
          }
          found.push([marked, apart]);
        }
        return found;
        """
    )
    assert all(marked > 1_000 and apart < 0.12 * marked for marked, apart in differences), differences


def test_without_webgl_points_are_drawn(server: Server, study: Path, tmp_path: Path) -> None:  # noqa: F811
    browser = start_browser(tmp_path, *WITHOUT)
    try:
        page = Page(browser.driver, server, study)
        assert page.find("#shown").text == "Density of all 2,500 events."
        page.find("#as-density").send_keys(Keys.ARROW_RIGHT)
        page.until(lambda: browser.driver.execute_script(CURRENT))
        pixels, _, events = shown(page)
        rows, columns = expected(page, pixels, events)
        assert (pixels[rows, columns] != 0).mean() > 0.98
        assert page.find("#failed").text == ""
    finally:
        browser.driver.quit()
