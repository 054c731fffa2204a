"""Draw the figures of docs/explanation into docs/explanation/figures.

    python docs/figures.py            # all of them
    python docs/figures.py tiles      # some, by name

Every number in them comes from dpmix itself, run on small simulated data with fixed seeds.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse, FancyArrowPatch, Rectangle
from scipy.special import entr, logsumexp
from scipy.stats import gamma as gamma_distribution
from scipy.stats import skewnorm
from threadpoolctl import threadpool_limits

from dpmix import open_run
from dpmix.config.schema import Config, ModelConfig
from dpmix.engines import exact
from dpmix.engines.cpu import CpuEngine, native_mixture
from dpmix.kernels.layout import Layout
from dpmix.model import gibbs, split_merge
from dpmix.model.mixture import (
    LOG_2PI,
    Array,
    Floats,
    Ints,
    Mixture,
    State,
    Stats,
    log_norms,
    mixture_from,
    mixture_of,
    whiteners_of,
)
from dpmix.model.prior import Prior
from dpmix.model.streams import Key, Stream
from dpmix.populations.draws import alignment, find
from dpmix.populations.events import proportions
from dpmix.populations.events.estimates import interval
from dpmix.report.coarseness import coarseness as coarseness_figure
from dpmix.report.drawing import STYLE
from dpmix.report.palette import colour as colour_of
from dpmix.report.palette import ink
from dpmix.runs import diagnostics, initialise
from dpmix.runs.coarseness import choose as choose_coarseness
from dpmix.runs.effective_size import r_hat
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.session import make_prior

FOLDER = Path(__file__).parent / "explanation" / "figures"
WEIGHT_FLOOR = 25.0  # the default of engine.weight_floor
INK, PALE = "#333333", "#c8c8c8"
DASHED = (0, (4, 3))


def float32_log_densities(events: Floats, mixture: Mixture) -> Floats:
    """Return log pi_j N(x_i | mu_j, Sigma_j) as the CPU engine's passes compute it, float32 [N, K]."""
    found = np.empty((len(events), len(mixture.means)), np.float32)
    parameters = native_mixture(mixture, events.shape[1])
    CpuEngine(events, threads=1)._native.log_densities(*parameters, events, found)
    return found


# -------------------------------------------------------------------------------------- coarsening.md


def coarseness() -> Figure:
    """The choice of the coarseness for 20,000 events of skewed populations."""
    events = skewed(np.random.default_rng(2), 20_000)
    config = Config.model_validate({"data": {"files": ["events.npy"]}, "model": {"coarseness": "auto"}})
    law = make_prior(config.model, ["a", "b", "c"])
    return coarseness_figure(choose_coarseness(config, events, None, law))


# ------------------------------------------------------------------------------------------- model.md


def prior() -> Figure:
    """Components drawn from priors that differ in one hyperparameter."""
    usual = {"gamma": 5.0, "nu": 10.0, "phi": 0.3}
    columns = {
        "gamma": (r"$\gamma$ = {}", (0.5, 20.0)),
        "nu": (r"$\nu$ = {}", (1.0, 100.0)),
        "phi": (r"$\Phi$ = {} I", (0.05, 1.0)),
    }
    figure, grid = panels(2, 3, 7.0, 4.9)
    for column, (name, (title, values)) in zip(grid.T, columns.items(), strict=True):
        for axes, value in zip(column, values, strict=True):
            given = usual | {name: value}
            law = Prior(np.zeros(2), given["gamma"], given["nu"], given["phi"] * np.eye(2), 1.0, 1.0)
            drawn = gibbs.draw_prior(law, 12, 1.0, Stream(5, 0, 0))
            for j in range(drawn.n_components):
                ellipse(axes, drawn.means[j], drawn.covariances[j], colour_of(j))
            square(axes, 5.5)
            axes.set_title(title.format(f"{value:g}"))
    return figure


def sticks() -> Figure:
    """Weights drawn from their prior, as pieces of a stick."""
    law = Prior(np.zeros(1), 1.0, 1.0, np.eye(1), 1.0, 1.0)
    figure, grid = panels(1, 3, 7.0, 2.0)
    for axes, alpha in zip(grid[0], (0.5, 2.0, 10.0), strict=True):
        for row in range(6):
            weights = gibbs.draw_prior(law, 128, alpha, Stream(1, row, 0)).weights
            colours = [colour_of(j) for j in range(len(weights))]
            before = np.cumsum(weights) - weights
            axes.barh([row] * len(weights), weights, left=before, height=0.72, color=colours, linewidth=0)
        axes.set_title(rf"$\alpha$ = {alpha:g}")
        axes.set_xlabel("weights, in the order of the sticks")
        axes.set_xlim(0.0, 1.0)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    return figure


