"""Test the config: defaults, round trips, and one line for each problem."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmix.config.compare import differences
from dpmix.config.load import load_config, parse_config
from dpmix.config.write import reference, to_yaml
from dpmix.config.yaml_text import flow
from dpmix.errors import ConfigError

MINIMAL = "data: {files: [sample.fcs]}"
NO_FILES = "data: files is missing; give a list of file names or globs, for example [sample.fcs]"
DEVICES = "it must be all, or a list of different device numbers, for example [0, 1]"
LEARN = "a list of different names from alpha, m, gamma, nu, phi, for example [alpha, phi], or []"


def problems(text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "run.yaml", overrides)
    assert caught.value.exit_code == 2
    assert all("\n" not in line for line in caught.value.problems)
    return caught.value.problems


def problem(text: str, *overrides: str) -> str:
    (line,) = problems(text, *overrides)
    return line


# Reading


def test_files_alone_are_enough(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(MINIMAL)
    config = load_config(path)
    assert config.data.files == ["sample.fcs"]
    assert config.data.transform["default"].method == "auto"
    assert config.data.atoms == "tail"
    assert (config.model.components, config.model.learn) == (128, ["alpha", "gamma", "nu", "phi"])
    assert config.output.path == "run.h5"


def test_overrides_are_yaml_and_the_last_one_wins() -> None:
    config = parse_config(
        MINIMAL,
        "run.yaml",
        ["model.components=64", "model.components=32", "data.channels=[CD3, 'CD8*']", "bem.tolerance=1e-8"],
    )
    assert config.model.components == 32
    assert config.data.channels == ["CD3", "CD8*"]
    assert config.bem.tolerance == 1e-8


def test_overrides_alone_make_a_config() -> None:
    assert parse_config("", "run.yaml", ["data.files=[a.csv]"]).data.files == ["a.csv"]


def test_a_transform_has_a_default_even_where_none_is_given() -> None:
    config = parse_config("data: {files: [a.fcs], transform: {FSC-*: {method: linear}}}", "run.yaml")
    assert list(config.data.transform) == ["default", "FSC-*"]
    assert config.data.transform["default"].method == "auto"


def test_plain_scalars_are_those_of_yaml_1_2() -> None:
    config = parse_config("data: {files: [a.fcs], channels: [NO, on, 12:30, 1e-, 012]}", "run.yaml")
    assert config.data.channels == ["NO", "on", "12:30", "1e-", "012"]


def test_nothing_can_be_changed_afterwards() -> None:
    config = parse_config(MINIMAL, "run.yaml")
    with pytest.raises(Exception, match="frozen"):
        config.seed = 2


# Writing


EVERYTHING = """
data:
  files: [a.fcs, "b*.fcs"]
  channels: ["NO", "1e-6", "405", "on", "CD8*", "μ", "a: b", "null", "1_0"]
  compensation: spill.csv
  transform: {default: {method: logicle, w: 1.0, m: 5.0, a: 0.5, t: 1e5}, "FSC-*": {method: linear},
              x: {method: arcsinh, cofactor: 5}}
  max_events: 1000
