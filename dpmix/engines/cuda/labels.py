"""The labels of a chain on one CUDA device between its passes, and the order of the events by label."""

from __future__ import annotations

import logging
from typing import NamedTuple

import numpy as np
import pycuda.driver as driver

from dpmix.engines.cuda.allocation import allocate
from dpmix.engines.cuda.work import Labels
from dpmix.kernels.layout import CHUNK

log = logging.getLogger("dpmix")

BYTES = 4
"""Each event of a chain takes these on the device: its label, and a place in the order of its chunk."""


class BatchLabels(NamedTuple):
    """The labels of a batch of chunks.

    Attributes
    ----------
    at, order_at : int
        Device addresses of the labels, uint16 [slots, CHUNK], and of the places in each chunk by label.
    known : bool
        The chain's last pass has written the labels; they are copied from `here` first if that is an array.
    has_order : bool
        The order stays on the device with the labels.
    here : uint16 [slots, CHUNK], optional
        The labels on the host between passes.
    """

    at: int
    order_at: int
    known: bool = False
    has_order: bool = False
    here: Labels | None = None

    @property
    def addresses(self) -> tuple[int, int, int]:
        """Addresses of the labels, the order, and the labels on the host (0: none)."""
        return self.at, self.order_at, 0 if self.here is None else self.here.ctypes.data


class ChainLabels:
    """The labels of a chain, for the chunks of a device's share.

    They stay on the device, with the order of the events, if `BYTES` per event fit. Otherwise they stay in
    page-locked memory of the host and are copied in every pass.

    Parameters
    ----------
    number, chain : int
        Numbers of the device and the chain, for messages.
    n_chunks : int
        Chunks of the share.
    """

    def __init__(self, number: int, chain: int, n_chunks: int) -> None:
        self._number, self._chain, self._shape = number, chain, (n_chunks, CHUNK)
        self._here: Labels | None = None
        self._labels = allocate(n_chunks * CHUNK * BYTES)  # then the order
        if self._labels is None:
            self._keep_here("has no room for")
        else:
            # Whole chunks are copied to the host. Of the last one, kernels write the events that exist.
            driver.memset_d32(self._labels, 0, n_chunks * CHUNK // 2)

    @property
    def on_device(self) -> bool:
        """True if the labels stay on the device between passes."""
        return self._here is None

    def batch(self, place: int, n_chunks: int, scratch: BatchLabels) -> BatchLabels:
        """Return the labels of consecutive chunks of the share, from a place on.

        Labels on the host are copied to and from `scratch`.
        """
        if self._here is not None:
            return scratch._replace(known=True, here=self._here[place : place + n_chunks])
        first = int(self._labels) + place * CHUNK * 2
        return BatchLabels(first, first + self._shape[0] * CHUNK * 2, True, True)

    def read(self) -> Labels:
        """Return a copy of the labels, uint16 [chunks, CHUNK]."""
        labels = np.empty(self._shape, np.uint16)
        if self._here is None:
            driver.memcpy_dtoh(labels, self._labels)
        else:
            labels[...] = self._here
        return labels

    def leave_device(self) -> None:
        """Move the labels to the host, so that the device has more room."""
        labels = self.read()
        self._labels = None
        self._keep_here("needs the room of")[...] = labels

    def _keep_here(self, why: str) -> Labels:
        text = "CUDA device %d %s the labels of chain %d: they are copied in every sweep"
        log.warning(text, self._number, why, self._chain)
        try:
            self._here = driver.pagelocked_empty(self._shape, np.uint16)
        except driver.MemoryError:
            log.warning("the host has no page-locked memory for them: copies of them take longer")
            self._here = np.empty(self._shape, np.uint16)
        return self._here