def moves() -> Figure:
    """A chain that starts with all events in one component, with and without split-merge moves."""
    n_sweeps, n_groups = 150, 9
    random = np.random.default_rng(1)
    centres = np.column_stack((np.indices((3, 3)).reshape(2, -1).T * 5.0, random.normal(size=(n_groups, 6))))
    events = standardised(groups(random, centres, [1000] * n_groups))
    paths = [list(islice(chain(events, 32, from_one=True, split_merge_every=e), n_sweeps)) for e in (10, 0)]
    figure = new_figure(7.0, 4.6)
    grid = figure.subplot_mosaic("ABC;DDD", height_ratios=[1.3, 1.0])
    shown = {
        "A": (paths[0][0], "after one sweep"),
        "B": (paths[0][-1], f"after {n_sweeps}, with the moves"),
        "C": (paths[1][-1], f"after {n_sweeps}, without the moves"),
    }
    for place, (sweep, title) in shown.items():
        axes = grid[place]
        axes.plot(*events[::4, :2].T, ".", color="#b0b0b0", markersize=1.0, rasterized=True)
        for j in np.flatnonzero(sweep.state.weights > 0.005):
            ellipse(axes, sweep.state.means[j, :2], sweep.state.covariances[j, :2, :2], colour_of(0))
        square(axes, 2.0)
        axes.set_title(title)
    for path, colour, name in zip(paths, (colour_of(0), colour_of(1)), ("with", "without"), strict=True):
        held = [int((sweep.stats.counts > 0).sum()) for sweep in path]
        grid["D"].plot(range(1, n_sweeps + 1), held, color=colour, linewidth=1.2, label=f"{name} the moves")
    grid["D"].axhline(n_groups, color=INK, linewidth=0.7, linestyle=DASHED)
    grid["D"].set_ylim(0, None)
    grid["D"].set_xlabel("sweep (every tenth has a round of moves)")
    grid["D"].set_title("components that hold events (dashed: groups that there are)")
    grid["D"].legend(frameon=False, loc="lower right")
    return figure


# -------------------------------------------------------------------------------------- truncation.md


def truncation_bound() -> Figure:
    """Draw the bound on the error of truncation against K."""
    n_events = 100_000
    n_components = np.arange(2, 513)
    figure, ((axes,),) = panels(1, 1, 7.0, 3.0)
    for number, alpha in enumerate((1.0, 5.0, 20.0)):
        bound = [4.0 * beyond(int(K), alpha, n_events) for K in n_components]
        rough = 4.0 * n_events * np.exp(-(n_components - 1) / alpha)
        axes.plot(n_components, bound, color=colour_of(number), label=rf"$\alpha$ = {alpha:g}")
        axes.plot(n_components, rough, color=colour_of(number), linewidth=0.9, linestyle=DASHED)
    axes.axhline(2.0, color=INK, linewidth=0.7)
    axes.annotate("2: no distance is larger", (2, 2.0), (0, -10), textcoords="offset points")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(1e-8, 10.0)
    axes.set_xticks([2**k for k in range(1, 10)], [f"{2**k}" for k in range(1, 10)])
    axes.set_xlabel("truncation K")
    axes.set_title(f"bound on the distance of the priors of {n_events:,} events (dashed: approximation)")
    axes.legend(frameon=False, loc="lower left")
    return figure


def beyond(n_components: int, alpha: float, n_events: int) -> float:
    """Probability that some of N events needs more than the first K - 1 sticks, a priori.

    The sticks before leave R over, -log R being the sum of K - 1 exponential variates of rate alpha; an event
    stays within them with probability 1 - R.
    """
    logs = np.linspace(1e-6, 60.0 + 6.0 * n_components / alpha, 20_001)  # of 1 / R
    density = gamma_distribution.pdf(logs, n_components - 1, scale=1.0 / alpha)
    return float(np.trapezoid(density * -np.expm1(n_events * np.log1p(-np.exp(-logs))), logs))


