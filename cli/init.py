"""dpmix init."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dpmix.errors import ConfigError, DataError
from dpmix.system.console import quoted, unknown_characters
from dpmix.system.files import check_outputs, write_text
from dpmix.system.paths import encoding_of, from_home, relative, with_slashes

from . import files as data_files
from .values import GivenPath

if TYPE_CHECKING:
    from dpmix.config.schema import Config
    from dpmix.inputs.marker_names import Spelling
    from dpmix.inputs.sources import Source
    from dpmix.inputs.suggest import Settings, Suggestion

LINE = 110


@click.command("init")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option(
    "--output",
    type=GivenPath(path_type=Path),
    help="Config file to write; without it, the config is printed.",
)
@click.option(
    "--compensation",
    default="auto",
    metavar="auto|none|FILE",
    show_default=True,
    help="Key data.compensation: the files' own spillover matrices, none, or a CSV file with a matrix.",
)
@click.option(
    "--all",
    "every_key",
    is_flag=True,
    help="Write all keys, each with its explanation, and every channel with its transform.",
)
@click.option("--overwrite", is_flag=True, help="Replace an existing config.")
def command(
    files: tuple[str, ...], output: Path | None, compensation: str, every_key: bool, overwrite: bool
) -> None:
    """Write a config for data files.

    The config has the keys that differ from file to file. All other keys have their defaults. Channels that
    are not used are named with the reason: they measure no marker, repeat another channel, or are constant.
    At most 65,536 events are read. Several files, and the files of a folder, are pooled into one data set. A
    table of samples, a CSV file with a row per sample and a column file, stands for its files and becomes
    data.samples. Names of markers that differ in spelling between files are listed with a suggestion for
    data.rename, as comments; channels that some files lack are listed and left out. Phosphorylated proteins
    become state channels (data.state_channels): measured in the populations, which other markers define.
    Cytokines and Ki67 are suggested for it, as comments.

    With --all, the config has all keys, their defaults and the reasons for them, and every channel with its
    detector, its marker and a transform that fits the instrument and the events. Channels that are not used
    are commented out. Where the files have area and height of forward scatter, a gate for single cells is
    proposed at data.gate, as a comment.

    \b
    Examples:
      dpmix init sample.fcs
      dpmix init sample.fcs --all --output run.yaml
      dpmix init monday/*.fcs tuesday.fcs --output run.yaml
      dpmix init week --output run.yaml
      dpmix init samples.csv --output run.yaml
    """
    if output is not None and output.is_dir():
        example = output / "run.yaml"
        raise ConfigError(
            [f"{output}: is a folder; give the name of the config to write, for example {example}"]
        )
    if output is not None and output.exists():
        _check_replaceable(output, files, overwrite)
    text, notes = write_config(files, Path() if output is None else output.parent, compensation, every_key)
    if output is None:
        if unknown := unknown_characters(text):
            raise ConfigError(
                [f"this terminal, pipe or file cannot print {' '.join(unknown)}; use --output run.yaml"]
            )
        click.echo(text, nl=False)
        return
    try:
        write_text(output, text)
    except DataError as error:
        raise ConfigError([str(error)]) from None
    check = f"read the {len(notes)} notes at its top, check it" if len(notes) > 1 else "check it"
    click.echo(f"{output}: written; {check}, then run: dpmix mcmc {quoted(output)}", err=True)


def _check_replaceable(output: Path, files: Sequence[str], overwrite: bool) -> None:
    """Raise `ConfigError` for an existing file that must not be replaced: only a config may be, if asked."""
    from dpmix.inputs.opening import FOLDER_SUFFIXES, find_places

    if not overwrite:
        raise ConfigError([f"{output}: exists already; --overwrite replaces it"])
    check_outputs([output], overwrite, [path for path, _ in find_places(files)])
    try:
        is_text = "\0" not in output.read_text(encoding=encoding_of(output))
    except (OSError, UnicodeError):
        is_text = False
    if not is_text or output.suffix.lower() in FOLDER_SUFFIXES:
        raise ConfigError([f"{output}: exists already and is not a config; give another --output"])


def write_config(
    files: Sequence[str], folder: Path, compensation: str, every_key: bool = False
) -> tuple[str, list[str]]:
    """Return the text of a config for data files, and the notes on the files at its top.

    Paths are relative to the folder of the config. `every_key` is the option --all.
    """
    from dpmix.config.write import to_yaml
    from dpmix.config.yaml_text import flow
    from dpmix.inputs.channels import display_names
    from dpmix.inputs.suggest import suggest

    table, sources = _table_of_samples(files), open_files(files)
    settings = suggest(sources, _known(compensation), over_time=True)
    names = display_names(sources[0].details)
    given = [_relative(file, folder) for file in files]
    if odd := [file for file in given if not _is_text(file)]:
        need = "its name is not in UTF-8, which a config cannot hold; rename it, or give a glob or its folder"
        raise ConfigError([f"{file}: {need}" for file in odd])
    config = _config(given, table is not None, names, settings, folder, compensation)
    blocks = {
        "data.files": [f"- {flow(file)}" for file in config.data.files],
        "data.state_channels": _state_lines(names, settings.channels),
        "data.rename": _rename_lines(settings.spellings),
    }
    if every_key:
        blocks |= {
            "data.gate": _singlet_lines(sources),
            "data.channels": _channel_lines(names, settings.channels),
            "data.transform": _transform_lines(names, settings.channels),
        }
        text = to_yaml(config, comments=True, blocks=blocks)
    else:
        text = "".join(f"{line}\n" for line in _short(config, blocks, names, settings.channels))
    notes = [" ".join(line.split()) for line in settings.notes]
    about = [*(" ".join(line.split()) for line in _about(files, sources)), *notes]
    return "".join(f"# {line}\n" for line in about) + "\n" + text, notes


def _short(
    config: Config,
    blocks: Mapping[str, Sequence[str]],
    names: Sequence[str],
    suggestions: Sequence[Suggestion],
) -> Iterator[str]:
    """Yield the lines of a config with the keys that differ from file to file.

    Without data.transform a run chooses the transforms that `dpmix init --all` writes.
    """
    from dpmix.config.yaml_text import flow
    from dpmix.inputs.default_channels import SIGNALLING, describe_reasons

    data = config.data
    yield "# These keys differ from file to file; all others have their defaults."
    yield "# dpmix init --all writes every key with its explanation."
    yield "data:"
    yield from _key("files", blocks["data.files"]) if data.files else [f"  samples: {flow(data.samples)}"]
    channels = ", ".join(flow([name])[1:-1].replace(" ", "\0") for name in data.channels or ())
    yield from (line.replace("\0", " ") for line in _wrapped(f"  channels: [{channels}]", "    "))
    if left_out := describe_reasons(names, ["" if s.why == SIGNALLING else s.why for s in suggestions]):
        yield from _wrapped(f"  # left out: {' '.join(left_out.split())}", "  #   ")
    for key in ("state_channels", "rename"):
        yield from _key(key, blocks[f"data.{key}"])
    yield f"  compensation: {flow(data.compensation)}"
    methods = dict.fromkeys(s.method for s in suggestions if s.taken)
    yield f"  # transform: chosen for each channel by its events, here {' and '.join(methods)}"
    yield from ("output:", f"  path: {flow(config.output.path)}", f"seed: {config.seed}")


def _key(name: str, lines: Sequence[str]) -> list[str]:
    """Return a key of data with the lines of its value; nothing without lines."""
    return [f"  {name}:", *(f"    {line}" for line in lines)] if lines else []


def _wrapped(text: str, indent: str) -> list[str]:
    """Return a text in lines; `indent` is before those after the first."""
    return textwrap.wrap(text, LINE, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def open_files(files: Sequence[str]) -> list[Source]:
    """Open data files, or the files of a table of samples."""
    from dpmix.inputs.samples import open_samples
    from dpmix.inputs.storage import Storage

    table = _table_of_samples(files)
    return open_samples(() if table else files, table, Path(), Storage.temporary())[0]


def _table_of_samples(files: Sequence[str]) -> str | None:
    """Return the table of samples if the files are one, else None."""
    from dpmix.inputs.opening import is_table_of_samples

    tables = [file for file in files if Path(file).is_file() and is_table_of_samples(Path(file))]
    if tables and len(files) > 1:
        raise ConfigError([f"{tables[0]}: is a table of samples; give it alone, or only data files"])
    return tables[0] if tables else None


def _known(compensation: str) -> str:
    """Return the option --compensation where the config accepts it, else raise `ConfigError`."""
    from dpmix.config.data import name_or_path

    try:
        return name_or_path(compensation, ("auto", "none"))
    except ValueError:
        need = "need auto, none, or the path of a CSV file, for example spillover.csv"
        raise ConfigError([f"--compensation is {compensation}; {need}"]) from None


def _is_text(name: str) -> bool:
    """Return False for a file name that is not in UTF-8: in Python it has halves of surrogate pairs."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def _relative(file: str, folder: Path) -> str:
    """Return the path of a file relative to a folder, with the part after :: unchanged."""
    name, separator, part = file.partition("::")
    path = from_home(name)
    return (with_slashes(path) if path.is_absolute() else relative(path, folder)) + separator + part


def _config(
    files: list[str],
    of_table: bool,
    names: Sequence[str],
    settings: Settings,
    folder: Path,
    compensation: str,
) -> Config:
    from dpmix.config.data import DEFAULT, DataConfig, TransformConfig
    from dpmix.config.schema import Config

    taken = [(name, s) for name, s in zip(names, settings.channels, strict=True) if s.taken]
    transform = {DEFAULT: TransformConfig()} | {
        name: TransformConfig.model_validate({"method": s.method, **data_files.parameters(s)})
        for name, s in taken
        if name != DEFAULT
    }
    own = compensation in ("auto", "none")
    return Config(
        data=DataConfig(
            files=[] if of_table else files,
            samples=files[0] if of_table else None,
            channels=[name for name, _ in taken],
            compensation=settings.compensation if own else _relative(compensation, folder),
            transform=transform,
        )
    )


def _about(files: Sequence[str], sources: Sequence[Source]) -> list[str]:
    """Return lines that describe the files; short ones if some of the files are globs or folders."""
    from dpmix.inputs.compensation import not_applied
    from dpmix.system.version import VERSION

    lines = [
        f"A config of dpmix {VERSION}, written by dpmix init.",
        "Paths of files that are read are relative to the folder of this config, of files that are written",
        "(output.path, engine.scratch) to the current folder.",
    ]
    if len(sources) != len(files):
        lines += [f"{source.name}: {source.n_events:,} events" for source in sources]
        return lines + [
            f"warning: {source.name}: {text}"
            for source in sources
            for text in (*source.warnings, *not_applied(source))
        ]
    return [*lines, *(line for source in sources for line in data_files.describe(source))]


def _singlet_lines(sources: Sequence[Source]) -> list[str]:
    """Return data.gate: null, with a gate for single cells as comments; no lines without area and height."""
    from dpmix.inputs.singlets import singlet_gate

    try:
        gate = singlet_gate(sources)
    except DataError:  # a file lacks the channel: it is not needed
        gate = None
    if gate is None:
        return []
    corners = ", ".join(f"({area:.0f}, {height:.0f})" for area, height in gate.vertices)
    return [
        "null",
        f"# Single cells, proposed: {gate.area} is {gate.low:.2f} to {gate.high:.2f} times {gate.height},",
        f"# for {gate.share:.1%} of the events read.",
        f"# Corners of this gate ({gate.area}, {gate.height}): {corners}.",
        "# It is not applied: draw it in FlowJo, or write it as GatingML 2.0, and name the file here.",
        "# Without it, dpmix gate marks populations that look like doublets.",
    ]


def _channel_lines(names: Sequence[str], suggestions: Sequence[Suggestion]) -> list[str]:
    """Return a YAML item for each channel that is used, and a comment with the reason for each other."""
    from dpmix.config.yaml_text import flow

    rows = []
    for name, s in zip(names, suggestions, strict=True):
        other = (
            f"detector {s.detector}"
            if name != s.detector
            else f"marker {s.marker}"
            if s.marker
            else "no marker"
        )
        why = f"; left out: {s.why}" if s.why else ""
        rows.append((f"{'- ' if s.taken else '# - '}{flow(name)}", f"# {other}{why}"))
    return data_files.columns(rows)


def _state_lines(names: Sequence[str], suggestions: Sequence[Suggestion]) -> list[str]:
    """Return data.state_channels: phosphorylated proteins, and others as comments; no lines without any."""
    from dpmix.config.yaml_text import flow
    from dpmix.inputs.channel_names import is_state
    from dpmix.inputs.default_channels import SIGNALLING

    pairs = list(zip(names, suggestions, strict=True))
    signals = [name for name, s in pairs if s.why == SIGNALLING]
    others = [name for name, s in pairs if s.taken and is_state(s.marker or s.detector)]
    lines = []
    if signals:
        lines = [
            "# These markers show signalling, not what a cell is: they are measured in the populations that",
            "# the others define. To find populations by one of them, move its line to data.channels.",
            *(f"- {flow(name)}" for name in signals),
        ]
    if others:
        lines += [
            *([] if signals else ["null"]),
            "# Markers that may change with the state of a cell. To measure and test them in populations",
            f"# that others define, {'use' if signals else 'replace null by'} these lines without #,",
            "# and leave them out of data.channels.",
            *(f"# - {flow(name)}" for name in others),
        ]
    return lines


def _rename_lines(spellings: Sequence[Spelling]) -> list[str]:
    """Return data.rename: empty, with suggested names as comments; no lines without a suggestion."""
    from dpmix.config.yaml_text import flow
    from dpmix.inputs.marker_names import some

    rows = []
    for found in spellings:
        for other, files in found.others.items():
            warning = f"; check: {found.together} has both" if found.together else ""
            rows.append((f"# {flow(other)}: {flow(found.name)}", f"# {some(files)}{warning}"))
    if not rows:
        return []
    about = [
        "# Names that may mean one marker. To rename, replace {} by these lines without #;",
        "# then use the channel in data.channels, too, where it is left out there.",
    ]
    return ["{}", *about, *data_files.columns(rows)]


def _transform_lines(names: Sequence[str], suggestions: Sequence[Suggestion]) -> list[str]:
    """Return the transform of each channel that is used, and a comment for each other."""
    from dpmix.config.data import DEFAULT
    from dpmix.config.yaml_text import flow

    lines = [f"{DEFAULT}: {{method: auto}}"]
    for name, s in zip(names, suggestions, strict=True):
        if name == DEFAULT:  # a channel with this name has the default transform
            continue
        lines.append(f"{'' if s.taken else '# '}{flow(name)}: {data_files.scale(s)}")
    return lines
