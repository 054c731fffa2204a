"""Threads of the host, each for one CUDA device and its context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

import pycuda.driver as driver

from dpmix.engines.cuda.commands import entries
from dpmix.engines.cuda.messages import failure
from dpmix.engines.cuda.work import DeviceFailed
from dpmix.kernels import _cuda_commands

T = TypeVar("T")


class Worker:
    """A thread that does its tasks one after another: a PyCUDA context belongs to the thread that made it.

    Between tasks it makes passes, without the interpreter's lock.

    Attributes
    ----------
    line : _cuda_commands.Line
        Takes the passes.
    """

    def __init__(self, name: str) -> None:
        self.line, self._entries = _cuda_commands.Line(), entries()
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[Any, ...], bool]]
        self._tasks = SimpleQueue()
        Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, task: Callable[..., T], *arguments: Any, last: bool = False) -> Future[T]:
        """Queue a task and return a future of its result; the thread ends with the last task."""
        future: Future[T] = Future()
        self._tasks.put((future, task, arguments, last))
        self.line.call()
        return future

    def _work(self) -> None:
        last = False
        # The last task is not followed by native code, which must not return while the interpreter ends.
        while not last:
            self.line.serve(self._entries)
            future, task, arguments, last = self._tasks.get()
            try:
                future.set_result(task(*arguments))
            except BaseException as error:
                future.set_exception(error)
            del future, task, arguments  # an idle thread keeps nothing alive


class DeviceThread(ABC):
    """A device with its own thread and context, `_context`, which the subclass makes in `_worker`.

    Parameters
    ----------
    name : str
        Name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._context: Any = None
        self._worker = Worker(name)

    @property
    def line(self) -> _cuda_commands.Line:
        """The line that passes are posted to; tasks wait for them."""
        return self._worker.line

    def submit(self, task: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run a task in the device's thread, with its context current.

        The future raises `DeviceFailed` if the device fails. Everything on the device is then freed.
        """
        return self._worker.submit(self._in_context, task, *arguments)

    def close(self) -> Future[None]:
        """Free everything and end the thread; also after a failure."""
        return self._worker.submit(self._free, last=True)

    # The rest runs in the device's thread.

    def _in_context(self, task: Callable[..., T], *arguments: Any) -> T:
        """Run a task in the context; PyCUDA aborts the process if a thread ends with a current context."""
        try:
            self._context.push()
            try:
                return task(*arguments)
            finally:
                self._context.pop()
        except (driver.Error, DeviceFailed) as error:
            self._context.detach()  # frees everything on the device, whatever its state
            self._context = None
            raise DeviceFailed(failure(error)) from error

    def _free(self) -> None:
        if self._context is None:
            return
        self._context.push()
        self._release()
        self._context.detach()

    @abstractmethod
    def _release(self) -> None:
        """Free everything on the device; its context is current."""
