"""One way from an address to a file system of pyarrow: for training data, checkpoints, code archives and models.

| address | client | credentials |
|---|---|---|
| a path, `file://` | pyarrow, local | |
| `s3://BUCKET/PATH` | pyarrow | `AWS_ACCESS_KEY_ID`, ..., or those of the machine; `AWS_ENDPOINT_URL` |
| `gs://BUCKET/PATH` | pyarrow | `GOOGLE_APPLICATION_CREDENTIALS`, or those of the machine |
| `abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH` | pyarrow | `AZURE_STORAGE_KEY`, `AZURE_CLIENT_ID`, ... |
| `hdfs://NAMENODE:PORT/PATH` | hdfs-native | `HADOOP_USER_NAME`, a Kerberos ticket, `HADOOP_CONF_DIR` |

pyarrow's own client for HDFS needs a JVM and Hadoop's jars (decision 78).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow
from pyarrow import fs as pafs

from heterps_runtime.contract import CREDENTIALS_FIX, CREDENTIALS_PATTERN
from heterps_runtime.errors import UserError

__all__ = ["AddressError", "first_line", "open_address"]

_FORMS = "use a local path or file://, s3://, gs://, abfs:// or hdfs://"
# Of requests that fail. The client's own limit is 15 minutes, in which a job seems to hang.
_GCS_RETRY_SECONDS = 15
# Environment variable -> option of pyarrow's client, which only reads those of identities (AZURE_CLIENT_ID, ...).
_AZURE_SECRETS = {"AZURE_STORAGE_KEY": "account_key", "AZURE_STORAGE_SAS_TOKEN": "sas_token"}
_AZURE_IDENTITY = ("account_key", "sas_token", "client_id", "client_secret", "tenant_id")


class AddressError(UserError):
    """A text that names no file system; the message repeats neither credentials nor options."""


def open_address(text: str) -> tuple[Any, str]:
    """Return the file system of a local path or an address, and the path in it. Most clients connect later.

    Raises:
        AddressError: the text contains credentials, its scheme is unknown, or its client cannot be loaded.
    """
    if "://" not in text:
        return pafs.LocalFileSystem(), os.path.abspath(text)
    if re.match(CREDENTIALS_PATTERN, text):
        raise AddressError(CREDENTIALS_FIX)
    shown = text.partition("?")[0]
    try:
        parts = urlsplit(text)
        if parts.scheme == "hdfs":
            return _hdfs(parts.netloc), unquote(parts.path) or "/"
        if parts.scheme == "s3" and "allow_delayed_open" not in parts.query:
            # A file below one part's size (10 MB) then takes one request instead of three.
            text += f"{'&' if parts.query else '?'}allow_delayed_open=true"
        filesystem, path = pafs.FileSystem.from_uri(text)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        reason = first_line(error).replace(text, shown)
        raise AddressError(f"{shown}: not a usable path or address: {reason}; {_FORMS}") from None
    except ImportError as error:
        raise AddressError(f"{shown}: HDFS needs the package hdfs-native: pip install hdfs-native ({error})") from None
    if parts.scheme == "s3":
        # Otherwise `write` fills a queue in memory without limit, and only `close` waits, however slow the network is.
        filesystem = _with_options(filesystem, {"background_writes": False})
    elif parts.scheme in ("gs", "gcs") and "retry_limit_seconds=" not in parts.query:
        filesystem = _with_options(filesystem, {"retry_time_limit": timedelta(seconds=_GCS_RETRY_SECONDS)})
    elif parts.scheme in ("abfs", "abfss") and "credential_kind=" not in parts.query:
        filesystem = _with_azure_secret(filesystem)
    return filesystem, path


def first_line(error: BaseException) -> str:
    """The first line of an error, without the details that clients of object stores add; its class if it is empty."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].partition(" error_info={")[0]


def _with_options(filesystem: Any, changes: Mapping[str, Any]) -> Any:
    """The same client with other values of options that no address can express."""
    rebuild, (options,) = filesystem.__reduce__()
    return rebuild({**options, **changes})


def _with_azure_secret(filesystem: Any) -> Any:
    """The same client with a key or token of the environment, unless the address chooses an identity."""
    _, (options,) = filesystem.__reduce__()
    if any(options[name] for name in _AZURE_IDENTITY):
        return filesystem
    for variable, option in _AZURE_SECRETS.items():
        if secret := os.environ.get(variable):
            return _with_options(filesystem, {option: secret})
    return filesystem


def _hdfs(authority: str) -> Any:
    """The client of a namenode HOST:PORT, of a name service, or without authority of `fs.defaultFS`."""
    # Only jobs on HDFS load its client, which is missing where pyarrow alone was installed to upload code.
    from heterps_runtime.hdfs import open_hdfs

    return open_hdfs(authority)
