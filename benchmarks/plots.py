"""How the plots of benchmarks look, and where they go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
from record import picture

from dpmix.report.drawing import STYLE
from dpmix.report.palette import PALETTE

COLOURS = PALETTE[:8]
WIDTH = 7.0
"""Inches; with 150 dots each the text can be read where a page shows the picture 700 pixels wide."""


@contextmanager
def panels(name: str, rows: int, columns: int, *, height: float, quick: bool) -> Iterator[npt.NDArray[Any]]:
    """Axes [rows, columns] to draw into; the picture is written at the end."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE | {"font.size": 9.0, "text.parse_math": True}):  # powers of ten
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        yield np.atleast_2d(figure.subplots(rows, columns, squeeze=False))
        path = picture(name, quick=quick)
        figure.savefig(path, metadata={"Software": None})
    print(f"drawn to {os.path.relpath(path)}")


def significant(value: float, digits: int = 3) -> str:
    """With this many significant digits and a comma at each thousand; never as a power of ten."""
    rounded = float(f"{value:.{digits}g}")
    decimals = max(0, digits - 1 - int(np.floor(np.log10(abs(rounded))))) if rounded else 0
    return f"{rounded:,.{decimals}f}"
