"""Scatter and viability: which channels they are, and that they are read for the events of the model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dpmix.config.data import DataConfig
from dpmix.inputs.channel import Channel
from dpmix.inputs.preprocess import Recorded, prepare, prepare_like
from dpmix.inputs.quality_channels import quality_roles


def roles(kind: str | None, *names: str) -> dict[str, str]:
    """Return the detector in each role; a name is detector or detector=marker."""
    details = tuple(Channel(*name.split("=")) for name in names)
    source: Any = SimpleNamespace(details=details, kind=kind)
    return {role: details[k].detector for role, k in quality_roles(source).items()}


@pytest.mark.parametrize(
    ("kind", "names", "found"),
    [
        (
            "fluorescence",
            ("Time", "FSC-A", "FSC-H", "FSC-W", "SSC-H", "SSC-A", "AmCyan-A=l/d", "APC-A=CD3"),
            {"size": "FSC-A", "height": "FSC-H", "side": "SSC-A", "dead": "AmCyan-A"},
        ),
        ("fluorescence", ("FSC-H", "SSC-H", "FL1-H=CD4"), {"size": "FSC-H", "side": "SSC-H"}),
        ("fluorescence", ("FS", "SS", "FL1=CD4"), {"size": "FS", "side": "SS"}),
        ("fluorescence", ("FSC-W", "SSC-W", "B-A=CD4"), {}),
        (
            "fluorescence",
            ("FSC-A", "FSC-H", "V-H=Zombie", "V-A=Zombie"),
            {"size": "FSC-A", "height": "FSC-H", "dead": "V-A"},
        ),
        (None, ("CD3", "FSC-A", "SSC-A"), {"size": "FSC-A", "side": "SSC-A"}),
        ("mass", ("Event_length", "Ir191Di=DNA1", "Pt195Di=Cisplatin", "Er170Di=CD3"), {"dead": "Pt195Di"}),
        ("mass", ("Event_length", "Ir191Di", "Er170Di=CD3"), {}),
        (None, ("a", "b"), {}),
    ],
)
def test_channels_in_their_roles(kind: str | None, names: tuple[str, ...], found: dict[str, str]) -> None:
    assert roles(kind, *names) == found


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Write two files with scatter; FSC-A is CD3 plus 100."""
    random = np.random.default_rng(1)
    for name in ("a.csv", "b.csv"):
        values = random.lognormal(2.0, 1.0, (400, 4)).round(3)
        values[:, 2] = values[:, 0] + 100.0
        np.savetxt(
            tmp_path / name, values, delimiter=",", header="CD3,CD4,FSC-A,SSC-A", comments="", fmt="%.3f"
        )
    return tmp_path


@pytest.mark.parametrize("most", [None, 300])
def test_values_are_those_of_the_events_of_the_model(files: Path, most: int | None) -> None:
    settings = DataConfig.model_validate({"files": ["a.csv", "b.csv"], "max_events": most})
    events = prepare(settings, files, 1, with_quality=True)
    assert events.quality is not None
    assert events.quality.roles == ("size", "side")
    assert events.channels == ("CD3", "CD4")
    assert events.state is None
    np.testing.assert_allclose(
        events.quality.measured.values[:, 0],
        events.measured(np.arange(len(events.values)))[:, 0] + 100.0,
        atol=2e-4,
    )
    plain = prepare(settings, files, 1)
    assert (plain.data_hash, plain.quality) == (events.data_hash, None)
    again = prepare(settings, files, 1, None, Recorded(events.detectors, events.scaling), True)
    assert again.quality is not None
    np.testing.assert_array_equal(again.quality.measured.values, events.quality.measured.values)


def test_other_files_may_lack_scatter(files: Path) -> None:
    """Then nothing is judged, and a warning says so."""
    settings = DataConfig.model_validate({"files": ["a.csv"]})
    events = prepare(settings, files, 1)
    (files / "c.csv").write_text("CD3,CD4\n" + "1,2\n3,5\n7,1\n" * 5)
    new = prepare_like(settings, files, ["c.csv"], events.scaling, events.detectors, with_quality=True)
    assert new.quality is None
    both = prepare_like(
        settings, files, ["b.csv", "c.csv"], events.scaling, events.detectors, with_quality=True
    )
    assert both.quality is None
    assert any("scatter and viability are not used: c.csv" in text for text in both.report.warnings)
