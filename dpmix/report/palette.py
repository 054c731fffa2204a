"""Colours of populations, for figures and the report."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array, Ints

# The first six are the colours of Okabe and Ito (2008), "Color Universal Design", that contrast with white
# and black. Each further colour maximises its least distance (Oklab) from those before it, as seen with
# normal sight and with protanopia, deuteranopia and tritanopia (matrices of Machado, Oliveira and Fernandes
# 2009, IEEE Trans. Vis. Comput. Graph. 15:1291). The largest populations get the first colours, which differ
# most. No palette is safe beyond a dozen colours, so every picture shows the numbers too.
_HEX = (
    "0072b2d55e00009e73cc79a7e69f0056b4e97a1f00004770a366ffa33d33"
    "7000eba3c28f7000ad8f5c7a00d6e0cc0ab866334785ad70eb1fd6007052"
    "5c8f3d70478fad85ffcc99b885d6669933ffcc005c997099521f8f0a29cc"
    "8f3300cc705c70c252850a708570d6ad993deb8fff7a5c99a35c00eb66cc"
    "7a3d3d523d8fccc229d68f9970ccb8e014000a85eb7a3dd6298f7a85477a"
    "70145cf57ad6f500b85c47a3eb5c85cc47eb476633ff5c14f5a3ad66a3e0"
)
PALETTE = tuple(f"#{_HEX[i : i + 6]}" for i in range(0, len(_HEX), 6))
GREY = "#8c8c8c"


def colour(population: int) -> str:
    """Return the colour of a population, as #rrggbb."""
    return PALETTE[population % len(PALETTE)]


class Coloured(Protocol):
    """Numbers of the colours of populations; none if each has its own number."""

    @property
    def colours(self) -> tuple[int, ...]: ...


def colour_of(gating: Coloured, population: int) -> str:
    """Return the colour of a population of a gating, as #rrggbb."""
    return colour(gating.colours[population] if gating.colours else population)


def ink(background: str) -> str:
    """Return black or white, whichever reads better on a colour (WCAG 2.1, relative luminance)."""
    channels = np.array([int(background[i : i + 2], 16) for i in (1, 3, 5)]) / 255.0
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return "#000000" if linear @ [0.2126, 0.7152, 0.0722] > 0.179 else "#ffffff"


def full_count(counts: Ints) -> float:
    """Return the number of events from which a bin of a raster is drawn darkest.

    This is the 99.5% quantile of the filled bins, so a few bins with very many events do not make the others
    pale.
    """
    filled = counts[counts > 0]
    return float(np.quantile(filled, 0.995)) if len(filled) else 1.0


def strength(counts: Ints) -> Array:
    """Return the darkness of each bin of a raster, 0 to 1: the logarithm of its events, scaled."""
    dark: Array = np.minimum(np.log1p(counts) / np.log1p(full_count(counts)), 1.0)
    return dark


def rgb(populations: npt.NDArray[np.integer], counts: Ints) -> npt.NDArray[np.float64]:
    """Return the RGB colours of a raster, [..., 3], given the numbers of colours: paler for fewer events."""
    table = np.array([[int(c[i : i + 2], 16) / 255.0 for i in (1, 3, 5)] for c in PALETTE])
    depth = np.where(counts > 0, 0.22 + 0.78 * strength(counts), 0.0)[..., None]
    colours: npt.NDArray[np.float64] = 1.0 - depth * (1.0 - table[populations % len(PALETTE)])
    return colours
