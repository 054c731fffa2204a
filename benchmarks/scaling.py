"""Time a sweep against events, channels and components, one at a time; memory against events.

    python benchmarks/scaling.py            about 6 minutes on a quiet machine of two cores
    python benchmarks/scaling.py --quick    small samples, under half a minute, as a check of the script

The CPU engine's pass over the events on two threads, dense and pruned, and the host's part (new parameters,
one thread). Events and mixtures are `mixtures.sample(..., "mix")`. Each number is the shortest of a few;
the contenders take turns. A dense pass counts D^2 + 3D floating-point operations per event and component,
and is compared with the machine's sgemm, both as in cpu.py. Exponents are slopes of log seconds over the
upper half of the points. Memory is the peak of a separate process that makes events and sweeps them.
"""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import cpu
import numpy as np
from mixtures import Sample, sample
from plots import COLOURS, panels, significant
from record import arguments, read_results, write_results
from threadpoolctl import threadpool_limits

from dpmix.engines.cpu import CpuEngine, instruction_sets
from dpmix.model import gibbs
from dpmix.model.mixture import mixture_of
from dpmix.model.prior import Prior
from dpmix.model.streams import Key, Stream

THREADS = 2
BASE = {"N": 100_000, "D": 14, "K": 256}
SERIES = {
    "N": (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000),
    "D": (2, 4, 8, 14, 20, 30, 45, 64),
    "K": (16, 32, 64, 128, 256, 512, 1024, 2048, 4096),
}
QUICK_SERIES = {"N": (1_000, 3_000, 10_000, 30_000), "D": (2, 8, 14, 20), "K": (16, 32, 64, 128)}
MEMORY = (10_000, 1_000_000, 3_000_000, 10_000_000)
QUICK_MEMORY = (10_000, 100_000)
NAMES = {"N": "events", "D": "channels", "K": "components"}
PARTS = {"dense": "dense pass", "pruned": "pruned pass", "host": "host's part"}
WORK = 3e10
"""Floating point operations that rounds are made for: small cases get more rounds, at most 20, at least 2."""


def point(n_events: int, dim: int, n_components: int, sgemm: cpu.Sgemm) -> dict[str, float]:
    """Seconds of the parts of one sweep, and the dense pass's rate as a fraction of sgemm's."""
    data = sample(n_events, dim, n_components, "mix")
    rounds = int(np.clip(WORK / (n_events * n_components * (dim * dim + 3 * dim)), 2, 20))
    minima = cpu.Minima()
    with (
        closing(CpuEngine(data.events, threads=THREADS, pruning=False)) as dense,
        closing(CpuEngine(data.events, threads=THREADS)) as pruned,
    ):
        for _ in range(2):
            minima.note("sgemm", sgemm.seconds(THREADS))
            cpu.alternate(data, rounds, {"dense": dense, "pruned": pruned}, minima, soft=False)
        host(data, dense, minima)
        kept = pruned._native.kept
    return {
        "dense": minima.seconds["draw dense"],
        "pruned": minima.seconds["draw pruned"],
        "host": minima.seconds["host"],
        "kept": kept,
        "of sgemm": cpu.rate(minima, "draw dense", data, "sgemm"),
    }


def host(data: Sample, engine: CpuEngine, minima: cpu.Minima) -> None:
    """Time the host's part of a sweep: new parameters from its statistics, and their mixture."""
    n_components, dim = data.now.means.shape
    prior = Prior(np.zeros(dim), 5.0, 2.0, 0.3 * np.eye(dim), 1.0, 1.0)
    stats = engine.draw_labels(data.now.mixture(), Key(1, 0, 0))
    state = gibbs.draw_prior(prior, n_components, None, Stream(1, 0, 0))
    for iteration in range(5):
        stream = Stream(1, 0, iteration + 1)
        minima.time("host", lambda: mixture_of(gibbs.sweep(state, stats, prior, stream)[0]))  # noqa: B023


def measure(series: dict[str, tuple[int, ...]], memory: tuple[int, ...]) -> dict[str, Any]:
    """Points of all series, and peaks of memory."""
    results: dict[str, Any] = {"base": BASE, "threads": THREADS, "series": {}}
    sgemm = fastest_sgemm()
    for letter, values in series.items():
        results["series"][letter] = {}
        for value in values:
            shape = BASE | {letter: value}
            began = time.perf_counter()
            found = point(shape["N"], shape["D"], shape["K"], sgemm)
            results["series"][letter][str(value)] = found
            told = " ".join(f"{name} {number:.3g}" for name, number in found.items())
            print(f"{letter}={value:,}: {told} ({time.perf_counter() - began:.0f} s)", flush=True)
    sgemm.close()
    results["peak MB"] = {str(n): cpu.memory(n)[0].value for n in memory}
    print("peak MB", results["peak MB"])
    return results


