"""Measure the rounding of log densities, in nats, for forms of the whitening that a GPU could use.

    python benchmarks/whitening_errors.py    some seconds; NumPy emulates the rounding of each form

Events are drawn from one component of D = 14 channels with random correlations, the same standard deviation
in every channel, and its mean at the same distance from the origin in every channel. The error is the largest
one over 2,000 events and five covariances, from float64. Forms:

- `centred`: float32 W (x - mean), as the kernels do;
- `affine`: float32 W x - b with b = W mean, which needs fewer registers;
- `3xTF32`: W x by three products of TF32 parts (11 bits each), added in float32, minus b;
- `split FP16`: the same with two FP16 parts, W scaled by a power of two.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from record import write_results
from rich.console import Console
from rich.table import Table

Floats = npt.NDArray[np.float32]
Split = Callable[[Floats], Floats]
DIM, N_EVENTS, COVARIANCES = 14, 2000, 5


def tf32(values: Floats) -> Floats:
    """Round to the 11 significant bits of TF32."""
    bits = values.view(np.uint32)
    rounded: Floats = ((bits + 0x0FFF + ((bits >> 13) & 1)) & np.uint32(0xFFFFE000)).view(np.float32)
    return rounded


def fp16(values: Floats) -> Floats:
    """Round to FP16, after scaling so that neither the values nor their second parts leave its range."""
    scale = np.float32(2.0 ** (12 - np.ceil(np.log2(np.abs(values).max()))))
    return (values * scale).astype(np.float16).astype(np.float32) / scale


def sums(factors: Floats, values: Floats) -> Floats:
    """Return values [N, D] times a triangle [D, D], added in float32 in the order of the channels."""
    total = np.zeros((len(values), DIM), np.float32)
    for i in range(DIM):
        total = (total + values[:, i : i + 1] * factors[:, i]).astype(np.float32)
    return total


def by_parts(factors: Floats, values: Floats, rounded: Split) -> Floats:
    """Return the product from the leading and second parts of both, without that of the second parts."""
    high, top = rounded(factors), rounded(values)
    low, rest = rounded(factors - high), rounded(values - top)
    return sums(low, top) + sums(high, rest) + sums(high, top)


def squares(y: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    return np.square(y).sum(axis=1, dtype=y.dtype)


def errors(deviation: float, distance: float, seed: int) -> dict[str, float]:
    """Return the largest error of each form in nats."""
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(DIM, DIM + 10))
    product = factor @ factor.T
    roots = np.sqrt(np.diag(product))
    covariance = product / np.outer(roots, roots) * deviation**2
    cholesky = np.linalg.cholesky(covariance)
    mean = (np.full(DIM, distance) + rng.normal(size=DIM) * 0.1).astype(np.float32)
    events = (mean + rng.normal(size=(N_EVENTS, DIM)) @ cholesky.T).astype(np.float32)
    whitener = (np.linalg.inv(cholesky) * np.sqrt(0.5)).astype(np.float32)
    exact = squares((events.astype(float) - mean) @ whitener.astype(float).T)
    offset = (whitener.astype(float) @ mean).astype(np.float32)
    forms = {
        "centred": sums(whitener, events - mean),
        "affine": sums(whitener, events) - offset,
        "3xTF32": by_parts(whitener, events, tf32) - offset,
        "split FP16": by_parts(whitener, events, fp16) - offset,
    }
    return {name: float(np.abs(squares(y) - exact).max()) for name, y in forms.items()}


def main() -> None:
    rows = []
    for deviation, distance in ((1.0, 0.0), (0.2, 1.0), (0.05, 1.0), (0.05, 5.0)):
        found = [errors(deviation, distance, seed) for seed in range(COVARIANCES)]
        worst = {name: max(each[name] for each in found) for name in found[0]}
        rows.append({"deviation": deviation, "mean": distance} | worst)
    table = Table("standard deviation", "mean", *list(rows[0])[2:])
    for row in rows:
        table.add_row(
            *(f"{value:g}" for value in list(row.values())[:2]), *map("{:.1e}".format, list(row.values())[2:])
        )
    Console().print(table)
    write_results("whitening_errors", {"rows": rows})


if __name__ == "__main__":
    main()
