"""Measure error rates, power and coverage of `dpmix associate` on simulated cohorts, next to other methods.

    python benchmarks/associate.py                       # about an hour on two cores
    python benchmarks/associate.py --rscript Rscript     # also edgeR, where R has it
    python benchmarks/associate.py figure                # docs/pictures/power.png from the results

Abundance: counts of 14 populations are simulated for two groups of 3 to 30 samples, with logistic-normal
variation between samples (standard deviation about 0.35 on the log scale) and, in every other cohort, a shift
between two batches, which all methods have in their design. Three populations change by the same factor, up
or down; the others do not change relative to each other. A discovery is false if its population does not
change, or in the other direction.

All methods aim at a false discovery rate of 5%: Benjamini and Hochberg (1995) for the p-values. t test:
linear model of the logits of the proportions. Beta-binomial: likelihood ratio test of one population at a
time, SciPy. edgeR: as in diffcyt's testDA_edgeR (Weber et al. 2019): estimateDisp without trend, glmFit,
glmLRT; without --rscript, its rows come from the last run with R, which had the same cohorts.

Expression: medians of 10 channels in 10 populations. A channel is on in 2 or 5 populations, in turn: its
donors differ with a standard deviation of 0.3, its samples of 0.08. In the others it is off, with the
standard deviation of the background. An effect is in one of the populations where a channel is on. In half of
the cohorts, 30% of the responses have an outlier of ten standard deviations. dpmix knows the error of each
median; the moderated t test (Smyth 2004) does not use it.

Weak cells: where all methods find little, more cohorts than in the table, and the power at thresholds that
the same share of the responses that are on without an effect passes.

Real donors without effect: eight samples of one condition are divided 4:4 in all 35 ways, with gates drawn by
hand as populations. What is found is false by chance, or a batch. The residuals of the same samples, rotated
at random, have the same variances and correlations, and neither batches nor effects (Langsrud 2005, Stat.
Comput. 15:53). The sets are in ../shared/data, next to the checkout; without them, this part is left out.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
from gating import TOOLS, tools
from record import FOLDER, PICTURES, plain_arguments, write_results
from scipy import optimize, special, stats

from dpmix.association.design import Contrast, make_design
from dpmix.association.effects import EXPRESSION, Effects, abundance, adjust, expression
from dpmix.association.regression import Predictors, fit
from dpmix.association.study import count_responses, median_responses, run_study
from dpmix.config.data import DataConfig
from dpmix.inputs.preprocess import prepare
from dpmix.populations.events.medians import Medians
from dpmix.populations.sample_draws import SampleDraws

SIZES, FOLDS = (6, 12, 24, 60), (1.0, 1.5, 2.0, 3.0)
POPULATIONS, CHANGED, EVENTS = 14, 3, 20_000
BASE = np.array([24, 19, 15, 11, 8, 6, 5, 4, 3, 2, 1.5, 1, 0.4, 0.1])
SD, SD_SPREAD, BATCH_SD = 0.35, 0.3, 0.3
RATE, LEAST = 0.05, np.log(1.1)
MEDIANS = "associate_medians"  # file of results
BACKGROUNDS, DONORS, EFFECT = (0.01, 0.03, 0.1, 0.3), (4, 8, 20), 0.3
DONOR_SD, ON_SD, ODD_SHARE = 0.3, 0.08, 0.3
PANELS = [
    (paired, donors, background, effect)
    for paired in (True, False)
    for donors in DONORS
    for background in BACKGROUNDS
    for effect in (0.0, EFFECT, 2.0 * EFFECT)
    if effect == EFFECT or background == 0.1
]
NULL = "associate_null"  # file of results
ROTATED, ROTATIONS = "associate_rotated", 60  # file of results, and rotations of each set
WEAK = "associate_weak"  # file of results
WEAK_CELLS = [PANELS.index((False, 4, background, EFFECT)) for background in (0.01, 0.03, 0.1)]
WEAK_CELLS.append(PANELS.index((True, 4, 0.3, EFFECT)))
SIZE = 0.01  # of the responses that are on without an effect, for powers that compare
REAL = TOOLS.parent / "data"
EDGER = """
suppressMessages(library(edgeR))
writeLines(paste0(R.version$major, ".", R.version$minor, ", edgeR ", packageVersion("edgeR")), "version.txt")
for (name in list.files(pattern="^counts")) {
  y <- t(as.matrix(read.csv(name, header=FALSE)))
  x <- as.matrix(read.csv(sub("counts", "design", name), header=FALSE))
  rownames(y) <- 1:nrow(y)
  d <- estimateDisp(DGEList(y), x, trend.method="none")
  t <- glmLRT(glmFit(d, x), coef=2)$table
  found <- cbind(t$logFC * log(2), t$PValue)
  write.table(found, sub("counts", "found", name), sep=",", row.names=FALSE, col.names=FALSE)
}
"""


class Cohort:
    """Counts of a simulated cohort, its design, and the true log ratios."""

    def __init__(self, n_samples: int, fold: float, number: int) -> None:
        random = np.random.default_rng([n_samples, int(10 * fold), number])
        self.n_samples, self.fold = n_samples, fold
        group = np.repeat([0.0, 1.0], n_samples // 2)
        batch = np.tile([0.0, 1.0], n_samples)[:n_samples] * (number % 2)
        self.truth = np.zeros(POPULATIONS)
        changed = random.choice(POPULATIONS, CHANGED, replace=False)
        self.truth[changed] = np.log(fold) * random.choice([-1.0, 1.0], CHANGED)
        sds = SD * np.exp(SD_SPREAD * random.standard_normal(POPULATIONS))
        logs = (
            np.log(BASE)
            + np.outer(group, self.truth)
            + sds * random.standard_normal((n_samples, POPULATIONS))
        )
        logs += np.outer(batch, BATCH_SD * random.standard_normal(POPULATIONS))
        events = (EVENTS * random.lognormal(0.0, 0.4, n_samples)).astype(int)
        self.counts = np.stack(
            [random.multinomial(n, special.softmax(row)) for n, row in zip(events, logs, strict=True)]
        )
        columns = [group, batch] if number % 2 else [group]
        self.design = np.column_stack([np.ones(n_samples), *columns])


Found = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Which populations are found, the estimated log ratios, and whether a 90% interval covers the truth."""


