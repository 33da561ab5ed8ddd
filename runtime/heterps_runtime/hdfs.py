"""HDFS as a file system of pyarrow, on the client hdfs-native, which needs neither a JVM nor Hadoop's jars.

hdfs-native has a wrapper for fsspec. It is not used: its errors have Java's classes and stack traces in their text, its
`mv` does not replace a file, and a position behind a file's end aborts the calling thread.

hdfs-native waits for ever for a namenode that accepts connections and does not answer, and for a datanode that takes no
more bytes. So each call is made in a thread of its own, and given up after `_PATIENCE_SECONDS`.
"""

from __future__ import annotations

import errno
import io
import os
import re
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, NoReturn, TypeVar, cast

import hdfs_native
import pyarrow
from pyarrow import fs as pafs

__all__ = ["open_hdfs"]

T = TypeVar("T")

# Half a minute in which another namenode may take over, a minute with a single one. By default the pauses grow to 15 s,
# and a namenode that is away is reported after three minutes.
_RETRIES = {"dfs.client.failover.max.attempts": "60", "dfs.client.failover.sleep.max.millis": "1000"}
_PATIENCE_SECONDS = 120  # more than all retries take
# After its start, a namenode waits for its datanodes, and refuses; the client does not repeat what it has refused.
_SAFE_MODE = "in safe mode"
_SAFE_MODE_ATTEMPTS, _SAFE_MODE_PAUSE_SECONDS = 60, 1.0
_BUFFER_BYTES = 2**20  # of reads from pyarrow, many of which are small
_PIECE_BYTES = 2**22  # of writes: one call must end in time on a slow network too
_FOLDER_PERMISSION = 0o755

_OF_NAMENODE = re.compile(r'RPCError\("(?:[\w$]+\.)*([\w$]+)", "(.*)"\)', re.DOTALL)
_CLASSES: dict[str, tuple[type[OSError], int | None]] = {
    # Without a number the reason stays as it is: it names the user, the right and the folder.
    "AccessControlException": (PermissionError, None),
    "ParentNotDirectoryException": (NotADirectoryError, errno.ENOTDIR),
    "DSQuotaExceededException": (OSError, errno.EDQUOT),
    "NSQuotaExceededException": (OSError, errno.EDQUOT),
}


def open_hdfs(authority: str) -> Any:
    """Return the file system of a namenode HOST:PORT, of a name service, or of `fs.defaultFS` if that is empty.

    Name services, `fs.defaultFS` and settings are read from core-site.xml and hdfs-site.xml in `HADOOP_CONF_DIR`.

    Raises:
        ValueError: there is no such name service, or the address names a user.
    """
    if "@" in authority:
        raise ValueError("addresses of HDFS name no user: remove it, and set the environment variable HADOOP_USER_NAME")
    try:
        client = hdfs_native.Client(f"hdfs://{authority}", _RETRIES)
    except RuntimeError as error:
        raise ValueError(
            f"{error}: name a namenode with its port (hdfs://HOST:8020/...) or a name service of HADOOP_CONF_DIR"
        ) from None
    return pafs.PyFileSystem(_Handler(client, authority))


