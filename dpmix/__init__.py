"""Bayesian sampler for truncated Dirichlet process mixtures of multivariate normals.

`dpmix.open_run` reads what the command ``dpmix mcmc`` or ``dpmix bem`` wrote.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpmix.runs.draws import open_run

__version__ = version("dpmix")
__all__ = ["__version__", "open_run"]


def __getattr__(name: str) -> object:
    """Import on first use: the commands start at once, and nothing works at import."""
    if name == "open_run":
        from dpmix.runs.draws import open_run

        return open_run
    raise AttributeError(f"module 'dpmix' has no attribute {name!r}")
