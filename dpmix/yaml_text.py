"""YAML as the config uses it: the plain scalars of YAML 1.2, and no key given twice.

In YAML 1.1, which PyYAML reads, a channel named NO is false, 1e-6 is a text and 12:30 is 750; in YAML 1.2
none of these is a surprise. What is written here reads the same under both.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from dpmix.errors import ConfigError

SCALARS = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?(0|[1-9][0-9]*)",
    "float": r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
}


class Loader(yaml.SafeLoader):
    """Reads YAML with the scalars above; a key given twice is an error."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 (the name and kind that PyYAML asks for)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                problem = f'key "{key.value}" is given twice'
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else key)
        return super().construct_mapping(node, deep)


class Dumper(yaml.SafeDumper):
    """Writes YAML that quotes every text which either version would take for something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern in SCALARS.items():
    for _class in (Loader, Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), None)


def parse(text: str, name: str) -> Any:
    """The value of a YAML text; a ConfigError of one line, which begins with `name`, where it is not YAML."""
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        problem = " ".join((error.problem or error.context or "syntax error").split())
        raise ConfigError([f"{name}: {where}not valid YAML: {problem}"]) from None
    except yaml.YAMLError as error:
        raise ConfigError([f"{name}: not valid YAML: {str(error).splitlines()[0]}"]) from None
    except (ValueError, LookupError, AttributeError) as error:
        # What PyYAML lets out of tagged scalars that are not what their tag says and of monstrous integers.
        raise ConfigError([f"{name}: not valid YAML: a value cannot be read ({error})"]) from None
    except RecursionError:
        raise ConfigError([f"{name}: not valid YAML: nested too deeply"]) from None


def flow(value: Any) -> str:
    """A value as YAML in one line."""
    text = yaml.dump(
        value, Dumper=Dumper, default_flow_style=True, sort_keys=False, width=2**30, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")
