"""A run stops at the first signal after its sweep, at the second at once, whatever error that raises."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from dpmix.system.stop import Stop


@pytest.fixture(autouse=True)
def python_handles_interrupts() -> Iterator[None]:
    """Python does not, if a shell has started the tests in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_twice() -> None:
    interrupt()
    interrupt()


def interrupt_within_a_library() -> None:
    """Behave like h5py, which raises SystemError where KeyboardInterrupt comes in one of its callbacks."""
    interrupt()
    try:
        interrupt()
    except KeyboardInterrupt as error:
        raise SystemError("returned a result with an exception set") from error


def interrupt_once_and_fail() -> None:
    interrupt()
    raise SystemError("of its own")


def stopped_in(call: Callable[[], None]) -> Stop:
    with Stop([signal.SIGINT]) as stop:
        call()
    return stop


def test_the_first_signal_is_recorded() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert stopped_in(interrupt)()
    assert signal.getsignal(signal.SIGINT) is before


def test_the_second_signal_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        stopped_in(interrupt_twice)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_that_an_interrupt_causes_in_a_library_is_an_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        stopped_in(interrupt_within_a_library)
    assert isinstance(raised.value.__cause__, SystemError)


def test_an_error_after_one_signal_stays_an_error() -> None:
    with pytest.raises(SystemError, match="of its own"):
        stopped_in(interrupt_once_and_fail)
