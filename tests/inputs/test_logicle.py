"""Logicle scales fitted to events: parameters, and noise about zero that stays one population."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import signal, stats

from dpmix.inputs import atoms
from dpmix.inputs.logicle import fit_logicle, reference, top
from dpmix.inputs.transforms import Transform

Array = npt.NDArray[Any]
N = 20_000
TOPS = [
    1e3,
    1e4,
    262_144.0,
    4_194_304.0,
    16_777_216.0,
]  # MACSQuant, log amplifier, FACSDiva, Aurora, CytoFLEX
SDS = [0.1, 1.0, 10.0, 100.0, 1_000.0]


def noise(sd: float, centre: float, bright: float, end: float, seed: int = 1) -> Array:
    """Return noise about zero with a share of bright events, float64 [N]."""
    rng = np.random.default_rng(seed)
    values = rng.normal(centre * sd, sd, N)
    count = int(bright * N)
    values[:count] = 10 ** rng.normal(np.log10(end / 50), 0.2, count)
    return np.minimum(values, end)


def lobes(transform: Transform, centre: float, sd: float) -> float:
    """Return the share of normal noise in the smaller of its lobes on a scale, 0 if it has one lobe."""
    raw = np.linspace(centre - 5 * sd, centre + 5 * sd, 4_001)
    scaled = transform.apply(raw)
    density = stats.norm.pdf(raw, centre, sd) / np.gradient(scaled, raw)
    peaks, _ = signal.find_peaks(density)
    if len(peaks) < 2:
        return 0.0
    valley = peaks[0] + int(np.argmin(density[peaks[0] : peaks[-1] + 1]))
    if density[valley] > 0.98 * min(density[peaks[0]], density[peaks[-1]]):
        return 0.0
    below = float(stats.norm.cdf(raw[valley], centre, sd))
    return min(below, 1 - below)


@pytest.mark.parametrize("bright", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("end", TOPS)
def test_noise_about_zero_is_one_lobe(end: float, bright: float) -> None:
    """For detectors of every kind, noise of every width and offset; a lobe of 1 in 200 events counts."""
    for sd in (sd for sd in SDS if sd < end / 10):
        for centre in (0.0, 0.5, 1.0, 2.0, 3.0):
            values = noise(sd, centre, bright, end)
            fitted = fit_logicle(values, end, values.max(), values.max())
            assert lobes(fitted, centre * sd, sd) * (1 - bright) < 0.005, (sd, centre, str(fitted))


@pytest.mark.parametrize("sd", [0.3, 1.0, 3.0])
def test_noise_of_mass_cytometry_is_one_lobe(sd: float) -> None:
    """Its default is arcsinh(x / 5); noise about zero comes from randomisation and a few ions."""
    for centre in (-0.5, 0.0, 1.0, 3.0):
        assert lobes(Transform("arcsinh", cofactor=5.0), centre, sd) == 0.0


def test_a_fixed_width_splits_noise() -> None:
    """The tests above can fail: w = 0.5, the default up to 0.1.0, makes two lobes of wide noise."""
    assert lobes(Transform("arcsinh", cofactor=5.0), 0.0, 50.0) > 0.4
    assert lobes(Transform("logicle", t=262_144.0), 0.0, 1_000.0) > 0.4
    assert lobes(Transform("logicle", t=262_144.0, w=0.0), 0.0, 100.0) > 0.4


@pytest.mark.parametrize(("end", "sd"), [(262_144.0, 3.0), (262_144.0, 100.0), (1e4, 30.0), (1_024.0, 10.0)])
def test_noise_that_an_instrument_clips_is_one_lobe(end: float, sd: float) -> None:
    """Half of the noise is at the lowest value; it is spread as a tail, as data.atoms does by default."""
    values = np.maximum(noise(sd, 0.0, 0.5, end), 0.0)
    if end == 1e4:  # four decades in 1,024 steps, from 1 on
        steps = np.floor(np.log10(np.maximum(values, 1.0)) * 256)
        values = 10 ** (steps / 256)
    fitted = fit_logicle(values, end, values.max(), values.max())
    events = values.astype(np.float32)[:, None]
    (found,) = atoms.find(events, "tail", [fitted.apply])
    scaled = fitted.apply(values).astype(np.float32)
    atoms.spread(scaled, fitted.apply(np.array([a.value for a in found])), found, 1, np.arange(N))
    dim = scaled[N // 2 :]
    grid = np.linspace(dim.min(), dim.max(), 300)
    density = stats.gaussian_kde(dim, 0.12)(grid)
    peaks, _ = signal.find_peaks(np.r_[0, density, 0], prominence=0.08 * density.max())
    assert len(peaks) == 1
    assert reference(values) == pytest.approx(1.96 * sd, rel=0.35)


def test_the_parameters_are_those_of_estimate_logicle() -> None:
    """W = (m - log10(t / r)) / 2 with r the 5% quantile of the negative values, rounded up."""
    values = noise(100.0, 0.0, 0.5, 262_144.0)
    r = -np.quantile(values[values < 0], 0.05)
    fitted = fit_logicle(values, 262_144.0, values.max(), values.max())
    w = (4.5 - np.log10(262_144.0 / r)) / 2
    assert (fitted.t, fitted.m, fitted.a) == (262_144.0, 4.5, 0.0)
    assert w <= fitted.w < w + 0.01
    narrow = fit_logicle(values / 1_000, 262_144.0, values.max(), values.max())
    assert (narrow.w, narrow.m) == pytest.approx((0.0, np.log10(262_144.0 / r * 1_000)), abs=0.011)


def test_a_few_negative_values_are_no_noise() -> None:
    values = np.r_[np.full(N, 500.0) + np.arange(N) % 97, -5_000.0, -3_000.0]
    assert reference(values) == 0
    assert reference(np.r_[np.zeros(N // 2), np.linspace(900, 1_000, N // 2)]) == 0  # a gap above the pile
    assert reference(np.empty(0)) == 0


@pytest.mark.parametrize(
    ("declared", "highest", "reach", "expected"),
    [
        (262_144.0, 200_000.0, 200_000.0, 262_144.0),
        (262_144.0, 300_000.0, 300_000.0, 524_288.0),  # compensated beyond the range
        (260_344.0, 90_000.0, 90_000.0, 262_144.0),  # computed by software that exported the file
        (37_412.0, 37_412.5, 37_412.5, 65_536.0),  # the maximum of the events, rounded down
        (37_413.0, 37_412.5, 37_412.5, 65_536.0),  # and up
        (262_144.0, 262_143.0, 262_143.0, 262_144.0),  # FACSDiva, where a detector saturates
        (1_000.0, 178.0, 237.0, 1_000.0),  # MACSQuant
        (4_294_967_296.0, 150_000.0, 180_000.0, 262_144.0),  # no range of a detector
        (None, 3_000.0, 5_000.0, 8_192.0),
        (10_000.0, 9_910.0, 9_910.0, 10_000.0),  # a logarithmic amplifier
        (1_024.0, -1.0, -1.0, 1_024.0),
        (None, -5.0, -5.0, 1.0),
    ],
)
def test_the_top_is_what_the_detector_gives(
    declared: float | None, highest: float, reach: float, expected: float
) -> None:
    assert top(declared, highest, reach) == expected
    if expected == 65_536:  # integers: the converter's range
        assert top(65_000.0, 64_999.0, 64_999.0, exact=True) == 65_000


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
def test_every_noise_has_a_scale(scale: float) -> None:
    for values in (noise(1.0, 0.0, 0.0, 100.0), -noise(1.0, 50.0, 0.0, 100.0), np.zeros(3)):
        for declared in (None, 1e-3, 1e9):
            assert fit_logicle(values * scale, declared, (values * scale).max(), 1.0).t > 0
