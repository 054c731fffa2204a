"""Compilation of the .cu files in this folder by nvcc, with a cache in the user's cache folder."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import threading
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from dpmix.errors import DpmixError

log = logging.getLogger("dpmix")

FOLDER = Path(__file__).resolve().parent
OPTIONS = (
    "-std=c++17",
    "-fmad=false",
)  # no contraction: log densities then have the bits of the CPU engine's
INSTALL_NVCC = 'install the CUDA toolkit, or pip install "cuda-toolkit[nvcc,crt,nvvm,cudart,cccl]"'

_compiling = threading.Lock()


def find_nvcc() -> Path:
    """Return the CUDA compiler from PATH, CUDA_HOME or the pip packages, in this order.

    Raises
    ------
    DpmixError
        No compiler is found.
    """
    on_path = shutil.which("nvcc")
    candidates = [Path(on_path)] if on_path else []
    if "CUDA_HOME" in os.environ:
        candidates.append(Path(os.environ["CUDA_HOME"]) / "bin" / "nvcc")
    packages = find_spec("nvidia")
    for folder in (packages and packages.submodule_search_locations) or ():
        candidates += sorted(Path(folder).glob("cu*/bin/nvcc"), reverse=True)
    for nvcc in candidates:
        if os.access(nvcc, os.X_OK):
            return nvcc
    raise DpmixError(
        "no CUDA compiler: nvcc is neither on PATH nor in CUDA_HOME nor among the pip packages; "
        f"{INSTALL_NVCC}"
    )


def cubin(name: str, n_channels: int, architecture: str) -> bytes:
    """Return the compiled kernels of NAME.cu for `n_channels` channels on an architecture such as ``sm_90``.

    Raises
    ------
    DpmixError
        There is no compiler, or it fails.
    """
    nvcc = find_nvcc()
    source = (FOLDER / f"{name}.cu").read_text()
    options = [*OPTIONS, f"-DN_CHANNELS={n_channels}", f"-arch={architecture}", f"-I{FOLDER}"]
    path = _cache_folder() / f"{name}-{_digest(source, options, nvcc)}.cubin"
    with _compiling:  # devices with the same kernels compile them once
        code = _read(path)
        if code is None:
            log.info("compiling %s.cu for %d channels and %s", name, n_channels, architecture)
            code = _compile(f"{name}.cu", source, options, nvcc)
            _write(path, code)
    return code


def _compile(name: str, source: str, options: list[str], nvcc: Path) -> bytes:
    from pycuda.compiler import compile_plain
    from pycuda.driver import CompileError

    try:
        code: bytes = compile_plain(source, options, False, str(nvcc), None)
    except CompileError as error:
        said = [line.strip() for line in f"{error.stderr}\n{error.stdout}".splitlines() if line.strip()]
        raise DpmixError(f"{nvcc} cannot compile {name}: {' | '.join(said[:3])}") from error
    return code


def _digest(source: str, options: list[str], nvcc: Path) -> str:
    """Return a digest of everything that the code depends on."""
    headers = [path.name + path.read_text() for path in sorted(FOLDER.glob("*.cuh"))]
    everything = [source, *headers, *options, _version(nvcc)]
    return hashlib.sha256("\0".join(everything).encode()).hexdigest()[:32]


@cache
def _version(nvcc: Path) -> str:
    try:
        return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise DpmixError(f"{nvcc} does not run: {error}; {INSTALL_NVCC}") from error


def _cache_folder() -> Path:
    import platformdirs  # comes with PyCUDA

    return Path(platformdirs.user_cache_dir("dpmix", appauthor=False)) / "kernels"


def _read(path: Path) -> bytes | None:
    """Return the code that `_write` wrote; None if it is missing or damaged."""
    try:
        entry = path.read_bytes()
    except OSError:
        return None
    check, code = entry[:32], entry[32:]
    return code if hashlib.sha256(code).digest() == check else None


def _write(path: Path, code: bytes) -> None:
    """Write the checksum and the code, under a temporary name first because others may read the file."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(hashlib.sha256(code).digest() + code)
        unfinished.replace(path)
    except OSError as error:
        log.warning("the cache %s cannot be written, so kernels are compiled in every run: %s", path, error)
