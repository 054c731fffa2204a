"""Write measured times into the cards of the kernels (kernels/*.cu), from benchmarks/results/gpu.json.

    python benchmarks/gpu_cards.py
    python benchmarks/gpu_cards.py --check     exit code 1 if a card differs from the results

The times are those of D = 14 channels, K = 256 components and the sample `mix`.
"""

from __future__ import annotations

import argparse
import re
import sys

import gpu_page

from dpmix.kernels.build import FOLDER

N_CHANNELS, KIND = 14, "mix"
BUDGET = re.compile(r"^// Budget    (\w+), D = 14: .*$", re.MULTILINE)
WRITTEN = re.compile(r"^// Measured  .*\n", re.MULTILINE)


def measured(record: gpu_page.Record, kernel: str) -> str:
    """Return the line of a card with the time of a kernel."""
    for row in gpu_page.results(record, "kernels").get("kernels", []):
        if (row["kernel"], row["n_channels"], row["kind"]) == (kernel, N_CHANNELS, KIND):
            floor = gpu_page.floor_of(record, row)
            share = f", {floor.milliseconds / row['milliseconds']:.0%} of the floor" if floor else ""
            unit = gpu_page.limiting_unit(record, row)
            what = f"{row['milliseconds']:.3f} ms for {row['n_events']:,} events{share}"
            return f"{kernel}, {record['about']['device']}: {what}{unit and '; limited by ' + unit}."
    return f"{kernel}: not measured."


def card(text: str, record: gpu_page.Record) -> str:
    """Return a source with the times of its kernels above their limits."""
    lines = "".join(f"// Measured  {measured(record, kernel)}\n" for kernel in BUDGET.findall(text))
    return WRITTEN.sub("", text).replace("// Limits ", f"{lines}// Limits ", 1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args()
    record, differing = gpu_page.committed(), []
    for path in sorted(FOLDER.glob("*.cu")):
        text = path.read_text()
        made = card(text, record)
        if made != text:
            differing.append(path.name)
            if not asked.check:
                path.write_text(made)
    if differing:
        print(f"{'differ from the results' if asked.check else 'written'}: {', '.join(differing)}")
    return 1 if asked.check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
