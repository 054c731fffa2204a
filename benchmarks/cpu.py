"""Compare the CPU engine with this machine's sgemm and with scikit-learn: every limit, in one run.

    python benchmarks/cpu.py            everything, about 10 minutes on a quiet machine
    python benchmarks/cpu.py --quick    a small sample, under a minute, as a check of the script

Each number is a ratio of minima over rounds in which the contenders take turns. A sweep counts as D^2 + 3D
floating-point operations per event and component (triangular whitening and squares), whatever the pruned
sweep really makes. Every timed sweep follows one of another mixture, as in a chain.

sgemm is OpenBLAS's (NumPy's) on 1,536 x 1,536, in a process of its own, because its threads spin for a
while and would disturb the engine's. It is measured twice: with the kernels that OpenBLAS chooses, and with
AVX-512 kernels for the v4 code or AVX2 kernels for v3. OpenBLAS does not know every processor and may
choose kernels of half the speed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from mixtures import Kind, Parameters, Sample, sample
from record import plain_arguments, read_results, said, write_results
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_info, threadpool_limits

from dpmix.engines.cpu import CpuEngine, instruction_sets
from dpmix.model.streams import Key

OPENBLAS_KERNELS = {"v4": "SkylakeX", "v3": "Haswell", "v2": "Nehalem", "neon": "ARMV8"}
INSTANCES = 3  # of an engine: where its memory happens to lie makes up to 8% at D = 8, dense or pruned
PAUSE = 0.3  # seconds after threads of another library have run


@dataclass(frozen=True)
class Result:
    """One number and its limit; `at_most` if less is better."""

    name: str
    value: float
    bar: float
    at_most: bool = False

    @property
    def passed(self) -> bool:
        return self.value <= self.bar if self.at_most else self.value >= self.bar


class Minima:
    """The shortest time of each contender."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, run: Callable[[], object]) -> None:
        start = time.perf_counter()
        run()
        self.note(name, time.perf_counter() - start)

    def note(self, name: str, seconds: float) -> None:
        self.seconds[name] = min(seconds, self.seconds.get(name, np.inf))

    def ratio(self, slow: str, fast: str) -> float:
        return self.seconds[slow] / self.seconds[fast]


class Sgemm:
    """OpenBLAS's sgemm in a child process: with its own choice of kernels, or with an instruction set's."""

    SIZE = 1536

    def __init__(self, isa: str | None = None) -> None:
        kernels = {} if isa is None else {"OPENBLAS_CORETYPE": OPENBLAS_KERNELS[isa]}
        self._child = subprocess.Popen(
            [sys.executable, __file__, "--sgemm"],
            env=os.environ | kernels,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, threads: int) -> float:
        """Shortest time of a few products on this many threads."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        print(threads, file=self._child.stdin, flush=True)
        seconds = float(self._child.stdout.readline())
        time.sleep(PAUSE)
        return seconds

    def close(self) -> None:
        self._child.communicate()

    @classmethod
    def serve(cls) -> None:
        """The child: for each line, a number of threads, the seconds of a product."""
        one, other = (np.random.default_rng(i).random((cls.SIZE, cls.SIZE), np.float32) for i in range(2))
        out = np.empty_like(one)
        for line in sys.stdin:
            minima = Minima()
            with threadpool_limits(int(line)):
                for _ in range(5):
                    minima.time("sgemm", lambda: np.matmul(one, other, out=out))
            print(minima.seconds["sgemm"], flush=True)


def rate(minima: Minima, name: str, sample: Sample, sgemm: str) -> float:
    """Rate of a sweep as a fraction of sgemm's."""
    n_events, dim = sample.events.shape
    sweep_flops = (dim * dim + 3 * dim) * n_events * len(sample.now.weights)
    return sweep_flops / minima.seconds[name] / (2 * Sgemm.SIZE**3 / minima.seconds[sgemm])


