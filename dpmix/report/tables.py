"""Tables of a gating: populations.csv, proportions.csv, tree.json, strategy.csv and compare.csv."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmix.model.mixture import Array
from dpmix.populations.events.phenotypes import QUANTILES
from dpmix.populations.explored import JUDGING, MIXTURE, NAME, Explored, explored_of, extended
from dpmix.populations.gates.comparison import Comparison
from dpmix.populations.gates.ellipses import EllipseGate
from dpmix.populations.gates.strategy import Gate, Strategy
from dpmix.populations.result import Gating
from dpmix.populations.sample_draws import FILE, SampleDraws
from dpmix.report.gatingml import NamedGates, gate_name
from dpmix.system.files import csv_text, write_text, writing

TABLES = ("populations.csv", "proportions.csv", "tree.json")


def table_paths(directory: Path) -> list[Path]:
    """Return the files that `write_tables` writes."""
    return [directory / name for name in TABLES]


def write_tables(
    directory: str | Path, gating: Gating, channel_means: npt.ArrayLike, channel_sds: npt.ArrayLike
) -> None:
    """Write populations.csv, proportions.csv and tree.json.

    populations.csv has one row per population, the largest first, for all samples together; its proportions
    count each event with its weight in the run (data.weights). proportions.csv has one row per sample and
    population, with the columns of the table of samples; its proportions count the sample's events, whatever
    their weight.
    `proportion` is the posterior mean; `low` and `high` are the ends of the 90% credible interval, empty for
    a single draw. `shape ratio` is the proportion if each population had a single t distribution, relative to
    the mixture's, and `overlap` the share of the population's events that these take for others: far from 1
    and from 0, the interval is wide for this reason (`dpmix.populations.events.borders`).
    `artefact` is debris, doublets, dead cells or empty (`dpmix.populations.events.artefacts`), where the
    files have scatter or viability, whose quantiles come last; without artefacts, proportions of these
    populations are empty. `rhat` and `ess` are rank-normalised split R-hat and bulk effective sample size of
    the population's weight in the run. They are empty for Bayesian EM, with fewer than 8 draws of each chain,
    and for a weight that is the same in every draw; `rhat` is inf if chains differ and do not move. Channels
    are on the transformed scale; their cells are empty for a population without events. `phenotype` is a
    short name that no other population has, `full phenotype` all markers with their levels. Both tables have
    a column `name` if a population was named by hand, and `type` with cell types. `_tree` describes
    tree.json.

    With judgements, both tables have rows for the population of the explored cells, after the others,
    and a column `found by`: mixture or judging. Its events also count in their populations of the mixture.
    In populations.csv, its `proportion`, `low` and `high` are the probable number of such cells and its ends
    (`dpmix.explore.count.Found`), divided by the number of all events, whatever their weight. In
    proportions.csv, its `proportion` is the share of the events found, without an interval, because the
    number is estimated for all samples together.

    Parameters
    ----------
    directory : str or Path
    gating : Gating
    channel_means, channel_sds : float64 [D]
        Scaling from the standardised to the transformed scale (`constant_data` of the run file).

    Raises
    ------
    DataError
        A file cannot be written.
    """
    places = np.asarray(channel_means) + np.asarray(channel_sds) * gating.tree.points
    _, proportions, tree = table_paths(Path(directory))
    with writing(Path(directory)):
        Path(directory).mkdir(parents=True, exist_ok=True)
    write_populations(Path(directory), gating)
    write_text(proportions, _lines(_proportion_rows(gating)))
    write_text(tree, json.dumps(_tree(gating, places), indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_populations(directory: Path, gating: Gating) -> None:
    """Write populations.csv alone (see `write_tables`)."""
    write_text(table_paths(directory)[0], _lines(_population_rows(gating)))


def write_sample_draws(directory: Path, gating: Gating) -> None:
    """Write samples.nc, with the draws that `dpmix associate` reads (`dpmix.populations.sample_draws`)."""
    assert gating.counts is not None
    assert gating.medians is not None
    n_state = gating.n_state
    one = gating.exploration
    found = None if one is None else np.pad(one.medians[:-1], [(0, 0), (0, n_state)], constant_values=np.nan)
    draws = SampleDraws(
        counts=gating.counts,
        medians=gating.medians,
        samples=gating.samples,
        phenotypes=gating.phenotypes,
        names=gating.names,
        population_types=gating.population_types,
        labels=gating.labels,
        channels=gating.measured_channels[: len(gating.channels) + n_state],
        n_state=n_state,
        errors=gating.median_errors,
        columns=gating.sample_columns,
        draws=gating.draws,
        verdict=str(gating.verdict),
        explored=None if one is None else one.sizes,
        explored_medians=found,
        types=None if gating.types is None else gating.types.draws,
    )
    draws.write(directory / FILE)


def write_strategy(path: Path, gating: Gating) -> None:
    """Write strategy.csv: one row per gate, in the order in which the gates of a population are applied.

    `gate` is the name of the gate in gates.xml, `x` and `y` are its channels. `gated` is the number of events
    inside this gate and those before it, `purity` the share of the population in them, `yield` the share of
    the population among them, and `f1` the harmonic mean of both. `shape` is polygon or ellipse. `shortfall`
    says what the last gate misses or holds of other populations, where this is more than 10%. A population
    without gates has one row with empty cells. With judgements, the last rows describe the explored cells,
    compared with all other events.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    write_text(path, _lines(_strategy_rows(gating)))


