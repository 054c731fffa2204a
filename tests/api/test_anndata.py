"""AnnData in, AnnData out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anndata
import h5py
import numpy as np
import pandas
import pytest
from scipy.sparse import csr_matrix
from whole_runs import assert_identical

import dpmix
from dpmix.cli import main
from dpmix.config.load import parse_config

SMALL: dict[str, Any] = {
    "components": 8, "chains": 2, "burn_in": 10, "draws": 6, "starts": 2, "max_steps": 20,
    "backend": "cpu", "n_jobs": 1,
}  # fmt: skip
NAMES = ["CD3", "CD4", "CD8"]


def make_adata() -> anndata.AnnData:
    """Three groups of events, the last rare, in three channels; two samples, one without the last group."""
    random = np.random.default_rng(0)
    group = np.sort(random.choice(3, 900, p=[0.6, 0.3, 0.1]))
    centres = np.array([[0.0, 0.0, 0.0], [7.0, 0.0, 3.0], [0.0, 9.0, 9.0]])
    events = (centres[group] + random.normal(size=(900, 3))).astype(np.float32)
    sample = np.where((group == 2) | (random.random(900) < 0.5), "late/ä", "early")
    order = random.permutation(900)
    obs = pandas.DataFrame(
        {"group": group, "sample": pandas.Categorical(sample)}, index=np.arange(900).astype(str)
    )
    made = anndata.AnnData(events, obs=obs, var=pandas.DataFrame(index=NAMES))
    return made[order].copy()


@pytest.fixture
def adata() -> anndata.AnnData:
    return make_adata()


@pytest.fixture(scope="module")
def whole() -> anndata.AnnData:
    """The same object, gated by a run that nothing happened to."""
    adata = make_adata()
    found = dpmix.gate_anndata(adata, copy=True, **SMALL)
    assert found is not None
    assert "population" not in adata.obs
    assert "dpmix" not in adata.uns
    return found


@pytest.mark.parametrize("method", ["mcmc", "bem"])
def test_one_call_gives_each_event_its_population(
    adata: anndata.AnnData, method: Any, tmp_path: Path
) -> None:
    columns = [*adata.obs.columns]
    assert dpmix.gate_anndata(adata, method=method, random_state=3, **SMALL) is None
    assert [*adata.obs.columns] == [
        *columns, "population", "population_probability", "population_entropy", "population_implausible"
    ]  # fmt: skip
    assert adata.obs["population"].cat.categories.tolist() == ["1", "2", "3"]
    agree = pandas.crosstab(adata.obs["group"], adata.obs["population"]).to_numpy()
    assert np.trace(agree) > 0.97 * 900
    assert adata.obs["population_probability"].between(1 / 3, 1 + 1e-6).all()
    about = adata.uns["dpmix"]
    assert (about["method"], about["seed"]) == (method, 3)
    assert parse_config(about["config"], "uns").model.components == 8
    assert about["versions"]["dpmix"] == dpmix.__version__
    verdict = "Bayesian EM gives one estimate" if method == "bem" else "Chains were not compared: 8"
    assert about["verdict"].startswith(verdict)
    table = about["populations"]
    assert table["events"].tolist() == adata.obs["population"].value_counts(sort=False).tolist()
    assert table["low"].isna().all() == (method == "bem")
    assert {"rhat", "ess"} < {*table}
    adata.write_h5ad(tmp_path / "out.h5ad")
    back = anndata.read_h5ad(tmp_path / "out.h5ad")
    pandas.testing.assert_frame_equal(back.obs, adata.obs)
    pandas.testing.assert_frame_equal(back.uns["dpmix"]["populations"], table)
    assert back.uns["dpmix"]["config"] == about["config"]
    assert int(back.uns["dpmix"]["seed"]) == 3


def test_types_go_into_obs(adata: anndata.AnnData, tmp_path: Path) -> None:
    (tmp_path / "types.csv").write_text("cell,parent,CD3,CD4\nbright,,+,-\nrest,,-,\nhigh,rest,,+\n")
    given = {"types": tmp_path / "types.csv", "sample_key": "sample", "random_state": 3, **SMALL}
    dpmix.gate_anndata(adata, **given)
    named = adata.obs["cell_type"].astype(str).to_numpy()
    expected = np.array(["rest", "bright", "high"])[adata.obs["group"]]
    assert (named == expected).mean() > 0.97  # in the order of the object, which mixes samples
    assert adata.obs["cell_type"].cat.categories.tolist() == ["bright", "rest", "high", "unknown"]
    assert adata.obs["cell_type_probability"].between(0.0, 1.0 + 1e-6).all()
    about = adata.uns["dpmix"]
    assert about["populations"]["type"].tolist() == ["rest", "bright", "high"]
    assert about["types"].loc["rest", "proportion"] == pytest.approx(0.7, abs=0.03)
    assert about["types"].loc["high", "parent"] == "rest"
    adata.write_h5ad(tmp_path / "out.h5ad")
    with pytest.raises(ValueError, match="obs has a column group, which the types would replace"):
        dpmix.gate_anndata(adata, type_key="group", key_added="again", **given)
    (tmp_path / "other.csv").write_text("cell,CD4\nhigh,+\n")
    with pytest.raises(dpmix.ConfigError, match="none of its markers is in the panel"):  # before a run
        dpmix.gate_anndata(adata[:, "CD3"].copy(), types=tmp_path / "other.csv", **SMALL)


def test_a_row_that_a_run_would_leave_out_is_refused(adata: anndata.AnnData) -> None:
    adata.X[7, 1] = np.nan
    with pytest.raises(
        dpmix.DataError, match=r"1 values that are not finite in .*, the first in row 7; remove"
    ):
        dpmix.gate_anndata(adata)


def test_results_are_those_of_the_command_line(adata: anndata.AnnData, tmp_path: Path) -> None:
    dpmix.gate_anndata(adata, folder=tmp_path / "kept", **SMALL)
    with h5py.File(tmp_path / "events.h5", "w") as file:
        file["events"], file["channels"] = adata.X, NAMES
    (tmp_path / "run.yaml").write_text(adata.uns["dpmix"]["config"])
    path, out = tmp_path / "cli.h5", tmp_path / "gated"
    main(["mcmc", str(tmp_path / "run.yaml"), "--output", str(path), "--quiet"], standalone_mode=False)
    assert_identical(path, tmp_path / "kept" / "run.h5")
    dpmix.predict(path, [tmp_path / "events.h5"], out)
    events = pandas.read_parquet(out / "events.parquet")
    for name in ("probability", "entropy", "implausible"):
        np.testing.assert_array_equal(adata.obs[f"population_{name}"], events[name])
    np.testing.assert_array_equal(adata.obs["population"].astype(int), events["population"])


def test_samples_have_their_own_proportions(adata: anndata.AnnData, tmp_path: Path) -> None:
    """Their events lie mixed in the object: each gets its own row of the result."""
    dpmix.gate_anndata(adata, sample_key="sample", folder=tmp_path / "kept", **SMALL)
    agree = pandas.crosstab(adata.obs["group"], adata.obs["population"]).to_numpy()
    assert np.trace(agree) > 0.97 * 900
    table = adata.uns["dpmix"]["proportions"]
    assert set(table["sample"]) == {"early", "late/ä"}
    rare = table[table["population"] == "3"].set_index("sample")
    assert rare.loc["early", "proportion"] < 0.02 < 0.1 < rare.loc["late/ä", "proportion"]
    files = sorted(path.name for path in (tmp_path / "kept").glob("[12]-*.h5"))
    assert [name[2:] for name in files if name[0] == "1"] in (["early.h5"], ["late__.h5"])
    adata.write_h5ad(tmp_path / "out.h5ad")
    adata.obs.loc[adata.obs.index[:3], "sample"] = None
    with pytest.raises(ValueError, match="no sample for 3 events"):
        dpmix.gate_anndata(adata, sample_key="sample", **SMALL)


def test_a_folder_with_a_run_keeps_its_events(adata: anndata.AnnData, tmp_path: Path) -> None:
    dpmix.gate_anndata(adata, folder=tmp_path, **SMALL)
    before = (tmp_path / "events.h5").read_bytes()
    with pytest.raises(dpmix.ConfigError, match=r"run\.h5 exists already; use another folder, or resume"):
        dpmix.gate_anndata(adata[:500].copy(), folder=tmp_path, **SMALL)
    assert (tmp_path / "events.h5").read_bytes() == before


def test_the_events_may_be_a_layer_or_a_representation(
    adata: anndata.AnnData, whole: anndata.AnnData
) -> None:
    events, adata.X = adata.X, np.zeros_like(adata.X)
    adata.layers["dense"], adata.layers["sparse"] = events, csr_matrix(events)
    adata.obsm["frame"] = pandas.DataFrame(events, columns=NAMES, index=adata.obs_names)
    adata.obsm["array"] = events
    for given in ({"layer": "sparse"}, {"use_rep": "frame"}, {"use_rep": "array"}):
        found = dpmix.gate_anndata(adata, copy=True, key_added="cells", **given, **SMALL)
        assert found is not None
        np.testing.assert_array_equal(found.obs["cells"], whole.obs["population"])
        # Without names the file is another one, and so are the random numbers of the proportions.
        atol = 0.02 if given == {"use_rep": "array"} else 0.0
        entropies = found.obs["cells_entropy"], whole.obs["population_entropy"]
        np.testing.assert_allclose(*entropies, rtol=0.0, atol=atol)
        assert found.uns["cells"]["level"] == whole.uns["dpmix"]["level"]
    with pytest.raises(ValueError, match="use one of them"):
        dpmix.gate_anndata(adata, layer="dense", use_rep="array", **SMALL)


def test_a_backed_object_is_read(adata: anndata.AnnData, whole: anndata.AnnData, tmp_path: Path) -> None:
    adata.X = csr_matrix(adata.X)
    adata.write_h5ad(tmp_path / "sparse.h5ad")
    backed = anndata.read_h5ad(tmp_path / "sparse.h5ad", backed="r")
    dpmix.gate_anndata(backed, **SMALL)
    np.testing.assert_array_equal(backed.obs["population"], whole.obs["population"])
    backed.file.close()


def test_the_cut_and_the_parameters_are_passed_on(adata: anndata.AnnData) -> None:
    dpmix.gate_anndata(adata, n_populations=2, channels=["CD3", "CD8"], **SMALL)
    assert adata.obs["population"].cat.categories.tolist() == ["1", "2"]
    assert parse_config(adata.uns["dpmix"]["config"], "uns").data.channels == ["CD3", "CD8"]
    with pytest.raises(TypeError, match="has no parameter component, drawz"):
        dpmix.gate_anndata(adata, component=3, drawz=2)  # type: ignore[call-arg]


def test_an_interrupted_run_continues_in_its_folder(
    adata: anndata.AnnData, whole: anndata.AnnData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StopSoon:
        asked = 0

        def __init__(self, signals: object) -> None:
            StopSoon.asked = 0

        def __call__(self) -> bool:
            StopSoon.asked += 1
            return StopSoon.asked > 12

        def __enter__(self) -> StopSoon:
            return self

        def __exit__(self, *_: object) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr("dpmix.api.sampling.Stop", StopSoon)
        with pytest.raises(KeyboardInterrupt, match="resume=True continues"):
            dpmix.gate_anndata(adata, folder=tmp_path, **SMALL)
        with pytest.raises(KeyboardInterrupt, match="with `folder` a stopped run keeps its draws"):
            dpmix.gate_anndata(adata, **SMALL)
    assert "population" not in adata.obs
    assert not dpmix.open_run(tmp_path / "run.h5").complete
    dpmix.gate_anndata(adata, folder=tmp_path, resume=True, **SMALL)
    pandas.testing.assert_frame_equal(adata.obs, whole.obs)
