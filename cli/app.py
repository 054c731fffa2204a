"""dpmix app."""

from __future__ import annotations

from pathlib import Path

import click

from .values import GivenPath


@click.command("app")
@click.argument("folder", type=GivenPath(path_type=Path), default=Path())
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on.  [default: any free one]"
)
@click.option("--no-browser", is_flag=True, help="Print the address only.")
def command(folder: Path, port: int, no_browser: bool) -> None:
    """Start runs in FOLDER and decide about their populations, on a local page.

    The page shows the data files with their event rate, the verdict of `dpmix drift`, channels and
    compensation, and copies files that are dropped on it into FOLDER. It estimates the time of a run, queues,
    stops and resumes runs, and shows their traces and the time left.

    It shows the tree of a run's populations. Move its cut, and proportions, phenotypes and densities
    follow. Name, merge, split and colour populations, undo, select events in one plot to see them in all, and
    compare populations with the gates of a FlowJo workspace. Decisions are stored next to the run
    (run.decisions.json); `dpmix gate --decisions` gives the same populations without the page, and the page
    shows the command.

    The server listens on this machine only, under an address that nobody can guess. It reads and writes
    nothing outside FOLDER, which must also have the data of the run. Ctrl-C ends it.

    \b
    Examples:
      dpmix app
      dpmix app study --no-browser
    """
    from dpmix.system.extras import require_extra

    require_extra("tornado", "app", "dpmix app")
    from dpmix.app.server import serve

    def started(address: str) -> None:
        click.echo(f"open {address}\nCtrl-C ends the server; decisions are kept")
        if not no_browser:
            click.launch(address)

    serve(folder, port, started)
