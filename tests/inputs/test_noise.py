"""The noise of atoms: what it depends on, and what it does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pandas
import pytest
from scipy import stats
from test_preprocess import LINEAR, events_of, save
from whole_runs import a_config, contents

from dpmix import open_run
from dpmix.config.data import DataConfig
from dpmix.inputs import transforming
from dpmix.inputs.atoms import content_keys, normals
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.preprocess import prepare
from dpmix.inputs.storage import Storage, is_in_file
from dpmix.runs.mcmc import run_mcmc

Values = npt.NDArray[np.float32]
RAW: dict[str, Any] = {"standardize": False, "transform": LINEAR}
NAMES = ["CD3", "CD4", "CD8"]
TREATED = ("dither", "tail")


def clipped(n: int = 1000, seed: int = 1) -> Values:
    """Make three channels, two of them with an atom at 0."""
    x = np.random.default_rng(seed).normal(1, 2, (n, 3)).astype(np.float32)
    x[:, :2] = np.maximum(x[:, :2], 0)
    return x


# ------------------------------------------------------------------------------------ normal numbers


def test_the_noise_of_a_row_does_not_depend_on_other_rows() -> None:
    rows = np.r_[0:40_000, 10**9, 2**40]
    noise = normals(3, rows)
    shuffled = np.random.default_rng(1).permutation(len(rows))
    np.testing.assert_array_equal(normals(3, rows[shuffled]), noise[shuffled])
    for i in (0, 5, 16_383, 16_384, 39_999, 40_000, 40_001):
        np.testing.assert_array_equal(normals(3, rows[[i, i]]), noise[[i, i]])
    assert len(np.unique(noise)) == len(rows)
    assert len(normals(3, rows[:0])) == 0


def test_the_noise_is_the_same_in_every_version(tmp_path: Path) -> None:
    """A run that is resumed or gated with a later version needs the events of its start."""
    noise = normals(0x36A5C4F13817793BFFFFFFFFFFFFFFFF, np.array([0, 1, 16_383, 16_384, 10**9]))
    expected = [-0.3531480354405, -1.9451953053505, -0.0675751919243, -1.9925398725648, 0.0135781059902]
    np.testing.assert_allclose(noise, expected, rtol=1e-11)
    values = np.c_[np.r_[np.zeros(12), 1:5], np.arange(16) ** 2].astype(np.float32)
    save(tmp_path, "a.npz", values, ["CD3", "CD4"])
    events = events_of(tmp_path, "a.npz", atoms="dither", **RAW)
    width = events.scaling.atoms[0][0].width
    expected = [0.48331917, -0.11302821, 0.20629499, 0.22238096, 0.17181645, 0.78636427]
    np.testing.assert_allclose(events.values[:6, 0] / width, expected, rtol=1e-6)


def test_the_noise_is_normal_and_differs_between_contents_and_copies() -> None:
    rows = np.arange(100_000)
    keys = [*content_keys([b"one", b"two", b"one", b"one"]), 1, 2, 1 << 64]
    noise = np.array([normals(key, rows) for key in keys])
    for one in noise:
        assert stats.kstest(one, "norm").pvalue > 1e-4
    within = np.corrcoef(noise) - np.eye(len(keys))
    assert np.abs(within).max() < 5 / np.sqrt(len(rows))
    later = [np.corrcoef(one[:-step], one[step:])[0, 1] for one in noise for step in (1, 4)]
    assert np.abs(later).max() < 5 / np.sqrt(len(rows))


# ------------------------------------------------------------------------------------ content


def as_csv(path: Path, values: Values) -> None:
    table = pandas.DataFrame(np.where(values == 0, np.float32(-0.0), values), columns=["x", "y", "z"])
    table.insert(1, "label", "T cell")
    table.to_csv(path, index=False, float_format="%.9g")


def as_hdf5(path: Path, values: Values) -> None:
    with h5py.File(path, "w") as file:
        file["cells"] = values.astype(np.float64)
        file["cells"].attrs["channels"] = ["B", "A", "C"]


def as_h5ad(path: Path, values: Values) -> None:
    anndata = pytest.importorskip("anndata")
    anndata.AnnData(values, var=pandas.DataFrame(index=["p", "q", "r"])).write_h5ad(path)


def as_parquet(path: Path, values: Values) -> None:
    pandas.DataFrame(values, columns=["one", "two", "three"]).to_parquet(path, row_group_size=300)


WRITERS: dict[str, Callable[[Path, Values], None]] = {
    "a.npy": np.save,
    "b.npy": np.save,
    "by_column.npy": lambda path, values: np.save(path, np.asfortranarray(values)),
    "cells.csv": as_csv,
    "cells.fcs": lambda path, values: write_fcs(path, values, ["PE-A", "APC-A", "FITC-A"]),
    "cells.h5": as_hdf5,
    "cells.h5ad": as_h5ad,
    "cells.parquet": as_parquet,
}


@pytest.mark.parametrize("mode", TREATED)
@pytest.mark.parametrize("name", WRITERS)
def test_neither_seeds_nor_names_nor_formats_change_a_bit(tmp_path: Path, name: str, mode: str) -> None:
    values = clipped()
    save(tmp_path, "events.npz", values, NAMES)
    expected = events_of(tmp_path, "events.npz", atoms=mode, **RAW).values
    assert (expected[:, :2] != values[:, :2]).any(axis=0).all()
    WRITERS[name](tmp_path / name, values)
    (tmp_path / "table.csv").write_text(f"file,sample\n{name},donor 7\n")
    for seed, given in ((1, {"files": [name]}), (2, {"files": [name]}), (3, {"samples": "table.csv"})):
        numbers = {"channels": ["[!l]*"]} if name == "cells.csv" else {}  # all but the text column
        settings = DataConfig.model_validate({"atoms": mode, **RAW, **given, **numbers})
        found = prepare(settings, tmp_path, seed).values
        np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))


def test_events_in_a_file_have_the_noise_of_events_in_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", clipped(100_000))
    settings = DataConfig.model_validate({"files": ["a.npy"], "atoms": "tail"})
    in_file = prepare(settings, tmp_path, 1, Storage(tmp_path, limit=1)).values
    assert is_in_file(in_file)
    np.testing.assert_array_equal(in_file, prepare(settings, tmp_path, 1).values)


def test_another_value_in_a_channel_changes_the_noise_of_this_channel(tmp_path: Path) -> None:
    values = clipped()
    save(tmp_path, "a.npz", values, NAMES)
    values[-1, 0] += 1
    save(tmp_path, "b.npz", values, NAMES)
    one, other = (events_of(tmp_path, name, atoms="dither", **RAW) for name in ("a.npz", "b.npz"))
    at = values[:, 0] == 0
    widths = [events.scaling.atoms[0][0].width for events in (one, other)]
    noise = one.values[at, 0] / widths[0], other.values[at, 0] / widths[1]
    assert abs(np.corrcoef(*noise)[0, 1]) < 5 / np.sqrt(at.sum())
    np.testing.assert_array_equal(one.values[:, 1:], other.values[:, 1:])


def noise_of_equal_channels(folder: Path) -> float:
    """Return the correlation of the noise in two channels that are 0 in all rows of one of two samples."""
    values = clipped(2000)
    save(folder, "a.npz", values, NAMES)
    unstained = values.copy()
    unstained[:, :2] = 0
    save(folder, "unstained.npz", unstained, NAMES)
    events = events_of(folder, "a.npz", "unstained.npz", atoms="dither", **RAW)
    return float(np.corrcoef(events.values[2000:, :2].T)[0, 1])


def test_channels_with_the_same_values_have_different_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert abs(noise_of_equal_channels(tmp_path)) < 5 / np.sqrt(2000)
    monkeypatch.setattr(transforming, "content_keys", lambda digests: [content_keys([d])[0] for d in digests])
    assert noise_of_equal_channels(tmp_path) > 0.99  # a key without the number of the copy would be seen


def test_samples_with_the_same_values_have_the_same_noise(tmp_path: Path) -> None:
    save(tmp_path, "a.npz", clipped(), NAMES)
    save(tmp_path, "b.npz", clipped(), NAMES)
    values = events_of(tmp_path, "a.npz", "b.npz", atoms="dither", **RAW).values
    np.testing.assert_array_equal(values[:1000], values[1000:])


# ------------------------------------------------------------------------------------ whole runs

SHORT = {"chains": 1, "burn_in": 1, "draws": 4, "thin": 1}


def run_of(folder: Path, file: str, output: str, **sections: Any) -> Any:
    data = {"files": [str(folder / file)], "atoms": "tail"}
    return a_config(folder, output, mcmc=SHORT, data=data, **sections)


def test_a_file_under_another_name_gives_the_same_draws(tmp_path: Path) -> None:
    for name in ("a.npy", "b.npy"):
        np.save(tmp_path / name, clipped())
    one, other = (contents(run_mcmc(run_of(tmp_path, f"{k}.npy", f"{k}.h5")).path) for k in "ab")
    assert {name for name in one if one[name] != other[name]} == {"constant_data/sample"}
    reseeded = open_run(run_mcmc(run_of(tmp_path, "a.npy", "c.h5", seed=6)).path)
    first = open_run(tmp_path / "a.h5")
    assert reseeded.attributes["data_hash"] == first.attributes["data_hash"]  # the same events
    assert reseeded.scaling == first.scaling
    assert not np.array_equal(reseeded.weights, first.weights)
