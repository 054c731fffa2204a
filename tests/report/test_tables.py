"""Tables of a gating, and the tree cut from its file."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpmix.errors import DataError
from dpmix.populations.events.phenotypes import QUANTILES
from dpmix.populations.result import Gating, Rasters
from dpmix.populations.tree.tree import Tree
from dpmix.report.labels import share_rows
from dpmix.report.tables import TABLES, table_paths, write_tables
from dpmix.runs.verdict import Verdict

MEANS, SDS = np.array([1.0, -2.0, 0.5]), np.array([2.0, 0.5, 3.0])


def small_gating(
    *,
    samples: tuple[str, ...] = ("a.fcs", 'b "2", x.fcs'),
    channels: tuple[str, ...] = ("CD3", "CD4,x", "µ"),
    n_populations: int = 3,
    draws: int = 200,
    seed: int = 1,
) -> Gating:
    """Arbitrary numbers with correct shapes; the last of several populations has no events."""
    random = np.random.default_rng(seed)
    d, s, p = len(channels), len(samples), n_populations
    k, modes = 4 * p, 2 * p  # two components per mode, two modes per population
    sizes = random.integers(1, 1000, (s, p))
    sizes[:, 1:][:, -1:] = 0
    quantiles = np.sort(random.normal(size=(len(QUANTILES), p, d)), axis=0)
    quantiles[:, 1:][:, -1:] = np.nan
    within = [(2 * j + 1, 2 * j) for j in range(p)]
    between = [(2 * j, 0) for j in range(p - 1, 0, -1)]
    tree = Tree(
        modes=np.repeat(np.arange(modes), 2),
        points=random.normal(size=(modes, d)),
        heights=random.normal(size=modes),
        merges=np.array(within + between),
        levels=np.sort(random.random(modes - 1)),
    )
    level = float(tree.levels[p - 1 : p + 1].mean())
    empty = np.zeros((0, 2, 2))
    proportions = random.dirichlet(np.ones(p), (draws, s))
    return Gating(
        run="run.h5",
        kind="mcmc" if draws > 1 else "bem",
        channels=channels,
        samples=samples,
        n_events=sizes.sum(axis=1),
        n_chains=1,
        draws=np.column_stack([np.zeros(draws, int), 3 * np.arange(draws)]),
        reference=draws - 1,
        pooled=np.array([draws - 1]),
        tree=tree,
        modes=np.repeat(np.arange(p), 2),
        level=level,
        why='a "reason"',
        components=tree.cut(level),
        weights=np.full(k, 1 / k),
        means=random.normal(size=(k, d)),
        covariances=np.tile(np.eye(d), (k, 1, 1)),
        numbers=np.full(draws, p),
        support=random.random(p),
        agreement=np.ones((1, 1)),
        sizes=sizes,
        proportions=proportions,
        mean_proportions=proportions.mean(axis=0),
        shape_ratios=random.uniform(0.8, 1.2, p),
        overlaps=random.uniform(0.0, 0.3, p),
        r_hat=np.append(1.0 + random.random(p - 1), np.nan),
        ess=np.append(400.0 * random.random(p - 1), np.nan),
        verdict=Verdict("mcmc" if draws > 1 else "bem", "population", 1, draws, np.ones(p), np.ones(p), ""),
        certainty=np.append(random.random(p - 1), np.nan),
        n_implausible=np.zeros(s, int),
        quantiles=quantiles,
        levels=np.full((3, d), np.nan),
        phenotypes=tuple(f"{channels[0]}+ number {j}" for j in range(p)),
        rasters=Rasters(np.zeros((d, 3)), np.zeros((0, 2), int), empty.astype(int), empty.astype(np.int16)),
    )


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def gating() -> Gating:
    return small_gating()


def test_populations(tmp_path: Path, gating: Gating) -> None:
    write_tables(tmp_path / "new" / "out", gating, MEANS, SDS)
    assert sorted(path.name for path in (tmp_path / "new" / "out").iterdir()) == sorted(TABLES)
    table = rows(tmp_path / "new" / "out" / "populations.csv")
    pooled = (gating.proportions * gating.n_events[:, None]).sum(axis=1) / gating.n_events.sum()
    quantiles = {"q05": 0, "q25": 1, "median": 2, "q75": 3, "q95": 4}
    assert [row["population"] for row in table] == [str(p + 1) for p in np.argsort(-pooled.mean(axis=0))]
    (empty,) = (row for row in table if row["population"] == "3")
    for row in table:
        p = int(row.pop("population")) - 1
        assert row.pop("phenotype") == gating.phenotypes[p]
        assert row.pop("full phenotype") == ""  # no channel has levels
        assert row.pop("events") == f"{gating.sizes[:, p].sum()}"
        want = {
            "share of events": gating.sizes[:, p].sum() / gating.sizes.sum(),
            "proportion": pooled[:, p].mean(),
            "low": np.quantile(pooled[:, p], 0.05, method="weibull"),
            "high": np.quantile(pooled[:, p], 0.95, method="weibull"),
            "shape ratio": gating.shape_ratios[p],
            "overlap": gating.overlaps[p],
            "rhat": gating.r_hat[p],
            "ess": gating.ess[p],
            "support": gating.support[p],
            "certainty": gating.certainty[p],
        }
        for d, channel in enumerate(gating.channels):
            want |= {f"{channel} {name}": gating.quantiles[q, p, d] for name, q in quantiles.items()}
        assert set(row) == set(want)
        for name, cell in row.items():
            np.testing.assert_allclose(float(cell or "nan"), want[name], rtol=1e-5, err_msg=name)
    assert list(empty)[10:15] == [f"CD3 {name}" for name in ("median", "q05", "q25", "q75", "q95")]
    assert list(empty)[3:8] == ["high", "shape ratio", "overlap", "rhat", "ess"]
    assert empty["CD3 median"] == empty["rhat"] == empty["ess"] == ""


def test_populations_stand_in_the_order_of_the_proportions_shown() -> None:
    """Not of their numbers, which a merge by hand and nearly equal sizes may put in another order."""
    gating = small_gating(n_populations=4)
    means = np.tile([0.046, 0.9, 0.004, 0.05], (len(gating.samples), 1))
    swapped = replace(gating, mean_proportions=means, labels=(2, 3, 5, 7))
    assert [swapped.number(p) for p in swapped.order] == [3, 7, 2, 5]
    cells_first = replace(swapped, artefacts=("", "debris", "", ""), without_artefacts=True)
    assert [cells_first.number(p) for p in cells_first.order] == [7, 2, 5, 3]
    assert share_rows(swapped).tolist() == [2, 0, 3, 1]


def test_proportions(tmp_path: Path, gating: Gating) -> None:
    write_tables(tmp_path, gating, MEANS, SDS)
    table = rows(tmp_path / "proportions.csv")
    assert len(table) == 6
    for row in table:
        s, p = gating.samples.index(row["sample"]), int(row["population"]) - 1
        draws = gating.proportions[:, s, p]
        assert (row["phenotype"], row["events"]) == (gating.phenotypes[p], f"{gating.sizes[s, p]}")
        want = [draws.mean(), *np.quantile(draws, (0.05, 0.95), method="weibull")]
        np.testing.assert_allclose([float(row[k]) for k in ("proportion", "low", "high")], want, rtol=1e-5)


def test_weights_of_samples_count_in_all_samples_together(tmp_path: Path, gating: Gating) -> None:
    weighted = replace(gating, n_events=np.array([900, 100]), sample_weights=np.array([5 / 9, 5.0]))
    gating = replace(weighted, sample_weights=None)
    np.testing.assert_allclose(weighted.overall.mean, gating.proportions.mean(axis=(0, 1)))
    assert np.abs(weighted.overall.low - gating.overall.low).max() > 0.01
    for name, given in (("plain", gating), ("weighted", weighted)):
        write_tables(tmp_path / name, given, np.zeros(3), np.ones(3))
    texts = [(tmp_path / name / "proportions.csv").read_text() for name in ("plain", "weighted")]
    assert texts[0] == texts[1]


def test_one_draw_has_no_interval(tmp_path: Path) -> None:
    write_tables(tmp_path, small_gating(draws=1), MEANS, SDS)
    for name in ("populations.csv", "proportions.csv"):
        table = rows(tmp_path / name)
        assert all(row["low"] == row["high"] == "" and float(row["proportion"]) > 0 for row in table)


def cut(tree: dict[str, list[dict[str, object]]], level: float) -> list[set[int]]:
    """Return sets of components at a cut height, from the file alone."""
    groups = {mode["mode"]: set(mode["components"]) for mode in tree["modes"]}  # type: ignore[call-overload]
    for merge in tree["merges"]:
        if merge["level"] is None or merge["level"] >= level:  # type: ignore[operator]
            break
        groups[merge["into"]] |= groups.pop(merge["mode"])
    return sorted(groups.values(), key=min)


def test_the_tree_can_be_cut_again(tmp_path: Path, gating: Gating) -> None:
    write_tables(tmp_path, gating, MEANS, SDS)
    tree = json.loads((tmp_path / "tree.json").read_text(encoding="utf-8"))
    for level in (-1.0, 0.2, 0.5, tree["level"], 0.9, 2.0):
        populations = gating.tree.cut(level)
        want = [set(np.flatnonzero(populations == p).tolist()) for p in np.unique(populations)]
        assert cut(tree, level) == sorted(want, key=min), level
    assert (tree["level"], tree["why"], tree["run"]) == (gating.level, gating.why, gating.run)
    assert tree["draws"] == [{"chain": 0, "draw": 3 * 199}]
    for mode, read in enumerate(tree["modes"]):
        np.testing.assert_allclose(list(read["point"].values()), MEANS + SDS * gating.tree.points[mode])
        assert list(read["point"]) == list(gating.channels)
        assert read["height"] == gating.tree.heights[mode]
        assert read["population"] == gating.modes[mode] + 1
        assert read["components"] == np.flatnonzero(gating.tree.modes == mode).tolist()


def test_infinite_levels_are_null(tmp_path: Path, gating: Gating) -> None:
    levels = np.append(gating.tree.levels[:-1], np.inf)
    write_tables(tmp_path, replace(gating, tree=replace(gating.tree, levels=levels)), MEANS, SDS)
    tree = json.loads(
        (tmp_path / "tree.json").read_text(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON")
    )
    assert tree["merges"][-1]["level"] is None
    assert len(cut(tree, 1e9)) == 2


def test_one_population(tmp_path: Path) -> None:
    write_tables(tmp_path, small_gating(n_populations=1), MEANS, SDS)
    assert len(rows(tmp_path / "populations.csv")) == 1


def test_a_place_that_cannot_be_written_to(tmp_path: Path, gating: Gating) -> None:
    (tmp_path / "proportions.csv").mkdir()
    with pytest.raises(DataError, match=r"proportions.csv: cannot be written: "):
        write_tables(tmp_path, gating, MEANS, SDS)
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".partial"]
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="file: cannot be written: "):
        write_tables(tmp_path / "file", gating, MEANS, SDS)
    assert [path.name for path in table_paths(tmp_path)] == list(TABLES)
