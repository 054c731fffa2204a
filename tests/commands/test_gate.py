"""Gating from end to end: a run on simulated blood, its own and other events, and all output files."""

from __future__ import annotations

import csv
import html
import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import arviz
import flowio
import numpy as np
import pandas
import pytest
from click.testing import CliRunner, Result
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
from test_find import POPULATIONS, Normals, cpu, normals, sample, write_run
from workspaces import write_workspace

from dpmix import open_run
from dpmix.cli import main
from dpmix.commands import gate
from dpmix.config.schema import Config
from dpmix.engines.cpu import CpuEngine
from dpmix.errors import ConfigError, DataError
from dpmix.inputs import preprocess
from dpmix.inputs.default_channels import choose_channels
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.opening import open_source
from dpmix.inputs.simulate import simulation
from dpmix.inputs.transforms import Scaling
from dpmix.populations import assign
from dpmix.populations.draws import convergence, decide, find
from dpmix.populations.draws.find import Populations, find_populations
from dpmix.populations.draws.task import Task, prepare
from dpmix.populations.events import proportions
from dpmix.populations.events.estimates import interval
from dpmix.populations.result import Gating
from dpmix.populations.sample_draws import SampleDraws
from dpmix.populations.tree.decisions import Colour, Merge, Name, decisions_path, write_decisions
from dpmix.report import embedding, figures, labels, page, palette, tables
from dpmix.runs.bem import run_bem
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.verdict import mixing_of

Array = np.ndarray
Emulate = Callable[..., None]

MARKERS = ["CD3", "CD4", "CD8", "CD19", "CD14"]
SIZES = (2_500, 1_500)
TAKEN = 3_000  # events of the run
FIGURES = ("heatmap", "pairs", "proportions", "tree", "traces")
EVERYTHING = {
    *("events.parquet", "events.csv", "events.h5ad", "a.gated.fcs", "b.gated.fcs"),
    *("populations.csv", "proportions.csv", "tree.json", "aligned.nc", "samples.nc", "report.html"),
    *(f"figures/{name}.{suffix}" for name in FIGURES for suffix in ("png", "pdf")),
}
ADDED = ("population", "probability", "entropy", "implausible")
ON_CPU = ("engine.backend=cpu", "engine.threads=1")


