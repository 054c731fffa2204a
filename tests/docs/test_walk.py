"""Follow docs/tutorial.md with fewer events, sweeps and draws; compare its files with the reference."""

import contextlib
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from quick_jobs import COMMAND
from test_how_to import BASH, printed_by, with_options

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
FILES = PAGE.parent / "reference" / "gating-files.md"
COMMANDS = os.environ.get("DPMIX_COMMANDS", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
"""Where the commands of dpmix are looked for: .ci/run names the folder where the wheel is, and no other."""

FIGURES = "dpmix gate run.h5 --output gated --format"
"""The command that draws figures; others are run without, by the same Python."""

# What makes it quick: appended to the commands that begin so.
SMALLER = {
    "dpmix run": "--quick",
    "dpmix simulate": "--events 3000",
    "dpmix mcmc": "--set mcmc.burn_in=40 --set mcmc.draws=20 --set model.components=24",
    "dpmix gate": "--draws 10 --no-map",
    "dpmix predict": "--draws 10",
}


def without_figures(commands: str) -> str:
    """Return the commands; `run`, `gate` and `predict` draw no figures, but for `FIGURES`."""
    return "\n".join(
        line if line.startswith(FIGURES) else re.sub("^dpmix (?=run|gate|predict)", "quick/dpmix ", line)
        for line in commands.splitlines()
    )


def blocks() -> list[tuple[str, str]]:
    """Return language and text of the blocks: tutorial after its installation, then reference."""
    walk = PAGE.read_text(encoding="utf-8").partition("## A sample")[2] + FILES.read_text(encoding="utf-8")
    return re.findall(r"^```(sh|python|r)\n(.*?)^```$", walk, flags=re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which every block has been run."""
    folder = tmp_path_factory.mktemp("walk")
    r = shutil.which("Rscript")
    quick = folder / "quick" / "dpmix"
    quick.parent.mkdir()
    quick.write_text(f"#!{Path(COMMANDS.split(os.pathsep)[0]) / 'python'}\n{COMMAND}\n")
    quick.chmod(0o755)
    for language, text in blocks():
        if language == "python":
            # Here, not in a process of its own: one that ends just after it has read Parquet is aborted by
            # Arrow now and then, once all is done (apache/arrow, issue 34314).
            with contextlib.chdir(folder):
                exec(compile(text, str(PAGE), "exec"), {})
        elif language == "sh":
            printed_by([*BASH, without_figures(with_options(text, SMALLER))], folder, PATH=COMMANDS)
        elif r is not None:
            printed_by([r, "-e", text], folder)
    return folder


def test_the_environment_of_the_walk_is_made(tmp_path: Path) -> None:
    """Run the installation up to where pip would build and download: .ci/run does that with the wheel."""
    install = PAGE.read_text(encoding="utf-8").partition("## Install")[2].partition("\n## ")[0]
    root, user = re.findall(r"^```sh\n(.*?)^```$", install, flags=re.MULTILINE | re.DOTALL)
    assert root == "sudo apt-get install python3-venv python3-dev g++\n"
    assert user.endswith("\npip install .\n")
    command = [*BASH, user.replace("pip install .", "command -v pip")]
    printed = printed_by(command, HOME=str(tmp_path), PATH=os.environ["PATH"])
    assert printed == f"{tmp_path}/dpmix/bin/pip\n"


def test_there_is_a_walk() -> None:
    shell = [text for language, text in blocks() if language == "sh"]
    assert {line.split()[1] for text in shell for line in text.splitlines()} == {
        "run",
        "simulate",
        "info",
        "init",
        "mcmc",
        "gate",
        "predict",
    }


def test_every_block_works_and_the_files_that_the_page_names_are_there(walked: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    table = FILES.read_text(encoding="utf-8").partition("| file | contents |")[2].partition("\n\n")[0]
    names = re.findall(r"^\| `([^`]+)` \|", table, flags=re.MULTILINE)
    assert len(names) == 8
    assert [name for name in names if not (walked / "gated" / name).exists()] == []
    named = set(re.findall(r"`((?:gated|new|both|figures)/[\w.-]+\.\w+)`", page))
    assert "gated/sample.gated.fcs" in named
    places = {name: walked / ("gated" if name.startswith("figures/") else "") / name for name in named}
    assert [name for name, path in places.items() if not path.is_file()] == []


def test_the_columns_of_the_events_are_those_of_the_reference(walked: Path) -> None:
    import flowio
    import pandas

    page = FILES.read_text(encoding="utf-8")
    table = page.partition("| column of the events |")[2].partition("\n\n")[0]
    columns = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    events = pandas.read_parquet(walked / "gated" / "events.parquet")
    assert list(events.columns) == columns
    predicted = pandas.read_parquet(walked / "new" / "events.parquet")
    assert list(predicted.columns[: len(columns) + 1]) == [*columns, "p1"]
    table = page.partition("| channel |")[2].partition("\n\n")[0]
    channels = re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)
    assert flowio.FlowData(walked / "gated" / "sample.gated.fcs").pnn_labels[-4:] == channels
