"""The fit of new files to a run (`dpmix.populations.draws.misfit`): fit.csv, shifts.csv and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dpmix.populations.draws.misfit import TAIL
from dpmix.populations.result import Gating
from dpmix.report import shifts
from dpmix.runs.reader import Run
from dpmix.system.files import csv_text, write_text

TABLE = "fit.csv"
HEAD = ("sample", "population", "proportion", "low", "high", "events", "misfit", "expected", "limit", "fits")
MOST_NAMED = 3  # populations in a warning


def paths(folder: Path, run: Run) -> list[Path]:
    """Return the files that `write_fit` writes."""
    return [folder / name for name in (TABLE, *((shifts.TABLE,) if "shifts" in run.cohort else ()))]


def write_fit(folder: Path, gating: Gating, run: Run) -> None:
    """Write fit.csv and, for a run with shifts, shifts.csv of the new files.

    fit.csv has a row per sample and population, after a row of the population "all". `proportion` is the
    posterior mean with the 90% interval. `misfit` is the share of the `events` in the tail of their
    population, `expected` is this share in the run's own files, and `limit` is the largest that fits.

    Raises
    ------
    DataError
        A file cannot be written.
    """
    fit = gating.fit
    assert fit is not None
    rows: list[Sequence[object]] = [HEAD]
    standard, limits = fit.standard, fit.standard.limits
    mean, low, high = gating.estimates
    for s, sample in enumerate(gating.samples):
        events = fit.events[s]
        whole = float((standard.expected * events).sum() / max(events.sum(), 1))
        rows.append(
            [sample, "all", 1, 1, 1, events.sum(), fit.misfit[s], whole, standard.limit, _word(fit.fits[s])]
        )
        for p in range(gating.n_populations):
            misfit = fit.tails[s, p] / events[p] if events[p] else ""
            row = [sample, gating.number(p), mean[s, p], low[s, p], high[s, p], events[p], misfit]
            rows.append([*row, standard.expected[p], limits[p], _word(fit.population_fits[s, p])])
    write_text(folder / TABLE, csv_text(rows))
    if fit.shifts is not None:
        drawn = np.moveaxis(fit.shifts, 0, 1) * run.constants["channel_sds"]
        shifts.write_shifts(folder / shifts.TABLE, drawn, gating.samples, gating.channels)


def warnings(gating: Gating) -> list[str]:
    """Return a warning for each file that does not fit the run."""
    fit = gating.fit
    assert fit is not None
    lines = []
    for s in np.flatnonzero(~fit.fits):
        misfit, limit = fit.misfit[s], fit.standard.limit
        reasons = []
        if misfit > limit:
            reasons.append(
                f"{misfit:.1%} of its events are in the {TAIL:.0%} tails of their populations, "
                f"files of the run have at most {limit:.1%}"
            )
        if not fit.shift_fits[s].all():
            channels = [gating.channels[d] for d in np.flatnonzero(~fit.shift_fits[s])]
            reasons.append(f"its shift is beyond the run's shifts in {', '.join(channels)}")
        worst = [p for p in np.argsort(-fit.tails[s]) if not fit.population_fits[s, p]][:MOST_NAMED]
        where = f" (most in populations {', '.join(str(gating.number(p)) for p in worst)})" if worst else ""
        lines.append(f"{gating.samples[s]} does not fit the run: {'; '.join(reasons)}{where}; see {TABLE}")
    return lines


def _word(fits: bool) -> str:
    return "yes" if fits else "no"
