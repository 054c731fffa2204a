"""Compare samplers of the power posterior p(theta) prod_i f(x_i | theta)^zeta with a Metropolis chain.

    python benchmarks/power_posterior.py                                   # some five minutes on one core
    python benchmarks/power_posterior.py overlapping-k2-d1 --sweeps 200    # a trial

The samplers draw labels as usual, and then components and sticks as if the statistics were

    plain     zeta S(z)
    noisy     zeta S(z) + c (S(z) - S(z')), z and z' two independent draws of the labels given the parameters,
              c = (sqrt(2 zeta - zeta^2) - zeta) / 2

Let gamma be the fraction of missing information in a direction (the labels are missing), and I the
information of N labelled events. To first order, theta is an autoregression with coefficient gamma. The
labels of N events add the variance gamma / I, and the draw of theta adds 1 / (zeta I). Under the plain
sampler the variance of theta is therefore (1 + zeta gamma) / (1 + gamma) of that of the power posterior,
1 / (zeta I (1 - gamma)): between a half and one. In the noisy sampler the labels add gamma / (zeta I), and
the ratio is 1.

The table has the ratios of the variances of quantities that do not depend on labels (log density at five
events, mean log density, sorted weights), and the differences of their means in standard deviations of the
power posterior. Metropolis is a random walk that starts from draws of the noisy sampler; R-hat over its
chains says whether it has settled. Prior: dpmix's defaults with fixed hyperparameters.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from power_target import ALPHA, Target, Theta, coordinates, in_order, swapped, theta_of
from record import read_results, said, write_results

from dpmix.model import gibbs, normal_wishart
from dpmix.model.mixture import Array, State, Stats
from dpmix.model.prior import Prior
from dpmix.model.stick_breaking import log_gamma_variates
from dpmix.model.streams import Stream

CHAINS, SWEEPS = 64, 1000
N_C = 100.0
SEED = 1
POINTS = (0.05, 0.25, 0.5, 0.75, 0.95)  # events at these quantiles of the first channel


class Case(NamedTuple):
    """Normals with covariance I, a distance apart on a line; equal weights but for the last, half of that."""

    n_components: int
    dim: int
    n_events: int
    distance: float


CASES = {
    "separated-k2-d1": Case(2, 1, 200, 5.0),
    "overlapping-k2-d1": Case(2, 1, 1000, 2.5),
    "overlapping-k3-d1": Case(3, 1, 500, 2.5),
    "separated-k3-d2": Case(3, 2, 500, 5.0),
    "overlapping-k2-d2": Case(2, 2, 500, 2.5),
    "overlapping-k3-d2": Case(3, 2, 500, 2.5),
}


# ----------------------------------------------------------------------------------- the samplers


def labelled(target: Target, theta: Theta, rng: np.random.Generator) -> Array:
    """Draw labels and return their sums of features, float64 [R, K, 1 + D + D D]."""
    terms = target.terms(theta, target.features)
    ends = np.cumsum(np.exp(terms - terms.max(axis=2, keepdims=True)), axis=2)
    below = rng.uniform(size=ends.shape[:2])[..., None] * ends[..., -1:] < ends
    labels = np.diff(below, axis=2, prepend=False).astype(np.float64)
    sums = target.features.T @ labels.reshape(len(labels), -1)
    return sums.T.reshape(*theta.log_weights.shape, -1)


def of_sums(sums: Array, dim: int) -> Stats:
    """Return the statistics of all components of all chains, [R K]."""
    flat = sums.reshape(-1, sums.shape[-1])
    scatters = flat[:, 1 + dim :].reshape(-1, dim, dim)
    return Stats(flat[:, 0], flat[:, 1 : 1 + dim], scatters, np.zeros((len(flat), dim)), 0.0)


def noisy_sums(target: Target, first: Array, second: Array) -> tuple[Array, Array]:
    """Return the statistics of the noisy sampler, and the chains where the noise had to be halved.

    The noise may leave a negative count or a scatter that is not positive definite. It is then halved until
    the conditional exists.
    """
    zeta = target.zeta
    c = np.full(len(first), 0.5 * (np.sqrt(2.0 * zeta - zeta**2) - zeta))
    halved = np.zeros(len(first), bool)
    while True:
        sums = zeta * first + c[:, None, None] * (first - second)
        scales = normal_wishart.posterior(of_sums(sums, target.dim), target.hyper).scales
        least = np.linalg.eigvalsh(scales)[:, 0].reshape(len(first), -1).min(axis=1)
        wrong = (sums[..., 0].min(axis=1) < 0.0) | (least <= 0.0)
        if not wrong.any():
            return sums, halved
        halved |= wrong
        c = np.where(wrong, 0.5 * c * (c > 1e-6), c)


def sampler(
    target: Target, theta: Theta, rng: np.random.Generator, halved: list[float] | None = None
) -> Iterator[Theta]:
    """Yield the states of R chains, sweep by sweep.

    The noisy sampler if a list is given; the shares of chains whose noise was halved are appended to it.
    """
    n_chains, n_components, dim = theta.means.shape
    while True:
        sums = labelled(target, theta, rng)
        if halved is None:
            sums = target.zeta * sums
        else:
            sums, wrong = noisy_sums(target, sums, labelled(target, theta, rng))
            halved.append(float(wrong.mean()))
        conditional = normal_wishart.posterior(of_sums(sums, dim), target.hyper)
        means, covariances, _ = normal_wishart.draw_parameters(conditional, rng)
        counts = sums[..., 0]
        after = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1] - counts
        stick = log_gamma_variates((1.0 + counts[:, :-1]).ravel(), rng).reshape(n_chains, -1)
        rest = log_gamma_variates((ALPHA + after[:, :-1]).ravel(), rng).reshape(n_chains, -1)
        both = np.logaddexp(stick, rest)
        before = np.cumsum(np.pad(rest - both, ((0, 0), (1, 0))), axis=1)
        theta = Theta(
            before + np.pad(stick - both, ((0, 0), (0, 1))),
            means.reshape(n_chains, n_components, dim),
            np.linalg.cholesky(covariances).reshape(n_chains, n_components, dim, dim),
        )
        theta = swapped(theta, rng)
        yield theta


def sweeps(target: Target, theta: Theta, prior: Prior) -> Iterator[Theta]:
    """Yield the states of one chain by `dpmix.model.gibbs.sweep`."""
    rng = np.random.default_rng([SEED, 3])
    whiteners = np.linalg.inv(theta.roots[0])
    covariances = theta.roots[0] @ theta.roots[0].swapaxes(-1, -2)
    sticks = np.log(np.full(len(whiteners) - 1, 0.5))
    state = State(0, ALPHA, sticks, sticks, theta.means[0], covariances, whiteners, target.hyper)
    while True:
        roots = np.linalg.cholesky(state.covariances)
        yield (own := Theta(state.log_weights[None], state.means[None], roots[None]))
        stats = of_sums(labelled(target, own, rng)[0], target.dim)
        state, _ = gibbs.sweep(state, stats, prior, Stream(SEED, 0, state.iteration + 1), zeta=target.zeta)


# ------------------------------------------------------------------------------------- Metropolis


def metropolis(target: Target, theta: Theta, step: Array, rng: np.random.Generator) -> Iterator[Theta]:
    """Yield the states of R chains, components in order: the target is symmetric (`log_any_order`).

    A normal proposal is `step` times a size that differs from proposal to proposal, for narrow and wide
    parts. It is rejected if components are out of order.
    """
    _, n_components, dim = theta.means.shape
    theta = in_order(theta)
    likelihood = target.log_densities(theta, target.features).sum(axis=0)
    while True:
        at = coordinates(theta)
        sizes = 10.0 ** rng.uniform(-1.0, 0.3, (len(at), 1))
        new = theta_of(at + sizes * rng.normal(size=at.shape) @ step.T, n_components, dim)
        with np.errstate(all="ignore"):
            proposed = target.log_densities(new, target.features).sum(axis=0)
            ratio = target.log_posterior(new, proposed) - target.log_posterior(theta, likelihood)
        accepted = np.log(rng.uniform(size=len(at))) < ratio  # not where the ratio is NaN
        accepted &= (np.diff(new.means[:, :, 0], axis=1) > 0).all(axis=1)
        likelihood = np.where(accepted, proposed, likelihood)
        theta = theta.take(new, accepted)
        yield theta


# ------------------------------------------------------------------------------------ one case


def make(case: Case, n_c: float | None) -> tuple[Target, Theta, Prior]:
    """Return the target of a case, with zeta = n_c / (n_c + N), or 1; its start; its prior."""
    rng = np.random.default_rng([SEED, case.n_events, case.n_components, case.dim])
    shares = np.ones(case.n_components)
    shares[-1] = 0.5
    labels = rng.choice(case.n_components, case.n_events, p=shares / shares.sum())
    events = rng.normal(size=(case.n_events, case.dim))
    events[:, 0] += case.distance * labels
    events = (events - events.mean(axis=0)) / events.std(axis=0)
    squares = (events[:, :, None] * events[:, None, :]).reshape(case.n_events, -1)
    features = np.concatenate((np.ones((case.n_events, 1)), events, squares), axis=1)
    order = np.argsort(events[:, 0])
    points = features[order[(np.array(POINTS) * case.n_events).astype(int)]]
    prior = Prior(np.zeros(case.dim), 5.0, 2.0, 0.3 * np.eye(case.dim), 1.0, 1.0, frozenset())
    zeta = 1.0 if n_c is None else n_c / (n_c + case.n_events)
    middle = np.array([events[labels == j].mean(axis=0) for j in range(case.n_components)])
    start = Theta(
        np.full((CHAINS, case.n_components), -np.log(case.n_components)),
        np.tile(middle, (CHAINS, 1, 1)),
        np.tile(0.5 * np.eye(case.dim), (CHAINS, case.n_components, 1, 1)),
    )
    return Target(features, points, prior.centre, zeta), start, prior


class Trace(NamedTuple):
    """Quantities of the states of chains, [T, R, Q], and every tenth state's coordinates [T, R, P]."""

    quantities: Array
    coordinates: Array
    last: Theta