def _strategy_rows(gating: Gating) -> Iterator[Sequence[object]]:
    columns = ["population", "phenotype", "events", "step", "gate", "x", "y"]
    yield [*columns, "gated", "purity", "yield", "f1", "shape", "shortfall"]
    for p, (phenotype, strategy) in enumerate(_isolated(gating)):
        number = extended(gating).number(p)
        known = [number, phenotype, strategy.size]
        n_steps = len(strategy.gates)
        for k, gate in enumerate(strategy.gates):
            name, names = gate_name(number, k, n_steps), [gating.channels[c] for c in gate.channels]
            measured = [strategy.selected[k], strategy.purity[k], strategy.recovered[k], strategy.f1[k]]
            yield [*known, k + 1, name, *names, *measured, _shape(gate), _shortfall(strategy, k)]
        if not n_steps:
            yield [*known, *[""] * 10]


def _isolated(gating: Gating) -> list[tuple[str, Strategy]]:
    """Return phenotype and strategy of each population, last of the explored cells."""
    pairs = list(zip(gating.phenotypes, gating.strategies, strict=True))
    if (own := explored_of(gating)) is not None and gating.explored_strategy is not None:
        pairs.append((own.phenotype, gating.explored_strategy))
    return pairs


def write_hierarchy(path: Path, gating: Gating, nodes: Sequence[NamedGates]) -> None:
    """Write hierarchy.csv: one row per gate of hierarchy.xml.

    `parent` is the gate around it, and `populations` lists the numbers of the populations that it should
    contain. `gated`, `purity`, `yield`, `f1` and `shortfall` are as in strategy.csv, of the union of these
    populations.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    write_text(path, _lines(_hierarchy_rows(gating, nodes)))


def _hierarchy_rows(gating: Gating, nodes: Sequence[NamedGates]) -> Iterator[Sequence[object]]:
    yield ["gate", "parent", "populations", "shape", "x", "y", "gated", "purity", "yield", "f1", "shortfall"]
    for node in nodes:
        numbers = " ".join(str(gating.number(p)) for p in node.populations)
        own = node.strategy
        for name, parent, k in node.rows():
            gate = own.gates[k]
            names = [gating.channels[c] for c in gate.channels]
            measured = [own.selected[k], own.purity[k], own.recovered[k], own.f1[k]]
            yield [name, parent, numbers, _shape(gate), *names, *measured, _shortfall(own, k)]


def _shortfall(strategy: Strategy, step: int) -> str:
    return strategy.shortfall if step == len(strategy.gates) - 1 else ""


def _shape(gate: Gate) -> str:
    return "ellipse" if isinstance(gate, EllipseGate) else "polygon"


def write_comparison(path: Path, comparison: Comparison, gating: Gating) -> None:
    """Write compare.csv: one row per gate of the workspace.

    `population` is the population matched with the gate, `shared events` counts the events in both, and `f1`
    is 2 shared events / (events + population events). `union` lists the populations
    whose union is most similar to the gate, and `union f1` is the F1 of this union. A gate without a matching
    population has empty cells.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    write_text(path, _lines(_comparison_rows(comparison, gating)))


