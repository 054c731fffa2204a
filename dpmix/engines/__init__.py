"""What holds the events and turns a mixture into sufficient statistics."""

from dpmix.engines.base import Engine, Key

__all__ = ["Engine", "Key"]
