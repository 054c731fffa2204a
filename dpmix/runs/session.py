"""Open a run: its events in their engine, its prior, its run file."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmix.config.schema import FULL_EVENTS, INIT_METHODS, Config, ModelConfig
from dpmix.config.write import to_yaml
from dpmix.engines import cpu
from dpmix.engines.base import Engine
from dpmix.engines.choose import choose_backend, make_engine, warn_of_other_arithmetic
from dpmix.errors import ConfigError, DataError
from dpmix.inputs import preprocess
from dpmix.inputs.controls import controls_as_attributes
from dpmix.inputs.events import Events
from dpmix.inputs.storage import Storage, is_in_file
from dpmix.inputs.transforms import Scaling
from dpmix.model.coarsening import zeta_of
from dpmix.model.mixture import HYPERPARAMETERS, Array, Ints
from dpmix.model.normal_wishart import ARITHMETIC
from dpmix.model.prior import Prior
from dpmix.model.streams import Stream
from dpmix.runs import coarseness, cohort, initialise
from dpmix.runs.describe import describe_engine
from dpmix.runs.layout import (
    COUNTS,
    EVENT_SUBSET,
    REFERENCES,
    SUBSET_WEIGHTS,
    WEIGHTS,
    FileLayout,
    subset_rows,
)
from dpmix.runs.monitors import reference_events
from dpmix.runs.profile import TimeProfile
from dpmix.runs.reader import Run, open_run
from dpmix.runs.resume import lifts
from dpmix.runs.writer import RunWriter
from dpmix.system import memory
from dpmix.system.threads import one_thread

log = logging.getLogger("dpmix")

Constants = dict[str, tuple[tuple[str, ...], npt.ArrayLike]]

SUBSET_EVENTS = 20_000  # kept in the run file: valleys between populations of 0.15% and more are measured


@dataclass(frozen=True)
class Session:
    """Everything that the loops of MCMC and Bayesian EM work with; `open_session` makes it.

    `origin` is the run file whose last draw the chains start from, where mcmc.init names one. `coarseness` is
    set in the config or chosen at the start of the run. `groups` is the shift of each sample in the
    hierarchical model (`dpmix.runs.cohort.shift_groups`), None in a pooled one.
    """

    config: Config
    origin: Path | None
    events: Events
    engine: Engine
    prior: Prior
    writer: RunWriter
    profile: TimeProfile
    coarseness: float | None
    groups: Ints | None
    stands_for: float = 1.0

    @property
    def zeta(self) -> float:
        """The power of the likelihood: an event of weight 1 counts so much."""
        n_events = round(self.stands_for * len(self.events.values))
        return self.stands_for * zeta_of(self.coarseness, n_events)

    @property
    def least(self) -> float:
        """The least that an event counts: zeta times the smallest weight."""
        weights = self.events.weights
        return self.zeta if weights is None else self.zeta * weights.smallest

    @property
    def resolution(self) -> Array | None:
        """Standard deviation of one measurement on the scale of the sampler, float64 [D]; None: all are 0."""
        return self.events.scaling.standardised_resolution

    def write_profile(self) -> None:
        """Write the time of the run so far, by activity."""
        self.writer.write_profile(self.profile.seconds(self.engine.seconds))


@contextmanager
def open_session(kind: str, config: Config, base: Path, resume: bool, overwrite: bool) -> Iterator[Session]:
    """Prepare the events, set up the engine and open the run file; close all of them at the end.

    Parameters
    ----------
    kind : str
        "mcmc" or "bem".
    config : Config
    base : Path
        Folder that relative data paths of the config start from.
    resume, overwrite : bool
        Resume the existing run file; replace it.

    Raises
    ------
    ConfigError
        A file of the config is missing or does not fit, or another file is in the place of the run file.
    DpmixError
        The engine cannot be set up.
    DataError
        The events are not usable or differ from the run's, or a run file cannot be read or written.
    """
    path, origin = Path(config.output.path), _origin(kind, config, base)
    if not resume:
        _refuse_place(path, origin, overwrite)
    with ExitStack() as stack:
        earlier = open_run(path) if resume else None
        # Before the data are read, which may take long: another run may be writing to the file.
        writer = None if earlier is None else stack.enter_context(RunWriter.reopen(path))
        choice = choose_backend(config.engine, None if earlier is None else earlier.engine["backend"])
        cohort.require_supported(kind, config)
        storage = stack.enter_context(_storage(kind, config, choice.backend, resume or overwrite))
        events = _events(config, base, storage, earlier)
        prior, groups = make_prior(config.model, events.channels), cohort.shift_groups(config, events)
        if origin is not None and not resume:  # an origin that does not fit must fail before a file is made
            initialise.from_run(open_run(origin), 0, config.model.components, events, prior)
        # Before the engine and the run file: a system without memory kills the process without a message.
        require_memory(kind, config, events, choice.backend)
        engine = stack.enter_context(_engine(config, choice.backend, events, storage.scratch(events.values)))
        attributes = {**engine.info, "chosen": choice.why}
        if kind == "mcmc":
            attributes["parameters"] = ARITHMETIC
        log.info("engine: %s", describe_engine(attributes))
        profile = TimeProfile(None if earlier is None else earlier.profile)
        coarse = _coarseness(config, events, prior, earlier, profile)
        _warn_of_full_events(kind, config, coarse.coarseness)
        if writer is None or earlier is None:
            layout = layout_of(kind, config, base, events, attributes, coarse)
            layout = replace(layout, cohort=cohort.names(groups))
            writer = stack.enter_context(RunWriter.create(path, layout, overwrite))
        else:
            warn_of_other_arithmetic(earlier.engine, attributes)
            check_same_data(earlier, events)
            if kind == "mcmc":
                writer = _extended(stack, writer, config, earlier)
        yield Session(config, origin, events, engine, prior, writer, profile, coarse.coarseness, groups)


@contextmanager
def on_fewer_events(session: Session, size: int) -> Iterator[Session]:
    """Yield a session on events drawn at random, which together count as much as all events do.

    The session itself where `size` is the number of its events. Otherwise the events have an engine of their
    own, with the backend of the run; instead of a cluster, for which they are too few, the CPU.
    """
    events = session.events
    if size == len(events.values):
        yield session
        return
    fewer = events.subset(initialise.subsample(len(events.values), size, Stream(session.config.seed, 0, 0)))
    backend = session.engine.info["backend"]
    backend = "cpu" if backend == "cluster" else str(backend)
    with _engine(session.config, backend, fewer, None) as engine:
        try:
            yield replace(
                session, events=fewer, engine=engine, stands_for=len(events.values) / len(fewer.values)
            )
        finally:
            session.profile.add_engine(engine.seconds)


def _storage(kind: str, config: Config, backend: str, replaces: bool) -> Storage:
    """Return where the events are kept: in memory, or in a file next to the run file."""
    overhead = partial(memory_overhead, kind, config, backend)
    return Storage.of(config.engine, backend, Path(config.output.path), overhead, replaces)


def _events(config: Config, base: Path, storage: Storage, earlier: Run | None) -> Events:
    """Prepare the events, and log what was found in the data and done to them."""
    recorded = (
        None
        if earlier is None
        else preprocess.Recorded(
            earlier.detectors, Scaling.from_attributes(earlier.scaling), earlier.state_channels
        )
    )
    events = preprocess.prepare(config.data, base, config.seed, storage, recorded)
    for warning in events.report.warnings:
        log.warning(warning)
    for line in events.report.lines():
        log.info(line)
    # The model does not use the values of state channels; `dpmix gate` reads them again.
    return events if events.state is None else replace(events, state=events.state.without_values())


@contextmanager
def _engine(config: Config, backend: str, events: Events, scratch: Path | None) -> Iterator[Engine]:
    """Make the engine, with one thread for batched linear algebra.

    The matrices are small. With one thread the results do not depend on the number of cores, and no idle pool
    of spinning threads slows the threads of the engine.
    """
    starts = None if config.model.samples == "pooled" else events.sample_starts
    with (
        closing(
            make_engine(backend, config.engine, events.values, scratch, events.weights, starts)
        ) as engine,
        one_thread(),
    ):
        yield engine


def _coarseness(
    config: Config, events: Events, prior: Prior, earlier: Run | None, profile: TimeProfile
) -> coarseness.CoarsenessChoice:
    """Return the coarseness of a new run, or of the run to resume."""
    if earlier is not None:
        return coarseness.choice_of(earlier)
    with profile.span("start"):
        resolution = events.scaling.standardised_resolution
        return coarseness.choose(config, events.values, events.weights, prior, resolution)


def _warn_of_full_events(kind: str, config: Config, coarse: float | None) -> None:
    """Warn if `model.full_events` is set where it has no effect; the default asks for nothing."""
    if config.model.full_events not in (0.0, FULL_EVENTS) and (kind == "bem" or coarse is None):
        where = "Bayesian EM" if kind == "bem" else "the exact posterior (model.coarseness: null)"
        log.warning("model.full_events has no effect on %s", where)


def _extended(stack: ExitStack, writer: RunWriter, config: Config, earlier: Run) -> RunWriter:
    """Return a writer of the same run with room for the draws that the config asks for.

    Where they go beyond mcmc.until, the file says so first: a run killed here must not look complete.
    """
    if lifts(config, earlier):
        writer.write_convergence("lifted", 1)
    if config.mcmc.draws <= earlier.draws:
        return writer
    grown = writer.grown(config.mcmc.draws, 1 + config.mcmc.sweeps, to_yaml(config))
    log.info("room for %d draws instead of %d", config.mcmc.draws, earlier.draws)
    return stack.enter_context(grown)


def memory_overhead(kind: str, config: Config, backend: str, n: int, dim: int, in_file: bool = False) -> int:
    """Return the bytes that a run needs besides its n events of `dim` channels (`in_file`: mapped)."""
    count, chains = config.model.components, _chains(kind, config)
    states = (3 * chains + 8) * 8 * count * dim**2  # of the chains, and work space of the sampler
    given = config.engine.threads, config.engine.chunks_in_flight
    scratch = cpu.scratch_bytes(n, dim, count, *given) if backend == "cpu" else 0
    weights = 0 if config.data.weights == "proportional" or backend == "cuda" else 4
    labels = 0 if in_file and backend != "cuda" else n * (2 + 4 * chains + weights)
    return labels + scratch + states


def require_memory(kind: str, config: Config, events: Events, backend: str) -> None:
    """Raise `DataError` where the available memory is less than a run needs besides its events."""
    n, dim, count = len(events.values), len(events.channels), config.model.components
    chains, drawn = _chains(kind, config), config.mcmc.draws if kind == "mcmc" else 1
    in_file = is_in_file(events.values)
    overhead = memory_overhead(kind, config, backend, n, dim, in_file)
    if config.model.samples == "hierarchical":
        overhead += cohort.memory_bytes(len(events.samples), count, dim, chains)
    memory.require(
        overhead,
        f"a {kind} run of {n:,} events in {dim} channels (in {'a file' if in_file else 'memory'}: "
        f"{events.values.nbytes / 1e9:.2f} GB), {count} components and {chains} "
        f"chain{'s' if chains > 1 else ''}",
        "use fewer events (data.max_events), model.components, mcmc.chains or mcmc.draws",
        mapped=chains * drawn * 8 * count * (dim**2 + dim + 1),
    )


def _chains(kind: str, config: Config) -> int:
    return config.mcmc.chains if kind == "mcmc" else 1


def _origin(kind: str, config: Config, base: Path) -> Path | None:
    """Return the run file that mcmc.init names; None where it names a method."""
    method = config.mcmc.init
    return None if kind != "mcmc" or method in INIT_METHODS else base / method


def _refuse_place(path: Path, origin: Path | None, overwrite: bool) -> None:
    """Raise `ConfigError` where the run file cannot be written, or is the one that the chains start from."""
    RunWriter.refuse_place(path, overwrite)
    if origin is not None and origin.exists() and path.exists() and origin.samefile(path):
        raise ConfigError([f"mcmc.init: {origin} is what this run would replace; give another --output"])


def make_prior(model: ModelConfig, channels: Sequence[str]) -> Prior:
    """Return the prior over the chosen channels, with the names of the parameters to learn.

    Raises
    ------
    ConfigError
        A list in the config has another length than the number of channels.
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
        kappa_shape=prior.kappa_shape,
        kappa_rate=prior.kappa_rate,
        shift_scale=prior.shift,
    )


