"""Write the gates of populations as GatingML 2.0, which FlowKit and other programs read.

Each gate is a polygon or an ellipse in two channels of the data files, and the parent of the gate after it.
The last gate of a population is named `population_3`, those before it `population_3_step_1` and so on. In a
hierarchy the gates of a branch are the parents of those inside it; they are named `branch_1`. Every dimension
states the name of its channel in the file ($PnN), its compensation, and its transform, so that the gates
apply to the files as they are:

- compensation: the matrix itself if all samples have the same one, else `FCS` (the matrix in the file).
  FlowKit reads `FCS` only if the matrix names all fluorescence channels of the file and no others.
- transforms: logicle; fasinh for arcsinh(x / cofactor), with 4.5 decades; flog for log, with 4.5 decades;
  none for linear. GatingML divides values by the gain of the channel ($PnG) and multiplies time by
  $TIMESTEP. Where dpmix does not, the parameters written here are scaled.

Purity, yield and F1 of the events inside a gate and those before it stand in its custom_info.

Standard: Spidlen et al. 2015, Cytometry A 87:683.
"""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpmix.errors import ConfigError
from dpmix.inputs.channel import Channel
from dpmix.inputs.events import Events
from dpmix.inputs.fcs.channels import number_of
from dpmix.inputs.fcs.spillover import Spillover
from dpmix.inputs.file_plans import has_gain
from dpmix.inputs.sources import Source
from dpmix.inputs.transforms import Transform
from dpmix.model.mixture import Array
from dpmix.populations.explored import NAME, extended
from dpmix.populations.gates.ellipses import EllipseGate
from dpmix.populations.gates.nested import Node
from dpmix.populations.gates.polygons import PolygonGate
from dpmix.populations.gates.strategy import Strategy
from dpmix.populations.result import Gating
from dpmix.system.files import write_text
from dpmix.system.version import VERSION

SPACE = "http://www.isac-net.org/std/Gating-ML/v2.0/"
GATING, DATA, TRANSFORMS = f"{SPACE}gating", f"{SPACE}datatypes", f"{SPACE}transformations"
MATRIX = "spillover"  # name of the matrix in the file
DECADES = 4.5  # of the scales for arcsinh and log
TOP = 262_144.0  # of the scale for log


@dataclass(frozen=True)
class Axis:
    """A channel as a dimension of GatingML.

    Attributes
    ----------
    name : str
        $PnN.
    compensation : str
        "uncompensated", "FCS" or the name of the matrix.
    kind : str
        Element of the transform: logicle, fasinh, flog, or "" for none.
    parameters : tuple of (str, float)
        Parameters of the transform.
    scale, shift : float
        The value on this dimension is scale times the transformed value plus shift.
    """

    name: str
    compensation: str
    kind: str
    parameters: tuple[tuple[str, float], ...]
    scale: float = 1.0
    shift: float = 0.0

    @property
    def transform(self) -> str:
        """Name of the transform, "" for none."""
        values = "_".join(f"{name}{value:.12g}" for name, value in self.parameters)
        return f"{self.kind}_{values}" if self.kind else ""


@dataclass(frozen=True)
class Space:
    """The D channels as dimensions.

    Attributes
    ----------
    axes : tuple of Axis
    matrix : Spillover or None
        That they refer to, if any.
    units : dict of str to float
        Factor from raw values of dpmix to values of GatingML, for each channel of the files.
    """

    axes: tuple[Axis, ...]
    matrix: Spillover | None
    units: dict[str, float]


