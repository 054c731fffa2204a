"""The native loops over calls of the CUDA driver and over passes, with functions of Python as the driver."""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections.abc import Callable
from threading import Barrier, Event, Thread
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from dpmix.engines import exact
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
    None,  # a copy on the host
    ctypes.CFUNCTYPE(INT, P),
    ctypes.CFUNCTYPE(INT, P),
    ctypes.CFUNCTYPE(INT, P),
]
LAUNCH, COPY_UP, COPY_DOWN, FILL, RECORD, WAIT, SYNCHRONISE, ELAPSED, COPY_HERE, QUERY, PUSH, POP = range(12)
NOT_READY = 600


class Driver:
    """Functions that note their calls; `called` returns an error, given operation and first argument."""

    def __init__(self, called: Callable[[int, Any], int] = lambda *_: 0) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._functions = [kind and kind(self._noted(i, called)) for i, kind in enumerate(TYPES)]
        self.entries = array("Q", [ctypes.cast(one, P).value or 0 if one else 0 for one in self._functions])

    def _noted(self, operation: int, called: Callable[[int, Any], int]) -> Callable[..., int]:
        def function(*arguments: Any) -> int:
            if operation == LAUNCH:
                *shape, none, how = arguments
                size = ctypes.cast(how[3], ctypes.POINTER(S))[0]
                arguments = *shape, none, how[0], how[2], how[4], ctypes.string_at(how[1], size)
            self.calls.append((operation, *arguments))
            return called(operation, arguments[0])

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
    driver = Driver(lambda operation, _: 700 if operation == RECORD else 0)
    assert driver.run([SYNCHRONISE, 1], [RECORD, 1, 2], [SYNCHRONISE, 2]) == (700, RECORD)
    assert [call[0] for call in driver.calls] == [SYNCHRONISE, RECORD]
    too_large = [LAUNCH, 1, 2, 3, 4, 128, 0, 1 << 32]
    assert driver.run(too_large, [SYNCHRONISE, 1]) == (1, LAUNCH)  # invalid value
    assert len(driver.calls) == 2


def test_threads_make_their_calls_at_a_time() -> None:
    """Each call waits for one of the other thread, which is impossible with the interpreter's lock held."""
    barrier = Barrier(2, timeout=60.0)

    def called(*_: int) -> int:
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
    [[9, 0], [0, 5, 1, 1, 1, 1, 1], [4, 2, 1], [4], [6, 2, 1, 1], [0, 71, *[1] * 71], [6, 2**64 - 1, 1]],
)
def test_what_is_no_list_of_commands_is_refused(words: list[int]) -> None:
    driver = Driver()
    with pytest.raises(ValueError, match=r"^commands: "):
        _cuda_commands.run(driver.entries, array("Q", [SYNCHRONISE, 1, 1, *words]))
    assert driver.calls == []
    with pytest.raises(ValueError, match=r"^entries: "):
        _cuda_commands.run(array("Q", [0] * 7), array("Q"))


# ---- Passes


def program(
    start: list[list[int]],
    sums: npt.NDArray[np.float64],
    *,
    after: list[list[int]] | None = None,
    holes: tuple[int, ...] = (),
    batches: tuple[int, ...] = (),
    name: int = 1,
    blocking: bool = False,
) -> _cuda_commands.Program:
    """Return a list of calls whose context and last event have the same handle."""

    def words(commands: list[list[int]]) -> array[int]:
        return array("Q", [word for operation, *rest in commands for word in (operation, len(rest), *rest)])

    lists = words(start), words(after or []), array("Q", holes), array("Q", batches)
    return _cuda_commands.Program(*lists, name, name, sums.ctypes.data, sums.size, blocking)