def _comparison_rows(comparison: Comparison, gating: Gating) -> Iterator[Sequence[object]]:
    yield [
        *("gate", "has gates inside", "events", "population", "phenotype", "population events"),
        *("shared events", "f1", "union", "union f1"),
    ]
    unions, union_f1 = comparison.unions()
    for g, p in enumerate(comparison.matches().tolist()):
        known = [comparison.gates[g], not comparison.leaves[g], comparison.sizes[g]]
        own = [gating.number(p), gating.phenotypes[p], comparison.populations[g, p], comparison.overlap[g, p]]
        matched = [*own, comparison.f1[g, p]] if p >= 0 else [""] * 5
        yield [*known, *matched, " ".join(str(gating.number(q)) for q in unions[g]), union_f1[g]]


def write_explored(path: Path, gating: Gating) -> None:
    """Write explored.csv: a row for each sample, and one for all, of the events like those judged as wanted.

    `found` counts the events with a posterior mean of at least `threshold`. In the row of all samples,
    `number` is the probable number of such events, `low` its 5% quantile, and `high` its 95% quantile with
    those that may be missed.
    Medians are over the events found, on the transformed scale.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    write_text(path, _lines(_explored_rows(gating)))


def _explored_rows(gating: Gating) -> Iterator[Sequence[object]]:
    one = gating.exploration
    assert one is not None
    head = ["sample", "events", "found", "share", "threshold", "number", "low", "high"]
    yield [*head, *(f"{channel} median" for channel in gating.channels)]
    for s, (sample, events) in enumerate(zip(gating.samples, gating.n_events.tolist(), strict=True)):
        found = int(one.sizes[s])
        medians = one.medians[s].tolist()
        yield [sample, events, found, found / max(events, 1), one.found.threshold, "", "", "", *medians]
    events, found = int(gating.n_events.sum()), one.found.n_found
    number = (one.found.number, one.found.low, one.found.high)
    yield ["all", events, found, found / events, one.found.threshold, *number, *one.medians[-1].tolist()]


def _lines(rows: Iterable[Sequence[object]]) -> str:
    """Return CSV text; numbers have six digits, unknown values are empty."""
    return csv_text([_cell(value) for value in row] for row in rows)


def _cell(value: object) -> object:
    if isinstance(value, float):  # np.float64 is one
        return "" if math.isnan(value) else f"{value:.6g}"
    return value


def _population_rows(gating: Gating) -> Iterator[Sequence[object]]:
    events = gating.sizes.sum(axis=0)
    shares = events / gating.n_events.sum()
    mean, low, high = (np.where(gating.left_out, np.nan, own) for own in gating.overall)
    named, titles = _names(gating)
    head = ["population", *named, "phenotype", "events", "share of events", "proportion", "low", "high"]
    head += ["shape ratio", "overlap", "rhat", "ess", "support", "certainty", "full phenotype"]
    head += ["artefact"] if gating.artefacts else []
    names = ["median" if q == 0.5 else f"q{round(100 * q):02d}" for q in QUANTILES]
    order = sorted(range(len(names)), key=lambda k: names[k] != "median")  # the median first
    yield [*head, *(f"{c} {names[k]}" for c in gating.measured_channels for k in order)]
    quantiles, full = gating.measured_quantiles, extended(gating).full_phenotypes
    for p in gating.order:
        phenotype = gating.phenotypes[p]
        yield [
            *(gating.number(p), *titles[p], phenotype, events[p], shares[p], mean[p], low[p], high[p]),
            *(gating.shape_ratios[p], gating.overlaps[p], gating.r_hat[p], gating.ess[p], gating.support[p]),
            *(gating.certainty[p], full[p], *gating.artefacts[p : p + 1]),
            *(quantiles[k, p, d] for d in range(quantiles.shape[2]) for k in order),
        ]
    if (own := explored_of(gating)) is not None:
        found = int(own.sizes.sum())
        yield [
            *(own.number, *titles[-1], own.phenotype, found, found / int(gating.n_events.sum())),
            *(own.proportion, own.low, own.high, *[""] * 6, full[own.index]),
            *([""] if gating.artefacts else []),
            *(own.quantiles[k, d] for d in range(len(gating.channels)) for k in order),
            *[""] * (len(order) * (quantiles.shape[2] - len(gating.channels))),
        ]


def _proportion_rows(gating: Gating) -> Iterator[Sequence[object]]:
    columns, (named, titles) = gating.sample_columns, _names(gating)
    yield ["sample", *columns, "population", *named, "phenotype", "events", "proportion", "low", "high"]
    mean, low, high = (np.where(gating.left_out, np.nan, own) for own in gating.estimates)
    explored = explored_of(gating)
    for s, sample in enumerate(gating.samples):
        known = [sample, *(cells[s] for cells in columns.values())]
        for p, phenotype in enumerate(gating.phenotypes):
            yield [
                *known,
                gating.number(p),
                *titles[p],
                phenotype,
                gating.sizes[s, p],
                mean[s, p],
                low[s, p],
                high[s, p],
            ]
        if explored is not None:
            found, events = int(explored.sizes[s]), int(gating.n_events[s])
            share = found / events if events else math.nan
            row = [explored.number, *titles[-1], explored.phenotype, found, share]
            yield [*known, *row, "", ""]


def _names(gating: Gating) -> tuple[list[str], list[list[str]]]:
    """Return columns and their cells for each population: its name, what it was found by, its cell type.

    There is no column of names if no population has one, the second only with judgements, and the third only
    with types. With judgements, the explored cells are the last population.
    """
    none = ("",) * gating.n_populations
    columns: dict[str, Sequence[str]] = {}
    if gating.exploration is not None:
        columns["name"] = (*(gating.names or none), NAME)
        columns["found by"] = (*[MIXTURE] * gating.n_populations, JUDGING)
    elif any(gating.names):
        columns["name"] = gating.names
    if gating.types is not None:
        columns["type"] = (*gating.population_types, *[""] * (gating.exploration is not None))
    rows = [list(cells) for cells in zip(*columns.values(), strict=True)]
    return list(columns), rows or [[] for _ in none]


def _tree(gating: Gating, places: Array) -> dict[str, object]:
    """Return the tree of populations with all that is needed to draw it and to cut it elsewhere.

    It is the tree of the mean density of `draws` of the run file, with the components of the first draw, then
    of the second, and so on. Modes and components are numbered from 0, populations from 1. Merges are in the
    order of ascending levels; each merges the branch named `mode` into the branch named `into`. The
    populations at a cut height result from all merges below it. If `why` says that only some of the merges at
    this height are made, these are the first ones. An infinite level or height is null. `explored` has the
    population of the explored cells, which has no mode; null without judgements.
    """
    tree = gating.tree
    components = [np.flatnonzero(tree.modes == mode).tolist() for mode in range(len(tree.heights))]
    modes = [
        {
            "mode": mode,
            "population": gating.number(int(gating.modes[mode])),
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
        "numbers": list(gating.all_numbers),
        "phenotypes": list(gating.phenotypes),
        "names": list(gating.names),
        "types": list(gating.population_types),
        "modes": modes,
        "merges": merges,
        "explored": _explored(gating, explored_of(gating)),
    }


def _explored(gating: Gating, own: Explored | None) -> dict[str, object] | None:
    """Return the population of the explored cells, for tree.json."""
    if own is None or gating.exploration is None:
        return None
    found = gating.exploration.found
    numbers = {"number": found.number, "low": found.low, "high": found.high}
    return {
        "population": own.number,
        "name": NAME,
        "phenotype": own.phenotype,
        "events": int(own.sizes.sum()),
        "threshold": found.threshold,
        **numbers,
    }


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
