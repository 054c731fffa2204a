"""Values of options and arguments: numbers without NaN and infinity, paths that are not empty."""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A range of finite numbers. For click, NaN lies in every range: no comparison with it is true."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or fail as click does for a number outside the range."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class GivenPath(click.Path):
    """A path that is not empty. For click, an empty one, from an unset variable, is the current folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path, or fail."""
        if value == "":
            self.fail("it is empty; give a file or folder.", param, ctx)
        return super().convert(value, param, ctx)
