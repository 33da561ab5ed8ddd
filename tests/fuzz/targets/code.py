"""Code that a job brings along."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from heterps_operator.client.revisions import _commit_of
from heterps_runtime.user_code.archive import unpack
from heterps_runtime.user_code.errors import CodeError
from tests.fuzz.target import Form, Target

_MOST_BYTES = 1 << 16  # so that an input of some bytes cannot ask for minutes of writing
# In memory where that is possible: a million inputs write a million folders.
_PLACE = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _unpack(data: bytes) -> None:
    """Unpack an archive; whatever it says, nothing may appear beside the folder, and no link may lead out of it."""
    outer = Path(tempfile.mkdtemp(dir=_PLACE))
    try:
        folder = outer / "code"
        folder.mkdir()
        try:
            unpack(io.BytesIO(data), folder, _MOST_BYTES)
        finally:
            assert os.listdir(outer) == ["code"]
            for path in folder.rglob("*"):
                assert Path(os.path.realpath(path)).is_relative_to(folder), path
    finally:
        shutil.rmtree(outer)


def _archives() -> Iterator[bytes]:
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as archive:
            for name, content, kind in (
                ("a.py", b"x", 0o100644),
                ("b/", b"", 0o040755),
                ("b/c", b"y" * 99, 0o100755),
                ("b/d", b"../a.py", 0o120777),
            ):
                info = zipfile.ZipInfo(name)
                info.external_attr, info.compress_type = kind << 16, method
                archive.writestr(info, content)
        yield buffer.getvalue()


def _read_lines(data: bytes) -> None:
    commit = _commit_of("v1", data.decode("utf-8", "replace"))
    assert commit is None or len(commit) in (40, 64)


TARGETS = [
    Target("code.archive", _unpack, (CodeError,), _archives, memory=None),
    Target(
        "code.revision",
        _read_lines,
        (),
        lambda: [b"%s\trefs/tags/v1\n%s\trefs/tags/v1^{}\n" % (b"a" * 40, b"b" * 40)],
        Form.TEXT,
    ),
]
