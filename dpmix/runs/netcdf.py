"""Lay out HDF5 files as netCDF-4 does, with each dimension looked up once.

h5netcdf writes the same files, but opens every dimension again for each dataset and each attribute: most of
the time of a short run. A test compares the two.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from dpmix.system.version import VERSION

DIMENSION, COORDINATES = "_Netcdf4Dimid", "_Netcdf4Coordinates"
NO_VALUES = "This is a netCDF dimension but not a netCDF variable."


class Group:
    """A group of a file that is laid out, or the file itself.

    Parameters
    ----------
    group : h5py.Group
    numbers : iterator of int
        The next numbers of dimensions, which are unique in a file.
    """

    def __init__(self, group: h5py.Group, numbers: Iterator[int]) -> None:
        self._group, self._numbers = group, numbers
        self._scales: dict[str, tuple[h5py.Dataset, int]] = {}

    def create_group(self, name: str) -> Group:
        """Create a group within this one; it does not know the dimensions of this one."""
        return Group(self._group.create_group(name, track_order=True), self._numbers)

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        """Write attributes; a number is an array of one, as in files of the netCDF library."""
        for name, value in attributes.items():
            number = isinstance(value, (int, float, np.number))
            self._group.attrs[name] = np.atleast_1d(value) if number else value

    def create_dimension(self, name: str, size: int, values: npt.NDArray[Any] | None = None) -> None:
        """Create a dimension, with values along it or without."""
        if values is None:
            scale = self._create(name, (size,), ">f4")
        else:
            scale = self._create(name, values.shape, values.dtype, data=values)
        number = next(self._numbers)
        scale.attrs[DIMENSION] = np.int32(number)
        scale.make_scale(f"{NO_VALUES}{size:10}" if values is None else name)
        if values is not None:
            scale.attrs[COORDINATES] = np.array([number], np.int32)
        self._scales[name] = scale, number

    def create_variable(
        self, name: str, dims: Sequence[str], dtype: npt.DTypeLike, **options: Any
    ) -> h5py.Dataset:
        """Create a dataset over dimensions of this group; options as in `h5py.Group.create_dataset`."""
        scales = [self._scales[dim] for dim in dims]
        made = self._create(name, tuple(scale.shape[0] for scale, _ in scales), dtype, **options)
        for axis, (scale, _) in enumerate(scales):
            h5py.h5ds.attach_scale(made.id, scale.id, axis)
        if scales:
            numbers = np.array([number for _, number in scales], np.int32)
            made.attrs[COORDINATES] = numbers
            made.attrs[DIMENSION] = numbers[0]
        return made

    def _create(
        self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike, **options: Any
    ) -> h5py.Dataset:
        if np.dtype(dtype).kind in "OU":  # texts of any length
            dtype, options["data"] = h5py.string_dtype(), options["data"].astype(object)
        return self._group.create_dataset(name, shape, dtype=dtype, track_order=True, **options)


@contextmanager
def create_file(path: Path, **options: Any) -> Iterator[Group]:
    """Create a file; options as in `h5py.File`."""
    with h5py.File(path, "w", track_order=True, **options) as file:
        yield Group(file, itertools.count())
        libraries = f"version=2,dpmix={VERSION},hdf5={h5py.version.hdf5_version},h5py={h5py.__version__}"
        file.attrs["_NCProperties"] = np.array(libraries, h5py.string_dtype("ascii", len(libraries)))
