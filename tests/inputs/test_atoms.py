"""Atoms: which values are atoms, their treatment, and that the treatment is reproducible."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats
from test_preprocess import LINEAR, events_of, save
from whole_runs import StopAfter, a_config, assert_identical

from dpmix import open_run
from dpmix.errors import DataError
from dpmix.inputs import atoms, blocks
from dpmix.inputs.atoms import Atom, find, normals, spread
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.transforms import Scaling, Transform
from dpmix.runs.mcmc import run_mcmc

Array = npt.NDArray[np.float64]
RAW = {"standardize": False, "transform": LINEAR}


def same(values: Array) -> Array:
    return values


def found(values: npt.ArrayLike, mode: str = "report") -> tuple[Atom, ...]:
    return find(np.asarray(values, np.float32)[:, None], mode, [same])[0]


def values_of(values: npt.ArrayLike) -> list[float]:
    return [atom.value for atom in found(values)]


# ---------------------------------------------------------------------------------- definition

N = 20_000


def random(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def two_populations(n: int = N) -> Array:
    return np.r_[random().normal(100, 20, n // 2), random(2).normal(700, 60, n - n // 2)]


def ten_bits(values: Array) -> Array:
    return np.clip(np.round(values), 0, 1023)


def linearised(stored: npt.ArrayLike) -> Any:
    stored = np.asarray(stored, np.float64)
    return 10 ** (4 * stored / 1024)


def coarse_grid_in_a_fine_one() -> Array:
    """Make ten-bit numbers of a logarithm on a scale of 3,500, and compensated values on the fine scale."""
    coarse = np.round(np.round(two_populations() / 7) * 7)
    return np.where(random(3).random(N) < 0.6, coarse, np.round(two_populations()))


NO_ATOMS = {
    "normal": random().normal(size=N),
    "few events": random().normal(size=50),
    "many events": random().gamma(2, 5000, 600_000),
    "two populations": two_populations(),
    "a narrow one": np.r_[random().normal(size=N), random().normal(3, 1e-4, N)],
    "heavy tails": random().standard_cauchy(N),
    "integers": ten_bits(two_populations()),
    "few integers": ten_bits(two_populations(300)),
    "even integers": np.repeat(np.arange(1024), 20),
    "linearised integers": linearised(ten_bits(two_populations())),
    "counts": random().poisson(3, N),
    "two grids": coarse_grid_in_a_fine_one(),
    "rounded to two decimals": np.round(random().normal(size=N), 2),
    "rounded to three digits": [float(f"{x:.3g}") for x in random().lognormal(3, 2, N)],
    "threshold": ten_bits(two_populations())[ten_bits(two_populations()) >= 90],
}


@pytest.mark.parametrize("name", NO_ATOMS)
def test_frequent_values_among_frequent_values_are_not_atoms(name: str) -> None:
    assert values_of(NO_ATOMS[name]) == []


BITS = ten_bits(two_populations())
ATOMS = {
    "clipped below": (np.maximum(random().normal(size=N), -1.5), [-1.5]),
    "clipped above and below": (np.clip(random().normal(size=N), -1, 2.5), [-1, 2.5]),
    "clipped fluorescence": (np.minimum(random().lognormal(9, 2, N), 262_143), [262_143]),
    "clipped in few events": (np.maximum(random().normal(size=50), -0.5), [-0.5]),
    "zero-heavy": (np.where(random().random(N) < 0.54, 0, random(2).exponential(8, N)), [0]),
    "zero inside": (np.where(random().random(N) < 0.1, 0, random(2).normal(size=N)), [0]),
    "clipped integers": (ten_bits(1.5 * two_populations() - 150), [0, 1023]),
    "clipped decades": (linearised(ten_bits(1.5 * two_populations() - 150)), [1, linearised(1023)]),
    "one in a thousand": (np.r_[random().normal(size=N), [0.25] * 21], [0.25]),
    "two side by side": (np.r_[BITS, [1022] * 800, [1023] * 9000], [1022, 1023]),
    "zero-heavy counts": (np.where(random().random(N) < 0.9, 0, random(2).poisson(2, N)), [0]),
    "nothing else": (np.repeat([0, 1, 2], 1000), [0, 1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("name", ATOMS)
@pytest.mark.parametrize("scale", [same, np.arcsinh, lambda x: x / 1024])
def test_values_far_more_frequent_than_their_neighbours_are_atoms(
    name: str, scale: Callable[[Array], Array]
) -> None:
    values, expected = ATOMS[name]
    x = scale(np.asarray(values, np.float64))
    assert [atom.value for atom in found(x)] == list(scale(np.array(expected, float)).astype(np.float32))
    assert [atom.events for atom in found(x)] == [
        int((np.asarray(values, np.float32) == np.float32(value)).sum()) for value in expected
    ]


def test_a_handful_of_events_is_not_an_atom() -> None:
    base = random().normal(size=100)
    assert values_of(np.r_[base, [0.5] * 8]) == []
    assert values_of(np.r_[base, [0.5] * 9]) == [0.5]
    assert values_of(np.r_[random().normal(size=N), [0.5] * 19]) == []  # less than 1 in 1,000


def test_atoms_are_searched_in_some_events_and_counted_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.maximum(random().normal(size=N), -1)
    monkeypatch.setattr(atoms, "SAMPLE", 1000)
    assert found(values) == (Atom(-1.0, int((values == -1).sum()), "kept", 0.0),)
    assert [a.events for a in found(values[:1001])] == [int((values[:1001] == -1).sum())]


# -------------------------------------------------------------------------------- the treatment


def spread_of(values: npt.ArrayLike, mode: str, **options: Any) -> tuple[Array, tuple[Atom, ...]]:
    column = np.array(values, np.float32)
    there = found(column, mode, **options)
    spread(column, np.array([a.value for a in there]), there, 1, np.arange(len(column)))
    return column.astype(np.float64), there


def test_dithered_events_move_by_a_little_normal_noise_and_no_others_move() -> None:
    values = np.clip(random().normal(size=N), -0.5, 1).astype(np.float32)
    moved, (low, high) = spread_of(values, "dither")
    sd = values.std()
    for atom in (low, high):
        at = values == np.float32(atom.value)
        assert atom.treatment == "dithered"
        assert atom.width == pytest.approx(0.03 * sd, rel=1e-3)
        assert stats.kstest((moved[at] - atom.value) / atom.width, "norm").pvalue > 1e-4
    plain = (values > -0.5) & (values < 1)
    np.testing.assert_array_equal(moved[plain], values[plain])


@pytest.mark.parametrize("clip", [-1.5, -0.5, 0.3])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_tail_continues_the_density_of_the_events_inside(clip: float, side: int) -> None:
    n = 200_000
    values = side * np.maximum(random().normal(size=n), clip)
    moved, (atom,) = spread_of(values, "tail")
    limit = np.float32(side * clip)
    at = values.astype(np.float32) == limit
    assert atom.treatment == ("tail below" if side > 0 else "tail above")
    out = side * (limit - moved[at])
    assert out.min() >= 0
    assert stats.kstest(out / atom.width, "halfnorm").pvalue > 1e-4
    np.testing.assert_array_equal(moved[~at], values.astype(np.float32)[~at])
    if atom.width < 0.49 * values.std():  # not held back by the greatest width
        reach = 0.05 * values.std()
        beyond, inside = (out < reach).sum(), (np.abs(moved[~at] - limit) < reach).sum()
        assert abs(beyond / inside - 1) < 0.2


@pytest.mark.parametrize("widest", [0.1, 0.25])
def test_one_number_limits_the_width_of_every_tail(widest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atoms, "WIDEST", widest)
    for values in (np.r_[np.zeros(N), random().normal(10, 1, N)], np.maximum(random().normal(size=N), -0.5)):
        assert spread_of(values, "tail")[1][0].width == pytest.approx(widest * values.std(), rel=1e-3)


def test_a_tail_is_at_most_half_a_standard_deviation_wide() -> None:
    values = np.r_[np.zeros(N), random().normal(10, 1, N)]
    _, (atom,) = spread_of(values, "tail")
    assert atom.treatment == "tail below"
    assert atom.width == pytest.approx(0.5 * values.std(), rel=1e-3)
    narrow = np.maximum(random().normal(size=N), -1.5)
    assert spread_of(narrow, "tail")[1][0].width < 0.4 * narrow.std()
    assert spread_of(np.repeat([0, 1, 2], 1000), "tail")[1][2].width == pytest.approx(
        0.5 * np.sqrt(2 / 3), rel=1e-3
    )


def test_only_an_atom_at_a_limit_gets_a_tail() -> None:
    values = np.r_[random().normal(size=N), [0.25] * 2000]
    _, (atom,) = spread_of(values, "tail")
    assert (atom.treatment, atom.width) == ("dithered", spread_of(values, "dither")[1][0].width)
    two_atoms = np.r_[np.maximum(random().normal(size=N), -1), [-0.99] * 2000]
    alone, (tail, inner) = spread_of(two_atoms[:N], "tail")[1][0], spread_of(two_atoms, "tail")[1]
    assert (tail.treatment, inner.treatment) == ("tail below", "dithered")
    assert tail.width == pytest.approx(alone.width, rel=0.1)  # other atoms do not count for its density
    some_beyond = np.r_[np.maximum(random().normal(size=N), -1), [-1.1] * 5]
    assert spread_of(some_beyond, "tail")[1][0].treatment == "tail below"
    too_many = np.r_[np.maximum(random().normal(size=N), -1), random().normal(-1.5, 0.1, 500)]
    assert spread_of(too_many, "tail")[1][0].treatment == "dithered"
    counts = np.where(random().random(N) < 0.4, 0, random(2).exponential(8, N))
    assert spread_of(counts, "tail")[1][0].treatment == "tail below"


def test_an_event_is_moved_once() -> None:
    step = float(normals(1, np.array([0]))[0])
    column = np.zeros(1, np.float32)
    onto_the_next = (Atom(0.0, 1, "dithered", 1 / step), Atom(1.0, 1, "dithered", 5.0))
    spread(column, np.array([0.0, 1.0]), onto_the_next, 1, np.array([0]))
    assert column[0] == 1


# --------------------------------------------------------------------------------- events of files


def sample_values(n: int = 3000, seed: int = 1) -> npt.NDArray[np.float32]:
    """Make four channels: clipped at both ends, clipped at 0, with an atom inside, without atoms."""
    x = random(seed).normal(100, 40, (n, 4)).astype(np.float32)
    x[:, 0] = np.clip(x[:, 0], 30, 150)
    x[:, 1] = np.maximum(x[:, 1] - 80, 0)
    x[random(seed + 1).random(n) < 0.2, 2] = 110
    return x


NAMES = ["CD3", "CD4", "CD8", "CD19"]
TREATED = ("dither", "tail")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tmp_path, "a.npz", sample_values(), NAMES)
    save(tmp_path, "b.npz", sample_values(2000, seed=5), NAMES)
    return tmp_path


def test_report_changes_no_bit(folder: Path) -> None:
    values = sample_values()
    np.testing.assert_array_equal(events_of(folder, "a.npz", atoms="report", **RAW).values, values)
    events = events_of(folder, "a.npz", atoms="report", transform={"default": {"method": "arcsinh"}})
    assert [len(channel) for channel in events.scaling.atoms] == [2, 1, 1, 0]
    transformed = np.arcsinh(values.astype(np.float64) / 150).astype(np.float32)
    means = transformed.sum(0, dtype=np.float64) / len(values)
    sds = np.sqrt(np.square(transformed - means).sum(0) / len(values))
    np.testing.assert_array_equal(events.values, ((transformed - means) / sds).astype(np.float32))


def test_atoms_are_reported_with_their_treatment(folder: Path) -> None:
    values = sample_values()
    counts = [int((values[:, j] == v).sum()) for j, v in ((0, 30), (0, 150), (1, 0), (2, 110))]
    shares = [
        f"{count:,} at {v} ({count / 3000:.2%})" for count, v in zip(counts, (30, 150, 0, 110), strict=True)
    ]
    low, high, zero, inside = (
        f"{name} {x}" for name, x in zip(("CD3", "CD3", "CD4", "CD8"), shares, strict=True)
    )
    head = "atoms (many events at one value), "
    kept = f"{head}unchanged (data.atoms: dither or tail spreads them)"
    expected = {
        "report": [f"{kept}: {low}; {high}; {zero}; {inside}"],
        "dither": [f"{head}dithered by 0.03 standard deviations: {low}; {high}; {zero}; {inside}"],
        "tail": [
            f"{head}spread as a tail below the limit: {low}; {zero}",
            f"{head}spread as a tail above the limit: {high}",
            f"{head}dithered by 0.03 standard deviations: {inside}",
        ],
    }
    for mode, lines in expected.items():
        events = events_of(folder, "a.npz", atoms=mode, **RAW)
        assert [line for line in events.report.lines() if "atoms" in line] == lines
        assert tuple(channel.atoms for channel in events.report.channels) == events.scaling.atoms
        stored = json.loads(json.dumps(asdict(events.report)))
        assert [a["events"] for channel in stored["channels"] for a in channel["atoms"]] == counts
    save(folder, "c.npz", sample_values()[:, 3:], ["CD19"])
    assert not any("atoms" in line for line in events_of(folder, "c.npz", atoms="tail").report.lines())


@pytest.mark.parametrize("mode", TREATED)
def test_what_is_spread_is_standardised_after_it(folder: Path, mode: str) -> None:
    before = (folder / "a.npz").read_bytes()
    events = events_of(folder, "a.npz", atoms=mode)
    np.testing.assert_allclose(events.values.mean(0, dtype=np.float64), 0, atol=1e-6)
    np.testing.assert_allclose(events.values.std(0, dtype=np.float64), 1, atol=1e-6)
    assert all(len(np.unique(column)) > 2900 for column in events.values.T)
    assert (folder / "a.npz").read_bytes() == before


@pytest.mark.parametrize("mode", TREATED)
def test_only_events_at_atoms_are_moved_each_by_its_own_noise(folder: Path, mode: str) -> None:
    values, events = sample_values(), events_of(folder, "a.npz", atoms=mode, **RAW)
    for j, channel in enumerate(events.scaling.atoms):
        at = np.isin(values[:, j], [atom.value for atom in channel])
        np.testing.assert_array_equal(events.values[~at, j], values[~at, j])
        assert (events.values[at, j] != values[at, j]).all()
    noise = [
        (events.values[:, j] - values[:, j])[(values[:, 1] == 0) & (values[:, 2] == 110)] for j in (1, 2)
    ]
    assert abs(np.corrcoef(*noise)[0, 1]) < 0.5  # channels have noise of their own


@pytest.mark.parametrize("mode", TREATED)
def test_neither_blocks_nor_the_order_of_files_nor_channels_change_a_bit(
    folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"atoms": mode, **RAW}
    events = events_of(folder, "a.npz", "b.npz", **settings)
    other_order = events_of(folder, "b.npz", "a.npz", **settings)
    np.testing.assert_array_equal(other_order.values, np.r_[events.values[3000:], events.values[:3000]])
    fewer = events_of(folder, "a.npz", "b.npz", channels=["CD8", "CD3"], **settings)
    np.testing.assert_array_equal(fewer.values, events.values[:, [2, 0]])
    monkeypatch.setattr(blocks, "READ_BLOCK", 64)
    np.testing.assert_array_equal(events_of(folder, "a.npz", "b.npz", **settings).values, events.values)


@pytest.mark.parametrize("mode", TREATED)
@pytest.mark.parametrize(
    "fewer", [{"max_events": 1500}, {"max_events": 1500, "seed": 2}, {"margin_events": "drop"}]
)
def test_a_row_has_the_same_noise_in_a_part_of_the_events(
    folder: Path, mode: str, fewer: dict[str, Any]
) -> None:
    whole = events_of(folder, "a.npz", "b.npz", atoms=mode, **RAW)
    part = events_of(folder, "a.npz", "b.npz", atoms=mode, **fewer, **RAW)
    assert part.rows is not None
    places = part.rows + np.repeat([0, 3000], np.diff(part.sample_starts))
    inside = 2  # CD8; of the others the margin events are dropped, or tails differ in width
    (mine,), (all_of_them,) = part.scaling.atoms[inside], whole.scaling.atoms[inside]
    mine_noise = (part.values[:, inside] - 110.0) / mine.width
    noise = (whole.values[places, inside] - 110.0) / all_of_them.width
    raw = np.r_[sample_values(), sample_values(2000, seed=5)][places, inside]
    assert (raw == 110).sum() > 100
    np.testing.assert_allclose(mine_noise[raw == 110], noise[raw == 110], atol=1e-4)
    np.testing.assert_array_equal(part.values[raw != 110, inside], raw[raw != 110])


def test_the_zero_of_a_mass_cytometer_is_a_limit_like_any_other(tmp_path: Path) -> None:
    values = np.where(random().random((N, 1)) < 0.4, 0, random(2).exponential(8, (N, 1))).astype(np.float32)
    write_fcs(tmp_path / "mass.fcs", values, ["Nd142Di"], keywords={"$CYT": "CyTOF"})
    write_fcs(tmp_path / "flow.fcs", values, ["PE-A"], keywords={"$CYT": "LSRII"})
    for name in ("mass.fcs", "flow.fcs"):
        ((atom,),) = events_of(tmp_path, name, atoms="tail").scaling.atoms
        assert atom.treatment == "tail below"


@pytest.mark.parametrize("mode", ["report", *TREATED])
def test_a_constant_channel_is_refused_all_the_same(tmp_path: Path, mode: str) -> None:
    values = sample_values()
    values[:, 3] = 5
    save(tmp_path, "a.npz", values, NAMES)
    with pytest.raises(DataError, match="constant in all 3000 events: CD19"):
        events_of(tmp_path, "a.npz", atoms=mode, channels=["CD*"])


def test_spreading_needs_memory_for_the_atoms_of_a_chunk_only() -> None:
    """Rows far apart, as in a small subset of a large file, and many rows in one block."""
    scaling = Scaling(("x",), (Transform(),), np.zeros(1), np.ones(1), ((Atom(0.0, 1, "dithered", 1.0),),))
    for rows in (np.arange(2000) * 10**7, np.arange(2000)):
        values = np.zeros((2000, 1), np.float32)
        tracemalloc.start()
        scaling.spread_atoms(values, [1], rows)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20
        assert (values != 0).all()


# ---------------------------------------------------------------------------------------- whole runs

SHORT = {"chains": 1, "burn_in": 1, "draws": 4, "thin": 1}


def clipped_run(folder: Path, output: str, mode: str) -> Any:
    values = np.maximum(random().normal(size=(1000, 3)), -0.5).astype(np.float32)
    np.save(folder / "events.npy", values)
    data = {"files": [str(folder / "events.npy")], "atoms": mode}
    return a_config(folder, output, mcmc=SHORT, data=data)


def test_a_run_keeps_the_treatment_and_resumes_only_with_the_same(tmp_path: Path) -> None:
    whole = run_mcmc(clipped_run(tmp_path, "whole.h5", "tail")).path
    record = open_run(whole)
    scaling = Scaling.from_attributes(record.scaling)
    assert [a.treatment for channel in scaling.atoms for a in channel] == ["tail below"] * 3
    report = json.loads(json.dumps(record.attributes["report"]))
    report = json.loads(report) if isinstance(report, str) else report
    assert [channel["atoms"] for channel in report["channels"]] == record.scaling["atoms"]

    config = clipped_run(tmp_path, "part.h5", "tail")
    part = run_mcmc(config, should_stop=StopAfter(2)).path
    for mode in ("report", "dither"):
        with pytest.raises(DataError, match="the data have changed since this run started"):
            run_mcmc(clipped_run(tmp_path, "part.h5", mode), resume=True)
    run_mcmc(config, resume=True)
    assert_identical(whole, part)


# ---------------------------------------------------------------------------------------- real files

REAL = {
    "labelled/gvhd_flowcap1.npz": [("FSC.H", 1023), ("SSC.H", 1023)] + [(f"FL{k}.H", 0) for k in range(1, 5)],
    "labelled/multicenter_cytof_01-08.npz": [(f"ch{k}", 0) for k in (0, 1, 3, 4, 5, 6, 7)],
    "labelled/barcode_flowpeaks.npz": [],
    "labelled/pbmc_cytomem.npz": [],
    "labelled/dlbcl_flowcap1.csv": [],
    "labelled/hipc_stanford_1228.npz": [],
    "labelled/flowsom_68983.fcs": [],
    "fcs/100715.fcs": [],
    "fcs/G69019FF_CMVpp65_CD4.fcs": [],
    "fcs/3FITC_4PE_004.fcs": [("FSC-H", 1023), ("SSC-H", 1023), ("FL1-H", 1), ("FL2-H", 1)],
    "fcs_odd/flowcal_Data001.fcs": [
        *(("FSC-H", 1023), ("SSC-H", 1023), ("FL1-H", 1)),
        *(("FL2-H", 1), ("FL2-H", 9822), ("FL2-H", 9910), ("FL3-H", 9910)),  # 1022 and 1023 of four decades
    ],
}


@pytest.mark.parametrize("name", REAL)
def test_atoms_of_real_samples(shared_data: Path, name: str) -> None:
    """Only clipped and zero-heavy channels have atoms: floats, integers, ten bits, rounded logarithms."""
    reported = events_of(shared_data, name, channels=["[!l]*"], compensation="none")  # all but the label
    there = [(c.channel, round(atom.value)) for c in reported.report.channels for atom in c.atoms]
    assert there == REAL[name]
