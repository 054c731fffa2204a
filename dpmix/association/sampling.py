"""Draw from the posterior of a regression by Hamiltonian Monte Carlo, with NumPyro on JAX."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpmix.association.model import RESIDUAL_DF, Posterior
from dpmix.errors import ConfigError
from dpmix.model.mixture import Array
from dpmix.system.extras import require_extra

CHAINS, WARM_UP, DRAWS = 4, 1000, 1000
STEPS = 12
"""Leapfrog steps of a trajectory: about 2.4 standard deviations where the sampler accepts 85%."""
ACCEPTANCE = 0.85


@dataclass(frozen=True)
class Fit:
    """Draws of the posterior of a regression.

    Attributes
    ----------
    draws : mapping of str to float64 [chain, draw, ...]
        alpha [P], beta [C, P], sigma [P], gamma [G, P], omega [terms, P], and weight [S, P]: 1 for a value as
        far from its expectation as is usual, near 0 for an outlier.
    divergences : int
        Divergent transitions of the sampler.
    """

    draws: dict[str, Array]
    divergences: int = 0

    def flat(self, name: str) -> Array:
        """Return the draws of all chains, float64 [T, ...]."""
        drawn = self.draws[name]
        return drawn.reshape(-1, *drawn.shape[2:])


def find_device(backend: str) -> Any:
    """Return the JAX device of a backend (auto, cpu, cuda); auto takes a GPU if JAX has one.

    Raises
    ------
    ConfigError
        A library is missing, or JAX has no such device.
    """
    for module in ("jax", "numpyro", "formulae"):
        require_extra(module, "associate", "dpmix associate")
    if backend == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import jax

    try:
        return jax.devices({"auto": None, "cpu": "cpu", "cuda": "cuda"}[backend])[0]
    except RuntimeError:
        raise ConfigError(
            [
                "--backend cuda: JAX finds no NVIDIA GPU; use --backend cpu, or install JAX for CUDA: "
                "pip install 'jax[cuda12]'"
            ]
        ) from None


def draw(posterior: Posterior, seed: int, device: Any) -> Fit:
    """Draw from a posterior: `CHAINS` chains of `DRAWS` draws after `WARM_UP` sweeps.

    All chains advance together as one vectorised program, on one device, in float64. The same seed gives the
    same draws on the same device with the same versions of the libraries.
    """
    import jax
    from numpyro.infer import HMC, MCMC

    random = np.random.default_rng(seed)
    starts = np.stack([posterior.start(random) for _ in range(CHAINS)])
    with warnings.catch_warnings(), jax.enable_x64(True), jax.default_device(device):
        warnings.simplefilter("ignore", FutureWarning)
        kernel = HMC(
            potential_fn=lambda vector: -posterior.log_density(vector),
            num_steps=STEPS,
            trajectory_length=None,
            target_accept_prob=ACCEPTANCE,
        )
        sampler = MCMC(
            kernel,
            num_warmup=WARM_UP,
            num_samples=DRAWS,
            num_chains=CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )
        sampler.run(jax.random.PRNGKey(seed), init_params=starts, extra_fields=("diverging",))
        vectors = sampler.get_samples(group_by_chain=True)
        divergences = int(np.asarray(sampler.get_extra_fields()["diverging"]).sum())
        known = jax.jit(jax.vmap(jax.vmap(lambda vector: posterior.parameters(posterior.split(vector)))))(
            vectors
        )
        draws = {name: np.asarray(values) for name, values in known.items()}
    draws["weight"] = (RESIDUAL_DF + 1.0) / (RESIDUAL_DF + draws.pop("residual") ** 2)
    del draws["spread"]
    draws.pop("eta", None)
    return Fit(draws, divergences)
