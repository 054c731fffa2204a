"""Files laid out by dpmix have all that h5netcdf writes into them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5netcdf
import h5py
import numpy as np

from dpmix.runs import netcdf

NAMES = np.array(["CD3", "CD4 \N{GREEK SMALL LETTER ALPHA}"])
TABLE = np.arange(6.0).reshape(3, 2)


def by_dpmix(path: Path) -> None:
    with netcdf.create_file(path) as file:
        file.set_attributes({"title": "a run", "format": 3, "share": 0.5})
        file.create_variable("committed", (), np.int64, data=np.int64(0))
        group = file.create_group("posterior")
        group.create_dimension("draw", 3, np.arange(3))
        group.create_dimension("channel", 2, NAMES)
        group.create_dimension("character", 4)
        group.create_variable("means", ("draw", "channel"), np.float64, data=TABLE)
        group.create_variable("alpha", ("draw",), np.float64)
        group.create_variable("text", ("channel", "character"), "S1")
        group.create_variable("pairs", ("channel", "channel"), np.int32)
        group.create_variable("marker", ("channel",), NAMES.dtype, data=NAMES)
        other = file.create_group("trace")
        other.create_dimension("draw", 2, np.arange(2))
        other.create_variable("alpha", ("draw",), np.float32)


def by_h5netcdf(path: Path) -> None:
    with h5netcdf.File(path, "w") as file:
        file.attrs.update({"title": "a run", "format": 3, "share": 0.5})
        file.create_variable("committed", (), np.int64, data=np.int64(0))
        group = file.create_group("posterior")
        group.dimensions["draw"] = 3
        group.create_variable("draw", ("draw",), np.int64, data=np.arange(3))
        group.dimensions["channel"] = 2
        group.create_variable("channel", ("channel",), h5py.string_dtype(), data=NAMES.astype(object))
        group.dimensions["character"] = 4
        group.create_variable("means", ("draw", "channel"), np.float64, data=TABLE)
        group.create_variable("alpha", ("draw",), np.float64)
        group.create_variable("text", ("channel", "character"), "S1")
        group.create_variable("pairs", ("channel", "channel"), np.int32)
        group.create_variable("marker", ("channel",), h5py.string_dtype(), data=NAMES.astype(object))
        other = file.create_group("trace")
        other.dimensions["draw"] = 2
        other.create_variable("draw", ("draw",), np.int64, data=np.arange(2))
        other.create_variable("alpha", ("draw",), np.float32)


def contents(path: Path) -> dict[str, Any]:
    """Everything in a file but addresses, and the name of the library that wrote it."""
    found: dict[str, Any] = {}

    def note(name: str, one: h5py.Group | h5py.Dataset) -> None:
        found[name] = attributes_of(one), one.id.get_create_plist().get_attr_creation_order()
        if isinstance(one, h5py.Group):
            found[name] += (list(one), one.id.get_create_plist().get_link_creation_order())
            return
        scales: list[list[str]] = [[] for _ in range(0 if one.is_scale else one.ndim)]
        for axis, its in enumerate(scales):
            h5py.h5ds.iterate(one.id, axis, lambda scale, its=its: its.append(h5py.h5i.get_name(scale)), 0)
        label = h5py.h5ds.get_scale_name(one.id) if one.is_scale else None
        found[name] += (one.dtype.str, one.shape, one.maxshape, one.chunks, one[()].tolist(), scales, label)

    with h5py.File(path) as file:
        note("/", file)
        file.visititems(note)
    return found


def attributes_of(one: h5py.Group | h5py.Dataset) -> list[tuple[Any, ...]]:
    """Name, shape, type and value of each attribute; references to other datasets by their shape."""
    found: list[tuple[Any, ...]] = []
    for name in sorted(one.attrs):
        stored = one.attrs.get_id(name)
        value = None if name in ("REFERENCE_LIST", "DIMENSION_LIST") else np.asarray(one.attrs[name]).tolist()
        if name == "_NCProperties":
            assert value.startswith(b"version=2,")
            found.append((name,))
        else:
            found.append((name, stored.shape, stored.dtype.str, value))
    return found


def test_a_file_is_as_the_library_writes_it(tmp_path: Path) -> None:
    by_dpmix(tmp_path / "ours.nc")
    by_h5netcdf(tmp_path / "theirs.nc")
    ours, theirs = contents(tmp_path / "ours.nc"), contents(tmp_path / "theirs.nc")
    assert list(ours) == list(theirs)
    for name, one in theirs.items():
        assert ours[name] == one, name
