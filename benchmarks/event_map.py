"""Compare settings of the map of events: processor time, and how well it keeps neighbours.

    python benchmarks/event_map.py            # a minute of one core
    python benchmarks/event_map.py --quick    # few events, to build/: a check

Compared are dpmix, dpmix before (5,000 events), and t-SNE with perplexity 30 and more steps. Neighbours are
measured by the trustworthiness of scikit-learn (15 neighbours) of at most 4,000 events on the map, and by the
share of the 15 nearest events on the map that have the same manual gate. The events are labelled sets of
../shared, which are not part of this project. The table is on docs/benchmarks/end-to-end.md, from
benchmarks/results/event_map.json.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
from openTSNE import TSNE
from record import ROOT, arguments, read_results, said, write_results
from sklearn.manifold import trustworthiness
from sklearn.neighbors import NearestNeighbors
from threadpoolctl import threadpool_limits

from dpmix.report import embedding

FOLDER = ROOT.parent / "shared" / "data" / "labelled"
SETS = {"multicenter CyTOF, sample 1": "multicenter_cytof_01-08"}
NEIGHBOURS, JUDGED = 15, 4_000


def events_of(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the standardised events of the first sample and their gates, without ungated events."""
    with np.load(path) as file:
        values, labels = np.arcsinh(file["events"] / 5.0), file["labels"]
        kept = labels > 0
        if "sample" in file:
            kept &= file["sample"] == file["sample"].min()
    values = values[kept]
    return ((values - values.mean(axis=0)) / values.std(axis=0)).astype(np.float32), labels[kept]


def of_dpmix(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return embedding.place_events(values, 1)


def of_opentsne(
    values: np.ndarray, most: int = embedding.MOST_EVENTS, **given: Any
) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(1).choice(len(values), min(most, len(values)), replace=False)
    with threadpool_limits(1):
        places = TSNE(n_jobs=1, random_state=1, **given).fit(values[rows].astype(float))
    return rows, np.asarray(places)


def before(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return of_opentsne(values, 5_000, early_exaggeration_iter=125, n_iter=250, negative_gradient_method="bh")


def slow(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return of_opentsne(
        values,
        early_exaggeration_iter=125,
        n_iter=250,
        negative_gradient_method="fft",
        ints_in_interval=embedding.CELL,
    )


METHODS = {"dpmix": of_dpmix, "before": before, "perplexity 30, 125 + 250 steps": slow}


def measure(values: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Return events, processor seconds and the two measures of each method."""
    found = {}
    for name, method in METHODS.items():
        began = time.process_time()
        rows, places = method(values)
        seconds = time.process_time() - began
        some = slice(JUDGED)
        near = NearestNeighbors(n_neighbors=NEIGHBOURS).fit(places).kneighbors(return_distance=False)
        found[name] = {
            "events": len(rows),
            "processor": round(seconds, 1),
            "trustworthiness": round(
                float(trustworthiness(values[rows[some]], places[some], n_neighbors=NEIGHBOURS)), 4
            ),
            "same gate": round(float((labels[rows][near] == labels[rows][:, None]).mean()), 4),
        }
        print(name, found[name], flush=True)
    return found


def table() -> str:
    """Return the table in Markdown."""
    lines = [
        "| sample | settings | events | processor s | trustworthiness | neighbours in the same gate |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for sample, methods in read_results("event_map")["results"].items():
        for name, own in methods.items():
            cells = (
                sample,
                name,
                f"{own['events']:,}",
                f"{own['processor']:.1f}",
                f"{own['trustworthiness']:.3f}",
                f"{own['same gate']:.1%}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def notes() -> str:
    """Return command, machine and date of the committed results."""
    return said("event_map") + "\n"


def main() -> None:
    quick = arguments(__doc__).parse_args().quick
    of_dpmix(np.random.default_rng(1).normal(size=(500, 3)).astype(np.float32))  # imports are not measured
    results = {}
    for name, file in SETS.items():
        if quick:
            rng = np.random.default_rng(1)
            labels = rng.integers(1, 4, 600)
            values = (rng.normal(size=(600, 5)) + 3.0 * labels[:, None]).astype(np.float32)
        else:
            values, labels = events_of(FOLDER / f"{file}.npz")
        results[name] = measure(values, labels)
    write_results("event_map", results, quick=quick)


if __name__ == "__main__":
    main()
