"""A gating task: an open run, the events to gate, and the engine to gate them with."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dpmix.config.schema import Config
from dpmix.engines.base import Engine
from dpmix.engines.choose import choose_backend, make_engine
from dpmix.errors import ConfigError
from dpmix.inputs import preprocess
from dpmix.inputs.events import Events
from dpmix.inputs.storage import Storage
from dpmix.inputs.transforms import Scaling
from dpmix.model.mixture import Floats
from dpmix.populations.draws.cohort import OwnTerms, terms_of_run
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.kept import populations_of_run
from dpmix.populations.draws.local_engine import local_config
from dpmix.populations.tree.decisions import Decisions
from dpmix.runs.reader import Run, open_run
from dpmix.runs.session import check_same_data
from dpmix.system.files import nearest_existing

log = logging.getLogger("dpmix")


@dataclass(frozen=True)
class Task:
    """A run, the events to gate with it, and the settings of the engine.

    Attributes
    ----------
    run : Run
        Standardised scale.
    config : Config
        Config of the run, with the engine to use now.
    events : Events
    backend : str
        Backend of all engines of the task, chosen once so that its warnings appear once.
    storage : Storage
        Owner of the events' memory or file.
    data : tuple of str or Path
        Files that are gated instead of the run's own.
    """

    run: Run
    config: Config
    events: Events
    backend: str
    storage: Storage
    data: tuple[str | Path, ...] = ()

    def make_engine(self, values: Floats) -> Engine:
        """Return an engine that holds events on the standardised scale, float32 [M, D]."""
        return make_engine(self.backend, self.config.engine, values, self.storage.scratch(values))

    def events_without_noise(self) -> Events:
        """Return the events without the noise that spreads atoms; read again where there is any."""
        if all(atom.treatment == "kept" for own in self.events.scaling.atoms for atom in own):
            return self.events
        return _events(self.run, self.config, self.data, self.storage, spread=False)

    def own_terms(
        self, found: Populations, sample: int, of_new: Sequence[OwnTerms] | None = None
    ) -> OwnTerms | None:
        """Return the weights and shifts of a sample; None in a pooled run, and for a sample without events.

        Parameters
        ----------
        found : Populations
        sample : int
        of_new : sequence of OwnTerms, optional
            Terms of the samples of `data`, which are not in the run (`dpmix.populations.draws.new_samples`).
        """
        starts = self.events.sample_starts
        if starts[sample] == starts[sample + 1]:
            return None
        if of_new is not None:
            return of_new[sample]
        return terms_of_run(self.run, found.draws, sample) if self.run.cohort and not self.data else None

    def find_populations(
        self,
        n_draws: int,
        level: float | None,
        n_populations: int | None,
        decisions: Decisions | None = None,
    ) -> Populations:
        """Find the populations, or read those that the run keeps, and log a line about them."""
        found = populations_of_run(
            self.run,
            self.make_engine,
            n_draws=n_draws,
            level=level,
            n_populations=n_populations,
            decisions=decisions,
            weight_floor=self.config.engine.weight_floor,
        )
        log.info(
            "%d populations at level %.3g (%s), from %d draws",
            found.n_populations,
            found.level,
            found.why,
            len(found.draws),
        )
        return found


def prepare(
    run_file: str | os.PathLike[str],
    data: Sequence[str | Path] = (),
    engine: Sequence[str] = (),
    output: Path = Path("gated"),
    with_quality: bool = False,
) -> Task:
    """Open a run and the events to gate.

    Parameters
    ----------
    run_file : str, Path or Run
    data : sequence of str or Path, optional
        Files or globs to gate instead of the run's own events.
    engine : sequence of str, optional
        Engine settings that replace settings of the run's config, for example ``engine.threads=2``.
    output : Path
        Folder of the results. Events that do not fit in memory go into a file next to it, unless the config
        names another folder.
    with_quality : bool
        Read scatter and viability, too, for debris, doublets and dead cells.

    Raises
    ------
    ConfigError, DataError
        A file is missing or cannot be used, or the data have changed since the run was made.
    """
    run = open_run(run_file)
    config = local_config(run, engine)
    backend = choose_backend(config.engine, option="--backend ").backend
    storage = Storage.of(
        config.engine, backend, nearest_existing(output.absolute().parent) / output.name, _working_bytes
    )
    events = _events(run, config, data, storage, with_quality=with_quality)
    for warning in events.report.warnings:
        log.warning(warning)
    return Task(run, config, events, backend, storage, tuple(data))


def _events(
    run: Run,
    config: Config,
    data: Sequence[str | Path],
    storage: Storage,
    spread: bool = True,
    with_quality: bool = False,
) -> Events:
    """Read the events of the run or of other files; without `spread`, atoms are left as they are."""
    scaling = Scaling.from_attributes(run.scaling)
    settings = config.data if spread else config.data.model_copy(update={"atoms": "report"})
    if not data:
        recorded = preprocess.Recorded(run.detectors, scaling, run.state_channels)
        try:
            events = preprocess.prepare(settings, run.base, config.seed, storage, recorded, with_quality)
        except ConfigError as error:
            remedy = "if the files have moved, name them with --data"
            raise ConfigError([f"{problem}; {remedy}" for problem in error.problems]) from error
        if spread:
            check_same_data(run, events, "gate other files with --data")
        return events
    if not spread:
        scaling = replace(scaling, atoms=())
    if settings.compensation not in ("auto", "none"):  # a file, relative to the run's own data
        path = str(run.base / settings.compensation)
        settings = settings.model_copy(update={"compensation": path})
    if settings.gate is not None:
        gate = settings.gate.model_copy(update={"workspace": str(run.base / settings.gate.workspace)})
        settings = settings.model_copy(update={"gate": gate})
    # Names given now are relative to the current folder, names in the config to the run's: full paths fit
    # both.
    files = [str(Path(name).absolute()) for name in data]
    return preprocess.prepare_like(
        settings, Path(), files, scaling, run.detectors, storage, run.state_channels, with_quality
    )


def _working_bytes(n: int, dim: int) -> int:
    """Return the bytes needed in addition to n events.

    These are the labels of the engine, the populations of all events and of one sample, one channel and a
    part of it.
    """
    return n * (2 + 4 + 8 + 4 + 4)
