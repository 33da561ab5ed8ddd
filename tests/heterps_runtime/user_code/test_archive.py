"""Unpacking: what honest archives hold, and that hostile ones get nothing written outside of the folder."""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from heterps_runtime.contract import CODE_MOST_FILES
from heterps_runtime.user_code.archive import unpack
from heterps_runtime.user_code.errors import CodeError

FILE, LINK, FIFO = stat.S_IFREG | 0o644, stat.S_IFLNK | 0o777, stat.S_IFIFO | 0o644


def archive(*entries: tuple[str, bytes] | tuple[str, bytes, int]) -> io.BytesIO:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as written:
        for name, content, *mode in entries:
            info = zipfile.ZipInfo("x")
            info.filename = name  # the constructor would correct it
            info.external_attr = (mode[0] if mode else FILE) << 16
            written.writestr(info, content)
            written.NameToInfo.clear()  # which would warn of names that it has seen
    return buffer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "code"
    made.mkdir()
    return made


def test_files_keep_contents_names_and_whether_they_can_be_executed(folder: Path) -> None:
    entries = archive(
        ("model.py", b"x = 1\n"),
        ("lib/", b"", stat.S_IFDIR | 0o755),
        ("lib/größe.py", b""),
        ("bin/run", b"#!", stat.S_IFREG | 0o700),
        ("empty/", b"", stat.S_IFDIR | 0o755),
    )
    assert unpack(entries, folder) == 3
    assert (folder / "model.py").read_bytes() == b"x = 1\n"
    assert (folder / "lib" / "größe.py").exists()
    assert (folder / "empty").is_dir()
    assert stat.S_IMODE((folder / "bin" / "run").stat().st_mode) == 0o755
    assert stat.S_IMODE((folder / "model.py").stat().st_mode) == 0o644


def test_links_within_the_folder_work(folder: Path) -> None:
    unpack(archive(("a/b/link", b"../../model.py", LINK), ("here", b"a/b", LINK), ("model.py", b"x")), folder)
    assert (folder / "a/b/link").read_bytes() == b"x"
    assert (folder / "here" / "link").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([("../evil.py", b"")], "leads out of the folder"),
        ([("/etc/evil", b"")], "leads out of the folder"),
        ([("a/../../evil", b"")], "leads out of the folder"),
        ([("a//b", b"")], "leads out of the folder"),
        ([("./a", b"")], "leads out of the folder"),
        ([("", b"")], "leads out of the folder"),
        ([("a\0b", b"")], "has a character that no name may have"),
        ([("x" * 256, b"")], "is too long"),
        ([("x/" * 600 + "y", b"")], "is too long"),
        ([("a", b""), ("a", b"")], "two entries of the name 'a'"),
        ([("a", b""), ("a/b", b"")], "'a/b' lies in 'a', which is no folder"),
        ([("a/b", b""), ("a", b"a", LINK)], "'a/b' lies in 'a', which is no folder"),
        ([("a", b"/etc/passwd", LINK)], "link to '/etc/passwd', which leads out"),
        ([("a", b"..", LINK)], "which leads out"),
        ([("d/a", b"../../x", LINK)], "which leads out"),
        ([("d/a", b"../b/../../x", LINK)], "which leads out"),
        ([("a", b"", LINK)], "which leads out"),
        ([("a", b"x" * 2000, LINK)], "another length"),
        ([("pipe", b"", FIFO)], "neither a file nor a folder nor a link"),
        ([("a", b"\0" * 600_000), ("b", b"\0" * 600_000)], "1200000 bytes unpacked, more than 1048576"),
    ],
)
def test_a_hostile_archive_writes_nothing(folder: Path, entries: list[tuple[str, bytes]], words: str) -> None:
    with pytest.raises(CodeError, match=words):
        unpack(archive(*entries), folder, most_bytes=1 << 20)
    assert list(folder.iterdir()) == []
    assert [path.name for path in folder.parent.iterdir()] == ["code"]


def test_a_link_behind_a_link_cannot_be_used_to_climb_out(folder: Path) -> None:
    """`up/..` reads as the folder itself, but `up` is its root."""
    with pytest.raises(CodeError, match="which leads out"):
        unpack(archive(("a/b/up", b"../..", LINK), ("a/b/out", b"up/..", LINK)), folder)
    assert list(folder.iterdir()) == []


def test_too_many_files_are_refused(folder: Path) -> None:
    with pytest.raises(CodeError, match=f"more than {CODE_MOST_FILES}"):
        unpack(archive(*((str(number), b"") for number in range(CODE_MOST_FILES + 1))), folder)
    assert list(folder.iterdir()) == []


def sizes(data: bytes, size: int) -> bytes:
    """Let the only entry say another size."""
    local, central = data.index(b"PK\x03\x04"), data.index(b"PK\x01\x02")
    field = struct.pack("<I", size)
    data = data[: local + 22] + field + data[local + 26 :]
    return data[: central + 24] + field + data[central + 28 :]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "no zip archive"),
        (lambda data: data[: len(data) // 2], "no zip archive"),
        (lambda data: b"\x1f\x8b" + data[2:], "damaged"),
        (lambda data: data.replace(b"hello", b"jello"), "damaged"),
        (lambda data: sizes(data, 3), "damaged"),
        (lambda data: sizes(data, 100), "damaged"),
    ],
)
def test_a_damaged_archive_is_told(folder: Path, damage: Callable[[bytes], bytes], words: str) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as written:
        written.writestr("model.py", b"hello " * 10)
    with pytest.raises(CodeError, match=words):
        unpack(io.BytesIO(damage(buffer.getvalue())), folder)


def test_encrypted_and_unusual_entries_are_refused(folder: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as written:
        written.writestr("model.py", b"hello")
    with pytest.raises(CodeError, match="unknown method; use deflate"):
        unpack(buffer, folder)
    data = archive(("model.py", b"hello")).getvalue()
    central = data.index(b"PK\x01\x02")
    with pytest.raises(CodeError, match="encrypted"):
        unpack(io.BytesIO(data[: central + 8] + b"\1\0" + data[central + 10 :]), folder)


def test_a_full_disk_is_no_error_of_the_archive(folder: Path) -> None:
    folder.rmdir()
    os.symlink("/nowhere/at/all", folder)
    with pytest.raises(OSError, match=r"nowhere|File exists"):
        unpack(archive(("a", b"x")), folder)
