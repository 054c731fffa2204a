"""The config section `engine`: the backend and its resources."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from dpmix.config.section import Section, key
from dpmix.config.yaml_text import flow

BACKENDS_OF = {
    "threads": ("cpu",),
    "pruning": ("cpu", "cluster"),
    "devices": ("cuda",),
    "scheduler": ("cluster",),
    "cluster": ("cluster",),
}
SIZES = {"MB": 10**6, "GB": 10**9, "TB": 10**12}


class ClusterConfig(Section):
    """Dask cluster on this machine, for backend cluster without a scheduler."""

    workers: int | None = key(
        None, "Number of worker processes; null: chosen by Dask from the number of cores.", ge=1, le=4096
    )
    threads_per_worker: int | None = key(
        None, "Threads of each worker process; null: chosen by Dask from the number of cores.", ge=1, le=4096
    )


class EngineConfig(Section):
    """Backend that evaluates the mixture at the events, and its resources.

    Only two of these keys affect the draws: weight_floor, and backend, because cpu and cuda may give a
    different label where its random number lies within rounding error of a step.
    """

    backend: Literal["auto", "cpu", "cuda", "cluster"] = key(
        "auto",
        "cpu, cuda (NVIDIA GPUs), cluster (workers of a Dask cluster), or auto: cuda if a device and a "
        "compiler are available, otherwise cpu. The run file records the choice and its reason.",
    )
    scheduler: str | None = key(
        None,
        "Dask scheduler: its address, for example tcp://host:8786, or its scheduler file. null: start a "
        "cluster on this machine with the settings in engine.cluster. For cluster only.",
        need="an address, for example tcp://host:8786, or the path of a scheduler file, for example "
        "cluster.json",
    )
    cluster: ClusterConfig = ClusterConfig()
    devices: Literal["all"] | list[Annotated[int, Field(ge=0)]] = key(
        "all",
        "Numbers of the GPUs to use, as dpmix devices lists them, or all: one for each 1,048,576 events. For "
        "cuda only.",
        need="all, or a list of different device numbers, for example [0, 1]",
    )
    threads: int | None = key(
        None, "Number of threads; null: one per core available to this process. For cpu only.", ge=1, le=4096
    )
    chunks_in_flight: int | None = key(
        None,
        "Chunks of 65,536 events processed at the same time. null: on the CPU one per thread, within about "
        "64 MB; on a GPU as many as it can use, within its memory.",
        ge=1,
        le=2**20,
    )
    pruning: bool = key(
        True,
        "Skip components whose weight is certain to be 0.",
        "the same labels, bit for bit, in less time",
    )
    weight_floor: float = key(
        25.0,
        "A component this many nats below the best component of an event has weight 0 for the event.",
        "the error, at most K exp(-25) per event, is below the resolution of the random numbers",
        ge=15,
        le=80,
    )
    memory_limit: str | None = key(
        None,
        "Memory for the events, for example 16 GB. Larger data are processed from a file in engine.scratch. "
        "null: memory available at start.",
        need="a size, for example 500 MB, 16 GB or 1 TB",
    )
    scratch: str | None = key(
        None,
        "Folder for that file, which is deleted at the end; with backend cluster, a folder that all workers "
        "can read. null: the folder of the run file.",
        min_length=1,
        need="the path of a folder, or null",
    )

    @field_validator("scheduler")
    @classmethod
    def _scheduler_is_an_address(cls, value: str | None) -> str | None:
        if value is not None and "://" not in value and not value.endswith(".json"):
            raise ValueError
        return value

    @field_validator("memory_limit")
    @classmethod
    def _memory_limit_is_a_size(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"\d+(\.\d+)? ?[MGT]B", value):
            raise ValueError
        return value

    @property
    def memory_limit_bytes(self) -> int | None:
        """The memory limit in bytes."""
        if self.memory_limit is None:
            return None
        return int(float(self.memory_limit[:-2]) * SIZES[self.memory_limit[-2:]])

    @field_validator("devices")
    @classmethod
    def _devices_are_different(cls, value: Literal["all"] | list[int]) -> Literal["all"] | list[int]:
        if value != "all" and (not value or len(set(value)) < len(value)):
            raise ValueError
        return value

    @model_validator(mode="after")
    def _options_belong_to_the_backend(self) -> EngineConfig:
        if self.scheduler is not None and self.cluster != ClusterConfig():
            raise ValueError(
                f"cluster is ignored by scheduler {self.scheduler}, which has its own workers; remove "
                "cluster, or set scheduler: null to start a cluster on this machine"
            )
        if self.backend != "auto" and (unused := self.unused(self.backend)):
            defaults = ", ".join(f"{name}: {flow(default)}" for name, default in unused.items())
            them = "it" if len(unused) == 1 else "them"
            raise ValueError(
                f"backend {self.backend} ignores {', '.join(unused)}; remove {them}, or set {defaults}"
            )
        return self

    def unused(self, backend: str) -> dict[str, Any]:
        """Return the keys that are given but ignored by a backend, with their defaults."""
        given, defaults = self.model_dump(), EngineConfig.model_construct().model_dump()
        return {
            name: defaults[name]
            for name, owners in BACKENDS_OF.items()
            if backend not in owners and given[name] != defaults[name]
        }
