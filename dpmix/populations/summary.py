"""Summary of a gating: sizes, proportions, quantiles and rasters, collected block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.inputs.controls import by_number
from dpmix.inputs.events import Events
from dpmix.model.mixture import Array, Floats, Ints
from dpmix.populations.draws.cohort import prior_counts
from dpmix.populations.draws.convergence import population_mixing
from dpmix.populations.draws.find import Populations
from dpmix.populations.draws.pooling import transformed_draw
from dpmix.populations.draws.task import Task
from dpmix.populations.events.artefacts import Marks
from dpmix.populations.events.borders import Borders, estimate_proportions
from dpmix.populations.events.medians import Medians
from dpmix.populations.events.names import names_of
from dpmix.populations.events.phenotypes import QUANTILES, levels
from dpmix.populations.events.rasters import Counter, grid
from dpmix.populations.result import TAIL, Block, Gating, StateSummary
from dpmix.runs.verdict import judge
from dpmix.system.paths import as_text

GRID_EVENTS, GRID_ENDS = 200_000, (0.001, 0.999)  # events and quantiles that set the range of the rasters


@dataclass
class Summary:
    """Sums over all blocks; see `dpmix.populations.result.Gating` for the meaning of each.

    Attributes
    ----------
    counts : int64 [T, S, P]
        Events by drawn population.
    sizes : int64 [S, P]
    certainty : float64 [P]
        Sum of the probabilities of the most probable population.
    n_implausible : int64 [S]
    population : int32 [N]
        Most probable population of each event.
    counter : Counter
    medians : Medians
    """

    counts: Ints
    sizes: Ints
    certainty: Array
    n_implausible: Ints
    population: npt.NDArray[np.int32]
    counter: Counter
    medians: Medians
    n_added: int = 0

    @classmethod
    def empty(cls, events: Events, found: Populations) -> Summary:
        """Return the summary before the first block."""
        n_samples, n_populations = len(events.samples), found.n_populations
        some = events.values[:: max(len(events.values) // GRID_EVENTS, 1)]
        # Quantiles: with the extremes, one distant event would leave all others in a few bins.
        lows, highs = events.scaling.to_transformed(np.quantile(some, GRID_ENDS, axis=0))
        return cls(
            counts=np.zeros((len(found.draws), n_samples, n_populations), np.int64),
            sizes=np.zeros((n_samples, n_populations), np.int64),
            certainty=np.zeros(n_populations),
            n_implausible=np.zeros(n_samples, np.int64),
            population=np.zeros(len(events.values), np.int32),
            counter=Counter(grid(lows, highs), n_populations),
            medians=Medians(len(found.draws), n_samples, n_populations, len(events.measured_channels)),
        )

    def add(self, block: Block, counts: Ints) -> None:
        """Add the next block of `dpmix.populations.assign.assign_events`, in its order."""
        population, n_populations = block.population, len(self.certainty)
        self.population[self.n_added : self.n_added + len(population)] = population
        self.n_added += len(population)
        self.counts[:, block.sample] += counts
        self.sizes[block.sample] += np.bincount(population, minlength=n_populations)
        self.certainty += np.bincount(population, block.probability, n_populations)
        self.n_implausible[block.sample] += int(block.implausible.sum())
        self.counter.add(block.values, population)

    def gating(self, task: Task, found: Populations, marks: Marks, without_artefacts: bool = False) -> Gating:
        """Return the gating, once all blocks are added; proportions perhaps without marked populations."""
        run, scaling = found.run, task.events.scaling
        given = task.events.weights
        prior = prior_counts(run, found.draws, found.components, found.n_populations)
        components = found.components[found.reference]
        weights, means, covariances = transformed_draw(run, scaling, *found.draws[found.reference])
        ends = levels(weights, means, covariances, components, by_number(run.controls, task.events.channels))
        quantiles = task.events.scaling.to_transformed(self._quantiles(task.events.values))
        sizes = self.sizes.sum(axis=0)
        state = self._state(task.events)
        drawn, mean, borders = self._proportions(task, prior, marks if without_artefacts else ())
        mixing = population_mixing(found, task.make_engine)
        return Gating(
            run=as_text(run.path),
            kind=run.kind,
            channels=task.events.channels,
            samples=task.events.samples,
            n_events=np.diff(task.events.sample_starts),
            n_chains=len(np.unique(found.draws[:, 0])),
            draws=found.draws,
            reference=found.reference,
            pooled=found.pooled,
            tree=found.tree,
            modes=found.modes,
            level=found.level,
            why=found.why,
            components=components,
            weights=weights,
            means=means,
            covariances=covariances,
            numbers=found.numbers,
            support=found.support,
            agreement=found.agreement,
            sizes=self.sizes,
            counts=self.counts,
            medians=self.medians.values,
            proportions=drawn,
            mean_proportions=mean,
            shape_ratios=borders.ratios,
            overlaps=borders.overlap(self.counts.sum(axis=(0, 1)) / self.counts.sum()),
            median_errors=self.medians.errors,
            state=state,
            artefacts=marks,
            without_artefacts=without_artefacts,
            r_hat=mixing.r_hat,
            ess=mixing.ess,
            verdict=judge(run, mixing),
            certainty=np.divide(self.certainty, sizes, out=np.full(len(sizes), np.nan), where=sizes > 0),
            n_implausible=self.n_implausible,
            quantiles=quantiles,
            levels=ends,
            phenotypes=names_of(quantiles[1], quantiles[3], ends, sizes, task.events.channels),
            rasters=self.counter.rasters(),
            names=found.names,
            labels=found.labels,
            colours=found.colours,
            sample_columns=task.events.sample_columns,
            transforms=scaling.transforms,
            warnings=tuple(dict.fromkeys(run.data_warnings + task.events.report.warnings)),
            sample_weights=None if given is None else given.values.astype(np.float64),
        )

    def _state(self, events: Events) -> StateSummary | None:
        """Return quantiles of the state channels, then of scatter and viability that the run lacks."""
        parts, quantiles = [], []
        if (own := events.state) is not None:
            parts.append((own, np.arange(len(own.channels))))
            quantiles.append(self._quantiles(own.values))
        if events.quality is not None and len(events.own_quality):
            measured = events.quality.measured
            parts.append((measured, events.own_quality))
            quantiles.append(self._quantiles(measured.values)[:, :, events.own_quality])
        if not parts:
            return None
        names = tuple(own.channels[k] for own, numbers in parts for k in numbers.tolist())
        ends = [np.quantile(own.values[:, k], (TAIL, 1.0 - TAIL), axis=0) for own, k in parts]
        n_state = 0 if events.state is None else len(events.state.channels)
        return StateSummary(
            names, np.concatenate(quantiles, axis=2), np.hstack(ends).astype(np.float64), len(names) - n_state
        )

    def _proportions(self, task: Task, prior: Array | None, marks: Marks) -> tuple[Array, Array, Borders]:
        """Return the results of `estimate_proportions`, with NaN in samples without events.

        They are among the populations without a mark, and 0 for the others.
        """
        kept = np.array([not mark for mark in marks or ("",) * self.counts.shape[2]])
        drawn, mean = np.zeros(self.counts.shape), np.zeros(self.counts.shape[1:])
        borders = Borders.none(len(kept))
        if kept.any():
            # The numbers among the populations that are kept, as the counts have them; -1 for events of
            # artefacts.
            own = np.where(kept, np.cumsum(kept) - 1, -1)[self.population]
            drawn[..., kept], mean[..., kept], own_borders = estimate_proportions(
                self.counts[..., kept],
                task.config.seed,
                None if prior is None else prior[:, kept],
                task.events.values,
                own,
            )
            borders.ratios[kept], borders.overlaps[np.ix_(kept, kept)] = own_borders
        for found in (drawn, mean):
            found[..., np.diff(task.events.sample_starts) == 0, :] = np.nan
        return drawn, mean, borders

    def _quantiles(self, values: Floats) -> Array:
        """Return the `QUANTILES` of each population and channel of events [N, D], float64 [5, P, D]."""
        found = np.full((len(QUANTILES), len(self.certainty), values.shape[1]), np.nan)
        for d in range(values.shape[1]):  # one channel at a time: the events may be in a file
            column = np.array(values[:, d])
            for p in range(len(self.certainty)):
                own = column[self.population == p]
                if len(own):
                    found[:, p, d] = np.quantile(own, QUANTILES, overwrite_input=True)
        return found
