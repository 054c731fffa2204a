"""The native draws and label swaps of a sweep have the bits of the NumPy form (native_reference.py)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import native_reference as reference
import numpy as np
import pytest

from dpmix.kernels import _cpu
from dpmix.model import gibbs, normal_wishart
from dpmix.model.mixture import (
    HYPERPARAMETERS,
    Array,
    Ints,
    Parameters,
    State,
    Stats,
    no_events,
    whiteners_of,
)
from dpmix.model.normal_wishart import Posterior
from dpmix.model.prior import Prior
from dpmix.model.streams import FastGenerator, Step, Stream

OF_MODULE = (
    "draw_normal", "draw_wishart", "is_above", "log_det", "sum_components",
    "swap_any", "swap_collapsed", "swap_with_sticks",
)  # fmt: skip
# Weighted: counts are not whole numbers, as with weights of samples and with coarseness.
CASES = {
    "one component": (1, 3, False, 1.0),
    "two components": (2, 1, False, 1.0),
    "ragged groups, a channel": (13, 1, False, 1.0),
    "weighted and coarse": (40, 5, True, 0.01),
    "14 channels": (64, 14, False, 1.0),
    "64 channels": (11, 64, True, 1.0),
}


def prior_of(dim: int) -> Prior:
    learned = frozenset({"alpha", *HYPERPARAMETERS})
    phi = 0.3 * np.eye(dim) + 0.1 * np.ones((dim, dim))
    return Prior(np.linspace(-1.0, 1.0, dim), 5.0, 2.0, phi, 1.0, 1.0, learned)


def stats_of(n_components: int, dim: int, weighted: bool, seed: int) -> Stats:
    """Return statistics of random events, the first component occupied and about a third empty."""
    rng = np.random.default_rng(seed)
    stats = no_events(n_components, dim)
    for j in range(n_components):
        n = 0 if j > 0 and rng.random() < 0.35 else int(rng.integers(1, 60))
        events, shares = rng.standard_normal((n, dim)), rng.random(n) if weighted else np.ones(n)
        stats.counts[j] = shares.sum()
        stats.sums[j] = shares @ events
        stats.scatters[j] = (shares[:, None] * events).T @ events
        stats.centres[j] = rng.standard_normal(dim) if n else 0.0
    return stats


def posterior_in_numpy(stats: Stats, hyper: object) -> Posterior:
    means, precisions, scales = reference.posterior(stats, hyper)  # type: ignore[arg-type]
    return Posterior(means, precisions, hyper.nu + len(hyper.m) + 1 + stats.counts, scales)  # type: ignore[attr-defined]


def draw_in_numpy(
    conditional: Posterior, rng: np.random.Generator, threads: int = 1, order: Ints | None = None
) -> Parameters:
    count, dim = conditional.means.shape
    normals = rng.standard_normal((count, dim, dim))
    gammas = rng.standard_gamma(0.5 * (conditional.dofs[:, None] - np.arange(dim)[::-1]))
    drawn = reference.draw_parameters(conditional, normals, gammas, rng.standard_normal((count, dim)))
    return drawn if order is None else Parameters(*(part[order] for part in drawn))


@contextmanager
def numpy_form() -> Iterator[None]:
    """Replace the native functions of a sweep by their references."""
    with (
        mock.patch.object(normal_wishart, "posterior", posterior_in_numpy),
        mock.patch.object(normal_wishart, "draw_parameters", draw_in_numpy),
        mock.patch.object(
            FastGenerator, "log_betas", lambda self, *shapes: reference.log_betas(*shapes, self._generator)
        ),
        mock.patch.multiple(_cpu, **{name: getattr(reference, name) for name in OF_MODULE}),
    ):
        yield


def parts(state: State) -> list[Array]:
    hyper = state.hyperparameters
    sticks = state.log_sticks, state.log1m_sticks
    arrays = *sticks, state.means, state.covariances, state.whiteners, hyper.m, hyper.phi
    return [np.array([state.alpha, hyper.gamma, hyper.nu]), *arrays]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_sweeps_have_the_bits_of_the_numpy_form(case: tuple[int, int, bool, float]) -> None:
    n_components, dim, weighted, zeta = case
    prior = prior_of(dim)
    native = plain = gibbs.draw_prior(prior, n_components, None, Stream(5, 1, 0))
    for sweep in range(1, 4):
        stats, stream = stats_of(n_components, dim, weighted, sweep), Stream(5, 1, sweep)
        with mock.patch.object(gibbs, "MANY_NORMALS", 1):
            native, info = gibbs.sweep(native, stats, prior, stream, zeta=zeta, threads=1 + sweep % 2)
        with numpy_form():
            plain, wanted = gibbs.sweep(plain, stats, prior, stream, zeta=zeta)
        assert all(np.array_equal(a, b) for a, b in zip(parts(native), parts(plain), strict=True))
        assert info[1:] == wanted[1:]
        assert np.array_equal(info.order, wanted.order)  # type: ignore[arg-type]


@pytest.mark.parametrize("isa", _cpu.isas())
@pytest.mark.parametrize(("n_components", "dim"), [(1, 1), (21, 5), (16, 64)])
def test_whiteners_have_the_bits_of_the_numpy_form(isa: str, n_components: int, dim: int) -> None:
    roots = np.random.default_rng(4).normal(size=(n_components, dim, dim + 3))
    covariances = roots @ roots.transpose(0, 2, 1)
    found = np.empty_like(covariances)
    assert _cpu.whiteners(covariances, found, isa) == -1
    np.testing.assert_array_equal(found, reference.whiteners(covariances))
    np.testing.assert_allclose(
        found @ covariances @ found.transpose(0, 2, 1), np.broadcast_to(np.eye(dim), found.shape), atol=1e-8
    )


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan])
def test_a_covariance_that_is_not_positive_definite_is_refused(bad: float) -> None:
    covariances = np.broadcast_to(np.eye(3), (12, 3, 3)).copy()
    covariances[9, 1, 1] = bad
    with pytest.raises(np.linalg.LinAlgError, match="the covariance of component 9 is not positive definite"):
        whiteners_of(covariances)
    assert whiteners_of(covariances[:0]).shape == (0, 3, 3)


@pytest.mark.parametrize("isa", _cpu.isas())
@pytest.mark.parametrize(("n_components", "dim"), [(1, 1), (21, 5), (16, 30)])
def test_every_instruction_set_has_the_same_bits(isa: str, n_components: int, dim: int) -> None:
    stats, prior = stats_of(n_components, dim, True, 6), prior_of(dim)
    conditional, rng = normal_wishart.posterior(stats, prior), np.random.default_rng(2)
    normals, noise = rng.standard_normal((n_components, dim, dim)), rng.standard_normal((n_components, dim))
    gammas = rng.standard_gamma(0.5 * (conditional.dofs[:, None] - np.arange(dim)[::-1]))
    given = conditional.means, conditional.precisions, conditional.scales, normals, gammas, noise
    drawn = Parameters(*(np.empty_like(part) for part in (noise, normals, normals)))
    order = rng.permutation(n_components)
    assert _cpu.draw_parameters(*given, order, 1, *drawn, isa) == -1
    wanted = [part[order] for part in reference.draw_parameters(conditional, normals, gammas, noise)]
    assert all(np.array_equal(a, b) for a, b in zip(drawn, wanted, strict=True))

    held, results = np.flatnonzero(stats.counts > 0), []
    for form, options in ((_cpu, (isa,)), (reference, ())):
        precision, shift = np.empty((dim, dim)), np.empty(dim)
        spread = form.sum_components(held, drawn.means, drawn.whiteners, prior.m, precision, shift, *options)
        results.append([spread, *precision.ravel(), *shift])
    assert results[0] == results[1]


def test_matrices_that_are_not_positive_definite() -> None:
    for matrix in (np.diag([1.0, -1.0]), np.diag([1.0, np.nan]), np.zeros((2, 2))):
        for form in (_cpu, reference):
            assert np.isnan(form.log_det(matrix))
            assert not form.is_above(matrix + 1.0, np.ones((2, 2)))
        two = np.ones(2)
        assert not _cpu.draw_normal(matrix, two, two, np.empty(2))
        assert not _cpu.draw_wishart(matrix, np.ones((2, 2)), two, np.empty((2, 2)))
    assert _cpu.is_above(2.0 * np.eye(2), np.eye(2))


def test_no_events_at_all() -> None:
    prior, empty = prior_of(3), no_events(20, 3)
    start = gibbs.draw_prior(replace(prior, learned=frozenset()), 20, 1.0, Stream(2, 0, 0))
    native, _ = gibbs.sweep(start, empty, prior, Stream(2, 0, 1))
    with numpy_form():
        plain, _ = gibbs.sweep(start, empty, prior, Stream(2, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(parts(native), parts(plain), strict=True))


def test_the_numpy_form_factorises_and_divides() -> None:
    rng = np.random.default_rng(4)
    roots = np.tril(rng.standard_normal((9, 6, 6))) + 3.0 * np.eye(6)
    factors = reference.cholesky(roots @ roots.transpose(0, 2, 1))
    assert factors == pytest.approx(roots * np.sign(np.einsum("kii->ki", roots))[:, None, :], abs=1e-12)
    left = np.tril(rng.standard_normal((9, 6, 6)))
    assert reference.divide_lower(left, factors) @ factors == pytest.approx(left, abs=1e-12)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_scale_that_is_not_positive_definite_is_named(threads: int) -> None:
    stats, prior = stats_of(20, 3, False, 1), prior_of(3)
    conditional = normal_wishart.posterior(stats, prior)
    conditional.scales[[7, 12], 2, 2] = [-1.0, np.nan]
    said = re.escape("component 7 is not positive definite")
    with pytest.raises(np.linalg.LinAlgError, match=said):
        normal_wishart.draw_parameters(conditional, np.random.default_rng(1), threads)
    with pytest.raises(np.linalg.LinAlgError):
        reference.cholesky(conditional.scales)


def test_swaps_accept_the_moves_of_the_numpy_form_where_weights_are_zero() -> None:
    """Bayesian EM may leave sticks at 0 and 1."""
    counts: Array = np.array([0.0, 5.0, 0.0, 3.5, 1e9, 0.0])
    weights = np.array([-np.inf, np.log(0.3), np.log(0.1), -np.inf, np.log(0.6), -np.inf])
    rng = np.random.default_rng(3)
    for _ in range(50):
        drawn = rng.integers(3, size=6), rng.integers(5, size=6), rng.standard_exponential(6)
        found: list[tuple[object, ...]] = []
        for form in (_cpu, reference):
            n, order = counts.copy(), np.arange(6)
            with np.errstate(invalid="ignore"):
                moves = form.swap_any(n, order, weights, *drawn)
            found.append((tuple(moves), _listed(n), _listed(order)))
        assert found[0] == found[1]


def _listed(values: Array | Ints) -> list[float]:
    return [float(value) for value in values]


@pytest.mark.parametrize("stream", [Stream(0, 0, 0), Stream(2**64 - 1, 2**64 - 1, 2**40)])
def test_the_fast_generator_draws_the_numbers_of_numpy(stream: Stream) -> None:
    """Layers, wedges and the tail of the ziggurat, in turn with gamma variates of the same stream."""
    key = stream.seed + (stream.chain << 64)
    counter = (stream.iteration << 64) + (Step.PARAMETERS << 128)
    slow = np.random.Generator(np.random.Philox(key=key, counter=counter))
    fast, step = stream.fast_step(Step.PARAMETERS), stream.step(Step.PARAMETERS)
    below, above = np.geomspace(0.01, 1e9, 501), 1.0 + np.geomspace(1e-20, 1e9, 1002).reshape(2, 501)
    for size, shapes in ((1, below), (300_001, above), (7, below)):  # native code draws those from 1
        normals = fast.standard_normal((size,))
        assert np.array_equal(normals, slow.standard_normal(size))
        assert size < 1000 or np.abs(normals).max() > 3.66  # the tail
        gammas = slow.standard_gamma(shapes)
        assert np.array_equal(fast.standard_gamma(shapes), gammas)
        assert np.array_equal(step.standard_normal(size), normals)
        assert np.array_equal(step.standard_gamma(shapes), gammas)
        waits = slow.standard_exponential(size)
        assert np.array_equal(fast.standard_exponential(size), waits)
        assert np.array_equal(step.standard_exponential(size), waits)
        assert size < 1000 or waits.max() > 7.7  # the tail
    for size in (1, 2, 1001):  # halves of words
        for high in (1, 7, 3_000_000_000):  # the last rejects three words in ten
            integers = slow.integers(high, size=size)
            assert np.array_equal(fast.integers(high, size=size), integers)
            assert np.array_equal(step.integers(high, size=size), integers)
    assert np.array_equal(step.random(9), slow.random(9))


def test_normals_drawn_ahead_are_the_same_numbers() -> None:
    fast, ahead = (Stream(3, 1, 2).fast_step(Step.PARAMETERS) for _ in range(2))
    ahead.start_normals((300, 200))
    for size in ((300, 200), (5, 7)):
        assert np.array_equal(ahead.standard_normal(size), fast.standard_normal(size))
    Stream(3, 1, 2).fast_step(Step.PARAMETERS).start_normals((10_000, 100))  # not waited for
