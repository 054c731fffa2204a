"""Plain EM for Gaussian mixtures with full covariances, in PyTorch on a processor or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy.typing as npt
import torch
from mixtures import Parameters


def pytorch(
    events: npt.NDArray, labels: npt.NDArray, n_components: int, device: str = "cpu", part: int = 4_096
) -> Iterator[Parameters]:
    """Yield the parameters after each step: float32, all components at once, events in parts.

    Parameters
    ----------
    events : float32 [N, D]
    labels : int64 [N]
        The start.
    n_components : int
    device : str
    part : int
        Events that are done together; 4,096 fit the cache of a processor.
    """
    ridge = 1e-6  # scikit-learn's reg_covar
    x = torch.from_numpy(events).to(device)
    n, dim = x.shape
    eye = torch.eye(dim, device=device)

    def responsibilities(some: torch.Tensor, away: torch.Tensor) -> torch.Tensor:
        whitened = away @ whiteners.mT  # [K, M, D]
        return torch.softmax(log_scales[:, None] - 0.5 * whitened.square().sum(dim=2), dim=0)

    def maximise(weigh: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """One pass: weights, means and covariances, from sums about the means so far."""
        counts = torch.zeros(n_components, device=device)
        sums = torch.zeros(n_components, dim, device=device)
        scatters = torch.zeros(n_components, dim, dim, device=device)
        for some in x.split(part):
            away = some - means[:, None]
            shares = weigh(some, away)[:, :, None]
            weighted = shares * away
            counts += shares.sum(dim=(1, 2))
            sums += weighted.sum(dim=1)
            scatters += weighted.mT @ away
        shifts = sums / counts.clamp(min=1e-10)[:, None]
        scatters = scatters / counts.clamp(min=1e-10)[:, None, None] - shifts[:, :, None] * shifts[:, None]
        return counts / n, means + shifts, scatters + ridge * eye

    hard = iter(torch.from_numpy(labels).to(device).split(part))
    means = torch.zeros(n_components, dim, device=device)
    weights, means, covariances = maximise(
        lambda some, away: torch.nn.functional.one_hot(next(hard), n_components).T.float()
    )
    while True:
        yield Parameters(*(made.double().cpu().numpy() for made in (weights, means, covariances)))
        roots = torch.linalg.cholesky(covariances)
        whiteners = torch.linalg.solve_triangular(roots, eye.expand_as(roots), upper=False)
        log_scales = weights.log() - roots.diagonal(dim1=1, dim2=2).log().sum(dim=1)
        weights, means, covariances = maximise(responsibilities)
