"""What the commands on a cluster share: their client, and how they print objects."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from heterps_operator.client.client import HeterPSClient
from heterps_operator.client.connection import connect
from heterps_operator.documents import Json

__all__ = ["cleaned", "open_client"]


def open_client(arguments: Namespace, namespace: str | None = None) -> HeterPSClient:
    """A client of what the options name.

    Args:
        arguments: the command line.
        namespace: if the command line names none.

    Raises:
        ClusterError: there is no kubeconfig, or no such context.
    """
    return connect(arguments.namespace or namespace, kubeconfig=arguments.kubeconfig, context=arguments.context)


def cleaned(item: Json) -> dict[str, Any]:
    """An object without the book-keeping of field owners, which nobody wants to read."""
    return {**item, "metadata": {key: value for key, value in item["metadata"].items() if key != "managedFields"}}
