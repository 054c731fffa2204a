"""The config: one schema for the YAML file, its errors, its commented form and its reference page.

Paths that are read (data.files, data.samples, data.compensation, mcmc.init) are relative to the folder of the
config file, so that a config can travel with its data; those that are written (output.path, engine.scratch)
are relative to the folder in which the command is run, as for any other command.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)

from dpmix.config import yaml_text
from dpmix.config.problems import at, keys, needed, problems, shown
from dpmix.config.yaml_text import flow
from dpmix.errors import ConfigError

DEFAULT = "default"
LINE = 110
INIT_METHODS = ("kmeans", "random", "prior", "bem")
ANY_TRANSFORM = ("data", "transform", "CHANNEL")
BACKENDS_OF = {
    "threads": ("cpu",),
    "pruning": ("cpu", "cluster"),
    "devices": ("cuda",),
    "scheduler": ("cluster",),
    "cluster": ("cluster",),
}
RESUMABLE = frozenset(
    {
        "output.path",
        "engine.backend",
        "engine.devices",
        "engine.threads",
        "engine.chunks_in_flight",
        "engine.scheduler",
        "engine.cluster.workers",
        "engine.cluster.threads_per_worker",
        "engine.memory_limit",
        "engine.scratch",
    }
)
SIZES = {"MB": 10**6, "GB": 10**9, "TB": 10**12}


def key(default: Any, what: str, why: str = "", *, need: str | None = None, **limits: Any) -> Any:
    """A config key: its default (`...` for none), what it does, why it has that default, what it accepts.

    `need` says in words what is accepted, where the type and the limits do not say it well enough.
    """
    return Field(default, description=what, json_schema_extra={"why": why, "need": need}, **limits)


class Section(BaseModel):
    """A part of the config: the declared keys and no others, of the declared types, never changed later."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class TransformConfig(Section):
    """How the values of a channel are brought to a scale on which its populations look normal."""

    method: Literal["auto", "logicle", "arcsinh", "log", "linear"] = key(
        "auto",
        "auto takes what fits the instrument (recorded in the run file); log is the logarithm to base 10.",
        "scatter linear, mass cytometry arcsinh with cofactor 5, fluorescence logicle, plain tables linear",
    )
    cofactor: float | None = key(
        None, "arcsinh(x / cofactor); null: 5 for mass cytometry, 150 otherwise. Only for arcsinh.", gt=0
    )
    t: float | None = key(
        None, "Top of the logicle scale, in data units; null: the range in the file. Only for logicle.", gt=0
    )
    w: float | None = key(None, "Linear decades of the logicle scale; null: 0.5. Only for logicle.", ge=0)
    m: float | None = key(None, "Decades of the logicle scale; null: 4.5. Only for logicle.", gt=0)
    a: float | None = key(None, "Further negative decades of the logicle scale; null: 0. Only for logicle.")

    @model_serializer(mode="wrap")
    def _what_is_given(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in dump(self).items() if value is not None}

    @model_validator(mode="after")
    def _parameters_belong_to_the_method(self) -> TransformConfig:
        owners = {"cofactor": "arcsinh", "t": "logicle", "w": "logicle", "m": "logicle", "a": "logicle"}
        for name, owner in owners.items():
            if getattr(self, name) is not None and self.method != owner:
                raise ValueError(f"{name} belongs to method {owner}, found beside {self.method}; take it out")
        w, m, a = (
            fallback if x is None else x for x, fallback in ((self.w, 0.5), (self.m, 4.5), (self.a, 0.0))
        )
        if w > m / 2:
            raise ValueError(f"got w = {w:g} and m = {m:g}, need w at most m / 2")
        if not -w <= a <= m - 2 * w:
            raise ValueError(f"got a = {a:g}, need a from -w to m - 2 w, here from {-w:g} to {m - 2 * w:g}")
        return self