def space_of(events: Events, linearize: bool) -> Space:
    """Describe the scale of each channel for GatingML.

    Parameters
    ----------
    events : Events
    linearize : bool
        Config key data.linearize.

    Raises
    ------
    ConfigError
        GatingML cannot describe it.
    """
    units = [_units(source, linearize) for source in events.sources]
    if any(other != units[0] for other in units):
        raise ConfigError(
            ["--strategy: the gain of a channel ($PnG) differs between samples; gate them apart"]
        )
    matrices = events.spillovers
    one = matrices[0] if all(_same(matrix, matrices[0]) for matrix in matrices) else None
    # A file of gates has one matrix for all samples, or refers to that in each file.
    reference = MATRIX if one else "FCS"
    compensated = {detector for matrix in matrices if matrix for detector in matrix.detectors}
    if compensated and not one and len({units[0][name] for name in compensated}) > 1:
        problem = "the matrices of the samples differ, and their channels have different gains ($PnG)"
        raise ConfigError([f"--strategy: {problem}; give one matrix in data.compensation"])
    by_name = {channel.detector: channel for channel in events.sources[0].details}
    axes = tuple(
        _logarithmic(by_name[name], transform)
        if by_name[name].log and not linearize
        else _axis(name, reference if name in compensated else "uncompensated", transform, units[0][name])
        for name, transform in zip(events.detectors, events.scaling.transforms, strict=True)
    )
    return Space(axes, in_units(one, units[0]) if one else None, units[0])


def write_gates(
    path: Path, gating: Gating, nodes: Sequence[NamedGates], space: Space, parent: str = ""
) -> None:
    """Write the gates of populations and branches; the nodes around others come first.

    `parent` names the population that the events were gated to before (data.gate), "" for none. Its gates are
    not part of the file: the gates of the populations are to be drawn inside it.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    root = ET.Element(f"{{{GATING}}}Gating-ML")
    note = ET.SubElement(ET.SubElement(root, f"{{{DATA}}}custom_info"), "dpmix")
    note.attrib |= {"version": VERSION, "run": gating.run, **({"parent": parent} if parent else {})}
    for axis in {axis.transform: axis for axis in space.axes if axis.kind}.values():
        wrapper = ET.SubElement(root, f"{{{TRANSFORMS}}}transformation", {_transforms("id"): axis.transform})
        parameters = {_transforms(name): f"{value!r}" for name, value in axis.parameters}
        ET.SubElement(wrapper, f"{{{TRANSFORMS}}}{axis.kind}", parameters)
    if space.matrix:
        _add_matrix(root, space.matrix)
    if gating.exploration is not None:
        gating = replace(extended(gating), phenotypes=(*gating.phenotypes, NAME))
    for node in nodes:
        _add_node(root, node, gating, space)
    write_xml(path, root)


def write_xml(path: Path, root: ET.Element) -> None:
    """Write a document with the prefixes that the standard gives its namespaces."""
    for prefix, uri in (("gating", GATING), ("data-type", DATA), ("transforms", TRANSFORMS)):
        ET.register_namespace(prefix, uri)
    ET.indent(root)
    write_text(path, f'<?xml version="1.0" encoding="UTF-8"?>\n{ET.tostring(root, encoding="unicode")}\n')


@dataclass(frozen=True)
class NamedGates:
    """The gates of a population or branch, with their names in the file.

    Attributes
    ----------
    populations : tuple of int
        Numbers from 0.
    title : str
        Name of its last gate, also where it has none of its own.
    names : tuple of str
        Names of its own gates, which are the last of the strategy.
    parent : str
        Name of the gate around the first of them, "" for none.
    strategy : Strategy
    """

    populations: tuple[int, ...]
    title: str
    names: tuple[str, ...]
    parent: str
    strategy: Strategy

    def rows(self) -> Iterator[tuple[str, str, int]]:
        """Yield the name, the name of the parent, and the place in the strategy of each own gate."""
        first = len(self.strategy.gates) - len(self.names)
        parents = (self.parent, *self.names)
        for k, (name, parent) in enumerate(zip(self.names, parents, strict=False)):
            yield name, parent, first + k


def gate_name(number: int, step: int, n_steps: int) -> str:
    """Return the name of a gate, given the number of its population, from 1, and its step, from 0."""
    return _names(f"population_{number}", n_steps)[step]


def _names(name: str, n_steps: int) -> tuple[str, ...]:
    """Return the names of all gates of a population or branch; the last has its name."""
    return (*(f"{name}_step_{step}" for step in range(1, n_steps)), *([name] if n_steps else []))


def shortest(gating: Gating) -> list[NamedGates]:
    """Return the named shortest sequences of all populations, last of the explored cells."""
    added = () if gating.explored_strategy is None else (gating.explored_strategy,)
    numbers = *gating.all_numbers, max(gating.all_numbers) + 1
    return [
        NamedGates((p,), title, _names(title, len(strategy.gates)), "", strategy)
        for p, strategy in enumerate((*gating.strategies, *added))
        for title in [f"population_{numbers[p]}"]
    ]


def nested(gating: Gating, hierarchy: Sequence[Node]) -> list[NamedGates]:
    """Return the gates of a hierarchy with their names."""
    titles = [
        f"branch_{k}" if node.is_branch else f"population_{gating.number(node.populations[0])}"
        for k, node in enumerate(hierarchy, start=1)
    ]
    return [
        NamedGates(
            node.populations,
            title,
            _names(title, node.n_own),
            titles[node.parent] if node.parent >= 0 else "",
            node.strategy,
        )
        for title, node in zip(titles, hierarchy, strict=True)
    ]


def _transforms(name: str) -> str:
    return f"{{{TRANSFORMS}}}{name}"


def _units(source: Source, divided: bool) -> dict[str, float]:
    """Return the factor from raw values of dpmix to values of GatingML for each channel of a file.

    `divided`: dpmix has divided by the gains of linear amplifiers.
    """
    keywords = source.header.keywords if source.header else {}
    return {
        channel.detector: number_of(keywords.get("timestep", "")) or 1.0
        if channel.detector.lower() == "time"
        else 1.0
        if divided and has_gain(channel)
        else 1.0 / (channel.gain or 1.0)
        for channel in source.details
    }


def _same(one: Spillover | None, other: Spillover | None) -> bool:
    """Return True if two samples have the same matrix, or both have none."""
    if one is None or other is None:
        return one is other
    return one.detectors == other.detectors and np.array_equal(one.matrix, other.matrix)


def in_units(spillover: Spillover, units: dict[str, float]) -> Spillover:
    """Return a matrix between values of GatingML; `units` are as in `Space`."""
    unit = np.array([units[name] for name in spillover.detectors])
    # Stored = true @ matrix on the raw scale; both sides are multiplied by the units of their channels.
    return Spillover(spillover.detectors, spillover.matrix * unit / unit[:, None])


def _axis(name: str, compensation: str, transform: Transform, unit: float) -> Axis:
    """Return the dimension of a channel whose raw values, times `unit`, are GatingML's."""
    match transform.method:
        case "logicle":
            parameters = (
                ("T", transform.t * unit),
                ("W", transform.w),
                ("M", transform.m),
                ("A", transform.a),
            )
            return Axis(name, compensation, "logicle", parameters)
        case "arcsinh":
            # fasinh is asinh(x sinh(M ln 10) / T) / (M ln 10) with A = 0: T is chosen so that its argument is
            # x / cofactor.
            width = DECADES * math.log(10.0)
            top = transform.cofactor * unit * math.sinh(width)
            return Axis(name, compensation, "fasinh", (("T", top), ("M", DECADES), ("A", 0.0)), 1.0 / width)
        case "log":
            shift = (math.log10(unit) - math.log10(TOP)) / DECADES + 1.0
            return Axis(name, compensation, "flog", (("T", TOP), ("M", DECADES)), 1.0 / DECADES, shift)
        case "widen":
            found = f"method widen of {name} cannot be written as GatingML"
            raise ConfigError([f"--strategy: {found}; set its data.transform to linear"])
        case "linear":
            return Axis(name, compensation, "", (), unit)


