"""Read and write YAML with the plain scalars of YAML 1.2 and without duplicate keys.

PyYAML reads YAML 1.1, in which a channel named NO is false, 1e-6 is text and 12:30 is 750. In YAML 1.2 they
are text, a number and text. YAML written here reads the same under both versions.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from dpmix.errors import ConfigError

MOST_TEXT = 4 * 2**20  # characters, which PyYAML reads in a few minutes
BACKSLASHES = "in double quotes, \\ has a meaning of its own: write / in paths, or use single quotes"
MOST_VALUES = 100_000  # values, with those that aliases stand for

SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


class Loader(yaml.SafeLoader):
    """Read YAML with the scalars above; duplicate keys are errors."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (PyYAML prescribes name and type)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f'key "{key.value}" is given twice'
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else key)
        return super().construct_mapping(node, deep)

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        text = super().construct_scalar(node)
        if any("\ud800" <= c <= "\udfff" for c in text):
            problem = "half of a surrogate pair, which is not a character"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return text

    def get_single_node(self) -> yaml.Node | None:
        """Return the text as nodes; aliases that stand for too many values are an error.

        Nested lists of aliases can be short to write and endless to read.
        """
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _size(node, {})
        return node


class Dumper(yaml.SafeDumper):
    """Write YAML with quotes around every text that either version would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _size(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Return the number of values in a node, counting aliased values each time.

    `known` has the sizes of nodes by their `id`; None for a node that contains the present one.
    """
    if id(node) not in known:
        known[id(node)] = None
        inner = [] if isinstance(node, yaml.ScalarNode) else node.value
        parts = [part for pair in inner for part in pair] if isinstance(node, yaml.MappingNode) else inner
        known[id(node)] = 1 + sum(_size(part, known) for part in parts)
    size = known[id(node)]
    if size is None or size > MOST_VALUES:
        problem = "refers to itself" if size is None else f"more than {MOST_VALUES} values"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    return size


for _tag, _pattern in SCALARS.items():
    for _class in (Loader, Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), None)


def parse(text: str, name: str) -> Any:
    """Return the value of a YAML text.

    Raises
    ------
    ConfigError
        The text is not valid YAML; one line that starts with `name`.
    """
    if len(text) > MOST_TEXT:
        raise ConfigError([f"{name}: the text has {len(text)} characters; it must have {MOST_TEXT} at most"])
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = " ".join((error.problem or error.context or "syntax error").split())
        if "escape" in problem:
            problem += f"; {BACKSLASHES}"
        raise ConfigError([f"{name}: {where}not valid YAML: {problem}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{name}: not valid YAML: {str(error).splitlines()[0]}"]) from None
    except (ValueError, LookupError, AttributeError) as error:
        # PyYAML raises these for scalars that do not match their tag, and for very long integers.
        raise ConfigError([f"{name}: not valid YAML: a value cannot be read ({error})"]) from None
    except RecursionError:
        raise ConfigError([f"{name}: not valid YAML: nested too deeply"]) from None


def flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.dump(
        value, Dumper=Dumper, default_flow_style=True, sort_keys=False, width=2**30, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")
