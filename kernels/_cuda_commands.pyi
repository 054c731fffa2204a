"""Type stub of the native module kernels/cuda_module.cpp: calls of the CUDA driver in a list."""

from array import array

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
