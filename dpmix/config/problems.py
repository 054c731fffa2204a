"""What is wrong with a config, in one line per problem: where it is, what was found and what is needed."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

Path = tuple[str | int, ...]
Schema = dict[str, Any]


def problems(
    error: ValidationError, raw: Any, schema: Schema, name: str, overrides: Mapping[Path, str]
) -> list[str]:
    """Problems of a config.

    Parameters
    ----------
    error : ValidationError
        What pydantic found.
    raw : mapping
        The config as it was read.
    schema : dict
        The JSON schema of the config.
    name : str
        What the problems of the file begin with.
    overrides : mapping of path to str
        Keys given by an option, and what their problems begin with.
    """
    lines: dict[Path, str] = {}
    for found in error.errors(include_url=False):
        path, value = locate(found, raw)
        option = next((key for key in overrides if path[: len(key)] == key), None)
        if option is None:
            where = f"{name}: {dotted(path)}"
        else:
            where = overrides[option] + (f": {dotted(path)}" if path != option else "")
        lines.setdefault(path, f"{where}: {describe(found, path, value, schema)}")
    # A value that may be a number or a list has one problem as the former and another as the latter: the one
    # that is further inside says more.
    return [line for path, line in lines.items() if not any(_is_inside(other, path) for other in lines)]


def describe(found: Any, path: Path, value: Any, schema: Schema) -> str:
    """What was found and what is needed, of one of pydantic's errors."""
    if found["loc"][-1:] == ("[key]",):
        return f"got the name {path[-1]}, need a text; put it in quotes"
    if found["type"] in ("extra_forbidden", "invalid_key"):
        return f"unknown key; {nearest(path, schema)}"
    if found["type"] == "value_error" and (said := str(found["ctx"]["error"])):
        return said
    here = at(schema, path)
    need = here.get("need") or needed(here)
    return f"missing, need {need}" if found["type"] == "missing" else f"got {shown(value)}, need {need}"


def locate(found: Any, raw: Any) -> tuple[Path, Any]:
    """Where an error is, without pydantic's names for the members of unions, and the value there."""
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
    """The key that was meant by an unknown one, or those that there are."""
    wanted = str(path[-1])
    siblings = list(at(schema, path[:-1]).get("properties", {}))
    if near := difflib.get_close_matches(wanted, siblings, 1):
        return f"did you mean {dotted((*path[:-1], near[0]))}?"
    elsewhere = {key[-1]: dotted(key) for key in keys(schema)}
    if near := difflib.get_close_matches(wanted, elsewhere, 1, 0.8):
        return f"did you mean {elsewhere[near[0]]}?"
    return f"known here are {', '.join(siblings)}"


def dotted(path: Sequence[str | int]) -> str:
    """A path as one word, as data.files[0]."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def shown(value: Any) -> str:
    """A value as the config would have it, cut short."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        text = " ".join(value.split())
        return f'"{text[:60]} ..."' if len(text) > 60 else f'"{text}"'
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    return reprlib.repr(value)


def at(schema: Schema, path: Path) -> Schema:
    """The JSON schema of a key, an empty one where there is none."""
    node = schema
    for part in path:
        node = next(_inside(schema, node, part), {})
    return node


def keys(schema: Schema, path: Path = ()) -> Iterator[tuple[str, ...]]:
    """Paths of all keys of a JSON schema, sections themselves left out."""
    for name in at(schema, path).get("properties", {}):
        if "properties" in at(schema, (*path, name)):
            yield from keys(schema, (*path, name))
        else:
            yield (*map(str, path), name)


def needed(schema: Mapping[str, Any]) -> str:
    """What a JSON schema accepts, in words."""
    if "anyOf" in schema:
        return " or ".join(needed(choice) for choice in schema["anyOf"])
    if "enum" in schema:
        return f"one of {', '.join(map(str, schema['enum']))}"
    if "const" in schema:
        return str(schema["const"])
    if schema["type"] == "array":
        return f"a list of {needed(schema['items']).removeprefix('a ')}s"
    words = {"boolean": "true or false", "integer": "an integer", "number": "a number", "string": "a text"}
    limits = (
        ("minimum", "from" if "maximum" in schema else "of at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "to" if "minimum" in schema else "of at most"),
        ("exclusiveMaximum", "and below"),
    )
    range_ = [f"{word} {schema[limit]}" for limit, word in limits if limit in schema]
    return " ".join(
        [words.get(schema["type"], "a mapping" if schema["type"] == "object" else "null"), *range_]
    )


def _inside(schema: Schema, node: Schema, part: str | int) -> Iterator[Schema]:
    for choice in node.get("anyOf", [node]):
        if isinstance(part, int):
            inner = choice.get("items")
        else:
            inner = choice.get("properties", {}).get(part) or choice.get("additionalProperties")
        if isinstance(inner, dict):
            target = schema["$defs"][inner["$ref"].rpartition("/")[2]] if "$ref" in inner else {}
            yield {**target, **inner}


def _is_inside(inner: Path, outer: Path) -> bool:
    return len(inner) > len(outer) and inner[: len(outer)] == outer
