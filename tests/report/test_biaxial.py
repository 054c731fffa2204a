"""The plots of two channels on the page: outlines, images, axes, and the cards of populations."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from gatings import make_gating
from PIL import Image

from dpmix.inputs.transforms import Transform
from dpmix.populations.gates.cards import Card, Plot
from dpmix.populations.gates.ellipses import EllipseGate
from dpmix.populations.gates.polygons import PolygonGate
from dpmix.report import biaxial, decades
from dpmix.report.palette import colour


def pixels(png: str) -> np.ndarray:
    """Return an image of a data address, uint8 [height, width, 4]."""
    data = base64.b64decode(png.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))


@pytest.mark.parametrize("n_populations", [4, 60, 300])
def test_the_image_has_the_populations_of_the_bins(n_populations: int) -> None:
    gating = make_gating(n_populations, 3, parts=1, n_events=20_000)
    image = pixels(biaxial.raster_png(gating, 0))
    counts, populations = gating.rasters.counts[0], gating.rasters.populations[0]
    drawn = image[::-1].transpose(1, 0, 2)  # as the counts: first channel first, from below
    np.testing.assert_array_equal(drawn[..., 3] > 0, counts > 0)
    for a, b in np.argwhere(counts > 0)[::97]:
        own = colour(int(populations[a, b]))
        assert drawn[a, b, :3].tolist() == [int(own[i : i + 2], 16) for i in (1, 3, 5)]
    fullest = np.unravel_index(counts.argmax(), counts.shape)
    assert drawn[fullest][3] == 255


def test_outlines_stand_where_their_population_does() -> None:
    gating = make_gating(4, 3)
    outlined = biaxial.outlined_in(gating, [0, 1, 2])
    assert {p for own in outlined for p in own} == set(range(4))
    text = biaxial.populations_plot(gating, 0, outlined[0])
    assert text.count('class="outline"') == len(outlined[0])
    for p in outlined[0]:
        path = re.search(rf'data-of="{p}".*?d="([^"]*)"', text)
        assert path is not None
        points = np.array(re.findall(r"([\d.]+) ([\d.]+)", path[1]), float)
        assert points.min() >= 0
        assert points.max() <= 380


def test_the_gate_of_a_card_is_drawn() -> None:
    square = PolygonGate((0, 2), np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 99.0]]))
    round_gate = EllipseGate((1, 2), np.array([1.0, 2.0]), np.array([[2.0, 0.5], [0.5, 1.0]]), 4.0)
    events = np.zeros((48, 48))
    events[3, 4], events[5, 6] = 9.0, 2.0
    plots = tuple(Plot(gate, events, events * (events > 5)) for gate in (square, round_gate))
    gating = replace(make_gating(2, 3), cards=(Card(plots, 0.9, 0.8),))
    for k in range(2):
        assert biaxial.gate_plot(gating, 0, k).count('class="outline"') == 1
    ring = biaxial.gate_ring(round_gate)
    away = ring - round_gate.centre
    distance = np.einsum("vi,ij,vj->v", away, np.linalg.inv(round_gate.covariance), away)
    np.testing.assert_allclose(distance, 4.0, rtol=1e-4)
    image = pixels(re.findall(r'href="([^"]*)"', biaxial.gate_plot(gating, 0, 0))[0])[::-1].transpose(1, 0, 2)
    own = colour(0)
    assert image[3, 4, :3].tolist() == [int(own[i : i + 2], 16) for i in (1, 3, 5)]
    assert image[5, 6, :3].tolist() == [128, 128, 128]


@pytest.mark.parametrize(
    ("transform", "low", "high", "texts"),
    [
        (Transform("arcsinh", 5.0), -0.5, 7.0, ("0", "10¹", "10²", "10³")),
        (Transform("logicle", t=262144.0), 0.0, 1.0, ("-10²", "0", "10²", "10³", "10⁴", "10⁵")),
        (Transform("log"), 0.0, 3.2, ("10⁰", "10¹", "10²", "10³")),
        (Transform("log"), 0.2, 0.8, ("2", "5")),
        (Transform(), 0.0, 262_144.0, ("0", "100k", "200k")),
        (Transform("widen", 3.0), -2.0, 4.0, ("-2", "0", "2", "4")),
        (Transform(), -1.0, 4.0, ("-1", "0", "1", "2", "3", "4")),
    ],
)
def test_axes_have_decades(transform: Transform, low: float, high: float, texts: tuple[str, ...]) -> None:
    ticks = decades.axis_ticks(transform, low, high)
    assert ticks.texts == texts
    assert sorted(ticks.places) == list(ticks.places)
    assert all(low <= place <= high for place in (*ticks.places, *ticks.minor))
    if transform.method != "linear" and len(texts) > 2:
        raw = [0.0 if t == "0" else None for t in texts]
        for place, value in zip(ticks.places, raw, strict=True):
            if value is not None:
                assert transform.invert(np.array([place]))[0] == pytest.approx(0.0, abs=1e-6)


def test_labels_within_a_decade_do_not_overlap() -> None:
    transform = Transform("logicle", t=1e6, w=1.5, m=4.5)
    low, high = transform.apply(np.array([-1_500.0, 9_000.0])).tolist()
    ticks = decades.axis_ticks(transform, low, high)
    assert "0" in ticks.texts
    assert len(ticks.texts) >= 3
    assert np.diff(ticks.places).min() >= decades.APART * (high - low)
