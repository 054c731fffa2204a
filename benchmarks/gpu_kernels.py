"""Time every kernel of the CUDA engine alone, as the engine launches it.

    Stages of gpu.py.

For samples of N = 1,000,000 events and K = 256 components (mixtures.py), the engine draws labels, takes an
E step, divides components in pairs and computes memberships. Each launch is timed by CUDA events, while
nothing else runs on the device; a short kernel before it hides the time that the host takes to launch. The
milliseconds of a kernel are the sum over the launches of a pass, and the median over passes. copy_rows,
which only the hierarchical model needs, is timed in draws of 10 samples. The kernels of the paper, which
the engine does not use, are timed on one chunk, kernels of Vecchia's likelihood on N points with D
neighbours, kernels of local Gaussian processes at as many times as a chunk has events, with designs of D
points, and kernels of `dpmix explore` with K judgements, of which a screen of 20 is new.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import numpy as np
from gpu_code import cubin
from gpu_device import TINY_CHANNELS, context
from gpu_floors import SCREEN, Shape
from gpu_limits import SOURCE, milliseconds
from gpu_output import Output, parser
from mixtures import KINDS, Kind, Parameters, Sample, sample

from dpmix.drift.points import make_points
from dpmix.engines.cuda import library
from dpmix.engines.cuda.cohort import CudaCohortEngine
from dpmix.engines.cuda.commands import Commands, Kernel, Operation, float_bits
from dpmix.engines.cuda.engine import CudaEngine
from dpmix.engines.cuda.kernels import Kernels
from dpmix.kernels import _cuda_commands, build
from dpmix.kernels.layout import CHUNK, THREADS, Layout
from dpmix.model.mixture import Ints, Mixture, SampleTerms
from dpmix.model.split_merge import SplitAssignment
from dpmix.model.streams import Key

WEIGHT_FLOOR = 25.0
BUSY_ROUNDS = 500  # of the short kernel: some 70 microseconds
POPULATIONS = 20
PAIRS = 16
SAMPLES = 10


class Busy(NamedTuple):
    """A short kernel of a context with its memory, and two events."""

    kernel: Kernel
    memory: tuple[Any, Any]
    start: int
    end: int


class Stopwatch:
    """Milliseconds of each kernel since the last `reset`, while `installed`."""

    def __init__(self) -> None:
        self.milliseconds: dict[str, float] = defaultdict(float)
        self._loaded: dict[int, tuple[ref[Kernels], str]] = {}  # by handle
        self._busy: WeakKeyDictionary[Kernels, Busy] = WeakKeyDictionary()  # by context

    def reset(self) -> None:
        self.milliseconds.clear()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Time all launches of engines that are opened in this block."""
        load, run, start = Kernels.load, _cuda_commands.run, CudaEngine._start

        def noted(kernels: Kernels, name: str) -> None:
            load(kernels, name)
            self._loaded[kernels.handle(name)] = ref(kernels), name

        def timed(entries: array[int], words: array[int]) -> tuple[int, int]:
            """Run the commands one by one, and time launches."""
            done, at = (0, 0), 0
            while at < len(words) and not done[0]:
                end = at + 2 + words[at + 1]
                command, at = words[at:end], end
                if command[0] == Operation.LAUNCH:
                    done = self.time(command, lambda each: run(entries, each))
                else:
                    done = run(entries, command)
            return done

        Kernels.load = noted  # type: ignore[method-assign]
        _cuda_commands.run = timed
        # Lists of calls that are prepared once do not go through `run`.
        CudaEngine._start = lambda *_, **__: None  # type: ignore[method-assign]
        try:
            yield
        finally:
            Kernels.load = load  # type: ignore[method-assign]
            _cuda_commands.run = run
            CudaEngine._start = start  # type: ignore[method-assign]

    def time(self, launch: array[int], run: Callable[[array[int]], tuple[int, int]]) -> tuple[int, int]:
        """Time a launch of an engine's kernel; its context is current."""
        import pycuda.driver as driver

        handle, stream = launch[2:4]
        owner, name = self._loaded[handle]
        kernels = owner()
        assert kernels is not None
        busy = self._busy.get(kernels) or self._busy.setdefault(kernels, busy_kernel())
        took, before, after = np.zeros(1, np.float32), Commands(), Commands()
        before.launch(busy.kernel, (1, 1), stream, float_bits(0.5), BUSY_ROUNDS, *busy.memory)
        before.record(busy.start, stream)
        after.record(busy.end, stream)
        after.synchronise(busy.end)
        after.elapsed(took, busy.start, busy.end)
        driver.Context.synchronize()
        done = run(before.finish().words + launch + after.finish().words)
        self.milliseconds[name] += float(took[0])
        return done


