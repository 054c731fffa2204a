"""Simulate populations whose truth is known, for simulated.py to count how many of them dpmix finds.

The cases are made by the code below and nothing else: `cases()` gives them one after another, each from a
seed of its own, so that the same name is always the same data. They are single populations of shapes that no
normal fits, which a rule should leave whole; and mixtures of populations nested, rare, overlapping, many,
on a continuum, and like a cytometer's, which it should tell apart; among them simulated mass cytometry
(mass_cytometry.py).
"""

from __future__ import annotations

import argparse
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import yaml
from mass_cytometry import mass_cytometry
from record import plain_arguments

from dpmix.config.compare import RESUMABLE, differences
from dpmix.config.load import parse_config
from dpmix.errors import DpmixError
from dpmix.inputs.simulate import simulation
from dpmix.runs.mcmc import run_mcmc
from dpmix.runs.reader import open_run

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Made = tuple[Array, Ints]
Shape = Literal["gaussian", "skewed", "heavy", "bent", "clipped"]

BIG = 100_000  # events from which a case is left out unless asked for


@dataclass(frozen=True)
class Case:
    """Events of known populations.

    Attributes
    ----------
    name : str
        Kind, channels and events, as "overlap2-d3-n20000".
    events : float32 [N, D]
        On a scale that needs no transform; not standardised.
    labels : int64 [N]
        Population of each event, from 1; 0 for noise, which is not scored.
    """

    name: str
    events: npt.NDArray[np.float32]
    labels: Ints


# ------------------------------------------------------------------------------------- one population


def shaped(random: np.random.Generator, shape: Shape, n: int, dim: int) -> Array:
    """Events of one population with one mode, float64 [n, dim], about 0 and of standard deviation 1.

    All shapes but the clipped one have a single mode exactly: skewed is a linear map of gamma variables,
    whose density is log-concave; heavy is multivariate t, elliptical; bent maps a normal by a shear without
    change of volume (Haario, Saksman and Tamminen 1999, Comput. Stat. 14:375).
    """
    factors = random.normal(size=(dim, dim + 3))
    root = np.linalg.cholesky(factors @ factors.T)
    root /= np.linalg.norm(root, axis=1, keepdims=True)
    z = random.normal(size=(n, dim))
    if shape == "skewed":  # skewness 2 / sqrt(2) = 1.4 of each variable, less of their sums
        events = (random.gamma(2.0, size=(n, dim)) - 2.0) / np.sqrt(2.0) @ _mild(root).T
    elif shape == "heavy":  # 4 degrees of freedom
        events = z @ root.T * np.sqrt(4.0 / random.chisquare(4.0, (n, 1)))
    else:
        events = z @ root.T
    if shape == "bent":
        events[:, 1] = 0.5 * z[:, 1] + 0.7 * (events[:, 0] ** 2 - 1.0)
    events = (events - events.mean(axis=0)) / events.std(axis=0)
    if shape == "clipped":  # every third channel at its lower 30%, as where a detector reads nothing
        held = np.arange(0, dim, 3)
        events[:, held] = np.maximum(events[:, held], np.quantile(events[:, held], 0.3, axis=0))
    return events


def _mild(root: Array) -> Array:
    """A root of a correlation matrix nearer to the identity, so that skewness is not averaged away."""
    mixed = 0.3 * root + 0.7 * np.eye(len(root))
    return np.asarray(mixed / np.linalg.norm(mixed, axis=1, keepdims=True))


def single(random: np.random.Generator, shape: Shape, dim: int, n: int) -> Made:
    """One population."""
    return shaped(random, shape, n, dim), np.ones(n, np.int64)


# ---------------------------------------------------------------------------------------- mixtures


def nearest_sizes(shares: Array, n: int) -> Ints:
    """Events of each population, nearest to its share, int64 [P]; every one has some, and they add to n."""
    sizes = np.maximum(np.rint(shares / shares.sum() * n).astype(np.int64), 1)
    sizes[sizes.argmax()] += n - sizes.sum()
    return sizes


