"""Short names of populations by their markers, each different from all others.

A name is read like a gate: "CD3+ CD4+" are the events that are both. A population is given the markers in
which not all populations have its level,

1. until the populations that its name also fits have together less than a quarter of its events. So a small
   subset of a population has a further marker, and the population itself has not;
2. then further markers that it expresses (+ or hi), up to five in all or 32 characters, unless nearly all
   events express them.

In a channel where + is enough for 1 in all names, no name says hi. In both steps, and in the name, markers
come first that separate a population from its nearest neighbours, those that differ in the fewest markers;
neighbours that are much smaller count less.

Populations with the same level of every marker differ in no valley. The largest has the name, and the others
have in addition, first, the marker in which they differ most from it: "TNFa higher, CD45RO+ CD27+".

D channels, P populations.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpmix.inputs.marker_names import short_names
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.events.phenotypes import joined, quartiles_of, signs

Markers = list[tuple[int, str]]
"""Channels and their levels."""

OTHERS = 0.25  # of a population's events: those that its name fits, too
COMMON = 0.9  # share of the events that share a level, above which it says little
MARKERS, WIDTH, FEWEST = 5, 32, 2  # a name is filled up to these: expressed markers, characters, any markers
EXPRESSED = ("+", "hi")
TINY = 1e-9  # a share of the events that is rounding
ALL, NONE = "all events", "no events"


def names_of_events(
    events: Array | Floats, populations: Ints, levels: Array, channels: Sequence[str], n_populations: int
) -> tuple[str, ...]:
    """Return the names of populations from events float [M, D] and the population of each, int64 [M].

    The other parameters are as in `names_of`.
    """
    lower, upper = quartiles_of(events, populations, n_populations)
    return names_of(lower, upper, levels, np.bincount(populations, minlength=n_populations), channels)


def names_of(
    lower: npt.ArrayLike,
    upper: npt.ArrayLike,
    levels: npt.ArrayLike,
    sizes: npt.ArrayLike,
    channels: Sequence[str],
) -> tuple[str, ...]:
    """Return a name of each population that no other has, for example "IFNg+ IL2+ CD27+"; none is empty.

    Parameters
    ----------
    lower, upper : float [P, D]
        Quartiles of the events of each population; NaN for a population without events.
    levels : float64 [3, D]
        Ends of the levels of each channel (`dpmix.populations.events.phenotypes.levels`).
    sizes : float [P]
        Numbers of events.
    channels : sequence of str
        D names. Dyes in them are left out (`dpmix.inputs.marker_names.short_names`).
    """
    low, high, size = (np.asarray(a, np.float64) for a in (lower, upper, sizes))
    shown = short_names(channels)
    there = np.flatnonzero(~np.isnan(low).any(axis=1))
    found = [NONE] * len(low)
    if len(there):
        level = signs(low[there], high[there], levels)
        marked = _marked(level, np.maximum(size[there], 1.0), [len(name) for name in shown])
        texts = [joined([shown[d] + sign for d, sign in own]) for own in marked]
        of_there = _told_apart(texts, low[there], high[there], size[there], shown)
        for p, name in zip(there.tolist(), of_there, strict=True):
            found[p] = name
    return tuple(_numbered(found))


def _marked(level: npt.NDArray[np.str_], sizes: Array, lengths: Sequence[int]) -> list[Markers]:
    """Return the markers in the name of each population, each with its level.

    Populations with the same levels have the markers of all of them together.

    Parameters
    ----------
    level : str [P, D]
    sizes : float64 [P]
    lengths : sequence of int
        Lengths of the names of the channels.
    """
    rows, inverse = np.unique(level, axis=0, return_inverse=True)
    weights = np.bincount(inverse.reshape(-1), sizes) / sizes.sum()
    codes = np.unique(rows, return_inverse=True)[1].reshape(rows.shape).astype(np.int8)  # compared faster
    own = [_own(rows[p], codes[p] != codes, weights, p, lengths) for p in range(len(rows))]
    chosen = _plain(own, rows, weights)
    return [chosen[k] for k in inverse.reshape(-1)]


def _own(
    level: npt.NDArray[np.str_],
    differ: npt.NDArray[np.bool_],
    weights: Array,
    p: int,
    lengths: Sequence[int],
) -> Markers:
    """Return the markers in the name of row p.

    Parameters
    ----------
    level : str [D]
        Levels of row p.
    differ : bool [P, D]
        Where each row has another level.
    weights : float64 [P]
    p : int
    lengths : sequence of int
        Lengths of the names of the channels.
    """
    # A marker is worth more the nearer the neighbour that it excludes: far ones differ in other markers too.
    near = np.minimum(1.0, weights / weights[p]) * 0.5 ** differ.sum(axis=1)
    scores = np.where(differ, near[:, None], 0.0)  # more for near neighbours
    usable = (level != "") & differ.any(axis=0)
    expressed = usable & np.isin(level, EXPRESSED)
    worth = np.where(expressed, 2.0, 1.0) * np.where(level == "+/-", 0.5, 1.0)
    own = _gate(differ, scores * worth, usable, weights, p)
    by_worth = np.argsort(-scores.sum(axis=0) * worth, kind="stable").tolist()
    for d in by_worth:
        length = sum(lengths[e] + 2 for e in (*own, d)) - 1
        tells = expressed[d] and weights[~differ[:, d]].sum() < COMMON
        if tells and d not in own and len(own) < MARKERS and length <= WIDTH:
            own.append(d)
    own += [d for d in by_worth if usable[d] and d not in own][: max(FEWEST - len(own), 0)]
    return [(d, str(level[d])) for d in sorted(own, key=lambda d: -float(scores[:, d].sum()))]


def _plain(chosen: list[Markers], rows: npt.NDArray[np.str_], weights: Array) -> list[Markers]:
    """Return the markers of each row with + instead of hi in each channel where no row needs the difference.

    In a channel, either all names say hi or none does.
    """
    for channel in np.flatnonzero((rows == "hi").any(axis=0)).tolist():
        of_hi = {p: own for p, own in enumerate(chosen) if (channel, "hi") in own}
        plain = {p: [(d, "+" if d == channel else sign) for d, sign in own] for p, own in of_hi.items()}
        most = {
            p: max(OTHERS * weights[p], _others(own, rows, weights, p) + TINY) for p, own in of_hi.items()
        }
        if all(_others(own, rows, weights, p) <= most[p] for p, own in plain.items()):
            chosen = [plain.get(p, own) for p, own in enumerate(chosen)]
    return chosen


def _others(markers: Markers, rows: npt.NDArray[np.str_], weights: Array, p: int) -> float:
    """Return the weight of the rows but p that some of its markers fit; a marker + of a hi fits both."""
    fits = [
        np.isin(rows[:, d], EXPRESSED) if (sign, rows[p, d]) == ("+", "hi") else rows[:, d] == sign
        for d, sign in markers
    ]
    return float(weights[np.all(fits, axis=0)].sum() - weights[p]) if fits else 0.0


def _gate(
    differ: npt.NDArray[np.bool_], scores: Array, usable: npt.NDArray[np.bool_], weights: Array, p: int
) -> list[int]:
    """Return the markers of row p that leave less than `OTHERS` of its events in other rows.

    Parameters
    ----------
    differ, scores : bool and float64 [P, D]
        Differences and scores of row p and each row.
    usable : bool [D]
    weights : float64 [P]
    """
    own: list[int] = []
    others = np.arange(len(weights)) != p
    while weights[others].sum() > OTHERS * weights[p]:
        gains = np.where(usable, scores[others].sum(axis=0), 0.0)
        best = int(gains.argmax())
        if gains[best] == 0.0:
            break
        own.append(best)
        others &= ~differ[:, best]
    return own


def _told_apart(
    texts: Sequence[str], lower: Array, upper: Array, sizes: Array, channels: Sequence[str]
) -> list[str]:
    """Return names in which populations with the same text also say how they differ from larger ones."""
    middle, width = (lower + upper) / 2.0, np.maximum(upper - lower, np.finfo(np.float64).tiny)
    found, used = [""] * len(texts), set(texts)
    for text in dict.fromkeys(texts):
        group = [p for p in np.argsort(-sizes, kind="stable").tolist() if texts[p] == text]
        for number, p in enumerate(group):
            if number == 0 and (text or len(texts) == 1):
                found[p] = text or ALL
                continue
            # Compared with larger ones of the same name; the largest, if it needs a word at all, with the
            # smaller ones.
            others = group[:number] or group[1:] or [q for q in range(len(texts)) if q != p]
            gaps = (middle[p] - middle[others]) / (width[p] + width[others])
            nearest = gaps[np.abs(gaps).max(axis=1).argmin()]
            order = np.argsort(-np.abs(nearest), kind="stable").tolist()
            words = [f"{channels[d]} {'higher' if nearest[d] > 0 else 'lower'}" for d in order]
            made = [", ".join(filter(None, (word, text))) for word in words]
            found[p] = next((name for name in made if name not in used), made[0])
            used.add(found[p])
    return found


def _numbered(names: Sequence[str]) -> list[str]:
    """Return names with a number where one comes again."""
    made: list[str] = []
    for name in names:
        number, own = 1, name
        while own in made:
            number += 1
            own = f"{name} {number}"
        made.append(own)
    return made
