"""The base class of the config sections, and the declaration of a key."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Section(BaseModel):
    """A section of the config: its declared keys only, with their declared types, immutable."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def key(default: Any, meaning: str, why: str = "", *, need: str | None = None, **limits: Any) -> Any:
    """Declare a key of a section.

    Parameters
    ----------
    default : object
        The default; `...` if the key is required.
    meaning : str
        What the key does: the comment above it in a config, and its entry in the reference.
    why : str
        Why it has this default; shown after the meaning.
    need : str, optional
        What the key accepts, to complete "it must be ..."; default: derived from its type and limits.
    **limits
        Limits as in `pydantic.Field`: `ge`, `gt`, `le`, `lt`, `min_length`.
    """
    return Field(default, description=meaning, json_schema_extra={"why": why, "need": need}, **limits)