def busy_kernel() -> Busy:
    """Load the short kernel in the current context."""
    import pycuda.driver as driver

    major, minor = driver.Context.get_device().compute_capability()
    module = library.load_module(cubin(SOURCE, f"sm_{major}{minor}", {}))
    kernel = Kernel.of(library.kernel_of(module, "multiply_add"), THREADS, "fiPP")
    room = driver.mem_alloc(4 * THREADS), driver.mem_alloc(8)
    return Busy(kernel, room, library.make_event(), library.make_event())


def time_engine(data: Sample, watch: Stopwatch, times: int, *, pruning: bool) -> dict[str, float]:
    """Return median milliseconds of each kernel of the engine."""
    now, n_components = data.now.mixture(), len(data.now.weights)
    split = split_of(n_components)
    halves = halved(data.now, split)
    populations = np.arange(n_components) % min(POPULATIONS, n_components)
    passes: list[Callable[[CudaEngine, int], object]] = [
        lambda engine, i: engine.draw_labels(now, Key(1, 0, i)),  # pruned: last labels of an E step
        lambda engine, i: engine.divide(split, halves, Key(1, 0, i)),
        lambda engine, _: engine.expect_labels(now),
        lambda engine, _: engine.memberships(now, populations, 0, len(data.events)),
    ]
    found: dict[str, list[float]] = defaultdict(list)
    engine = CudaEngine(data.events, devices=[0], pruning=pruning)
    try:
        engine.draw_labels(data.before.mixture(), Key(1, 0, 0))
        for i in range(times + 1):
            for run in passes:
                watch.reset()
                run(engine, i)
                if i > 0:  # the first pass loads kernels
                    for name, time in watch.milliseconds.items():
                        found[name].append(time)
    finally:
        engine.close()
    return {name: float(np.median(each)) for name, each in found.items()}


def time_samples(data: Sample, watch: Stopwatch, times: int) -> float:
    """Return median milliseconds of copy_rows, which the hierarchical model adds to a draw."""
    starts, mixture = alike(data)
    found = []
    engine = CudaCohortEngine(data.events, starts, devices=[0])
    try:
        for i in range(times + 1):  # the first pass loads kernels
            watch.reset()
            engine.draw_labels(mixture, Key(1, 0, i))
            found.append(watch.milliseconds["copy_rows"])
    finally:
        engine.close()
    return float(np.median(found[1:]))


def alike(data: Sample) -> tuple[Ints, Mixture]:
    """Return where the events of samples start, and the mixture as one of samples that do not differ."""
    now = data.now.mixture()
    starts = np.linspace(0, len(data.events), SAMPLES + 1).astype(np.int64)
    terms = np.tile(now.log_weights, (SAMPLES, 1)), np.zeros((SAMPLES, data.events.shape[1]))
    return starts, replace(now, samples=SampleTerms(*terms))


