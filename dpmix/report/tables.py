"""The tables of a gating: populations.csv, proportions.csv and tree.json."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array
from dpmix.populations.result import QUANTILES, Gating, interval
from dpmix.system.files import write_text, writing

TABLES = ("populations.csv", "proportions.csv", "tree.json")


def table_paths(directory: Path) -> list[Path]:
    """The files that `write_tables` will write."""
    return [directory / name for name in TABLES]


def write_tables(
    directory: str | Path, gating: Gating, channel_means: npt.ArrayLike, channel_sds: npt.ArrayLike
) -> None:
    """Write populations.csv, proportions.csv and tree.json.

    populations.csv has a row per population of all samples together, proportions.csv one per sample and
    population, with what a table of samples says of it; proportion is the posterior mean, low and high the
    ends of the 90% interval, empty where there is one draw only. Channels are on the transformed scale, their
    cells empty where a population has no event. tree.json is what `_tree` says.

    Parameters
    ----------
    directory : str or Path
    gating : Gating
    channel_means, channel_sds : float64 [D]
        Those that take the tree's points from the standardised to the transformed scale (`constant_data` of
        the run file).

    Raises
    ------
    DataError
        A file cannot be written.
    """
    places = np.asarray(channel_means) + np.asarray(channel_sds) * gating.tree.points
    populations, proportions, tree = table_paths(Path(directory))
    with writing(Path(directory)):
        Path(directory).mkdir(parents=True, exist_ok=True)
    write_text(populations, _lines(_population_rows(gating)))
    write_text(proportions, _lines(_proportion_rows(gating)))
    write_text(tree, json.dumps(_tree(gating, places), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def _lines(rows: Iterable[Sequence[object]]) -> str:
    """CSV; numbers with six digits, what is not known empty."""
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    for row in rows:
        table.writerow([_cell(value) for value in row])
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, float):  # np.float64 is one
        return "" if math.isnan(value) else f"{value:.6g}"
    return value


def _population_rows(gating: Gating) -> Iterator[Sequence[object]]:
    events = gating.sizes.sum(axis=0)
    shares = events / gating.n_events.sum()
    mean, low, high = _intervals(gating.overall)
    head = ["population", "phenotype", "events", "share of events", "proportion", "low", "high"]
    names = ["median" if q == 0.5 else f"q{round(100 * q):02d}" for q in QUANTILES]
    order = sorted(range(len(names)), key=lambda k: names[k] != "median")  # the median first
    yield [*head, "support", "certainty", *(f"{c} {names[k]}" for c in gating.channels for k in order)]
    for p, phenotype in enumerate(gating.phenotypes):
        yield [
            *(p + 1, phenotype, events[p], shares[p], mean[p], low[p], high[p]),
            *(gating.support[p], gating.certainty[p]),
            *(gating.quantiles[k, p, d] for d in range(len(gating.channels)) for k in order),
        ]


def _proportion_rows(gating: Gating) -> Iterator[Sequence[object]]:
    columns = gating.sample_columns
    yield ["sample", *columns, "population", "phenotype", "events", "proportion", "low", "high"]
    mean, low, high = _intervals(gating.proportions)
    for s, sample in enumerate(gating.samples):
        known = [sample, *(cells[s] for cells in columns.values())]
        for p, phenotype in enumerate(gating.phenotypes):
            yield [*known, p + 1, phenotype, gating.sizes[s, p], mean[s, p], low[s, p], high[s, p]]


def _intervals(draws: Array) -> tuple[Array, Array, Array]:
    """Mean and interval over draws, NaN for the interval of one draw."""
    mean, low, high = interval(draws)
    return (mean, low, high) if len(draws) > 1 else (mean, low * np.nan, high * np.nan)


def _tree(gating: Gating, places: Array) -> dict[str, object]:
    """The tree of populations: enough to draw it and to cut it anew.

    It is of the mean density of `draws` of the run file: of the components of the first, then of the second,
    and so on. Modes and components are numbered from 0, populations from 1. In each merge, in the order of
    ascending levels, what has the name `mode` becomes part of what has the name `into`; the populations at a
    level are those of all merges below it; where `why` says that not all at this level are made, the first
    of these are. A level or height is null where it is infinite.
    """
    tree = gating.tree
    components = [np.flatnonzero(tree.modes == mode).tolist() for mode in range(len(tree.heights))]
    modes = [
        {
            "mode": mode,
            "population": int(gating.modes[mode]) + 1,
            "height": _finite(tree.heights[mode]),
            "point": dict(zip(gating.channels, places[mode].tolist(), strict=True)),
            "components": members,
        }
        for mode, members in enumerate(components)
    ]
    merges = [
        {"mode": int(child), "into": int(parent), "level": _finite(level)}
        for (child, parent), level in zip(tree.merges, tree.levels, strict=True)
    ]
    return {
        "run": gating.run,
        "draws": [{"chain": chain, "draw": draw} for chain, draw in gating.draws[gating.pooled].tolist()],
        "level": _finite(gating.level),
        "why": gating.why,
        "phenotypes": list(gating.phenotypes),
        "modes": modes,
        "merges": merges,
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
