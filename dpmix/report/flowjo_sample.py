"""A sample of a workspace of FlowJo (`dpmix.report.flowjo`): its file, matrix, transforms and gates."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpmix.inputs.channels import numbers_of, run_panel
from dpmix.inputs.events import Events
from dpmix.inputs.sources import Source
from dpmix.inputs.transforms import Transform
from dpmix.model.mixture import Array
from dpmix.populations.gates.polygons import PolygonGate
from dpmix.report.gatingml import DATA, GATING, TRANSFORMS, Axis, Space, in_units

COMPENSATED = "Comp-"
RANGE = 262_144.0  # of a channel whose file states none
ABOUT = (
    *("fil", "tot", "par", "datatype", "byteord", "mode", "date", "btim", "etim", "cyt", "timestep", "guid"),
)
"""Keywords of a sample, in lower case and without $, next to the keywords of its channels."""
BELOW = 10.0  # the scale of log begins at the lowest vertex divided by this


@dataclass(frozen=True)
class GateStep:
    """A gate of the tree.

    Attributes
    ----------
    name : str
        Name of the population that it gives.
    gate : PolygonGate
    parent : int
        Number of the gate around it, -1 for none.
    note : str
    """

    name: str
    gate: PolygonGate
    parent: int
    note: str


def add_graph(element: ET.Element, names: Sequence[str]) -> None:
    """Add the plot that FlowJo opens for a sample or population; `names` are the two channels."""
    look = {"smoothing": "0", "backColor": "#ffffff", "foreColor": "#000000", "type": "Pseudocolor"}
    graph = ET.SubElement(element, "Graph", {**look, "fast": "1"})
    for axis, name in zip("xy", names, strict=True):
        ET.SubElement(graph, "Axis", {"dimension": axis, "name": name, "label": "", "auto": "auto"})


def linear(axis: Axis, values: Array) -> Array:
    """Return transformed values of dpmix, float64 [V], on the linear scale of FlowKit and FlowJo."""
    own = dict(axis.parameters)
    scaled = axis.scale * values + axis.shift
    match axis.kind:
        case "logicle":
            return Transform("logicle", t=own["T"], w=own["W"], m=own["M"], a=own["A"]).invert(scaled)
        case "fasinh":
            decades = own["M"] * math.log(10.0)
            return own["T"] * np.sinh(scaled * decades) / math.sinh(decades)
        case "flog":
            return own["T"] * 10.0 ** ((scaled - 1.0) * own["M"])
        case _:
            return scaled


class Sample:
    """One sample of the workspace.

    Parameters
    ----------
    events : Events
    number : int
        Number of the sample, from 0.
    space : Space
    steps : sequence of GateStep

    Attributes
    ----------
    matrix : Spillover or None
        Between values of FlowKit.
    """

    def __init__(self, events: Events, number: int, space: Space, steps: Sequence[GateStep]) -> None:
        self._source, self._number, self._steps = events.sources[number], number + 1, steps
        panel = run_panel(events.detectors, events.channels)
        details = self._source.details
        own = [details[numbers_of(panel, k, self._source)[0]] for k in range(len(events.detectors))]
        both = zip(space.axes, own, strict=True)
        self._axes = [replace(axis, name=channel.detector) for axis, channel in both]
        self._ranges = [channel.range or RANGE for channel in own]
        spillover = events.spillovers[number] if events.spillovers else None
        self.matrix = in_units(spillover, space.units) if spillover else None
        self._vertices = [
            np.column_stack([linear(self._axes[d], v) for d, v in zip(g.channels, g.vertices.T, strict=True)])
            for g in (step.gate for step in steps)
        ]

    def element(self) -> ET.Element:
        """Return the sample."""
        sample, name = ET.Element("Sample"), self._source.path.name
        uri = self._source.path.absolute().as_uri()
        ET.SubElement(sample, "DataSet", {"uri": uri, "sampleID": f"{self._number}"})
        if self.matrix:
            sample.append(self.matrix_element())
        scales = ET.SubElement(sample, "Transformations")
        for d, axis in enumerate(self._axes):
            # Under both names of the channel: as stored, and as compensated, which gates and plots use.
            for channel in dict.fromkeys((_in_flowjo(axis.name), self._name(d))):
                scale = self._scale(d)
                ET.SubElement(scale, f"{{{DATA}}}parameter", {f"{{{DATA}}}name": channel})
                scales.append(scale)
        keywords = ET.SubElement(sample, "Keywords")
        for key, value in _keywords(self._source):
            ET.SubElement(keywords, "Keyword", {"name": key, "value": value})
        node = ET.SubElement(sample, "SampleNode", {"name": name, "annotation": "", "owningGroup": ""})
        node.attrib |= {"expanded": "1", "sortPriority": "10", "count": f"{self._source.n_events}"}
        node.set("sampleID", f"{self._number}")
        self._add_inside(node, -1)
        return sample

    def matrix_element(self) -> ET.Element:
        """Return the compensation matrix: rows are dyes, named as their detectors."""
        assert self.matrix is not None
        element = ET.Element(f"{{{TRANSFORMS}}}spilloverMatrix", {"spectral": "0", "prefix": COMPENSATED})
        element.attrib |= {"name": "dpmix", "editable": "1", "color": "#c0c0c0", "version": "FlowJo-10.6.2"}
        element.attrib |= {"status": "FINALIZED", "suffix": "", f"{{{TRANSFORMS}}}id": f"dpmix{self._number}"}
        names = [_in_flowjo(detector) for detector in self.matrix.detectors]
        parameters = ET.SubElement(element, f"{{{DATA}}}parameters")
        for name in names:
            own = {f"{{{DATA}}}name": name, "userProvidedCompInfix": f"{COMPENSATED}{name}"}
            ET.SubElement(parameters, f"{{{DATA}}}parameter", own)
        for name, row in zip(names, self.matrix.matrix.tolist(), strict=True):
            own = {f"{{{DATA}}}parameter": name, "userProvidedCompInfix": f"{COMPENSATED}{name}"}
            dye = ET.SubElement(element, f"{{{TRANSFORMS}}}spillover", own)
            for other, value in zip(names, row, strict=True):
                cell = {f"{{{DATA}}}parameter": other, f"{{{TRANSFORMS}}}value": f"{value!r}"}
                ET.SubElement(dye, f"{{{TRANSFORMS}}}coefficient", cell)
        return element

    def _name(self, d: int) -> str:
        """Return the name of a channel in gates and plots."""
        name = self._axes[d].name
        compensated = self.matrix is not None and name in self.matrix.detectors
        return f"{COMPENSATED if compensated else ''}{_in_flowjo(name)}"

    def _scale(self, d: int) -> ET.Element:
        """Return the transform of a channel."""
        axis, own = self._axes[d], dict(self._axes[d].parameters)
        given: dict[str, float]
        match axis.kind:
            case "logicle":
                kind, given = "logicle", {"length": 256, **own}
            case "fasinh":
                kind, given = "fasinh", {"length": 256, "maxRange": own["T"], **own}
            case "flog":
                # A vertex at or below the offset has no logarithm in FlowJo.
                offset = min([own["T"] / 10.0 ** own["M"], *(value / BELOW for value in self._used(d))])
                kind, given = "log", {"offset": offset, "decades": math.log10(own["T"] / offset)}
            case _:
                kind, given = "linear", {"minRange": 0, "maxRange": self._ranges[d] * axis.scale}
        element = ET.Element(f"{{{TRANSFORMS}}}{kind}")
        element.attrib |= {f"{{{TRANSFORMS}}}{name}": f"{value!r}" for name, value in given.items()}
        if kind == "linear":
            element.set("gain", "1")
        return element

    def _used(self, d: int) -> Iterator[float]:
        """Yield the values of the vertices in a channel, on the linear scale."""
        for step, vertices in zip(self._steps, self._vertices, strict=True):
            if d in step.gate.channels:
                yield from vertices[:, step.gate.channels.index(d)].tolist()

    def _add_inside(self, element: ET.Element, number: int) -> None:
        """Add to a sample (-1) or population its plot, its own gate, and the populations inside it."""
        inside = [k for k, step in enumerate(self._steps) if step.parent == number]
        shown = inside[0] if inside else number
        if shown >= 0:
            add_graph(element, [self._name(d) for d in self._steps[shown].gate.channels])
        if number >= 0:
            self._add_gate(element, number)
        below = ET.SubElement(element, "Subpopulations") if inside else element
        for k in inside:
            step = self._steps[k]
            own = {"name": step.name, "annotation": step.note, "owningGroup": "", "expanded": "1"}
            own |= {"sortPriority": "10", "count": "-1"}
            self._add_inside(ET.SubElement(below, "Population", own), k)

    def _add_gate(self, population: ET.Element, number: int) -> None:
        step, ids = self._steps[number], {f"{{{GATING}}}id": self._id(number)}
        if step.parent >= 0:
            ids[f"{{{GATING}}}parent_id"] = self._id(step.parent)
        look = {
            "eventsInside": "1",
            "annoOffsetX": "0",
            "annoOffsetY": "0",
            "tint": "#000000",
            "isTinted": "0",
        }
        look |= {"lineWeight": "Normal", "userDefined": "1", "quadId": "-1", "gateResolution": "256"}
        outer = ET.SubElement(population, "Gate", ids)
        polygon = ET.SubElement(outer, f"{{{GATING}}}PolygonGate", {**look, **ids})
        for d in step.gate.channels:
            dimension = ET.SubElement(polygon, f"{{{GATING}}}dimension")
            ET.SubElement(dimension, f"{{{DATA}}}fcs-dimension", {f"{{{DATA}}}name": self._name(d)})
        for vertex in self._vertices[number].tolist():
            point = ET.SubElement(polygon, f"{{{GATING}}}vertex")
            for value in vertex:
                ET.SubElement(point, f"{{{GATING}}}coordinate", {f"{{{DATA}}}value": f"{value!r}"})

    def _id(self, number: int) -> str:
        """Return the name of a gate that no other has, in any sample."""
        return f"ID{self._number * (len(self._steps) + 1) + number}"


def _in_flowjo(name: str) -> str:
    """Return the name of a channel as FlowJo writes it."""
    return name.replace("/", "_")


def _keywords(source: Source) -> Iterator[tuple[str, str]]:
    """Yield the keywords of the file that describe it and its channels."""
    assert source.header is not None
    yield "FJ_FCS_VERSION", source.header.version.removeprefix("FCS")
    for name, value in source.header.keywords.items():
        own = "GUID" if name == "guid" else f"${name.upper()}"
        if name in ABOUT or re.fullmatch(r"p\d+[nsbreg]", name):
            yield own, "".join(letter if letter.isprintable() else " " for letter in value)
