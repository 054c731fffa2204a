"""Clustering tools to compare dpmix with, the input that each is given, and clusters matched to the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment

Events = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


def kmeans(events: Events, gates: int, seed: int) -> Ints:
    from sklearn.cluster import KMeans

    return np.asarray(KMeans(gates + 1, n_init="auto", random_state=seed).fit_predict(events))


def _flowsom(events: Events, clusters: int, seed: int) -> Ints:
    import anndata
    import flowsom
    from loguru import logger

    logger.disable("flowsom")
    names = [f"ch{j}" for j in range(events.shape[1])]
    table = anndata.AnnData(events.astype(np.float64), var={"channel": names, "marker": names})
    table.var_names = names
    return np.asarray(flowsom.FlowSOM(table, n_clusters=clusters, seed=seed).metacluster_labels).astype(int)


def flowsom_gates(events: Events, gates: int, seed: int) -> Ints:
    return _flowsom(events, gates + 1, seed)


def flowsom_20(events: Events, gates: int, seed: int) -> Ints:
    return _flowsom(events, 20, seed)


def phenograph(events: Events, gates: int, seed: int) -> Ints:
    import phenograph as peer

    return np.asarray(peer.cluster(events, clustering_algo="leiden", k=30, seed=seed)[0])


def subset(events: Events, most: int, seed: int) -> Events:
    """At most this many of the events, drawn without replacement."""
    return events[np.random.default_rng(seed).permutation(len(events))[:most]]


def gmm(events: Events, gates: int, seed: int) -> Ints:
    from sklearn.mixture import GaussianMixture

    fitted = GaussianMixture(gates + 5, random_state=seed).fit(subset(events, 20_000, seed))
    return np.asarray(fitted.predict(events))


def bgmm(events: Events, gates: int, seed: int) -> Ints:
    from sklearn.mixture import BayesianGaussianMixture

    model = BayesianGaussianMixture(
        n_components=40,
        weight_concentration_prior_type="dirichlet_process",
        max_iter=100,
        random_state=seed,
    )
    return np.asarray(model.fit(subset(events, 8_000, seed)).predict(events))


@dataclass(frozen=True)
class Method:
    """A clustering tool.

    Attributes
    ----------
    title : str
        Name in tables.
    given : str
        Input that the tool is given besides the events.
    cluster : callable, optional
        Return the cluster of each event, given events, number of gates and seed; None for dpmix.
    distribution : str
        Name of the Python package, for its version.
    """

    title: str
    given: str
    cluster: Callable[[Events, int, int], Ints] | None
    distribution: str


DPMIX, SKLEARN = "dpmix-cytometry", "scikit-learn"
METHODS = {
    "kmeans": Method("k-means", "k = gates + 1 (true number of gates)", kmeans, SKLEARN),
    "flowsom": Method(
        "FlowSOM, gates + 1", "n_clusters = gates + 1 (true number of gates)", flowsom_gates, "flowsom"
    ),
    "flowsom20": Method("FlowSOM, 20", "n_clusters = 20", flowsom_20, "flowsom"),
    "phenograph": Method("PhenoGraph", "k = 30 neighbours, leiden", phenograph, "phenograph"),
    "gmm": Method("GMM, gates + 5", "gates + 5 (true number); at most 20,000 events", gmm, SKLEARN),
    "bgmm": Method(
        "BGMM (scikit-learn)", "40 components, at most 8,000 events, 100 iterations", bgmm, SKLEARN
    ),
    "dpmix": Method("**dpmix**", "none (default config)", None, DPMIX),
}
PEERS = tuple(name for name, method in METHODS.items() if method.cluster is not None)

SIMILAR = 0.5  # least Jaccard similarity of a match


def matches(table: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Match rows (true) and columns (found) of a table of counts one to one, on F1.

    Only pairs with a Jaccard similarity above 1/2 are a match.
    """
    union = table.sum(axis=1, keepdims=True) + table.sum(axis=0) - table
    pairs = zip(*linear_sum_assignment(-table / (union + table)), strict=True)
    return [(int(i), int(j)) for i, j in pairs if table[i, j] > SIMILAR * union[i, j]]
