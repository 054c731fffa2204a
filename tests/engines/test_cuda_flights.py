"""Two passes of the CUDA engine at a time, of two chains: the same bits as one after the other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import local

import numpy as np
import numpy.typing as npt
import pytest
from cuda_cases import SPLIT, WEIGHTS, Emulate, assert_same_division
from engine_contract import assert_same_stats, halves, problem

from dpmix.engines.cuda.engine import CudaEngine
from dpmix.engines.cuda.flights import Flight, Flights
from dpmix.engines.cuda.work import Pass
from dpmix.errors import DpmixError
from dpmix.kernels.layout import CHUNK
from dpmix.model.mixture import Mixture, Stats
from dpmix.model.sample_weights import SampleWeights
from dpmix.model.streams import Key

pytestmark = pytest.mark.slow

N, DIM, COMPONENTS = 2 * CHUNK + 77, 5, 8  # the second draw is pruned
DRAWS = 3  # the first two make lists, and wait for the pass of the other chain
Drawn = tuple[list[Stats], npt.NDArray[np.int32]]
Change = Callable[[], None]


@cache
def case() -> tuple[npt.NDArray[np.float32], Mixture, Mixture]:
    """Return events, and the mixtures of two chains."""
    events, first = problem(N, DIM, COMPONENTS, spread=4.0)
    _, second = problem(10, DIM, COMPONENTS, seed=1, spread=4.0)
    return events, first, second


def draws(engine: CudaEngine, chain: int) -> list[Stats]:
    mixture = case()[1 + chain]
    return [engine.draw_labels(mixture, Key(1, chain, iteration)) for iteration in range(DRAWS)]


@cache
def expected(weights: SampleWeights | None = None) -> list[Drawn]:
    """Return the draws of both chains, one pass after the other on one device; needs `emulated_devices`."""
    engine = CudaEngine(case()[0], devices=[0], weights=weights)
    made = [(draws(engine, chain), engine.labels(chain)) for chain in range(2)]
    engine.close()
    return made


class Together:
    """Lets each of two threads wait, after the start of its pass, until the other one has started one, too.

    Each has its own slot, so that lists are made once.

    Attributes
    ----------
    most : int
        Passes in progress at a time.
    change : callable
        Called when two are in progress.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most, self.pairs = 0, 0
        self.change: Change = lambda: None
        start = Flights.start

        def started(flights: Flights, *arguments: object) -> Flight:
            flight: Flight = start(flights, *arguments)  # type: ignore[arg-type]
            self.most = max(self.most, len(flights._flying))
            if len(flights._flying) == 2:
                self.pairs += 1
                self.change()
                flights.turn.notify_all()
            else:
                pairs = self.pairs
                flights.turn.wait_for(lambda: self.pairs > pairs, timeout=self.patience)
            return flight

        def own_slot(flights: Flights) -> int:
            chain = getattr(self._here, "chain", 0)
            flights.turn.wait_for(lambda: chain in flights._free, timeout=60.0)
            flights._free.remove(chain)
            return int(chain)

        monkeypatch.setattr(Flights, "start", started)
        monkeypatch.setattr(Flights, "take_slot", own_slot)
        self.patience, self._here = 20.0, local()

    def draw(self, engine: CudaEngine) -> list[list[Stats]]:
        """Return the draws of both chains, made by two threads."""

        def of_chain(chain: int) -> list[Stats]:
            self._here.chain = chain
            return draws(engine, chain)

        with ThreadPoolExecutor(2) as threads:
            return list(threads.map(of_chain, range(2)))


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> Iterator[Together]:
    made = Together(monkeypatch)
    yield made
    assert made.most == 2


def assert_as_expected(engine: CudaEngine, got: list[list[Stats]], want: list[Drawn]) -> None:
    for chain, (stats, labels) in enumerate(want):
        for one, other in zip(got[chain], stats, strict=True):
            assert_same_stats(one, other)
        np.testing.assert_array_equal(engine.labels(chain), labels)


@pytest.mark.parametrize(("devices", "order"), [([0], 5), ([0, 1, 2], 0)])
def test_two_passes_at_a_time_have_the_same_bits(
    emulated_devices: Emulate, together: Together, devices: list[int], order: int
) -> None:
    emulated_devices()
    want = one_at_a_time(together)
    emulated_devices(1 + max(devices), order=order)
    engine = CudaEngine(case()[0], devices=devices)
    assert_as_expected(engine, together.draw(engine), want)
    engine.close()


def one_at_a_time(together: Together, weights: SampleWeights | None = None) -> list[Drawn]:
    """Return `expected`, whose passes do not wait for another."""
    together.patience, patience = 0.0, together.patience
    made = expected(weights)
    together.patience = patience
    return made


def test_two_passes_at_a_time_of_weighted_events(emulated_devices: Emulate, together: Together) -> None:
    weights = WEIGHTS.part(0, N)
    want = one_at_a_time(together, weights)
    emulated_devices(2)
    engine = CudaEngine(case()[0], weights=weights, devices=[0, 1], chunks_in_flight=1)
    assert_as_expected(engine, together.draw(engine), want)


