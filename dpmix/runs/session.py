"""What every run begins with: the events in their engine, the prior, the open run file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from dpmix.config.schema import INIT_METHODS, Config, ModelConfig
from dpmix.config.write import to_yaml
from dpmix.engines import cpu
from dpmix.engines.base import Engine
from dpmix.engines.choose import choose_backend, make_engine, warn_of_other_arithmetic
from dpmix.errors import ConfigError, DataError
from dpmix.inputs import preprocess
from dpmix.inputs.events import Events
from dpmix.inputs.storage import Storage, is_in_file
from dpmix.model.mixture import HYPERPARAMETERS
from dpmix.model.prior import Prior
from dpmix.runs import initialise
from dpmix.runs.describe import describe_engine
from dpmix.runs.layout import COUNTS, Layout
from dpmix.runs.profile import Profile
from dpmix.runs.reader import Run, open_run
from dpmix.runs.writer import RunWriter
from dpmix.system import memory

log = logging.getLogger("dpmix")


@dataclass(frozen=True)
class Session:
    """What the sampler's loops work with; `open_session` makes one.

    `origin` is the run file whose last draw the chains begin at, where mcmc.init names one.
    """

    config: Config
    origin: Path | None
    events: Events
    engine: Engine
    prior: Prior
    writer: RunWriter
    profile: Profile

    def write_profile(self) -> None:
        """Write where the time of the run has gone so far."""
        self.writer.write_profile(self.profile.seconds(self.engine.seconds))


@contextmanager
def open_session(kind: str, config: Config, base: Path, resume: bool, overwrite: bool) -> Iterator[Session]:
    """Prepare the events, choose the engine and open the run file, and close all of it again.

    Parameters
    ----------
    kind : str
        "mcmc" or "bem".
    config : Config
    base : Path
        Folder that relative data paths of the config start from.
    resume, overwrite : bool
        Go on with the run file that is there; replace it.

    Raises
    ------
    ConfigError
        What the config names is not there or does not fit, or something is in the run file's place.
    DpmixError
        The engine cannot be set up.
    DataError
        The events cannot be used, are not those that the run began with, or a run file cannot be read or
        written.
    """
    path = Path(config.output.path)
    origin = origin_of(config, base) if kind == "mcmc" else None
    if not resume:
        RunWriter.refuse_place(path, overwrite)
        if origin is not None:
            refuse_origin(origin, path)
    with ExitStack() as stack:
        earlier = open_run(path) if resume else None
        # Before the data are read: who may not go on with the file should not have to wait for that.
        writer = None if earlier is None else stack.enter_context(RunWriter.reopen(path))
        choice = choose_backend(config.engine, None if earlier is None else earlier.engine["backend"])
        replaced = resume or overwrite
        beside = partial(memory_beside, kind, config, choice.backend)
        storage = stack.enter_context(Storage.of(config.engine, choice.backend, path, beside, replaced))
        events = preprocess.prepare(config.data, base, config.seed, storage)
        for line in events.report.lines():
            log.info(line)
        prior = make_prior(config.model, events.channels)
        if origin is not None and not resume:  # what is wrong with it is said before a run file is laid out
            initialise.from_run(open_run(origin), 0, config.model.components, events, prior)
        require_memory(kind, config, events, choice.backend)
        scratch = storage.scratch(events.values)
        engine = stack.enter_context(
            closing(make_engine(choice.backend, config.engine, events.values, scratch))
        )
        engine_attributes = {**engine.info, "chosen": choice.why}
        log.info("engine: %s", describe_engine(engine_attributes))
        # One thread for the batched linear algebra: its matrices are small, its results then do not depend
        # on the number of cores, and an idle pool of spinning threads would slow the engine's own.
        stack.enter_context(threadpool_limits(1, "blas"))
        if earlier is not None:
            warn_of_other_arithmetic(earlier.engine, engine_attributes)
            check_same_data(earlier, events)
        if writer is None:
            layout = layout_of(kind, config, base, events, engine_attributes)
            writer = stack.enter_context(RunWriter.create(path, layout, overwrite))
        elif earlier is not None and kind == "mcmc" and config.mcmc.draws > earlier.draws:
            grown = writer.grown(config.mcmc.draws, 1 + config.mcmc.sweeps, to_yaml(config))
            writer = stack.enter_context(grown)
            log.info("room for %d draws in place of %d", config.mcmc.draws, earlier.draws)
        profile = Profile(earlier.profile if earlier is not None else {})
        yield Session(config, origin, events, engine, prior, writer, profile)


def memory_beside(kind: str, config: Config, backend: str, n: int, dim: int, in_file: bool = False) -> int:
    """Bytes of memory that a run takes beside its n events of `dim` channels, which may be in a file."""
    count, chains = config.model.components, _chains(kind, config)
    states = (3 * chains + 8) * 8 * count * dim**2  # of the chains, and what the sampler works with
    given = config.engine.threads, config.engine.chunks_in_flight
    scratch = cpu.scratch_bytes(n, dim, count, *given) if backend == "cpu" else 0
    labels = 0 if in_file and backend != "cuda" else n * (2 + 4 * chains)
    return labels + scratch + states


def require_memory(kind: str, config: Config, events: Events, backend: str) -> None:
    """Raise `DataError` where the memory that a run takes beside its events is not there."""
    n, dim, count = len(events.values), len(events.channels), config.model.components
    chains, drawn = _chains(kind, config), config.mcmc.draws if kind == "mcmc" else 1
    in_file = is_in_file(events.values)
    memory.require(
        memory_beside(kind, config, backend, n, dim, in_file),
        f"a {kind} run of {n:,} events in {dim} channels (in {'a file' if in_file else 'memory'}: "
        f"{events.values.nbytes / 1e9:.2f} GB), {count} components and {chains} "
        f"chain{'s' if chains > 1 else ''}",
        "take fewer events (data.max_events), model.components, mcmc.chains or mcmc.draws",
        mapped=chains * drawn * 8 * count * (dim**2 + dim + 1),
    )


def _chains(kind: str, config: Config) -> int:
    return config.mcmc.chains if kind == "mcmc" else 1


def origin_of(config: Config, base: Path) -> Path | None:
    """The run file that mcmc.init names, None where it names a method."""
    method = config.mcmc.init
    return None if method in INIT_METHODS else base / method


def refuse_origin(origin: Path, path: Path) -> None:
    """Raise `ConfigError` where a run would begin at a draw of the very file that it replaces."""
    if origin.exists() and path.exists() and origin.samefile(path):
        raise ConfigError([f"mcmc.init: {origin} is what this run would replace; give another --output"])


def make_prior(model: ModelConfig, channels: Sequence[str]) -> Prior:
    """The prior over the chosen channels, and what of it is learned.

    Raises
    ------
    ConfigError
        A list in the config is not as long as there are channels.
    """
    prior, dim = model.prior, len(channels)
    problems = []
    for key, value in (("m", prior.m), ("phi", prior.phi)):
        if isinstance(value, list) and len(value) != dim:
            problems.append(
                f"model.prior.{key}: got {len(value)} numbers, need one or {dim}, one per channel "
                f"({', '.join(channels)})"
            )
    if problems:
        raise ConfigError(problems)
    return Prior(
        m=np.broadcast_to(np.asarray(prior.m, float), dim).copy(),
        gamma=prior.gamma,
        nu=prior.nu,
        phi=np.diag(np.broadcast_to(np.asarray(prior.phi, float), dim)),
        alpha_shape=prior.alpha_shape,
        alpha_rate=prior.alpha_rate,
        learned=frozenset(model.learn),
    )


def layout_of(kind: str, config: Config, base: Path, events: Events, engine: Mapping[str, object]) -> Layout:
    """The frame of the run file: its size, and everything about the run that does not change."""
    scaling = events.scaling
    is_mcmc = kind == "mcmc"
    rows = {} if events.rows is None else {"rows": (("event",), events.rows)}
    return Layout(
        kind=kind,
        chains=config.mcmc.chains if is_mcmc else config.bem.starts,
        draws=config.mcmc.draws if is_mcmc else 1,
        sweeps=1 + (config.mcmc.sweeps if is_mcmc else config.bem.max_steps),
        n_components=config.model.components,
        channels=events.channels,
        learned=[name for name in HYPERPARAMETERS if name in config.model.learn],
        counts=COUNTS[kind],
        constants={
            "channel_means": (("channel",), scaling.means),
            "channel_sds": (("channel",), scaling.sds),
            "sample": (("sample",), np.array(events.samples, dtype=object)),
            "sample_starts": (("sample_edge",), events.sample_starts),
            **rows,
        },
        attributes={
            "config": to_yaml(config),
            "base": str(base.resolve()),
            "report": asdict(events.report),
            "seed": config.seed,
            "engine": engine,
            "scaling": scaling.as_attributes(),
            "data_hash": events.data_hash,
            "n_events": len(events.values),
            "detectors": list(events.detectors),
            "sample_table": {name: list(cells) for name, cells in events.sample_columns.items()},
        },
    )


def check_same_data(earlier: Run, events: Events, remedy: str = "begin anew with --overwrite") -> None:
    """Refuse to work with a run whose events are no longer what they were."""
    began, channels = earlier.attributes, ", ".join(earlier.channels)
    now = ", ".join(events.channels)
    if channels != now:
        difference = f"channels {channels} then, {now} now"
    elif began["n_events"] != len(events.values):
        difference = f"{began['n_events']:,} events then, {len(events.values):,} now"
    elif began["data_hash"] != events.data_hash:
        difference = "other values, or in another order"
    else:
        return
    raise DataError(
        f"{earlier.path}: the data have changed since this run began: {difference}; put the old files back, "
        f"or {remedy}"
    )