class _Handler(pafs.FileSystemHandler):  # type: ignore[misc]
    """The calls of `pyarrow.fs.PyFileSystem`. Errors are of the class OSError."""

    def __init__(self, client: hdfs_native.Client, authority: str) -> None:
        self._client = client
        self._authority = authority

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Handler) and other._authority == self._authority

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]

    def get_type_name(self) -> str:
        return "hdfs"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        base = self._info(selector.base_dir)
        if base.type == pafs.FileType.NotFound:
            if selector.allow_not_found:
                return []
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), selector.base_dir)
        if base.type == pafs.FileType.File:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), selector.base_dir)
        found = _call(lambda: list(self._client.list_status(selector.base_dir, selector.recursive)))
        return [_file_info(status) for status in found]

    def create_dir(self, path: str, recursive: bool) -> None:
        _call(lambda: self._client.mkdirs(path, _FOLDER_PERMISSION, recursive))

    def delete_dir(self, path: str) -> None:
        self._delete(path, recursive=True)

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:
        selector = pafs.FileSelector(path, allow_not_found=missing_dir_ok)
        for info in self.get_file_info_selector(selector):
            self._delete(info.path, recursive=True)

    def delete_root_dir_contents(self) -> NoReturn:
        raise io.UnsupportedOperation("all of HDFS is never deleted")

    def delete_file(self, path: str) -> None:
        self._delete(path, recursive=False)

    def move(self, src: str, dest: str) -> None:
        _call(lambda: self._client.rename(src, dest, overwrite=True))

    def copy_file(self, src: str, dest: str) -> NoReturn:
        raise io.UnsupportedOperation("HDFS does not copy files")

    def open_input_stream(self, path: str) -> Any:
        return self.open_input_file(path)

    def open_input_file(self, path: str) -> Any:
        return pyarrow.PythonFile(_Reader(_call(lambda: self._client.read(path))), mode="r")

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        options = hdfs_native.WriteOptions(overwrite=True)
        return pyarrow.PythonFile(_Writer(_call(lambda: self._client.create(path, options))), mode="w")

    def open_append_stream(self, path: str, metadata: Any) -> NoReturn:
        raise io.UnsupportedOperation("files are written in one go")

    def _info(self, path: str) -> Any:
        try:
            return _file_info(_call(lambda: self._client.get_file_info(path)))
        except FileNotFoundError:
            return pafs.FileInfo(path, pafs.FileType.NotFound)

    def _delete(self, path: str, *, recursive: bool) -> None:
        if not _call(lambda: self._client.delete(path, recursive)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


class _Reader(io.RawIOBase):
    """A file that is read through a buffer."""

    def __init__(self, file: hdfs_native.FileReader) -> None:
        self._file = file
        self._size = len(file)
        self._position = 0
        self._kept, self._kept_from = b"", 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        left = max(0, self._size - self._position)
        size = left if size is None or size < 0 else min(size, left)
        if not size:
            return b""  # the client aborts the thread where a range ends behind the file
        start = self._position - self._kept_from
        if not 0 <= start <= start + size <= len(self._kept):
            count = min(left, max(size, _BUFFER_BYTES))
            self._kept = _call(lambda: self._file.read_range(self._position, count))
            self._kept_from, start = self._position, 0
        self._position += size
        return self._kept[start : start + size]


class _Writer(io.RawIOBase):
    """A file that is written from its start to its end."""

    def __init__(self, file: hdfs_native.FileWriter) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE_BYTES):
            piece = view[start : start + _PIECE_BYTES]
            _call(lambda piece=piece: self._file.write(piece))  # type: ignore[misc]
        return len(view)

    def close(self) -> None:
        if self.closed:
            return
        super().close()
        _call(self._file.close)


def _file_info(status: hdfs_native.FileStatus) -> Any:
    if status.isdir:
        return pafs.FileInfo(status.path, pafs.FileType.Directory)
    mtime_ns = status.modification_time * 10**6  # from milliseconds
    return pafs.FileInfo(status.path, pafs.FileType.File, mtime_ns=mtime_ns, size=status.length)


def _call(function: Callable[[], T]) -> T:
    """Call the client, again and again while the namenode is in safe mode.

    Raises:
        OSError: it fails, without Java's stack traces; or it does not return in time (ETIMEDOUT).
    """
    for _ in range(_SAFE_MODE_ATTEMPTS - 1):
        try:
            return _call_once(function)
        except OSError as error:
            if _SAFE_MODE not in str(error):
                raise
        time.sleep(_SAFE_MODE_PAUSE_SECONDS)
    return _call_once(function)


def _call_once(function: Callable[[], T]) -> T:
    outcome: SimpleQueue[tuple[T | None, BaseException | None]] = SimpleQueue()

    def run() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=run, name="hdfs", daemon=True).start()
    try:
        result, failure = outcome.get(timeout=_PATIENCE_SECONDS)
    except Empty:
        raise OSError(errno.ETIMEDOUT, f"HDFS has not answered for {_PATIENCE_SECONDS} s") from None
    if failure is not None:
        raise _translated(failure) from None
    return cast(T, result)


def _translated(error: BaseException) -> BaseException:
    """An error of the client as one of the operating system."""
    if isinstance(error, OSError) and error.errno is None:
        number = {FileNotFoundError: errno.ENOENT, FileExistsError: errno.EEXIST}.get(type(error))
        return _error(type(error), number, str(error))
    if isinstance(error, RuntimeError):
        found = _OF_NAMENODE.search(str(error))
        kind, text = (found[1], found[2].replace(r"\n", "\n").replace(r"\"", '"')) if found else ("", str(error))
        return _error(*_CLASSES.get(kind, (OSError, None)), text)
    return error


def _error(kind: type[OSError], number: int | None, text: str) -> OSError:
    line = text.strip().partition("\n")[0]
    return kind(line) if number is None else kind(number, line)
