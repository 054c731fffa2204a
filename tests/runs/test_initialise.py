"""Initial states: k-means++ seeds."""

import numpy as np
import pytest

from dpmix.runs.initialise import squared_distances


@pytest.mark.parametrize("n_channels", [1, 2, 7, 8, 9, 15, 16, 29, 64])
def test_distances_are_those_of_a_sum_over_rows(n_channels: int) -> None:
    """Bit for bit: the seeds, and so all draws, are as in earlier versions."""
    rng = np.random.default_rng(n_channels)
    points = rng.normal(size=(300, n_channels)) * 10.0 ** rng.uniform(-3.0, 3.0, n_channels)
    columns = np.ascontiguousarray(points.T)
    found = squared_distances(columns, points[3], np.empty_like(columns))
    assert np.array_equal(found, np.square(points - points[3]).sum(axis=1))
