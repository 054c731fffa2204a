"""Write measured times and registers into the cards of the kernels (kernels/*.cu).

    python benchmarks/gpu_cards.py                 times, from benchmarks/results/gpu.json
    python benchmarks/gpu_cards.py --registers     registers by architecture too; needs nvcc
    python benchmarks/gpu_cards.py --check         exit code 1 if a card's times differ from the results

The times are for D = 14 channels, K = 256 components and the sample `mix`.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gpu_page

from dpmix.kernels.build import FOLDER, OPTIONS, find_nvcc

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_120")
N_CHANNELS, KIND = 14, "mix"
BUDGET = re.compile(r"^// Budget    (\w+), D = 14: .*$", re.MULTILINE)
WRITTEN = re.compile(r"^// (Measured  |          registers by architecture: ).*\n", re.MULTILINE)
REGISTERS = re.compile(r"^//           registers by architecture: (.*)\.$", re.MULTILINE)
USED = re.compile(r"Compiling entry function '(\w+)'.*?Used (\d+) registers", re.DOTALL)


def measured(record: gpu_page.Record, kernel: str) -> str:
    """Return the line of a card with the time of a kernel."""
    for row in gpu_page.timed_kernels(record):
        if (row["kernel"], row["n_channels"], row["kind"]) == (kernel, N_CHANNELS, KIND):
            floor = gpu_page.floor_of(record, row)
            share = f", {floor.milliseconds / row['milliseconds']:.0%} of the floor" if floor else ""
            unit = gpu_page.limiting_unit(record, row)
            what = f"{row['milliseconds']:.3f} ms for {row['n_events']:,} events{share}"
            return f"{kernel}, {record['about']['device']}: {what}{unit and '; limited by ' + unit}."
    return f"{kernel}: not measured."


def registers(name: str) -> dict[str, dict[str, int]]:
    """Return registers by kernel of NAME.cu and architecture, from ptxas."""
    found: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for architecture in ARCHITECTURES:
            command = [str(find_nvcc()), *OPTIONS, f"-DN_CHANNELS={N_CHANNELS}", f"-arch={architecture}"]
            command += [f"-I{FOLDER}", "--ptxas-options=-v", "--cubin", str(FOLDER / f"{name}.cu")]
            output = Path(folder) / "made.cubin"
            done = subprocess.run([*command, "-o", str(output)], capture_output=True, text=True, check=True)
            for kernel, number in USED.findall(done.stderr):
                found.setdefault(kernel, {})[architecture] = int(number)
    return found


def stated(text: str) -> dict[str, str]:
    """Return the registers by architecture on a card, by kernel, as text."""
    kernels, lines = BUDGET.findall(text), REGISTERS.findall(text)
    return dict(zip(kernels, lines, strict=False)) if len(lines) == len(kernels) else {}


def card(text: str, used: dict[str, str], record: gpu_page.Record) -> str:
    """Return a source with a line of registers below each budget, and the times above its limits."""

    def with_registers(budget: re.Match[str]) -> str:
        line = used.get(budget.group(1))
        return budget.group() + (f"\n//           registers by architecture: {line}." if line else "")

    times = "".join(f"// Measured  {measured(record, kernel)}\n" for kernel in BUDGET.findall(text))
    bare = WRITTEN.sub("", text)
    return BUDGET.sub(with_registers, bare).replace("// Limits ", f"{times}// Limits ", 1)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--registers", action="store_true", help="compile the kernels; needs nvcc")
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args()
    record, paths = gpu_page.committed(), sorted(FOLDER.glob("*.cu"))
    compiled = {}
    if asked.registers:
        with ThreadPoolExecutor() as pool:
            compiled = dict(zip(paths, pool.map(lambda path: registers(path.stem), paths), strict=True))
    differing = []
    for path in paths:
        text = path.read_text()
        of_kernels = compiled.get(path, {}).items()
        used = {k: ", ".join(f"{a} {n}" for a, n in each.items()) for k, each in of_kernels}
        made = card(text, used or stated(text), record)
        if made != text:
            differing.append(path.name)
            if not asked.check:
                path.write_text(made)
    if differing:
        print(f"{'differ from the results' if asked.check else 'written'}: {', '.join(differing)}")
    return 1 if asked.check and differing else 0


if __name__ == "__main__":
    sys.exit(main())