def dpmix_found(cohort: Cohort) -> Found:
    fixed = cohort.design[:, 1:] - cohort.design[:, 1:].mean(axis=0)
    none = np.zeros((cohort.n_samples, 0))
    made = fit(*count_responses(cohort.counts[None]), Predictors(fixed, none, np.zeros(0, np.int64), none))
    (effects,) = adjust([abundance(made, first_column(fixed), LEAST)])
    middle, low, high = (np.log(end) for end in effects.intervals)
    return effects.found(RATE), middle, (low <= cohort.truth) & (cohort.truth <= high)


def first_column(fixed: np.ndarray) -> Contrast:
    first = np.eye(fixed.shape[1])[0]
    return Contrast("", first, 0.0 * first, np.zeros(0), "", None)


def t_test(cohort: Cohort) -> Found:
    share = (cohort.counts + 0.5) / (cohort.counts.sum(axis=1, keepdims=True) + 1.0)
    y, x = special.logit(share), cohort.design
    estimates = np.linalg.lstsq(x, y, rcond=None)[0]
    free = x.shape[0] - x.shape[1]
    errors = np.sqrt(((y - x @ estimates) ** 2).sum(axis=0) / free * np.linalg.inv(x.T @ x)[1, 1])
    p = 2.0 * stats.t.sf(np.abs(estimates[1]) / errors, free)
    half = stats.t.ppf(0.95, free) * errors
    covered = np.abs(estimates[1] - cohort.truth) <= half
    return stats.false_discovery_control(p) <= RATE, estimates[1], covered


def beta_binomial(cohort: Cohort) -> Found:
    n = cohort.counts.sum(axis=1)
    found, estimates = np.ones(POPULATIONS), np.zeros(POPULATIONS)
    for p in range(POPULATIONS):
        fits = [
            _fit_beta_binomial(cohort.counts[:, p], n, x)
            for x in (cohort.design, np.delete(cohort.design, 1, 1))
        ]
        found[p] = stats.chi2.sf(max(2.0 * (fits[1].fun - fits[0].fun), 0.0), 1)
        estimates[p] = fits[0].x[1]
    return stats.false_discovery_control(found) <= RATE, estimates, None


def _fit_beta_binomial(y: np.ndarray, n: np.ndarray, x: np.ndarray) -> optimize.OptimizeResult:
    def loss(at: np.ndarray) -> float:
        mean, size = special.expit(x @ at[:-1]), np.exp(at[-1])
        a, b = mean * size, (1.0 - mean) * size
        return -float((special.betaln(y + a, n - y + b) - special.betaln(a, b)).sum())

    start = np.zeros(x.shape[1] + 1)
    start[0], start[-1] = special.logit((y.sum() + 0.5) / (n.sum() + 1.0)), 4.0
    bounds = [(-20.0, 20.0)] * x.shape[1] + [(-2.0, 14.0)]
    with np.errstate(all="ignore"):  # a step beyond the bounds of the arithmetic is taken back
        return optimize.minimize(loss, start, method="L-BFGS-B", bounds=bounds)