class Threads:
    """Threads of devices: each serves its line until it is called."""

    def __init__(self, *drivers: Driver) -> None:
        self._drivers = drivers  # whose functions must stay alive
        self.lines = [_cuda_commands.Line() for _ in drivers]
        self._threads = [
            Thread(target=line.serve, args=[driver.entries])
            for line, driver in zip(self.lines, drivers, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        for line in self.lines:
            line.call()
        for thread in self._threads:
            thread.join(60.0)
            assert not thread.is_alive()


@pytest.mark.parametrize("blocking", [False, True])
def test_threads_make_a_pass_with_its_values(blocking: bool) -> None:
    """The context is current meanwhile, and the calls after the last event come when it has happened."""
    left = iter([NOT_READY, NOT_READY, 0])
    driver = Driver(lambda operation, _: next(left) if operation == QUERY else 0)
    sums, here, given = np.arange(8.0), np.zeros(2), np.array([3.0, 4.0])
    tallies, times = np.array([5, 0, 6, 0, 0, 0], np.uint32), np.array([0.0, 1.0, 4.0, 6.0], np.float32)
    start = [[RECORD, 0, 7], [COPY_HERE, here.ctypes.data, 0, here.nbytes], [RECORD, 1, 8]]
    batch = tallies.ctypes.data, 2, 2, times.ctypes.data
    listed = program(
        start, sums, after=[[ELAPSED, 2, 3, 4]], holes=(2, 1, 7, 0), batches=batch, name=9, blocking=blocking
    )
    threads = Threads(driver)
    values = array("Q", [given.ctypes.data, 77])
    made = _cuda_commands.Pass(threads.lines, [listed], values, 8)
    made.wait()
    threads.end()
    waits = [(SYNCHRONISE, 9)] if blocking else [(QUERY, 9)] * 3
    *calls, last = driver.calls
    assert calls == [(PUSH, 9), (RECORD, 77, 7), (RECORD, 1, 8), *waits, (ELAPSED, 2, 3, 4)]
    assert last[0] == POP
    assert here.tolist() == [3.0, 4.0]
    assert made.sums().tolist() == sums.tolist()
    assert made.outcomes() == [(0, ELAPSED, False, 11, 3.0, 3.0)]


def test_threads_queue_the_next_pass_before_they_read_the_sums_of_the_first() -> None:
    """The first pass has not happened until the second one is queued."""
    queued = Event()

    def called(operation: int, what: int) -> int:
        if (operation, what) == (RECORD, 2):
            queued.set()
        return NOT_READY if operation == QUERY and not queued.is_set() else 0

    driver = Driver(called)
    threads, made = Threads(driver), []
    for name in (1, 2):
        listed = program([[RECORD, name, 0]], np.zeros(4), after=[[ELAPSED, name, 0, 0]], name=name)
        made.append(_cuda_commands.Pass(threads.lines, [listed], array("Q"), 4))
    for each in made:
        each.wait()
    threads.end()
    order = [call[:2] for call in driver.calls if call[0] in (RECORD, ELAPSED)]
    assert order == [(RECORD, 1), (RECORD, 2), (ELAPSED, 1), (ELAPSED, 2)]
    assert [call[0] for call in driver.calls if call[0] in (PUSH, POP)] == [PUSH, POP]


@pytest.mark.parametrize("n_devices", [2, 3, 8])
@pytest.mark.parametrize("rounded", [False, True])
def test_threads_merge_sums_in_any_order_to_the_same_bits(n_devices: int, rounded: bool) -> None:
    rng = np.random.default_rng(n_devices)
    states = [exact.zeros(300) for _ in range(n_devices)]
    want = exact.zeros(300)
    for state in states:
        for _ in range(3):
            numbers = rng.normal(size=300) * 2.0 ** rng.integers(-60, 60, 300)
            exact.add(state, numbers)
            exact.add(want, numbers)
    threads, kept = Threads(*(Driver() for _ in states)), [state.copy() for state in states]
    for _ in range(20):
        for state, copy in zip(states, kept, strict=True):
            state[...] = copy
        listed = [program([], state) for state in states]
        made = _cuda_commands.Pass(threads.lines, listed, array("Q"), 300 if rounded else 1200)
        made.wait()
        np.testing.assert_array_equal(made.sums(), exact.values(want) if rounded else want.ravel())
    threads.end()


@pytest.mark.parametrize("operation", [PUSH, RECORD, QUERY, ELAPSED])
def test_threads_end_a_pass_in_which_a_device_fails(operation: int) -> None:
    """The others end their parts, and the sums do not hold; the next pass of the device fails, too."""
    drivers = [Driver(), Driver(lambda called, _: 700 if called == operation else 0), Driver()]
    threads = Threads(*drivers)
    for _ in range(2):
        listed = [program([[RECORD, 1, 0]], np.zeros(4), after=[[ELAPSED, 1, 0, 0]]) for _ in drivers]
        made = _cuda_commands.Pass(threads.lines, listed, array("Q"), 4)
        made.wait()
        assert [each[:2] for each in made.outcomes()] == [(0, ELAPSED), (700, operation), (0, ELAPSED)]
    threads.end()
    for driver in drivers:
        current = [call[0] for call in driver.calls if call[0] in (PUSH, POP)]
        assert current == ([PUSH] * 2 if driver is drivers[1] and operation == PUSH else [PUSH, POP] * 2)


def test_threads_say_that_events_are_far() -> None:
    tallies, times = np.array([0, 0, 0, 0, 0, 1], np.uint32), np.zeros(4, np.float32)
    threads = Threads(Driver())
    for n_chunks in (1, 2):  # of two slots; the second has a far event
        batch = tallies.ctypes.data, 2, n_chunks, times.ctypes.data
        made = _cuda_commands.Pass(threads.lines, [program([], np.zeros(4), batches=batch)], array("Q"), 4)
        made.wait()
        assert made.outcomes()[0][2] == (n_chunks == 2)
    threads.end()


def test_what_is_no_pass_is_refused() -> None:
    line, one = _cuda_commands.Line(), program([[RECORD, 1, 0]], np.zeros(4), holes=(2, 1))
    with pytest.raises(ValueError, match=r"^start: a hole without a value"):
        _cuda_commands.Pass([line], [one], array("Q", [1]), 4)
    with pytest.raises(ValueError, match=r"^start: one program for each line"):
        _cuda_commands.Pass([line, line], [one], array("Q", [1, 2]), 4)
    with pytest.raises(ValueError, match=r"^start: another number of sums"):
        _cuda_commands.Pass([line], [one], array("Q", [1, 2]), 5)
    with pytest.raises(ValueError, match=r"^program: a hole is in no command"):
        program([[RECORD, 1, 0]], np.zeros(4), holes=(4, 0))
    with pytest.raises(ValueError, match=r"^commands: "):
        program([[QUERY, 1]], np.zeros(4))
