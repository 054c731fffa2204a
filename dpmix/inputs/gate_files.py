"""Read workspaces of FlowJo and GatingML files for FlowKit, without the gates that FlowKit cannot read.

FlowKit refuses a whole file for one gate or transform that it does not know, and takes the last of several
samples that have one name. Here, each sample of a workspace becomes a workspace of its own. It lacks the
gates that cannot be read, with the gates inside them, and `Gates.unread` says why. A gate cannot be read if

- it is of another kind than a rectangle, a polygon, an ellipse, or a Boolean of readable gates;
- its channel is not in the file: a derived parameter, or one of another panel;
- it is a polygon or an ellipse, and the transform of a channel is of a kind that FlowKit does not know, or
  not valid. Limits of rectangles are on the linear scale in a workspace, so they need no transform;
- another gate in the same one has its name.

In a GatingML file, a gate cannot be read that does not fit the schema of the standard. A dimension without
`compensation-ref`, which the standard demands, is not compensated.
"""

from __future__ import annotations

import copy
import io
import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

from dpmix.errors import ConfigError, DataError
from dpmix.inputs.sources import Source

KINDS = ("RectangleGate", "PolygonGate", "EllipsoidGate")
BOOLEANS = ("AndNode", "OrNode", "NotNode")
SCALES = ("linear", "log", "logicle", "biex", "fasinh")
BIEX_LENGTH = "256"  # the only length that FlowKit accepts; another is another resolution of the display
LEAST_WIDTH = -1.0  # of biex: no linear region, as a width of 0
MOST_WORDS = 200  # characters of a message of the schema
SAME_FILE = ("$FIL", "$DATE", "$BTIM", "$ETIM", "$TOT", "GUID")  # keywords that tell files of one name apart


class NoSample(DataError):
    """A workspace has no sample of the name of a file."""


class Gates(NamedTuple):
    """The gates of a sample.

    Attributes
    ----------
    strategy : flowkit.GatingStrategy
    unread : dict of str to str
        Why a gate cannot be read, by its path; the gates inside it are left out, too.
    """

    strategy: Any
    unread: dict[str, str]


@dataclass(frozen=True)
class WorkspaceSample:
    """A sample of a workspace: its name, its file, the file's folders from the last one on, and its XML."""

    name: str
    file: str
    folders: tuple[str, ...]
    keywords: dict[str, str]
    element: Any


def is_workspace(root: Any) -> bool:
    """Return True for the XML of a workspace of FlowJo.

    Raises
    ------
    ConfigError
        FlowJo 9 or older has written it.
    """
    if _kind(root) == "Workspace" and "gating" not in root.nsmap:
        raise ConfigError(["is a workspace of FlowJo 9 or older; save it in FlowJo 10"])
    return _kind(root) == "Workspace"


def parse(path: Path) -> Any:
    """Return the root element of an XML file; nothing outside of the file is read."""
    from lxml import etree

    # A workspace from elsewhere must not read files of this machine, or open connections.
    parser = etree.XMLParser(resolve_entities=False, no_network=True, load_dtd=False)
    with path.open("rb") as file:
        return etree.parse(file, parser).getroot()


# ------------------------------------------------------------------------------------------- workspaces


def samples_of(root: Any) -> list[WorkspaceSample]:
    """Return the samples of a workspace."""
    found = []
    for element in root.findall("SampleList/Sample", root.nsmap):
        node, data = element.find("SampleNode", root.nsmap), element.find("DataSet", root.nsmap)
        uri = "" if data is None else data.get("uri", "")
        place = unquote(urlparse(uri.replace("\\", "/")).path, errors="surrogateescape")
        *parts, file = Path(place).parts or ("",)
        keywords = {
            one.get("name", ""): one.get("value", "").strip()
            for one in element.findall("Keywords/Keyword", root.nsmap)
        }
        if node is not None:
            folders = tuple(part.casefold() for part in reversed(parts))
            found.append(WorkspaceSample(node.get("name", ""), file, folders, keywords, element))
    return found


def find_sample(samples: Sequence[WorkspaceSample], source: Source, path: Path) -> WorkspaceSample:
    """Find the sample of a file, by its name, by the file of the sample, or by $FIL; last, in any case.

    Among several samples with this name, find the one whose file shares the most folders with this file,
    counted from the last, or else the one that has the keywords of the file.

    Raises
    ------
    NoSample
        The workspace, `path`, has no such sample.
    DataError
        Several samples are equally near.
    """
    keywords = source.header.keywords if source.header else {}
    same: list[WorkspaceSample] = []
    names = [source.path.name, keywords.get("fil", "")]
    for fold in (str, str.casefold):
        for name in filter(None, names):
            for attribute in ("name", "file"):
                same = same or [one for one in samples if fold(getattr(one, attribute)) == fold(name)]
    if not same:
        known = ", ".join(sample.name for sample in samples) or "no samples"
        raise NoSample(f"{source.name}: {path} has no sample of this name; it has {known}")
    folders = tuple(part.casefold() for part in reversed(source.path.absolute().parent.parts))
    shared = [_shared(sample.folders, folders) for sample in same]
    near = [sample for sample, n in zip(same, shared, strict=True) if n == max(shared)]
    agreeing = [sample for sample in near if _agrees(sample, keywords)]
    near = near if len(near) == 1 or not agreeing else agreeing
    if len(near) > 1:
        raise DataError(
            f"{source.name}: {path} has {len(near)} samples named {near[0].name}, and neither their folders "
            "nor keywords show which is this file; give the file in its folder, or rename the samples"
        )
    return near[0]


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    """Return how many parts two sequences share from their start on."""
    same = [a == b for a, b in zip(one, other, strict=False)]
    return same.index(False) if False in same else len(same)


