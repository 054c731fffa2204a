"""Compare a few times with the committed ones, and fail where one is several times as long.

    python benchmarks/guard.py             prints times, committed times and their ratios, in a minute or two
    python benchmarks/guard.py --record    writes them to benchmarks/results/guard.json

Each number is the shortest of a few. Machines differ, so the ratio is also given in units of the machine's
matrix product (sgemm, cpu.py). The exit code is 1 if both ratios of a time are above `LIMIT`, as where code
lost its vectors. Smaller differences may be other work on a shared machine: a reader of the table judges.
"""

from __future__ import annotations

import logging
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import cpu
import numpy as np
import yaml
from mixtures import sample
from record import FOLDER, in_words, machine, plain_arguments, read_results, write_results
from rich.console import Console
from rich.table import Table
from sampler import some_stats
from threadpoolctl import threadpool_limits

from dpmix.commands import gate
from dpmix.config.load import load_config
from dpmix.config.schema import Config
from dpmix.engines.cpu import CpuEngine
from dpmix.inputs import preprocess
from dpmix.inputs.simulate.simulation import cytometry_like
from dpmix.model import bem, gibbs
from dpmix.model.mixture import mixture_of
from dpmix.model.prior import Prior
from dpmix.model.streams import Stream
from dpmix.runs.mcmc import run_mcmc
from dpmix.system.cores import usable_cores

N, D, K = 200_000, 14, 256
THREADS = min(2, usable_cores())
ROUNDS = 3
GATED = 20_000
"""Events of the run that is gated."""
LIMIT = 3.0


def passes(minima: cpu.Minima) -> None:
    """Dense and pruned sweeps, an E step, and this machine's sgemm in turn with them."""
    data = sample(N, D, K, "mix")
    sgemm = cpu.Sgemm()
    with (
        closing(CpuEngine(data.events, threads=THREADS, pruning=False)) as dense,
        closing(CpuEngine(data.events, threads=THREADS)) as pruned,
    ):
        for _ in range(ROUNDS):
            minima.note("sgemm", sgemm.seconds(THREADS))
            cpu.alternate(data, 2, {"dense": dense, "pruned": pruned}, minima, soft=True)
    sgemm.close()


def parameters(minima: cpu.Minima) -> None:
    """The host's part of a sweep and of a step of Bayesian EM."""
    prior = Prior(np.zeros(D), 5.0, 2.0, 0.3 * np.eye(D), 1.0, 1.0)
    stats = some_stats(K, D)
    state = gibbs.draw_prior(prior, K, None, Stream(1, 0, 0))
    for iteration in range(20):
        stream = Stream(1, 0, iteration + 1)
        minima.time("sweep, host", lambda: mixture_of(gibbs.sweep(state, stats, prior, stream)[0]))  # noqa: B023
        minima.time("step, host", lambda: mixture_of(bem.step(state, stats, prior)[0]))


def files(minima: cpu.Minima, folder: Path) -> None:
    """From an FCS file to events; a short run, and its gating."""
    cytometry_like(N).write(folder / "large.fcs")
    large = Config.model_validate({"data": {"files": ["large.fcs"]}})
    for _ in range(3):
        minima.time("prepare", lambda: preprocess.prepare(large.data, folder, 1))
    cytometry_like(GATED).write(folder / "small.fcs")
    config = {
        "data": {"files": ["small.fcs"]},
        "model": {"components": 32},
        "mcmc": {"chains": 1, "burn_in": 20, "draws": 20},
        "engine": {"backend": "cpu", "threads": THREADS},
        "output": {"path": str(folder / "run.h5")},
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    small = load_config(folder / "run.yaml")
    minima.time("run", lambda: run_mcmc(small, base=folder))
    minima.time("gate", lambda: gate.gate(folder / "run.h5", folder / "gated"))


WHAT = {
    "draw dense": f"labels and statistics, dense: N={N:,} D={D} K={K}, {THREADS} threads",
    "draw pruned": "labels and statistics, pruned",
    "expect dense": "E step and statistics, dense",
    "expect pruned": "E step and statistics, pruned",
    "sweep, host": f"new parameters and mixture, MCMC: D={D} K={K}",
    "step, host": "new parameters and mixture, Bayesian EM",
    "prepare": f"an FCS file of {N:,} events to events on the standardised scale",
    "run": f"a run: {GATED:,} events, K=32, 40 sweeps",
    "gate": "its gating, with tables, figures and report",
    "sgemm": f"sgemm, {cpu.Sgemm.SIZE:,} x {cpu.Sgemm.SIZE:,}, {THREADS} threads",
}


def ratios(seconds: dict[str, float], before: dict[str, float]) -> dict[str, tuple[float, float]]:
    """Return the ratio of each time to the committed one, in seconds and in units of sgemm."""
    found = {name: seconds[name] / before[name] for name in WHAT if name in before}
    return {name: (ratio, ratio / found["sgemm"]) for name, ratio in found.items()}


def slow(found: dict[str, tuple[float, float]]) -> list[str]:
    """Return what takes more than `LIMIT` times as long as before, by both ratios."""
    return [WHAT[name] for name, both in found.items() if min(both) > LIMIT]


def show(seconds: dict[str, float], committed: dict[str, Any] | None) -> list[str]:
    """Print the table and both machines; return what is `slow`."""
    before = committed["results"]["seconds"] if committed else {}
    found = ratios(seconds, before)
    table = Table("measured", "ms", "committed", "ratio", "ratio in units of sgemm")
    for name, what in WHAT.items():
        cells = [f"{1e3 * before[name]:.2f}", *(f"{r:.2f}" for r in found[name])] if name in found else []
        table.add_row(what, f"{1e3 * seconds[name]:.2f}", *cells)
    console = Console(width=140)
    console.print(table)
    console.print(f"now: {in_words(machine())}")
    if committed:
        console.print(f"committed: {in_words(committed['machine'])}, {committed['date'][:10]}")
    return slow(found)


def main() -> None:
    parser = plain_arguments(__doc__)
    parser.add_argument("--record", action="store_true", help="write the times as those to compare with")
    record = parser.parse_args().record
    logging.disable(logging.WARNING)
    minima = cpu.Minima()
    with threadpool_limits(1, "blas"):
        passes(minima)
        parameters(minima)
        with tempfile.TemporaryDirectory() as folder:
            files(minima, Path(folder))
    slower = show(minima.seconds, read_results("guard") if (FOLDER / "guard.json").exists() else None)
    if record:
        write_results("guard", {"seconds": minima.seconds})
    elif slower:
        raise SystemExit(f"more than {LIMIT:g} times as long as committed: {'; '.join(slower)}")


if __name__ == "__main__":
    main()
