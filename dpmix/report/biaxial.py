"""Plots of two channels as SVG, in the colours of the page: events, outlines, numbers, axes in decades.

They need no script, and follow the light and the dark colours of the page: the events are an image with a
transparent background, all else is drawn in the page's variables (page.css).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array
from dpmix.populations.events.outlines import Rings
from dpmix.populations.gates.ellipses import EllipseGate
from dpmix.populations.gates.strategy import Gate
from dpmix.populations.result import Gating
from dpmix.report.decades import ticks_of
from dpmix.report.drawing import spread_out
from dpmix.report.labels import shortened, shown
from dpmix.report.palette import PALETTE, colour_of, ink, strength

LEFT, BOTTOM, EDGE = 46.0, 42.0, 8.0  # margins of a plot, in its units
STEPS = 5  # darknesses of a colour in an image of many populations; twice as many of few
VISIBLE = 0.5  # share of a population in its own colour, from which a plot shows its outline
MOST_POINTS = 300  # of the explored cells
GREYS = 24  # darknesses of grey and of one colour
PANEL, CARD = 380.0, 220.0  # width and height of plots, in units; a letter has 12


def populations_plot(gating: Gating, pair: int, outlined: Iterable[int]) -> str:
    """Return a plot of a pair of channels (row of `Rasters.pairs`): all events, coloured by population.

    Parameters
    ----------
    gating : Gating
    pair : int
    outlined : iterable of int
        Populations that have an outline and a number.
    """
    rasters = gating.rasters
    x, y = rasters.pairs[pair].tolist()
    frame = _Frame(gating, x, y, PANEL)
    own = [p for p in outlined if np.isfinite(gating.quantiles[2, p]).all()]
    lines = [
        frame.outline(rasters.outlines[pair][p], p, colour_of(gating, p))
        for p in own
        if p < rasters.n_outlined
    ]
    points = frame.shares(gating.quantiles[2][own][:, [x, y]])
    numbers = [
        frame.number(place, p, gating.number(p), colour_of(gating, p))
        for p, place in zip(own, spread_out(points, np.array([0.075, 0.062])), strict=True)
    ]
    image = frame.image(raster_png(gating, pair))
    if gating.exploration is not None:
        every = -(-len(gating.exploration.values) // MOST_POINTS) or 1
        own_cells = gating.exploration.values[::every, [x, y]].astype(np.float64)
        lines.append(frame.dots(own_cells))
    return frame.svg([image, *lines, *numbers], f"Events in {frame.names}, coloured by population")


def gate_plot(gating: Gating, population: int, number: int) -> str:
    """Return a plot of a population's card: events in grey, its own in its colour, and its gate."""
    plot = gating.cards[population].plots[number]
    frame = _Frame(gating, *plot.gate.channels, CARD)
    own = colour_of(gating, population)
    image = frame.image(_two_colours_png(plot.events, plot.own, own))
    gate = frame.outline((gate_ring(plot.gate),), population, own)
    return frame.svg([image, gate], f"Gate of population {gating.number(population)} in {frame.names}")


def gate_ring(gate: Gate) -> npt.NDArray[np.float32]:
    """Return the border of a gate as a polygon, float32 [V, 2]."""
    if not isinstance(gate, EllipseGate):
        return gate.vertices.astype(np.float32)
    turn = np.linspace(0.0, 2.0 * np.pi, 48, endpoint=False)
    circle = np.sqrt(gate.distance) * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    ring: npt.NDArray[np.float32] = gate.centre + circle @ np.linalg.cholesky(gate.covariance).T
    return ring.astype(np.float32)


def outlined_in(gating: Gating, chosen: Sequence[int]) -> list[list[int]]:
    """Return the populations to outline in each of some pairs of channels: those that stand apart there.

    A population stands apart where at least `VISIBLE` of its events are in bins in which it is the most
    frequent one. Each population is outlined in one of the pairs at least.
    """
    seen = gating.rasters.visible[list(chosen)][:, : shown(gating)]
    best = seen.argmax(axis=0)
    judged = list(range(seen.shape[1], shown(gating)))  # explored cells: a number without an outline
    return [
        [p for p in range(seen.shape[1]) if seen[k, p] >= VISIBLE or (best[p] == k and seen[k, p] > 0.0)]
        + judged
        for k in range(len(chosen))
    ]


