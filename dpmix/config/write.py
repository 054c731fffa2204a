"""Write a config as YAML, with comments, and list its keys for the reference."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dpmix.config.data import TransformConfig
from dpmix.config.problems import at, keys, needed
from dpmix.config.schema import Config, schema
from dpmix.config.section import Section
from dpmix.config.yaml_text import flow

LINE = 110
ANY_TRANSFORM = ("data", "transform", "CHANNEL")


class Entry(NamedTuple):
    """A key in the reference.

    Attributes
    ----------
    name : str
        Its dotted name.
    default : str or None
        Its default in YAML, None if the key is required.
    accepts : str
        The values that it accepts.
    meaning : str
        What it does, and why it has this default.
    """

    name: str
    default: str | None
    accepts: str
    meaning: str


def to_yaml(config: Config, comments: bool = False, blocks: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return the whole config as YAML with all defaults; `parse_config` returns the same config.

    Parameters
    ----------
    config : Config
    comments : bool
        Write above each key what it does and why it has its default.
    blocks : mapping of str to lines, optional
        Lines to write as the values of some dotted keys, instead of their values in `config`.
    """
    return "\n".join(_lines(config, (), comments, blocks or {})) + "\n"


def reference() -> Iterator[Entry]:
    """Return the entries of the reference page, in the order of the schema."""
    paths = [*keys(schema())]
    behind = paths.index(ANY_TRANSFORM[:-1]) + 1
    paths[behind:behind] = [(*ANY_TRANSFORM, name) for name in TransformConfig.model_fields]
    for path in paths:
        here = at(schema(), path)
        default = flow(here["default"]) if "default" in here else None
        yield Entry(".".join(path), default, here.get("need") or needed(here), _explained(here))


def _lines(
    section: Section, path: tuple[str, ...], comments: bool, blocks: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    indent = "  " * len(path)
    plain = section.model_dump()
    for name, value in section:
        inner = (*path, name)
        if comments:
            if not path and name != "data":
                yield ""
            comment = " ".join(_explained(at(schema(), inner)).split())
            mark = f"{indent}# "
            yield from textwrap.wrap(
                comment, LINE, initial_indent=mark, subsequent_indent=mark, break_on_hyphens=False
            )
        block = blocks.get(".".join(inner))
        if isinstance(value, Section):
            yield f"{indent}{name}:"
            yield from _lines(value, inner, comments, blocks)
        elif block:
            yield f"{indent}{name}:"
            yield from (f"{indent}  {line}".rstrip() for line in block)
        else:
            yield f"{indent}{name}: {flow(plain[name])}"


def _explained(schema: Mapping[str, Any]) -> str:
    """Return what a key does, and why it has its default."""
    why = schema.get("why")
    reason = f" Default {flow(schema['default'])}: {why}." if why else ""
    return f"{schema['description']}{reason}"
