"""The pages of mapped files, which count as memory of this process until they are released."""

from __future__ import annotations

import mmap

import numpy as np


def release(values: np.memmap) -> None:
    """Release all pages of a mapped file; on Windows the system does so itself when memory is short."""
    if hasattr(mmap, "MADV_DONTNEED"):
        values._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]
