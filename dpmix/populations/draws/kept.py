"""The populations that a run file keeps, with the verdict on the run.

When a run of MCMC has ended, its populations are found once, by the defaults of `dpmix gate`, and written to
the group ``populations`` of its file. Then every command judges the run by the same populations, and
`dpmix gate` and `dpmix predict` with these defaults read them instead of finding them again. They are read
only if all that they depend on is the same: the draws of the file, the rule (`RULE`), draws and cut, and
engine.weight_floor. Processors differ in rounding only: populations found on one are read on any other.

T draws, K components, P populations, L modes, M points.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpmix.config.engine import EngineConfig
from dpmix.errors import ConfigError, DataError, OutputError
from dpmix.model.mixture import Array, Ints
from dpmix.populations.draws import find
from dpmix.populations.draws.convergence import population_mixing
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.local_engine import engine_maker
from dpmix.populations.draws.pooling import held_mixtures, spread
from dpmix.populations.tree.cut import CutRule
from dpmix.populations.tree.decisions import Decisions
from dpmix.populations.tree.modes import MakeEngine
from dpmix.populations.tree.tree import Tree
from dpmix.runs.effective_size import MIN_DRAWS
from dpmix.runs.reader import Run, open_run
from dpmix.runs.verdict import judge, kept_mixing
from dpmix.runs.writer import RunWriter

log = logging.getLogger("dpmix")

RULE = 7
"""Version of the rule by which populations are found: to be raised with every change of its results."""


def populations_of_run(
    run: Run,
    make_engine: MakeEngine,
    *,
    n_draws: int = find.DRAWS,
    level: float | None = None,
    n_populations: int | None = None,
    decisions: Decisions | None = None,
    weight_floor: float | None = None,
) -> Populations:
    """Return the populations that the run file keeps, if they are those asked for; else find them.

    Parameters, errors and result are as in `dpmix.populations.draws.find.find_populations`.

    Parameters
    ----------
    weight_floor : float, optional
        Weight floor of the engines. Default: the run's.
    """
    is_default = decisions is None and CutRule(level, n_populations) == CutRule()
    if is_default and (weight_floor is None or weight_floor == run.config["engine"]["weight_floor"]):
        kept = kept_populations(run)
        if kept is not None and np.array_equal(kept.draws, spread(run, n_draws)):
            return kept
    return find.find_populations(
        run, make_engine, n_draws=n_draws, level=level, n_populations=n_populations, decisions=decisions
    )


def kept_populations(run: Run) -> Populations | None:
    """Return the populations that a run file keeps.

    Returns
    -------
    Populations or None
        Equal to the result of `dpmix.populations.draws.find.find_populations` without options. None for a run
        that has not ended, for a file of an earlier version, and for populations of another version of the
        rule.
    """
    kept = run.kept
    if kept is None or int(kept["rule"]) != RULE:
        return None
    found = _populations(run, kept)
    if not _is_sound(found):
        log.warning("%s: the populations in the file are damaged; they are found again", run.path)
        return None
    return found


def keep_populations(run: Run, engine: EngineConfig | None = None) -> Run:
    """Find the populations of a run that has ended, and write them and the verdict to its file.

    Nothing is done for a run that has not ended, for Bayesian EM and runs of few draws, in which no chains
    are compared, for a file of an earlier version, which has no place for them, and where the file has them.

    Parameters
    ----------
    run : Run
        Standardised scale.
    engine : EngineConfig, optional
        Default: the run's.

    Returns
    -------
    Run
        The same run, opened again after its file was changed.
    """
    compares = run.kind == "mcmc" and run.committed >= MIN_DRAWS
    # A verdict compares chains, so runs in which it says nothing keep no populations.
    if not compares or not run.complete or not run.has_place_for_populations:
        return run
    if kept_populations(run) is not None:
        return run
    log.info("finding the populations of the run")
    make_engine = engine_maker(run, engine)
    found = find.find_populations(run, make_engine)
    values = _values(run, found, make_engine)
    try:
        with RunWriter.reopen(run.path) as writer:
            # Another process may have continued the run meanwhile; populations of fewer draws must not be
            # kept as the populations of all.
            if writer.committed == run.committed:
                writer.write_populations(values)
    except (ConfigError, DataError, OutputError) as error:  # the draws are complete all the same
        log.warning("%s; the file does not keep its populations", error)
        return run
    return open_run(run.path)


def _values(run: Run, found: Populations, make_engine: MakeEngine) -> dict[str, Any]:
    """Return the datasets of the group ``populations``."""
    mixing, tree = population_mixing(found, make_engine), found.tree
    verdict = judge(run, mixing)
    return {
        "sentence": str(verdict),
        "fit": verdict.fit,
        "share": mixing.shares,
        "r_hat": mixing.r_hat,
        "ess": mixing.ess,
        "support": found.support,
        "compared": mixing.n_draws,
        "draws": found.draws,
        "components": found.components,
        "order": found.order,
        "numbers": found.numbers,
        "reference": found.reference,
        "agreement": found.agreement,
        "pooled": found.pooled,
        "tree_modes": tree.modes,
        "tree_points": tree.points,
        "tree_heights": tree.heights,
        "tree_merges": tree.merges,
        "tree_levels": tree.levels,
        "modes": found.modes,
        "level": found.level,
        "why": found.why,
        "least_density": found.least_density,
        "points": found.points,
        "of_points": found.of_points,
        "rule": RULE,
    }


def _populations(run: Run, kept: Mapping[str, Any]) -> Populations:
    """Return the populations of the group; unused places come last, and are -1 or NaN."""
    mixing = kept_mixing(kept)
    n_draws = _used(kept["draws"][:, 0])
    n_modes, n_points = (_used(kept[name]) for name in ("modes", "of_points"))

    def numbers(name: str, count: int) -> Ints:
        return np.array(kept[name][:count], np.int64)

    def values(name: str, count: int) -> Array:
        return np.array(kept[name][:count], np.float64)

    tree = Tree(
        modes=numbers("tree_modes", _used(kept["tree_modes"])),
        points=values("tree_points", n_modes),
        heights=values("tree_heights", n_modes),
        merges=numbers("tree_merges", max(n_modes - 1, 0)),
        levels=values("tree_levels", max(n_modes - 1, 0)),
    )
    return Populations(
        run=run,
        draws=numbers("draws", n_draws),
        pooled=numbers("pooled", _used(kept["pooled"])),
        tree=tree,
        modes=numbers("modes", n_modes),
        level=float(kept["level"]),
        why=kept["why"],
        components=numbers("components", n_draws),
        mixture=held_mixtures(run),
        n_populations=len(mixing.shares),
        reference=int(kept["reference"]),
        order=numbers("order", n_draws),
        numbers=numbers("numbers", _used(kept["numbers"])),
        support=values("support", len(mixing.shares)),
        agreement=np.array(kept["agreement"]),
        least_density=float(kept["least_density"]),
        points=np.array(kept["points"][:n_points]),
        of_points=numbers("of_points", n_points),
        mixing=mixing,
    )


def _used(numbers: Ints) -> int:
    """Return the number of places before the first -1."""
    unused = np.flatnonzero(np.asarray(numbers) < 0)
    return int(unused[0]) if len(unused) else len(numbers)


def _is_sound(found: Populations) -> bool:
    """Return True if all numbers are within their ranges: a file may be damaged, or of another program."""
    run, tree = found.run, found.tree
    n_modes, n_populations, n_components = len(tree.heights), found.n_populations, run.n_components
    ranges = [
        (found.draws[:, 0], len(run.alpha)),
        (found.draws[:, 1], run.committed),
        (found.pooled, len(found.draws)),
        (np.array([found.reference]), len(found.draws)),
        (tree.modes, n_modes),
        (tree.merges, n_modes),
        (found.modes, n_populations),
        (found.components, n_populations),
        (found.order, n_components),
        (found.of_points, n_populations),
    ]
    return (
        min(len(found.draws), n_modes, n_populations, len(found.points)) > 0
        and len(tree.modes) == len(found.pooled) * n_components
        and all(bool(((own >= 0) & (own < most)).all()) for own, most in ranges)
        and bool(np.isfinite(tree.points).all() and np.isfinite(found.points).all())
    )
