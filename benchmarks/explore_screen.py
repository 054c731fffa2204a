"""Measure what a person waits for on the page of `dpmix app` from one screen of rare cells to the next.

    python benchmarks/explore_screen.py [--quick]

`dpmix app` serves a short run of four populations in 20 channels and a rare one. An oracle judges all 20
events of each screen. A screen is the request with the judgements, from its first byte to the last byte of
the answer: judgements stored, posterior of all events updated, next events chosen and described. The page
then asks for the numbers to stop by, and the server learns ahead, while a person judges. At the end another
server opens the same run with all judgements at once, as after a restart, and as each call of `dpmix explore`
does.

Wall seconds, and processor seconds of all threads of the server, which depend less on other work on the
machine. The table has medians of the five screens nearest to a number of judgements. Takes a minute of two
cores and 2 GB; `--quick` takes seconds.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from record import DPMIX, arguments, read_results, said, write_results

MOST, SHOWN, NEAREST = 540, (100, 300, 500), 5
EVENTS = (100_000, 1_000_000)
DIM, POPULATIONS, SHARE, SEED = 20, 4, 0.005, 1
SETTINGS = {
    "data": {"files": ["events.npy"]},
    "model": {"components": 32},
    "mcmc": {"burn_in": 20, "draws": 4},
    "output": {"path": "run.h5"},
}


class Page:
    """Requests of the page, without a browser."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().split()[1])
        self._connection = http.client.HTTPConnection(address.netloc)
        self._path, self._origin = address.path, f"http://{address.netloc}"
        self._times = Path(f"/proc/{process.pid}/stat")

    def _used(self) -> float:
        user, system = self._times.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def ask(self, name: str, **given: Any) -> tuple[Any, list[float]]:
        """Return the answer to a request, and its wall seconds and processor seconds."""
        used, began = self._used(), time.perf_counter()
        self._connection.request(
            "POST", f"{self._path}do/{name}", json.dumps(given), {"Origin": self._origin}
        )
        answer = json.loads(self._connection.getresponse().read())["result"]
        seconds = [time.perf_counter() - began, self._used() - used]
        assert "error" not in answer, answer
        return answer, [float(f"{value:.3g}") for value in seconds]


@contextmanager
def served(folder: Path) -> Iterator[Page]:
    """Yield the page of a folder."""
    command = [*DPMIX, "app", str(folder), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        page = Page(process)
        page.ask("open", run="run.h5")
        yield page
    finally:
        process.terminate()
        process.wait()


def sample(n_events: int) -> tuple[np.ndarray, np.ndarray]:
    """Return events on the standardised scale, and 1 for events of the rare population, otherwise 0.

    The rare population differs from another one in two channels.
    """
    random = np.random.default_rng(SEED)
    means = random.uniform(-2.0, 2.0, (POPULATIONS, DIM))
    means = np.vstack([means, means[0]])
    means[-1, :2] += [2.0, -2.0]
    rare = int(SHARE * n_events)
    labels = np.concatenate([random.integers(0, POPULATIONS, n_events - rare), np.full(rare, POPULATIONS)])
    random.shuffle(labels)
    events = means[labels] + 0.4 * random.standard_normal((n_events, DIM))
    standardised = ((events - events.mean(axis=0)) / events.std(axis=0)).astype(np.float32)
    return standardised, (labels == POPULATIONS).astype(float)


def make_run(folder: Path, n_events: int) -> np.ndarray:
    """Write a short run, and return which events are rare."""
    events, rare = sample(n_events)
    np.save(folder / "events.npy", events)
    (folder / "run.yaml").write_text(json.dumps(SETTINGS))
    subprocess.run([*DPMIX, "mcmc", "run.yaml", "--quiet"], cwd=folder, check=True)
    return rare == 1.0


def measure(n_events: int, most: int) -> dict[str, Any]:
    """Return the seconds of each screen and of its numbers by the number of judgements, and of opening."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        wanted = make_run(folder, n_events)
        first = [f"{row},{int(wanted[row])}" for row in (*np.flatnonzero(wanted)[:3], *range(17))]
        (folder / "run.judged.csv").write_text("\n".join(["event,judgement", *dict.fromkeys(first)]))
        screens = {}
        with served(folder) as page:
            page.ask("judged", run="run.h5")
            shown, _ = page.ask("candidates", run="run.h5")
            while shown["judged"] < most:
                rows = [event["row"] for event in shown["screen"]["events"]]
                words = {row: "wanted" if wanted[row] else "unwanted" for row in rows}
                given = {"revision": shown["revision"], "checks": shown["screen"]["checks"]}
                shown, screen = page.ask("judge", run="run.h5", judgements=words, **given)
                _, numbers = page.ask("judged", run="run.h5")
                screens[shown["judged"]] = [*screen, *numbers]
                print(n_events, shown["judged"], screens[shown["judged"]], flush=True)
        with served(folder) as page:
            opened = page.ask("candidates", run="run.h5")[1]
        print(n_events, opened)
        return {"screens": screens, "opened": opened}


def nearest(screens: dict[int, list[float]], n: int) -> list[list[float]]:
    """Return the seconds of the screens with nearly n judgements."""
    return [screens[known] for known in sorted(screens, key=lambda known: abs(known - n))[:NEAREST]]


def page() -> str:
    """Return the table of docs/benchmarks/explore.md."""
    head = ["events", "judgements", "screen", "processor", "then numbers", "processor"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for n_events, own in read_results("explore_screen")["results"].items():
        screens = {int(n): seconds for n, seconds in own["screens"].items()}
        chosen = {f"{n}": np.median(nearest(screens, n), axis=0).tolist() for n in SHOWN}
        chosen["slowest of all"] = np.max([*screens.values()], axis=0).tolist()
        chosen[f"all {max(screens)} at once"] = [*own["opened"], np.nan, np.nan]
        for name, seconds in chosen.items():
            cells = ["" if np.isnan(value) else f"{value:.2f}" for value in seconds]
            lines.append(f"| {' | '.join([n_events, name, *cells])} |")
    return "\n".join([*lines, "", said("explore_screen", packages=("dpmix", "numpy", "scipy"))])


def main() -> None:
    given = arguments(__doc__).parse_args()
    sizes, most = ((5_000,), 60) if given.quick else (EVENTS, MOST)
    results = {f"{n_events:,}": measure(n_events, most) for n_events in sizes}
    write_results("explore_screen", results, quick=given.quick)


if __name__ == "__main__":
    main()
