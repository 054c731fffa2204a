"""Share fixtures between test files."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cuda_on_cpu import emulator
from threadpoolctl import threadpool_limits

# These modules report differences as test modules do.
pytest.register_assert_rewrite("cluster_cases", "cuda_cases", "engine_contract", "whole_chain", "whole_runs")

# One thread for the linear algebra of NumPy and SciPy, in processes that tests start too: with several, small
# products are many times slower where tests run side by side. The variable is read when a library is loaded;
# a plugin of pytest may have loaded NumPy before.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
threadpool_limits(int(os.environ["OPENBLAS_NUM_THREADS"]), "blas")

ON_GPU = os.environ.get("DPMIX_TEST_GPU") == "1"  # make test-gpu: the machine's own driver and nvcc
# Tests of the CUDA engine draw nothing, and the kit for GPU machines has no library that draws.
unless_on_gpu = pytest.fixture(scope="session", autouse=not ON_GPU)

# There is a CUDA driver in every test, and no device but in those that ask for one.
if not ON_GPU and emulator.DRIVER.exists():
    emulator.load()
    os.environ["DPMIX_EMULATED_DEVICES"] = "0"


@unless_on_gpu
def no_map_by_default() -> Iterator[None]:
    """`gate` draws the map only where a test asks for it: it takes a second or more."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpmix.report.embedding.available", lambda: False)
        yield


@unless_on_gpu
def draw_figures() -> Iterator[Callable[..., None]]:
    """`gate` in this process writes empty files for its figures, which take longer than all the rest.

    Tests of figures ask for `made_figures` or `real_figures`; fixtures of a module put this fixture's value
    in place.
    """
    from dpmix.report import figures

    draw, every = figures.write_figures, (*figures.FIGURES, *figures.ADDED)

    def write_empty(
        directory: str | Path, gating: Any, run: Any, mixing: Any, names: Iterable[str] = every
    ) -> None:
        there = {*names} & {*figures._drawings(gating, run, mixing)}
        Path(directory).mkdir(parents=True, exist_ok=True)
        for path in figures.figure_paths(Path(directory), figures.ADDED):
            if path.stem in there:
                path.write_bytes(b"")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "write_figures", write_empty)
        yield draw


@unless_on_gpu
def render() -> Iterator[Callable[..., None]]:
    """Figures are made but not rendered in this process: their files are the signature of PNG."""
    from matplotlib.figure import Figure

    def save(figure: Figure, where: Any, **_: Any) -> None:
        blank = b"\x89PNG\r\n\x1a\n"
        if hasattr(where, "write"):
            where.write(blank)
        else:
            Path(where).write_bytes(blank)

    savefig = Figure.savefig
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Figure, "savefig", save)
        yield savefig


PLOTS_OF_ASSOCIATIONS = ("_map", "_forest", "_volcano", "_heatmap", "_strips")


@unless_on_gpu
def plots_of_the_page() -> Iterator[dict[str, Callable[..., Any]]]:
    """Reports have no interactive plots, and `associate` draws no figures; see `real_plots`.

    They take longer than all the rest.
    """
    from dpmix.report import association_figures, association_page, page

    figures = association_page._figures

    def without_plots(*given: Any) -> tuple[list[dict[str, str]], dict[str, Any]]:
        with pytest.MonkeyPatch.context() as patch:
            for name in PLOTS_OF_ASSOCIATIONS:
                patch.setattr(association_page, name, lambda *_: None)
            return figures(*given)[0], {}

    drawn = {
        "page.page_plots": page.page_plots,
        "page.proportion_plots": page.proportion_plots,
        "association_page._figures": figures,
        "association_figures.write_figures": association_figures.write_figures,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "page_plots", lambda *_: {})
        patch.setattr(page, "proportion_plots", lambda *_: {})
        patch.setattr(association_page, "_figures", without_plots)
        patch.setattr(association_figures, "write_figures", lambda *_: None)
        yield drawn


@pytest.fixture
def real_plots(plots_of_the_page: dict[str, Callable[..., Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports have their plots, and `associate` draws its figures."""
    for name, draw in plots_of_the_page.items():
        monkeypatch.setattr(f"dpmix.report.{name}", draw)


@pytest.fixture
def made_figures(draw_figures: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """`gate` makes its figures, and does not render them."""
    monkeypatch.setattr("dpmix.report.figures.write_figures", draw_figures)


@pytest.fixture
def real_figures(made_figures: None, render: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """`gate` makes and renders its figures."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", render)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with slow tests first: processes that run one file each then end at much the same time."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """Leave out of garbage collection what is loaded by now and stays: it took a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of real cytometry files next to the checkout; the test is skipped where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("real cytometry files are not here (a folder shared/data next to the checkout)")
    return folder


@pytest.fixture
def emulated_devices(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Emulates one CUDA device; call it for others (`emulator.settings`), as often as wanted."""
    if ON_GPU:
        pytest.skip("needs the emulated devices, and these tests run on a GPU")
    if not emulator.DRIVER.exists():
        pytest.fail("the emulated CUDA devices are not built: run `python tests/cuda_on_cpu/build.py`")

    def emulate(count: int = 1, **options: object) -> None:
        for name, value in emulator.settings(count, **options).items():  # type: ignore[arg-type]
            monkeypatch.setenv(name, value)

    emulate()
    monkeypatch.setattr("dpmix.engines.cuda.devices.EVENTS_PER_DEVICE", 1)  # all devices, for few events
    return emulate


@pytest.fixture
def cuda_devices(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Makes CUDA devices available, emulated or, in `make test-gpu`, real; call it for more than one."""
    if not ON_GPU:
        emulate: Callable[[int], None] = request.getfixturevalue("emulated_devices")
        return emulate
    import pycuda.driver

    pycuda.driver.init()
    there = pycuda.driver.Device.count()

    def need(count: int) -> None:
        if there < count:
            pytest.skip(f"needs {count} GPUs, and this machine has {there}")

    return need
