"""Paths and text files as other systems write them."""

from __future__ import annotations

import ntpath
import os
from pathlib import Path

import pytest

from dpmix.system import paths
from dpmix.system.paths import (
    below_common_folder,
    encoding_of,
    file_name,
    from_home,
    in_order,
    relative,
    with_slashes,
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("monday/tube 1.fcs", "monday_tube 1.fcs"),
        (r"monday\tube 1.fcs", "monday_tube 1.fcs"),
        ('CD3<+>: "a|b?*"', "CD3_+__ _a_b___"),
        ("nul.fcs", "nul_.fcs"),
        ("COM1", "COM1_"),
        ("control", "control"),
        ("console.fcs", "console.fcs"),
        ("ends in a dot.", "ends in a dot_"),
        ("ends in a space ", "ends in a space_"),
        ("Прибор 3 µ.fcs", "Прибор 3 µ.fcs"),
    ],
)
def test_a_file_name_is_possible_on_every_system(text: str, name: str) -> None:
    assert file_name(text) == name


def test_paths_have_slashes_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_slashes(r"on\linux") == r"on\linux"
    monkeypatch.setattr(os, "sep", "\\")
    assert with_slashes(r"D:\data\a.fcs") == "D:/data/a.fcs"
    assert in_order([r"a\z.fcs", "a-b.fcs", "B.fcs"]) == ["B.fcs", "a-b.fcs", r"a\z.fcs"]


def test_a_path_on_another_drive_stays_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fails(*_: object) -> str:
        return ntpath.relpath(r"C:\a.fcs", r"D:\runs")

    with pytest.raises(ValueError, match=r"mount|drive"):
        fails()
    files = [tmp_path / "x" / "a.fcs", tmp_path / "y" / "a.fcs"]
    assert relative(files[0], tmp_path / "y") == "../x/a.fcs"
    assert below_common_folder(files) == ["x/a.fcs", "y/a.fcs"]
    monkeypatch.setattr(paths.os.path, "relpath", fails)
    monkeypatch.setattr(paths.os.path, "commonpath", fails)
    assert relative(files[0], tmp_path / "y") == str(files[0])
    assert below_common_folder(files) == list(map(str, files))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_a_byte_order_mark_shows_the_encoding(encoding: str, tmp_path: Path) -> None:
    mark = b"\xff\xfe" if encoding == "utf-16-le" else b""
    path = tmp_path / "table.csv"
    path.write_bytes(mark + "µ,β\r\n".encode(encoding))
    with path.open(encoding=encoding_of(path), newline="") as file:
        assert file.read() == "µ,β\r\n"


def test_home_is_a_tilde_only_of_a_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert from_home("~/x.npy") == tmp_path / "x.npy"
    assert from_home("~x.npy") == Path("~x.npy")
