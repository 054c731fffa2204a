"""Decisions made by hand about the populations of a run: their file, and what each action does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_find import cpu, normals, write_run

from dpmix.errors import ConfigError
from dpmix.populations.draws.decide import Decided, act, decided, split, start
from dpmix.populations.draws.find import decided_populations, find_populations, forest_of
from dpmix.populations.draws.forest import Forest
from dpmix.populations.tree.decisions import (
    LONGEST_NAME,
    Colour,
    Cut,
    Decisions,
    Merge,
    Name,
    Split,
    decisions_path,
    read_decisions,
    write_decisions,
)
from dpmix.populations.tree.tree import Tree

# Five populations: two pairs at 5 standard deviations, the pairs 20 apart, and one 60 away.
PLACES = ((0.35, 0.0), (0.25, 5.0), (0.2, 25.0), (0.12, 30.0), (0.08, 90.0))


@pytest.fixture(scope="module")
def forest(tmp_path_factory: pytest.TempPathFactory) -> Forest:
    mixture = normals(*((weight, (place, 0.0), 1.0) for weight, place in PLACES))
    rng = np.random.default_rng(1)
    path = tmp_path_factory.mktemp("decide") / "run.h5"
    return forest_of(write_run(path, [[mixture.shuffled(rng) for _ in range(6)]]), cpu)


@pytest.fixture
def begun(forest: Forest) -> Decisions:
    return start(forest, 100)


def weights(forest: Forest, chosen: Decided) -> list[float]:
    return decided_populations(forest, chosen).weights.mean(axis=0).round(6).tolist()


def test_without_actions_the_populations_are_those_of_gate(forest: Forest, begun: Decisions) -> None:
    plain = find_populations(forest.run, cpu)
    found = find_populations(forest.run, cpu, decisions=begun)
    assert found.n_populations == 5
    assert found.why == plain.why == "the default"
    assert found.names == ("",) * 5
    assert found.colours == (0, 1, 2, 3, 4)
    for name in ("modes", "components", "order", "support", "of_points", "agreement"):
        np.testing.assert_array_equal(getattr(found, name), getattr(plain, name))


def test_a_cut_is_the_one_of_the_command_line(forest: Forest, begun: Decisions) -> None:
    for cut, given in ((Cut(populations=3), {"n_populations": 3}), (Cut(level=8.0), {"level": 8.0})):
        found = find_populations(forest.run, cpu, decisions=act(forest, begun, cut))
        plain = find_populations(forest.run, cpu, **given)
        np.testing.assert_array_equal(found.components, plain.components)
        assert (found.level, found.why) == (plain.level, plain.why)


def test_merging_adds_weights_and_splitting_takes_them_apart(forest: Forest, begun: Decisions) -> None:
    unions = decided(forest, begun).unions
    merged = act(forest, begun, Merge(populations=(unions[0], unions[4])))  # not neighbours in the tree
    both = decided(forest, merged)
    assert weights(forest, both) == [0.43, 0.25, 0.2, 0.12]
    assert both.labels == (1, 2, 3, 4)
    assert both.why == "the default; then 1 merge by hand"
    apart = decided(forest, act(forest, merged, Split(population=both.unions[0])))
    assert weights(forest, apart) == [0.35, 0.25, 0.2, 0.12, 0.08]
    assert apart.why == "the default; then 1 merge and 1 split by hand"


def test_a_split_is_at_the_highest_merge_inside(forest: Forest, begun: Decisions) -> None:
    one = act(forest, begun, Cut(populations=1))
    (everything,) = decided(forest, one).unions
    parts = decided(forest, act(forest, one, Split(population=everything)))
    assert weights(forest, parts) == [0.92, 0.08]
    again = decided(
        forest, act(forest, one.then(Split(population=everything)), Split(population=parts.unions[0]))
    )
    assert weights(forest, again) == [0.6, 0.08, 0.32]  # the smaller side has the next free number


def test_a_population_without_a_valley_is_not_split() -> None:
    ripples = Tree(
        np.arange(3), np.zeros((3, 1)), np.zeros(3), np.array([[2, 1], [1, 0]]), np.array([0.0, 4.0])
    )
    assert split(ripples, frozenset({0, 1, 2})) == ({1, 2}, {0})
    with pytest.raises(ValueError, match="no valley inside it"):
        split(ripples, frozenset({1, 2}))


def test_a_merge_keeps_numbers_and_colours_of_the_others(forest: Forest, begun: Decisions) -> None:
    unions = decided(forest, begun).unions
    merged = act(forest, begun, Merge(populations=(unions[4], unions[2])))
    both = decided(forest, merged)  # the third has 0.28 now, more than the second
    assert both.unions == [unions[0], unions[1], tuple(sorted(unions[2] + unions[4])), unions[3]]
    assert both.labels == (1, 2, 3, 4)
    assert both.colours == (0, 1, 2, 3)
    first = decided(forest, act(forest, begun, Merge(populations=(unions[0], unions[1]))))
    assert first.unions[1:] == [*unions[2:]]
    assert first.labels == (1, 3, 4, 5)
    assert first.colours == (0, 2, 3, 4)
    found = decided_populations(forest, first)
    assert (found.labels, found.colours) == (first.labels, first.colours)
    again = act(forest, begun, Merge(populations=(unions[3], unions[4])))
    third = act(forest, again, Merge(populations=(decided(forest, again).unions[3], unions[1])))
    assert decided(forest, third).labels == (1, 2, 3), "the number of the largest part"
    apart = decided(forest, act(forest, merged, Split(population=both.unions[2])))
    assert apart.unions == unions
    assert apart.labels == (1, 2, 3, 4, 5)
    assert apart.colours == (0, 1, 2, 3, 4)
    one = act(forest, begun, Cut(populations=2))
    halves = decided(forest, act(forest, one, Split(population=decided(forest, one).unions[0])))
    assert halves.unions[1] == decided(forest, one).unions[1], "the smaller side has the next free number"
    assert halves.colours == (0, 1, 2)


def test_names_and_colours_belong_to_a_set_of_modes(forest: Forest, begun: Decisions) -> None:
    unions = decided(forest, begun).unions
    named = act(forest, begun, Name(population=unions[1], name=" T  cells "))
    named = act(forest, named, Colour(population=unions[1], colour=0))
    assert decided(forest, named).names == ("", "T cells", "", "", "")
    assert decided(forest, named).colours == (5, 0, 2, 3, 4)  # no two alike
    coarse = act(forest, named, Cut(populations=2))
    assert decided(forest, coarse).names == ("", "")
    back = act(forest, coarse, Cut())
    assert decided(forest, back).names == ("", "T cells", "", "", "")
    merged = act(forest, back, Merge(populations=(unions[1], unions[4])))
    assert decided(forest, merged).names[1] == "T cells"
    assert decided(forest, act(forest, named, Name(population=unions[1], name=""))).names == ("",) * 5
    assert decided(forest, act(forest, named, Colour(population=unions[1], colour=None))).colours[1] == 1


def test_merged_populations_join_their_names(forest: Forest, begun: Decisions) -> None:
    unions = decided(forest, begun).unions

    def name_of_merge(*names: str) -> str:
        """Name the first populations, then merge the first two of them."""
        named = begun
        for union, name in zip(unions, names, strict=False):
            named = act(forest, named, Name(population=union, name=name))
        merged = act(forest, named, Merge(populations=(unions[0], unions[1])))
        return decided(forest, merged).names[0]

    assert name_of_merge("B cells", "Plasma cells") == "B cells + Plasma cells"
    assert name_of_merge("B", "T", "B + T") == ""  # another population has this name
    long = name_of_merge("B" * 40, "T" * 40)
    assert long == f"{'B' * 40} + {'T' * 16}…"
    assert len(long) == LONGEST_NAME


def test_undoing_gives_what_was_before(forest: Forest, begun: Decisions) -> None:
    unions = decided(forest, begun).unions
    merged = act(forest, begun, Merge(populations=unions[:2]))
    assert merged.undone() == begun


@pytest.mark.parametrize(
    ("action", "problem"),
    [
        (Merge(populations=((0,), (0,))), "cannot be merged with itself"),
        (Split(population=(0,)), "no valley inside it"),
        (Split(population=(0, 99)), "no population has the modes 0, 99"),
        (Cut(level=1.0, populations=2), "not both"),
        (Name(population=(0,), name="a\u0007b"), "printable"),
    ],
)
def test_impossible_actions_are_one_line(
    forest: Forest, begun: Decisions, action: Merge | Split | Cut | Name, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        act(forest, begun, action)


def test_two_populations_have_different_names(forest: Forest, begun: Decisions) -> None:
    first, second = decided(forest, begun).unions[:2]
    named = act(forest, begun, Name(population=first, name="B cells"))
    with pytest.raises(ConfigError, match="B cells is the name of another population"):
        act(forest, named, Name(population=second, name="B cells"))


def test_the_file_gives_the_decisions_back(tmp_path: Path, forest: Forest, begun: Decisions) -> None:
    unions = decided(forest, begun).unions
    for decisions in (
        begun,
        act(forest, begun, Name(population=unions[0], name='γδ "T"')).then(Cut(level=3.0)),
    ):
        write_decisions(tmp_path / "one.json", decisions)
        assert read_decisions(tmp_path / "one.json") == decisions
    assert decisions_path(tmp_path / "run.h5") == tmp_path / "run.decisions.json"


def test_decisions_about_another_tree_are_refused(forest: Forest, begun: Decisions) -> None:
    other = begun.tree.model_copy(
        update={"levels": tuple(1.01 * (level or 0.0) for level in begun.tree.levels)}
    )
    rounded = begun.tree.model_copy(
        update={"levels": tuple((level or 0.0) * 1.00001 for level in begun.tree.levels)}
    )
    decided(forest, begun.model_copy(update={"tree": rounded}))
    with pytest.raises(ConfigError, match=r"made for another tree of populations than in .*run\.h5"):
        decided(forest, begun.model_copy(update={"tree": other}))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "one.json: the file: "),
        ('{"dpmix_decisions": 2, "draws": 1, "tree": {"merges": [], "levels": []}}', "dpmix_decisions: "),
        (
            '{"draws": 1, "tree": {"merges": [], "levels": []}, "actions": [{"do": "split"}]}',
            "actions.0.split.population: ",
        ),
    ],
)
def test_a_wrong_file_is_one_line_for_each_problem(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "one.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=problem) as caught:
        read_decisions(path)
    assert all(line.startswith(f"--decisions: {path}: ") for line in caught.value.problems)
    with pytest.raises(ConfigError, match=r"none\.json: cannot be read: No such file"):
        read_decisions(tmp_path / "none.json")


def test_the_file_is_small_and_readable(tmp_path: Path, forest: Forest, begun: Decisions) -> None:
    write_decisions(tmp_path / "one.json", begun.then(Cut(populations=3)))
    content = json.loads((tmp_path / "one.json").read_text())
    assert content["actions"] == [{"do": "cut", "level": None, "populations": 3}]
    assert content["draws"] == 100
