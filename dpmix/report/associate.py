"""Associate populations with columns of a table of samples, and write the results."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dpmix.association.design import make_design, read_design
from dpmix.association.effects import ABUNDANCE, EXPRESSION, Effects
from dpmix.association.sampling import find_device
from dpmix.association.study import Study, approximation, run_study, sampler
from dpmix.errors import ConfigError
from dpmix.populations.explored import NAME, with_explored
from dpmix.populations.sample_draws import SampleDraws
from dpmix.report import association_figures, association_page
from dpmix.runs.effective_size import r_hat_and_ess
from dpmix.system.extras import require_extra
from dpmix.system.files import HDF5_BYTES, check_outputs, csv_text, replacing, write_text, writing

log = logging.getLogger("dpmix")

FIRST_DIMENSIONS = {"weight": ["sample"], "beta": ["column"], "gamma": ["scale"], "omega": ["term"]}
TABLE, OUTLIERS, MODEL, PAGE = "associations.csv", "outliers.csv", "posterior.nc", "report.html"
FALSE_SHARE = 0.05
WORST_R_HAT = 1.05


def associate(
    gated: str | Path,
    output: str | Path,
    formula: str,
    contrasts: Sequence[str],
    *,
    design: str | Path | None = None,
    variability: str | None = None,
    expression: bool = False,
    quick: bool = False,
    backend: str = "auto",
    least_ratio: float = 1.1,
    false_share: float = FALSE_SHARE,
    seed: int = 1,
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
    expression, quick, overwrite : bool
        Regress medians of channels, too; use the Gaussian approximation; replace existing files.
    backend : str
        auto, cpu or cuda: where the sampler computes.
    least_ratio, false_share : float
        Smallest ratio that counts as an effect; accepted share of false discoveries.
    seed : int

    Returns
    -------
    Study

    Raises
    ------
    DpmixError
        Anything wrong outside the program, in one line.
    """
    folder = Path(output)
    names = (TABLE, OUTLIERS, PAGE, MODEL)
    paths = [*(folder / name for name in names), *association_figures.figure_paths(folder / "figures")]
    draws = with_explored(SampleDraws.read(Path(gated)))
    columns = draws.columns if design is None else read_design(Path(design), draws.samples)
    if not columns:
        raise ConfigError(["--design: needed, because the run had no table of samples (data.samples)"])
    if quick and variability:
        raise ConfigError(["--variability: the Gaussian approximation has none; leave out --quick"])
    made = make_design(columns, draws.samples, formula, contrasts, variability)
    check_outputs(paths, overwrite, [Path(gated) / "samples.nc", *([Path(design)] if design else [])])
    require_extra("arviz", "associate", "dpmix associate")
    fit = approximation(seed) if quick else sampler(seed, find_device(backend))
    study = run_study(draws, made, fit, float(least_ratio), expression)
    warnings = _warnings(study)
    for warning in warnings:
        log.warning(warning)
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / TABLE, csv_text(_rows(study, false_share)))
    write_text(folder / OUTLIERS, csv_text(_outlier_rows(study)))
    write_model(folder / MODEL, study)
    association_figures.write_figures(folder / "figures", study, false_share, seed)
    write_text(folder / PAGE, association_page.render(study, false_share, seed, warnings))
    return study


def _warnings(study: Study) -> list[str]:
    """Return what may make the results wrong."""
    warnings = []
    for measure, fit in study.fits.items():
        if fit.divergences:
            warnings.append(f"{measure}: {fit.divergences} divergent transitions; intervals may be wrong")
        if len(fit.draws["beta"]) > 1:
            beta = fit.draws["beta"]
            r_hat = float(r_hat_and_ess(beta.reshape(*beta.shape[:2], -1))[0].max())
            if not r_hat <= WORST_R_HAT:
                warnings.append(f"{measure}: chains disagree (R-hat {r_hat:.2f}); try another --seed")
        else:
            warnings.append(f"{measure}: --quick is an approximation; leave it out for results to report")
    if len(study.draws.counts) == 1:
        warnings.append("the gating has one draw (Bayesian EM): intervals lack the uncertainty of the gating")
    if study.draws.explored is not None:
        number = len(study.draws.phenotypes)
        warnings.append(
            f"{NAME} (population {number}): compared by the cells found in each sample; intervals lack the "
            "uncertainty of judging"
        )
    if study.left_out:
        few = "; ".join(study.left_out[:3]) + ("; ..." if len(study.left_out) > 3 else "")
        warnings.append(f"expression: too few events in too many samples: {few}")
    return warnings