def join(random: np.random.Generator, parts: list[Array]) -> Made:
    """Populations put together, their events in random order."""
    labels = np.repeat(np.arange(1, len(parts) + 1), [len(part) for part in parts])
    order = random.permutation(len(labels))
    return np.concatenate(parts)[order], labels[order]


def apart(random: np.random.Generator, number: int, dim: int, distance: float) -> Array:
    """Centres at least a distance from each other, in a ball no larger than they need, [number, dim]."""
    centres, radius, failures = np.zeros((1, dim)), 0.7 * distance, 0
    while len(centres) < number:
        direction = random.normal(size=dim)
        ball = direction / np.linalg.norm(direction) * radius * random.uniform() ** (1.0 / dim)
        if np.linalg.norm(centres - ball, axis=1).min() > distance:
            centres = np.concatenate((centres, ball[None]))
        else:
            failures += 1
            radius *= 1.05 if failures % 50 == 0 else 1.0
    return centres


def nested(random: np.random.Generator, offset: float, share: float, dim: int, n: int) -> Made:
    """A narrow population (standard deviation 0.15) inside a wide one (1), `offset` off its centre."""
    narrow, wide = nearest_sizes(np.array([share, 1.0 - share]), n)
    direction = random.normal(size=dim)
    centre = offset * direction / np.linalg.norm(direction)
    return join(
        random,
        [shaped(random, "gaussian", wide, dim), centre + 0.15 * shaped(random, "gaussian", narrow, dim)],
    )


def rare(random: np.random.Generator, distance: float, dim: int, n: int) -> Made:
    """Three skewed populations, and one of 0.1%, `distance` of its standard deviations or more from each."""
    centres = apart(random, 4, dim, distance)
    sizes = nearest_sizes(np.array([0.55, 0.3, 0.149, 0.001]), n)
    parts = [
        centre + 0.8 * shaped(random, "skewed", size, dim)
        for centre, size in zip(centres, sizes, strict=True)
    ]
    return join(random, parts)


