"""The version of dpmix, which files and pages state."""

from importlib.metadata import version

VERSION = version("dpmix-cytometry")
