"""Where the time of a run goes."""

from __future__ import annotations

import pytest

from dpmix.runs.profile import SPANS, TimeProfile


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def spend(profile: TimeProfile, clock: Clock, name: str, seconds: float) -> None:
    with profile.engine_pass() if name == "pass" else profile.span(name):
        clock.now += seconds


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ({"kernels": 6.0}, (6.0, 0.0, 4.0)),
        ({"kernels": 6.0, "copies": 1.0}, (6.0, 1.0, 3.0)),
        ({"kernels": 6.0, "copies": 7.0}, (6.0, 4.0, 0.0)),  # hidden behind kernels in part
        ({"kernels": 11.0, "copies": 1.0}, (10.0, 0.0, 0.0)),  # the clock of another device
    ],
)
def test_every_second_is_counted_once(engine: dict[str, float], expected: tuple[float, float, float]) -> None:
    clock = Clock()
    profile = TimeProfile({}, clock)
    for name, seconds in (("start", 0.5), ("pass", 4.0), ("parameters", 2.0), ("pass", 6.0)):
        spend(profile, clock, name, seconds)
        clock.now += 0.25
    spend(profile, clock, "writing", 3.0)
    found = profile.seconds(engine)
    assert tuple(found) == tuple(SPANS)
    assert tuple(found.values()) == (*expected, 2.0, 0.5, 3.0, 1.0)


def test_what_the_host_does_during_a_pass_is_hidden_by_it() -> None:
    clock = Clock()
    profile = TimeProfile({}, clock)
    with profile.engine_pass():
        clock.now += 1.0
        with profile.span("writing"):
            clock.now += 2.0
    with profile.span("parameters"):
        clock.now += 4.0
        with profile.engine_pass():
            clock.now += 8.0
        clock.now += 16.0
    found = profile.seconds({"kernels": 7.0, "copies": 1.0})
    expected = {"kernels": 7.0, "copies": 1.0, "passes": 3.0, "parameters": 20.0}
    assert found == {**dict.fromkeys(SPANS, 0.0), **expected}


def test_two_passes_at_a_time_count_once() -> None:
    clock = Clock()
    profile = TimeProfile({}, clock)
    with profile.engine_pass():
        clock.now += 1.0
        with profile.engine_pass():
            clock.now += 2.0
        clock.now += 4.0
    clock.now += 8.0
    found = profile.seconds({"kernels": 9.0})  # of the two, one after the other
    assert found == {**dict.fromkeys(SPANS, 0.0), "kernels": 7.0, "other": 8.0}


def test_time_counts_where_an_error_ends_it() -> None:
    clock = Clock()
    profile = TimeProfile({}, clock)

    def fail() -> None:
        with profile.span("writing"):
            clock.now += 2.0
            raise OSError

    with pytest.raises(OSError):  # noqa: PT011
        fail()
    assert profile.seconds({"kernels": 0.0})["writing"] == 2.0


def test_a_run_that_goes_on_adds_to_what_it_spent_before() -> None:
    clock = Clock()
    first = TimeProfile({}, clock)
    spend(first, clock, "parameters", 2.0)
    before = first.seconds({"kernels": 0.0})
    clock.now += 1000.0  # between the two
    second = TimeProfile(before, clock)
    spend(second, clock, "parameters", 3.0)
    assert second.seconds({"kernels": 0.0}) == {**dict.fromkeys(SPANS, 0.0), "parameters": 5.0}
