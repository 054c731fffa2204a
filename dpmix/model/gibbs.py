"""The block Gibbs sampler: one sweep, except for the labels, which the engine draws.

After Suchard et al. (2010), Appendix A.1. The steps are numbered as on the page "The model and how it is
sampled" (docs/explanation/model.md). The split-merge moves, step 3, come after the last use of the old
parameters and sticks and before new ones are drawn: the moves have both integrated out.

All functions are pure. Native code draws the parameters of all components at once, because a GPU waits for
this part of a sweep (tests/model/native_reference.py has the same operations in NumPy). It draws them after
the label swaps, straight into their new places: given the labels, they do not depend on sticks and alpha.

N events, D channels, K components.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from dpmix.model import cohort, hyperparameters, normal_wishart, stick_breaking
from dpmix.model.coarsening import coarsened, with_full_events
from dpmix.model.label_swaps import Swaps, swap_labels
from dpmix.model.mixture import Array, Hyperparameters, Ints, Parameters, State, Stats, no_events
from dpmix.model.prior import Prior
from dpmix.model.resolution import blurred
from dpmix.model.split_merge import Moves, Regroup
from dpmix.model.streams import Step, Stream

MANY_NORMALS = 100_000
"""To start a thread takes as long as some 40,000 normal variates: a thread of their own pays from here on."""


class SweepInfo(NamedTuple):
    """Order of the components and counts of moves, which a sweep returns with the new state.

    Proposed moves include those that are rejected without a pass over the events.

    Attributes
    ----------
    order : int64 [K] or None
        The number that each component had before the label swaps, as in `Mixture`; None without label swaps.
    splits_proposed : int
        Pairs of an occupied and an empty component in this sweep's round of split-merge moves; 0 in a sweep
        without a round. A component with a single event counts, although it cannot be split.
    splits_accepted : int
    merges_proposed : int
        Pairs of occupied components in this sweep's round of split-merge moves.
    merges_accepted : int
    swaps_proposed : int
        Label-swap moves, of all three kinds, in which at least one of the two components is occupied. A swap
        of two empty components changes no label: it is neither a proposed nor an accepted move here.
    swaps_accepted : int
    """

    order: Ints | None
    splits_proposed: int = 0
    splits_accepted: int = 0
    merges_proposed: int = 0
    merges_accepted: int = 0
    swaps_proposed: int = 0
    swaps_accepted: int = 0


def sweep(
    state: State,
    stats: Stats,
    prior: Prior,
    stream: Stream,
    *,
    label_swaps: bool = True,
    regroup: Regroup | None = None,
    zeta: float = 1.0,
    full_events: float = 0.0,
    resolution: Array | None = None,
    threads: int = 1,
) -> tuple[State, SweepInfo]:
    """Make one Gibbs sweep, except for the labels (step 1), given the statistics of the labelled events.

    Parameters
    ----------
    state, stats : State, Stats
        The state that the labels were drawn from, and the statistics of the labels.
    prior, stream : Prior, Stream
        `prior.learned` says which hyperparameters are drawn and whether alpha is. The random numbers have the
        iteration of the state returned.
    label_swaps, regroup : bool, callable
        Make the label-swap moves (step 7); a round of split-merge moves (step 3), from
        `dpmix.model.split_merge.round_of` with the same `zeta` and `resolution`, or None.
    zeta : float
        What an event counts, above 0 and at most 1; see `dpmix.model.coarsening`.
    full_events : float
        Events of a component that count in full for its mean and covariance.
    resolution : float64 [D], optional
        Standard deviation of one measurement; see `dpmix.model.resolution`. The labels must be drawn from the
        mixture by `dpmix.model.resolution.of_clouds`.
    threads : int
        Threads that draw parameters; the draws do not depend on it.

    Returns
    -------
    state, info : State, Info

    Raises
    ------
    numpy.linalg.LinAlgError
        The scatter of a component is not positive definite to float64 (collinear channels).
    """
    stats = blurred(coarsened(stats, zeta), resolution)
    of_parameters = stream.fast_step(Step.PARAMETERS)
    if threads > 1 and stats.scatters.size >= MANY_NORMALS:
        of_parameters.start_normals(stats.scatters.shape)  # they depend on nothing
    hyper = _draw_hyperparameters(state, stats, prior, stream)
    moves = Moves()
    if regroup is not None:
        stats, moves = regroup(stats, hyper, state.alpha)
    # After the moves, which have parameters and sticks integrated out: both must be drawn again given the
    # moved labels.
    conditional = normal_wishart.posterior(with_full_events(stats, zeta, full_events), hyper)
    tables = _draw_tables(state, stats, stream)
    counts = stats.counts if tables is None else tables.by_component
    sticks = stick_breaking.draw_sticks(counts, state.alpha, stream.fast_step(Step.STICKS))
    alpha = state.alpha
    if "alpha" in prior.learned:
        alpha = stick_breaking.draw_alpha(sticks.log1m_sticks, prior, stream.step(Step.ALPHA))
    order, swaps = None, Swaps()
    if label_swaps:
        order, sticks, swaps = swap_labels(counts, sticks, alpha, stream.fast_step(Step.SWAPS))
    parameters = normal_wishart.draw_parameters(conditional, of_parameters, threads, order)
    following = State(stream.iteration, alpha, *sticks, *parameters, hyper)
    if tables is not None:
        following = _with_cohort(following, state, stats, tables, order, prior, stream)
    return following, SweepInfo(order, *moves, *swaps)


def _draw_tables(state: State, stats: Stats, stream: Stream) -> cohort.TableCounts | None:
    """Draw the table counts of the hierarchical model, which are the counts for sticks and label swaps."""
    if state.cohort is None or stats.by_sample is None:
        return None
    shapes = cohort.shapes_of(state.log_base_weights, state.cohort.kappa)
    return cohort.draw_tables(stats.by_sample.counts, shapes, stream.fast_step(Step.TABLES))


def _with_cohort(
    following: State,
    state: State,
    stats: Stats,
    tables: cohort.TableCounts,
    order: Ints | None,
    prior: Prior,
    stream: Stream,
) -> State:
    """Return the new state with what differs between samples drawn, given all else."""
    assert state.cohort is not None
    assert stats.by_sample is not None
    own = cohort.draw(
        state.cohort,
        stats.by_sample.reordered(order),
        stats.centres if order is None else stats.centres[order],
        Parameters(following.means, following.covariances, following.whiteners),
        following.log_base_weights,
        tables,
        prior,
        stream,
    )
    return replace(following, cohort=own)


def _draw_hyperparameters(state: State, stats: Stats, prior: Prior, stream: Stream) -> Hyperparameters:
    """Draw the hyperparameters that are learned (step 2), given the components that hold events.

    The empty components are left out, that is, integrated out: step 4 draws them from the prior, and the more
    of them there are, the more firmly they would hold the hyperparameters at their current values.
    """
    hyper = state.hyperparameters
    if not prior.learns_hyperparameters:
        return hyper
    components = hyperparameters.summarise(state.means, state.whiteners, hyper.m, stats.counts > 0)
    return hyperparameters.draw(components, hyper, prior, stream.step(Step.HYPERPARAMETERS))


def draw_prior(prior: Prior, n_components: int, alpha: float | None, stream: Stream) -> State:
    """Draw a state of K components from the prior.

    Parameters
    ----------
    prior : Prior
        The hyperparameters that it learns are drawn, too.
    n_components : int
        The truncation K.
    alpha : float or None
        The concentration; None draws it from its prior.
    stream : Stream
        Random numbers; it has the iteration of the state returned.

    Returns
    -------
    State
    """
    if alpha is None:
        rng = stream.step(Step.ALPHA)
        alpha = stick_breaking.gamma_variate(prior.alpha_shape, prior.alpha_rate, rng)
    hyper = hyperparameters.draw_prior(prior, stream.step(Step.HYPERPARAMETERS))
    empty = no_events(n_components, len(prior.m))
    conditional = normal_wishart.posterior(empty, hyper)
    parameters = normal_wishart.draw_parameters(conditional, stream.fast_step(Step.PARAMETERS))
    sticks = stick_breaking.draw_sticks(empty.counts, alpha, stream.fast_step(Step.STICKS))
    return State(stream.iteration, alpha, *sticks, *parameters, hyper)
