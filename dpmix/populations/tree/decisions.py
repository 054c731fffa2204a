"""Decisions made by hand about the populations of a run: a small JSON file next to the run file.

The file lists the actions in their order, so the last one can be undone: where the tree is cut, and which
populations are merged, split, named or coloured. A population is given by its modes, which have the same
numbers whenever the tree of the run is computed. The file also has the number of draws that the tree was
found with, and the merges of the tree, so that decisions about another tree are recognised.
`dpmix.populations.draws.decide` applies them.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpmix.errors import ConfigError
from dpmix.populations.tree.tree import Tree
from dpmix.system.files import write_text

OPTION = "--decisions"
SUFFIX = ".decisions.json"
LONGEST_NAME = 60
MOST_COLOURS = 60
TOLERANCE = 1e-3  # between heights of the same merge on two machines

NEED = "need a file that dpmix app has written"

Modes = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]


class _Part(BaseModel):
    """A part of the file: unknown keys and values of another type are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Cut(_Part):
    """Cut the tree at a height or into a number of populations; with neither, as `dpmix gate` does.

    Merges and splits before it have no effect any more.
    """

    do: Literal["cut"] = "cut"
    level: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] | None = None
    populations: Annotated[int, Field(ge=1)] | None = None


class Merge(_Part):
    """Merge populations: names are joined, as in "A + B", and a colour that only one of them has is kept."""

    do: Literal["merge"] = "merge"
    populations: Annotated[tuple[Modes, ...], Field(min_length=2)]


class Split(_Part):
    """Split a population at the highest merge of the tree inside it."""

    do: Literal["split"] = "split"
    population: Modes


class Name(_Part):
    """Name a population; an empty name removes the name."""

    do: Literal["name"] = "name"
    population: Modes
    name: Annotated[str, Field(max_length=LONGEST_NAME)]


class Colour(_Part):
    """Give a population a colour of the report, by its number from 0; null restores its default."""

    do: Literal["colour"] = "colour"
    population: Modes
    colour: Annotated[int, Field(ge=0, lt=MOST_COLOURS)] | None


Action = Annotated[Cut | Merge | Split | Name | Colour, Field(discriminator="do")]


class TreeMark(_Part):
    """Merges of a tree and their heights; null is an infinite height."""

    merges: tuple[tuple[int, int], ...]
    levels: tuple[float | None, ...]

    @classmethod
    def of(cls, tree: Tree) -> TreeMark:
        """Return the mark of a tree."""
        # Six digits: the last bits of a height differ between processors, and JSON has no infinity.
        levels = (float(f"{level:.6g}") if math.isfinite(level) else None for level in tree.levels.tolist())
        return cls(merges=tuple((a, b) for a, b in tree.merges.tolist()), levels=tuple(levels))

    def matches(self, other: TreeMark) -> bool:
        """Return whether two marks are of the same tree, with heights that may differ by rounding."""
        return self.merges == other.merges and all(
            a is b or (a is not None and b is not None and math.isclose(a, b, rel_tol=TOLERANCE))
            for a, b in zip(self.levels, other.levels, strict=True)
        )


class Decisions(_Part):
    """Actions about the populations of a run, in their order.

    Attributes
    ----------
    dpmix_decisions : int
        Version of this format.
    draws : int
        Number of draws that the tree was found with.
    tree : TreeMark
    actions : tuple of Action
    """

    dpmix_decisions: Literal[1] = 1
    draws: Annotated[int, Field(ge=1)]
    tree: TreeMark
    actions: tuple[Action, ...] = ()

    def then(self, action: Action) -> Decisions:
        """Return the decisions with one more action."""
        return self.model_copy(update={"actions": (*self.actions, action)})

    def undone(self) -> Decisions:
        """Return the decisions without the last action."""
        return self.model_copy(update={"actions": self.actions[:-1]})


def decisions_path(run: Path) -> Path:
    """Return the default file of the decisions about a run file: run.decisions.json next to run.h5."""
    return run.with_name(run.stem + SUFFIX)


def read_decisions(path: str | Path) -> Decisions:
    """Read decisions.

    Raises
    ------
    ConfigError
        The file cannot be read, or is not a file of decisions; one line per problem.
    """
    try:
        raw = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError([f"{OPTION}: {path}: cannot be read: {error.strerror or error}"]) from None
    except ValueError as error:
        raise ConfigError([f"{OPTION}: {path}: is not JSON ({error}); {NEED}"]) from None
    try:
        return Decisions.model_validate(raw)
    except ValidationError as error:
        raise ConfigError([f"{OPTION}: {path}: {line}" for line in problems_of(error)]) from None


def problems_of(error: ValidationError, need: str = NEED) -> list[str]:
    """Return one line for each of the first problems that pydantic found, with what is needed."""
    lines = []
    for found in error.errors(include_url=False)[:5]:
        place = ".".join(str(part) for part in found["loc"]) or "the file"
        lines.append(f"{place}: {found['msg'][:1].lower()}{found['msg'][1:]}; {need}")
    return lines


def write_decisions(path: Path, decisions: Decisions) -> None:
    """Write decisions, completely or not at all; an existing file is replaced.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    content = decisions.model_dump(mode="json")
    lines = ",\n  ".join(json.dumps(action, ensure_ascii=False) for action in content.pop("actions"))
    head = json.dumps(content, ensure_ascii=False)[:-1]
    write_text(path, f'{head},\n "actions": [\n  {lines}\n ]}}\n' if lines else f'{head}, "actions": []}}\n')