def split_of(n_components: int) -> SplitAssignment:
    """Return a split in which components 2p and 2p + 1 are pair p, for the first pairs."""
    n_pairs = min(PAIRS, n_components // 2)
    pairs = np.arange(n_components, dtype=np.int32) // 2
    pairs[2 * n_pairs :] = -1
    return SplitAssignment(pairs, np.full(n_components, -1, np.int8), 1)


def halved(parameters: Parameters, split: SplitAssignment) -> Mixture:
    """Return the mixture of the components in pairs, in their order."""
    n = int((split.pairs >= 0).sum())
    some = Parameters(parameters.weights[:n], parameters.means[:n], parameters.covariances[:n])
    return some.mixture()


def shape_of(data: Sample, split: SplitAssignment) -> Shape:
    """Return the sizes of the sample; numbers of weights are estimated from 2,000 events."""
    mixture, some = data.now.mixture(), data.events[:2000].astype(np.float64)
    logs = np.empty((len(some), len(mixture.means)))
    for j, (mean, whitener) in enumerate(zip(mixture.means, mixture.whiteners, strict=True)):
        logs[:, j] = -0.5 * np.square((some - mean) @ whitener.T).sum(axis=1)
    logs += mixture.log_weights + mixture.log_norms
    best = logs.max(axis=1, keepdims=True)
    weighted = float((logs > best - WEIGHT_FLOOR).sum(axis=1).mean())
    in_pairs = float((split.pairs[logs.argmax(axis=1)] >= 0).mean())
    n_populations = min(POPULATIONS, len(mixture.means))
    return Shape(*data.events.shape, len(mixture.means), n_populations, weighted, in_pairs)


def time_paper(driver: Any, data: Sample, launches: int) -> dict[str, float]:
    """Return median milliseconds of the paper's two kernels on one chunk."""
    layout, mixture = Layout(data.events.shape[1]), data.now.mixture()
    n, n_components = min(len(data.events), CHUNK), len(mixture.means)
    major, minor = driver.Context.get_device().compute_capability()
    functions = {}
    for name in build.PAPER:
        code = build.cubin(name, layout.n_channels, f"sm_{major}{minor}")
        functions[name] = driver.module_from_buffer(code).get_function(name)
    padded = np.zeros((n, layout.padded_dim), np.float32)
    padded[:, : layout.n_channels] = data.events[:n]
    rows = layout.pack(mixture.log_weights + mixture.log_norms, mixture.means, mixture.whiteners)
    events, components = driver.to_device(padded), driver.to_device(rows.astype(np.float32))
    densities, labels = driver.mem_alloc(4 * n * n_components), driver.mem_alloc(2 * n)
    likelihoods, count = driver.mem_alloc(4 * n), np.int32(n_components)
    first = events, components, np.int32(n), count, densities
    key = np.uint64(1), np.uint32(0), np.uint32(0)
    second = (
        densities,
        np.int32(n),
        np.uint64(0),
        count,
        np.float32(WEIGHT_FLOOR),
        *key,
        labels,
        likelihoods,
    )
    grids = -(-n // layout.events_per_block), -(-n // THREADS)
    block = (THREADS, 1, 1)
    return {
        name: milliseconds(driver, lambda f=f, i=i, g=g: f(*i, grid=(g, 1), block=block), launches)
        for (name, f), i, g in zip(functions.items(), (first, second), grids, strict=True)
    }


def time_vecchia(driver: Any, n: int, n_neighbours: int, launches: int) -> dict[str, float]:
    """Return median milliseconds of the kernels of Vecchia's likelihood of a recording of n points."""
    from dpmix.engines.cuda.drift import SUMS, launch

    random = np.random.default_rng(1)
    times = np.sort(random.uniform(0.0, 100.0, n))
    points = make_points(times, random.standard_normal(n), np.full(n, 0.1), n_neighbours)
    major, minor = driver.Context.get_device().compute_capability()
    module = driver.module_from_buffer(build.cubin("vecchia", n_neighbours, f"sm_{major}{minor}"))
    forms = ("vecchia_threads", "vecchia_batches", "vecchia_blocks")
    shapes = {name: launch(name, n, n_neighbours) for form in forms for name in (form, f"{form}_float")}
    arrays = [
        driver.to_device(array)
        for array in (points.times, points.values, points.errors**2, points.neighbours)
    ]
    sums = driver.mem_alloc(max(shape.rows for shape in shapes.values()) * SUMS * 8)
    kind, variance, reach, nugget = np.int32(1), np.float64(0.7), np.float64(1.3), np.float64(0.02)
    given = *arrays, np.int32(n), kind, variance, reach, nugget, sums
    found = {}
    for name, (grid, threads, _) in shapes.items():
        kernel = module.get_function(name)
        found[name] = milliseconds(
            driver,
            lambda f=kernel, g=grid, t=threads: f(*given, grid=(g, 1), block=(t, 1, 1)),
            launches,
        )
    return found


def time_local(driver: Any, n: int, size: int, launches: int) -> dict[str, float]:
    """Return median milliseconds of the kernels of local Gaussian processes at n times, from n points."""
    from dpmix.engines.cuda.drift import CANDIDATES
    from dpmix.engines.cuda.drift import THREADS as FIT_THREADS

    random = np.random.default_rng(1)
    times = np.sort(random.uniform(0.0, 0.1 * n, n))
    values = np.where(times > 0.05 * n, np.sin(times), 0.0) + 0.1 * random.standard_normal(n)
    points = [driver.to_device(array) for array in (times, values, np.full(n, 0.01))]
    parameters = driver.to_device(np.tile([0.1, 1.0], (n, 1)))
    designs, weights = driver.mem_alloc(4 * n * size), driver.mem_alloc(8 * n * size)
    variances, found = driver.mem_alloc(8 * n), driver.mem_alloc(16 * n)
    major, minor = driver.Context.get_device().compute_capability()
    grow, fit = (
        driver.module_from_buffer(build.cubin(source, size, f"sm_{major}{minor}")).get_function(name)
        for source, name in (("local_designs", "grow_designs"), ("local_fits", "fit_designs"))
    )
    shape, prior = (np.int32(1), np.int32(size)), [np.float64(one) for one in (-2.3, 0.0, 2.0, 1.0)]
    to_grow = points[0], points[2], points[0], parameters, np.int32(n), *shape, designs
    to_fit = *points, points[0], designs, *shape, *prior, found, weights, variances
    return {
        "grow_designs": milliseconds(
            driver, lambda: grow(*to_grow, grid=(n, 1), block=(CANDIDATES, 1, 1)), launches
        ),
        "fit_designs": milliseconds(
            driver, lambda: fit(*to_fit, grid=(n, 1), block=(FIT_THREADS, 1, 1)), launches
        ),
    }


def time_posterior(driver: Any, data: Sample, launches: int) -> dict[str, float]:
    """Return median milliseconds of both kernels of the pass of a Gaussian process, on all events at once."""
    from dpmix.engines.cuda.gaussian_process import tables

    (n_events, dim), n = data.events.shape, len(data.now.weights)
    layout, random = Layout(dim), np.random.default_rng(1)
    rows = 0.1 * np.tril(random.standard_normal((n, n), dtype=np.float32))[-min(SCREEN, n) :]
    targets, scales = np.ones(len(rows), np.float32), np.full(dim, 0.5, np.float32)
    events, posterior = driver.to_device(data.events), driver.mem_alloc(8 * n_events)
    major, minor = driver.Context.get_device().compute_capability()
    module = driver.module_from_buffer(build.cubin("gaussian_process", dim, f"sm_{major}{minor}"))
    found = {}
    for laplacian in (False, True):
        work = tables(data.events[:n], scales, laplacian, rows, targets)
        sent = [driver.to_device(table) for table in (work.scales, work.packed, work.targets)]
        numbers = [np.int32(number) for number in (n_events, n, work.n_rows, n_events)]
        grid, block = (-(-n_events // layout.events_per_block), 1), (THREADS, 1, 1)
        kernel, inputs = module.get_function(work.kernel), (events, *sent, *numbers, posterior)
        found[work.kernel] = milliseconds(
            driver, lambda f=kernel, i=inputs, g=grid, b=block: f(*i, grid=g, block=b), launches
        )
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--channels", type=int, nargs="+", required=True)
    options.add_argument("--kinds", nargs="+", choices=KINDS, required=True, help="of mixtures.py")
    asked = options.parse_args()
    output = Output(asked)
    n_events, n_components, times = (600, 20, 1) if asked.rehearsal else (1_000_000, 256, 5)
    channels = TINY_CHANNELS if asked.rehearsal else asked.channels
    for dim, kind in output.while_time_is_left(product(channels, asked.kinds)):
        data = sample(n_events, dim, n_components, kind)
        shape = shape_of(data, split_of(n_components))
        watch = Stopwatch()
        with watch.installed():
            for pruning in (True, False):  # the dense draw is draw_labels, the pruned one draw_sorted
                for name, time in time_engine(data, watch, times, pruning=pruning).items():
                    if pruning != (name == "draw_labels"):
                        append(output, name, kind, shape, time)
        if kind == "mix":
            time_others(output, data, shape, watch, times, tiny=asked.rehearsal)


def time_others(
    output: Output, data: Sample, shape: Shape, watch: Stopwatch, times: int, *, tiny: bool
) -> None:
    """Time the kernels of the hierarchical model, of the paper, of `dpmix drift` and of `dpmix explore`."""
    dim, n_times = shape.n_channels, 30 if tiny else CHUNK
    with watch.installed():
        append(output, "copy_rows", "mix", shape, time_samples(data, watch, times))
    with context() as driver:
        for name, time in time_paper(driver, data, times).items():
            append(output, name, "mix", shape._replace(n_events=min(shape.n_events, CHUNK)), time)
        for name, time in time_posterior(driver, data, times).items():
            append(output, name, "mix", shape, time)
        for name, time in time_vecchia(driver, shape.n_events, dim, times).items():
            append(output, name, "mix", shape, time)
        for name, time in time_local(driver, n_times, dim, times).items():
            append(output, name, "mix", shape._replace(n_events=n_times), time)


def append(output: Output, name: str, kind: Kind, shape: Shape, time: float) -> None:
    output.append(
        "kernels", {"kernel": name, "kind": kind, **shape._asdict(), "milliseconds": round(time, 5)}
    )


if __name__ == "__main__":
    main()
