"""Gates that a person has drawn: FlowJo workspaces (.wsp) and GatingML 2.0 files, read by FlowKit.

A gate has the name of its path, for example "Live/CD3+". A workspace has the gates, the compensation and the
transforms of each sample; a sample is found by the name of its file, or by $FIL, and by its folder where
several have this name. The gates of a GatingML file apply to every sample. Gates that FlowKit cannot read are
left out (`dpmix.inputs.gate_files`).

FlowKit applies the gates: it compensates and transforms as the workspace says. It gets the events that dpmix
reads, without $PnE, divided by $PnG, and time multiplied by $TIMESTEP: where a file deviates from the
standard, FlowKit reads other events or refuses it. FlowKit does not read spectral matrices other than by
ordinary least squares, FlowJo's transforms other than linear, log, biex, logicle and ArcSinh, or gates on
derived parameters. A whole file is in memory (8 bytes per number, several times).

FlowJo's biex is a table of an older logicle scale. Over the range of the table, the logicle scale with t =
its top, w = log10(-width) / 2, m = positive decades and a = negative decades differs from it by at most 0.005
of the scale.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError, DataError
from dpmix.inputs import gate_files
from dpmix.inputs.fcs.plain import plain_fcs
from dpmix.inputs.fcs.spillover import Spillover
from dpmix.inputs.sources import Source
from dpmix.inputs.transforms import Transform
from dpmix.system.extras import require_extra

log = logging.getLogger(__name__)

Flags = npt.NDArray[np.bool_]

UNCOMPENSATED = (None, "uncompensated")


def need(what: str) -> None:
    """Raise `ConfigError` if FlowKit is missing; the message starts with `what` needs it."""
    require_extra("flowkit", "flowjo", what)


class ManualGates:
    """The gates of one workspace or GatingML file.

    Parameters
    ----------
    path : Path
    where : str
        Option or config key that names the file, for messages.

    Raises
    ------
    ConfigError
        FlowKit is missing, or the file cannot be read.
    """

    def __init__(self, path: Path, where: str) -> None:
        need(where)
        self.path, self._where = path, where
        self._read: dict[int, tuple[Path, gate_files.Gates]] = {}
        try:
            root = gate_files.parse(path)
            self._is_workspace = gate_files.is_workspace(root)
            self._root = root
            if self._is_workspace:
                self._samples = gate_files.samples_of(root)
            else:
                self._gates = gate_files.read_gatingml(root)
                _warn(where, path, self._gates)
        except OSError as error:
            raise ConfigError([f"{where}: {path}: cannot be read ({error.strerror})"]) from None
        except Exception as error:  # FlowKit and its parser raise errors of many kinds
            need_file = "need a FlowJo workspace (.wsp) or a GatingML 2.0 file"
            raise ConfigError([f"{where}: {path}: {_line(error)}; {need_file}"]) from None

    def require(self, source: Source) -> None:
        """Raise `DataError` if the file has no gates for a sample, or none that can be read."""
        strategy, unread = self._gates_of(source)
        if unread and not strategy.get_gate_ids():
            raise DataError(f"{source.name}: no gate of {self.path} can be read: {_listed(unread)}")

    def unread(self, source: Source) -> str:
        """Return the gates of a sample that cannot be read, each with the reason, "" for none."""
        return _listed(self._gates_of(source).unread)

    def members(self, source: Source) -> dict[str, Flags]:
        """Return the events inside each gate of a sample, bool [N], by the name of the gate.

        Raises
        ------
        DataError
            The sample is not an FCS file or not in the workspace, or FlowKit cannot apply a gate.
        """
        import flowkit

        header = source.header
        if header is None or header.data_set > 1:
            found = "is not an FCS file" if header is None else "is not the first data set of its file"
            raise DataError(f"{source.name}: {found}, which {self._where} requires")
        self.require(source)
        strategy = self._gates_of(source).strategy
        data = plain_fcs(header)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sample = flowkit.Sample(data, sample_id=source.name, use_flowjo_labels=self._is_workspace)
                result = strategy.gate_sample(sample)
            gates = [gate for gate in strategy.get_gate_ids() if not _has_quadrants(strategy, gate)]
            return {
                "/".join((*path[1:], name)): result.get_gate_membership(name, path) for name, path in gates
            }
        except Exception as error:
            problem = f"FlowKit cannot apply the gates of {self.path} ({_line(error)})"
            raise DataError(f"{source.name}: {problem}") from None

    def population(self, source: Source, name: str) -> tuple[str, Flags]:
        """Return the full name of a gate of a sample and the events inside it, bool [N].

        Parameters
        ----------
        source : Source
        name : str
            Path of the gate, or an end of it that only one gate has.

        Raises
        ------
        ConfigError
            No gate has this name, or several have.
        """
        members = self.members(source)
        same = [gate for gate in members if gate == name]
        found = same or [gate for gate in members if gate.endswith(f"/{name}")]
        if len(found) != 1:
            unread = self._gates_of(source).unread
            if not found and (of := _unread_gate(unread, name)):
                problem = f"{name}: cannot be read in {source.name}: {of} is {unread[of]}"
                raise ConfigError([f"{self._where}: {problem}; choose another gate"])
            which = f"several gates have this name: {', '.join(found)}" if found else "no gate has this name"
            known = "" if found else f"; {self.path} has {', '.join(members) or 'no gates'}"
            raise ConfigError([f"{self._where}: {name}: {which} in {source.name}{known}"])
        return found[0], members[found[0]]

    def spillover(self, source: Source) -> Spillover | None:
        """Return the matrix of a sample; None where the file has none, or refers to the sample's own."""
        strategy = self._gates_of(source).strategy
        names = [name for name in strategy.comp_matrices if name not in UNCOMPENSATED]
        if not names:
            return None
        if len(names) > 1:
            found = f"{self.path}: has several matrices ({', '.join(names)})"
            raise ConfigError([f"{self._where}: {found}; give one in data.compensation"])
        matrix = strategy.comp_matrices[names[0]]
        detectors = [_detector(source, name) for name in matrix.detectors]
        return Spillover(tuple(detectors), np.asarray(matrix.matrix, np.float64))

    def transforms(self, source: Source) -> dict[str, Transform]:
        """Return the transform of each channel that has one, by the name of its detector.

        Raises
        ------
        ConfigError
            A transform is not one of logicle, biex, ArcSinh, log and linear, or its parameters are not valid,
            or a channel has several.
        """
        strategy = self._gates_of(source).strategy
        if self._is_workspace:
            used = {(name, name) for name in strategy.transformations}
        else:
            gates = [_gate(strategy, gate) for gate in strategy.get_gate_ids()]
            dimensions = [d for gate in gates for d in getattr(gate, "dimensions", None) or ()]
            used = {
                (getattr(d, "dimension_ref", None) or d.id, d.transformation_ref)
                for d in dimensions
                if getattr(d, "transformation_ref", None) and hasattr(d, "id")
            }
        found: dict[str, Transform] = {}
        for name, reference in sorted(used):
            detector = _detector(source, name)
            if detector not in source.channels:  # FlowJo repeats transforms for compensated channels
                continue
            made = self._valid_transform(name, strategy.transformations[reference])
            if found.setdefault(detector, made) != made:
                problem = f"{self.path}: has several transforms of {name}"
                raise ConfigError([f"{self._where}: {problem}; give one in data.transform"])
        return found

    def _valid_transform(self, name: str, theirs: Any) -> Transform:
        """Return `_transform`; `ConfigError` where the file's parameters make none."""
        try:
            return self._transform(name, theirs)
        except (ValueError, ArithmeticError) as error:
            problem = f"{self.path}: the transform of {name} is not valid ({error})"
            raise ConfigError([f"{self._where}: {problem}; give a transform in data.transform"]) from None

    def _transform(self, name: str, theirs: Any) -> Transform:
        """Return a transform of FlowKit as one of dpmix."""
        kind = type(theirs).__name__
        if kind == "LogicleTransform":
            width = {"w": theirs.param_w, "m": theirs.param_m, "a": theirs.param_a}
            return Transform("logicle", t=theirs.param_t, **width)
        if kind == "WSPBiexTransform":
            w = math.log10(-theirs.width) / 2.0
            return Transform("logicle", t=theirs.max_value, w=w, m=theirs.positive, a=theirs.negative)
        if kind == "AsinhTransform":
            return Transform("arcsinh", cofactor=theirs.param_t / math.sinh(theirs.param_m * math.log(10)))
        if kind in ("LogTransform", "WSPLogTransform"):
            return Transform("log")
        if kind == "LinearTransform":
            return Transform("linear")
        problem = f"{self.path}: has a {kind} for {name}, which dpmix does not have"
        raise ConfigError([f"{self._where}: {problem}; give a transform in data.transform"])

    def _gates_of(self, source: Source) -> gate_files.Gates:
        """Return the gates of a sample; `DataError` says why there are none."""
        if not self._is_workspace:
            return self._gates
        sample = gate_files.find_sample(self._samples, source, self.path)
        number = self._samples.index(sample)
        owner, gates = self._read.get(number, (source.path, None))
        if owner != source.path:
            both = f"for {owner} and {source.path}; give one of these files"
            raise DataError(f"{source.name}: {self.path} has one sample named {sample.name}, {both}")
        if gates is not None:
            return gates
        try:
            gates = gate_files.read_sample(self._root, sample, source)
        except Exception as error:  # FlowKit raises errors of many kinds
            found = f"FlowKit cannot read its gates in {self.path} ({_line(error)})"
            raise DataError(f"{source.name}: {found}") from None
        self._read[number] = source.path, gates
        _warn(source.name, self.path, gates)
        return gates


