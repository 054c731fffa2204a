"""FCS files that deviate from the standard are read right, with a warning, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from test_fcs import channel_keywords, make_fcs

from dpmix.cli import main
from dpmix.runs.reader import open_run

SETTINGS = "model: {components: 4}\nmcmc: {burn_in: 2, draws: 3}\nengine: {backend: cpu, threads: 1}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dpmix(*arguments: str) -> Result:
    result = CliRunner().invoke(main, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


# ------------------------------------------------------------------------ where a warning is shown


def test_a_warning_is_shown_by_every_command_and_stored(folder: Path) -> None:
    events = np.random.default_rng(1).normal(100, 20, (300, 2)).astype("<f4")
    keywords = channel_keywords([32, 32], ["1024", "1024"], "F", n_events=len(events))
    make_fcs(folder / "a.fcs", events.tobytes(), keywords, header_data=(70, 90))
    (folder / "run.yaml").write_text(f"data: {{files: [a.fcs]}}\n{SETTINGS}")
    warning = "a.fcs: HEADER and TEXT disagree"
    assert f"warning: {warning}" in dpmix("mcmc", "run.yaml", "--quiet").output
    (stored,) = open_run("run.h5").data_warnings
    assert stored.startswith(warning)
    assert f"warning: {warning}" in dpmix("info", "run.h5").output
    assert "warning: HEADER and TEXT disagree" in dpmix("info", "a.fcs").output
    assert f"warning: {warning}" in dpmix("gate", "run.h5", "--output", "gated", "--quiet").output
    assert warning in (folder / "gated" / "report.html").read_text()
    dpmix("init", "a.fcs", "--output", "new.yaml")
    assert "# warning: HEADER and TEXT disagree" in (folder / "new.yaml").read_text()
