"""`heterps-runtime code`: bring the code of a job into a folder."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from heterps_runtime.config import RunConfig
from heterps_runtime.processes.process import log
from heterps_runtime.user_code.archive import unpack
from heterps_runtime.user_code.errors import CodeError, CodeUnreachableError
from heterps_runtime.user_code.fetching import copy_checked, file_chunks, stored_chunks
from heterps_runtime.user_code.repository import Revision, fetch_revision

__all__ = ["bring_code"]


def bring_code(config: RunConfig, folder: Path, archive: Path | None = None, secret: Path | None = None) -> None:
    """Fetch, check and unpack `spec.code`.

    Args:
        config: of the job.
        folder: exists; gets the code and nothing else.
        archive: the file from the job's ConfigMap.
        secret: folder with the credentials of its repository.

    Raises:
        CodeError: the code is not what the job names, or not safe to unpack.
        CodeUnreachableError: the code or the folder cannot be reached now.
        StorageError: the storage cannot be read.
    """
    if config.code is None:
        raise CodeError("the job has no spec.code; the pod was built for another spec")
    try:
        for item in folder.iterdir():  # of an earlier run: kubelets may repeat init containers
            shutil.rmtree(item) if item.is_dir() and not item.is_symlink() else item.unlink()
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            packed = Path(scratch) / "code.zip"
            where = _fetch(config.code, packed, Path(scratch), archive, secret)
            number = unpack(packed, folder)
    except OSError as error:
        raise CodeUnreachableError(f"spec.code: {folder} cannot be written: {error}") from error
    log(f"code: {number} file(s) from {where}")


def _fetch(
    code: dict[str, dict[str, str]], packed: Path, scratch: Path, archive: Path | None, secret: Path | None
) -> str:
    """Write the archive to a file; return where it comes from."""
    if (git := code.get("git")) is not None:
        revision = Revision(git["repository"], git["revision"], git.get("path", ""))
        fetch_revision(revision, packed, scratch, secret)
        return str(revision)
    if (stored := code.get("archive")) is not None:
        where = stored["uri"].partition("?")[0]
        copy_checked(stored_chunks(stored["uri"]), packed, stored["sha256"], where)
        return where
    if (kept := code.get("configMap")) is not None and archive is not None:
        where = f"ConfigMap {kept['name']}"
        copy_checked(file_chunks(archive), packed, kept["sha256"], where)
        return where
    raise CodeError(f"spec.code: this version knows configMap, archive and git, not {', '.join(code) or 'nothing'}")
