"""The pages in docs/how-to, followed to the letter but with fewer events, sweeps and draws.

Blocks of a page are run one after another in a folder of its own, by what stands behind their ```:

    sh              commands
    sh refused      a command that is refused
    python          code; blocks of a page share their names
    r               code, where there is an R with hdf5r
    csv FILE, yaml FILE, python FILE    a file to be written
    yaml            a part of a config
    diff            a change of the project's own files, made in a copy
    sh patched      commands with that copy
    sh checkout     commands in a checkout, on emulated GPUs
    sh unrun        commands that are not run: options and config keys of dpmix commands are checked
    text            what the block before prints, but for the numbers; a line `...` stands for others
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from cuda_on_cpu import emulator

from dpmix.cli import main
from dpmix.config.load import parse_config
from dpmix.config.problems import keys
from dpmix.config.schema import schema
from dpmix.errors import DpmixError
from dpmix.kernels import _cpu

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "how-to"
PAGES = [
    "check-the-recording",
    "rare-cells",
    "priors-and-truncation",
    "python",
    "read-draws",
    "compare-samples",
    "signalling",
    "name-my-cells",
    "name-by-examples",
    "mass-cytometry",
    "flowjo",
    "r",
    "resume",
    "large-data",
    "several-gpus",
    "extend",
]
ELSEWHERE = {"cluster", "install", "decide-on-a-page"}  # test_cluster_messages.py; in CI; tests/app

# What makes it quick: appended to commands that begin so, and put instead of what stands in blocks.
SMALLER = {
    "dpmix run": "--quick",
    "dpmix simulate": "--events 2000",
    "dpmix mcmc": "--set mcmc.burn_in=20 --set model.components=16 --set mcmc.chains=2",
    "dpmix mcmc signalling.yaml": "--set data.max_events=20000",
    "dpmix gate": "--draws 6",
    "dpmix explore": "--draws 6",
    "python -m pytest": "-q -p no:cacheprovider -k 'far_events or cut or split or no_labels'",
}
DRAWS = "--set mcmc.draws=10"  # of a command that names no number of draws
QUICK = {
    "EVENTS = 10_000": "EVENTS = 300",
    "range(300)": "range(20)",
    "mcmc.draws=500": "mcmc.draws=14",
    "burn_in=150, draws=120": "burn_in=10, draws=6",
    '"mcmc.burn_in": 150, "mcmc.draws": 120': '"mcmc.burn_in": 10, "mcmc.draws": 12',
    '"mcmc.draws": 130': '"mcmc.draws": 13',
    "n_draws=20": "n_draws=4",
}
CHECKED = ("data", "model", "mcmc", "bem", "engine", "output")
OTHER_PROGRAMS = {"cp", "df", "kill", "nvidia-smi", "scp"}
BASH = [shutil.which("bash") or "bash", "-euo", "pipefail", "-c"]

Block = tuple[str, str]


def blocks(text: str) -> list[Block]:
    """Return the info string and the text of each fenced block of a page."""
    return re.findall(r"^```([^\n]+)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def lines_of(commands: str) -> list[str]:
    return commands.replace("\\\n", " ").splitlines()


def with_options(commands: str, options: dict[str, str]) -> str:
    """Return commands, each with the options of those that it begins like."""
    return "\n".join(
        line + "".join(f" {added}" for begin, added in options.items() if line.startswith(begin))
        for line in commands.splitlines()
    )


def printed_by(command: list[str], folder: Path | None = None, given: str = "", **variables: str) -> str:
    """Run a command that must succeed, where dpmix is found first; return all that it prints."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=folder,
        input=given,
        env=os.environ | {"PATH": path} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stdout}"
    return done.stdout


def quick(text: str) -> str:
    for written, meant in QUICK.items():
        text = text.replace(written, meant)
    return text