def alternate(
    sample: Sample, rounds: int, engines: dict[str, CpuEngine], minima: Minima, *, soft: bool
) -> None:
    """Let the engines take turns at sweeping the two mixtures of the sample, `soft` at the E step too."""
    mixtures = [sample.before.mixture(), sample.now.mixture()]
    for engine in engines.values():  # the first sweep has no labels to go by, the second tries pruning
        for warm_up in range(2):
            engine.draw_labels(mixtures[0], Key(0, 0, warm_up))
    for iteration in range(2 * rounds):
        mixture = mixtures[(iteration + 1) % 2]
        for name, engine in engines.items():
            minima.time(
                f"draw {name}", lambda e=engine, i=iteration, m=mixture: e.draw_labels(m, Key(1, 0, i))
            )
        if soft:
            for name, engine in engines.items():
                minima.time(f"expect {name}", lambda e=engine, m=mixture: e.expect_labels(m))


def sweeps(n_events: int, rounds: int, isa: str) -> tuple[list[Result], dict[str, float]]:
    """Dense sweeps against sgemm, and two threads against one."""
    bars = {(14, 256): 0.85, (30, 128): 0.85, (8, 64): 0.50}
    flops = {(dim, n_components): n_components * (dim * dim + 3 * dim) for dim, n_components in bars}
    results, seconds = [], {}
    for (dim, n_components), bar in bars.items():
        # Every case lasts about as long: few short sweeps may all fall into a busy spell of a shared machine.
        turns = 2 * round(max(flops.values()) / flops[dim, n_components])
        data = sample(n_events, dim, n_components, "mix")
        cases = [(isa, bar)] + ([("v3", 0.60)] if isa == "v4" and dim == 14 else [])
        for name, its_bar in cases:
            minima, contenders = Minima(), {f"sgemm, {name} kernels": Sgemm(name)}
            if name == isa:
                contenders["sgemm, NumPy's choice"] = Sgemm()
            engines = {f"{t}": CpuEngine(data.events, threads=t, pruning=False, isa=name) for t in (1, 2)}
            for _ in range(rounds):
                for threads in (1, 2):
                    for what, sgemm in contenders.items():
                        minima.note(f"{what} {threads}", sgemm.seconds(threads))
                alternate(data, turns, engines, minima, soft=False)
            for sgemm in contenders.values():
                sgemm.close()
            shape = f"D={dim} K={n_components} N={n_events:,} {name}"
            for what in contenders:
                for threads in (1, 2):
                    value = rate(minima, f"draw {threads}", data, f"{what} {threads}")
                    label = f"dense sweep / {what}, {shape}, {threads} threads"
                    results.append(Result(label, value, its_bar))
            results.append(Result(f"two threads / one, {shape}", minima.ratio("draw 1", "draw 2"), 1.85))
            seconds |= {f"{shape} {contender}": value for contender, value in minima.seconds.items()}
    return results, seconds


def pruning(n_events: int, rounds: int) -> tuple[list[Result], dict[str, float]]:
    """Pruned sweeps against dense ones."""
    bars: dict[tuple[int, int, Kind], float] = {
        (14, 256, "sep"): 3.0,
        (14, 256, "mix"): 2.0,
        (14, 256, "dp"): 2.0,
        (14, 256, "ovl"): 0.95,
        (30, 128, "mix"): 4.0,
        (8, 64, "ovl"): 0.95,
    }
    results, seconds = [], {}
    for (dim, n_components, kind), bar in bars.items():
        data = sample(n_events, dim, n_components, kind)
        minima, kept_alive = Minima(), []
        for _ in range(INSTANCES):
            engines = {
                f"{name} {threads}": CpuEngine(data.events, threads=threads, pruning=name == "pruned")
                for threads in (1, 2)
                for name in ("dense", "pruned")
            }
            kept_alive.append(engines)
            alternate(data, rounds, engines, minima, soft=False)
        for threads in (1, 2):
            name = f"pruned / dense, {kind} D={dim} K={n_components} N={n_events:,}"
            kept = f"{engines[f'pruned {threads}']._native.kept:.2f} kept"
            value = minima.ratio(f"draw dense {threads}", f"draw pruned {threads}")
            results.append(Result(f"{name}, {threads} threads ({kept})", value, bar))
            seconds |= {f"{name} {contender}": value for contender, value in minima.seconds.items()}
    return results, seconds


