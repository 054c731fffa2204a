"""Compare dpmix with other tools: quality of the density and of gates, next to the seconds that they take.

    python benchmarks/peers.py                 # about 12 minutes; needs: pip install '.[peers]'
    python benchmarks/peers.py --quick         # less of everything, to build/: a check of the script
    python benchmarks/peers.py --only density  # or gates; other results stay as they were

1. Density. Every tool has the same standardised events, K and k-means start. Its score is the mean log
   density of held-out events, in nats per event, by its current weights, means and covariances. The clock
   stops for this evaluation and for the start. A tool has converged when it is within 0.01 nats of its own
   end for the first time. MCMC has two such curves: of the latest draw, and of the density averaged over
   the draws so far, which is the posterior predictive density.
2. Gates. Every tool clusters the same standardised events: seconds, mean F1 and adjusted Rand index, with
   the methods of gating.py. dpmix is run by its commands and defaults.

The simulated sets need nothing. The real ones are loaded as in gating.py, from ../shared, which is not part
of this project; without it they are left out. All tools have two cores. Figures and tables of
docs/benchmarks/peers.md are made from benchmarks/results/peers.json.
"""

from __future__ import annotations

import importlib
import os
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import clusterings
import gating
import labelled_runs
import numpy as np
from clusterings import Events, Ints
from mixtures import Parameters
from plots import COLOURS, panels, significant
from record import arguments, in_words, read_results, write_results
from scipy.optimize import linear_sum_assignment
from scipy.special import logsumexp
from threadpoolctl import threadpool_limits

from dpmix.config.data import DataConfig
from dpmix.config.schema import McmcConfig, ModelConfig
from dpmix.engines.cpu import CpuEngine
from dpmix.inputs import preprocess
from dpmix.inputs.simulate import simulation
from dpmix.model import bem, gibbs, split_merge
from dpmix.model.mixture import LOG_2PI, Array, State, mixture_of, no_events, whiteners_of
from dpmix.model.prior import Prior
from dpmix.model.streams import Key, Stream
from dpmix.runs.session import make_prior

THREADS = 2
SEED = 1
SHORTEST = 0.1  # seconds in the figure: results are rounded to it, and its axis has no 0
WITHIN = 0.01  # nats: how near to its own end a tool has converged
REAL_DENSITY = "flowsom_68983"
REAL_GATES = ("flowsom_68983", "hipc")


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    events: int = 100_000  # of the simulated set that densities are fitted to
    channels: int = 12
    components: int = 64
    iterations: int = 300  # of EM, at most
    seconds: float = 50.0  # of a tool's fit, at most
    burn_in: int = McmcConfig().burn_in
    draws: int = McmcConfig().draws
    cells: int = 50_000  # of the simulated set that is gated
    slow: tuple[str, ...] = ()  # methods that are left out
    real: bool = True


QUICK = Scale(4_000, 6, 12, 20, 3.0, 20, 20, 1_500, ("gmm_bic", "bgmm"), real=False)
HELD_OUT = 0.2  # of the events of a set


# ---------------------------------------------------------------------------------------- densities


class Sets(NamedTuple):
    """Events to fit and held out, float32 [N, D] and [M, D]; mean log density of the latter by the truth."""

    fitted: Events
    held_out: Events
    truth: float | None


def simulated(scale: Scale) -> Sets:
    """Events drawn from a mixture of normals, whose own density no tool can be expected to exceed."""
    n_events = round(scale.events / (1.0 - HELD_OUT))
    made = simulation.from_model(n_events, scale.channels, scale.components, seed=SEED)
    means, sds = made.events.mean(axis=0, dtype=float), made.events.std(axis=0, dtype=float)
    events = ((made.events - means) / sds).astype(np.float32)
    held = made.weights > 0
    truth = Parameters(
        made.weights[held], (made.means[held] - means) / sds, made.covariances[held] / np.outer(sds, sds)
    )
    held_out = events[scale.events :]
    return Sets(events[: scale.events], held_out, float(log_densities(truth, held_out).mean()))


def prepared(events: Events) -> Events:
    """Events as a run with the default config sees them."""
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "events.npy", events)
        return preprocess.prepare(DataConfig(files=["events.npy"]), Path(folder), seed=1).values


