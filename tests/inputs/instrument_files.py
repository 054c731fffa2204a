"""Small FCS files after the conventions of instruments, for tests and for benchmarks/files.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from test_fcs import channel_keywords, make_fcs

from dpmix.inputs.fcs.data import write_fcs

Array = npt.NDArray[Any]
N = 2_000


def light(rng: np.random.Generator, dim: int, bright: float = 5_000.0, sd: float = 60.0) -> Array:
    """Return light with noise about zero; each of two populations is bright in half of the channels."""
    kinds = rng.integers(0, 2, N)[:, None]
    positive = (np.arange(dim)[None, :] % 2) == kinds
    signal = np.where(positive, bright * np.exp(rng.normal(0, 0.4, (N, dim))), 0)
    return signal + rng.normal(0, sd, (N, dim))


def ions(rng: np.random.Generator, dim: int) -> Array:
    """Return ion counts of two populations, with many zeros."""
    kinds = rng.integers(0, 2, N)[:, None]
    expected = np.where((np.arange(dim)[None, :] % 2) == kinds, 120.0, 0.8)
    return rng.poisson(expected * rng.gamma(3, 1 / 3, (N, dim))).astype(float)


CYTOF = {
    "Time": "",
    "Event_length": "",
    "Y89Di": "89Y_CD45",
    "Pd102Di": "102Pd_BC1",
    "Pd110Di": "110Pd",
    "Rh103Di": "103Rh_Viability",
    "Xe131Di": "131Xe",
    "Ce140Di": "140Ce_EQ4_beads",
    "Nd142Di": "142Nd_CD19",
    "Sm147Di": "147Sm_CD20",
    "Er170Di": "170Er_CD3",
    "Ir191Di": "191Ir_DNA1",
    "Ir193Di": "193Ir_DNA2",
    "Pt195Di": "195Pt_Cisplatin",
    "Center": "",
    "Offset": "",
    "Width": "",
    "Residual": "",
}


def cytof(path: Path, rng: np.random.Generator, randomised: bool = False) -> None:
    """Write a file of a CyTOF; its software randomises counts, or does not."""
    counts = ions(rng, len(CYTOF))
    counts = counts - rng.random(counts.shape) if randomised else counts
    counts[:, 0] = np.arange(N)
    keywords = {"$CYT": "DVSSCIENCES-CYTOF-6.7.1014"}
    write_fcs(path, counts.astype(np.float32), [*CYTOF], [*CYTOF.values()], keywords)


def helios(path: Path, rng: np.random.Generator) -> None:
    """Write a file with randomised counts."""
    cytof(path, rng, randomised=True)


def converted_cytof(path: Path, rng: np.random.Generator) -> None:
    """Write a file of a mass cytometer after a converter: no $CYT, names without isotopes."""
    write_fcs(path, ions(rng, 6).astype(np.float32), ["CD3", "CD4", "CD8", "CD19", "CD20", "CD45"])


def facsdiva(path: Path, rng: np.random.Generator) -> None:
    """Write areas, heights and widths, a viability stain, a constant channel, and time with a gain."""
    area = light(rng, 4)
    names = [f"{dye}-{pulse}" for dye in ("FSC", "FITC", "PE", "APC", "BV510") for pulse in "AHW"]
    values = np.column_stack(
        [np.column_stack((x, x * 0.8, 60_000 + x / 9)) for x in (30_000 + 9 * area[:, 0], *area.T)]
    )
    values = np.column_stack((values, np.zeros(N), np.arange(N) / 9))
    markers = dict.fromkeys(names, "") | {
        "FITC-A": "CD3",
        "PE-A": "CD4",
        "APC-A": "CD8",
        "BV510-A": "L/D Aqua",
    }
    spillover = "4,FITC-A,PE-A,APC-A,BV510-A,1,0.1,0,0,0.02,1,0,0,0,0,1,0,0,0,0,1"
    keywords = {"$CYT": "LSRFortessa", "$SPILLOVER": spillover, "$P17G": "0.01"}
    write_fcs(
        path, values.astype(np.float32), [*names, "BUV395-A", "Time"], [*markers.values(), "", ""], keywords
    )


def accuri(path: Path, rng: np.random.Generator) -> None:
    """Write 24-bit areas and heights with an identity matrix; noise is clipped at 0."""
    values = np.column_stack((np.rint(np.maximum(light(rng, 3), 0)), np.rint(np.maximum(light(rng, 3), 0))))
    names = ["FL1-A", "FL2-A", "FL3-A", "FL1-H", "FL2-H", "FL3-H"]
    ends = {f"$P{k}R": "16777216" for k in range(1, 7)}
    keywords = {"$CYT": "Accuri C6", "$SPILLOVER": "3,FL1-A,FL2-A,FL3-A,1,0,0,0,1,0,0,0,1", **ends}
    write_fcs(path, values.astype(np.float32), names, None, keywords)


def influx(path: Path, rng: np.random.Generator) -> None:
    """Write log-scaled heights and widths in names such as 450-50W, and a matrix of other names."""
    names = ["450-50", "450-50W", "530-40", "530-40W", "Event Count", "Computed Time", "Unused1"]
    values = np.column_stack((light(rng, 4), np.arange(N), np.arange(N), np.zeros(N)))
    keywords = {"$CYT": "BD Influx", "$SPILLOVER": "2,P1,P2,1,0.1,0.2,1"}
    write_fcs(path, values.astype(np.float32), names, None, keywords)


def macsquant(path: Path, rng: np.random.Generator) -> None:
    """Write FCS 3.1 with a range of 1,000 and a matrix that names no channel."""
    names = ["HDR-T", "HDR-CE", "FSC-A", "FL1-A", "FL1-H", "FL2-A", "FL2-H", "FL3-A", "FL3-H"]
    values = np.column_stack((np.arange(N), np.arange(N), light(rng, 7, 60.0, 0.3)))
    ends = {f"$P{k}R": "1000" for k in range(1, 10)}
    keywords = {"$CYT": "MACSQuant", "$SPILLOVER": "2,V1,V2,1,0,0.1,1", **ends}
    write_fcs(path, values.astype(np.float32), names, None, keywords)


def gallios(path: Path, rng: np.random.Generator) -> None:
    """Write integral, peak and time of flight, linear and logarithmic, in 20 bits."""
    spelled = ["INT LIN", "INT LOG", "PEAK LIN", "TOF"]
    names = ["FS INT LIN", *(f"FL{k} {measured}" for k in (1, 2) for measured in spelled)]
    values = np.maximum(light(rng, len(names), 20_000.0, 300.0), 0)
    ends = {f"$P{k}R": "1048576" for k in range(1, len(names) + 1)}
    write_fcs(path, values.astype(np.float32), names, None, {"$CYT": "Gallios", **ends})


def moflo(path: Path, rng: np.random.Generator) -> None:
    """Write 16-bit linear and logarithmic measurements of each detector, the linear ones with a gain."""
    bright = 10 ** np.clip(rng.normal(1.5 + 1.5 * rng.integers(0, 2, (N, 2)), 0.25), 0.1, 3.99)
    columns, keywords = [], {}
    for name, x in zip(("FL1", "FL2"), bright.T, strict=True):
        for measured, stored in (("Lin", x * 6.5536), ("Log", np.log10(x) / 4 * 65_536)):
            columns.append(np.rint(stored))
            k = len(columns)
            linear = {f"$P{k}E": "0,0", f"$P{k}G": "6.5536"}
            keywords |= {f"$P{k}N": f"{name}_{measured}_Height"}
            keywords |= linear if measured == "Lin" else {f"$P{k}E": "4,1"}
    data = np.column_stack(columns).astype("<u2").tobytes()
    base = channel_keywords([16] * 4, ["65536"] * 4, n_events=N)
    make_fcs(path, data, base | keywords)


def computed_ranges(path: Path, rng: np.random.Generator) -> None:
    """Write an export in which $PnR is the largest event of each channel."""
    values = light(rng, 3)
    ends = {f"$P{k}R": f"{x:.0f}" for k, x in enumerate(values.max(0), 1)}
    write_fcs(path, values.astype(np.float32), ["A-A", "B-A", "C-A"], None, ends)


def partial_matrix(path: Path, rng: np.random.Generator) -> None:
    """Write a matrix in which one name is not a channel's."""
    write_fcs(
        path,
        light(rng, 2).astype(np.float32),
        ["PE-A", "APC-A"],
        None,
        {"$SPILLOVER": "3,PE-A,APC-A,X-A,1,0.1,0,0,1,0,0,0,1"},
    )


