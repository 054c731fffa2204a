"""Links in an HDF5 file that lead into another file. A file from elsewhere must not show what others hold."""

from __future__ import annotations

import os
from typing import Any

from h5py import h5d, h5g, h5i, h5l, h5o

MOST_LINKS = 100  # soft links that are followed, one to the next


def lies_elsewhere(group: Any, name: str) -> bool:
    """Return True if a name in an open HDF5 group leads into another file; nothing of that is opened.

    Parameters
    ----------
    group : h5py.Group
    name : str
        A path; one that does not exist lies nowhere.
    """
    return _lies_elsewhere(group.id, os.fsencode(name), 0)


def _lies_elsewhere(here: Any, name: bytes, followed: int) -> bool:
    """Do this for an identifier of h5py, which is many times quicker; `followed` soft links led here."""
    if name.startswith(b"/") or not isinstance(here, h5g.GroupID):
        here = h5g.open(h5i.get_file_id(here), b"/")
    for part in name.split(b"/"):
        if part in (b"", b"."):
            continue
        if not here.links.exists(part):
            return False
        kind = here.links.get_info(part).type
        if kind == h5l.TYPE_SOFT:
            if followed > MOST_LINKS or _lies_elsewhere(here, here.links.get_val(part), followed + 1):
                return True
        elif kind != h5l.TYPE_HARD:
            return True
        try:  # only now: to open a name follows its link, which must not lead elsewhere
            found = h5o.open(here, part)
        except KeyError:
            return False
        if isinstance(found, h5d.DatasetID) and _values_elsewhere(found, followed):
            return True
        if not isinstance(found, h5g.GroupID):
            return False
        here = found
    return False


def _values_elsewhere(data: Any, followed: int) -> bool:
    """Return True if a data set has values of another file; "." is a virtual data set's own file."""
    made = data.get_create_plist()
    if made.get_external_count() > 0:
        return True
    virtual = range(made.get_virtual_count() if made.get_layout() == h5d.VIRTUAL else 0)
    if virtual and (followed > MOST_LINKS or any(made.get_virtual_filename(k) != "." for k in virtual)):
        return True
    names = (b"/" + os.fsencode(made.get_virtual_dsetname(k)) for k in virtual)
    return any(_lies_elsewhere(data, name, followed + 1) for name in names)
