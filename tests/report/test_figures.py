"""Figures: their content and their files."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from gatings import make_choice, make_gating, make_run, with_map
from matplotlib.markers import TICKDOWN, TICKLEFT
from scipy import stats

from dpmix.errors import DataError
from dpmix.inputs.transforms import Transform
from dpmix.model.mixture import Array
from dpmix.populations.events.rasters import Counter, grid
from dpmix.populations.result import Gating, Map
from dpmix.populations.tree.tree import Tree
from dpmix.report import (
    biaxial,
    coarseness,
    decades,
    dendrogram,
    drawing,
    embedding,
    figures,
    heatmap,
    labels,
    pairs,
    palette,
    traces,
)
from dpmix.runs.diagnostics import convergence
from dpmix.system import console

pytestmark = pytest.mark.usefixtures("real_figures")

NAMES = {
    f"{name}{suffix}"
    for name in ("heatmap", "pairs", "proportions", "tree", "traces")
    for suffix in (".png", ".pdf")
}

# Colour vision of protanopes, deuteranopes and tritanopes, severity 1:
# Machado, Oliveira and Fernandes (2009).
SIGHTS = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900],
    ],
}  # fmt: skip


def linear(colours: tuple[str, ...]) -> Array:
    values = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colours])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def cielab(rgb: Array) -> Array:
    """Convert to CIE 1976 L*a*b*, D65; the palette was chosen in another space."""
    to_xyz = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    xyz = np.clip(rgb, 0, 1) @ np.transpose(to_xyz) / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > (6 / 29) ** 3, np.cbrt(xyz), xyz / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack((116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])), axis=1)


def nearest(colours: tuple[str, ...], sight: str) -> float:
    lab = cielab(linear(colours) @ np.transpose(SIGHTS[sight]))
    return min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(lab, 2))


@pytest.mark.parametrize("sight", SIGHTS)
def test_the_colours_of_the_largest_populations_differ_in_every_sight(sight: str) -> None:
    assert nearest(palette.PALETTE[:8], sight) > 12
    assert len(set(palette.PALETTE)) == 60
    assert nearest(palette.PALETTE, sight) > 1.5


def test_a_common_palette_would_fail_that() -> None:
    tab10 = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f")
    assert min(nearest(tab10, sight) for sight in SIGHTS) < 12


def test_numbers_on_the_colours_can_be_read() -> None:
    for colour in palette.PALETTE:
        light = float(linear((colour,))[0] @ [0.2126, 0.7152, 0.0722])
        text = 0.0 if palette.ink(colour) == "#000000" else 1.0
        assert (max(light, text) + 0.05) / (min(light, text) + 0.05) >= 4.5  # WCAG 2.1, AA


def test_names_are_shortened_to_their_first_markers() -> None:
    gating = make_gating(2, 4, channels=("CD3", "CD45RA", "TNFa", "HLA-DR"))
    full = "TNFa higher, CD3+ CD45RA- HLA-DR+"
    named = replace(gating, phenotypes=(full, "CD3-"))
    assert labels.phenotype(named, 0, 60) == full
    assert labels.phenotype(named, 0, 22) == "TNFa higher, CD3+ …"
    assert labels.phenotype(named, 0, 5) == "TN…R+"
    assert labels.phenotype(named, 1, 15) == "CD3-"
    assert labels.label(named, 0) == f"1 {full}"
    assert labels.shortened("abcdefghij", 5) == "ab…ij"
    assert len(labels.shortened("x" * 50, 20)) == 20


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0, "0.0%"),
        (1.0, "100.0%"),
        (0.4237, "42.4%"),
        (0.0123, "1.2%"),
        (0.00456, "0.46%"),
        (2e-5, "<0.01%"),
    ],
)
def test_shares_have_few_digits(share: float, text: str) -> None:
    assert console.percent(share) == text


@pytest.mark.parametrize(
    ("low", "high", "places"),
    [
        (0.004, 0.6, [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5]),
        (1e-5, 0.5, [1e-5, 1e-4, 1e-3, 1e-2, 1e-1]),
        (0.22, 0.45, [0.3, 0.4]),
        (0.7, 1.0, [0.7, 0.8, 0.9, 1.0]),
        (0.02, 1.6e308, [10.0**power for power in range(-1, 309)]),
    ],
)
def test_logarithmic_axes_have_ticks(low: float, high: float, places: list[float]) -> None:
    assert labels.ticks(np.float64(low), np.float64(high)) == pytest.approx(places)


def test_moments_are_those_of_a_sample_of_the_mixture() -> None:
    gating = make_gating(3, 3)
    means, covariances = pairs.moments(gating)
    rng = np.random.default_rng(2)
    for p in range(3):
        own = np.flatnonzero(gating.components == p)
        label = rng.choice(own, 200_000, p=gating.weights[own] / gating.weights[own].sum())
        roots = np.linalg.cholesky(gating.covariances)[label]
        drawn = gating.means[label] + np.einsum("nij,nj->ni", roots, rng.normal(size=(200_000, 3)))
        np.testing.assert_allclose(means[p], drawn.mean(axis=0), atol=0.02)
        np.testing.assert_allclose(covariances[p], np.cov(drawn.T), atol=0.03)


def test_separation_is_one_minus_the_bhattacharyya_coefficient() -> None:
    gating = make_gating(3, 3)
    means, covariances = pairs.moments(gating)
    got = pairs.separation(gating, gating.rasters.pairs)
    side = np.linspace(-6, 11, 500)
    places = np.stack(np.meshgrid(side, side), axis=-1)
    for pair, place in enumerate(gating.rasters.pairs):
        p = [
            stats.multivariate_normal(means[k][place], covariances[k][np.ix_(place, place)]).pdf(places)
            for k in range(3)
        ]
        for two, (a, b) in enumerate(itertools.combinations(range(3), 2)):
            overlap = np.sqrt(p[a] * p[b]).sum() * (side[1] - side[0]) ** 2
            assert got[pair, two] == pytest.approx(1 - overlap, abs=1e-4)


def blobs(centres: Array, n: int = 500) -> Gating:
    """Make a gating of populations around given centres."""
    centres = np.asarray(centres, float)
    n_populations, n_channels = centres.shape
    rng = np.random.default_rng(1)
    population = np.repeat(np.arange(n_populations), n)
    values = centres[population] + 0.3 * rng.normal(size=(len(population), n_channels))
    counter = Counter(grid(values.min(axis=0), values.max(axis=0)), n_populations)
    counter.add(values, population)
    return replace(
        make_gating(n_populations, n_channels, parts=1),
        means=centres,
        covariances=np.tile(0.09 * np.eye(n_channels), (n_populations, 1, 1)),
        weights=np.full(n_populations, 1 / n_populations),
        components=np.arange(n_populations),
        quantiles=np.tile(centres, (5, 1, 1)),
        rasters=counter.rasters(),
    )


def test_the_chosen_pairs_separate_all_and_omit_useless_channels() -> None:
    # Channels 0 and 1 separate populations 0 and 1, channels 3 and 4 separate 2 and 3, channel 2 none.
    gating = blobs([[0, 0, 0, 0, 0], [5, 5, 0, 0, 0], [0, 5, 0, 5, 0], [0, 5, 0, 0, 5]])
    chosen = pairs.separating_pairs(gating)
    channels = {int(c) for pair in chosen for c in gating.rasters.pairs[pair]}
    assert 2 not in channels
    apart = pairs.separation(gating, gating.rasters.pairs[chosen]).max(axis=0)
    assert (apart > 0.99).all()
    assert 1 <= len(chosen) <= 6
    assert len(set(chosen)) == len(chosen)


def test_one_population_and_one_channel_have_pairs_too() -> None:
    single = blobs([[0.0, 1.0, 2.0]])
    wide = replace(single, covariances=np.diag([0.1, 5.0, 3.0])[None])
    assert single.rasters.pairs[pairs.separating_pairs(wide)].tolist() == [[1, 2]]
    assert pairs.separating_pairs(make_gating(3, 1)) == []


def test_a_begun_row_of_pairs_is_filled() -> None:
    apart = np.zeros((8, 3))
    apart[[0, 1], [0, 1]] = 1.0
    apart[2:] = 0.001
    assert len(pairs.choose_pairs(apart, np.full(3, 1 / 3), 6)) == 3
    assert len(pairs.choose_pairs(apart, np.full(3, 1 / 3), 2)) == 2
    apart[1:] = 0.0
    assert pairs.choose_pairs(apart, np.full(3, 1 / 3), 6) == [0], "no other pair separates anything"


def test_neighbours_are_the_nearest_and_differ_in_their_marker() -> None:
    gating = blobs([[0, 0], [5, 5], [0, 1], [5, 9]])
    quantiles = gating.quantiles.copy()
    quantiles[1], quantiles[3] = quantiles[2] - 0.2, quantiles[2] + 0.2
    near = pairs.neighbours(replace(gating, quantiles=quantiles))
    assert near[0][0] == (2, 1, True)
    assert near[3][0] == (1, 1, False)
    quantiles[:, 2] = np.nan
    without = pairs.neighbours(replace(gating, quantiles=quantiles))
    assert without[2] == []
    assert all(q != 2 for own in without for q, _, _ in own)


def test_samples_lose_what_all_their_names_share() -> None:
    named = ["PBMC_patient1_Ref.fcs", "PBMC_patient2_BCR.fcs"]
    assert labels.short_samples(named) == [
        "patient1_Ref",
        "patient2_BCR",
    ]
    assert labels.short_samples(["a.fcs"]) == ["a.fcs"]
    assert labels.short_samples(["a.fcs", "a.fcs"]) == ["fcs", "fcs"]
    assert max(map(len, labels.short_samples(["x" * 80, "y" * 80]))) == 24


def test_ranges_of_channels_are_quantiles_of_the_events() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal([0, 10, -5], [1, 2, 0.1], (50_000, 3))
    counter = Counter(grid(*np.quantile(values, (0.001, 0.999), axis=0)), 1)
    counter.add(values, np.zeros(50_000, int))
    rasters = counter.rasters()
    low, high = heatmap.channel_ranges(rasters)
    width = rasters.edges[:, 1] - rasters.edges[:, 0]
    np.testing.assert_array_less(np.abs(low - np.quantile(values, 0.01, axis=0)), width)
    np.testing.assert_array_less(np.abs(high - np.quantile(values, 0.99, axis=0)), width)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n_populations", [1, 2, 4])
def test_a_heatmap_of_few_populations_has_room_for_its_trees(n_populations: int) -> None:
    with drawing.styled():
        figure = figures.heatmap(make_gating(n_populations, 3, samples=("a",)))
        engine = figure.get_layout_engine()
        assert engine is not None
        engine.execute(figure)
    assert figure.axes[0].get_position().height > 0.2


def test_the_heatmap_groups_similar_and_puts_empty_populations_last() -> None:
    gating = blobs([[0, 0, 0, 5], [5, 5, 5, 0], [0.2, 0, 0.1, 5], [5, 5, 4.8, 0], [9, 0, 0, 0]])
    quantiles = gating.quantiles.copy()
    quantiles[:, 4] = np.nan
    heat = heatmap.heat(replace(gating, quantiles=quantiles))
    assert heat.populations[-1] == 4
    order = heat.populations.tolist()
    assert abs(order.index(0) - order.index(2)) == 1
    assert abs(order.index(1) - order.index(3)) == 1
    np.testing.assert_array_equal(
        heat.medians[:4], gating.quantiles[2][np.ix_(heat.populations[:4], heat.channels)]
    )
    assert np.isnan(heat.levels[-1]).all()
    assert heat.levels[0].min() >= 0
    row, column = order.index(0), heat.channels.tolist().index(3)
    assert heat.levels[row, column] > 0.8
    places, heights = heat.row_tree
    assert len(places) == 3, "one bracket less than populations with events"
    assert set(places[:, [0, 3]].ravel()) >= {0.0, 1.0, 2.0, 3.0}
    assert heights.max() == 1.0


def by_hand() -> tuple[Tree, Array]:
    """Return a tree of six modes: 1 and 2 join 0, 4 joins 3, then 5 joins 3, then 3 joins 0."""
    merges = np.array([[1, 0], [4, 3], [2, 0], [5, 3], [3, 0]])
    levels = np.array([0.01, 0.5, 0.6, 3.0, 8.0])
    tree = Tree(np.arange(6), np.zeros((6, 2)), np.zeros(6), merges, levels)
    return tree, np.array([0, 0, 0, 1, 1, 2])


def test_the_tree_is_drawn_from_its_merges() -> None:
    tree, components = by_hand()
    gating = replace(make_gating(3, 2), tree=tree, level=1.0, modes=components)
    drawn = dendrogram.dendrogram(gating)
    # Modes that merge far below the cut are one leaf, drawn from the floor.
    assert [(leaf.modes, leaf.populations) for leaf in drawn.leaves] == [
        (2, (0,)), (1, (0,)), (1, (1,)), (1, (1,)), (1, (2,)),
    ]  # fmt: skip
    assert drawn.floor == pytest.approx(0.05)
    np.testing.assert_allclose(drawn.levels[:, 1], [0.5, 0.6, 3.0, 8.0])
    assert drawn.populations.tolist() == [1, 0, -1, -1]
    np.testing.assert_allclose(sorted(drawn.positions[1, [0, 3]]), [0, 1])
    np.testing.assert_allclose(sorted(drawn.positions[3, [0, 3]]), [0.5, 3.25])
    assert dendrogram.leaf_labels(gating, drawn, np.array([0.5, 0.3, 0.2]))[2].endswith("(30.0%, 2 modes)")


def test_the_pairs_have_outlines_and_decades() -> None:
    gating = replace(make_gating(4, 3), transforms=(Transform("arcsinh", 5.0),) * 3)
    axes = figures.pairs(gating).subfigs[0].axes[0]
    chosen = pairs.separating_pairs(gating)
    outlined = biaxial.outlined_in(gating, chosen)
    assert len(axes.lines) >= len(outlined[0])
    assert {p for own in outlined for p in own} == set(range(4))
    assert {"0", "10²"} <= {t.get_text() for t in axes.get_xticklabels()}


def test_short_ticks_stand_between_the_decades_and_outside_the_axes() -> None:
    gating = replace(make_gating(4, 3), transforms=(Transform("arcsinh", 5.0),) * 3)
    axes = figures.pairs(gating).subfigs[0].axes[0]
    x, y = gating.rasters.pairs[pairs.separating_pairs(gating)[0]].tolist()
    across, up = (line for line in axes.lines if line.get_marker() in {TICKDOWN, TICKLEFT})
    for line, along, channel in ((across, 0, x), (up, 1, y)):
        own = decades.ticks_of(gating, channel)
        places = line.get_xydata()
        assert len(own.minor) > len(own.places)
        np.testing.assert_allclose(places[:, along], own.minor)
        assert not places[:, 1 - along].any()
        ends = line.get_transform().transform(places)
        np.testing.assert_allclose(ends[:, 1 - along], axes.transAxes.transform((0.0, 0.0))[1 - along])


def test_a_population_that_the_reference_lacks_is_drawn() -> None:
    gating = make_gating(4, 3)
    without = replace(gating, components=np.minimum(gating.components, 2))
    means, _ = pairs.moments(without)
    assert np.isnan(means[3]).all()
    assert np.isfinite(means[:3]).all()
    assert np.isfinite(pairs.separation(without, gating.rasters.pairs)).all()
    assert figures.pairs(without).subfigs[0].axes


def test_brackets_do_not_cross_and_every_population_has_a_leaf() -> None:
    for seed in range(5):
        gating = make_gating(20, 5, parts=8, seed=seed)
        drawn = dendrogram.dendrogram(gating)
        assert len(drawn.leaves) <= dendrogram.MOST_LEAVES
        assert {p for leaf in drawn.leaves for p in leaf.populations} == set(range(20))
        assert all(len(leaf.populations) == 1 for leaf in drawn.leaves)
        assert sum(leaf.modes for leaf in drawn.leaves) == len(gating.tree.heights)
        below = drawn.levels[:, 1] < gating.level
        np.testing.assert_array_equal(drawn.populations >= 0, below)
        for row, places in zip(drawn.levels, drawn.positions, strict=True):
            low, high = sorted(places[[0, 3]])
            for levels, others in zip(drawn.levels, drawn.positions, strict=True):
                for end, place in ((levels[0], others[0]), (levels[3], others[3])):
                    assert not (low < place < high and end < row[1] < levels[1]), "lines cross"


def test_trees_of_one_and_of_very_many_modes_and_a_cut_at_zero() -> None:
    one = Tree(np.zeros(3, int), np.zeros((1, 2)), np.zeros(1), np.zeros((0, 2), int), np.zeros(0))
    drawn = dendrogram.dendrogram(replace(make_gating(1, 2), tree=one, modes=np.zeros(1, int)))
    assert [leaf.modes for leaf in drawn.leaves] == [1]
    assert drawn.floor > 0
    chain = np.stack((np.arange(1, 3000), np.zeros(2999, int)), axis=1)
    levels = np.append(np.linspace(0.0, 1.0, 2998), np.inf)
    many = Tree(np.arange(3000), np.zeros((3000, 2)), np.zeros(3000), chain, levels)
    drawn = dendrogram.dendrogram(replace(make_gating(2, 2), tree=many, level=0.0, modes=np.arange(3000)))
    assert len(drawn.leaves) <= 4 * dendrogram.MOST_LEAVES
    assert np.isfinite(drawn.levels).all()
    assert (drawn.levels > 0).all()


def test_paths_are_thinned_to_their_extremes() -> None:
    values = np.sin(np.arange(100_000) / 50.0)
    values[[12_345, 77_777]] = 9.0, -9.0
    values[90_000:] = np.nan
    places = traces.thinned(values, 500)
    assert len(places) <= 502
    assert {0, 12_345, 77_777, 89_999} <= set(places.tolist())
    assert (np.diff(places) > 0).all()
    assert len(traces.thinned(np.full(5, np.nan))) == 0


def test_traces_have_the_diagnostics_of_the_summaries(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run.h5", committed=30)
    mixing = convergence(run)
    rows = {row.quantity: row for row in mixing}
    for trace in traces.traces(run, mixing):
        row = rows[trace.quantity]
        assert f"R-hat {row.r_hat:.3f}" in trace.note
        assert trace.values.shape == (2, 61)
        assert np.isnan(trace.values[:, 51:]).all(), "sweeps not made are not drawn"
        assert np.isfinite(trace.values[:, :51]).all()
    low, high = traces.traces(run, mixing)[0].window(10)
    assert -10_300 < low < -9_990 < high < -9_900, "the climb from the initial state is not in the window"
    em = make_run(tmp_path / "bem.h5", kind="bem", chains=3)
    assert [trace.note for trace in traces.traces(em, convergence(em))] == ["", "", ""]


def test_labels_are_spread_out() -> None:
    points = np.array([[0.5, 0.5], [0.5, 0.5], [0.505, 0.5], [0.9, 0.9]])
    placed = drawing.spread_out(points, np.array([0.1, 0.05]))
    units = placed / [0.1, 0.05]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(units, 2)) > 0.9
    assert np.abs(placed[3] - points[3]).max() < 0.01


def test_colours_of_bins_are_their_populations_and_darker_where_there_are_more() -> None:
    counts = np.array([[0, 1], [10, 1000]])
    colours = palette.rgb(np.array([[-1, 2], [2, 2]]), counts)
    np.testing.assert_array_equal(colours[0, 0], 1.0)
    assert colours[0, 1].sum() > colours[1, 0].sum() > colours[1, 1].sum()
    expected = [int(palette.colour(2)[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    np.testing.assert_allclose(colours[1, 1], expected, atol=0.02)


def drawn(folder: Path) -> set[str]:
    for path in folder.glob("*.png"):
        image = matplotlib.image.imread(path)[..., :3]
        assert max(image.shape) < 12_000
        assert (image < 0.9).any(axis=-1).mean() > 0.003, f"{path.name} is blank"
    assert all(path.read_bytes().startswith(b"%PDF") for path in folder.glob("*.pdf"))
    return {path.name for path in folder.iterdir()}


NASTY = ("$x$", "$\\frac$", "<b>CD3</b> & _long_" + "x" * 60)
CASES = {
    "usual": make_gating,
    "names": partial(make_gating, 3, 3, channels=NASTY, samples=("$y$.fcs",)),
    "one population of one draw": partial(make_gating, 1, 1, parts=1, draws=1, chains=1),
    "empty population": partial(make_gating, 4, 3, empty=True),
    "more than are drawn": partial(make_gating, 70, 3, parts=1, n_events=20_000),
}


FIRST = ("usual", "names")  # the others are slow


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case in FIRST else [pytest.mark.slow]) for case in CASES]
)
def test_all_figures_are_drawn(tmp_path: Path, case: str, recwarn: pytest.WarningsRecorder) -> None:
    gating = CASES[case]()
    run = make_run(tmp_path / "run.h5", kind=gating.kind, draws=8, gating=gating)
    figures.write_figures(tmp_path / "new" / "figures", gating, run, convergence(run))
    announced = {path.name for path in figures.figure_paths(tmp_path)}
    assert drawn(tmp_path / "new" / "figures") == NAMES == announced
    assert not [str(w.message) for w in recwarn if "dpmix" in w.filename or "matplotlib" in w.filename]


def test_a_chosen_coarseness_is_drawn(
    tmp_path: Path, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "FIGURES", ())  # other tests draw the others
    choice = make_choice()
    run = make_run(tmp_path / "run.h5", choice=choice)
    figures.write_figures(tmp_path / "figures", make_gating(), run, [])
    assert drawn(tmp_path / "figures") == {"coarseness.png", "coarseness.pdf"}
    fit, complexity = coarseness.coarseness(choice).axes
    below, count = fit.lines[0].get_ydata(), complexity.lines[0].get_ydata()
    np.testing.assert_allclose(below, [-1.05, -0.25, -0.05, 0.0])
    assert list(count) == [10, 14, 22, 61]
    assert {axes.lines[-1].get_xdata()[0] for axes in (fit, complexity)} == {2_000.0}
    assert not [str(w.message) for w in recwarn if "dpmix" in w.filename or "matplotlib" in w.filename]


MAPS: dict[str, Callable[[], Gating]] = {
    "one event": lambda: with_map(make_gating(1, 2, parts=1), 1),
    "empty population": lambda: with_map(make_gating(4, 3, empty=True)),
    "more than are drawn": lambda: with_map(make_gating(70, 6, parts=1, n_events=20_000), 20_000),
}


@pytest.mark.parametrize("case", MAPS)
def test_a_map_is_drawn(
    tmp_path: Path, case: str, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "FIGURES", ())  # other tests draw the others
    run = make_run(tmp_path / "run.h5")
    figures.write_figures(tmp_path / "figures", MAPS[case](), run, [])
    assert drawn(tmp_path / "figures") == {"map.png", "map.pdf"}
    assert (tmp_path / "figures" / "map.pdf").stat().st_size < 1_000_000
    assert not [str(w.message) for w in recwarn if "dpmix" in w.filename or "matplotlib" in w.filename]


def test_a_map_has_its_events_and_its_caption() -> None:
    gating = MAPS["empty population"]()
    assert gating.map is not None
    figure = figures.event_map(gating, gating.map)
    axes = figure.subfigs[0].axes[0]
    (points,) = axes.collections
    np.testing.assert_allclose(points.get_offsets(), gating.map.places)
    colours = np.rint(255 * points.get_facecolors()[:, :3]).astype(int)
    for row in (0, 1, 999):
        own = palette.colour(int(gating.map.populations[row]))
        assert colours[row].tolist() == [int(own[i : i + 2], 16) for i in (1, 3, 5)]
    low, high = np.array([axes.get_xlim(), axes.get_ylim()]).T
    assert ((gating.map.places > low) & (gating.map.places < high)).all()
    assert {text.get_text() for text in axes.texts} == {"1", "2", "3"}, "the fourth has no event"
    told = figure.subfigs[0].get_suptitle()
    assert "1,000 of 4,000 events, drawn at random" in told
    assert "Distances between islands and sizes of islands have no meaning" in told
    assert "Numbers mark" not in told
    many = MAPS["more than are drawn"]()
    assert "Numbers mark the 60 largest." in embedding.map_caption(many, many.map)
    assert "All 4,000 events" in embedding.map_caption(gating, with_map(gating, 4_000).map)


def test_numbers_on_a_map_stand_at_events_or_above_small_islands() -> None:
    gating = make_gating(3, 3)
    rng = np.random.default_rng(1)
    wide = rng.normal(size=(300, 2)) + np.where(np.arange(300) % 3 == 0, -50.0, 50.0)[:, None]
    small = np.array([50.0, -50.0]) + 0.1 * rng.normal(size=(30, 2))
    places = np.concatenate((wide, 20.0 * rng.normal(size=(300, 2)), small)).astype(np.float32)
    events = Map(places, np.repeat([0, 1, 2], [300, 300, 30]))
    there, points = embedding.map_numbers(gating, events)
    assert there.tolist() == [0, 1, 2]
    assert np.linalg.norm(wide - points[0], axis=1).min() < 3.0, "it stands between the islands"
    assert points[1].tolist() in places[300:600].tolist()
    assert points[2, 1] > small[:, 1].max()


@pytest.mark.slow
def test_figures_are_reproducible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FIGURES", ("heatmap",))
    gating = with_map(make_gating())
    run = make_run(tmp_path / "run.h5", gating=gating)
    for name in ("one", "two"):
        figures.write_figures(tmp_path / name, gating, run, convergence(run))
    for name in ("heatmap.png", "heatmap.pdf", "map.png", "map.pdf"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_a_figure_says_what_it_shows(tmp_path: Path) -> None:
    gating = make_gating(5, 4)
    run = make_run(tmp_path / "run.h5")
    mixing = convergence(run)
    row = {r.quantity: r for r in mixing}["alpha"]
    titles = [axes.get_title(loc="left") or axes.get_title() for axes in figures.traces(run, mixing).axes]
    assert any(f"R-hat {row.r_hat:.3f}" in title for title in titles)
    assert "Bayesian EM" not in titles
    axes = figures.heatmap(gating).axes[0]
    assert {t.get_text() for t in axes.get_xticklabels()} == set(gating.channels)
    written = {t.get_text() for t in axes.texts}
    shares = [console.percent(share) for share in labels.shares(gating)]
    named = {f"{name}  {share}" for name, share in zip(gating.phenotypes, shares, strict=True)}
    assert {"1", "2", "3", "4", "5", *named} <= written


def test_intervals_are_those_of_the_posterior_and_absent_where_there_is_none() -> None:
    gating = make_gating(4, 3)
    axes = figures.proportions(gating).axes[0]
    (lines,) = [c for c in axes.collections if hasattr(c, "get_segments") and len(c.get_segments()) == 4]
    ends = np.array([segment[:, 0] for segment in lines.get_segments()])
    expected = np.quantile(gating.proportions[:, 0], (0.05, 0.95), axis=0, method="weibull").T
    np.testing.assert_allclose(ends, expected)
    single = figures.proportions(make_gating(4, 3, kind="bem")).axes[0]
    assert not [c for c in single.collections if hasattr(c, "get_segments") and len(c.get_segments())]
    assert "no interval" in single.get_xlabel()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    gating = make_gating()
    run = make_run(tmp_path / "run.h5", gating=gating)
    with pytest.raises(DataError, match=r"file.*cannot be written"):
        figures.write_figures(tmp_path / "file", gating, run, [])
