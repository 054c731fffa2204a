"""Columns of event files as arrays of PyArrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

# `pyarrow.array` imports pandas, which takes longer than a small sample.


def arrow_numbers(column: npt.NDArray[Any]) -> Any:
    """Return numbers or truth values, contiguous, as an array of PyArrow that refers to them."""
    import pyarrow

    bits = np.packbits(column, bitorder="little") if column.dtype == bool else column
    kind = pyarrow.from_numpy_dtype(column.dtype)
    return pyarrow.Array.from_buffers(kind, len(column), [None, pyarrow.py_buffer(bits)])


def arrow_texts(texts: Sequence[str]) -> Any:
    """Return texts as an array of PyArrow."""
    import pyarrow

    encoded = [text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int32)
    buffers = pyarrow.py_buffer(ends), pyarrow.py_buffer(b"".join(encoded))
    return pyarrow.StringArray.from_buffers(len(texts), *buffers)
