"""The host's work in a pass of the CUDA engine: its calls of the driver, and how few hold the interpreter."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from cuda_cases import MIB, SPLIT, Emulate
from cuda_on_cpu import emulator
from engine_contract import assert_same_stats, halves, problem

from dpmix.engines.cuda.engine import CudaEngine
from dpmix.kernels import _cuda_commands
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Stats
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key

pytestmark = pytest.mark.slow

COPY_HERE = 8  # the only command of a list that is no call of the driver


class Calls(NamedTuple):
    """Calls of the driver in a pass, by all devices, but cuEventQuery."""

    all: int
    in_lists: int  # by the native loop
    lists: int
    launches: int


class Counted:
    """Counts what passes ask of the driver, of emulated devices."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._counts, native = (
            Counter[str](),
            (_cuda_commands.run, _cuda_commands.Program, _cuda_commands.Pass),
        )
        run, make_program, make_pass = native
        lists: dict[int, tuple[array[int], array[int]]] = {}

        def counted_run(entries: array[int], words: array[int]) -> tuple[int, int]:
            self._count(words)
            return run(entries, words)

        def noted(start: array[int], after: array[int], *others: Any) -> _cuda_commands.Program:
            program = make_program(start, after, *others)
            lists[id(program)] = start, after
            return program

        def counted_pass(lines: Any, programs: Any, *others: Any) -> _cuda_commands.Pass:
            for program in programs:
                for words in lists[id(program)]:
                    self._count(words)
            return make_pass(lines, programs, *others)

        monkeypatch.setattr(_cuda_commands, "run", counted_run)
        monkeypatch.setattr(_cuda_commands, "Program", noted)
        monkeypatch.setattr(_cuda_commands, "Pass", counted_pass)

    def _count(self, words: array[int]) -> None:
        self._counts["lists"] += 1
        at = 0
        while at < len(words):
            self._counts["in_lists"] += words[at] != COPY_HERE
            self._counts["launches"] += words[at] == 0
            at += 2 + words[at + 1]

    def of(self, work: Callable[[], object], n_devices: int) -> Calls:
        """Return the calls of a pass."""
        self._counts.clear()
        before = sum(map(emulator.calls, range(n_devices)))
        work()
        every = sum(map(emulator.calls, range(n_devices))) - before
        return Calls(every, *(self._counts[name] for name in ("in_lists", "lists", "launches")))


@pytest.fixture
def counted(emulated_devices: Emulate, monkeypatch: pytest.MonkeyPatch) -> Counted:
    emulated_devices(8)
    # Threads ask for the end of a pass, which is not counted; with fewer cores they wait, which is a call.
    monkeypatch.setattr("dpmix.engines.cuda.devices.usable_cores", lambda: 8)
    return Counted(monkeypatch)


