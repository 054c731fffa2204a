"""Simulate data with known populations: from the model, or like the data of a flow cytometer.

The same arguments and seed give the same data.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError
from dpmix.inputs.fcs.data import write_fcs
from dpmix.inputs.fcs.spillover import Spillover
from dpmix.inputs.simulate.faults import SIZE, Course, Fault, draw_course
from dpmix.model.mixture import Array, Floats
from dpmix.model.prior import Prior

COFACTOR = 150.0  # of the arcsinh scale on which the populations are defined
TOP = 262_143.0  # where a channel saturates: $PnR - 1
SUFFIXES = (".fcs", ".csv", ".npy")


@dataclass(frozen=True)
class Simulation:
    """Simulated events and their true populations.

    Attributes
    ----------
    events : float32 [N, D]
        As an instrument stores them: with spillover and saturation, if an instrument is simulated.
    channels, markers : tuple of str
        D detector names; D markers, "" for none.
    labels : int32 [N]
        Population of each event.
    populations : tuple of str
        P names.
    weights : float64 [P]
        True share of each population.
    means, covariances : float64 [P, T], [P, T, T]
        Means and covariances of the populations on `truth_scale`, before noise and limits of the instrument.
    truth_channels : tuple of str
        The T channels of means and covariances.
    truth_scale : str
        "linear", or "arcsinh 150" of the compensated values.
    spillover : Spillover or None
        Written to FCS files, and to the truth.
    course : Course or None
        Faults of the recording.
    faulty : bool [N], or None
        Events at faulty times.
    """

    events: Floats
    channels: tuple[str, ...]
    markers: tuple[str, ...]
    labels: npt.NDArray[np.int32]
    populations: tuple[str, ...]
    weights: Array
    means: Array
    covariances: Array
    truth_channels: tuple[str, ...]
    truth_scale: str
    spillover: Spillover | None = None
    course: Course | None = None
    faulty: npt.NDArray[np.bool_] | None = None

    def write(self, path: str | Path) -> Path:
        """Write the events as FCS, CSV or NPY by the suffix, and the truth to a file in the same folder.

        Returns
        -------
        Path
            File of the truth, `<stem>.truth.npz`: labels, populations, weights, means, covariances, channels,
            scale, spillover and its channels (empty for no spillover). With faults of the recording also
            faulty, and fault_times, log_gains (of all channels but Time) and rate
            (`dpmix.inputs.simulate.faults.Course`).

        Raises
        ------
        ConfigError
            The suffix is unknown.
        """
        path = Path(path)
        match path.suffix.lower():
            case ".fcs":
                write_fcs(path, self.events, self.channels, self.markers, self._keywords())
            case ".csv":
                with path.open("w", newline="", encoding="utf-8") as file:
                    csv.writer(file, lineterminator="\n").writerow(self.channels)
                    np.savetxt(file, self.events, fmt="%.9g", delimiter=",")
            case ".npy":
                with path.open("wb") as raw:  # np.save would add its suffix after one in capitals
                    np.save(raw, self.events)
            case other:
                raise ConfigError(
                    [f"{path}: its suffix is {other or 'missing'}; it must be one of {', '.join(SUFFIXES)}"]
                )
        truth = path.with_name(f"{path.stem}.truth.npz")
        matrix = self.spillover
        faults: dict[str, Any] = {}
        if self.course is not None and self.faulty is not None:
            faults = {
                "faulty": self.faulty,
                "fault_times": self.course.times,
                "log_gains": self.course.log_gains,
                "rate": self.course.rate,
            }
        np.savez_compressed(
            truth,
            labels=self.labels,
            populations=np.array(self.populations),
            weights=self.weights,
            means=self.means,
            covariances=self.covariances,
            channels=np.array(self.truth_channels),
            scale=np.array(self.truth_scale),
            spillover=matrix.matrix if matrix else np.eye(0),
            spillover_channels=np.array(matrix.detectors if matrix else [], dtype=str),
            **faults,
        )
        return truth

    def _keywords(self) -> dict[str, str]:
        """Return the keywords of an FCS file besides names."""
        keywords = {"$CYT": "dpmix simulation", "$TIMESTEP": "0.01"}
        if self.spillover:
            keywords["$SPILLOVER"] = spillover_text(self.spillover)
        else:  # no instrument and no range: $PnR is above every value
            top = float(np.abs(self.events).max(initial=1.0))
            keywords |= {
                f"$P{n}R": str(2 ** int(np.ceil(np.log2(top + 1)))) for n in range(1, len(self.channels) + 1)
            }
        return keywords


def spillover_text(spillover: Spillover) -> str:
    """Return a spillover matrix as the value of $SPILLOVER (FCS 3.1, 3.2.20)."""
    numbers = [f"{x:.9g}" for x in spillover.matrix.ravel()]
    return ",".join([str(len(spillover.detectors)), *spillover.detectors, *numbers])


# -------------------------------------------------------------------------------------- from the model


def from_model(
    n_events: int, n_channels: int, n_components: int, prior: Prior | None = None, seed: int = 1
) -> Simulation:
    """Draw parameters from the prior, then labels and events from the mixture (`dpmix.model.mixture`).

    The values need no transform: use `data.transform: {default: {method: linear}}` with an FCS file of them.

    Parameters
    ----------
    n_events, n_channels, n_components : int
    prior : Prior, optional
        Prior in n_channels. Default: m = 0, gamma = 5, nu = 2, phi = 0.3 I and alpha ~ Gamma(4, 1), with
        which several components have events.
    seed : int

    Returns
    -------
    Simulation

    Raises
    ------
    ValueError
        A number is below 1, or the prior has another number of channels.
    """
    if min(n_events, n_channels, n_components) < 1:
        raise ValueError(
            f"got {n_events} events, {n_channels} channels, {n_components} components, need 1 or more"
        )
    prior = prior or Prior(np.zeros(n_channels), 5.0, 2.0, 0.3 * np.eye(n_channels), 4.0, 1.0)
    if prior.m.shape != (n_channels,):
        raise ValueError(f"the prior has {len(prior.m)} channels, need {n_channels}")
    random = np.random.default_rng(seed)
    weights, means, covariances, roots = _draw_components(prior, n_components, random)
    labels = random.choice(n_components, n_events, p=weights).astype(np.int32)
    names = tuple(f"ch{j}" for j in range(n_channels))
    return Simulation(
        events=_draw_events(labels, means, roots, random),
        channels=names,
        markers=("",) * n_channels,
        labels=labels,
        populations=tuple(f"component {k}" for k in range(n_components)),
        weights=weights,
        means=means,
        covariances=covariances,
        truth_channels=names,
        truth_scale="linear",
    )


def _draw_events(
    labels: npt.NDArray[np.int32], means: Array, roots: Array, random: np.random.Generator
) -> Floats:
    """Draw events, float32 [N, D], from the components of their labels."""
    events = np.empty((len(labels), means.shape[1]), np.float32)
    for k, (mean, root) in enumerate(zip(means, roots, strict=True)):
        own = np.flatnonzero(labels == k)
        events[own] = mean + random.standard_normal((len(own), len(mean))) @ root.T
    return events


def _draw_components(
    prior: Prior, n_components: int, random: np.random.Generator
) -> tuple[Array, Array, Array, Array]:
    """Draw weights [K], means [K, D], covariances [K, D, D] and their Cholesky factors from the prior."""
    from scipy.stats import invwishart  # imported here because it takes as long as a simulation

    dim = len(prior.m)
    alpha = random.gamma(prior.alpha_shape, 1.0 / prior.alpha_rate)
    sticks = np.append(random.beta(1.0, alpha, n_components - 1), 1.0)
    weights = sticks * np.cumprod(np.append(1.0, 1.0 - sticks[:-1]))
    weights /= weights.sum()
    degrees = prior.nu + dim + 1
    covariances = invwishart.rvs(degrees, prior.nu * prior.phi, size=n_components, random_state=random)
    covariances = np.reshape(covariances, (n_components, dim, dim))
    roots = np.linalg.cholesky(covariances)
    shocks = random.standard_normal((n_components, dim))
    means = prior.m + np.sqrt(prior.gamma) * np.einsum("kij,kj->ki", roots, shocks)
    return weights, means, covariances, roots


# ------------------------------------------------------------------------------ like a flow cytometer

SCATTER = ("FSC-A", "FSC-H", "SSC-A")
DYES = {
    "FITC-A": "CD45RA",
    "PerCP-Cy5-5-A": "CD4",
    "PE-A": "CD25",
    "PE-Cy7-A": "CCR7",
    "APC-A": "CD127",
    "APC-Cy7-A": "CD8",
    "Pacific Blue-A": "CD3",
    "BV510-A": "CD19",
    "BV605-A": "CD14",
    "BV711-A": "CD56",
}

# Populations of blood: share in percent, scatter (forward, side, in 1000), and the level of each marker in
# the order of DYES: 0 (none), 1 (dim), 2 (medium), 3 (bright), 4 (some events saturate).
#                       share   fsc  side   RA  4 25 R7 127 8  3 19 14 56
POPULATIONS = {
    "CD4 naive":         (18.0, (95, 28), (3, 3, 0, 2, 2, 0, 3, 0, 0, 0)),
    "CD4 memory":        (15.0, (98, 30), (0, 3, 1, 2, 2, 0, 3, 0, 0, 0)),
    "CD4 effector":      (6.0, (100, 33), (0, 3, 1, 0, 1, 0, 3, 0, 0, 0)),
    "CD4 regulatory":    (2.0, (97, 29), (1, 3, 3, 2, 0, 0, 3, 0, 0, 0)),
    "CD8 naive":         (9.0, (94, 29), (3, 0, 0, 2, 2, 4, 3, 0, 0, 0)),
    "CD8 memory":        (6.0, (98, 32), (0, 0, 0, 1, 2, 4, 3, 0, 0, 0)),
    "CD8 effector":      (5.0, (100, 35), (2, 0, 0, 0, 0, 4, 3, 0, 0, 1)),
    "double negative T": (1.5, (97, 31), (1, 0, 0, 1, 1, 0, 3, 0, 0, 0)),
    "NKT":               (0.2, (99, 34), (1, 0, 0, 0, 1, 1, 3, 0, 0, 3)),
    "B":                 (9.0, (92, 30), (3, 0, 1, 2, 0, 0, 0, 3, 0, 0)),
    "NK":                (8.0, (100, 36), (2, 0, 0, 0, 0, 1, 0, 0, 0, 2)),
    "NK bright":         (0.6, (103, 38), (0, 0, 0, 1, 2, 0, 0, 0, 0, 3)),
    "monocytes":         (14.0, (140, 75), (1, 1, 0, 0, 0, 0, 0, 0, 3, 0)),
    "debris":            (5.7, (35, 18), (0, 0, 0, 0, 0, 0, 0, 0, 0, 0)),
}  # fmt: skip
LEVELS = np.array([0.15, 2.2, 3.9, 5.6, 7.2])  # on the arcsinh scale
SPREADS = np.array([0.45, 0.5, 0.42, 0.38, 0.38])
CORRELATION = 0.35  # between the markers of a cell: large cells are bright in all markers
TAIL = 9.0  # degrees of freedom of Student's t
SKEW = 0.85  # delta of the skew normal distribution of each marker (Azzalini 1985, Scand. J. Stat. 12:171)
DURATION = 60_000.0  # of the recording, in units of $TIMESTEP
NOISE = 30.0  # standard deviation of the detector noise, in stored units


def cytometry_like(
    n_events: int,
    seed: int = 1,
    spill: bool = True,
    faults: Sequence[Fault] = (),
    fault_size: float = SIZE,
) -> Simulation:
    """Simulate a sample of a ten-colour flow cytometer: 14 populations of blood, the rarest with 0.2%.

    Within a population markers are correlated, and skewed and heavy-tailed on the arcsinh scale. Dyes spill
    over, noise makes values negative after compensation, and bright values saturate at 262143. Channels are
    FSC-A, FSC-H, SSC-A, ten dyes and Time.

    Parameters
    ----------
    n_events : int
    seed : int
    spill : bool
        Dyes spill over, and the matrix is recorded.
    faults : sequence of str
        Faults of the recording, of `dpmix.inputs.simulate.faults.FAULTS`. A seed has the same cells with and
        without.
    fault_size : float
        Log gain.

    Returns
    -------
    Simulation

    Raises
    ------
    ValueError
        n_events is below 1.
    """
    if n_events < 1:
        raise ValueError(f"got {n_events} events, need 1 or more")
    random = np.random.default_rng(seed)
    shares = np.array([share for share, _, _ in POPULATIONS.values()])
    weights = shares / shares.sum()
    labels = random.choice(len(weights), n_events, p=weights).astype(np.int32)
    levels = np.array([levels for _, _, levels in POPULATIONS.values()])
    means, sds = LEVELS[levels], SPREADS[levels]

    signal = COFACTOR * np.sinh(means[labels] + sds[labels] * _skewed(random, n_events))
    matrix = _spillover_matrix() if spill else np.eye(len(DYES))
    stored, times = _measured(signal @ matrix, labels, random)
    course = faulty = None
    if faults:
        course = draw_course(faults, stored.shape[1], fault_size, np.random.default_rng([seed, 19]))
        places = course.times_of(times / DURATION)
        times, faulty = DURATION * places, course.faulty_at(places)
        stored *= course.gains_at(places)
    return Simulation(
        events=np.column_stack((np.minimum(stored, TOP), times)).astype(np.float32),
        channels=(*SCATTER, *DYES, "Time"),
        markers=("",) * len(SCATTER) + tuple(DYES.values()) + ("",),
        labels=labels,
        populations=tuple(POPULATIONS),
        weights=weights,
        means=means,
        covariances=_shape_covariance() * sds[:, :, None] * sds[:, None, :],
        truth_channels=tuple(DYES.values()),
        truth_scale=f"arcsinh {COFACTOR:g}",
        spillover=Spillover(tuple(DYES), matrix) if spill else None,
        course=course,
        faulty=faulty,
    )


def _measured(
    light: Array, labels: npt.NDArray[np.int32], random: np.random.Generator
) -> tuple[Array, Array]:
    """Return scatter and dyes with detector noise, float64 [N, D - 1], and ascending times, float64 [N]."""
    n_events = len(light)
    light = light + random.standard_normal(light.shape) * np.sqrt(NOISE**2 + 4.0 * np.abs(light))
    scatter = np.array([scatter for _, scatter, _ in POPULATIONS.values()], float)[labels] * 1000.0
    size = random.normal(1.0, 0.08, (n_events, 1))
    scatter *= size * np.exp(random.normal(0.0, (0.06, 0.14), (n_events, 2)))
    height = scatter[:, :1] * random.normal(0.85, 0.015, (n_events, 1))
    times = np.sort(random.uniform(0.0, DURATION, n_events))
    return np.column_stack((scatter[:, :1], height, scatter[:, 1:], light)), times


def _skewed(random: np.random.Generator, n_events: int) -> Array:
    """Draw correlated skew t values with mean 0 and covariance `_shape_covariance`, float64 [N, dyes]."""
    dim = len(DYES)
    root = np.linalg.cholesky(np.full((dim, dim), CORRELATION) + (1.0 - CORRELATION) * np.eye(dim))
    normal = random.standard_normal((n_events, dim)) @ root.T
    folded = np.abs(random.standard_normal((n_events, dim))) - np.sqrt(2.0 / np.pi)
    skewed = SKEW * folded + np.sqrt(1.0 - SKEW**2) * normal
    return np.asarray(skewed / np.sqrt(random.chisquare(TAIL, (n_events, 1)) / TAIL))


def _shape_covariance() -> Array:
    """Return the covariance of `_skewed`, float64 [dyes, dyes]."""
    dim = len(DYES)
    correlated = (1.0 - SKEW**2) * (np.full((dim, dim), CORRELATION) + (1.0 - CORRELATION) * np.eye(dim))
    return TAIL / (TAIL - 2.0) * (correlated + SKEW**2 * (1.0 - 2.0 / np.pi) * np.eye(dim))


def _spillover_matrix() -> Array:
    """Return the spillover between dyes; it decreases with distance and towards shorter wavelengths."""
    dyes = np.arange(len(DYES))
    steps = np.abs(dyes[:, None] - dyes)
    onwards, back = 0.18 * 0.35 ** (steps - 1.0), 0.03 * 0.3 ** (steps - 1.0)
    return np.asarray(np.triu(onwards, 1) + np.tril(back, -1) + np.eye(len(DYES)))
