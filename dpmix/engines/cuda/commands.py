"""Calls of the CUDA driver that one native call makes, in order and without the interpreter's lock.

PyCUDA launches kernels with the lock held, so that the threads of several devices wait for each other. Here,
a thread lists the calls of a batch first, and the native loop (kernels/cuda_commands.cpp) makes them.
"""

from __future__ import annotations

from array import array
from enum import IntEnum
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpmix.engines.cuda import library
from dpmix.kernels import _cuda_commands
from dpmix.model.streams import Key

WIDE = "PQ"
"""Argument types of 8 bytes (letters of the module struct); others have 4."""


class Operation(IntEnum):
    """The operations of kernels/cuda_commands.cpp, by number."""

    LAUNCH = 0
    COPY_UP = 1
    COPY_DOWN = 2
    FILL = 3
    RECORD = 4
    WAIT = 5
    SYNCHRONISE = 6
    ELAPSED = 7
    COPY_HERE = 8
    QUERY = 9
    PUSH = 10
    POP = 11


FUNCTIONS = {  # of the driver; the second name where a version has only that one
    Operation.LAUNCH: ("cuLaunchKernel",),
    Operation.COPY_UP: ("cuMemcpyHtoDAsync_v2",),
    Operation.COPY_DOWN: ("cuMemcpyDtoHAsync_v2",),
    Operation.FILL: ("cuMemsetD32Async",),
    Operation.RECORD: ("cuEventRecord",),
    Operation.WAIT: ("cuStreamWaitEvent",),
    Operation.SYNCHRONISE: ("cuEventSynchronize",),
    Operation.ELAPSED: ("cuEventElapsedTime", "cuEventElapsedTime_v2"),
    Operation.QUERY: ("cuEventQuery",),
    Operation.PUSH: ("cuCtxPushCurrent_v2",),
    Operation.POP: ("cuCtxPopCurrent_v2",),
}


class Value(IntEnum):
    """The values that a list of calls has places for: parts of a key, and addresses on the host."""

    SEED = 0
    CHAIN = 1
    ITERATION = 2
    ROWS = 3
    EXACT_ROWS = 4
    NOW = 5


class Kernel(NamedTuple):
    """A kernel of the current context.

    Attributes
    ----------
    handle : int
    threads : int
        Threads of a block.
    n_arguments : int
    wide : int
        Bit i is set if argument i has 8 bytes.
    """

    handle: int
    threads: int
    n_arguments: int
    wide: int

    @classmethod
    def of(cls, handle: int, threads: int, arguments: str) -> Kernel:
        """Return the kernel, given its argument types (letters of the module struct)."""
        wide = sum(1 << i for i, letter in enumerate(arguments) if letter in WIDE)
        return cls(handle, threads, len(arguments), wide)


class Calls(NamedTuple):
    """Calls of the driver that can be made again; `holes` has pairs of a place in `words` and a `Value`."""

    words: array[int]
    holes: array[int]


class Commands:
    """A list of calls of the driver.

    Streams and events are handles. What a call reads or writes on the host must stay alive until the device
    has done it.
    """

    def __init__(self) -> None:
        self._words, self._holes = array("Q"), array("Q")

    def launch(self, kernel: Kernel, grid: tuple[int, int], stream: int, *arguments: Any) -> None:
        """List a launch.

        Arguments are integers. A float is given by its bits (`float_bits`), and a key is three arguments.
        """
        head = kernel.handle, stream, *grid, kernel.threads, kernel.wide
        self._words.extend((Operation.LAUNCH, len(head) + kernel.n_arguments, *head))
        end = len(self._words) + kernel.n_arguments
        for argument in arguments:
            if isinstance(argument, Key):
                for value, word in enumerate(argument):
                    self._holes.extend((len(self._words), value))
                    self._words.append(word)
            else:
                self._words.append(argument)
        if len(self._words) != end:
            n_arguments = len(self._words) - end + kernel.n_arguments
            raise TypeError(f"got {n_arguments} arguments, the kernel has {kernel.n_arguments}")

    def copy_up(self, to: Any, source: npt.NDArray[Any], stream: int) -> None:
        """List a copy of a contiguous array to the device."""
        self._words.extend((Operation.COPY_UP, 4, to, source.ctypes.data, source.nbytes, stream))

    def copy_here(self, to: npt.NDArray[Any], value: Value) -> None:
        """List a copy on the host that fills a contiguous array from an address given later."""
        self._words.extend((Operation.COPY_HERE, 3, to.ctypes.data))
        self._holes.extend((len(self._words), value))
        self._words.extend((0, to.nbytes))

    def copy_down(self, to: npt.NDArray[Any], source: Any, stream: int) -> None:
        """List a copy from the device that fills a contiguous array."""
        self._words.extend((Operation.COPY_DOWN, 4, to.ctypes.data, source, to.nbytes, stream))

    def fill(self, to: Any, value: int, n: int, stream: int) -> None:
        """List the setting of `n` words of 4 bytes on the device."""
        self._words.extend((Operation.FILL, 4, to, value, n, stream))

    def record(self, event: int, stream: int) -> None:
        """List the recording of an event: it happens when the stream's operations before it are done."""
        self._words.extend((Operation.RECORD, 2, event, stream))

    def wait(self, stream: int, event: int) -> None:
        """List that a stream waits for an event."""
        self._words.extend((Operation.WAIT, 2, stream, event))

    def synchronise(self, event: int) -> None:
        """List that the thread waits for an event."""
        self._words.extend((Operation.SYNCHRONISE, 1, event))

    def elapsed(self, milliseconds: npt.NDArray[np.float32], first: int, second: int) -> None:
        """List that the time between two events is written to an array of one number."""
        self._words.extend((Operation.ELAPSED, 3, milliseconds.ctypes.data, first, second))

    def finish(self) -> Calls:
        """Return the listed calls, and empty the list."""
        calls = Calls(self._words, self._holes)
        self._words, self._holes = array("Q"), array("Q")
        return calls

    def run(self, calls: Calls | None = None, key: Key | None = None) -> None:
        """Make the listed calls, then others with a key, up to one that fails; empty the list.

        Raises
        ------
        pycuda.driver.Error
            A call failed.
        """
        words = self.finish().words
        if calls is not None:
            if key is not None:
                for place, value in zip(calls.holes[::2], calls.holes[1::2], strict=True):
                    calls.words[place] = key[value]
            words.extend(calls.words)
        code, operation = _cuda_commands.run(entries(), words)
        if code:
            raise failed(code, operation)


def failed(code: int, operation: int) -> Exception:
    """Return the exception of an operation that failed."""
    error: Exception = library.error(FUNCTIONS[Operation(operation)][0].removesuffix("_v2"), code)
    return error


def float_bits(value: float) -> int:
    """Return the bits of a number in float32."""
    return int(np.float32(value).view(np.uint32))


@cache
def entries() -> array[int]:
    """Return the addresses of the driver's functions, by operation; 0 where it has no part."""
    names = [FUNCTIONS.get(operation) for operation in Operation]
    return array("Q", [library.address(*each) if each else 0 for each in names])
