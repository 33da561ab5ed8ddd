"""`heterps operator`: run the controller of a cluster."""

from __future__ import annotations

import functools
import gc
import logging
import os
import resource
import socket
import threading
import uuid
from argparse import Namespace
from collections.abc import Callable
from contextlib import closing
from importlib import metadata
from pathlib import Path

import kopf

from heterps_operator.cli.log_format import log_to_stderr
from heterps_operator.cli.signals import ends_in_order
from heterps_operator.controller.capacity.pool_file import PoolFile
from heterps_operator.controller.context import OperatorContext
from heterps_operator.controller.lease import Lease
from heterps_operator.controller.planners import QueuedPlanner
from heterps_operator.controller.scratch import ScratchFolder
from heterps_operator.controller.stores.devices import DeviceStores
from heterps_operator.controller.supervisor import Supervisor
from heterps_operator.controller.time_of_day import follow_api_server
from heterps_operator.controller.watches import watch
from heterps_operator.kubernetes.api import KubernetesApi, connect
from heterps_operator.kubernetes.rate_limit import RateLimiter
from heterps_operator.local.planner import planner_server
from heterps_operator.loop.coordinator_client import CoordinatorClient
from heterps_operator.measure.measurement import Measurement, PrometheusServer
from heterps_operator.measure.metrics import MetricsServer, OperatorMetrics
from heterps_runtime.contract import EXIT_FAILED, EXIT_OK
from heterps_runtime.malloc import share_arenas

__all__ = ["operator"]

_LOG = logging.getLogger("heterps.operator")
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_DEFAULT_NAMESPACE = "heterps-system"
_ATTEMPTS_PER_LEASE = 5  # a request on a dead connection must leave time for another attempt
_ARENAS = 2  # of malloc: more fragment with what turns allocate, 84 MB with five hundred jobs (docs/operator.md)
_GC_THRESHOLDS = (20_000, 20, 50)  # allocations, and younger collections


def operator(options: Namespace) -> int:
    """Manage the jobs of a cluster until SIGTERM; return the exit code.

    Raises:
        ManifestError: the pool file cannot be used.
    """
    log_to_stderr(options.log_format, verbose=options.verbose)
    pool_file = None if options.pools is None else PoolFile(options.pools)
    share_arenas(_ARENAS)
    gc.set_threshold(*_GC_THRESHOLDS)  # full collections look at the documents of all jobs (docs/operator.md)
    _allow_connections()
    metrics = OperatorMetrics(metadata.version("heterps"))
    limit = RateLimiter(options.kube_api_qps, options.kube_api_burst).wait
    api = connect(options.kubeconfig, options.context, on_request=metrics.on_request, limit=limit)
    measurement = _measurement(options)
    namespace = options.lease_namespace or _own_namespace()
    identity = f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"
    attempt = api.impatient(options.lease_seconds / _ATTEMPTS_PER_LEASE)
    lease = Lease(attempt, namespace, options.lease_name, identity, seconds=options.lease_seconds)
    stop, failed = threading.Event(), threading.Event()
    active: list[Supervisor] = []

    def trouble() -> str | None:
        return active[0].trouble() if active else None  # a replica that waits for the Lease is healthy

    with ends_in_order(stop.set), closing(MetricsServer(metrics.registry, options.metrics_port, trouble)):
        _LOG.info("waiting for the Lease %s/%s as %s", namespace, options.lease_name, identity)
        if not lease.acquire(stop):
            return EXIT_OK
        metrics.set_leader(True)
        follow_api_server(attempt)  # a request that hangs must not cost the Lease
        _LOG.info("active: %s", ", ".join(options.namespace) or "all namespaces")
        if pool_file is not None:
            _LOG.info("nodes are not read: maxUnits alone limits a pool, and no job leaves a node when it is cordoned")

        def give_up() -> None:
            _LOG.error("the Lease %s/%s was not renewed in time, or is lost; exiting", namespace, options.lease_name)
            failed.set()
            stop.set()

        devices = DeviceStores() if options.dynamic_resource_allocation and pool_file is None else None
        keeper = threading.Thread(target=lease.keep, args=(stop, give_up), name="lease", daemon=True)
        keeper.start()
        scratch = ScratchFolder()
        planner = planner_server()
        make_planner = functools.partial(QueuedPlanner, program=planner, prepare=scratch.make)
        cluster = OperatorContext(
            api.fenced(lease.is_held),
            scratch.path,
            namespace,
            options.metrics_from,
            pool_file,
            most_planners=options.max_planners,
            longest_planning=options.max_planner_seconds,
            planner_memory_bytes=options.planner_memory_mib << 20,
            backfill_seconds=options.backfill_seconds,
            metrics=metrics,
            measurement=measurement,
            connect=functools.partial(CoordinatorClient, may_act=lease.is_held),
            make_planner=make_planner,
            make_line_planner=make_planner,
            devices=devices,
        )
        supervisor = Supervisor(cluster, namespaces=options.namespace, threads=options.max_concurrent_turns)

        def watching() -> None:
            try:
                watch(
                    supervisor.reflector,
                    stop,
                    namespaces=options.namespace,
                    cluster_scoped=pool_file is None,
                    devices=devices is not None,
                    login=lambda: _connection(api),
                )
            finally:  # an operator without watches is useless
                if not stop.is_set():
                    failed.set()
                stop.set()

        # Not in the main thread, where kopf would install its own signal handlers.
        watcher = threading.Thread(target=watching, name="watch", daemon=True)
        try:
            planner.launch()
            supervisor.start()
            active.append(supervisor)
            watcher.start()
            stop.wait()
        finally:
            stop.set()
            supervisor.stop()
            for thread in (watcher, keeper):
                if thread.is_alive():  # not if startup failed before it
                    thread.join(timeout=10)
            planner.close()
            lease.release()  # after the last turn has ended
            scratch.close()
    return EXIT_FAILED if failed.is_set() else EXIT_OK


def _allow_connections() -> None:
    """Raise the limit of open files as far as allowed: each running job has a connection, and 1,024 files are usual."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    except (OSError, ValueError) as error:  # the kernel's own limit, fs.nr_open, is lower
        _LOG.warning("the limit of open files cannot be raised to %d: %s", most, error)


def _measurement(options: Namespace) -> Callable[[str, str], Measurement | None]:
    """Return the source of measurements: a Prometheus server, or the coordinators' own metrics."""
    if options.prometheus_url is None:
        return lambda namespace, name: None
    token_file, ca_file = options.prometheus_token_file, options.prometheus_ca_file
    return PrometheusServer(options.prometheus_url, token_file=token_file, ca_file=ca_file).of


def _connection(api: KubernetesApi) -> kopf.ConnectionInfo:
    """Return the connection for kopf with the client's credentials; called again when a token has expired."""
    configuration = api.configuration
    # A kubeconfig's token starts with "Bearer ", a service account's with "bearer ".
    header = configuration.get_api_key_with_prefix("BearerToken") or ""
    scheme, _, token = header.partition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        username=configuration.username or None,
        password=configuration.password or None,
        token=(token if scheme.lower() == "bearer" else header) or None,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
    )


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() or _DEFAULT_NAMESPACE
    except OSError:
        return _DEFAULT_NAMESPACE