def real(name: str) -> Sets:
    """The first sample of a set, as a run with the default config sees it, a part of it held out."""
    events = prepared(next(gating.samples(name))[1])
    order = np.random.default_rng(SEED).permutation(len(events))
    held_out, fitted = np.split(order, [round(HELD_OUT * len(events))])
    return Sets(np.ascontiguousarray(events[fitted]), np.ascontiguousarray(events[held_out]), None)


def log_densities(mixture: Parameters, events: Events) -> Array:
    """log sum_k pi_k N(x | mu_k, Sigma_k) of each event, float64 [N], in float64 for all tools alike."""
    live = mixture.weights > 0
    whiteners = whiteners_of(mixture.covariances[live])
    means = mixture.means[live]
    norms = np.log(mixture.weights[live]) + np.log(np.einsum("kii->ki", whiteners)).sum(axis=1)
    logs = np.empty((len(whiteners), len(events)))
    for k, whitener in enumerate(whiteners):
        logs[k] = norms[k] - 0.5 * np.square((events - means[k]) @ whitener.T).sum(axis=1)
    return np.asarray(logsumexp(logs, axis=0) - 0.5 * events.shape[1] * LOG_2PI)


def _scikit_learn(model: Any, events: Events, labels: Ints) -> Iterator[Parameters]:
    """The loop of scikit-learn's fit, which says nothing between its iterations; from the same labels."""
    responsibilities = np.eye(model.n_components, dtype=events.dtype)[labels]
    model._check_parameters(events)
    model._initialize(events, responsibilities)
    while True:
        model._set_parameters(
            model._get_parameters()
        )  # sets weights_, which BayesianGaussianMixture's steps do not
        yield Parameters(model.weights_, model.means_, model.covariances_)
        log_likelihood, log_responsibilities = model._e_step(events)
        model._m_step(events, log_responsibilities)
        model._compute_lower_bound(log_responsibilities, log_likelihood)


def scikit_learn_gmm(events: Events, labels: Ints, n_components: int) -> Iterator[Parameters]:
    from sklearn.mixture import GaussianMixture

    return _scikit_learn(GaussianMixture(n_components), events, labels)


def scikit_learn_bgmm(events: Events, labels: Ints, n_components: int) -> Iterator[Parameters]:
    from sklearn.mixture import BayesianGaussianMixture

    process = "dirichlet_process"
    model = BayesianGaussianMixture(n_components=n_components, weight_concentration_prior_type=process)
    return _scikit_learn(model, events, labels)


def pytorch(events: Events, labels: Ints, n_components: int) -> Iterator[Parameters]:
    """Plain EM for full covariances in PyTorch."""
    import torch
    import torch_em

    torch.set_num_threads(THREADS)
    return torch_em.pytorch(events, labels, n_components)


def prior_of(dim: int) -> Prior:
    """The defaults of the config."""
    return make_prior(ModelConfig(), [f"channel {i}" for i in range(dim)])


def state_of(events: Events, labels: Ints, n_components: int, prior: Prior) -> State:
    """A state drawn given labels."""
    stats = no_events(n_components, events.shape[1])
    for j in np.unique(labels):
        own = events[labels == j].astype(np.float64)
        stats.counts[j], stats.sums[j], stats.scatters[j] = len(own), own.sum(axis=0), own.T @ own
    drawn = replace(prior, learned=frozenset())
    state = gibbs.draw_prior(drawn, n_components, 1.0, Stream(0, 0, 0))
    return gibbs.sweep(state, stats, drawn, Stream(0, 0, 0))[0]


def _parameters(state: State) -> Parameters:
    return Parameters(state.weights, state.means, state.covariances)


def dpmix_bem(events: Events, labels: Ints, n_components: int) -> Iterator[Parameters]:
    prior = prior_of(events.shape[1])
    engine = CpuEngine(events, threads=THREADS)
    state = state_of(events, labels, n_components, prior)
    while True:
        yield _parameters(state)
        state, _ = bem.step(state, engine.expect_labels(mixture_of(state)), prior)