class _Frame:
    """A square plot of two channels, and how their values lie in it."""

    def __init__(self, gating: Gating, x: int, y: int, size: float) -> None:
        self._size = size
        self._names = [shortened(gating.short_channels[c], 24) for c in (x, y)]
        self._ticks = [ticks_of(gating, c) for c in (x, y)]
        ends = gating.rasters.edges[[x, y]][:, [0, -1]]
        self._low, self._range = ends[:, 0], ends[:, 1] - ends[:, 0]
        self._width, self._height = size - LEFT - EDGE, size - BOTTOM - EDGE

    @property
    def names(self) -> str:
        return " and ".join(self._names)

    def shares(self, points: Array) -> Array:
        """Return points [n, 2] as shares of the sides, inside the plot."""
        inside: Array = np.clip((points - self._low) / self._range, 0.03, 0.97)
        return inside

    def _from_shares(self, share: Array) -> Array:
        return np.stack(
            [LEFT + self._width * share[..., 0], EDGE + self._height * (1.0 - share[..., 1])], axis=-1
        )

    def image(self, png: str) -> str:
        return (
            f'<image x="{LEFT:g}" y="{EDGE:g}" width="{self._width:g}" height="{self._height:g}" '
            f'preserveAspectRatio="none" href="{png}"/>'
        )

    def outline(self, rings: Rings, population: int, colour: str) -> str:
        """Return the rings, kept inside the plot."""
        drawn = [self._from_shares(np.clip((ring - self._low) / self._range, 0.0, 1.0)) for ring in rings]
        path = " ".join("M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in ring.tolist()) + "Z" for ring in drawn)
        return (
            f'<g class="outline" data-of="{population}" style="--own:{colour}">'
            f'<path class="halo" d="{path}"/><path d="{path}"/></g>'
        )

    def dots(self, points: Array) -> str:
        places = self._from_shares(self.shares(points)).tolist()
        return f'<path class="dots" d="{"".join(f"M{x:.1f} {y:.1f}h0" for x, y in places)}"/>'

    def number(self, share: Array, population: int, number: int, colour: str) -> str:
        x, y = self._from_shares(np.clip(share, 0.03, 0.97)).tolist()
        width = 9.0 + 6.5 * len(str(number))
        return (
            f'<g class="number" data-of="{population}"><rect x="{x - width / 2:.1f}" y="{y - 8:.1f}" '
            f'width="{width:g}" height="16" rx="3" fill="{colour}"/>'
            f'<text x="{x:.1f}" y="{y + 4:.1f}" fill="{ink(colour)}">{number}</text></g>'
        )

    def svg(self, drawn: Sequence[str], title: str) -> str:
        """Return the plot with its axes."""
        base, right = EDGE + self._height, LEFT + self._width
        lines, texts = [f"M{LEFT:g} {EDGE:g}V{base:g}H{right:g}"], list[str]()
        for axis, ticks in enumerate(self._ticks):
            for places, length in ((ticks.places, 5.0), (ticks.minor, 2.5)):
                for place in places:
                    share = (place - self._low[axis]) / self._range[axis]
                    x, y = self._from_shares(np.array([share, share])).tolist()
                    line = f"M{x:.1f} {base:g}v{length:g}" if axis == 0 else f"M{LEFT:g} {y:.1f}h-{length:g}"
                    lines.append(line)
            for place, text in zip(ticks.places, ticks.texts, strict=True):
                share = (place - self._low[axis]) / self._range[axis]
                x, y = self._from_shares(np.array([share, share])).tolist()
                where = (
                    f'x="{x:.1f}" y="{base + 17:g}" text-anchor="middle"'
                    if axis == 0
                    else f'x="{LEFT - 7:g}" y="{y + 4:.1f}" text-anchor="end"'
                )
                texts.append(f"<text {where}>{escape(text)}</text>")
        across, up = (escape(name) for name in self._names)
        middle = EDGE + self._height / 2
        names = (
            f'<text class="axis" x="{LEFT + self._width / 2:g}" y="{base + 36:g}" text-anchor="middle">'
            f'{across}</text><text class="axis" x="0" y="0" text-anchor="middle" '
            f'transform="translate(12 {middle:g}) rotate(-90)">{up}</text>'
        )
        size = f"{self._size:g}"
        return (
            f'<svg class="biaxial" viewBox="0 0 {size} {size}" role="img" aria-label="{escape(title)}">'
            f'{"".join(drawn)}<path class="axes" d="{"".join(lines)}"/>{"".join(texts)}{names}</svg>'
        )


def raster_png(gating: Gating, pair: int) -> str:
    """Return the events of a pair of channels as an image, as a data address.

    A bin has the colour of its most frequent population, more transparent for fewer events.
    """
    rasters = gating.rasters
    counts = rasters.counts[pair]
    of_population = np.array(gating.colours or range(gating.n_populations)) % len(PALETTE)
    used, numbers = np.unique(of_population[rasters.populations[pair]], return_inverse=True)
    # A palette of a PNG has 256 colours, and one of them is transparent.
    steps = min(2 * STEPS, 255 // len(used))
    # At least the palest step: a bin with a single event must be seen.
    depth = np.clip(np.ceil(strength(counts) * steps), 1, steps).astype(np.int64) - 1
    codes = np.where(counts > 0, 1 + numbers.reshape(counts.shape) * steps + depth, 0)
    return _png(codes, [(PALETTE[own], alpha) for own in used for alpha in np.linspace(0.25, 1.0, steps)])


def _two_colours_png(events: Array, own: Array, colour: str) -> str:
    """Return events in grey, and where half or more belong to a population, in its colour."""
    dark = np.ceil(strength(np.ceil(events).astype(np.int64)) * GREYS).clip(1, GREYS).astype(np.int64)
    mine = own >= 0.5 * events
    codes = np.where(events > 0, dark + np.where(mine, GREYS, 0), 0)
    alphas = np.linspace(0.12, 0.7, GREYS), np.linspace(0.3, 1.0, GREYS)
    return _png(codes, [(c, a) for c, each in zip(("#808080", colour), alphas, strict=True) for a in each])


def _png(codes: npt.NDArray[np.integer], palette: Sequence[tuple[str, float]]) -> str:
    """Return an image of codes [first channel, second channel] as a data address; code 0 is transparent."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(codes.T[::-1]).astype(np.uint8), "P")
    image.putpalette(bytes(3) + b"".join(bytes.fromhex(colour[1:]) for colour, _ in palette))
    held = io.BytesIO()
    clear = bytes([0, *(round(255 * alpha) for _, alpha in palette)])
    image.save(held, "PNG", transparency=clear, optimize=True)
    return f"data:image/png;base64,{base64.b64encode(held.getvalue()).decode()}"