def _event_subset(events: Events) -> Constants:
    """Return constants of the run: events, evenly spaced in the data, and their weights where there are any.

    `dpmix gate` finds valleys between populations in them, so it needs no data files for that.
    """
    rows = subset_rows(len(events.values), min(len(events.values), SUBSET_EVENTS))
    subset: Constants = {EVENT_SUBSET: (("subset", "channel"), np.asarray(events.values[rows]))}
    if events.weights is not None:
        subset[SUBSET_WEIGHTS] = ("subset",), events.weights.of_events(rows).astype(np.float64)
    return subset


def layout_of(
    kind: str,
    config: Config,
    base: Path,
    events: Events,
    engine: Mapping[str, object],
    coarse: coarseness.CoarsenessChoice,
) -> FileLayout:
    """Return the layout of the run file: its sizes and everything that is constant during the run."""
    scaling = events.scaling
    is_mcmc = kind == "mcmc"
    extra: Constants = {**coarse.constants, **_event_subset(events)}
    if events.rows is not None:
        extra["rows"] = ("event",), events.rows
    if events.weights is not None:
        extra[WEIGHTS] = ("sample",), events.weights.values.astype(np.float64)
    if is_mcmc and config.mcmc.until is not None:
        extra[REFERENCES] = ("reference", "channel"), reference_events(events.values)
    return FileLayout(
        kind=kind,
        chains=config.mcmc.chains if is_mcmc else config.bem.starts,
        draws=config.mcmc.draws if is_mcmc else 1,
        sweeps=1 + (config.mcmc.sweeps if is_mcmc else config.bem.max_steps),
        n_components=config.model.components,
        channels=events.channels,
        learned=[name for name in HYPERPARAMETERS if name in config.model.learn],
        counts=COUNTS[kind],
        judged=is_mcmc,
        constants={
            "channel_means": (("channel",), scaling.means),
            "channel_sds": (("channel",), scaling.sds),
            "sample": (("sample",), np.array(events.samples, dtype=object)),
            "sample_starts": (("sample_edge",), events.sample_starts),
            **extra,
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
            **({} if events.state is None else {"state_channels": events.state.as_attributes()}),
            "controls": controls_as_attributes(events.controls),
            "sample_table": {name: list(cells) for name, cells in events.sample_columns.items()},
            **coarse.attributes,
        },
    )


def check_same_data(earlier: Run, events: Events, remedy: str = "restart with --overwrite") -> None:
    """Raise `DataError` where the events differ from the run's."""
    then, channels = earlier.attributes, ", ".join(earlier.channels)
    now = ", ".join(events.channels)
    if channels != now:
        difference = f"channels {channels} then, {now} now"
    elif then["n_events"] != len(events.values):
        difference = f"{then['n_events']:,} events then, {len(events.values):,} now"
    elif then["data_hash"] != events.data_hash:
        difference = "other values, or in another order"
    elif not _same_weights(earlier, events):
        difference = "other weights of samples (data.weights)"
    else:
        return
    raise DataError(
        f"{earlier.path}: the data have changed since this run started: {difference}; restore the files, "
        f"or {remedy}"
    )


def _same_weights(run: Run, events: Events) -> bool:
    """Return whether events have the weights that a run's events had."""
    then, now = run.constants.get(WEIGHTS), events.weights
    if then is None or now is None:
        return then is None and now is None
    return np.array_equal(then, now.values)
