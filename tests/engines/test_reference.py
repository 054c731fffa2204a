"""The random numbers of the reference engine, compared with published values."""

from __future__ import annotations

import numpy as np
import pytest
from reference import ReferenceEngine, philox4x32, uniforms

from dpmix.model.mixture import Mixture
from dpmix.model.streams import Key

# Known answers of philox4x32-10, published with Random123 (kat_vectors): counter, key, output.
KNOWN_ANSWERS = [
    (
        (0x00000000, 0x00000000, 0x00000000, 0x00000000),
        (0x00000000, 0x00000000),
        (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
    ),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(
    counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    output = philox4x32(np.array(counter, np.uint32), np.array(key, np.uint32))
    assert tuple(int(word) for word in output) == expected


def test_uniform_takes_its_words_from_event_iteration_chain_and_seed() -> None:
    event = (0x85A308D3 << 32) | 0x243F6A88
    key = Key(seed=(0x299F31D0 << 32) | 0xA4093822, chain=0x03707344, iteration=0x13198A2E)
    expected = ((0xD16CFE09 >> 9) + 0.5) / 2**23
    assert float(uniforms(key, np.array([event], np.uint64))[0]) == expected


def test_labels_follow_the_uniforms() -> None:
    """For two equal components, the label is 1 if the uniform is above one half."""
    events = np.zeros((1000, 1), np.float32)
    mixture = Mixture(
        np.log([0.5, 0.5]), np.zeros((2, 1)), np.ones((2, 1, 1)), np.full(2, -0.5 * np.log(2 * np.pi))
    )
    engine = ReferenceEngine(events)
    key = Key(seed=3, chain=1, iteration=7)
    stats = engine.draw_labels(mixture, key)
    np.testing.assert_array_equal(engine.labels(1), engine.uniforms(key) > 0.5)
    assert stats.counts.sum() == 1000
    assert abs(stats.log_likelihood + 500 * np.log(2 * np.pi)) < 1e-9
