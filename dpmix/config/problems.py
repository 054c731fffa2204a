"""Describe the problems of a config, one line each: what is wrong, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from dpmix.config.yaml_text import flow

Path = tuple[str | int, ...]
Schema = dict[str, Any]

LONGEST = 60  # characters of a value in a message


def problems(
    error: ValidationError, raw: Any, schema: Schema, name: str, overrides: Mapping[Path, str]
) -> list[str]:
    """Return one line for each problem of a config.

    Parameters
    ----------
    error : ValidationError
        The errors that pydantic found.
    raw : mapping
        The config as it was read.
    schema : dict
        The JSON schema of the config.
    name : str
        Start of the lines about the file.
    overrides : mapping of path to str
        Keys given by an option, with the start of the lines about each.
    """
    lines: dict[Path, str] = {}
    for found in error.errors(include_url=False):
        path, value = locate(found, raw)
        origin = next((text for key, text in overrides.items() if path[: len(key)] == key), name)
        lines.setdefault(path, f"{origin}: {describe(found, path, value, schema)}")
    # A value that may be a number or a list has one problem as a number and another as a list: the problem
    # that lies further inside says more.
    return [line for path, line in lines.items() if not any(_is_inside(other, path) for other in lines)]


def describe(found: Any, path: Path, value: Any, schema: Schema) -> str:
    """Return one of pydantic's errors as a sentence: the key, its value, and what it must be."""
    key = dotted(path)
    if found["loc"][-1:] == ("[key]",):
        return f"{key}: the name {path[-1]} is not text; put it in quotes"
    if found["type"] in ("extra_forbidden", "invalid_key"):
        return f"{key} is not a key of the config; {nearest(path, schema)}"
    if found["type"] == "value_error" and (message := str(found["ctx"]["error"])):
        return f"{key}: {message}"
    here = at(schema, path)
    state = "is missing" if found["type"] == "missing" else f"is {shown(value)}"
    return f"{key} {state}; it must be {here.get('need') or needed(here)}"


def locate(found: Any, raw: Any) -> tuple[Path, Any]:
    """Return the path of an error, without pydantic's names of union members, and the value there."""
    path: Path = ()
    value = raw
    for part in found["loc"]:
        if isinstance(value, list) and isinstance(part, int) and part < len(value):
            path, value = (*path, part), value[part]
        elif isinstance(value, dict) and part in value:
            path, value = (*path, str(part)), value[part]
        elif isinstance(value, dict) and (key := [key for key in value if repr(key) == part]):  # 1.5 or null
            path, value = (*path, "null" if key[0] is None else str(part)), value[key[0]]
    return (*path, found["loc"][-1]) if found["type"] == "missing" else path, value


def nearest(path: Path, schema: Schema) -> str:
    """Return a hint at the key that was probably meant by an unknown one, or list the known keys."""
    wanted = str(path[-1])
    siblings = list(_properties(schema, at(schema, path[:-1])))
    if near := difflib.get_close_matches(wanted, siblings, 1):
        return f"did you mean {dotted((*path[:-1], near[0]))}?"
    elsewhere = {key[-1]: dotted(key) for key in keys(schema)}
    if near := difflib.get_close_matches(wanted, elsewhere, 1, 0.8):
        return f"did you mean {elsewhere[near[0]]}?"
    return f"the keys here are {', '.join(siblings)}"


def dotted(path: Sequence[str | int]) -> str:
    """Return a path as text, for example data.files[0]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def shown(value: Any) -> str:
    """Return a value as it would be written in a config, cut to a readable length."""
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    text = " ".join(value.split()) if isinstance(value, str) else flow(value)
    if len(text) > LONGEST:
        text = f"{text[:LONGEST]} ..."
    return f'"{text}"' if isinstance(value, str) else text


def at(schema: Schema, path: Path) -> Schema:
    """Return the JSON schema of a key, an empty one if there is no such key."""
    node = schema
    for part in path:
        node = next(_inside(schema, node, part), {})
    return node


def keys(schema: Schema, path: Path = ()) -> Iterator[tuple[str, ...]]:
    """Return the paths of all keys of a JSON schema, without the sections that are never null."""
    for name in _properties(schema, at(schema, path)):
        inner = (*path, name)
        if "properties" not in at(schema, inner):
            yield tuple(map(str, inner))
        yield from keys(schema, inner)


def needed(schema: Mapping[str, Any]) -> str:
    """Return what a JSON schema accepts, in words that complete "it must be ..."."""
    if "anyOf" in schema:
        return " or ".join(needed(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "const" in schema:
        return str(schema["const"])
    words = {
        "boolean": "true or false",
        "integer": "an integer",
        "number": "a number",
        "string": "text",
        "array": "a list",
        "object": "a mapping",
        "null": "null",
    }
    limits = (
        ("minimum", "from" if "maximum" in schema else "of at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "to" if "minimum" in schema else "of at most"),
        ("exclusiveMaximum", "and below"),
    )
    range_ = [f"{word} {_number(schema[limit])}" for limit, word in limits if limit in schema]
    return " ".join([words[schema["type"]], *range_])


def _number(limit: float) -> str:
    """Return a limit in short form: 4096, 0.001, 1e9."""
    if isinstance(limit, int):
        return str(limit)
    number, exponent, power = f"{limit:g}".partition("e")
    return f"{number}e{int(power)}" if exponent else number


def _properties(schema: Schema, node: Schema) -> Schema:
    """Return the schemas of the keys of a section, which may be null."""
    return {name: inner for c in _choices(schema, node) for name, inner in c.get("properties", {}).items()}


def _inside(schema: Schema, node: Schema, part: str | int) -> Iterator[Schema]:
    for choice in _choices(schema, node):
        if isinstance(part, int):
            inner = choice.get("items")
        else:
            inner = choice.get("properties", {}).get(part) or choice.get("additionalProperties")
        if isinstance(inner, dict):
            yield _resolved(schema, inner)


def _choices(schema: Schema, node: Schema) -> list[Schema]:
    return [_resolved(schema, choice) for choice in node.get("anyOf", [node])]


def _resolved(schema: Schema, node: Schema) -> Schema:
    """Return a schema together with the definition that it refers to."""
    target = schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else {}
    return {**target, **node}


def _is_inside(inner: Path, outer: Path) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer
