"""`dpmix predict` for files that are not in the run: own weights and shift, misfit, and a flag."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dpmix.cli import main
from dpmix.commands.gate import predict
from dpmix.config.schema import Config
from dpmix.engines.cpu import CpuEngine
from dpmix.errors import ConfigError
from dpmix.model.mixture import mixture_from
from dpmix.populations.draws import misfit, new_samples
from dpmix.populations.draws.find import Populations, find_populations
from dpmix.populations.events.estimates import interval
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.reader import open_run

Array = np.ndarray
CENTRES = np.array([[-4.0, 0.0], [0.0, 5.0], [5.0, -3.0]])
SD, COHORT, EACH = 0.6, 8, 1_000
NEW_SHARE, NEW_SHIFT = np.array([0.15, 0.05, 0.8]), np.array([-0.5, 0.4])


def simulated(n_events: int, seed: int, share: Array, shift: Array | float = 0.0) -> Array:
    rng = np.random.default_rng(seed)
    return CENTRES[rng.choice(3, n_events, p=share)] + shift + SD * rng.standard_normal((n_events, 2))


def write(path: Path, values: Array) -> Path:
    np.savetxt(path, values, delimiter=",", header="A,B", comments="")
    return path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as table:
        return list(csv.DictReader(table))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cohort of shifted samples, run with and without shifts, and new files."""
    folder, rng = tmp_path_factory.mktemp("new"), np.random.default_rng(8)
    shares = rng.dirichlet([4.0, 4.0, 4.0], COHORT)
    shifts = 0.4 * rng.standard_normal((COHORT, 2))
    for s, (share, shift) in enumerate(zip(shares, shifts - shifts.mean(axis=0), strict=True)):
        write(folder / f"s{s}.csv", simulated(EACH, s, share, shift))
        write(folder / f"p{s}.csv", simulated(EACH, 40 + s, share))
    write(folder / "cohort.csv", simulated(4_000, 50, NEW_SHARE, NEW_SHIFT))
    write(folder / "far.csv", simulated(4_000, 51, NEW_SHARE, np.array([3.0, 0.0])))
    foreign = simulated(4_000, 52, NEW_SHARE)
    foreign[:600] = np.array([0.0, -4.0]) + SD * rng.standard_normal((600, 2))
    write(folder / "foreign.csv", foreign)
    for name, files, model in (
        ("shifts", "s*.csv", {"samples": "hierarchical", "shifts": "sample"}),
        ("pooled", "p*.csv", {"samples": "pooled"}),
    ):
        settings = {
            "data": {"files": [str(folder / files)]},
            "model": {"components": 8, "coarseness": None} | model,
            "mcmc": {"chains": 1, "burn_in": 60, "draws": 20, "split_merge": 0, "until": None},
            "engine": {"backend": "cpu", "threads": 1},
            "output": {"path": str(folder / f"{name}.h5")},
        }
        run_mcmc(Config.model_validate(settings))
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Populations:
    return find_populations(open_run(folder / "shifts.h5"), lambda values: CpuEngine(values, threads=1))


def test_a_file_of_the_cohort_gets_its_weights_and_shift_and_fits(folder: Path) -> None:
    files = [folder / "cohort.csv"]
    gating = predict(folder / "shifts.h5", files, folder / "cohort", n_populations=3)
    (row_a, row_b) = rows_of(folder / "cohort" / "shifts.csv")
    for row, truth in zip((row_a, row_b), NEW_SHIFT, strict=True):
        assert float(row["low"]) - 0.1 < truth < float(row["high"]) + 0.1
    rows = rows_of(folder / "cohort" / "fit.csv")
    assert rows[0]["population"] == "all"
    assert {row["fits"] for row in rows} == {"yes"}
    np.testing.assert_allclose(sorted(float(r["proportion"]) for r in rows[1:]), sorted(NEW_SHARE), atol=0.02)
    assert gating.fit is not None
    assert gating.fit.misfit[0] < 0.02
    assert gating.n_implausible[0] < 20


def test_foreign_files_are_flagged_and_named(folder: Path) -> None:
    names = ("cohort", "foreign", "far")
    files = [str(folder / f"{name}.csv") for name in names]
    arguments = ["predict", str(folder / "shifts.h5"), *files, "--output", str(folder / "foreign")]
    result = CliRunner().invoke(main, arguments, catch_exceptions=False)
    lines = {
        name: next(line for line in result.stdout.splitlines() if line.startswith(name)) for name in names
    }
    assert "does not fit" not in lines["cohort"]
    assert lines["foreign"].endswith(": does not fit")
    assert lines["far"].endswith(": does not fit")
    assert "foreign.csv does not fit the run: " in result.stderr
    assert "far.csv does not fit the run: its shift is beyond the run's shifts in A" in " ".join(
        result.stderr.split()
    )