def overlap(random: np.random.Generator, distance: float, dim: int, n: int) -> Made:
    """Two normals of one covariance I and weight 1/2, `distance` standard deviations apart.

    Their density has two modes if and only if distance > 2; of the events, Phi(-distance / 2) lie beyond the
    middle: F1 0.84, 0.93 and 0.98 at most, at distance 2, 3 and 4.
    """
    direction = random.normal(size=dim)
    step = distance * direction / np.linalg.norm(direction)
    first = random.normal(size=(n // 2, dim))
    return join(random, [first, step + random.normal(size=(n - n // 2, dim))])


def many(random: np.random.Generator, shape: Shape, number: int, dim: int, n: int) -> Made:
    """Populations of one shape, well apart, of shares from 1 to 5 or so."""
    centres = apart(random, number, dim, 6.5)
    sizes = nearest_sizes(np.exp(random.uniform(0.0, np.log(5.0), number)), n)
    parts = [
        centre + random.uniform(0.6, 1.1) * shaped(random, shape, size, dim)
        for centre, size in zip(centres, sizes, strict=True)
    ]
    return join(random, parts)


def quadrants(random: np.random.Generator, distance: float, lineages: int, dim: int, n: int) -> Made:
    """Finely divided gates: quadrants of two markers, each with a shallow valley, in each of some lineages.

    Both markers are mixtures of two normals of standard deviation 1, `distance` apart; lineages lie 8 apart
    in a third marker; the others tell nothing. The truth is the gate, as one would draw it: the side of the
    middle that an event lies on in either marker, not which normal it came from.
    """
    shares = np.array([0.35, 0.25, 0.25, 0.15])
    which = random.choice(4, n, p=shares)
    lineage = random.choice(lineages, n)
    events = random.normal(size=(n, dim))
    events[:, 0] += distance * (which // 2)
    events[:, 1] += distance * (which % 2)
    events[:, 2] += 8.0 * lineage
    sides = events[:, :2] > distance / 2.0
    return events, (1 + 4 * lineage + 2 * sides[:, 0] + sides[:, 1]).astype(np.int64)


def cytometry(random: np.random.Generator, number: int, zeros: bool, dim: int, n: int) -> Made:
    """Populations that are each positive or negative in each marker, skewed, correlated, of uneven size.

    Positive events lie 3 to 6 above negative ones, by the marker, where standard deviations are 0.7 to 1.1;
    shares are log-normal, at least 0.3%. Populations differ in two markers at least. With `zeros`, values
    below the middle of the negative population are 0, as mass cytometry has it.
    """
    patterns = np.empty((0, dim), bool)
    while len(patterns) < number:
        pattern = random.uniform(size=dim) < 0.4
        if not len(patterns) or (patterns != pattern).sum(axis=1).min() >= 2:
            patterns = np.concatenate((patterns, pattern[None]))
    steps = random.uniform(3.0, 6.0, dim)
    shares = random.lognormal(0.0, 1.2, number)
    sizes = nearest_sizes(np.maximum(shares / shares.sum(), 0.003), n)
    parts = []
    for pattern, size in zip(patterns, sizes, strict=True):
        level = steps * pattern + random.normal(0.0, 0.3, dim) * pattern
        cell_size = 0.3 * random.normal(size=(size, 1))
        parts.append(level + cell_size + random.uniform(0.7, 1.1, dim) * shaped(random, "skewed", size, dim))
    events, labels = join(random, parts)
    return np.maximum(events, 0.0) if zeros else events, labels


def blood(random: np.random.Generator, n: int) -> Made:
    """The ten dyes of `dpmix simulate`, without spillover, on the scale its populations are described on."""
    made = simulation.cytometry_like(n, seed=int(random.integers(2**31)), spill=False)
    dyes = [made.channels.index(name) for name in simulation.DYES]
    events = np.arcsinh(made.events[:, dyes].astype(np.float64) / simulation.COFACTOR)
    return events, made.labels.astype(np.int64) + 1


# ------------------------------------------------------------------------------------------- cases

Make = Callable[..., Made]

TABLE: tuple[tuple[str, Make, dict[str, Any], int, int], ...] = (
    # name, function, its arguments, channels, events
    ("gaussian", single, {"shape": "gaussian"}, 5, 20_000),
    ("gaussian", single, {"shape": "gaussian"}, 25, 20_000),
    ("skewed", single, {"shape": "skewed"}, 3, 2_000),
    ("skewed", single, {"shape": "skewed"}, 10, 20_000),
    ("skewed", single, {"shape": "skewed"}, 30, 10_000),
    ("heavy", single, {"shape": "heavy"}, 3, 20_000),
    ("heavy", single, {"shape": "heavy"}, 10, 20_000),
    ("bent", single, {"shape": "bent"}, 3, 20_000),
    ("bent", single, {"shape": "bent"}, 10, 20_000),
    ("clipped", single, {"shape": "clipped"}, 6, 20_000),
    ("clipped", single, {"shape": "clipped"}, 20, 10_000),
    ("skewed", single, {"shape": "skewed"}, 6, 1_000_000),
    ("nested0", nested, {"offset": 0.0, "share": 0.2}, 3, 20_000),
    ("nested1", nested, {"offset": 1.5, "share": 0.1}, 8, 20_000),
    ("nested3", nested, {"offset": 3.0, "share": 0.05}, 8, 20_000),
    ("rare", rare, {"distance": 6.0}, 6, 20_000),
    ("rare", rare, {"distance": 6.0}, 12, 100_000),
    ("rare", rare, {"distance": 6.0}, 8, 1_000_000),
    ("overlap2", overlap, {"distance": 2.0}, 3, 20_000),
    ("overlap3", overlap, {"distance": 3.0}, 3, 20_000),
    ("overlap4", overlap, {"distance": 4.0}, 3, 20_000),
    ("overlap2", overlap, {"distance": 2.0}, 12, 20_000),
    ("overlap3", overlap, {"distance": 3.0}, 12, 20_000),
    ("overlap4", overlap, {"distance": 4.0}, 12, 2_000),
    ("overlap3", overlap, {"distance": 3.0}, 3, 1_000_000),
    ("many", many, {"shape": "gaussian", "number": 20}, 3, 20_000),
    ("many-skewed", many, {"shape": "skewed", "number": 20}, 3, 50_000),
    ("many-skewed", many, {"shape": "skewed", "number": 20}, 8, 20_000),
    ("many-heavy", many, {"shape": "heavy", "number": 20}, 20, 20_000),
    ("many-bent", many, {"shape": "bent", "number": 8}, 5, 20_000),
    ("quadrants", quadrants, {"distance": 2.6, "lineages": 1}, 4, 20_000),
    ("quadrants", quadrants, {"distance": 3.0, "lineages": 2}, 7, 30_000),
    ("quadrants", quadrants, {"distance": 3.0, "lineages": 1}, 3, 100_000),
    ("cytometry", cytometry, {"number": 6, "zeros": False}, 6, 20_000),
    ("cytometry", cytometry, {"number": 10, "zeros": False}, 10, 50_000),
    ("cytometry", cytometry, {"number": 15, "zeros": False}, 20, 20_000),
    ("cytometry", cytometry, {"number": 25, "zeros": False}, 40, 20_000),
    ("cytometry-zeros", cytometry, {"number": 8, "zeros": True}, 8, 50_000),
    ("mass", mass_cytometry, {"number": 20}, 13, 20_000),
    ("mass", mass_cytometry, {"number": 20}, 13, 100_000),
    ("mass", mass_cytometry, {"number": 20}, 21, 20_000),
    ("mass", mass_cytometry, {"number": 20}, 30, 50_000),
    ("mass", mass_cytometry, {"number": 20}, 40, 20_000),
    ("blood", blood, {}, 10, 20_000),
    ("blood", blood, {}, 10, 100_000),
    ("blood", blood, {}, 10, 1_000_000),
)  # fmt: skip


def cases(pattern: str = "*", most: int = BIG) -> Iterator[Case]:
    """Every case whose name fits a pattern, of at most this many events; each is made when its turn comes."""
    for kind, make, arguments, dim, n in TABLE:
        name = f"{kind}-d{dim}-n{n}"
        if n > most or not fnmatch(name, pattern):
            continue
        random = np.random.default_rng(zlib.crc32(name.encode()))
        shape = {} if make is blood else {"dim": dim}
        events, labels = partial(make, **arguments, **shape)(random, n=n)
        yield Case(name, events.astype(np.float32), labels)


# -------------------------------------------------------------------------------------------- fits


def fit(case: Case, folder: Path, options: Sequence[str] = ()) -> tuple[Path, float]:
    """Run MCMC on a case, with the default config but for `options` (KEY=VALUE), unless it is there already.

    Events and labels are written next to it, <name>.npy and <name>_y.npy.

    Returns
    -------
    Path
        The run file, <name>.h5.
    float
        Seconds that the run took; 0 where it was there.

    Raises
    ------
    DpmixError
        The run failed, or the run file that is there is of other options.
    """
    path, events = folder / f"{case.name}.h5", folder / f"{case.name}.npy"
    text = yaml.safe_dump(
        {
            "data": {"files": [str(events.resolve())], "transform": {"default": {"method": "linear"}}},
            "output": {"path": str(path)},
        }
    )
    config = parse_config(text, case.name, options)
    if path.exists() and (run := open_run(path)).complete:
        if changed := [
            key
            for key in differences(config, parse_config(run.config_text, path.name))
            if key not in RESUMABLE
        ]:
            raise DpmixError(
                f"{path}: made with other {', '.join(changed)}; need another CACHE or its removal"
            )
        return path, 0.0
    folder.mkdir(parents=True, exist_ok=True)
    np.save(events, case.events)
    np.save(folder / f"{case.name}_y.npy", case.labels)
    began = time.perf_counter()
    run_mcmc(config, overwrite=True)
    return path, time.perf_counter() - began


# ---------------------------------------------------------------------------------------- the options


def case_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the options that choose cases, their config and the folder of their runs."""
    parser = plain_arguments(description)
    parser.add_argument("cache", type=Path, metavar="CACHE", help="folder of the run files")
    parser.add_argument("--cases", default="*", help="names of the cases, a glob (default: all)")
    parser.add_argument("--most", type=int, default=BIG, help="events beyond which a case is left out")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the config")
    return parser
