"""Undo label switching: number the components of every draw as in a reference draw.

The number of a component has no meaning across draws. Cron and West (2011), Am. Stat. 65:16, section 3,
classify the same events by a draw and by a reference, and renumber the components of the draw such that as
few events as possible change their number. This is an assignment problem, solved by scipy.

T draws, M events, K components. The raw draws stay unchanged; `write_aligned` writes another file.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path

import h5netcdf
import numpy as np
import numpy.typing as npt

from dpmix.errors import ConfigError
from dpmix.model.mixture import Array, Ints
from dpmix.populations.tree.partitions import contingency
from dpmix.runs.layout import coordinate, write_coordinates
from dpmix.runs.reader import Run
from dpmix.runs.run_file import DatasetPlace, read_contents
from dpmix.system.files import HDF5_BYTES, replacing, writing
from dpmix.system.paths import as_text

PER_COMPONENT = ("weights", "means", "covariances")
HELD_BYTES = 2**24  # of draws that are written together


def align(labels: npt.ArrayLike, weights: npt.ArrayLike, reference: int) -> Ints:
    """Match the components of each draw to the components of a reference draw.

    Components without shared events, mostly those without any events, take the remaining places by weight:
    the heaviest gets the place of the heaviest, ties in order of their numbers.

    Parameters
    ----------
    labels : int [T, M]
        Component of each of the same events in each draw.
    weights : float [T, K]
        Weights of the components of each draw.
    reference : int
        Number of the reference draw.

    Returns
    -------
    int64 [T, K]
        order[t, k] is the component of draw t that matches component k of the reference: a permutation of
        0..K-1, the identity for the reference itself. ``means[t][order[t]]`` are the aligned means.
    """
    draws, weight = np.asarray(labels), np.asarray(weights, np.float64)
    if draws.ndim != 2 or weight.ndim != 2 or len(draws) != len(weight) or draws.dtype.kind not in "iu":
        raise ValueError(
            f"labels of shape {draws.shape} and type {draws.dtype} and weights of shape {weight.shape}: need "
            "int [draws, events] and float [draws, components]"
        )
    if draws.size and not (draws.min() >= 0 and draws.max() < weight.shape[1]):
        raise ValueError(f"labels {draws.min()} to {draws.max()} of {weight.shape[1]} components")
    return np.array(
        [_order(draws[reference], weight[reference], *one) for one in zip(draws, weight, strict=True)]
    )


def _order(kept: Ints, kept_weights: Array, labels: Ints, weights: Array) -> Ints:
    """Return the component of a draw for each component of the reference, int64 [K]."""
    from scipy.optimize import linear_sum_assignment

    # Only components with events are assigned: at most M for any K.
    (places, kept_numbers), (components, numbers) = _numbered(kept), _numbered(labels)
    shared = contingency(kept_numbers, numbers)
    rows, columns = linear_sum_assignment(shared, maximize=True)
    # An assignment without a shared event is arbitrary; such components take places by weight instead.
    tied = shared[rows, columns] > 0
    order = np.full(len(weights), -1)
    order[places[rows[tied]]] = components[columns[tied]]

    heaviest_places = np.argsort(-kept_weights, kind="stable")
    heaviest = np.argsort(-weights, kind="stable")
    order[heaviest_places[order[heaviest_places] < 0]] = heaviest[~np.isin(heaviest, order)]
    return order


def _numbered(labels: Ints) -> tuple[Ints, Ints]:
    """Return the components with events, ascending, and the place among them of each label."""
    counts = np.bincount(labels)
    return np.flatnonzero(counts), (np.cumsum(counts > 0) - 1)[labels]


def write_aligned(path: str | Path, run: Run, draws: npt.ArrayLike, order: npt.ArrayLike) -> None:
    """Write draws with aligned components to a file that ``arviz.from_netcdf`` and xarray open.

    The group ``posterior`` has weights, means, covariances, alpha and learned hyperparameters, named as in
    the run file and on the scale of `run`. ``component_order`` [chain, draw, component] has the component
    numbers of the run file. ``chain`` and ``draw`` are numbers in the run file, ``component`` is the number
    in the reference. Draws are read and written a few at a time. An existing file is replaced once the new
    one is complete.

    Parameters
    ----------
    path : str or Path
    run : Run
    draws : int [T, 2]
        Chain and draw, from 0, of each draw; the same draws of each chain, in any order.
    order : int64 [T, K]
        Result of `align`.

    Raises
    ------
    ConfigError
        The path is the run file's.
    DataError
        The file cannot be written.
    """
    path = Path(path)
    if path.exists() and path.samefile(run.path):
        raise ConfigError([f"{path}: is the run file, which must not change; give another name"])
    pairs, orders = np.asarray(draws, np.int64), np.asarray(order, np.int64)
    chains, numbers = np.unique(pairs[:, 0]), np.unique(pairs[:, 1])
    if orders.shape != (len(pairs), run.n_components) or len(np.unique(pairs, axis=0)) != len(pairs):
        raise ValueError(f"order of shape {orders.shape} for {len(pairs)} draws, each once")
    if len(pairs) != len(chains) * len(numbers):
        raise ValueError("the chains have different draws")
    written = read_contents(run.path).slots
    slots = {name: written[f"posterior/{name}"] for name in (*PER_COMPONENT, "alpha", *run.hyperparameters)}
    n_bytes = sum(map(_draw_bytes, slots.values())) * len(pairs) + orders.nbytes + HDF5_BYTES
    with writing(path), replacing(path, n_bytes) as temporary, h5netcdf.File(temporary, "w") as file:
        file.attrs.update(_attributes(run))
        _write_posterior(file.create_group("posterior"), run, slots, chains, numbers, pairs, orders)


def _attributes(run: Run) -> dict[str, str]:
    """Return the attributes of the file. It has no run_id, which identifies run files."""
    return {
        "title": f"aligned draws of {as_text(run.path.name)}",
        "source": as_text(run.path.resolve()),
        "source_run_id": str(run.attributes["run_id"]),
        "data_hash": str(run.attributes["data_hash"]),
        "scale": "transformed" if run.transformed else "standardised",
        "references": "Cron and West (2011), Am. Stat. 65:16",
    }


def _write_posterior(
    group: h5netcdf.Group,
    run: Run,
    slots: Mapping[str, DatasetPlace],
    chains: Ints,
    numbers: Ints,
    pairs: Ints,
    orders: Ints,
) -> None:
    sizes = {dim: size for slot in slots.values() for dim, size in zip(slot.dims, slot.shape, strict=True)}
    own = {dim: coordinate(dim, size, run.channels) for dim, size in sizes.items()}
    write_coordinates(group, {**own, "chain": chains, "draw": numbers})
    for name, slot in slots.items():
        group.create_variable(name, slot.dims, np.float64)
    group.create_variable("component_order", slots["weights"].dims, np.int64)
    placed = np.lexsort(pairs.T[::-1]).reshape(len(chains), len(numbers))  # by chain, then by draw
    group["component_order"][:] = orders[placed]
    for name, slot in slots.items():
        step = max(HELD_BYTES // _draw_bytes(slot), 1)  # draws written together
        for row, start in itertools.product(range(len(chains)), range(0, len(numbers), step)):
            some = placed[row, start : start + step]
            held = run.in_draws(name, pairs[some])
            if name in PER_COMPONENT:
                held = np.array([one[orders[t]] for one, t in zip(held, some, strict=True)])
            group[name][row, start : start + step] = held


def _draw_bytes(slot: DatasetPlace) -> int:
    """Return the bytes of a variable in one draw."""
    return slot.dtype.itemsize * math.prod(slot.shape[2:])