model: {components: 7, prior: {m: [0, 1], phi: [0.5, 2.5e-7]}, learn: []}
mcmc: {init: ../other.h5, thin: 3}
engine: {threads: 2, devices: [1, 0]}
output: {path: "some where/run: 1.h5"}
seed: 18446744073709551615
"""


@pytest.mark.parametrize("text", [MINIMAL, EVERYTHING])
@pytest.mark.parametrize("comments", [False, True])
def test_what_is_written_reads_the_same(text: str, comments: bool) -> None:
    config = parse_config(text, "run.yaml")
    written = to_yaml(config, comments)
    assert parse_config(written, "written") == config
    assert yaml.safe_load(written) == config.model_dump(), "a reader of YAML 1.1 sees something else"
    assert (
        max(len(line) for line in written.splitlines() if line.strip().startswith("#") or not comments) <= 200
    )


def test_every_default_is_written_and_every_key_explained() -> None:
    config = parse_config(MINIMAL, "run.yaml")
    written = to_yaml(config, comments=True)
    lines = written.splitlines()
    explained = {entry.name for entry in reference()}
    for i, line in enumerate(lines):
        if line.strip() and not line.strip().startswith("#"):
            assert lines[i - 1].strip().startswith("#"), f"no comment above {line}"
    for name, _ in _flat(config.model_dump()):
        assert f"{name.rpartition('.')[2]}:" in written
        assert name in explained or name.startswith("data.transform.")


def test_ready_lines_take_the_place_of_a_value() -> None:
    config = parse_config("data: {files: [a.fcs], channels: [x]}", "run.yaml")
    written = to_yaml(config, blocks={"data.channels": ["- x  # a note", "# - y"]})
    assert "  channels:\n    - x  # a note\n    # - y\n" in written
    assert parse_config(written, "written") == config


@pytest.mark.parametrize(
    "engine", ["{backend: cuda, devices: [2, 0]}", "{backend: cpu, threads: 2}", "{threads: 2}"]
)
def test_options_beside_a_backend_that_uses_them(engine: str) -> None:
    config = parse_config(f"{MINIMAL}\nengine: {engine}", "run.yaml").engine
    assert config.unused("cpu" if config.devices != "all" else "cuda")
    assert not config.unused("cuda" if config.devices != "all" else "cpu")


@pytest.mark.parametrize(
    ("size", "expected"), [("500 MB", 5 * 10**8), ("1.5GB", 1_500_000_000), ("null", None)]
)
def test_a_memory_limit_is_a_number_of_bytes(size: str, expected: int | None) -> None:
    config = parse_config(f"{MINIMAL}\nengine: {{memory_limit: {size}}}", "run.yaml")
    assert config.engine.memory_limit_bytes == expected


def test_differences_are_named() -> None:
    one = parse_config(MINIMAL, "run.yaml")
    other = parse_config(MINIMAL, "run.yaml", ["engine.threads=2", "model.prior.nu=3"])
    assert differences(one, one) == []
    assert differences(one, other) == ["model.prior.nu", "engine.threads"]


def _flat(mapping: dict, prefix: str = ""):
    for name, value in mapping.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


# Problems


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("model: {components: 0}", "model.components is 0; it must be an integer from 1 to 4096"),
        ("model: {components: 5000}", "model.components is 5000; it must be an integer from 1 to 4096"),
        ("model: {components: 12.0}", "model.components is 12.0; it must be an integer from 1 to 4096"),
        ("model: {components: true}", "model.components is true; it must be an integer from 1 to 4096"),
        ("model: {components: many}", 'model.components is "many"; it must be an integer from 1 to 4096'),
        ("model: {components: null}", "model.components is null; it must be an integer from 1 to 4096"),
        (
            "model: {component: 5}",
            "model.component is not a key of the config; did you mean model.components?",
        ),
        ("components: 5", "components is not a key of the config; did you mean model.components?"),
        (
            "zzz: 5",
            "zzz is not a key of the config; the keys here are data, model, mcmc, bem, engine, output, seed",
        ),
        ("model: {prior: {nu: 0}}", "model.prior.nu is 0; it must be a number from 0.001 to 1e9"),
        ("model: {prior: {gamma: .nan}}", "model.prior.gamma is .nan; it must be a number from 1e-6 to 1e6"),
        ("model: {prior: {gamma: .inf}}", "model.prior.gamma is .inf; it must be a number from 1e-6 to 1e6"),
        ("model: {prior: {m: [0, x]}}", 'model.prior.m[1] is "x"; it must be a number from -1e9 to 1e9'),
        (
            "model: {prior: {phi: [1, -1]}}",
            "model.prior.phi[1] is -1; it must be a number from 1e-12 to 1e12",
        ),
        (
            "model: {prior: {m: 1.0e+30}}",
            "model.prior.m is 1.0e+30; it must be a number from -1e9 to 1e9, or a list with one per channel",
        ),
        ("model: {learn: [alpha, alpha]}", f"model.learn is [alpha, alpha]; it must be {LEARN}"),
        (
            "model: {learn: [alpha, beta]}",
            'model.learn[1] is "beta"; it must be one of alpha, m, gamma, nu, phi',
        ),
        ("mcmc: {thin: 0}", "mcmc.thin is 0; it must be an integer from 1 to 2147483648"),
        ("mcmc: {burn_in: -1}", "mcmc.burn_in is -1; it must be an integer from 0 to 2147483648"),
        ("mcmc: {draws: 0}", "mcmc.draws is 0; it must be an integer from 1 to 2147483648"),
        ("mcmc: {chains: 0}", "mcmc.chains is 0; it must be an integer from 1 to 1024"),
        (
            "mcmc: {draws: 2147483648, thin: 2}",
            "mcmc: burn_in + draws x thin is 4294967796; it must be less than 4294967296",
        ),
        (
            "mcmc: {init: kmean}",
            'mcmc.init is "kmean"; it must be kmeans, random, prior, bem, or the path of a run file, '
            "for example other.h5",
        ),
        ("mcmc: {label_swaps: 1}", "mcmc.label_swaps is 1; it must be true or false"),
        ("bem: {tolerance: 1}", "bem.tolerance is 1; it must be a number above 0 and below 1"),
        ("engine: {backend: gpu}", 'engine.backend is "gpu"; it must be one of auto, cpu, cuda, cluster'),
        (
            "engine: {devices: some}",
            f'engine.devices is "some"; {DEVICES}',
        ),
        (
            "engine: {devices: []}",
            f"engine.devices is []; {DEVICES}",
        ),
        (
            "engine: {devices: [0, 0]}",
            f"engine.devices is [0, 0]; {DEVICES}",
        ),
        ("engine: {devices: [0, -1]}", "engine.devices[1] is -1; it must be an integer of at least 0"),
        (
            "engine: {backend: cpu, devices: [0]}",
            "engine: backend cpu ignores devices; remove it, or set devices: all",
        ),
        (
            "engine: {backend: cuda, threads: 2, pruning: false}",
            "engine: backend cuda ignores threads, pruning; remove them, or set threads: null, pruning: true",
        ),
        (
            "engine: {backend: cpu, cluster: {workers: 2}}",
            "engine: backend cpu ignores cluster; "
            "remove it, or set cluster: {workers: null, threads_per_worker: null}",
        ),
        (
            "engine: {backend: cluster, threads: 2}",
            "engine: backend cluster ignores threads; remove it, or set threads: null",
        ),
        (
            "engine: {backend: cluster, scheduler: here}",
            'engine.scheduler is "here"; it must be an address, for example tcp://host:8786, or the path '
            "of a scheduler file, for example cluster.json",
        ),
        (
            "engine: {backend: cluster, scheduler: 'tcp://a:1', cluster: {workers: 2}}",
            "engine: cluster is ignored by scheduler tcp://a:1, which has its own workers; remove cluster, "
            "or set scheduler: null to start a cluster on this machine",
        ),
        (
            "engine: {memory_limit: 16G}",
            'engine.memory_limit is "16G"; it must be a size, for example 500 MB, 16 GB or 1 TB',
        ),
        ("engine: {threads: 0}", "engine.threads is 0; it must be an integer from 1 to 4096 or null"),
        ("seed: -1", "seed is -1; it must be an integer from 0 to 18446744073709551615"),
        ("model: 3", "model is 3; it must be a mapping"),
        ("bem: {update: modes}", 'bem.update is "modes"; it must be one of mean, mode'),
        (
            "null: 3",
            "null is not a key of the config; the keys here are data, model, mcmc, bem, engine, output, seed",
        ),
        (
            "model: {1.5: 3}",
            "model.1.5 is not a key of the config; the keys here are components, coarseness, full_events, "
            "samples, shifts, prior, learn",
        ),
        (
            "1: 3",
            "1 is not a key of the config; the keys here are data, model, mcmc, bem, engine, output, seed",
        ),
    ],
)
def test_one_line_says_where_what_and_what_is_needed(line: str, expected: str) -> None:
    assert problem(f"{MINIMAL}\n{line}") == f"run.yaml: {expected}"


@pytest.mark.parametrize("data", ["{samples: s.csv}", "{samples: s.csv, files: []}"])
def test_a_table_of_samples_stands_for_files(data: str) -> None:
    config = parse_config(f"data: {data}", "run.yaml")
    assert (config.data.files, config.data.samples) == ([], "s.csv")
    assert parse_config(to_yaml(config), "run.yaml") == config


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("{}", NO_FILES),
        ("{files: []}", NO_FILES),
        (
            "{files: a.fcs}",
            'data.files is "a.fcs"; it must be a list of file names or globs, for example [sample.fcs]',
        ),
        ("{samples: null}", NO_FILES),
        ("{files: [a], samples: s.csv}", "data: both files and samples are given; remove one of them"),
        (
            "{samples: 3}",
            "data.samples is 3; it must be the path of a CSV file, for example samples.csv, or null",
        ),
        ("{samples: s.csv, atoms: drop}", 'data.atoms is "drop"; it must be one of report, dither, tail'),
        ("{files: [a], channels: [405]}", "data.channels[0] is 405; it must be text"),
        (
            "{files: [a], chanels: [x]}",
            "data.chanels is not a key of the config; did you mean data.channels?",
        ),
        (
            "{files: [a], compensation: atuo}",
            'data.compensation is "atuo"; it must be auto, none, or the path of a CSV file with detector '
            "names in its header, for example spillover.csv",
        ),
        ("{files: [a], margin_events: keep}", 'data.margin_events is "keep"; it must be one of report, drop'),
        ("{files: [a], atoms: drop}", 'data.atoms is "drop"; it must be one of report, dither, tail'),
        ("{files: [a], max_events: 0}", "data.max_events is 0; it must be an integer of at least 1 or null"),
        (
            "{files: [a], transform: {x: {method: asinh}}}",
            'data.transform.x.method is "asinh"; it must be one of auto, logicle, arcsinh, log, widen, '
            "linear",
        ),
        (
            "{files: [a], transform: {x: {method: logicle, cofactor: 5}}}",
            "data.transform.x: cofactor is for method arcsinh or widen, but method is logicle; remove "
            "cofactor",
        ),
        (
            "{files: [a], transform: {x: {method: logicle, w: 3}}}",
            "data.transform.x: w is 3 and m is 4.5; w must be at most m / 2",
        ),
        (
            "{files: [a], transform: {x: {method: logicle, a: -1}}}",
            "data.transform.x: a is -1; it must be from -w to m - 2 w, here from -0.5 to 3.5",
        ),
        (
            "{files: [a], transform: {1: {}}}",
            "data.transform.1: the name 1 is not text; put it in quotes",
        ),
    ],
)
def test_problems_of_the_data_section(data: str, expected: str) -> None:
    assert problem(f"data: {data}") == f"run.yaml: {expected}"


def test_all_problems_come_together() -> None:
    lines = problems(
        "model: {components: 0}\nmcmc: {thin: 0, initt: kmeans}",
        "seed=-1",
        "engine.thread=2",
        "nonsense",
        "seed.x=3",
    )
    assert lines == [
        "--set nonsense: must be key=value, for example model.components=64",
        "--set seed.x=3: seed is not a section; it has a value and no keys",
        "run.yaml: data is missing; it must be a section with at least files: [...]",
        "run.yaml: model.components is 0; it must be an integer from 1 to 4096",
        "run.yaml: mcmc.thin is 0; it must be an integer from 1 to 2147483648",
        "run.yaml: mcmc.initt is not a key of the config; did you mean mcmc.init?",
        "--set engine.thread=2: engine.thread is not a key of the config; did you mean engine.threads?",
        "--set seed=-1: seed is -1; it must be an integer from 0 to 18446744073709551615",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data: [", "run.yaml: line 1, column 8: not valid YAML: expected the node content"),
        ("seed: 1\nseed: 2", 'run.yaml: line 2, column 1: not valid YAML: key "seed" is given twice'),
        ("[1]", "run.yaml: found [1]; it must be a mapping with the keys data, model"),
        ("just text", 'run.yaml: found "just text"; it must be a mapping'),
        ("!!bool x", "run.yaml: not valid YAML: a value cannot be read"),
        ("!!timestamp x", "run.yaml: not valid YAML: a value cannot be read"),
        ("!!python/object:os.system {}", "run.yaml: line 1, column 1: not valid YAML: could not determine"),
        ("seed: " + "1" * 5000, "run.yaml: not valid YAML: a value cannot be read"),
        ("[" * 5000, "run.yaml: not valid YAML: nested too deeply"),
        ("\x00", "run.yaml: not valid YAML: unacceptable character"),
        ("? [a]\n: 1", "run.yaml: line 1, column 3: not valid YAML: found unhashable key"),
    ],
)
def test_a_file_that_is_no_config(text: str, expected: str) -> None:
    assert problem(text).startswith(expected)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\x89HDF\r\n\xff")
    for path, expected in (
        (tmp_path / "none.yaml", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (binary, "not a text file"),
    ):
        with pytest.raises(ConfigError, match=expected):
            load_config(path)


# A damaged config never ends in a traceback

VALID = to_yaml(parse_config(EVERYTHING, "run.yaml"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.dates(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8) | st.integers() | st.none(), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = [name.split(".") for name, _ in _flat(parse_config(EVERYTHING, "run.yaml").model_dump())]


def accepts_or_explains(text: str, *overrides: str) -> None:
    lines = [""]
    try:
        config = parse_config(text, "run.yaml", overrides)
        assert parse_config(to_yaml(config), "written") == config
    except ConfigError as error:
        lines = error.problems
    assert lines
    assert not any("\n" in line for line in lines)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
@pytest.mark.slow
def test_mangled_text(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(VALID)))
    stop = data.draw(st.integers(start, min(len(VALID), start + 30)))
    accepts_or_explains(VALID[:start] + data.draw(st.text(max_size=10)) + VALID[stop:])


@settings(max_examples=60, deadline=None)
@given(path=st.sampled_from(KEYS), depth=st.integers(1, 4), value=VALUES)
def test_mangled_values(path: list[str], depth: int, value: object) -> None:
    raw = yaml.safe_load(VALID)
    section = raw
    for part in path[: depth - 1]:
        section = section[part] if isinstance(section.get(part), dict) else section
    section[path[min(depth, len(path)) - 1]] = value
    accepts_or_explains(flow(raw))


@settings(max_examples=30, deadline=None)
@given(
    override=st.text(max_size=20) | st.builds("{}={}".format, st.sampled_from(KEYS).map(".".join), st.text())
)
def test_mangled_overrides(override: str) -> None:
    accepts_or_explains(VALID, override)
