"""Packing a folder of code: the same files give the same bytes at any time, on any machine and for any user.

Times, owners and the order of the file system do not count. Left out are the files that no job needs (`_EXCLUDED`) and
those that the folder's `.heterpsignore` names, in a simple form of `.gitignore`: one pattern per line, `#` for
comments, `*`, `?` and `[...]` within a name. A pattern with a slash before its end is meant from the root, others
everywhere.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import posixpath
import stat
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from heterps_operator.errors import UsageError
from heterps_operator.formatting import format_bytes
from heterps_runtime.contract import CODE_MOST_ARCHIVE_BYTES, CODE_MOST_BYTES, CODE_MOST_FILES

__all__ = ["IGNORE_FILE", "PackedCode", "pack"]

IGNORE_FILE = ".heterpsignore"
# Caches, histories, environments, and files that hold secrets.
_EXCLUDED = (
    ".git", ".hg", ".svn", "__pycache__", "*.py[co]", ".venv", "venv", ".env", ".heterps", ".cache", ".mypy_cache",
    ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".tox", ".nox", ".idea", ".vscode", ".DS_Store",
    "node_modules", "*.egg-info",
)  # fmt: skip
_ENVIRONMENT = "pyvenv.cfg"  # marks a virtual environment, whatever its name
_BEGINNING = (1980, 1, 1, 0, 0, 0)  # of zip's time
_UNIX = 3  # system of the modes
_LEVEL = 9
_MOST_SEEN = 10 * CODE_MOST_FILES  # then the folder is not code, and counting on would take minutes
_SHOWN = 5


@dataclass(frozen=True)
class PackedCode:
    """A folder as a zip archive."""

    folder: Path
    data: bytes
    files: tuple[tuple[str, int], ...]  # name and bytes of each file

    @property
    def sha256(self) -> str:
        """Digest of the archive, hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    def biggest(self) -> str:
        """The biggest files, for messages."""
        return _biggest(self.files)


def pack(folder: Path) -> PackedCode:
    """Pack a folder.

    Raises:
        UsageError: it does not exist, has no files, too many or too large ones, or something that cannot be packed.
    """
    if not folder.is_dir():
        raise UsageError(f"--code {folder}: is no folder; name the folder that Python imports from")
    patterns = _patterns(folder)
    names, files = [], []
    for name, status in _walk(folder, "", patterns):
        names.append((name, status.st_mode))
        files.append((name, status.st_size))
        if len(files) > _MOST_SEEN:
            break
    if not files:
        raise UsageError(f"--code {folder}: has no files to pack (see {IGNORE_FILE} and docs/cli.md); check the path")
    total, hint = sum(size for _, size in files), f"name others in {folder / IGNORE_FILE}, or keep them elsewhere"
    if len(files) > CODE_MOST_FILES:
        count = f"more than {_MOST_SEEN}" if len(files) > _MOST_SEEN else str(len(files))
        text = f"--code {folder}: has {count} files, the limit is {CODE_MOST_FILES}; most are in {_fullest(files)}"
        raise UsageError(f"{text}; {hint}")
    if total > CODE_MOST_BYTES:
        text = f"--code {folder}: has {format_bytes(total)}, the limit is {format_bytes(CODE_MOST_BYTES)}"
        raise UsageError(f"{text}; the biggest files are {_biggest(files)}; {hint}")
    _check_links(folder, names)
    data = _archive(folder, sorted(names, key=lambda item: os.fsencode(item[0])))
    packed = PackedCode(folder, data, tuple(sorted(files)))
    if len(data) > CODE_MOST_ARCHIVE_BYTES:
        text = f"--code {folder}: has {format_bytes(len(data))} packed, the limit is "
        text += format_bytes(CODE_MOST_ARCHIVE_BYTES)
        raise UsageError(f"{text}; the biggest files are {packed.biggest()}; {hint}")
    return packed


