"""Figure of the comparison with manual gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpmix.populations.gates.comparison import Comparison
from dpmix.populations.result import Gating
from dpmix.report.drawing import new_figure
from dpmix.report.labels import shortened, title
from dpmix.report.palette import GREY, colour_of, ink

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_GATES = 80  # drawn, in the order of the workspace


def comparison(gating: Gating, compared: Comparison) -> Figure:
    """Draw F1 of each gate with the matched population (numbered) and with the best union (ring)."""
    drawn = min(len(compared.gates), MOST_GATES)
    matches, (_, union_f1) = compared.matches(), compared.unions()
    rows = np.arange(drawn)
    figure = new_figure(8.5, 1.2 + 0.21 * max(drawn, 1))
    axes = figure.add_subplot()
    axes.hlines(rows, 0.0, 1.0, colors="#e8e8e8", linewidth=0.6, zorder=0)
    axes.scatter(
        union_f1[:drawn], rows, s=110, facecolors="none", edgecolors=GREY, label="best union of populations"
    )
    axes.scatter([], [], s=70, c=GREY, marker="s", label="matched population, by its number")
    for g in range(drawn):
        p = int(matches[g])
        if p < 0:
            continue
        box = {
            "boxstyle": "round,pad=0.15",
            "facecolor": colour_of(gating, p),
            "edgecolor": "white",
            "linewidth": 0.5,
        }
        at = (float(compared.f1[g, p]), g)
        axes.annotate(
            f"{gating.number(p)}",
            at,
            ha="center",
            va="center",
            fontsize=6.5,
            color=ink(colour_of(gating, p)),
            bbox=box,
        )
        axes.annotate(title(gating, p, 40), (1.03, g), va="center", fontsize=6.5, annotation_clip=False)
    names = [shortened(gate, 48) for gate in compared.gates[:drawn]]
    axes.set_yticks(rows, [f"{name} ({n:,})" for name, n in zip(names, compared.sizes[:drawn], strict=True)])
    axes.set_ylim(max(drawn, 1) - 0.4, -0.6)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("F1")
    axes.tick_params(axis="y", length=0)
    figure.legend(loc="outside upper left", frameon=False, ncols=2)
    return figure
