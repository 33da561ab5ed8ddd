"""Addresses of stores: who opens them, with which options, and what is refused. No server is asked."""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from heterps_runtime.contract import CREDENTIALS_FIX
from heterps_runtime.data.errors import DataError
from heterps_runtime.data.files import find_files
from heterps_runtime.filesystems import AddressError, first_line, open_address
from heterps_runtime.storage import Storage, StorageAddressError
from tests.heterps_runtime.helpers.data_files import make_spec

AZURE = "abfs://container@account.dfs.core.windows.net/a/b"


def options(address: str) -> dict[str, Any]:
    filesystem, _ = open_address(address)
    _, (values,) = filesystem.__reduce__()
    return dict(values)


@pytest.mark.parametrize(
    ("address", "kind", "path"),
    [
        ("/data/train", "local", "/data/train"),
        ("file:///data/train", "local", "/data/train"),
        ("s3://bucket/a/b?region=eu-west-1", "s3", "bucket/a/b"),
        ("gs://anonymous@bucket/a/b", "gcs", "bucket/a/b"),
        (AZURE, "abfs", "container/a/b"),
        ("abfss://account.blob.core.windows.net/container/a", "abfs", "container/a"),
        ("hdfs://namenode:8020/a%20b", "py::hdfs", "/a b"),
        ("hdfs://namenode:8020", "py::hdfs", "/"),
    ],
)
def test_an_address_leads_to_the_client_of_its_store(address: str, kind: str, path: str) -> None:
    filesystem, found = open_address(address)
    assert (filesystem.type_name, found) == (kind, path)


def test_requests_to_gcs_are_not_repeated_for_a_quarter_of_an_hour() -> None:
    assert options("gs://bucket/a")["retry_time_limit"] == timedelta(seconds=15)
    assert options("gs://bucket/a?retry_limit_seconds=3")["retry_time_limit"] == timedelta(seconds=3)


def test_azure_takes_a_key_or_a_token_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    assert (options(AZURE)["account_key"], options(AZURE)["sas_token"]) == ("", "")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?sv=1&sig=2")
    assert options(AZURE)["sas_token"] == "?sv=1&sig=2"
    monkeypatch.setenv("AZURE_STORAGE_KEY", "a2V5")
    assert (options(AZURE)["account_key"], options(AZURE)["sas_token"]) == ("a2V5", "")
    assert options(f"{AZURE}?client_id=mine")["account_key"] == "", "the address chooses an identity"
    assert options(f"{AZURE}?credential_kind=workload_identity")["account_key"] == ""


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("hdfs://user@namenode:8020/a", "addresses of HDFS name no user: .*HADOOP_USER_NAME"),
        ("hdfs://nameservice/a", r"name a namenode with its port .* or a name service of HADOOP_CONF_DIR"),
        ("abfs://container/a", "account name"),
        ("gs://bucket/a?nosuch=1", "nosuch"),
        ("nosuch://a/b", "nosuch"),
    ],
)
def test_an_address_that_leads_nowhere_is_the_users_error_for_storage_and_data(
    address: str, reason: str, tmp_path: Path
) -> None:
    place = address.partition("?")[0]
    with pytest.raises(StorageAddressError, match=f"the address of a storage: {place}: .*{reason}.*; use a local path"):
        Storage.open(address)
    with pytest.raises(DataError, match=rf"spec\.data\.train: {place}: .*{reason}.*; use a local path"):
        find_files(make_spec(tmp_path, address), "train")


def test_credentials_in_an_address_are_refused_for_storage_and_data(tmp_path: Path) -> None:
    with pytest.raises(StorageAddressError, match="credentials do not belong") as refused:
        Storage.open("s3://key:secret@bucket/a")
    assert CREDENTIALS_FIX in str(refused.value)
    with pytest.raises(DataError, match=r"spec\.data\.train: credentials do not belong"):
        find_files(make_spec(tmp_path, "s3://key:secret@bucket/a"), "train")


def test_without_its_package_an_address_of_hdfs_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "heterps_runtime.hdfs", raising=False)
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(AddressError, match=r"hdfs://n:1/a: HDFS needs the package hdfs-native: pip install"):
        open_address("hdfs://n:1/a")


def test_an_error_is_its_first_line_without_a_clients_details() -> None:
    told = "google::cloud::Status(UNAVAILABLE: away error_info={reason=, domain=, metadata={a=b}})\nmore"
    assert first_line(OSError(told)) == "google::cloud::Status(UNAVAILABLE: away"
    assert first_line(OSError()) == "OSError"
