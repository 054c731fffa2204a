"""Model the time of the CUDA kernels from instructions, and count the work that pruning keeps.

    python benchmarks/cuda_model.py            N = 65,536, D = 14, K = 256; minutes if devices are emulated
    python benchmarks/cuda_model.py --quick    few events, as a check of the script

The share of the multiply-adds that a pruned draw makes is counted by the kernel, for the samples of
mixtures.py. The events are one chunk, as the kernel sorts them.

The model is the number of warp instructions over the rate at which an H200 issues them: 132 multiprocessors,
four schedulers each, one instruction per cycle, 1.98 GHz. Instructions are counted in the SASS for sm_90
(nvcc 13.0, nvdisasm; D = 14), for a component and the 128 events of a warp (cuda_instructions.py). It has no
term for latency, memory or launches, so it is a lower limit of the kernel's time, not a prediction.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

from mixtures import Kind, sample
from record import write_results
from rich.console import Console
from rich.table import Table

from dpmix.engines.cuda.engine import CudaEngine
from dpmix.model.streams import Key

ISSUES_PER_SECOND = 132 * 4 * 1.98e9
EVENTS_PER_WARP = 128
KINDS: tuple[Kind, ...] = ("mix", "dp", "ovl")
FLOOR = 4 * (14 * 15 // 2 + 2 * 14)  # multiply-adds and differences of a component and four events

DENSE, WEIGHTED = 594, 60
"""Instructions of a component in draw_labels: the log density, and the weights if one event has weight."""
AGAIN = 6 * 16 / (4 * 256)
"""Share of the second level of draw_labels: 6 groups of 16 components for a warp, one event per thread."""
SORTED_FIXED, SORTED_WHOLE = 40, 650
"""Instructions of a component in draw_sorted: loop and first vote, and all rows with their votes."""
JOINT_SHARES, JOINT_QUEUE, PER_SHARE = 100, 120, 66
"""Instructions of expect_moments besides the log density: shares, queue, and the sums of one event."""


@dataclass(frozen=True)
class Modelled:
    """Share of the multiply-adds, and milliseconds of the kernels for N = 1,000,000 events and K = 256."""

    kind: str
    share: float
    draw_labels: float
    draw_sorted: float


def milliseconds(instructions: float, n_events: int = 1_000_000, n_components: int = 256) -> float:
    """Return the time of instructions per component and warp."""
    return instructions * n_components * n_events / EVENTS_PER_WARP / ISSUES_PER_SECOND * 1e3


def share(kind: Kind, n_events: int, n_components: int) -> float:
    """Count the share of the multiply-adds that a pruned draw makes, with the labels of the draw before."""
    data = sample(n_events, 14, n_components, kind)
    engine = CudaEngine(data.events, devices=[0])
    try:
        engine.draw_labels(data.before.mixture(), Key(1, 0, 0))
        engine.draw_labels(data.now.mixture(), Key(1, 0, 1))
        return engine._pruning.share(n_components, engine._accounts)
    finally:
        engine.close()


def modelled(kind: Kind, kept: float) -> Modelled:
    dense = DENSE * (1 + AGAIN) + (WEIGHTED if kind == "ovl" else 0)
    pruned = SORTED_FIXED + kept * SORTED_WHOLE + (WEIGHTED if kind == "ovl" else 0)
    return Modelled(kind, round(kept, 3), round(milliseconds(dense), 2), round(milliseconds(pruned), 2))


def em_step(shares_per_event: float) -> float:
    """Return the milliseconds of both kernels of an E step, given the components with weight for an event."""
    totals = DENSE + WEIGHTED
    moments = DENSE + JOINT_SHARES + JOINT_QUEUE
    sums = shares_per_event * PER_SHARE * EVENTS_PER_WARP / 256  # for a component and a warp
    return milliseconds(totals + moments + sums)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="few events; the shares mean nothing then")
    quick = parser.parse_args().quick
    n_events, n_components = (2000, 40) if quick else (65_536, 256)
    rows = [modelled(kind, share(kind, n_events, n_components)) for kind in KINDS]
    table = Table("sample", "share made", "draw_labels, ms", "draw_sorted, ms")
    for row in rows:
        table.add_row(row.kind, f"{row.share:.3f}", f"{row.draw_labels:.2f}", f"{row.draw_sorted:.2f}")
    Console().print(table)
    floor, step = milliseconds(FLOOR), em_step(3.0)
    print(f"floor of a dense draw: {floor:.2f} ms; E step, 3 components with weight per event: {step:.2f} ms")
    if not quick:
        results = {"rows": [asdict(row) for row in rows], "floor_milliseconds": floor, "em_step": step}
        write_results("cuda_model", results)


if __name__ == "__main__":
    main()