def truncation_chosen() -> Figure:
    """Draw occupied components and held-out density of runs against K."""
    truncations = (4, 8, 16, 32, 64, 128)
    events = skewed(np.random.default_rng(3), 15_000)
    train, held_out = events[:10_000], events[10_000:]
    occupied, density, binds = [], [], []
    for K in truncations:
        kept = list(islice(chain(train, K), 200, 400))
        occupied.append([int((sweep.stats.counts > 0).sum()) for sweep in kept])
        density.append(predictive(held_out, [mixture_of(sweep.state) for sweep in kept[::20]]).mean())
        last = [sweep.state.weights[-1] for sweep in kept]
        binds.append(diagnostics.truncation_warning(np.array(last), occupied[-1], K) is not None)
    figure, ((left, right),) = panels(1, 2, 7.0, 2.9)
    colours = [colour_of(1 if bound else 0) for bound in binds]
    left.plot(truncations, truncations, color=INK, linewidth=0.7, linestyle=DASHED)
    left.annotate("all K", (32, 32), (-4, 2), textcoords="offset points", ha="right")
    left.vlines(truncations, [min(o) for o in occupied], [max(o) for o in occupied], colors=colours)
    left.scatter(truncations, [np.mean(o) for o in occupied], c=colours, s=22, zorder=3)
    left.set_title("occupied components: mean and range")
    left.set_yscale("log", base=2)
    left.set_yticks(truncations, [f"{K}" for K in truncations])
    right.plot(truncations, density, color=PALE, linewidth=0.9, zorder=1)
    right.scatter(truncations, density, c=colours, s=22, zorder=3)
    right.set_title("held-out log density of an event (nats)")
    for number, what in enumerate(("not warned of", "“the truncation binds”")):
        right.scatter([], [], color=colour_of(number), s=22, label=what)
    right.legend(frameon=False, loc="lower right")
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(truncations, [f"{K}" for K in truncations])
        axes.set_xlabel("truncation K")
    return figure


# --------------------------------------------------------------------------------- label-switching.md


N_CHAINS, N_DRAWS = 2, 300


@cache
def four_groups() -> tuple[Floats, list[State]]:
    """Events of four groups that overlap, and the draws of two chains, one after the other."""
    centres = np.array([[-3.0, 0.0], [-0.5, 0.0], [2.0, 0.0], [5.0, 0.0]])
    events = standardised(groups(np.random.default_rng(2), centres, [300, 260, 230, 200]))
    chains = [islice(chain(events, 12, number=c), 100, 100 + N_DRAWS) for c in range(N_CHAINS)]
    return events, [sweep.state for one in chains for sweep in one]


def switching() -> Figure:
    """Means of four components by their number, as drawn and aligned."""
    n_shown, reference = 4, N_DRAWS - 1
    events, states = four_groups()
    weights = np.array([state.weights for state in states])
    order = alignment.align(classified(events, states), weights, reference)
    heaviest = np.argsort(-weights[reference])[:n_shown]
    drawn = np.array([state.means[:n_shown, 0] for state in states])
    aligned = np.array([state.means[own[heaviest], 0] for state, own in zip(states, order, strict=True)])
    figure, grid = panels(2, 1, 7.0, 4.6)
    for axes, values, title in (
        (grid[0, 0], drawn, "components 1 to 4, by their number in each draw"),
        (grid[1, 0], aligned, "the same draws, numbered as one of them"),
    ):
        by_chain = values.reshape(N_CHAINS, N_DRAWS, n_shown)
        r_hats = [f"{r_hat(by_chain[..., k]):.2f}" for k in range(n_shown)]
        for k in range(n_shown):
            axes.plot(values[:, k], ".", markersize=2.2, color=colour_of(k), rasterized=True)
        axes.set_title(f"{title} (R-hat: {', '.join(r_hats)})")
        axes.axvline(N_DRAWS, color=INK, linewidth=0.7)
        axes.set_xlim(0, N_CHAINS * N_DRAWS)
        axes.set_ylim(-2.6, 2.6)
        axes.set_ylabel("mean in channel 1")
    grid[1, 0].set_xlabel("draws of chain 1, then of chain 2")
    return figure


def invariant() -> Figure:
    """Draw the average over draws of the density, and of means by their number."""
    events, states = four_groups()
    places = np.linspace(-2.6, 2.6, 300)
    densities = np.array([marginal(state, places) for state in states])
    averages = np.mean([state.means[:4, 0] for state in states], axis=0)
    figure, ((axes,),) = panels(1, 1, 7.0, 2.6)
    axes.hist(events[:, 0], bins=60, density=True, color="#e2e2e2")
    axes.plot(places, densities[::12].T, color=colour_of(0), linewidth=0.5, alpha=0.4)
    axes.plot(places, densities.mean(axis=0), color=INK, linewidth=1.4, label="mean density")
    axes.plot([], [], color=colour_of(0), linewidth=0.8, label="density of single draws")
    axes.plot(
        averages, np.zeros(4), "^", color=colour_of(1), clip_on=False, zorder=3, label="mean of means[j]"
    )
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("channel 1")
    axes.legend(frameon=False, loc="upper right")
    return figure


# ------------------------------------------------------------------------------------- uncertainty.md


