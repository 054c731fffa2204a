"""Medians of blocks and their standard errors."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dpmix.drift.summaries import block_starts, summarise


def test_medians_are_those_of_numpy() -> None:
    random = np.random.default_rng(1)
    values, times = random.standard_normal((1003, 3)).astype(np.float32), np.sort(random.uniform(size=1003))
    blocks = summarise(values, times, block_starts(1003))
    assert len(blocks.medians) == 5
    for b, (start, stop) in enumerate(itertools.pairwise(blocks.starts)):
        np.testing.assert_allclose(blocks.medians[b], np.median(values[start:stop].astype(float), axis=0))
        assert blocks.times[b] == np.median(times[start:stop])


def test_errors_are_the_spread_of_medians() -> None:
    """The spread of 2,000 medians is known to 2%; order statistics are biased by a few percent."""
    random = np.random.default_rng(2)
    values = np.column_stack((random.standard_normal(400_000), random.exponential(size=400_000)))
    blocks = summarise(values, np.arange(400_000.0), block_starts(400_000))
    np.testing.assert_allclose(blocks.errors[0], blocks.medians.std(axis=0), rtol=0.1)


@pytest.mark.parametrize(
    ("n_events", "n_blocks"),
    [(30_000, 150), (200_000, 1_000), (999_999, 4_999), (10**6, 10**4), (10**7, 10**5), (10**8, 10**6)],
)
def test_a_million_events_become_ten_thousand_blocks(n_events: int, n_blocks: int) -> None:
    starts = block_starts(n_events)
    assert len(starts) == n_blocks + 1
    assert (starts[0], starts[-1]) == (0, n_events)
    assert np.ptp(np.diff(starts)) <= 1


def test_few_events_are_refused() -> None:
    with pytest.raises(ValueError, match="need 400"):
        block_starts(399)
