"""A run stops at the first signal after its sweep, at the second at once, whatever error that raises."""

from __future__ import annotations

import os
import signal

import pytest

from dpmix.system.stop import Stop


def test_the_first_signal_is_recorded_and_the_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), Stop([signal.SIGINT]) as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_an_error_that_an_interrupt_causes_in_a_library_is_an_interrupt() -> None:
    """As in h5py, which raises SystemError where KeyboardInterrupt comes in one of its callbacks."""
    with pytest.raises(KeyboardInterrupt) as raised, Stop([signal.SIGINT]):
        os.kill(os.getpid(), signal.SIGINT)
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt as interrupt:
            raise SystemError("returned a result with an exception set") from interrupt
    assert isinstance(raised.value.__cause__, SystemError)


def test_an_error_after_one_signal_stays_an_error() -> None:
    with pytest.raises(SystemError, match="of its own"), Stop([signal.SIGINT]):
        os.kill(os.getpid(), signal.SIGINT)
        raise SystemError("of its own")