def collect(chain: Iterator[Theta], target: Target, count: int, thin: int = 1) -> Trace:
    """Collect `count` states; the first tenth is burn-in."""
    quantities, places = [], []
    for theta in islice(chain, 0, count * thin, thin):
        quantities.append(target.quantities(theta))
        if len(quantities) % 10 == 0:
            places.append(coordinates(in_order(theta)))
    burn_in = count // 10
    return Trace(np.array(quantities[burn_in:]), np.array(places[burn_in // 10 :]), theta)


def r_hat(trace: Array) -> float:
    """Return the largest R-hat of the quantities over chains."""
    within = trace.var(axis=0, ddof=1).mean(axis=0)
    return float(np.sqrt(1.0 + trace.mean(axis=0).var(axis=0, ddof=1) / within).max())


def compare(trace: Array, truth: Array) -> dict[str, float]:
    """Return ratios of variances over the quantities, their largest relative error, and the worst mean."""
    (one, error), (other, error_of_truth) = _variances(trace), _variances(truth)
    away = (trace.mean(axis=(0, 1)) - truth.mean(axis=(0, 1))) / np.sqrt(other)
    ratios = one / other
    return {
        "least": round(float(ratios.min()), 2),
        "median": round(float(np.median(ratios)), 2),
        "most": round(float(ratios.max()), 2),
        "error": round(float(np.hypot(error, error_of_truth).max()), 2),
        "means differ by": round(float(np.abs(away).max()), 2),
    }


def _variances(trace: Array) -> tuple[Array, Array]:
    """Return variances [Q], and their relative standard errors from the differences between parts.

    The parts are chains, or twenty stretches of a single one.
    """
    if trace.shape[1] == 1:
        trace = trace[: len(trace) // 20 * 20].reshape(20, -1, trace.shape[-1]).swapaxes(0, 1)
    squares = np.square(trace - trace.mean(axis=(0, 1))).mean(axis=0)
    variances = squares.mean(axis=0)
    return variances, squares.std(axis=0, ddof=1) / np.sqrt(len(squares)) / variances


def measure(name: str, count: int, n_c: float | None, *, with_sweep: bool) -> dict[str, Any]:
    """Run all samplers on a case."""
    target, start, prior = make(CASES[name], n_c)
    began = time.perf_counter()
    rngs = [np.random.default_rng([SEED, number]) for number in range(3)]
    halved: list[float] = []
    traces = {
        "plain": collect(sampler(target, start, rngs[0]), target, count),
        "noisy": collect(sampler(target, start, rngs[1], halved), target, count),
    }
    places = traces["noisy"].coordinates
    step = np.linalg.cholesky(np.cov(places.reshape(-1, places.shape[-1]).T))
    step *= 2.38 / np.sqrt(len(step))
    truth = collect(metropolis(target, traces["noisy"].last, step, rngs[2]), target, count, thin=8)
    if with_sweep:
        traces["gibbs.sweep"] = collect(sweeps(target, start, prior), target, 10 * count)
    rows = {kind: compare(trace.quantities, truth.quantities) for kind, trace in traces.items()}
    return {
        "zeta": round(target.zeta, 3),
        **rows,
        "noise halved": round(float(np.mean(halved)), 4),
        "R-hat of Metropolis": round(r_hat(truth.quantities), 3),
        "seconds": round(time.perf_counter() - began, 1),
    }


def table(results: dict[str, Any]) -> str:
    """Markdown: ratios of variances and differences of means, a row for each case and sampler."""
    lines = [
        "| case | zeta | sampler | ratio of variances: least, median, most | error | means differ by |",
        "|---" * 6 + "|",
    ]
    for name, row in results.items():
        for kind in ("plain", "noisy", "gibbs.sweep"):
            if kind in row:
                one = row[kind]
                cells = f"{one['least']:.2f}, {one['median']:.2f}, {one['most']:.2f} | {one['error']:.2f}"
                away = f"{one['means differ by']:.2f} sd"
                lines.append(f"| {name} | {row['zeta']} | {kind} | {cells} | {away} |")
    return "\n".join(lines)


def page() -> str:
    """Markdown: the table of the latest measurement, with machine and date."""
    results = read_results("power_posterior")["results"]
    return f"{table(results)}\n\n{said('power_posterior', packages=('dpmix', 'numpy'))}\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--sweeps", type=int, default=SWEEPS, help="of each chain (default: %(default)s)")
    parser.add_argument(
        "--n-c", type=float, default=N_C, help="zeta is n_c / (n_c + N) (default: %(default)s)"
    )
    asked = parser.parse_args()
    names = asked.cases or list(CASES)
    results: dict[str, Any] = {f"{names[0]}, zeta 1": measure(names[0], asked.sweeps, None, with_sweep=True)}
    for name in names:
        results[name] = measure(name, asked.sweeps, asked.n_c, with_sweep=name == names[0])
        print(name, results[name], flush=True)
    print(table(results))
    trial = bool(asked.cases) or (asked.sweeps, asked.n_c) != (SWEEPS, N_C)
    write_results("power_posterior", results, quick=trial)


if __name__ == "__main__":
    main()
