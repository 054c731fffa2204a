"""Compare configs: the keys that differ, and those that may differ when a run resumes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from dpmix.config.engine import BACKENDS_OF, EngineConfig
from dpmix.config.schema import Config
from dpmix.config.section import Section
from dpmix.config.yaml_text import flow

RESUMABLE = frozenset(
    {
        "output.path",
        "engine.backend",
        "engine.devices",
        "engine.threads",
        "engine.chunks_in_flight",
        "engine.scheduler",
        "engine.cluster.workers",
        "engine.cluster.threads_per_worker",
        "engine.memory_limit",
        "engine.scratch",
    }
)


def differences(one: Config, other: Config) -> list[str]:
    """Return the dotted names of the keys whose values differ, in the order of the schema."""
    ours, theirs = dict(_leaves(one)), dict(_leaves(other))
    return [name for name in ours if ours[name] != theirs[name]]


def resets(overrides: Sequence[str]) -> list[str]:
    """Return overrides that reset the keys which the backend named in `overrides` ignores.

    They go before `overrides`, so that a run can resume with a backend other than the one it started with.
    """
    named = [text.partition("=")[2] for text in overrides if text.startswith("engine.backend=")]
    if not named:
        return []
    backend = named[-1]
    defaults = EngineConfig.model_construct().model_dump()
    possible = {"cpu", "cuda"} if backend == "auto" else {backend}
    return [
        f"engine.{name}={flow(defaults[name])}"
        for name, owners in BACKENDS_OF.items()
        if not possible & {*owners}
    ]


def _leaves(section: Section, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section:
        # A section that may also be null counts as one value.
        declared = type(section).model_fields[name].annotation
        if isinstance(value, Section) and declared is type(value):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
