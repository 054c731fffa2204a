"""Which channels measure a marker of a cell, by the names that instruments and laboratories give.

Three rules leave channels out of the default config, each with a reason:

1. the name of the detector says that it measures no marker: scatter, time, pulse width, counters
   (`NOT_MARKERS`), or that another program added the column: maps, clusters, quality control (`ADDED`);
2. the stain is not a marker: viability, DNA, beads, barcodes (`STAINS`); of a mass cytometer also isotopes
   without an antibody, and isotopes next to a sum of them;
3. the detector is measured several times (`why_repeated`): area, height, width, peak, linear and logarithmic.
   One measurement is used: area where it has the resolution.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from dpmix.inputs import mass
from dpmix.inputs.channel import Channel

NARROW = 4096.0  # linear integers below it have too few levels for a logarithmic scale

# Channels that measure no marker of a cell, by the detector names that instruments give.
NOT_MARKERS = (
    ("scatter", r"(?<![A-Za-z])(FSC|SSC)|^(FS|SS)\d*($|[ _.-])|(forward|side) ?scatter"),
    ("time", r"^(computed[ _.-]?)?time(?!r)"),  # Timer-Blue and Timer-Red are a protein
    ("pulse or event length", r"^(event|cell)[ _.-]?length|^width$|^(trigger )?pulse[ _.-]?width|^TPW"),
    ("mass cytometer's pulse", r"^(offset|residual|cent(er|re)|amplitude)$"),
    (
        "beads or debarcoding",
        r"^(bead[ _.-]?)?dist(ance)?\d*$|^(bc[ _.-]?)?separation([ _.-]?dist)?$|^mahalanobis([ _.-]?dist)?$",
    ),
    ("event header", r"^HDR-"),
    ("event or file number", r"^event$|^EV$"),
    ("not used by the instrument", r"^unused"),
    ("result of an earlier gating", r"^dpmix_"),
    (
        "sorting",
        r"^(sort (result|enable)|ROI|classifier) bits|^drop phase$|"
        r"^sort(ed)?([ _.-]?(class(ifier)?|gate|decision|region|population))?$|"
        r"^(index|well)[ _.-]?(sort|row|column|[xy])$",
    ),
    ("column without a name", r"^column \d+$|^Unnamed: \d+$|^__index_level_\d+__$|^row names$"),
)

# Markers of what a cell does: phosphorylated proteins, cytokines and what is released with them, and
# proliferation.
PHOSPHO = r"^(p(?!DCs?$)[ _.-]?[A-Z][A-Za-z0-9]|pp38|phospho)"
STATE = (
    rf"{PHOSPHO}|^(c?PARP|I[kK]Ba|Ki[ _.-]?67|CyclinB1|IdU|MIP1[ab]?|"
    r"GM[ _.-]?CSF|IFN[ _.-]?(g|gamma)?|TNF[ _.-]?(a|alpha)?|TGF[ _.-]?b.*|IL[ _.-]?[0-9]+[A-Za-z]?|CD107a|"
    r"granzyme.*|GZM[AB]|perforin)$"
)

# Columns that other programs add to a file, by the name of the detector or of the marker.
NUMBER = r"[ _.-]?(#|no|nr|num|number|count|id|index)"
ADDED = (
    (
        "event or file number",
        rf"^((absolute|original|orig)?[ _.-]?(event|row|cell)|file|original|orig|object){NUMBER}$|"
        r"^(id|idx|index)([ _.-]?(event|row|cell))?$",
    ),
    (
        "label",
        rf"^(label|population|pop|cluster|sample|individual|subject|batch|donor|patient|condition|group|plate|"
        rf"well|tube|run|annotation)s?({NUMBER}|[ _.-]?name)?$|^cell[ _.-]?(type|label|class)s?$|"
        r"^(file|sample)[ _.-]?name$",
    ),
    (
        "quality control by another program",
        r"^remove_from_|^QC($|[ _.-]|vector|flag|pass|score|good|bad)|^good[ _.-]?(vs[ _.-]?bad|and)|"
        r"^(is[ _.-]?)?(outlier|doublet|singlet)s?([ _.-]?(score|flag))?$|"
        r"^(fluidic|flow|margin|density)[ _.-]?outliers?$|"
        r"^(flowAI|flowClean|flowCut|flowQ|PeacoQC)",
    ),
    (
        "map by another program",
        r"^(X[ _.-])?(t-?SNE|bh[-.]?t?-?SNE|opt-?SNE|vi-?SNE|fit-?SNE|h-?SNE|UMAP|densMAP|PHATE|Tri-?Map|"
        r"PaCMAP|EmbedSOM|isomap|diff(usion)?[ _.-]?map|force[ _.-]?atlas|FDL|PCA(?=_))"
        r"[ _.-]*(dim(ension)?)?[ _.-]*([0-9]{0,2}|[xyz])([ _.-][0-9])?$",
    ),
    (
        "clusters by another program",
        r"^(flow[ _.-]?SOM|r?phenograph|x[-.]?shift|clusterX|densVM|SPADE|leiden|louvain|k[-.]?means|PARC|"
        r"DEPECHE|immunoclust|flow[ _.-]?(means|grid)|citrus|seurat|h?dbscan|rclusterpp|cytotree|FLOCK|"
        r"accense|CellCnn)"
        r"($|[ _.-]|[0-9]|cluster|clust)|^som$|"
        rf"^(som[ _.-]?)?node({NUMBER}|[0-9]+)?$|"
        rf"(^|[ _.-]|meta|sub|super|som|node|flow)clust(er(s|ing|ings)?)?({NUMBER}|[ _.-]?k?[0-9]+)?$",
    ),
    (
        "gate by another program",
        r"^(gated?|manual[ _.-]?gat(e|ing)|in[ _.-]?gate)s?([ _.-]?(source|name|label|id|no|num|number))?$",
    ),
)

VIABILITY = "viability stain"
STAINS = (  # by the marker, or by the detector where no marker is named
    ("beads", r"(?<![a-z])beads?(?![a-z])|(?<![a-z])EQ ?\d*(?:[ _-]?beads?)?(?![a-z])"),
    ("barcode", r"barcod|(?<![a-z])BC[-_ ]?\d*(?![a-z])"),
    ("DNA", r"(?<![a-z])DNA[-_ ]?\d*(?![a-z])|intercalator|hoechst|draq ?5"),
    (
        VIABILITY,
        r"viab|(?<![a-z])(live|dead|L[/_ -]?D)(?![a-z])|live ?dead|zombie|(?<![a-z])(vivid|ghost|sytox)|"
        r"draq ?7|cis-?plat|7-?AAD|(?<![a-z])(DAPI|FV[DS]\d*|PI)(?![a-z0-9])|propidium|fixable",
    ),
    ("not used", r"^(unused|empty|blank)"),
    ("background of the instrument", r"bckg|background|contam|_conta$|environ"),
)
ISOTOPES = (  # of a mass cytometer, where no antibody is named, except for DNA
    ("DNA", r"^Ir19[13]$"),
    ("barcode", r"^Pd1(02|04|05|06|08|10)$"),
    (VIABILITY, r"^(Rh103|Pt19[458])$"),
)

COMPENSATED = re.compile(
    r"^<(?P<a>.+)>$|^(?:FJ)?Comp-(?P<b>.+)$|^(?P<c>.+?)[-_ ](?:compensated|comp)$", re.IGNORECASE
)
KINDS = "area|height|width|peak|integral|int|tof|lin|linear|log|[ahw]|[ahw](?:lin|log)|(?:lin|log)[ahw]"
APART = re.compile(rf"[-_ .]+(?P<word>{KINDS})$", re.IGNORECASE)
JOINED = re.compile(r"(?<=[\d)\]])(?P<word>[ahw]|lin|log|[ahw](?:lin|log)|(?:lin|log)[ahw])$", re.IGNORECASE)
TABLE = re.compile(r"-(?P<word>[AHW])$")  # of a table, where a word such as height may be a variable
QUANTITY = {"a": "area", "h": "height", "w": "width", "p": "peak", "t": "width"}
ORDER = ("area", "", "height", "peak", "width")  # the first is preferred; "": the name does not say


class Measurement(NamedTuple):
    """One of the measurements of a detector, by its name.

    Attributes
    ----------
    stem : str
        Name of the detector in lower case, the same for all its measurements.
    quantity : str
        area, height, peak or width, "" where the name does not say.
    scale : str
        lin, log or "".
    compensated : bool
        The name shows compensated values.
    """

    stem: str
    quantity: str
    scale: str
    compensated: bool


def uncompensated_name(detector: str) -> str:
    """Return the name of a detector without what shows that its values are compensated."""
    inner = COMPENSATED.match(detector)
    return next(filter(None, inner.groups())) if inner else detector


def measurement(detector: str, others: Sequence[str] = (), of_instrument: bool = True) -> Measurement:
    """Return what a detector name says about its measurement.

    Parameters
    ----------
    detector : str
    others : sequence of str
        The detectors of the file. A letter without a separator (450-50W) is a measurement only where the
        rest of the name is another detector, or has another such letter.
    of_instrument : bool
        The name comes from an instrument, not from a table.
    """
    stem = uncompensated_name(detector)
    is_compensated = stem != detector
    quantity, scale = "", ""
    while (match := (APART if of_instrument else TABLE).search(stem)) and match.start():  # "-A" is a name
        stem, quantity, scale = _read(stem, match, quantity, scale)
    if of_instrument and not is_compensated and stem == detector and (match := JOINED.search(stem)):
        short = stem[: match.start()].casefold()
        relatives = [name.casefold() for name in others if name != detector]
        # Only with a relative: FL1A next to FL1H is a measurement, CD8a alone is a marker.
        if any(name == short or JOINED.sub("", name) == short for name in relatives):
            stem, quantity, scale = _read(stem, match, quantity, scale)
    return Measurement(stem.casefold(), quantity, scale, is_compensated)


def _read(stem: str, match: re.Match[str], quantity: str, scale: str) -> tuple[str, str, str]:
    """Return a name without its last word, and the quantity and scale with what the word says."""
    word = match["word"].casefold()
    scales = re.search("lin|log", word)
    rest = word.replace("linear", "").replace("lin", "").replace("log", "")
    if rest in ("int", "integral"):
        rest = "area"
    return (
        stem[: match.start()],
        quantity or QUANTITY.get(rest[:1], ""),
        scale or (scales[0] if scales else ""),
    )


def names_a_cluster_of_differentiation(details: Sequence[Channel]) -> bool:
    """Return True if a channel has a name such as CD4: then a table is of cells."""
    names = [name for channel in details for name in (channel.detector, channel.marker)]
    return any(re.search(r"(?<![A-Za-z])CD\d", name) for name in names)


def why_not_measured(channel: Channel) -> str:
    """Return why a channel measures no stain (see `NOT_MARKERS` and `ADDED`), "" if it may measure one."""
    for why, names in NOT_MARKERS:
        if re.search(names, channel.detector, re.IGNORECASE):
            return why
    for why, names in ADDED:
        if any(re.search(names, name, re.IGNORECASE) for name in (channel.detector, channel.marker)):
            return why
    return ""


def why_no_marker(channel: Channel, kind: str | None) -> str:
    """Return why a channel measures no marker, by its own names, "" if it may measure one."""
    if why := why_not_measured(channel):
        return why
    stain = mass.target(channel) if kind == "mass" else channel.marker or channel.detector
    for why, names in STAINS:
        if re.search(names, stain, re.IGNORECASE):
            return why
    isotope = mass.isotope(channel.detector)
    if kind == "mass" and isotope and (isotope.startswith("Ir") or not mass.target(channel)):
        return next((why for why, names in ISOTOPES if re.search(names, isotope)), "")
    return ""


def why_left_out(details: Sequence[Channel], kind: str | None) -> list[str]:
    """Return for each channel of a file why its name leaves it out of the default config, "" if it does not.

    Parameters
    ----------
    details : sequence of Channel
    kind : "fluorescence", "mass" or None
        Kind of the instrument.
    """
    reasons = [why_no_marker(channel, kind) for channel in details]
    _spread_stains(details, reasons, kind is not None)
    if not any(not why for why in reasons):
        for k in _all_there_is(details, reasons):
            reasons[k] = ""
    candidates = [k for k, why in enumerate(reasons) if not why]
    for k, why in why_repeated(details, candidates, kind is not None).items():
        reasons[k] = why
    if kind == "mass":
        for k, whole in mass.parts_of_sums([channel.detector for channel in details]).items():
            if not reasons[whole]:
                reasons[k] = reasons[k] or f"part of the sum {details[whole].detector}"
        named = [k for k in candidates if mass.target(details[k])]
        for k in candidates if len(named) >= mass.FEWEST else ():
            if k not in named and not reasons[k]:
                reasons[k] = "isotope without an antibody"
    return reasons


def _all_there_is(details: Sequence[Channel], reasons: Sequence[str]) -> list[int]:
    """Return the channels to use where none measures a marker: the stains, such as DNA, or else the scatter.

    A series of measurements of the size of genomes has scatter, propidium iodide and time.
    """
    stained = [k for k, channel in enumerate(details) if not why_not_measured(channel)]
    return stained or [k for k, why in enumerate(reasons) if why == "scatter"]


def is_marker(channel: Channel, kind: str | None) -> bool:
    """Return False for a channel that is used only where no other one is: a stain, or scatter."""
    return not why_no_marker(channel, kind)


def _spread_stains(details: Sequence[Channel], reasons: list[str], of_instrument: bool) -> None:
    """Leave out, in place, all measurements of a detector whose stain, named for one, is not a marker."""
    names = [channel.detector for channel in details]
    stems = [measurement(name, names, of_instrument).stem for name in names]
    stained = {
        stem: why
        for stem, why, channel in zip(stems, reasons, details, strict=True)
        if why and not why_not_measured(channel)
    }
    for k, channel in enumerate(details):
        if not reasons[k] and (not channel.marker or channel.marker == channel.detector):
            reasons[k] = stained.get(stems[k], "")


def why_repeated(
    details: Sequence[Channel], candidates: Sequence[int], of_instrument: bool
) -> dict[int, str]:
    """Return the channels that repeat the measurement of another one, each with the reason.

    Among the measurements of one detector, compensated values are preferred, then those with the resolution
    (not linear integers of few levels), then area, height, peak and width in this order, then linear values.
    """
    names = [channel.detector for channel in details]
    groups: dict[str, list[tuple[int, Measurement]]] = {}
    for k in candidates:
        found = measurement(names[k], names, of_instrument)
        groups.setdefault(found.stem, []).append((k, found))
    reasons = {}
    for group in groups.values():
        best, its = min(group, key=lambda pair: _rank(details[pair[0]], pair[1]))
        for k, own in group:
            if own[1:] != its[1:]:
                reasons[k] = f"{_described(own, its)} of the same detector as {names[best]}"
        if of_instrument and its.quantity == "width":
            reasons[best] = "pulse width"
    return reasons


def _rank(channel: Channel, own: Measurement) -> tuple[bool, bool, bool, int, bool]:
    """Return the place of a measurement among the measurements of its detector; the smallest is used."""
    width = own.quantity == "width"
    return width, not own.compensated, is_coarse(channel), ORDER.index(own.quantity), own.scale == "log"


def _described(own: Measurement, used: Measurement) -> str:
    """Return in words how a measurement differs from the one in use."""
    raw = "uncompensated " if used.compensated and not own.compensated else ""
    scale = {"lin": "linear ", "log": "logarithmic ", "": ""}[own.scale]
    return f"{raw}{scale}{f'pulse {own.quantity}' if own.quantity else 'signal'}"


def is_coarse(channel: Channel) -> bool:
    """Return True for linear integers with too few levels for a logarithmic scale."""
    return channel.integer and channel.log is None and channel.range is not None and channel.range <= NARROW


def is_phosphoprotein(name: str) -> bool:
    """Return True for the name of a phosphorylated protein, which shows signalling."""
    return re.match(PHOSPHO, name) is not None


def is_state(name: str) -> bool:
    """Return True for the name of a marker that changes with the state of a cell rather than its type."""
    return re.match(STATE, name) is not None
