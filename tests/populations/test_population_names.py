"""Names of populations: known subsets' names, all different, short, nearest neighbours first."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dpmix.populations.events import names
from dpmix.populations.events.names import names_of

Array = npt.NDArray[np.float64]
PLACES = {"-": 0.0, "lo": 2.0, "+/-": 3.0, "+": 4.0, "hi": 6.0}
ENDS = (1.5, 3.5, 5.5)


def named(table: Sequence[str], sizes: Sequence[float], **soft: Sequence[float]) -> list[str]:
    """Return the names of populations with signs such as "CD3+ CD4-", and medians without levels."""
    signs = [dict(_marker(word) for word in row.split()) for row in table]
    channels = [*dict.fromkeys(channel for row in signs for channel in row), *soft]
    middle = np.array([[PLACES[row.get(channel, "-")] for channel in channels] for row in signs])
    for channel, medians in soft.items():
        middle[:, channels.index(channel)] = medians
    width = np.array([[0.8 if row.get(channel) == "+/-" else 0.2 for channel in channels] for row in signs])
    levels = np.repeat(np.array(ENDS)[:, None], len(channels), axis=1)
    levels[:, [channels.index(channel) for channel in soft]] = np.nan
    return list(names_of(middle - width, middle + width, levels, sizes, channels))


def _marker(word: str) -> tuple[str, str]:
    sign = next(sign for sign in ("+/-", "lo", "hi", "+", "-") if word.endswith(sign))
    return word.removesuffix(sign), sign


def markers(name: str) -> set[str]:
    return set(name.replace(",", "").split())


BLOOD = (
    "CD45+ CD3+ CD4+ CD8- CD19- CD56- CD14-",
    "CD45+ CD3+ CD4- CD8+ CD19- CD56- CD14-",
    "CD45+ CD3- CD4lo CD8- CD19- CD56- CD14+",
    "CD45+ CD3- CD4- CD8lo CD19- CD56+ CD14-",
    "CD45+ CD3- CD4- CD8- CD19+ CD56- CD14-",
    "CD45+ CD3+ CD4+ CD8- CD19- CD56+ CD14-",
)


def test_the_subsets_of_blood() -> None:
    found = [markers(name) for name in named(BLOOD, [40, 25, 15, 10, 8, 0.5])]
    assert found[0] == {"CD3+", "CD4+"}, "its small subset with CD56 has the further marker"
    assert found[1] == {"CD3+", "CD8+"}
    assert found[2] == {"CD14+", "CD4lo"}
    assert found[3] == {"CD56+", "CD8lo"}
    assert "CD19+" in found[4]
    assert found[5] == {"CD3+", "CD4+", "CD56+"}
    assert not any("CD45" in marker for own in found for marker in own), "all have it"


def test_what_separates_a_population_from_its_nearest_neighbour_comes_first() -> None:
    found = named(BLOOD, [40, 25, 15, 10, 8, 0.5])
    assert found[5].startswith("CD56+ ")
    memory = ["CD3+ RO+ CCR7+ B-", "CD3+ RO+ CCR7- B-", "CD3+ RO- CCR7+ B-", "CD3- RO- CCR7- B+"]
    assert named(memory, [30, 20, 30, 20])[1].startswith("CCR7- ")


def test_a_large_neighbour_makes_a_negative_marker_part_of_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = ["CD3+ CCR7+ CD27+", "CD3+ CCR7- CD27+", "CD3- CCR7- CD27-"]
    assert "CCR7-" in markers(named(memory, [30, 20, 50])[1])
    assert "CCR7-" not in markers(named(memory, [1, 60, 39])[1]), "the neighbour is small"
    monkeypatch.setattr(names, "OTHERS", np.inf)  # wrong: no matter whom the name fits
    assert "CCR7-" not in markers(named(memory, [30, 20, 50])[1])


def test_a_population_that_differs_in_no_valley() -> None:
    """The cells of an experiment that answer: the same signs as all others, and more of one cytokine."""
    cells = ["CD45RO+ CD27+", "CD45RO- CD27+", "CD45RO+ CD27-", "CD45RO+ CD27+"]
    found = named(cells, [40, 30, 29, 1], TNFa=[0.0, 0.0, 0.0, 5.0])
    assert found[0] == "CD45RO+ CD27+"
    assert found[3] == "TNFa higher, CD45RO+ CD27+"
    assert len(set(found)) == 4


def test_no_two_names_are_the_same_and_none_is_empty() -> None:
    random = np.random.default_rng(1)
    for n, dim in ((1, 1), (2, 1), (9, 1), (40, 2), (40, 6), (25, 12)):
        middle = random.choice([0.0, 2.0, 4.0, 6.0], (n, dim)) + 0.1 * random.normal(size=(n, dim))
        for ends in (ENDS, (np.nan, 3.5, np.nan), (np.nan,) * 3):
            levels = np.repeat(np.array(ends)[:, None], dim, axis=1)
            given = random.integers(1, 1000, n), [f"M{d}" for d in range(dim)]
            found = names_of(middle - 0.2, middle + 0.2, levels, *given)
            assert len(set(found)) == n
            assert all(name.strip() for name in found)


def test_names_without_levels_or_events() -> None:
    nan = float("nan")
    alone = names_of([[1.0]], [[2.0]], [[nan], [nan], [nan]], [10], ["CD3"])
    assert alone == ("all events",)
    two = names_of([[1.0], [3.0], [nan]], [[2.0], [4.0], [nan]], [[nan], [nan], [nan]], [20, 10, 0], ["CD3"])
    assert two == ("CD3 lower", "CD3 higher", "no events")
    same = names_of([[1.0]] * 3, [[1.0]] * 3, [[nan], [nan], [nan]], [3, 2, 1], ["CD3"])
    assert len(set(same)) == 3


def test_names_are_short() -> None:
    random = np.random.default_rng(2)
    channels = [f"CD{number}" for number in random.integers(10, 300, 30)]
    middle = random.choice([0.0, 4.0], (20, 30))
    levels = np.repeat(np.array((np.nan, 3.5, np.nan))[:, None], 30, axis=1)
    found = names_of(middle - 0.2, middle + 0.2, levels, random.integers(1, 1000, 20), channels)
    assert max(map(len, found)) <= 40


def test_a_marker_is_named_without_its_dye() -> None:
    found = names_of(
        [[0.0], [4.0]], [[1.0], [5.0]], [[np.nan], [3.0], [np.nan]], [1, 1], ["CD4 PerCP-Cy5-5-A"]
    )
    assert found == ("CD4-", "CD4+")
    found = names_of([[0.0], [4.0]], [[1.0], [5.0]], [[np.nan], [3.0], [np.nan]], [1, 1], ["PE-Cy7-A"])
    assert found == ("PE-Cy7-A-", "PE-Cy7-A+")


# ------------------------------------------------------------------------------------ real events

MOUSE = {
    "CD4 T cells": {"CD4+", "CD3+"},
    "CD8 T cells": {"CD8+", "CD3+"},
    "B cells": {"CD19+"},
    "NK cells": {"NK1/1+", "CD3-"},
    "NK T cells": {"NK1/1+", "CD3+"},
    "gd T cells": {"TCRyd+", "CD3+"},
}


def test_the_gates_of_the_mouse_sample_are_named_as_a_biologist_would(shared_data: Path) -> None:
    """Quartiles come from the gates, levels from normals fitted to each of them."""
    from dpmix.config.data import DataConfig
    from dpmix.inputs.preprocess import prepare
    from dpmix.populations.events.phenotypes import levels, quartiles_of

    channels = ["CD3", "CD4", "CD8", "CD19", "NK1/1", "TCRyd", "CD45"]
    file = str(shared_data / "labelled/flowsom_68983.fcs")
    events = prepare(DataConfig.model_validate({"files": [file], "channels": channels}), shared_data, 1)
    x = events.scaling.to_transformed(events.values)
    with open(shared_data / "labelled/flowsom_68983_labels.csv", newline="") as text:
        gates = np.array([row[-1] for row in csv.reader(text) if row])
    own = [x[gates == gate] for gate in MOUSE]
    sizes = [len(part) for part in own]
    moments = np.array([part.mean(axis=0) for part in own]), np.array([np.cov(part.T) for part in own])
    found = levels(sizes, *moments, range(len(own)))
    numbers = np.repeat(range(len(own)), sizes)
    lower, upper = quartiles_of(np.concatenate(own), numbers, len(own))
    for (gate, wanted), name in zip(
        MOUSE.items(), names_of(lower, upper, found, sizes, channels), strict=True
    ):
        assert wanted <= markers(name), f"{gate}: {name}"
        assert not any("CD45" in marker for marker in markers(name))


@pytest.mark.parametrize("name", ["CD3+ CD4+", "CD3+ CD8+"])
def test_names_of_real_cells_have_their_lineage(shared_data: Path, name: str) -> None:
    """Mass cytometry whose gates are named: the largest T cells, with 25 markers to choose from."""
    from dpmix.populations.events.phenotypes import levels, quartiles_of

    with np.load(shared_data / "labelled/pbmc_cytomem.npz") as file:
        x, gates = np.arcsinh(file["events"] / 15.0), file["labels"].astype(int)
        channels = [str(channel) for channel in file["channels"]]
    own = [x[gates == gate] for gate in range(1, 8)]
    sizes = [len(part) for part in own]
    moments = np.array([part.mean(axis=0) for part in own]), np.array([np.cov(part.T) for part in own])
    lower, upper = quartiles_of(x[gates > 0], gates[gates > 0] - 1, 7)
    found = names_of(lower, upper, levels(sizes, *moments, range(7)), sizes, channels)
    which = 0 if "CD4+" in name else 1
    assert set(name.split()) <= markers(found[which]), found
    assert len(found[which]) <= 40
    assert len(set(found)) == 7


def test_a_level_hi_is_written_in_all_names_or_in_none() -> None:
    cells = ["CD56hi CD16+ CD3-", "CD56hi CD16- CD3-", "CD56+ CD16- CD3+", "CD56- CD16- CD3+"]
    found = named(cells, [40, 30, 20, 10])
    used = {
        marker
        for name in found
        for marker in markers(name)
        if marker.startswith("CD56") and marker[-1] != "-"
    }
    assert used <= {"CD56hi", "CD56+"}
    for name, row in zip(found, cells, strict=True):
        if "CD56hi" in row and any(marker.startswith("CD56") for marker in markers(name)):
            assert ("CD56hi" in markers(name)) == ("CD56hi" in used)