def expectation(n_events: int, rounds: int) -> tuple[list[Result], dict[str, float]]:
    """The E step with its statistics against an iteration of scikit-learn's GaussianMixture, two threads."""
    bars = {(14, 256): (60.0, 150.0), (8, 64): (45.0, 75.0), (30, 128): (30.0, 130.0)}
    results, seconds = [], {}
    for (dim, n_components), (dense_bar, pruned_bar) in bars.items():
        data = sample(n_events, dim, n_components, "mix")
        minima = Minima()
        engines = {
            name: CpuEngine(data.events, threads=2, pruning=name == "pruned") for name in ("dense", "pruned")
        }
        for _ in range(rounds):
            with threadpool_limits(2):
                minima.time("scikit-learn", scikit_learn_step(data.now, data))
            time.sleep(PAUSE)
            alternate(data, 3, engines, minima, soft=True)
        shape = f"D={dim} K={n_components} N={n_events:,}"
        for name, bar in (("dense", dense_bar), ("pruned", pruned_bar)):
            value = minima.ratio("scikit-learn", f"expect {name}")
            results.append(Result(f"scikit-learn E+M / {name} E step, mix {shape}, 2 threads", value, bar))
        seconds |= {f"{shape} {contender}": value for contender, value in minima.seconds.items()}
    return results, seconds


def scikit_learn_step(parameters: Parameters, data: Sample) -> Callable[[], None]:
    """One E step and M step of GaussianMixture, full covariances, in float32."""
    from sklearn.mixture import GaussianMixture

    mixture = parameters.mixture()
    model = GaussianMixture(len(parameters.weights), covariance_type="full")
    model.weights_ = parameters.weights.astype(np.float32)
    model.means_ = parameters.means.astype(np.float32)
    model.covariances_ = parameters.covariances.astype(np.float32)
    model.precisions_cholesky_ = np.ascontiguousarray(mixture.whiteners.transpose(0, 2, 1)).astype(np.float32)

    def step() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _, log_responsibilities = model._e_step(data.events)
            model._m_step(data.events, log_responsibilities)

    return step


def memory(n_events: int) -> list[Result]:
    """Peak memory of a process that makes events and sweeps them, against events + 16 bytes each + 300 MB."""
    command = [sys.executable, __file__, "--memory", str(n_events)]
    peak = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    bar = n_events * (14 * 4 + 16) + 300e6
    return [Result(f"peak memory in MB, N={n_events:,} D=14 K=256", peak / 1e6, bar / 1e6, at_most=True)]


def report_peak_memory(n_events: int) -> None:
    """The child of `memory`: prints its peak resident bytes (of itself alone, which getrusage's are not)."""
    small = sample(2000, 14, 256, "mix")
    rng = np.random.default_rng(0)
    events = np.empty((n_events, 14), np.float32)
    for start in range(0, n_events, 100_000):
        rng.standard_normal(dtype=np.float32, out=events[start : start + 100_000])
    engine = CpuEngine(events)
    for iteration in range(2):
        engine.draw_labels(small.now.mixture(), Key(1, 0, iteration))
    engine.expect_labels(small.now.mixture())
    peak = next(line for line in _lines("/proc/self/status") if line.startswith("VmHWM"))
    print(int(peak.split()[1]) * 1024)


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def show(results: list[Result]) -> None:
    table = Table("measured", "value", "bar", "")
    for result in results:
        bar = f"{'at most' if result.at_most else 'at least'} {result.bar:,.2f}"
        table.add_row(result.name, f"{result.value:,.2f}", bar, "pass" if result.passed else "MISS")
    console = Console()
    console.print(table)
    missed = sum(not result.passed for result in results)
    console.print(f"{len(results) - missed} of {len(results)} bars passed")


