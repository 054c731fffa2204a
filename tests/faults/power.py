"""A disk that loses its power: what it could have kept of a folder that a run was writing to.

Certain is only what was synced: of a file its content at its last fsync, of a folder its names at its own.
Of what was written to a file later any sectors may have reached the disk, each as some write left it; a file
that was never synced may be cut anywhere; of names given, changed and taken away later the last may be lost.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SECTOR = 512


class Disk:
    """Watches what this process does to a folder, and now and then writes what a power cut would leave.

    Parameters
    ----------
    folder : Path
    cuts : Path
        Where those folders go, one each.
    chance : float
        Probability of a cut, after every write, sync, and change of a name.
    heeds_syncs : bool
        False: as if nobody had asked for a sync; the control that the cuts are hard enough.
    """

    def __init__(self, folder: Path, cuts: Path, chance: float, heeds_syncs: bool = True) -> None:
        self.folder, self.cuts, self.chance, self.heeds_syncs = folder, cuts, chance, heeds_syncs
        self.random = np.random.default_rng(3)
        self.made: list[Path] = []
        self.held: dict[int, int] = {}  # a descriptor for each inode, so that none is used again
        self.synced: dict[int, bytes] = {}
        self.written: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.names = [self.listing()]

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        for name in ("pwrite", "fsync", "replace", "unlink"):
            patch.setattr(os, name, self.watched(name, getattr(os, name)))

    def watched(self, name: str, call: Any) -> Any:
        def watching(*given: Any, **named: Any) -> Any:
            result = call(*given, **named)
            if name == "pwrite":
                self.written[os.fstat(given[0]).st_ino].append((given[2], bytes(given[1])[:result]))
            elif name == "fsync":
                self.sync(given[0])
            else:
                self.names.append(self.listing())
            if self.random.random() < self.chance:
                self.cut()
            return result

        return watching

    def sync(self, file: int) -> None:
        if not self.heeds_syncs:
            return
        if stat.S_ISDIR(os.fstat(file).st_mode):
            self.names = [self.listing()]
        else:
            inode = os.fstat(file).st_ino
            self.synced[inode] = Path(f"/proc/self/fd/{file}").read_bytes()
            self.written[inode] = []

    def listing(self) -> dict[str, int]:
        found = {}
        for entry in os.scandir(self.folder):
            found[entry.name] = entry.inode()
            if entry.inode() not in self.held:
                self.held[entry.inode()] = os.open(entry.path, os.O_RDONLY)
        return found

    def cut(self) -> None:
        folder = self.cuts / str(len(self.made))
        folder.mkdir()
        for name, inode in self.names[self.random.integers(len(self.names))].items():
            (folder / name).write_bytes(self.left_of(inode))
        self.made.append(folder)

    def left_of(self, inode: int) -> bytes:
        if inode not in self.synced:
            whole = Path(f"/proc/self/fd/{self.held[inode]}").read_bytes()
            return whole[: self.random.integers(len(whole) + 1)]
        content = bytearray(self.synced[inode])
        pieces: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for offset, data in self.written[inode]:
            while data:
                n = SECTOR - offset % SECTOR
                pieces[offset // SECTOR].append((offset, data[:n]))
                offset, data = offset + n, data[n:]
        for writes in pieces.values():
            for offset, data in writes[: self.random.integers(len(writes) + 1)]:
                content[offset : offset + len(data)] = data
        return bytes(content)

    def close(self) -> None:
        for descriptor in self.held.values():
            os.close(descriptor)
