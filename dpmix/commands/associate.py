"""Associate populations with columns of a table of samples, and write the results."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from dpmix.association.columns import read_design
from dpmix.association.design import make_design
from dpmix.association.effects import EXPRESSION, Effects
from dpmix.association.study import Study, run_study
from dpmix.errors import ConfigError
from dpmix.populations.explored import NAME, with_explored
from dpmix.populations.sample_draws import OTHER, SampleDraws, by_type
from dpmix.report import association_figures, association_page
from dpmix.system.files import check_outputs, csv_text, write_text, writing

log = logging.getLogger("dpmix")

TABLE, OUTLIERS, PAGE = "associations.csv", "outliers.csv", "report.html"
SEED = 1  # of the intervals of the proportions of samples
FALSE_SHARE = 0.05


def associate(
    gated: str | Path,
    output: str | Path,
    formula: str,
    contrasts: Sequence[str],
    *,
    design: str | Path | None = None,
    variability: str | None = None,
    expression: bool = False,
    all_channels: bool = False,
    types: bool = False,
    least_ratio: float = 1.1,
    false_share: float = FALSE_SHARE,
    overwrite: bool = False,
) -> Study:
    """Associate the populations of a gating with columns of a table of samples, and write the results.

    Parameters
    ----------
    gated, output : str or Path
        Folder that `dpmix gate` has written; folder to write to.
    formula, contrasts, variability : str, sequence of str, str
        See `dpmix.association.design.make_design`.
    design : str or Path, optional
        Table of samples. Default: the columns of the table that the run had.
    expression, all_channels, overwrite : bool
        Regress medians of state channels, too; all channels' medians, also where there are state channels;
        replace existing files.
    types : bool
        Compare the cell types of the gating, not its populations. A parent counts without its children.
    least_ratio, false_share : float
        Smallest ratio of abundances that counts as an effect; accepted share of false discoveries.

    Returns
    -------
    Study

    Raises
    ------
    DpmixError
        Anything wrong outside the program, in one line.
    """
    folder = Path(output)
    names = (TABLE, OUTLIERS, PAGE)
    paths = [*(folder / name for name in names), *association_figures.figure_paths(folder / "figures")]
    draws = SampleDraws.read(Path(gated))
    draws, rare = by_type(draws) if types else (with_explored(draws), ())
    columns = draws.columns if design is None else read_design(Path(design), draws.samples)
    if not columns:
        raise ConfigError(["--design: needed, because the run had no table of samples (data.samples)"])
    if all_channels and not expression:
        raise ConfigError(["--all-channels: needs --expression"])
    made = make_design(columns, draws.samples, formula, contrasts, variability)
    check_outputs(paths, overwrite, [Path(gated) / "samples.nc", *([Path(design)] if design else [])])
    study = run_study(draws, made, float(least_ratio), expression, only_state=not all_channels)
    warnings = _warnings(study, rare)
    for warning in warnings:
        log.warning(warning)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TABLE, csv_text(_rows(study, false_share)))
    write_text(folder / OUTLIERS, csv_text(_outlier_rows(study)))
    association_figures.write_figures(folder / "figures", study, false_share, SEED)
    write_text(folder / PAGE, association_page.render(study, false_share, SEED, warnings))
    return study


def _warnings(study: Study, rare: Sequence[str] = ()) -> list[str]:
    """Return what may make the results wrong."""
    warnings = []
    for one in study.effects:
        if wrong := int((~one.converged).sum()):
            warnings.append(
                f"{one.contrast}, {one.measure}: {wrong} of {len(one.converged)} have not converged and are "
                "not found; leave out columns or random effects of the formula"
            )
    if len(study.draws.counts) == 1:
        warnings.append("the gating has one draw (Bayesian EM): intervals lack the uncertainty of the gating")
    if study.draws.errors is None and any(one.measure == EXPRESSION for one in study.effects):
        warnings.append(
            "samples.nc is of an older version and has no errors of the medians; dpmix gate writes it again"
        )
    if study.draws.explored is not None:
        number = len(study.draws.phenotypes)
        warnings.append(
            f"{NAME} (population {number}): compared by the cells found in each sample; intervals lack the "
            "uncertainty of judging"
        )
    if parents := [name for name in study.draws.phenotypes if study.draws.by_type and name.endswith(OTHER)]:
        warnings.append(
            f"a type with children counts without them: {'; '.join(parents)}. To compare it as a whole, "
            "gate with a table that lacks its children"
        )
    if rare:
        warnings.append(f"too few events, counted as unknown: {_some(rare)}")
    if study.draws.by_type and any(one.measure == EXPRESSION for one in study.effects):
        warnings.append("medians of types: intervals lack the uncertainty of the types of events")
    if study.left_out:
        warnings.append(f"expression: too few events in too many samples: {_some(study.left_out)}")
    return warnings


def _some(names: Sequence[str]) -> str:
    return "; ".join(names[:3]) + ("; ..." if len(names) > 3 else "")


def _who(study: Study, population: int) -> tuple[object, ...]:
    """Return the cells that name a response: number, cell type and phenotype of a population, or a type."""
    draws = study.draws
    name = draws.phenotypes[population]
    if draws.by_type:
        return (name,)
    types = ("".join(draws.population_types[population : population + 1]),) if draws.population_types else ()
    return (draws.number(population), *types, name)


def _head(study: Study) -> tuple[str, ...]:
    types = ("type",) if study.draws.population_types else ()
    return ("type",) if study.draws.by_type else ("population", *types, "phenotype")


def _rows(study: Study, false_share: float) -> Iterator[Sequence[object]]:
    """Yield the rows of associations.csv, for each contrast and measure those found first."""
    yield [
        *("contrast", "measure", *_head(study), "channel", "effect", "low", "high"),
        *("probability of direction", "tail probability", "false discovery rate", "found"),
        *("proportion ratio", "proportion low", "proportion high"),
    ]
    for effects in study.effects:
        yield from _effect_rows(study, effects, false_share)


def _effect_rows(study: Study, effects: Effects, false_share: float) -> Iterator[Sequence[object]]:
    ends, found, shares = effects.intervals, effects.found(false_share), effects.proportions
    numbers = effects.direction, effects.tails, effects.rates
    for q in effects.order(false_share):
        population, channel = effects.populations[q], effects.channels[q]
        name = study.draws.channels[channel] if channel >= 0 else ""
        verdict = ("yes" if found[q] else "no") if effects.converged[q] else "not converged"
        yield [
            *(effects.contrast, effects.measure, *_who(study, population), name),
            *(f"{end[q]:.6g}" for end in ends),
            *(f"{one[q]:.6g}" for one in numbers),
            verdict,
            *(("", "", "") if shares is None else (f"{end[q]:.6g}" for end in shares)),
        ]


def _outlier_rows(study: Study) -> Iterator[Sequence[object]]:
    yield ["sample", *_head(study), "channel", "weight"]
    for one in study.outliers:
        channel = study.draws.channels[one.channel] if one.channel >= 0 else ""
        yield [one.sample, *_who(study, one.population), channel, f"{one.weight:.3g}"]
