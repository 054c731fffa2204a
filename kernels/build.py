"""Compilation of the .cu files in this folder by nvcc, with a cache in the user's cache folder.

A cached kernel needs no compiler: `build` compiles kernels ahead of a run (`dpmix devices --build`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from dpmix.errors import DpmixError
from dpmix.system.cores import usable_cores

log = logging.getLogger("dpmix")

FOLDER = Path(__file__).resolve().parent
OPTIONS = (
    "-std=c++17",
    "-fmad=false",
)  # no contraction: log densities then have the bits of the CPU engine's
INSTALL_NVCC = 'install the CUDA toolkit, or pip install "cuda-toolkit[nvcc,crt,nvvm,cudart,cccl]"'
EXPLANATIONS = {  # text of nvcc's error, what is wrong and what to do
    "gpu architecture": "CUDA {release} does not know {architecture}: install a newer CUDA toolkit",
    "'gpu-architecture'": "CUDA {release} does not know {architecture}: install a newer CUDA toolkit",
    "host compiler": "nvcc needs a C++ compiler: install g++ (Debian and Ubuntu: apt-get install g++)",
}

PAPER = ("mvn_log_density", "sample_indicators")
"""The paper's two kernels: the reference of the tests. No run launches them, so `build` leaves them out."""

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

    Where there is no compiler, the cached result of any compiler serves.

    Raises
    ------
    DpmixError
        The kernels are not in the cache, and there is no compiler, or it fails.
    """
    try:
        nvcc = find_nvcc()
    except DpmixError as error:
        code = _cached(name, n_channels, architecture)
        if code is None:
            raise DpmixError(f"{error}; {_how_to_build(architecture, n_channels)}") from None
        return code
    with _compiling:  # devices with the same kernels compile them once
        return _obtain(name, n_channels, architecture, nvcc)


def require(architectures: Iterable[str], n_channels: int | None = None) -> None:
    """Check that there is a compiler, or that the cache holds the kernels.

    Parameters
    ----------
    architectures : iterable of str
    n_channels : int, optional
        Default: kernels for any number of channels are enough.

    Raises
    ------
    DpmixError
        There is neither.
    """
    try:
        find_nvcc()
    except DpmixError as error:
        for architecture in architectures:
            there = built(architecture)
            if not there or (n_channels is not None and n_channels not in there):
                raise DpmixError(f"{error}; {_how_to_build(architecture, n_channels)}") from None


def build(
    n_channels: Iterable[int], architectures: Iterable[str], names: Iterable[str] | None = None
) -> list[Path]:
    """Compile all kernels that are not in the cache, on all cores, and return their files.

    Parameters
    ----------
    n_channels : iterable of int
    architectures : iterable of str
    names : iterable of str, optional
        Names of .cu files; default: those that runs compile.

    Raises
    ------
    DpmixError
        There is no compiler, or it fails, or the cache cannot be written.
    """
    nvcc = find_nvcc()
    # Many channels take longest.
    wanted = list(product(sorted(n_channels, reverse=True), sorted(architectures), names or sources()))
    with ThreadPoolExecutor(usable_cores()) as pool:
        made = [pool.submit(_obtain, name, dim, architecture, nvcc) for dim, architecture, name in wanted]
        for future in made:
            future.result()
    files = [_path(name, dim, architecture, nvcc) for dim, architecture, name in wanted]
    if not all(path.is_file() for path in files):
        raise DpmixError(f"{cache_folder()}: cannot be written; set XDG_CACHE_HOME to another folder")
    return files


def built(architecture: str) -> list[int]:
    """Return the numbers of channels for which the cache holds all kernels, of any compiler."""
    names = (path.name.split("-") for path in cache_folder().glob(f"*-{architecture}-*.cubin"))
    candidates = {int(parts[1]) for parts in names if len(parts) == 5 and parts[1].isdigit()}
    return sorted(
        dim for dim in candidates if all(_cached(name, dim, architecture) is not None for name in sources())
    )


def sources() -> list[str]:
    """Return the names of the .cu files that runs compile."""
    return sorted(path.stem for path in FOLDER.glob("*.cu") if path.stem not in PAPER)


def release(nvcc: Path) -> str:
    """Return the CUDA version of a compiler, such as ``13.0``; "" if it does not say."""
    found = re.search(r"release (\d+\.\d+)", _version(nvcc))
    return found.group(1) if found else ""


def cache_folder() -> Path:
    """Return the folder of compiled kernels.

    Raises
    ------
    DpmixError
        PyCUDA is not installed.
    """
    try:
        import platformdirs  # comes with PyCUDA
    except ImportError:
        raise DpmixError("PyCUDA is not installed: pip install 'dpmix-cytometry[cuda]'") from None
    return Path(platformdirs.user_cache_dir("dpmix", appauthor=False)) / "kernels"


def _how_to_build(architecture: str, n_channels: int | None) -> str:
    which = "1-64" if n_channels is None else str(n_channels)
    command = f"dpmix devices --build --channels {which} --architectures {architecture}"
    return f"or build the kernels once where nvcc is, with the same cache folder: {command}"


def _obtain(name: str, n_channels: int, architecture: str, nvcc: Path) -> bytes:
    path = _path(name, n_channels, architecture, nvcc)
    code = _read(path)
    if code is None:
        log.info("compiling %s.cu for %d channels and %s", name, n_channels, architecture)
        code = _compile(name, n_channels, architecture, nvcc)
        _write(path, code)
    return code


def _compile(name: str, n_channels: int, architecture: str, nvcc: Path) -> bytes:
    with tempfile.TemporaryDirectory(prefix="dpmix-") as folder:
        command = [str(nvcc), "--cubin", *_options(n_channels, architecture), f"-I{FOLDER}"]
        command += [str(FOLDER / f"{name}.cu"), "-o", "made.cubin"]
        done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", errors="replace")
        if done.returncode == 0:
            return (Path(folder) / "made.cubin").read_bytes()
    said = [line.strip() for line in f"{done.stderr}\n{done.stdout}".splitlines() if line.strip()]
    for text, explanation in EXPLANATIONS.items():
        if any(text in line and "fatal" in line for line in said):
            what = explanation.format(release=release(nvcc), architecture=architecture)
            raise DpmixError(f"{nvcc} cannot compile {name}.cu: {what}")
    raise DpmixError(f"{nvcc} cannot compile {name}.cu: {' | '.join(said[:3])}")


def _options(n_channels: int, architecture: str) -> list[str]:
    return [*OPTIONS, f"-DN_CHANNELS={n_channels}", f"-arch={architecture}"]


def _path(name: str, n_channels: int, architecture: str, nvcc: Path) -> Path:
    compiler = release(nvcc) or _digest(_version(nvcc))[:8]  # builds of one release make the same code
    return cache_folder() / f"{_stem(name, n_channels, architecture)}-{compiler}.cubin"


def _stem(name: str, n_channels: int, architecture: str) -> str:
    """Return the start of a file name: readable, and with a digest of all the code depends on."""
    headers = [path.name + path.read_text(encoding="utf-8") for path in sorted(FOLDER.glob("*.cuh"))]
    source = (FOLDER / f"{name}.cu").read_text(encoding="utf-8")
    digest = _digest(source, *headers, *_options(n_channels, architecture))
    return f"{name}-{n_channels}-{architecture}-{digest}"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:32]


@cache
def _version(nvcc: Path) -> str:
    try:
        return subprocess.run([nvcc, "--version"], capture_output=True, encoding="utf-8", check=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise DpmixError(f"{nvcc} does not run: {error}; {INSTALL_NVCC}") from error


def _cached(name: str, n_channels: int, architecture: str) -> bytes | None:
    """Return the newest cached code of any compiler."""
    found = cache_folder().glob(f"{_stem(name, n_channels, architecture)}-*.cubin")
    by_age = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    return next((code for path in by_age if (code := _read(path)) is not None), None)


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
