"""The reference pages say what is there, all of it and no more. Links are checked by `make docs`."""

import re
from pathlib import Path

import click
import h5py
import pytest
from click.testing import CliRunner

from dpmix import cli
from dpmix.config.load import parse_config
from dpmix.config.write import reference

DOCS = Path(__file__).resolve().parents[2] / "docs"

pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning", "ignore::DeprecationWarning")

# ---------------------------------------------------------------- commands and config, as they are built


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reference as a site of its own: its links to other pages lead nowhere."""
    from sphinx.application import Sphinx

    folder = tmp_path_factory.mktemp("reference")
    places = (DOCS / "reference", DOCS, folder / "html", folder / "doctrees")
    Sphinx(*places, "html", {"root_doc": "commands"}, status=None, warning=None).build()
    return folder / "html"


@pytest.mark.slow
def test_every_command_and_every_option_is_in_the_reference(built: Path) -> None:
    page = (built / "commands.html").read_text(encoding="utf-8")
    headings = re.findall(r"<h2>(.*?)<a", page)
    assert headings == [
        "dpmix",
        *(f"dpmix {name}" for name in cli.main.list_commands(click.Context(cli.main))),
    ]
    for name, command in cli.main.commands.items():
        for option in command.params:
            if isinstance(option, click.Option):
                assert f'id="cmdoption-dpmix-{name}-{option.opts[0].lstrip("-")}"' in page


def test_every_key_of_the_config_is_in_the_reference(built: Path) -> None:
    page = (built / "config.html").read_text(encoding="utf-8")
    assert re.findall(r'id="confval-([^"]*)"', page) == [entry.name for entry in reference()]


def test_what_pages_import_is_in_the_reference(built: Path) -> None:
    """But for the page on sources and engines, which is about what lies inside."""
    page = (built / "api.html").read_text(encoding="utf-8")
    texts = [path.read_text(encoding="utf-8") for path in DOCS.rglob("*.md") if path.name != "extend.md"]
    imports = re.findall(r"^from (dpmix[\w.]*) import (.*)$", "\n".join(texts), flags=re.MULTILINE)
    names = {f"{module}.{name.strip()}" for module, some in imports for name in some.split(",")}
    assert len(names) > 5
    assert sorted(name for name in names if f'id="{name}"' not in page) == []


def test_the_config_in_brief_is_one() -> None:
    page = (DOCS / "reference" / "config.md").read_text(encoding="utf-8")
    (brief,) = re.findall(r"^```yaml\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    parse_config(brief, "config.md")


# ---------------------------------------------------------------- the run file


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A run of each kind, and one of the hierarchical model: together they have all that a file may have."""
    folder = tmp_path_factory.mktemp("runs")
    config = folder / "run.yaml"
    (folder / "events.csv").write_text("\n".join(["a,b", *(f"{i % 7},{i * i % 11}" for i in range(1600))]))
    (folder / "more.csv").write_text("\n".join(["a,b", *(f"{i % 5},{i * i % 13}" for i in range(600))]))
    config.write_text(
        "data: {files: [events.csv, more.csv], atoms: report, max_events: 2000, weights: equal}\n"
        "model: {components: 4, coarseness: auto, learn: [alpha, m, gamma, nu, phi]}\n"
        "mcmc: {chains: 2, burn_in: 2, draws: 3}\n"
        "bem: {starts: 3, max_steps: 4}\n"
    )
    files = [folder / f"{kind}.h5" for kind in ("mcmc", "bem")]
    for file in files:
        done = CliRunner().invoke(cli.main, [file.stem, str(config), "--output", str(file), "--quiet"])
        assert done.exit_code == 0, done.output
    settings = (
        "model.samples=hierarchical",
        "model.shifts=sample",
        "mcmc.split_merge=0",
        "engine.backend=cpu",
    )
    given = [part for setting in settings for part in ("--set", setting)]
    arguments = ["mcmc", str(config), "--output", str(folder / "samples.h5"), "--quiet", *given]
    done = CliRunner().invoke(cli.main, arguments)
    assert done.exit_code == 0, done.output
    return [*files, folder / "samples.h5"]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table under a heading of the page, without the line that names its columns."""
    page = (DOCS / "reference" / "run-file.md").read_text(encoding="utf-8")
    section = re.split(r"^## ", page.partition(f"\n## {heading}\n")[2], flags=re.MULTILINE)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in line[1:-1].split("|")] for line in lines[2:]]


def dims_of(dataset: h5py.Dataset) -> str:
    if dataset.is_scale:
        return "scale"
    return ", ".join(dim[0].name.split("/")[-1] for dim in dataset.dims) or "none"


def test_every_dataset_of_a_run_file_is_in_the_reference_and_no_other(runs: list[Path]) -> None:
    found: dict[str, set[tuple[str, str, str]]] = {}
    for run in runs:
        with h5py.File(run, "r") as file:
            groups = {name: item for name, item in file.items() if isinstance(item, h5py.Group)}
            counters = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
            for heading, group in {**groups, "Counters": counters}.items():
                for name, dataset in group.items():
                    dims = dims_of(dataset).replace("start, step", "chain, sweep")
                    text = h5py.check_string_dtype(dataset.dtype) is not None
                    kind = "text" if text else str(dataset.dtype)
                    found.setdefault(heading, set()).add((name, kind, dims))
    page = {heading: {(name, kind, dims) for name, kind, dims, _ in rows(heading)} for heading in found}
    assert page == found


def test_every_attribute_of_a_run_file_is_in_the_reference_and_no_other(runs: list[Path]) -> None:
    for run in runs:
        with h5py.File(run, "r") as file:
            names = [name for name in file.attrs if not name.startswith("_")]
            types = {name: str(file.attrs.get_id(name).dtype) for name in names}
        kinds = {name: kind if kind in ("int64", "float64") else "text" for name, kind in types.items()}
        assert {name: kind.replace("JSON", "text") for name, kind, _ in rows("Attributes")} == kinds