def _agrees(sample: WorkspaceSample, keywords: dict[str, str]) -> bool:
    """Return True if a workspace has no other value for a keyword than the file, and the same for some."""
    both = [
        (sample.keywords[name], keywords[own].strip())
        for name in SAME_FILE
        if name in sample.keywords and (own := name.removeprefix("$").lower()) in keywords
    ]
    return bool(both) and all(one == other for one, other in both)


def read_sample(root: Any, sample: WorkspaceSample, source: Source) -> Gates:
    """Return the gates of a sample of a workspace for a file.

    Raises
    ------
    Exception
        FlowKit cannot read the sample; its errors are of many kinds.
    """
    import flowkit
    from lxml import etree

    own = copy.deepcopy(sample.element)
    alone = etree.Element(root.tag, dict(root.attrib), nsmap=root.nsmap)
    etree.SubElement(alone, "Groups")
    etree.SubElement(alone, "SampleList").append(own)
    unread = _remove_unread(own, _Scales(own, root.nsmap), {c.replace("/", "_") for c in source.channels})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        workspace = flowkit.Workspace(io.BytesIO(etree.tostring(alone)), load_missing_file_data=True)
        return Gates(workspace.get_gating_strategy(sample.name), unread)


class _Scales:
    """The transforms of a sample, changed in place to what FlowKit reads.

    Attributes
    ----------
    unknown : dict of str to str
        Kind of the transform of each channel whose transform cannot be read.
    rescaled : set of str
        Channels whose transform had another length: ellipses are on its scale.
    affixes : tuple of str
        Prefix and suffix of the names of compensated channels.
    """

    def __init__(self, sample: Any, names: dict[str, str]) -> None:
        from lxml import etree

        self.unknown: dict[str, str] = {}
        self.rescaled: set[str] = set()
        matrix = next((one for one in sample.iter() if _kind(one) == "spilloverMatrix"), None)
        self.affixes = ("", "") if matrix is None else (matrix.get("prefix", ""), matrix.get("suffix", ""))
        scales = sample.find("Transformations", names)
        if scales is None:  # as FlowKit needs it
            scales = etree.SubElement(sample, "Transformations")
        for scale in list(scales):
            kind, channel = _kind(scale), next(iter(_channels(scale)), "")
            if kind not in SCALES or not channel or not _is_valid(scale):
                self.unknown[channel] = kind if kind not in SCALES else f"{kind}, which is not valid"
                scales.remove(scale)
            elif kind == "biex":
                if _get(scale, "length") != BIEX_LENGTH:
                    self.rescaled.add(channel)
                    _set(scale, "length", BIEX_LENGTH)
                if LEAST_WIDTH < float(_get(scale, "width")) <= 0:
                    _set(scale, "width", f"{LEAST_WIDTH:g}")

    def bare(self, name: str) -> str:
        """Return the name of a channel without what FlowJo adds where it is compensated."""
        prefix, suffix = self.affixes
        return name.removeprefix(prefix).removesuffix(suffix)


def _is_valid(scale: Any) -> bool:
    """Return True if all parameters of a transform are numbers, and the width of a biex is not above 0."""
    try:
        numbers = [float(value) for value in scale.attrib.values()]
    except ValueError:
        return False
    is_wrong = _kind(scale) == "biex" and float(_get(scale, "width")) > 0
    return all(map(math.isfinite, numbers)) and not is_wrong


def _remove_unread(sample: Any, scales: _Scales, channels: set[str]) -> dict[str, str]:
    """Remove the gates of a sample that cannot be read, in place, and return why, by their paths."""
    unread: dict[str, str] = {}
    found = _nodes(sample)
    nodes = dict(found)
    for path, n_gates in Counter(path for path, _ in found).items():
        if n_gates > 1:
            unread[path] = f"{n_gates} gates have this name"
    for path, node in nodes.items():
        if _kind(node) == "Population" and (why := _why_unread(node, scales, channels)):
            unread.setdefault(path, why)
    missing: set[str] | None = None
    # Until nothing changes: a Boolean of a Boolean of an unreadable gate cannot be read either.
    while missing != (gone := {path for path in nodes if any(_inside(path, one) for one in unread)}):
        missing = gone
        for path, node in nodes.items():
            parts = [one.get("name", "") for one in node.iter() if _kind(one) == "Dependent"]
            if _kind(node) in BOOLEANS and path not in gone and not {*parts} <= nodes.keys() - gone:
                unread[path] = "of gates that cannot be read"
    outer = {path: why for path, why in unread.items() if path.rpartition("/")[0] not in gone}
    for path, node in found:
        if path in outer:
            node.getparent().remove(node)
    return outer


