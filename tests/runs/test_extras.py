"""Libraries of extras: without one, a line that names it, before any work."""

from __future__ import annotations

import sys
from pathlib import Path

import anndata
import numpy as np
import pytest
from test_draws import layout

from dpmix import open_run
from dpmix.errors import ConfigError
from dpmix.inputs.opening import open_source
from dpmix.report.event_files import event_paths
from dpmix.runs.writer import RunWriter


def test_arviz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    RunWriter.create(tmp_path / "run.h5", layout()).close()
    run = open_run(tmp_path / "run.h5")
    monkeypatch.setitem(sys.modules, "arviz", None)
    with pytest.raises(
        ConfigError, match=r"^Run\.arviz\(\) needs arviz .*: pip install 'dpmix-cytometry\[arviz\]'$"
    ):
        run.arviz()


def test_anndata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    anndata.AnnData(np.ones((3, 2), np.float32)).write_h5ad(tmp_path / "events.h5ad")
    monkeypatch.setitem(sys.modules, "anndata", None)
    with pytest.raises(
        ConfigError, match=r"h5ad: .* needs anndata .*pip install 'dpmix-cytometry\[anndata\]'$"
    ):
        open_source(tmp_path / "events.h5ad")
    with pytest.raises(
        ConfigError, match=r"^--format h5ad needs anndata .*pip install 'dpmix-cytometry\[anndata\]'$"
    ):
        event_paths(tmp_path, ["h5ad"], [], [])
