"""Make the initial state of a chain or of a start of Bayesian EM, from events or from another run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpmix.config.schema import EVENTS_PER_COMPONENT
from dpmix.errors import DataError
from dpmix.inputs.transforms import Scaling
from dpmix.model import bem, stick_breaking
from dpmix.model.mixture import Array, Floats, State, no_events, whiteners_of
from dpmix.model.prior import Prior
from dpmix.model.resolution import blurred
from dpmix.model.streams import Step, Stream

if TYPE_CHECKING:
    from dpmix.inputs.events import Events
    from dpmix.runs.reader import Run


LLOYD_ITERATIONS = 5
SUBSAMPLE = 20_000  # events, or more where there are many components


def subsample_size(n_events: int, n_components: int) -> int:
    """Return how many events an initial state is made from: enough for all components, and fast."""
    return min(n_events, max(SUBSAMPLE, EVENTS_PER_COMPONENT * n_components))


def subsample(n_events: int, size: int, stream: Stream) -> npt.NDArray[np.int64]:
    """Return the numbers of events drawn at random without replacement, in ascending order, int64 [size]."""
    rng = stream.step(Step.SUBSAMPLE)
    return np.sort(rng.choice(n_events, size=size, replace=False, shuffle=False))


def alpha_start(prior: Prior) -> float:
    """Return the initial alpha, its prior mean e / f; alpha keeps this value unless it is learned."""
    return prior.alpha_shape / prior.alpha_rate


def from_kmeans(
    values: Floats,
    n_events: int,
    n_components: int,
    prior: Prior,
    stream: Stream,
    weights: Floats | None = None,
    resolution: Array | None = None,
) -> State:
    """Return the Bayesian EM update of a k-means partition, largest component first.

    Seeds by k-means++ (Arthur and Vassilvitskii 2007), then a few Lloyd iterations.

    Parameters
    ----------
    values : float32 [M, D]
        A subsample of the events.
    n_events : int
        Number of all events; the counts of the subsample are scaled up to it.
    n_components : int
    prior : Prior
    stream : Stream
    weights : float32 [M], optional
        Weights of these events; default: 1.
    resolution : float64 [D], optional
        Standard deviation of one measurement; see `dpmix.model.resolution`.

    Returns
    -------
    State
    """
    from scipy.cluster.vq import vq

    points = np.ascontiguousarray(values, dtype=np.float64)
    centres = seed_centres(points, n_components, stream.step(Step.INITIAL), weights)
    for _ in range(LLOYD_ITERATIONS):
        nearest = vq(points, centres, check_finite=False)[0]
        counts = np.bincount(nearest, weights, minlength=n_components)
        sums = group_sums(points, nearest, n_components, weights)
        # A centre without points stays where it is: it may win some in the next iteration.
        held = counts > 0
        centres[held] = sums[held] / counts[held, None]
    nearest = vq(points, centres, check_finite=False)[0]
    # The stick prior expects large weights first.
    order = np.argsort(-np.bincount(nearest, weights, minlength=n_components), kind="stable")
    place = np.empty_like(order)
    place[order] = np.arange(n_components)
    labels, given = place[nearest], (n_events, prior, resolution, stream.iteration)
    return _from_partition(points, weights, labels, centres[order], *given)


def from_random_events(
    values: Floats,
    n_events: int,
    n_components: int,
    prior: Prior,
    stream: Stream,
    weights: Floats | None = None,
) -> State:
    """Return means at random events (repeated where too few), prior mean covariances, equal weights.

    Parameters and returns as in `from_kmeans`. Events are drawn in proportion to their weights.
    """
    rng = stream.step(Step.INITIAL)
    replace = len(values) < n_components
    chosen = rng.choice(len(values), size=n_components, replace=replace, p=_probabilities(weights))
    covariances = np.broadcast_to(prior.phi, (n_components, *prior.phi.shape)).copy()
    # Sticks 1 / K, 1 / (K - 1), ...: equal weights.
    left = np.arange(n_components, 1, -1.0)
    return State(
        iteration=stream.iteration,
        alpha=alpha_start(prior),
        log_sticks=-np.log(left),
        log1m_sticks=np.log1p(-1.0 / left),
        means=values[chosen].astype(np.float64),
        covariances=covariances,
        whiteners=whiteners_of(covariances),
        hyperparameters=prior.centre,
    )


def from_bem(end: State, n_events: int, prior: Prior) -> State:
    """Return an end of Bayesian EM as the initial state of a chain, largest component first.

    Alpha and sticks are as in a k-means start with the same weights. Bayesian EM does not order its
    components, and its empty sticks are at their mode, 0: alpha, at its own mode, is then so large that the
    first sweeps of a chain would occupy all components.

    Parameters
    ----------
    end : State
        End of Bayesian EM of a pooled model.
    n_events : int
    prior : Prior
    """
    order = np.argsort(-end.log_weights, kind="stable")
    alpha = alpha_start(prior)
    sticks = stick_breaking.mean_sticks(n_events * end.weights[order], alpha)
    parameters = end.means[order], end.covariances[order], end.whiteners[order]
    return State(0, alpha, *sticks, *parameters, end.hyperparameters)


def from_run(run: Run, chain: int, n_components: int, events: Events, prior: Prior) -> State:
    """Return the last draw of another run, converted to the standardised scale of these events.

    Parameters
    ----------
    run : Run
        A run with the same channels, transforms and number of components.
    chain : int
        Chain, taken modulo the number of chains of that run.
    n_components : int
    events : Events
    prior : Prior
        If alpha is learned, it starts from the draw. Learned hyperparameters start from their values in the
        prior: the first sweep draws them given the components.

    Returns
    -------
    State
        Iteration 0. A stick after the last weight above 0 has no mass to divide; it is set to one half.

    Raises
    ------
    DataError
        The run has other channels, transforms or components, or no draw yet.
    """
    _require_fit(run, n_components, events)
    # The other run may have fewer chains.
    chain = chain % len(run.weights)
    weights = run.weights[chain, -1]
    ratio = run.constants["channel_sds"] / events.scaling.sds
    shift = (run.constants["channel_means"] - events.scaling.means) / events.scaling.sds
    covariances = run.covariances[chain, -1] * (ratio[:, None] * ratio)
    left = np.cumsum(weights[::-1])[::-1]
    live = left[:-1] > 0
    whole = np.where(live, left[:-1], 1.0)
    with np.errstate(divide="ignore"):
        # Where nothing is left of the stick, its proportion says nothing: 1/2 keeps both logs finite.
        log_sticks = np.log(np.where(live, weights[:-1] / whole, 0.5))
        log1m_sticks = np.log(np.where(live, left[1:] / whole, 0.5))
    return State(
        iteration=0,
        alpha=float(run.alpha[chain, -1]) if "alpha" in prior.learned else alpha_start(prior),
        log_sticks=log_sticks,
        log1m_sticks=log1m_sticks,
        means=run.means[chain, -1] * ratio + shift,
        covariances=covariances,
        whiteners=whiteners_of(covariances),
        hyperparameters=prior.centre,
    )


def _require_fit(run: Run, n_components: int, events: Events) -> None:
    """Raise `DataError` where a chain on these events cannot start from a draw of the run."""
    if run.committed == 0:
        raise DataError(f"{run.path}: holds no draw to start from yet; wait, or give another mcmc.init")
    if tuple(run.channels) != tuple(events.channels):
        raise DataError(
            f"{run.path}: its channels are {', '.join(run.channels)}, need {', '.join(events.channels)}"
        )
    theirs = Scaling.from_attributes(run.scaling).transforms
    differ = [
        f"{channel} is {there}, here {here}"
        for channel, there, here in zip(run.channels, theirs, events.scaling.transforms, strict=True)
        if there != here
    ]
    if differ:
        raise DataError(f"{run.path}: in it {'; '.join(differ)}: need the same data.transform in both")
    if run.n_components != n_components:
        raise DataError(
            f"{run.path}: has {run.n_components} components, need model.components = {n_components}"
        )


def collinear(unit: str, number: int) -> DataError:
    """Return the error for a covariance that is not positive definite, with its usual causes."""
    return DataError(
        f"{unit} {number}: a component's covariance is not positive definite: some channels are linear "
        "combinations of others (leave one of them out with data.channels, or raise model.prior.phi), or "
        "model.prior is far from the scale of the data"
    )


def seed_centres(
    points: Array, n_components: int, rng: np.random.Generator, weights: Floats | None = None
) -> Array:
    """Return k-means++ seeds, float64 [K, D], in K passes over the points; SciPy takes K^2."""
    centres = np.empty((n_components, points.shape[1]))
    columns = np.ascontiguousarray(points.T)
    work = np.empty_like(columns)
    first = (
        rng.integers(len(points)) if weights is None else rng.choice(len(points), p=_probabilities(weights))
    )
    centres[0] = points[first]
    nearest = squared_distances(columns, centres[0], work).copy()
    for j in range(1, n_components):
        costs = nearest if weights is None else weights * nearest
        total = costs.sum()
        # A total of 0: every point is a seed already, because few values are different.
        chosen = rng.choice(len(points), p=costs / total) if total > 0 else rng.integers(len(points))
        centres[j] = points[chosen]
        np.minimum(nearest, squared_distances(columns, centres[j], work), out=nearest)
    return centres


def squared_distances(columns: Array, centre: Array, work: Array) -> Array:
    """Return the squared distances of points from a centre, float64 [M], in the first row of `work`.

    The additions are as in ``np.square(points - centre).sum(axis=1)``, in the same order, but of whole
    columns: eight partial sums, their pairs, and the rest. This takes a quarter of the time.

    Parameters
    ----------
    columns : float64 [D, M]
        The points, transposed.
    centre : float64 [D]
    work : float64 [D, M]
        Is overwritten.
    """
    np.subtract(columns, centre[:, None], out=work)
    np.multiply(work, work, out=work)
    lanes = 8 if len(work) >= 8 else 1
    whole = len(work) - len(work) % lanes
    sums = work[:lanes]
    for first in range(lanes, whole, lanes):
        sums += work[first : first + lanes]
    while len(sums) > 1:
        sums[::2] += sums[1::2]
        sums = sums[::2]
    for row in work[whole:]:
        sums[0] += row
    total: Array = sums[0]
    return total


def _probabilities(weights: Floats | None) -> Array | None:
    """Return weights as probabilities; None, for equal ones, without weights."""
    return None if weights is None else weights / weights.sum(dtype=np.float64)


def group_sums(
    points: Array, groups: npt.NDArray[np.intp], n_groups: int, weights: Floats | None = None
) -> Array:
    """Return the sum of the points of each group, float64 [n_groups, D]."""
    weighted = points if weights is None else points * weights[:, None]
    columns = [np.bincount(groups, weights=column, minlength=n_groups) for column in weighted.T]
    return np.stack(columns, axis=1)


def _from_partition(
    points: Array,
    weights: Floats | None,
    labels: npt.NDArray[np.intp],
    centres: Array,
    n_events: int,
    prior: Prior,
    resolution: Array | None,
    iteration: int,
) -> State:
    """Return posterior means given a hard partition of a subsample, with counts scaled to n_events.

    The sticks are posterior means too, not modes: no component starts with weight 0.
    """
    n_components, dim = centres.shape
    stats = no_events(n_components, dim)
    each = None if weights is None else weights.astype(np.float64)
    scale = n_events / (len(points) if each is None else each.sum())
    for j, members in enumerate(np.split(np.argsort(labels, kind="stable"), _ends(labels, n_components))):
        away = points[members] - centres[j]
        weighted = away if each is None else each[members, None] * away
        stats.counts[j] = scale * (len(members) if each is None else each[members].sum())
        stats.sums[j] = scale * weighted.sum(axis=0)
        stats.scatters[j] = scale * (weighted.T @ away)
    stats.centres[:] = centres
    parameters = bem.expected_parameters(blurred(stats, resolution), prior)
    alpha = alpha_start(prior)
    sticks = stick_breaking.mean_sticks(stats.counts, alpha)
    return State(iteration, alpha, *sticks, *parameters, prior.centre)


def _ends(labels: npt.NDArray[np.intp], n_groups: int) -> npt.NDArray[np.intp]:
    """Return where each group but the last ends in the sorted labels."""
    return np.cumsum(np.bincount(labels, minlength=n_groups))[:-1]