def _walk(folder: Path, prefix: str, patterns: Sequence[str]) -> Iterator[tuple[str, os.stat_result]]:
    """Yield relative name and status of all files and links that are not excluded."""
    try:
        entries = sorted(os.scandir(folder / prefix), key=lambda entry: entry.name)
    except OSError as error:
        raise _unusable(folder / prefix, f"cannot be read ({error.strerror})", "check its permissions") from error
    if prefix and any(entry.name == _ENVIRONMENT for entry in entries):
        return
    for entry in entries:
        name = f"{prefix}{entry.name}"
        if _excluded(name, entry.is_dir(follow_symlinks=False), patterns):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(folder, f"{name}/", patterns)
            continue
        status = entry.stat(follow_symlinks=False)
        if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            raise _unusable(folder / name, "is neither a file nor a folder", f"name it in {IGNORE_FILE}")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise _unusable(folder / name, "has a name that is not UTF-8", "rename it") from None
        yield name, status


def _archive(folder: Path, names: Sequence[tuple[str, int]]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, mode in names:
            info = zipfile.ZipInfo(name, _BEGINNING)
            info.create_system = _UNIX
            info.compress_type = zipfile.ZIP_DEFLATED
            if stat.S_ISLNK(mode):
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
                content = os.fsencode(os.readlink(folder / name))
            else:
                executable = mode & stat.S_IXUSR
                info.external_attr = (stat.S_IFREG | (0o755 if executable else 0o644)) << 16
                content = _read(folder / name)
            archive.writestr(info, content, compresslevel=_LEVEL)
    return buffer.getvalue()


def _check_links(folder: Path, names: Sequence[tuple[str, int]]) -> None:
    """Refuse links to what is not packed: the pods have nothing else."""
    packed = {name for name, _ in names}
    packed |= {parent for name in packed for parent in _parents(name)}
    for name, mode in names:
        if stat.S_ISLNK(mode):
            target = os.readlink(folder / name)
            parts = target.split("/")
            up = next((i for i, part in enumerate(parts) if part != ".."), len(parts))
            plain = up <= name.count("/") and all(part not in ("", "..") for part in parts[up:])
            if not plain or posixpath.normpath(f"{posixpath.dirname(name)}/{target}").lstrip("/") not in packed:
                fix = f"replace it by the file, or name it in {IGNORE_FILE}"
                raise _unusable(folder / name, f"is a link to {target}, which is not packed", fix)


def _parents(name: str) -> Iterator[str]:
    while name := posixpath.dirname(name):
        yield name


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        fix = f"check its permissions, or name it in {IGNORE_FILE}"
        raise _unusable(path, f"cannot be read ({error.strerror})", fix) from error


def _patterns(folder: Path) -> list[str]:
    """Return the patterns of the ignore file."""
    file = folder / IGNORE_FILE
    if not file.exists():
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(file, f"cannot be read ({error})", "save it as UTF-8 text") from error
    patterns = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for pattern in patterns:
        if pattern.startswith("!") or "**" in pattern:
            raise _unusable(file, f"has the pattern {pattern}: ! and ** are not supported", "name what to leave out")
    return patterns


def _excluded(name: str, is_folder: bool, patterns: Sequence[str]) -> bool:
    base = name.rpartition("/")[2]
    if any(fnmatch.fnmatchcase(base, pattern) for pattern in _EXCLUDED):
        return True
    for pattern in patterns:
        plain = pattern.removesuffix("/")
        if pattern != plain and not is_folder:
            continue
        if "/" not in plain:
            if fnmatch.fnmatchcase(base, plain):
                return True
        elif _fits(name, plain.removeprefix("/")):
            return True
    return False


def _fits(name: str, pattern: str) -> bool:
    """Whether a path fits a pattern part by part, as `*` stands for no slash."""
    parts, wanted = name.split("/"), pattern.split("/")
    return len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _unusable(path: Path, why: str, fix: str) -> UsageError:
    return UsageError(f"--code: {path} {why}; {fix}")


def _biggest(files: Sequence[tuple[str, int]]) -> str:
    chosen = sorted(files, key=lambda file: (-file[1], file[0]))[:_SHOWN]
    return ", ".join(f"{name} ({format_bytes(size)})" for name, size in chosen)


def _fullest(files: Sequence[tuple[str, int]]) -> str:
    counts: dict[str, int] = {}
    for name, _ in files:
        top = name.partition("/")[0]
        counts[top] = counts.get(top, 0) + 1
    chosen = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:_SHOWN]
    return ", ".join(f"{name} ({number})" for name, number in chosen)
