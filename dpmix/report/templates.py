"""The HTML pages from their templates, which share the styles in common.css."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from dpmix.system.version import VERSION

if TYPE_CHECKING:
    from jinja2 import Environment


def read(name: str) -> str:
    """Return the text of a file of this folder."""
    return files("dpmix.report").joinpath(name).read_text(encoding="utf-8")


def render(template: str, **values: object) -> str:
    """Return a page from a template of this folder and the values that it shows.

    Raises
    ------
    jinja2.UndefinedError
        A value is missing.
    """
    return _environment().get_template(template).render(version=VERSION, **values)


@cache
def _environment() -> Environment:
    """Return the environment of all templates, which keeps those that it has compiled."""
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(read), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