def in_brief(results: str) -> str:
    """Markdown of the main figures, from the committed results of this script and of sampler.py.

    Parameters
    ----------
    results : str
        The folder of results as seen from the page.
    """
    of_cpu = read_results("cpu")["results"]
    bars = {bar["name"]: bar["value"] for bar in of_cpu["bars"]}
    isa = of_cpu["about"]["instruction_sets"].split()[0]

    def found(begin: str, *parts: str) -> list[float]:
        return [
            v for name, v in bars.items() if name.startswith(begin) and all(part in name for part in parts)
        ]

    def between(values: list[float], digits: int) -> str:
        return f"{min(values):.{digits}f} to {max(values):.{digits}f}"

    against = f"dense sweep / sgemm, {isa} kernels"  # those that OpenBLAS chooses may be slower by half
    wide, narrow = found(against, "D=14") + found(against, "D=30"), found(against, "D=8")
    apart = [value for kind in ("sep", "mix", "dp") for value in found("pruned / dense", f" {kind} ")]
    all_overlap = found("pruned / dense", " ovl ")
    host = read_results("sampler")["results"]["K=256, D=14"]["whole"]["min_ms"]
    peak = found("peak memory", "N=5,000,000")[0]
    missed = [max(b["value"] / b["bar"], b["bar"] / b["value"]) for b in of_cpu["bars"] if not b["passed"]]
    short = f", the others missed by {100 * (max(missed) - 1):.1f}% at most" if missed else ""
    prose = (
        f"At D = 14 and 30 the dense pass runs at {between(wide, 2)} of the speed of the machine's own "
        f"matrix product (sgemm), at D = 8 at {between(narrow, 2)}. Skipping components whose weight is "
        f"certain to be 0, without changing a label, makes it {between(apart, 1)} times faster where "
        f"components lie apart, and {between(all_overlap, 2)} times where they all overlap, so that nothing "
        f"can be skipped. Outside the engine a sweep costs {host:.1f} ms at D = 14, K = 256 "
        f"([sampler.json]({results}/sampler.json)). Five million events in 14 channels take {peak:.0f} MB. "
        f"{len(bars) - len(missed)} of {len(bars)} bars were met{short}."
    )
    lines = [
        "| 200,000 events, two threads | dense sweep | pruned sweep "
        "| EM step compared with scikit-learn's E + M, float32: dense / pruned |",
        "| --- | --- | --- | --- |",
    ]
    for dim, n_components in ((14, 256), (8, 64), (30, 128)):
        shape, seconds = f"D={dim} K={n_components} N=200,000", of_cpu["seconds"]
        pruned = seconds.get(f"pruned / dense, mix {shape} draw pruned 2")
        faster = " / ".join(f"{found('scikit-learn', name, shape)[0]:.0f}" for name in ("dense", "pruned"))
        lines.append(
            f"| D = {dim}, K = {n_components} | {1e3 * seconds[f'{shape} {isa} draw 2']:.3g} ms | "
            f"{f'{1e3 * pruned:.3g} ms' if pruned else ''} | {faster} times faster |"
        )
    wrapped = partial(textwrap.fill, width=115, break_long_words=False, break_on_hyphens=False)
    where = said("cpu", results, ("dpmix", "numpy", "scikit-learn"))
    return "\n".join([wrapped(prose), "", *lines, "", wrapped(where)]) + "\n"


def main() -> None:
    parser = plain_arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="small samples; the bars mean nothing then")
    parser.add_argument("--sgemm", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.sgemm:
        Sgemm.serve()
        return
    if arguments.memory:
        report_peak_memory(arguments.memory)
        return

    sizes = [20_000] if arguments.quick else [200_000, 1_000_000]
    rounds = 1 if arguments.quick else 4
    isa = instruction_sets()[0]
    results, seconds = [], {}
    for n_events in sizes:
        for some, times in (sweeps(n_events, rounds, isa), pruning(n_events, rounds)):
            results += some
            seconds |= times
    some, times = expectation(sizes[0], rounds)
    results += some
    seconds |= times
    results += memory(100_000 if arguments.quick else 5_000_000)
    show(results)
    if not arguments.quick:
        rows = [asdict(result) | {"passed": result.passed} for result in results]
        kernels = " ".join({info["architecture"] for info in threadpool_info() if "architecture" in info})
        about = {"instruction_sets": " ".join(instruction_sets()), "openblas_kernels_by_default": kernels}
        write_results("cpu", {"about": about, "bars": rows, "seconds": seconds})


if __name__ == "__main__":
    main()