def _warn(name: str, path: Path, gates: gate_files.Gates) -> None:
    """Log the gates that cannot be read."""
    if gates.unread:
        log.warning("%s: gates of %s that cannot be read are left out: %s", name, path, _listed(gates.unread))


def _listed(unread: Mapping[str, str]) -> str:
    """Return gates that cannot be read, each with the reason."""
    return ", ".join(f"{name} ({why})" for name, why in unread.items())


def _unread_gate(unread: Mapping[str, str], name: str) -> str:
    """Return the gate that cannot be read, and is or holds the one with a name; "" for none."""
    return next(
        (path for path in unread if path == name or path.endswith(f"/{name}") or name.startswith(f"{path}/")),
        "",
    )


def _detector(source: Source, name: str) -> str:
    """Return the detector that a name stands for; FlowJo writes _ for /."""
    detectors = [channel.detector for channel in source.details]
    same = [detector for detector in detectors if detector.replace("/", "_") == name]
    return name if name in detectors or not same else same[0]


def _gate(strategy: Any, gate: tuple[str, tuple[str, ...]]) -> Any:
    """Return a gate; None for one quadrant of a quadrant gate."""
    from flowkit.exceptions import QuadrantReferenceError

    try:
        return strategy.get_gate(*gate)
    except QuadrantReferenceError:
        return None


def _has_quadrants(strategy: Any, gate: tuple[str, tuple[str, ...]]) -> bool:
    """Return True for a quadrant gate, whose quadrants are the gates with events."""
    return hasattr(_gate(strategy, gate), "quadrants")


def _line(error: Exception) -> str:
    """Return the message of an error in one line."""
    return " ".join((str(error) or type(error).__name__).split())
