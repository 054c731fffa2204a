"""The scales of a channel, and conversions between them.

raw
    Measured values in the units of the file, with amplification undone and compensated if the config says so.
transformed
    After the channel's transform (logicle, arcsinh, log, widen, linear). The scale of plots. Atoms are spread
    on it.
standardised
    Mean 0 and standard deviation 1 over the events. The scale of the sampler.

Logicle: Moore and Parks (2012), Cytometry A 81A:273, computed by FlowUtils.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from flowutils.transforms import logicle, logicle_inverse

from dpmix.errors import DataError
from dpmix.inputs.atoms import Atom, spread
from dpmix.model.mixture import Array, Floats, Ints

FAR = 100.0  # an arcsinh is a logarithm there: sinh(x) / c moves it by log(c), and overflows further on
Method = Literal["logicle", "arcsinh", "log", "widen", "linear"]


@dataclass(frozen=True)
class Transform:
    """The transform of one channel with all its parameters.

    Attributes
    ----------
    method : "logicle", "arcsinh", "log", "widen" or "linear"
        arcsinh is arcsinh(x / cofactor), log the logarithm to base 10, logicle is 1 at x = t. widen is
        arcsinh(sinh(x) / cofactor): it brings values that are on an arcsinh scale already to the scale of a
        cofactor this many times as large.
    cofactor : float
        For arcsinh and widen.
    t, w, m, a : float
        For logicle: top of the scale, linear decades, all decades, additional negative decades.

    Raises
    ------
    ValueError
        The method is not defined for these parameters.
    """

    method: Method = "linear"
    cofactor: float = 1.0
    t: float = 1.0
    w: float = 0.5
    m: float = 4.5
    a: float = 0.0

    def __post_init__(self) -> None:
        if self.method in ("arcsinh", "widen") and not 0 < self.cofactor < math.inf:
            raise ValueError(f"{self.method}: cofactor is {self.cofactor:g}, need a number above 0")
        fits = (
            math.isfinite(self.t + self.w + self.m + self.a)
            and self.t > 0
            and self.m > 0
            and 0 <= 2 * self.w <= self.m
            and -self.w <= self.a <= self.m - 2 * self.w
        )
        if self.method == "logicle" and not fits:  # FlowUtils would return the values as they are
            found = f"t = {self.t:g}, w = {self.w:g}, m = {self.m:g}, a = {self.a:g}"
            raise ValueError(f"logicle: {found}, need t > 0, m > 0, 0 <= w <= m / 2 and -w <= a <= m - 2 w")
        if self.method == "logicle" and not self._can_be_computed():
            raise ValueError(f"{self}: too extreme to compute, need t, w, m and a closer to their defaults")

    def _can_be_computed(self) -> bool:
        """Return True if FlowUtils computes an increasing logicle scale that is 1 at its top."""
        # FlowUtils does not report parameters for which its iteration does not converge; its results show
        # them.
        scale = self.apply(self.t * np.array([-1.0, -1e-3, 0.0, 1e-3, 1.0]))
        return bool((np.diff(scale) > 0).all() and abs(scale[-1] - 1.0) < 1e-6)

    def apply(self, raw: Array) -> Array:
        """Convert raw to transformed values, float64 of any shape; log requires values above 0.

        The result is NaN for a value too far beyond a logicle scale for its equation to be solved.
        """
        match self.method:
            case "logicle":
                parameters = {"t": self.t, "m": self.m, "w": self.w, "a": self.a}
                flat = logicle(np.ravel(raw), None, **parameters)
                failed = flat == -1.0  # FlowUtils returns -1 if it fails; -1 may also be the value
                if failed.any():
                    there = logicle_inverse(np.array([-1.0]), None, **parameters)
                    flat[failed & ~np.isclose(np.ravel(raw), there, rtol=1e-6)] = np.nan
                return np.reshape(flat, np.shape(raw))
            case "arcsinh":
                return np.arcsinh(raw / self.cofactor)
            case "log":
                return np.log10(raw)
            case "widen":
                return _widened(raw, self.cofactor)
            case "linear":
                return np.asarray(raw, np.float64)

    def invert(self, transformed: Array) -> Array:
        """Convert transformed to raw values, float64 of any shape."""
        match self.method:
            case "logicle":
                flat = logicle_inverse(np.ravel(transformed), None, t=self.t, m=self.m, w=self.w, a=self.a)
                return np.reshape(flat, np.shape(transformed))
            case "arcsinh":
                return self.cofactor * np.sinh(transformed)
            case "log":
                return 10.0 ** np.asarray(transformed, np.float64)
            case "widen":
                return _widened(transformed, 1.0 / self.cofactor)
            case "linear":
                return np.asarray(transformed, np.float64)

    def parameters(self) -> dict[str, float]:
        """Return the parameters of the method by name."""
        names = {
            "logicle": ("t", "w", "m", "a"),
            "arcsinh": ("cofactor",),
            "widen": ("cofactor",),
        }.get(self.method, ())
        return {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        return " ".join([self.method, *(f"{name}={x:g}" for name, x in self.parameters().items())])


def _widened(values: npt.ArrayLike, cofactor: float) -> Array:
    """Return arcsinh(sinh(x) / cofactor), float64 of any shape."""
    given = np.asarray(values, np.float64)
    near = np.clip(given, -FAR, FAR)
    return np.arcsinh(np.sinh(near) / cofactor) + (given - near)


@dataclass(frozen=True)
class Scaling:
    """The scales of all channels of a run: standardised = (transformed - means) / sds.

    Attributes
    ----------
    channels : tuple of str
        D display names.
    transforms : tuple of Transform
        One per channel.
    means, sds : float64 [D]
        Means and standard deviations of the transformed events; 0 and 1 if the run does not standardise.
    atoms : tuple of tuples of Atom
        For each channel.
    resolution : tuple of float
        D standard deviations of one measurement, on the transformed scale; empty in run files of versions
        that knew no resolution, which stands for 0 in all channels.
    """

    channels: tuple[str, ...]
    transforms: tuple[Transform, ...]
    means: Array
    sds: Array
    atoms: tuple[tuple[Atom, ...], ...] = ()
    resolution: tuple[float, ...] = ()

    @property
    def standardised_resolution(self) -> Array | None:
        """The resolution on the standardised scale, float64 [D]; None if it is 0 in all channels."""
        return np.array(self.resolution) / self.sds if any(self.resolution) else None

    def spread_atoms(self, transformed: Floats, keys: Sequence[int], rows: Ints) -> None:
        """Add noise to the events at the atoms as recorded, in place.

        Parameters
        ----------
        transformed : float32 [M, D]
        keys : sequence of int
            D keys of the noise in their sample.
        rows : int64 [M]
            Row of each event in its file.
        """
        for j, atoms in enumerate(self.atoms):
            points = self.transforms[j].apply(np.array([atom.value for atom in atoms]))
            spread(transformed[:, j], points, atoms, keys[j], rows)

    def to_transformed(self, points: npt.ArrayLike) -> Array:
        """Convert standardised points to the transformed scale, float64 [..., D]."""
        return np.asarray(points, np.float64) * self.sds + self.means

    def covariance_to_transformed(self, covariances: npt.ArrayLike) -> Array:
        """Convert covariances from the standardised to the transformed scale, float64 [..., D, D]."""
        return np.asarray(covariances, np.float64) * np.outer(self.sds, self.sds)

    def to_raw(self, points: npt.ArrayLike) -> Array:
        """Convert standardised points to raw values, float64 [..., D].

        The result for a component's mean is its centre on the raw scale, not the mean of its raw values.
        """
        return self.transformed_to_raw(self.to_transformed(points))

    def transformed_to_raw(self, transformed: npt.ArrayLike) -> Array:
        """Convert transformed points to raw values, float64 [..., D]."""
        points = np.asarray(transformed, np.float64)
        return np.stack([t.invert(points[..., j]) for j, t in enumerate(self.transforms)], axis=-1)

    def as_attributes(self) -> dict[str, Any]:
        """Return the scaling as plain lists and numbers, for JSON."""
        return {
            "channels": list(self.channels),
            "transforms": [{"method": t.method, **t.parameters()} for t in self.transforms],
            "means": self.means.tolist(),
            "sds": self.sds.tolist(),
            "atoms": [[asdict(atom) for atom in atoms] for atoms in self.atoms],
            "gain": True,  # 1.0.0 would otherwise not divide by $PnG
            **({"resolution": list(self.resolution)} if self.resolution else {}),
        }

    @classmethod
    def from_attributes(cls, attributes: Mapping[str, Any]) -> Scaling:
        """Make the scaling from the result of `as_attributes`.

        Raises
        ------
        DataError
            The attributes are not a scaling.
        """
        try:
            scaling = cls._from_attributes(attributes)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise DataError(f"the scaling in a run file cannot be read ({reason})") from None
        return scaling

    @classmethod
    def _from_attributes(cls, attributes: Mapping[str, Any]) -> Scaling:
        """Make the scaling; any exception means that the attributes are not a scaling."""
        scaling = cls(
            channels=tuple(attributes["channels"]),
            transforms=tuple(Transform(**t) for t in attributes["transforms"]),
            means=np.array(attributes["means"], np.float64),
            sds=np.array(attributes["sds"], np.float64),
            atoms=tuple(tuple(Atom(**atom) for atom in atoms) for atoms in attributes["atoms"]),
            resolution=tuple(map(float, attributes.get("resolution", ()))),
        )
        dim = len(scaling.channels)
        lengths = {dim, len(scaling.transforms), scaling.means.size, scaling.sds.size}
        if scaling.atoms:
            lengths.add(len(scaling.atoms))
        if scaling.resolution:
            lengths.add(len(scaling.resolution))
        if lengths != {dim} or scaling.means.ndim != 1 or scaling.sds.ndim != 1:
            raise ValueError("its parts have different lengths")
        if not (
            np.isfinite(scaling.means).all() and (scaling.sds > 0).all() and (scaling.sds < np.inf).all()
        ):
            raise ValueError("means or standard deviations are not valid")
        if not all(0.0 <= value < np.inf for value in scaling.resolution):
            raise ValueError("a resolution is not a number of at least 0")
        if not all(isinstance(name, str) for name in scaling.channels) or attributes["gain"] is not True:
            raise ValueError("a name is not text, or values were not divided by their gain")
        return scaling
