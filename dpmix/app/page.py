"""The page: one HTML file, its script and styles, and the plotting library of the report."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path

from dpmix.app.channels import GRID_MOST
from dpmix.app.figures import figures
from dpmix.app.incoming import MOST_BYTES, SUFFIXES
from dpmix.explore.screen import FURTHER
from dpmix.report.page_data import script_json
from dpmix.report.palette import PALETTE
from dpmix.system.version import VERSION

PLOTS = 4
"""Pairs of channels that are shown at a time."""
FILES = {
    "app.css": "text/css; charset=utf-8",
    "app.js": "text/javascript; charset=utf-8",
    "populations.js": "text/javascript; charset=utf-8",
    "plots.js": "text/javascript; charset=utf-8",
    "webgl.js": "text/javascript; charset=utf-8",
    "painter.js": "text/javascript; charset=utf-8",
    "points.js": "text/javascript; charset=utf-8",
    "files.js": "text/javascript; charset=utf-8",
    "channels.js": "text/javascript; charset=utf-8",
    "running.js": "text/javascript; charset=utf-8",
    "gates.js": "text/javascript; charset=utf-8",
    "rare.js": "text/javascript; charset=utf-8",
    "types.js": "text/javascript; charset=utf-8",
    "drop.js": "text/javascript; charset=utf-8",
    "bokeh.js": "text/javascript; charset=utf-8",
}
"""Files of the page and their types."""


def html(folder: Path) -> str:
    """Return the page of a folder."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return environment.from_string(_text("app.html")).render(
        folder=str(folder),
        version=VERSION,
        plots=range(PLOTS),
        figures=script_json(figures(PLOTS)),
        palette=script_json(PALETTE),
        suffixes=",".join(SUFFIXES),
        most_bytes=MOST_BYTES,
        further=FURTHER,
        grid_most=GRID_MOST,
    )


@cache
def file(name: str) -> str:
    """Return one of `FILES`."""
    if name != "bokeh.js":
        return _text(name)
    from bokeh.resources import Resources

    return "\n".join(Resources(mode="inline", components=["bokeh"], log_level="warn").js_raw)


def _text(name: str) -> str:
    return files("dpmix.app").joinpath(name).read_text(encoding="utf-8")
