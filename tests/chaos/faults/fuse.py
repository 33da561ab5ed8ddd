"""A file system that passes requests on to a backing folder, and may fail or delay them.

It speaks the kernel's FUSE protocol (version 7.31, structures and numbers of <linux/fuse.h>) over /dev/fuse without a
library: as much of it as the work directory of a job needs.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["Mount", "Request"]

_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2
_READ_BYTES = 1 << 18  # more than the kernel sends at once
_MAX_WRITE_BYTES = 1 << 17
_ROOT = 1
_BIG_WRITES = 1 << 5
_HEADER = struct.Struct("<IIQQIIII")
_ATTRIBUTES = struct.Struct("<6Q10I")
_ENTRY = struct.Struct("<4Q2I")
_NAMES = {
    1: "lookup", 3: "getattr", 4: "setattr", 9: "mkdir", 10: "unlink", 11: "rmdir", 12: "rename", 14: "open",
    15: "read", 16: "write", 17: "statfs", 18: "release", 20: "fsync", 25: "flush", 26: "init", 27: "opendir",
    28: "readdir", 29: "releasedir", 30: "fsyncdir", 34: "access", 35: "create", 45: "rename2",
}  # fmt: skip
_UNANSWERED = frozenset({2, 36, 42})  # forget, interrupt, batch_forget
_SET_MODE, _SET_SIZE, _SET_TIMES = 1 << 0, 1 << 3, (1 << 4) | (1 << 5)


class Request:
    """A request to change or sync a file.

    Attributes:
        op: `create`, `mkdir`, `write`, `fsync` or `rename`.
        path: of the file below the mount; of `rename`, the new one.
        pid: of the process.
        source: of `rename`: the old path.
    """

    def __init__(self, op: str, path: str, pid: int, source: str = "") -> None:
        self.op = op
        self.path = path
        self.pid = pid
        self.source = source


class Mount:
    """A mounted file system, served by a thread of this process.

    This process must not map files of the mount into memory (read the backing folder instead): during a page fault it
    holds the interpreter lock, for which the thread that would answer waits.

    Args:
        point: an empty folder.
        backing: holds the files.
        before: called before a change; raises OSError to refuse it, and returns the seconds to wait before it.
        cut: returns how many bytes of a write to carry out before it fails with EIO; None: all.
    """

    def __init__(
        self,
        point: Path,
        backing: Path,
        before: Callable[[Request], float],
        cut: Callable[[Request, int], int | None],
    ) -> None:
        self._backing = str(backing)
        self._before = before
        self._cut = cut
        self._paths = {_ROOT: ""}  # node -> path below the mount
        self._nodes = {"": _ROOT}
        self._point = str(point)
        self._lock = threading.Lock()
        self._device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        options = f"fd={self._device},rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions"
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"chaos", self._point.encode(), b"fuse", _MS_NOSUID | _MS_NODEV, options.encode()):
            raise OSError(ctypes.get_errno(), "mount", self._point)
        self._thread = threading.Thread(target=self._serve, name="fuse", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Unmount, and end the thread."""
        ctypes.CDLL(None).umount2(self._point.encode(), _MNT_DETACH)
        self._thread.join()
        os.close(self._device)

    # --- requests -----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        while True:
            try:
                data = os.read(self._device, _READ_BYTES)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.EINTR, errno.EAGAIN):
                    continue  # the request was interrupted before it was read
                return  # ENODEV: unmounted
            _, opcode, unique, node, _, _, pid, _ = _HEADER.unpack_from(data)
            if opcode not in _UNANSWERED:
                self._answer(_NAMES.get(opcode, ""), unique, node, pid, data[_HEADER.size :])

    def _answer(self, name: str, unique: int, node: int, pid: int, body: bytes) -> None:
        handler = getattr(self, f"_do_{name}", None)
        try:
            if handler is None:
                raise OSError(errno.ENOSYS, "not supported")
            wait = self._permit(name, node, pid, body)
            if wait:  # other requests must not wait for this one
                arguments = (handler, unique, node, pid, body, wait)
                threading.Thread(target=self._carry_out, args=arguments, daemon=True).start()
                return
        except OSError as error:
            self._reply(unique, -(error.errno or errno.EIO), b"")
            return
        self._carry_out(handler, unique, node, pid, body)

    def _carry_out(
        self,
        handler: Callable[[int, int, bytes], bytes],
        unique: int,
        node: int,
        pid: int,
        body: bytes,
        wait: float = 0.0,
    ) -> None:
        if wait:
            time.sleep(wait)
        try:
            self._reply(unique, 0, handler(node, pid, body))
        except OSError as error:
            self._reply(unique, -(error.errno or errno.EIO), b"")
        except KeyError:
            self._reply(unique, -errno.ESTALE, b"")

    def _reply(self, unique: int, error: int, body: bytes) -> None:
        try:
            os.write(self._device, struct.pack("<IiQ", 16 + len(body), error, unique) + body)
        except OSError as failure:
            if failure.errno not in (errno.ENOENT, errno.ENODEV):  # the caller was killed, or the mount is gone
                raise

    def _permit(self, name: str, node: int, pid: int, body: bytes) -> float:
        """Ask whether a change may happen; returns the seconds to wait before it."""
        match name:
            case "create":
                return self._before(Request("create", self._child(node, body[16:]), pid))
            case "mkdir":
                return self._before(Request("mkdir", self._child(node, body[8:]), pid))
            case "write" | "fsync":
                return self._before(Request(name, self._path(node), pid))
            case "rename" | "rename2":
                source, target = self._rename_paths(node, body, 8 if name == "rename" else 16)
                return self._before(Request("rename", target, pid, source))
        return 0.0

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _path(self, node: int) -> str:
        with self._lock:
            path = self._paths.get(node)
        if path is None:
            raise OSError(errno.ESTALE, "deleted")
        return path

    def _real(self, node: int) -> str:
        return f"{self._backing}/{self._path(node)}"

    def _child(self, node: int, name: bytes) -> str:
        parent, text = self._path(node), os.fsdecode(name.split(b"\0", 1)[0])
        return f"{parent}/{text}" if parent else text

    def _node_of(self, path: str) -> int:
        with self._lock:
            node = self._nodes.setdefault(path, len(self._paths) + 1)
            self._paths[node] = path
            return node

    def _rename_paths(self, node: int, body: bytes, skip: int) -> tuple[str, str]:
        (parent,) = struct.unpack_from("<Q", body)
        old, new = body[skip:].split(b"\0")[:2]
        return self._child(node, old), self._child(parent, new)

    def _entry(self, path: str) -> bytes:
        attributes = self._attributes(os.lstat(f"{self._backing}/{path}"))
        return _ENTRY.pack(self._node_of(path), 0, 0, 0, 0, 0) + attributes

    @staticmethod
    def _attributes(stat: os.stat_result) -> bytes:
        times = [divmod(t, 10**9) for t in (stat.st_atime_ns, stat.st_mtime_ns, stat.st_ctime_ns)]
        return _ATTRIBUTES.pack(
            stat.st_ino, stat.st_size, stat.st_blocks, *(s for s, _ in times), *(n for _, n in times),
            stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid, stat.st_rdev, 4096, 0,
        )  # fmt: skip

    # --- answers; each gets (node, pid, body) and returns the body of the reply ---------------------------------------

    def _do_init(self, node: int, pid: int, body: bytes) -> bytes:
        readahead = struct.unpack_from("<4I", body)[2]
        return struct.pack("<4I2H2I2H8I", 7, 31, readahead, _BIG_WRITES, 16, 12, _MAX_WRITE_BYTES, 1, 32, 0, *[0] * 8)

    def _do_lookup(self, node: int, pid: int, body: bytes) -> bytes:
        return self._entry(self._child(node, body))

    def _do_getattr(self, node: int, pid: int, body: bytes) -> bytes:
        handle = struct.unpack_from("<2IQ", body)
        stat = os.fstat(handle[2]) if handle[0] & 1 else os.lstat(self._real(node))  # a deleted file may be open
        return struct.pack("<Q2I", 0, 0, 0) + self._attributes(stat)

    def _do_setattr(self, node: int, pid: int, body: bytes) -> bytes:
        valid, _, _, size, _, access, modified = struct.unpack_from("<2I5Q", body)
        mode = struct.unpack_from("<I", body, 68)[0]
        path = self._real(node)
        if valid & _SET_MODE:
            os.chmod(path, mode & 0o7777)
        if valid & _SET_SIZE:
            os.truncate(path, size)
        if valid & _SET_TIMES == _SET_TIMES:
            os.utime(path, (access, modified))
        return struct.pack("<Q2I", 0, 0, 0) + self._attributes(os.lstat(path))

    def _do_mkdir(self, node: int, pid: int, body: bytes) -> bytes:
        path = self._child(node, body[8:])
        os.mkdir(f"{self._backing}/{path}", struct.unpack_from("<I", body)[0] & 0o7777)
        return self._entry(path)

    def _do_unlink(self, node: int, pid: int, body: bytes) -> bytes:
        os.unlink(f"{self._backing}/{self._child(node, body)}")
        self._forget(self._child(node, body))
        return b""

    def _do_rmdir(self, node: int, pid: int, body: bytes) -> bytes:
        os.rmdir(f"{self._backing}/{self._child(node, body)}")
        self._forget(self._child(node, body))
        return b""

    def _forget(self, path: str) -> None:
        """Let a later file of this name have another node; open files keep theirs."""
        with self._lock:
            self._nodes.pop(path, None)

    def _do_rename(self, node: int, pid: int, body: bytes, skip: int = 8) -> bytes:
        old, new = self._rename_paths(node, body, skip)
        os.replace(f"{self._backing}/{old}", f"{self._backing}/{new}")
        with self._lock:
            self._nodes.pop(new, None)
            for path, number in list(self._nodes.items()):
                if path == old or path.startswith(f"{old}/"):
                    del self._nodes[path]
                    self._paths[number] = new + path[len(old) :]
                    self._nodes[self._paths[number]] = number
        return b""

    def _do_rename2(self, node: int, pid: int, body: bytes) -> bytes:
        if struct.unpack_from("<I", body, 8)[0]:  # to exchange two names, say, which not every file system can
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return self._do_rename(node, pid, body, 16)

    def _do_open(self, node: int, pid: int, body: bytes) -> bytes:
        flags = struct.unpack_from("<I", body)[0] & (os.O_ACCMODE | os.O_APPEND | os.O_TRUNC)
        return struct.pack("<Q2I", os.open(self._real(node), flags | os.O_CLOEXEC), 0, 0)

    def _do_create(self, node: int, pid: int, body: bytes) -> bytes:
        flags, mode = struct.unpack_from("<2I", body)
        path = self._child(node, body[16:])
        # Reading too: the kernel reads pages that are written in part.
        wanted = flags & (os.O_EXCL | os.O_TRUNC) | os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        handle = os.open(f"{self._backing}/{path}", wanted, mode & 0o7777)
        return self._entry(path) + struct.pack("<Q2I", handle, 0, 0)

    def _do_read(self, node: int, pid: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<2QI", body)
        return os.pread(handle, size, offset)

    def _do_write(self, node: int, pid: int, body: bytes) -> bytes:
        handle, offset, size = struct.unpack_from("<2QI", body)
        data = body[40 : 40 + size]
        kept = self._cut(Request("write", self._path(node), pid), size)
        if kept is not None:
            os.pwrite(handle, data[:kept], offset)
            raise OSError(errno.EIO, "torn")
        return struct.pack("<2I", os.pwrite(handle, data, offset), 0)

    def _do_statfs(self, node: int, pid: int, body: bytes) -> bytes:
        s = os.statvfs(self._backing)
        numbers = (s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, s.f_bsize, s.f_namemax, s.f_frsize)
        return struct.pack("<5Q10I", *numbers, *[0] * 7)

    def _do_release(self, node: int, pid: int, body: bytes) -> bytes:
        os.close(struct.unpack_from("<Q", body)[0])
        return b""

    def _do_fsync(self, node: int, pid: int, body: bytes) -> bytes:
        return b""

    def _do_flush(self, node: int, pid: int, body: bytes) -> bytes:
        return b""

    def _do_opendir(self, node: int, pid: int, body: bytes) -> bytes:
        return struct.pack("<Q2I", 0, 0, 0)

    def _do_readdir(self, node: int, pid: int, body: bytes) -> bytes:
        _, offset, size = struct.unpack_from("<2QI", body)
        reply = b""
        with os.scandir(self._real(node)) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
        for number, entry in enumerate(listed[offset:], offset + 1):
            name = os.fsencode(entry.name)
            kind = 4 if entry.is_dir(follow_symlinks=False) else 8  # DT_DIR, DT_REG
            item = struct.pack("<2Q2I", entry.inode(), number, len(name), kind) + name
            item += b"\0" * (-len(item) % 8)
            if len(reply) + len(item) > size:
                break
            reply += item
        return reply

    def _do_releasedir(self, node: int, pid: int, body: bytes) -> bytes:
        return b""

    def _do_fsyncdir(self, node: int, pid: int, body: bytes) -> bytes:
        return b""

    def _do_access(self, node: int, pid: int, body: bytes) -> bytes:
        return b""
