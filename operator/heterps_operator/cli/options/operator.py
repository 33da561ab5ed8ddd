"""Options of `heterps operator`. Imports only cheap modules, as every command builds this parser."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from pathlib import Path
from typing import Any

__all__ = ["add_operator_options"]


def add_operator_options(parser: ArgumentParser) -> None:
    """Add the options of `heterps operator`."""
    parser.add_argument("--namespace", action="append", default=[], help="manage jobs of this one only (repeatable)")
    parser.add_argument(
        "--pools",
        metavar="FILE",
        type=Path,
        help="DevicePools, instead of those of the cluster; neither they nor nodes are read from the API server",
    )
    parser.add_argument(
        "--dynamic-resource-allocation",
        action="store_true",
        help="read DeviceClasses, ResourceSlices and ResourceClaims, for DevicePools with a deviceClassName",
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="(default: the pod's service account, or $KUBECONFIG)")
    parser.add_argument("--context", metavar="NAME", help="of the kubeconfig (default: its current one)")
    parser.add_argument("--lease-name", default="heterps-operator", help="of the Lease that one replica holds")
    parser.add_argument("--lease-namespace", help="its namespace (default: the operator's own)")
    parser.add_argument(
        "--lease-seconds", type=_positive, default=15, help="after which another replica takes over (default: 15)"
    )
    parser.add_argument("--metrics-port", type=_port, default=8080, help="of /metrics and /healthz (default: 8080)")
    parser.add_argument(
        "--prometheus-url", metavar="URL", help="take the speeds of jobs from this server instead of their coordinators"
    )
    parser.add_argument("--prometheus-token-file", metavar="FILE", type=Path, help="bearer token to send to it")
    parser.add_argument("--prometheus-ca-file", metavar="FILE", type=Path, help="certificates to trust it by (https)")
    parser.add_argument(
        "--metrics-from",
        metavar="JSON",
        type=_peers,
        default=[{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}}}],
        help="NetworkPolicyPeers that read the metrics of jobs (default: Prometheus by its usual label; []: everyone)",
    )
    parser.add_argument("--max-concurrent-turns", type=_positive, default=8, help="jobs at a time (default: 8)")
    parser.add_argument("--max-planners", type=_positive, default=3, help="planner processes at a time (default: 3)")
    parser.add_argument(
        "--max-planner-seconds", type=_positive, default=600, help="of one planner, whatever a job says (default: 600)"
    )
    parser.add_argument(
        "--planner-memory-mib", type=_positive, default=256, help="address space of one planner (default: 256)"
    )
    parser.add_argument(
        "--backfill-seconds",
        type=_positive,
        default=300,
        help="how long later jobs of its priority may use units that a waiting job claims (default: 300)",
    )
    parser.add_argument(
        "--kube-api-qps", type=_positive, default=100, help="requests to the API server per second (default: 100)"
    )
    parser.add_argument(
        "--kube-api-burst", type=_positive, default=200, help="of them at once, after a pause (default: 200)"
    )
    parser.set_defaults(output="text")
    parser.add_argument("--log-format", choices=["text", "json"], default="text", help="of the log (default: text)")
    parser.add_argument("--verbose", action="store_true", help="log failed requests in detail and kopf's own messages")


def _peers(text: str) -> list[dict[str, Any]]:
    try:
        peers = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArgumentTypeError(f"must be JSON: {error}") from None
    if not isinstance(peers, list) or not all(isinstance(peer, dict) and peer for peer in peers):
        raise ArgumentTypeError("must be a list of NetworkPolicyPeers, is " + text)
    return peers


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"must be a whole number of at least 1, is {text!r}")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise ArgumentTypeError(f"must be a port, 0 to 65535, is {text!r}")
    return int(text)
