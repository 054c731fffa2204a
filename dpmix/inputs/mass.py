"""Recognise mass cytometry, by the names of channels or by the values of events.

Mass cytometers count ions. Most events have none of a given isotope, so a channel has very many zeros, few
values between 0 and 5 ions, and a long tail. Instruments and converters name a channel by its isotope:
Ce140Di, (Ce140)Di, CD3(Er170)Dd, 170Er_CD3; the first instruments by its mass: Nd(141.907)-Dual. Sums of
isotopes are named Cd(110,111,112,114).

**Randomised counts.** The software of CyTOF 1 to Helios can store an integer count x as x - u, with u uniform
between 0 and 1, so that an event without ions is between -1 and 0. dpmix keeps these values as the file has
them: the noise is far narrower than the linear range of arcsinh(x / 5). It adds no noise of this kind itself.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence

import numpy as np

from dpmix.inputs.channel import Channel
from dpmix.model.mixture import Array, Floats

ELEMENTS = (
    "Ag|Ar|As|Au|Ba|Bi|Br|Cd|Ce|Cs|Dy|Er|Eu|Gd|Hf|Hg|Ho|I|In|Ir|La|Lu|Mo|Nb|Nd|Os|Pb|Pd|Pr|Pt|Re|Rh|Ru|Se|Sm|"
    "Sn|Sr|Ta|Tb|Te|Tl|Tm|Xe|Y|Yb|Zr"
)
ISOTOPE = re.compile(
    rf"\(?(?<![A-Za-z0-9])(?:(?P<mass>\d{{2,3}})(?P<element>{ELEMENTS})|"
    rf"(?P<element2>{ELEMENTS})(?P<mass2>\d{{2,3}}(?:[_+]\d{{2,3}})*)|"
    rf"(?P<element3>{ELEMENTS})\((?P<mass3>\d{{2,3}}(?:\.\d+)?(?:[,+] ?\d{{2,3}}(?:\.\d+)?)*)\))"
    r"\)?(?:D[id]|-Dual)?(?![A-Za-z0-9])"
)
MASS_NUMBERS = re.compile(r"^\d{2,3}(?:[_,-]\d{2,3})*[-_ ](?=[A-Za-z])")  # of a marker: 142-CD19, 110_114-CD3
LIGHTEST, HEAVIEST = 75, 209  # mass numbers that the instruments detect
FEWEST = 3  # channels named by isotopes that show a mass cytometer

# Of the values: a channel of ion counts has at least this share of zeros (or of randomised zeros) and of
# small counts, and a median that is small next to its tail.
ZEROS, SMALL, MEDIAN, TAIL = 0.02, 0.05, 0.04, 30.0
SMALL_COUNT = 5.0

# Of counts after arcsinh(x / cofactor), in a table that names nothing.
USUAL_COFACTORS = (5.0, 15.0)
EVEN, STEP = 0.75, 1.3  # least over most events in quarters of a count from -1 to 0, and over those outside
COFACTORS = (1.0, 50.0)  # fluorescence has 100 or more
FEWEST_EVENTS = 1_000
HIGHEST = 14.0  # arcsinh of 10^6 ions, cofactor 2; no instrument counts this many in one event
MANY_ZEROS, SOME_ZEROS = 0.25, 0.1  # in a quarter of the channels at least, and in half of them
DISTINCT = 0.8  # of the values above 0 differ, where counts were normalised


def isotope(name: str) -> str:
    """Return the isotope in a name, for example "Ir191", "" where it has none; "Cd110,111" of a sum."""
    found = isotopes(name)
    return ",".join([found[0], *(one.lstrip(string.ascii_letters) for one in found[1:])]) if found else ""


def isotopes(name: str) -> list[str]:
    """Return the isotopes in the name of a channel; several of a sum."""
    for match in ISOTOPE.finditer(name):
        found = match.groupdict()
        element = found["element"] or found["element2"] or found["element3"]
        numbers = found["mass"] or found["mass2"] or found["mass3"]
        masses = [round(float(number)) for number in re.split(r"[,_+]", numbers)]
        if all(LIGHTEST <= mass <= HEAVIEST for mass in masses):
            return [f"{element}{mass}" for mass in masses]
    return []


def parts_of_sums(names: Sequence[str]) -> dict[int, int]:
    """Return for each channel of one isotope the number of the channel that has a sum with it, if any."""
    found = [isotopes(name) for name in names]
    sums = [k for k, own in enumerate(found) if len(own) > 1]
    return {
        k: whole for whole in sums for k, own in enumerate(found) if len(own) == 1 and own[0] in found[whole]
    }


def target(channel: Channel) -> str:
    """Return the name of a channel without its isotope: the antibody, "" where none is named."""
    for name in (channel.marker, channel.detector):
        rest = MASS_NUMBERS.sub("", ISOTOPE.sub(" ", name).strip(" _-()"))
        if rest:
            return rest
    return ""


def named_by_isotopes(details: Sequence[Channel]) -> bool:
    """Return True if the detectors belong to a mass cytometer."""
    return sum(bool(isotope(channel.detector)) for channel in details) >= FEWEST


def are_counts(raw: Array | Floats) -> bool:
    """Return True if events look like counts of ions, by their zeros.

    Parameters
    ----------
    raw : float32 or float64 [M, D]
        Some of the events.
    """
    if raw.size == 0 or not np.isfinite(raw).all() or raw.min() < -1:
        return False
    zeros = ((raw > -1) & (raw <= 0)).mean(0)
    small = ((raw > -1) & (raw < SMALL_COUNT) & (raw != 0)).mean(0)
    middle, tail = np.quantile(raw, [0.5, 0.999], axis=0).astype(float)
    skewed = (tail > TAIL) & (middle < MEDIAN * tail)
    counted = (zeros > ZEROS) & (small > SMALL) & skewed
    return bool(counted.sum() >= max(2, raw.shape[1] / 2))


def cofactor_of_counts(values: Array) -> float | None:
    """Return the cofactor where values look like counts of ions after arcsinh(x / cofactor), else None.

    Most events have no ions of an isotope, in most channels, and nothing lies below them. Three kinds show
    this: zeros that were randomised, which fill the range from -arcsinh(1 / cofactor) to 0 evenly (where
    something else was subtracted later and lies below, only cofactors of 5 and 15 are tried); integer counts,
    whose smallest is arcsinh(1 / cofactor); and zeros below counts that were normalised, whose cofactor does
    not show: 5, the usual one.

    Parameters
    ----------
    values : float64 [M, D]
        Some of the events.
    """
    if len(values) < FEWEST_EVENTS or not np.isfinite(values).all() or values.max() > HIGHEST:
        return None
    lowest = float(values.min())
    if lowest < 0.0:
        # The lowest randomised zero lies at -arcsinh(1 / cofactor), so it tells the cofactor.
        tried = (float(-1.0 / np.sinh(lowest)), *USUAL_COFACTORS)
        usable = (one for one in tried if COFACTORS[0] <= one <= COFACTORS[1])
        return next((one for one in usable if _zeros_fill_a_block(values, one)), None)
    zeros = np.sort((values == 0.0).mean(axis=0))
    half, quarter = zeros[len(zeros) // 2], zeros[len(zeros) * 3 // 4]
    if values.min(axis=0).any() or half < SOME_ZEROS or quarter < MANY_ZEROS:
        return None
    above = values[values > 0.0]
    cofactor = float(1.0 / np.sinh(above.min()))
    counts = cofactor * np.sinh(above[above < np.arcsinh(20.0 / cofactor)])
    if COFACTORS[0] <= cofactor <= COFACTORS[1] and np.abs(counts - counts.round()).max() < 0.01:
        return cofactor
    counted = [column[column > 0.0] for column in values.T if column.any()]
    distinct = np.median([len(np.unique(column)) / len(column) for column in counted])
    return USUAL_COFACTORS[0] if distinct > DISTINCT else None


def _zeros_fill_a_block(values: Array, cofactor: float) -> bool:
    """Return True if, in most channels, counts are even from -1 to 0 and much fewer on both sides."""
    edges = np.arange(-5, 2) / 4.0
    found = np.stack([np.histogram(column, edges)[0] for column in (cofactor * np.sinh(values)).T])
    inside, outside = found[:, 1:5], found[:, [0, 5]]
    many = inside.sum(axis=1) > ZEROS * len(values)
    even = inside.min(axis=1) > EVEN * inside.max(axis=1)
    steps = inside.min(axis=1) > STEP * outside.max(axis=1)
    return bool((many & even & steps).mean() > 0.5)


def are_randomised(raw: Array) -> bool:
    """Return True if counts of ions, float64 [M, D], were randomised: zeros are spread from -1 to 0."""
    between = (raw > -1) & (raw < 0)
    return bool(
        raw.size and raw.min() >= -1 and between.mean() > ZEROS and between.mean() > (raw == 0).mean()
    )
