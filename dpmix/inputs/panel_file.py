"""Panel files: the marker of each channel, and whether populations are found by it (data.panel)."""

from __future__ import annotations

from pathlib import Path

from dpmix.config.data import DataConfig
from dpmix.errors import ConfigError
from dpmix.inputs.channels import match, nearest
from dpmix.inputs.marker_names import shown_name
from dpmix.inputs.samples import read_table
from dpmix.inputs.sources import Source

COLUMNS = {
    "channel": ("channel", "fcs_colname"),
    "marker": ("marker", "antigen"),
    "class": ("class", "marker_class"),
}
"""Columns of a panel with their names in dpmix and in CATALYST (Nowicka et al. 2017, F1000Research 6:748)."""
CLASSES = ("type", "state", "none")
NEED = "need a CSV file with the columns channel, marker, class (or fcs_colname, antigen, marker_class)"


def with_panel(settings: DataConfig, base: Path, source: Source) -> DataConfig:
    """Return the settings with the channels, state channels and names of markers of data.panel.

    A channel that the panel does not list is not used.

    Parameters
    ----------
    settings : DataConfig
    base : Path
        Folder that the panel is relative to.
    source : Source
        First data file, before markers are renamed.

    Raises
    ------
    ConfigError
        The panel cannot be read, names a channel that the file lacks, or has another class.
    """
    if settings.panel is None:
        return settings
    path = base / settings.panel
    where = f"data.panel: {path}"
    head, rows = read_table("data.panel", path, COLUMNS["channel"], NEED)
    places = {}
    for name, spellings in COLUMNS.items():
        known = [head.index(one) for one in spellings if one in head]
        if not known:
            raise ConfigError([f"{where}: found no column {' or '.join(spellings)}, {NEED}"])
        places[name] = known[0]
    problems, rename, used = [], dict[str, str](), {name: list[str]() for name in CLASSES}
    for row in rows:
        channel, marker, kind = (row[places[name]] for name in COLUMNS)
        numbers = match(channel, source.details)
        if kind not in CLASSES:
            problems.append(
                f"{where}: {channel} has the class {kind or '(empty)'}, need {', '.join(CLASSES)}"
            )
        elif len(numbers) != 1:
            why = "matches no channel" if not numbers else f"matches {len(numbers)} channels"
            problems.append(f"{where}: {channel} {why} of {source.name}{nearest(channel, source.details)}")
        else:
            detail = source.details[numbers[0]]
            used[kind].append(detail.detector)
            if marker and marker != shown_name(detail):
                rename[shown_name(detail)] = marker
    if not problems and not used["type"]:
        problems.append(f"{where}: found no channel of class type, need at least one")
    if problems:
        raise ConfigError(problems)
    # What the config itself says about a name comes before the panel.
    changed: dict[str, object] = {"rename": {**rename, **settings.rename}, "channels": used["type"]}
    return settings.model_copy(update=changed | {"state_channels": used["state"] or None})
