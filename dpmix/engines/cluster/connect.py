"""Connections to a Dask cluster, and its errors as dpmix reports them."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path

from distributed import Client, KilledWorker, LocalCluster

from dpmix.config.engine import ClusterConfig, EngineConfig
from dpmix.engines.cluster import part
from dpmix.errors import DpmixError

CONNECT_SECONDS, CONNECT_TIMES = 10.0, 3


def available(config: EngineConfig) -> tuple[bool, str]:
    """Return whether the cluster of a config can be used, and its description or the reason."""
    if config.scheduler is None:
        return True, "a cluster of this machine"
    try:
        with closing_quietly(connected(config.scheduler)) as client:
            found = client.nthreads()
    except DpmixError as error:
        return False, str(error)
    return True, f"{config.scheduler}, {len(found)} workers with {sum(found.values())} threads"


def connected(scheduler: str) -> Client:
    """Return a client of a scheduler, given its address or its scheduler file.

    Raises
    ------
    DpmixError
        No scheduler answers.
    """
    address = scheduler if "://" in scheduler else address_in(Path(scheduler))
    for _ in range(CONNECT_TIMES):
        try:
            return Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
        except Exception as error:  # of any kind, because the address may be wrong in any way
            reason = first_line(error)
            repeat = isinstance(error, AssertionError)  # other messages came with the scheduler's first one
        # Close the failed client now. Dask closes it when it is collected, and that waits forever while
        # another client starts: both take one lock, which is not reentrant.
        gc.collect()
        if not repeat:
            break
    raise DpmixError(
        f"no Dask scheduler answers at {scheduler} ({reason}): start one with dask scheduler, and workers "
        "with dask worker"
    )


def address_in(file: Path) -> str:
    """Return the address in a scheduler file; Dask itself would wait forever for a missing file.

    Raises
    ------
    DpmixError
        The file is missing or is not a scheduler file.
    """
    try:
        return str(json.loads(file.read_bytes())["address"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        reason = getattr(error, "strerror", None) or "no address in it"
        raise DpmixError(
            f"engine.scheduler: {file}: no scheduler file ({reason}): need the one that dask scheduler "
            "--scheduler-file writes"
        ) from None


def local_cluster(config: ClusterConfig) -> LocalCluster:
    """Start a cluster of processes on this machine, reachable from this machine only."""
    return LocalCluster(
        n_workers=config.workers,
        threads_per_worker=config.threads_per_worker,
        memory_limit=0,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        preload=[part.__name__],
        silence_logs=logging.CRITICAL,
    )


@contextmanager
def closing_quietly(client: Client) -> Iterator[Client]:
    """Close a client at the end, also if its scheduler is gone."""
    try:
        yield client
    finally:
        client.close(timeout=2)


@contextmanager
def explained_errors(client: Client, name: str) -> Iterator[None]:
    """Raise Dask's errors as `DpmixError` with the name of the cluster and the meaning for a run."""
    try:
        if client.status == "closed":  # some time after its scheduler is gone
            raise ConnectionError("no answer")
        yield
    except DpmixError as error:
        raise DpmixError(f"cluster {name}: {error}") from error
    except KilledWorker as error:
        raise DpmixError(
            f"cluster {name}: workers die at this, the last {error.last_worker.address}: see their "
            "logs; often their memory is too small"
        ) from error
    except (CancelledError, MemoryError, OSError) as error:
        reason = first_line(error)  # from a worker if the scheduler is alive
        if client.status != "running":
            reason = f"the scheduler is gone ({reason})"
        raise DpmixError(f"cluster {name}: {reason}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message."""
    return (str(error) or type(error).__name__).splitlines()[0]
