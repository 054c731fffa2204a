"""Compiled code of gpu_limits.cu and of the variants of draw_labels.cu.

A kit brings them in its folder `cubins`; elsewhere nvcc compiles them.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from dpmix.kernels.build import FOLDER, OPTIONS, PAPER, find_nvcc

HERE = Path(__file__).resolve().parent
CUBINS = HERE.parent / "cubins"

VARIANTS: dict[int, list[dict[str, int]]] = {
    30: [{}, {"MIN_BLOCKS": 2}, {"MIN_BLOCKS": 4}, {"EVENTS_PER_THREAD": 1}],
    64: [{}, {"THREADS": 128, "MIN_BLOCKS": 3}],
    14: [
        {},
        {"MIN_BLOCKS": 3},
        {"EVENTS_PER_THREAD": 1},
        {"EVENTS_PER_THREAD": 2, "MIN_BLOCKS": 6},
        {"THREADS": 64, "MIN_BLOCKS": 6},
        {"THREADS": 256, "MIN_BLOCKS": 1},
        {"CACHED": 8},
        {"TILES": 8},
        {"TILES": 32},
    ],
    8: [{}, {"MIN_BLOCKS": 6}, {"EVENTS_PER_THREAD": 4, "MIN_BLOCKS": 5}],
}
"""Constants that draw_labels.cu is compiled with, by number of channels; without any, it is as installed.

MIN_BLOCKS: blocks that fit on a multiprocessor at the same time, at the price of registers.
"""


def cubin(source: Path, architecture: str, defines: Mapping[str, int]) -> bytes:
    """Return the compiled code of a .cu file with some constants, from the kit if it has it."""
    made = CUBINS / file_name(source, architecture, defines)
    print(f"{source.stem} {dict(defines)}: {'of the kit' if made.exists() else 'compiled here'}", flush=True)
    return made.read_bytes() if made.exists() else compiled(source, architecture, defines)


def file_name(source: Path, architecture: str, defines: Mapping[str, int]) -> str:
    """Return the name of compiled code in a kit: it depends on all that the code depends on."""
    texts = [path.read_text() for path in (source, *sorted(FOLDER.glob("*.cuh")))]
    digest = hashlib.sha256("\0".join([*texts, *OPTIONS, *constants(defines)]).encode()).hexdigest()
    return f"{source.stem}-{architecture}-{digest[:16]}.cubin"


def compiled(source: Path, architecture: str, defines: Mapping[str, int]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "made.cubin"
        command = [str(find_nvcc()), "--cubin", *OPTIONS, f"-I{FOLDER}", f"-arch={architecture}"]
        subprocess.run([*command, *constants(defines), str(source), "-o", str(output)], check=True)
        return output.read_bytes()


def sources() -> Iterator[tuple[Path, dict[str, int]]]:
    """Yield all that the stages compile besides the engine's kernels: .cu files with constants."""
    yield HERE / "gpu_limits.cu", {}
    for dim, variants in VARIANTS.items():
        for name in PAPER:
            yield FOLDER / f"{name}.cu", {"N_CHANNELS": dim}
        for defines in variants:
            yield FOLDER / "draw_labels.cu", {"N_CHANNELS": dim, **defines}


def constants(defines: Mapping[str, int]) -> list[str]:
    return [f"-D{name}={value}" for name, value in sorted(defines.items())]