def genome_size(path: Path, rng: np.random.Generator) -> None:
    """Write scatter, propidium iodide and time."""
    values = np.column_stack((light(rng, 2), np.arange(N)))
    write_fcs(path, values.astype(np.float32), ["SSC-A", "PI-A", "Time"])


def spectral(path: Path, rng: np.random.Generator) -> None:
    """Write 40 detectors of a spectral cytometer, without markers."""
    values = np.column_stack((light(rng, 41), np.arange(N)))
    names = ["FSC-A", *(f"{laser}{k}-A" for laser in ("V", "B", "YG", "R") for k in range(1, 11)), "Time"]
    write_fcs(path, values.astype(np.float32), names, None, {"$CYT": "Aurora"})


def only_scatter(path: Path, rng: np.random.Generator) -> None:
    """Write a file without a marker."""
    write_fcs(path, light(rng, 3).astype(np.float32), ["FSC-A", "SSC-A", "Time"])


def only_time(path: Path, rng: np.random.Generator) -> None:
    """Write a file in which nothing is measured."""
    values = np.column_stack((np.arange(N), np.arange(N)))
    write_fcs(path, values.astype(np.float32), ["Time", "Event #"])


WRITTEN: dict[str, tuple[Callable[[Path, np.random.Generator], None], list[str] | str]] = {
    "facsdiva": (facsdiva, ["FITC-A", "PE-A", "APC-A"]),
    "accuri": (accuri, ["FL1-A", "FL2-A", "FL3-A"]),
    "influx": (influx, ["450-50", "530-40"]),
    "macsquant": (macsquant, ["FL1-A", "FL2-A", "FL3-A"]),
    "gallios": (gallios, ["FL1 INT LIN", "FL2 INT LIN"]),
    "moflo": (moflo, ["FL1_Lin_Height", "FL2_Lin_Height"]),
    "computed_ranges": (computed_ranges, ["A-A", "B-A", "C-A"]),
    "cytof": (cytof, ["Y89Di", "Nd142Di", "Sm147Di", "Er170Di"]),
    "helios": (helios, ["Y89Di", "Nd142Di", "Sm147Di", "Er170Di"]),
    "converted_cytof": (converted_cytof, ["CD3", "CD4", "CD8", "CD19", "CD20", "CD45"]),
    "partial_matrix": (partial_matrix, "the spillover matrix names X-A"),
    "only_scatter": (only_scatter, ["FSC-A", "SSC-A"]),
    "genome_size": (genome_size, ["PI-A"]),
    "spectral": (spectral, [f"{laser}{k}-A" for laser in ("V", "B", "YG", "R") for k in range(1, 11)]),
    "only_time": (only_time, "no channel can be used"),
}


def write(folder: Path, name: str) -> Path:
    """Write one of the files and return its path."""
    path = folder / f"{name}.fcs"
    WRITTEN[name][0](path, np.random.default_rng(1))
    return path