def fastest_sgemm() -> cpu.Sgemm:
    """Return sgemm with the kernels that OpenBLAS chooses, or with given ones if they are faster (cpu.py)."""
    one, other = cpu.Sgemm(), cpu.Sgemm(instruction_sets()[0])
    slower, faster = sorted((one, other), key=lambda sgemm: sgemm.seconds(THREADS), reverse=True)
    slower.close()
    return faster


def exponent(points: dict[str, dict[str, float]], part: str) -> float:
    """Slope of log seconds over the upper half of the points."""
    upper = upper_half(points)
    seconds = [points[value][part] for value in upper]
    return float(np.polyfit(np.log([int(value) for value in upper]), np.log(seconds), 1)[0])


def upper_half(points: dict[str, Any]) -> list[str]:
    values = list(points)
    return values[len(values) // 2 :]


def table(letter: str) -> str:
    """Markdown of the sweeps against "N", "D" or "K", from the committed results."""
    results = read_results("scaling")["results"]
    points = results["series"][letter]
    lines = [
        f"| {letter} | dense pass, ms | of sgemm's rate | pruned pass, ms | of its work | host's part, ms |",
        "| ---: |" + " ---: |" * 5,
    ]
    for value, one in points.items():
        cells = [
            f"{int(value):,}",
            significant(1e3 * one["dense"]),
            f"{one['of sgemm']:.2f}",
            significant(1e3 * one["pruned"]),
            f"{one['kept']:.0%}",
            significant(1e3 * one["host"]),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    powers = {part: f"*{letter}^{exponent(points, part):.2f}*" for part in PARTS}
    lines.append(f"| *grows as* | {powers['dense']} | | {powers['pruned']} | | {powers['host']} |")
    first, last = (f"{int(value):,}" for value in (upper_half(points)[0], upper_half(points)[-1]))
    others = ", ".join(f"{name} = {value:,}" for name, value in results["base"].items() if name != letter)
    return "\n".join([*lines, "", f"{others}; the last line over {letter} from {first} to {last}."]) + "\n"


def memory_table() -> str:
    """Markdown of peak memory against events, from the committed results."""
    results = read_results("scaling")["results"]
    peaks = {int(n): peak for n, peak in results["peak MB"].items()}
    lines = [
        "| events | peak of the process, MB | more than above, bytes per event |",
        "| ---: | ---: | ---: |",
    ]
    above = None
    for n, peak in peaks.items():
        grown = "" if above is None else f"{1e6 * (peak - peaks[above]) / (n - above):.0f}"
        lines.append(f"| {n:,} | {peak:,.0f} | {grown} |")
        above = n
    base = results["base"]
    events = 4 * base["D"]
    text = f"D = {base['D']}, K = {base['K']}; an event itself is {events} bytes."
    return "\n".join([*lines, "", text]) + "\n"


def draw(results: dict[str, Any], *, quick: bool) -> None:
    """The series and the memory as a picture."""
    with panels("scaling", 2, 2, height=5.6, quick=quick) as axes:
        for ax, (letter, points) in zip(axes.flat[:3], results["series"].items(), strict=True):
            values = [int(value) for value in points]
            for (part, name), colour in zip(PARTS.items(), COLOURS, strict=False):
                milliseconds = [1e3 * one[part] for one in points.values()]
                ax.loglog(values, milliseconds, "o-", color=colour, label=name, markersize=3.5)
            others = ", ".join(
                f"{name} = {value:,}" for name, value in results["base"].items() if name != letter
            )
            ax.set_title(others)
            ax.set_xlabel(NAMES[letter])
            if letter != "N":
                ax.set_xticks(values[::2], [f"{value:,}" for value in values[::2]])
                ax.xaxis.minorticks_off()
            ax.set_ylabel("ms per sweep")
            ax.grid(color="#dddddd", linewidth=0.5)
        axes.flat[0].legend(frameon=False)
        ax, peaks = axes.flat[3], results["peak MB"]
        ax.plot(
            [int(n) / 1e6 for n in peaks], [peak / 1e3 for peak in peaks.values()], "o-", color=COLOURS[0]
        )
        ax.set_xlim(0)
        ax.set_ylim(0)
        ax.set_title(f"memory, D = {results['base']['D']}, K = {results['base']['K']}")
        ax.set_xlabel("events, millions")
        ax.set_ylabel("peak of the process, GB")
        ax.grid(color="#dddddd", linewidth=0.5)


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    with threadpool_limits(1, "blas"):
        results = measure(*((QUICK_SERIES, QUICK_MEMORY) if quick else (SERIES, MEMORY)))
    write_results("scaling", results, quick=quick)
    draw(results, quick=quick)


if __name__ == "__main__":
    main()