def edger(cohorts: list[Cohort], rscript: str) -> tuple[list[Found], str]:
    with tempfile.TemporaryDirectory() as folder:
        for k, cohort in enumerate(cohorts):
            np.savetxt(Path(folder, f"counts{k:04d}.csv"), cohort.counts, "%d", ",")
            np.savetxt(Path(folder, f"design{k:04d}.csv"), cohort.design, "%g", ",")
        Path(folder, "run.R").write_text(EDGER)
        subprocess.run([rscript, "run.R"], cwd=folder, check=True)
        release = Path(folder, "version.txt").read_text().strip()
        tables = [np.loadtxt(Path(folder, f"found{k:04d}.csv"), delimiter=",") for k in range(len(cohorts))]
    return [(stats.false_discovery_control(t[:, 1]) <= RATE, t[:, 0], None) for t in tables], f"R {release}"


class Panel:
    """Medians of a simulated cohort, their errors, its design, and the true differences."""

    def __init__(self, paired: bool, donors: int, background: float, effect: float, number: int) -> None:
        random = np.random.default_rng(
            [int(paired), donors, int(1000 * background), int(1000 * effect), number]
        )
        n, self.paired = 2 * donors, paired
        self.donor = np.repeat(np.arange(donors), 2) if paired else np.arange(n)
        self.group = np.arange(n) % 2
        channel, population = np.divmod(np.arange(100), 10)
        place = (population - channel) % 10
        self.on = place < (2, 5)[number % 2]
        self.truth = np.where(place == 0, effect * random.choice([-1.0, 1.0], 100), 0.0)
        sds = np.where(self.on, ON_SD, background)
        self.variances = (np.where(self.on, 0.03, 0.004) * random.lognormal(0.0, 0.7, (n, 100))) ** 2
        clean = np.where(self.on, DONOR_SD, 0.0) * random.standard_normal((n, 100))[self.donor]
        clean = clean + self.group[:, None] * self.truth + sds * random.standard_normal((n, 100))
        self.medians = clean + np.sqrt(self.variances) * random.standard_normal((n, 100))
        if (number + number // 2) % 2:
            odd = np.flatnonzero(random.random(100) < ODD_SHARE)
            moved = 10.0 * sds[odd] * random.choice([-1.0, 1.0], len(odd))
            self.medians[random.integers(n, size=len(odd)), odd] += moved


def panel_effects(panel: Panel) -> tuple[Effects, float]:
    """Return the effects of a panel, and the smallest effective number of points of their integrals."""
    fixed = (panel.group - panel.group.mean())[:, None]
    n_donors = panel.donor.max() + 1 if panel.paired else 0
    random = np.eye(panel.donor.max() + 1)[panel.donor][:, :n_donors]
    columns = Predictors(fixed, random, np.zeros(n_donors, np.int64), np.zeros((len(fixed), 0)))
    made = fit(panel.medians, panel.variances, columns)
    numbers = np.arange(100)
    (effects,) = adjust([expression(made, first_column(fixed), numbers, numbers)])
    return effects, float(made.effective.min())


def panel_found(panel: Panel) -> tuple[Found, float]:
    """Return what dpmix finds, and the smallest effective number of points of its integrals."""
    effects, effective = panel_effects(panel)
    middle, low, high = effects.intervals
    covered = (low <= panel.truth) & (panel.truth <= high)
    return (effects.found(RATE), middle, covered), effective


def moderated_t(panel: Panel) -> Found:
    """Return what the moderated t test finds: Smyth (2004, Stat. Appl. Genet. Mol. Biol. 3:3)."""
    return moderated(panel.medians, columns_of(panel), panel.truth)[0]


def columns_of(panel: Panel) -> np.ndarray:
    """Return the design of the moderated t test, with donors as fixed effects where there are pairs."""
    donors = np.eye(panel.donor.max() + 1)[panel.donor][:, 1:]
    parts = [np.ones(len(panel.group)), panel.group, *(donors.T if panel.paired else ())]
    return np.column_stack(parts)


def moderated(
    medians: np.ndarray, x: np.ndarray, truth: np.ndarray | float = 0.0
) -> tuple[Found, np.ndarray]:
    """Return what the moderated t test of the second column of a design finds, and its p-values."""
    estimates = np.linalg.lstsq(x, medians, rcond=None)[0]
    free = len(x) - x.shape[1]
    variances = ((medians - x @ estimates) ** 2).sum(axis=0) / free
    # Section 6.2: moments of the logarithms of the variances give their prior.
    logs = np.log(variances) - special.digamma(free / 2.0) + np.log(free / 2.0)
    excess = logs.var(ddof=1) - special.polygamma(1, free / 2.0)
    prior_free = 1e6
    if excess > 0.0:
        prior_free = optimize.brentq(lambda d: special.polygamma(1, d / 2.0) - excess, 1e-3, 1e6)
    prior = np.exp(logs.mean() + special.digamma(prior_free / 2.0) - np.log(prior_free / 2.0))
    moderated = (prior_free * prior + free * variances) / (prior_free + free)
    errors, free = np.sqrt(moderated * np.linalg.inv(x.T @ x)[1, 1]), free + prior_free
    p = 2.0 * stats.t.sf(np.abs(estimates[1]) / errors, free)
    covered = np.abs(estimates[1] - truth) <= stats.t.ppf(0.95, free) * errors
    return (stats.false_discovery_control(p) <= RATE, estimates[1], covered), p


def real_sets() -> dict[str, SampleDraws]:
    """Return real samples of one condition, with gates drawn by hand as populations."""
    folder = REAL / "cohort_bcrxl"
    settings = DataConfig(samples="samples.csv", state_channels=["p*"], standardize=False)
    events, drawn = prepare(settings, folder, 1), np.load(folder / "gates.npz")
    assert events.state is not None
    gates = [drawn["gate"][drawn["sample"] == name].astype(np.int64) - 1 for name in events.samples]
    condition = np.array(events.sample_columns["condition"])
    sets = {}
    for kind, values, channels in (
        ("signalling", events.state.values, events.state.channels),
        ("lineage", events.values, events.channels),
    ):
        parts = np.split(np.asarray(values, np.float64), events.sample_starts[1:-1])
        for name in ("Ref", "BCRXL"):
            own = np.flatnonzero(condition == name)
            sets[f"BCR-XL, {name}, {kind}"] = gated(
                [parts[s] for s in own], [gates[s] for s in own], channels
            )
    values, labels, channels, sample = tools()[0].load("multicenter_cytof")
    rows = [sample == s for s in np.unique(sample)]
    parts, gates = [values[own].astype(np.float64) for own in rows], [labels[own] - 1 for own in rows]
    return sets | {"several centres": gated(parts, gates, channels)}


def gated(parts: Sequence[np.ndarray], gates: Sequence[np.ndarray], channels: Sequence[str]) -> SampleDraws:
    """Return counts and medians of samples, each with a gate for every event, -1 for none."""
    many = 1 + max(int(own.max()) for own in gates)
    medians = Medians(1, len(parts), many, len(channels))
    for s, (values, own) in enumerate(zip(parts, gates, strict=True)):
        medians.add(s, values[own >= 0], np.ones((own >= 0).sum()), [own[own >= 0]])
    return SampleDraws(
        counts=np.array([[np.bincount(own[own >= 0], minlength=many) for own in gates]]),
        medians=medians.values,
        samples=tuple(f"s{s}" for s in range(len(parts))),
        phenotypes=tuple(f"gate {p}" for p in range(many)),
        channels=tuple(channels),
        columns={},
        errors=medians.errors,
    )


def measure_null(quick: bool) -> None:
    """Divide real samples without effect in all ways, and count the divisions in which something is found.

    The results are written after each set.
    """
    rows = []
    for name, draws in real_sets().items():
        n = len(draws.samples)
        halves = [own for own in combinations(range(n), n // 2) if 0 in own][: 2 if quick else None]
        row: dict[str, object] = {"set": name, "divisions": len(halves)}
        listed: dict[str, list[int]] = {}
        small: dict[str, list[float]] = {}
        for half in halves:
            group = np.isin(np.arange(n), half).astype(float)
            own = replace(draws, columns={"group": ["b" if one else "a" for one in group]})
            # Half of the samples are b: "b - a" is the difference that every method tests.
            design = make_design(own.columns, own.samples, "~ group", ["b - a"])
            counted, measured = run_study(own, design, float(np.exp(LEAST)), with_expression=True).effects
            assert measured.measure == EXPRESSION
            medians = median_responses(own, design)[0]
            row["responses"] = medians.shape[1]
            x = np.column_stack([np.ones(n), group])
            share = (own.counts[0] + 0.5) / (own.counts[0].sum(axis=1, keepdims=True) + 1.0)
            p = stats.ttest_ind(medians[group == 1.0], medians[group == 0.0]).pvalue
            p_counts = stats.ttest_ind(special.logit(share)[group == 1.0], special.logit(share)[group == 0.0])
            for key, found in (
                ("dpmix", measured.found(RATE)),
                ("t test", stats.false_discovery_control(p) <= RATE),
                ("moderated t", moderated(medians, x)[0][0]),
                ("abundance, dpmix", counted.found(RATE)),
                ("abundance, t test", stats.false_discovery_control(p_counts.pvalue) <= RATE),
            ):
                listed.setdefault(key, []).append(int(found.sum()))
            for key, values in (("dpmix", measured.tails), ("t test", p)):
                small.setdefault(key, []).append(float((values < 0.01).mean()))
        row |= {
            key: {"any": int(np.sum(np.array(many) > 0)), "found": sum(many)} for key, many in listed.items()
        }
        row["below 0.01"] = {key: float(np.mean(shares)) for key, shares in small.items()}
        rows.append(row)
        print(row, flush=True)
        write_results(NULL, {"rows": rows}, quick=quick)


def rotate(draws: SampleDraws, number: int) -> dict[str, float]:
    """Return how often something is found in rotations of the medians of a set, and shares of small p."""
    n = len(draws.samples)
    group = np.arange(n) % 2.0
    own = replace(draws, columns={"group": ["b" if one else "a" for one in group]})
    medians, variances, _, _ = median_responses(
        own, make_design(own.columns, own.samples, "~ group", ["b - a"])
    )
    whole = ~np.isnan(medians).any(axis=0)
    medians = medians[:, whole]
    # A rotation mixes all samples, so that each has the mean variance of their measurements.
    variances = np.broadcast_to(variances[:, whole].mean(axis=0), medians.shape)
    mean, fixed, numbers = medians.mean(axis=0), (group - 0.5)[:, None], np.arange(medians.shape[1])
    columns = Predictors(fixed, np.zeros((n, 0)), np.zeros(0, np.int64), np.zeros((n, 0)))
    basis = np.linalg.svd(np.eye(n) - 1.0 / n)[0][:, : n - 1]
    counts: dict[str, float] = {"number": number, "dpmix": 0, "t test": 0, "moderated t": 0}
    small = []
    for seed in range(number):
        turn = stats.ortho_group.rvs(n - 1, random_state=np.random.default_rng(seed))
        turned = mean + basis @ turn @ (basis.T @ (medians - mean))
        made = fit(turned, variances, columns)
        (effects,) = adjust([expression(made, first_column(fixed), numbers, numbers)])
        p = stats.ttest_ind(turned[group == 1.0], turned[group == 0.0]).pvalue
        counts["dpmix"] += int(effects.found(RATE).any())
        counts["t test"] += int((stats.false_discovery_control(p) <= RATE).any())
        counts["moderated t"] += int(moderated(turned, np.column_stack([np.ones(n), group]))[0][0].any())
        small.append([(effects.tails < 0.01).mean(), (p < 0.01).mean()])
    shares = np.mean(small, axis=0)
    return counts | {"below 0.01, dpmix": float(shares[0]), "below 0.01, t test": float(shares[1])}


def measure_rotated(quick: bool) -> None:
    """Rotate the residuals of the real samples, and count the rotations in which something is found."""
    rows = []
    for name, draws in real_sets().items():
        rows.append({"set": name} | rotate(draws, 2 if quick else ROTATIONS))
        print(rows[-1], flush=True)
        write_results(ROTATED, {"rows": rows}, quick=quick)


def rotation_note() -> str:
    """Return in how many rotations something is found, for docs/benchmarks/associations.md."""
    rows = json.loads((FOLDER / f"{ROTATED}.json").read_text())["results"]["rows"]
    sums = {key: sum(row[key] for row in rows) for key in ("number", "dpmix", "t test", "moderated t")}
    dpmix, t = (np.mean([row[f"below 0.01, {key}"] for row in rows]) for key in ("dpmix", "t test"))
    return (
        f"Of {sums['number']} rotations, dpmix finds something in {sums['dpmix']}, t tests in\n"
        f"{sums['t test']}, moderated t tests in {sums['moderated t']}; p is below 0.01 in {dpmix:.1%}\n"
        f"of the responses (t {t:.1%}).\n"
    )


def null_table() -> str:
    """Return the table of real donors of docs/benchmarks/associations.md."""
    rows = json.loads((FOLDER / f"{NULL}.json").read_text())["results"]["rows"]
    keys = ("dpmix", "t test", "moderated t", "abundance, dpmix", "abundance, t test")
    lines = [
        "| samples | medians | divisions | dpmix | t | moderated t | p < 0.01, dpmix | t | "
        "abundance, dpmix | t |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in [*rows, None]:
        if row:
            cells = [row["set"], str(row["responses"]), str(row["divisions"])]
            counts = [str(row[key]["any"]) for key in keys]
            small = [f"{row['below 0.01'][key]:.1%}" for key in ("dpmix", "t test")]
        else:
            cells = ["all", "", str(sum(one["divisions"] for one in rows))]
            counts = [str(sum(one[key]["any"] for one in rows)) for key in keys]
            means = [np.mean([one["below 0.01"][key] for one in rows]) for key in ("dpmix", "t test")]
            small = [f"{mean:.1%}" for mean in means]
        lines.append(f"| {' | '.join([*cells, *counts[:3], *small, *counts[3:]])} |")
    return "\n".join(lines) + "\n"


def measure_panels(n: int, cells: list[int], quick: bool) -> None:
    """Measure cells of the simulated medians; the results are written after each, and keep the others."""
    kept = json.loads((FOLDER / f"{MEDIANS}.json").read_text())["results"]["rows"]
    for cell in cells:
        paired, donors, background, effect = PANELS[cell]
        panels = [Panel(paired, donors, background, effect, number) for number in range(n)]
        start = time.perf_counter()
        own = [panel_found(panel) for panel in panels]
        row: dict[str, object] = {
            "paired": paired,
            "donors": donors,
            "background": background,
            "effect": effect,
        }
        row["date"] = time.strftime("%Y-%m-%d")
        row["seconds"] = (time.perf_counter() - start) / n
        row["effective"] = min(points for _, points in own)
        for name, found in (
            ("dpmix", [one for one, _ in own]),
            ("moderated t", [moderated_t(p) for p in panels]),
        ):
            right = [
                f[0] & (p.truth != 0.0) & (np.sign(f[1]) == np.sign(p.truth))
                for p, f in zip(panels, found, strict=True)
            ]
            listed = [int(f[0].sum()) for f in found]
            row[name] = {
                "right": int(np.sum(right)),
                "wrong": sum(listed) - int(np.sum(right)),
                "false share": float(
                    np.mean([(m - r.sum()) / max(m, 1) for m, r in zip(listed, right, strict=True)])
                ),
                "on": float(
                    np.mean(np.concatenate([f[2][p.on] for p, f in zip(panels, found, strict=True)]))
                ),
                "off": float(
                    np.mean(np.concatenate([f[2][~p.on] for p, f in zip(panels, found, strict=True)]))
                ),
            }
        row["effects"] = sum(int((p.truth != 0.0).sum()) for p in panels)
        kept[cell] = row
        print(row, flush=True)
        write_results(MEDIANS, {"rows": kept}, quick=quick)


def donors_text(donors: int, paired: bool) -> str:
    return f"{donors}, paired" if paired else f"{donors} in each group"


def panel_table() -> str:
    """Return the table of medians of docs/benchmarks/associations.md."""
    rows = json.loads((FOLDER / f"{MEDIANS}.json").read_text())["results"]["rows"]
    lines = [
        "| donors | background | effect | found | t | false share | t | coverage, on | off |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        one, other = row["dpmix"], row["moderated t"]
        cells = [
            donors_text(row["donors"], row["paired"]),
            f"{row['background']:g}",
            f"{row['effect']:g}",
        ]
        cells += [f"{one['right']} of {row['effects']}", str(other["right"])] if row["effects"] else ["", ""]
        cells += [f"{m['false share']:.0%}" for m in (one, other)] + [
            f"{one[key]:.0%}" for key in ("on", "off")
        ]
        lines.append(f"| {' | '.join(cells)} |")
    right = [sum(row[name]["right"] for row in rows) for name in ("dpmix", "moderated t")]
    means = [
        np.mean([row[name][key] for row in rows])
        for name, key in (
            ("dpmix", "false share"),
            ("moderated t", "false share"),
            ("dpmix", "on"),
            ("dpmix", "off"),
        )
    ]
    cells = ["all", "", "", f"{right[0]} of {sum(row['effects'] for row in rows)}", f"{right[1]}"]
    lines.append(f"| {' | '.join(cells + [f'{mean:.1%}' for mean in means])} |")
    return "\n".join(lines) + "\n"


def power_note() -> str:
    """Return what the medians say of power, of cohorts without effects, and of intervals of the t test."""
    rows = json.loads((FOLDER / f"{MEDIANS}.json").read_text())["results"]["rows"]
    pairs = [(row["dpmix"]["right"], row["moderated t"]["right"]) for row in rows]
    none = [row for row in rows if not row["effect"]]
    false = [np.mean([row[name]["false share"] for row in none]) for name in ("dpmix", "moderated t")]
    fewer = [f"{own} instead of {other}" for own, other in pairs if own < other]
    unpaired = [row["moderated t"] for row in rows if not row["paired"]]
    on, off = (
        f"{min(row[key] for row in unpaired):.0%} to {max(row[key] for row in unpaired):.0%}"
        for key in ("on", "off")
    )
    return (
        f"dpmix finds fewer effects than the moderated t test in {len(fewer) or 'none'} of the rows"
        f"{': ' + ', '.join(fewer) if fewer else ''}.\nIn the {len(none)} rows without effects, it finds "
        f"something in {false[0]:.1%} of the cohorts, the t test in {false[1]:.1%}.\n"
        f"Without pairs, 90% intervals of the t test contain "
        f"{on} of the differences where\nresponses are on, and {off} where they are off.\n"
    )


def measure_weak(n: int, quick: bool) -> None:
    """Measure the power in the weak cells, with cohorts that the table does not have."""
    rows = []
    for cell in WEAK_CELLS:
        paired, donors, background, effect = PANELS[cell]
        counts = {name: np.zeros(2, np.int64) for name in ("dpmix", "moderated t")}
        shares: dict[str, list[float]] = {name: [] for name in counts}
        tails: dict[str, list[np.ndarray]] = {name: [] for name in counts}
        on, changed = [], []
        for number in range(32, 32 + n):  # the table has numbers 0 to 31
            panel = Panel(paired, donors, background, effect, number)
            effects, _ = panel_effects(panel)
            other, p = moderated(panel.medians, columns_of(panel))
            on.append(panel.on & (panel.truth == 0.0))
            changed.append(panel.truth != 0.0)
            for name, found, middle, own in (
                ("dpmix", effects.found(RATE), effects.intervals[0], effects.tails),
                ("moderated t", other[0], other[1], p),
            ):
                right = found & changed[-1] & (np.sign(middle) == np.sign(panel.truth))
                counts[name] += right.sum(), found.sum()
                shares[name].append((found.sum() - right.sum()) / max(found.sum(), 1))
                tails[name].append(own)
        row: dict[str, object] = {"donors": donors_text(donors, paired), "background": background}
        row |= {"cohorts": n, "effects": int(np.sum(changed))}
        for name, own_counts in counts.items():
            p = np.array(tails[name])
            limit = np.quantile(p[np.array(on)], SIZE)
            row[name] = {
                "right": int(own_counts[0]),
                "found": int(own_counts[1]),
                "false share": float(np.mean(shares[name])),
                "size": float((p[np.array(on)] < SIZE).mean()),
                "power": float((p[np.array(changed)] < limit).mean()),
            }
        rows.append(row)
        print(row, flush=True)
        write_results(WEAK, {"rows": rows}, quick=quick)


def weak_table() -> str:
    """Return the table of weak cells of docs/benchmarks/associations.md."""
    rows = json.loads((FOLDER / f"{WEAK}.json").read_text())["results"]["rows"]
    lines = [
        "| donors | background | effects | found | t | false share | t | on without effect, p < 0.01 | t | "
        "power where 1% of these pass | t |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        pair = row["dpmix"], row["moderated t"]
        cells = [row["donors"], f"{row['background']:g}", str(row["effects"])]
        cells += [str(one["right"]) for one in pair]
        cells += [f"{one[key]:.1%}" for key in ("false share", "size", "power") for one in pair]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def score(cohorts: list[Cohort], found: list[Found]) -> list[dict[str, object]]:
    """Return a row per size and fold: error rate, power, coverage, and what is found under no effect."""
    rows = []
    for size in SIZES:
        for fold in FOLDS:
            own = [
                (c, f) for c, f in zip(cohorts, found, strict=True) if (c.n_samples, c.fold) == (size, fold)
            ]
            if not own:
                continue
            right = [f[0] & (c.truth != 0.0) & (np.sign(f[1]) == np.sign(c.truth)) for c, f in own]
            listed = [int(f[0].sum()) for _, f in own]
            row: dict[str, object] = {"samples": size, "fold": fold, "cohorts": len(own)}
            row["false"] = sum(listed) - int(np.sum(right))
            row["found"] = sum(listed)
            row["fdr"] = float(
                np.mean([(n - r.sum()) / max(n, 1) for n, r in zip(listed, right, strict=True)])
            )
            if fold != 1.0:
                row["power"] = float(np.sum(right)) / sum(int((c.truth != 0.0).sum()) for c, _ in own)
            if own[0][1][2] is not None:
                row["coverage"] = float(np.mean([f[2] for _, f in own]))
            rows.append(row)
    return rows


def page() -> str:
    """Return the table of docs/benchmarks/associations.md."""
    record = json.loads((FOLDER / "associate.json").read_text())
    kinds = (("no effect", (1.0,)), ("1.5", (1.5,)), ("2", (2.0,)), ("3", (3.0,)))
    lines = [
        "| method | effect | cohorts | false of found | false discovery rate | power | coverage of 90% |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for name, result in record["results"].items():
        for kind, folds in kinds:
            rows = [row for row in result["rows"] if row["fold"] in folds]
            means = {key: [row[key] for row in rows if key in row] for key in ("fdr", "power", "coverage")}
            cells = [f"{np.mean(values):.0%}" if values else "" for values in means.values()]
            counted = [sum(row[key] for row in rows) for key in ("cohorts", "false", "found")]
            lines.append(
                f"| {name} | {kind} | {counted[0]} | {counted[1]} of {counted[2]} | {' | '.join(cells)} |"
            )
    return "\n".join(lines) + "\n"


def draw_power() -> None:
    """Draw docs/pictures/power.png from the results."""
    from matplotlib.figure import Figure

    record = json.loads((FOLDER / "associate.json").read_text())
    figure = Figure(figsize=(5.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for fold, colour in zip(FOLDS[1:], ("#0072b2", "#d55e00", "#009e73"), strict=True):
        rows = [row for row in record["results"]["dpmix"]["rows"] if row["fold"] == fold]
        sizes, power = [row["samples"] for row in rows], [100.0 * row["power"] for row in rows]
        axes.plot(sizes, power, "o-", color=colour)
        at = 1 if power[1] > 5.0 else 2  # at the axis, the label would cover the line
        axes.annotate(
            f"ratio {fold:g}",
            (sizes[at], power[at]),
            (8, -4),
            textcoords="offset points",
            va="top",
        )
    axes.set_xscale("log")
    axes.set_xticks(SIZES, [str(size) for size in SIZES])
    axes.minorticks_off()
    axes.set_xlim(5.0, 70.0)
    axes.set_ylim(0.0, 105.0)
    axes.set_xlabel("samples, both groups together")
    axes.set_ylabel("changed populations found, %")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURES / "power.png", dpi=150)


def measure_counts(n: int, rscript: str | None) -> dict[str, object]:
    """Return the results of each method for n cohorts of each size and fold."""
    cells = [(size, fold) for size in SIZES for fold in FOLDS]
    cohorts = [Cohort(size, fold, number) for number in range(n) for size, fold in cells]
    methods: dict[str, Callable[[Cohort], Found]] = {
        "dpmix": dpmix_found,
        "t test": t_test,
        "beta-binomial": beta_binomial,
    }
    results: dict[str, object] = {}
    if rscript:
        start = time.perf_counter()
        found, release = edger(cohorts, rscript)
        seconds_each = (time.perf_counter() - start) / len(cohorts)
        results["edgeR"] = {"rows": score(cohorts, found), "seconds": seconds_each, "version": release}
    else:
        results["edgeR"] = json.loads((FOLDER / "associate.json").read_text())["results"]["edgeR"]
    for name, method in methods.items():
        found, seconds = [], []
        for cohort in cohorts:
            start = time.perf_counter()
            found.append(method(cohort))
            seconds.append(time.perf_counter() - start)
        results[name] = {"rows": score(cohorts, found), "seconds": float(np.median(seconds))}
        print(f"{name}: {np.median(seconds):.3g} s for each cohort", flush=True)
    return results


def main() -> None:
    parser = plain_arguments(__doc__)
    parser.add_argument("--cohorts", type=int, default=2, help="cohorts of each size and fold")
    parser.add_argument("--panels", type=int, default=32, help="cohorts of each cell of the medians")
    parser.add_argument(
        "--cells", type=int, nargs="+", default=range(len(PANELS)), help="rows of the table, from 0"
    )
    parser.add_argument("--weak", type=int, default=256, help="cohorts of each weak cell")
    parser.add_argument(
        "--only", choices=("abundance", "expression", "weak", "null", "rotated"), help="measure one of them"
    )
    parser.add_argument("--rscript", help="program that runs R scripts, with edgeR")
    parser.add_argument(
        "--quick", action="store_true", help="a run of seconds that keeps the committed results"
    )
    parser.add_argument("what", nargs="?", choices=("measure", "figure"), default="measure")
    options = parser.parse_args()
    if options.what == "figure":
        draw_power()
        return
    if options.only in (None, "null") and REAL.is_dir():
        measure_null(options.quick)
    if options.only in (None, "rotated") and REAL.is_dir():
        measure_rotated(options.quick)
    if options.only in (None, "abundance"):
        results = measure_counts(1 if options.quick else options.cohorts, options.rscript)
        write_results("associate", results, quick=options.quick)
    if options.only in (None, "weak"):
        measure_weak(4 if options.quick else options.weak, options.quick)
    if options.only in (None, "expression"):
        measure_panels(2 if options.quick else options.panels, options.cells, options.quick)


if __name__ == "__main__":
    main()
