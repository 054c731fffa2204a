"""The populations of a run while a person decides about them.

The trees of the run, the votes of its components and the memberships of some events are computed once. Each
decision then needs only sums of them, so that proportions and pictures follow within a second.

T draws, K components, L modes, P populations, M events, D channels.
"""

from __future__ import annotations

from base64 import b64encode
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from dpmix.app.jobs import command
from dpmix.errors import ConfigError
from dpmix.inputs.controls import by_number
from dpmix.inputs.marker_names import short_names
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.draws import decide, find
from dpmix.populations.draws.decide import Decided
from dpmix.populations.draws.find import forest_of
from dpmix.populations.draws.forest import Forest, cast_votes, components_of, weights_of
from dpmix.populations.draws.pooling import transformed_draw
from dpmix.populations.draws.task import Task, prepare
from dpmix.populations.events.estimates import interval
from dpmix.populations.events.names import names_of_events
from dpmix.populations.events.phenotypes import full_phenotypes, levels, quartiles_of
from dpmix.populations.events.rasters import grid
from dpmix.populations.tree.decisions import Action, Cut, Decisions, decisions_path, read_decisions
from dpmix.populations.tree.tree import Tree
from dpmix.report.decades import axis_ticks
from dpmix.report.dendrogram import dendrogram
from dpmix.report.labels import MOST_POPULATIONS, ticks
from dpmix.report.pairs import choose_pairs, separation_of
from dpmix.report.palette import colour, ink
from dpmix.runs.layout import subset_rows
from dpmix.system.console import percent
from dpmix.system.threads import one_thread

EVENTS = 50_000
"""Most events of the densities, evenly spaced over all events."""
PLOTS = 4  # of two channels
ENDS = (0.001, 0.999)  # quantiles of the events; an axis has a margin beyond them, as in the report


@dataclass(frozen=True)
class Live:
    """A run, and all that does not depend on decisions.

    Attributes
    ----------
    task : Task
    forest : Forest
    path : Path
        File of the decisions.
    n_draws : int
        Number of draws that was asked for; the run may have fewer.
    votes : list of float64 [K, L] and int64 [K]
        Votes of each draw, as in `dpmix.populations.draws.forest.cast_votes`.
    rows : int64 [M]
        Numbers of the events of the densities, among the events of the run.
    values : float32 [M, D]
        These events, transformed scale.
    shares : float32 [M, L]
        Memberships of the events in the modes of the mean density.
    folder : Path
        Folder of the page, from which shown commands start.
    notes : tuple of str
        What became of decisions about an earlier state of the run.
    """

    task: Task
    forest: Forest
    path: Path
    n_draws: int
    votes: list[tuple[Array, Ints]]
    rows: Ints
    values: Floats
    shares: Floats
    folder: Path
    notes: tuple[str, ...] = ()


def open_live(run_file: Path, folder: Path) -> Live:
    """Open a run of a folder; this takes seconds to a minute.

    Raises
    ------
    DpmixError
        Anything wrong outside the program, in one line.
    """
    path = decisions_path(run_file)
    earlier = read_decisions(path) if path.exists() else None
    n_draws = find.DRAWS if earlier is None else earlier.draws
    output = run_file.parent / "gated"  # where a file for many events would be
    task = prepare(run_file, output=output, with_quality=True)
    forest = forest_of(task.run, task.make_engine, n_draws)
    rows = evenly_spaced(len(task.events.values), EVENTS)
    values = np.ascontiguousarray(task.events.values[rows])
    with one_thread(), closing(task.make_engine(values)) as engine:
        shares = forest.memberships_in_modes(engine).astype(np.float32)
        votes = list(cast_votes(forest, forest.shares))
    shown = task.events.scaling.to_transformed(values).astype(np.float32)
    return Live(task, forest, path, n_draws, votes, rows, shown, shares, folder)


def evenly_spaced(n_events: int, most: int) -> Ints:
    """Return the numbers of up to `most` events, evenly spaced over all, int64 [M]."""
    return subset_rows(n_events, min(n_events, most))


def decisions_of(live: Live) -> Decisions:
    """Return the decisions in the file, or the default cut without a file."""
    if not live.path.exists():
        return decide.start(live.forest, live.n_draws)
    return read_decisions(live.path)


