"""dpmix types."""

from __future__ import annotations

from pathlib import Path

import click

from .values import GivenPath


@click.command("types")
@click.argument("table", required=False)
@click.option("--list", "with_list", is_flag=True, help="List the built-in tables with their sources.")
@click.option("--show", metavar="NAME", help="Print a built-in table.")
@click.option(
    "--template",
    type=GivenPath(path_type=Path),
    metavar="RUN",
    help="Print an empty table for the channels of a run.",
)
@click.option(
    "--run",
    type=GivenPath(path_type=Path),
    help="With TABLE: also match its markers to the channels of a run.",
)
@click.option(
    "--zero", type=click.Choice(["lo", "blank"]), help="With TABLE: what the number 0 in a cell means."
)
def command(
    table: str | None,
    with_list: bool,
    show: str | None,
    template: Path | None,
    run: Path | None,
    zero: str | None,
) -> None:
    """Check TABLE, a table of cell types, or print one to start from.

    A table is a CSV file with a row per cell type. The first column has the names of the types, and each
    other column a marker: + - lo mid ++, two of them with | between, or nothing where it does not matter. The
    columns parent, kind and cl are optional. The built-in tables have textbook definitions with their source:
    a start, to be checked for each panel.

    \b
    Examples:
      dpmix types --list
      dpmix types --show pbmc-t > types.csv
      dpmix types --template run.h5 > types.csv
      dpmix types types.csv --run run.h5
    """
    given = [
        name
        for name, value in (
            ("TABLE", table),
            ("--list", with_list),
            ("--show", show),
            ("--template", template),
        )
        if value
    ]
    if len(given) != 1:
        found = " and ".join(given) or "nothing"
        raise click.UsageError(f"got {found}; need one of TABLE, --list, --show and --template")
    if (run or zero) and not table:
        raise click.UsageError("--run and --zero need TABLE")
    if table:
        lines = _checked(table, run, zero or "")
    elif with_list:
        lines = _listed()
    else:
        lines = _shown(show) if show else _template(template)
    click.echo("\n".join(lines))


def _checked(table: str, run: Path | None, zero: str) -> list[str]:
    """Return lines about a table that can be read."""
    from dpmix.errors import printable
    from dpmix.inputs.type_table import match_markers, read_types

    found = read_types(table, zero)
    spoken = int((~found.is_silent).sum())
    lines = [
        f"{found.source}: {len(found.types)} cell types, {len(found.markers)} markers, {spoken} cells",
        *found.notes,
    ]
    if run is not None:
        channels = _channels(run)
        numbers, notes = match_markers(found, channels)
        pairs = [
            f"{marker} is {channels[k]}"
            for marker, k in zip(found.markers, numbers.tolist(), strict=True)
            if k >= 0 and channels[k] != marker
        ]
        lines += [f"markers in {run}: {int((numbers >= 0).sum())} of {len(numbers)}", *pairs, *notes]
    return [printable(line) for line in lines]


def _listed() -> list[str]:
    from dpmix.inputs.type_table import built_in_names, read_types, remarks

    lines = []
    for name in built_in_names():
        table, (about, *more) = read_types(name), remarks(name)
        lines.append(f"{name}: {len(table.types)} cell types, {len(table.markers)} markers. {about}")
        lines += [f"  {line}" for line in more]
    return [*lines, "dpmix types --show NAME prints a table"]


def _shown(name: str) -> list[str]:
    from dpmix.inputs.type_table import built_in, built_in_names

    file = built_in(name)
    if file is None:
        raise click.UsageError(
            f"--show: no built-in table is named {name}; there are {', '.join(built_in_names())}"
        )
    return file.read_text(encoding="utf-8").splitlines()


def _template(run: Path | None) -> list[str]:
    import csv
    import io

    from dpmix.inputs.type_table import KIND, NAMES, ONTOLOGY, PARENT

    assert run is not None
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow([NAMES[0], PARENT, KIND, ONTOLOGY, *_channels(run)])
    return text.getvalue().splitlines()


def _channels(run: Path) -> tuple[str, ...]:
    from dpmix.runs.reader import open_run

    return tuple(open_run(run).channels)
