"""Bayesian Gaussian mixture models for large cytometry data: the Python API.

A first run::

    run = dpmix.run_mcmc({"data": {"files": ["sample.fcs"]}})
    gating = dpmix.gate(run, "gated")

- `run_mcmc`, `run_bem`: make a run, as ``dpmix mcmc`` and ``dpmix bem`` do.
- `open_run`: open a run file. It returns a `Run`, with the draws as arrays.
- `gate`, `predict`: find the populations of a run, assign events to them, and write the results.
- `gate_anndata`: gate the events of an AnnData object.
- `DPMixture`: the same model with the interface of scikit-learn.
- `Config`, `load_config`: the config of a run.
- `simulate`: simulate data with known populations.
- `DpmixError`: the base of all errors: `ConfigError`, `DataError`, `OutputError`, `EngineError`.

``help(dpmix.run_mcmc)`` shows the help of one name. Names are imported on first use, so ``import dpmix``
is fast.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmix.api.anndata import gate_anndata
    from dpmix.api.estimator import DPMixture
    from dpmix.api.sampling import run_bem, run_mcmc
    from dpmix.api.simulate import simulate
    from dpmix.commands.gate import gate, predict
    from dpmix.config.load import load_config
    from dpmix.config.schema import Config
    from dpmix.errors import ConfigError, DataError, DpmixError, EngineError, OutputError
    from dpmix.runs.reader import Run, open_run

    __version__: str

__all__ = [
    "Config",
    "ConfigError",
    "DPMixture",
    "DataError",
    "DpmixError",
    "EngineError",
    "OutputError",
    "Run",
    "__version__",
    "gate",
    "gate_anndata",
    "load_config",
    "open_run",
    "predict",
    "run_bem",
    "run_mcmc",
    "simulate",
]

_MODULES = {
    "dpmix.api.anndata": ("gate_anndata",),
    "dpmix.api.estimator": ("DPMixture",),
    "dpmix.api.sampling": ("run_bem", "run_mcmc"),
    "dpmix.api.simulate": ("simulate",),
    "dpmix.config.load": ("load_config",),
    "dpmix.config.schema": ("Config",),
    "dpmix.errors": ("ConfigError", "DataError", "DpmixError", "EngineError", "OutputError"),
    "dpmix.commands.gate": ("gate", "predict"),
    "dpmix.runs.reader": ("Run", "open_run"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> Any:
        """Import a name of the API on first use."""
        if name == "__version__":
            from dpmix.system.version import VERSION

            return VERSION
        if name in _MODULE_OF:
            return getattr(import_module(_MODULE_OF[name]), name)
        raise AttributeError(f"module 'dpmix' has no attribute {name!r}")


def _warn_of_older_package() -> None:
    """Warn if a distribution named dpmix was installed into the folder of this one, dpmix-cytometry."""
    for path in Path(__file__).parent.parent.glob("dpmix-*-info"):
        warnings.warn(
            f"{path}: an older package has the name dpmix and writes to the same folder; remove both (pip "
            "uninstall dpmix dpmix-cytometry), and install dpmix-cytometry again",
            stacklevel=2,
        )


_warn_of_older_package()


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
