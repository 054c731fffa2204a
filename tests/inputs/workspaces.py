"""FlowJo workspaces for tests, written by FlowKit."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flowkit
from lxml import etree

Limits = tuple[float | None, float | None]


def write_workspace(
    path: Path,
    files: Sequence[Path],
    gates: Mapping[str, Mapping[str, Limits]],
    transform: Any = None,
    names: Sequence[str] = (),
) -> None:
    """Write a workspace as FlowJo does, with rectangle gates in compensated, transformed channels.

    Parameters
    ----------
    path : Path
    files : sequence of Path
        FCS files with the same channels and $SPILLOVER.
    gates : mapping
        For each gate, for example "T/CD4", limits of detectors on the scale of the transform, from 0 to 1.
    transform : flowkit transform, optional
        Transform of all fluorescence channels; default: FlowJo's biex with its defaults.
    names : sequence of str, optional
        Names of the samples; default: the files' names.
    """
    transform = transform or flowkit.transforms.WSPBiexTransform()
    scale = 4096.0 if type(transform).__name__ == "WSPBiexTransform" else 1.0
    samples = [
        flowkit.Sample(str(file), sample_id=name)
        for file, name in zip(files, names or [file.name for file in files], strict=True)
    ]
    first, strategy = samples[0], flowkit.GatingStrategy()
    detectors = [first.pnn_labels[k] for k in first.fluoro_indices]
    spill = first.metadata.get("spillover")
    if spill:
        strategy.add_comp_matrix("Comp", flowkit.Matrix(spill, detectors))
    for detector in detectors:
        strategy.add_transform(detector, transform)
    for name, limits in gates.items():
        dimensions = [
            flowkit.Dimension(
                detector,
                "Comp" if spill else None,
                detector,
                *(None if x is None else x * scale for x in ends),
            )
            for detector, ends in limits.items()
        ]
        *parents, own = name.split("/")
        strategy.add_gate(flowkit.gates.RectangleGate(own, dimensions), ("root", *parents))
    session = flowkit.Session(strategy, samples)
    with path.open("wb") as file:
        session.export_wsp(file, "All")
    tree = etree.parse(str(path))
    for matrix in tree.find(".//Matrices"):  # FlowJo repeats it in each sample, FlowKit does not
        for sample in tree.findall(".//SampleList/Sample"):
            sample.insert(0, copy.deepcopy(matrix))
    tree.write(str(path))
