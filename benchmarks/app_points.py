"""Measure how fast the page of dpmix app draws events as points, in a browser without a GPU.

    python benchmarks/app_points.py [--quick]

The page then draws them itself (painter.js). Its WebGL is measured next to it, in software (SwiftShader);
with a graphics processor, for which WebGL is meant, it was not measured. The events are the same as in
benchmarks/app.py. "first" is from pressing Points to four plots of all events, with their populations
computed by the server; "cut" and "selection" are from a new cut and a box to four plots, which are drawn, but
perhaps not yet on the screen. Takes four minutes; `--quick` draws 5,000 events.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from app import make_run
from record import ROOT, arguments, read_results, said, write_results

sys.path.insert(0, str(ROOT / "docs"))

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--use-gl=angle",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
)
BY_WEBGL = "points.layer = new PointLayer(redrawAll, redrawAll);"
SOFTWARE = ", WebGL by software"
WAIT = """
const until = async (done) => { while (!done()) await new Promise((go) => setTimeout(go, 5)); };
const timed = async (work, done) => {
  const from = performance.now();
  work();
  await until(done);
  return (performance.now() - from) / 1000;
};
const drawn = () => areCurrent() && !bringing && points.groups;
"""
PAGE = """
const first = await timed(() => byId("as-points").click(), drawn);
const number = Math.max(2, state.view.populations.length - 1);
const cut = await timed(() => { byId("cut").value = number; byId("cut").onchange(); },
  () => state.view.populations.length === number && drawn());
const [x, y] = axesOf(0).map((d) => state.opened.ranges[d]);
const box = { type: "rect", x0: x[0], x1: (x[0] + x[1]) / 2, y0: y[0], y1: y[1] };
const selection = await timed(() => select(0, box), drawn);
return { first, cut, selection, "browser, MB": performance.memory.usedJSHeapSize / 1e6 };
"""


def run_in(driver: Any, script: str) -> Any:
    """Return the result of an asynchronous script."""
    whole = (
        "const answer = arguments[0]; (async () => {"
        + WAIT
        + script
        + "})().then(answer, (e) => answer(String(e)));"
    )
    return driver.execute_async_script(whole)


def measure(run: Path, before: str = "") -> dict[str, float]:
    """Return seconds and megabytes of the page, after a script."""
    from page_pictures import served
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.support.ui import WebDriverWait

    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    with served(run.parent) as address:
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            driver.set_script_timeout(600)
            driver.get(address)
            WebDriverWait(driver, 300).until(
                lambda d: d.execute_script("return document.documentElement.dataset.ready") == "true"
            )
            found = run_in(driver, before + PAGE)
        finally:
            driver.quit()
    if isinstance(found, str):
        raise RuntimeError(found)
    return {name: float(f"{value:.3g}") for name, value in found.items()}


def page() -> str:
    """Return the table of docs/benchmarks/app.md."""
    lines = [
        "| events | first points | after a cut | after a selection | memory of the script |",
        "|---" * 5 + "|",
    ]
    for events, own in read_results("app_points")["results"].items():
        seconds = " | ".join(f"{own[name]:.2g} s" for name in ("first", "cut", "selection"))
        lines.append(f"| {events} | {seconds} | {own['browser, MB']:.2g} MB |")
    return "\n".join([*lines, "", said("app_points", packages=("dpmix", "numpy"))])


def main() -> None:
    given = arguments(__doc__).parse_args()
    results = {}
    for n_events in (5_000,) if given.quick else (50_000, 1_000_000):
        with tempfile.TemporaryDirectory() as folder:
            run = make_run(Path(folder), n_events)
            for how, before in (("", ""), (SOFTWARE, BY_WEBGL)):
                results[f"{n_events:,}{how}"] = measure(run, before)
                print(f"{n_events:,}{how}", results[f"{n_events:,}{how}"], flush=True)
    write_results("app_points", results, quick=given.quick)


if __name__ == "__main__":
    main()
