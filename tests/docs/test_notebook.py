"""Execute the notebook of the pages, with fewer events and sweeps, and compare what it prints."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import matplotlib as mpl
import pytest
from test_how_to import FOLDER, missing_lines

CELLS = json.loads((FOLDER / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
QUICK = {
    "20_000": "2_000",
    '"seed": 1': '"seed": 1, "mcmc": {"burn_in": 60, "draws": 20, "chains": 2}, "model": {"components": 24}',
}
CHANGES = ("verdict", "table.round", "markers[", "adjusted")  # what these print depends on the draws


@pytest.mark.slow
def test_the_notebook_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    names = {"__name__": "notebook"}
    with contextlib.chdir(tmp_path), mpl.rc_context({"backend": "agg"}):
        for cell in (cell for cell in CELLS if cell["cell_type"] == "code"):
            code, out = "".join(cell["source"]), io.StringIO()
            for written, meant in QUICK.items():
                code = code.replace(written, meant)
            with contextlib.redirect_stdout(out):
                exec(compile(code, "notebook.ipynb", "exec"), names)
            shown = "".join("".join(output.get("text", "")) for output in cell["outputs"])
            if not any(word in code for word in CHANGES):
                assert missing_lines(shown, out.getvalue()) == []


def test_the_notebook_was_saved_after_it_ran_from_top_to_bottom() -> None:
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert all(cell["outputs"] for cell in code)