def _logarithmic(channel: Channel, transform: Transform) -> Axis:
    """Return the dimension of a channel that stays on a logarithmic scale; GatingML always undoes $PnE."""
    if transform.method != "linear" or not channel.log or not channel.range:
        found = f"data.linearize: false with {transform.method} for {channel.detector}"
        raise ConfigError([f"--strategy: {found} cannot be written as GatingML; need true, or method linear"])
    decades, offset = channel.log
    parameters = (("T", offset * 10.0**decades / (channel.gain or 1.0)), ("M", decades))
    return Axis(channel.detector, "uncompensated", "flog", parameters, 1.0 / channel.range)


def _add_matrix(root: ET.Element, spillover: Spillover) -> None:
    """Add a compensation matrix: one row for each dye, named as its detector."""
    matrix = ET.SubElement(root, _transforms("spectrumMatrix"), {_transforms("id"): MATRIX})
    for part in ("fluorochromes", "detectors"):
        names = ET.SubElement(matrix, _transforms(part))
        for name in spillover.detectors:
            ET.SubElement(names, f"{{{DATA}}}fcs-dimension", {f"{{{DATA}}}name": name})
    for row in spillover.matrix.tolist():
        spectrum = ET.SubElement(matrix, _transforms("spectrum"))
        for value in row:
            ET.SubElement(spectrum, _transforms("coefficient"), {_transforms("value"): f"{value!r}"})


