"""Shared by the commands on a cluster: the client, and cleaned objects for output."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from heterps_operator.client.client import HeterPSClient
from heterps_operator.client.connection import connect
from heterps_operator.documents import Json

__all__ = ["cleaned", "open_client"]


def open_client(arguments: Namespace, namespace: str | None = None) -> HeterPSClient:
    """Return a client for the cluster and namespace of the options.

    Args:
        arguments: the command line.
        namespace: used if the command line names none.

    Raises:
        ClusterError: there is no kubeconfig, or no such context.
    """
    return connect(arguments.namespace or namespace, kubeconfig=arguments.kubeconfig, context=arguments.context)


def cleaned(item: Json) -> dict[str, Any]:
    """Return an object without `managedFields`, which is noise to readers."""
    return {**item, "metadata": {key: value for key, value in item["metadata"].items() if key != "managedFields"}}