def dpmix_mcmc(events: Events, labels: Ints, n_components: int) -> Iterator[Parameters]:
    """One chain with the default config's prior and moves."""
    prior = prior_of(events.shape[1])
    engine = CpuEngine(events, threads=THREADS)
    state = state_of(events, labels, n_components, prior)
    every = McmcConfig().split_merge
    order = None
    while True:
        yield _parameters(state)
        key = Key(SEED, 0, state.iteration + 1)
        stats = engine.draw_labels(mixture_of(state, order), key)
        regroup = split_merge.round_of(engine.divide, key) if key.iteration % every == 0 else None
        state, info = gibbs.sweep(state, stats, prior, Stream(*key), regroup=regroup)
        order = info.order


def bnpy(events: Events, labels: Ints, n_components: int) -> Iterator[Parameters]:
    raise ImportError(
        "bnpy 0.1.7 cannot be installed together with dpmix: it asks for exactly joblib 0.14.1, which no "
        "scikit-learn with a wheel for Python 3.11 accepts; without its pins it stops at numpy.float, which "
        "NumPy 1.24 removed"
    )


Climb = Callable[[Events, Ints, int], Iterator[Parameters]]


@dataclass(frozen=True)
class Fit:
    """A contender for a density: how it is shown, its function, the module that it needs and the distribution
    of that, threads of its linear algebra, its arithmetic."""

    title: str
    climb: Climb
    module: str
    distribution: str
    blas_threads: int = THREADS
    arithmetic: str = "float32"


OURS: Any = {
    "module": "dpmix",
    "distribution": "dpmix-cytometry",
    "blas_threads": 1,  # as in a run: the engine's threads are others
    "arithmetic": "float32 densities, float64 sums",
}
FITS = {
    "gmm": Fit("scikit-learn GMM", scikit_learn_gmm, "sklearn.mixture", "scikit-learn"),
    "bgmm": Fit("scikit-learn BGMM", scikit_learn_bgmm, "sklearn.mixture", "scikit-learn"),
    "torch": Fit("EM in PyTorch", pytorch, "torch", "torch"),
    "bnpy": Fit("bnpy", bnpy, "dpmix", "bnpy"),
    "bem": Fit("**dpmix** bem", dpmix_bem, **OURS),
    "mcmc": Fit("**dpmix** mcmc", dpmix_mcmc, **OURS),
}