def _add_node(root: ET.Element, node: NamedGates, gating: Gating, space: Space) -> None:
    """Add the own gates of a population or branch, each inside the one before it."""
    strategy = node.strategy
    for name, parent, place in node.rows():
        gate = strategy.gates[place]
        kind = "EllipsoidGate" if isinstance(gate, EllipseGate) else "PolygonGate"
        element = ET.SubElement(root, f"{{{GATING}}}{kind}", {f"{{{GATING}}}id": name})
        if parent:
            element.set(f"{{{GATING}}}parent_id", parent)
        note = ET.SubElement(ET.SubElement(element, f"{{{DATA}}}custom_info"), "dpmix")
        if len(node.populations) == 1:
            (population,) = node.populations
            note.attrib |= {
                "population": f"{gating.number(population)}",
                "phenotype": gating.phenotypes[population],
            }
            if gating.population_types:  # explored cells have none
                note.set("type", "".join(gating.population_types[population : population + 1]))
        else:
            note.set("populations", " ".join(str(gating.number(p)) for p in node.populations))
        note.attrib |= {
            "purity": f"{strategy.purity[place]:.4f}",
            "yield": f"{strategy.recovered[place]:.4f}",
            "f1": f"{strategy.f1[place]:.4f}",
        }
        if name == node.names[-1] and strategy.shortfall:
            note.set("warning", strategy.shortfall)
        axes = [space.axes[channel] for channel in gate.channels]
        _add_dimensions(element, axes)
        if isinstance(gate, EllipseGate):
            _add_ellipse(element, gate, axes)
        else:
            _add_vertices(element, gate, axes)


def _add_dimensions(element: ET.Element, axes: list[Axis]) -> None:
    """Add the channels of a gate."""
    for axis in axes:
        dimension = ET.SubElement(element, f"{{{GATING}}}dimension")
        dimension.set(f"{{{GATING}}}compensation-ref", axis.compensation)
        if axis.kind:
            dimension.set(f"{{{GATING}}}transformation-ref", axis.transform)
        ET.SubElement(dimension, f"{{{DATA}}}fcs-dimension", {f"{{{DATA}}}name": axis.name})


def _add_vertices(element: ET.Element, gate: PolygonGate, axes: list[Axis]) -> None:
    for vertex in gate.vertices:
        _add_numbers(ET.SubElement(element, f"{{{GATING}}}vertex"), "coordinate", _placed(vertex, axes))


def _add_ellipse(element: ET.Element, gate: EllipseGate, axes: list[Axis]) -> None:
    """Add mean, covariance and size, on the scales of the dimensions."""
    scale = np.array([axis.scale for axis in axes])
    mean = ET.SubElement(element, f"{{{GATING}}}mean")
    _add_numbers(mean, "coordinate", _placed(gate.centre, axes))
    matrix = ET.SubElement(element, f"{{{GATING}}}covarianceMatrix")
    for row in gate.covariance * scale * scale[:, None]:
        _add_numbers(ET.SubElement(matrix, f"{{{GATING}}}row"), "entry", row.tolist())
    ET.SubElement(element, f"{{{GATING}}}distanceSquare", {f"{{{DATA}}}value": f"{gate.distance!r}"})


def _placed(point: Array, axes: list[Axis]) -> list[float]:
    """Return a point on the scales of the dimensions."""
    return [axis.scale * value + axis.shift for axis, value in zip(axes, point.tolist(), strict=True)]


def _add_numbers(element: ET.Element, name: str, values: Sequence[float]) -> None:
    for value in values:
        ET.SubElement(element, f"{{{GATING}}}{name}", {f"{{{DATA}}}value": f"{value!r}"})
