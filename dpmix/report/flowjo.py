"""Write the gates of populations and cell types as a workspace of FlowJo 10 (.wsp).

The samples of the workspace are the FCS files of the gating. Each has its compensation matrix, the transforms
of the channels in use, and the same tree of gates: branches and populations as in hierarchy.xml
(`dpmix.populations.gates.nested`), the explored cells, and cell types inside their parents. Every gate
is a polygon in two channels. A vertex is on the linear scale of the file, and its polygon has straight sides
on the scale of the transforms, as in FlowJo.

- An ellipse becomes a polygon with the same area. FlowJo stores ellipses on the scale of its display.
- A compensated channel has the prefix Comp-, and / in the name of a channel is written _, as FlowJo does.
- logicle is FlowJo's logicle, arcsinh its fasinh with 4.5 decades, log its log from below the lowest vertex.
- Values are as in FlowKit: divided by the gain of the channel ($PnG), time multiplied by $TIMESTEP.

The annotation of a population has the purity, yield and F1 of its gates as written. FlowKit's own export
knows neither ellipses nor the scales log and arcsinh, and does not give the samples their matrices.

Format: workspaces written by FlowJo 10.6 and 10.7; the smallest part of them that CytoML writes, too
(Finak et al. 2018, Cytometry A 93:1189).
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dpmix.errors import DataError
from dpmix.inputs.events import Events
from dpmix.inputs.file_plans import has_gain
from dpmix.inputs.sources import Source
from dpmix.populations.explored import NAME as EXPLORED
from dpmix.populations.explored import next_number
from dpmix.populations.gates.ellipses import as_polygon
from dpmix.populations.gates.nested import Node
from dpmix.populations.result import Gating
from dpmix.report.flowjo_sample import GateStep, Sample, add_graph
from dpmix.report.gatingml import Space, write_xml
from dpmix.report.labels import label
from dpmix.system.files import csv_text, write_text

WORKSPACE, TABLE = "workspace.wsp", "workspace.csv"
FLOWJO = {"version": "20.0", "flowJoVersion": "10.6.2", "curGroup": "All Samples"}
NAME = 60  # characters of the name of a population


@dataclass(frozen=True)
class Group:
    """A population, a branch of populations, or a cell type, with its gates.

    Attributes
    ----------
    name : str
        Unique among all groups.
    kind : "branch", "population" or "type"
    parent : int
        Number of the group around it, which comes first; -1 for none.
    node : Node
        Its gates are polygons.
    """

    name: str
    kind: str
    parent: int
    node: Node
    numbers: str = ""


def check_samples(sources: Sequence[Source]) -> None:
    """Raise `DataError` if a sample is not the first data set of an FCS file."""
    for source in sources:
        if source.header is None or source.header.data_set > 1:
            found = "is not an FCS file" if source.header is None else "is not the first data set of its file"
            raise DataError(f"{source.name}: {found}, which --format wsp requires")


def gain_warning(events: Events) -> str | None:
    """Warn of channels whose gain FlowJo may not apply; None where there are none."""
    names = [c.detector for c in events.sources[0].details if c.detector in events.detectors and has_gain(c)]
    if not names:
        return None
    return (
        f"{', '.join(names)}: the gain ($PnG) is not 1; dpmix and FlowKit divide by it, FlowJo only if its "
        f"preferences say so: compare its counts with {TABLE}"
    )


def groups_of(
    gating: Gating, hierarchy: Sequence[Node], explored: Sequence[Node] = (), types: Sequence[Node] = ()
) -> list[Group]:
    """Name the groups of a workspace.

    Parameters
    ----------
    gating : Gating
    hierarchy : sequence of Node
        Branches and populations.
    explored : sequence of Node
        The explored cells, if any.
    types : sequence of Node
        Cell types; the numbers in them are rows of the table.
    """
    groups = [
        Group(
            f"branch {k}" if node.is_branch else _clean(label(gating, node.populations[0], NAME)),
            "branch" if node.is_branch else "population",
            node.parent,
            node,
            " ".join(str(gating.number(p)) for p in node.populations),
        )
        for k, node in enumerate(hierarchy, start=1)
    ]
    number = next_number(gating.labels, gating.n_populations)  # of the explored cells, as in other tables
    groups += [Group(f"{number} {EXPLORED}", "population", -1, node, str(number)) for node in explored]
    before = len(groups)
    for node in types:
        parent = node.parent + before if node.parent >= 0 else -1
        groups.append(Group(_clean(f"type {_type_of(gating, node)}"), "type", parent, node))
    return groups


def _type_of(gating: Gating, node: Node) -> str:
    """Return the name of the row that includes all others of a node."""
    assert gating.types is not None
    table = gating.types.table
    inside = {table.types[r] for r in node.populations}
    (top,) = (table.types[r] for r in node.populations if table.parents[r] not in inside)
    return top


def _clean(name: str) -> str:
    """Return a name without the separator of paths, and without characters that XML cannot hold."""
    return re.sub(r"[^\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", " ", name).replace("/", "_").strip()


def steps_of(groups: Sequence[Group]) -> list[GateStep]:
    """Return the gates of all groups, each after the one around it."""
    steps: list[GateStep] = []
    last: list[int] = []  # of each group: the gate that its events have passed
    for group in groups:
        strategy, n_own = group.node.strategy, group.node.n_own
        # Gates of a branch are written once, and its populations stand inside its last one.
        inner = last[group.parent] if group.parent >= 0 else -1
        for k in range(n_own):
            name = group.name if k == n_own - 1 else f"{group.name} step {k + 1}"
            place = len(strategy.gates) - n_own + k
            measured = (float(x[place]) for x in (strategy.purity, strategy.recovered, strategy.f1))
            note = "purity {:.4f}, yield {:.4f}, F1 {:.4f}".format(*measured)
            whole = f"populations {group.numbers}" if group.kind == "branch" else ""
            shortfall = strategy.shortfall if k == n_own - 1 else ""
            gate = as_polygon(strategy.gates[place])
            steps.append(GateStep(name, gate, inner, "; ".join(filter(None, (whole, note, shortfall)))))
            inner = len(steps) - 1
        last.append(inner)
    return steps


def write_workspace(path: Path, events: Events, space: Space, groups: Sequence[Group]) -> None:
    """Write the workspace.

    Parameters
    ----------
    path : Path
    events : Events
        Its files are the samples.
    space : Space
        The channels, as for GatingML.
    groups : sequence of Group

    Raises
    ------
    DataError
        The file cannot be written.
    """
    steps = steps_of(groups)
    samples = [Sample(events, s, space, steps) for s in range(len(events.sources))]
    root = ET.Element("Workspace", FLOWJO)
    matrices = ET.SubElement(root, "Matrices")
    for sample in {str(sample.matrix): sample for sample in samples if sample.matrix}.values():
        matrices.append(sample.matrix_element())
    _add_all_samples(root, len(samples))
    listed = ET.SubElement(root, "SampleList")
    listed.extend([sample.element() for sample in samples])
    write_xml(path, root)


def _add_all_samples(root: ET.Element, n_samples: int) -> None:
    """Add the group of all samples."""
    own = {"name": "All Samples", "annotation": "", "owningGroup": "All Samples", "expanded": "1"}
    node = ET.SubElement(ET.SubElement(root, "Groups"), "GroupNode", {**own, "sortPriority": "10"})
    node.set("count", "-1")
    add_graph(node, ("", ""))
    group = ET.SubElement(node, "Group", {"name": "All Samples", "live": "1", "role": "ws.group.dlog.test"})
    group.attrib |= {"key": "", "synchronized": "0"}
    ET.SubElement(group, "Criteria")
    references = ET.SubElement(group, "SampleRefs")
    for number in range(1, n_samples + 1):
        ET.SubElement(references, "SampleRef", {"sampleID": f"{number}"})
    ET.SubElement(group, "Keywords")


def write_table(path: Path, channels: Sequence[str], groups: Sequence[Group]) -> None:
    """Write workspace.csv: one row per gate of the workspace.

    `gate` is its path in FlowJo. `events` is the size of its population, branch or type, and `gated` the
    number of events inside this gate and those around it, in all samples together. purity, yield, f1 and
    shortfall are as in strategy.csv, of the polygons as written. A group without gates has one row.

    Raises
    ------
    DataError
        The file cannot be written.
    """
    write_text(path, csv_text(_rows(channels, groups)))


def _rows(channels: Sequence[str], groups: Sequence[Group]) -> Iterator[Sequence[object]]:
    yield ["gate", "kind", "populations", "events", "x", "y", "gated", "purity", "yield", "f1", "shortfall"]
    steps = steps_of(groups)
    at = iter(range(len(steps)))
    for group in groups:
        strategy, n_own = group.node.strategy, group.node.n_own
        for k in range(len(strategy.gates) - n_own, len(strategy.gates)):
            measured = [f"{one[k]:.4f}" for one in (strategy.purity, strategy.recovered, strategy.f1)]
            names = [channels[c] for c in strategy.gates[k].channels]
            shortfall = strategy.shortfall if k == len(strategy.gates) - 1 else ""
            path = _path(steps, next(at))
            yield [
                path,
                group.kind,
                group.numbers,
                strategy.size,
                *names,
                strategy.selected[k],
                *measured,
                shortfall,
            ]
        if not n_own:
            yield [group.name, group.kind, group.numbers, strategy.size, *[""] * 7]


def _path(steps: Sequence[GateStep], number: int) -> str:
    """Return the names of the gates from the outermost to a given one, separated by /."""
    step = steps[number]
    return f"{_path(steps, step.parent)}/{step.name}" if step.parent >= 0 else step.name
