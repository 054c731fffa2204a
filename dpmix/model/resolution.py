"""The resolution of the measurement: every event is a small cloud, not a point.

An instrument cannot tell two events apart that differ by less than its error. Their density on a finer scale
comes from the instrument (ions come in whole numbers), not from cells. With R the diagonal matrix of the
variances of one measurement, an event x_i stands for the cloud N(x_i, R), and its density under a component
is the geometric mean over the cloud::

    log f_j(x_i) = E log N(x_i + e | mu_j, Sigma_j),  e ~ N(0, R)
                 = log N(x_i | mu_j, Sigma_j) - tr(Sigma_j^-1 R) / 2

The second term depends on the component alone. So an engine needs to know nothing of R: the term is part of
the logs of the norms of its mixture (`penalties`). Given the labels, the normal inverse Wishart prior stays
conjugate: n_j R is added to the scatter of component j (`blurred`), and a component narrower than R costs
more than its events gain.

The sampler keeps one joint distribution of parameters and labels, p(theta) prod_i pi_zi f_zi(x_i), exactly:
the labels, the conditionals, the split-merge moves and Bayesian EM all have f_j in the place of the normal
density. Without R it is the posterior of the model.

A coarsened posterior (`dpmix.model.coarsening`) takes f_j to the power zeta, so that zeta n_j R is added.

D channels, K components. All functions are pure.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dpmix.model.mixture import Array, Mixture, Stats


def blurred(stats: Stats, resolution: Array | None) -> Stats:
    """Return the statistics of the clouds: n_j R is added to the scatter of component j.

    Parameters
    ----------
    stats : Stats
        With counts of what the events count as (coarsened, weighted).
    resolution : float64 [D] or None
        Standard deviation of one measurement in each channel, on the scale of the events. None: the events
        are points, and their statistics are returned as they are.
    """
    if resolution is None:
        return stats
    spread = stats.counts[:, None, None] * np.diag(np.square(resolution))
    return replace(stats, scatters=stats.scatters + spread)


def penalties(whiteners: Array, resolution: Array) -> Array:
    """Return tr(Sigma_j^-1 R) / 2 of each component, float64 [K], from whiteners [K, D, D]."""
    halves: Array = 0.5 * np.square(whiteners * resolution).sum(axis=(1, 2))
    return halves


def of_clouds(mixture: Mixture, resolution: Array | None) -> Mixture:
    """Return the mixture that has the densities of events that are clouds.

    Parameters
    ----------
    mixture : Mixture
    resolution : float64 [D] or None
        As in `blurred`; None returns the mixture as it is.
    """
    if resolution is None:
        return mixture
    return replace(mixture, log_norms=mixture.log_norms - penalties(mixture.whiteners, resolution))