class DataConfig(Section):
    """The events: where they are, which channels are taken, and what is done to them before the sampler."""

    files: list[str] = key(
        ...,
        "Data files, globs or folders (all data files in them), pooled into one data set; relative to the "
        "folder of this config.",
        min_length=1,
        need="a list of file names or globs, as [sample.fcs]",
    )
    samples: str | None = key(
        None,
        "In place of files: a CSV file with a row per sample; its column file names the data file, relative "
        "to the folder of the table, sample (if there) the name to show, and all others go into the table of "
        "proportions.",
        min_length=1,
    )
    channels: list[str] | None = key(
        None,
        "Channels by marker or detector name, globs allowed; null: all but scatter, time and the like.",
        "scatter and time would be clustered beside the markers, which few analyses want",
        min_length=1,
        need='a list of channel names or globs, as [CD3, "CD8*"] (numbers in quotes), or null',
    )
    compensation: str = key(
        "auto",
        "auto: each file's own spillover matrix, if it has one; none; or the path of a CSV file.",
        "an uncompensated file shows populations that are not there",
        need="auto, none, or the path of a CSV file with detector names as its header, as spillover.csv",
    )
    linearize: bool = key(
        True,
        "Undo the logarithmic amplification that old FCS files declare ($PnE), before anything else.",
        "the transforms and compensation are defined on the linear scale",
    )
    transform: dict[str, TransformConfig] = key(
        {DEFAULT: TransformConfig()},
        'Transform of each channel, by name or glob ("default": of the others): auto (what fits the '
        "instrument), logicle (t, w, m, a), arcsinh (cofactor), log or linear.",
        need="a mapping of channel names or globs to transforms, as {default: {method: logicle}}",
    )
    standardize: bool = key(
        True,
        "Give every channel mean 0 and standard deviation 1 after its transform (recorded, invertible).",
        "one prior then fits every channel",
    )
    atoms: Literal["report", "dither", "tail"] = key(
        "dither",
        "Events piled at one value of a channel (clipped, or zero), where covariances may shrink to nothing: "
        "always reported; dither moves them by noise of 0.03 standard deviations; tail lets those at a limit "
        "go on beyond it as a half-normal, and dithers the others. By the seed, and recorded; files stay as "
        "they are.",
        "a prior that is learned (model.learn) needs it: one value of many events draws phi to nothing",
    )
    margin_events: Literal["report", "drop"] = key(
        "report",
        "Events at a limit of a channel's range: always reported; drop leaves them out.",
        "no event is dropped unasked",
    )
    max_events: int | None = key(
        None, "Draw this many events at random (by the seed) from the pooled data; null: take all.", ge=1
    )

    @model_validator(mode="wrap")
    @classmethod
    def _files_or_samples(cls, given: Any, validate: ModelWrapValidatorHandler[DataConfig]) -> DataConfig:
        if not isinstance(given, dict) or given.get("samples") is None:
            return validate(given)
        if given.get("files"):
            raise ValueError("got files and samples, need one of them: take the other out")
        # As if there were files, which are asked for by all that is said of them.
        return validate({**given, "files": ["*"]}).model_copy(update={"files": []})

    @field_validator("compensation")
    @classmethod
    def _compensation_is_known(cls, value: str) -> str:
        return _name_or_path(value, ("auto", "none"))

    @field_validator("transform")
    @classmethod
    def _transform_has_a_default(cls, value: dict[str, TransformConfig]) -> dict[str, TransformConfig]:
        return value if DEFAULT in value else {DEFAULT: TransformConfig(), **value}


class PriorConfig(Section):
    """Prior of the mixture, in the units of the events that the sampler sees (standardised, by default).

    Of m, gamma, nu and phi, those that model.learn names vary about the values given here.

    The limits are far outside what any data ask for, and within what float64 arithmetic takes.
    """

    m: float | list[float] = key(
        0.0,
        "Prior mean of the component means: one number, or one per channel.",
        "the mean of standardised data",
        need="a number from -1e9 to 1e9, or a list with one per channel",
    )
    gamma: float = key(
        5.0,
        "Prior variance of a component's mean, in units of its covariance.",
        "with phi 0.3 it spreads the means over the data: 5 x 0.3 = 1.5 standard deviations squared",
        ge=1e-6,
        le=10**6,
    )
    nu: float = key(
        2.0,
        "Strength of the prior on the covariances, in events.",
        "the data decide from a few events on",
        ge=1e-3,
        le=10**9,
    )
    phi: float | list[float] = key(
        0.3,
        "Prior mean of the covariances: the variance on the diagonal, one number, or one per channel.",
        "with nu 2 and gamma 5 the best fixed prior in a study of gated data, by held-out density",
        need="a number from 1e-12 to 1e12, or a list with one per channel",
    )
    alpha_shape: float = key(
        1.0,
        "Shape of the gamma prior of the concentration alpha.",
        "with rate 1 an exponential of mean 1",
        ge=1e-3,
        le=10**6,
    )
    alpha_rate: float = key(
        1.0,
        "Rate of the gamma prior of the concentration alpha.",
        "weak beside the sticks that inform it",
        ge=1e-6,
        le=10**6,
    )

    @field_validator("m")
    @classmethod
    def _m_is_within_limits(cls, value: float | list[float]) -> float | list[float]:
        return _within(value, -1e9, 1e9)

    @field_validator("phi")
    @classmethod
    def _phi_is_within_limits(cls, value: float | list[float]) -> float | list[float]:
        return _within(value, 1e-12, 1e12)