class Follower:
    """Follows the blocks of one page in a folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(folder)
        monkeypatch.setenv("CHECKOUT", str(ROOT))
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "page"}
        self.exported = ""  # lines of "sh checkout" that later ones need
        self.printed: str | None = ""  # by the block before; None where that could not be run
        self.ways: dict[str, Callable[[str], str | None]] = {
            "sh": self.sh,
            "sh refused": self.sh_refused,
            "sh checkout": self.sh_checkout,
            "sh unrun": check_options,
            "python": self.python,
            "r": self.r,
            "diff": self.diff,
            "sh patched": self.sh_patched,
            "yaml": check_part_of_config,
        }

    def follow(self, text: str) -> None:
        for kind, block in blocks(text):
            language, _, name = kind.partition(" ")
            if language == "text" and self.printed is None:
                continue  # what R would have printed
            if language == "text":
                missing = missing_lines(block, self.printed)
                assert not missing, f"not printed: {missing}\n{self.printed}"
            elif kind in self.ways:
                self.printed = self.ways[kind](block)
            else:
                assert language in ("csv", "yaml", "python"), f"a block of no known kind: {kind}"
                assert re.fullmatch(r"[\w.]+", name), kind
                (self.folder / name).write_text(block)

    def sh(self, text: str) -> str:
        """Commands; dpmix runs in this process, because a process of its own is long in the beginning."""
        printed = ""
        for line in lines_of(quick(text)):
            arguments = shlex.split(line + smaller(line), comments=True)
            if arguments[:1] == ["dpmix"]:
                printed += dpmix(arguments[1:], {0})
            else:
                printed += printed_by([*BASH, line + smaller(line)])
        return printed

    def sh_refused(self, text: str) -> str:
        (line,) = lines_of(text)
        return dpmix(shlex.split(line)[1:], {1, 2})

    def python(self, text: str) -> str:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(quick(text), "<page>", "exec"), self.names)
        return out.getvalue()

    def r(self, text: str) -> str | None:
        if r_is_missing():  # which a test of its own tells
            return None
        return printed_by(["Rscript", "-e", text])

    def sh_checkout(self, text: str) -> str:
        if not emulator.DRIVER.exists():
            pytest.skip("the emulated CUDA devices are not built: run `python tests/cuda_on_cpu/build.py`")
        if not self.exported:
            (self.folder / "build").symlink_to(emulator.FOLDER.parent)
        printed = printed_by([*BASH, self.exported + text])
        self.exported += "".join(f"{line}\n" for line in text.splitlines() if line.startswith("export "))
        return printed

    def diff(self, text: str) -> str:
        """To a copy of the package that lies in the folder as it does in a checkout."""
        copy = self.folder / "dpmix"
        if not copy.exists():
            without = shutil.ignore_patterns("__pycache__")
            for source, target in ((ROOT / "dpmix", copy), (ROOT / "cli", copy / "cli")):
                shutil.copytree(source, target, ignore=without)
            shutil.copytree(ROOT / "kernels", copy / "kernels", ignore=without)
            shutil.copy(_cpu.__file__, copy / "kernels")
        return printed_by(["git", "apply", "-"], given=text)

    def sh_patched(self, text: str) -> str:
        """By Python without its site module, which would find the editable installation first."""
        program = self.folder / "bin" / "dpmix"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"#!{sys.executable} -S\nimport sys\n"
            f"sys.path[:0] = {[str(self.folder), *site.getsitepackages()]}\n"
            "from dpmix.cli import main\nmain(prog_name='dpmix')\n"
        )
        program.chmod(0o755)
        within = "\n".join(f"PATH=$PWD/bin:$PATH; {line}{smaller(line)}" for line in lines_of(text))
        return printed_by([*BASH, within])


def dpmix(arguments: list[str], exit_codes: set[int]) -> str:
    result = CliRunner().invoke(main, arguments, prog_name="dpmix")
    assert result.exit_code in exit_codes, f"{arguments}\n{result.output}\n{result.exception!r}"
    return result.output


def smaller(line: str) -> str:
    """Options that are appended to a command."""
    found = [options for begin, options in SMALLER.items() if re.match(rf"(\w+=\S+ +)*{begin}\b", line)]
    if "dpmix mcmc" in line and "mcmc.draws" not in line:
        found.append(DRAWS)
    if re.search(r"\.h5 --resume", line):  # which keeps its config
        found = []
    return "".join(f" {options}" for options in found)


def missing_lines(text: str, printed: str) -> list[str]:
    """Lines of a page that were not printed, whatever the numbers and the spaces in them."""

    def without_numbers(line: str) -> str:
        return re.sub(r"[-+]?\d[\d,.:]*(e[-+]\d+)?", "#", " ".join(line.split()))

    there = {without_numbers(line) for line in printed.splitlines()}
    return [
        line for line in text.splitlines() if line.strip() != "..." and without_numbers(line) not in there
    ]


def check_options(text: str) -> str:
    """Check that a command line of dpmix can be read, and its config keys."""
    for line in lines_of(text):
        arguments = shlex.split(re.sub(r"^(\w+=\S+ +)*", "", line), comments=True)
        if not arguments:
            continue
        if arguments[0] != "dpmix":
            assert arguments[0] in OTHER_PROGRAMS, line
            continue
        command = main.commands[arguments[1]]
        context = command.make_context(arguments[1], arguments[2:])
        parse_config("data: {files: [a.fcs]}", "page", context.params.get("settings", ()))
    return ""


def check_part_of_config(text: str) -> str:
    files = "" if re.search("^data:", text, flags=re.MULTILINE) else "data: {files: [a.fcs]}\n"
    parse_config(files + text, "page", ["data.files=[a.fcs]"] if "samples:" not in text else [])
    return ""


@functools.cache
def r_is_missing() -> str:
    """Why R blocks cannot be run here, "" where they can."""
    if shutil.which("Rscript") is None:
        return "there is no R here"
    found = subprocess.run(["Rscript", "-e", "library(hdf5r)"], capture_output=True, check=False)
    return "" if found.returncode == 0 else "R has no package hdf5r here"


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the tutorial leaves behind, in which the pages begin."""
    folder = tmp_path_factory.mktemp("tutorial")
    commands = """
dpmix simulate sample.fcs
dpmix init sample.fcs --output run.yaml
dpmix mcmc run.yaml
dpmix gate run.h5 --output gated
"""
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as monkeypatch:
        Follower(folder, monkeypatch).sh(commands)
    return folder