def follow(fit: Fit, sets: Sets, labels: Ints, scale: Scale) -> dict[str, Any]:
    """Curves of a contender, held-out density against seconds, and what is read off them."""
    is_mcmc = fit.climb is dpmix_mcmc
    most = scale.burn_in + scale.draws if is_mcmc else scale.iterations
    every = 5 if is_mcmc else 1
    seconds, processor, taken = 0.0, 0.0, []
    curve: list[tuple[float, float]] = []
    averaged: list[tuple[float, float]] = []
    total = np.full(len(sets.held_out), -np.inf)
    importlib.import_module(fit.module)  # before the clock
    with threadpool_limits(fit.blas_threads, "blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's, of a fit that has not converged yet
        climb = fit.climb(sets.fitted, labels, scale.components)
        for iteration in range(most + 1):
            began, before = time.perf_counter(), time.process_time()
            mixture = next(climb)
            taken.append(time.perf_counter() - began)
            processor += time.process_time() - before
            seconds += taken[-1]
            last = iteration == most or (iteration > 0 and seconds > scale.seconds and not is_mcmc)
            if iteration < 10 or iteration % every == 0 or last:
                with threadpool_limits(THREADS, "blas"):
                    logs = log_densities(mixture, sets.held_out)
                curve.append((seconds, float(logs.mean())))
                if is_mcmc and iteration > scale.burn_in:
                    total = np.logaddexp(total, logs)
                    averaged.append((seconds, float((total - np.log(len(averaged) + 1)).mean())))
            if last:
                break
    found: dict[str, Any] = {
        "iterations": iteration,
        "seconds": round(seconds, 2),
        "processor seconds": round(processor, 2),
        "seconds per iteration": float(f"{np.median(taken[1:]):.3g}"),
        "to convergence": round(converged(curve), 3),
        "final": round(curve[-1][1], 4),
        "curve": rounded(curve),
    }
    if averaged:
        found |= {"averaged": round(averaged[-1][1], 4), "averaged curve": rounded(averaged)}
    return found | {"arithmetic": fit.arithmetic, "version": version(fit.distribution)}


def converged(curve: Sequence[Sequence[float]]) -> float:
    """Seconds until a curve is within `WITHIN` of its own end for the first time."""
    return next(seconds for seconds, value in curve if abs(value - curve[-1][1]) <= WITHIN)


def rounded(curve: list[tuple[float, float]]) -> list[list[float]]:
    """A curve with the digits that a reader can use."""
    return [[round(seconds, 3), round(value, 4)] for seconds, value in curve]


def density(scale: Scale) -> dict[str, Any]:
    """All contenders on all sets."""
    from sklearn.cluster import KMeans

    found: dict[str, Any] = {}
    for name, make in {
        "simulated": partial(simulated, scale),
        REAL_DENSITY: partial(real, REAL_DENSITY),
    }.items():
        if name != "simulated" and (reason := without_real(scale)):
            found[name] = {"reason": reason}
            continue
        sets = make()
        began = time.perf_counter()
        labels = (
            KMeans(scale.components, n_init=1, random_state=SEED).fit_predict(sets.fitted).astype(np.int64)
        )
        found[name] = {
            "events": list(sets.fitted.shape),
            "held out": len(sets.held_out),
            "components": scale.components,
            "truth": sets.truth,
            "k-means": round(time.perf_counter() - began, 2),
            "fits": {},
        }
        for fit, contender in FITS.items():
            found[name]["fits"][fit] = attempt(partial(follow, contender, sets, labels, scale))
            tell(name, fit, found[name]["fits"][fit])
    return found


# ---------------------------------------------------------------------------------------- gates


def gmm_by_bic(events: Events, gates: int, seed: int) -> Ints:
    """GaussianMixture with the number of components that has the lowest BIC, of at most 20,000 events."""
    from sklearn.mixture import GaussianMixture

    some = clusterings.subset(events, 20_000, seed)
    fitted = [GaussianMixture(k, random_state=seed).fit(some) for k in range(5, 45, 5)]
    return np.asarray(min(fitted, key=lambda model: float(model.bic(some))).predict(events))


GMM_BIC = clusterings.Method("GMM, BIC", "5, 10, ... 40 components by BIC; fitted to at most 20,000 events",
                        gmm_by_bic, "scikit-learn")  # fmt: skip
METHODS = {name: method for name, method in clusterings.METHODS.items() if name != "gmm"}
METHODS = {"gmm_bic": GMM_BIC, **METHODS}


def cells(n_events: int) -> tuple[Events, Ints]:
    """Standardised events of a simulated cytometer as dpmix reads its file, and their populations from 1."""
    made = simulation.cytometry_like(n_events, SEED)
    with tempfile.TemporaryDirectory() as folder:
        made.write(Path(folder) / "sample.fcs")
        events = preprocess.prepare(DataConfig(files=["sample.fcs"]), Path(folder), SEED).values
    return np.array(events), made.labels.astype(np.int64) + 1


def scores(gates: Ints, clusters: Ints) -> dict[str, float]:
    """Mean F1, gates and clusters matched one to one, and adjusted Rand index, of the gated events (> 0)."""
    from sklearn.metrics import adjusted_rand_score
    from sklearn.metrics.cluster import contingency_matrix

    kept = gates > 0
    table = contingency_matrix(gates[kept], clusters[kept])
    f1 = 2.0 * table / (table.sum(axis=1, keepdims=True) + table.sum(axis=0))
    return {
        "mean_f1": round(float(f1[linear_sum_assignment(-f1)].sum() / len(table)), 4),
        "ari": round(float(adjusted_rand_score(gates[kept], clusters[kept])), 4),
        "clusters": int(table.shape[1]),
    }


def gated(method: str, events: Events, channels: Sequence[str], gates: Ints) -> dict[str, Any]:
    """Seconds and scores of a method on a set; of dpmix, of both commands from beginning to end."""
    about = METHODS[method]
    cluster = about.cluster
    n_gates = len(np.unique(gates[gates > 0]))
    if cluster is not None and about.distribution != "scikit-learn":
        cluster(events[:1_000], n_gates, SEED)  # imports and compilation, before the clock
    with tempfile.TemporaryDirectory() as folder:
        began, before = time.perf_counter(), os.times()
        if cluster is None:
            labels, _ = labelled_runs.gated(events, channels, Path(folder), SEED)
        else:
            labels = cluster(events, n_gates, SEED)
        seconds, after = time.perf_counter() - began, os.times()
    processor = sum(after[:4]) - sum(before[:4])
    return {
        "seconds": round(seconds, 1),
        "processor seconds": round(processor, 1),
        **scores(gates, labels),
        "input given": about.given,
        "version": version(about.distribution),
    }


def gates(scale: Scale) -> dict[str, Any]:
    """All methods on all sets."""
    from sklearn.mixture import GaussianMixture  # noqa: F401 - before the clock

    found: dict[str, Any] = {}
    for name in ("simulated", *REAL_GATES):
        if name != "simulated" and (reason := without_real(scale)):
            found[name] = {"reason": reason}
            continue
        if name == "simulated":
            events, truth = cells(scale.cells)
            channels = tuple(f"channel_{k}" for k in range(events.shape[1]))
        else:
            _, values, truth, channels = next(gating.samples(name))
            events = gating.standardised(values)
        shape = {"events": list(events.shape), "gates": len(np.unique(truth[truth > 0]))}
        found[name] = shape | {"methods": {}}
        for method in METHODS:
            if method in scale.slow:
                found[name]["methods"][method] = {"reason": "left out of a quick run"}
                continue
            found[name]["methods"][method] = attempt(partial(gated, method, events, channels, truth))
            tell(name, method, found[name]["methods"][method])
    return found


# ---------------------------------------------------------------------------------------- measuring


def attempt(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the measurement, or the reason why it failed."""
    try:
        return measure()
    except ImportError as error:
        return {"reason": str(error)}
    except (RuntimeError, ValueError, MemoryError, np.linalg.LinAlgError) as error:
        return {"reason": f"{type(error).__name__}: {error}"}


def without_real(scale: Scale) -> str:
    """Why the real sets are left out; empty where they are not."""
    if not scale.real:
        return "left out of a quick run"
    return "" if gating.TOOLS.exists() else "../shared is missing: it is not part of this project"


def tell(name: str, contender: str, found: dict[str, Any]) -> None:
    print(name, contender, {key: value for key, value in found.items() if "curve" not in key}, flush=True)


# ---------------------------------------------------------------------------------------- showing


SECONDS = ("seconds per iteration", "seconds", "processor seconds")
SHOWN = {"mean_f1": ("mean F1", ".2f"), "ari": ("ARI", ".2f"), "seconds": ("seconds to populations", ",.1f")}


def table_density(name: str) -> str:
    """Markdown: every contender on a set, with what could not be run and why."""
    found = read_results("peers")["results"]["density"][name]
    if "reason" in found:
        return f"Not measured: {found['reason']}.\n"
    n_events, dim = found["events"]
    lines = [
        f"{n_events:,} events in {dim} channels, {found['held out']:,} held out, K = {found['components']}.",
        "",
        "| | held-out nats | converged at, s | as good as GMM at, s | s per iteration | iterations "
        "| s in all (of the processor) |",
        "| --- |" + " ---: |" * 6,
    ]
    if found["truth"] is not None:
        lines.append(f"| the truth | {found['truth']:.3f} | | | | | |")
    level = found["fits"]["gmm"]["final"] - WITHIN
    for fit, contender in FITS.items():
        row = found["fits"][fit]
        if "reason" in row:
            lines.append(f"| {contender.title} | not run \\* | | | | | |")
            continue
        each, seconds, of_processor = (significant(row[key]) for key in SECONDS)
        until, good = significant(converged(row["curve"])), reached(row["curve"], level)
        cells = f"{until} | {good} | {each} | {row['iterations']:,} | {seconds} ({of_processor})"
        lines.append(f"| {contender.title} | {row['final']:.3f} | {cells} |")
        if "averaged" in row:
            lines.append(f"| {contender.title}, averaged over draws | {row['averaged']:.3f} | | | | | |")
    reasons = [f"\\* {row['reason']}." for row in found["fits"].values() if "reason" in row]
    return "\n".join([*lines, "", *reasons]).rstrip() + "\n"


def reached(curve: list[list[float]], level: float) -> str:
    """Seconds until a curve has come to a level for the first time."""
    return next((significant(seconds) for seconds, value in curve if value >= level), "never")


def table_gates() -> str:
    """Markdown: seconds, mean F1 / ARI · clusters of every method on every set."""
    results = read_results("peers")["results"]["gates"]
    measured = {name: one for name, one in results.items() if "methods" in one}
    heads = [
        f"{name}: {one['events'][0]:,} x {one['events'][1]}, {one['gates']} populations"
        for name, one in measured.items()
    ]
    lines = [f"| | input given | {' | '.join(heads)} |", "| --- " * (len(heads) + 2) + "|"]
    for method, about in METHODS.items():
        rows = [one["methods"][method] for one in measured.values()]
        lines.append(f"| {about.title} | {about.given} | {' | '.join(map(_gates_cell, rows))} |")
    missing = [f"{name}: {one['reason']}." for name, one in results.items() if "methods" not in one]
    return "\n".join([*lines, "", *missing]).rstrip() + "\n"


def _gates_cell(row: dict[str, Any]) -> str:
    if "reason" in row:
        return f"not run: {row['reason']}"
    seconds = f"{brief(row['seconds'])} s ({brief(row['processor seconds'])} s)"
    return f"{seconds}<br>{row['mean_f1']:.2f} / {row['ari']:.2f} · {row['clusters']}"


def brief(seconds: float) -> str:
    """Seconds to two digits; they are recorded to a tenth."""
    return significant(seconds, 2) if seconds else "under 0.1"


def headline() -> str:
    """Markdown for the README: every method on the seven gated sets, and its seconds on the simulated one."""
    seven = gating.over_seeds(gating.earlier())
    simulated = read_results("peers")["results"]["gates"]["simulated"]
    n_events, dim = simulated["events"]
    means = {
        method: [gating.mean_over_sets(rows)[key] for key in ("mean_f1", "ari")]
        for method, rows in seven.items()
        if method in METHODS
    }
    lines = [
        f"| | input given | mean F1 / ARI, seven gated sets | time for {n_events:,} events, {dim} channels |",
        "| --- | --- | ---: | ---: |",
    ]
    for method, (f1, ari) in sorted(means.items(), key=lambda item: -item[1][0]):
        about, seconds = METHODS[method], brief(simulated["methods"][method]["seconds"])
        lines.append(f"| {about.title} | {about.given} | {f1:.2f} / {ari:.2f} | {seconds} s |")
    record = read_results("peers")
    sources = (
        f"Time: {in_words(record['machine'])}, {record['date'][:10]}: "
        "[peers.json](benchmarks/results/peers.json), [versions](docs/benchmarks/peers.md). "
        "Agreement, with dates: [gating.json](benchmarks/results/gating.json)."
    )
    return "\n".join([*lines, "", textwrap.fill(sources, 115, break_on_hyphens=False)]) + "\n"


def table_seven() -> str:
    """Markdown: the table of gating.py, from its own results."""
    return gating.table(gating.over_seeds(gating.earlier())) + "\n"


def table_behind() -> str:
    """Markdown: wherever another contender is ahead of dpmix, from peers.json and gating.json."""
    results = read_results("peers")["results"]
    lines = ["| where | the best | dpmix |", "| --- | --- | --- |"]
    titles = {name: method.title for name, method in (clusterings.METHODS | METHODS).items()}
    for name, one in results["density"].items():
        rows = {fit: row for fit, row in one.get("fits", {}).items() if "reason" not in row}
        values = {fit: row.get("averaged", row["final"]) for fit, row in rows.items()}
        values["dpmix"] = max(values.pop(fit) for fit in ("bem", "mcmc")) if rows else 0.0
        known = {fit: contender.title for fit, contender in FITS.items()}
        lines += _behind(f"held-out nats per event, {name}", values, known, ".3f")
    for name, one in results["gates"].items():
        rows = {method: row for method, row in one.get("methods", {}).items() if "reason" not in row}
        for key, (what, digits) in SHOWN.items():
            values = {method: row[key] for method, row in rows.items()}
            lines += _behind(f"{what}, {name}", values, titles, digits, least=key == "seconds")
    seven = gating.over_seeds(gating.earlier())
    for name in gating.SETS:
        for key in ("mean_f1", "ari"):
            others = {method: rows[name] for method, rows in seven.items() if name in rows}
            values = {method: row[key] for method, row in others.items()}
            lines += _behind(f"{SHOWN[key][0]}, {name} of the gated sets", values, titles, SHOWN[key][1])
    return "\n".join(lines) + "\n"


def _behind(
    where: str, values: dict[str, float], titles: dict[str, str], digits: str, *, least: bool = False
) -> list[str]:
    """A row where dpmix is not the best to the digits shown, none where it is."""
    best = (min if least else max)(values, key=values.__getitem__, default="dpmix")
    if "dpmix" not in values or f"{values[best]:{digits}}" == f"{values['dpmix']:{digits}}":
        return []
    shown = f"{values[best]:{digits}}" if values[best] else "under 0.1"
    return [f"| {where} | {titles[best]}: {shown} | {values['dpmix']:{digits}} |"]


def draw(results: dict[str, Any], *, quick: bool) -> None:
    """The pictures of docs/benchmarks/peers.md."""
    draw_density({name: one for name, one in results["density"].items() if "fits" in one}, quick)
    draw_gates({name: one for name, one in results["gates"].items() if "methods" in one}, quick)


def draw_density(sets: dict[str, Any], quick: bool) -> None:
    """Held-out density against seconds."""
    with panels("peers-density", 1, len(sets), height=4.3, quick=quick) as axes:
        for ax, (name, one) in zip(axes[0], sets.items(), strict=True):
            ends = []
            for (fit, contender), colour in zip(FITS.items(), COLOURS, strict=False):
                row = one["fits"][fit]
                title = contender.title.replace("*", "")
                for key, label, line in (
                    ("curve", title, "-"),
                    ("averaged curve", f"{title}, averaged", ":"),
                ):
                    if key in row:
                        seconds, values = np.transpose(row[key])
                        width = 2.4 if title.startswith("dpmix") else 1.4
                        ax.plot(seconds, values, line, color=colour, linewidth=width, label=label)
                        ends += [values[-1], values[len(values) // 20]]
            if one["truth"] is not None:
                ax.axhline(one["truth"], color="#111111", linewidth=0.8, linestyle="--", label="the truth")
                ends.append(one["truth"])
            low, high = min(ends), max(ends)
            ax.set_ylim(low - 0.1 * (high - low), high + 0.1 * (high - low))
            ax.set_xscale("log")
            ax.set_title(f"{name}: {one['events'][0]:,} x {one['events'][1]}")
            ax.set_xlabel("seconds")
            ax.grid(color="#dddddd", linewidth=0.5)
        axes[0, 0].set_ylabel("held-out log density, nats per event")
        _legend(axes[0, 0], columns=2)


def draw_gates(sets: dict[str, Any], quick: bool) -> None:
    """Mean F1 against seconds."""
    with panels("peers-gates", 1, len(sets), height=3.8, quick=quick) as axes:
        for ax, (name, one) in zip(axes[0], sets.items(), strict=True):
            for (method, about), colour in zip(METHODS.items(), COLOURS, strict=False):
                row = one["methods"][method]
                if "reason" not in row:
                    marker = "D" if method == "dpmix" else "o"
                    place = max(row["seconds"], SHORTEST), row["mean_f1"]
                    ax.plot(*place, marker, color=colour, label=about.title.replace("*", ""), markersize=7)
            ax.set_xscale("log")
            ax.set_ylim(0.0, 1.02)
            ax.set_title(f"{name}\n{one['events'][0]:,} x {one['events'][1]}")
            ax.set_xlabel(f"seconds (at least {SHORTEST:g})")
            ax.grid(color="#dddddd", linewidth=0.5)
        axes[0, 0].set_ylabel("mean F1")
        _legend(axes[0, 0], columns=4)


def _legend(ax: Any, columns: int) -> None:
    """One legend for all panels, below them."""
    ax.figure.legend(
        *ax.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False
    )


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--only", choices=["density", "gates"], help="measure one part, keep the other")
    asked = parser.parse_args()
    scale = QUICK if asked.quick else Scale()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
    results = read_results("peers", quick=asked.quick)["results"] if asked.only else {}
    with threadpool_limits(THREADS):
        for part, measure in {"density": density, "gates": gates}.items():
            if asked.only in (None, part):
                results[part] = measure(scale)
    write_results("peers", results, quick=asked.quick)
    draw(results, quick=asked.quick)


if __name__ == "__main__":
    main()
