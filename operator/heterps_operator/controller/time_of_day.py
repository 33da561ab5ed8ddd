"""The time of a cluster: that of its API server, on whichever node the operator runs."""

from __future__ import annotations

import logging

from heterps_operator.formatting import format_duration
from heterps_operator.kubernetes.api import ApiError, KubernetesApi
from heterps_runtime.clock import SteadyClock, steady_time

__all__ = ["follow_api_server"]

_LOG = logging.getLogger("heterps.operator")
_CLOCKS_AGREE_SECONDS = 2.0  # the API server tells whole seconds, and its answer takes a while
_HALF_A_SECOND = 0.5  # that whole seconds leave out on average


def follow_api_server(api: KubernetesApi, clock: SteadyClock = steady_time) -> None:
    """Take the API server's time if this machine's differs.

    An operator continues the bills and deadlines of its predecessor, which may have run on another node, and compares
    them with the times that the API server gave to pods.
    """
    try:
        now = api.server_time() + _HALF_A_SECOND
    except ApiError as error:
        _LOG.warning("jobs are dated by this machine's clock: %s", error)
        return
    ahead = clock() - now
    if abs(ahead) > _CLOCKS_AGREE_SECONDS:
        clock.set(now)
        _LOG.warning(
            "this machine's clock is %s %s the API server's, which dates jobs from now on",
            format_duration(abs(ahead)),
            "ahead of" if ahead > 0 else "behind",
        )
