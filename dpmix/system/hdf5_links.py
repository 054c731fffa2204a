"""Links in an HDF5 file that lead into another file. A file from elsewhere must not show what others hold."""

from __future__ import annotations

from typing import Any

import h5py

MOST_LINKS = 100  # soft links that are followed, one to the next


def lies_elsewhere(group: Any, name: str, followed: int = 0) -> bool:
    """Return True if a name in an open HDF5 group leads into another file; nothing of that is opened.

    Parameters
    ----------
    group : h5py.Group
    name : str
        A path; one that does not exist lies nowhere.
    followed : int
        Soft links that led here.
    """
    here = group.file if name.startswith("/") else group
    for part in filter(None, name.split("/")):
        link = here.get(part, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            return True
        if isinstance(link, h5py.SoftLink) and (
            followed > MOST_LINKS or lies_elsewhere(here, link.path, followed + 1)
        ):
            return True
        # Only now: to get a name follows its link, which must not lead elsewhere.
        found = None if link is None else here.get(part)
        if isinstance(found, h5py.Dataset) and (found.external or _maps_elsewhere(found, followed)):
            return True
        if not isinstance(found, h5py.Group):
            return False
        here = found
    return False


def _maps_elsewhere(data: h5py.Dataset, followed: int) -> bool:
    """Return True if a virtual data set has values of another file; "." is its own."""
    sources = data.virtual_sources() if data.is_virtual else []
    if followed > MOST_LINKS or any(one.file_name != "." for one in sources):
        return True
    return any(lies_elsewhere(data.file, one.dset_name, followed + 1) for one in sources)
