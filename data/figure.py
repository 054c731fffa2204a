"""Draw a run: its events, the components of its last draw, and the log posterior of its chains.

    python data/figure.py demo/run.h5 demo/figure.png

The events are read from the files that the config of the run names, and drawn on the transformed scale.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Ellipse

import dpmix
from dpmix.config.schema import Config
from dpmix.inputs import preprocess

CONTENT = 0.9  # probability inside an ellipse
VISIBLE = 0.002  # weight of the smallest component drawn


def informative_pairs(weights: np.ndarray, means: np.ndarray, count: int) -> list[tuple[int, int]]:
    """Return pairs of different channels; the pair that separates the components most is first."""
    average = weights @ means
    between = weights @ np.square(means - average)
    best = np.argsort(-between)
    return [(int(best[i]), int(best[i + 1])) for i in range(0, min(2 * count, len(best) - 1), 2)]


def draw_components(
    axes: Axes, weights: np.ndarray, means: np.ndarray, covariances: np.ndarray, pair: tuple[int, int]
) -> None:
    """Draw an ellipse with 90% of each component; components with a larger weight are darker."""
    size = np.sqrt(-2 * np.log(1 - CONTENT))
    for weight, mean, covariance in zip(weights, means, covariances, strict=True):
        if weight < VISIBLE:
            continue
        spread, axis = np.linalg.eigh(covariance[np.ix_(pair, pair)])
        angle = np.degrees(np.arctan2(axis[1, 1], axis[0, 1]))
        width, height = 2 * size * np.sqrt(spread[::-1])
        strength = min(1.0, 0.25 + 3 * weight)
        style = {"fill": False, "edgecolor": "tab:red", "linewidth": 1.2, "alpha": strength}
        axes.add_patch(Ellipse(mean[list(pair)], width, height, angle=angle, **style))


def main() -> None:
    """Draw the run that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("figure", type=Path)
    arguments = parser.parse_args()

    run = dpmix.open_run(arguments.run, transformed=True)
    config = Config.model_validate(run.config)
    events = preprocess.prepare(config.data, Path(run.attributes["base"]), config.seed)
    values = events.scaling.to_transformed(events.values)
    weights, means, covariances = run.weights[0, -1], run.means[0, -1], run.covariances[0, -1]

    pairs = informative_pairs(weights, run_standardised_means(arguments.run), 3)
    figure, panels = plt.subplots(
        1, len(pairs) + 1, figsize=(4.2 * (len(pairs) + 1), 4), layout="constrained"
    )
    for axes, (x, y) in zip(panels, pairs, strict=False):
        axes.hexbin(
            values[:, x], values[:, y], gridsize=120, bins="log", cmap="Greys", mincnt=1, linewidths=0
        )
        draw_components(axes, weights, means, covariances, (x, y))
        axes.set_xlabel(run.channels[x])
        axes.set_ylabel(run.channels[y])
    panels[0].set_title("events, and 90% of each component", fontsize=10)
    trace = run.trace["log_posterior"]
    for chain in trace:
        panels[-1].plot(np.arange(1, len(chain)), chain[1:], linewidth=0.8)
    panels[-1].set_xlabel("sweep")
    panels[-1].set_title("log posterior", fontsize=10)
    figure.savefig(arguments.figure, dpi=110)
    print(f"{arguments.figure}: {len(values):,} events, {(weights >= VISIBLE).sum()} components drawn")


def run_standardised_means(path: Path) -> np.ndarray:
    """Return the means of the last draw on the standardised scale, on which channels are comparable."""
    return dpmix.open_run(path).means[0, -1]


if __name__ == "__main__":
    main()
