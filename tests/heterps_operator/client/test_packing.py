"""Packing: the same files give the same bytes, and what cannot be packed is told with the biggest files."""

from __future__ import annotations

import io
import os
import zipfile
from pathlib import Path

import pytest

from heterps_operator.client import packing
from heterps_operator.client.packing import pack
from heterps_operator.errors import UsageError
from heterps_runtime.user_code.archive import unpack


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{path.name}.py").write_text(text)
    return folder


def names(folder: Path) -> list[str]:
    with zipfile.ZipFile(io.BytesIO(pack(folder).data)) as archive:
        return archive.namelist()


def test_the_same_files_give_the_same_archive(tmp_path: Path) -> None:
    one = write(tmp_path / "one", model="x = 1", lib__a="", lib__b="y")
    other = write(tmp_path / "other", lib__b="y", lib__a="", model="x = 1")
    for path in other.rglob("*"):
        os.utime(path, (1, 1))
        path.chmod(0o755 if path.is_dir() else 0o640)
    assert pack(one).data == pack(other).data
    assert pack(one).sha256 == pack(other).sha256
    assert names(one) == ["lib/a.py", "lib/b.py", "model.py"]
    (other / "model.py").chmod(0o740)
    assert pack(one).sha256 != pack(other).sha256


def test_what_was_packed_is_unpacked(tmp_path: Path) -> None:
    folder = write(tmp_path / "one", model="x = 1", lib__a="")
    (folder / "lib" / "link.py").symlink_to("../model.py")
    (folder / "here").symlink_to("lib")
    (folder / "größe.txt").write_bytes(b"\0\1")
    (tmp_path / "to").mkdir()
    assert unpack(io.BytesIO(pack(folder).data), tmp_path / "to") == 3
    assert (tmp_path / "to" / "here" / "link.py").read_text() == "x = 1"
    assert (tmp_path / "to" / "größe.txt").read_bytes() == b"\0\1"


def test_caches_environments_and_secrets_stay_out(tmp_path: Path) -> None:
    folder = write(tmp_path, model="")
    for name in (
        ".git/config",
        "lib/__pycache__/x.pyc",
        ".venv/x.py",
        ".heterps/job/data",
        ".env",
        "x.pyc",
        "lib/m.py",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (folder / "env311").mkdir()
    (folder / "env311" / "pyvenv.cfg").write_text("")
    (folder / "env311" / "site.py").write_text("")
    assert names(folder) == ["lib/m.py", "model.py"]


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("*.csv", ["a/data/x.py", "data/y.py"]),
        ("data/", ["a/x.csv"]),
        ("/data", ["a/data/x.csv", "a/data/x.py", "a/x.csv"]),
        ("a/*.csv", ["a/data/x.csv", "a/data/x.py", "data/x.csv", "data/y.py"]),
        ("x.csv/", ["a/data/x.csv", "a/data/x.py", "a/x.csv", "data/x.csv", "data/y.py"]),
        ("# data\n\n  *.p[y] ", ["a/data/x.csv", "a/x.csv", "data/x.csv"]),
    ],
)
def test_a_file_says_what_stays_out(tmp_path: Path, pattern: str, left: list[str]) -> None:
    for name in ("a/data/x.csv", "a/data/x.py", "a/x.csv", "data/x.csv", "data/y.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / ".heterpsignore").write_text(pattern)
    assert names(tmp_path) == [".heterpsignore", *left]


@pytest.mark.parametrize("pattern", ["!keep.py", "data/**/x"])
def test_patterns_that_would_be_misunderstood_are_refused(tmp_path: Path, pattern: str) -> None:
    write(tmp_path, model="")
    (tmp_path / ".heterpsignore").write_text(pattern)
    with pytest.raises(UsageError, match=r"! and \*\* are not supported"):
        pack(tmp_path)


@pytest.mark.parametrize(
    "target", ["/etc/hostname", "../outside.py", "nothing.py", "../code/model.py", "__pycache__/x"]
)
def test_a_link_to_what_is_not_packed_is_refused(tmp_path: Path, target: str) -> None:
    folder = write(tmp_path / "code", model="")
    write(tmp_path, outside="")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x").write_text("")
    (folder / "link").symlink_to(target)
    with pytest.raises(UsageError, match=f"link is a link to {target}, which is not packed"):
        pack(folder)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path, model="")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"pipe is neither a file nor a folder; name it in \.heterpsignore"):
        pack(tmp_path)
    (tmp_path / "pipe").unlink()
    (tmp_path / os.fsdecode(b"\xff.py")).write_text("")
    with pytest.raises(UsageError, match="has a name that is not UTF-8"):
        pack(tmp_path)


def test_a_folder_without_files_or_none_at_all_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no files to pack"):
        pack(tmp_path)
    with pytest.raises(UsageError, match="is no folder; name the folder that Python imports from"):
        pack(tmp_path / "nothing")


def test_too_much_names_what_is_biggest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, model="x" * 10, data__big="x" * 3000, data__small="")
    monkeypatch.setattr(packing, "CODE_MOST_BYTES", 2000)
    with pytest.raises(
        UsageError, match=r"has 3\.0 kB, the limit is 2\.0 kB; the biggest files are data/big\.py \(3\.0"
    ):
        pack(tmp_path)
    monkeypatch.setattr(packing, "CODE_MOST_BYTES", 10_000)
    monkeypatch.setattr(packing, "CODE_MOST_ARCHIVE_BYTES", 100)
    with pytest.raises(UsageError, match=r"packed, the limit is 100 B; the biggest files are data/big\.py"):
        pack(tmp_path)
    monkeypatch.setattr(packing, "CODE_MOST_FILES", 2)
    with pytest.raises(UsageError, match=r"has 3 files, the limit is 2; most are in data \(2\), model\.py \(1\)"):
        pack(tmp_path)
    monkeypatch.setattr(packing, "_MOST_SEEN", 2)
    with pytest.raises(UsageError, match="has more than 2 files"):
        pack(tmp_path)
