"""The known answer of a real cohort: signalling of B cells after cross-linking of their receptor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpmix.association.design import make_design
from dpmix.association.regression import _Likelihood
from dpmix.association.study import median_responses, run_study
from dpmix.config.data import DataConfig
from dpmix.inputs.preprocess import prepare
from dpmix.populations.events.medians import Medians
from dpmix.populations.sample_draws import SampleDraws

KNOWN = {"pS6": 2.75, "pPlcg2": 1.60, "pErk": 1.20}


@pytest.fixture(scope="module")
def gated(shared_data: Path) -> SampleDraws:
    """Gates drawn by hand as populations."""
    folder = shared_data / "cohort_bcrxl"
    settings = DataConfig(samples="samples.csv", state_channels=["p*"], standardize=False)
    events, drawn = prepare(settings, folder, 1), np.load(folder / "gates.npz")
    assert events.state is not None
    many = len(drawn["names"]) - 1
    counts = np.zeros((1, len(events.samples), many), np.int64)
    medians = Medians(1, len(events.samples), many, len(events.state.channels))
    for s, name in enumerate(events.samples):
        gates = drawn["gate"][drawn["sample"] == name].astype(np.int64)
        own = gates > 0
        counts[0, s] = np.bincount(gates[own] - 1, minlength=many)
        values = events.state.values[events.sample_starts[s] : events.sample_starts[s + 1]][own]
        medians.add(s, values.astype(np.float64), np.ones(len(values)), [gates[own] - 1])
    return SampleDraws(
        counts=counts,
        medians=medians.values,
        samples=events.samples,
        phenotypes=tuple(map(str, drawn["names"][1:])),
        channels=events.state.channels,
        columns=events.sample_columns,
        errors=medians.errors,
        n_state=len(events.state.channels),
    )


def test_b_cells_answer(gated: SampleDraws) -> None:
    design = make_design(gated.columns, gated.samples, "~ condition + (1 | donor)", ["BCRXL - Ref"])
    _, effects = run_study(gated, design, 1.1, with_expression=True).effects
    assert effects.converged.all()
    middle, low, high = effects.intervals
    names = [
        (gated.phenotypes[effects.populations[q]], gated.channels[effects.channels[q]])
        for q in effects.order(0.05)
    ]
    for name, known in KNOWN.items():
        (q,) = (
            q
            for q in range(len(middle))
            if gated.phenotypes[effects.populations[q]] == "B" and gated.channels[effects.channels[q]] == name
        )
        assert low[q] < known < high[q], name
    # S6 of monocytes answers, too; NF-kB falls in all cells, less than these rise in B cells.
    assert names[:4] == [("B", "pS6"), ("B", "pPlcg2"), ("Mono", "pS6"), ("B", "pErk")]


def test_markers_of_the_same_donors_vary_together(gated: SampleDraws) -> None:
    """A statement about the cohort in docs/explanation/associations.md."""
    design = make_design(gated.columns, gated.samples, "~ condition + (1 | donor)", ["BCRXL - Ref"])
    medians, variances, _, _ = median_responses(gated, design)
    own = _Likelihood(medians.T, variances.T, design.predictors).start()[1]
    assert medians.shape[1] == 70
    assert 2.0 < 70.0 * own < 10.0


def test_a_panel_of_catalyst_chooses_the_same_channels(shared_data: Path, tmp_path: Path) -> None:
    """R writes row names and quotes; the names of detectors have parentheses and colons."""
    files = [str(path) for path in sorted((shared_data / "cohort_bcrxl").glob("*patient1_*.fcs"))]
    plain = prepare(DataConfig(files=files, state_channels=["p*"]), tmp_path, 1)
    assert plain.state is not None
    classes = [
        (plain.detectors, plain.channels, "type"),
        (plain.state.detectors, plain.state.channels, "state"),
    ]
    rows = [(d, c, kind) for detectors, names, kind in classes for d, c in zip(detectors, names, strict=True)]
    rows.append(("BC1(La139)Dd", "BC1", "none"))
    head = '"","fcs_colname","antigen","marker_class"\n'
    lines = [f'"{k}","{d}","{name}","{kind}"\n' for k, (d, name, kind) in enumerate(rows, 1)]
    (tmp_path / "panel.csv").write_text(head + "".join(lines))
    listed = prepare(DataConfig(files=files, panel="panel.csv"), tmp_path, 1)
    assert listed.state is not None
    assert (listed.data_hash, listed.state.channels) == (plain.data_hash, plain.state.channels)
    np.testing.assert_array_equal(listed.state.values, plain.state.values)
