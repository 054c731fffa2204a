"""Modules of Python's standard library that not every system has."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def module(name: str) -> ModuleType | None:
    """Return a module, or None on a system without it."""
    try:
        return import_module(name)
    except ImportError:
        return None
