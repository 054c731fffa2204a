"""Simulated gatings and runs for tests of figures and the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from dpmix.model.mixture import Hyperparameters, State
from dpmix.populations.events.phenotypes import QUANTILES
from dpmix.populations.events.rasters import Counter, grid
from dpmix.populations.gates.cards import BINS, Card, Plot
from dpmix.populations.gates.polygons import PolygonGate
from dpmix.populations.result import Gating, Map
from dpmix.populations.tree.tree import Tree
from dpmix.runs.coarseness import CoarsenessChoice, Curve
from dpmix.runs.layout import FileLayout, Record
from dpmix.runs.reader import Run, open_run
from dpmix.runs.verdict import Verdict
from dpmix.runs.writer import RunWriter

Array = np.ndarray


def make_gating(
    n_populations: int = 5,
    n_channels: int = 4,
    *,
    samples: tuple[str, ...] = ("a.fcs",),
    n_events: int = 4_000,
    draws: int = 40,
    parts: int = 3,
    kind: str = "mcmc",
    chains: int = 2,
    channels: tuple[str, ...] = (),
    empty: bool = False,
    seed: int = 1,
) -> Gating:
    """Make a gating of populations of 1 to `parts` normals each, on two levels of every channel.

    With `empty`, the last population has no events.
    """
    rng = np.random.default_rng(seed)
    channels = channels or tuple(f"CD{k + 1}" for k in range(n_channels))
    high = rng.random((n_populations, n_channels)) < 0.4
    for p in range(n_populations):  # no two alike
        high[p, : min(n_channels, 6)] ^= np.array([(p >> k) & 1 for k in range(min(n_channels, 6))], bool)
    sizes = np.sort(rng.dirichlet(np.full(n_populations, 0.7)))[::-1]
    sizes = (sizes + 2e-3) / (sizes + 2e-3).sum()

    components = np.repeat(np.arange(n_populations), rng.integers(1, parts + 1, n_populations))
    weights = sizes[components] * rng.uniform(0.5, 1.5, len(components))
    weights /= weights.sum()
    by_size = np.argsort(np.argsort(-np.bincount(components, weights)))
    components = by_size[components]
    means = 4.0 * high[components] + rng.normal(0.0, 0.35, (len(components), n_channels))
    turned = rng.normal(0.0, 0.12, (len(components), n_channels, n_channels))
    roots = 0.45 * (np.eye(n_channels) + turned)
    covariances = roots @ roots.transpose(0, 2, 1) + 0.05 * np.eye(n_channels)

    label = rng.choice(len(components), n_events, p=weights)
    factors = np.linalg.cholesky(covariances)[label]
    values = means[label] + np.einsum("nij,nj->ni", factors, rng.normal(size=(n_events, n_channels)))
    values = values.astype(np.float32)
    population = components[label]
    if empty:
        population = np.where(population == n_populations - 1, 0, population)
    sample = np.sort(rng.integers(0, len(samples), n_events))
    counts = np.zeros((len(samples), n_populations), np.int64)
    np.add.at(counts, (sample, population), 1)

    counter = Counter(grid(*np.quantile(values, (0.001, 0.999), axis=0)), n_populations)
    counter.add(values, population)
    quantiles = np.full((len(QUANTILES), n_populations, n_channels), np.nan)
    for p in np.unique(population):
        quantiles[:, p] = np.quantile(values[population == p], QUANTILES, axis=0)
    used = np.array([(chain, draw) for chain in range(chains) for draw in range(draws)])
    if kind == "bem":
        used, chains = np.zeros((1, 2), np.int64), 1
    proportions = np.stack([rng.dirichlet(row + 0.5, len(used)) for row in counts], axis=1)
    return Gating(
        run="run.h5",
        kind=kind,
        channels=channels,
        samples=samples,
        n_events=counts.sum(axis=1),
        n_chains=chains,
        draws=used,
        reference=0,
        pooled=np.array([0]),
        tree=make_tree(components, rng),
        modes=components,
        level=0.9,
        why="valleys that the events at them make certain",
        components=components,
        weights=weights,
        means=means,
        covariances=covariances,
        numbers=n_populations + rng.integers(-2, 3, len(used)) * (kind == "mcmc"),
        support=np.append(rng.uniform(0.8, 1.0, n_populations - 1), 0.4),
        agreement=np.full((chains, chains), 0.93),
        sizes=counts,
        proportions=proportions,
        mean_proportions=proportions.mean(axis=0),
        shape_ratios=np.linspace(0.7, 1.1, n_populations),
        overlaps=np.linspace(0.0, 0.2, n_populations),
        r_hat=np.full(n_populations, 1.0 if kind == "mcmc" else np.nan),
        ess=np.full(n_populations, 400.0 if kind == "mcmc" else np.nan),
        verdict=Verdict(
            kind,
            "population",
            chains,
            100 if kind == "mcmc" else 1,
            sizes,
            np.full(n_populations, 1.0 if kind == "mcmc" else np.nan),
            "",
        ),
        certainty=rng.uniform(0.8, 1.0, n_populations),
        n_implausible=rng.integers(0, 5, len(samples)),
        quantiles=quantiles,
        levels=np.array([[np.nan], [2.0], [np.nan]]) + np.zeros(n_channels),
        phenotypes=tuple(
            " ".join(f"{name}{'+' if up else '-'}" for name, up in zip(channels, row, strict=True))
            for row in high
        ),
        rasters=counter.rasters(),
    )


def with_map(gating: Gating, n_events: int = 1_000) -> Gating:
    """Add a map on which every population is an island."""
    rng = np.random.default_rng(3)
    populations = rng.choice(gating.n_populations, n_events, p=gating.sizes.sum(axis=0) / gating.sizes.sum())
    turn = 2.4 * populations
    islands = 12.0 * np.sqrt(populations + 0.5)[:, None] * np.stack((np.cos(turn), np.sin(turn)), axis=1)
    places = (islands + 4.0 * rng.normal(size=(n_events, 2))).astype(np.float32)
    values = rng.normal(size=(n_events, len(gating.channels))).astype(np.float32)
    return replace(gating, map=Map(places, populations, values))


def with_cards(gating: Gating) -> Gating:
    """Add a card with one square gate in the first and last channel to every population."""
    gate = PolygonGate(
        (0, len(gating.channels) - 1), np.array([[0.0, 0.0], [4.0, 0.0], [4.0, 4.0], [0.0, 4.0]])
    )
    events = np.random.default_rng(3).integers(0, 9, (BINS, BINS)).astype(float)
    card = Card((Plot(gate, events, events * (events > 5)),), 0.9, 0.8)
    return replace(gating, cards=(card,) * min(gating.n_populations, 60))


def make_choice() -> CoarsenessChoice:
    """Make the choice of 2,000 events among four values of the coarseness."""
    grid, fit = np.array([500.0, 1_000.0, 2_000.0, 5_000.0]), np.array([-4.0, -3.2, -3.0, -2.95])
    errors, components = np.array([0.01, 0.006, 0.004, 0.0]), np.array([10, 14, 22, 61])
    return CoarsenessChoice(2_000.0, True, Curve(grid, fit, errors, components))


def make_tree(components: Array, rng: np.random.Generator) -> Tree:
    """Make a tree with a mode per component; modes of a population merge below 0.9, populations above."""
    first = [int(np.flatnonzero(components == p)[0]) for p in range(components.max() + 1)]
    within = [(k, first[p]) for k, p in enumerate(components) if k != first[p]]
    between = [(first[p], first[int(rng.integers(0, p))]) for p in range(len(first) - 1, 0, -1)]
    low = np.sort(rng.uniform(0.001, 0.85, len(within)))
    levels = np.append(low, np.sort(0.95 * np.exp(rng.uniform(0, 4, len(between)))))
    merges = np.array([*within, *between], np.int64).reshape(-1, 2)
    points = rng.normal(size=(len(components), 2))
    return Tree(np.arange(len(components)), points, rng.normal(size=len(components)), merges, levels)


def make_run(
    path: Path,
    *,
    kind: str = "mcmc",
    chains: int = 2,
    draws: int = 40,
    burn_in: int = 20,
    n_components: int = 8,
    channels: tuple[str, ...] = ("CD1", "CD2"),
    committed: int | None = None,
    apart: float = 0.0,
    stick: float = 0.7,
    gating: Gating | None = None,
    choice: CoarsenessChoice | None = None,
) -> Run:
    """Make a run whose log posterior increases, then varies about a level that differs by `apart` per chain.

    With a gating, all draws have its weights. With a choice, the run chose its coarseness.
    """
    rng = np.random.default_rng(7)
    size, dim = n_components if gating is None else len(gating.weights), len(channels)
    sweeps = burn_in + draws + 1 if kind == "mcmc" else 31
    layout = FileLayout(
        kind=kind,
        chains=chains,
        draws=draws if kind == "mcmc" else 1,
        sweeps=sweeps,
        n_components=size,
        channels=channels,
        constants={
            "channel_means": (("channel",), np.zeros(dim)),
            "channel_sds": (("channel",), np.ones(dim)),
            **({} if choice is None else choice.constants),
        },
        attributes={
            "config": f"data: {{files: [a.fcs]}}\nmcmc: {{burn_in: {burn_in}}}\nseed: 5\n"
            f"model:\n  coarseness: {'2000.0' if choice is None else 'auto'}\n",
            "seed": 5,
            "engine": {"backend": "cpu", "threads": 2, "chosen": "auto: no CUDA"},
            "scaling": {},
            "data_hash": "ab12",
            "n_events": 4_000,
            **({} if choice is None else choice.attributes),
        },
    )
    sticks = np.full(size - 1, stick)
    if gating is not None:
        left = np.append(1.0, 1.0 - np.cumsum(gating.weights)[:-1])
        sticks = (gating.weights / left)[:-1]
    eyes = np.tile(np.eye(dim), (size, 1, 1))
    given = Hyperparameters(np.zeros(dim), 5.0, 2.0, np.eye(dim))

    def state(alpha: float) -> State:
        return State(0, alpha, np.log(sticks), np.log1p(-sticks), np.zeros((size, dim)), eyes, eyes, given)

    def record(sweep: int, chain: int) -> Record:
        value = -10_000.0 - 5_000.0 * np.exp(-sweep / 3.0) + rng.normal(0, 5.0) + apart * chain
        return Record(value - 1.0, value, int(rng.integers(5, 8)), float(rng.gamma(20.0, 0.1)), 0.02)

    made = draws if committed is None else committed
    with RunWriter.create(path, layout) as writer:
        if kind == "bem":
            for start in range(chains):
                for step in range(31 - 3 * start):
                    writer.write_sweep(start, step, record(step, start))
            writer.write_draw(0, [state(1.5)], [record(30, 0)])
            return open_run(path, transformed=True)
        for sweep in range(burn_in + 1 + made):
            records = [record(sweep, chain) for chain in range(chains)]
            for chain in range(chains):
                writer.write_sweep(chain, sweep, records[chain])
            if sweep > burn_in:
                writer.write_draw(sweep - burn_in - 1, [state(r.alpha) for r in records], records)
    return open_run(path, transformed=True)
