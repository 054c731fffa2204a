"""Compare populations with gates that a person has drawn: F1 of each gate.

F1 is the harmonic mean of precision (share of the gate in the population) and recall (share of the population
in the gate): 2 |gate and population| / (|gate| + |population|).

A gate without gates inside it is matched with one population, and a population with one such gate, so that
the sum of F1 is the highest (Hungarian method, as in Aghaeepour et al. 2013, Nat. Methods 10:228). A gate
with gates inside it has its most similar population. Each gate also has the union of populations with the
highest F1: the populations with more than a threshold share of their events inside the gate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmix.inputs.events import Events
from dpmix.inputs.manual_gates import ManualGates
from dpmix.model.mixture import Array, Ints
from dpmix.populations.polygons import f_measure

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Comparison:
    """G gates and P populations.

    Attributes
    ----------
    source : str
        Path of the workspace.
    gates : tuple of str
        Names, for example "Live/CD3+".
    sizes : int64 [G]
        Gated events inside each gate.
    overlap : int64 [G, P]
        Of these, events of each population.
    populations : int64 [G, P]
        Events of each population in the samples that have the gate.
    """

    source: str
    gates: tuple[str, ...]
    sizes: Ints
    overlap: Ints
    populations: Ints

    @property
    def f1(self) -> Array:
        """F1 of each gate and population, float64 [G, P]."""
        return f_measure(self.overlap, self.populations, np.maximum(self.sizes, 1)[:, None])

    @property
    def leaves(self) -> Flags:
        """Gates without gates inside them, bool [G]."""
        return np.array([not any(o.startswith(f"{gate}/") for o in self.gates) for gate in self.gates], bool)

    def matches(self) -> Ints:
        """Return the population of each gate, int64 [G]; -1 for none."""
        from scipy.optimize import linear_sum_assignment

        scores, leaves = self.f1, np.flatnonzero(self.leaves)
        matched = np.where(scores.max(axis=1, initial=0.0) > 0, scores.argmax(axis=1), -1)
        matched[leaves] = -1
        rows, columns = linear_sum_assignment(-scores[leaves])
        alike = scores[leaves[rows], columns] > 0
        matched[leaves[rows[alike]]] = columns[alike]
        return matched

    def unions(self) -> tuple[list[Ints], Array]:
        """Return the populations whose union has the highest F1 with each gate, and this F1, float64 [G]."""
        chosen, scores = [], np.zeros(len(self.gates))
        for g, (inside, own) in enumerate(zip(self.overlap, self.populations, strict=True)):
            order = np.argsort(-inside / np.maximum(own, 1), kind="stable")
            f1 = f_measure(np.cumsum(inside[order]), np.cumsum(own[order]), max(self.sizes[g], 1))
            best = int(f1.argmax())
            scores[g] = f1[best]
            chosen.append(np.sort(order[: best + 1]) if f1[best] > 0 else np.empty(0, np.int64))
        return chosen, scores


def compare(
    events: Events, population: npt.NDArray[np.int32], n_populations: int, gates: ManualGates
) -> Comparison:
    """Compare the populations of gated events with the gates of a workspace.

    Parameters
    ----------
    events : Events
    population : int32 [N]
        Most probable population of each event.
    n_populations : int
    gates : ManualGates

    Raises
    ------
    DataError
        A sample is not in the workspace, or a gate cannot be applied.
    """
    counted: dict[str, Ints] = {}
    for sample, own in enumerate(events.sources):
        first, end = (int(at) for at in events.sample_starts[sample : sample + 2])
        rows = events.rows_in_file(sample, first, end)
        populations = population[first:end]
        everywhere = np.bincount(populations, minlength=n_populations)
        for name, members in gates.members(own).items():
            inside = np.bincount(populations[members[rows]], minlength=n_populations)
            counted[name] = counted.get(name, 0) + np.stack((inside, everywhere))
    counts = np.array(list(counted.values()), np.int64).reshape(-1, 2, n_populations)
    return Comparison(str(gates.path), tuple(counted), counts[:, 0].sum(axis=1), counts[:, 0], counts[:, 1])
