"""Order-free sums, compared with exact arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as hs

from dpmix.engines import exact
from dpmix.engines.checks import MAX_EVENTS, check_options
from dpmix.model.mixture import Array

TINY = Fraction(2) ** -1021

numbers = hs.one_of(
    hs.floats(-1e200, 1e200),
    hs.sampled_from([0.0, -0.0, 1.0, -1.0, 1.5 * 2.0**28, 2.0**29, 2.0**30, 0.5, 2.0**-30, 5e-324, 1e-300]),
    hs.builds(lambda m, e: m * 2.0**e, hs.integers(-(2**53), 2**53), hs.integers(-1000, 600)),
    hs.builds(lambda m, e: (m + 0.5) * 2.0 ** (30 * e), hs.integers(-4, 4), hs.integers(-12, 12)),  # ties
)
lists = hs.lists(numbers, min_size=1, max_size=40)


def state_of(terms: list[float]) -> Array:
    state = exact.zeros(1)
    for term in terms:
        exact.add(state, np.array([term]))
    return state


def merged(states: list[Array]) -> Array:
    total = states[0].copy()
    for state in states[1:]:
        exact.merge(total, state)
    return total


def bits(state: Array) -> bytes:
    return state.tobytes()


@settings(max_examples=300, deadline=None, derandomize=True)
@given(hs.data())
def test_any_order_and_any_tree_gives_the_same_bits(data: hs.DataObject) -> None:
    terms = data.draw(lists)
    want = state_of(terms)
    states = [state_of([term]) for term in data.draw(hs.permutations(terms))]
    while len(states) > 1:  # merge any two
        one = states.pop(data.draw(hs.integers(0, len(states) - 1)))
        other = states.pop(data.draw(hs.integers(0, len(states) - 1)))
        states.append(merged([one, other]))
    assert bits(states[0]) == bits(want)
    assert bits(state_of(data.draw(hs.permutations(terms)))) == bits(want)


@settings(max_examples=500, deadline=None, derandomize=True)
@given(lists)
def test_the_error_is_within_its_bound(terms: list[float]) -> None:
    total = sum(map(Fraction, terms))
    (value,) = exact.values(state_of(terms))
    bound = len(terms) * (max(map(abs, map(Fraction, terms))) / 2**59 + TINY) + abs(total) / 2**52
    assert abs(Fraction(float(value)) - total) <= bound


@settings(max_examples=300, deadline=None, derandomize=True)
@given(hs.lists(hs.integers(-(2**52), 2**52), min_size=1, max_size=60), hs.integers(-900, 900))
def test_numbers_of_like_size_are_added_exactly_and_rounded_once(terms: list[int], exponent: int) -> None:
    scaled = [math.ldexp(term, exponent) for term in terms]
    (value,) = exact.values(state_of(scaled))
    assert value == math.fsum(scaled)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(lists)
def test_what_cancels_leaves_zero(terms: list[float]) -> None:
    state = state_of([*terms, *(-term for term in terms)])
    assert exact.values(state).tobytes() == np.zeros(1).tobytes()


def test_rows_of_sums_are_sums_one_by_one() -> None:
    """Rows with zeros, bins that rise in some rows, like numbers, and lengths that do not fill a row."""
    rng = np.random.default_rng(0)
    for n in (1, 127, 128, 129, 400):
        terms = rng.normal(size=(12, n)) * 10.0 ** rng.integers(-300, 200, size=(12, n))
        terms[rng.random(terms.shape) < 0.3] = 0.0
        terms[rng.random(terms.shape) < 0.01] = -np.inf
        terms[:, : n // 2] = rng.normal(size=(12, n // 2))
        state, half, rest = exact.zeros(n), exact.zeros(n), exact.zeros(n)
        for i, row in enumerate(terms):
            exact.add(state, row)
            exact.add(half if i % 2 else rest, row)
        exact.merge(half, rest)
        for column in range(n):
            want = state_of(list(terms[:, column]))[:, 0]
            np.testing.assert_array_equal(state[:, column], want)
            np.testing.assert_array_equal(half[:, column], want)


def test_plain_sums_depend_on_order() -> None:
    """Otherwise the tests above would prove nothing."""
    rng = np.random.default_rng(0)
    terms = list(rng.normal(size=30) * 10.0 ** rng.integers(-5, 5, size=30))
    orders = [list(rng.permutation(terms)) for _ in range(20)]
    assert len({sum(order) for order in orders}) > 1
    assert len({bits(state_of(order)) for order in orders}) == 1


INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("terms", "want"),
    [
        ([1.0, INF], INF),
        ([-INF, 1e200, -INF], -INF),
        ([INF, 3.0, -INF], NAN),
        ([1.0, NAN], NAN),
        ([NAN, INF, 0.0], NAN),
        ([1e300, 1.0], INF),
        ([-1e300, 1e5], -INF),
        ([4e297, 1.0], INF),
        ([3.9e297, -3.9e297, 1e290], 1e290),
    ],
)
def test_what_is_not_finite_is_as_in_ieee_arithmetic(terms: list[float], want: float) -> None:
    for order in (terms, terms[::-1]):
        np.testing.assert_array_equal(exact.values(state_of(order)), [want])
        singles = [state_of([term]) for term in order]
        np.testing.assert_array_equal(merged(singles), state_of(terms))


def test_sums_of_many_numbers_are_still_exact() -> None:
    """The largest slices and the maximum of 2^22 additions, by merging a state with itself."""
    term = 1.5 * 2.0**28 - 2.0**-24
    for sign in (1.0, -1.0):
        state = state_of([sign * term])
        for _ in range(22):
            exact.merge(state, state.copy())
        (value,) = exact.values(state)
        assert value == sign * term * exact.MAX_ADDITIONS


def test_a_state_that_cannot_be_written_is_read() -> None:
    state = state_of([1.0, 2.0**-40])
    state.flags.writeable = False
    assert exact.values(state) == [1.0 + 2.0**-40]
    assert exact.values(merged([state, state])) == [2.0 + 2.0**-39]
    with pytest.raises(TypeError):
        exact.add(state, np.ones(1))


def test_too_many_events_are_refused() -> None:
    check_options(MAX_EVENTS, 25.0, None, 0)
    with pytest.raises(ValueError, match=r"^events: got 274877906945, need at most 274877906944"):
        check_options(MAX_EVENTS + 1, 25.0, None, 0)


def test_shapes_that_do_not_fit_are_refused() -> None:
    state = exact.zeros(3)
    for call in (
        lambda: exact.add(state, np.zeros(2)),
        lambda: exact.add(state, np.zeros((3, 1))),
        lambda: exact.merge(state, exact.zeros(2)),
        lambda: exact.merge(state, np.zeros((3, 3))),
        lambda: exact.values(np.zeros((3, 4))),
        lambda: exact.values(np.zeros(4)),
    ):
        with pytest.raises(ValueError, match=r"^state: got"):
            call()
    with pytest.raises(TypeError):
        exact.add(np.zeros((4, 6))[:, ::2], np.zeros(3))  # would be added to a copy