def revision(decisions: Decisions) -> str:
    """Return a text that differs between any two decisions."""
    return sha256(decisions.model_dump_json().encode()).hexdigest()[:16]


def after(live: Live, decisions: Decisions, action: Action) -> Decisions:
    """Return the decisions after one more action; a cut directly after a cut replaces it.

    Raises
    ------
    ConfigError
        The action is not possible.
    """
    # A slider that is moved would otherwise fill the file with cuts, each to be undone.
    if isinstance(action, Cut) and decisions.actions and isinstance(decisions.actions[-1], Cut):
        decisions = decisions.undone()
    return decide.act(live.forest, decisions, action)


def before(decisions: Decisions) -> Decisions:
    """Return the decisions without the last action.

    Raises
    ------
    ConfigError
        No action was made.
    """
    if not decisions.actions:
        raise ConfigError(["nothing to undo"])
    return decisions.undone()


# --------------------------------------------------------------------------- what the page shows


@dataclass(frozen=True)
class _Cut:
    """A tree as decided, to draw it (`dpmix.report.dendrogram.CutTree`)."""

    tree: Tree
    modes: Ints
    level: float
    n_populations: int


def opened(live: Live, decisions: Decisions) -> dict[str, Any]:
    """Return what the page shows of a run and does not follow decisions, but for the first plots."""
    run, events = live.task.run, live.task.events
    edges = grid(*np.quantile(live.values, ENDS, axis=0))
    levels = live.forest.tree.levels
    return {
        "channels": short_names(events.channels),
        "samples": events.samples,
        "events": len(live.values),
        "all_events": len(events.values),
        "ranges": edges[:, [0, -1]].round(5).tolist(),
        "ticks": [
            vars(axis_ticks(transform, *ends))
            for transform, ends in zip(events.scaling.transforms, edges[:, [0, -1]].tolist(), strict=True)
        ],
        "pairs": first_pairs(live, decisions),
        "draws": len(live.forest.draws),
        "kind": run.kind,
        "most": int((levels > 0.0).sum()) + 1,
        "warnings": list(dict.fromkeys(run.data_warnings + events.report.warnings)),
        "complete": run.complete,
        "made": run.committed,
        "planned": run.draws,
        "notes": live.notes,
    }


def first_pairs(live: Live, decisions: Decisions) -> list[list[int]]:
    """Return up to `PLOTS` pairs of channels that separate the populations of the events, best first."""
    population = population_of_events(live, decide.decided(live.forest, decisions))
    many = live.values.shape[1]
    pairs = np.array(list(combinations(range(many), 2)), np.int64).reshape(-1, 2)
    sizes = np.bincount(population)
    with_spread = np.flatnonzero(sizes > many)[:MOST_POPULATIONS]
    if len(pairs) == 0 or len(with_spread) < 2:
        first: list[list[int]] = pairs[:PLOTS].tolist()
        return first
    own = [live.values[population == p].astype(np.float64) for p in with_spread]
    means = np.array([each.mean(axis=0) for each in own])
    covariances = np.array([np.cov(each.T) for each in own])
    apart = separation_of(means, covariances, pairs)
    chosen = choose_pairs(apart, sizes[with_spread] / sizes.sum(), PLOTS, PLOTS)
    best: list[list[int]] = pairs[chosen].tolist()
    return best


def inside(live: Live, path: Path) -> str:
    """Return the name of a file in a command that starts in the folder of the page."""
    return str(path.resolve().relative_to(live.folder))


def packed_values(live: Live) -> bytes:
    """Return the events channel by channel, float32 [D, M], little endian."""
    return np.ascontiguousarray(live.values.T, "<f4").tobytes()


def view(live: Live, decisions: Decisions) -> dict[str, Any]:
    """Return the populations after decisions: table, tree, and the population of each event shown.

    Raises
    ------
    ConfigError
        The decisions were made for another tree.
    """
    chosen = decide.decided(live.forest, decisions)
    with one_thread():
        components, weights, estimate, reference = _components(live, chosen)
        population = population_of_events(live, chosen)
    supported = live.forest.support(estimate, len(chosen.names))
    cut = decisions.actions[-1:]
    by_hand = ["--decisions", inside(live, live.path)] if cut or live.path.exists() else []
    return {
        "revision": revision(decisions),
        "actions": len(decisions.actions),
        "last": cut[0].do if cut else "",
        "why": chosen.why,
        "level": chosen.rule.level_in(live.forest.tree),
        "populations": _populations(live, chosen, components, weights, population, reference, supported),
        "tree": _tree(live, chosen),
        "of_events": b64encode(population.astype("<u2").tobytes()).decode(),
        "command": command(["gate", inside(live, live.task.run.path), "--output", "gated", *by_hand]),
    }


