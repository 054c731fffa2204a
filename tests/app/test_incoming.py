"""Files that are dropped on the page, without a server or browser."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dpmix.app import incoming
from dpmix.app.incoming import Incoming, checked_name
from dpmix.app.workspace import Workspace
from dpmix.errors import ConfigError, DataError, DpmixError


def test_a_file_appears_when_it_is_complete(study: Path, tmp_path: Path) -> None:
    own, content = Workspace(tmp_path), (study / "blood.fcs").read_bytes()
    one = own.receive("new blood.fcs")
    one.write(content[:1_000])
    assert own.files() == []
    assert not (tmp_path / "new blood.fcs").exists()
    one.write(content[1_000:])
    assert one.commit() == "new blood.fcs"
    one.discard()  # has no effect any more
    assert (tmp_path / "new blood.fcs").read_bytes() == content
    assert [(row["name"], row["events"]) for row in own.files()] == [("new blood.fcs", 2_500)]
    assert os.listdir(tmp_path) == ["new blood.fcs"]
    (tmp_path / "other").touch()
    modes = [path.stat().st_mode for path in tmp_path.iterdir()]
    assert modes[0] == modes[1]  # as of any other new file


def test_nothing_is_left_of_a_file_that_is_not_complete(tmp_path: Path) -> None:
    one = Incoming(tmp_path, "a.fcs")
    one.write(b"half")
    one.discard()
    one.discard()
    assert os.listdir(tmp_path) == []


def test_what_a_killed_server_was_receiving_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    """But not what another server still receives, and nothing else."""
    arriving = Incoming(tmp_path, "a.fcs")
    left, own, link = tmp_path / ".dpmix-1.partial", tmp_path / "b.partial", tmp_path / ".dpmix-2.partial"
    left.write_bytes(b"half")
    own.write_bytes(b"of a person")
    link.symlink_to(own)
    Workspace(tmp_path)
    assert not left.exists()
    assert own.read_bytes() == b"of a person"
    assert link.is_symlink()
    arriving.write(b"all")
    assert arriving.commit() == "a.fcs"
    arriving.discard()
    assert (tmp_path / "a.fcs").read_bytes() == b"all"


@pytest.mark.parametrize("kind", ["file", "folder", "link to nothing"])
def test_nothing_is_replaced(tmp_path: Path, kind: str) -> None:
    """Neither what is there before the file arrives, nor what appears meanwhile."""
    there = tmp_path / "a.fcs"
    late = Incoming(tmp_path, "a.fcs")
    late.write(b"late")
    if kind == "file":
        there.write_bytes(b"first")
    elif kind == "folder":
        there.mkdir()
    else:
        there.symlink_to(tmp_path.parent / "outside.fcs")
    before = os.lstat(there)
    with pytest.raises(ConfigError, match=r"a\.fcs: exists already in the folder"):
        Incoming(tmp_path, "a.fcs")
    with pytest.raises(ConfigError, match=r"a\.fcs: exists already in the folder"):
        late.commit()
    late.discard()
    assert os.listdir(tmp_path) == ["a.fcs"]
    assert os.lstat(there) == before
    assert not (tmp_path.parent / "outside.fcs").exists()


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "MOST_BYTES", 10)
    one = Incoming(tmp_path, "a.fcs")
    one.write(b"1234567890")
    with pytest.raises(ConfigError, match=r"a\.fcs: more than 1e-08 GB"):
        one.write(b"1")
    one.discard()
    assert os.listdir(tmp_path) == []


def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = Incoming(tmp_path, "a.fcs")

    def refuse(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(DataError, match=r"a\.fcs: cannot be written: No space left on device"):
        one.commit()
    one.discard()
    assert os.listdir(tmp_path) == []
    with pytest.raises(DataError, match="cannot be written: No such file"):
        Incoming(tmp_path / "none", "a.fcs")


@pytest.mark.parametrize("name", ["a.fcs", "Ünïcode 1 (2).FCS", "m.csv", "x.h5ad", "gates.wsp", "t.parquet"])
def test_names_that_dpmix_reads(name: str) -> None:
    assert checked_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", ".fcs", ".hidden.fcs", "-o.fcs", "../a.fcs", "a/b.fcs", "a\\b.fcs", "/etc/a.fcs"),
        *("a.fcs::text", "C:a.fcs", "a\0.fcs", "a\n.fcs", "con.fcs", "a.fcs ", "a" * 300 + ".fcs"),
        *("a.exe", "a", "run.yaml", "run.decisions.json", "a.fcs.html", "run.h5.checkpoint"),
    ],
)
def test_other_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DpmixError) as caught:
        Incoming(tmp_path, name)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []
