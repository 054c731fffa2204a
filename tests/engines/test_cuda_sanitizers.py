"""The kernels under the address and thread sanitizers, and mistakes that the sanitizers must report."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from cuda_on_cpu import nvcc, sanitized
from engine_contract import problem, split_of

from dpmix.kernels.build import FOLDER
from dpmix.kernels.layout import CHUNK, EXTRAS, MOMENT_THREADS, PARTS, ROWS, SECTIONS, THREADS, Layout

BROKEN = Path(nvcc.__file__).with_name("broken.cu")
X = np.arange(1, 257, dtype=np.float32)

pytestmark = pytest.mark.usefixtures("emulated_devices")


class Edit(NamedTuple):
    """A change at one place in a file of kernels/."""

    file: str
    was: str
    becomes: str


@pytest.fixture(scope="module", params=["address", "thread"])
def sanitizer(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def broken_libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The kernels of broken.cu for each sanitizer."""
    folder = tmp_path_factory.mktemp("sanitized")
    libraries = {name: folder / f"{name}.so" for name in sanitized.LIBRARIES}
    for name, path in libraries.items():
        nvcc.compile_kernels(BROKEN, path, [], name)
    return libraries


@pytest.mark.native
@pytest.mark.parametrize(
    ("sanitizer", "name", "reported"),
    [
        ("address", "past_shared", "global-buffer-overflow"),
        ("address", "past_global", "heap-buffer-overflow"),
        ("address", "reads_past_global", "heap-buffer-overflow"),
        ("address", "misaligned", "misaligned address"),
        ("thread", "reversed_without_barrier", "data race"),
        ("thread", "reversed_behind_warp_barrier", "data race"),
    ],
)
def test_sanitizers_report_wrong_kernels(
    broken_libraries: dict[str, Path], sanitizer: str, name: str, reported: str
) -> None:
    launch = sanitized.Launch(name, (1, 1), 256, [X.tobytes(), X.tobytes()])
    report = sanitized.run(broken_libraries[sanitizer], sanitizer, [launch])
    assert reported in report
    assert name in report


def test_sanitizers_pass_right_kernels(broken_libraries: dict[str, Path], sanitizer: str) -> None:
    names = ("reversed", "reversed_in_warps", "barrier_after_exit", "warp_operations", "rank")
    launches = [sanitized.Launch(name, (3, 2), 256, [X.tobytes(), X.tobytes()]) for name in names]
    if sanitizer == "thread":  # writes of different blocks are not ordered
        launches = [launch._replace(grid=(1, 1)) for launch in launches]
    assert sanitized.run(broken_libraries[sanitizer], sanitizer, launches) == ""


class Launches:
    """Launches of every kernel, with arrays of exactly the sizes on the cards; the last event is far."""

    def __init__(self, n_events: int, n_channels: int, n_components: int) -> None:
        self.layout = layout = Layout(n_channels)
        events, mixture = problem(n_events, n_channels, n_components)
        events[-1] += 1e6  # far from every component
        chunk = np.zeros((1, CHUNK, layout.padded_dim), np.float32)
        chunk[0, :n_events, :n_channels] = events
        self.padded, self.used = chunk.tobytes(), chunk[0, :n_events].tobytes()
        self.exact = layout.pack(mixture.log_weights + mixture.log_norms, mixture.means, mixture.whiteners)
        self.rows = self.exact.astype(np.float32).tobytes()
        self.weights = np.full((1, CHUNK), 0.5, np.float32).tobytes()
        self.chunks, self.far_counts = np.zeros(1, np.uint32).tobytes(), bytes(4)
        labels = np.zeros((1, CHUNK), np.uint16)
        labels[0, :n_events] = np.arange(n_events) * 7919 % n_components
        self.labels = labels.tobytes()
        order = np.zeros(CHUNK, np.uint16)
        order[:n_events] = np.argsort(labels[0, :n_events], kind="stable")
        starts = np.searchsorted(labels[0, order[:n_events]], np.arange(n_components + 1))
        extras = np.full(EXTRAS, 2**32 - 1, np.uint32)
        extras[0] = 1 | 1 << 16  # as if component 1 had a second run
        self.order, self.starts = order.tobytes(), starts.astype(np.uint32).tobytes()
        self.extras, self.of_extras = extras.tobytes(), bytes(8 * EXTRAS * layout.n_moments)
        sections = labels.reshape(SECTIONS, -1)
        found = np.array([np.bincount(own, minlength=n_components) for own in sections])
        offsets = starts[:-1] + found.cumsum(axis=0) - found
        self.counts, self.offsets = bytes(2 * SECTIONS * n_components), offsets.astype(np.uint16).tobytes()
        largest = np.zeros((1, CHUNK, 2), np.float32)
        largest[0, n_events - 1, 0] = -1e9
        self.normalisers = largest.tobytes()
        self.blocks = -(-n_events // layout.events_per_block) + 1  # the last one has no event
        self.draw_blocks = -(-n_events // layout.draw_events_per_block) + 1
        self.sums = bytes(8 * self.blocks)
        self.moments = bytes(8 * n_components * layout.n_moments)
        self.n_events, self.n_components = n_events, n_components
        self.n, self.k, self.floor = ("Q", n_events), ("i", n_components), ("f", 25.0)
        self.key = [("Q", 1), ("I", 0), ("I", 3)]

    def of(self, source: str) -> list[sanitized.Launch]:
        """Return the launches of the kernels in a source."""
        made: list[sanitized.Launch] = getattr(self, source)()
        return made

    def draw_labels(self) -> list[sanitized.Launch]:
        numbers = [self.n, ("Q", 0), self.k, self.floor, *self.key]
        sums = bytes(8 * self.draw_blocks)
        output = [self.labels, sums, self.far_counts]
        draws = [
            [self.padded, self.rows, far, self.chunks, weights, *numbers, *output]
            for far, weights in ((None, None), (self.exact.tobytes(), self.weights))
        ]
        each = [[bytes(8 * CHUNK), self.chunks, weights, self.n, sums] for weights in (None, self.weights)]
        grid, threads = (self.draw_blocks, 1), self.layout.draw_threads
        return [
            *(sanitized.Launch("draw_labels", grid, threads, arguments) for arguments in draws),
            *(sanitized.Launch("sum_log_likelihoods", grid, threads, arguments) for arguments in each),
        ]

    def draw_sorted(self) -> list[sanitized.Launch]:
        numbers = [self.n, ("Q", 0), self.k, self.floor, *self.key]
        each, now = bytes(8 * CHUNK), np.arange(self.n_components, dtype=np.uint16).tobytes()
        output = [self.labels, each, self.far_counts, bytes(8)]
        draws = [
            [self.padded, self.rows, far, self.chunks, self.order, table, *numbers, *output]
            for far, table in ((None, None), (self.exact.tobytes(), now))
        ]
        return [self._by_event("draw_sorted", arguments) for arguments in draws]

    def sort_labels(self) -> list[sanitized.Launch]:
        common = [self.labels, self.chunks, self.n, self.k, self.counts]
        table = [self.k, self.counts, self.starts, self.extras]
        grid = (SECTIONS * 32 // THREADS, 1)
        return [
            sanitized.Launch("count_labels", grid, THREADS, common),
            sanitized.Launch("place_labels", (1, 1), MOMENT_THREADS, table),
            sanitized.Launch("order_events", grid, THREADS, [*common[:-1], self.offsets, self.order]),
        ]

    def accumulate(self) -> list[sanitized.Launch]:
        tables = [self.order, self.starts, self.extras, self.k, self.moments, self.of_extras]
        grid = (self.n_components + EXTRAS, 1)
        return [
            *(
                sanitized.Launch(
                    "accumulate", grid, MOMENT_THREADS, [self.padded, self.rows, weights, *tables]
                )
                for weights in (None, self.weights)
            ),
            sanitized.Launch(
                "add_runs",
                (EXTRAS, 1),
                MOMENT_THREADS,
                [self.k, self.extras, self.of_extras, self.moments],
            ),
        ]

    def expect_labels(self) -> list[sanitized.Launch]:
        shared = [self.n, self.k, self.floor, self.normalisers, self.labels]
        grid, launches = (-(-self.n_components // self.layout.joint), 1), []
        for far, weights in ((None, None), (self.exact.tobytes(), self.weights)):
            start = [self.padded, self.rows, far, self.chunks, weights, *shared]
            launches += [
                self._by_event("expect_totals", [*start, self.sums, self.far_counts]),
                sanitized.Launch("expect_moments", grid, THREADS, [*start, self.moments]),
            ]
        return launches

    def sum_chunks(self) -> list[sanitized.Launch]:
        n_moments = self.n_components * self.layout.n_moments
        n_rows = self.n_components * (self.layout.n_channels + 1)
        n_parts, totals, rows = self.blocks, bytes(8), bytes(8 * n_rows)
        state = bytes(5 * 8 * (n_moments + 1))
        numbers = [("i", 1), ("i", n_moments), ("i", 1), state]
        grid = (-(-(n_moments + 1) // MOMENT_THREADS), 1)
        return [
            sanitized.Launch("sum_parts", (1, 1), THREADS, [self.sums, ("i", n_parts), totals]),
            sanitized.Launch(
                "add_chunks", grid, MOMENT_THREADS, [self.moments, totals, self.far_counts, *numbers]
            ),
            sanitized.Launch(
                "copy_rows", (-(-n_rows // MOMENT_THREADS), 1), MOMENT_THREADS, [self.moments, self.k, rows]
            ),
        ]

    def memberships(self) -> list[sanitized.Launch]:
        k = self.n_components
        ends = np.array([0, k // 3, k // 3, k, k], np.int32)
        numbers = [ends.tobytes(), self.chunks, ("Q", 600), self.n, self.k, ("i", len(ends)), self.floor]
        output = [bytes(4 * CHUNK * len(ends)), bytes(8 * CHUNK), self.far_counts]
        return [
            self._by_event("memberships", [self.padded, self.rows, far, *numbers, *output])
            for far in (None, self.exact.tobytes())
        ]

    def divide(self) -> list[sanitized.Launch]:
        split, n_pairs = split_of(self.n_components)
        table = np.stack([split.pairs, split.sides.astype(np.int32)])
        exact = self.exact[: 2 * n_pairs]
        tables, numbers = [table.tobytes(), self.labels, self.chunks], [self.n, ("Q", 0), self.k, self.floor]
        output = [bytes(2 * CHUNK), bytes(8 * n_pairs * PARTS), self.far_counts]
        start, end = [self.padded, exact.astype(np.float32).tobytes()], [*self.key, ("i", 2), *output]
        grid = (n_pairs * PARTS, 1)
        return [
            sanitized.Launch("divide", grid, MOMENT_THREADS, [*start, far, *tables, weights, *numbers, *end])
            for far, weights in ((None, None), (exact.tobytes(), self.weights))
        ]

    def mvn_log_density(self) -> list[sanitized.Launch]:
        output = bytes(4 * self.n_components * self.n_events)
        arguments = [self.used, self.rows, ("i", self.n_events), self.k, output]
        grid = (-(-self.n_events // self.layout.events_per_block), 1)
        return [sanitized.Launch("mvn_log_density", grid, THREADS, arguments)]

    def sample_indicators(self) -> list[sanitized.Launch]:
        shape = (self.n_components, self.n_events)
        densities = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        numbers = [("i", self.n_events), ("Q", 0), self.k, self.floor, *self.key]
        arguments = [densities.tobytes(), *numbers, bytes(2 * self.n_events), bytes(4 * self.n_events)]
        grid = (-(-self.n_events // THREADS), 1)
        return [sanitized.Launch("sample_indicators", grid, THREADS, arguments)]

    def vecchia(self) -> list[sanitized.Launch]:
        n, m = 60, self.layout.n_channels
        times = np.arange(n, dtype=np.float64)
        neighbours = np.full((n, m), -1, np.int32)
        for point in range(n):
            own = np.arange(max(point - m, 0), point)
            neighbours[point, : len(own)] = own
        arrays = [times.tobytes(), np.sin(times).tobytes(), np.full(n, 0.1).tobytes(), neighbours.tobytes()]
        numbers = [("i", n), ("i", 2), ("d", 1.0), ("d", 10.0), ("d", 0.1)]
        return [
            sanitized.Launch(kernel, (grid, 1), 128, [*arrays, *numbers, bytes(8 * 22 * rows)])
            for name, grid, rows in (
                ("vecchia_threads", 2, 2),
                ("vecchia_batches", 3, 12),
                ("vecchia_blocks", 3, 3),
            )
            for kernel in (name, f"{name}_float")
        ]

    def local_designs(self) -> list[sanitized.Launch]:
        times, noise, at, parameters, _ = self._local()
        numbers = [("i", len(times)), ("i", 2), ("i", self.layout.n_channels)]
        arrays = [times.tobytes(), noise.tobytes(), at.tobytes(), parameters.tobytes()]
        designs = bytes(4 * len(at) * self.layout.n_channels)
        return [sanitized.Launch("grow_designs", (len(at), 1), 256, [*arrays, *numbers, designs])]

    def local_fits(self) -> list[sanitized.Launch]:
        times, noise, at, parameters, designs = self._local()
        numbers = [("i", 2), ("i", self.layout.n_channels), *(("d", one) for one in (0.0, 2.3, 2.0, 1.0))]
        output = [bytes(parameters.nbytes), bytes(2 * designs.nbytes), bytes(at.nbytes)]
        launches = []
        for scale in (1.0, 0.0):  # with 0, all covariances are singular
            arrays = [one.tobytes() for one in (scale * times, np.sin(times), scale * noise, at, designs)]
            launches.append(sanitized.Launch("fit_designs", (len(at), 1), 128, [*arrays, *numbers, *output]))
        return launches

    def _local(self) -> tuple[np.ndarray[Any, Any], ...]:
        """Return times, noise, times of prediction, parameters, and designs of all channels' number."""
        times, at = np.arange(300.0), np.array([-5.0, 100.0, 310.0])
        starts = np.array([[0], [100], [300 - self.layout.n_channels]])
        designs = (starts + np.arange(self.layout.n_channels)).astype(np.int32)
        return times, np.full(300, 0.1), at, np.tile([1.0, 10.0], (3, 1)), designs

    def gaussian_process(self) -> list[sanitized.Launch]:
        n_points, n_rows, layout = 70, 30, self.layout
        rounds = -(-n_rows // ROWS)
        packed = np.zeros((rounds, n_points, layout.padded_dim + ROWS), np.float32)
        numbers = [("i", number) for number in (self.n_events, n_points, n_rows, self.n_events)]
        arrays = [bytes(4 * layout.n_channels), packed.tobytes(), bytes(4 * rounds * ROWS)]
        arguments = [
            bytes(4 * layout.n_channels * self.n_events),
            *arrays,
            *numbers,
            bytes(8 * self.n_events),
        ]
        grid = (-(-self.n_events // layout.events_per_block), 1)
        return [
            sanitized.Launch(f"posterior_{shape}", grid, THREADS, arguments)
            for shape in ("gaussian", "laplacian")
        ]

    def _by_event(self, kernel: str, arguments: list[Any]) -> sanitized.Launch:
        return sanitized.Launch(kernel, (self.blocks, 1), THREADS, arguments)


Report = Callable[..., str]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Returns a sanitizer's report on the kernels of a .cu file, which are compiled once."""

    @cache
    def library(source: str, n_channels: int, sanitizer: str) -> Path:
        made = tmp_path_factory.mktemp(source) / f"{source}.so"
        nvcc.compile_kernels(FOLDER / f"{source}.cu", made, [f"-DN_CHANNELS={n_channels}"], sanitizer)
        return made

    def report(source: str, n_channels: int, sanitizer: str, without: str = "") -> str:
        made = library(source, n_channels, sanitizer)
        return sanitized.run(made, sanitizer, launches_of(source, n_channels), without)

    return report


def launches_of(source: str, n_channels: int) -> list[sanitized.Launch]:
    n_events = 1500 if source in ("accumulate", "sort_labels") else 900  # these work on groups of events
    return Launches(n_events, n_channels, 19).of(source)


def report_on_edited(source: str, sanitizer: str, folder: Path, edit: Edit) -> str:
    """Return a sanitizer's report on a .cu file after an edit of the file or of a header."""
    for path in [*FOLDER.glob("*.cu"), *FOLDER.glob("*.cuh")]:
        text = path.read_text()
        if path.name == edit.file:
            assert edit.was in text, f"{path.name} has changed: no {edit.was!r} in it"
            text = text.replace(edit.was, edit.becomes, 1)
        (folder / path.name).write_text(text)
    library, n_channels = folder / f"{source}.so", CHANNELS.get(source, 5)
    nvcc.compile_kernels(folder / f"{source}.cu", library, [f"-DN_CHANNELS={n_channels}"], sanitizer)
    return sanitized.run(library, sanitizer, launches_of(source, n_channels))


@pytest.mark.native
@pytest.mark.parametrize(
    ("source", "n_channels"),
    [
        ("draw_labels", 5),
        ("draw_sorted", 5),
        ("sort_labels", 5),
        ("accumulate", 5),
        ("expect_labels", 5),
        ("memberships", 5),
        ("sum_chunks", 5),
        ("divide", 5),
        ("divide", 33),
        ("mvn_log_density", 5),
        ("sample_indicators", 5),
        ("vecchia", 5),
        ("local_designs", 9),
        ("local_fits", 9),
        ("local_fits", 36),  # more points than a warp has lanes
        ("gaussian_process", 5),
    ],
)
def test_sanitizers_pass_every_kernel(source: str, n_channels: int, sanitizer: str, report: Report) -> None:
    assert report(source, n_channels, sanitizer) == ""


def test_every_kernel_is_among_those_that_sanitizers_pass() -> None:
    kernels = {path.stem: set(nvcc.kernels_of(path.read_text())) for path in FOLDER.glob("*.cu")}
    launches = Launches(20, 2, 2)
    assert {source: {launch.kernel for launch in launches.of(source)} for source in kernels} == kernels


BARRIER = "    __syncthreads();\n"
WITHOUT_BARRIER = [  # source, file, and text that contains the barrier: one in each source that has some
    ("draw_labels", "draw_labels.cu", BARRIER + "\n    // 3."),
    ("memberships", "mixture.cuh", "        __syncthreads();  // the rows before"),
    ("mvn_log_density", "mixture.cuh", "        __syncthreads();\n        for (int c"),
    ("expect_labels", "expect_labels.cu", "    " + BARRIER + "        // 3."),
    ("accumulate", "accumulate.cu", "    " + BARRIER + "        add_group"),
    ("draw_sorted", "draw_sorted.cu", "        __syncthreads();  // the rows before"),
    ("divide", "divide.cu", BARRIER + "    int n_places"),
    ("sort_labels", "moments.cuh", BARRIER + "    int before"),
    ("gaussian_process", "gaussian_process.cu", "    __syncthreads();\n            for (int j"),
    ("local_designs", "local_designs.cu", BARRIER + "    int right"),
    ("local_fits", "local_fits.cu", BARRIER + "    double sums"),
]
EDITED = [  # waits of warps
    ("sort_labels", "sort_labels.cu", "        __syncwarp();\n    }\n}", "    }\n}"),
    ("vecchia", "vecchia.cu", "    T::wait();\n    const double b", "    const double b"),
]
OUT_OF_BOUNDS = [  # in global memory, in shared memory, and in what another kernel has written
    ("mvn_log_density", "mvn_log_density.cu", "i < n_events", "i <= n_events"),
    ("draw_labels", "mixture.cuh", "q < count * PACK_QUADS", "q <= count * PACK_QUADS"),
    ("local_fits", "local_fits.cu", "designs[first + own];", "designs[first + own + 1];"),
]
CHANNELS = {"local_designs": 9, "local_fits": 9}
"""Channels, where not 5: a design starts with six points."""


@pytest.mark.native
@pytest.mark.parametrize(("source", "file", "text"), WITHOUT_BARRIER)
def test_a_barrier_left_out_is_reported(source: str, file: str, text: str, report: Report) -> None:
    before, found, _ = (FOLDER / file).read_text().partition(text)
    assert found, f"{file} has changed: no {text!r} in it"
    line = (before + text.partition("__syncthreads")[0]).count("\n") + 1
    said = report(source, CHANNELS.get(source, 5), "thread", f"{file}:{line}")
    assert "data race" in said or "SEGV" in said  # an uninitialised index may have any value


@pytest.mark.native
@pytest.mark.parametrize(("source", "file", "was", "becomes"), EDITED)
def test_a_wait_of_a_warp_taken_out_is_reported(
    source: str, file: str, was: str, becomes: str, tmp_path: Path
) -> None:
    said = report_on_edited(source, "thread", tmp_path, Edit(file, was, becomes))
    assert "data race" in said or "SEGV" in said


@pytest.mark.native
@pytest.mark.parametrize(("source", "file", "was", "becomes"), OUT_OF_BOUNDS)
def test_an_index_off_by_one_is_out_of_bounds(
    source: str, file: str, was: str, becomes: str, tmp_path: Path
) -> None:
    assert "buffer-overflow" in report_on_edited(source, "address", tmp_path, Edit(file, was, becomes))
