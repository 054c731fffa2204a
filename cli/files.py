"""Describe a data file, for `dpmix init` and `dpmix info`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpmix.inputs.sources import Source
    from dpmix.inputs.suggest import Suggestion


def describe(source: Source) -> list[str]:
    """Return lines that describe a data file."""
    from dpmix.inputs.compensation import not_applied

    kind, header = "a table of numbers", source.header
    if header is not None:
        instrument = f" ({header.instrument})" if header.instrument else ""
        kind = f"{header.version}, {header.kind}{instrument}"
        if header.n_data_sets > 1:
            kind += f", data set {header.data_set} of {header.n_data_sets}"
    lines = [f"{source.name}: {source.n_events:,} events, {len(source.details)} channels; {kind}"]
    if source.spillover_problem:
        lines.append(f"its spillover matrix cannot be read: {source.spillover_problem}")
    elif source.spillover is not None:
        lines.append(f"it has a spillover matrix for {', '.join(source.spillover.detectors)}")
    elif source.kind is not None:
        lines.append("it has no spillover matrix")
    warnings = [*source.warnings, *not_applied(source)]
    return [*lines, *(f"warning: {text}" for text in warnings), *source.notes]


def parameters(suggestion: Suggestion) -> dict[str, float]:
    """Return the parameters of the transform that fits a channel; a is always 0, its default."""
    if suggestion.transform is None:
        return {}
    return {name: x for name, x in suggestion.transform.parameters().items() if name != "a"}


def scale(suggestion: Suggestion) -> str:
    """Return the transform that fits a channel, in YAML."""
    from dpmix.config.yaml_text import flow

    given = parameters(suggestion).items()
    return flow({"method": suggestion.method} | {name: int(x) if x == int(x) else x for name, x in given})


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of cells as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
