"""Compilation of .cu files: the search for the compiler, the cache, and the shapes of the kernels."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dpmix.errors import DpmixError
from dpmix.kernels import build, layout
from dpmix.kernels.layout import CHUNK, Layout

# It counts its runs and outputs its arguments; a line "#error TEXT" of a source is its error.
COMPILER = """#!/bin/sh
[ "$1" = --version ] && { cat "$0.version"; exit; }
echo run >> "$0.runs"
for last; do case $last in *.cu) source=$last;; esac; done
grep -q '#error' "$source" && sed -n 's/#error //p' "$source" >&2 && exit 2
echo "$@" > "$last"
"""


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A test compiler on PATH, test kernels and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kernels = tmp_path / "kernels"
    kernels.mkdir()
    (kernels / "some.cu").write_text("one\n")
    (kernels / "shared.cuh").write_text("two\n")
    monkeypatch.setattr(build, "FOLDER", kernels)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    build._version.cache_clear()
    return place_compiler(tmp_path)


def place_compiler(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    nvcc = folder / "nvcc"
    nvcc.write_text(COMPILER)
    nvcc.chmod(0o755)
    (folder / "nvcc.version").write_text("version 1\n")
    return nvcc


def runs(nvcc: Path) -> int:
    path = nvcc.with_name("nvcc.runs")
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_the_compiler_is_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages = SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(build, "find_spec", lambda name: packages if name == "nvidia" else None)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    of_old_package = place_compiler(tmp_path / "nvidia" / "cu12" / "bin")
    of_package = place_compiler(tmp_path / "nvidia" / "cu13" / "bin")
    of_home = place_compiler(tmp_path / "home" / "bin")
    on_path = place_compiler(tmp_path / "path")
    for nvcc in (on_path, of_home, of_package, of_old_package):
        assert build.find_nvcc() == nvcc
        nvcc.unlink()
    with pytest.raises(DpmixError, match=r"^no CUDA compiler: .*; install the CUDA toolkit, or pip install "):
        build.find_nvcc()


def test_kernels_are_compiled_for_their_channels_and_device(compiler: Path) -> None:
    arguments = build.cubin("some", 14, "sm_90").decode().split()
    folder = build.FOLDER
    for option in ("-DN_CHANNELS=14", "-arch=sm_90", f"-I{folder}", "-fmad=false", "-std=c++17", "--cubin"):
        assert option in arguments


def test_what_was_compiled_is_kept(compiler: Path) -> None:
    code = build.cubin("some", 14, "sm_90")
    assert build.cubin("some", 14, "sm_90") == code
    assert runs(compiler) == 1
    assert not [path for path in build.cache_folder().iterdir() if path.suffix != ".cubin"]


def test_kernels_are_compiled_anew_where_anything_changes(compiler: Path) -> None:
    build.cubin("some", 14, "sm_90")
    changes: list[Callable[[], object]] = [
        lambda: (build.FOLDER / "some.cu").write_text("one and a half\n"),
        lambda: (build.FOLDER / "shared.cuh").write_text("three\n"),
        lambda: (build.FOLDER / "more.cuh").write_text("four\n"),
        lambda: (compiler.with_name("nvcc.version").write_text("version 2\n"), build._version.cache_clear()),
    ]
    for n, change in enumerate(changes, start=2):
        change()
        build.cubin("some", 14, "sm_90")
        assert runs(compiler) == n
    build.cubin("some", 15, "sm_90")
    build.cubin("some", 14, "sm_80")
    assert runs(compiler) == len(changes) + 3


def test_another_build_of_a_release_uses_what_is_there(compiler: Path) -> None:
    for number, (release, build_number) in enumerate([("13.0", 88), ("13.0", 90), ("13.1", 10)]):
        said = f"Cuda compilation tools, release {release}, V{release}.{build_number}\n"
        compiler.with_name("nvcc.version").write_text(said)
        build._version.cache_clear()
        build.cubin("some", 14, "sm_90")
        assert runs(compiler) == (1, 1, 2)[number]


@pytest.mark.parametrize("entry", [b"", b"short", b"x" * 500])
def test_a_corrupt_entry_is_made_anew(compiler: Path, entry: bytes) -> None:
    code = build.cubin("some", 14, "sm_90")
    (path,) = build.cache_folder().iterdir()
    whole = path.read_bytes()
    for damaged in (entry, whole[:-1], whole[:40] + b"?" + whole[41:]):
        path.write_bytes(damaged)
        assert build.cubin("some", 14, "sm_90") == code
        assert path.read_bytes() == whole
    assert runs(compiler) == 4


def test_a_cache_that_cannot_be_written_is_told(compiler: Path, caplog: pytest.LogCaptureFixture) -> None:
    build.cache_folder().parent.parent.write_text("a file in its place")
    with caplog.at_level(logging.WARNING, "dpmix"):
        assert build.cubin("some", 14, "sm_90")
    assert "cannot be written" in caplog.text


def test_an_error_of_the_compiler_is_one_line(compiler: Path) -> None:
    (build.FOLDER / "some.cu").write_text("#error some.cu(3): error: no such thing\n")
    message = r"^\S*nvcc cannot compile some.cu: some.cu\(3\): error: no such thing$"
    for _ in range(2):  # errors are not cached
        with pytest.raises(DpmixError, match=message):
            build.cubin("some", 14, "sm_90")


def test_a_compiler_that_does_not_run_is_named(compiler: Path) -> None:
    compiler.with_name("nvcc.version").unlink()
    with pytest.raises(DpmixError, match="nvcc does not run: "):
        build.cubin("some", 14, "sm_90")


@pytest.mark.parametrize(
    ("said", "explained"),
    [
        (
            "Unsupported gpu architecture 'sm_90'",
            "CUDA 12.4 does not know sm_90: install a newer CUDA toolkit",
        ),
        ("Value 'sm_90' is not defined for option 'gpu-architecture'", "CUDA 12.4 does not know sm_90: "),
        ("Failed to preprocess host compiler properties.", r"nvcc needs a C\+\+ compiler: install g\+\+"),
    ],
)
def test_what_to_do_is_said_of_usual_errors(compiler: Path, said: str, explained: str) -> None:
    compiler.with_name("nvcc.version").write_text("Cuda compilation tools, release 12.4, V12.4.99\n")
    (build.FOLDER / "some.cu").write_text(f"#error nvcc fatal   : {said}\n")
    with pytest.raises(DpmixError, match=rf"^\S*nvcc cannot compile some.cu: {explained}[^\n]*$"):
        build.cubin("some", 14, "sm_90")


def test_built_kernels_need_no_compiler(compiler: Path) -> None:
    (build.FOLDER / "other.cu").write_text("three\n")
    made = build.build([14, 3], ["sm_90", "sm_80"])
    assert len(made) == len(set(made)) == runs(compiler) == 8
    assert build.built("sm_80") == [3, 14]
    for name in build.PAPER:  # no run compiles these
        (build.FOLDER / f"{name}.cu").write_text("three\n")
    assert build.built("sm_80") == [3, 14]
    assert build.sources() == ["other", "some"]
    code = build.cubin("some", 14, "sm_90")
    assert runs(compiler) == 8
    compiler.unlink()
    with pytest.MonkeyPatch.context() as patch:  # nor is there another one
        patch.setenv("PATH", "/nowhere")
        patch.delenv("CUDA_HOME", raising=False)
        patch.setattr(build, "find_spec", lambda name: None)
        assert build.cubin("some", 14, "sm_90") == code
        build.require(["sm_90", "sm_80"], 14)
        build.require(["sm_90"])
        remedy = r"dpmix devices --build --channels 5 --architectures sm_90$"
        for use in (lambda: build.cubin("some", 5, "sm_90"), lambda: build.require(["sm_90"], 5)):
            with pytest.raises(DpmixError, match=rf"^no CUDA compiler: .* {remedy}"):
                use()
        with pytest.raises(DpmixError, match=r"^no CUDA compiler: "):
            build.require(["sm_75"])
        (build.FOLDER / "some.cu").write_text("changed\n")  # kernels of another version of dpmix
        with pytest.raises(DpmixError, match=r"--channels 14 "):
            build.require(["sm_90"], 14)


# ---- Shapes and layouts

SHAPES_OF_KERNELS = """
#include "{include}"
extern "C" __global__ void shapes(int* out) {{
    const int all[] = {{{names}}};
    for (int i = 0; i < (int)(sizeof(all) / sizeof(int)); i++) out[i] = all[i];
}}
"""
OF_ALL = "PADDED_DIM, PACK_DIM, EVENTS_PER_BLOCK, N_MOMENTS, THREADS, MOMENT_THREADS, CHUNK"


@pytest.mark.usefixtures("cuda_devices")
@pytest.mark.parametrize("dim", [8, 9, 17, pytest.param(62, marks=pytest.mark.slow)])
def test_shapes_are_those_of_the_kernels(dim: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pycuda.driver as driver

    for source in (*build.FOLDER.glob("*.cuh"), build.FOLDER / "draw_labels.cu"):
        shutil.copy(source, tmp_path)
    shapes = {"shapes": ("moments.cuh", OF_ALL), "draws": ("draw_labels.cu", "THREADS, EVENTS_PER_BLOCK")}
    for name, (include, names) in shapes.items():
        (tmp_path / f"{name}.cu").write_text(SHAPES_OF_KERNELS.format(include=include, names=names))
    monkeypatch.setattr(build, "FOLDER", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build._version.cache_clear()
    driver.init()
    device = driver.Device(0)
    context = device.make_context()
    try:
        found = []
        for name in shapes:
            code = build.cubin(name, dim, "sm_{}{}".format(*device.compute_capability()))
            out = np.zeros(7, np.int32)
            driver.module_from_buffer(code).get_function("shapes")(driver.Out(out), block=(1, 1, 1))
            found.append(out.tolist())
    finally:
        context.pop()
        context.detach()
    ours = Layout(dim)
    of_all = [ours.padded_dim, ours.pack_dim, ours.events_per_block, ours.n_moments]
    assert found[0] == [*of_all, layout.THREADS, layout.MOMENT_THREADS, layout.CHUNK]
    assert found[1][:2] == [ours.draw_threads, ours.draw_events_per_block]
    assert ours.blocks_per_chunk * ours.events_per_block == CHUNK == layout.CHUNK
    assert ours.draw_blocks_per_chunk * ours.draw_events_per_block == CHUNK


@pytest.mark.parametrize("dim", [1, 2, 5, 64])
def test_a_packed_row_goes_by_rows_of_the_whitener(dim: int) -> None:
    rng = np.random.default_rng(dim)
    constants, means = rng.normal(size=3), rng.normal(size=(3, dim))
    whiteners = np.tril(rng.normal(size=(3, dim, dim)))
    rows = Layout(dim).pack(constants, means, whiteners)
    assert rows.dtype == np.float64
    for row, constant, mean, whitener in zip(rows, constants, means, whiteners, strict=True):
        want = [constant]
        for i in range(dim):
            want += [mean[i], *(whitener[i, : i + 1] * np.sqrt(0.5))]
        np.testing.assert_array_equal(row[: len(want)], want)
        assert (row[len(want) :] == 0).all()


@pytest.mark.parametrize("dim", [1, 2, 5, 64])
def test_moments_are_a_triangle_by_rows(dim: int) -> None:
    z = np.random.default_rng(dim).normal(size=(3, 10, dim + 1))
    z[:, :, -1] = 1.0
    products = np.einsum("kni,knj->kij", z, z)
    moments = products[:, *np.tril_indices(dim + 1)]
    counts, sums, scatters = Layout(dim).unpack_moments(moments)
    np.testing.assert_array_equal(counts, [10.0] * 3)
    np.testing.assert_array_equal(sums, products[:, dim, :dim])
    lower = np.tril(products[:, :dim, :dim])
    np.testing.assert_array_equal(scatters, lower + np.tril(lower, -1).transpose(0, 2, 1))
    assert all(array.flags.c_contiguous for array in (counts, sums, scatters))
