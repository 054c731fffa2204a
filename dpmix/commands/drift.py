"""Study recordings for `dpmix drift`, and write the table, the figures and the page."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dpmix.config.engine import EngineConfig
from dpmix.drift.device import Precision
from dpmix.drift.summaries import LIMIT
from dpmix.engines.choose import choose_backend
from dpmix.errors import ConfigError, DataError
from dpmix.inputs.event_times import By, NoTimeError, time_channel
from dpmix.inputs.gated_events import in_population, read_gated
from dpmix.inputs.opening import find_places, open_places
from dpmix.inputs.recording import Recording, study
from dpmix.report import drift_page
from dpmix.report.drift_figure import png
from dpmix.system.files import check_outputs, csv_text, replacing, write_text, writing

if TYPE_CHECKING:
    from dpmix.engines.cuda.drift import CudaDrift

Backend = Literal["auto", "cpu", "cuda"]

log = logging.getLogger("dpmix")

TABLE, PAGE = "drift.csv", "report.html"
COLUMNS = (
    *("file", "channel", "verdict", "range", "low", "high", "limit", "change points", "unsteady share"),
    *("events", "by", "problem", "counted"),
)


@dataclass(frozen=True)
class DriftStudy:
    """The recordings of a study, and the files that were not judged.

    Attributes
    ----------
    recordings : tuple of Recording
        The worst first.
    problems : tuple of str
        A line for each file that cannot be judged.
    untimed : tuple of str
        A line for each file without a channel of time, where other files have one.
    """

    recordings: tuple[Recording, ...]
    problems: tuple[str, ...]
    untimed: tuple[str, ...] = ()


def drift(
    files: Sequence[str | Path],
    output: str | Path,
    *,
    by: By = "time",
    limit: float = LIMIT,
    gated: Path | None = None,
    population: int | None = None,
    local: bool = False,
    backend: Backend = "cpu",
    precision: Precision = "double",
    threads: int | None = None,
    overwrite: bool = False,
) -> DriftStudy:
    """Study recordings, and write the results to a folder.

    Parameters
    ----------
    files : sequence of str or Path
        Names, globs or folders.
    output : str or Path
    by : "time" or "event"
        Judge by the channel of time, or by event number.
    limit : float
        Smallest range of drift that matters, in units of a channel's spread.
    gated, population : Path, int, optional
        Judge the events of this population only: the folder of `dpmix gate`, and its number. Both or none.
    local : bool
        Variance and range of the signal depend on time. Default: the same at all times.
    backend : "auto", "cpu" or "cuda"
        Where the signals are fitted. ``auto`` takes CUDA if it is available, otherwise the CPU. The fits
        are the same within rounding.
    precision : "single" or "double"
        Precision of the fits: float32, with CUDA only, or float64. Local predictions are float64.
    threads : int, optional
        Default: all cores. The results are the same bits for any number.
    overwrite : bool
        Replace existing files.

    Raises
    ------
    DpmixError
        No file can be judged, or anything else wrong outside the program, in one line.
    """
    if (gated is None) != (population is None):
        raise ConfigError(["--gated and --population need each other; give both, or none"])
    folder, places = Path(output), find_places(files)
    names = [f"{number:03d}-{path.stem}.png" for number, (path, _) in enumerate(places, 1)]
    figures = [folder / "figures" / name for name in names]
    check_outputs([folder / TABLE, folder / PAGE, *figures], overwrite, inputs=[path for path, _ in places])
    found, problems, untimed = [], [], []
    chosen = None if gated is None else read_gated(gated)
    with _device(backend, precision) as device:
        for source, figure in zip(open_places(places), figures, strict=True):
            try:
                events = source
                if chosen is not None and population is not None:
                    events = in_population(source, chosen, population)
                one = study(events, by, limit, threads, device, local)
                found.append((one.without_arrays(), figure, png(one)))
            except NoTimeError as error:
                line = f"{error}; --by event judges by event number"
                if time_channel(source) is None:
                    untimed.append(line)
                else:
                    problems.append(line)
                    log.warning("%s", line)
            except DataError as error:
                problems.append(str(error))
                log.warning("%s", error)
    if not found:
        for line in untimed:
            log.warning("%s", line)
        raise DataError("no file can be judged; see the lines above")
    found.sort(key=lambda one: (-one[0].unsteady, -one[0].worst.low / one[0].worst.limit))
    with writing(folder):
        (folder / "figures").mkdir(parents=True, exist_ok=True)
    for _, path, image in found:
        with writing(path), replacing(path) as temporary:
            temporary.write_bytes(image)
    result = DriftStudy(tuple(one for one, _, _ in found), tuple(problems), tuple(untimed))
    write_text(folder / TABLE, csv_text(_rows(result)))
    lines = [f"{one.name}: {one.sentence}" for one in result.recordings]
    images = [image for _, _, image in found]
    write_text(folder / PAGE, drift_page.render(result.recordings, lines, [*problems, *untimed], images))
    return result


@contextmanager
def _device(backend: Backend, precision: Precision) -> Iterator[CudaDrift | None]:
    """Yield the device that the backend means, or None for the CPU."""
    choice = choose_backend(EngineConfig(backend=backend), option="--backend ")
    if choice.backend == "cpu" and precision == "single":
        raise ConfigError(
            [
                f"--precision single: the CPU fits in float64 only (--backend {backend}: {choice.why}); "
                "use --backend cuda or --precision double"
            ]
        )
    log.info("fits on: %s, %s precision (%s)", choice.backend, precision, choice.why)
    if choice.backend == "cpu":
        yield None
        return
    from dpmix.engines.cuda.drift import CudaDrift  # imports PyCUDA, which is optional

    device = CudaDrift(precision=precision)
    try:
        yield device
    finally:
        device.close()


def _rows(found: DriftStudy) -> Iterator[Sequence[object]]:
    """Yield the rows of drift.csv."""
    yield COLUMNS
    for recording in found.recordings:
        rows = zip(recording.channels, recording.shares, recording.counted, strict=True)
        for one, share, counted in rows:
            yield [
                *(recording.name, one.name, one.verdict),
                *(f"{value:.4g}" for value in (one.range, one.low, one.high, one.limit)),
                " ".join(f"{time:.8g}" for time in one.change_times),
                *(f"{share:.4g}", recording.n_events, recording.by, "", "yes" if counted else "no"),
            ]
    for problem in (*found.problems, *found.untimed):
        name, _, text = problem.partition(": ")
        yield [name, "", "not judged", *[""] * 8, text, ""]