def memberships() -> Figure:
    """Probability of a population along a line between two, draw by draw, and its entropy."""
    events = groups(np.random.default_rng(4), np.array([[-1.75, 0.0], [1.75, 0.0]]), [700, 300])
    places = np.linspace(-5.0, 5.0, 301)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        np.save(Path(folder) / "events.npy", events)
        settings = {
            "data": {
                "files": [str(Path(folder) / "events.npy")],
                "transform": {"default": {"method": "linear"}},
            },
            "model": {"components": 16},
            "mcmc": {"burn_in": 200, "draws": 100, "until": None},
            "engine": {"backend": "cpu", "threads": 1},
            "output": {"path": str(path)},
        }
        run_mcmc(Config.model_validate(settings))
        run = open_run(path)
        found = find.find_populations(run, lambda points: CpuEngine(points, threads=1), n_populations=2)
        line = np.column_stack((places, np.zeros_like(places)))
        scaled = (line - run.constants["channel_means"]) / run.constants["channel_sds"]
        engine = CpuEngine(np.ascontiguousarray(scaled, dtype=np.float32), threads=1)
        draws = np.array([shares[:, 0] for shares, _ in found.memberships(engine, 0, len(places))])
    mean = draws.mean(axis=0)
    figure, grid = panels(3, 1, 7.0, 4.8, height_ratios=[1.0, 1.6, 1.0])
    events_axes, shares_axes, entropy_axes = grid[:, 0]
    events_axes.hist(events[:, 0], bins=np.linspace(-5.0, 5.0, 61), color="#d4d4d4")
    events_axes.set_title(f"{len(events):,} events of two populations, 3.5 standard deviations apart")
    shares_axes.plot(places, draws.T, color=colour_of(0), linewidth=0.4, alpha=0.3)
    shares_axes.plot(places, mean, color=INK, linewidth=1.5)
    shares_axes.set_title(
        "probability of the larger one: each draw (blue), and their mean (black), which is reported"
    )
    entropy_axes.plot(places, entr(mean) + entr(1.0 - mean), color=colour_of(1))
    entropy_axes.axhline(math.log(2.0), color=INK, linewidth=0.7, linestyle=DASHED)
    entropy_axes.set_title("entropy of the mean (nats; dashed: log 2, the most that two can have)")
    entropy_axes.set_xlabel("channel 1")
    for axes in grid[:, 0]:
        axes.set_xlim(-5.0, 5.0)
        axes.set_ylim(0.0, None)
    return figure


def donors() -> Figure:
    """Intervals of a proportion: samples of one donor, and samples of many."""
    random = np.random.default_rng(6)
    n_samples, n_cells, mean = 12, 2_000, 0.05
    truths = (np.full(n_samples, mean), random.beta(mean * 60.0, (1.0 - mean) * 60.0, n_samples))
    figure, grid = panels(1, 2, 7.0, 2.9, sharey=True)
    titles = ("twelve samples of one donor", "one sample of each of twelve donors")
    for axes, truth, title in zip(grid[0], truths, titles, strict=True):
        own = random.binomial(n_cells, truth)
        counts = np.broadcast_to(np.column_stack((own, n_cells - own)), (1_000, n_samples, 2))
        centre, low, high = (part[:, 0] for part in interval(proportions.posterior(counts, seed=1)))
        numbers = np.arange(1, n_samples + 1)
        axes.vlines(numbers, 100.0 * low, 100.0 * high, color=colour_of(0), linewidth=2.0)
        axes.plot(numbers, 100.0 * centre, "o", color=colour_of(0), markersize=4.0)
        axes.plot(numbers, 100.0 * truth, "_", color=colour_of(1), markersize=9.0, markeredgewidth=1.6)
        axes.axhline(100.0 * mean, color=INK, linewidth=0.7, linestyle=DASHED)
        axes.set_title(title)
        axes.set_xlabel("sample")
        axes.set_xticks(numbers)
    grid[0, 0].set_ylim(0.0, None)
    grid[0, 0].set_ylabel("percent of the cells")
    return figure


# --------------------------------------------------------------------------------- reproducibility.md