@pytest.mark.parametrize("fail", ["1:cuLaunchKernel:37,2:cuLaunchKernel:47"])
@pytest.mark.usefixtures("equal_speeds")
def test_the_others_take_over_two_passes(
    emulated_devices: Emulate, together: Together, fail: str, caplog: pytest.LogCaptureFixture
) -> None:
    want = one_at_a_time(together)
    emulated_devices(3, fail=fail)
    engine = CudaEngine(case()[0], devices=[0, 1, 2])
    together.patience = 1.0  # a pass in the general form has no partner
    with caplog.at_level(logging.WARNING, "dpmix"):
        got = together.draw(engine)
    assert_as_expected(engine, got, want)
    assert sum("the others continue" in line for line in caplog.messages) == 1 + fail.count(",")


def test_without_a_device_both_passes_end(emulated_devices: Emulate, together: Together) -> None:
    engine = CudaEngine(case()[0], devices=[0])
    together.draw(engine)
    emulated_devices(fail="0:cuLaunchKernel:5")
    together.patience = 1.0
    with ThreadPoolExecutor(2) as threads:
        running = [threads.submit(draws, engine, chain) for chain in range(2)]
    for each in running:
        with pytest.raises(DpmixError, match="no CUDA device is left"):
            each.result()


def test_chunks_move_while_two_passes_are_in_progress(emulated_devices: Emulate, together: Together) -> None:
    """These passes end on the devices that have the chunks; the next ones have the new shares."""
    want = one_at_a_time(together)
    emulated_devices(2)
    engine = CudaEngine(case()[0], devices=[0, 1])

    def move() -> None:
        if together.pairs == 1:
            engine._shares = {0: [2], 1: [0, 1]}

    together.change = move
    assert_as_expected(engine, together.draw(engine), want)
    assert engine._devices[0]._memory.share == [2]


def test_a_division_waits_for_the_pass_of_another_chain(
    emulated_devices: Emulate, together: Together
) -> None:
    want = one_at_a_time(together)
    emulated_devices(2)
    engine = CudaEngine(case()[0], devices=[0, 1])
    split = SPLIT._replace(
        pairs=np.r_[SPLIT.pairs, np.full(4, -1, np.int32)], sides=np.r_[SPLIT.sides, np.zeros(4, np.int8)]
    )
    pairs, key = halves(case()[1], split, 2), Key(1, 0, 2)
    together.draw(engine)
    before = engine.divide(split, pairs, key)
    together.patience = 0.0
    with ThreadPoolExecutor(2) as threads:
        drawing = threads.submit(draws, engine, 1)
        divided = [engine.divide(split, pairs, key) for _ in range(3)]
        got = drawing.result()
    for each in divided:
        assert_same_division(each, before)
    assert_as_expected(engine, [want[0][0], got], want)


def test_without_memory_for_a_second_pass_they_are_made_in_turn(
    emulated_devices: Emulate, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pycuda.driver as driver

    from dpmix.engines.cuda.memory import DeviceMemory
    from dpmix.engines.cuda.slot import Slot

    emulated_devices()
    want, make = expected(), DeviceMemory._make_slot

    def refused(memory: DeviceMemory, number: int, *sizes: int) -> Slot:
        if number > 0:
            raise driver.MemoryError
        return make(memory, number, *sizes)

    monkeypatch.setattr(DeviceMemory, "_make_slot", refused)
    engine = CudaEngine(case()[0], devices=[0])
    with ThreadPoolExecutor(2) as threads:
        got = list(threads.map(lambda chain: draws(engine, chain), range(2)))
    assert_as_expected(engine, got, want)


def test_a_pass_that_is_interrupted_ends(emulated_devices: Emulate) -> None:
    """Ctrl-C does this. Its memory is free for the next pass."""
    events, mixture, _ = case()
    engine = CudaEngine(events, devices=[0])
    engine.draw_labels(mixture, Key(1, 0, 0))

    class Stopped(Exception):
        pass

    def stopped(_: object) -> None:
        raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Flight, "wait", stopped)
        with pytest.raises(Stopped):
            engine.draw_labels(mixture, Key(1, 0, 1))
    assert engine._flights._flying == []
    with pytest.raises(ValueError, match="chain 0 has no labels"):
        engine.labels()
    assert_same_stats(engine.draw_labels(mixture, Key(1, 0, 0)), expected()[0][0][0])
    engine.close()


def test_passes_end_in_any_order() -> None:
    class Ended:
        def wait(self) -> None:
            pass

    flights, events = Flights(), case()[0]
    started = []
    for _ in range(2):
        work = Pass(np.zeros((2, 12)), key=Key(1, 0, 0))
        slot = flights.take_slot()
        started.append(Flight(work, [0], slot, Ended(), (events, events, events)))  # type: ignore[arg-type]
    flights._flying += started
    assert [flight.slot for flight in started] == [0, 1]
    for flight in started[::-1]:
        flights.end(flight)
    assert flights._flying == []
    assert flights.take_slot() == 0
