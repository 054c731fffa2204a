"""Allocation of memory on the current CUDA device."""

from __future__ import annotations

from typing import Any

import pycuda.driver as driver


def allocate(size: int, spare: int | None = None) -> Any:
    """Allocate bytes; return None if the device has too little memory.

    Parameters
    ----------
    size : int
    spare : int, optional
        Bytes that must stay free, for others. Default: a sixteenth of the free bytes.
    """
    free = driver.mem_get_info()[0]
    if size > free - (free // 16 if spare is None else spare):
        return None
    try:
        return driver.mem_alloc(size)
    except driver.MemoryError:  # it may be free in pieces
        return None


def cleared(size: int) -> Any:
    """Allocate bytes, a multiple of 4, and clear them.

    Whole chunks of results are copied to the host. Of the last chunk, kernels write the events that exist.
    """
    memory = driver.mem_alloc(size)
    driver.memset_d32(memory, 0, size // 4)
    return memory