def precision() -> Figure:
    """Error of log densities in float32 against the distance from the mean, in three ways."""
    dim, n_each = 14, 200
    random = np.random.default_rng(7)
    distances = np.logspace(-1.0, 4.0, 51)
    mean = random.normal(scale=1.5, size=dim)
    root = np.linalg.cholesky(random_covariance(random, dim))
    away = random.standard_normal((len(distances), n_each, dim))
    away *= distances[:, None, None] / np.linalg.norm(away, axis=2, keepdims=True)
    events = (mean + away @ root.T).reshape(-1, dim).astype(np.float32)
    whitener = whiteners_of((root @ root.T)[None])[0]
    mixture = Mixture(np.zeros(1), mean[None], whitener[None], log_norms(whitener[None]))
    squares = np.square((events.astype(np.float64) - mean) @ whitener.T).sum(axis=1)
    right = mixture.log_norms[0] - 0.5 * squares

    scaled, offset = (whitener * math.sqrt(0.5)).astype(np.float32), mixture.log_norms[0].astype(np.float32)
    shifted = np.square(events @ scaled.T - scaled @ mean.astype(np.float32)).sum(axis=1, dtype=np.float32)
    precision_matrix = (0.5 * whitener.T @ whitener).astype(np.float32)
    linear = (whitener.T @ whitener @ mean).astype(np.float32)
    square = np.float32(0.5 * mean @ whitener.T @ whitener @ mean)
    quadratic = (
        ((events @ precision_matrix) * events).sum(axis=1, dtype=np.float32) - events @ linear + square
    )
    engine = CpuEngine(events, threads=1)
    ways = {
        r"$x'Ax - 2b'x + c$": offset - quadratic,
        r"$Wx - b$": offset - shifted,
        r"$W(x - \mu)$": float32_log_densities(events, mixture)[:, 0],
        r"dpmix: $W(x - \mu)$, in float64 where far": engine.memberships(
            mixture, np.zeros(1, int), 0, len(events)
        )[1],
    }
    figure, ((axes,),) = panels(1, 1, 7.0, 3.4)
    for number, (name, values) in enumerate(ways.items()):
        error = np.abs(values.astype(np.float64) - right).reshape(len(distances), n_each)
        typical = np.sqrt(np.square(error).mean(axis=1))
        last = number == len(ways) - 1
        style = {"color": INK, "linestyle": DASHED} if last else {"color": colour_of(2 - number)}
        axes.plot(distances, np.maximum(typical, 1e-12), label=name, **style)
    far = math.sqrt(2.0 * 4.0e4)
    axes.axvline(far, color=PALE, linewidth=0.9)
    axes.annotate(f"{far:.0f}", (far, 1e-9), (3, 0), textcoords="offset points")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(1e-10, None)
    axes.set_xlabel("distance from the mean (standard deviations of the component)")
    axes.set_title(f"root mean square error of the log density (nats), {dim} channels")
    axes.legend(frameon=False, loc="upper left")
    return figure


def sums() -> Figure:
    """One sum, added in many orders: in float64 one number after the other, and by binned sums."""
    n_orders = 400
    random = np.random.default_rng(8)
    numbers = random.normal(size=2_000) * 10.0 ** random.uniform(-3.0, 3.0, 2_000)
    orders = np.array([random.permutation(numbers) for _ in range(n_orders)])
    state = exact.zeros(n_orders)
    for column in orders.T:
        exact.add(state, np.ascontiguousarray(column))
    true = math.fsum(numbers)
    unit = np.spacing(abs(true))
    plain = (orders.cumsum(axis=1)[:, -1] - true) / unit
    binned = (exact.values(state) - true) / unit
    figure, ((axes,),) = panels(1, 1, 7.0, 2.5)
    ends = np.arange(math.floor(plain.min()) - 0.5, math.ceil(plain.max()) + 1.5)
    axes.hist(plain, bins=ends, color=colour_of(1), label=f"one after the other: {len(set(plain))} results")
    axes.axvline(binned[0], color=colour_of(0), linewidth=1.8, label=f"binned: {len(set(binned))} result")
    axes.set_xlabel("error, in units of the last place of the sum")
    axes.set_title(f"sums of the same {len(numbers):,} numbers in {n_orders} orders")
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.legend(frameon=False, loc="upper left")
    return figure


def uniform() -> Figure:
    """From the names of an event and a sweep to a random number."""
    figure, axes = diagram(7.0, 2.3, (0.0, 70.0), (0.0, 23.0))
    for row, (names, what) in enumerate(
        (
            (("seed, low", "seed, high"), "key"),
            (("event, low", "event, high", "iteration", "chain"), "counter"),
        )
    ):
        top = 14.5 - 9.5 * row
        axes.text(1.0, top + 5.2, what, fontsize=8)
        for column, name in enumerate(names):
            box(axes, 1.0 + 7.5 * column, top, 7.0, 4.0, name, colour_of(row), size=6.5)
    arrow(axes, (17.0, 16.5), (35.0, 14.0))
    arrow(axes, (31.5, 7.0), (35.0, 9.5))
    box(axes, 35.5, 8.0, 9.5, 7.5, "Philox\n4x32-10", INK, size=8)
    arrow(axes, (45.5, 11.7), (48.5, 11.7))
    uses = (
        "word 0: the label",
        "word 1: launch, first scan",
        "word 2: launch, second scan",
        "word 3: the proposal",
    )
    for row, use in enumerate(uses):
        top = 17.3 - 5.0 * row
        box(axes, 49.0, top, 19.5, 4.0, use, colour_of(0 if row == 0 else 2), size=7)
    return figure


# ----------------------------------------------------------------------------------------- kernels.md


