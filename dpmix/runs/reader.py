"""Read a run file: its draws as arrays and as an ArviZ object, its trace, its config."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpmix.config.load import parse_config
from dpmix.config.schema import Config
from dpmix.errors import DataError
from dpmix.inputs.controls import Control, controls_from_attributes
from dpmix.inputs.state_channels import StateChannels
from dpmix.model.mixture import HYPERPARAMETERS, Array, Ints
from dpmix.runs.layout import COHORT, AnyArray, coordinate
from dpmix.runs.mapped import map_run
from dpmix.runs.profile import SPANS
from dpmix.system.extras import import_arviz

if TYPE_CHECKING:
    import arviz

    from dpmix.runs.verdict import Verdict


def open_run(path: str | os.PathLike[str], *, transformed: bool = False) -> Run:
    """Open the run file of a run that is complete, stopped, killed or still running.

    Parameters
    ----------
    path : str or Path
        A file that ``dpmix mcmc`` or ``dpmix bem`` wrote.
    transformed : bool
        Return means and covariances, and m and phi, on the transformed scale (logicle, arcsinh, ...) instead
        of the standardised scale of the sampler. Log likelihoods still refer to the standardised events.

    Returns
    -------
    Run

    Raises
    ------
    DataError
        The file is missing, is not a run file, is truncated, or has a newer format.
    """
    return Run(Path(path), transformed)


class Run:
    """A run file opened by `open_run`, with the draws that were committed at that moment.

    Arrays are read-only views of the file: data are read when they are used. Only rescaled arrays are held in
    memory.

    Attributes
    ----------
    path : Path
    transformed : bool
        Means and covariances, m and phi are on the transformed scale.
    attributes : dict
        Attributes of the file, as stored.
    channels : tuple of str
        D names.
    committed : int
        Draws that are complete in every chain.
    constants : dict of str to array
        Constants of the run: samples, scaling of the channels, ...
    """

    def __init__(self, path: Path, transformed: bool) -> None:
        self.path = path
        self.transformed = transformed
        self._contents, self.committed, self._arrays = map_run(path)
        self.attributes = self._contents.attributes
        self.channels = self._contents.channels
        self.constants = {name: array for name, (_, array) in self._contents.constants.items()}

    def __fspath__(self) -> str:
        """Return the path: functions that accept a run file accept a `Run`, too."""
        return str(self.path)

    def __repr__(self) -> str:
        size = f"{self.n_components} components, {len(self.channels)} channels"
        return f"<Run {self.path}: {self.kind}, {self.committed} of {self.draws} draws, {size}>"

    @property
    def kind(self) -> str:
        """``mcmc`` or ``bem``."""
        return str(self.attributes["kind"])

    @property
    def config_text(self) -> str:
        """The whole config, YAML."""
        return str(self.attributes["config"])

    @cached_property
    def config(self) -> dict[str, Any]:
        """The whole config as plain values; raises `ConfigError` where it is not valid."""
        return self.parsed_config().model_dump()

    def parsed_config(self, overrides: Sequence[str] = ()) -> Config:
        """Return the whole config, with ``key=value`` overrides; `ConfigError` where it is not valid."""
        # Files of 1.0.0, which knew no full events, keep their posterior.
        unknown = [] if "full_events:" in self.config_text else ["model.full_events=0"]
        return parse_config(self.config_text, str(self.path), [*unknown, *overrides])

    @property
    def base(self) -> Path:
        """Folder that relative paths in the config start from."""
        base = self.attributes.get("base")
        if not isinstance(base, str):
            raise self._wrong("base")
        return Path(base)

    @property
    def detectors(self) -> list[str]:
        """D names of the channels in the first data file."""
        names = self._json("detectors")
        if not isinstance(names, list) or [type(name) for name in names] != [str] * len(self.channels):
            raise self._wrong("detectors")
        return names

    @property
    def state_channels(self) -> StateChannels | None:
        """Channels that are not in the model, without values; None for none."""
        if "state_channels" not in self.attributes:
            return None
        return StateChannels.from_attributes(self._mapping("state_channels"))

    @property
    def controls(self) -> dict[str, Control]:
        """Controls of channels (`data.controls`) by name; none in files of earlier versions."""
        if "controls" not in self.attributes:
            return {}
        try:
            return controls_from_attributes(self._mapping("controls"))
        except TypeError:
            raise self._wrong("controls") from None

    @property
    def engine(self) -> dict[str, Any]:
        """The engine that held and labelled the events; `backend` is its name."""
        engine = self._mapping("engine")
        if not isinstance(engine.get("backend"), str):
            raise self._wrong("engine")
        return engine

    @property
    def scaling(self) -> dict[str, Any]:
        """Transforms and standardisation of the channels."""
        return self._mapping("scaling")

    @property
    def data_warnings(self) -> tuple[str, ...]:
        """Warnings about the data files of the run."""
        report = self._mapping("report") if "report" in self.attributes else {}
        return tuple(map(str, report.get("warnings", [])))

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the programs that wrote the file."""
        return self._mapping("versions")

    @property
    def n_components(self) -> int:
        """The truncation K."""
        return self._contents.slots["posterior/weights"].shape[2]

    @property
    def draws(self) -> int:
        """Draws of each chain in the complete run; with mcmc.until the most."""
        return self._contents.slots["posterior/alpha"].shape[1]

    @property
    def complete(self) -> bool:
        """True if every draw is committed, or mcmc.until has ended the draws."""
        return self.committed in (self.draws, self.stopped)

    @property
    def is_monitored(self) -> bool:
        """True if the run monitors whether its chains agree (mcmc.until)."""
        return "convergence/log_density" in self._arrays

    @property
    def burn_in_end(self) -> int | None:
        """Sweep after which the first draw follows; None until mcmc.until decides, and for Bayesian EM."""
        if self.kind != "mcmc":
            return None
        if not self.is_monitored:
            return int(self.config["mcmc"]["burn_in"])
        return self._decided("burn_in")

    @property
    def burn_in(self) -> int:
        """Sweeps of burn-in, an upper limit while mcmc.until has not decided; 0 for Bayesian EM."""
        if self.kind != "mcmc":
            return 0
        return int(self.config["mcmc"]["burn_in"]) if self.burn_in_end is None else self.burn_in_end

    @property
    def draw_sweeps(self) -> slice:
        """Sweeps of the committed draws, in the trace."""
        thin = int(self.config["mcmc"]["thin"])
        return slice(self.burn_in + thin, self.burn_in + self.committed * thin + 1, thin)

    @property
    def stopped(self) -> int | None:
        """Draws of each chain after which mcmc.until ended the run; None if it did not, or no longer does."""
        return None if self.lifted or not self.is_monitored else self._decided("stopped")

    @property
    def lifted(self) -> bool:
        """True if the run was resumed to go beyond mcmc.until, which then no longer applies."""
        return self.is_monitored and self._decided("lifted") == 1

    @property
    def log_density(self) -> Array:
        """Log density at the reference events, float64 [chain, sweep, R], nats; NaN for sweeps not made."""
        return self._arrays["convergence/log_density"]

    @property
    def agreement(self) -> tuple[Array, Array, Array]:
        """R-hat, bulk effective sample size and standard error of the monitored quantities at the last check.

        Each is float64 [quantity]: NaN before the first check, for a quantity that never changes, and for a
        place without a quantity.
        """
        r_hat, ess, error = (self._arrays[f"convergence/{name}"] for name in ("r_hat", "ess", "error"))
        return r_hat, ess, error

    @property
    def weights(self) -> Array:
        """Component weights, float64 [chain, draw, K]."""
        return self._drawn("posterior/weights")

    @cached_property
    def means(self) -> Array:
        """Component means, float64 [chain, draw, K, D]."""
        return self._on_scale("means", self._drawn("posterior/means"))

    @cached_property
    def covariances(self) -> Array:
        """Component covariances, float64 [chain, draw, K, D, D]."""
        return self._on_scale("covariances", self._drawn("posterior/covariances"))

    @property
    def alpha(self) -> Array:
        """Concentration of the Dirichlet process, float64 [chain, draw]."""
        return self._drawn("posterior/alpha")

    @cached_property
    def hyperparameters(self) -> dict[str, Array]:
        """Learned hyperparameters, float64: m [chain, draw, D], gamma and nu [chain, draw], phi [chain, draw,
        D, D]."""
        return {
            name: self._on_scale(name, self._drawn(f"posterior/{name}"))
            for name in HYPERPARAMETERS
            if f"posterior/{name}" in self._arrays
        }

    @property
    def cohort(self) -> dict[str, Array]:
        """Draws that the hierarchical model adds, float64; empty for a pooled run.

        kappa [chain, draw]; base_weights (beta) [chain, draw, K]; sample_proportions (pi_s), the weights of
        the components in each sample, [chain, draw, S, K]; with shifts, shifts [chain, draw, S, D] and their
        standard deviations tau [chain, draw, D].
        """
        drawn: dict[str, Array] = {
            name: self._drawn(f"posterior/{name}") for name in COHORT if f"posterior/{name}" in self._arrays
        }
        if self.transformed:
            for name in {"shifts", "tau"} & drawn.keys():
                drawn[name] = drawn[name] * self.constants["channel_sds"]
        return drawn

    @property
    def sample_stats(self) -> dict[str, AnyArray]:
        """log_likelihood, log_posterior, occupied and seconds of the draws, each [chain, draw].

        Also the counts of proposed and accepted moves (Bayesian EM: ``emptied``), int64 [chain, draw], summed
        over the sweeps since the previous draw; the first draw counts from the end of the burn-in.
        """
        return {name: self._drawn(f"sample_stats/{name}") for name in self._names("sample_stats")}

    @property
    def trace(self) -> dict[str, AnyArray]:
        """log_likelihood, log_posterior, occupied, alpha, seconds and counts of each sweep, burn-in included.

        Each is [chain, sweep], or [start, step] for Bayesian EM. Row 0 is the initial state. Sweeps not made
        are NaN, or -1 in integers.
        """
        return {name: self._arrays[f"trace/{name}"] for name in self._names("trace")}

    @property
    def sweeps_made(self) -> npt.NDArray[np.int64]:
        """Sweeps made by each chain (steps by each start), int64 [chain]; -1 before its initial state."""
        made: npt.NDArray[np.int64] = np.isfinite(self.trace["seconds"]).sum(axis=1) - 1
        return made

    @property
    def moves(self) -> dict[str, tuple[int, int]]:
        """Accepted and proposed ``splits``, ``merges`` and ``swaps`` after the burn-in, over all chains.

        Empty for Bayesian EM.
        """
        stats = self.sample_stats
        return {
            name: (int(stats[f"{name}_accepted"].sum()), int(stats[f"{name}_proposed"].sum()))
            for name in ("splits", "merges", "swaps")
            if f"{name}_proposed" in stats
        }

    @property
    def emptied(self) -> int | None:
        """Components emptied by the best start of Bayesian EM; None before it is complete, and for MCMC."""
        counts = self.sample_stats.get("emptied")
        return None if counts is None or not counts.size else int(counts[0, 0])

    @property
    def verdict(self) -> Verdict:
        """The agreement of the chains about the populations; its text is the one of ``dpmix info``.

        In a complete run, these are the populations that `dpmix.gate` finds by its defaults, read from the
        file. In others, and in files of earlier versions, they are interim populations.
        """
        # Imported here, because a verdict reads runs: at the top, the two modules would need each other.
        from dpmix.runs.verdict import interim_verdict, kept_verdict

        return kept_verdict(self) or interim_verdict(self)

    @property
    def has_place_for_populations(self) -> bool:
        """True if the file has the group ``populations``; not in earlier versions and for Bayesian EM."""
        return "populations/committed" in self._arrays

    @property
    def kept(self) -> dict[str, Any] | None:
        """The group ``populations`` of the file, texts as str; None unless it is of all draws.

        `dpmix.populations.draws.kept` makes the populations of it, and `dpmix.runs.verdict` the verdict.
        """
        if not self.committed or not self.has_place_for_populations:
            return None
        if int(self._arrays["populations/committed"]) != self.committed:
            return None
        found = {name: self._arrays[f"populations/{name}"] for name in self._names("populations")}
        return {name: _text(own) if own.dtype == "S1" else own for name, own in found.items()}

    @property
    def profile(self) -> dict[str, float]:
        """Wall seconds of the run by activity, as in `dpmix.runs.profile.SPANS`.

        Written with each checkpoint and at the end; empty before the first.
        """
        seconds = self._arrays["profile/seconds"]
        return {} if np.isnan(seconds).any() else dict(zip(SPANS, seconds.tolist(), strict=True))

    def arviz(self) -> arviz.InferenceData:
        """Return the committed draws as an ArviZ object, with the groups of the file."""
        arviz_module = import_arviz()
        import xarray

        learned = self.hyperparameters | self.cohort
        drawn: dict[str, AnyArray] = {
            **{f"posterior/{name}": values for name, values in learned.items()},
            **{f"posterior/{n}": getattr(self, n) for n in self._names("posterior") if n not in learned},
            **{f"sample_stats/{name}": array for name, array in self.sample_stats.items()},
        }
        groups: dict[str, dict[str, tuple[Sequence[str], AnyArray]]] = {
            "constant_data": dict(self._contents.constants)
        }
        for name, slot in self._contents.variables.items():
            group, variable = name.split("/")
            dims, values = slot.dims, drawn.get(name, self._arrays[name])
            if slot.dtype == "S1":  # one text, as xarray reads it
                dims, values = (), np.array(_text(values))
            groups.setdefault(group, {})[variable] = (dims, values)
        datasets = {}
        for group, variables in groups.items():
            dataset = xarray.Dataset(variables)
            missing = [str(dim) for dim in dataset.dims if dim not in dataset.coords]
            datasets[group] = dataset.assign_coords(
                {dim: coordinate(dim, dataset.sizes[dim], self.channels) for dim in missing}
            )
        data: arviz.InferenceData = arviz_module.InferenceData(attrs=self.attributes, **datasets)
        return data

    def _names(self, group: str) -> list[str]:
        return [name.split("/")[1] for name in self._contents.variables if name.split("/")[0] == group]

    def _decided(self, name: str) -> int | None:
        value = int(self._arrays[f"convergence/{name}"])
        return None if value < 0 else value

    def in_draws(self, name: str, draws: Ints) -> Array:
        """Return a variable of the posterior, such as ``means``, in some draws, float64 [T, ...].

        Only these draws are read, where the property of the same name would hold all of them in memory on the
        transformed scale.

        Parameters
        ----------
        name : str
        draws : int [T, 2]
            Chain and draw, from 0.
        """
        values = self._drawn(f"posterior/{name}")
        return self._on_scale(name, np.array([values[*draw] for draw in draws]))

    def _drawn(self, name: str) -> AnyArray:
        return self._arrays[name][:, : self.committed]

    def _on_scale(self, name: str, values: Array) -> Array:
        """Return values of a variable, which are on the standardised scale, on the scale of this run."""
        if not self.transformed:
            return values
        sds: Array = self.constants["channel_sds"]
        if name in ("means", "m"):
            return values * sds + self.constants["channel_means"]
        return values * (sds[:, None] * sds) if name in ("covariances", "phi") else values

    def _mapping(self, name: str) -> dict[str, Any]:
        value = self._json(name)
        if not isinstance(value, dict):
            raise self._wrong(name)
        return value

    def _json(self, name: str) -> Any:
        try:
            return json.loads(self.attributes[name])
        except (KeyError, TypeError, ValueError, RecursionError):
            raise self._wrong(name) from None

    def _wrong(self, name: str) -> DataError:
        return DataError(f"{self.path}: the attribute {name} is not as dpmix writes it")


def _text(characters: AnyArray) -> str:
    """Return a text from its bytes, S1 [M]."""
    return characters.tobytes().rstrip(b"\0").decode(errors="replace")