def test_files_of_a_pooled_run(folder: Path) -> None:
    rng = np.random.default_rng(3)
    few = write(folder / "few.csv", simulated(20, 61, NEW_SHARE))
    own = write(folder / "own.csv", simulated(4_000, 60, NEW_SHARE))
    noise = write(folder / "noise.csv", rng.uniform(-8.0, 8.0, (2_000, 2)))
    moved = write(folder / "moved.csv", simulated(2_000, 62, NEW_SHARE, 1.5))
    gating = predict(folder / "pooled.h5", [few, own, noise, moved], folder / "pooled", n_populations=3)
    assert gating.fit is not None
    assert gating.fit.fits.tolist() == [True, True, False, False]
    assert not (folder / "pooled" / "shifts.csv").exists()


def test_files_of_the_cohort_are_rarely_flagged(found: Populations) -> None:
    """Twenty files with shifts as in the cohort: none is flagged, and their misfit is the run's."""
    rng, run = np.random.default_rng(12), found.run
    means, sds = run.constants["channel_means"], run.constants["channel_sds"]
    files = [
        simulated(1_000, 100 + s, rng.dirichlet([4, 4, 4]), 0.4 * rng.standard_normal(2)) for s in range(20)
    ]
    values = [((file - means) / sds).astype(np.float32) for file in files]

    def engine(events: Array) -> CpuEngine:
        return CpuEngine(events, threads=1)

    own = [new_samples.fit_sample(found, engine, one, f"f{s}", 1) for s, one in enumerate(values)]
    starts = np.arange(21) * 1_000
    fit = misfit.measure(found, engine, np.concatenate(values), starts, own, 1)
    assert fit.fits.all()
    assert 0.005 < fit.misfit.mean() < 0.015
    without = misfit.measure(found, engine, np.concatenate(values), starts, None, 1)
    assert (without.misfit > fit.misfit).mean() > 0.9, "without their shifts the files fit worse"


def test_the_conditional_of_a_shift_is_exact() -> None:
    """Draws of the shift have the moments of its normal conditional, computed from the events one by one."""
    rng = np.random.default_rng(5)
    means = np.array([[-3.0, 0.0], [3.0, 1.0]])
    covariances = np.array([[[1.0, 0.3], [0.3, 0.5]], [[0.4, 0.0], [0.0, 2.0]]])
    spread, events = np.array([0.5, 0.2]), means[[0, 1] * 20] + rng.standard_normal((40, 2))
    mixture = mixture_from(np.log([0.5, 0.5]), means, covariances)
    with_engine = CpuEngine(events.astype(np.float32), threads=1)
    stats = with_engine.draw_labels(mixture, new_samples.Key(1, 0, 0))
    labels = with_engine.labels()
    precisions = np.linalg.inv(covariances)
    precision = np.diag(spread**-2.0) + precisions[labels].sum(axis=0)
    linear = np.einsum("nij,nj->i", precisions[labels], events - means[labels])
    drawn = np.array([new_samples.draw_shift(stats, mixture, spread, rng) for _ in range(4_000)])
    covariance = np.linalg.inv(precision)
    error = np.sqrt(np.diag(covariance) / len(drawn))
    assert (np.abs(drawn.mean(axis=0) - covariance @ linear) < 4.5 * error).all()
    np.testing.assert_allclose(np.cov(drawn.T), covariance, rtol=0.12, atol=0.0005)


def test_intervals_cover_the_shifts_of_new_files(found: Populations) -> None:
    """The 90% intervals of new shifts contain the truth about nine times in ten."""
    rng, run = np.random.default_rng(13), found.run
    sds = run.constants["channel_sds"]
    covered = []
    for s in range(15):
        truth = 0.4 * rng.standard_normal(2)
        values = simulated(60, 200 + s, np.array([0.3, 0.3, 0.4]), truth)
        values = ((values - run.constants["channel_means"]) / sds).astype(np.float32)
        own = new_samples.fit_sample(found, lambda events: CpuEngine(events, threads=1), values, f"c{s}", 1)
        _, low, high = interval(own.shifts * sds)
        covered += ((low < truth) & (truth < high)).tolist()
    assert np.mean(covered) > 0.7


def test_no_files_is_an_error(tmp_path: Path) -> None:
    """Without this, the events of the run would be predicted."""
    with pytest.raises(ConfigError, match="data is empty; give the files to predict"):
        predict("run.h5", [], tmp_path / "out")