def rows() -> Figure:
    """How an event and a component lie in a device's memory."""
    layout = Layout(3)
    figure, axes = diagram(7.0, 2.6, (0.0, 70.0), (0.0, 26.0))
    width = 5.4
    axes.text(
        1.0, 24.0, "an event of three channels: PADDED_DIM = 4 floats, one load of 16 bytes", fontsize=8
    )
    for place, name in enumerate(("x₀", "x₁", "x₂", "0")):
        cell(axes, 1.0 + width * place, 18.5, width, name, colour_of(0) if name != "0" else None)
    axes.text(1.0, 14.0, f"a component: PACK_DIM = {layout.pack_dim} floats, by rows of W", fontsize=8)
    names = packed_names(layout)
    row = -1
    for place, name in enumerate(names):
        row += name.startswith("μ")
        kind = INK if name == "c" else None if name == "0" else colour_of(1 + row)
        cell(axes, 1.0 + width * place, 8.5, width, name, kind)
    for quad in range(layout.pack_dim // 4):
        left = 1.0 + 4 * width * quad
        axes.plot([left + 0.3, left + 4 * width - 0.3], [7.4, 7.4], color=INK, linewidth=0.9)
        axes.text(left + 2 * width, 4.6, "one load", fontsize=7, ha="center")
    wide = Layout(14)
    axes.text(
        1.0,
        0.8,
        f"with 14 channels: {wide.padded_dim} floats of an event, {wide.pack_dim} of a component",
        fontsize=8,
    )
    return figure


def packed_names(layout: Layout) -> list[str]:
    """Return the content of each place of a packed row, from `Layout.pack` of numbered parameters."""
    D = layout.n_channels
    entries = np.tril(1.0 + np.arange(D * D).reshape(D, D)) / math.sqrt(0.5)
    packed = layout.pack(np.array([-1.0]), 100.0 + np.arange(D)[None], entries[None])[0].round().astype(int)
    low = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")

    def name(code: int) -> str:
        if code <= 0:
            return "c" if code else "0"
        if code >= 100:
            return f"μ{code - 100}".translate(low)
        return "W{}{}".format(*divmod(code - 1, D)).translate(low)

    return [name(int(code)) for code in packed]


def shared() -> Figure:
    """Rows of components on their way from memory through shared memory to threads that hold events."""
    figure, axes = diagram(7.0, 3.1, (0.0, 70.0), (0.0, 31.0))
    axes.text(1.0, 28.5, "global memory:\nK packed rows", fontsize=8, va="center")
    axes.text(24.0, 28.5, "shared memory of a block:\n16 rows", fontsize=8, va="center")
    axes.text(47.0, 28.5, "128 threads, 4 events each\nin registers", fontsize=8, va="center")
    for row in range(12):
        held = 4 <= row < 8
        face = colour_of(1) if held else "#e6e6e6"
        axes.add_patch(Rectangle((1.0, 23.0 - 2.0 * row), 13.0, 1.6, facecolor=face, edgecolor="none"))
    for row in range(4):
        axes.add_patch(
            Rectangle((24.0, 19.0 - 4.0 * row), 13.0, 2.6, facecolor=colour_of(1), edgecolor="none")
        )
    arrow(axes, (14.6, 12.8), (23.2, 14.5))
    axes.text(18.8, 10.0, "once a block,\nby all threads", fontsize=7, ha="center", va="center")
    for thread in range(5):
        top = 21.0 - 4.4 * thread
        if thread == 3:
            axes.text(57.0, top + 1.4, "...", ha="center", va="center")
            continue
        axes.text(47.0, top + 1.4, f"thread {thread if thread < 3 else 127}", fontsize=7, va="center")
        for event in range(4):
            axes.add_patch(
                Rectangle((54.5 + 3.6 * event, top), 3.2, 2.8, facecolor=colour_of(0), edgecolor="none")
            )
        arrow(axes, (37.6, 12.0), (46.4, top + 1.4))
    axes.text(40.2, 3.0, "the same float\nto every thread", fontsize=7, ha="center", va="center")
    return figure


def tiles() -> Figure:
    """A label drawn in two levels: the tile by sums at the ends of tiles, then the component within it."""
    n_components, n_tiles = 64, 16
    events, mixture = overlapping(n_components, dim=3, scale=0.35)
    logs = float32_log_densities(events, mixture)[7].astype(np.float64)
    weights = np.exp(logs - logs.max()) * (logs - logs.max() > -WEIGHT_FLOOR)
    ends = np.cumsum(weights)
    size = n_components // n_tiles
    point = 0.7 * ends[-1]
    label = int(np.searchsorted(ends, point, "right"))
    tile = label // size
    figure, ((whole, part),) = panels(1, 2, 7.0, 3.0, width_ratios=[2.2, 1.0])
    at_ends = np.concatenate(([0.0], ends[size - 1 :: size]))
    for t in range(n_tiles):
        colour = colour_of(1) if t == tile else colour_of(0)
        whole.bar(size * t, at_ends[t + 1], width=size - 0.6, align="edge", color=colour, alpha=0.85)
    whole.axhline(point, color=INK, linewidth=0.9, linestyle=DASHED)
    whole.annotate(r"uniform $\times$ total", (0, point), (2, 3), textcoords="offset points")
    whole.set_title("kept while all components pass: 16 sums")
    whole.set_xlabel("component")
    inside = np.arange(tile * size, (tile + 1) * size)
    colours = [colour_of(1) if j == label else PALE for j in inside]
    part.bar(inside, weights[inside], bottom=ends[inside] - weights[inside], color=colours, width=0.85)
    part.axhline(point, color=INK, linewidth=0.9, linestyle=DASHED)
    part.set_xticks(inside)
    part.set_xlabel("component")
    part.set_title("that tile, evaluated again")
    for axes in (whole, part):
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    return figure


def pruning() -> Figure:
    """Draw the bounds on the components of one event after each stage of their whitening."""
    bounds, n_components = (0, 4, 7, 10, 14), 60
    events, mixture = overlapping(n_components, dim=14, scale=0.5)
    event = events[3].astype(np.float64)
    whitened = np.einsum("kij,kj->ki", mixture.whiteners, event - mixture.means)
    partial = np.cumsum(np.column_stack((np.zeros(n_components), 0.5 * np.square(whitened))), axis=1)
    known = (mixture.log_weights + mixture.log_norms)[:, None] - partial[:, bounds]  # [K, stages + 1]
    best = known[:, -1].max()
    line = best - WEIGHT_FLOOR
    figure, ((axes,),) = panels(1, 1, 7.0, 3.4)
    left = [n_components]
    for stage in range(1, len(bounds)):
        left.append(int((known[:, stage] > line).sum()))
    for of_component in known:
        gone = np.flatnonzero(of_component <= line)
        last = int(gone[0]) if len(gone) else len(bounds) - 1
        colour = PALE if len(gone) else colour_of(0)
        axes.plot(
            range(last + 1),
            of_component[: last + 1],
            color=colour,
            linewidth=0.9,
            zorder=1 if len(gone) else 2,
        )
        if len(gone):
            axes.plot(last, max(of_component[last], best - 118.0), "x", color=colour_of(1), markersize=3.5)
    axes.axhline(line, color=INK, linewidth=0.9, linestyle=DASHED)
    axes.annotate(f"{WEIGHT_FLOOR:g} nats below the best", (0, line), (2, 3), textcoords="offset points")
    names = [
        f"{bound} rows\n{count} of {n_components} left" for bound, count in zip(bounds, left, strict=True)
    ]
    axes.set_xticks(range(len(bounds)), names)
    axes.set_ylim(best - 120.0, None)
    axes.set_title("the most that the log density of one event can still be, of each component (14 channels)")
    return figure


# ------------------------------------------------------------------------------------------ simulation


class Sweep(NamedTuple):
    """Statistics of labels, and the state drawn given them."""

    stats: Stats
    state: State


def chain(
    events: Floats, n_components: int, *, number: int = 0, from_one: bool = False, split_merge_every: int = 10
) -> Iterator[Sweep]:
    """A chain without end, by the default prior, as `dpmix mcmc` makes it."""
    law = make_prior(ModelConfig(), [""] * events.shape[1])
    engine = CpuEngine(events, threads=1)
    state = initialise.from_kmeans(events, len(events), n_components, law, Stream(1, number, 0))
    mixture = mixture_of(state)
    if from_one:
        only = np.where(np.arange(n_components) == 0, 0.0, -np.inf)
        mixture = Mixture(only, mixture.means, mixture.whiteners, mixture.log_norms)
    while True:
        key = Key(1, number, state.iteration + 1)
        stats = engine.draw_labels(mixture, key)
        is_due = split_merge_every and key.iteration % split_merge_every == 0
        regroup = split_merge.round_of(engine.divide, key) if is_due else None
        state, _ = gibbs.sweep(state, stats, law, Stream(*key), regroup=regroup)
        mixture = mixture_of(state)
        yield Sweep(stats, state)


def classified(events: Floats, states: Sequence[State]) -> Ints:
    """The most probable component of each event in each state, int [T, N]."""
    engine = CpuEngine(events, threads=1)
    found = []
    for state in states:
        engine.expect_labels(mixture_of(state))
        found.append(engine.labels())
    return np.array(found)


def predictive(events: Floats, mixtures: Sequence[Mixture]) -> Array:
    """Log of the mean density over mixtures, float64 [N]."""
    engine = CpuEngine(events, threads=1)
    nowhere = np.zeros(len(mixtures[0].means), int)
    logs = [engine.memberships(mixture, nowhere, 0, len(events))[1] for mixture in mixtures]
    mean: Array = logsumexp(logs, axis=0) - math.log(len(logs))
    return mean


def marginal(state: State, places: Array) -> Array:
    """Density of the first channel."""
    variances = state.covariances[:, 0, 0]
    logs = -0.5 * (np.square(places[:, None] - state.means[:, 0]) / variances + np.log(variances) + LOG_2PI)
    density: Array = np.exp(logs) @ state.weights
    return density


def groups(random: np.random.Generator, centres: Array, sizes: Sequence[int]) -> Floats:
    """Events of standard normals about centres, float32 [N, D]."""
    parts = [c + random.standard_normal((n, len(c))) for c, n in zip(centres, sizes, strict=True)]
    return np.concatenate(parts).astype(np.float32)


def skewed(random: np.random.Generator, n_events: int) -> Floats:
    """Events of three skewed populations in three channels, standardised and shuffled."""
    centres = np.array([[0.0, 0.0, 0.0], [6.0, 1.0, 0.0], [1.0, 6.0, 2.0]])
    own = random.choice(3, n_events, p=[0.5, 0.3, 0.2])
    noise = (
        skewnorm.rvs(8.0, size=(n_events, 3), random_state=random) * np.array([1.0, 1.6, 2.2])[own][:, None]
    )
    return standardised(centres[own] + noise)


def standardised(events: Array | Floats) -> Floats:
    """Channels to mean 0 and standard deviation 1, float32."""
    return np.ascontiguousarray((events - events.mean(axis=0)) / events.std(axis=0), dtype=np.float32)


def random_covariance(random: np.random.Generator, dim: int) -> Array:
    factor = random.standard_normal((dim, dim + 4))
    return 0.1 * factor @ factor.T / (dim + 4)


def overlapping(n_components: int, dim: int, scale: float = 0.5) -> tuple[Floats, Mixture]:
    """Some events of a mixture whose components overlap, and the mixture."""
    random = np.random.default_rng(9)
    means = random.normal(scale=scale, size=(n_components, dim))
    covariances = np.array([random_covariance(random, dim) for _ in range(n_components)])
    weights = random.dirichlet(np.full(n_components, 2.0))
    events = means[:20] + random.standard_normal((20, dim)) * 0.3
    return events.astype(np.float32), mixture_from(np.log(weights), means, covariances)


# ------------------------------------------------------------------------------------------------ parts


def new_figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def panels(
    n_rows: int, n_columns: int, width: float, height: float, **options: object
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes, [rows, columns]."""
    figure = new_figure(width, height)
    ratios = {name: options.pop(name) for name in ("height_ratios", "width_ratios") if name in options}
    grid = figure.subplots(n_rows, n_columns, squeeze=False, gridspec_kw=ratios, **options)  # type: ignore[call-overload]
    return figure, grid


def ellipse(axes: Axes, mean: Array, covariance: Array, colour: str) -> None:
    """Around 90% of a bivariate normal."""
    spread, directions = np.linalg.eigh(covariance)
    height, width = 2.0 * np.sqrt(-2.0 * np.log(0.1) * spread)  # it contains 90% of a normal
    angle = np.arctan2(directions[1, 1], directions[0, 1])
    axes.add_patch(
        Ellipse(
            tuple(mean), width, height, angle=math.degrees(angle), fill=False, edgecolor=colour, linewidth=1.1
        )
    )


def square(axes: Axes, half: float) -> None:
    """Equal scales from -half to half, without ticks."""
    axes.set_xlim(-half, half)
    axes.set_ylim(-half, half)
    axes.set_aspect("equal")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(True)


def diagram(
    width: float, height: float, x: tuple[float, float], y: tuple[float, float]
) -> tuple[Figure, Axes]:
    """A figure to draw boxes in."""
    figure = new_figure(width, height)
    axes = figure.add_subplot()
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    axes.set_axis_off()
    return figure, axes


def box(
    axes: Axes, x: float, y: float, width: float, height: float, text: str, colour: str, size: float
) -> None:
    axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor="none"))
    place = x + width / 2, y + height / 2
    axes.text(*place, text, color=ink(colour), fontsize=size, ha="center", va="center")


def cell(axes: Axes, x: float, y: float, width: float, text: str, colour: str | None) -> None:
    """One number of a row; padding where there is no colour."""
    box(axes, x + 0.15, y, width - 0.3, 4.2, text, colour or "#e6e6e6", size=8.5)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=8, color=INK, linewidth=0.8))


FIGURES: dict[str, Callable[[], Figure]] = {
    draw.__name__.replace("_", "-"): draw
    for draw in (
        *(
            coarseness,
            prior,
            sticks,
            moves,
            truncation_bound,
            truncation_chosen,
            switching,
            invariant,
            memberships,
            donors,
        ),
        *(precision, sums, uniform, rows, shared, tiles, pruning),
    )
}


def main(names: Sequence[str]) -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with rc_context({**STYLE, "text.parse_math": True}), threadpool_limits(1):
        for name in names or FIGURES:
            path = FOLDER / f"{name}.png"
            FIGURES[name]().savefig(path, metadata={"Software": None})
            print(path)


if __name__ == "__main__":
    main(sys.argv[1:])
