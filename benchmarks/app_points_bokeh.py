"""Measure how fast Bokeh's scatter with WebGL draws events without a GPU, next to those of dpmix app.

    python benchmarks/app_points_bokeh.py [--quick]

One plot of normal events in 20 colours, 1,000,000 of them, drawn by software (SwiftShader). Seconds are
from the data to the pixels, which both read back: this waits until they are drawn. Takes a minute; `--quick`
draws 5,000 events.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
from app_points import FLAGS
from bokeh.embed import json_item
from bokeh.models import ColumnDataSource
from bokeh.plotting import figure
from bokeh.resources import Resources
from record import ROOT, arguments, write_results
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

SCRIPT = """
const answer = arguments[1], n = arguments[0], seconds = {};
const normal = () => { let sum = -6; for (let k = 0; k < 12; k++) sum += Math.random(); return sum; };
const [x, y] = [0, 1].map(() => Float32Array.from({ length: n }, normal));
const palette = Uint32Array.from({ length: 20 }, (_, k) => 255 + 65536 * 256 * (10 * k) + 65536 * 200);
const c = Uint32Array.from({ length: n }, (_, i) => palette[i % 20]);
const canvases = (node) => [...(node.tagName === "CANVAS" ? [node] : []),
  ...[...(node.children ?? []), ...(node.shadowRoot?.children ?? [])].flatMap(canvases)];
const frame = () => new Promise((go) => requestAnimationFrame(() => setTimeout(go)));
(async () => {
  const plot = (await Bokeh.embed.embed_item(ITEM, "plot")).roots[0].model;
  const from = performance.now();
  plot.document.get_model_by_name("events").data = { x, y, c };
  for (let k = 0; k < 5; k++) await frame();
  for (const one of canvases(byPlot)) one.getContext("2d")?.getImageData(0, 0, 1, 1);
  seconds.bokeh = (performance.now() - from) / 1000;
  const groups = Array.from({ length: 20 }, (_, k) => ({ count: n / 20, colour: [10 * k, 200, 0], size: 2 }));
  const layers = { "webgl.js": new PointLayer(() => {}, () => {}), "painter.js": new PointPainter() };
  for (const [name, layer] of Object.entries(layers)) {
    const start = performance.now();
    layer.setValues(0, x);
    layer.setValues(1, y);
    layer.setOrder(Uint32Array.from({ length: n }, (_, i) => i));
    layer.draw(400, 350, [0, 1], [[-4, 4], [-4, 4]], [[-4, 4], [-4, 4]], groups);
    seconds[name] = (performance.now() - start) / 1000;
  }
  answer(seconds);
})().catch((error) => answer(String(error)));
"""


def write_page(folder: Path) -> Path:
    """Write a page with both libraries and an empty plot."""
    source = ColumnDataSource(
        {"x": np.zeros(1), "y": np.zeros(1), "c": np.zeros(1, np.uint32)}, name="events"
    )
    plot = figure(width=450, height=400, x_range=(-4, 4), y_range=(-4, 4), tools="", output_backend="webgl")
    plot.scatter("x", "y", size=2, fill_color="c", line_color=None, source=source)
    bokeh = Resources(mode="inline", components=["bokeh", "bokeh-gl"]).js_raw
    own = [
        (ROOT / "dpmix" / "app" / f"{name}.js").read_text(encoding="utf-8") for name in ("webgl", "painter")
    ]
    item = f"const ITEM = {json.dumps(json_item(plot))}, byPlot = document.getElementById('plot');"
    scripts = "".join(f"<script>{text}</script>" for text in (*bokeh, *own, item))
    path = folder / "page.html"
    path.write_text(f"<!DOCTYPE html><meta charset=utf-8><div id=plot></div>{scripts}", encoding="utf-8")
    return path


def main() -> None:
    given = arguments(__doc__).parse_args()
    n_events = 5_000 if given.quick else 1_000_000
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        with tempfile.TemporaryDirectory() as folder:
            driver.set_script_timeout(600)
            driver.get(write_page(Path(folder)).as_uri())
            found = driver.execute_async_script(SCRIPT, n_events)
    finally:
        driver.quit()
    if isinstance(found, str):
        raise RuntimeError(found)
    results = {name: float(f"{value:.3g}") for name, value in found.items()}
    results |= {"events": f"{n_events:,}", "version": version("bokeh")}
    print(results)
    write_results("app_points_bokeh", results, quick=given.quick)


if __name__ == "__main__":
    main()
