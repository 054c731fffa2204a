"""Numbers of populations follow their proportions, on a real sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import dpmix

pytestmark = pytest.mark.slow

NEAR = 0.03  # populations whose proportions differ by less may have their numbers in the other order


def test_numbers_are_in_the_order_of_the_proportions(shared_data: Path) -> None:
    anndata = pytest.importorskip("anndata")
    with np.load(shared_data / "labelled" / "gvhd_flowcap1.npz") as file:
        values = file["events"][:6_000].astype(np.float32)
        channels = [str(channel) for channel in file["channels"]]
    adata = anndata.AnnData(values)
    adata.var_names = channels
    dpmix.gate_anndata(adata, chains=2, burn_in=40, draws=20, components=40, progress=False, random_state=1)
    table = adata.uns["dpmix"]["populations"]
    assert table.population.tolist() == [str(number) for number in range(1, len(table) + 1)]
    shares = table.proportion.to_numpy()
    assert len(shares) > 2
    assert (shares[1:] <= (1.0 + NEAR) * shares[:-1]).all()
