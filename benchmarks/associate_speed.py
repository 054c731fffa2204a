"""Measure the seconds of `dpmix associate` by samples and populations, and say where a GPU can pay, on paper.

    python benchmarks/associate_speed.py [--quick]      # about three minutes on two cores

The sampler makes a fixed number of leapfrog steps, so a run takes that number times the gradient of the log
density of all chains. The script measures this gradient, and whole runs of some sizes, which include the
compilation of the program. Of several repetitions of the gradient, the fastest counts.

On paper, a GPU takes for each gradient a launch of every kernel, and the bytes that the kernels move at the
bandwidth of its memory. Kernels and bytes are those of the program that XLA compiles for the processor, as no
GPU was there: XLA may fuse more on a GPU. `LAUNCH` and `BANDWIDTH` are assumptions. The page calls nothing of
the GPU measured.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from plots import COLOURS, panels, significant
from record import arguments, read_results, said, write_results

from dpmix.association.model import Posterior, Predictors, Responses
from dpmix.association.sampling import CHAINS, DRAWS, STEPS, WARM_UP, draw, find_device

POPULATIONS = 7, 14, 28, 56
SAMPLES = 6, 24, 96, 384, 1536
RUNS = (24, 14), (96, 28), (384, 28)
"""Samples and populations of whole runs."""

GRADIENTS = (WARM_UP + DRAWS) * STEPS
REPETITIONS = 7
SECONDS = 0.2
"""Least duration of a repetition."""

LAUNCH = 5e-6
"""Assumed seconds for the launch of a kernel."""
BANDWIDTH = 3.35e12
"""Assumed bytes per second: an NVIDIA H100 with HBM3, by its data sheet."""

Row = dict[str, Any]


def posterior_of(n_samples: int, n_populations: int) -> Posterior:
    """Return the posterior of a simulated cohort: two groups, two batches and a random effect of donors."""
    random = np.random.default_rng([n_samples, n_populations])
    logs = random.standard_normal(n_populations) + 0.4 * random.standard_normal((n_samples, n_populations))
    shares = np.exp(logs) / np.exp(logs).sum(axis=1, keepdims=True)
    counts = np.stack([random.multinomial(20_000, row) for row in shares]).astype(float)
    fixed = np.stack([np.arange(n_samples) % 2, np.arange(n_samples) // 2 % 2], axis=1) - 0.5
    donors = np.eye(n_samples // 2)[np.arange(n_samples) // 2]
    none = np.zeros((n_samples, 0))
    columns = Predictors(fixed, donors, np.zeros(donors.shape[1], np.int64), none)
    return Posterior(Responses(counts, np.full(counts.shape, 0.01), counted=True), columns)


def gradient_of(posterior: Posterior) -> Callable[..., Any]:
    """Return the gradient of the log density of all chains, to be compiled."""
    import jax

    return jax.vmap(jax.grad(posterior.log_density))


def starts_of(posterior: Posterior) -> np.ndarray:
    """Return starts of the chains, float64 [CHAINS, V]."""
    random = np.random.default_rng(1)
    return np.stack([posterior.start(random) for _ in range(CHAINS)])


def seconds_of_gradient(posterior: Posterior) -> float:
    """Return the seconds of a gradient of all chains on the processor, within one compiled loop."""
    import jax

    gradient = gradient_of(posterior)

    @jax.jit
    def steps(at: Any, n: int) -> Any:
        return jax.lax.fori_loop(0, n, lambda _, now: now + 1e-12 * gradient(now), at)

    at = jax.numpy.asarray(starts_of(posterior))

    def seconds(n: int) -> float:
        began = time.perf_counter()
        steps(at, n).block_until_ready()
        return time.perf_counter() - began

    seconds(1)  # compiles
    n = 1
    while seconds(n) < SECONDS:
        n *= 2
    return min(seconds(n) for _ in range(REPETITIONS)) / n


def program_of(posterior: Posterior) -> tuple[int, float]:
    """Return the kernels of a gradient and the bytes that they move, of the program for the processor."""
    import jax

    compiled = jax.jit(gradient_of(posterior)).lower(starts_of(posterior)).compile()
    text = compiled.as_text()
    entry = text[text.index("\nENTRY ") :].split("\n}")[0]
    kernels = re.findall(r"= \S+ (fusion|dot|reduce|scatter|custom-call|copy|transpose|call)\(", entry)
    return len(kernels), float(compiled.cost_analysis()["bytes accessed"])


def measure(n_samples: int, n_populations: int) -> Row:
    posterior = posterior_of(n_samples, n_populations)
    kernels, n_bytes = program_of(posterior)
    on_paper = kernels * LAUNCH + n_bytes / BANDWIDTH
    row = {
        "samples": n_samples,
        "populations": n_populations,
        "gradient": seconds_of_gradient(posterior),
        "kernels": kernels,
        "bytes": n_bytes,
        "gpu on paper": on_paper,
    }
    print(row, flush=True)
    return row


def measure_run(n_samples: int, n_populations: int) -> Row:
    posterior, device = posterior_of(n_samples, n_populations), find_device("cpu")
    began = time.perf_counter()
    draw(posterior, 1, device)
    took = time.perf_counter() - began
    row = {"samples": n_samples, "populations": n_populations, "seconds": took}
    print(row, flush=True)
    return row


def draw_figure(rows: list[Row], runs: list[Row], *, quick: bool) -> None:
    with panels("associate-speed", 1, 1, height=3.6, quick=quick) as grid:
        axes = grid[0, 0]
        for populations, colour in zip(POPULATIONS, COLOURS, strict=False):
            own = [row for row in rows if row["populations"] == populations]
            cells = [row["samples"] * populations for row in own]
            label = f"{populations} populations"
            axes.plot(cells, [GRADIENTS * row["gradient"] for row in own], "o-", color=colour, label=label)
            axes.plot(cells, [GRADIENTS * row["gpu on paper"] for row in own], "--", color=colour)
        whole = [row["samples"] * row["populations"] for row in runs]
        axes.plot(whole, [row["seconds"] for row in runs], "kx", label="whole runs, with compilation")
        axes.plot([], [], "k--", label="a GPU, on paper")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("samples times populations")
        axes.set_ylabel("seconds of a run")
        axes.legend(frameon=False, fontsize=8)


def page() -> str:
    """Markdown: seconds of a run, on two threads and on paper on a GPU."""
    results = read_results("associate_speed")["results"]
    head = ["samples", *(f"{populations} populations" for populations in POPULATIONS)]
    lines = [f"| {' | '.join(head)} |", "| ---: |" + " ---: |" * len(POPULATIONS)]
    for samples in SAMPLES:
        own = [row for row in results["gradients"] if row["samples"] == samples]
        pairs = [(GRADIENTS * row["gradient"], GRADIENTS * row["gpu on paper"]) for row in own]
        cells = [f"{significant(measured, 2)} ({significant(paper, 2)})" for measured, paper in pairs]
        lines.append(f"| {samples:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def source() -> str:
    return said("associate_speed", packages=("dpmix", "jax", "numpyro"))


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    find_device("cpu")
    import jax

    grid = list(product(SAMPLES[:2], POPULATIONS[:2]) if quick else product(SAMPLES, POPULATIONS))
    with jax.enable_x64(True):
        rows = [measure(*size) for size in grid]
    runs = [measure_run(*size) for size in (RUNS[:1] if quick else RUNS)]
    write_results("associate_speed", {"gradients": rows, "runs": runs}, quick=quick)
    draw_figure(rows, runs, quick=quick)


if __name__ == "__main__":
    main()
