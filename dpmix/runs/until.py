"""Decide where burn-in and the draws of a run end, by the rule of mcmc.until.

The rule is applied to the quantities of `dpmix.runs.monitors`, with the rank-normalised split R-hat and the
bulk effective sample size (`dpmix.runs.effective_size`). A quantity that never changes counts as agreed. So
does one whose error is negligible, however slowly it mixes: a standard error below 0.1 nats of a log density,
and below 0.002 nats per event of the log likelihood. No error of a proportion is negligible.

Burn-in ends at the first check at which both conditions hold, and at mcmc.burn_in at the latest. Checks are
after 100, 125, 150, ... sweeps:

- R-hat of the log likelihood and of nine in ten log densities is below 1.2 over the latter half of the sweeps
  so far. The limits are lax because R-hat of so few sweeps is far from 1 by chance, and because one sparse
  place of the data must not hold up a run whose draws are compared again.
- The number of occupied components no longer falls: over the last quarter of the sweeps so far its mean, over
  all chains, is less than 5%, or less than one component, below that over the quarter before. A start
  occupies all components. While most of them empty, the density often stays the same, and the first condition
  does not see it. Chains may differ in this number; draws are not judged by it.

Draws end at the first check at which R-hat of every quantity is below mcmc.until.rhat, and its bulk effective
sample size at least mcmc.until.ess, and at mcmc.draws at the latest. Checks are after 50, 75, 100, ... draws,
and from 500 draws on about every tenth of the draws so far.

All that a decision needs is in the run file, and decisions are stored there: a resumed run makes the same.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from dpmix.config.schema import McmcConfig
from dpmix.model.mixture import Array, State, mixture_of
from dpmix.runs.effective_size import MIN_DRAWS, r_hat_and_ess
from dpmix.runs.layout import MAX_POPULATIONS, REFERENCES, Record, quantities
from dpmix.runs.monitors import InterimPopulations, interim_populations, log_density, populations_of
from dpmix.runs.reader import Run

if TYPE_CHECKING:
    from dpmix.runs.writer import RunWriter

log = logging.getLogger("dpmix")
Bools = npt.NDArray[np.bool_]

FIRST_CHECK, CHECK_EVERY = 50, 25
FIRST_END_OF_BURN_IN = 100
BURN_IN_R_HAT, BURN_IN_SHARE = 1.2, 0.9
LARGE_FALL = 0.05  # of the number of occupied components, in a quarter of the sweeps
NEGLIGIBLE_DENSITY = 0.1  # nats: the density is then known to 10%
NEGLIGIBLE_LIKELIHOOD = 0.002  # nats per event


def is_check(n: int) -> bool:
    """Return whether the rule is applied after n sweeps of burn-in, or after n draws."""
    # The cost of a check grows with the draws so far: a check at every tenth of them keeps its share of the
    # time constant.
    return n >= FIRST_CHECK and n % (CHECK_EVERY * max(1, n // (10 * CHECK_EVERY))) == 0


class Agreement(NamedTuple):
    """How far chains agree on quantities; NaN for a quantity that never changes.

    Attributes
    ----------
    r_hat, ess : float64 [quantity]
        Rank-normalised split R-hat, and bulk effective sample size of all chains together.
    error : float64 [quantity]
        Standard error of the mean: the standard deviation over the root of the effective sample size.
    """

    r_hat: Array
    ess: Array
    error: Array

    @classmethod
    def of(cls, values: Array) -> Self:
        """Return the agreement of chains on values, float64 [chain, draw, quantity]."""
        r_hat, ess = r_hat_and_ess(values)
        return cls(r_hat, ess, values.std(axis=(0, 1)) / np.sqrt(ess))

    def counts(self, negligible: Array) -> Bools:
        """Return the quantities that change, and whose error is not negligible, bool [quantity]."""
        return ~np.isnan(self.ess) & ~(self.error < negligible)

    def holds(self, negligible: Array, rhat: float, ess: float = 0.0) -> bool:
        """Return whether R-hat and effective sample size of all quantities that count are within limits."""
        within = (self.r_hat < rhat) & (self.ess >= ess)
        return bool(within[self.counts(negligible)].all())

    def allows_draws(self, negligible: Array) -> bool:
        """Return whether burn-in may end; the first quantity is the log likelihood."""
        passed = ~self.counts(negligible) | (self.r_hat < BURN_IN_R_HAT)
        return bool(passed[0] and passed.mean() >= BURN_IN_SHARE)


def negligible_errors(n_events: int, n_references: int, n_quantities: int) -> Array:
    """Return the standard error below which each quantity counts as agreed, float64 [quantity]."""
    found = np.zeros(n_quantities)
    found[0] = NEGLIGIBLE_LIKELIHOOD * n_events
    found[1 : 1 + n_references] = NEGLIGIBLE_DENSITY
    return found


def still_empties(occupied: npt.NDArray[np.integer]) -> bool:
    """Return whether the number of occupied components still falls, int [chain, sweep]."""
    quarter = occupied.shape[1] // 4
    # Over all chains: single chains gain and lose components by chance.
    before, last = occupied[:, -2 * quarter : -quarter].mean(), occupied[:, -quarter:].mean()
    return bool(before - last >= max(LARGE_FALL * before, 1.0))


class Plan:
    """The sweeps of a run: where its burn-in and its draws end, as far as this is decided.

    Parameters
    ----------
    mcmc : McmcConfig
    writer : RunWriter
        Writer of the run file, with the decisions that were made before a resume.
    run : Run
        The same file, read.
    first : int
        Number of the sweep that is recorded next.
    """

    def __init__(self, mcmc: McmcConfig, writer: RunWriter, run: Run, first: int) -> None:
        self._mcmc, self._writer, self._run = mcmc, writer, run
        self._references = run.constants[REFERENCES] if run.is_monitored else np.empty((0, 0))
        self._rule = None if run.lifted or not run.is_monitored else mcmc.until
        self._burn_in = run.burn_in_end if run.is_monitored else mcmc.burn_in
        self._draws = mcmc.draws if run.stopped is None else run.stopped
        self._populations: InterimPopulations | None = None
        self._proportions: list[Array] = []
        self.ended = False
        if run.is_monitored:
            # Draws before the checkpoint only: those after it are made again, with the same values.
            before = 0 if self._burn_in is None else max(first - 1 - self._burn_in, 0) // mcmc.thin
            self._read_proportions(min(before, run.committed))

    @property
    def burn_in(self) -> int:
        """Sweeps of burn-in; the most that it may take while that is undecided."""
        return self._mcmc.burn_in if self._burn_in is None else self._burn_in

    @property
    def total(self) -> int:
        """The last sweep of the run; the last possible one while that is undecided."""
        return self.burn_in + self._draws * self._mcmc.thin

    @property
    def at_most(self) -> bool:
        """True while the run may end before `total`."""
        return self._rule is not None

    def in_burn_in(self, sweep: int) -> bool:
        """Return whether a sweep that has been observed is part of burn-in."""
        return self._burn_in is None or sweep <= self._burn_in

    def draw(self, sweep: int) -> int | None:
        """Return the number of the draw that an observed sweep gives, from 0; None if it gives none."""
        if self.in_burn_in(sweep) or (sweep - self.burn_in) % self._mcmc.thin:
            return None
        return (sweep - self.burn_in) // self._mcmc.thin - 1

    def observe(self, sweep: int, states: Sequence[State], records: Sequence[Record]) -> None:
        """Monitor a sweep of all chains, whose records have been written, and decide what ends with it."""
        if not len(self._references):
            return
        for chain, state in enumerate(states):
            density = log_density(mixture_of(state), self._references)
            self._writer.write_convergence("log_density", density, (chain, sweep))
        if self._burn_in is None:
            self._end_burn_in(sweep)
        elif (draw := self.draw(sweep)) is not None:
            self._take_draw(draw, states, records)

    def _end_burn_in(self, sweep: int) -> None:
        """End burn-in with this sweep, where it settled or is at its limit."""
        settled = self._rule is not None and self._has_settled(sweep)
        if settled or sweep == self._mcmc.burn_in:
            self._burn_in = sweep
            self._writer.write_convergence("burn_in", sweep)
            if settled:
                log.info(
                    "burn-in ended after %d of at most %d sweeps: R-hat below %g over the latter half, "
                    "and the number of occupied components no longer falls",
                    *(sweep, self._mcmc.burn_in, BURN_IN_R_HAT),
                )

    def _has_settled(self, sweep: int) -> bool:
        if sweep < FIRST_END_OF_BURN_IN or not is_check(sweep):
            return False
        # First, because it needs no R-hat.
        if still_empties(self._writer.read("trace/occupied")[:, : sweep + 1]):
            return False
        # The latter half: the way from the start would count as disagreement long after it is over.
        values = self._monitored(slice(sweep // 2 + 1, sweep + 1))
        return Agreement.of(values).allows_draws(self._negligible(values.shape[2]))

    def _negligible(self, n_quantities: int) -> Array:
        return negligible_errors(self._run.attributes["n_events"], len(self._references), n_quantities)

    def _take_draw(self, draw: int, states: Sequence[State], records: Sequence[Record]) -> None:
        """Monitor a draw; where a check is due, apply the rule to all draws so far."""
        if draw == 0:
            # One chain's draw groups the components of all: groups made in each chain could not be compared.
            best = states[int(np.argmax([record.log_posterior for record in records]))]
            self._populations = interim_populations(best.weights, best.means, best.covariances)
        assert self._populations is not None
        # Not twice: a resumed run has taken the draws before its checkpoint from the file.
        if draw == len(self._proportions):
            proportions = [self._populations.proportions(state.weights, state.means) for state in states]
            self._proportions.append(np.stack(proportions))
        n = draw + 1
        if n >= MIN_DRAWS and (is_check(n) or n == self._mcmc.draws):
            self._check(n)
        self.ended = self.ended or n == self._draws

    def _check(self, n: int) -> None:
        thin = self._mcmc.thin
        rows = slice(self.burn_in + thin, self.burn_in + n * thin + 1, thin)
        values = np.concatenate((self._monitored(rows), np.stack(self._proportions, axis=1)), axis=2)
        found, negligible = Agreement.of(values), self._negligible(values.shape[2])
        for name, numbers in found._asdict().items():
            # The file is laid out before the interim populations are known, for as many as there may be.
            room = 1 + len(self._references) + MAX_POPULATIONS - len(numbers)
            self._writer.write_convergence(name, np.append(numbers, np.full(room, np.nan)))
        if self._rule is not None and found.holds(negligible, self._rule.rhat, self._rule.ess):
            self._draws = n
            self._writer.write_convergence("stopped", n)

    def _monitored(self, rows: slice) -> Array:
        """Return log likelihood and log densities at some sweeps, float64 [chain, sweep, quantity]."""
        log_likelihood = self._writer.read("trace/log_likelihood")[:, rows, None]
        return np.concatenate((log_likelihood, self._writer.read("convergence/log_density")[:, rows]), axis=2)

    def _read_proportions(self, n: int) -> None:
        """Take the first n draws from the run file."""
        if n:
            self._populations = populations_of(self._run)
            weights, means = self._run.weights, self._run.means
            for draw in range(n):
                pairs = zip(weights[:, draw], means[:, draw], strict=True)
                self._proportions.append(np.stack([self._populations.proportions(*p) for p in pairs]))


def stop_reason(run: Run) -> str | None:
    """Say in one line why a run that monitors its chains has ended; None if it has not, or does not."""
    until = run.config["mcmc"]["until"]
    if not run.is_monitored or until is None or not run.complete:
        return None
    if run.lifted:
        return f"stopped at mcmc.draws ({run.draws}): continued after mcmc.until had been met or set to null"
    found, n_references = Agreement(*run.agreement), len(run.constants[REFERENCES])
    if np.isnan(found.ess).all():
        return f"stopped at mcmc.draws ({run.draws}): too few draws to compare chains"
    counts = found.counts(negligible_errors(run.attributes["n_events"], n_references, len(found.ess)))
    names = np.array(quantities(n_references, MAX_POPULATIONS))[counts]
    r_hat, ess, _ = (numbers[counts] for numbers in found)
    if run.stopped is not None:
        monitored = int((~np.isnan(found.ess)).sum())
        after = f"stopped after {run.committed} of at most {run.draws} draws"
        if not len(names):
            return (
                f"{after}: the errors of all {monitored} monitored quantities are negligible, so R-hat "
                "compared nothing"
            )
        negligible = " or a negligible error" if len(names) < monitored else ""
        return (
            f"{after}: R-hat {r_hat.max():.3g}, ESS {ess.min():.0f}{negligible} in all {monitored} monitored "
            "quantities"
        )
    if (r_hat >= until["rhat"]).any():
        worst = f"{names[r_hat.argmax()]} has R-hat {r_hat.max():.3g} ({until['rhat']:g} asked)"
    else:
        worst = f"{names[ess.argmin()]} has ESS {ess.min():.0f} ({until['ess']} asked)"
    return f"stopped at mcmc.draws ({run.draws}): {worst}"
