"""The native loop over calls of the CUDA driver, with functions of Python as the driver."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable
from threading import Barrier, Thread
from typing import Any

import pytest

from dpmix.kernels import _cuda_commands

P, U, S, INT = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t, ctypes.c_int
Q = ctypes.c_uint64
TYPES = [
    ctypes.CFUNCTYPE(INT, P, *[U] * 7, P, P, ctypes.POINTER(P)),
    ctypes.CFUNCTYPE(INT, Q, P, S, P),
    ctypes.CFUNCTYPE(INT, P, Q, S, P),
    ctypes.CFUNCTYPE(INT, Q, U, S, P),
    ctypes.CFUNCTYPE(INT, P, P),
    ctypes.CFUNCTYPE(INT, P, P, U),
    ctypes.CFUNCTYPE(INT, P),
    ctypes.CFUNCTYPE(INT, P, P, P),
]
LAUNCH, COPY_UP, COPY_DOWN, FILL, RECORD, WAIT, SYNCHRONISE, ELAPSED = range(8)


class Driver:
    """Functions that note their calls; `called` may return an error."""

    def __init__(self, called: Callable[[int], int] = lambda _: 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._functions = [kind(self._noted(i, called)) for i, kind in enumerate(TYPES)]
        self.entries = array("Q", [ctypes.cast(one, P).value or 0 for one in self._functions])

    def _noted(self, operation: int, called: Callable[[int], int]) -> Callable[..., int]:
        def function(*arguments: Any) -> int:
            if operation == LAUNCH:
                *shape, none, how = arguments
                size = ctypes.cast(how[3], ctypes.POINTER(S))[0]
                arguments = *shape, none, how[0], how[2], how[4], ctypes.string_at(how[1], size)
            self.calls.append((operation, *arguments))
            return called(operation)

        return function

    def run(self, *commands: list[int]) -> tuple[int, int]:
        words = array("Q")
        for operation, *rest in commands:
            words.extend([operation, len(rest), *rest])
        return _cuda_commands.run(self.entries, words)


def test_calls_are_made_in_order_with_their_arguments() -> None:
    driver = Driver()
    commands = [
        [COPY_UP, 1 << 40, 2, 3, 4],
        [FILL, 1 << 41, 0xFFFFFFFF, 1 << 33, 5],
        [RECORD, 6, 7],
        [WAIT, 8, 9],
        [SYNCHRONISE, 10],
        [ELAPSED, 11, 12, 13],
        [COPY_DOWN, 14, 1 << 42, 1 << 34, 15],
    ]
    assert driver.run(*commands) == (0, COPY_DOWN)
    assert driver.calls == [(*one, 0) if one[0] == WAIT else tuple(one) for one in commands]


def test_arguments_of_a_kernel_are_packed_as_the_compiler_does() -> None:
    driver = Driver()
    values = 1 << 40, 5, 1 << 63, 0xFFFFFFFF, 6, 7 << 50
    assert driver.run([LAUNCH, 1, 2, 3, 65_535, 128, 0b100101, *values]) == (0, LAUNCH)
    packed = struct.pack("@PiQIIP", *values)
    assert driver.calls == [(LAUNCH, 1, 3, 65_535, 1, 128, 1, 1, 0, 2, None, 1, 2, None, packed)]


def test_the_loop_ends_at_the_first_error() -> None:
    driver = Driver(lambda operation: 700 if operation == RECORD else 0)
    assert driver.run([SYNCHRONISE, 1], [RECORD, 1, 2], [SYNCHRONISE, 2]) == (700, RECORD)
    assert [call[0] for call in driver.calls] == [SYNCHRONISE, RECORD]
    too_large = [LAUNCH, 1, 2, 3, 4, 128, 0, 1 << 32]
    assert driver.run(too_large, [SYNCHRONISE, 1]) == (1, LAUNCH)  # invalid value
    assert len(driver.calls) == 2


def test_threads_make_their_calls_at_a_time() -> None:
    """Each call waits for one of the other thread, which is impossible with the interpreter's lock held."""
    barrier = Barrier(2, timeout=60.0)

    def called(_: int) -> int:
        barrier.wait()
        return 0

    drivers = [Driver(called) for _ in range(2)]
    threads = [Thread(target=driver.run, args=[[SYNCHRONISE, i] for i in range(50)]) for driver in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert [len(driver.calls) for driver in drivers] == [50, 50]


@pytest.mark.parametrize(
    "words",
    [[8, 0], [0, 5, 1, 1, 1, 1, 1], [4, 2, 1], [4], [6, 2, 1, 1], [0, 71, *[1] * 71], [6, 2**64 - 1, 1]],
)
def test_what_is_no_list_of_commands_is_refused(words: list[int]) -> None:
    driver = Driver()
    with pytest.raises(ValueError, match=r"^commands: "):
        _cuda_commands.run(driver.entries, array("Q", [SYNCHRONISE, 1, 1, *words]))
    assert driver.calls == []
    with pytest.raises(ValueError, match=r"^entries: "):
        _cuda_commands.run(array("Q", [0] * 7), array("Q"))
