"""Check for optional libraries, each in an extra of the package, with an error that names the extra."""

from __future__ import annotations

import warnings
from importlib import import_module
from types import ModuleType

from dpmix.errors import ConfigError


def require_extra(module: str, extra: str, purpose: str) -> None:
    """Raise `ConfigError` if a library of an extra is missing.

    Parameters
    ----------
    module : str
        The library, as it is imported.
    extra : str
        The extra that installs it: ``pip install 'dpmix-cytometry[extra]'``.
    purpose : str
        The feature that needs it, as the start of the message.
    """
    try:
        import_module(module)
    except ImportError as error:
        raise ConfigError(
            [f"{purpose} needs {module} ({error}): pip install 'dpmix-cytometry[{extra}]'"]
        ) from None


def import_arviz() -> ModuleType:
    """Import ArviZ only when needed: the import takes a second, and warns of the next version daily.

    Raises
    ------
    ConfigError
        ArviZ is not installed.
    """
    with warnings.catch_warnings(action="ignore", category=FutureWarning):
        require_extra("arviz", "arviz", "Run.arviz()")
        import arviz
    return arviz