@pytest.fixture
def page_folder(tutorial: Path, tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "page"
    shutil.copytree(tutorial, folder)
    with contextlib.chdir(folder):
        yield folder


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_every_block_works(
    page: str, page_folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    if page == "signalling":
        for path in (request.getfixturevalue("shared_data") / "cohort_bcrxl").glob("*s*"):
            (page_folder / path.name).symlink_to(path)
    follower = Follower(page_folder, monkeypatch)
    if page == "r":  # it reads what the page on samples makes
        if why := r_is_missing():
            pytest.skip(why)
        follower.follow((FOLDER / "compare-samples.md").read_text(encoding="utf-8"))
    follower.follow((FOLDER / f"{page}.md").read_text(encoding="utf-8"))
    if page == "signalling":  # what is known of the cohort
        rows = (page_folder / "signalling/associate/associations.csv").read_text().splitlines()
        assert ",pS6,2." in next(row for row in rows if ",expression," in row)


def test_the_blocks_in_r_were_run() -> None:
    if why := r_is_missing():
        pytest.skip(why)


def test_every_page_is_followed() -> None:
    assert {path.stem for path in FOLDER.glob("*.md")} == {*PAGES, *ELSEWHERE}


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("sh", "dpmix info nothing.h5"),
        ("sh", "ls nothing.h5"),
        ("sh refused", "dpmix devices"),
        ("sh unrun", "dpmix mcmc run.yaml --resum"),
        ("sh unrun", "dpmix mcmc run.yaml --set engine.device=all"),
        ("sh unrun", "rm run.h5"),
        ("python", "dpmix.open_run('run.h5')"),
        ("yaml", "engine: {device: all}"),
        (
            "diff",
            "--- a/dpmix/model/gibbs.py\n+++ b/dpmix/model/gibbs.py\n@@ -1 +1 @@\n-no such line\n+another",
        ),
        ("text", "something"),
        ("ruby", "puts 1"),
    ],
)
def test_a_wrong_block_is_told(kind: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.chdir(tmp_path), pytest.raises((AssertionError, NameError, DpmixError, click.UsageError)):
        Follower(tmp_path, monkeypatch).follow(f"```{kind}\n{text}\n```\n")


@pytest.mark.parametrize("page", PAGES)
def test_config_keys_in_sentences_are_in_the_schema(page: str) -> None:
    text = (FOLDER / f"{page}.md").read_text(encoding="utf-8")
    named = re.findall(rf"`((?:{'|'.join(CHECKED)})\.[a-z_.]+)[`:]", text)
    paths = (path[:end] for path in keys(schema()) for end in range(1, len(path) + 1))
    known = {".".join(path) for path in paths}
    assert [name for name in named if name not in known] == []