class ModelConfig(Section):
    """The mixture."""

    components: int = key(
        128,
        "Truncation K: the most components that the mixture may use.",
        "more than the populations of one sample, as each takes several normals; time grows with it",
        ge=1,
        le=4096,
    )
    prior: PriorConfig = PriorConfig()
    learn: list[Literal["alpha", "m", "gamma", "nu", "phi"]] = key(
        ["alpha", "gamma", "nu", "phi"],
        "Hyperparameters drawn with the rest, any of alpha, m, gamma, nu, phi; [] keeps alpha at its prior "
        "mean, alpha_shape / alpha_rate. With m0, gamma0, nu0, phi0 the values in model.prior: m is normal "
        "with mean m0 and covariance gamma0 phi0; 1 / gamma is gamma with shape 1/2 and mean 1 / gamma0; nu "
        "is any of nu0 2^(k/8), k = -48 to 48; phi is Wishart with D + 2 degrees of freedom and mean phi0, "
        "restricted to where phi - phi0 / 10,000 is positive definite.",
        "the data know better than we do how many components they take (alpha), how wide these are (phi), "
        "how alike (nu) and how far apart (gamma); m is left out as standardised channels have mean 0",
        need="a list of different names out of alpha, m, gamma, nu, phi, as [alpha, phi], or []",
    )

    @field_validator("learn")
    @classmethod
    def _learned_are_different(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError
        return value


class McmcConfig(Section):
    """The Gibbs sampler (dpmix mcmc)."""

    chains: int = key(
        4,
        "Independent chains, run in lockstep.",
        "several show whether one can be trusted, and find populations that one misses",
        ge=1,
        le=1024,
    )
    burn_in: int = key(
        500,
        "Sweeps before the first draw is kept.",
        "from a k-means start some hundreds of sweeps settle the log posterior",
        ge=0,
        le=2**31,
    )
    draws: int = key(
        250,
        "Draws kept, per chain.",
        "successive draws are alike: 1,000 of four chains are worth far fewer",
        ge=1,
        le=2**31,
    )
    thin: int = key(
        1, "Sweeps per draw kept.", "thinning only loses draws; raise it to save disk", ge=1, le=2**31
    )
    init: str = key(
        "kmeans",
        "Where chains start: kmeans, random, prior, bem, or a run file whose last draw is taken.",
        "k-means++ on a subsample is fast and near enough",
        need="kmeans, random, prior, bem, or the path of a run file, as other.h5",
    )
    label_swaps: bool = key(
        True,
        "Moves that exchange components in the order of the sticks.",
        "without them the order of the start stays and alpha mixes slowly",
    )
    split_merge: int = key(
        10,
        "Sweeps from one round of split-merge moves to the next, which try to give the events of a component "
        "to two, or those of two to one; 0: none.",
        "sweeps that move one event at a time hardly ever find a split; a round costs about a sweep",
        ge=0,
        le=2**31,
    )

    @field_validator("init")
    @classmethod
    def _init_is_known(cls, value: str) -> str:
        return _name_or_path(value, INIT_METHODS)

    @property
    def sweeps(self) -> int:
        """Sweeps of one chain, burn-in included."""
        return self.burn_in + self.draws * self.thin

    @model_validator(mode="after")
    def _sweeps_fit_the_counter(self) -> McmcConfig:
        # The sweep's number is 32 bits wide in the generator of the labels.
        if self.sweeps >= 2**32:
            raise ValueError(f"got burn_in + draws x thin = {self.sweeps}, need less than {2**32}")
        return self


class BemConfig(Section):
    """Bayesian EM (dpmix bem, and mcmc.init: bem)."""

    starts: int = key(
        10,
        "Runs from different starts, of which the best is kept.",
        "EM stops at the nearest mode",
        ge=1,
        le=10_000,
    )
    max_steps: int = key(
        500,
        "Most steps of one start.",
        "several times what it takes to settle on cytometry data",
        ge=1,
        le=2**31,
    )
    tolerance: float = key(
        1e-6,
        "A start ends when a step changes the log posterior by less than this, relative to its size.",
        "far below the differences between starts",
        gt=0,
        lt=1,
    )
    update: Literal["mean", "mode"] = key(
        "mean",
        "Where a step takes means and covariances: to the means of their posterior given the rest, or to its "
        "mode, and then m, gamma, nu and phi, where they are learned, to theirs. With mode the log posterior "
        "never falls, but where a stick reaches 1 and so cuts the mixture short; with mean it may.",
        "the paper's; at a mode components are narrower, so that more of them stay, and a learned gamma, nu "
        "or phi follows them: beside mode let model.learn name none of these",
    )


class ClusterConfig(Section):
    """A cluster of processes on this machine, for backend cluster without a scheduler."""

    workers: int | None = key(
        None, "Processes; null: as Dask divides the cores of this machine among processes.", ge=1, le=4096
    )
    threads_per_worker: int | None = key(None, "Threads of each; null: as Dask divides them.", ge=1, le=4096)


class EngineConfig(Section):
    """What evaluates the mixture at the events.

    Nothing here changes the draws but weight_floor, and backend: between cpu and cuda a label may differ
    where its random number lies within rounding of a step.
    """

    backend: Literal["auto", "cpu", "cuda", "cluster"] = key(
        "auto",
        "cpu, cuda (NVIDIA GPUs), cluster (workers of a Dask cluster), or auto: cuda where there is a device "
        "and a compiler, else cpu; the run file says which and why.",
    )
    scheduler: str | None = key(
        None,
        "Dask scheduler, as tcp://host:8786, or its scheduler file; null: a cluster of this machine's own, "
        "made as engine.cluster says. Only for cluster.",
        need="an address as tcp://host:8786, or the path of a scheduler file as cluster.json",
    )
    cluster: ClusterConfig = ClusterConfig()
    devices: Literal["all"] | list[Annotated[int, Field(ge=0)]] = key(
        "all",
        "Numbers of the GPUs to use, as dpmix devices lists them, or all. Only for cuda.",
        need="all, or a list of different device numbers, as [0, 1]",
    )
    threads: int | None = key(
        None, "Threads; null: one per core that this process may use. Only for cpu.", ge=1, le=4096
    )
    chunks_in_flight: int | None = key(
        None,
        "Chunks of 65,536 events worked on at a time; null: on the CPU one per thread, within some 64 MB, on "
        "a GPU as many as use it well, within its memory.",
        ge=1,
        le=2**20,
    )
    pruning: bool = key(
        True,
        "Skip components whose weight is certain to be 0. Only on processors: a pass of a GPU is dense.",
        "the same labels, bit for bit, sooner",
    )
    weight_floor: float = key(
        25.0,
        "A component this many nats below an event's best has weight 0 there.",
        "the error, at most K exp(-25) per event, is finer than the grid of the random numbers",
        ge=15,
        le=80,
    )
    memory_limit: str | None = key(
        None,
        "Events that need more memory than this, as 16 GB, are worked with from a file in engine.scratch; "
        "null: than is free at the start.",
        need="a size as 500 MB, 16 GB or 1 TB",
    )
    scratch: str | None = key(
        None,
        "Folder for such a file; of backend cluster, one that its workers see too; null: the folder of the "
        "run file. What is written there is gone at the end.",
        min_length=1,
    )

    @field_validator("scheduler")
    @classmethod
    def _scheduler_is_an_address(cls, value: str | None) -> str | None:
        if value is not None and "://" not in value and not value.endswith(".json"):
            raise ValueError
        return value

    @field_validator("memory_limit")
    @classmethod
    def _memory_limit_is_a_size(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"\d+(\.\d+)? ?[MGT]B", value):
            raise ValueError
        return value

    @property
    def memory_limit_bytes(self) -> int | None:
        """The memory limit as a number of bytes."""
        if self.memory_limit is None:
            return None
        return int(float(self.memory_limit[:-2]) * SIZES[self.memory_limit[-2:]])

    @field_validator("devices")
    @classmethod
    def _devices_are_different(cls, value: Literal["all"] | list[int]) -> Literal["all"] | list[int]:
        if value != "all" and (not value or len(set(value)) < len(value)):
            raise ValueError
        return value

    @model_validator(mode="after")
    def _options_belong_to_the_backend(self) -> EngineConfig:
        if self.scheduler is not None and self.cluster != ClusterConfig():
            raise ValueError(
                f"the workers of scheduler {self.scheduler} are as they were started; take out cluster, or "
                "set scheduler: null for a cluster of this machine's own"
            )
        if self.backend != "auto" and (unused := self.unused(self.backend)):
            defaults = ", ".join(f"{name}: {flow(default)}" for name, default in unused.items())
            raise ValueError(
                f"backend {self.backend} has no use for {', '.join(unused)}; take out, or set {defaults}"
            )
        return self

    def unused(self, backend: str) -> dict[str, Any]:
        """Keys that are given though a backend has no use for them, and the defaults of these keys."""
        given, defaults = self.model_dump(), EngineConfig.model_construct().model_dump()
        return {
            name: defaults[name]
            for name, owners in BACKENDS_OF.items()
            if backend not in owners and given[name] != defaults[name]
        }


class OutputConfig(Section):
    """What is written."""

    path: str = key(
        "run.h5", "The run file; relative to the current folder. Never overwritten unasked.", min_length=1
    )


class Config(Section):
    """A whole run: every key that has a meaning, with its value."""

    data: DataConfig = Field(json_schema_extra={"need": "a section with at least files: [...]"})
    model: ModelConfig = ModelConfig()
    mcmc: McmcConfig = McmcConfig()
    bem: BemConfig = BemConfig()
    engine: EngineConfig = EngineConfig()
    output: OutputConfig = OutputConfig()
    seed: int = key(1, "Seed of every random number: the same seed gives the same draws.", ge=0, le=2**64 - 1)


class Entry(NamedTuple):
    """What is said of a key: its dotted name, its default (None where it has none), what it accepts, what it
    does and why it has its default."""

    name: str
    default: str | None
    accepts: str
    meaning: str


def _within(value: float | list[float], low: float, high: float) -> float | list[float]:
    """`value`, if all its numbers are from low to high."""
    if not all(low <= number <= high for number in (value if isinstance(value, list) else [value])):
        raise ValueError
    return value


def _name_or_path(value: str, names: Sequence[str]) -> str:
    """`value`, if it is one of the names or looks like a path: a mistyped name is no file."""
    if value not in names and not Path(value).suffix and "/" not in value:
        raise ValueError
    return value


def load_config(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a config file.

    Parameters
    ----------
    path : str or Path
        A YAML file. Paths of data in it are relative to its folder.
    overrides : sequence of str
        ``key=value`` with a dotted key and a YAML value, as ``model.components=64``; the last one wins.

    Returns
    -------
    Config

    Raises
    ------
    ConfigError
        With one line for every problem of the file and of the overrides.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"{path}: cannot be read: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise ConfigError(
            [f"{path}: not a text file, need a config in YAML, as dpmix init FILE writes it"]
        ) from None
    return parse_config(text, str(path), overrides)


def parse_config(text: str, name: str, overrides: Sequence[str] = ()) -> Config:
    """Read the text of a config.

    Parameters
    ----------
    text : str
        YAML.
    name : str
        What the problems of the text begin with.
    overrides : sequence of str
        As of `load_config`.

    Raises
    ------
    ConfigError
        With one line for every problem of the text and of the overrides.
    """
    raw = yaml_text.parse(text, name)
    if raw is None:
        raw = {}
    if not isinstance(raw, dict):
        sections = ", ".join(Config.model_fields)
        raise ConfigError([f"{name}: got {shown(raw)}, need a mapping with the sections {sections}"])
    found: list[str] = []
    options: dict[tuple[str | int, ...], str] = {}
    for override in overrides:
        try:
            options[_set(raw, override)] = f"--set {override}"
        except ConfigError as error:
            found += error.problems
    try:
        config = Config.model_validate(raw)
    except ValidationError as error:
        found += problems(error, raw, schema(), name, options)
    if found:
        raise ConfigError([" ".join(line.splitlines()) for line in found])
    return config


def resets(overrides: Sequence[str]) -> list[str]:
    """Overrides to go before those that name another backend: the keys that this one has no use for."""
    named = [text.partition("=")[2] for text in overrides if text.startswith("engine.backend=")]
    if not named:
        return []
    backend = named[-1]
    defaults = EngineConfig.model_construct().model_dump()
    possible = {"cpu", "cuda"} if backend == "auto" else {backend}
    return [
        f"engine.{name}={flow(defaults[name])}"
        for name, owners in BACKENDS_OF.items()
        if not possible & {*owners}
    ]


def differences(one: Config, other: Config) -> list[str]:
    """Dotted names of the keys whose values differ, in the order of the schema."""
    ours, theirs = dict(_leaves(one)), dict(_leaves(other))
    return [name for name in ours if ours[name] != theirs[name]]


def to_yaml(config: Config, comments: bool = False, blocks: Mapping[str, Sequence[str]] | None = None) -> str:
    """The whole config as YAML, every default written out; `parse_config` gives the same config back.

    Parameters
    ----------
    config : Config
    comments : bool
        Put what each key does, and why it has its default, above it.
    blocks : mapping of str to lines, optional
        Ready lines for the values of some dotted keys, in place of those of `config`.
    """
    return "\n".join(_lines(config, (), comments, blocks or {})) + "\n"


@cache
def schema() -> dict[str, Any]:
    """The JSON schema of the config, with why a default is what it is and, in words, what is needed."""
    return Config.model_json_schema()


def reference() -> Iterator[Entry]:
    """What the reference page of the config says, key by key in the order of the schema."""
    paths = [*keys(schema())]
    behind = paths.index(ANY_TRANSFORM[:-1]) + 1
    paths[behind:behind] = [(*ANY_TRANSFORM, name) for name in TransformConfig.model_fields]
    for path in paths:
        here = at(schema(), path)
        default = flow(here["default"]) if "default" in here else None
        yield Entry(".".join(path), default, here.get("need") or needed(here), _explained(here))


def _set(raw: dict[Any, Any], override: str) -> tuple[str, ...]:
    """Set one ``key=value`` in a config as it was read, in place; the path of the key."""
    key, equals, text = override.partition("=")
    path = tuple(key.strip().split("."))
    if not equals or not all(path):
        raise ConfigError([f"--set {override}: need key=value, as model.components=64"])
    value = yaml_text.parse(text, f"--set {override}")
    section = raw
    for part in path[:-1]:
        if section.get(part) is None:
            section[part] = {}
        section = section[part]
        if not isinstance(section, dict):
            raise ConfigError([f"--set {override}: {part} is not a section"])
    section[path[-1]] = value
    return path


def _lines(
    section: Section, path: tuple[str, ...], comments: bool, blocks: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    indent = "  " * len(path)
    plain = section.model_dump()
    for name, value in section:
        inner = (*path, name)
        if comments:
            if not path and name != "data":
                yield ""
            comment = _explained(at(schema(), inner))
            mark = f"{indent}# "
            yield from textwrap.wrap(
                comment, LINE, initial_indent=mark, subsequent_indent=mark, break_on_hyphens=False
            )
        block = blocks.get(".".join(inner))
        if isinstance(value, Section):
            yield f"{indent}{name}:"
            yield from _lines(value, inner, comments, blocks)
        elif block:
            yield f"{indent}{name}:"
            yield from (f"{indent}  {line}".rstrip() for line in block)
        else:
            yield f"{indent}{name}: {flow(plain[name])}"


def _explained(schema: Mapping[str, Any]) -> str:
    """What a key does, and why it has its default."""
    why = schema.get("why")
    reason = f" Default {flow(schema['default'])}: {why}." if why else ""
    return f"{schema['description']}{reason}"


def _leaves(section: Section, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section:
        if isinstance(value, Section):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