def _components(live: Live, chosen: Decided) -> tuple[Ints, Array, Ints, int]:
    """Return the populations of components, int64 [T, K], the weights of populations, float64 [T, P], the
    populations of some events, and the reference draw."""
    own, shares = live.forest.shared_by(chosen.modes[live.forest.tree.modes])
    of_modes = np.eye(len(chosen.names))[chosen.modes]
    estimate = shares.argmax(axis=1)
    votes = ((cast @ of_modes, near) for cast, near in live.votes)
    components = components_of(live.forest, own, votes)
    weights = weights_of(live.forest.run, live.forest.draws, components, len(chosen.names))
    reference = live.forest.typical_draw(estimate, live.forest.partitions(chosen.rule))
    return components, weights, estimate, reference


def levels_of(live: Live, decisions: Decisions) -> Array:
    """Return the ends of the levels of each channel after decisions, float64 [3, D]."""
    with one_thread():
        components, _, _, reference = _components(live, decide.decided(live.forest, decisions))
    return _levels(live, components, reference)


def _levels(live: Live, components: Ints, reference: int) -> Array:
    drawn = transformed_draw(live.forest.run, live.task.events.scaling, *live.forest.draws[reference])
    controls = by_number(live.forest.run.controls, live.task.events.channels)
    return levels(*drawn, components[reference], controls)


def population_of_events(live: Live, chosen: Decided) -> Ints:
    """Return the most probable population of each event that the pictures show, int64 [M]."""
    return most_probable(live.shares, chosen)


def most_probable(shares: Floats, chosen: Decided) -> Ints:
    """Return the most probable population of events, int64 [M], from memberships in modes, float32 [M, L]."""
    of_modes = np.eye(len(chosen.names), dtype=np.float32)[chosen.modes]
    population: Ints = (shares @ of_modes).argmax(axis=1)
    return population


def _populations(
    live: Live,
    chosen: Decided,
    components: Ints,
    weights: Array,
    population: Ints,
    reference: int,
    supported: Array,
) -> list[dict[str, Any]]:
    """Return the table of populations."""
    events, n_populations = live.task.events, len(chosen.names)
    mean, low, high = interval(weights)
    ends = _levels(live, components, reference)
    found = names_of_events(live.values, population, ends, events.channels, n_populations)
    lower, upper = quartiles_of(live.values, population, n_populations)
    full = full_phenotypes(lower, upper, ends, events.channels)
    sizes = np.bincount(population, minlength=n_populations)
    alone = len(weights) == 1
    return [
        {
            "modes": modes,
            "number": chosen.labels[p],
            "name": chosen.names[p],
            "phenotype": found[p],
            "full": full[p],
            "colour": colour(chosen.colours[p]),
            "ink": ink(colour(chosen.colours[p])),
            "proportion": float(mean[p]),
            "percent": percent(float(mean[p])),
            "interval": "" if alone else f"{percent(float(low[p]))} to {percent(float(high[p]))}",
            "ends": None if alone else [float(low[p]), float(high[p])],
            "support": "" if np.isnan(supported[p]) else f"{supported[p]:.0%}",
            "events": int(sizes[p]),
        }
        for p, modes in enumerate(chosen.unions)
    ]


def _tree(live: Live, chosen: Decided) -> dict[str, Any]:
    """Return the tree as drawn in the report."""
    tree = live.forest.tree
    level = chosen.rule.level_in(tree)
    drawn = dendrogram(_Cut(tree, chosen.modes, level, len(chosen.names)))
    top = 1.3 * max(float(drawn.levels.max(initial=0.0)), level, 2.0 * drawn.floor)
    return {
        "leaves": [leaf.populations for leaf in drawn.leaves],
        "floor": drawn.floor,
        "top": top,
        "ticks": ticks(drawn.floor, top),
        "levels": drawn.levels.tolist(),
        "positions": drawn.positions.tolist(),
        "populations": drawn.populations.tolist(),
    }
