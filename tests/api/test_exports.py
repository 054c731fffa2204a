"""The names of the package."""

from __future__ import annotations

import subprocess
import sys

import pytest

import dpmix


def test_every_exported_name_is_there() -> None:
    assert set(dpmix.__all__) <= set(dir(dpmix))
    for name in dpmix.__all__:
        assert getattr(dpmix, name) is not None


def test_unknown_names_are_errors() -> None:
    with pytest.raises(AttributeError, match="module 'dpmix' has no attribute 'run_mcm'"):
        dpmix.run_mcm  # noqa: B018


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    script = (
        "import sys, dpmix; dir(dpmix); print(*({*sys.modules} & {'numpy', 'h5py', 'pydantic', 'scipy'}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_simulate_makes_both_kinds() -> None:
    assert dpmix.simulate(100).events.shape == (100, 14)
    made = dpmix.simulate(100, kind="model", channels=3, components=4, seed=2)
    assert made.events.shape == (100, 3)
    assert made.means.shape == (4, 3)
    assert (made.events == dpmix.simulate(100, kind="model", channels=3, components=4, seed=2).events).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"channels": 3}, 'apply to kind="model" only'),
        ({"kind": "model", "spill": False}, 'applies to kind="cytometry" only'),
        ({"kind": "model", "drift": ["slow"]}, 'drift applies to kind="cytometry" only'),
        ({"drift": ["fast"]}, r"drift is \['fast'\]; each must be one of slow, step, bubble, clog"),
        ({"drift": "slow"}, r'drift is "slow"; it must be a list, as \["slow"\]'),
        ({"drift": ["slow"], "drift_size": float("nan")}, "drift_size is nan; it must be a finite number"),
        ({"kind": "model", "channels": 0}, "must be at least 1"),
        ({"kind": "blood"}, 'must be "cytometry" or "model"'),
        ({"n_events": 0}, "need 1 or more"),
    ],
)
def test_simulate_names_what_is_wrong(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dpmix.simulate(**arguments)  # type: ignore[arg-type]