def _inside(path: str, other: str) -> bool:
    """Return True if a gate is another one, or inside it."""
    return path == other or path.startswith(f"{other}/")


def _nodes(element: Any, above: str = "") -> list[tuple[str, Any]]:
    """Return the path and element of each gate below an element of a sample."""
    found = []
    for child in element:
        if _kind(child) in ("Population", *BOOLEANS):
            path = f"{above}{child.get('name', '')}"
            found += [(path, child), *_nodes(child, f"{path}/")]
        elif _kind(child) in ("SampleNode", "Subpopulations"):
            found += _nodes(child, above)
    return found


def _why_unread(population: Any, scales: _Scales, channels: set[str]) -> str:
    """Return why the gate of a population cannot be read, "" where it can."""
    gates = [gate for child in population if _kind(child) == "Gate" for gate in child]
    if len(gates) != 1 or _kind(gates[0]) not in KINDS:
        return ", ".join(map(_kind, gates)) or "no gate"
    names = [scales.bare(name) for name in _channels(gates[0])]
    if absent := [name for name in names if name not in channels]:
        return f"of {absent[0]}, which the file lacks"
    if _kind(gates[0]) != "RectangleGate":
        for name in names:
            if name in scales.unknown:
                return f"{_kind(gates[0])} on the scale {scales.unknown[name]}"
            if name in scales.rescaled and _kind(gates[0]) == "EllipsoidGate":
                return f"{_kind(gates[0])} on a biex scale of another length than {BIEX_LENGTH}"
    return ""


def _channels(element: Any) -> list[str]:
    """Return the channels that a gate or transform names; a dimension that is computed has none."""
    named = [one for one in element.iter() if _kind(one) in ("fcs-dimension", "new-dimension", "parameter")]
    return [_get(one, "name") for one in named]


def _kind(element: Any) -> str:
    """Return the tag of an element without its namespace."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def _get(element: Any, name: str) -> str:
    """Return an attribute in whatever namespace, "" where it is missing."""
    return next((value for key, value in element.attrib.items() if key.rpartition("}")[2] == name), "")


def _set(element: Any, name: str, value: str) -> None:
    """Set an attribute that the element has, in its namespace."""
    for key in element.attrib:
        if key.rpartition("}")[2] == name:
            element.set(key, value)


# --------------------------------------------------------------------------------------------- GatingML


def read_gatingml(root: Any) -> Gates:
    """Return the gates of a GatingML file.

    Raises
    ------
    ConfigError
        It is not GatingML 2.0.
    Exception
        FlowKit cannot read it; its errors are of many kinds.
    """
    import flowkit
    from flowkit._resources import gml_schema
    from lxml import etree

    unread: dict[str, str] = {}
    for one in [*root.iter()]:
        if _kind(one) in ("dimension", "divider") and not _get(one, "compensation-ref"):
            one.set(one.tag.replace(_kind(one), "compensation-ref"), "uncompensated")
    while not gml_schema.validate(root):
        problem = gml_schema.error_log[0]
        gate = _gate_at(root, problem.path)
        if gate is None:
            found = " ".join(problem.message.split())[:MOST_WORDS]
            raise ConfigError([f"line {problem.line} is not GatingML 2.0 ({found})"])
        unread[_get(gate, "id")] = f"{_kind(gate)}: {' '.join(problem.message.split())[:MOST_WORDS]}"
        _remove_with_followers(root, gate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Gates(flowkit.parse_gating_xml(io.BytesIO(etree.tostring(root))), unread)


def _gate_at(root: Any, path: str) -> Any:
    """Return the gate of a GatingML file that an XPath leads into, None for none."""
    found = root.getroottree().xpath(path, namespaces={key: uri for key, uri in root.nsmap.items() if key})
    element = found[0] if found else root
    while element is not root and element.getparent() is not root:
        element = element.getparent()
    return element if element is not root and _kind(element).endswith("Gate") else None


def _remove_with_followers(root: Any, gate: Any) -> None:
    """Remove a gate of a GatingML file, and all gates that are inside it or made of it."""
    gone: set[str] = set()
    found = [gate]
    while found:
        for one in found:
            gone |= {_get(part, "id") for part in one.iter() if _kind(part) in (_kind(one), "Quadrant")}
            root.remove(one)
        found = [
            one
            for one in root
            if _get(one, "parent_id") in gone or any(_get(part, "ref") in gone for part in one.iter())
        ]