def config(folder: Path, output: str, **sections: dict[str, Any]) -> Config:
    files = [str(folder / f"{name}.fcs") for name in "ab"]
    settings: dict[str, Any] = {
        "data": {"files": files, "channels": MARKERS, "max_events": TAKEN},
        "model": {"components": 24, "coarseness": None},  # the exact posterior has populations to merge
        "mcmc": {"chains": 2, "burn_in": 60, "draws": 8},
        "bem": {"starts": 1, "max_steps": 50},
        "engine": {"backend": "cpu"},
        "output": {"path": str(folder / output)},
        "seed": 5,
    }
    return Config.model_validate({**settings, **sections})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two FCS files and `run.h5`, 16 draws from two chains on a part of their events."""
    folder = tmp_path_factory.mktemp("blood")
    for name, n_events, seed in zip("ab", SIZES, (1, 2), strict=True):
        simulation.cytometry_like(n_events, seed=seed).write(folder / f"{name}.fcs")
    assert run_mcmc(config(folder, "run.h5")).completed
    return folder


@pytest.fixture(scope="module")
def task(folder: Path) -> Task:
    return prepare(folder / "run.h5", engine=ON_CPU)


@pytest.fixture(scope="module")
def found(task: Task) -> Populations:
    return task.find_populations(find.DRAWS, None, None)


@pytest.fixture(scope="module")
def gated(folder: Path, draw_figures: Callable[..., None]) -> Gating:
    """Gate the run's own events into the folder `all`, in all formats, with its figures."""
    formats = ("parquet", "csv", "h5ad", "fcs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "write_figures", draw_figures)
        return gate.gate(folder / "run.h5", folder / "all", formats=formats, memberships=True, engine=ON_CPU)


@pytest.fixture(scope="module")
def predicted(folder: Path) -> Gating:
    """Gate all events of the two files into the folder `new`."""
    files = [folder / "a.fcs", folder / "b.fcs"]
    return gate.predict(folder / "run.h5", files, folder / "new", engine=ON_CPU)


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip figures and report, which take longer than all the rest."""
    monkeypatch.setattr(figures, "write_figures", lambda *given: None)
    monkeypatch.setattr(page, "write_report", lambda *given: None)


def events(folder: Path) -> pandas.DataFrame:
    return pandas.read_parquet(folder / "events.parquet")


def listed(table: pandas.DataFrame) -> Array:
    """Return the memberships in a table of events, float64 [N, P]."""
    return table[[name for name in table if name[0] == "p" and name[1:].isdigit()]].to_numpy(float)


def by_number(folder: Path) -> pandas.DataFrame:
    """Return populations.csv in the order of the numbers."""
    return pandas.read_csv(folder / "populations.csv").sort_values("population", ignore_index=True)


def files_of(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# ---------------------------------------------------------------------------- output files


def test_all_files_are_written(folder: Path, gated: Gating, predicted: Gating) -> None:
    assert files_of(folder / "all") == EVERYTHING
    assert files_of(folder / "new") == {"events.parquet", "fit.csv"}
    assert gated.samples == predicted.samples == ("a.fcs", "b.fcs")
    assert gated.channels == tuple(MARKERS)
    assert gated.n_events.sum() == TAKEN
    assert predicted.n_events.tolist() == list(SIZES)
    assert 5 <= gated.n_populations <= 12  # from the levels of five markers
    assert (np.diff(gated.proportions.mean(axis=(0, 1)))[:2] < 0.05).all()  # approximately by weight


def mean_of_draws(found: Populations, values: Array, ratios: Array) -> tuple[Array, Array]:
    """Average memberships [N, P] and densities [N] over the draws, in float64 with scipy.

    `ratios` [T, P] are the weights of the populations in the sample divided by those in the run.
    """
    terms = [
        np.transpose(
            [multivariate_normal(m, c).logpdf(values) + np.log(w) for w, m, c in zip(*own, strict=True)]
        )
        for own in (
            [part[chain, draw] for part in (found.run.weights, found.run.means, found.run.covariances)]
            for chain, draw in found.draws
        )
    ]
    log_densities = logsumexp(terms, axis=2)
    of_components = np.exp(np.array(terms) - log_densities[..., None])
    unit = np.eye(found.n_populations)
    whole = [own @ unit[numbers] for own, numbers in zip(of_components, found.components, strict=True)]
    total = np.zeros((len(values), found.n_populations))
    for t, shares in enumerate(whole):
        own = shares * ratios[t]
        total += own / own.sum(axis=1)[:, None]
    n_draws = len(found.draws)
    return total / n_draws, logsumexp(log_densities, axis=0) - np.log(n_draws)


def test_events_are_means_over_the_draws(
    folder: Path, task: Task, found: Populations, gated: Gating, predicted: Gating
) -> None:
    new = prepare(folder / "run.h5", [folder / "a.fcs", folder / "b.fcs"], ON_CPU)
    assert len(found.draws) == 16
    for name, own in (("all", task), ("new", new)):
        values, starts = own.events.values, own.events.sample_starts
        table = events(folder / name)
        assert len(table) == len(values)
        engine = CpuEngine(values, threads=1)
        parts = [
            mean_of_draws(
                found,
                values[starts[s] : starts[s + 1]].astype(float),
                assign.sample_ratios(own, found, found.weights, engine, s),
            )
            for s in range(2)
        ]
        wanted, log_density = (np.concatenate(both) for both in zip(*parts, strict=True))
        np.testing.assert_allclose(listed(table), wanted, atol=2e-5)
        np.testing.assert_allclose(table.log_density, log_density, rtol=1e-5, atol=1e-4)
        assert (table.population == listed(table).argmax(axis=1) + 1).all()
        np.testing.assert_allclose(table.probability, wanted.max(axis=1), atol=2e-5)
        logs = np.log(wanted, out=np.zeros_like(wanted), where=wanted > 0.0)
        np.testing.assert_allclose(table.entropy, -(wanted * logs).sum(axis=1), atol=5e-4)
        assert (table.implausible == (table.log_density < found.least_density)).all()
        assert 0 < table.implausible.sum() < 0.05 * len(table)


def test_the_summary_is_of_the_events_in_the_table(folder: Path, gated: Gating, predicted: Gating) -> None:
    for name, gating in (("all", gated), ("new", predicted)):
        table = events(folder / name)
        populations = range(1, gating.n_populations + 1)
        counts = pandas.crosstab(table["sample"], table.population).reindex(columns=populations, fill_value=0)
        np.testing.assert_array_equal(gating.sizes, counts)
        np.testing.assert_array_equal(gating.n_events, counts.sum(axis=1))
        certainty = table.groupby("population").probability.mean().reindex(populations)
        np.testing.assert_allclose(gating.certainty, certainty, rtol=1e-5)
        implausible = table.groupby("sample", observed=True).implausible.sum()
        np.testing.assert_array_equal(gating.n_implausible, implausible)


def test_medians_are_those_of_the_events(folder: Path, gated: Gating) -> None:
    """AnnData has the values of each event next to its population."""
    import anndata

    table = anndata.read_h5ad(folder / "all" / "events.h5ad")
    np.testing.assert_array_equal(table.obs.population.astype(int), events(folder / "all").population)
    np.testing.assert_allclose(table.obsm["memberships"], listed(events(folder / "all")))
    values = pandas.DataFrame(np.asarray(table.X), columns=MARKERS)
    medians = values.groupby(table.obs.population.to_numpy(), observed=True).median()
    np.testing.assert_allclose(gated.quantiles[2], medians, atol=1e-4)
    shown = by_number(folder / "all")
    np.testing.assert_allclose(shown[[f"{m} median" for m in MARKERS]], medians, atol=1e-4)
    assert list(shown.events) == list(gated.sizes.sum(axis=0))


def test_populations_are_those_that_were_simulated(folder: Path, predicted: Gating) -> None:
    """The populations of CD4 T cells, CD8 T cells, B cells and monocytes hold no other cells."""
    kinds = {"CD4": "CD3+ CD4+ CD8-", "CD8": "CD3+ CD4- CD8+", "B": "CD19+", "monocytes": "CD14+"}
    names = np.concatenate(
        [np.array([*simulation.POPULATIONS])[np.load(folder / f"{x}.truth.npz")["labels"]] for x in "ab"]
    )
    table = events(folder / "new")
    for kind, signs in kinds.items():
        own = np.char.startswith(names, kind) if kind.startswith("CD") else names == kind
        shares = np.bincount(table.population, own) / np.maximum(np.bincount(table.population), 1)
        mine = np.flatnonzero(shares > 0.5)
        gathered = np.isin(table.population, mine)
        assert own[gathered].mean() > 0.9
        assert gathered[own].mean() > 0.9
        largest = mine.min() - 1
        assert set(signs.split()) <= set(predicted.full_phenotypes[largest].split())
        expressed = {sign for sign in signs.split() if sign.endswith("+")}
        assert expressed <= set(predicted.phenotypes[largest].split())


def test_fcs_files_have_the_old_channels_and_population_0_where_not_gated(
    folder: Path, task: Task, gated: Gating
) -> None:
    table = events(folder / "all")
    assert task.events.rows is not None
    for name, n_events in zip("ab", SIZES, strict=True):
        old = flowio.FlowData(folder / f"{name}.fcs")
        new = flowio.FlowData(folder / "all" / f"{name}.gated.fcs")
        n_old = old.channel_count
        assert new.pnn_labels[n_old:] == [f"dpmix_{what}" for what in ADDED]
        assert new.pnn_labels[:n_old] == old.pnn_labels
        assert new.pns_labels[:n_old] == old.pns_labels
        np.testing.assert_array_equal(
            new.as_array(preprocess=False)[:, :n_old], old.as_array(preprocess=False)
        )
        own = table[table["sample"] == f"{name}.fcs"]
        added = np.zeros((n_events, 4))
        added[own.event] = own[["population", "probability", "entropy", "implausible"]]
        assert 0 < (added[:, 0] == 0).sum() == n_events - len(own)
        np.testing.assert_allclose(new.as_array(preprocess=False)[:, n_old:], added, rtol=1e-6)


def test_aligned_draws_open_in_arviz(folder: Path, found: Populations, gated: Gating) -> None:
    aligned = arviz.from_netcdf(folder / "all" / "aligned.nc").posterior
    raw = open_run(folder / "run.h5", transformed=True)
    assert aligned.means.shape == (2, 8, 24, 5)
    for (chain, draw), order in zip(found.draws, found.order, strict=True):
        np.testing.assert_allclose(aligned.means[chain, draw], raw.means[chain, draw][order])
        np.testing.assert_allclose(aligned.weights[chain, draw], raw.weights[chain, draw][order])
    # Aligned heavy components are much nearer to the reference's than unaligned ones.
    reference = raw.means[tuple(found.draws[found.reference])]
    heavy = raw.weights[tuple(found.draws[found.reference])] > 0.05
    moved = np.median(np.abs(aligned.means.values - reference)[:, :, heavy])
    assert moved < 0.5 * np.median(np.abs(raw.means - reference)[:, :, heavy])


def test_the_tree_names_its_draws(folder: Path, gated: Gating) -> None:
    tree = json.loads((folder / "all" / "tree.json").read_text())
    assert tree["draws"] == [{"chain": c, "draw": d} for c, d in gated.draws[gated.pooled]]
    assert tree["phenotypes"] == list(gated.phenotypes)


# ---------------------------------------------------------------------------- equivalent calls


def test_events_of_the_run_are_gated_similarly_among_all_events(
    folder: Path, gated: Gating, predicted: Gating
) -> None:
    own, all_events = (events(folder / name).set_index(["sample", "event"]) for name in ("all", "new"))
    assert len(own) == TAKEN < len(all_events) == sum(SIZES)
    assert list(own) == list(all_events)
    there = all_events.loc[own.index]
    for name in ("log_density", "implausible"):
        np.testing.assert_allclose(own[name], there[name], rtol=0, atol=1e-6)
    # The proportions of the sample change uncertain events only.
    away = np.abs(listed(own) - listed(there))
    assert away.mean() < 1e-3
    assert away.max() < 0.1
    assert gated.phenotypes[0] == predicted.phenotypes[0]
    np.testing.assert_array_equal(gated.components, predicted.components)


@pytest.mark.usefixtures("no_pictures")
def test_gate_of_other_files_is_predict(folder: Path, predicted: Gating, tmp_path: Path) -> None:
    given = {"data": [folder / "*.fcs"], "memberships": True, "engine": ON_CPU}
    again = gate.gate(folder / "run.h5", tmp_path / "again", **given)
    pandas.testing.assert_frame_equal(events(tmp_path / "again"), events(folder / "new"))
    for name in ("sizes", "proportions", "quantiles", "levels", "certainty", "support", "r_hat", "ess"):
        np.testing.assert_array_equal(getattr(again, name), getattr(predicted, name), err_msg=name)


def test_a_sample_is_gated_alone_as_among_others(folder: Path, predicted: Gating, tmp_path: Path) -> None:
    alone = gate.predict(folder / "run.h5", [folder / "b.fcs"], tmp_path, engine=ON_CPU)
    together = events(folder / "new")
    columns = [name for name in together if name != "sample"]
    there = together[together["sample"] == "b.fcs"][columns].reset_index(drop=True)
    pandas.testing.assert_frame_equal(events(tmp_path)[columns], there, rtol=0, atol=1e-6)
    assert alone.samples == ("b.fcs",)
    np.testing.assert_array_equal(alone.sizes[0], predicted.sizes[1])
    assert (alone.sizes[0] != predicted.sizes[0]).any()
    assert alone.proportions.shape == (16, 1, predicted.n_populations)


def test_memberships_do_not_depend_on_the_blocks(
    folder: Path, predicted: Gating, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assign, "BLOCK", 997)
    files = [folder / "a.fcs", folder / "b.fcs"]
    again = gate.predict(folder / "run.h5", files, tmp_path, engine=("engine.threads=3", *ON_CPU[:1]))
    pandas.testing.assert_frame_equal(events(tmp_path), events(folder / "new"))
    np.testing.assert_array_equal(again.proportions, predicted.proportions)
    np.testing.assert_array_equal(again.rasters.counts, predicted.rasters.counts)


@pytest.mark.slow
def test_the_cuda_engine_gives_the_same(
    folder: Path,
    predicted: Gating,
    tmp_path: Path,
    emulated_devices: Emulate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    emulated_devices(2)
    files = [folder / "a.fcs", folder / "b.fcs"]
    monkeypatch.setattr(assign, "BLOCK", 2_000)
    again = gate.predict(folder / "run.h5", files, tmp_path, n_draws=4, engine=("engine.backend=cuda",))
    gate.predict(folder / "run.h5", files, tmp_path / "cpu", n_draws=4, engine=ON_CPU)
    one, other = events(tmp_path), events(tmp_path / "cpu")
    np.testing.assert_allclose(listed(one), listed(other), atol=1e-5)
    np.testing.assert_allclose(one.log_density, other.log_density, rtol=1e-6, atol=1e-5)
    first, second = np.sort(listed(other), axis=1)[:, :-3:-1].T
    certain = first - second > 2e-5
    assert certain.mean() > 0.999
    assert (one.population == other.population)[certain].all()
    assert len(again.draws) == 4


@pytest.mark.usefixtures("no_pictures")
@pytest.mark.parametrize("asked", [{"level": 7.0}, {"n_populations": 3}, {"n_populations": 1}])
def test_another_cut(folder: Path, gated: Gating, tmp_path: Path, asked: dict[str, Any]) -> None:
    formats = ("parquet", "fcs")
    coarse = gate.gate(
        folder / "run.h5", tmp_path, formats=formats, memberships=True, n_draws=4, engine=ON_CPU, **asked
    )
    assert coarse.n_populations == asked.get("n_populations", coarse.n_populations) < gated.n_populations
    if "level" in asked:
        assert (coarse.level, coarse.why) == (7.0, "requested")
    table = events(tmp_path)
    assert listed(table).shape == (TAKEN, coarse.n_populations)
    new = flowio.FlowData(tmp_path / "a.gated.fcs").as_array(preprocess=False)
    assert new[:, -4].max() == table.population[table["sample"] == "a.fcs"].max()
    if coarse.n_populations == 1:
        assert (table.entropy == 0.0).all()
        np.testing.assert_array_equal(coarse.proportions, 1.0)


@pytest.mark.usefixtures("no_pictures")
def test_the_map_is_of_standardised_events_and_their_populations(
    folder: Path, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "MOST_EVENTS", 500)
    monkeypatch.setattr(embedding, "_embed", lambda values, random: values)
    mapped = gate.gate(folder / "run.h5", tmp_path, with_map=True, n_draws=4, engine=ON_CPU).map
    assert mapped is not None
    values, population = task.events.values, events(tmp_path).population.to_numpy() - 1
    of_event = {row.tobytes(): p for row, p in zip(values, population, strict=True)}
    assert len(of_event) == len(values)
    assert [of_event[row.tobytes()] for row in mapped.places] == mapped.populations.tolist()
    assert len(mapped.places) == 500


def test_gates_are_for_events_without_the_noise_at_atoms(folder: Path, task: Task, tmp_path: Path) -> None:
    assert task.events_without_noise() is task.events
    detectors = list(task.run.detectors)
    values = np.random.default_rng(1).lognormal(5, 1, (2_000, len(detectors))).astype(np.float32)
    values[:400, 1] = values[:, 1].max() + 1
    write_fcs(tmp_path / "c.fcs", values, detectors)
    other = config(folder, "run.h5", data={"files": [str(tmp_path / "c.fcs")], "max_events": 1_500})
    earlier = preprocess.Recorded(task.run.detectors, Scaling.from_attributes(task.run.scaling))
    noisy = replace(
        task, config=other, events=preprocess.prepare(other.data, folder, other.seed, earlier=earlier)
    )
    plain = noisy.events_without_noise()
    raw = values[plain.rows]
    np.testing.assert_array_equal(plain.rows, noisy.events.rows)
    np.testing.assert_allclose(plain.scaling.to_raw(plain.values), raw, rtol=1e-4)
    clipped = raw[:, 1] == values[0, 1]
    assert (
        np.abs(noisy.events.scaling.to_raw(noisy.events.values)[clipped, 1] - values[0, 1]) > 1
    ).mean() > 0.9


@pytest.mark.usefixtures("no_pictures")
def test_debris_is_marked_and_left_out_of_proportions(folder: Path, gated: Gating, tmp_path: Path) -> None:
    """Scatter, which the run does not have, shows which of the populations is debris."""
    table = by_number(folder / "all")
    truth = np.concatenate([np.load(folder / f"{x}.truth.npz")["labels"] for x in "ab"])
    is_debris = truth == [*simulation.POPULATIONS].index("debris")
    (p,) = table.population[table.artefact == "debris"] - 1
    assert set(gated.artefacts) == {"", "debris"}
    assert table["FSC-A median"][p] < table["FSC-A median"].drop(p).min() / 2
    assert gated.channels == tuple(MARKERS)  # the model and samples.nc do not have it
    assert SampleDraws.read(folder / "all").channels == gated.channels
    options = ("--output", tmp_path / "out", "--without-artefacts", "--threads", "1", "--backend", "cpu")
    (tmp_path / "types.csv").write_text("cell,CD3,CD19,CD14\nT,+,-,-\nnone,-,-,-\n")
    said = dpmix("gate", folder / "run.h5", *options, "--types", tmp_path / "types.csv").stdout
    assert f"1 population ({p + 1}), " in said
    assert "looks like debris; left out of the proportions" in said
    assert re.search(rf"^ +{p + 1} +left out ", said, re.MULTILINE)
    without = by_number(tmp_path / "out")
    assert without["type"][p] == "debris"  # not "none", whose cells it passes
    typed = pandas.read_csv(tmp_path / "out" / "types.populations.csv").set_index("population")
    assert 0.8 < typed.unknown[p + 1] < 1.0
    table_of_events = events(tmp_path / "out")
    labels = {f"{x}.fcs": np.load(folder / f"{x}.truth.npz")["labels"] for x in "ab"}
    own = table_of_events[table_of_events.population == p + 1]
    true = np.array([labels[file][row] for file, row in zip(own["sample"], own.event, strict=True)])
    debris = true == [*simulation.POPULATIONS].index("debris")
    assert ((own["type"] == "unknown") == debris).all()  # NK cells are as large as other cells
    assert typed["T"].max() > 0.95
    assert p + 1 not in pandas.read_csv(tmp_path / "out" / "types.suggested.csv").population
    assert without.events.tolist() == table.events.tolist()  # they stay in all files
    assert without[["proportion", "low", "high"]].iloc[p].isna().all()
    kept = table.proportion.drop(p)
    np.testing.assert_allclose(without.proportion.drop(p), kept / kept.sum(), rtol=2e-3)
    assert abs(table.proportion[p] - is_debris.mean()) < 0.02
    samples = pandas.read_csv(tmp_path / "out" / "proportions.csv").groupby("sample").proportion.sum()
    np.testing.assert_allclose(samples, 1.0, atol=1e-4)
    new = ("--data", tmp_path / "markers.csv")
    columns = pandas.DataFrame(np.random.default_rng(1).normal(size=(60, len(MARKERS))), columns=MARKERS)
    columns.to_csv(tmp_path / "markers.csv", index=False)
    refused = dpmix("gate", folder / "run.h5", *options, *new, "--overwrite", code=2)
    assert "--without-artefacts: found neither scatter nor viability" in refused.stderr


@pytest.mark.usefixtures("no_pictures")
def test_flowkit_applies_the_gates_to_the_files(folder: Path, tmp_path: Path) -> None:
    flowkit = pytest.importorskip("flowkit")
    shown = dpmix("gate", folder / "run.h5", "--output", tmp_path / "out", "--draws", "4", "--strategy")
    table = pandas.read_csv(tmp_path / "out" / "strategy.csv")
    nested = pandas.read_csv(tmp_path / "out" / "hierarchy.csv", dtype={"populations": str})
    own = table[table.gate.notna()].assign(populations=table.population.astype(str))
    gated = events(tmp_path / "out")
    samples = [
        (flowkit.Sample(folder / str(file)), rows)
        for file, rows in gated.groupby("sample", observed=True).event
    ]
    for file, expected in (("gates.xml", own), ("hierarchy.xml", nested)):
        gates = flowkit.parse_gating_xml(tmp_path / "out" / file)
        results = [(gates.gate_sample(sample), rows) for sample, rows in samples]
        for row in expected.itertuples():
            member = np.concatenate([found.get_gate_membership(row.gate)[rows] for found, rows in results])
            wanted = gated.population.isin([int(number) for number in row.populations.split()])
            assert abs(member.sum() - row.gated) <= 1
            f1 = 2 * (member & wanted).sum() / (member.sum() + wanted.sum())
            assert f1 == pytest.approx(row.f1, abs=1e-3)
    assert set(nested.populations) >= set(own.populations)
    last = table.groupby("population").f1.last()
    assert last.max() > 0.95
    lines = [line.split() for line in shown.stdout.partition("gating strategy")[2].splitlines()[2:]]
    assert [int(line[0]) for line in lines[: len(last)]] == [*last.index]


def test_flowkit_reads_populations_and_their_names_in_fcs_files(folder: Path, gated: Gating) -> None:
    flowkit = pytest.importorskip("flowkit")
    table = events(folder / "all")
    for name in "ab":
        sample = flowkit.Sample(folder / "all" / f"{name}.gated.fcs")
        own = table[table["sample"] == f"{name}.fcs"]
        codes = sample.get_channel_events("dpmix_population", source="raw")
        np.testing.assert_array_equal(codes[own.event], own.population)
        assert (np.delete(codes, own.event) == 0).all()
        chance = sample.get_channel_events("dpmix_probability", source="raw")
        np.testing.assert_allclose(chance[own.event], own.probability, rtol=1e-6)
        for p, phenotype in enumerate(gated.phenotypes, start=1):
            assert sample.metadata[f"dpmix_population_{p}"] == f"{p} {phenotype}".strip()
        # a gate on the codes selects a population, as a person would in FlowJo
        gates = flowkit.GatingStrategy()
        code = flowkit.Dimension("dpmix_population", range_min=0.5, range_max=1.5)
        gates.add_gate(flowkit.gates.RectangleGate("first", [code]), ("root",))
        inside = gates.gate_sample(sample).get_gate_membership("first")
        assert inside.sum() == (own.population == 1).sum()


@pytest.mark.usefixtures("made_figures")
def test_populations_are_scored_against_the_gates_of_a_workspace(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "FIGURES", ())  # draw the comparison only
    files = [folder / "a.fcs", folder / "b.fcs"]
    source = open_source(files[0])
    cd3, cd19 = (next(c.detector for c in source.details if c.marker == m) for m in ("CD3", "CD19"))
    gates = {"T": {cd3: (0.5, None)}, "T/more": {cd3: (0.55, None)}, "B": {cd19: (0.5, None)}}
    write_workspace(tmp_path / "w.wsp", files, gates)
    out = tmp_path / "out"
    shown = dpmix(
        *("gate", folder / "run.h5", "--output", out, "--draws", "4", "--compare", tmp_path / "w.wsp")
    )
    assert {"compare.csv", "figures/compare.png", "figures/compare.pdf"} <= files_of(out)
    table = pandas.read_csv(out / "compare.csv").set_index("gate")
    assert table.index.tolist() == ["T", "T/more", "B"]
    assert table["has gates inside"].tolist() == [True, False, False]
    gated = events(out)
    for name, row in table.iterrows():
        own = gated.population == row.population
        assert own.sum() == row["population events"]
        assert row.f1 == pytest.approx(2 * row["shared events"] / (row.events + own.sum()))
        assert row["union f1"] >= row.f1 - 1e-6, name
    assert table["union f1"].min() > 0.9
    assert "  gate\n" in shown.stdout
    page = (out / "report.html").read_text(encoding="utf-8")
    assert '<h2 id="compare">Manual gates</h2>' in page
    refused = dpmix(
        *("gate", folder / "run.h5", "--output", out, "--overwrite", "--compare", folder / "a.fcs"), code=2
    )
    assert "need a FlowJo workspace (.wsp) or a GatingML 2.0 file" in refused.stderr


# ---------------------------------------------------------------------------- errors


def test_a_map_without_its_package_is_refused_before_the_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    monkeypatch.setattr(gate, "prepare", lambda *given: pytest.fail("started to work"))
    refused = dpmix("gate", folder / "run.h5", "--output", tmp_path / "out", "--map", code=2)
    assert refused.stderr.startswith("dpmix: a map needs openTSNE (")
    assert refused.stderr.endswith("): pip install 'dpmix-cytometry[map]'\n")
    assert len(refused.stderr.splitlines()) == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_pictures")
def test_a_map_is_left_out_on_request_and_where_its_package_is_missing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(embedding, "available", lambda: True)
    monkeypatch.setattr(embedding, "place_events", lambda *given: pytest.fail("drew a map"))
    options = {"n_draws": 2, "engine": ON_CPU, "overwrite": True}
    assert gate.gate(folder / "run.h5", tmp_path, with_map=False, **options).map is None
    caplog.set_level("INFO", "dpmix")
    monkeypatch.setattr(embedding, "available", lambda: False)
    assert gate.gate(folder / "run.h5", tmp_path, **options).map is None
    assert "no map: openTSNE is not installed; pip install 'dpmix-cytometry[map]' adds it" in caplog.messages


@pytest.mark.usefixtures("no_pictures")
def test_without_a_map_its_package_and_files_do_not_matter(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "map.png").write_text("mine")
    with pytest.raises(ConfigError, match=r"map\.png: exists already"):
        gate.gate(folder / "run.h5", tmp_path, with_map=True, engine=ON_CPU)
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    assert gate.gate(folder / "run.h5", tmp_path, n_draws=2, engine=ON_CPU).map is None
    assert (tmp_path / "figures" / "map.png").read_text() == "mine"


@pytest.mark.usefixtures("no_pictures")
def test_existing_files_are_replaced_only_with_overwrite(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "populations.csv").write_text("mine")
    with pytest.raises(ConfigError, match=r"populations\.csv: exists already; .*--overwrite"):
        gate.gate(folder / "run.h5", tmp_path, engine=ON_CPU)
    assert files_of(tmp_path) == {"populations.csv"}
    gate.gate(folder / "run.h5", tmp_path, n_draws=2, engine=ON_CPU, overwrite=True)
    assert (tmp_path / "populations.csv").read_text() != "mine"
    with pytest.raises(ConfigError, match=r"events\.parquet: exists already"):
        gate.predict(folder / "run.h5", [folder / "a.fcs"], tmp_path, engine=ON_CPU)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"n_draws": 0}, "n_draws is 0; it must be a whole number of at least 1"),
        ({"n_draws": 2.5}, r"n_draws is 2\.5"),
        ({"n_draws": True}, "n_draws is True"),
        ({"level": -1.0}, r"level is -1\.0; it must be a number of standard deviations, 0 or more"),
        ({"level": float("nan")}, "level is nan"),
        ({"level": float("inf")}, "level is inf"),
        ({"n_populations": 0}, "n_populations is 0"),
        ({"level": 2.0, "n_populations": 3}, "level and n_populations both cut the tree"),
        ({"data": "a.fcs"}, r'data is "a\.fcs"; it must be a list, as \["a\.fcs"\]'),
        ({"data": Path("a.fcs")}, 'data is "a'),
        ({"formats": "csv"}, 'formats is "csv"'),
        ({"engine": "engine.threads=2"}, r'engine is "engine\.threads=2"'),
    ],
)
def test_arguments_that_the_command_line_refuses_are_errors_before_the_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(gate, "prepare", lambda *given: pytest.fail("started to work"))
    with pytest.raises(ConfigError, match=message):
        gate.gate(folder / "run.h5", tmp_path, **asked)
    with pytest.raises(ConfigError, match=message):
        gate.predict(folder / "run.h5", **{"data": [folder / "a.fcs"], "output": tmp_path, **asked})


def test_the_output_folder_must_not_be_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for write in (gate.gate, lambda *given: gate.predict(given[0], [folder / "a.fcs"], given[1])):
        with pytest.raises(ConfigError, match=r"mine: is a file, not a folder"):
            write(folder / "run.h5", tmp_path / "mine")
    assert (tmp_path / "mine").read_text() == "mine"


def test_an_impossible_output_folder_is_refused_before_the_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "find_populations", lambda *given, **options: pytest.fail("started to work"))
    (tmp_path / "mine").write_text("mine")
    for output in (tmp_path / "mine" / "out", tmp_path / "mine" / "far" / "out"):
        for command in (("gate", folder / "run.h5"), ("predict", folder / "run.h5", folder / "a.fcs")):
            refused = dpmix(*command, "--output", output, code=2)
            assert refused.stderr == (
                f"dpmix: {tmp_path}/mine: is a file, not a folder; give another --output\n"
            )
    (tmp_path / "kept").mkdir()
    allowed = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: Path(path) != tmp_path / "kept" and allowed(path, mode)
    )
    refused = dpmix("gate", folder / "run.h5", "--output", tmp_path / "kept" / "out", code=2)
    assert refused.stderr == (
        f"dpmix: {tmp_path}/kept: no permission to write to this folder; give another --output\n"
    )


def test_an_unavailable_backend_names_an_available_one(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpmix.engines.cuda.engine.available", lambda: (False, "no driver"))
    options = dpmix("gate", "--help").stdout
    refused = dpmix("gate", folder / "run.h5", "--output", tmp_path, "--backend", "cuda", code=2)
    assert refused.stderr == (
        "dpmix: engine.backend: cuda is not available here: no driver; or use --backend cpu\n"
    )
    assert "--backend" in options
    assert "--set" not in options


def test_a_run_on_gated_files_ignores_the_added_channels(folder: Path, gated: Gating, tmp_path: Path) -> None:
    shutil.copy(folder / "all" / "a.gated.fcs", tmp_path / "a.fcs")
    shutil.copy(folder / "all" / "b.gated.fcs", tmp_path / "b.fcs")
    markers = open_source(folder / "a.fcs")
    wanted = choose_channels(None, [markers])[0]
    for name in "ab":
        source = open_source(tmp_path / f"{name}.fcs")
        assert [c.detector for c in source.details[-4:]] == [f"dpmix_{what}" for what in ADDED]
        assert choose_channels(None, [source])[0] == wanted
        assert choose_channels(["dpmix_entropy"], [source])[0] == [[len(source.details) - 2]]


def test_an_input_file_is_never_replaced(folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "a.gated.fcs"
    shutil.copy(folder / "a.fcs", source)
    shutil.copy(folder / "a.fcs", tmp_path / "a.fcs")
    before = source.read_bytes()
    given = {"formats": ("fcs",), "engine": ON_CPU, "overwrite": True}
    for write in (
        gate.predict,
        lambda run, data, output, **options: gate.gate(run, output, data=data, **options),
    ):
        with pytest.raises(ConfigError, match=r"a\.gated\.fcs: would replace an input file"):
            write(folder / "run.h5", [tmp_path / "a.fcs", source], tmp_path, **given)
    assert source.read_bytes() == before


def test_changed_data_are_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("a.fcs", "b.fcs"):
        shutil.copy(folder / name, tmp_path / name)
    settings = config(tmp_path, "run.h5", mcmc={"burn_in": 0, "draws": 1})
    run_mcmc(settings)
    simulation.cytometry_like(SIZES[1], seed=3).write(tmp_path / "b.fcs")
    with pytest.raises(
        DataError, match=r"run\.h5: the data have changed since this run started: .* with --data$"
    ):
        gate.gate(tmp_path / "run.h5", tmp_path / "out", engine=ON_CPU)
    (tmp_path / "b.fcs").unlink()
    with pytest.raises(ConfigError, match=r"b\.fcs"):
        gate.gate(tmp_path / "run.h5", tmp_path / "out", engine=ON_CPU)
    assert not (tmp_path / "out").exists()


def test_a_file_without_the_channels_of_the_run(folder: Path, tmp_path: Path) -> None:
    np.savetxt(tmp_path / "x.csv", np.ones((5, 2)), delimiter=",", header="CD3,CD4", comments="")
    with pytest.raises(DataError, match=r"x\.csv: has no channel .*, which the run has"):
        gate.predict(folder / "run.h5", [tmp_path / "x.csv"], tmp_path / "out", engine=ON_CPU)


# ---------------------------------------------------------------------------- proportions


def test_proportions_have_the_mean_of_the_memberships(folder: Path, gated: Gating) -> None:
    table = events(folder / "all")
    n_populations = gated.n_populations
    for s, name in enumerate(gated.samples):
        shares = listed(table[table["sample"] == name])
        n_events = len(shares)
        wanted = (shares.sum(axis=0) + 1.0 / n_populations) / (n_events + 1.0)  # one event from the prior
        draws = gated.proportions[:, s]
        error = draws.std(axis=0, ddof=1) / np.sqrt(len(draws))
        assert (np.abs(draws.mean(axis=0) - wanted) < 4.5 * error).all()
        np.testing.assert_allclose(draws.sum(axis=1), 1.0)
    assert np.abs(gated.proportions[:, 0] - gated.proportions[:, 1]).mean() > 0.005  # the samples differ


def test_one_verdict_in_the_report_the_files_and_predict(
    folder: Path, gated: Gating, predicted: Gating
) -> None:
    sentence = str(gated.verdict)
    assert gated.verdict.is_known
    assert str(predicted.verdict) == sentence
    assert SampleDraws.read(folder / "all").verdict == sentence
    assert sentence in html.unescape((folder / "all" / "report.html").read_text(encoding="utf-8"))


def test_means_of_proportions_do_not_depend_on_the_draws_for_intervals(
    gated: Gating, folder: Path, tmp_path: Path
) -> None:
    """Means over Dirichlet draws, the wrong version, differ between seeds in the tables' second digit."""
    counts = SampleDraws.read(folder / "all").counts
    wanted = ((counts + 1.0 / gated.n_populations) / (gated.n_events[:, None] + 1.0)).mean(axis=0)
    others = replace(gated, proportions=proportions.posterior(counts, seed=99))
    tables.write_tables(tmp_path, others, np.zeros(5), np.ones(5))
    for at in (folder / "all", tmp_path):
        table = pandas.read_csv(at / "proportions.csv")
        np.testing.assert_allclose(table["proportion"], wanted.ravel(), rtol=1e-5)
        overall = pandas.read_csv(at / "populations.csv")["proportion"]
        means = gated.n_events / gated.n_events.sum() @ wanted
        np.testing.assert_allclose(overall, np.sort(means)[::-1], rtol=1e-5)
    assert (others.estimates.low != gated.estimates.low).mean() > 0.9
    wrong = [one.proportions.mean(axis=0) for one in (gated, others)]
    assert not np.allclose(wrong[0], wrong[1], rtol=1e-3)


def test_labels_are_drawn_and_not_the_most_probable(tmp_path: Path) -> None:
    """A population of 15% that overlaps another is the most probable one for 14.5% of the events."""
    base = normals((0.85, (0.0, 0.0), 1.0), (0.15, (3.5, 0.0), 1.0))
    found = find_populations(write_run(tmp_path / "run.h5", [[base] * 10]), cpu, n_populations=2)
    assert found.n_populations == 2
    n_events = 50_000
    engine = CpuEngine(sample(found.run, found.draws, n_events).astype(np.float32), threads=1)
    ratios = np.ones((10, 2), np.float32)
    shares, _, counts = assign.average_draws(found, engine, 0, n_events, ratios, np.random.default_rng(1), 1)
    wanted = shares.mean(axis=0, dtype=float)
    assert (shares.argmax(axis=1) == 1).mean() < wanted[1] - 0.004
    error = np.sqrt((shares[:, 1] * shares[:, 0]).sum()) / n_events  # for the labels of one draw
    assert (np.abs(counts[:, 1] / n_events - wanted[1]) < 4.0 * error).all()
    assert counts[:, 1].std() > 0.3 * error * n_events


def posterior_draws(n_draws: int, n_events: int, seed: int = 4) -> list[Normals]:
    """Return draws around the truth with the variation of n_events, each with shuffled components."""
    rng = np.random.default_rng(seed)
    draws = []
    for _ in range(n_draws):
        weights = rng.dirichlet(n_events * POPULATIONS.weights)
        scale = 1.0 / np.sqrt(n_events * POPULATIONS.weights)[:, None]
        means = POPULATIONS.means + scale * rng.standard_normal(POPULATIONS.means.shape)
        draws.append(Normals(weights, means, POPULATIONS.covariances).shuffled(rng))
    return draws


def counted(found: Populations, values: Array, n_samples: int, *, as_the_run: bool = False) -> Array:
    """Count drawn populations in every draw, for samples of equal size, int64 [T, S, P]."""
    engine, random = CpuEngine(values.astype(np.float32), threads=1), np.random.default_rng(6)
    n_events, weights = len(values) // n_samples, found.weights
    counts = np.zeros((len(found.draws), n_samples, found.n_populations), np.int64)
    for s in range(n_samples):
        start, stop = s * n_events, (s + 1) * n_events
        ratios = np.ones(weights.shape, np.float32)
        if not as_the_run:
            memberships = [one for one, _ in found.memberships(engine, start, stop)]
            own = proportions.sample_weights(memberships, weights, np.ones(n_events), random)
            ratios = proportions.ratios(own, weights)
        counts[:, s] = assign.average_draws(found, engine, start, stop, ratios, random, 1)[2]
    assert (counts.sum(axis=2) == n_events).all()
    return counts


def coverage(draws: Array, truth: Array | float) -> float:
    _, low, high = interval(draws)
    return float(((low < truth) & (truth < high)).mean())


@pytest.mark.parametrize("n_draws", [20, 40, 100, 400])
def test_nine_in_ten_further_draws_lie_in_an_interval(n_draws: int) -> None:
    """Uniform draws: the coverage is the width. Intervals by numpy's default are narrower."""
    draws = np.random.default_rng(n_draws).random((n_draws, 20_000))
    mean, low, high = interval(draws)
    np.testing.assert_array_equal(mean, draws.mean(axis=0))
    assert (high - low).mean() == pytest.approx(0.9, abs=0.002)
    narrow = np.quantile(draws, (0.05, 0.95), axis=0)
    assert (narrow[1] - narrow[0]).mean() < 0.9 - 1.5 / n_draws


@pytest.mark.parametrize("n_draws", [2, 5, 18, 19])
def test_below_19_draws_the_ends_are_the_extreme_draws(n_draws: int) -> None:
    draws = np.random.default_rng(n_draws).random((n_draws, 20_000))
    _, low, high = interval(draws)
    np.testing.assert_allclose(low, draws.min(axis=0), rtol=1e-12)
    np.testing.assert_allclose(high, draws.max(axis=0), rtol=1e-12)
    assert (high - low).mean() == pytest.approx((n_draws - 1) / (n_draws + 1), abs=0.005)


@pytest.mark.slow
def test_intervals_cover_known_proportions(tmp_path: Path) -> None:
    """120 samples of 60 cells; intervals from the counts alone have much lower coverage."""
    n_samples, n_events = 120, 60
    made = write_run(tmp_path / "run.h5", [posterior_draws(40, 4_000)])
    found = find_populations(made, cpu)
    assert (found.n_populations, len(found.draws)) == (3, 40)
    truth = np.array([0.5, 0.35, 0.15])
    counts = counted(found, sample(made, found.draws, n_samples * n_events), n_samples)
    assert 0.85 < coverage(proportions.posterior(counts, seed=1), truth) < 0.95  # 3 standard errors
    assert coverage(counts / n_events, truth) < 0.6


@pytest.mark.slow
def test_intervals_cover_proportions_that_are_not_those_of_the_run(tmp_path: Path) -> None:
    """A population with 40% of the run and 5% of a sample, 4 standard deviations from the next.

    With the proportions of the run, the estimate would be near 8%.
    """
    n_samples, n_events = 120, 300
    base = normals((0.6, (0.0, 0.0), 1.0), (0.4, (4.0, 0.0), 1.0))
    found = find_populations(write_run(tmp_path / "run.h5", [[base] * 40]), cpu)
    assert found.n_populations == 2
    rng = np.random.default_rng(8)
    rare = rng.random(n_samples * n_events) < 0.05
    values = base.means[rare.astype(int)] + rng.standard_normal((len(rare), 2))
    draws = proportions.posterior(counted(found, values, n_samples), seed=1)[..., 1]
    assert draws.mean() == pytest.approx(0.05, abs=0.005)
    assert 0.82 < coverage(draws, 0.05) < 0.97  # 3 standard errors
    as_the_run = proportions.posterior(counted(found, values, n_samples, as_the_run=True), seed=1)[..., 1]
    assert as_the_run.mean() > 0.07
    assert coverage(as_the_run, 0.05) < 0.6


def test_samples_of_one_and_of_three_events(folder: Path, predicted: Gating, tmp_path: Path) -> None:
    """Each event has the same population as among others, or is uncertain."""
    together = events(folder / "new")
    b = together[together["sample"] == "b.fcs"].reset_index(drop=True)
    raw = flowio.FlowData(folder / "b.fcs")
    values = raw.as_array(preprocess=False)[:3]
    for n_events in (1, 3):
        name = tmp_path / f"few{n_events}.fcs"
        write_fcs(name, values[:n_events].astype(np.float32), raw.pnn_labels, raw.pns_labels)
        few = gate.predict(folder / "run.h5", [name], tmp_path / f"{n_events}", engine=ON_CPU)
        assert few.n_events.tolist() == [n_events]
        table = events(tmp_path / f"{n_events}")
        np.testing.assert_allclose(listed(table).sum(axis=1), 1.0, atol=1e-6)
        same = (table.population == b.population[:n_events]) | (b.probability[:n_events] < 0.9)
        assert same.all()
        np.testing.assert_allclose(few.proportions.sum(axis=2), 1.0)
        assert (few.overall.high - few.overall.low).max() > 0.2  # little is known


def test_the_weights_of_a_large_sample_come_from_some_of_its_events(
    folder: Path, predicted: Gating, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proportions, "MOST_EVENTS", 500)
    monkeypatch.setattr(assign, "BLOCK", 997)
    files = [folder / "a.fcs", folder / "b.fcs"]
    again = gate.predict(folder / "run.h5", files, tmp_path, engine=ON_CPU)
    one, other = events(tmp_path), events(folder / "new")
    np.testing.assert_array_equal(one.log_density, other.log_density)
    assert np.abs(listed(one) - listed(other)).mean() < 2e-3
    assert (listed(one) != listed(other)).any()
    np.testing.assert_allclose(again.proportions.mean(axis=0), predicted.proportions.mean(axis=0), atol=0.01)


# ---------------------------------------------------------------------------- the commands


def dpmix(*arguments: str | Path, code: int = 0) -> Result:
    result = CliRunner().invoke(main, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


@pytest.mark.slow
def test_gate_says_what_it_found(folder: Path) -> None:
    """Bayesian EM has one draw and no intervals."""
    assert run_bem(config(folder, "bem.h5")).completed
    result = dpmix(
        "gate", folder / "bem.h5", "--output", folder / "bem", "--backend", "cpu", "--threads", "1"
    )
    first, *populations, implausible, artefacts, written = result.stdout.splitlines()
    n_populations = len(populations)
    assert first == (
        f"3,000 events in 2 samples, {n_populations} populations at level 2.5 (the default); single draws "
        f"have {n_populations} to {n_populations}"
    )
    table = pandas.read_csv(folder / "bem" / "populations.csv")
    assert table.rhat.isna().all()
    assert table.ess.isna().all()
    for row, line in zip(table.itertuples(), populations, strict=True):
        assert line == f"  {row.population:3d}  {row.proportion:7.2%}  {row.phenotype}"
    assert table.low.isna().all()
    n_implausible = events(folder / "bem").implausible.sum()
    assert implausible == f"implausible events: {n_implausible:,} ({n_implausible / TAKEN:.2%})"
    assert artefacts.endswith("of the events, looks like debris; counted in the proportions")
    assert written == f"written: {folder}/bem; open {folder}/bem/report.html in a browser"
    assert f"{n_populations} populations at level 2.5 (the default), from 1 draws" in result.stderr
    assert files_of(folder / "bem") == EVERYTHING - {
        "events.csv",
        "events.h5ad",
        "a.gated.fcs",
        "b.gated.fcs",
    }


@pytest.mark.usefixtures("no_pictures")
def test_gate_says_whether_chains_agree(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R-hat and ESS are of all 8 draws of each chain, also where 2 are used."""
    given = ("gate", folder / "run.h5", "--draws", "4", "--backend", "cpu", "--output")
    result = dpmix(*given, tmp_path / "agree")
    table = pandas.read_csv(tmp_path / "agree" / "populations.csv")
    assert table.ess.notna().all()
    _, head, *lines = result.stdout.splitlines()[:-3]
    assert head.split() == ["90%", "interval", "R-hat", "ESS", "phenotype"]
    for row, line in zip(table.itertuples(), lines, strict=True):
        assert re.match(r"  +\d+ {2,}\d+\.\d\d% \(\d+\.\d\d% to \d+\.\d\d%\)", line)
        population, *shares = (float(number) for number in re.findall(r"[\d.]+", line)[:4])
        assert population == row.population
        # The table has six digits: a half may be rounded up in one and down in the other.
        assert shares == pytest.approx([100 * x for x in (row.proportion, row.low, row.high)], abs=0.0051)
        assert line.endswith(f"  {row.rhat:5.2f}  {labels.effective_size(row.ess):>4}  {row.phenotype}")
        assert line.index(row.phenotype) == head.index("phenotype")
    assert "Chains agree on all" in result.stderr
    with monkeypatch.context() as patch:
        all_draws = convergence.chain_weights
        patch.setattr(convergence, "chain_weights", lambda *given: all_draws(*given)[:, :7])
        few = dpmix(*given, tmp_path / "few").stderr
    assert "Chains were not compared: 8 draws of each are needed, and there are 7." in few
    bad = {"r_hat": np.full(len(table), 3.0), "ess": np.full(len(table), 2.0)}
    monkeypatch.setattr(convergence, "mixing_of", lambda weights: mixing_of(weights)._replace(**bad))
    apart = dpmix(*given, tmp_path / "apart", "--quiet")
    assert apart.stdout == ""
    line, few = apart.stderr.splitlines()
    assert few.startswith("warning: the 90% intervals are from 4 draws, and contain")
    assert line.startswith(
        f"warning: Chains agree on none of {len(table)} populations. They differ about 1, "
    )


@pytest.mark.slow
def test_gate_draws_a_map_of_some_events(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding, "MOST_EVENTS", 300)
    monkeypatch.setattr(embedding, "available", lambda: True)
    options = ["--data", folder / "b.fcs", "--draws", "2", "--backend", "cpu"]
    dpmix("gate", folder / "run.h5", "--output", tmp_path, *options)
    assert {"figures/map.png", "figures/map.pdf"} < files_of(tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert 'id="plot-map"' in page
    assert "300 of 1,500 events" in page


@pytest.mark.usefixtures("no_pictures")
def test_options_of_gate(folder: Path, tmp_path: Path) -> None:
    options = ["--draws", "4", "--populations", "2", "--format", "csv", "--format", "fcs", "--memberships"]
    run_file, out = folder / "run.h5", tmp_path / "out"
    result = dpmix(
        "gate", run_file, "--output", out, "--data", folder / "b.fcs", *options, "--backend", "cpu"
    )
    assert result.stdout.startswith("1,500 events in 1 sample, 2 populations at level ")
    assert (
        "(2 populations requested, with only some of the merges at this height); single draws have 2 to 2"
        in result.stdout
    )
    assert " to " in result.stdout.splitlines()[2]  # an interval
    assert {"events.csv", "b.gated.fcs"} < files_of(out)
    assert not (out / "events.parquet").exists()
    assert list(pandas.read_csv(out / "events.csv"))[-2:] == ["p1", "p2"]
    again = dpmix("gate", run_file, "--output", out, "--data", folder / "b.fcs", *options, code=2)
    assert again.stdout == ""
    assert "--overwrite to replace" in again.stderr
    quiet = dpmix("gate", run_file, "--output", out, *options, "--overwrite", "--quiet", "--backend", "cpu")
    assert quiet.stdout == ""
    (warning,) = quiet.stderr.splitlines()
    assert warning.startswith("warning: the 90% intervals are from 4 draws")


@pytest.mark.usefixtures("no_pictures")
def test_a_run_that_is_not_complete_is_a_warning(folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "part.h5"
    sweeps = iter([False] * 64)  # 60 of burn-in, and 4 draws
    assert not run_mcmc(config(folder, str(run)), should_stop=lambda: next(sweeps, True)).completed
    options = ["--draws", "4", "--backend", "cpu", "--quiet"]
    for command in (["gate", run], ["predict", run, folder / "b.fcs"]):
        said = dpmix(*command, "--output", tmp_path / str(command[0]), *options).stderr
        line = next(line for line in said.splitlines() if "not complete" in line)
        assert re.match(
            r"warning: the run is not complete: [1-7] of 8 draws were available; dpmix mcmc ", line
        )
        assert line.endswith("part.h5 --resume continues a stopped run")


def test_predict_says_how_much_is_implausible(folder: Path, tmp_path: Path) -> None:
    files = [folder / "b.fcs", folder / "a.fcs"]
    result = dpmix(
        "predict", folder / "run.h5", *files, "--output", tmp_path, "--draws", "4", "--backend", "cpu"
    )
    table = events(tmp_path)
    lines = []
    for name, n_events in (("b.fcs", 1_500), ("a.fcs", 2_500)):
        n = table.implausible[table["sample"] == name].sum()
        lines.append(f"{name}: {n_events:,} events, {n} implausible ({n / n_events:.2%}), misfit ")
    *shown, written = result.stdout.splitlines()
    assert written == f"written: {tmp_path}"
    assert [line[: len(start)] for line, start in zip(shown, lines, strict=True)] == lines
    assert all(re.search(r"misfit \d\.\d% \(limit \d+\.\d%\)$", line) for line in shown)
    assert files_of(tmp_path) == {"events.parquet", "fit.csv"}


@pytest.mark.parametrize("command", ["gate", "predict"])
def test_help_and_usage(folder: Path, tmp_path: Path, command: str) -> None:
    text = dpmix(command, "--help").stdout
    assert f"dpmix {command} run.h5" in text.split("Examples:")[1]
    given = [command, folder / "run.h5", *([folder / "a.fcs"] if command == "predict" else [])]
    both = dpmix(*given, "--output", tmp_path / "out", "--level", "3", "--populations", "4", code=2)
    assert "--level and --populations both cut the tree; give one of them" in both.stderr
    for wrong in (["--draws", "0"], ["--level", "-1"], ["--populations", "0"], ["--format", "xlsx"]):
        assert wrong[0] in dpmix(*given, "--output", tmp_path / "out", *wrong, code=2).stderr
    assert "--output" in dpmix(*given, code=2).stderr
    given[1] = tmp_path / "none.h5"
    missing = dpmix(*given, "--output", tmp_path / "out", code=1)
    assert missing.stderr.startswith(f"dpmix: {tmp_path}/none.h5: ")
    assert len(missing.stderr.splitlines()) == 1
    given[1] = folder / "a.fcs"
    assert "dpmix: " in dpmix(*given, "--output", tmp_path / "out", code=1).stderr
    assert not (tmp_path / "out").exists()


def test_predict_needs_files(folder: Path, tmp_path: Path) -> None:
    assert "FILES" in dpmix("predict", folder / "run.h5", "--output", tmp_path, code=2).stderr
    lacking = dpmix("predict", folder / "run.h5", tmp_path / "x.fcs", "--output", tmp_path / "out", code=2)
    assert lacking.stderr.startswith("dpmix: ")
    assert "x.fcs" in lacking.stderr


# ---------------------------------------------------------------------------- decisions made by hand


@pytest.fixture(scope="module")
def decided(folder: Path) -> tuple[Path, Gating]:
    """Gate into the folder `decided`: the two largest populations merged and named, another coloured."""
    forest = find.forest_of(prepare(folder / "run.h5", engine=ON_CPU).run, cpu)
    begun = decide.start(forest, find.DRAWS)
    unions = decide.decided(forest, begun).unions
    merged = tuple(sorted({*unions[0], *unions[1]}))
    for action in (
        Merge(populations=unions[:2]),
        Name(population=merged, name="not B"),
        Colour(population=unions[2], colour=30),
    ):
        begun = decide.act(forest, begun, action)
    path = decisions_path(folder / "run.h5")
    write_decisions(path, begun)
    formats = ("parquet", "fcs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "write_figures", lambda *given: None)
        given = gate.gate(
            folder / "run.h5", folder / "decided", formats=formats, decisions=path, engine=ON_CPU
        )
    return path, given


def test_decisions_name_merge_and_colour_populations(
    folder: Path, gated: Gating, decided: tuple[Path, Gating]
) -> None:
    """Merged populations have the events and the draws of the proportions of both."""
    given = decided[1]
    assert given.n_populations == gated.n_populations - 1
    assert given.names == ("not B", *[""] * (given.n_populations - 1))
    p = given.colours.index(30)
    assert given.sizes[:, 0].sum() == pytest.approx(gated.sizes[:, :2].sum(), abs=20)  # at the border
    assert gated.counts is not None
    assert given.counts is not None
    np.testing.assert_allclose(given.counts[..., 0], gated.counts[..., :2].sum(axis=-1), rtol=0.02)
    with (folder / "decided" / "populations.csv").open(encoding="utf-8") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(row["population"]))
    assert [row["name"] for row in rows] == list(given.names)
    kept = [given.labels[0], *range(3, gated.n_populations + 1)]  # the number of the larger one of both
    assert kept[0] in (1, 2)
    assert [int(row["population"]) for row in rows] == list(given.labels) == kept
    listed = events(folder / "decided").population
    assert set(listed) <= set(kept)
    np.testing.assert_array_equal(
        np.bincount(np.searchsorted(kept, listed), minlength=len(kept)), given.sizes.sum(axis=0)
    )
    assert SampleDraws.read(folder / "decided").labels == given.labels
    assert (
        "name" not in csv.DictReader((folder / "all" / "populations.csv").open(encoding="utf-8")).fieldnames
    )
    keywords = flowio.FlowData(str(folder / "decided" / "a.gated.fcs")).text
    assert keywords[f"dpmix_population_{kept[0]}"] == f"{kept[0]} not B"
    assert (json.loads((folder / "decided" / "tree.json").read_text())["names"]) == list(given.names)
    report = (folder / "decided" / "report.html").read_text(encoding="utf-8")
    assert "<b>not B</b>" in report
    assert palette.colour_of(given, p) == palette.PALETTE[30]
    assert report.count(palette.PALETTE[30]) > 3


def test_decisions_of_the_command_line(folder: Path, decided: tuple[Path, Gating], no_pictures: None) -> None:
    path = decided[0]
    done = CliRunner().invoke(
        main, ["gate", str(folder / "run.h5"), "--output", str(folder / "by_cli"), "--decisions", str(path)]
    )
    assert done.exit_code == 0, done.output
    assert re.search(r"^ +[12] .*  not B$", done.output, re.M)
    pandas.testing.assert_frame_equal(events(folder / "by_cli"), events(folder / "decided"))
    arguments = ["gate", str(folder / "run.h5"), "--output", str(folder / "none"), "--decisions", str(path)]
    refused = CliRunner().invoke(main, [*arguments, "--level", "3"])
    assert refused.exit_code == 2
    assert "--decisions includes --level; give one of them" in refused.output


@pytest.mark.usefixtures("real_figures")
@pytest.mark.slow
def test_gates_in_two_threads_of_a_process_give_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures, limits of threads and the style of Matplotlib are shared by the threads of a process."""
    monkeypatch.setattr(figures, "FIGURES", ("heatmap", "tree"))
    with ThreadPoolExecutor(2) as pool:
        made = [
            pool.submit(gate.gate, folder / "run.h5", tmp_path / name, n_draws=4, engine=ON_CPU)
            for name in ("one", "two")
        ]
        for future in made:
            future.result(timeout=300)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two")
    for name in files_of(tmp_path / "one"):
        if not name.endswith((".html", ".nc")):  # with random identifiers, and paths
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
