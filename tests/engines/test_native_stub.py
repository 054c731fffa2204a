"""The type stub kernels/_cpu.pyi, compared with the signatures of the native module."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from dpmix.kernels import _cpu, build

STUB = Path(build.__file__).with_name("_cpu.pyi")


def signatures(body: list[ast.stmt], prefix: str = "") -> dict[str, list[str] | None]:
    """Return the parameters of each function of a stub, and None for each constant and property."""
    found: dict[str, list[str] | None] = {}
    for node in body:
        if isinstance(node, ast.ClassDef):
            found |= signatures(node.body, f"{node.name}.")
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[prefix + node.target.id] = None
        elif isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in node.args.args]
            found[prefix + node.name] = None if node.decorator_list else names
    return found


def native_parameters(function: object) -> list[str]:
    """Return the parameters of a native function, given its docstring by nanobind."""
    signature = (function.__doc__ or "").splitlines()[0]
    arguments = signature.partition("(")[2].rpartition(" -> ")[0].rpartition(")")[0]
    return re.findall(r"(?:^|, )(\w+)(?=: |,|$)", re.sub(r"\[.*?\]", "", arguments))


def test_the_stub_has_the_names_and_parameters_of_the_native_module() -> None:
    stated = signatures(ast.parse(STUB.read_text()).body)
    public = [name for name in dir(_cpu) if not name.startswith("_")]
    classes = [name for name in public if isinstance(getattr(_cpu, name), type)]
    members = [f"{c}.{name}" for c in classes for name in dir(getattr(_cpu, c)) if not name.startswith("_")]
    made = [f"{c}.__init__" for c in classes]
    assert sorted([*stated, *classes]) == sorted([*public, *members, *made])
    for name, parameters in stated.items():
        owner, _, member = name.rpartition(".")
        native = getattr(getattr(_cpu, owner) if owner else _cpu, member)
        if parameters is not None:
            assert native_parameters(native) == parameters, name
