"""The files of a split: a file or a folder on any filesystem of pyarrow, in the order of their paths.

The order makes a row's number the same on each machine. A folder may be partitioned as Hive does it:
`train/day=2024-05-01/part-0.parquet` gives each row of the file the column `day`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs

from heterps_runtime.data.errors import DataError, DataUnavailableError
from heterps_runtime.data.spec import DataSpec, Split
from heterps_runtime.filesystems import AddressError, first_line, open_address

__all__ = ["FileList", "Reading", "SourceFile", "find_files", "patiently"]

T = TypeVar("T")

_ATTEMPTS = 6  # to read from a store that fails
_FIRST_WAIT_SECONDS = 0.25  # between attempts, doubled each time: eight seconds in all
# In errors of object stores that no other attempt will mend: of S3, GCS and Azure.
_REFUSED = (
    *("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH", "NO_SUCH_BUCKET"),
    *("(PERMISSION_DENIED:", "(UNAUTHENTICATED:"),
    *("] 401 ", "] 403 "),
)
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class SourceFile:
    """A file, as it enters the cache's fingerprint."""

    path: str  # in its filesystem
    size: int  # bytes
    mtime_ns: int | None  # None if the filesystem has none
    partition: Mapping[str, str | None] = field(default_factory=dict)  # column -> value, from the names of its folders


@dataclass(frozen=True)
class FileList:
    """The files of a split, and where they lie."""

    field: str  # of the manifest, for messages
    location: str
    filesystem: Any  # a pyarrow FileSystem
    files: tuple[SourceFile, ...]  # by path

    def unchanged(self, file: SourceFile) -> None:
        """Check that a file is still the one that was listed.

        Raises:
            DataError: it has disappeared or has changed.
            OSError: the filesystem does not answer.
        """
        info = self.filesystem.get_file_info(file.path)
        if info.type != pa.fs.FileType.File:
            found = "has disappeared"
        elif (info.size, info.mtime_ns) != (file.size, file.mtime_ns):
            found = "has changed"
        else:
            return
        raise DataError(
            f"{self.field}: {file.path} {found} since the job's data was listed; put it back and resume the job, and "
            "write new data to a new folder"
        )


def find_files(spec: DataSpec, split: Split) -> FileList:
    """List the files of a split; of training data, those that `trainAfter` and `trainThrough` leave.

    Names with a `.` or `_` at the start (markers, partial files) are skipped, of folders too.

    Raises:
        DataError: the path or address is not usable, cannot be listed, or has no files.
        DataUnavailableError: a store does not answer.
    """
    field_name, location = f"spec.data.{split}", spec.location(split)
    filesystem, root = _resolve(field_name, location)

    def listed() -> list[Any]:
        try:
            info = filesystem.get_file_info(root)
            if info.type == pa.fs.FileType.NotFound:
                raise DataError(f"{field_name}: {location} does not exist; prepare the data first, or correct the path")
            if info.type == pa.fs.FileType.File:
                return [info]
            return list(filesystem.get_file_info(pa.fs.FileSelector(root, recursive=True)))
        except (OSError, pa.ArrowException) as error:  # Azure's client has an error of its own without credentials
            if isinstance(error, OSError) and filesystem.type_name != "local" and _may_pass(error):
                raise
            raise DataError(f"{field_name}: {location}: cannot be listed: {first_line(error)}") from error

    files = []
    for f in patiently(listed, f"{field_name}: {location}"):
        parts = () if f.path == root else tuple(f.path[len(root) :].strip("/").split("/"))
        if f.type == pa.fs.FileType.File and not any(p[:1] in (".", "_") for p in parts):
            files.append(SourceFile(f.path, f.size, f.mtime_ns, _partition(parts[:-1])))
    if not files:
        raise DataError(f"{field_name}: the folder {location} has no files")
    files.sort(key=lambda f: f.path)
    if split == "train":
        files = _selected(files, root, spec)
    return FileList(field_name, location, filesystem, tuple(files))


def _selected(files: list[SourceFile], root: str, spec: DataSpec) -> list[SourceFile]:
    """The files after `trainAfter` and up to `trainThrough`, of those of the training data, by path.

    Raises:
        DataError: there is no such file or folder, or no file between the two.
    """
    start = 0 if spec.train_after is None else _end_of(spec.train_after, "trainAfter", files, root, spec.train)
    stop = len(files)
    if spec.train_through is not None:
        stop = _end_of(spec.train_through, "trainThrough", files, root, spec.train)
    if start < stop:
        return files[start:stop]
    bound = "" if spec.train_through is None else f" and up to {spec.train_through!r} (spec.data.trainThrough)"
    raise DataError(
        f"spec.data.trainAfter: {spec.train} has no file after {spec.train_after!r}{bound}, in the order of paths; add "
        "the new data first, or correct the fields"
    )


def _end_of(name: str, field_name: str, files: list[SourceFile], root: str, location: str) -> int:
    """The number of files up to a file, or up to the last one in a folder and below; both by their path in `root`."""
    names = [file.path[len(root) :].strip("/") for file in files]
    wanted = name.strip("/")
    there = [n for n, other in enumerate(names) if wanted and (other == wanted or other.startswith(f"{wanted}/"))]
    if not there:
        raise DataError(
            f"spec.data.{field_name}: {location} has no file or folder {name!r} with data; name one by its path below "
            f"spec.data.train, such as {names[-1]!r}, or leave the field out"
        )
    return there[-1] + 1


def _resolve(field_name: str, location: str) -> tuple[Any, str]:
    try:
        return open_address(location)
    except AddressError as error:
        raise DataError(f"{field_name}: {error}") from None


def _partition(folders: tuple[str, ...]) -> dict[str, str | None]:
    """The columns in the names of folders."""
    pairs = (f.partition("=") for f in folders if "=" in f)
    return {name: None if value == _HIVE_NULL else unquote(value) for name, _, value in pairs if name}


def _may_pass(error: OSError) -> bool:
    """Whether an error of a store may not occur again."""
    refused = any(word in str(error) for word in _REFUSED)
    return not refused and not isinstance(error, FileNotFoundError | PermissionError)


def patiently(read: Callable[[], T], what: str) -> T:
    """Return the result of `read`, after some attempts if the filesystem fails.

    Args:
        read: may raise OSError.
        what: is read, for messages.

    Raises:
        DataUnavailableError: all attempts have failed.
    """
    for attempt in range(_ATTEMPTS - 1):
        try:
            return read()
        except OSError:
            time.sleep(_FIRST_WAIT_SECONDS * 2**attempt)
    try:
        return read()
    except OSError as error:
        raise DataUnavailableError(
            f"{what}: cannot be read: {first_line(error)} (after {_ATTEMPTS} attempts)"
        ) from error


@dataclass(frozen=True)
class Reading:
    """A context that turns pyarrow's errors into ones that name the file and a remedy.

    With `retried`, errors of the filesystem that may not occur again pass as they are, for `patiently`.
    """

    field: str
    path: str
    format: str
    retried: bool = False

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DataError) or not isinstance(error, pa.ArrowException | OSError | ValueError | EOFError):
            return
        if self.retried and isinstance(error, OSError) and _may_pass(error):
            return
        text = first_line(error)
        if "CSV conversion error" in text:
            fix = "correct the value, or write the data as parquet (a CSV column's type is guessed from its start)"
        elif isinstance(error, PermissionError):
            fix = "check the file's permissions"
        else:
            fix = "is it complete, and is spec.data.format right?"
        raise DataError(f"{self.field}: {self.path}: cannot be read as {self.format}: {text}; {fix}") from error
