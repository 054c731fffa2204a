"""Type stub of the native module kernels/cuda_module.cpp: calls of the CUDA driver in a list, and passes."""

from array import array

import numpy as np
import numpy.typing as npt

def run(
    entries: array[int],  # addresses of the driver's functions, one for each operation
    commands: array[int],  # for each command: operation, number of its words, these
) -> tuple[int, int]:
    """Run commands without the interpreter's lock, up to one that fails.

    Returns its error of the driver (0: none) and operation.

    Raises
    ------
    ValueError
        A command is none of the operations, or has another number of words.
    """

def busy(milliseconds: npt.NDArray[np.float32]) -> tuple[float, float]:
    """Return the milliseconds in which kernels ran, and in which only copies ran.

    Given the milliseconds of four events of each batch, float32 [n, 4]: start, input on the device, results
    there, results on the host.
    """

class Line:
    """The work of the thread of a device: its parts of passes, and tasks of Python."""

    def __init__(self) -> None: ...
    def call(self) -> None:
        """Let `serve` return once, when all passes before have ended."""

    def serve(self, entries: array[int]) -> None:
        """Make parts of passes, without the interpreter's lock, until there is a task of Python."""

class Program:
    """The calls of a device in a pass, which may be made again with other values."""

    def __init__(
        self,
        start: array[int],  # commands up to the event `ended`
        after: array[int],  # those once it has happened
        holes: array[int],  # pairs: a word of `start`, and the number of the value that replaces it
        batches: array[int],  # for each batch: addresses and sizes as in kernels/cuda_passes.hpp
        context: int,
        ended: int,
        sums: int,  # address, in page-locked memory
        n_sums: int,
        blocking: bool,  # the thread sleeps while it waits
    ) -> None: ...

class Pass:
    """A pass in progress on the devices whose lines are given.

    What the values point to must stay alive until it has ended.
    """

    def __init__(
        self, lines: list[Line], programs: list[Program], values: array[int], n_sums: int
    ) -> None: ...
    def wait(self) -> None:
        """Wait until all devices have ended, without the interpreter's lock."""

    def outcomes(self) -> list[tuple[int, int, bool, int, float, float]]:
        """Return of each device: error (0: none), operation, whether events are far, work, milliseconds.

        The milliseconds are those in which kernels ran, and in which only copies ran.
        """

    def sums(self) -> npt.NDArray[np.float64]:
        """Return the merged sums: the state of `dpmix.engines.exact`, flat, or rounded."""
