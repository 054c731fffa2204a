"""Libraries that only some users need: an extra of the package each, with an error that names it."""

from __future__ import annotations

from importlib import import_module

from dpmix.errors import ConfigError


def require_extra(module: str, extra: str, purpose: str) -> None:
    """Raise `ConfigError` if a library of an extra is missing.

    Parameters
    ----------
    module : str
        The library, as it is imported.
    extra : str
        The extra that installs it: ``pip install 'dpmix[extra]'``.
    purpose : str
        What needs it, the beginning of the message.
    """
    try:
        import_module(module)
    except ImportError as error:
        raise ConfigError([f"{purpose} needs {module} ({error}): pip install 'dpmix[{extra}]'"]) from None
