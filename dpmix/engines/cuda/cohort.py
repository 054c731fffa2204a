"""The CUDA engine of the hierarchical model: each sample has its own weights and shift of the components.

Every sample has its own grid of chunks. A launch has chunks of one sample, and its lane of the device holds
the packed mixture of this sample: the rows of the shared mixture, with other constants and moved means. So
kernels, pruning and random numbers are as in `dpmix.engines.cuda.engine`. The moments of all chunks are added
in one exact sum on each device. Counts and sums of each chunk come to the host, which adds the numbers of a
sample exactly. So results do not depend on the devices, or on the division of the data into parts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import numpy as np

from dpmix.engines import cohort_sums, exact
from dpmix.engines.checks import check_constants, check_finite, check_samples, checked_parameters
from dpmix.engines.chunk_grid import cut_samples, starts_of_part
from dpmix.engines.cohort_sums import CohortSummingEngine, CohortSums
from dpmix.engines.cuda.engine import CudaOptions, CudaPasses
from dpmix.engines.cuda.work import SampleParameters
from dpmix.model.mixture import Array, Floats, Ints, Mixture
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key


class CudaCohortEngine(CudaPasses, CohortSummingEngine):
    """Engine on CUDA devices for mixtures with weights and shifts of samples.

    The interface is dpmix.engines.base.Engine; parameters are as in `CudaPasses`, except:

    Parameters
    ----------
    starts : int64 [S + 1]
        Ascending, from 0 to the number of events of the run: events starts[s] to starts[s + 1] belong to
        sample s.
    first_event : int
        Number of the first event, one of `dpmix.engines.chunk_grid.chunk_edges`, for an engine that holds a
        part of the run.
    """

    passes_at_once = 1
    _by_sample = True

    def __init__(self, events: Floats, starts: Ints, **options: Unpack[CudaOptions]) -> None:
        own = starts_of_part(starts, options.get("first_event", 0), len(events))
        super().__init__(events, own, **options)
        self._cut = cut_samples(starts, own)

    @property
    def info(self) -> dict[str, str | int | float | bool]:
        """Backend, devices and samples, for logs and run files."""
        return {**super().info, "samples": len(self._grid.per_sample)}

    def draw_sums(self, mixture: Mixture, key: Key) -> CohortSums:
        return self._whole(self._label(mixture, key), mixture)

    def expect_sums(self, mixture: Mixture) -> CohortSums:
        return self._whole(self._label(mixture, None), mixture)

    def divide_sums(self, split: SplitAssignment, mixture: Mixture, key: Key) -> CohortSums:
        return self._whole(self._divide(split, mixture, key), mixture)

    def _packed(self, mixture: Mixture) -> tuple[Array, SampleParameters | None]:
        check_samples(mixture, len(self._grid.per_sample))
        assert mixture.samples is not None
        weights, shifts = mixture.samples
        plain = replace(mixture, samples=None)
        if weights.shape[1] == len(mixture.means):
            constants = weights + mixture.log_norms
            check_constants(constants)
        else:  # components without weights by sample: pairs
            constants = np.tile(mixture.log_weights + mixture.log_norms, (len(shifts), 1))
        check_finite(shifts)
        packed: Array = self._layout.pack(*checked_parameters(plain, self.n_channels))
        return packed, SampleParameters(constants, shifts)

    def _whole(self, sums: CohortSums, mixture: Mixture) -> CohortSums:
        """Return the rows of samples that are whole here, and the states of the rows of others."""
        found = CohortSums(sums.total, {}, {})
        for sample, rows in sums.rows.items():
            if sample in self._cut:
                # One chunk here, but other chunks of the sample elsewhere: its numbers must be added exactly,
                # not rounded.
                found.cut[sample] = exact.zeros(rows.size)
                exact.add(found.cut[sample], rows.ravel())
            else:
                found.rows[sample] = rows
        for sample, state in sums.cut.items():
            if sample in self._cut:
                found.cut[sample] = state
            else:
                found.rows[sample] = cohort_sums.rows_of(state, mixture)
        return found