def _rows(study: Study, false_share: float) -> Iterator[Sequence[object]]:
    """Yield the rows of associations.csv, the most certain effects of a contrast and measure first."""
    yield [
        *("contrast", "measure", "population", "phenotype", "channel", "effect", "low", "high"),
        *("probability of direction", "local false sign rate", "expected false discoveries", "found"),
        *("proportion ratio", "proportion low", "proportion high"),
    ]
    for effects in study.effects:
        yield from _effect_rows(study, effects, false_share)


def _effect_rows(study: Study, effects: Effects, false_share: float) -> Iterator[Sequence[object]]:
    ends, found = effects.intervals(), effects.found(false_share)
    of_shares = None if effects.proportions is None else effects.intervals(effects.proportions)
    direction, rates, expected = effects.direction, effects.false_sign, effects.expected_false
    for q in np.argsort(rates, kind="stable"):
        population, channel = effects.populations[q], effects.channels[q]
        name = study.draws.channels[channel] if channel >= 0 else ""
        yield [
            *(effects.contrast, effects.measure, population + 1, study.draws.phenotypes[population], name),
            *(f"{end[q]:.6g}" for end in ends),
            *(f"{one[q]:.6g}" for one in (direction, rates, expected)),
            "yes" if found[q] else "no",
            *(("", "", "") if of_shares is None else (f"{end[q]:.6g}" for end in of_shares)),
        ]


def _outlier_rows(study: Study) -> Iterator[Sequence[object]]:
    yield ["sample", "population", "phenotype", "channel", "weight"]
    for one in study.outliers:
        channel = study.draws.channels[one.channel] if one.channel >= 0 else ""
        phenotype = study.draws.phenotypes[one.population]
        yield [one.sample, one.population + 1, phenotype, channel, f"{one.weight:.3g}"]


def write_model(path: Path, study: Study) -> None:
    """Write the draws of the posterior for ArviZ: a variable for each parameter and measure, alpha and so on.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    import arviz

    posterior, dims = {}, {}
    for measure, fit in study.fits.items():
        response = "population" if measure == ABUNDANCE else "response"
        for name, values in fit.draws.items():
            if values.size and name != "rate":
                key = name if measure == ABUNDANCE else f"{measure}_{name}"
                posterior[key] = values
                dims[key] = [*FIRST_DIMENSIONS.get(name, []), response]
    data = arviz.from_dict(
        posterior=posterior,
        constant_data={"column_unit": study.design.units},
        coords=_coordinates(study),
        dims=dims | {"column_unit": ["column"]},
    )
    # A coordinate: ArviZ summarises every variable, and text has no mean.
    data.posterior = data.posterior.assign_coords(phenotype=("population", list(study.draws.phenotypes)))
    data.posterior.attrs.update(
        formula=study.design.formula, contrasts=[c.name for c in study.design.contrasts]
    )
    with writing(path), replacing(path, data.posterior.nbytes + HDF5_BYTES) as temporary:
        data.to_netcdf(str(temporary), engine="h5netcdf")


def _coordinates(study: Study) -> dict[str, list[Any]]:
    """Return the names along the dimensions of the posterior."""
    design, draws = study.design, study.draws
    measured = [effects for effects in study.effects if effects.measure == EXPRESSION][:1]
    return {
        "sample": list(draws.samples),
        "population": list(range(1, len(draws.phenotypes) + 1)),
        "column": list(design.columns),
        "scale": list(design.scales),
        "term": list(design.terms),
        "response": [
            f"{population + 1} {draws.channels[channel]}"
            for effects in measured
            for population, channel in zip(effects.populations, effects.channels, strict=True)
        ],
    }
