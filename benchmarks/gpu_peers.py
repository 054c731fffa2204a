"""Time EM for Gaussian mixtures by other tools on the same GPU.

    A stage of gpu.py.

Contenders: scikit-learn's GaussianMixture on PyTorch arrays (its array interface), and EM in PyTorch
(torch_em.py). Both estimate full covariances in float32, from the same start, in D = 14 channels with K =
256 components. Next to them is a step of Bayesian EM by dpmix, which does the same pass over the events. A
step's seconds are the difference between fits of several steps and of one.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from itertools import islice, product

import numpy as np
from gpu_output import Output, parser
from gpu_sweeps import Chains, median
from mixtures import Sample, sample

from dpmix.engines.cuda.engine import CudaEngine
from dpmix.model.prior import Prior

SKIPPED = 3
STEPS = 5
PART = 32_768  # events that PyTorch does together
SWITCH = "SCIPY_ARRAY_API"  # must be set before SciPy is imported


def scikit_learn(data: Sample, steps: int) -> float:
    """Return seconds of a fit of some steps from the parameters of the sample."""
    import torch
    from sklearn import config_context
    from sklearn.mixture import GaussianMixture

    def on_device(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array.astype(np.float32)).to("cuda")

    start = data.before
    model = GaussianMixture(
        len(start.weights), tol=0.0, max_iter=steps, init_params="random",
        weights_init=on_device(start.weights), means_init=on_device(start.means),
        precisions_init=on_device(np.linalg.inv(start.covariances)),
    )  # fmt: skip
    events = on_device(data.events)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    with warnings.catch_warnings(action="ignore"), config_context(array_api_dispatch=True):
        model.fit(events)  # warns that it has not converged
    torch.cuda.synchronize()
    return time.perf_counter() - begin


def pytorch(data: Sample, steps: int) -> float:
    import torch
    import torch_em

    labels = np.arange(len(data.events)) % len(data.before.weights)
    climb = torch_em.pytorch(data.events, labels, len(data.before.weights), "cuda", PART)
    next(climb)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    list(islice(climb, steps))
    return time.perf_counter() - begin


def per_step(fit: Callable[[Sample, int], float], data: Sample) -> float:
    fit(data, 1)  # warms up
    return (fit(data, 1 + STEPS) - fit(data, 1)) / STEPS


def dpmix(data: Sample) -> float:
    dim = data.events.shape[1]
    prior = Prior(np.zeros(dim), 5.0, 2.0, 0.3 * np.eye(dim), 1.0, 1.0)
    engine = CudaEngine(data.events, devices=[0])
    try:
        return median(Chains(engine, data, prior, 1).step, 10)
    finally:
        engine.close()


def main() -> None:
    asked = parser(__doc__).parse_args()
    if SWITCH not in os.environ:
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | {SWITCH: "1"})
    try:
        import torch
    except ImportError:
        print("PyTorch is not here")
        sys.exit(SKIPPED)
    if not torch.cuda.is_available():
        print("PyTorch finds no CUDA device")
        sys.exit(SKIPPED)
    output, failed = Output(asked), []
    output.add("versions", {"torch": torch.__version__, "cuda": torch.version.cuda})
    sizes = (2000,) if asked.rehearsal else (1_000_000, 100_000)
    samples = {n_events: sample(n_events, 14, 256, "mix") for n_events in sizes}
    contenders: dict[str, Callable[[Sample], float]] = {
        "dpmix, Bayesian EM": dpmix,
        "PyTorch, EM": lambda data: per_step(pytorch, data),
        "scikit-learn, GaussianMixture": lambda data: per_step(scikit_learn, data),
    }
    for (name, time_step), n_events in output.while_time_is_left(product(contenders.items(), sizes)):
        try:
            seconds = time_step(samples[n_events])
        except Exception as error:  # one contender's failure must not hide the other's time
            print(f"{name}: {error!r}")
            failed.append(name)
            continue
        shape = {"n_events": n_events, "n_channels": 14, "n_components": 256}
        output.append("steps", {"what": name, **shape, "seconds": seconds})
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
