"""The ports of a job's pods: one table for pods, Service and NetworkPolicy. Pure.

Every pod has an address of its own, so all of them use the same fixed ports. Names begin with the protocol, as service
meshes expect (`http`, `https`, `tcp`); `appProtocol` says the same where it has a standard name.

The connections that NCCL and gloo make among the workers of a stage that all-reduces are not in the table: these
libraries listen on ports that the kernel chooses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from heterps_operator.documents import Json
from heterps_operator.kubernetes.names import (
    COORDINATOR_PORT,
    MESSAGE_PORT,
    METRICS_PORT,
    RENDEZVOUS_PORT,
)
from heterps_operator.state.values import ProcessSpec
from heterps_runtime.contract import (
    ENV_MESSAGE_PORT,
    ENV_METRICS_PORT,
    ENV_RENDEZVOUS_PORT,
    DenseExchange,
    Role,
)

__all__ = ["container_ports", "port_variables", "service_ports"]


@dataclass(frozen=True)
class _Port:
    name: str  # at most 15 characters
    number: int
    roles: frozenset[str]
    app_protocol: str | None = None  # of IANA's list of service names


def container_ports(job: Json, spec: ProcessSpec, pool: Json | None, *, own_address: bool) -> list[dict[str, Any]]:
    """Return the ports that a process listens on.

    Args:
        job: the HeterPSJob.
        spec: the process.
        pool: its DevicePool; None for the coordinator.
        own_address: whether its pod shares its address with no other.
    """
    return [
        {"name": port.name, "containerPort": port.number, "protocol": "TCP"}
        for port in _of(job, spec, pool, own_address)
    ]


def service_ports(job: Json) -> list[dict[str, Any]]:
    """Return the ports of the job's Service."""
    return [
        {
            "name": port.name,
            "port": port.number,
            "protocol": "TCP",
            **({"appProtocol": port.app_protocol} if port.app_protocol else {}),
        }
        for port in _all(job)
    ]


def port_variables(job: Json, spec: ProcessSpec, pool: Json | None, *, own_address: bool) -> dict[str, str]:
    """Return the variables that tell a process its ports; see `container_ports`. Ports without one are arguments."""
    names = {MESSAGE_PORT: ENV_MESSAGE_PORT, RENDEZVOUS_PORT: ENV_RENDEZVOUS_PORT}
    if spec.role != Role.COORDINATOR:
        names[METRICS_PORT] = ENV_METRICS_PORT
    numbers = (port.number for port in _of(job, spec, pool, own_address))
    return {names[number]: str(number) for number in numbers if number in names}


def _all(job: Json) -> tuple[_Port, ...]:
    scheme = "https" if job["spec"].get("encryption") == "Required" else "http"
    members = frozenset({"ps", "worker"})
    return (
        _Port(scheme, COORDINATOR_PORT, frozenset({"coordinator"}), scheme),
        _Port("http-metrics", METRICS_PORT, members | {"coordinator"}, "http"),
        _Port("tcp-messages", MESSAGE_PORT, members | {"coordinator"}),
        _Port("tcp-rendezvous", RENDEZVOUS_PORT, frozenset({"worker"})),
    )


def _of(job: Json, spec: ProcessSpec, pool: Json | None, own_address: bool) -> list[_Port]:
    # A coordinator's arguments fix two of them wherever it runs: the operator and Prometheus have to find it.
    fixed = {COORDINATOR_PORT, METRICS_PORT} if spec.role == Role.COORDINATOR else set()
    return [
        port
        for port in _all(job)
        if spec.role in port.roles
        and (own_address or port.number in fixed)
        and (port.number != RENDEZVOUS_PORT or _all_reduces(spec, pool))
    ]


def _all_reduces(spec: ProcessSpec, pool: Json | None) -> bool:
    assert pool is not None, "a worker has one"
    exchange = spec.dense_exchange or DenseExchange.of_pool(pool["spec"]["deviceType"])
    return exchange == DenseExchange.ALL_REDUCE
