"""Count the instructions of the CUDA kernels' innermost loops, and model their time.

    python benchmarks/cuda_instructions.py    half a minute; needs nvcc and nvdisasm

The kernels are compiled for sm_90 and D = 14, and also two forms that are not used: `draw_labels` with
-ftz=true, and log densities by tensor cores (tensor_form.cu, which has never run). nvdisasm comes with the
CUDA toolkit, and from the package index as nvidia-cuda-nvdisasm; NVDISASM may hold its path.

Of each kernel, the loop with the most float32 operations is taken. `least` counts an iteration that leaves
out all it can, in most kernels the weights of components without weight; `all` counts every instruction.
The model divides `least` by the rate at which an H200 issues instructions (cuda_model.py).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from cuda_model import ISSUES_PER_SECOND
from record import write_results

from dpmix.kernels.build import FOLDER, OPTIONS, find_nvcc
from dpmix.kernels.layout import THREADS, Layout

DIM, ARCHITECTURE = 14, "sm_90"
N_EVENTS, N_COMPONENTS = 1_000_000, 256
EVENTS = Layout(DIM).events_per_block // THREADS
MATRIX_CYCLES = 4
"""Cycles of an HMMA of 16 by 8 by 8 in TF32: 1,024 multiply-adds at a nominal rate of 256 a cycle."""
INSTRUCTION = re.compile(r"/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z][A-Z0-9_.]*)(.*?);")
LABEL = re.compile(r"^(\.L_x_\d+):")
TARGET = re.compile(r"`\((\.L_x_\d+)\)")


@dataclass(frozen=True)
class Form:
    """A kernel and how to compile it; `pairs` are the pairs of event and component of a warp's iteration."""

    label: str
    kernel: str
    source: Path
    pairs: int
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Counted:
    """Instructions of an iteration by a warp, registers of a thread, and modelled milliseconds."""

    form: str
    pairs: int
    least: int
    all: int
    float32: int
    matrix: int
    registers: int
    per_pair: float
    milliseconds: float


FORMS = [
    Form("mvn_log_density", "mvn_log_density", FOLDER / "mvn_log_density.cu", 32 * EVENTS),
    Form("draw_labels", "draw_labels", FOLDER / "draw_labels.cu", 32 * EVENTS),
    Form("draw_labels, -ftz=true", "draw_labels", FOLDER / "draw_labels.cu", 32 * EVENTS, ("-ftz=true",)),
    Form("expect_totals", "expect_totals", FOLDER / "expect_labels.cu", 32 * EVENTS),
    Form("memberships", "memberships", FOLDER / "memberships.cu", 32 * EVENTS),
    Form("tensor_form (3xTF32)", "tensor_form", Path(__file__).parent / "tensor_form.cu", 64),
]


@dataclass(frozen=True)
class Instruction:
    """An instruction: its operation, and the label that it jumps to."""

    operation: str
    target: str | None


def find_nvdisasm() -> str:
    found = os.environ.get("NVDISASM") or shutil.which("nvdisasm")
    if found is None:
        sys.exit("nvdisasm is not on PATH: install it (pip install nvidia-cuda-nvdisasm) and set NVDISASM")
    return found


def compiled(form: Form, folder: Path) -> tuple[str, int]:
    """Return the SASS of a form's kernel, and its registers."""
    cubin = folder / "made.cubin"
    options = [*OPTIONS, *form.options, f"-I{FOLDER}", f"-arch={ARCHITECTURE}", f"-DN_CHANNELS={DIM}"]
    command = [str(find_nvcc()), "--cubin", "--resource-usage", *options, str(form.source), "-o", str(cubin)]
    said_by_nvcc = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    usage = re.search(rf"entry function '{form.kernel}'.*?Used (\d+) registers", said_by_nvcc, re.S)
    assert usage is not None, said_by_nvcc
    sass = subprocess.run([find_nvdisasm(), "-c", str(cubin)], check=True, capture_output=True, text=True)
    return sass.stdout.partition(f".text.{form.kernel}:")[2].partition(".section")[0], int(usage.group(1))


def parsed(sass: str) -> tuple[list[Instruction], dict[str, int]]:
    """Return the instructions of a kernel, and the place of each label."""
    instructions: list[Instruction] = []
    labels = {}
    for line in sass.splitlines():
        if label := LABEL.match(line):
            labels[label.group(1)] = len(instructions)
        elif found := INSTRUCTION.search(line):
            operation, operands = found.groups()
            target = TARGET.search(operands) if operation == "BRA" else None
            instructions.append(Instruction(operation, target and target.group(1)))
    return instructions, labels


def loop(instructions: list[Instruction], labels: dict[str, int]) -> range:
    """Return the innermost loop with the most float32 operations, or matrix operations if there are some."""
    ranges = [
        range(labels[one.target], place + 1)
        for place, one in enumerate(instructions)
        if one.target in labels and labels[one.target] <= place
    ]
    inner = [one for one in ranges if not any(other != one and set(other) < set(one) for other in ranges)]

    def work(places: range) -> int:
        found = Counter(instructions[i].operation.partition(".")[0] for i in places)
        return found["FFMA"] + found["FMUL"] + found["FADD"] + 100 * found["HMMA"]

    return max(inner, key=work)


def least(instructions: list[Instruction], labels: dict[str, int], places: range) -> list[Instruction]:
    """Return the instructions of an iteration that takes every branch forward within the loop."""
    at, taken = places.start, []
    while at < places.stop:
        one = instructions[at]
        taken.append(one)
        forward = one.target is not None and at < labels.get(one.target, -1) < places.stop
        at = labels[one.target] if forward and one.target is not None else at + 1
    return taken


def count(form: Form, folder: Path) -> Counted:
    """Compile a form and count the instructions of its loop."""
    sass, registers = compiled(form, folder)
    instructions, labels = parsed(sass)
    places = loop(instructions, labels)
    taken = least(instructions, labels, places)
    kinds = Counter(one.operation.partition(".")[0] for one in taken)
    warps = N_EVENTS * N_COMPONENTS / form.pairs
    busy = max(len(taken), MATRIX_CYCLES * kinds["HMMA"])
    return Counted(
        form.label,
        form.pairs,
        len(taken),
        len(places),
        kinds["FFMA"] + kinds["FMUL"] + kinds["FADD"],
        kinds["HMMA"],
        registers,
        32 * len(taken) / form.pairs,
        round(1e3 * busy * warps / ISSUES_PER_SECOND, 2),
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [count(form, Path(folder)) for form in FORMS]
    for row in rows:
        print(row)
    write_results("cuda_instructions", [asdict(row) for row in rows])


if __name__ == "__main__":
    main()
