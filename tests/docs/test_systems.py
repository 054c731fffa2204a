"""Only dpmix/system knows the operating system, and the page of installation has each promise."""

from __future__ import annotations

import ast
from pathlib import Path

from dpmix.system.promises import promises

ROOT = Path(__file__).resolve().parents[2]
ASKS = {("sys", "platform"), ("os", "name"), ("platform", "system"), ("os", "uname")}
ONLY_SOME = {"fcntl", "resource", "termios", "pwd", "grp", "pty", "msvcrt", "winreg"}


def differences(path: Path) -> list[str]:
    """Return where a module asks for the system, or imports what only some systems have."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found += [f"{node.value.id}.{node.attr}"] * ((node.value.id, node.attr) in ASKS)
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name in ONLY_SOME]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [node.module] * (node.module in ONLY_SOME)
            found += [a.name for a in node.names if (node.module, a.name) in ASKS]
    return found


def test_only_the_system_package_knows_the_system() -> None:
    paths = [path for folder in ("dpmix", "cli", "kernels") for path in (ROOT / folder).rglob("*.py")]
    found = {path.relative_to(ROOT).as_posix(): differences(path) for path in paths}
    knows = {name for name, parts in found.items() if parts}
    assert "dpmix/system/own_file.py" in knows
    assert {name for name in knows if not name.startswith("dpmix/system/")} == set()


def test_the_page_has_each_promise() -> None:
    lines = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8").splitlines()
    start = next(k for k, line in enumerate(lines) if line.startswith("| promise |"))
    rows = [line.split("|")[1].strip() for line in lines[start + 2 :] if line.startswith("|")]
    assert set(promises()) <= set(rows)
    assert "Ctrl-C ends a run after its sweep" in rows
