"""Work in a thread, and limits of threads."""

import sys
from pathlib import Path
from threading import Barrier, Thread

import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from dpmix.system.background import importing
from dpmix.system.threads import one_thread


def blas_threads() -> set[int]:
    return {int(one["num_threads"]) for one in threadpool_info() if one["user_api"] == "blas"}


def test_the_limit_of_threads_stays_until_its_last_user_ends() -> None:
    met, seen = Barrier(2, timeout=30), {}

    def first() -> None:
        with one_thread():
            met.wait()  # both are inside
            met.wait()
        met.wait()  # only the second is

    def second() -> None:
        with one_thread():
            met.wait()
            met.wait()
            met.wait()
            seen["one"] = blas_threads()
        seen["none"] = blas_threads()

    threadpool_limits(2, "blas")
    try:
        threads = [Thread(target=first), Thread(target=second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == {"one": {1}, "none": {2}}
        assert blas_threads() == {2}
    finally:
        with one_thread():  # takes control again
            pass
        threadpool_limits(1, "blas")


def test_modules_are_imported_during_the_body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "imported_ahead.py").write_text(
        "import threading\nthread = threading.current_thread().name\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with importing(["imported_ahead"], allowed=False):
        pass
    assert "imported_ahead" not in sys.modules
    with importing(["no_such_module", "imported_ahead"]):
        pass
    assert sys.modules.pop("imported_ahead").thread == "imports"