def keep_labels_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let labels need more memory than a device has, so that they stay on the host."""
    monkeypatch.setattr("dpmix.engines.cuda.labels.BYTES", 1 << 20)


def passes_of(engine: CudaEngine) -> list[Callable[[], object]]:
    _, mixture = problem(10, 2, 4)
    key = Key(1, 0, 0)
    return [
        lambda: engine.draw_labels(mixture, key),
        lambda: engine.divide(SPLIT, halves(mixture, SPLIT, 2), key),
        lambda: engine.expect_labels(mixture),
    ]


def test_calls_of_a_pass_grow_with_devices_and_not_with_chunks(counted: Counted) -> None:
    found = {}
    for chunks, devices in ((2, 1), (3, 1), (4, 2)):
        engine = CudaEngine(np.zeros((chunks * CHUNK - 5, 2), np.float32), devices=list(range(devices)))
        passes_of(engine)[0]()  # events and lanes come to the devices
        found[chunks, devices] = [counted.of(work, devices) for work in passes_of(engine)]
        engine.close()
    one = found[2, 1]
    assert all(calls.launches >= 4 for calls in one)
    assert found[3, 1] == one
    assert found[4, 2] == [Calls(*(2 * n for n in calls)) for calls in one]


def test_no_call_of_a_pass_holds_the_interpreter(counted: Counted) -> None:
    """One list starts it and one reads the times."""
    events, mixture = problem(2 * CHUNK - 5, 5, 8)
    engine = CudaEngine(events, devices=[0])
    keys = iter(range(100))
    passes: list[Callable[[], object]] = [
        lambda: engine.expect_labels(mixture),
        lambda: engine.draw_labels(mixture, Key(1, 0, next(keys))),  # pruned
    ]
    for work in passes:
        work()
        calls = counted.of(work, 1)
        assert calls.lists == 2
        assert calls.in_lists > 35
        assert calls.all == calls.in_lists
    engine.close()


@pytest.mark.parametrize(("resident", "on_device"), [(True, True), (False, True), (True, False)])
def test_copies_of_a_pass_do_not_wait_and_have_been_written(
    emulated_devices: Emulate, monkeypatch: pytest.MonkeyPatch, resident: bool, on_device: bool
) -> None:
    events, mixture = problem(2 * CHUNK - 5, 5, 8)
    rest = np.full(4, -1, np.int32), np.zeros(4, np.int8)
    split = SplitAssignment(np.r_[SPLIT.pairs, rest[0]], np.r_[SPLIT.sides, rest[1]], SPLIT.word)
    emulated_devices(memory=None if resident else 8 * MIB)
    if not on_device:
        keep_labels_here(monkeypatch)
    engine = CudaEngine(events, devices=[0], chunks_in_flight=1)
    before = emulator.faults(0)
    for iteration in range(3):  # dense, then pruned
        engine.draw_labels(mixture, Key(1, 0, iteration))
    memory = engine._devices[0]._memory
    assert (memory.holds_events, memory.labels(0).on_device) == (resident, on_device)
    engine.divide(split, halves(mixture, split, 2), Key(1, 0, 2))
    engine.expect_labels(mixture)
    engine.memberships(mixture, np.arange(8) % 3, 0, len(events))
    assert emulator.faults(0) == before
    engine.close()


@pytest.mark.parametrize("on_device", [True, False])
def test_a_pruned_pass_sorts_labels_that_stay_on_the_device_once(
    counted: Counted, monkeypatch: pytest.MonkeyPatch, on_device: bool
) -> None:
    """The order of the last pass serves the next one. Labels on the host are sorted again."""
    events, mixture = problem(5000, 5, 16, spread=4.0)

    def draws(engine: CudaEngine) -> Iterator[tuple[int, Stats, npt.NDArray[np.int32]]]:
        for iteration in range(4):
            if iteration == 2:
                engine.expect_labels(mixture)  # its labels are not sorted
            stats: list[Stats] = []
            key = Key(1, 0, iteration)
            calls = counted.of(lambda key=key, stats=stats: stats.append(engine.draw_labels(mixture, key)), 1)
            yield calls.launches, stats[0], engine.labels()

    dense = CudaEngine(events, devices=[0], pruning=False)
    want = list(draws(dense))
    dense.close()
    if not on_device:
        keep_labels_here(monkeypatch)
    engine = CudaEngine(events, devices=[0])
    found = list(draws(engine))
    for (_, stats, labels), (_, want_stats, want_labels) in zip(found, want, strict=True):
        assert_same_stats(stats, want_stats)
        np.testing.assert_array_equal(labels, want_labels)
    assert engine._devices[0]._memory.labels(0).on_device == on_device
    first, pruned, sort = 8, 9, 3
    more = 0 if on_device else sort
    assert [n for n, *_ in found] == [first, pruned + more, pruned + sort, pruned + more]
    engine.close()


def test_a_device_that_finds_no_chunk_left_has_no_sums(emulated_devices: Emulate) -> None:
    """It could take over from a failed device, and find that the others have taken everything."""
    from dpmix.engines.cuda.work import Pass

    emulated_devices()
    events, mixture = problem(2 * CHUNK - 5, 2, 4)
    engine = CudaEngine(events, devices=[0])
    engine.draw_labels(mixture, Key(1, 0, 0))
    device, work = engine._devices[0], Pass(engine._packed(mixture)[0])
    account = device.submit(device.run, work, [0, 1], lambda *_: [], None).result()
    assert account.chunks == 0
    assert account.sums is not None
    assert not account.sums.total.any()
    engine.close()


def test_batches_of_one_shape_are_listed_once(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpmix.engines.cuda.kernels import Kernels

    listed, launch = Counter[str](), Kernels.launch

    def noted(self: Kernels, commands: Any, name: str, *others: Any) -> None:
        listed[name] += 1
        launch(self, commands, name, *others)

    monkeypatch.setattr(Kernels, "launch", noted)
    events, mixture = problem(2 * CHUNK - 5, 2, 4)
    engine = CudaEngine(events, devices=[0])
    for iteration in range(4):
        for chain in range(2):
            engine.draw_labels(mixture, Key(1, chain, iteration))
    assert listed["draw_labels"] == 4  # two chains, two batches
    engine.close()


def test_a_kernel_gets_as_many_arguments_as_it_has() -> None:
    from dpmix.engines.cuda.commands import Commands, Kernel

    commands, kernel = Commands(), Kernel.of(1, 128, "PiQIIf")
    commands.launch(kernel, (1, 1), 0, 1, 2, Key(3, 4, 5), 6)
    with pytest.raises(TypeError, match="got 5 arguments, the kernel has 6"):
        commands.launch(kernel, (1, 1), 0, 1, Key(3, 4, 5), 6)
    with pytest.raises(TypeError):
        commands.launch(kernel, (1, 1), 0, 1, 2, Key(3, 4, 5), 25.0)
    assert kernel.wide == 0b101
